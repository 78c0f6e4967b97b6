//! The list of members on the disks: read by [`crate::members`], written here.

use std::path::Path;

use super::lock::StoreLock;
use crate::dirs::{Dirs, rename, sync_dir};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::members::{MEMBERS_FILE, MembersRecord};
use crate::members::{MemberEntry, MemberState, Members, SlotReport, hint, read_record};

/// Writes a small file of a member in place of the one that may be there, at once and durably.
pub(super) fn replace(home: &Dirs, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (path, new) = (home.root.join(name), home.root.join(format!("{name}.new")));
    let failed = |e| StoreError::write("write", &new, 0, bytes.len() as u64, e);
    // Overwrites the remains of an earlier attempt that a crash interrupted.
    let file = home.disk.open_or_create(&new).map_err(failed)?;
    file.set_len(0)
        .and_then(|()| file.write_all_at(bytes, 0))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    rename(&home.disk, &new, &path)?;
    sync_dir(&home.disk, &home.root)
}

/// Writes the list into one member's directory.
pub(super) fn write(home: &Dirs, record: &MembersRecord) -> Result<(), StoreError> {
    replace(home, MEMBERS_FILE, &record.encode())
}

/// Makes a new generation: `with` changes the list, which is then durable on all members that are there, those with a
/// changed directory or a new member included. A volume that has no list gets its first.
pub(super) fn change(
    members: &Members,
    disk: &Disk,
    _store: &StoreLock,
    with: impl FnOnce(&mut MembersRecord) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut record = members.record().unwrap_or_else(|| first(members));
    with(&mut record)?;
    record.generation += 1;
    record.validate().map_err(|error| StoreError::BadVolume(error.to_string()))?;
    let active = |member: Uuid| {
        (0..members.len()).any(|slot| members.member(slot) == Some(member) && members.is_usable(slot))
    };
    let planned = members.with_list(record.clone());
    let mut there: Vec<_> = planned.there().collect();
    // Active members come first: a list known only to the other members could not be distinguished
    // from one of their own.
    there.sort_by_key(|&(_, member, _)| !active(member));
    for (dir, _, state) in there {
        match write(&Dirs::on(dir, disk.clone()), &record) {
            // The list of an inactive member is not trusted anyway.
            Err(_) if state != MemberState::Active => {}
            result => result?,
        }
    }
    // Only now, because the next change must start from the list that is on the disks.
    members.install(planned);
    Ok(())
}

/// The list of a volume of one member that has none.
fn first(members: &Members) -> MembersRecord {
    let geometry = members.geometry();
    let entries = members.report().into_iter().map(|slot| MemberEntry {
        index: slot.index as u16,
        member: slot.member,
        path: hint(&slot.dir),
        state: slot.state,
    });
    MembersRecord {
        volume: members.volume(),
        generation: 0,
        k: geometry.k,
        m: geometry.m,
        unit_packets: geometry.unit_packets,
        members: entries.collect(),
    }
}

/// Members that should be there and are not become stale, if they are `concerned`: they are about to miss a change.
pub(super) fn leave_missing_behind(
    members: &Members,
    disk: &Disk,
    store: &StoreLock,
    concerned: impl Fn(usize) -> bool,
) -> Result<(), StoreError> {
    let mut missing = members.missing();
    missing.retain(|&slot| concerned(slot));
    if members.record().is_none() {
        return Ok(());
    }
    if missing.is_empty() {
        // They may be stale by a change that failed when not all members had heard of it.
        return heal(members, disk, store);
    }
    // The caller may have waited for the lock after it saw that enough members were present. No
    // more members may become permanently stale than the parity makes up for.
    let first = members.usable().first().map(|&slot| members.dir(slot)).unwrap_or_default();
    enough(&first, members)?;
    change(members, disk, store, |record| {
        for slot in missing {
            record.members[slot].state = MemberState::Stale;
        }
        Ok(())
    })
}

/// Brings the list up to date on members that have an older one or none, and notes where the members are now.
pub(super) fn heal(members: &Members, disk: &Disk, store: &StoreLock) -> Result<(), StoreError> {
    let Some(record) = members.record() else { return Ok(()) };
    let there: Vec<_> = members.report().into_iter().filter(|slot| slot.absent.is_none()).collect();
    let moved: Vec<_> = there
        .iter()
        .map(|slot| (slot.index, hint(&slot.dir)))
        .filter(|(index, path)| record.members[*index].path != *path)
        .collect();
    if !moved.is_empty() {
        return change(members, disk, store, |record| {
            for (index, path) in moved {
                record.members[index].path = path;
            }
            Ok(())
        });
    }
    for slot in there {
        let same = read_record(&slot.dir).and_then(Result::ok).is_some_and(|known| known == record);
        match (same, slot.state) {
            (true, _) => {}
            (false, MemberState::Active) => write(&Dirs::on(&slot.dir, disk.clone()), &record)?,
            // The list of an inactive member is not trusted anyway.
            (false, _) => drop(write(&Dirs::on(&slot.dir, disk.clone()), &record)),
        }
    }
    Ok(())
}

/// Whether enough members are there.
pub(super) fn enough(dir: &Path, members: &Members) -> Result<(), StoreError> {
    let geometry = members.geometry();
    geometry.check_supported("volume").map_err(StoreError::format(dir))?;
    let report = members.report();
    let lost: Vec<_> =
        report.iter().filter(|slot| slot.absent.is_some() || slot.state != MemberState::Active).collect();
    let may = usize::from(geometry.tolerance());
    if lost.len() <= may {
        return Ok(());
    }
    let name = |slot: &&SlotReport| match &slot.absent {
        Some(absent) => format!("{}: {absent}", slot.dir.display()),
        None => format!("{}: {}", slot.dir.display(), slot.state),
    };
    let names = lost.iter().map(name).collect::<Vec<_>>().join(", ");
    Err(StoreError::MembersLost { what: dir.display().to_string(), lost: lost.len(), may, names })
}

/// The error of a slot that the volume does not have.
pub(super) fn no_slot(slot: usize, count: usize) -> StoreError {
    StoreError::BadVolume(format!(
        "there is no member {slot}; the volume has members 0 to {}",
        count.max(1) - 1
    ))
}

#[cfg(test)]
#[path = "members_io_tests.rs"]
mod tests;
