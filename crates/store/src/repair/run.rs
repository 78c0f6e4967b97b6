//! A whole volume: every title, every member; then members that were behind become active again.

use std::collections::BTreeSet;
use std::fs;

use millrace_core::ids::TitleId;

use super::error::RepairError;
use super::examine;
use super::report::{RepairFinding, RepairOutcome, RepairReport};
use super::set::{Home, TitleSet};
use super::title::mend;
use super::work::{Setting, Work};
use crate::dirs::{Dirs, id_of_name, remove_tree, rename, sync_dir};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::manifest::Manifest;
use crate::limits::volume::MAX_ROUNDS;
use crate::members::MemberState;
use crate::volume::lock::StoreLock;
use crate::volume::manifest_io::{read_manifest, read_manifest_file};
use crate::volume::recover::{TmpEntry, look_at_tmp, remove_stale};
use crate::volume::{Volume, make_subdirectories};

/// How a repair is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Bytes a second that may be read and written, all members together; 0: as fast as the disks can.
    pub rate_bytes_per_s: u64,
}

/// Rebuilds missing or wrong data on any member from the others; stale members are cleaned, brought
/// up to date and made active in a new generation. A server may use the volume meanwhile.
///
/// # Errors
/// If a disk refuses, or the user wants to stop. Completed work is kept; the next repair continues
/// from there.
pub fn repair(
    volume: &Volume,
    options: &RepairOptions,
    setting: Setting<'_>,
) -> Result<RepairReport, RepairError> {
    let mut work = Work::new(setting, options.rate_bytes_per_s);
    for _ in 0..MAX_ROUNDS {
        volume.members().refresh();
        let behind = begin_rebuilding(volume)?;
        // Data that was unavailable or could not be repaired is tried again, and reported once.
        work.report.found.retain(|found| found.fate == RepairOutcome::Repaired);
        let titles = titles(volume, &mut work)?;
        begin(&titles, &mut work);
        for set in &titles {
            work.check()?;
            each(volume, set, &mut work, repair_title)?;
            next(&mut work);
        }
        settle(volume, &behind, &mut work)?;
        if !work.given_up().is_empty() {
            // The new list would have to be written there too. The next repair has little left to do.
            break;
        }
        for &(slot, _) in &behind {
            clean(volume, slot, &titles)?;
        }
        if behind.is_empty() {
            break;
        }
        let same = || is_same(volume, &behind, &titles, &mut work).unwrap_or(false);
        let slots: Vec<usize> = behind.iter().map(|&(slot, _)| slot).collect();
        if volume.activate(&slots, same)? {
            work.report.activated = slots.into_iter().map(|slot| slot as u16).collect();
            break;
        }
    }
    Ok(end(volume, work))
}

