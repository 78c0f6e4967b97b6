//! What adding a title has to know of all others: which there are, their names and their sources.
//!
//! This is read once from an index of the catalogue that has a checksum per entry, and kept in step
//! with the catalogue from then on. The names below `titles` show which titles exist; only the
//! manifest of a title without an entry is read. Another title therefore costs the same beside ten
//! and, except for listing the names, beside ten thousand.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;

use millrace_core::ids::TitleId;

use super::Catalogue;
use super::db::{CatalogueRow, Check};
use crate::dirs::id_of_name;
use crate::error::StoreError;
use crate::format::crc32c;
use crate::format::derived::Derived;
use crate::format::derived::MARK;
use crate::format::title_info::{SourceIdentity, TitleInfo};
use crate::member_set::MemberSet;
use crate::volume::manifest_io::find_manifest;
use crate::volume::name::{self, FreeName};

/// One title in brief, as the index has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Brief {
    pub(super) id: TitleId,
    pub(super) name: String,
    /// Members that it lies on.
    pub(super) members: usize,
    /// [`source_key`] of the file it was made from.
    pub(super) source_key: i64,
}

impl Brief {
    pub(super) fn of(row: &CatalogueRow) -> Self {
        let CatalogueRow { info, placed, .. } = row;
        let (name, source_key) = (info.name.clone(), source_key(&info.source));
        Self { id: info.id, name, members: placed.members, source_key }
    }

    /// Checksum of the entry. The name is last, so that no two entries have the same bytes.
    pub(super) fn crc(&self) -> u32 {
        let mut bytes = Vec::with_capacity(self.name.len() + 32);
        bytes.extend_from_slice(&self.id.0);
        bytes.extend_from_slice(&(self.members as u64).to_le_bytes());
        bytes.extend_from_slice(&self.source_key.to_le_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        crc32c(&bytes)
    }
}

/// 64 bits of a hash of a source: equal sources have equal keys.
fn source_key(source: &SourceIdentity) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&source.bytes.to_le_bytes());
    hasher.update(&source.modified_unix_ns.to_le_bytes());
    hasher.update(source.path.as_os_str().as_bytes());
    let mut key = [0; 8];
    hasher.finalize_xof().fill(&mut key);
    i64::from_le_bytes(key)
}

/// All titles of a catalogue in brief.
#[derive(Debug, Default)]
pub(super) struct Names {
    titles: HashMap<TitleId, Brief>,
    by_name: BTreeSet<(String, TitleId)>,
    by_source: BTreeSet<(i64, TitleId)>,
}

impl Names {
    /// Adds or replaces a title.
    pub(super) fn insert(&mut self, brief: Brief) {
        self.remove(brief.id);
        self.by_name.insert((brief.name.clone(), brief.id));
        self.by_source.insert((brief.source_key, brief.id));
        self.titles.insert(brief.id, brief);
    }

    pub(super) fn remove(&mut self, id: TitleId) {
        if let Some(Brief { name, source_key, .. }) = self.titles.remove(&id) {
            self.by_name.remove(&(name, id));
            self.by_source.remove(&(source_key, id));
        }
    }

    /// Names that begin so, in order, with their titles.
    fn beginning(&self, with: &str) -> impl Iterator<Item = &(String, TitleId)> {
        let from = (with.to_owned(), TitleId([0; 16]));
        self.by_name.range(from..).take_while(move |(name, _)| name.starts_with(with))
    }

    fn has(&self, name: &str) -> bool {
        let from = (name.to_owned(), TitleId([0; 16]));
        self.by_name.range(from..).next().is_some_and(|(next, _)| next == name)
    }

    /// Titles whose source may be the one with this key, in the order of their ids.
    fn of_source(&self, key: i64) -> Vec<TitleId> {
        let range = (key, TitleId([0; 16]))..=(key, TitleId([0xff; 16]));
        self.by_source.range(range).map(|&(_, id)| id).collect()
    }

