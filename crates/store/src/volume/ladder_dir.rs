//! The location of encoded rungs until all of them are there: `tmp/<key>.ladder`. The key is that
//! of the film, and each file has that of ffmpeg's arguments, so an existing file is the same as a
//! repeated encoding would produce.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::lock::{StoreLock, is_held, lock};
use super::state::Volume;
use crate::dirs::{Dirs, LADDER_SUFFIX, LOCK_FILE, remove_tree, sync_dir};
use crate::error::StoreError;
use crate::format::title_info::SourceIdentity;

/// The directory of one film, which is this process's as long as this lives. It stays when this is dropped.
#[derive(Debug)]
pub struct LadderDir {
    path: PathBuf,
    dirs: Dirs,
    _lock: File,
}

impl LadderDir {
    /// On the first member that is there; `None` while another process has it.
    ///
    /// # Errors
    /// If the member is not there, or the directory cannot be made or locked.
    pub fn open(volume: &Volume, of: &SourceIdentity) -> Result<Option<Self>, StoreError> {
        let slot = volume.members().usable().first().copied().unwrap_or(0);
        let dirs = volume.dirs_of(slot);
        let mut hasher = blake3::Hasher::new();
        hasher.update(of.path.as_os_str().as_bytes());
        hasher.update(&[0]);
        hasher.update(&of.bytes.to_le_bytes());
        hasher.update(&of.modified_unix_ns.to_le_bytes());
        let path = dirs.tmp.join(format!("{}{LADDER_SUFFIX}", key(&hasher)));
        let lock_path = path.join(LOCK_FILE);
        // No sweep can happen between creating and locking it.
        let _store = StoreLock::take(&dirs)?;
        if is_held(&lock_path)? {
            return Ok(None);
        }
        let failed = |error| StoreError::write("create", &lock_path, 0, 0, error);
        if !path.is_dir() {
            // Create only the last directory: if the member's own directories are missing, its disk
            // is not mounted.
            dirs.disk.create_dir(&path).map_err(failed)?;
        }
        let file = File::create(&lock_path).map_err(failed)?;
        lock(&file, &lock_path)?;
        Ok(Some(Self { path, dirs, _lock: file }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of what ffmpeg encodes with these arguments.
    pub fn file(&self, args: &[OsString]) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        for arg in args {
            hasher.update(arg.as_bytes());
            hasher.update(&[0]);
        }
        self.path.join(format!("{}.ts", key(&hasher)))
    }

    /// Begins a file; the rest of an earlier try is overwritten.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn begin(&self, file: &Path) -> Result<PartialFile, StoreError> {
        let path = file.with_extension("part");
        let part = File::create(&path).map_err(|error| StoreError::write("create", &path, 0, 0, error))?;
        Ok(PartialFile { path, whole: file.to_path_buf(), file: part, bytes: 0 })
    }

    /// The rungs are titles: nothing of this is needed any more.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove(self) -> Result<(), StoreError> {
        remove_tree(&self.dirs.disk, &self.path)?;
        sync_dir(&self.dirs.disk, &self.dirs.tmp)
    }
}

/// The first 128 bits of a hash, as names below `tmp` are.
fn key(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..32].to_owned()
}

/// A file that is being written. It has its name when it is whole and durable.
#[derive(Debug)]
pub struct PartialFile {
    path: PathBuf,
    whole: PathBuf,
    file: File,
    bytes: u64,
}

impl PartialFile {
    /// Appends.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let failed = |error| StoreError::write("write", &self.path, self.bytes, bytes.len() as u64, error);
        self.file.write_all(bytes).map_err(failed)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is whole.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn finish(self) -> Result<(), StoreError> {
        let done = self.file.sync_all().and_then(|()| fs::rename(&self.path, &self.whole));
        done.map_err(|error| StoreError::write("write", &self.path, self.bytes, 0, error))
    }
}
