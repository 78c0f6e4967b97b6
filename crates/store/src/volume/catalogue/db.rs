//! The SQLite side of the catalogue: schema, versions, rows.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use millrace_core::ids::TitleId;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use super::Stamp;
use super::names::{Brief, Names};
use crate::format::crc32c;
use crate::format::manifest::Manifest;
use crate::format::title_info::TitleInfo;
use crate::limits::MAX_MEMBERS;
use crate::limits::volume::{CATALOGUE_BUSY, CATALOGUE_BUSY_AT_OPEN};
use crate::volume::listing::PlacedOn;

/// "MLRC": marks the file as ours.
const APPLICATION_ID: i32 = 0x4d4c_5243;

/// One step per version: `MIGRATIONS[n]` takes a catalogue from `user_version` n to n + 1.
const MIGRATIONS: [&str; 4] = [
    "
    CREATE TABLE title (
        id TEXT NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        source_path BLOB NOT NULL,
        source_bytes INTEGER NOT NULL,
        source_modified_ns INTEGER NOT NULL,
        manifest_inode INTEGER NOT NULL,
        manifest_bytes INTEGER NOT NULL,
        manifest_modified_ns INTEGER NOT NULL,
        info TEXT NOT NULL,  -- TitleInfo as JSON
        crc INTEGER NOT NULL -- CRC-32C of all the other columns: SQLite does not checksum its pages
    ) STRICT;
    CREATE INDEX title_by_name ON title (name);
    CREATE INDEX title_by_source ON title (source_path, source_bytes, source_modified_ns);
",
    // Rows are rebuilt from the manifests, which supply the values of the new columns.
    "
    DELETE FROM title;
    ALTER TABLE title ADD COLUMN members INTEGER NOT NULL DEFAULT 1; -- it lies on members 0 to this one, not included
    ALTER TABLE title ADD COLUMN may INTEGER NOT NULL DEFAULT 0;     -- of which so many may be lost
",
    // Names and sources are looked for in an index that has all that is needed, and that a scan verifies entry by entry.
    "
    DELETE FROM title;
    DROP INDEX title_by_source;
    ALTER TABLE title ADD COLUMN source_key INTEGER NOT NULL DEFAULT 0; -- 64 bits of a hash of the source's columns
    ALTER TABLE title ADD COLUMN brief_crc INTEGER NOT NULL DEFAULT 0;  -- CRC-32C of the index's other columns
    CREATE INDEX title_in_brief ON title (id, name, members, source_key, brief_crc);
",
    // Each file that is added asks for the titles of its length and of its path.
    "
    CREATE INDEX title_by_source_bytes ON title (source_bytes);
    CREATE INDEX title_by_source_path ON title (source_path);
",
];

const COLUMNS: &str = "id, name, source_path, source_bytes, source_modified_ns, manifest_inode, manifest_bytes, \
                       manifest_modified_ns, info, crc, members, may";

const OF_SOURCE: &str = "FROM title WHERE source_bytes = ?1 OR source_path = ?2";

/// One row of the catalogue: a title.
#[derive(Clone, Debug)]
pub(super) struct CatalogueRow {
    pub(super) info: TitleInfo,
    pub(super) stamp: Stamp,
    pub(super) placed: PlacedOn,
}

impl CatalogueRow {
    pub(super) fn new(manifest: Manifest, stamp: Stamp) -> Self {
        Self { placed: PlacedOn::of(&manifest.placement), info: manifest.title, stamp }
    }
}

/// An open catalogue.
#[derive(Debug)]
pub(super) struct Db {
    connection: Connection,
    /// Device and inode of the file, to see that it was replaced; `None`: it is in memory.
    file: Option<(u64, u64)>,
    check: Check,
    /// Read when they are needed, with the version of the file that they were read from.
    names: Option<(i64, Names)>,
}

/// What of a catalogue is verified before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// All of it, which takes the longer the more titles there are.
    Whole,
    /// Only the entries read: for [`Db::names`], whose entries have checksums, and for changes.
    Entries,
}

/// An error of our own in SQLite's clothes: the content is not what we wrote.
fn damage(what: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(what.to_owned()))
}

/// The error for a directory without a superblock; it counts as an error of the disk.
pub(super) fn no_member() -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    rusqlite::Error::SqliteFailure(code, Some("volume.mrv is missing beside it; mount the disk".to_owned()))
}

/// Whether the catalogue should be rebuilt: everything but the troubles that pass or that a new file would have too.
/// One that is still locked after [`CATALOGUE_BUSY_AT_OPEN`] when it is opened was cut off under a living connection.
pub(super) fn is_damage(error: &rusqlite::Error, at_open: bool) -> bool {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => at_open,
        Some(
            ErrorCode::DiskFull | ErrorCode::OutOfMemory | ErrorCode::PermissionDenied | ErrorCode::ReadOnly,
        ) => false,
        _ => true,
    }
}

