//! The SQLite side of the catalogue: schema, versions, rows.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use millrace_core::ids::TitleId;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use super::Stamp;
use crate::format::crc32c;
use crate::volume::{SourceIdentity, TitleInfo};

/// "MLRC": marks the file as ours.
const APPLICATION_ID: i32 = 0x4d4c_5243;

/// One step per version: `MIGRATIONS[n]` takes a catalogue from `user_version` n to n + 1.
const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE title (
        id TEXT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        source_path BLOB NOT NULL,
        source_bytes INTEGER NOT NULL,
        source_modified_ns INTEGER NOT NULL,
        manifest_inode INTEGER NOT NULL,
        manifest_bytes INTEGER NOT NULL,
        manifest_modified_ns INTEGER NOT NULL,
        info TEXT NOT NULL,      -- TitleInfo as JSON
        info_crc INTEGER NOT NULL -- CRC-32C of it: SQLite does not checksum its pages
    ) STRICT;
    CREATE INDEX title_by_name ON title (name);
    CREATE INDEX title_by_source ON title (source_path, source_bytes, source_modified_ns);
"];

/// How long one process waits for another's write to the catalogue.
const BUSY: Duration = Duration::from_secs(10);

const COLUMNS: &str = "id, name, info, info_crc, manifest_inode, manifest_bytes, manifest_modified_ns";

/// One title as catalogued.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) info: TitleInfo,
    pub(super) stamp: Stamp,
}

/// An open catalogue.
#[derive(Debug)]
pub(super) struct Db {
    connection: Connection,
    /// Device and inode of the file, to see that it was replaced.
    file: (u64, u64),
}

/// An error of our own in SQLite's clothes: the content is not what we wrote.
fn damage(what: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(what.to_owned()))
}

/// Whether the catalogue should be made anew: everything but the troubles that pass or that a new file would have too.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    !matches!(
        code,
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::OutOfMemory
                | ErrorCode::PermissionDenied
                | ErrorCode::ReadOnly
        )
    )
}

/// Whether the file was renamed or deleted under the connection.
pub(super) fn is_moved(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_READONLY_DBMOVED)
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

impl Db {
    /// Opens or makes the catalogue, checks it whole, brings it to this program's version.
    pub(super) fn open(path: &Path) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        // A cache may lose its last rows in a power cut; it may not cost every ingest another fsync.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        let health: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if health != "ok" {
            return Err(damage(&health));
        }
        migrate(&mut connection)?;
        let file = identity(path).ok_or_else(|| damage("the file went away"))?;
        Ok(Self { connection, file })
    }

    /// Whether `path` is still the file that is open.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        identity(path) == Some(self.file)
    }

    pub(super) fn stamps(&mut self) -> rusqlite::Result<Vec<(TitleId, Stamp)>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT {COLUMNS} FROM title"))?;
        let rows = statement.query_map([], |row| Ok((id_of(&row.get::<_, String>(0)?)?, stamp_of(row)?)))?;
        rows.collect()
    }

    pub(super) fn all(&mut self) -> rusqlite::Result<Vec<Row>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT {COLUMNS} FROM title"))?;
        statement.query_map([], row_of)?.collect()
    }

    pub(super) fn by_id(&mut self, id: TitleId) -> rusqlite::Result<Option<Row>> {
        self.one("id = ?1", [id.to_string()])
    }

    pub(super) fn by_name(&mut self, name: &str) -> rusqlite::Result<Option<Row>> {
        self.one("name = ?1", [name])
    }

    pub(super) fn by_source(&mut self, source: &SourceIdentity) -> rusqlite::Result<Option<Row>> {
        let parameters = params![
            source.path.as_os_str().as_bytes(),
            source.bytes as i64, // the same cast when stored: equal bits are equal
            source.modified_unix_ns as i64
        ];
        self.one("source_path = ?1 AND source_bytes = ?2 AND source_modified_ns = ?3", parameters)
    }

    fn one(&mut self, condition: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<Option<Row>> {
        let sql = format!("SELECT {COLUMNS} FROM title WHERE {condition} ORDER BY id LIMIT 1");
        self.connection.prepare_cached(&sql)?.query_row(parameters, row_of).optional()
    }

    /// Adds or replaces rows and drops others, all or nothing.
    pub(super) fn change(&mut self, put: &[Row], delete: &[TitleId]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for id in delete {
            transaction.execute("DELETE FROM title WHERE id = ?1", [id.to_string()])?;
        }
        for row in put {
            insert(&transaction, row)?;
        }
        transaction.commit()
    }
}

fn insert(transaction: &Transaction<'_>, row: &Row) -> rusqlite::Result<()> {
    let json = serde_json::to_string(&row.info)
        .expect("a title's description has only text keys and finite numbers");
    transaction.execute(
        "INSERT OR REPLACE INTO title (id, name, source_path, source_bytes, source_modified_ns, manifest_inode,
             manifest_bytes, manifest_modified_ns, info, info_crc) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            row.info.id.to_string(),
            row.info.name,
            row.info.source.path.as_os_str().as_bytes(),
            row.info.source.bytes as i64,
            row.info.source.modified_unix_ns as i64,
            row.stamp.inode as i64,
            row.stamp.bytes as i64,
            row.stamp.modified_ns,
            json,
            crc32c(json.as_bytes()),
        ],
    )?;
    Ok(())
}

fn id_of(text: &str) -> rusqlite::Result<TitleId> {
    text.parse().map_err(|_| damage("a row's id is not an id"))
}

fn stamp_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stamp> {
    Ok(Stamp {
        inode: row.get::<_, i64>(4)? as u64,
        bytes: row.get::<_, i64>(5)? as u64,
        modified_ns: row.get(6)?,
    })
}

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    let json: String = row.get(2)?;
    if crc32c(json.as_bytes()) != row.get::<_, u32>(3)? {
        return Err(damage("a row's description does not match its checksum"));
    }
    let info: TitleInfo =
        serde_json::from_str(&json).map_err(|_| damage("a row's description is not one"))?;
    if info.id != id_of(&row.get::<_, String>(0)?)? || info.name != row.get::<_, String>(1)? {
        return Err(damage("a row's description is that of another title"));
    }
    Ok(Row { info, stamp: stamp_of(row)? })
}

/// Takes a new or older catalogue to the newest version; one of an unknown version, or not ours, counts as damaged.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let pragma = |name: &str| transaction.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let fresh = application == 0 && version == 0 && tables == 0;
    if !fresh && application != APPLICATION_ID {
        return Err(damage("not a Millrace catalogue"));
    }
    let steps = usize::try_from(version)
        .ok()
        .and_then(|version| MIGRATIONS.get(version..))
        .ok_or_else(|| damage("a catalogue of an unknown version"))?;
    for step in steps {
        transaction.execute_batch(step)?;
    }
    if !steps.is_empty() {
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i32)?;
    }
    transaction.commit()
}
