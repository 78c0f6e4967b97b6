//! The tables of the rights file: the current format, upgrades of earlier ones, and the checksum
//! over the content.

use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use crate::error::FileError;
use crate::limits::RIGHTS_FILE_WAIT;
use crate::secret;

/// Incremented with every change of the tables.
const FORMAT: i64 = 4;

/// SQL that upgrades each earlier format to the next one.
const CHANGES: [(i64, &str); 3] = [
    (1, "ALTER TABLE users ADD COLUMN uploads INTEGER NOT NULL DEFAULT 0"),
    (2, LIMITS),
    (3, "CREATE TABLE state (generation INTEGER NOT NULL, digest BLOB NOT NULL) STRICT"),
];

/// Additions of format 3 to format 2.
const LIMITS: &str = "
ALTER TABLE users ADD COLUMN max_streams INTEGER;
ALTER TABLE users ADD COLUMN max_bits_per_s INTEGER;
";

/// Tables of format 1.
const TABLES: &str = "
CREATE TABLE keys (name TEXT PRIMARY KEY, key BLOB NOT NULL) STRICT;
CREATE TABLE users (
    name TEXT PRIMARY KEY,
    manages INTEGER NOT NULL,
    argon2id TEXT NOT NULL,
    ha1_md5 BLOB,
    ha1_sha256 BLOB,
    added_unix_s INTEGER NOT NULL
) STRICT;
CREATE TABLE grants (
    user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE,
    pattern TEXT NOT NULL,
    PRIMARY KEY (user, pattern)
) STRICT;
CREATE TABLE groups (name TEXT NOT NULL, pattern TEXT NOT NULL, PRIMARY KEY (name, pattern)) STRICT;
CREATE TABLE tokens (
    hash BLOB PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL REFERENCES users(name) ON DELETE CASCADE,
    made_unix_s INTEGER NOT NULL,
    expires_unix_s INTEGER
) STRICT;
";

/// The reason why a file cannot be used.
pub(crate) enum Unusable {
    Sqlite(rusqlite::Error),
    Secret(secret::SecretError),
    /// Its format is unknown.
    Format(i64),
    /// Its content does not match its checksum.
    Damaged,
}

impl Unusable {
    /// Returns the same error for the file at a path.
    pub(crate) fn at(self, path: &Path) -> FileError {
        let path = path.to_owned();
        match self {
            Self::Sqlite(source) => FileError::Sqlite { path, source },
            Self::Secret(error) => FileError::Secret(error),
            Self::Format(format) => FileError::Format { path, format },
            Self::Damaged => FileError::Damaged(path),
        }
    }
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Identifies the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Incremented with every change.
    pub(crate) generation: i64,
    pub(crate) digest: [u8; 32],
}

/// Creates the tables in a new file, upgrades those of an earlier format, and verifies the content.
pub(crate) fn prepare(db: &mut Connection, is_new: bool) -> Result<Content, Unusable> {
    db.busy_timeout(RIGHTS_FILE_WAIT)?;
    // Rights must survive a power cut, and stay in one file that can be copied.
    db.execute_batch(
        "PRAGMA journal_mode = DELETE; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON; PRAGMA mmap_size = 0;
         PRAGMA trusted_schema = OFF; PRAGMA secure_delete = ON;",
    )?;
    if is_new {
        let random = || secret::random().map_err(Unusable::Secret);
        let keys: [(&str, [u8; 32]); 2] = [("links", random()?), ("tokens", random()?)];
        transact(db, |db| {
            db.execute_batch(TABLES)?;
            for (name, key) in keys {
                db.execute("INSERT INTO keys VALUES (?, ?)", params![name, key])?;
            }
            db.pragma_update(None, "user_version", 1)
        })?;
    }
    for (from, change) in CHANGES {
        if format(db)? == from {
            transact(db, |db| {
                // Another process may have been faster.
                if format(db)? == from {
                    db.execute_batch(change)?;
                    db.pragma_update(None, "user_version", from + 1)?;
                }
                Ok(())
            })?;
        }
    }
    match format(db)? {
        FORMAT => {}
        0 => return Err(Unusable::Damaged),
        format => return Err(Unusable::Format(format)),
    }
    let db = db.transaction_with_behavior(TransactionBehavior::Deferred)?;
    let health: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    match content(&db)? {
        _ if health != "ok" => Err(Unusable::Damaged),
        Some(content) if digest(&db)? == content.digest => Ok(content),
        _ => Err(Unusable::Damaged),
    }
}

fn format(db: &Connection) -> rusqlite::Result<i64> {
    db.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Applies a change, all of it or nothing, and seals it as a new generation.
fn transact<T>(
    db: &mut Connection,
    act: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = act(&db)?;
    if format(&db)? == FORMAT {
        seal(&db)?;
    }
    db.commit()?;
    Ok(done)
}

/// Stores the next generation and the checksum of the content.
pub(crate) fn seal(db: &Transaction<'_>) -> rusqlite::Result<()> {
    let before = content(db)?.map_or(0, |content| content.generation);
    let digest = digest(db)?;
    db.execute("DELETE FROM state", [])?;
    db.execute("INSERT INTO state VALUES (?, ?)", params![before + 1, digest])?;
    Ok(())
}

fn content(db: &Connection) -> rusqlite::Result<Option<Content>> {
    let read = |row: &rusqlite::Row<'_>| Ok(Content { generation: row.get(0)?, digest: row.get(1)? });
    db.query_row("SELECT generation, digest FROM state", [], read).optional()
}

/// Hashes everything but the generation, because SQLite does not checksum its pages. The length
/// precedes each value, so that no two contents have the same bytes.
fn digest(db: &Connection) -> rusqlite::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    for table in ["keys", "users", "grants", "groups", "tokens"] {
        let mut statement = db.prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2"))?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            hasher.update(table.as_bytes());
            for column in 0..columns {
                let (kind, bytes) = match row.get_ref(column)? {
                    ValueRef::Null => (b'n', Vec::new()),
                    ValueRef::Integer(number) => (b'i', number.to_le_bytes().to_vec()),
                    ValueRef::Real(number) => (b'r', number.to_le_bytes().to_vec()),
                    ValueRef::Text(text) => (b't', text.to_vec()),
                    ValueRef::Blob(bytes) => (b'b', bytes.to_vec()),
                };
                hasher.update(&[kind]);
                hasher.update(&(bytes.len() as u64).to_le_bytes());
                hasher.update(&bytes);
            }
        }
    }
    Ok(*hasher.finalize().as_bytes())
}
