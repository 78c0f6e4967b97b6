//! The file with users, tokens and keys: SQLite, by itself, for its owner's eyes only.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params, params_from_iter,
};

use crate::copies::Copies;
use crate::error::FileError;
use crate::format::{self, Content};
use crate::known::{Ha1, Keys, Limits, RightsSnapshot, Token, User};
use crate::limits::{MAX_PATTERNS, MAX_TOKENS_PER_USER, MAX_USERS};
use crate::list::{ListedGroup, ListedToken, ListedUser, list};
use crate::name::{NameError, check_name, check_pattern};
use crate::secret::{self, Cost};

/// A user to be added.
#[derive(Clone, Debug)]
pub struct NewUser<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its password.
    pub password: &'a str,
    /// Whether what Digest needs is kept.
    pub digest: bool,
    /// Whether it manages.
    pub manages: bool,
    /// Cost of the hash.
    pub cost: Cost,
}

/// The open rights file; on a volume with several members, the newest of its copies.
#[derive(Debug)]
pub struct RightsFile {
    path: PathBuf,
    db: Connection,
    content: Content,
    copies: Copies,
}

impl RightsFile {
    /// Opens the existing file.
    ///
    /// # Errors
    /// [`FileError::Missing`] if nothing is.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_copies(&Copies::one(path))
    }

    /// Opens it, or makes it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open_or_create(path: &Path) -> Result<Self, FileError> {
        Self::open_or_create_copies(&Copies::one(path))
    }

    /// Opens the newest copy, and brings the others up to date.
    ///
    /// # Errors
    /// [`FileError::Missing`] if there is no copy, [`FileError::Lost`] if there should be one.
    pub fn open_copies(copies: &Copies) -> Result<Self, FileError> {
        copies.open()
    }

    /// Opens the newest copy, or creates the first one.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn open_or_create_copies(copies: &Copies) -> Result<Self, FileError> {
        copies.open_or_create()
    }

    /// Opens one copy and verifies it.
    pub(crate) fn open_one(path: &Path, copies: &Copies) -> Result<Self, FileError> {
        let mode = match std::fs::metadata(path) {
            // Earlier versions left empty files behind on full disks.
            Ok(metadata) if metadata.len() == 0 => return Err(FileError::Missing(path.to_owned())),
            Ok(metadata) => metadata.mode() & 0o777,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(FileError::Missing(path.to_owned()));
            }
            Err(source) => return Err(FileError::Open { path: path.to_owned(), source }),
        };
        if mode & 0o077 != 0 {
            return Err(FileError::Mode { path: path.to_owned(), mode });
        }
        let failed = |source| FileError::Sqlite { path: path.to_owned(), source };
        let mut db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(failed)?;
        let content = format::prepare(&mut db, false).map_err(|error| error.at(path))?;
        Ok(Self { path: path.to_owned(), db, content, copies: copies.clone() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identifies the content that the copy had when it was opened.
    pub(crate) fn content(&self) -> Content {
        self.content
    }

    /// Returns a number that changes whenever another connection has changed this copy in place.
    pub(crate) fn version(&self) -> Result<i64, FileError> {
        let version = self.db.query_row("PRAGMA data_version", [], |row| row.get(0));
        version.map_err(|source| FileError::Sqlite { path: self.path.clone(), source })
    }

    /// Everything in it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&mut self) -> Result<RightsSnapshot, FileError> {
        let path = self.path.clone();
        self.db.transaction().and_then(|db| read(&db)).map_err(|source| FileError::Sqlite { path, source })
    }

    /// Adds a user. It has no grants.
    ///
    /// # Errors
    /// The name or the password cannot be one, or is taken.
    pub fn add_user(&mut self, user: &NewUser<'_>, now_unix_s: u64) -> Result<(), FileError> {
        named(user.name, check_name)?;
        let hash = secret::hash_password(user.password, user.cost)?;
        let ha1 = user.digest.then(|| secret::ha1(user.name, user.password));
        self.change(|db| {
            let users = count(db, "SELECT count(*) FROM users", &[])?;
            if users >= MAX_USERS {
                return Ok(Err(FileError::TooMany(users, "users")));
            }
            let added = db.execute(
                "INSERT OR IGNORE INTO users (name, manages, argon2id, ha1_md5, ha1_sha256, added_unix_s)
                 VALUES (?, ?, ?, ?, ?, ?)",
                params![
                    user.name,
                    user.manages,
                    hash,
                    ha1.map(|ha1| ha1.md5),
                    ha1.map(|ha1| ha1.sha256),
                    stored(now_unix_s)
                ],
            )?;
            Ok(if added == 1 { Ok(()) } else { Err(FileError::UserExists(user.name.to_owned())) })
        })
    }

    /// Gives a user another password.
    ///
    /// # Errors
    /// There is no such user, or it cannot be a password.
    pub fn set_password(&mut self, user: &NewUser<'_>) -> Result<(), FileError> {
        let hash = secret::hash_password(user.password, user.cost)?;
        let ha1 = user.digest.then(|| secret::ha1(user.name, user.password));
        self.change(|db| {
            let changed = db.execute(
                "UPDATE users SET argon2id = ?2, ha1_md5 = ?3, ha1_sha256 = ?4 WHERE name = ?1",
                params![user.name, hash, ha1.map(|ha1| ha1.md5), ha1.map(|ha1| ha1.sha256)],
            )?;
            Ok(if changed == 1 { Ok(()) } else { Err(FileError::NoUser(user.name.to_owned())) })
        })
    }

    /// Whether a user can sign in by Digest.
    ///
    /// # Errors
    /// There is no such user.
    pub fn has_digest(&mut self, name: &str) -> Result<bool, FileError> {
        let sql = "SELECT ha1_md5 IS NOT NULL FROM users WHERE name = ?";
        let found = self.db.query_row(sql, [name], |row| row.get(0)).optional();
        let found = found.map_err(|source| FileError::Sqlite { path: self.path.clone(), source })?;
        found.ok_or_else(|| FileError::NoUser(name.to_owned()))
    }

    /// Removes a user with everything that is its own.
    ///
    /// # Errors
    /// There is no such user.
    pub fn remove_user(&mut self, name: &str) -> Result<(), FileError> {
        self.change(|db| {
            let removed = db.execute("DELETE FROM users WHERE name = ?", [name])?;
            Ok(if removed == 1 { Ok(()) } else { Err(FileError::NoUser(name.to_owned())) })
        })
    }

    /// Makes a token for a user. It cannot be read again.
    ///
    /// # Errors
    /// There is no such user, or it has too many.
    pub fn add_token(
        &mut self,
        user: &str,
        now_unix_s: u64,
        expires_unix_s: Option<u64>,
    ) -> Result<(ListedToken, String), FileError> {
        let token = secret::new_token()?;
        let id: String = secret::random::<4>()?.iter().map(|byte| format!("{byte:02x}")).collect();
        self.change(|db| {
            if !is_user(db, user)? {
                return Ok(Err(FileError::NoUser(user.to_owned())));
            }
            db.execute(
                "DELETE FROM tokens WHERE user = ? AND expires_unix_s <= ?",
                params![user, stored(now_unix_s)],
            )?;
            let tokens = count(db, "SELECT count(*) FROM tokens WHERE user = ?", &[user])?;
            if tokens >= MAX_TOKENS_PER_USER {
                return Ok(Err(FileError::TooMany(tokens, "tokens of this user")));
            }
            let key = key(db, "tokens")?;
            let hash = secret::hash_token(&token, &key);
            db.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?)",
                params![hash, id, user, stored(now_unix_s), expires_unix_s.map(stored)],
            )?;
            Ok(Ok(()))
        })?;
        Ok((ListedToken { id, made_unix_s: now_unix_s, expires_unix_s }, token))
    }

    /// Removes a token.
    ///
    /// # Errors
    /// The user has no token with this name.
    pub fn remove_token(&mut self, user: &str, id: &str) -> Result<(), FileError> {
        self.change(|db| {
            let removed = db.execute("DELETE FROM tokens WHERE user = ? AND id = ?", [user, id])?;
            Ok(if removed == 1 { Ok(()) } else { Err(FileError::NoToken(id.to_owned())) })
        })
    }

    /// Lets a user watch the titles that fit a pattern, or those of a group (`@NAME`).
    ///
    /// # Errors
    /// There is no such user or group.
    pub fn grant(&mut self, user: &str, what: &str) -> Result<(), FileError> {
        let group = what.strip_prefix('@');
        match group {
            Some(group) => named(group, check_name)?,
            None => named(what, check_pattern)?,
        }
        self.change(|db| {
            if !is_user(db, user)? {
                return Ok(Err(FileError::NoUser(user.to_owned())));
            }
            if let Some(group) = group
                && count(db, "SELECT count(*) FROM groups WHERE name = ?", &[group])? == 0
            {
                return Ok(Err(FileError::NoGroup(group.to_owned())));
            }
            let grants = count(db, "SELECT count(*) FROM grants WHERE user = ?", &[user])?;
            if grants >= MAX_PATTERNS {
                return Ok(Err(FileError::TooMany(grants, "grants of this user")));
            }
            db.execute("INSERT OR IGNORE INTO grants VALUES (?, ?)", [user, what])?;
            Ok(Ok(()))
        })
    }

    /// Takes a grant away.
    ///
    /// # Errors
    /// The user has none such.
    pub fn revoke(&mut self, user: &str, what: &str) -> Result<(), FileError> {
        self.change(|db| {
            let removed = db.execute("DELETE FROM grants WHERE user = ? AND pattern = ?", [user, what])?;
            Ok(if removed == 1 { Ok(()) } else { Err(FileError::NoGrant(what.to_owned())) })
        })
    }

    /// Lets a user manage, or no longer.
    ///
    /// # Errors
    /// There is no such user.
    pub fn set_manages(&mut self, user: &str, manages: bool) -> Result<(), FileError> {
        self.change(|db| {
            let changed =
                db.execute("UPDATE users SET manages = ? WHERE name = ?", params![manages, user])?;
            Ok(if changed == 1 { Ok(()) } else { Err(FileError::NoUser(user.to_owned())) })
        })
    }

    /// Lets a user upload, or no longer.
    ///
    /// # Errors
    /// There is no such user.
    pub fn set_uploads(&mut self, user: &str, uploads: bool) -> Result<(), FileError> {
        self.change(|db| {
            let changed =
                db.execute("UPDATE users SET uploads = ? WHERE name = ?", params![uploads, user])?;
            Ok(if changed == 1 { Ok(()) } else { Err(FileError::NoUser(user.to_owned())) })
        })
    }

    /// Sets a user's limits on simultaneous use.
    ///
    /// # Errors
    /// There is no such user.
    pub fn set_limits(&mut self, user: &str, limits: Limits) -> Result<(), FileError> {
        self.change(|db| {
            let changed = db.execute(
                "UPDATE users SET max_streams = ?2, max_bits_per_s = ?3 WHERE name = ?1",
                params![user, limits.streams, limits.bits_per_s.map(stored)],
            )?;
            Ok(if changed == 1 { Ok(()) } else { Err(FileError::NoUser(user.to_owned())) })
        })
    }

    /// Makes a group be these patterns; with none it is gone, and the grants of it with it.
    ///
    /// # Errors
    /// One cannot be a pattern.
    pub fn set_group(&mut self, name: &str, patterns: &[String]) -> Result<(), FileError> {
        named(name, check_name)?;
        patterns.iter().try_for_each(|pattern| named(pattern, check_pattern))?;
        if patterns.len() > MAX_PATTERNS {
            return Err(FileError::TooMany(MAX_PATTERNS, "patterns of a group"));
        }
        self.change(|db| {
            db.execute("DELETE FROM groups WHERE name = ?", [name])?;
            for pattern in patterns {
                db.execute("INSERT OR IGNORE INTO groups VALUES (?, ?)", [name, pattern])?;
            }
            if patterns.is_empty() {
                db.execute("DELETE FROM grants WHERE pattern = '@' || ?", [name])?;
            }
            Ok(Ok(()))
        })
    }

    /// Renews the key of signed links: no link that was given out is any good from now on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn renew_links(&mut self) -> Result<(), FileError> {
        let key: [u8; 32] = secret::random()?;
        self.change(|db| {
            db.execute("UPDATE keys SET key = ? WHERE name = 'links'", [key])?;
            Ok(Ok(()))
        })
    }

    /// All users and groups.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn list(&mut self) -> Result<(Vec<ListedUser>, Vec<ListedGroup>), FileError> {
        let path = self.path.clone();
        self.db.transaction().and_then(|db| list(&db)).map_err(|source| FileError::Sqlite { path, source })
    }

    /// Applies a change, all of it or nothing, and then updates the other copies.
    fn change<T>(
        &mut self,
        act: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<Result<T, FileError>>,
    ) -> Result<T, FileError> {
        let _turn = self.copies.take_turn()?;
        if self.copies.is_volume() {
            // Another process may have changed another copy in the meantime.
            let newest = self.copies.clone().newest()?;
            *self = newest;
        }
        let path = self.path.clone();
        let failed = |source| FileError::Sqlite { path: path.clone(), source };
        let db = self.db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let done = act(&db).map_err(failed)??;
        format::seal(&db).map_err(failed)?;
        db.commit().map_err(failed)?;
        self.copies.clone().share(&self.path);
        Ok(done)
    }
}

