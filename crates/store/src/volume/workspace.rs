//! `tmp/<id>`: where something is made before it becomes visible. Gone when its maker gives up or dies.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use super::dirs::{Dirs, LOCK_FILE, random, remove_tree};
use super::lock::{StoreLock, lock};
use crate::error::StoreError;

/// A directory below `tmp` with a locked file in it. Dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: TitleId,
    path: PathBuf,
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
        fs::create_dir(&path).map_err(|e| StoreError::write("create", &path, 0, 0, e))?;
        let lock_path = path.join(LOCK_FILE);
        let made = File::create_new(&lock_path).and_then(|file| lock(&file).map(|()| file));
        match made {
            Ok(file) => Ok(Self { id, path, _lock: file, gone: false }),
            Err(e) => {
                // The first error is the one to report; what cannot be removed now is swept at the next open.
                let _ = remove_tree(&path);
                Err(StoreError::write("create", &lock_path, 0, 0, e))
            }
        }
    }

    /// The random id, also that of the title made here.
    pub(crate) fn id(&self) -> TitleId {
        self.id
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock file away, so that the directory holds the title's files only. From here on it looks dead to a
    /// sweep: the caller holds `_store` until the directory is renamed.
    pub(crate) fn unmark(&self, _store: &StoreLock) -> Result<(), StoreError> {
        let path = self.path.join(LOCK_FILE);
        fs::remove_file(&path).map_err(StoreError::io("remove", &path))
    }

    /// It has been renamed: nothing is left to remove.
    pub(crate) fn forget(mut self) {
        self.gone = true;
    }

    /// Removes it now; nothing in it can be used any more.
    pub(crate) fn remove(&mut self) {
        if !std::mem::replace(&mut self.gone, true) {
            // An error here has no one to go to; what is left is swept when the store is opened next.
            let _ = remove_tree(&self.path);
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.remove();
    }
}
