//! One title: rebuilds the data that its members lack from the data they have.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use super::error::RepairError;
use super::out::RebuiltFile;
use super::place::RepairDirectory;
use super::reading::{self, Reading, StripeSums};
use super::rebuild_sums;
use super::report::{RepairFinding, RepairOutcome};
use super::set::{TitleSet, Units};
use super::shared::{self, Fresh, Made, Target};
use super::work::Work;
use crate::dirs::{Dirs, LOCK_FILE, read_whole, rename, sync_dir, write_new};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{
    CRC_FILE, FileEntry, MANIFEST_FILE, PARITY_CRC_FILE, PARITY_META_FILE, meta_file,
};
use crate::limits::MAX_MANIFEST_BYTES;
use crate::meta::{Record, RecordsFile};
use crate::volume::lock::StoreLock;
use crate::volume::manifest_io::drop_unnamed;
use crate::volume::workspace::Workspace;

/// The files of a title that a member lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct MissingFiles {
    /// Its position.
    pub(crate) position: usize,
    /// The title's directory is not there at all.
    pub(crate) whole: bool,
    /// Files that are missing or wrong, each with its fault; the manifest may be among them.
    pub(crate) files: Vec<(String, String)>,
}

impl MissingFiles {
    pub(crate) fn is_empty(&self) -> bool {
        !self.whole && self.files.is_empty()
    }
}

/// Where the missing files of a member are rebuilt.
enum RepairSite {
    Whole(RepairDirectory),
    Files(Workspace, Dirs),
}

impl RepairSite {
    fn open(set: &TitleSet, need: &MissingFiles) -> Result<Self, StoreError> {
        let home = set.homes[need.position].as_ref();
        let home = home.ok_or(StoreError::NoTitle { id: set.id() })?;
        if !need.whole {
            return Ok(Self::Files(Workspace::create(&home.dirs)?, home.dirs.clone()));
        }
        let place = RepairDirectory::take(&home.dirs, set.id())?;
        let names: Vec<&str> =
            set.manifest.files_on(need.position).into_iter().map(|f| f.name.as_str()).collect();
        place.keep_only(&names)?;
        Ok(Self::Whole(place))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Whole(place) => place.path(),
            Self::Files(workspace, _) => workspace.path(),
        }
    }

    fn dirs(&self) -> &Dirs {
        match self {
            Self::Whole(place) => place.dirs(),
            Self::Files(_, dirs) => dirs,
        }
    }

    fn disk(&self) -> &Disk {
        &self.dirs().disk
    }
}

/// The files that could be made, by position and name: `Err` gives the reason for a failure.
type RebuildResults = HashMap<(usize, String), Made>;

/// Makes the files that the members lack and puts them in place; the outcome goes into the report.
/// In files that are `suspects` even a packet with the right sum may be wrong, so it is also
/// checked against the code. If the title was removed or changed meanwhile, nothing is done.
pub(crate) fn mend(
    set: &TitleSet,
    needs: &[MissingFiles],
    suspects: &[(usize, Units)],
    work: &mut Work<'_>,
) -> Result<(), RepairError> {
    let mut sites = Vec::new();
    let (silent, answering): (Vec<&MissingFiles>, Vec<&MissingFiles>) =
        needs.iter().filter(|n| !n.is_empty()).partition(|need| work.has_given_up(set.slot(need.position)));
    for need in answering {
        sites.push((need, RepairSite::open(set, need)?));
    }
    let mut made = RebuildResults::new();
    let fresh = make_all_shared(set, &sites, &mut made, work)?;
    make_units(set, &sites, suspects, &fresh, &mut made, work)?;
    for (need, site) in sites {
        finish(set, need, site, &made, work)?;
    }
    for need in silent {
        leave_alone(set, need, work);
    }
    Ok(())
}

/// Reports the files that are lacking on a member that does not answer: nothing can be written
/// there now.
fn leave_alone(set: &TitleSet, need: &MissingFiles, work: &mut Work<'_>) {
    let Some(dir) = set.dir(need.position) else { return };
    if need.whole {
        found(set, need.position, dir.clone(), "is missing".to_owned(), RepairOutcome::Repairable, work);
    }
    for (name, what) in &need.files {
        found(set, need.position, dir.join(name), what.clone(), RepairOutcome::Repairable, work);
    }
}