/// Performs one step for a title. If a member that the step needs falls silent, the step is
/// repeated with the data of the others; each time there is one member less. If a title was
/// repaired, processes that have it open are notified to open its files again.
pub(crate) fn each(
    volume: &Volume,
    set: &TitleSet,
    work: &mut Work<'_>,
    step: impl Fn(&TitleSet, &mut Work<'_>) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    work.progress.title.clone_from(&set.manifest.title.name);
    work.tell();
    let start = work.progress.bytes_done;
    let known = work.report.found.len();
    loop {
        let mut set = set.clone();
        for position in 0..set.homes.len() {
            if work.has_given_up(set.slot(position)) {
                set.homes[position] = None;
            }
        }
        match step(&set, work) {
            Err(RepairError::Silent(_)) => work.progress.bytes_done = start,
            result => break result?,
        }
    }
    let is_read = |found: &RepairFinding| {
        found.fate == RepairOutcome::Repaired && volume.members().is_usable(usize::from(found.member))
    };
    let is_told = volume.members().record().is_some() && work.given_up().is_empty();
    if is_told && work.report.found[known..].iter().any(is_read) {
        // A new generation, with nothing else new in it.
        volume.activate(&[], || true)?;
    }
    Ok(())
}

/// The report, with the members that were left out.
pub(crate) fn end(volume: &Volume, mut work: Work<'_>) -> RepairReport {
    work.report.silent = work.given_up();
    work.report.absent = absent(volume);
    let silent = work.report.silent.clone();
    work.report.absent.extend(silent);
    work.report.absent.sort_unstable();
    work.report.absent.dedup();
    work.tell();
    work.report
}

/// Notes of the members that are there and not active that they are being filled. Which members these are belongs to it: a
/// slot may get another one meanwhile.
fn begin_rebuilding(volume: &Volume) -> Result<Vec<(usize, Uuid)>, StoreError> {
    let members = volume.members();
    let is_behind = |i: usize| members.is_present(i) && members.state(i) != MemberState::Active;
    let behind: Vec<_> =
        (0..members.len()).filter(|&i| is_behind(i)).filter_map(|i| Some((i, members.member(i)?))).collect();
    for &(slot, _) in &behind {
        if members.state(slot) != MemberState::Rebuilding {
            volume.set_member_state(slot, MemberState::Rebuilding)?;
        }
        make_subdirectories(&volume.dirs_of(slot))?;
    }
    Ok(behind)
}

/// Makes durable the names of all files that are in place. An earlier repair may have failed after
/// a rename, and its files are complete: nothing else would write their directory again. If the
/// disk of an active member cannot do this, the other members can still be filled.
fn settle(volume: &Volume, behind: &[(usize, Uuid)], work: &mut Work<'_>) -> Result<(), RepairError> {
    for slot in (0..volume.members().len()).filter(|&slot| volume.members().is_present(slot)) {
        let dirs = volume.dirs_of(slot);
        let of_list = dirs.clone();
        // One question for each directory: all together may take longer than a member may take for an answer.
        let Ok(Ok(ids)) = work.ask(slot as u16, move || Ok(ids_on(&of_list)))? else { continue };
        let titles = ids.into_iter().map(|id| dirs.title(id));
        for dir in titles.chain([dirs.titles.clone(), dirs.tmp.clone()]) {
            let disk = dirs.disk.clone();
            let synced = work.ask(slot as u16, move || match sync_dir(&disk, &dir) {
                // It was removed meanwhile.
                Err(_) if !dir.exists() => Ok(Ok(())),
                synced => Ok(synced),
            })?;
            match synced {
                Ok(Err(error)) if behind.iter().any(|&(other, _)| other == slot) => return Err(error.into()),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Members that cannot be worked with.
fn absent(volume: &Volume) -> Vec<u16> {
    let members = volume.members();
    (0..members.len()).filter(|&i| !members.is_usable(i)).map(|i| i as u16).collect()
}

/// Tells how much there is to do.
pub(crate) fn begin(titles: &[TitleSet], work: &mut Work<'_>) {
    work.progress.titles_done = 0;
    work.progress.titles_total = titles.len();
    work.progress.bytes_done = 0;
    work.progress.bytes_total = titles.iter().map(|set| set.stripes.media_bytes()).sum();
    work.report.titles = titles.len();
}

/// A title is done.
pub(crate) fn next(work: &mut Work<'_>) {
    work.progress.titles_done += 1;
}

fn repair_title(set: &TitleSet, work: &mut Work<'_>) -> Result<(), RepairError> {
    let start = work.progress.bytes_done;
    let (mut needs, mut suspects) = (Vec::new(), Vec::new());
    for position in 0..set.homes.len() {
        let Some(home) = &set.homes[position] else { continue };
        if home.active {
            needs.push(examine::glance(set, position, work)?);
            continue;
        }
        // Whatever has happened to it while it was out.
        let need = examine::read(set, position, |_| true, work)?;
        suspects.extend(need.files.iter().filter_map(|(name, _)| Some((position, set.units_of(name)?))));
        needs.push(need);
    }
    mend(set, &needs, &suspects, work)?;
    work.progress.bytes_done = start + set.stripes.media_bytes();
    Ok(())
}

/// Returns every title that an active member has, according to the newest readable manifest. Titles
/// without one are reported.
pub(crate) fn titles(volume: &Volume, work: &mut Work<'_>) -> Result<Vec<TitleSet>, RepairError> {
    let mut sets = Vec::new();
    for id in ids(volume, work)? {
        match set(volume, id, work)? {
            Ok(Some(set)) => sets.push(set),
            Ok(None) => {} // removed while we looked
            Err((member, error)) => {
                let path = volume.dirs_of(usize::from(member)).manifest(id);
                let (name, what) = (id.to_string(), error.to_string());
                let lost = RepairFinding { title: id, name, member, path, what, fate: RepairOutcome::Lost };
                if !work.report.found.contains(&lost) {
                    work.report.found.push(lost);
                }
            }
        }
    }
    Ok(sets)
}

/// Directories below `titles` of the active members.
fn ids(volume: &Volume, work: &mut Work<'_>) -> Result<BTreeSet<TitleId>, RepairError> {
    let mut ids = BTreeSet::new();
    for slot in volume.members().usable() {
        let dirs = volume.dirs_of(slot);
        // One that is silent is passed over.
        if let Ok(found) = work.ask(slot as u16, move || Ok(ids_on(&dirs)))? {
            ids.extend(found?);
        }
    }
    Ok(ids)
}

fn ids_on(dirs: &Dirs) -> Result<Vec<TitleId>, StoreError> {
    let mut ids = Vec::new();
    let entries = match fs::read_dir(&dirs.titles) {
        // A new member has none yet.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(ids),
        entries => entries.map_err(StoreError::io("list", &dirs.titles))?,
    };
    for entry in entries {
        let entry = entry.map_err(StoreError::io("list", &dirs.titles))?;
        ids.extend(id_of_name(&entry.file_name()));
    }
    Ok(ids)
}

/// A title as its active members have it: by the manifest with the most packet sizes, which is the newest.
fn set(
    volume: &Volume,
    id: TitleId,
    work: &mut Work<'_>,
) -> Result<Result<Option<TitleSet>, (u16, StoreError)>, RepairError> {
    let members = volume.members();
    let mut best: Option<(Manifest, Vec<u8>)> = None;
    let mut wrong = None;
    for slot in members.usable() {
        let dirs = volume.dirs_of(slot);
        let look = move || Ok(dirs.title(id).is_dir().then(|| read_manifest_file(&dirs, id)));
        let Ok(Some(found)) = work.ask(slot as u16, look)? else { continue };
        match found {
            Ok((manifest, bytes)) => {
                let files = |manifest: &Manifest| manifest.files.len();
                if best.as_ref().is_none_or(|(known, _)| files(known) < files(&manifest)) {
                    best = Some((manifest, bytes));
                }
            }
            Err(error) => wrong = Some((slot as u16, error)),
        }
    }
    let Some((manifest, bytes)) = best else { return Ok(wrong.map_or(Ok(None), Err)) };
    let home = |slot: u16| {
        let slot = usize::from(slot);
        let home = || Home { dirs: volume.dirs_of(slot), active: members.is_usable(slot) };
        (members.is_present(slot) && !work.has_given_up(slot as u16)).then(home)
    };
    let placed = TitleSet::new(manifest, bytes, home);
    let what = || "its stripes cannot be worked with by this version".to_owned();
    Ok(placed.map(Some).ok_or_else(|| (0, StoreError::BadTitle { id, what: what() })))
}

/// Whether members and titles are those that were worked on.
fn is_same(
    volume: &Volume,
    behind: &[(usize, Uuid)],
    titles: &[TitleSet],
    work: &mut Work<'_>,
) -> Result<bool, RepairError> {
    let members = volume.members();
    let is_there =
        |&(slot, member): &(usize, Uuid)| members.is_present(slot) && members.member(slot) == Some(member);
    if !behind.iter().all(is_there) {
        return Ok(false);
    }
    let mut now: Vec<TitleSet> = Vec::new();
    for id in ids(volume, work)? {
        now.extend(set(volume, id, work)?.ok().flatten());
    }
    let same = |(a, b): (&TitleSet, &TitleSet)| a.manifest_bytes == b.manifest_bytes;
    Ok(now.len() == titles.len() && now.iter().zip(titles).all(same))
}

/// Removes from a formerly stale member the titles that the volume has removed meanwhile, and the
/// data that dead processes left there.
fn clean(volume: &Volume, slot: usize, titles: &[TitleSet]) -> Result<(), StoreError> {
    let dirs = volume.dirs_of(slot);
    let known: BTreeSet<TitleId> = titles.iter().map(TitleSet::id).collect();
    for id in ids_on(&dirs)?.into_iter().filter(|id| !known.contains(id)) {
        let _store = StoreLock::take(&dirs)?;
        if is_removed(volume, slot, id) {
            let removed = dirs.removed(id);
            remove_tree(&dirs.disk, &removed)?;
            rename(&dirs.disk, &dirs.title(id), &removed)?;
            sync_dir(&dirs.disk, &dirs.titles)?;
            sync_dir(&dirs.disk, &dirs.tmp)?;
        }
    }
    let _store = StoreLock::take(&dirs)?;
    for entry in look_at_tmp(&dirs)? {
        if let TmpEntry::Stale(path) = entry {
            remove_stale(&dirs, &path)?;
        }
    }
    Ok(())
}

/// Returns whether a title that only a stale member has was removed: too many active members lack
/// it for it to exist.
fn is_removed(volume: &Volume, slot: usize, id: TitleId) -> bool {
    let Ok(manifest) = read_manifest(&volume.dirs_of(slot), id) else { return false };
    let placed: Vec<usize> = manifest.placement.members.iter().map(|m| usize::from(m.index)).collect();
    let usable = volume.members().usable();
    let needed = placed.len() - usize::from(manifest.placement.geometry().tolerance()).min(placed.len());
    let others: Vec<usize> =
        placed.into_iter().filter(|other| *other != slot && usable.contains(other)).collect();
    let lacks = |other: &&usize| !volume.dirs_of(**other).title(id).is_dir();
    let none_has_it = usable.iter().all(|other| !volume.dirs_of(*other).title(id).is_dir());
    none_has_it && needed > 0 && others.iter().filter(lacks).count() >= needed
}
