//! The catalogue: titles by name, id and source without opening a file of each.
//!
//! The truth is in `titles/*/manifest.mrm`. The catalogue is a cache of it, shared by all processes; each row carries
//! the stamp (inode, length, modification time) of the manifest it was made from, so that whatever another process did,
//! crashed or not, is seen by looking at the directory. A catalogue that is lost, damaged, or of another version is set
//! aside and rebuilt.
//!
//! A volume of several members has its catalogue on the first of them that is there; it lists the titles of all. A title
//! none of whose members can be looked at stays in it: it may come back with them.
//!
//! Disks that are full or may not be written to take no catalogue: then it is kept in memory, until the process ends.

mod db;
mod memory;
mod names;
mod share;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use millrace_core::ids::TitleId;

use self::db::{CatalogueRow, Check, Db};
use super::listing::{ListedAt, ListedTitle, Listing, PlacedOn, UnreadableTitle};
use super::manifest_io::find_manifest;
use crate::blocking::Timeout;
use crate::dirs::{Dirs, VOLUME_FILE, id_of_name};
use crate::error::StoreError;
use crate::format::manifest::Manifest;
use crate::format::title_info::TitleInfo;
use crate::limits::MAX_MEMBERS;
use crate::limits::volume::{LIST_AGAIN, MTIME_STEP};
use crate::member_set::MemberSet;
use crate::members::Members;

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

/// The directories of a title on the members.
#[derive(Debug)]
struct TitleDirectories {
    /// Stamp of the manifest on the first member that has one; else why it has none.
    stamp: Result<Stamp, StoreError>,
    /// Members that have such a directory.
    on: MemberSet,
}

/// Titles found on the members.
#[derive(Debug, Default)]
struct CatalogueScan {
    titles: BTreeMap<TitleId, TitleDirectories>,
    /// Members whose titles could be listed.
    listed: MemberSet,
}

impl CatalogueScan {
    /// Whether a title that is nowhere to be seen is gone. If none of its members could be looked at, it may well be there.
    fn is_gone(&self, placed: PlacedOn) -> bool {
        !(self.listed & MemberSet::below(placed.members)).is_empty()
    }
}

/// One process's view of the catalogue.
#[derive(Debug)]
pub(crate) struct Catalogue {
    members: Arc<Members>,
    /// The file that is open or will be opened.
    path: PathBuf,
    db: Option<Db>,
    unreadable: Vec<UnreadableTitle>,
    /// Members that were there when the copies were brought up to date.
    shared_with: MemberSet,
    /// The directories `titles` and their modification times at the last refresh, if no change since then can hide behind
    /// them.
    seen: Option<Vec<(PathBuf, SystemTime)>>,
    /// Why it is kept in memory, if it is.
    in_memory: Option<String>,
}

/// Whether a member that is there but behind has a title.
pub(crate) fn is_held_behind(members: &Members, slot: usize, id: TitleId) -> bool {
    let look = move |dir: &Path| Dirs::new(dir).title(id).is_dir();
    !members.is_usable(slot)
        && members.is_present(slot)
        && members.ask(slot, Timeout::Call, look).unwrap_or(false)
}

impl Catalogue {
    /// Opens the catalogue, or makes it again; all titles are in it then.
    pub(crate) fn open(members: &Arc<Members>) -> Result<Self, StoreError> {
        let members = Arc::clone(members);
        let mut catalogue = Self {
            members,
            path: PathBuf::new(),
            db: None,
            unreadable: Vec::new(),
            shared_with: MemberSet::EMPTY,
            seen: None,
            in_memory: None,
        };
        catalogue.catch_up()?;
        Ok(catalogue)
    }

