//! Extents that were given back and may be needed again: while a stream may ask for one, its title
//! stays open.
//!
//! The arena has a word for each place of an open title: the title, and the number of its
//! [`Recall`]s. Closing a title checks this word, and taking a recall changes it in the same step,
//! so a title is either closed or can be fetched again, never both.

use std::sync::Arc;

use super::{ExtentArena, ExtentContent, Lease};
use crate::ids::TitleRef;
use crate::limits::MAX_OPEN_TITLES;
use crate::sync::{AtomicU64, Ordering};

/// A title is open in this place.
const OPEN: u64 = 1 << 31;
const COUNT: u64 = OPEN - 1;
/// The model of [`crate::sync`] pays for each word.
const PLACES: usize = if cfg!(millrace_loom) { 1 } else { MAX_OPEN_TITLES };

/// The words of an arena.
pub(super) struct OpenTitles(Box<[AtomicU64]>);

impl OpenTitles {
    pub(super) fn new() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    fn word(&self, title: TitleRef) -> &AtomicU64 {
        &self.0[title.0 as usize % PLACES]
    }

    /// Changes the count of a title that is open; whether it is.
    fn change(&self, title: TitleRef, change: impl Fn(u64) -> Option<u64>) -> bool {
        let update = |word: u64| if word & !COUNT == opened(title) { change(word) } else { None };
        self.word(title).fetch_update(Ordering::AcqRel, Ordering::Acquire, update).is_ok()
    }
}

fn opened(title: TitleRef) -> u64 {
    u64::from(title.0) << 32 | OPEN
}

impl ExtentArena {
    /// Allows extents of this title to be fetched again from now on.
    pub fn open_title(&self, title: TitleRef) {
        let is_open = self.titles.change(title, Some);
        if !is_open {
            self.titles.word(title).store(opened(title), Ordering::Release);
        }
    }

    /// Ends the fetching again of this title's extents from now on; `false`, and no change: one may
    /// still be needed.
    pub fn close_title(&self, title: TitleRef) -> bool {
        let word = self.titles.word(title);
        match word.compare_exchange(opened(title), 0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(word) => word & !COUNT != opened(title),
        }
    }

    /// Closes the title even if one of its extents may still be needed.
    pub fn forget_title(&self, title: TitleRef) {
        self.titles.change(title, |_| Some(0));
    }
}

/// The content of an extent that was given back. The title stays open for it until this value is
/// dropped.
#[derive(Debug)]
pub struct Recall {
    arena: Arc<ExtentArena>,
    content: ExtentContent,
}

impl Recall {
    /// Returns the content of the extent.
    pub fn content(&self) -> ExtentContent {
        self.content
    }
}

impl Drop for Recall {
    fn drop(&mut self) {
        // A title that was forgotten has no count any more.
        self.arena.titles.change(self.content.title, |word| (word & COUNT > 0).then(|| word - 1));
    }
}

impl Lease {
    /// Returns the means to fetch the extent again when the lease is dropped; `None`: its title is
    /// closed, and there is nothing but the lease.
    pub fn recall(&self) -> Option<Recall> {
        let content = self.content();
        let is_open =
            self.arena.titles.change(content.title, |word| (word & COUNT < COUNT).then(|| word + 1));
        is_open.then(|| Recall { arena: Arc::clone(&self.arena), content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::WireLayout;
    use crate::pool::HeapRegion;

    const A: TitleRef = TitleRef(3);
    /// The next one in the same place.
    const B: TitleRef = TitleRef(3 + MAX_OPEN_TITLES as u32);

    fn lease(title: TitleRef) -> (Arc<ExtentArena>, Lease) {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        arena.fill(0).unwrap().publish();
        let layout = WireLayout::new(1316).unwrap();
        let content = ExtentContent {
            title,
            number: 2,
            first_packet: 5,
            packets: 2,
            last_packet_bytes: 188,
            layout,
            spare: 0,
        };
        let lease = arena.lend(0, content).unwrap();
        (arena, lease)
    }

    #[test]
    fn close_title_with_live_recalls_returns_false() {
        let (arena, lease) = lease(A);
        assert!(lease.recall().is_none(), "it was never open");
        arena.open_title(A);
        let (first, second) = (lease.recall().unwrap(), lease.recall().unwrap());
        assert_eq!(first.content(), lease.content());
        drop(lease);
        assert_eq!(arena.leases(0), 0, "a recall is no lease");
        // Opened once more, nothing is forgotten.
        arena.open_title(A);
        assert!(!arena.close_title(A));
        drop(first);
        assert!(!arena.close_title(A));
        drop(second);
        assert!(arena.close_title(A));
        assert!(arena.close_title(A), "it is");
    }

    #[test]
    fn recall_of_forgotten_title_returns_none() {
        let (arena, lease) = lease(A);
        arena.open_title(A);
        let late = lease.recall().unwrap();
        arena.forget_title(A);
        assert!(lease.recall().is_none());
        // Its place is another title's.
        arena.open_title(B);
        assert!(lease.recall().is_none());
        drop(late);
        arena.forget_title(A);
        assert!(arena.close_title(A), "nobody needs it");
        assert!(arena.close_title(B), "and nobody has needed this");
    }
}
