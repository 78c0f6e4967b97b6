//! `tmp/<id>`: where something is made before it becomes visible. Gone when its maker gives up or dies.

use std::fs::File;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use super::lock::{StoreLock, lock};
use crate::dirs::{Dirs, LOCK_FILE, RECORDING_EXTENSION, random, remove_tree};
use crate::disk::Disk;
use crate::error::StoreError;

/// A directory below `tmp` with a locked file in it, on each of the members that something is made on. Dropped, they are
/// removed.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: TitleId,
    parts: Vec<WorkspaceDir>,
    gone: bool,
    /// A recording is made in it, which is kept.
    is_kept: bool,
}

#[derive(Debug)]
struct WorkspaceDir {
    path: PathBuf,
    disk: Disk,
    /// While this lock is held, [`super::recover`] in other processes treats the owner as alive.
    _lock: File,
}

impl Workspace {
    /// Makes one under a new random id.
    pub(crate) fn create(dirs: &Dirs) -> Result<Self, StoreError> {
        Self::create_on(std::slice::from_ref(dirs))
    }

    /// Creates a workspace on each of these members, under one id. The store lock is held until the
    /// workspace has its own lock, so that no process sweeps it in between.
    pub(crate) fn create_on(members: &[Dirs]) -> Result<Self, StoreError> {
        Self::create_as(members, TitleId(random()?))
    }

    /// The same under an id that is given. An error if another process has a workspace with this id.
    pub(crate) fn create_as(members: &[Dirs], id: TitleId) -> Result<Self, StoreError> {
        let mut workspace = Self { id, parts: Vec::new(), gone: false, is_kept: false };
        for dirs in members {
            let part = WorkspaceDir::create(dirs, workspace.id)?;
            workspace.parts.push(part);
        }
        Ok(workspace)
    }

    /// The random id, also that of the title made here.
    pub(crate) fn id(&self) -> TitleId {
        self.id
    }

    /// What changes in it go through.
    pub(crate) fn disk(&self) -> &Disk {
        &self.parts[0].disk
    }

    /// The directory; on the first member, if there are several.
    pub(crate) fn path(&self) -> &Path {
        &self.parts[0].path
    }

    /// The directories, one on each member in the order given.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    /// Takes the lock files away, so that the directories hold the title's files only. From here on they look dead to a
    /// sweep: the caller holds `_store` until the directories are renamed.
    pub(crate) fn unmark(&self, _store: &StoreLock) -> Result<(), StoreError> {
        for part in &self.parts {
            let path = part.path.join(LOCK_FILE);
            part.disk.remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
        Ok(())
    }

    /// Its files stay until they are a title or [discarded](Self::discard).
    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Removes a recording.
    pub(super) fn discard(&mut self) {
        if std::mem::take(&mut self.is_kept) {
            self.remove_notes();
            self.remove();
        }
    }

    /// They have been renamed: nothing is left to remove.
    pub(crate) fn forget(mut self) {
        self.gone = true;
        if self.is_kept {
            self.remove_notes();
        }
    }

    fn remove_notes(&self) {
        for part in &self.parts {
            // A note without its directory is swept when the store is opened next.
            let _ = part.disk.remove_file(&part.path.with_extension(RECORDING_EXTENSION));
        }
    }

    /// Removes them now; nothing in them can be used any more. Those of a recording stay.
    pub(crate) fn remove(&mut self) {
        if !std::mem::replace(&mut self.gone, true) && !self.is_kept {
            for part in &self.parts {
                // An error here has no caller to go to; the remains are swept when the store is
                // opened next.
                let _ = remove_tree(&part.disk, &part.path);
            }
        }
    }
}

impl WorkspaceDir {
    fn create(dirs: &Dirs, id: TitleId) -> Result<Self, StoreError> {
        let path = dirs.tmp.join(id.to_string());
        let _store = StoreLock::take(dirs)?;
        let disk = dirs.disk.clone();
        disk.create_dir(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => StoreError::TitleInProgress { id },
            _ => StoreError::write("create", &path, 0, 0, e),
        })?;
        let lock_path = path.join(LOCK_FILE);
        let made = disk
            .create_new(&lock_path)
            .map_err(|e| StoreError::write("create", &lock_path, 0, 0, e))
            .and_then(|file| lock(file.file(), &lock_path).map(|()| file.into_file()));
        match made {
            Ok(file) => Ok(Self { path, disk, _lock: file }),
            Err(error) => {
                // Report the first error; remains that cannot be removed now are swept at the next
                // open.
                let _ = remove_tree(&disk, &path);
                Err(error)
            }
        }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.remove();
    }
}