/// Returns the entries of the files to make, without the manifest.
fn wanted<'a>(set: &'a TitleSet, need: &'a MissingFiles) -> impl Iterator<Item = &'a FileEntry> {
    let is_wanted = |entry: &&FileEntry| need.whole || need.files.iter().any(|(name, _)| *name == entry.name);
    set.manifest.files_on(need.position).into_iter().filter(is_wanted)
}

/// Makes the files that all members have: first those that are not derived from others, because the
/// others are computed with their help.
fn make_all_shared(
    set: &TitleSet,
    sites: &[(&MissingFiles, RepairSite)],
    made: &mut RebuildResults,
    work: &mut Work<'_>,
) -> Result<Vec<Fresh>, RepairError> {
    let mut fresh = Vec::new();
    let mut hopeless: HashMap<&str, String> = HashMap::new();
    for follows in [false, true] {
        for (need, site) in sites {
            let is_due = |entry: &&FileEntry| {
                set.units_of(&entry.name).is_none() && rebuild_sums::follows(&entry.name) == follows
            };
            for entry in wanted(set, need).filter(is_due) {
                let known = hopeless.get(entry.name.as_str()).cloned().map(Err);
                let result = match known {
                    Some(lost) => lost,
                    None => make_shared(set, need.position, entry, site, &fresh, work)?,
                };
                match &result {
                    Ok(()) => {
                        let path = site.path().join(&entry.name);
                        fresh.push((entry.name.clone(), set.slot(need.position), path));
                    }
                    Err(why) => drop(hopeless.insert(&entry.name, why.clone())),
                }
                made.insert((need.position, entry.name.clone()), result);
            }
        }
    }
    Ok(fresh)
}

fn make_shared(
    set: &TitleSet,
    position: usize,
    entry: &FileEntry,
    site: &RepairSite,
    fresh: &[Fresh],
    work: &mut Work<'_>,
) -> Result<Made, RepairError> {
    let to = site.path().join(&entry.name);
    if let RepairSite::Whole(place) = site
        && to.exists()
    {
        // A killed repair had come this far. Its bytes are right, but perhaps not on the disk yet.
        if work.wrong_with(set.slot(position), &to, entry.bytes, &entry.blake3)?.is_none() {
            let file = place.dirs().disk.open_or_create(&to);
            let durable = file.and_then(|file| file.sync_all_or_remove());
            durable.map_err(|e| StoreError::write("make durable", &to, 0, 0, e))?;
            return Ok(Ok(()));
        }
        place.drop_file(&entry.name)?;
    }
    let target = Target { entry, disk: site.disk(), path: &to };
    let copied = shared::make(set, target, fresh, work)?;
    if copied.is_ok() || !rebuild_sums::follows(&entry.name) {
        return Ok(copied);
    }
    match stripe_sums(set, fresh, work)? {
        Some(sums) => rebuild_sums::make(set, target, sums, work),
        None => Ok(copied),
    }
}

/// Makes all files of units in one pass over the stripes.
fn make_units(
    set: &TitleSet,
    sites: &[(&MissingFiles, RepairSite)],
    suspects: &[(usize, Units)],
    fresh: &[Fresh],
    made: &mut RebuildResults,
    work: &mut Work<'_>,
) -> Result<(), RepairError> {
    let mut files: Vec<(usize, Units, &RepairSite)> = Vec::new();
    for (need, site) in sites {
        let units = wanted(set, need).filter_map(|entry| set.units_of(&entry.name));
        files.extend(units.map(|units| (need.position, units, site)));
    }
    if files.is_empty() {
        return Ok(());
    }
    let Some(sums) = stripe_sums(set, fresh, work)?.filter(|sums| sums.know_parity(set)) else {
        for (position, units, _) in files {
            let why = "the sums of its packets are lost on all members".to_owned();
            made.insert((position, set.name(units).to_owned()), Err(why));
        }
        return Ok(());
    };
    let mut outs = Vec::new();
    for (position, units, site) in files {
        let path = site.path().join(set.name(units));
        outs.push(RebuiltFile::open(set, position, units, site.disk(), path, &sums, work)?);
    }
    let mut reading = Reading::open(set, sums, work)?;
    let suspected = |stripe| {
        suspects.iter().fold(0, |mask, &(position, units)| mask | set.symbols(position, stripe, units))
    };
    let mut first = None;
    while let Some(stripe) = outs.iter().filter_map(|out| out.next_stripe(set)).min() {
        first.get_or_insert(stripe);
        let stripes = stripe..set.stripes.stripes().min(stripe.saturating_add(Reading::stripes_at_once(set)));
        let media =
            |stripe: u32| (u64::from(stripe) * set.stripes.stripe_bytes()).min(set.stripes.media_bytes());
        let bytes = media(stripes.end) - media(stripes.start);
        let grid = reading.load(set, stripes, work)?;
        grid.solve((!suspects.is_empty()).then_some(&suspected));
        for out in &mut outs {
            out.write(set, grid, work)?;
        }
        work.progress.bytes_done += bytes;
        work.tell();
    }
    tell_of_sources(set, &reading, &outs, first == Some(0), work);
    for out in outs {
        let (position, name) = (out.position, set.name(out.units));
        let blake3 = set.entry(position, out.units).map_or("", |entry| entry.blake3.as_str());
        made.insert((position, name.to_owned()), out.finish(blake3)?);
    }
    Ok(())
}

