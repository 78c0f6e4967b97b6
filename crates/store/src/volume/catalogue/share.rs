//! Copies of the catalogue on the other members.
//!
//! A title that existed before the volume got its newest members is not stored on them. So that it
//! is known, and reported as lost, when only those members are left, each member's catalogue also
//! lists titles that are not on that member. Like the catalogue itself, a copy is never the truth:
//! a copy that cannot be written now is written when the volume is opened next.

use std::collections::HashMap;
use std::path::PathBuf;

use millrace_core::ids::TitleId;

use super::db::{CatalogueRow, Check};
use super::{Catalogue, CatalogueScan, open_on_member};
use crate::dirs::Dirs;

impl Catalogue {
    /// Brings the copies up to date, on members that lack a title or have one already.
    pub(super) fn share(&mut self, look: &CatalogueScan) {
        if self.members.len() == 1 {
            return;
        }
        let Ok(rows) = self.with_db(|db| db.all()) else { return };
        for (slot, path) in self.other_places() {
            if path.exists() || rows.iter().any(|row| row.placed.members <= slot) {
                // A disk that does not take it has its copy the next time.
                let _ = copy(&rows, look, &path);
            }
        }
    }

    /// Drops a title from the copies.
    pub(super) fn unshare(&self, id: TitleId) {
        for (_, path) in self.other_places().into_iter().filter(|(_, path)| path.exists()) {
            let _ = open_on_member(&path, Check::Whole).and_then(|mut db| db.change(&[], &[id])); // as above
        }
    }

    /// Where copies can be, with the slot of the member.
    fn other_places(&self) -> Vec<(usize, PathBuf)> {
        let place = |(slot, dirs): (usize, Dirs)| (slot, dirs.catalogue());
        self.usable().map(place).filter(|(_, path)| *path != self.path).collect()
    }
}

fn copy(rows: &[CatalogueRow], look: &CatalogueScan, path: &std::path::Path) -> rusqlite::Result<()> {
    let mut db = open_on_member(path, Check::Whole)?;
    let mut known: HashMap<_, _> =
        db.stamps()?.into_iter().map(|(id, stamp, placed)| (id, (stamp, placed))).collect();
    let is_new =
        |row: &&CatalogueRow| known.remove(&row.info.id).is_none_or(|seen| seen != (row.stamp, row.placed));
    let put: Vec<CatalogueRow> = rows.iter().filter(is_new).cloned().collect();
    // What only the copy has may be on members that are not there.
    let gone: Vec<TitleId> =
        known.into_iter().filter(|(_, (_, placed))| look.is_gone(*placed)).map(|(id, _)| id).collect();
    if put.is_empty() && gone.is_empty() {
        return Ok(());
    }
    db.change(&put, &gone)
}