fn named(what: &str, check: fn(&str) -> Result<(), NameError>) -> Result<(), FileError> {
    check(what).map_err(|error| FileError::Name { what: what.to_owned(), error })
}

fn is_user(db: &Connection, name: &str) -> rusqlite::Result<bool> {
    count(db, "SELECT count(*) FROM users WHERE name = ?", &[name]).map(|count| count > 0)
}

fn count(db: &Connection, sql: &str, of: &[&str]) -> rusqlite::Result<usize> {
    let count: i64 = db.query_row(sql, params_from_iter(of), |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Limits from a column on.
pub(crate) fn limits(row: &Row<'_>, first: usize) -> rusqlite::Result<Limits> {
    let bits_per_s: Option<i64> = row.get(first + 1)?;
    Ok(Limits { streams: row.get(first)?, bits_per_s: bits_per_s.map(time) })
}

/// A time as SQLite has numbers.
fn stored(unix_s: u64) -> i64 {
    i64::try_from(unix_s).unwrap_or(i64::MAX)
}

pub(crate) fn time(unix_s: i64) -> u64 {
    unix_s.max(0) as u64
}

fn key(db: &Connection, name: &str) -> rusqlite::Result<[u8; 32]> {
    db.query_row("SELECT key FROM keys WHERE name = ?", [name], |row| row.get(0))
}

fn read(db: &Connection) -> rusqlite::Result<RightsSnapshot> {
    let keys = Keys { links: key(db, "links")?, tokens: key(db, "tokens")? };
    let mut known = RightsSnapshot { keys: Some(keys), ..RightsSnapshot::default() };
    let mut rows = db.prepare(
        "SELECT name, manages, argon2id, ha1_md5, ha1_sha256, uploads, max_streams, max_bits_per_s FROM users",
    )?;
    let users = rows.query_map([], |row| {
        let ha1: (Option<[u8; 16]>, Option<[u8; 32]>) = (row.get(3)?, row.get(4)?);
        let ha1 = ha1.0.zip(ha1.1).map(|(md5, sha256)| Ha1 { md5, sha256 });
        let name: Arc<str> = row.get::<_, String>(0)?.into();
        let (manages, password, uploads) = (row.get(1)?, row.get(2)?, row.get(5)?);
        Ok(User { name, manages, uploads, watches: Vec::new(), password, ha1, limits: limits(row, 6)? })
    })?;
    for user in users {
        let user = user?;
        known.users.insert(Arc::clone(&user.name), user);
    }
    let mut rows = db.prepare(
        "SELECT user, pattern FROM grants WHERE substr(pattern, 1, 1) <> '@'
         UNION SELECT user, groups.pattern FROM grants JOIN groups ON grants.pattern = '@' || groups.name",
    )?;
    for grant in rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))? {
        let (user, pattern) = grant?;
        if let Some(user) = known.users.get_mut(&*user) {
            user.watches.push(pattern);
        }
    }
    let mut rows = db.prepare("SELECT hash, user, expires_unix_s FROM tokens")?;
    let tokens = rows.query_map([], |row| {
        let user: Arc<str> = row.get::<_, String>(1)?.into();
        Ok((row.get(0)?, Token { user, expires_unix_s: row.get::<_, Option<i64>>(2)?.map(time) }))
    })?;
    known.tokens = tokens.collect::<rusqlite::Result<_>>()?;
    Ok(known)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
