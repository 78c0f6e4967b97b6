//! Puts a volume in order after a crash: removes the remains of dead processes below `tmp`, and
//! finishes on all members the changes begun on some.
//!
//! | found | done |
//! | --- | --- |
//! | `tmp/<id>.rm` on any member | the title is removed from all |
//! | `titles/<id>` on some, `tmp/<id>` with its manifest on others | it is renamed there too |
//! | `tmp/<id>` without a manifest, `titles/<id>` on others | left: a repair goes on with it |
//! | `tmp/<id>` of a title that is nowhere visible | removed, unless a member that may have it is missing |
//! | the same with `tmp/<id>.recording` | left: a title is made of it ([`super::recording`]) |
//! | the same with `tmp/<id>.import` | left for a week: the import goes on with it ([`super::import`]) |
//! | `tmp/<key>.ladder`, encoded for a ladder that was interrupted | kept for a week |
//! | a new manifest of a title in `tmp`, and the same in place on some | put in place on the others, with its files |

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use millrace_core::ids::TitleId;

use super::lock::{StoreLock, is_held};
use super::manifest_io::{drop_unnamed, read_manifest};
use super::members_io::leave_missing_behind;
use crate::dirs::{
    Dirs, IMPORT_EXTENSION, LADDER_SUFFIX, LOCK_FILE, RECORDING_EXTENSION, REMOVED_SUFFIX, id_of_name,
    read_whole, remove_tree, rename, sync_dir, unix_s,
};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{MANIFEST_FILE, Manifest};
use crate::limits::MAX_MANIFEST_BYTES;
use crate::limits::volume::{IMPORT_KEPT_S, LADDER_KEPT_S};
use crate::members::{MemberState, Members};

/// Classification of an entry of `tmp`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TmpEntry {
    /// A process is working there.
    Live(PathBuf),
    /// Its maker died, or its removal was interrupted.
    Stale(PathBuf),
    /// Encoded for a ladder that was interrupted: the next try goes on with it.
    Kept(PathBuf),
    /// A recording whose program died: a title is made of it.
    Recording(PathBuf),
    /// A part of a title of another store whose process died: the next import of the title goes on with it.
    Import(PathBuf),
    /// Nothing that Millrace makes.
    Foreign(PathBuf),
}

/// Looks at every entry of `tmp`. Exact only under the store's lock.
pub(crate) fn look_at_tmp(dirs: &Dirs) -> Result<Vec<TmpEntry>, StoreError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(&dirs.tmp).map_err(StoreError::io("list", &dirs.tmp))? {
        let entry = entry.map_err(StoreError::io("list", &dirs.tmp))?;
        let (name, path) = (entry.file_name(), entry.path());
        let removed = name.to_str().and_then(|name| name.strip_suffix(REMOVED_SUFFIX));
        if is_ladder(&name) {
            entries.push(if is_held(&path.join(LOCK_FILE))? {
                TmpEntry::Live(path)
            } else if is_young(&path, LADDER_KEPT_S) {
                TmpEntry::Kept(path)
            } else {
                TmpEntry::Stale(path)
            });
            continue;
        }
        if path.extension().is_some_and(|extension| extension == RECORDING_EXTENSION) {
            let is_needed = path.with_extension("").is_dir();
            entries.push(if is_needed { TmpEntry::Kept(path) } else { TmpEntry::Stale(path) });
            continue;
        }
        if path.extension().is_some_and(|extension| extension == IMPORT_EXTENSION) {
            let (dir, is_young) = (path.with_extension(""), is_young(&path, IMPORT_KEPT_S));
            let is_needed = dir.is_dir() && (is_young || is_held(&dir.join(LOCK_FILE))?);
            entries.push(if is_needed { TmpEntry::Kept(path) } else { TmpEntry::Stale(path) });
            continue;
        }
        entries.push(if removed.is_some_and(|name| id_of_name(OsStr::new(name)).is_some()) {
            TmpEntry::Stale(path)
        } else if id_of_name(&name).is_none() {
            TmpEntry::Foreign(path)
        } else if is_held(&path.join(LOCK_FILE))? {
            TmpEntry::Live(path)
        } else if path.with_extension(RECORDING_EXTENSION).exists() {
            TmpEntry::Recording(path)
        } else if has_import_note(&path) {
            TmpEntry::Import(path)
        } else {
            TmpEntry::Stale(path)
        });
    }
    Ok(entries)
}

