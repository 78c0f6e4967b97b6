//! The promises that need every byte of a title's stripes, on all members: units, parity, and the title that they make up.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use millrace_core::limits::REPAIR_ANSWER_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_core::units::Count;

use super::content::{SumCheck, SyncCheck, wrong_crc};
use super::crcs::CrcCheck;
use super::range_sums::GrainCheck;
use super::report::{CheckReport, Severity};
use super::title_check::remedy;
use crate::disk::ReadFaults;
use crate::format::manifest::{CRC_FILE, FileEntry, SUMS_FILE, meta_file};
use crate::grid::Grid;
use crate::meta::{CrcFile, MetaFile};
use crate::repair::reading::Reading;
use crate::repair::set::{TitleSet, Units};
use crate::repair::title::stripe_sums;
use crate::repair::work::Work;
use crate::repair::{RepairError, RepairProgress, Setting, Timekeeper};
use crate::sums::SumsFile;
use crate::volume::{open_crcs, open_meta, open_sums};

/// There is no rate limit here, so nothing waits.
#[derive(Default)]
struct NoWait(Cell<u64>);

impl Clock for NoWait {
    fn now(&self) -> Instant {
        Instant(self.0.get())
    }
}

impl Timekeeper for NoWait {
    fn wait_ns(&self, _ns: u64) {}
}

/// Reads the title's units on all members.
pub(super) fn check(set: &TitleSet, report: &mut CheckReport<'_>) {
    let (time, stop) = (NoWait::default(), AtomicBool::new(false));
    let tell = &mut |_: &RepairProgress| ();
    let setting = Setting {
        time: &time,
        stop: &stop,
        tell,
        faults: ReadFaults::default(),
        answer_ns: REPAIR_ANSWER_NS,
    };
    let mut work = Work::new(setting, 0);
    let before = report.progress.bytes_done;
    let is_alone = set.stripes.members() == 1;
    if let Err(error) = StripeLayout::look(set, report, &mut work) {
        let path = set.dir(0).unwrap_or_default();
        report.error("units_are_as_ingested", &path, error, remedy(&set.manifest));
    }
    // With one member the title has been counted when it was read as one file.
    report.progress.bytes_done = if is_alone { before } else { before + set.stripes.media_bytes() };
}

/// The state to verify against the stripes as they are read.
struct StripeLayout<'a> {
    media: MediaCheck<'a>,
    contradictions: u64,
    first: Option<u32>,
}

/// Checks of the whole title, while all of it could be read.
struct MediaCheck<'a> {
    whole: bool,
    hasher: blake3::Hasher,
    sums: Vec<SumCheck<'a>>,
    grains: Option<GrainCheck<'a>>,
    crcs: Option<CrcCheck<'a>>,
    sync: SyncCheck,
}

