//! The catalogue: titles by name, id and source without opening a file of each.
//!
//! The truth is in `titles/*/manifest.mrm`. The catalogue is a cache of it, shared by all processes; each row carries
//! the stamp (inode, length, modification time) of the manifest it was made from, so that whatever another process did,
//! crashed or not, is seen by looking at the directory. A catalogue that is lost, damaged, or of another version is set
//! aside and made anew.

mod db;

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use millrace_core::ids::TitleId;

use self::db::{Db, Row};
use super::dirs::{Dirs, id_of_name};
use super::manifest_io::read_manifest;
use super::{SourceIdentity, TitleInfo};
use crate::error::StoreError;

/// A directory below `titles` that holds no readable title.
#[derive(Debug)]
pub struct UnreadableTitle {
    /// The title.
    pub id: TitleId,
    /// Why it cannot be read.
    pub error: StoreError,
}

/// Tells one version of a file from another: a manifest is only ever replaced whole, so its inode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    modified_ns: i64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let modified_ns = meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec());
        Self { inode: meta.ino(), bytes: meta.len(), modified_ns }
    }
}

/// A directory below `titles`, and the stamp of its manifest if there is one.
type Seen = (TitleId, Result<Stamp, StoreError>);

/// One process's view of the catalogue.
#[derive(Debug)]
pub(crate) struct Catalogue {
    dirs: Dirs,
    path: PathBuf,
    db: Option<Db>,
    unreadable: Vec<UnreadableTitle>,
    /// Modification time of `titles` at the last refresh, if no change since then can hide behind it.
    seen: Option<SystemTime>,
}

/// Coarsest step of a file system's modification times. A directory looked at within this time of its last change may
/// change again without another modification time.
const MTIME_STEP: Duration = Duration::from_secs(2);

impl Catalogue {
    /// Opens the catalogue, or makes it anew, and brings it up to date.
    pub(crate) fn open(dirs: &Dirs) -> Result<Self, StoreError> {
        let mut catalogue =
            Self { dirs: dirs.clone(), path: dirs.catalogue(), db: None, unreadable: Vec::new(), seen: None };
        catalogue.refresh()?;
        Ok(catalogue)
    }