/// Whether another disk, or memory, may take what this disk does not.
pub(super) fn is_the_disk(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
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

/// A path as SQLite takes it with parameters: every byte that could mean something is escaped.
fn uri_of(path: &Path, parameters: &str) -> String {
    let mut uri = "file:".to_owned();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri + parameters
}

impl Db {
    /// Opens or makes the catalogue, checks it, brings it to this program's version.
    pub(super) fn open(path: &Path, check: Check) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(CATALOGUE_BUSY_AT_OPEN)?;
        leave_wal(&connection)?;
        // The catalogue is a cache whose rows have checksums: a power cut may damage it, but an ingest must not wait for
        // further syncs because of it.
        connection.pragma_update(None, "synchronous", "OFF")?;
        // Without spilled pages, a writer blocks readers only at its end, regardless of the number
        // of rows it changes.
        connection.pragma_update(None, "cache_spill", "OFF")?;
        if check == Check::Whole {
            check_whole(&connection)?;
        }
        migrate(&mut connection)?;
        connection.busy_timeout(CATALOGUE_BUSY)?;
        let file = identity(path).ok_or_else(|| damage("the file went away"))?;
        Ok(Self { connection, file: Some(file), check, names: None })
    }

    /// An empty catalogue in memory, for disks that take none.
    pub(super) fn in_memory() -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        migrate(&mut connection)?;
        Ok(Self { connection, file: None, check: Check::Whole, names: None })
    }

    /// Opens a catalogue of this program's version for reading only.
    pub(super) fn open_to_look(path: &Path) -> rusqlite::Result<Self> {
        match Self::open_read_only(path, "") {
            // A catalogue that an earlier version left with a log, or one that needs a rollback, cannot be opened without
            // writing beside it.
            Err(error) if is_the_disk(&error) => Self::open_as_it_lies(path),
            opened => opened,
        }
    }

    /// The same without the changes that are in its log only. Works on every disk that can be read.
    pub(super) fn open_as_it_lies(path: &Path) -> rusqlite::Result<Self> {
        Self::open_read_only(path, "?immutable=1")
    }

    fn open_read_only(path: &Path, parameters: &str) -> rusqlite::Result<Self> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(uri_of(path, parameters), flags)?;
        connection.busy_timeout(CATALOGUE_BUSY_AT_OPEN)?;
        without_mapping(&connection, |_| Ok(()))?;
        check_whole(&connection)?;
        if version_of(&connection)? != (APPLICATION_ID, MIGRATIONS.len() as i32) {
            return Err(damage("a catalogue of an unknown version"));
        }
        let file = identity(path).ok_or_else(|| damage("the file went away"))?;
        Ok(Self { connection, file: Some(file), check: Check::Whole, names: None })
    }

    /// Returns whether `path` is still the open file. A database in memory cannot be replaced.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.is_in_memory() || identity(path) == self.file
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Returns whether at least this check was done when it was opened.
    pub(super) fn is_checked(&self, check: Check) -> bool {
        self.check == Check::Whole || check == Check::Entries
    }

    /// Returns the names of all titles and the sources that they were made from. Read once, and
    /// again when another connection has changed the file.
    pub(super) fn names(&mut self) -> rusqlite::Result<&Names> {
        let version = self.connection.pragma_query_value(None, "data_version", |row| row.get(0))?;
        let names = match self.names.take() {
            Some((seen, names)) if seen == version => names,
            _ => self.read_names()?,
        };
        Ok(&self.names.insert((version, names)).1)
    }

    fn read_names(&self) -> rusqlite::Result<Names> {
        // All columns are the index's: no row is read.
        let sql = "SELECT id, name, members, source_key, brief_crc FROM title INDEXED BY title_in_brief ORDER BY id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut entries = statement.query([])?;
        let mut names = Names::default();
        while let Some(entry) = entries.next()? {
            let (id, members): (String, i64) = (entry.get(0)?, entry.get(2)?);
            let brief = Brief {
                id: id.parse().map_err(|_| damage("an entry's id is not an id"))?,
                name: entry.get(1)?,
                members: usize::try_from(members).map_err(|_| damage("an entry's members are none"))?,
                source_key: entry.get(3)?,
            };
            if entry.get::<_, u32>(4)? != brief.crc() {
                return Err(damage("an entry does not match its checksum"));
            }
            names.insert(brief);
        }
        Ok(names)
    }

    pub(super) fn stamps(&mut self) -> rusqlite::Result<Vec<(TitleId, Stamp, PlacedOn)>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT {COLUMNS} FROM title"))?;
        statement
            .query_map([], |row| {
                StoredRow::read(row).and_then(|row| Ok((row.id()?, row.stamp(), row.placed()?)))
            })?
            .collect()
    }

    pub(super) fn all(&mut self) -> rusqlite::Result<Vec<CatalogueRow>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT {COLUMNS} FROM title"))?;
        statement.query_map([], row_of)?.collect()
    }

    pub(super) fn by_id(&mut self, id: TitleId) -> rusqlite::Result<Option<CatalogueRow>> {
        self.one("id = ?1", [id.to_string()])
    }

    pub(super) fn by_name(&mut self, name: &str) -> rusqlite::Result<Option<CatalogueRow>> {
        self.one("name = ?1", [name])
    }

    /// Titles whose source has this length or this path, the oldest first.
    pub(super) fn of_source(&mut self, bytes: u64, path: &Path) -> rusqlite::Result<Vec<CatalogueRow>> {
        let mut statement = self.connection.prepare_cached(&format!("SELECT {COLUMNS} {OF_SOURCE}"))?;
        let mut rows: Vec<CatalogueRow> = statement
            .query_map(params![bytes as i64, path.as_os_str().as_bytes()], row_of)?
            .collect::<rusqlite::Result<_>>()?;
        rows.sort_by_key(|row| (row.info.added_unix_s, row.info.id));
        Ok(rows)
    }

    fn one(
        &mut self,
        condition: &str,
        parameters: impl rusqlite::Params,
    ) -> rusqlite::Result<Option<CatalogueRow>> {
        let sql = format!("SELECT {COLUMNS} FROM title WHERE {condition} ORDER BY id LIMIT 1");
        self.connection.prepare_cached(&sql)?.query_row(parameters, row_of).optional()
    }

    /// Adds or replaces rows and drops others, all or nothing.
    pub(super) fn change(&mut self, put: &[CatalogueRow], delete: &[TitleId]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        for id in delete {
            transaction.execute("DELETE FROM title WHERE id = ?1", [id.to_string()])?;
        }
        for row in put {
            StoredRow::of(row).insert(&transaction, &Brief::of(row))?;
        }
        transaction.commit()?;
        if let Some((_, names)) = &mut self.names {
            delete.iter().for_each(|id| names.remove(*id));
            put.iter().for_each(|row| names.insert(Brief::of(row)));
        }
        Ok(())
    }
}

