//! Storage of the rights: one file, or a copy on every member of a volume.
//!
//! Every change is a new generation, made durable on one copy first and then on the others. The
//! newest copy counts, regardless of the order of the members. A copy that is older, damaged or
//! missing is replaced as soon as its member is seen. A lock on a file beside each copy ensures
//! that only one process at a time changes the members of a volume. Once there are rights, that
//! file records their existence: if it does but no copy can be found, the rights are lost, and the
//! volume is not served as if it had none.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::error::FileError;
use crate::file::RightsFile;
use crate::format;
use crate::limits::{MAX_RIGHTS_BYTES, RIGHTS_FILE_WAIT, RIGHTS_LOCK_LOOK_EVERY};

/// Name of the rights file in a member's directory.
pub const RIGHTS_FILE: &str = "rights.sqlite";
/// Name of the file that records that a volume has rights, and that is locked while they change.
pub const RIGHTS_RECORD_FILE: &str = "rights.recorded";

/// Content of the record, for people who find it.
const RECORD: &str = "This volume has users and rights: rights.sqlite, a copy on every member. Without a copy the server does not start.\n";

/// Returns the directories of the members that are present now.
type Dirs = Arc<dyn Fn() -> Vec<PathBuf> + Send + Sync>;

/// The location of the rights.
#[derive(Clone)]
pub struct Copies {
    place: CopyPlace,
    report: fn(&FileError),
}

#[derive(Clone)]
enum CopyPlace {
    One(PathBuf),
    Members(Dirs),
}

/// A member's superblock. Nothing is created in a directory without one, because a disk that is not
/// mounted leaves such a directory behind.
const MEMBER_FILE: &str = "volume.mrv";

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.paths()).finish()
    }
}

impl Copies {
    /// A single file at any path.
    pub fn one(path: &Path) -> Self {
        Self { place: CopyPlace::One(path.to_owned()), report: |_| {} }
    }

    /// A copy on each member; `dirs` returns the directories of the members that are present, in
    /// the order of the volume.
    pub fn on_members(dirs: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) -> Self {
        Self { place: CopyPlace::Members(Arc::new(dirs)), report: |_| {} }
    }

    /// Calls `report` for members that cannot be brought up to date.
    #[must_use]
    pub fn reporting(self, report: fn(&FileError)) -> Self {
        Self { report, ..self }
    }

    pub(crate) fn is_volume(&self) -> bool {
        matches!(self.place, CopyPlace::Members(_))
    }

    /// Returns the paths of the copies, whether or not the files exist.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match &self.place {
            CopyPlace::One(path) => vec![path.clone()],
            CopyPlace::Members(dirs) => {
                let is_member = |dir: &PathBuf| dir.join(MEMBER_FILE).is_file();
                dirs().into_iter().filter(is_member).map(|dir| dir.join(RIGHTS_FILE)).collect()
            }
        }
    }

    /// Opens the newest copy, and brings the others up to date.
    pub(crate) fn open(&self) -> Result<RightsFile, FileError> {
        let mut newest = self.newest()?;
        if self.is_volume() && !self.is_shared(&newest) {
            // Takes the lock and looks up the newest copy again, because another process may be
            // doing the same.
            match self.take_turn() {
                Ok(_turn) => {
                    newest = self.newest()?;
                    self.share(newest.path());
                }
                // Rights can still be read from a volume that cannot be written.
                Err(error) => (self.report)(&error),
            }
        }
        Ok(newest)
    }

    /// Opens the newest copy, or creates a file.
    pub(crate) fn open_or_create(&self) -> Result<RightsFile, FileError> {
        match self.open() {
            Err(FileError::Missing(_)) => {}
            opened => return opened,
        }
        let turn = self.take_turn()?;
        match self.newest() {
            Err(FileError::Missing(path)) => make(&path)?,
            opened => return opened,
        }
        drop(turn);
        self.open()
    }

    /// Returns the newest usable copy. A caller that changes it must hold the locks of `take_turn`.
    pub(crate) fn newest(&self) -> Result<RightsFile, FileError> {
        let paths = self.paths();
        let first = paths.first().cloned().ok_or(FileError::NoMember)?;
        let (mut newest, mut damaged) = (None::<RightsFile>, None);
        for path in &paths {
            let file = match RightsFile::open_one(path, self) {
                Ok(file) => file,
                Err(FileError::Missing(_)) => continue,
                Err(error) if self.is_volume() && is_of_one_copy(&error) => {
                    damaged = damaged.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            match &newest {
                Some(before) if before.content().generation > file.content().generation => {}
                Some(before) if before.content() == file.content() => {}
                Some(before) if before.content().generation == file.content().generation => {
                    let generation = file.content().generation;
                    let (one, other) = (before.path().to_owned(), path.clone());
                    return Err(FileError::Apart { one, other, generation });
                }
                _ => newest = Some(file),
            }
        }
        match (newest, damaged) {
            (Some(newest), _) => Ok(newest),
            (None, Some(damaged)) => Err(damaged),
            (None, None) => match self.records().into_iter().find(|path| is_recorded(path)) {
                Some(record) => Err(FileError::Lost(record)),
                None => Err(FileError::Missing(first)),
            },
        }
    }

    /// Returns the paths of the files that record that there are rights.
    fn records(&self) -> Vec<PathBuf> {
        let paths = if self.is_volume() { self.paths() } else { Vec::new() };
        paths.into_iter().map(|path| path.with_file_name(RIGHTS_RECORD_FILE)).collect()
    }

    /// Whether every member that is present has this content and the record.
    fn is_shared(&self, newest: &RightsFile) -> bool {
        self.records().iter().all(|path| is_recorded(path))
            && self.paths().iter().all(|path| {
                path == newest.path()
                    || RightsFile::open_one(path, self).is_ok_and(|copy| copy.content() == newest.content())
            })
    }

    /// Waits until no other process changes the rights of these members, and locks them. SQLite
    /// alone guards a single file.
    pub(crate) fn take_turn(&self) -> Result<Vec<File>, FileError> {
        self.records().iter().map(|path| lock(path)).collect()
    }

    /// Copies the content of one copy to all others, and records that there are rights. The caller
    /// must hold the locks of `take_turn`.
    pub(crate) fn share(&self, newest: &Path) {
        for path in self.records().iter().filter(|path| !is_recorded(path)) {
            if let Err(source) = record(path) {
                (self.report)(&FileError::Behind { path: path.clone(), source });
            }
        }
        let others = if self.is_volume() { self.paths() } else { Vec::new() };
        for path in others.iter().filter(|path| *path != newest) {
            if let Err(source) = copy(newest, path) {
                (self.report)(&FileError::Behind { path: path.clone(), source });
            }
        }
    }
}

/// Whether the error concerns this copy alone, so that others are as usable as before.
fn is_of_one_copy(error: &FileError) -> bool {
    match error {
        FileError::Damaged(_) | FileError::Open { .. } => true,
        FileError::Sqlite { source, .. } => matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::DatabaseCorrupt
                    | ErrorCode::NotADatabase
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
            ) | None
        ),
        _ => false,
    }
}