/// Reports damage of the files that were read: it counts toward the tolerated losses, and only a
/// scrub repairs it.
fn tell_of_sources(
    set: &TitleSet,
    reading: &Reading,
    outs: &[RebuiltFile],
    is_all_read: bool,
    work: &mut Work<'_>,
) {
    let files =
        (0..set.homes.len()).flat_map(|position| [(position, Units::Data), (position, Units::Parity)]);
    for (position, units) in files {
        let is_made = outs.iter().any(|out| (out.position, out.units) == (position, units));
        let is_silent = work.has_given_up(set.slot(position));
        let Some(entry) = set.entry(position, units).filter(|_| !is_made && !is_silent) else { continue };
        let Some(mut trouble) = reading.trouble(position, units, &entry.blake3) else { continue };
        // For the data that a killed repair had already made, the sources were not read again.
        trouble.wrong_hash &= is_all_read;
        if let (Some(what), Some(dir)) = (trouble.describe(), set.dir(position)) {
            let path = dir.join(set.name(units));
            found(
                set,
                position,
                path,
                format!("{what}; run millrace scrub"),
                RepairOutcome::Repairable,
                work,
            );
        }
    }
}

/// The sums of all packets, from copies whose BLAKE3 is right; `None` if no member has those of the title. Those of the parity, and
/// the CRCs, may be lacking.
pub(crate) fn stripe_sums(
    set: &TitleSet,
    fresh: &[Fresh],
    work: &mut Work<'_>,
) -> Result<Option<StripeSums>, RepairError> {
    let size = DEFAULT_PACKET_BYTES as u16;
    let Some(meta) = find_records(set, &meta_file(size), fresh, work)? else { return Ok(None) };
    let parity = if set.stripes.m() > 0 { find_records(set, PARITY_META_FILE, fresh, work)? } else { None };
    let crcs = find_records(set, CRC_FILE, fresh, work)?;
    let parity_crcs = find_records(set, PARITY_CRC_FILE, fresh, work)?;
    Ok(Some(StripeSums::new(meta, parity).with_crcs(crcs, parity_crcs)))
}

/// Returns a file of records from a member whose copy has the right BLAKE3, and that member's slot.
fn find_records<R: Record + Send + Sync + 'static>(
    set: &TitleSet,
    name: &str,
    fresh: &[Fresh],
    work: &mut Work<'_>,
) -> Result<Option<reading::LocatedRecords<R>>, RepairError> {
    let Some(entry) = set.manifest.file(name) else { return Ok(None) };
    let Some((slot, path)) = shared::find(set, entry, fresh, work)? else { return Ok(None) };
    let file = work.demand(slot, move || RecordsFile::open(&path))??;
    Ok(Some((slot, Arc::new(file))))
}

