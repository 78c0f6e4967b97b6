//! The contents of the file, for display.

use rusqlite::Connection;

use crate::file::{limits, time};
use crate::known::Limits;

/// A user as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUser {
    /// Unique.
    pub name: String,
    /// Whether it may change things and see others.
    pub manages: bool,
    /// Whether it may add titles.
    pub uploads: bool,
    /// Whether it can sign in by Digest.
    pub digest: bool,
    /// Patterns, and groups with an `@`.
    pub grants: Vec<String>,
    /// Its tokens.
    pub tokens: Vec<ListedToken>,
    /// Its limits on simultaneous use.
    pub limits: Limits,
    /// When it was added.
    pub added_unix_s: u64,
}

/// A token as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedToken {
    /// Its name.
    pub id: String,
    /// When it was made.
    pub made_unix_s: u64,
    /// When it ends.
    pub expires_unix_s: Option<u64>,
}

/// A group of titles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Unique.
    pub name: String,
    /// Which titles.
    pub patterns: Vec<String>,
}

/// All of it, in the order of names.
pub(crate) fn list(db: &Connection) -> rusqlite::Result<(Vec<ListedUser>, Vec<ListedGroup>)> {
    let mut rows = db.prepare(
        "SELECT name, manages, ha1_md5 IS NOT NULL, added_unix_s, uploads, max_streams, max_bits_per_s
         FROM users ORDER BY name",
    )?;
    let users = rows.query_map([], |row| {
        Ok(ListedUser {
            name: row.get(0)?,
            manages: row.get(1)?,
            uploads: row.get(4)?,
            digest: row.get(2)?,
            grants: Vec::new(),
            tokens: Vec::new(),
            added_unix_s: time(row.get(3)?),
            limits: limits(row, 5)?,
        })
    })?;
    let mut users: Vec<ListedUser> = users.collect::<rusqlite::Result<_>>()?;
    let mut grants = db.prepare("SELECT pattern FROM grants WHERE user = ? ORDER BY pattern")?;
    let mut tokens = db.prepare(
        "SELECT id, made_unix_s, expires_unix_s FROM tokens WHERE user = ? ORDER BY made_unix_s, id",
    )?;
    for user in &mut users {
        user.grants = grants.query_map([&user.name], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        let listed = |row: &rusqlite::Row<'_>| {
            let expires: Option<i64> = row.get(2)?;
            Ok(ListedToken {
                id: row.get(0)?,
                made_unix_s: time(row.get(1)?),
                expires_unix_s: expires.map(time),
            })
        };
        user.tokens = tokens.query_map([&user.name], listed)?.collect::<rusqlite::Result<_>>()?;
    }
    let mut groups: Vec<ListedGroup> = Vec::new();
    let mut rows = db.prepare("SELECT name, pattern FROM groups ORDER BY name, pattern")?;
    for row in rows.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))? {
        let (name, pattern) = row?;
        match groups.last_mut().filter(|group| group.name == name) {
            Some(group) => group.patterns.push(pattern),
            None => groups.push(ListedGroup { name, patterns: vec![pattern] }),
        }
    }
    Ok((users, groups))
}
