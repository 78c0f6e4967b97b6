//! Who sleeps and has to be woken: the protocol of a doorbell, without the descriptor that wakes.
//!
//! ```text
//!   sleeper: announce() ─► last look for work ─► sleep, or awake()
//!   ringer:  publish work ─► must_wake()? ─► wake
//! ```
//!
//! Either the sleeper's last look sees the work, or the ringer sees the announcement; never neither. While the sleeper is awake a
//! ring costs one load.

use std::fmt;

use crate::shared::Words;
use crate::sync::{AtomicU64, Ordering, fence};

/// Whether the owner is asleep, or about to be. Kept in a word of memory, which may be memory that
/// two processes share.
pub struct SleepFlag {
    words: Words,
    at: usize,
}

impl Default for SleepFlag {
    fn default() -> Self {
        Self { words: Words::new(1), at: 0 }
    }
}

impl fmt::Debug for SleepFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepFlag").field("asleep", &self.is_asleep()).finish_non_exhaustive()
    }
}

impl SleepFlag {
    /// The flag at word `at` of `words`, which is 0 as long as the owner is awake; `None` if it does not lie in the memory.
    pub fn new(words: &Words, at: usize) -> Option<Self> {
        (at < words.count()).then(|| Self { words: words.clone(), at })
    }

    #[inline]
    fn asleep(&self) -> &AtomicU64 {
        &self.words.words()[self.at]
    }

    /// Announces that the owner is about to sleep. It looks once more for work after this and
    /// before it sleeps.
    #[inline]
    pub fn announce(&self) {
        self.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner found work after all, or woke.
    #[inline]
    pub fn awake(&self) {
        self.asleep().store(0, Ordering::Relaxed);
    }

    /// Whether the caller, which has published work, has to wake the owner; true for one of several
    /// callers.
    #[inline]
    #[must_use = "if it says so the owner sleeps until it is woken"]
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in announce.
        fence(Ordering::SeqCst);
        let asleep = self.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }

    /// Whether it has announced that it sleeps, and has not been woken.
    pub fn is_asleep(&self) -> bool {
        self.asleep().load(Ordering::Relaxed) != 0
    }
}
