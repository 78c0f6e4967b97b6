//! The promises that need every byte of a title's rows, on all members: units, parity, and the film that they make up.

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
use super::title::remedy;
use super::{Report, Severity};
use crate::disk::ReadFaults;
use crate::format::manifest::{CRC_FILE, FileEntry, SUMS_FILE, meta_file};
use crate::meta::{CrcFile, MetaFile};
use crate::repair::grid::Grid;
use crate::repair::reading::Reading;
use crate::repair::set::{TitleSet, Units};
use crate::repair::title::row_sums;
use crate::repair::work::Work;
use crate::repair::{Progress, RepairError, Setting, Timekeeper};
use crate::sums::SumsFile;
use crate::volume::{open_crcs, open_meta, open_sums};

/// Nothing is bounded here, so nobody waits.
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
pub(super) fn check(set: &TitleSet, report: &mut Report<'_>) {
    let (time, stop) = (NoWait::default(), AtomicBool::new(false));
    let tell = &mut |_: &Progress| ();
    let setting = Setting {
        time: &time,
        stop: &stop,
        tell,
        faults: ReadFaults::default(),
        answer_ns: REPAIR_ANSWER_NS,
    };
    let mut work = Work::new(setting, 0);
    let before = report.progress.bytes_done;
    let is_alone = set.rows.members() == 1;
    if let Err(error) = Rows::look(set, report, &mut work) {
        let path = set.dir(0).unwrap_or_default();
        report.error("units_are_as_ingested", &path, error, remedy(&set.manifest));
    }
    // With one member the film has been counted when it was read as one file.
    report.progress.bytes_done = if is_alone { before } else { before + set.rows.film_bytes() };
}

/// What is held against the rows as they go by.
struct Rows<'a> {
    film: Film<'a>,
    contradictions: u64,
    first: Option<u32>,
}

/// The film, as long as all of it could be read.
struct Film<'a> {
    whole: bool,
    hasher: blake3::Hasher,
    sums: Vec<SumCheck<'a>>,
    grains: Option<GrainCheck<'a>>,
    crcs: Option<CrcCheck<'a>>,
    sync: SyncCheck,
}

impl Rows<'_> {
    fn look(set: &TitleSet, report: &mut Report<'_>, work: &mut Work<'_>) -> Result<(), RepairError> {
        let files: Vec<(usize, Units)> = (0..set.homes.len())
            .filter(|&position| set.homes[position].is_some())
            .flat_map(|position| [(position, Units::Data), (position, Units::Parity)])
            .filter(|&(position, units)| set.entry(position, units).is_some())
            // With one member the film is a file of its own, which is looked at as such.
            .filter(|&(_, units)| set.rows.members() > 1 || units == Units::Parity)
            .collect();
        let Some(sums) = row_sums(set, &[], work)?.filter(|sums| sums.know_parity(set)) else {
            return hashes_only(set, &files, report, work);
        };
        let mut reading = Reading::open(set, sums, work)?;
        let (metas, range_sums, crcs) = others(set);
        let mut rows = Rows {
            film: Film {
                whole: set.rows.members() > 1,
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
        let mut row = 0;
        while row < set.rows.rows() {
            let next = set.rows.rows().min(row.saturating_add(Reading::rows_at_once(set)));
            let grid = reading.load(set, row..next, work)?;
            (row..next).for_each(|row| rows.take(set, row, grid));
            row = next;
            if set.rows.members() > 1 {
                let film = (u64::from(row) * set.rows.row_bytes()).min(set.rows.film_bytes());
                report.progress.bytes_done = start + film;
            }
            (report.tell)(&report.progress);
        }
        for (position, units) in files {
            units_are_as_ingested(set, position, units, &reading, report);
        }
        rows.end(set, report);
        Ok(())
    }

    fn take(&mut self, set: &TitleSet, row: u32, grid: &mut Grid) {
        let (k, units) = (set.rows.k(), set.rows.k() + set.rows.m());
        if set.rows.m() > 0
            && (0..units).all(|unit| grid.is_whole(row, unit))
            && !grid.contradictions(row).is_empty()
        {
            self.contradictions += 1;
            self.first.get_or_insert(row);
        }
        self.film.whole &= (0..k).all(|unit| grid.is_whole(row, unit));
        if !self.film.whole {
            return;
        }
        for unit in 0..k {
            let film = &grid.unit(row, unit)[..set.rows.film_in_unit(row, unit)];
            self.film.hasher.update(film);
            self.film.sums.iter_mut().for_each(|sum| sum.take(film));
            self.film.grains.iter_mut().for_each(|grains| grains.take(film));
            self.film.crcs.iter_mut().for_each(|crcs| crcs.take(film));
            self.film.sync.take(film);
        }
    }

    fn end(self, set: &TitleSet, report: &mut Report<'_>) {
        let dir = set.homes.iter().flatten().next().map(|home| home.dirs.title(set.id())).unwrap_or_default();
        let todo = remedy(&set.manifest);
        if let Some(first) = self.first {
            let what = format!(
                "the parity of {} rows is not that of their film, the first is row {first}",
                self.contradictions
            );
            report.error("parity_is_of_the_data", &dir, what, todo.clone());
        }
        let Film { whole, hasher, sums, grains, mut crcs, sync } = self.film;
        if !whole {
            return; // not all of it could be had; what is wrong with it has been said
        }
        let mut wrong = Vec::new();
        if hasher.finalize().to_hex().as_str() != set.manifest.title.blake3 {
            wrong.push(("data_is_as_ingested", dir.clone(), "the units do not make up the film".to_owned()));
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

/// Meta-data of other packet sizes, range sums and CRCs, from the first member that has them.
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
    report: &mut Report<'_>,
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
    report: &mut Report<'_>,
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
