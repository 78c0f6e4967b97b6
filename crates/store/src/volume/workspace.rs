//! `tmp/<id>`: where something is made before it becomes visible. Gone when its maker gives up or dies.

use std::fs::File;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;

use super::lock::{StoreLock, lock};
use crate::dirs::{Dirs, LOCK_FILE, random, remove_tree};
use crate::disk::Disk;
use crate::error::StoreError;

/// A directory below `tmp` with a locked file in it, on each of the members that something is made on. Dropped, they are
/// removed.
#[derive(Debug)]
pub(crate) struct Workspace {
    id: TitleId,
    parts: Vec<WorkspaceDir>,
    gone: bool,
    /// Its files stay when it is dropped.
    is_kept: bool,
    /// Extension of the notes beside the directories that keep them from being swept, if there are any.
    note: Option<&'static str>,
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
        let mut workspace = Self::empty(id);
        for dirs in members {
            let part = WorkspaceDir::create(dirs, workspace.id)?;
            workspace.parts.push(part);
        }
        Ok(workspace)
    }

    /// The same; directories that a dead process has left with a note of this extension are taken over with their files.
    pub(crate) fn adopt_or_create_as(
        members: &[Dirs],
        id: TitleId,
        note: &'static str,
    ) -> Result<Self, StoreError> {
        let mut workspace = Self::empty(id);
        for dirs in members {
            let has_note = dirs.tmp.join(id.to_string()).with_extension(note).exists();
            workspace.note = workspace.note.or(has_note.then_some(note));
        }
        // Until all are locked, an error must leave the files where they are.
        workspace.is_kept = workspace.note.is_some();
        for dirs in members {
            let part = match workspace.note {
                None => WorkspaceDir::create(dirs, id)?,
                Some(_) => WorkspaceDir::adopt_or_create(dirs, id)?,
            };
            workspace.parts.push(part);
        }
        workspace.is_kept = false;
        Ok(workspace)
    }

    fn empty(id: TitleId) -> Self {
        Self { id, parts: Vec::new(), gone: false, is_kept: false, note: None }
    }

    /// Whether a dead process had begun it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.note.is_some()
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

    /// Its files stay until they are a title or [discarded](Self::discard). The caller has written a note with this extension beside each
    /// directory.
    pub(super) fn keep(&mut self, note: &'static str) {
        (self.is_kept, self.note) = (true, Some(note));
    }

    /// Removes its files although they are kept.
    pub(super) fn discard(&mut self) {
        self.is_kept = false;
        self.remove();
    }

    /// They have been renamed: nothing but notes is left to remove.
    pub(crate) fn leave(&mut self) {
        self.gone = true;
    }

    /// Removes the notes beside the directories.
    pub(crate) fn remove_notes(&self) {
        let Some(extension) = self.note else { return };
        for part in &self.parts {
            // A note without its directory is swept when the store is opened next.
            let _ = part.disk.remove_file(&part.path.with_extension(extension));
            if let Some(above) = part.path.parent() {
                let _ = part.disk.sync_dir(above);
            }
        }
    }

    /// Removes them now; nothing in them can be used any more. Those that are kept stay.
    pub(crate) fn remove(&mut self) {
        if self.is_kept || std::mem::replace(&mut self.gone, true) {
            return;
        }
        self.remove_notes();
        for part in &self.parts {
            // An error here has no caller to go to; the remains are swept when the store is
            // opened next.
            let _ = remove_tree(&part.disk, &part.path);
        }
    }
}

impl WorkspaceDir {
    fn create(dirs: &Dirs, id: TitleId) -> Result<Self, StoreError> {
        let _store = StoreLock::take(dirs)?;
        Self::create_locked(dirs, id)
    }

    /// Takes a directory over whose process has died, or creates it.
    fn adopt_or_create(dirs: &Dirs, id: TitleId) -> Result<Self, StoreError> {
        let path = dirs.tmp.join(id.to_string());
        let _store = StoreLock::take(dirs)?;
        if !path.is_dir() {
            return Self::create_locked(dirs, id);
        }
        let lock_path = path.join(LOCK_FILE);
        let file = File::options().create(true).append(true).open(&lock_path);
        let file = file.map_err(StoreError::io("open", &lock_path))?;
        file.try_lock().map_err(|_| StoreError::TitleInProgress { id })?;
        Ok(Self { path, disk: dirs.disk.clone(), _lock: file })
    }

    /// The caller holds the store lock.
    fn create_locked(dirs: &Dirs, id: TitleId) -> Result<Self, StoreError> {
        let path = dirs.tmp.join(id.to_string());
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