impl StripeLayout<'_> {
    fn look(set: &TitleSet, report: &mut CheckReport<'_>, work: &mut Work<'_>) -> Result<(), RepairError> {
        let files: Vec<(usize, Units)> = (0..set.homes.len())
            .filter(|&position| set.homes[position].is_some())
            .flat_map(|position| [(position, Units::Data), (position, Units::Parity)])
            .filter(|&(position, units)| set.entry(position, units).is_some())
            // With one member the title is a file of its own, which is looked at as such.
            .filter(|&(_, units)| set.stripes.members() > 1 || units == Units::Parity)
            .collect();
        let Some(sums) = stripe_sums(set, &[], work)?.filter(|sums| sums.know_parity(set)) else {
            return hashes_only(set, &files, report, work);
        };
        let mut reading = Reading::open(set, sums, work)?;
        let (metas, range_sums, crcs) = others(set);
        let mut stripes = StripeLayout {
            media: MediaCheck {
                whole: set.stripes.members() > 1,
                hasher: blake3::Hasher::new(),
                sums: metas.iter().map(SumCheck::new).collect(),
                grains: range_sums.as_ref().map(GrainCheck::new),
                crcs: crcs.as_ref().map(CrcCheck::new),
                sync: SyncCheck::default(),
            },
            contradictions: 0,
            first: None,
        };
        let start = report.progress.bytes_done;
        let mut stripe = 0;
        while stripe < set.stripes.stripes() {
            let next = set.stripes.stripes().min(stripe.saturating_add(Reading::stripes_at_once(set)));
            let grid = reading.load(set, stripe..next, work)?;
            (stripe..next).for_each(|stripe| stripes.take(set, stripe, grid));
            stripe = next;
            if set.stripes.members() > 1 {
                let media = (u64::from(stripe) * set.stripes.stripe_bytes()).min(set.stripes.media_bytes());
                report.progress.bytes_done = start + media;
            }
            (report.tell)(&report.progress);
        }
        for (position, units) in files {
            units_are_as_ingested(set, position, units, &reading, report);
        }
        stripes.end(set, report);
        Ok(())
    }

    fn take(&mut self, set: &TitleSet, stripe: u32, grid: &mut Grid) {
        let (k, units) = (set.stripes.k(), set.stripes.k() + set.stripes.m());
        if set.stripes.m() > 0
            && (0..units).all(|unit| grid.is_whole(stripe, unit))
            && !grid.contradictions(stripe).is_empty()
        {
            self.contradictions += 1;
            self.first.get_or_insert(stripe);
        }
        self.media.whole &= (0..k).all(|unit| grid.is_whole(stripe, unit));
        if !self.media.whole {
            return;
        }
        for unit in 0..k {
            let media = &grid.unit(stripe, unit)[..set.stripes.media_in_unit(stripe, unit)];
            self.media.hasher.update(media);
            self.media.sums.iter_mut().for_each(|sum| sum.take(media));
            self.media.grains.iter_mut().for_each(|grains| grains.take(media));
            self.media.crcs.iter_mut().for_each(|crcs| crcs.take(media));
            self.media.sync.take(media);
        }
    }

    fn end(self, set: &TitleSet, report: &mut CheckReport<'_>) {
        let dir = set.homes.iter().flatten().next().map(|home| home.dirs.title(set.id())).unwrap_or_default();
        let todo = remedy(&set.manifest);
        if let Some(first) = self.first {
            let what = format!(
                "the parity of {} stripes does not match their data, the first is stripe {first}",
                self.contradictions
            );
            report.error("parity_is_of_the_data", &dir, what, todo.clone());
        }
        let MediaCheck { whole, hasher, sums, grains, mut crcs, sync } = self.media;
        if !whole {
            return; // not all of it could be had; what is wrong with it has been said
        }
        let mut wrong = Vec::new();
        if hasher.finalize().to_hex().as_str() != set.manifest.title.blake3 {
            wrong.push((
                "data_is_as_ingested",
                dir.clone(),
                "the units do not add up to the title's data".to_owned(),
            ));
        }
        for mut sum in sums {
            sum.end();
            if sum.wrong > 0 {
                let what = format!(
                    "{} with a wrong sum, the first is packet {}",
                    Count(sum.wrong, "packet"),
                    sum.first_wrong
                );
                wrong.push(("sums_are_of_the_data", sum.meta.path().to_path_buf(), what));
            }
        }
        if let Some(mut grains) = grains {
            grains.end();
            if grains.wrong > 0 {
                let what = format!(
                    "{} grains have a wrong sum, the first is grain {}",
                    grains.wrong, grains.first_wrong
                );
                wrong.push(("range_sums_are_of_the_data", grains.path().to_path_buf(), what));
            }
        }
        if let Some(crcs) = &mut crcs
            && let Some((count, first)) = crcs.end()
        {
            wrong.push(("crcs_are_of_the_data", crcs.path().to_path_buf(), wrong_crc(count, first)));
        }
        for (promise, path, what) in wrong {
            report.add(Severity::Error, promise, &path, what, todo.clone());
        }
        if sync.wrong > 0 {
            let what = format!(
                "{} TS packets do not begin with 0x47, the first is number {}",
                sync.wrong, sync.first
            );
            let todo = "decoders will show errors there; add a better copy of the film if it matters";
            report.warning("data_is_a_transport_stream", &dir, what, todo);
        }
    }
}

/// Metadata of other packet sizes, range sums and CRCs, from the first member that has them.
fn others(set: &TitleSet) -> (Vec<MetaFile>, Option<SumsFile>, Option<CrcFile>) {
    let info = &set.manifest.title;
    let dirs = || set.homes.iter().flatten().map(|home| home.dirs.title(set.id()));
    let meta = |&size: &u16| dirs().find_map(|dir| open_meta(&dir.join(meta_file(size)), info, size).ok());
    let sums = || dirs().find_map(|dir| open_sums(&dir.join(SUMS_FILE), info).ok());
    let metas = info.packet_sizes.iter().filter_map(meta).collect();
    let crcs = || dirs().find_map(|dir| open_crcs(&dir.join(CRC_FILE), info, info.bytes).ok());
    let sums = if set.manifest.has_sums() { sums() } else { None };
    (metas, sums, if set.manifest.has_crcs() { crcs() } else { None })
}

fn units_are_as_ingested(
    set: &TitleSet,
    position: usize,
    units: Units,
    reading: &Reading,
    report: &mut CheckReport<'_>,
) {
    let (Some(entry), Some(dir)) = (set.entry(position, units), set.dir(position)) else { return };
    let path = dir.join(&entry.name);
    if !has_length(&path, entry) {
        return;
    }
    let Some(trouble) = reading.trouble(position, units, &entry.blake3) else { return };
    let Some(what) = trouble.describe() else { return };
    let promise = match units {
        _ if trouble.error.is_some() || trouble.wrong_hash => "units_are_as_ingested",
        Units::Data => "sums_are_of_the_data",
        Units::Parity => "parity_sums_are_of_the_parity",
    };
    report.error(promise, &path, what, remedy(&set.manifest));
}

/// Without the sums of the packets only the hashes of the files can be looked at.
fn hashes_only(
    set: &TitleSet,
    files: &[(usize, Units)],
    report: &mut CheckReport<'_>,
    work: &mut Work<'_>,
) -> Result<(), RepairError> {
    for &(position, units) in files {
        let (Some(entry), Some(dir)) = (set.entry(position, units), set.dir(position)) else { continue };
        let path = dir.join(&entry.name);
        if !has_length(&path, entry) {
            continue;
        }
        if let Some(what) = work.wrong_with(set.slot(position), &path, entry.bytes, &entry.blake3)? {
            report.error("units_are_as_ingested", &path, what, remedy(&set.manifest));
        }
    }
    Ok(())
}

/// A file that is not there or has another length is another promise's finding.
fn has_length(path: &Path, entry: &FileEntry) -> bool {
    path.metadata().is_ok_and(|meta| meta.len() == entry.bytes)
}
