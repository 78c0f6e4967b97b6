//! Derived titles that are made because viewers request them, and removed when their space is
//! needed: the volume's knowledge of them beyond its knowledge of all titles. The policy (which
//! component makes and removes them, and when) is elsewhere.
//!
//! When one was used last is the modification time of its index: a date that costs no write of its own format, that is copied with the
//! directory, and that no check looks at.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use millrace_core::ids::TitleId;

use super::manifest_io::find_manifest;
use super::resize;
use super::state::Volume;
use crate::blocking::Timeout;
use crate::dirs::Dirs;
use crate::error::StoreError;
use crate::format::manifest::INDEX_FILE;
use crate::limits::{DISK_RESERVE_BYTES, DISK_RESERVE_PARTS};

/// Returns the space that must stay free on a disk of `disk_bytes` bytes.
pub fn reserve(disk_bytes: u64) -> u64 {
    DISK_RESERVE_BYTES.min(disk_bytes / DISK_RESERVE_PARTS)
}

impl Volume {
    /// Whether titles can be added now.
    ///
    /// # Errors
    /// Why not: a member is missing, not complete, or read-only.
    pub fn can_take_titles(&self) -> Result<(), StoreError> {
        self.inner.all_members("adding a title").map(drop)
    }

    /// Keeps a derived title that was made on use.
    ///
    /// # Errors
    /// If there is no such title, or a member cannot be written.
    pub fn keep(&self, id: TitleId) -> Result<(), StoreError> {
        resize::keep(&self.inner, id)
    }

    /// Removes a title if it was made on use. Returns `false` if it was not, or if a request to
    /// keep it has arrived meanwhile.
    ///
    /// # Errors
    /// As [`Volume::remove`].
    pub fn remove_made_on_use(&self, id: TitleId) -> Result<bool, StoreError> {
        self.remove_one(id, |_| {
            let (_, manifest) = find_manifest(&self.inner.members, id)?;
            Ok(manifest.title.derived.is_some_and(|derived| derived.on_use))
        })
    }

    /// Bytes that a title takes on all members together.
    ///
    /// # Errors
    /// If its manifest cannot be read.
    pub fn stored_bytes(&self, id: TitleId) -> Result<u64, StoreError> {
        let (_, manifest) = find_manifest(&self.inner.members, id)?;
        let positions = 0..manifest.placement.members.len();
        Ok(positions.flat_map(|position| manifest.files_on(position)).map(|file| file.bytes).sum())
    }

    /// Returns the maximum number of bytes that `media_bytes` of media take on all members
    /// together: with parity, sums and times, in `packet_sizes` packet sizes.
    pub fn bytes_to_store(&self, media_bytes: u64, packet_sizes: usize) -> u64 {
        let geometry = self.inner.members.geometry();
        let (k, m) = (u64::from(geometry.k.max(1)), u64::from(geometry.m));
        // 12 bytes per packet and some for parity, 2 per TS packet, and a fixed part; records of
        // small packets take most.
        let records = (media_bytes / 32).saturating_mul(packet_sizes.max(1) as u64).saturating_add(32 << 10);
        let units = media_bytes.saturating_add(media_bytes.saturating_mul(m) / k);
        units.saturating_add(records.saturating_mul(u64::from(geometry.members.max(1))))
    }

    /// Returns the bytes that each present member has free beyond the reserve on its disk.
    ///
    /// # Errors
    /// If one does not answer, or cannot say.
    pub fn room(&self) -> Result<Vec<u64>, StoreError> {
        let members = &self.inner.members;
        let ask = |slot| {
            let stat = |dir: &Path| rustix::fs::statvfs(dir).map_err(|error| (dir.to_owned(), error));
            let stat = members.ask(slot, Timeout::Work, stat)?;
            let stat = stat.map_err(|(dir, error)| StoreError::io("look at", &dir)(error.into()))?;
            let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
            Ok(bytes(stat.f_bavail).saturating_sub(reserve(bytes(stat.f_blocks))))
        };
        members.usable().into_iter().map(ask).collect()
    }

    /// An empty file without a name, on the member with the most room. Its space is free again when
    /// it is closed, or when the program ends in any way.
    ///
    /// # Errors
    /// If no member answers, or it cannot make a file.
    pub fn spool_file(&self) -> Result<File, StoreError> {
        let members = &self.inner.members;
        let rooms = self.room()?;
        let roomiest = members.usable().into_iter().zip(rooms).max_by_key(|(_, room)| *room);
        let (slot, _) = roomiest.ok_or_else(|| StoreError::TimedOut { path: members.dir(0) })?;
        let make = |dir: &Path| {
            let tmp = Dirs::new(dir).tmp;
            tempfile::tempfile_in(&tmp).map_err(StoreError::io("create a file in", &tmp))
        };
        members.ask(slot, Timeout::Work, make)?
    }

    /// Writes down when a title was used last. Where that cannot be done the date stays: it only decides which title goes first.
    pub fn note_use(&self, id: TitleId, at: SystemTime) {
        for slot in self.inner.members.usable() {
            let note = move |dir: &Path| {
                let path = Dirs::new(dir).title(id).join(INDEX_FILE);
                File::open(path).and_then(|file| file.set_modified(at))
            };
            if let Ok(Ok(())) = self.inner.members.ask(slot, Timeout::Work, note) {
                return;
            }
        }
    }

    /// When a title was used last, or made; `None` if that cannot be read.
    pub fn last_use(&self, id: TitleId) -> Option<SystemTime> {
        let members = &self.inner.members;
        let dates = members.usable().into_iter().filter_map(|slot| {
            let date = move |dir: &Path| {
                std::fs::metadata(Dirs::new(dir).title(id).join(INDEX_FILE)).and_then(|data| data.modified())
            };
            members.ask(slot, Timeout::Work, date).ok()?.ok()
        });
        // Only one of them is written to.
        dates.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserve_is_a_twentieth_of_disk_up_to_one_gibibyte() {
        assert_eq!((reserve(200 << 20), reserve(8 << 40)), (10 << 20, 1 << 30));
    }
}
