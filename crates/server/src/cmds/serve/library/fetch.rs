//! Fetches titles that viewers ask for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::seam::Clock;
use millrace_core::units::{ByteLen, HumanDuration};
use millrace_objects::{ObjectError, ObjectLibrary, TransferProgress};
use millrace_offload::clock::MonotonicClock;

use super::LibraryNode;
use super::space::NoRoom;
use crate::cmds::objects::ends_all;
use crate::library::remote::RemoteTitle;
use crate::limits::remote::LIBRARY_LOOK_EVERY;

impl LibraryNode {
    /// Fetches one title after the other until the server stops.
    pub(super) fn fetch_until(&self, stop: &Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            let Some(title) = self.remote.next_fetch(LIBRARY_LOOK_EVERY) else { continue };
            // Its titles are known, so it has been opened.
            let Some(library) = self.opened.get() else { continue };
            self.fetch(library, &title, stop);
        }
    }

    fn fetch(&self, library: &ObjectLibrary, title: &RemoteTitle, stop: &AtomicBool) {
        let (id, name) = (title.info().id, &title.info().name);
        if let Err(error) = self.parts.volume.can_take_titles() {
            return self.has_failed(title, error.to_string(), true);
        }
        let needed = self.bytes_needed(title);
        if let Err(why) = self.make_room(title, needed) {
            let is_repeated = why == NoRoom::InUse;
            return self.has_failed(title, format!("it takes {}: {why}", ByteLen(needed)), is_repeated);
        }
        tracing::info!("{name}: being fetched from the library, a viewer has asked for it");
        let began = MonotonicClock.now();
        let mut last = TransferProgress::default();
        let result = library.fetch_cached(&self.parts.volume, title.family(), &mut |progress| {
            let came = |progress: TransferProgress| progress.bytes_done - progress.bytes_left_before;
            let mut shared = self.lock();
            shared.counters.fetched_bytes += came(progress) - came(last);
            shared.counters.resumed_bytes += progress.bytes_left_before - last.bytes_left_before;
            drop(shared);
            last = progress;
            self.remote.progress(id, progress);
        });
        self.lock().reserved.remove(&id);
        match result {
            Ok(added) => {
                self.look_at_store();
                self.remote.fetched(id);
                if added.is_empty() {
                    return;
                }
                self.lock().counters.fetched += 1;
                let took =
                    HumanDuration(std::time::Duration::from_nanos(MonotonicClock.now().ns_since(began)));
                let bytes: u64 = added.iter().map(|info| info.bytes).sum();
                let left = match last.bytes_left_before {
                    0 => String::new(),
                    left => format!(", {} of it were here", ByteLen(left)),
                };
                tracing::info!("{name}: fetched in {took}, {}{left}", ByteLen(bytes));
            }
            // The part is kept for the next start.
            Err(ObjectError::Cancelled) if stop.load(Ordering::Relaxed) => {}
            Err(error) => self.fetch_failed(title, &error),
        }
    }

    /// If only time helps, the part that is here is kept; else it is removed.
    fn fetch_failed(&self, title: &RemoteTitle, error: &ObjectError) {
        let is_repeated = ends_all(error);
        if !is_repeated {
            for part in title.family() {
                let id = part.manifest.title.id;
                if let Err(error) = self.parts.volume.remove_interrupted_import(id) {
                    tracing::warn!("title {id}: a part that was fetched cannot be removed: {error}");
                }
            }
        }
        self.has_failed(title, error.to_string(), is_repeated);
    }

    fn has_failed(&self, title: &RemoteTitle, why: String, is_repeated: bool) {
        tracing::warn!("{}: cannot be fetched from the library: {why}", title.info().name);
        self.lock().counters.failed += 1;
        self.remote.failed(title.info().id, MonotonicClock.now(), why, is_repeated);
    }

    /// Brings the open titles in step with the store.
    pub(super) fn look_at_store(&self) {
        if let Err(error) = self.parts.open_titles.look(&self.parts.volume) {
            tracing::warn!("cannot read the store: {error}; keeping the previous list of titles");
        }
    }
}
