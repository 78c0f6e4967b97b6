//! Every operation of the store that must survive a power cut, behind one cheap handle.
//!
//! [`Disk`] uses the operating system's files by default and then costs one test of a pointer per
//! operation. A test puts a [`DiskInterceptor`] in its place: the simulated disk in `tests/crash/sim` records the
//! operations, refuses those it is configured to refuse, and rebuilds in a fresh directory the
//! state that a power cut may have left (`docs/design/0009-power-cuts.md`). [`ReadFaults`] is the
//! same for readers.
//!
//! Only what changes a disk goes through here. Locks are the kernel's and gone after a power cut; the catalogue is a cache
//! that may be lost at any time.

mod faults;

pub use faults::{BadFault, FaultList, ReadFault, ReadFaults};

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mode of new files: access for owner and group only. Other users could read titles regardless of
/// the viewing rights, and hold locks.
const FILE_MODE: u32 = 0o640;
/// Mode of new directories, for the same reason.
const DIR_MODE: u32 = 0o750;

/// One opening of a file, distinct from all others of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u64);

impl FileId {
    fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// One operation that changes a disk, or that makes a change durable.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// A new, empty file.
    CreateFile {
        /// Its path.
        path: &'a Path,
        /// This opening of it.
        file: FileId,
    },
    /// A file opened for writing as it is, or made if it is not there.
    OpenFile {
        /// Its path.
        path: &'a Path,
        /// This opening of it.
        file: FileId,
    },
    /// Bytes written to an open file.
    Write {
        /// Its path when it was opened.
        path: &'a Path,
        /// The opening.
        file: FileId,
        /// Offset in bytes.
        at: u64,
        /// The bytes written there.
        bytes: &'a [u8],
    },
    /// An open file cut or grown.
    SetLen {
        /// Its path when it was opened.
        path: &'a Path,
        /// The opening.
        file: FileId,
        /// Its new length in bytes.
        bytes: u64,
    },
    /// Content and length of an open file made durable; its name is not.
    SyncFile {
        /// Its path when it was opened.
        path: &'a Path,
        /// The opening.
        file: FileId,
    },
    /// A new directory.
    CreateDir {
        /// Its path.
        path: &'a Path,
    },
    /// The names in a directory made durable.
    SyncDir {
        /// Its path.
        path: &'a Path,
    },
    /// A file or directory moved; an existing one at the new path is replaced.
    Rename {
        /// Where it was.
        from: &'a Path,
        /// Where it is.
        to: &'a Path,
    },
    /// A file's name removed.
    RemoveFile {
        /// Its path.
        path: &'a Path,
    },
    /// An empty directory removed.
    RemoveDir {
        /// Its path.
        path: &'a Path,
    },
}

impl Op<'_> {
    /// Returns the operation, as a verb, and its path, for test messages.
    pub fn name(&self) -> (&'static str, &Path) {
        match self {
            Self::CreateFile { path, .. } => ("create", path),
            Self::OpenFile { path, .. } => ("open", path),
            Self::Write { path, .. } => ("write", path),
            Self::SetLen { path, .. } => ("set length of", path),
            Self::SyncFile { path, .. } => ("sync", path),
            Self::CreateDir { path } => ("create directory", path),
            Self::SyncDir { path } => ("sync directory", path),
            Self::Rename { from, .. } => ("rename", from),
            Self::RemoveFile { path } => ("remove", path),
            Self::RemoveDir { path } => ("remove directory", path),
        }
    }
}

/// Stands between the store and the operating system.
pub trait DiskInterceptor: Send + Sync + std::fmt::Debug {
    /// Does `op` by calling `perform`, or fails in its place. `perform` takes the number of a
    /// write's bytes to write (`usize::MAX`: all); an error after fewer is a short write.
    ///
    /// # Errors
    /// Those of `perform`, or one that was ordered.
    fn run(&self, op: &Op<'_>, perform: &mut dyn FnMut(usize) -> io::Result<()>) -> io::Result<()>;
}

/// The way to the disk. Cheap to clone; the default is the operating system, unwatched.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    watch: Option<Arc<dyn DiskInterceptor>>,
}

impl Disk {
    /// A disk whose every operation goes through `watch`.
    pub fn watched(watch: Arc<dyn DiskInterceptor>) -> Self {
        Self { watch: Some(watch) }
    }

    fn run(&self, op: &Op<'_>, mut perform: impl FnMut(usize) -> io::Result<()>) -> io::Result<()> {
        match &self.watch {
            None => perform(usize::MAX),
            Some(watch) => watch.run(op, &mut perform),
        }
    }

    /// Creates a file that must not exist. Its name is durable after [`Disk::sync_dir`] of its directory.
    ///
    /// # Errors
    /// As [`File::create_new`].
    pub fn create_new(&self, path: &Path) -> io::Result<DiskFile> {
        let id = FileId::next();
        self.opened(id, path, &Op::CreateFile { path, file: id }, File::options().create_new(true))
    }