    /// All titles by name.
    pub(crate) fn titles(&mut self) -> Result<Vec<TitleInfo>, StoreError> {
        self.refresh()?;
        let rows = self.with_db(|db| db.all())?;
        let mut titles: Vec<TitleInfo> = not_replaced(rows).into_iter().map(|row| row.info).collect();
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

    /// Returns all titles, the losses of each, and the unreadable titles.
    pub(crate) fn listing(&mut self) -> Result<Listing, StoreError> {
        let (at, members) = (Instant::now(), self.states());
        self.seen = None; // what cannot be read is handed out, and has to be found again
        let look = self.look_again()?;
        let rows = not_replaced(self.with_db(|db| db.all())?);
        let there = self.members.usable();
        let listed = |CatalogueRow { info, placed, .. }: CatalogueRow| {
            let on = match look.titles.get(&info.id) {
                Some(seen) => seen.on,
                None if look.is_gone(placed) => MemberSet::below(MAX_MEMBERS), // it has come since we looked
                None => MemberSet::EMPTY,
            };
            let should = there.iter().copied().filter(|&slot| slot < placed.members);
            let lacking = should.filter(|&slot| !on.contains(slot as u16)).collect();
            let mut title = ListedTitle { info, placed, lacking, behind: Vec::new() };
            if title.lost(|slot| there.contains(&slot)).is_some() {
                let id = title.info.id;
                title.behind =
                    (0..placed.members).filter(|&slot| is_held_behind(&self.members, slot, id)).collect();
            }
            title
        };
        let mut titles: Vec<ListedTitle> = rows.into_iter().map(listed).collect();
        titles.sort_by(|a, b| (&a.info.name, a.info.id).cmp(&(&b.info.name, b.info.id)));
        let unreadable = std::mem::take(&mut self.unreadable);
        // An unreadable title may become readable without a new modification time.
        let modified = self.seen.clone().filter(|_| unreadable.is_empty());
        let as_of = modified.map(|modified| ListedAt { modified, members, at });
        Ok(Listing { titles, unreadable, as_of })
    }

    /// Whether a listing made now would be the one from `before`.
    pub(crate) fn is_as_of(&self, before: &ListedAt) -> bool {
        before.at.elapsed() < LIST_AGAIN
            && before.members == self.states()
            && self.modified().is_ok_and(|modified| modified == before.modified)
    }

    /// Of each member, whether it can be read and whether it is there.
    fn states(&self) -> Vec<(bool, bool)> {
        let members = &self.members;
        (0..members.len()).map(|slot| (members.is_usable(slot), members.is_present(slot))).collect()
    }

    /// Adds or replaces a title whose manifest is in place.
    pub(crate) fn put(&mut self, manifest: &Manifest) -> Result<(), StoreError> {
        let id = manifest.title.id;
        let stamp = self.stamp_of(id).ok_or(StoreError::NoTitle { id })?;
        let row = CatalogueRow::new(manifest.clone(), stamp);
        self.ask(Check::Entries, |db| db.change(std::slice::from_ref(&row), &[]))
    }

    /// Drops a title.
    pub(crate) fn delete(&mut self, id: TitleId) -> Result<(), StoreError> {
        self.with_db(|db| db.change(&[], &[id]))?;
        self.unshare(id);
        Ok(())
    }

    /// A row that is still true, found with one look at its manifest. A title that is not found may
    /// have come since: then only titles that have come or gone are looked at, because a look at all
    /// of them would make each name that is free the more expensive the more titles there are.
    fn find(
        &mut self,
        query: impl Fn(&mut Db) -> rusqlite::Result<Option<CatalogueRow>>,
    ) -> Result<Option<TitleInfo>, StoreError> {
        match self.with_db(&query)? {
            Some(row) if self.stamp_of(row.info.id) == Some(row.stamp) => return Ok(Some(row.info)),
            Some(_) => self.refresh()?,
            None if self.nothing_new() => return Ok(None),
            None => self.catch_up()?,
        }
        Ok(self.with_db(&query)?.map(|row| row.info))
    }

    /// The members that titles are looked for on.
    fn homes(&self) -> Vec<Dirs> {
        self.usable().map(|(_, dirs)| dirs).collect()
    }

    /// The same with their slots.
    fn usable(&self) -> impl Iterator<Item = (usize, Dirs)> + use<'_> {
        self.members.usable().into_iter().map(|slot| (slot, Dirs::new(&self.members.dir(slot))))
    }

    /// The stamp of the first manifest of a title that is there.
    fn stamp_of(&self, id: TitleId) -> Option<Stamp> {
        self.homes().iter().find_map(|dirs| fs::metadata(dirs.manifest(id)).ok()).map(|meta| Stamp::of(&meta))
    }

    /// Each `titles` with its modification time; without those that cannot be looked at, if there are others.
    fn modified(&self) -> Result<Vec<(PathBuf, SystemTime)>, StoreError> {
        let mut times = Vec::new();
        let mut failed = None;
        for Dirs { titles, .. } in self.homes() {
            match fs::metadata(&titles).and_then(|m| m.modified()) {
                Ok(time) => times.push((titles, time)),
                Err(error) => failed = Some(StoreError::io("look at", &titles)(error)),
            }
        }
        match failed {
            Some(error) if times.is_empty() => Err(error),
            None if times.is_empty() => Err(self.nothing_there()),
            _ => Ok(times),
        }
    }

    fn nothing_there(&self) -> StoreError {
        let report = self.members.report();
        let names = report.iter().map(|slot| slot.dir.display().to_string()).collect::<Vec<_>>().join(", ");
        StoreError::MembersLost { what: "the volume".to_owned(), lost: report.len(), may: 0, names }
    }

