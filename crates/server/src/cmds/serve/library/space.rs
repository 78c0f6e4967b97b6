//! The space of copies: which go when others need it. Titles that were added to the store never do, and none that is being watched.

use std::sync::PoisonError;
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;
use millrace_core::units::ByteLen;
use millrace_store::StoreError;

use super::LibraryNode;
use crate::library::on_use::space::{MadeTitle, NoSpace, to_evict};
use crate::library::remote::RemoteTitle;

/// Why there is no room for a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    /// It is larger than all copies may be together.
    #[error("more than all copies may take; raise --library-cache")]
    TooLarge,
    /// What could go is being watched.
    #[error("all copies that could be removed for it are being watched")]
    InUse,
    /// A member is nearly full.
    #[error("the disks of the store are nearly full; free some space there")]
    Disk,
}

impl LibraryNode {
    /// Bytes that a title takes on all members at most, with those derived from it.
    pub(super) fn bytes_needed(&self, title: &RemoteTitle) -> u64 {
        let of = |info: &millrace_store::volume::TitleInfo| {
            self.parts.volume.bytes_to_store(info.bytes, info.packet_sizes.len())
        };
        title.family().iter().map(|part| of(&part.manifest.title)).fold(0, u64::saturating_add)
    }

    /// Bytes of a copy, with titles derived from it.
    fn bytes_of(&self, id: TitleId) -> u64 {
        if let Some(bytes) = self.lock().bytes.get(&id) {
            return *bytes;
        }
        let family = self.parts.open_titles.family_of(id);
        let sizes = family.iter().map(|(id, _)| self.parts.volume.stored_bytes(*id).unwrap_or(0));
        let bytes = sizes.fold(0, u64::saturating_add);
        if bytes > 0 {
            self.lock().bytes.insert(id, bytes);
        }
        bytes
    }

    /// Bytes of all copies.
    pub(super) fn copies_bytes(&self) -> u64 {
        let cached = self.parts.open_titles.cached();
        cached.iter().map(|info| self.bytes_of(info.id)).fold(0, u64::saturating_add)
    }

    /// The copies, and what running fetches will take.
    fn kept(&self) -> Vec<MadeTitle> {
        let unix = |at: SystemTime| at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let (watched, mut kept) = (self.watched(), Vec::new());
        for info in self.parts.open_titles.cached() {
            let (id, family) = (info.id, self.parts.open_titles.family_of(info.id));
            let written = self.parts.volume.last_use(id).map_or(Instant(0), |at| Instant(unix(at)));
            let by_segments =
                watched.as_ref().is_none_or(|watched| family.iter().any(|(_, name)| watched.contains(name)));
            let (last, is_in_use) = self.remote.with_uses(|uses| {
                let last = family.iter().filter_map(|(id, _)| uses.last(*id)).max();
                (last, family.iter().any(|(id, _)| uses.has_viewers(*id)))
            });
            kept.push(MadeTitle {
                id,
                bytes: self.bytes_of(id),
                last_use: last.unwrap_or_default().max(written),
                is_in_use: is_in_use || by_segments,
            });
        }
        let reserved = |(&id, &bytes)| MadeTitle { id, bytes, last_use: Instant(0), is_in_use: true };
        kept.extend(self.lock().reserved.iter().map(reserved));
        kept
    }

    /// Removes copies until `needed` more bytes fit, in the space and on the members, and reserves them.
    pub(super) fn make_room(&self, title: &RemoteTitle, needed: u64) -> Result<(), NoRoom> {
        let _one = self.eviction.lock().unwrap_or_else(PoisonError::into_inner);
        let space = self.lock().space;
        let gone = to_evict(&self.kept(), space, needed).map_err(|why| match why {
            NoSpace::TooLarge => NoRoom::TooLarge,
            NoSpace::InUse => NoRoom::InUse,
        })?;
        for id in gone {
            if !self.evict(id) {
                return Err(NoRoom::InUse);
            }
        }
        // The part that an interrupted fetch has left has its place already.
        let parts = title.family().iter().map(|part| part.manifest.title.id);
        let left: u64 = parts.map(|id| self.parts.volume.interrupted_import_bytes(id)).sum();
        loop {
            let room = self.parts.volume.room().unwrap_or_default();
            let each = needed.saturating_sub(left).div_ceil(room.len().max(1) as u64);
            if !room.is_empty() && room.iter().all(|room| *room >= each) {
                break;
            }
            let idle = self.kept().into_iter().filter(|title| !title.is_in_use);
            let oldest = idle.min_by_key(|title| title.last_use).ok_or(NoRoom::Disk)?;
            if !self.evict(oldest.id) {
                return Err(NoRoom::Disk);
            }
        }
        self.lock().reserved.insert(title.info().id, needed);
        Ok(())
    }

    fn evict(&self, id: TitleId) -> bool {
        let name = self.parts.open_titles.name_of(id).unwrap_or_default();
        let bytes = self.bytes_of(id);
        if !self.remove_copy(id) {
            return false;
        }
        let mut shared = self.lock();
        shared.counters.evicted += 1;
        shared.counters.evicted_bytes += bytes;
        drop(shared);
        tracing::info!("{name}: its copy is removed, its {} are needed for others", ByteLen(bytes));
        true
    }

    /// Removes a copy and the titles derived from it, unless one of them is being watched; returns whether it is gone.
    pub(super) fn remove_copy(&self, id: TitleId) -> bool {
        let family = self.parts.open_titles.family_of(id);
        let Some(watched) = self.watched() else { return false };
        if family.iter().any(|(_, name)| watched.contains(name)) {
            return false;
        }
        // From here on no viewer gets any of them.
        let is_free = self.remote.with_uses(|uses| {
            let is_free = !family.iter().any(|(id, _)| uses.has_viewers(*id));
            is_free && family.iter().all(|(id, _)| uses.claim(*id))
        });
        let removed = if is_free { self.parts.volume.remove_cached(id) } else { Ok(false) };
        let is_gone = matches!(removed, Ok(true) | Err(StoreError::NoTitle { .. }));
        if let Err(error) = removed.as_ref()
            && !is_gone
        {
            tracing::warn!("title {id}: its copy cannot be removed: {error}");
        }
        if is_free {
            self.look_at_store();
            // It may be fetched again under this id.
            self.remote.with_uses(|uses| family.iter().for_each(|(id, _)| uses.release(*id)));
        }
        if is_gone {
            self.lock().bytes.remove(&id);
            family.iter().for_each(|(id, _)| self.parts.closer.removed(*id));
        }
        is_gone
    }
}
