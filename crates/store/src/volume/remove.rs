//! Removes titles, and the titles derived from them.

use millrace_core::ids::TitleId;

use super::catalogue::Catalogue;
use super::lock::StoreLock;
use super::members_io::{self, enough};
use super::state::{Volume, VolumeInner};
use super::{manifest_io, recover};
use crate::dirs::{Dirs, remove_tree};
use crate::error::StoreError;
use crate::format::title_info::TitleInfo;

impl Volume {
    /// Removes a title, readable or not. A viewer that has it open can go on reading.
    ///
    /// The catalogue's row goes first, then one rename makes the title invisible, then its files are deleted. After a
    /// crash in between the title is either still there or gone; the rest is done at the next open.
    /// With several members the renames are durable on all of them before anything is deleted; a member that is missing is
    /// declared stale before, so that it does not bring the title back.
    ///
    /// Its derived titles are removed after it: by then no title can be derived from it any more,
    /// and derived titles that a crash leaves have no parent, which the next open detects.
    pub fn remove(&self, id: TitleId) -> Result<(), StoreError> {
        self.remove_if(id, |_| Ok(true)).map(drop)
    }

    /// Removes a title, and those derived from it, if it is a copy that a server fetched for its viewers. Returns whether it was.
    ///
    /// # Errors
    /// As [`Volume::remove`].
    pub fn remove_cached(&self, id: TitleId) -> Result<bool, StoreError> {
        self.remove_if(id, |_| {
            let (_, manifest) = manifest_io::find_manifest(&self.inner.members, id)?;
            Ok(manifest.title.origin.cached.is_some())
        })
    }

    fn remove_if(
        &self,
        id: TitleId,
        is_due: impl FnOnce(&[Dirs]) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let named = self.inner.with_catalogue(move |catalogue| catalogue.by_id(id)).ok().flatten();
        if !self.remove_one(id, is_due)? {
            return Ok(false);
        }
        let name = named.map(|info| info.name);
        // The title is gone whatever becomes of these.
        let derived = self.inner.with_catalogue(move |catalogue| catalogue.derived_of(id, name));
        let derived = derived.unwrap_or_default();
        derived.iter().try_for_each(|info| self.remove_if_there(info.id, |_| Ok(true)))?;
        Ok(true)
    }

    /// Completes interrupted removals of titles that others have replaced.
    pub(super) fn finish_replacements(&self) -> Result<(), StoreError> {
        for old in self.inner.with_catalogue(Catalogue::replaced)? {
            for info in self.derived_of(old)? {
                self.remove_if_there(info.id, |_| Ok(true))?;
            }
            self.remove_if_there(old, |_| Ok(true))?;
        }
        Ok(())
    }

    /// Removes a title if it exists and `is_due` returns `true` for the members' directories under
    /// the lock.
    pub(super) fn remove_if_there(
        &self,
        id: TitleId,
        is_due: impl FnOnce(&[Dirs]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        match self.remove_one(id, is_due).map(drop) {
            Err(StoreError::NoTitle { .. }) => Ok(()),
            removed => removed,
        }
    }

    /// Removes a title if `is_due` returns `true` for the members' directories under the lock, when
    /// no other process can change the volume. Returns whether it did.
    pub(super) fn remove_one(
        &self,
        id: TitleId,
        is_due: impl FnOnce(&[Dirs]) -> Result<bool, StoreError>,
    ) -> Result<bool, StoreError> {
        let VolumeInner { members, disk, .. } = &*self.inner;
        members.refresh();
        enough(&self.inner.dir, members)?;
        self.inner.writable("removing a title")?;
        self.inner.tidy()?;
        let (lock, usable) = StoreLock::take_all(members, &|slot| self.inner.dirs(slot))?;
        if usable.iter().all(|dirs| !dirs.title(id).is_dir()) {
            return Err(StoreError::NoTitle { id });
        }
        if !is_due(&usable)? {
            return Ok(false);
        }
        hide(&self.inner, id, &lock)?;
        drop(lock);
        usable.iter().try_for_each(|dirs| remove_tree(disk, &dirs.removed(id)))?;
        // On a disk that was full there may be space for the catalogue now; if not, it is brought up to date at the next open.
        let _ = self.inner.with_catalogue(Catalogue::return_to_disk);
        self.forget_damaged(&[id]);
        Ok(true)
    }
}

/// Makes a title invisible, durably. Returns the members that may have something left to delete.
fn hide(inner: &VolumeInner, id: TitleId, lock: &StoreLock) -> Result<Vec<Dirs>, StoreError> {
    let VolumeInner { members, disk, .. } = inner;
    members_io::leave_missing_behind(members, disk, lock, manifest_io::lies_on(members, id))?;
    // Were the row still there when the title is gone, a refresh would drop it: an error here changes nothing.
    let _ = inner.with_catalogue(move |catalogue| catalogue.delete(id));
    recover::finish_removal(members, disk, id, lock)
}

/// Makes a replaced title invisible, after all titles derived from it: as long as it is there
/// itself, the next open detects that the removal is incomplete. Returns the directories to delete.
pub(super) fn hide_with_derived(
    inner: &VolumeInner,
    old: &TitleInfo,
    lock: &StoreLock,
) -> Result<Vec<(Dirs, TitleId)>, StoreError> {
    let (id, name) = (old.id, old.name.clone());
    let derived = inner.with_catalogue(move |catalogue| catalogue.derived_of(id, Some(name)))?;
    let mut left = Vec::new();
    for id in derived.iter().map(|info| info.id).chain([id]) {
        left.extend(hide(inner, id, lock)?.into_iter().map(|dirs| (dirs, id)));
    }
    Ok(left)
}