    /// Whether no title can have come or gone since the last refresh.
    fn nothing_new(&self) -> bool {
        self.seen.is_some() && self.modified().ok() == self.seen
    }

    /// Brings the catalogue in line with `titles`: one look at each manifest, and a read of those that are new.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        self.look_again().map(drop)
    }

    fn look_again(&mut self) -> Result<CatalogueScan, StoreError> {
        let modified = self.modified()?;
        let now = SystemTime::now();
        let age = |(_, time): &(PathBuf, SystemTime)| now.duration_since(*time);
        let settled = modified.iter().all(|seen| age(seen).is_ok_and(|age| age > MTIME_STEP));
        let mut look = self.look_at_titles()?;
        let stamps = self.with_db(|db| db.stamps())?;
        let mut known: HashMap<TitleId, _> =
            stamps.into_iter().map(|(id, stamp, placed)| (id, (stamp, placed))).collect();
        let (mut put, mut unreadable) = (Vec::new(), Vec::new());
        for (&id, TitleDirectories { stamp, .. }) in &mut look.titles {
            let stamp = match std::mem::replace(stamp, Err(StoreError::NoTitle { id })) {
                Ok(stamp) => stamp,
                Err(error) => {
                    unreadable.push(UnreadableTitle { id, error });
                    continue;
                }
            };
            if known.get(&id).is_some_and(|(seen, _)| *seen == stamp) {
                known.remove(&id);
                continue;
            }
            match find_manifest(&self.members, id) {
                Ok((_, manifest)) => {
                    known.remove(&id);
                    put.push(CatalogueRow::new(manifest, stamp));
                }
                Err(StoreError::NoTitle { .. }) => {} // removed while we looked
                Err(error) => unreadable.push(UnreadableTitle { id, error }),
            }
        }
        let gone: Vec<TitleId> =
            known.into_iter().filter(|(_, (_, placed))| look.is_gone(*placed)).map(|(id, _)| id).collect();
        let changed = !put.is_empty() || !gone.is_empty();
        if changed {
            self.with_db(|db| db.change(&put, &gone))?;
        }
        if changed || self.shared_with != look.listed {
            self.share(&look);
            self.shared_with = look.listed;
        }
        self.unreadable = unreadable;
        self.seen = settled.then_some(modified);
        Ok(look)
    }

    /// Ids below each `titles`, in order.
    fn look_at_titles(&self) -> Result<CatalogueScan, StoreError> {
        let mut look = CatalogueScan::default();
        let mut failed = None;
        for (slot, dirs) in self.usable() {
            match look_at_titles_of(slot, &dirs, &mut look.titles) {
                Ok(()) => look.listed.insert(slot as u16),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if look.listed.is_empty() => Err(error),
            _ => Ok(look),
        }
    }

    /// Runs a query on a catalogue that was checked whole.
    fn with_db<T>(&mut self, query: impl Fn(&mut Db) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        self.ask(Check::Whole, query)
    }

    /// Runs a query. A damaged catalogue is set aside and rebuilt from the manifests, once; one that the disk does not take
    /// is rebuilt in memory.
    fn ask<T>(
        &mut self,
        check: Check,
        query: impl Fn(&mut Db) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        match self.try_with_db(check, &query) {
            Err(error) if db::is_moved(&error) => self.db = None,
            Err(error) => self.begin_anew(error)?,
            Ok(value) => return Ok(value),
        }
        self.refill()?;
        self.try_with_db(check, &query)
            .map_err(|error| StoreError::Catalogue { path: self.path.clone(), error })
    }

    fn try_with_db<T>(
        &mut self,
        check: Check,
        query: impl Fn(&mut Db) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        if !self.db.as_ref().is_some_and(Db::is_in_memory) {
            self.settle_down();
        }
        if self.db.as_ref().is_some_and(|db| !db.is_at(&self.path) || !db.is_checked(check)) {
            self.db = None;
        }
        if self.db.is_none() {
            self.db = Some(self.open_db(check)?);
        }
        self.db.as_mut().map_or_else(|| Err(rusqlite::Error::InvalidQuery), query)
    }

    /// Opens the catalogue; that of another member, if this disk does not take it.
    fn open_db(&mut self, check: Check) -> rusqlite::Result<Db> {
        let opened = open_on_member(&self.path, check);
        if opened.as_ref().err().is_none_or(|error| !db::is_the_disk(error)) {
            return opened;
        }
        for other in self.catalogues().into_iter().filter(|other| *other != self.path) {
            if let Ok(db) = open_on_member(&other, check) {
                self.path = other;
                return Ok(db);
            }
        }
        opened
    }

    /// Where it can be: on every member that is there.
    fn catalogues(&self) -> Vec<PathBuf> {
        let homes = self.homes();
        homes.iter().filter(|dirs| dirs.superblock().exists()).map(Dirs::catalogue).collect()
    }

    /// Stays where it is while that member is there; else the first one that is.
    fn settle_down(&mut self) {
        let there = self.catalogues();
        if !there.contains(&self.path)
            && let Some(first) =
                there.into_iter().next().or_else(|| self.homes().first().map(Dirs::catalogue))
        {
            self.path = first;
        }
    }

    /// Fills a new catalogue with every readable manifest; [`Catalogue::refresh`] reports
    /// unreadable ones.
    fn refill(&mut self) -> Result<(), StoreError> {
        let rows = self.rows_of_manifests()?;
        let result = match self.try_with_db(Check::Whole, |db| db.change(&rows, &[])) {
            Err(error) if db::is_the_disk(&error) && self.in_memory.is_none() => {
                self.keep_in_memory(&error)?;
                self.try_with_db(Check::Whole, |db| db.change(&rows, &[]))
            }
            result => result,
        };
        result.map_err(|error| StoreError::Catalogue { path: self.path.clone(), error })
    }

    /// A row for each readable manifest. In memory those that are still true are taken from the file that cannot be written.
    fn rows_of_manifests(&self) -> Result<Vec<CatalogueRow>, StoreError> {
        let mut known = if self.in_memory.is_some() { self.known_from_files() } else { HashMap::new() };
        let look = self.look_at_titles()?;
        let mut rows = Vec::new();
        for (&id, seen) in &look.titles {
            let Ok(stamp) = &seen.stamp else { continue };
            match known.remove(&id).filter(|row| row.stamp == *stamp) {
                Some(row) => rows.push(row),
                None => rows.extend(
                    find_manifest(&self.members, id).map(|(_, found)| CatalogueRow::new(found, *stamp)),
                ),
            }
        }
        rows.extend(known.into_values().filter(|row| !look.is_gone(row.placed)));
        Ok(rows)
    }
}

