//! Makes volumes, and gives them new members.

use std::path::{Path, PathBuf};

use millrace_core::units::Count;

use super::lock::{self, StoreLock};
use super::members_io::{self, no_slot};
use super::state::VolumeInner;
use crate::blocking::Timeout;
use crate::dirs::{
    Dirs, VOLUME_FILE, make_subdirectories, random, read_superblock, rename, sync_dir, unix_s,
};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::members::MembersRecord;
use crate::format::superblock::{Geometry, SUPERBLOCK_BYTES, Superblock};
use crate::limits::MAX_MEMBERS;
use crate::members::{MemberEntry, MemberState, Members, SlotReport, hint, read_record};

/// Makes the superblock of a new store. Two processes may try at once: one of them wins, both go on with its volume.
pub(super) fn single(dirs: &Dirs) -> Result<(), StoreError> {
    if dirs.tmp.exists() || dirs.titles.exists() {
        let reason = "volume.mrv is missing, but titles or tmp are there; restore volume.mrv from a backup, \
                      or choose another directory (titles and tmp of other programs are never touched)";
        return Err(StoreError::NotAStore { path: dirs.root.clone(), reason });
    }
    let new = dirs.root.join(format!("{VOLUME_FILE}.new"));
    let failed = |action| {
        let new = new.clone();
        move |e| StoreError::write(action, &new, 0, SUPERBLOCK_BYTES as u64, e)
    };
    // Not truncated: until the lock is ours, this may be what another process is about to rename.
    let file = dirs.disk.open_or_create(&new).map_err(failed("create"))?;
    lock::lock(file.file(), &new)?;
    let superblock = dirs.superblock();
    if superblock.exists() {
        return Ok(());
    }
    let block = Superblock {
        volume: Uuid::from_random(random()?),
        member: Uuid::from_random(random()?),
        member_index: 0,
        geometry: Geometry::SINGLE,
        created_unix_s: unix_s(),
    };
    file.set_len(0)
        .and_then(|()| file.write_all_at(&block.encode(), 0))
        .and_then(|()| file.sync_all())
        .map_err(failed("write"))?;
    rename(&dirs.disk, &new, &superblock)?;
    sync_dir(&dirs.disk, &dirs.root)
}

/// Makes a volume of these directories.
///
/// A directory is a member from the moment its superblock is there, which is written last; the list of members is durable
/// in all of them before the first superblock is.
pub(super) fn volume(dirs: &[PathBuf], geometry: Geometry, disk: &Disk) -> Result<(), StoreError> {
    if dirs.len() != usize::from(geometry.members) {
        let what = format!("{} directories for {} members", dirs.len(), geometry.members);
        return Err(StoreError::BadVolume(what));
    }
    let unfit = |error: crate::format::FormatError| StoreError::BadVolume(error.to_string());
    geometry.validate("geometry").map_err(unfit)?;
    geometry.check_supported("geometry").map_err(unfit)?;
    let homes = dirs.iter().map(|dir| new_home(dir, disk, None)).collect::<Result<Vec<_>, _>>()?;
    let places: Vec<PathBuf> = homes.iter().map(|home| hint(&home.root)).collect();
    for (i, place) in places.iter().enumerate() {
        if places[..i].contains(place) {
            return Err(StoreError::BadVolume(format!("{} is named twice", dirs[i].display())));
        }
    }
    if geometry.is_single() {
        return homes.iter().try_for_each(single);
    }
    let mut members = Vec::new();
    for (index, path) in (0..).zip(places) {
        members.push(MemberEntry { index, member: new_uuid()?, path, state: MemberState::Active });
    }
    let Geometry { k, m, unit_packets, .. } = geometry;
    let record = MembersRecord { volume: new_uuid()?, generation: 1, k, m, unit_packets, members };
    for home in &homes {
        members_io::write(home, &record)?;
    }
    for (home, entry) in homes.iter().zip(&record.members) {
        write_superblock(home, record.volume, entry.member, entry.index, geometry)?;
    }
    Ok(())
}

/// Writes the superblocks that a volume lacks which was being made when the machine stopped: of members that have the first
/// list of members and nothing else, if no member has a title yet.
pub(super) fn finish(members: &Members, disk: &Disk) -> Result<(), StoreError> {
    let Some(record) = members.record().filter(|record| record.generation == 1) else { return Ok(()) };
    let report = members.report();
    let has_titles = |slot: &SlotReport| {
        let look = |dir: &Path| {
            std::fs::read_dir(Dirs::new(dir).titles).is_ok_and(|mut titles| titles.next().is_some())
        };
        members.ask(slot.index, Timeout::Call, look).unwrap_or(false)
    };
    if report.iter().all(|slot| slot.absent.is_none()) || report.iter().any(has_titles) {
        return Ok(());
    }
    // One that does not answer is left for the next time.
    let is_absent = |slot: &SlotReport| slot.absent.is_some() && !members.blocking(slot.index).hangs();
    for (slot, entry) in report.iter().zip(&record.members).filter(|(slot, _)| is_absent(slot)) {
        let home = Dirs::on(&entry.path, disk.clone());
        let is_bare =
            [home.superblock(), home.tmp.clone(), home.titles.clone()].iter().all(|path| !path.exists());
        let listed = read_record(&entry.path).and_then(Result::ok).is_some_and(|seen| seen == record);
        if is_bare && listed && slot.dir == entry.path {
            write_superblock(&home, record.volume, entry.member, entry.index, record.geometry())?;
        }
    }
    members.refresh();
    Ok(())
}