/// The columns of a row as they lie in SQLite.
struct StoredRow {
    id: String,
    name: String,
    source_path: Vec<u8>,
    /// Source's length and modification time; manifest's inode, length and modification time. Unsigned ones are cast,
    /// so that equal bits are equal. Then the members that it lies on, and how many of them may be lost.
    numbers: [i64; 7],
    info: String,
}

impl StoredRow {
    fn of(row: &CatalogueRow) -> Self {
        let CatalogueRow { info, stamp, placed } = row;
        let numbers = [
            info.source.bytes as i64,
            info.source.modified_unix_ns as i64,
            stamp.inode as i64,
            stamp.bytes as i64,
            stamp.modified_ns,
            placed.members as i64, // at most a few dozen
            placed.may as i64,
        ];
        Self {
            id: info.id.to_string(),
            name: info.name.clone(),
            source_path: info.source.path.as_os_str().as_bytes().to_vec(),
            numbers,
            info: serde_json::to_string(info)
                .expect("a title's description has only text keys and finite numbers"),
        }
    }

    /// Reads and verifies a row of [`COLUMNS`].
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let stored = Self {
            id: row.get(0)?,
            name: row.get(1)?,
            source_path: row.get(2)?,
            numbers: [
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
                row.get(7)?,
                row.get(10)?,
                row.get(11)?,
            ],
            info: row.get(8)?,
        };
        if row.get::<_, u32>(9)? != stored.crc() {
            return Err(damage("a row does not match its checksum"));
        }
        Ok(stored)
    }

    /// Lengths between the texts, so that no two rows have the same bytes.
    fn crc(&self) -> u32 {
        let mut bytes = Vec::with_capacity(self.info.len() + 256);
        for text in [self.id.as_bytes(), self.name.as_bytes(), &self.source_path, self.info.as_bytes()] {
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text);
        }
        self.numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        crc32c(&bytes)
    }

    fn insert(&self, transaction: &Transaction<'_>, brief: &Brief) -> rusqlite::Result<()> {
        let sql = format!(
            "INSERT OR REPLACE INTO title ({COLUMNS}, source_key, brief_crc) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
        );
        let [bytes, modified, inode, manifest_bytes, manifest_modified, members, may] = self.numbers;
        let (path, crc) = (&self.source_path, self.crc());
        transaction.prepare_cached(&sql)?.execute(params![
            self.id,
            self.name,
            path,
            bytes,
            modified,
            inode,
            manifest_bytes,
            manifest_modified,
            self.info,
            crc,
            members,
            may,
            brief.source_key,
            brief.crc()
        ])?;
        Ok(())
    }

    fn id(&self) -> rusqlite::Result<TitleId> {
        self.id.parse().map_err(|_| damage("a row's id is not an id"))
    }

    fn stamp(&self) -> Stamp {
        let [_, _, inode, bytes, modified_ns, _, _] = self.numbers;
        Stamp { inode: inode as u64, bytes: bytes as u64, modified_ns }
    }

    fn placed(&self) -> rusqlite::Result<PlacedOn> {
        let [.., members, may] = self.numbers.map(usize::try_from);
        let (Ok(members @ 1..=MAX_MEMBERS), Ok(may)) = (members, may) else {
            return Err(damage("a row's members are none"));
        };
        Ok(PlacedOn { members, may })
    }

    fn row(&self) -> rusqlite::Result<CatalogueRow> {
        let info = serde_json::from_str(&self.info).map_err(|_| damage("a row's description is not one"))?;
        Ok(CatalogueRow { info, stamp: self.stamp(), placed: self.placed()? })
    }
}

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<CatalogueRow> {
    StoredRow::read(row)?.row()
}