/// Opens or makes a catalogue beside the superblock of its member. Where that is missing the disk is not mounted, and a catalogue
/// would be made below the mount point.
fn open_on_member(path: &Path, check: Check) -> rusqlite::Result<Db> {
    if path.with_file_name(VOLUME_FILE).exists() { Db::open(path, check) } else { Err(db::no_member()) }
}

/// Without titles whose place others have taken: they are about to be removed.
fn not_replaced(mut rows: Vec<CatalogueRow>) -> Vec<CatalogueRow> {
    let replaced: HashSet<TitleId> = rows.iter().filter_map(|row| row.info.origin.replaces).collect();
    rows.retain(|CatalogueRow { info, .. }| {
        let parent = info.derived.map(|derived| derived.parent);
        !replaced.contains(&info.id) && parent.is_none_or(|parent| !replaced.contains(&parent))
    });
    rows
}

/// Adds the entries below one member's `titles`.
fn look_at_titles_of(
    slot: usize,
    dirs: &Dirs,
    found: &mut BTreeMap<TitleId, TitleDirectories>,
) -> Result<(), StoreError> {
    let dir = &dirs.titles;
    for entry in fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
        let entry = entry.map_err(StoreError::io("list", dir))?;
        let Some(id) = id_of_name(&entry.file_name()) else { continue };
        let path = dirs.manifest(id);
        let stamp = match fs::metadata(&path) {
            Ok(meta) => Ok(Stamp::of(&meta)),
            Err(_) if !dirs.title(id).exists() => continue, // removed while we looked
            Err(e) => Err(StoreError::io("look at", &path)(e)),
        };
        match found.entry(id) {
            Entry::Vacant(place) => {
                place.insert(TitleDirectories { stamp, on: MemberSet::of(slot as u16) });
            }
            Entry::Occupied(mut seen) => {
                let seen = seen.get_mut();
                seen.on.insert(slot as u16);
                if seen.stamp.is_err() {
                    seen.stamp = stamp;
                }
            }
        }
    }
    Ok(())
}

/// Reads the contents of a catalogue without changing it, for `fsck`.
pub(crate) fn look_at_catalogue(path: &Path) -> rusqlite::Result<Vec<(TitleInfo, PlacedOn)>> {
    Ok(Db::open_to_look(path)?.all()?.into_iter().map(|row| (row.info, row.placed)).collect())
}

/// Renames a catalogue that cannot be used, with SQLite's files beside it, so that a person can look at it. Only the
/// last one is kept.
fn set_aside(path: &Path) -> Result<(), StoreError> {
    for beside in ["", "-journal", "-wal", "-shm"] {
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
