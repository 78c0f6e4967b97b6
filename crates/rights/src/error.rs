//! Errors of rights on disk: the failure, its place and its remedy.

use std::io;
use std::path::PathBuf;

use crate::name::NameError;
use crate::secret::SecretError;

/// An error of the rights file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file does not exist.
    #[error("rights: {0}: there is no such file; add a user: millrace user add NAME")]
    Missing(PathBuf),
    /// The file cannot be opened.
    #[error(
        "rights: {path}: {source}; its directory must be there and writable for this user, or choose another file with --rights"
    )]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Users other than its owner may use the file.
    #[error(
        "rights: {path}: users other than its owner can access it (mode {mode:03o}); run: chmod 600 {path}"
    )]
    Mode {
        /// Path of the file.
        path: PathBuf,
        /// Mode of the file.
        mode: u32,
    },
    /// A newer program wrote the file, or it is something else.
    #[error("rights: {path}: format {format} is not known; use the version of millrace that wrote it")]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Format of the file.
        format: i64,
    },
    /// SQLite reports an error.
    #[error(
        "rights: {path}: {source}; if it is damaged, put a copy in its place or remove it and add the users again"
    )]
    Sqlite {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The content does not match its checksum.
    #[error(
        "rights: {0}: its content does not match its checksum; put a copy in its place, or remove it and add the users again"
    )]
    Damaged(PathBuf),
    /// Two members have different rights of the same generation.
    #[error(
        "rights: {one} and {other}: they contradict each other in generation {generation}: their members were used apart; decide which is right and remove the other"
    )]
    Apart {
        /// The file on one member.
        one: PathBuf,
        /// The file on another member.
        other: PathBuf,
        /// The generation of both.
        generation: i64,
    },
    /// The volume has rights, but no member that is present has a copy.
    #[error(
        "rights: {0}: records that the volume has users and rights, but no present member has them; bring back the member or a copy of rights.sqlite; to start over, remove rights.recorded from every member"
    )]
    Lost(PathBuf),
    /// No member is present.
    #[error("rights: no member of the volume is present; bring one back, or name a file with --rights")]
    NoMember,
    /// Another process has been changing the rights for too long.
    #[error("rights: {0}: another process has been changing them for too long; end it, or try again")]
    Locked(PathBuf),
    /// A member did not get the newest rights.
    #[error(
        "rights: {path}: cannot be brought up to date: {source}; the other members have the change, and this one gets it when it can be written"
    )]
    Behind {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A name or a pattern is invalid.
    #[error("{what}: {error}")]
    Name {
        /// The invalid text.
        what: String,
        /// The cause.
        error: NameError,
    },
    /// A password or a token cannot be created.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The user does not exist.
    #[error("{0}: no such user; see: millrace user ls")]
    NoUser(String),
    /// The user exists already.
    #[error("{0}: the user exists already; to change its password: millrace user passwd {0}")]
    UserExists(String),
    /// The group does not exist.
    #[error("@{0}: no such group; make it: millrace user group {0} PATTERN")]
    NoGroup(String),
    /// The token does not exist.
    #[error("{0}: no such token; see: millrace user ls")]
    NoToken(String),
    /// The user does not have this grant.
    #[error("{0}: the user has no such grant; see: millrace user ls")]
    NoGrant(String),
    /// Their number has reached its limit.
    #[error("the limit of {0} {1} is reached")]
    TooMany(usize, &'static str),
}
