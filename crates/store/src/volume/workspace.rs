//! `tmp/<id>`: where something is made before it becomes visible. Gone when its maker gives up or dies.

use std::fs::File;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use super::dirs::{Dirs, LOCK_FILE, random, remove_tree};
use super::lock::{StoreLock, lock};
use crate::disk::Disk;
use crate::error::StoreError;

/// A directory below `tmp` with a locked file in it. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: TitleId,
    path: PathBuf,
    disk: Disk,
    /// The lock tells [`super::recover`] of other processes that the maker lives.
    _lock: File,
    gone: bool,
}

impl Workspace {
    /// Makes one under a new random id. The store's lock is held until its own lock is, so that nobody sweeps it in
    /// between.
    pub(crate) fn create(dirs: &Dirs) -> Result<Self, StoreError> {
        let id = TitleId(random()?);
        let path = dirs.tmp.join(id.to_string());
        let _store = StoreLock::take(dirs)?;
        let disk = dirs.disk.clone();
        disk.create_dir(&path).map_err(|e| StoreError::write("create", &path, 0, 0, e))?;
        let lock_path = path.join(LOCK_FILE);
        let made = disk.create_new(&lock_path).and_then(|file| lock(file.file()).map(|()| file.into_file()));
        match made {
            Ok(file) => Ok(Self { id, path, disk, _lock: file, gone: false }),
            Err(e) => {
                // The first error is the one to report; what cannot be removed now is swept at the next open.
                let _ = remove_tree(&disk, &path);
                Err(StoreError::write("create", &lock_path, 0, 0, e))
            }
        }
    }

    /// The random id, also that of the title made here.
    pub(crate) fn id(&self) -> TitleId {
        self.id
    }

    /// What changes in it go through.
    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock file away, so that the directory holds the title's files only. From here on it looks dead to a
    /// sweep: the caller holds `_store` until the directory is renamed.
    pub(crate) fn unmark(&self, _store: &StoreLock) -> Result<(), StoreError> {
        let path = self.path.join(LOCK_FILE);
        self.disk.remove_file(&path).map_err(StoreError::io("remove", &path))
    }

    /// It has been renamed: nothing is left to remove.
    pub(crate) fn forget(mut self) {
        self.gone = true;
    }

    /// Removes it now; nothing in it can be used any more.
    pub(crate) fn remove(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            // An error here has no one to go to; what is left is swept when the store is opened next.
            let _ = remove_tree(&self.disk, &self.path);
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.remove();
    }
}
