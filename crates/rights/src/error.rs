//! What can go wrong with rights on disk: what failed, where, and what to do.

use std::io;
use std::path::PathBuf;

use crate::name::NameError;
use crate::secret::SecretError;

/// What went wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// There is none.
    #[error("rights: {0}: there is no such file; add a user: millrace user add NAME")]
    Missing(PathBuf),
    /// It cannot be opened.
    #[error(
        "rights: {path}: {source}; its directory must be there and writable for this user, or choose another file with --rights"
    )]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it.
    #[error("rights: {path}: others than its owner may use it (mode {mode:03o}); run: chmod 600 {path}")]
    Mode {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It was made by a newer program, or is something else.
    #[error("rights: {path}: format {format} is not known; use the version of millrace that wrote it")]
    Format {
        /// Which.
        path: PathBuf,
        /// Its format.
        format: i64,
    },
    /// SQLite says no.
    #[error(
        "rights: {path}: {source}; if it is damaged, put a copy in its place or remove it and add the users again"
    )]
    Sqlite {
        /// Which.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
    /// Its content is not what was written.
    #[error(
        "rights: {0}: its content does not match its checksum; put a copy in its place, or remove it and add the users again"
    )]
    Damaged(PathBuf),
    /// Two members have different rights of one generation.
    #[error(
        "rights: {one} and {other}: they contradict each other in generation {generation}: their members were used apart; decide which is right and remove the other"
    )]
    Apart {
        /// The file on one member.
        one: PathBuf,
        /// That on another.
        other: PathBuf,
        /// The generation that both have.
        generation: i64,
    },
    /// The volume has rights, and they are not there.
    #[error(
        "rights: {0}: records that the volume has users and rights, and no member that is there has them; bring back the member or a copy of rights.sqlite; to begin anew, remove rights.recorded from every member"
    )]
    Lost(PathBuf),
    /// No member is there.
    #[error("rights: no member of the volume is there; bring one back, or name a file with --rights")]
    NoMember,
    /// Another process changes them.
    #[error("rights: {0}: another process has been changing them for too long; end it, or try again")]
    Locked(PathBuf),
    /// A member has not got the newest rights.
    #[error(
        "rights: {path}: cannot be brought up to date: {source}; the other members have the change, and this one gets it when it can be written"
    )]
    Behind {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A name or a pattern is none.
    #[error("{what}: {error}")]
    Name {
        /// What was given.
        what: String,
        /// Why not.
        error: NameError,
    },
    /// A password or a token cannot be made.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// There is no such user.
    #[error("{0}: no such user; see: millrace user ls")]
    NoUser(String),
    /// There is one already.
    #[error("{0}: there is such a user already; to change its password: millrace user passwd {0}")]
    UserExists(String),
    /// There is no such group.
    #[error("@{0}: no such group; make it: millrace user group {0} PATTERN")]
    NoGroup(String),
    /// There is no such token.
    #[error("{0}: no such token; see: millrace user ls")]
    NoToken(String),
    /// There is no such grant.
    #[error("{0}: the user has no such grant; see: millrace user ls")]
    NoGrant(String),
    /// There are too many.
    #[error("there are {0} {1} already, which is the most")]
    TooMany(usize, &'static str),
}
