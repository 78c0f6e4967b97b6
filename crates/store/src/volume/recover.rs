//! Puts a store in order after a crash: what dead processes left below `tmp` goes.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use super::dirs::{Dirs, LOCK_FILE, REMOVED_SUFFIX, id_of_name, remove_tree};
use super::lock::{StoreLock, is_held};
use crate::error::StoreError;

/// What an entry of `tmp` is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TmpEntry {
    /// Somebody works there.
    Live(PathBuf),
    /// Its maker died, or its removal was interrupted.
    Stale(PathBuf),
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
        entries.push(if removed.is_some_and(|name| id_of_name(OsStr::new(name)).is_some()) {
            TmpEntry::Stale(path)
        } else if id_of_name(&name).is_none() {
            TmpEntry::Foreign(path)
        } else if is_held(&path.join(LOCK_FILE))? {
            TmpEntry::Live(path)
        } else {
            TmpEntry::Stale(path)
        });
    }
    Ok(entries)
}

/// Removes what dead processes left. Foreign entries stay: they are not ours to delete.
pub(crate) fn sweep(dirs: &Dirs, _store: &StoreLock) -> Result<(), StoreError> {
    for entry in look_at_tmp(dirs)? {
        if let TmpEntry::Stale(path) = entry {
            remove_tree(&dirs.disk, &path)?;
        }
    }
    Ok(())
}