/// Puts the rebuilt files in place and reports them.
fn finish(
    set: &TitleSet,
    need: &MissingFiles,
    site: RepairSite,
    made: &RebuildResults,
    work: &mut Work<'_>,
) -> Result<(), RepairError> {
    let outcome = |name: &str| made.get(&(need.position, name.to_owned())).cloned().unwrap_or(Ok(()));
    let dirs = site.dirs().clone();
    let dir = dirs.title(set.id());
    let lock = StoreLock::take(&dirs)?;
    let is_current = is_current(set, need, work)?;
    match site {
        RepairSite::Whole(place) => {
            let lost: Vec<String> = wanted(set, need)
                .filter_map(|entry| Some(format!("{}: {}", entry.name, outcome(&entry.name).err()?)))
                .collect();
            if !is_current || !lost.is_empty() {
                place.give_up()?;
            } else {
                place.publish(&set.manifest_bytes, &lock)?;
            }
            if is_current {
                let mut what = need.files.first().map_or("is missing".to_owned(), |(_, what)| what.clone());
                lost.iter().for_each(|why| what.push_str(&format!("; {why}")));
                let fate = if lost.is_empty() { RepairOutcome::Repaired } else { RepairOutcome::Lost };
                found(set, need.position, dir, what, fate, work);
            }
        }
        RepairSite::Files(workspace, dirs) => {
            if !is_current {
                return Ok(());
            }
            let good: Vec<&str> = need.files.iter().map(|(name, _)| name.as_str()).collect();
            let good: Vec<&str> = good.into_iter().filter(|name| outcome(name).is_ok()).collect();
            replace(set, &workspace, &dirs, &good)?;
            drop(lock);
            for (name, wrong) in &need.files {
                let (what, fate) = match outcome(name) {
                    Ok(()) => (wrong.clone(), RepairOutcome::Repaired),
                    Err(why) => (format!("{wrong}; {why}"), RepairOutcome::Lost),
                };
                found(set, need.position, dir.join(name), what, fate, work);
            }
        }
    }
    Ok(())
}

/// Whether the title is still there as it was when the repair began with it: removed or prepared titles are not brought back.
pub(crate) fn is_current(
    set: &TitleSet,
    need: &MissingFiles,
    work: &mut Work<'_>,
) -> Result<bool, RepairError> {
    let others = set.homes.iter().enumerate().filter_map(|(position, home)| Some((position, home.as_ref()?)));
    let lacks_manifest = need.whole || need.files.iter().any(|(name, _)| name == MANIFEST_FILE);
    for (position, home) in others {
        if !home.active || position == need.position && lacks_manifest {
            continue;
        }
        let path = home.dirs.manifest(set.id());
        let bytes = work.ask(set.slot(position), move || Ok(read_whole(&path, MAX_MANIFEST_BYTES).ok()))?;
        if bytes.ok().flatten().is_some_and(|bytes| bytes == set.manifest_bytes) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Renames files over those of a title; the manifest comes last.
fn replace(set: &TitleSet, workspace: &Workspace, dirs: &Dirs, names: &[&str]) -> Result<(), StoreError> {
    if names.is_empty() {
        return Ok(());
    }
    let (disk, dir) = (&dirs.disk, dirs.title(set.id()));
    if names.contains(&MANIFEST_FILE) {
        // With a manifest, the next open would put all files there in place if this process died:
        // only good files may be there.
        let entries = fs::read_dir(workspace.path()).map_err(StoreError::io("list", workspace.path()))?;
        for entry in entries {
            let entry = entry.map_err(StoreError::io("list", workspace.path()))?;
            let keeps = |name: &&str| entry.file_name() == OsStr::new(name);
            if !keeps(&LOCK_FILE) && !names.iter().any(keeps) {
                let path = entry.path();
                disk.remove_file(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
        sync_dir(disk, workspace.path())?;
        write_new(disk, &workspace.path().join(MANIFEST_FILE), &set.manifest_bytes)?;
    }
    let (manifest, files): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| **name == MANIFEST_FILE);
    for names in [files, manifest].iter().filter(|names| !names.is_empty()) {
        for name in names {
            rename(disk, &workspace.path().join(name), &dir.join(name))?;
        }
        sync_dir(disk, &dir)?;
    }
    // Files that only an older manifest of this member named are no longer part of the title.
    drop_unnamed(disk, &dir, &set.manifest)
}

fn found(
    set: &TitleSet,
    position: usize,
    path: PathBuf,
    what: String,
    fate: RepairOutcome,
    work: &mut Work<'_>,
) {
    let (title, name, member) = (set.id(), set.manifest.title.name.clone(), set.slot(position));
    work.report.found.push(RepairFinding { title, name, member, path, what, fate });
}

#[cfg(test)]
#[path = "title_tests.rs"]
mod tests;
