//! Where a title that a member lacks is made: `tmp/<id>`, kept when the repair is killed, so that the next one goes on.

use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use crate::dirs::{Dirs, LOCK_FILE, remove_tree, rename, sync_dir, write_new};
use crate::disk::DiskFile;
use crate::error::StoreError;
use crate::format::manifest::MANIFEST_FILE;
use crate::volume::lock::StoreLock;

/// The directory, locked by this process.
#[derive(Debug)]
pub(crate) struct RepairDirectory {
    dirs: Dirs,
    id: TitleId,
    path: PathBuf,
    _lock: DiskFile,
}

impl RepairDirectory {
    /// Creates it, or takes over the data that a killed repair left there.
    ///
    /// # Errors
    /// If another repair is at work there, or the disk refuses.
    pub(crate) fn take(dirs: &Dirs, id: TitleId) -> Result<Self, StoreError> {
        let path = dirs.tmp.join(id.to_string());
        // Held until the directory has a lock of its own, so that it is not swept in between.
        let _store = StoreLock::take(dirs)?;
        if !path.is_dir() {
            dirs.disk.create_dir(&path).map_err(|e| StoreError::write("create", &path, 0, 0, e))?;
        }
        let lock_path = path.join(LOCK_FILE);
        let lock = dirs.disk.open_or_create(&lock_path);
        let lock = lock.map_err(|e| StoreError::write("create", &lock_path, 0, 0, e))?;
        match lock.file().try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let what = format!("another process is making it in {}", path.display());
                return Err(StoreError::BadTitle { id, what });
            }
            Err(TryLockError::Error(e)) => return Err(StoreError::io("lock", &lock_path)(e)),
        }
        let place = Self { dirs: dirs.clone(), id, path, _lock: lock };
        // With a manifest it would count as complete; it is written last, when it is.
        place.drop_file(MANIFEST_FILE)?;
        Ok(place)
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The member's paths.
    pub(crate) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Removes a file, if it is there.
    pub(crate) fn drop_file(&self, name: &str) -> Result<(), StoreError> {
        let path = self.path.join(name);
        match self.dirs.disk.remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(StoreError::io("remove", &path)(e)),
            _ => Ok(()),
        }
    }

    /// Removes all files except `names`; the others were left by the repair of an older state of
    /// the title.
    pub(crate) fn keep_only(&self, names: &[&str]) -> Result<(), StoreError> {
        for entry in fs::read_dir(&self.path).map_err(StoreError::io("list", &self.path))? {
            let entry = entry.map_err(StoreError::io("list", &self.path))?;
            if let Some(name) = entry.file_name().to_str()
                && name != LOCK_FILE
                && !names.contains(&name)
            {
                self.drop_file(name)?;
            }
        }
        Ok(())
    }

    /// Makes the title visible on this member: all its files are there and durable. The caller holds `_store`.
    pub(crate) fn publish(self, manifest: &[u8], _store: &StoreLock) -> Result<(), StoreError> {
        let Dirs { disk, tmp, titles, .. } = &self.dirs;
        // With a manifest the next open would put all that is there in place: the other names are kept before.
        sync_dir(disk, &self.path)?;
        write_new(disk, &self.path.join(MANIFEST_FILE), manifest)?;
        self.drop_file(LOCK_FILE)?;
        sync_dir(disk, &self.path)?;
        rename(disk, &self.path, &self.dirs.title(self.id))?;
        sync_dir(disk, titles)?;
        sync_dir(disk, tmp)
    }

    /// Removes all that was made here.
    pub(crate) fn give_up(self) -> Result<(), StoreError> {
        remove_tree(&self.dirs.disk, &self.path)
    }
}