/// Adds a member. A volume that had no list of members gets one.
pub(super) fn add(inner: &VolumeInner, dir: &Path, geometry: Geometry) -> Result<(), StoreError> {
    inner.all_members("adding a member")?;
    let (lock, _) = StoreLock::take_all(&inner.members, &|slot| inner.dirs(slot))?;
    let count = inner.members.len();
    if count >= MAX_MEMBERS {
        return Err(StoreError::BadVolume(format!("it has {count} members; more cannot be")));
    }
    if usize::from(geometry.members) != count + 1 {
        let what =
            format!("stripes for {} members; with the new one there are {}", geometry.members, count + 1);
        return Err(StoreError::BadVolume(what));
    }
    let home = new_home(dir, &inner.disk, Some(&inner.members))?;
    let (member, index) = (new_uuid()?, count as u16);
    write_superblock(&home, inner.members.volume(), member, index, geometry)?;
    let path = hint(dir);
    // One that is listed has the directories: without them it would count as a member that has lost its titles.
    make_subdirectories(&home)?;
    // No title lies on it, so nothing is missing there.
    let entry = MemberEntry { index, member, path, state: MemberState::Active };
    members_io::change(&inner.members, &inner.disk, &lock, |record| {
        record.members.push(entry);
        (record.k, record.m, record.unit_packets) = (geometry.k, geometry.m, geometry.unit_packets);
        Ok(())
    })
}

/// Gives a slot a new, empty member.
pub(super) fn replace(inner: &VolumeInner, slot: usize, dir: &Path) -> Result<(), StoreError> {
    let (lock, _) = StoreLock::take_all(&inner.members, &|slot| inner.dirs(slot))?;
    let count = inner.members.len();
    if slot >= count {
        return Err(no_slot(slot, count));
    }
    let others = (0..count).filter(|&other| other != slot && !inner.members.is_usable(other)).count();
    let may = usize::from(inner.members.geometry().tolerance());
    if may == 0 {
        let what = "it has no parity: nothing else holds a member's data, so none can be replaced; remove its titles and add \
                    their films again to a new volume";
        return Err(StoreError::BadVolume(what.to_owned()));
    }
    if others + 1 > may {
        let what = format!(
            "{} missing or incomplete already, and the volume tolerates {may}; bring them back and repair first",
            Count(others as u64, "other member")
        );
        return Err(StoreError::BadVolume(what));
    }
    let home = new_home(dir, &inner.disk, Some(&inner.members))?;
    let member = new_uuid()?;
    write_superblock(&home, inner.members.volume(), member, slot as u16, inner.members.geometry())?;
    make_subdirectories(&home)?;
    let path = hint(dir);
    members_io::change(&inner.members, &inner.disk, &lock, |record| {
        let entry = &mut record.members[slot];
        (entry.member, entry.path, entry.state) = (member, path, MemberState::Rebuilding);
        Ok(())
    })
}

fn new_uuid() -> Result<Uuid, StoreError> {
    Ok(Uuid::from_random(random()?))
}

/// A directory that is to become a member: made if it is not there; it may hold nothing that a store has, but for the
/// superblock of an earlier try to give it to these `members`.
fn new_home(dir: &Path, disk: &Disk, members: Option<&Members>) -> Result<Dirs, StoreError> {
    disk.create_dir_all(dir).map_err(StoreError::io("create", dir))?;
    let home = Dirs::on(dir, disk.clone());
    let is_of_a_try = |members: &Members| {
        let is_named = |member| (0..members.len()).any(|slot| members.member(slot) == Some(member));
        let block = read_superblock(&home);
        block.is_ok_and(|block| block.volume == members.volume() && !is_named(block.member))
            && [&home.tmp, &home.titles].iter().all(|path| !path.exists() || is_empty(path))
    };
    if members.is_some_and(is_of_a_try) {
        return Ok(home);
    }
    let taken = [home.superblock(), home.tmp.clone(), home.titles.clone()];
    match taken.iter().find(|path| path.exists()) {
        None => Ok(home),
        Some(path) => Err(StoreError::BadVolume(format!(
            "{}: is there already; give a directory that is not part of a store (a volume's members are never made over)",
            path.display()
        ))),
    }
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

fn write_superblock(
    home: &Dirs,
    volume: Uuid,
    member: Uuid,
    member_index: u16,
    geometry: Geometry,
) -> Result<(), StoreError> {
    let block = Superblock { volume, member, member_index, geometry, created_unix_s: unix_s() };
    members_io::replace(home, VOLUME_FILE, &block.encode())
}
