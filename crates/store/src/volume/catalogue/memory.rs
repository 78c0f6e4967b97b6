//! The catalogue of disks that take none: full ones, and those that may not be written to.
//!
//! It is kept in memory then, filled from the rows of the file that are still true and from the manifests of all other titles.
//! Looking at a store, playing from it and removing titles need no space on the disk.

use std::collections::HashMap;
use std::fmt;
use std::io;

use millrace_core::ids::TitleId;

use super::db::{self, CatalogueRow, Check, Db};
use super::{Catalogue, open_on_member, set_aside};
use crate::error::StoreError;

impl Catalogue {
    /// Why the catalogue is kept in memory, if it is.
    pub(crate) fn in_memory(&self) -> Option<&str> {
        self.in_memory.as_deref()
    }

    /// After `error`: sets a damaged catalogue aside, or goes on in memory where the disk is to blame.
    pub(super) fn begin_anew(&mut self, error: rusqlite::Error) -> Result<(), StoreError> {
        if self.in_memory.is_none() && db::is_the_disk(&error) && self.is_whole(&error) {
            return self.keep_in_memory(&error);
        }
        if !db::is_damage(&error, self.db.is_none()) {
            return Err(StoreError::Catalogue { path: self.path.clone(), error });
        }
        self.db = None;
        match set_aside(&self.path) {
            Err(StoreError::Io { error, .. }) if takes_no_change(&error) => self.keep_in_memory(&error),
            result => result,
        }
    }

    /// Whether the file is as good as it was, although the disk refused something: then it is not set aside.
    fn is_whole(&self, error: &rusqlite::Error) -> bool {
        !db::is_damage(error, self.db.is_none()) || Db::open_as_it_lies(&self.path).is_ok()
    }

    /// From now on in memory.
    pub(super) fn keep_in_memory(&mut self, why: &dyn fmt::Display) -> Result<(), StoreError> {
        let db = Db::in_memory().map_err(|error| StoreError::Catalogue { path: self.path.clone(), error })?;
        self.db = Some(db);
        self.in_memory = Some(format!(
            "{}: the catalogue cannot be written ({why}), so it is kept in memory; it is only a cache, no title is affected",
            self.path.display()
        ));
        Ok(())
    }

    /// Writes the file again, if it was kept in memory and the disk has space now.
    pub(crate) fn return_to_disk(&mut self) -> Result<(), StoreError> {
        if self.in_memory.is_none() {
            return Ok(());
        }
        let Ok(db) = open_on_member(&self.path, Check::Whole) else { return Ok(()) };
        (self.db, self.in_memory, self.seen) = (Some(db), None, None);
        self.refresh()
    }

    /// Returns the rows of the members' catalogue files, where these can be read.
    pub(super) fn known_from_files(&self) -> HashMap<TitleId, CatalogueRow> {
        let others = self.catalogues().into_iter().filter(|path| *path != self.path);
        let mut files = std::iter::once(self.path.clone()).chain(others);
        let rows = files.find_map(|path| Db::open_as_it_lies(&path).and_then(|mut db| db.all()).ok());
        rows.unwrap_or_default().into_iter().map(|row| (row.info.id, row)).collect()
    }
}

/// Whether no file can be changed there, by this user or by anybody.
fn takes_no_change(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), ReadOnlyFilesystem | StorageFull | QuotaExceeded | PermissionDenied)
}
