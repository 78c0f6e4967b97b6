//! Who sleeps and has to be woken: the protocol of a doorbell, without the descriptor that wakes.
//!
//! ```text
//!   sleeper: announce() ─► last look for work ─► sleep, or awake()
//!   ringer:  publish work ─► must_wake()? ─► wake
//! ```
//!
//! Either the sleeper's last look sees the work, or the ringer sees the announcement; never neither. While the sleeper is awake a
//! ring costs one load.

use crate::sync::{AtomicBool, Ordering, fence};

/// Whether the owner is asleep, or about to be.
#[derive(Debug, Default)]
pub struct SleepFlag {
    asleep: AtomicBool,
}

impl SleepFlag {
    /// The owner says that it is about to sleep. It looks once more for work after this and before it sleeps.
    #[inline]
    pub fn announce(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The owner found work after all, or woke.
    #[inline]
    pub fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether the caller, who has published work, has to wake the owner; of several callers one.
    #[inline]
    #[must_use = "if it says so the owner sleeps until it is woken"]
    pub fn must_wake(&self) -> bool {
        // Pairs with the fence in announce.
        fence(Ordering::SeqCst);
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }

    /// Whether it has announced that it sleeps, and nobody has woken it.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}
