//! Errors of a store: the failed action, the place, and the remedy.

use std::io;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_PACKET_BYTES;

use crate::format::FormatError;
use crate::format::meta::MetaError;
use crate::format::sums::SumsError;
use crate::index::IndexError;
use crate::limits::volume::LOCK_WAIT;

/// An operation on a store failed. Nothing that was visible before has become invisible or wrong by it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refused something.
    #[error("{}: cannot {action}: {error}", path.display())]
    Io {
        /// The attempted action, as a verb: "open", "write".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The store belongs to another user.
    #[error("{}: cannot open it: {error}; run this as the user that the store belongs to, or as a member of its group", path.display())]
    NotPermitted {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        error: io::Error,
    },
    /// Another process has held a lock for longer than any operation of the store takes.
    #[error("{}: locked by {holder} for longer than {} s; wait until it has ended, or end it", path.display(), LOCK_WAIT.as_secs())]
    Locked {
        /// The locked file.
        path: PathBuf,
        /// The process that holds the lock, if known.
        holder: String,
    },
    /// The disk is full.
    #[error(
        "{}: no space left on the disk{} (at offset {offset}); \
         free some space there or remove a title, then do it again", path.display(), more_bytes(*needed_bytes)
    )]
    NoSpace {
        /// The file that could not grow.
        path: PathBuf,
        /// Its length up to now.
        offset: u64,
        /// Bytes of the next write; 0 where that is not known (a sync, a new directory).
        needed_bytes: u64,
    },
    /// There is no store here.
    #[error("{}: not a Millrace store: {reason}", path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A disk that blocks every caller.
    #[error(
        "{}: disk not responding: a system call has not returned; check the disk, its cable or its file server", path.display()
    )]
    TimedOut {
        /// The member's directory.
        path: PathBuf,
    },
    /// Two members say different things about their volume: each was used without the other.
    #[error(
        "{} and {}: their lists of members contradict each other from generation {generation} on: they were used apart; \
         decide which is right, take members.mrm away from the other, open the volume, and replace that member",
        one.display(), other.display()
    )]
    Apart {
        /// A member's directory.
        one: PathBuf,
        /// Another's.
        other: PathBuf,
        /// The generation that both have.
        generation: u64,
    },
    /// Too many members of a volume or of a title are not there.
    #[error(
        "{what}: {lost} of its members are missing or stale ({names}); the volume tolerates {may}: \
             bring them back, then run millrace repair"
    )]
    MembersLost {
        /// The volume's directory, or the title.
        what: String,
        /// Members that are not there.
        lost: usize,
        /// Members that may be lost.
        may: usize,
        /// Which: directories.
        names: String,
    },
    /// Something that needs every member cannot be done while one is missing or not complete.
    #[error("{}: this member {why}; {action} needs every member: bring it back, or replace it, and run millrace repair", dir.display())]
    MemberNeeded {
        /// The member's directory.
        dir: PathBuf,
        /// The member's fault.
        why: String,
        /// The intended action.
        action: &'static str,
    },
    /// Something has to be written on a member whose file system may not be written to.
    #[error("{}: this member's file system is read-only, which the kernel sets after errors; {action} must write to it: repair and \
             mount it again, or unmount it, so that the member counts as missing", dir.display())]
    ReadOnly {
        /// The member's directory.
        dir: PathBuf,
        /// The intended action.
        action: &'static str,
    },
    /// A volume cannot be made or changed like this.
    #[error("volume: {0}")]
    BadVolume(String),
    /// A file does not hold what its format promises.
    #[error("{}: {error}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Which field, which value.
        #[source]
        error: FormatError,
    },
    /// A metadata file does not hold what its format promises.
    #[error("{}: {error}; for details run: millrace fsck", path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// Which block.
        #[source]
        error: MetaError,
    },
    /// A range sums file does not hold what its format promises.
    #[error("{}: {error}; for details run: millrace fsck", path.display())]
    Sums {
        /// The file.
        path: PathBuf,
        /// Which block.
        #[source]
        error: SumsError,
    },
    /// A file is missing or has the wrong length.
    #[error("{}: {what}; for details run: millrace fsck", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// No such title.
    #[error("title {id}: not in this store")]
    NoTitle {
        /// The title that was asked for.
        id: TitleId,
    },
    /// The title has no metadata for packets of this size.
    #[error(
        "title {id}: not prepared for packets of {packet_bytes} bytes; it has {has:?}; add that size first \
         (millrace prepare)"
    )]
    NoPacketSize {
        /// The title.
        id: TitleId,
        /// The size that was asked for.
        packet_bytes: usize,
        /// The sizes there are.
        has: Vec<u16>,
    },
    /// The title was added by an older version, and its packets have no checksums that a copy could be verified against.
    #[error(
        "title {id}: cannot be copied: its packets have no CRCs, since an older version added it; make them first (millrace prepare)"
    )]
    NoChecksums {
        /// The title.
        id: TitleId,
    },
    /// The title is being taken over from another store already.
    #[error("title {id}: is being fetched by another process; wait until it has ended")]
    TitleInProgress {
        /// The title.
        id: TitleId,
    },
    /// The title has no such parity.
    #[error(
        "title {id}: has no parity track {track}: {has} parity units in a stripe; create the volume with --parity or --fec, and add the film again"
    )]
    NoParity {
        /// The title.
        id: TitleId,
        /// The track that was asked for: 1 is the first parity, 2 all others.
        track: u8,
        /// Parity units that its stripes have.
        has: usize,
    },
    /// This packet size cannot be: not a multiple of 188, zero, or too large.
    #[error("packet size {packet_bytes}: must be a multiple of 188 from 188 to {MAX_PACKET_BYTES}")]
    BadPacketSize {
        /// The size that was asked for.
        packet_bytes: usize,
    },
    /// A title's parts contradict each other; the ingest has a defect or its source changed while it was read.
    #[error("title {id}: cannot be stored: {what}")]
    BadTitle {
        /// The title being written.
        id: TitleId,
        /// Which parts.
        what: String,
    },
    /// The index given contradicts itself.
    #[error("title index: {0}")]
    Index(#[from] IndexError),
    /// The catalogue cannot be used nor rebuilt.
    #[error("{}: catalogue: {error}; {}", path.display(), catalogue_advice(error))]
    Catalogue {
        /// The SQLite file.
        path: PathBuf,
        /// SQLite's error.
        #[source]
        error: rusqlite::Error,
    },
}