/// Reads the journal mode over a newly opened connection, without mapping a file, and calls `work`
/// with it.
///
/// In WAL mode, which earlier versions used, SQLite maps the file `-shm`. A store into such a
/// mapping raises SIGBUS if it needs a block and the disk is full. SQLite keeps the same table in
/// its own memory if it has exclusive access to the file from the first access on.
fn without_mapping(
    connection: &Connection,
    work: impl FnOnce(&str) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    work(&mode)?;
    connection.pragma_update(None, "locking_mode", "NORMAL")?;
    // SQLite releases the lock after the next read.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))
}

/// Converts a catalogue of an earlier version from WAL mode. SQLite refuses this while a program of
/// such a version has it open. The error then counts as one of the disk, so that the catalogue is
/// not set aside while the other program uses it.
fn leave_wal(connection: &Connection) -> rusqlite::Result<()> {
    let in_use = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
            let why =
                "another process has locked it, as one of an earlier version does; restart that process";
            rusqlite::Error::SqliteFailure(code, Some(why.to_owned()))
        }
        _ => error,
    };
    without_mapping(connection, |mode| {
        if mode != "wal" {
            return Ok(());
        }
        let mode: String = connection.query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))?;
        if mode == "delete" { Ok(()) } else { Err(damage("it stays in WAL mode")) }
    })
    .map_err(in_use)
}

/// Pages and indices; the rows themselves have checksums of ours.
fn check_whole(connection: &Connection) -> rusqlite::Result<()> {
    let health: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if health == "ok" { Ok(()) } else { Err(damage(&health)) }
}

fn version_of(connection: &Connection) -> rusqlite::Result<(i32, i32)> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get(0));
    Ok((pragma("application_id")?, pragma("user_version")?))
}

/// Takes a new or older catalogue to the newest version; one of an unknown version, or not ours, counts as damaged.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    if version_of(connection)? == (APPLICATION_ID, MIGRATIONS.len() as i32) {
        // Nothing has to be changed, so there is no need to wait for another writer.
        return Ok(());
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (application, version) = version_of(&transaction)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_of_path_with_special_characters_uses_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a?b#c%41 ä&mode=memory");
        drop(Db::open(&path, Check::Whole).unwrap());
        assert!(path.exists());
        assert_eq!(Db::open_to_look(&path).unwrap().all().unwrap().len(), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
        assert!(
            uri_of(&path, "?immutable=1").ends_with("/a%3fb%23c%2541%20%c3%a4%26mode%3dmemory?immutable=1")
        );
    }

    #[test]
    fn titles_of_a_source_are_found_without_a_look_at_all_titles() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("catalogue"), Check::Whole).unwrap();
        let explain = format!("EXPLAIN QUERY PLAN SELECT {COLUMNS} {OF_SOURCE}");
        let mut statement = db.connection.prepare(&explain).unwrap();
        let plan: Vec<String> = statement
            .query_map(params![5, b"a.ts"], |row| row.get("detail"))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let found = |index: &str| plan.iter().any(|step| step.starts_with("SEARCH") && step.contains(index));
        assert!(found("title_by_source_bytes") && found("title_by_source_path"), "{plan:?}");
        assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
    }
}