/// Whether this file records that there are rights. It is locked and empty while the first ones are
/// being created.
fn is_recorded(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|record| record.len() > 0)
}

/// Writes the record that there are rights.
fn record(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(RECORD.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| sync_name(path))
}

/// Opens a record, creating an empty one if it does not exist, and locks it.
fn lock(path: &Path) -> Result<File, FileError> {
    let failed = |source| FileError::Open { path: path.to_owned(), source };
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => {
            settle(&file, path).map_err(failed)?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).write(true).open(path).map_err(failed)?
        }
        Err(error) => return Err(failed(error)),
    };
    // The number of attempts limits the wait, which is as long as SQLite's own waits for this file.
    for _ in 0..RIGHTS_FILE_WAIT.as_nanos() / RIGHTS_LOCK_LOOK_EVERY.as_nanos() {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(RIGHTS_LOCK_LOOK_EVERY),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(FileError::Locked(path.to_owned()))
}

/// Creates a file with tables and keys. It appears under its name only once it is complete, even on
/// a disk that fills up.
fn make(path: &Path) -> Result<(), FileError> {
    let aside = aside(path);
    let made = (|| {
        let failed = |source| FileError::Open { path: path.to_owned(), source };
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside).map_err(failed)?;
        let sqlite = |source| FileError::Sqlite { path: path.to_owned(), source };
        let mut db =
            Connection::open_with_flags(&aside, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sqlite)?;
        format::prepare(&mut db, true).map_err(|error| error.at(path))?;
        db.close().map_err(|(_, error)| sqlite(error))?;
        settle(&file, path).map_err(failed)?;
        if std::fs::metadata(path).is_ok_and(|there| there.len() == 0) {
            std::fs::remove_file(path).map_err(failed)?;
        }
        // Does not replace an existing file, because another process may have been faster.
        match rustix::fs::renameat_with(
            rustix::fs::CWD,
            &aside,
            rustix::fs::CWD,
            path,
            rustix::fs::RenameFlags::NOREPLACE,
        ) {
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(failed(error.into())),
            Ok(()) => sync_name(path).map_err(failed)?,
        }
        Ok(())
    })();
    // After a successful rename this name is gone; otherwise nothing may stay behind.
    for left in [aside.clone(), with_suffix(&aside, "-journal")] {
        let _ = std::fs::remove_file(left);
    }
    made
}

/// Replaces one copy with the bytes of another, atomically and durably.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::open(from)?.take(MAX_RIGHTS_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_RIGHTS_BYTES {
        return Err(io::Error::other(format!("it is longer than {MAX_RIGHTS_BYTES} bytes")));
    }
    if std::fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let aside = aside(to);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let written = file.write_all(&bytes).and_then(|()| settle(&file, to)).and_then(|()| {
        // A crash may have left the journal of a change to the older copy, which must not be
        // applied to this one.
        match std::fs::remove_file(with_suffix(to, "-journal")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::fs::rename(&aside, to),
        }
    });
    written.and_then(|()| sync_name(to)).inspect_err(|_| drop(std::fs::remove_file(&aside)))
}

/// Makes a new file durable. If root creates it in another user's store, it is given to that user,
/// because the server runs as that user.
fn settle(file: &File, path: &Path) -> io::Result<()> {
    let member = std::fs::metadata(path.with_file_name(MEMBER_FILE));
    if let (Ok(member), true) = (member, rustix::process::geteuid().is_root()) {
        std::os::unix::fs::fchown(file, Some(member.uid()), Some(member.gid()))?;
    }
    file.sync_all()
}

/// Makes a directory entry durable.
fn sync_name(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

/// Returns a name beside a file that no other process uses.
fn aside(path: &Path) -> PathBuf {
    with_suffix(path, &format!(".{}.new", std::process::id()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
#[path = "copies_tests.rs"]
mod tests;