    /// Returns the ids that are in `there` but not here, and those that are here but not in
    /// `there`, with their number of members. No id is in `there` twice.
    fn compare(&self, there: &[TitleId]) -> (Vec<TitleId>, Vec<(TitleId, usize)>) {
        let new: Vec<TitleId> = there.iter().filter(|id| !self.titles.contains_key(id)).copied().collect();
        if there.len() - new.len() == self.titles.len() {
            return (new, Vec::new());
        }
        let there: HashSet<TitleId> = there.iter().copied().collect();
        let unseen = self.titles.values().filter(|brief| !there.contains(&brief.id));
        (new, unseen.map(|brief| (brief.id, brief.members)).collect())
    }
}

impl Catalogue {
    /// Brings the catalogue in line with the names below `titles`. Only titles that it does not
    /// have are examined; other changes of the known titles, and unreadable titles, are left to
    /// [`Catalogue::refresh`].
    pub(crate) fn catch_up(&mut self) -> Result<(), StoreError> {
        let (there, listed) = self.ids_of_titles()?;
        let (new, unseen) = self.with_names(|names| names.compare(&there))?;
        let is_looked_at = |members| !(listed & MemberSet::below(members)).is_empty();
        let gone: Vec<TitleId> =
            unseen.into_iter().filter(|&(_, members)| is_looked_at(members)).map(|(id, _)| id).collect();
        let row = |id: TitleId| {
            let stamp = self.stamp_of(id)?;
            find_manifest(&self.members, id).ok().map(|(_, manifest)| CatalogueRow::new(manifest, stamp))
        };
        let put: Vec<CatalogueRow> = new.into_iter().filter_map(row).collect();
        if put.is_empty() && gone.is_empty() {
            return Ok(());
        }
        self.ask(Check::Entries, |db| db.change(&put, &gone))
    }

    /// The first of `wishes` that is free, as a name: no other title gets it, as long as the store's lock is
    /// held.
    pub(crate) fn free_name(&mut self, wishes: &[String]) -> Result<FreeName, StoreError> {
        self.catch_up()?;
        self.with_names(|names| name::unique(wishes, |name| names.has(name)))
    }

    /// Titles that are there although others have taken their places.
    pub(crate) fn replaced(&mut self) -> Result<Vec<TitleId>, StoreError> {
        let same_names = self.with_names(|names| {
            let pairs = names.by_name.iter().zip(names.by_name.iter().skip(1));
            pairs.filter(|(a, b)| a.0 == b.0).flat_map(|(a, b)| [a.1, b.1]).collect::<Vec<_>>()
        })?;
        let mut replaced = Vec::new();
        for &id in &same_names {
            let old = self.by_id(id)?.and_then(|info| info.origin.replaces);
            replaced.extend(old.filter(|old| same_names.contains(old)));
        }
        Ok(replaced)
    }

    /// Returns the name of a title derived as described by `derived`. No other title can take it:
    /// it is the parent's name with a suffix.
    ///
    /// # Errors
    /// If there is no such parent, it is derived itself, or there is such a title already; of a rendition also if the parent has no name
    /// beside it.
    pub(crate) fn name_of_derived(&mut self, id: TitleId, derived: Derived) -> Result<String, StoreError> {
        self.catch_up()?;
        let parent = self.by_id(derived.parent)?.ok_or(StoreError::NoTitle { id: derived.parent })?;
        let bad = |what: String| StoreError::BadTitle { id, what };
        if parent.derived.is_some() {
            return Err(bad(format!("{} is a derived title itself", parent.name)));
        }
        if let Some(name) = derived.rendition() {
            match parent.rendition {
                None => return Err(bad(format!("{} has no name among its renditions", parent.name))),
                Some(own) if own == name => {
                    return Err(bad(format!("{} is called {name} itself", parent.name)));
                }
                Some(_) => {}
            }
        }
        self.free_derived_name(id, derived, &parent.name)
    }

    /// The name of a title derived from one that is called `parent`.
    ///
    /// # Errors
    /// If there is such a title already.
    pub(crate) fn free_derived_name(
        &mut self,
        id: TitleId,
        derived: Derived,
        parent: &str,
    ) -> Result<String, StoreError> {
        let name = derived.name(parent);
        if self.with_names(|names| names.has(&name))? {
            return Err(StoreError::BadTitle { id, what: format!("{name} is already there") });
        }
        Ok(name)
    }