/// What to do when the catalogue cannot be used.
fn catalogue_advice(error: &rusqlite::Error) -> &'static str {
    use rusqlite::ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
    match error.sqlite_error_code() {
        Some(CannotOpen | PermissionDenied | ReadOnly) => {
            "looking needs the right to write as well: run this as the user that the store belongs to"
        }
        _ => "delete the file, it is rebuilt from the titles",
    }
}

impl StoreError {
    /// For `map_err` at an I/O call.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { action, path: path.to_path_buf(), error }
    }

    /// Whether a file system that may not be written to is the reason.
    pub fn is_read_only(&self) -> bool {
        match self {
            Self::Io { error, .. } => error.kind() == io::ErrorKind::ReadOnlyFilesystem,
            Self::ReadOnly { .. } => true,
            _ => false,
        }
    }

    /// Whether the disk being full is the reason.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Io { error, .. } => {
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::NoSpace { .. } => true,
            _ => false,
        }
    }

    /// For `map_err` at a decoder.
    pub(crate) fn format(path: &Path) -> impl FnOnce(FormatError) -> Self {
        move |error| Self::Format { path: path.to_path_buf(), error }
    }

    /// Converts a write or a sync that failed: a full disk or an exhausted quota has an error of
    /// its own.
    pub fn write(
        action: &'static str,
        path: &Path,
        offset: u64,
        needed_bytes: u64,
        error: io::Error,
    ) -> Self {
        let path = path.to_path_buf();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { path, offset, needed_bytes }
            }
            _ => Self::Io { action, path, error },
        }
    }
}

/// ` for 7 more bytes`, where it is known how many.
fn more_bytes(needed: u64) -> String {
    match needed {
        0 => String::new(),
        1 => " for 1 more byte".to_owned(),
        _ => format!(" for {needed} more bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::{StoreError, catalogue_advice};

    #[test]
    fn write_error_on_full_disk_omits_needed_bytes_when_zero() {
        let full = |needed| {
            let error = std::io::Error::from(std::io::ErrorKind::StorageFull);
            StoreError::write("sync", std::path::Path::new("/s/data.ts"), 12, needed, error).to_string()
        };
        assert!(
            full(0).starts_with("/s/data.ts: no space left on the disk (at offset 12); free"),
            "{}",
            full(0)
        );
        assert!(full(1316).contains("on the disk for 1316 more bytes (at offset 12)"), "{}", full(1316));
    }

    #[test]
    fn catalogue_error_without_permission_does_not_advise_deletion() {
        let failure = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
        for code in
            [rusqlite::ffi::SQLITE_READONLY, rusqlite::ffi::SQLITE_PERM, rusqlite::ffi::SQLITE_CANTOPEN]
        {
            let error = StoreError::Catalogue { path: "catalogue.sqlite".into(), error: failure(code) };
            assert!(error.to_string().contains("run this as the user"), "{error}");
        }
        assert!(catalogue_advice(&failure(rusqlite::ffi::SQLITE_FULL)).contains("delete the file"));
    }
}
