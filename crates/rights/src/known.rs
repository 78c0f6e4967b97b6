//! The known users, tokens and keys: the file's content in memory.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::name;

/// A user.
#[derive(Clone, PartialEq, Eq)]
pub struct User {
    /// Unique.
    pub name: Arc<str>,
    /// Whether it may change things and see others.
    pub manages: bool,
    /// Whether it may add titles; who manages may too.
    pub uploads: bool,
    /// Patterns of the titles that it may watch, those of its groups among them.
    pub watches: Vec<String>,
    /// argon2id, as a string of the Password Hashing Competition.
    pub password: String,
    /// What Digest needs, if it is wanted.
    pub ha1: Option<Ha1>,
    /// Its limits on simultaneous use.
    pub limits: Limits,
}

/// A user's limits on simultaneous use; `None`: the same as for any other viewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Streams that play, or responses with bytes of a title.
    pub streams: Option<u32>,
    /// Bits a second of these together.
    pub bits_per_s: Option<u64>,
}

/// A user with limits, for whoever counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its name.
    pub user: Arc<str>,
    /// Its limits on simultaneous use.
    pub limits: Limits,
}

/// Hashes of user, realm and password (RFC 7616 section 3.4.2). A client that has them can answer
/// Digest without the password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ha1 {
    /// MD5.
    pub md5: [u8; 16],
    /// SHA-256.
    pub sha256: [u8; 32],
}

/// What stands for a user without a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Whose.
    pub user: Arc<str>,
    /// Until when, in seconds since 1970; `None`: for ever.
    pub expires_unix_s: Option<u64>,
}

/// Secrets of the file.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Signs links.
    pub links: [u8; 32],
    /// Hashes tokens.
    pub tokens: [u8; 32],
}

/// All known users, tokens and keys. By default, no user is known.
#[derive(Clone, Debug, Default)]
pub struct RightsSnapshot {
    /// By name.
    pub users: BTreeMap<Arc<str>, User>,
    /// By their keyed hash.
    pub tokens: HashMap<[u8; 32], Token>,
    /// `None`: there is no file, so no link and no token is any good.
    pub keys: Option<Keys>,
}

impl User {
    /// Whether a grant fits.
    pub fn may_watch(&self, title: &str) -> bool {
        self.watches.iter().any(|pattern| name::fits(pattern, title))
    }

    /// Whether it may add titles.
    pub fn may_upload(&self) -> bool {
        self.uploads || self.manages
    }

    #[cfg(test)]
    pub(crate) fn for_test(name: &str, watches: &[&str], manages: bool) -> Self {
        let watches = watches.iter().map(|&pattern| pattern.to_owned()).collect();
        Self {
            name: name.into(),
            manages,
            uploads: false,
            watches,
            password: String::new(),
            ha1: None,
            limits: Limits::default(),
        }
    }
}

impl RightsSnapshot {
    /// Whether there is a user who manages.
    pub fn has_managers(&self) -> bool {
        self.users.values().any(|user| user.manages)
    }

    /// Returns whether there is a user that may add titles.
    pub fn has_uploaders(&self) -> bool {
        self.users.values().any(User::may_upload)
    }

    /// Returns whether there is a user that can sign in by Digest.
    pub fn has_digest(&self) -> bool {
        self.users.values().any(|user| user.ha1.is_some())
    }
}

// Secrets must not get into a log.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, manages, uploads, watches, .. } = self;
        f.debug_struct("User")
            .field("name", name)
            .field("manages", manages)
            .field("uploads", uploads)
            .field("watches", watches)
            .finish()
    }
}

impl fmt::Debug for Ha1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ha1")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}