    /// Returns the titles derived from `parent`, by name. `name` is the parent's former name if it
    /// is gone.
    pub(crate) fn derived_of(
        &mut self,
        parent: TitleId,
        name: Option<String>,
    ) -> Result<Vec<TitleInfo>, StoreError> {
        if !self.nothing_new() {
            self.catch_up()?;
        }
        let name = match name {
            Some(name) => Some(name),
            None => self.by_id(parent)?.map(|info| info.name),
        };
        let prefix = name.map(|name| format!("{name}{MARK}")).unwrap_or_default();
        let found = self.with_names(|names| {
            let named = names.beginning(&prefix).filter(|(name, _)| name.contains(MARK));
            named.map(|&(_, id)| id).collect::<Vec<_>>()
        })?;
        let mut titles = Vec::new();
        for id in found {
            let of_it = |info: &TitleInfo| info.derived.is_some_and(|derived| derived.parent == parent);
            titles.extend(self.by_id(id)?.filter(of_it));
        }
        Ok(titles)
    }

    /// Derived titles and their parents, where no title has the parent's name.
    pub(crate) fn orphans(&mut self) -> Result<Vec<(TitleId, TitleId)>, StoreError> {
        let found = self.with_names(|names| {
            let is_orphan = |(name, _): &&(String, TitleId)| {
                name.split_once(MARK).is_some_and(|(parent, _)| !names.has(parent))
            };
            names.by_name.iter().filter(is_orphan).map(|&(_, id)| id).collect::<Vec<_>>()
        })?;
        let mut orphans = Vec::new();
        for id in found {
            let derived = self.by_id(id)?.and_then(|info| info.derived);
            orphans.extend(derived.map(|derived| (id, derived.parent)));
        }
        Ok(orphans)
    }

    /// The title made from this file.
    pub(crate) fn by_source(&mut self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        let known = self.known_by_source(source)?;
        if known.is_some() || self.nothing_new() {
            return Ok(known);
        }
        self.catch_up()?;
        self.known_by_source(source)
    }

    /// Titles whose source has the length or the path of this one, of those that the catalogue knew
    /// when it last looked. The caller has just looked up a name, and listing thousands of directories
    /// again gives no certainty: another process may add the same file a moment later.
    pub(crate) fn near_source(&mut self, source: &SourceIdentity) -> Result<Vec<TitleInfo>, StoreError> {
        let rows = self.with_db(|db| db.of_source(source.bytes, &source.path))?;
        Ok(rows.into_iter().map(|row| row.info).collect())
    }

    fn known_by_source(&mut self, source: &SourceIdentity) -> Result<Option<TitleInfo>, StoreError> {
        let key = source_key(source);
        for id in self.with_names(|names| names.of_source(key))? {
            let found = self.by_id(id)?.filter(|info| info.source == *source && info.derived.is_none());
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn with_names<T>(&mut self, look: impl Fn(&Names) -> T) -> Result<T, StoreError> {
        self.ask(Check::Entries, |db| db.names().map(&look))
    }

    /// The titles whose directories are on any member, each once, and the members whose could be listed.
    fn ids_of_titles(&self) -> Result<(Vec<TitleId>, MemberSet), StoreError> {
        let (mut ids, mut listed, mut failed) = (Vec::new(), MemberSet::EMPTY, None);
        for (slot, dirs) in self.usable() {
            let id_of = |entry: fs::DirEntry| id_of_name(&entry.file_name());
            let entries = fs::read_dir(&dirs.titles);
            let found: io::Result<Vec<Option<TitleId>>> =
                entries.and_then(|entries| entries.map(|entry| entry.map(id_of)).collect());
            match found {
                Ok(found) => {
                    ids.extend(found.into_iter().flatten());
                    listed.insert(slot as u16);
                }
                Err(error) => failed = Some(StoreError::io("list", &dirs.titles)(error)),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        match failed {
            Some(error) if listed.is_empty() => Err(error),
            None if listed.is_empty() => Err(self.nothing_there()),
            _ => Ok((ids, listed)),
        }
    }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