/// Whether this is the name of a directory with rungs of a ladder.
fn is_ladder(name: &OsStr) -> bool {
    let key = name.to_str().and_then(|name| name.strip_suffix(LADDER_SUFFIX));
    key.is_some_and(|key| id_of_name(OsStr::new(key)).is_some())
}

/// Whether an import goes on with this directory.
fn has_import_note(path: &Path) -> bool {
    let note = path.with_extension(IMPORT_EXTENSION);
    note.exists() && is_young(&note, IMPORT_KEPT_S)
}

/// Returns whether work began in it less than `kept_s` ago. An entry that cannot be examined is kept.
fn is_young(path: &Path, kept_s: u64) -> bool {
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified());
    let since = modified.ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.is_none_or(|since| unix_s().saturating_sub(since.as_secs()) < kept_s)
}

/// Removes what dead processes left. Foreign entries stay: they are not ours to delete.
pub(crate) fn sweep(dirs: &Dirs, _store: &StoreLock) -> Result<(), StoreError> {
    for entry in look_at_tmp(dirs)? {
        if let TmpEntry::Stale(path) = entry {
            remove_stale(dirs, &path)?;
        }
    }
    Ok(())
}

/// Removes the remains of a dead process: a directory, or the note on a recording.
pub(crate) fn remove_stale(dirs: &Dirs, path: &Path) -> Result<(), StoreError> {
    if path.is_dir() {
        return remove_tree(&dirs.disk, path);
    }
    dirs.disk.remove_file(path).map_err(StoreError::io("remove", path))
}

/// Puts all members that are there in order.
pub(super) fn recover(
    members: &Members,
    usable: &[Dirs],
    disk: &Disk,
    store: &StoreLock,
) -> Result<(), StoreError> {
    if members.len() == 1 {
        return usable.iter().try_for_each(|dirs| sweep(dirs, store));
    }
    let mut removed = BTreeSet::new();
    for dirs in usable {
        let entries = fs::read_dir(&dirs.tmp).map_err(StoreError::io("list", &dirs.tmp))?;
        removed.extend(entries.filter_map(|entry| removed_id(&entry.ok()?.file_name())));
    }
    if !removed.is_empty() {
        leave_missing_behind(members, disk, store, |_| true)?;
    }
    for id in removed {
        for dirs in finish_removal(members, disk, id, store)? {
            remove_tree(disk, &dirs.removed(id))?;
        }
    }
    // All members are examined before any change: the meaning of an entry on one member depends on
    // the others.
    let mut left = Vec::new();
    for dirs in usable {
        for entry in look_at_tmp(dirs)? {
            let (TmpEntry::Stale(path) | TmpEntry::Recording(path) | TmpEntry::Import(path)) = entry else {
                continue;
            };
            // The power may have been cut before all members had the note.
            let id = path.file_name().and_then(id_of_name);
            let is_kept =
                |path: PathBuf| path.with_extension(RECORDING_EXTENSION).exists() || has_import_note(&path);
            let is_kept =
                id.is_some_and(|id| usable.iter().any(|dirs| is_kept(dirs.tmp.join(id.to_string()))));
            let fate = match RecoveryAction::of(dirs, &path, members, usable) {
                RecoveryAction::Remove if is_kept => RecoveryAction::Leave,
                fate => fate,
            };
            left.push((dirs, path, fate));
        }
    }
    left.into_iter().try_for_each(|(dirs, path, fate)| fate.carry_out(dirs, &path))
}

/// The id in the name of a title below `tmp` that is being removed.
fn removed_id(name: &OsStr) -> Option<TitleId> {
    id_of_name(OsStr::new(name.to_str()?.strip_suffix(REMOVED_SUFFIX)?))
}