    /// All titles by name.
    pub(crate) fn titles(&mut self) -> Result<Vec<TitleInfo>, StoreError> {
        self.refresh()?;
        let rows = self.with_db(|db| db.all())?;
        let mut titles: Vec<TitleInfo> = rows.into_iter().map(|row| row.info).collect();
        titles.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id)));
        Ok(titles)
    }

    /// The title with this name.
    pub(crate) fn by_name(&mut self, name: &str) -> Result<Option<TitleInfo>, StoreError> {
        self.find(|db| db.by_name(name))
    }

    /// The title with this id.
    pub(crate) fn by_id(&mut self, id: TitleId) -> Result<Option<TitleInfo>, StoreError> {
        self.find(|db| db.by_id(id))
    }

    /// The title made from this file.
    pub(crate) fn by_source(&mut self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        self.find(|db| db.by_source(source))
    }

    /// Whether a title has this name; the caller has called [`Catalogue::refresh`] under the store's lock.
    pub(crate) fn has_name(&mut self, name: &str) -> Result<bool, StoreError> {
        Ok(self.with_db(|db| db.by_name(name))?.is_some())
    }

    /// Titles that could not be read at the last refresh.
    pub(crate) fn take_unreadable(&mut self) -> Result<Vec<UnreadableTitle>, StoreError> {
        self.seen = None;
        self.refresh()?;
        Ok(std::mem::take(&mut self.unreadable))
    }

    /// Adds or replaces a title whose manifest is in place.
    pub(crate) fn put(&mut self, info: &TitleInfo) -> Result<(), StoreError> {
        let path = self.dirs.manifest(info.id);
        let stamp = Stamp::of(&fs::metadata(&path).map_err(StoreError::io("look at", &path))?);
        let row = Row { info: info.clone(), stamp };
        self.with_db(|db| db.change(std::slice::from_ref(&row), &[]))
    }

    /// Drops a title.
    pub(crate) fn delete(&mut self, id: TitleId) -> Result<(), StoreError> {
        self.with_db(|db| db.change(&[], &[id]))
    }

    /// A row that is still true, found with one look at its manifest; else found after a refresh.
    fn find(
        &mut self,
        query: impl Fn(&mut Db) -> rusqlite::Result<Option<Row>>,
    ) -> Result<Option<TitleInfo>, StoreError> {
        match self.with_db(&query)? {
            Some(row) => {
                let stamp = fs::metadata(self.dirs.manifest(row.info.id)).map(|m| Stamp::of(&m));
                if stamp.is_ok_and(|stamp| stamp == row.stamp) {
                    return Ok(Some(row.info));
                }
            }
            None if self.nothing_new() => return Ok(None),
            None => {}
        }
        self.refresh()?;
        Ok(self.with_db(&query)?.map(|row| row.info))
    }

    /// Whether no title can have come or gone since the last refresh.
    fn nothing_new(&self) -> bool {
        let modified = fs::metadata(&self.dirs.titles).and_then(|m| m.modified());
        self.seen.is_some() && modified.ok() == self.seen
    }

    /// Brings the catalogue in line with `titles`: one look at each manifest, and a read of those that are new.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        let dir = &self.dirs.titles;
        let modified =
            fs::metadata(dir).and_then(|m| m.modified()).map_err(StoreError::io("look at", dir))?;
        let settled = SystemTime::now().duration_since(modified).is_ok_and(|age| age > MTIME_STEP);
        let on_disk = self.look_at_titles()?;
        let mut known: HashMap<TitleId, Stamp> = self.with_db(|db| db.stamps())?.into_iter().collect();
        let (mut put, mut unreadable) = (Vec::new(), Vec::new());
        for (id, stamp) in on_disk {
            match stamp {
                Ok(stamp) if known.get(&id) == Some(&stamp) => {
                    known.remove(&id);
                }
                Ok(stamp) => match read_manifest(&self.dirs, id) {
                    Ok(manifest) => {
                        known.remove(&id);
                        put.push(Row { info: manifest.title, stamp });
                    }
                    Err(StoreError::NoTitle { .. }) => {} // removed while we looked
                    Err(error) => unreadable.push(UnreadableTitle { id, error }),
                },
                Err(error) => unreadable.push(UnreadableTitle { id, error }),
            }
        }
        let gone: Vec<TitleId> = known.into_keys().collect();
        if !put.is_empty() || !gone.is_empty() {
            self.with_db(|db| db.change(&put, &gone))?;
        }
        self.unreadable = unreadable;
        self.seen = settled.then_some(modified);
        Ok(())
    }

    /// Ids below `titles` with the stamp of their manifests.
    fn look_at_titles(&self) -> Result<Vec<Seen>, StoreError> {
        let dir = &self.dirs.titles;
        let mut found = Vec::new();
        for entry in fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
            let entry = entry.map_err(StoreError::io("list", dir))?;
            let Some(id) = id_of_name(&entry.file_name()) else { continue };
            let path = self.dirs.manifest(id);
            match fs::metadata(&path) {
                Ok(meta) => found.push((id, Ok(Stamp::of(&meta)))),
                Err(_) if !self.dirs.title(id).exists() => {} // removed while we looked
                Err(e) => found.push((id, Err(StoreError::io("look at", &path)(e)))),
            }
        }
        Ok(found)
    }

    /// Runs a query. A damaged catalogue is set aside and made anew from the manifests, once.
    fn with_db<T>(&mut self, query: impl Fn(&mut Db) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        match self.try_with_db(&query) {
            Err(error) if db::is_moved(&error) => self.db = None,
            Err(error) if db::is_damage(&error, self.db.is_none()) => {
                self.db = None;
                set_aside(&self.path)?;
            }
            Err(error) => return Err(StoreError::Catalogue { path: self.path.clone(), error }),
            Ok(value) => return Ok(value),
        }
        self.refill()?;
        self.try_with_db(&query).map_err(|error| StoreError::Catalogue { path: self.path.clone(), error })
    }

    fn try_with_db<T>(&mut self, query: impl Fn(&mut Db) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        if self.db.as_ref().is_some_and(|db| !db.is_at(&self.path)) {
            self.db = None;
        }
        let db = match &mut self.db {
            Some(db) => db,
            none => none.insert(Db::open(&self.path)?),
        };
        query(db)
    }

    /// Fills a new catalogue with every readable manifest; what is unreadable is for [`Catalogue::refresh`] to report.
    fn refill(&mut self) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        for (id, stamp) in self.look_at_titles()? {
            if let Ok(stamp) = stamp
                && let Ok(manifest) = read_manifest(&self.dirs, id)
            {
                rows.push(Row { info: manifest.title, stamp });
            }
        }
        self.try_with_db(|db| db.change(&rows, &[]))
            .map_err(|error| StoreError::Catalogue { path: self.path.clone(), error })
    }
}

/// What a catalogue says, without changing it: for `fsck`.
pub(crate) fn look_at_catalogue(path: &Path) -> rusqlite::Result<Vec<TitleInfo>> {
    Ok(Db::open_to_look(path)?.all()?.into_iter().map(|row| row.info).collect())
}

/// Renames a catalogue that cannot be used, with SQLite's files beside it, so that a person can look at it. Only the
/// last one is kept.
fn set_aside(path: &Path) -> Result<(), StoreError> {
    for beside in ["", "-wal", "-shm"] {
        let from = with_suffix(path, beside);
        let to = with_suffix(path, &format!(".damaged{beside}"));
        if to.is_dir() {
            fs::remove_dir_all(&to).map_err(StoreError::io("remove", &to))?;
        }
        match fs::rename(&from, &to) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(StoreError::io("rename", &from)(e)),
            _ => {}
        }
    }
    Ok(())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