    /// Opens a file for reading and writing as it is, or makes an empty one.
    ///
    /// # Errors
    /// As [`fs::OpenOptions::open`].
    pub fn open_or_create(&self, path: &Path) -> io::Result<DiskFile> {
        let id = FileId::next();
        let mut options = File::options();
        self.opened(id, path, &Op::OpenFile { path, file: id }, options.create(true).truncate(false))
    }

    fn opened(
        &self,
        id: FileId,
        path: &Path,
        op: &Op<'_>,
        options: &mut fs::OpenOptions,
    ) -> io::Result<DiskFile> {
        let mut file = None;
        self.run(op, |_| {
            file = Some(options.read(true).write(true).mode(FILE_MODE).open(path)?);
            Ok(())
        })?;
        let file = file.ok_or_else(|| io::Error::other("the watch did not perform the opening"))?;
        Ok(DiskFile { disk: self.clone(), file, id, path: path.to_path_buf(), end: 0 })
    }

    /// Creates one directory, which must not exist.
    ///
    /// # Errors
    /// As [`fs::create_dir`].
    pub fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.run(&Op::CreateDir { path }, |_| fs::DirBuilder::new().mode(DIR_MODE).create(path))
    }

    /// Creates a directory and those above it that are missing, durably: each new name is synced.
    ///
    /// # Errors
    /// If one cannot be created or synced.
    pub fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.is_dir() {
            return Ok(());
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        if let Some(above) = above {
            self.create_dir_all(above)?;
        }
        match self.create_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            result => result?,
        }
        self.sync_dir(above.unwrap_or(Path::new(".")))
    }

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// If the directory cannot be opened or synced.
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.run(&Op::SyncDir { path }, |_| File::open(path)?.sync_all())
    }

    /// Renames within one file system, replacing any file at `to`. Durable after [`Disk::sync_dir`]
    /// of the destination directory.
    ///
    /// # Errors
    /// As [`fs::rename`].
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.run(&Op::Rename { from, to }, |_| fs::rename(from, to))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// As [`fs::remove_file`].
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.run(&Op::RemoveFile { path }, |_| fs::remove_file(path))
    }

    /// Removes a directory with all it holds; links in it are not followed.
    ///
    /// # Errors
    /// As [`fs::remove_dir_all`].
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        if self.watch.is_none() {
            return fs::remove_dir_all(path);
        }
        let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        // The same order in every run, so that an operation's number means the same one.
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            match entry.file_type()?.is_dir() {
                true => self.remove_tree(&entry.path())?,
                false => self.remove_file(&entry.path())?,
            }
        }
        self.run(&Op::RemoveDir { path }, |_| fs::remove_dir(path))
    }
}

/// A file being written.
#[derive(Debug)]
pub struct DiskFile {
    disk: Disk,
    file: File,
    id: FileId,
    path: PathBuf,
    /// Where [`DiskFile::write_all`] goes on.
    end: u64,
}

impl DiskFile {
    /// Writes at the place where the last call ended, from 0 on.
    ///
    /// # Errors
    /// As [`io::Write::write_all`]; part of the bytes may then be in the file.
    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Writes at offset `at`, in bytes.
    ///
    /// # Errors
    /// As [`FileExt::write_all_at`]; part of the bytes may then be in the file.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let op = Op::Write { path: &self.path, file: self.id, at, bytes };
        self.disk.run(&op, |most| self.file.write_all_at(&bytes[..most.min(bytes.len())], at))
    }

    /// Cuts the file or grows it with zeros to `bytes`.
    ///
    /// # Errors
    /// As [`File::set_len`].
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        let op = Op::SetLen { path: &self.path, file: self.id, bytes };
        self.disk.run(&op, |_| self.file.set_len(bytes))
    }

    /// Makes content and length durable. The file's name needs [`Disk::sync_dir`].
    ///
    /// # Errors
    /// As [`File::sync_all`]. Data written since the last success may then be lost, whatever later
    /// calls report.
    pub fn sync_all(&self) -> io::Result<()> {
        self.disk.run(&Op::SyncFile { path: &self.path, file: self.id }, |_| self.file.sync_all())
    }

    /// The same for a file that a later try would go on with: if it fails, the file is removed. Read back from memory its bytes
    /// would look right, and be called durable although they are not.
    ///
    /// # Errors
    /// As [`DiskFile::sync_all`].
    pub fn sync_all_or_remove(&self) -> io::Result<()> {
        // The first error is the one to report; a disk that cannot even remove it will hardly keep it.
        self.sync_all().inspect_err(|_| drop(self.disk.remove_file(&self.path)))
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// For locks and for reading back; writes past this handle are not watched.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The bare file, for a holder of a lock.
    pub fn into_file(self) -> File {
        self.file
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