/// Makes a title invisible on every member that is there, durably. Returns those with something left to delete.
pub(super) fn finish_removal(
    members: &Members,
    disk: &Disk,
    id: TitleId,
    _store: &StoreLock,
) -> Result<Vec<Dirs>, StoreError> {
    let there = (0..members.len()).filter(|&slot| members.is_present(slot));
    // One that is being rebuilt may have it again already.
    let there = there.filter(|&slot| members.state(slot) != MemberState::Stale);
    let homes: Vec<Dirs> = there.map(|slot| Dirs::on(&members.dir(slot), disk.clone())).collect();
    for dirs in homes.iter().filter(|dirs| dirs.title(id).is_dir()) {
        remove_tree(disk, &dirs.removed(id))?;
        rename(disk, &dirs.title(id), &dirs.removed(id))?;
    }
    for dirs in &homes {
        sync_dir(disk, &dirs.titles)?;
        sync_dir(disk, &dirs.tmp)?;
    }
    Ok(homes)
}

/// Action on a directory below `tmp` whose process has died.
enum RecoveryAction {
    Remove,
    /// A repair goes on with it, or a member that is missing decides.
    Leave,
    /// It is a whole title, visible on other members.
    Show(TitleId),
    /// It holds more files for a title and a new manifest, which is in place on other members.
    Prepare(TitleId),
}

impl RecoveryAction {
    fn of(dirs: &Dirs, path: &Path, members: &Members, usable: &[Dirs]) -> Self {
        let notes = [RECORDING_EXTENSION, IMPORT_EXTENSION];
        let is_note = path.extension().is_some_and(|extension| notes.iter().any(|note| extension == *note));
        if is_note || path.file_name().is_some_and(is_ladder) {
            return Self::Remove;
        }
        let Some(id) = path.file_name().and_then(id_of_name) else { return Self::Leave };
        let here = dirs.title(id).is_dir();
        let elsewhere = usable.iter().any(|dirs| dirs.title(id).is_dir());
        let bytes = read_whole(&path.join(MANIFEST_FILE), MAX_MANIFEST_BYTES).ok();
        let manifest = bytes.as_ref().and_then(|bytes| Manifest::decode(bytes).ok());
        let (Some(bytes), Some(manifest)) = (bytes, manifest) else {
            return if elsewhere && !here { Self::Leave } else { Self::Remove };
        };
        let title = manifest.title.id;
        let is_in_place = usable.iter().any(|dirs| {
            read_whole(&dirs.manifest(title), MAX_MANIFEST_BYTES).is_ok_and(|seen| seen == bytes)
        });
        let all_there = manifest.placement.members.iter().all(|m| members.is_usable(usize::from(m.index)));
        match title == id {
            true if elsewhere && here => Self::Remove,
            true if is_in_place => Self::Show(id),
            true if elsewhere || !all_there => Self::Leave,
            false if is_in_place && dirs.title(title).is_dir() => Self::Prepare(title),
            _ => Self::Remove,
        }
    }

    fn carry_out(self, dirs: &Dirs, path: &Path) -> Result<(), StoreError> {
        let disk = &dirs.disk;
        match self {
            Self::Leave => Ok(()),
            Self::Remove => remove_stale(dirs, path),
            Self::Show(id) => {
                if path.join(LOCK_FILE).exists() {
                    disk.remove_file(&path.join(LOCK_FILE)).map_err(StoreError::io("remove", path))?;
                    sync_dir(disk, path)?;
                }
                rename(disk, path, &dirs.title(id))?;
                sync_dir(disk, &dirs.titles)?;
                sync_dir(disk, &dirs.tmp)
            }
            Self::Prepare(id) => {
                let title = dirs.title(id);
                for entry in fs::read_dir(path).map_err(StoreError::io("list", path))? {
                    let name = entry.map_err(StoreError::io("list", path))?.file_name();
                    if name != OsStr::new(LOCK_FILE) && name != OsStr::new(MANIFEST_FILE) {
                        rename(disk, &path.join(&name), &title.join(&name))?;
                    }
                }
                sync_dir(disk, &title)?;
                rename(disk, &path.join(MANIFEST_FILE), &dirs.manifest(id))?;
                sync_dir(disk, &title)?;
                drop_unnamed(disk, &title, &read_manifest(dirs, id)?)?;
                remove_tree(disk, path)
            }
        }
    }
}
