//! Titles for other speeds that are made because viewers ask for them: which is made next, which are in use, and which go when their space is
//! needed. See `docs/design/0032-made-on-use.md`.
//!
//! ```text
//!   control thread ── wish, begin_use, end_use ──► OnUse ◄── next, later, refuse, claim ── thread that makes titles
//!                                                    └── unparks it
//! ```
//!
//! | module | decides, with the time passed in |
//! | --- | --- |
//! | [`wishes`] | which title is made next, and which one is not tried again |
//! | [`uses`] | which titles are in use, and when each was last |
//! | [`space`] | which titles go |
//! | [`pressure`] | whether others need the machine |

pub mod pressure;
pub mod space;
pub mod uses;
pub mod wishes;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use millrace_core::ids::TitleId;
use millrace_core::scale::Scale;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::{MonotonicClock, wall_offset_ns};

use self::uses::Uses;
use self::wishes::{Wish, WishOutcome, Wishes};

/// What control thread and making thread share. Each holds it for as long as it takes to look into a table.
#[derive(Default)]
pub struct OnUse {
    state: Mutex<DemandState>,
    /// The thread that makes titles, once it runs.
    maker: OnceLock<Thread>,
}

/// The shared state.
#[derive(Default)]
pub struct DemandState {
    /// What viewers have asked for.
    pub wishes: Wishes,
    /// The titles they watch.
    pub uses: Uses,
    /// Wishes that were new.
    pub heard: u64,
    /// Wishes that were dropped because there were too many.
    pub dropped: u64,
}

/// Nanoseconds since 1970 by the clock that runs on.
pub fn unix_now() -> Instant {
    MonotonicClock.now().plus_ns(wall_offset_ns())
}

impl OnUse {
    /// Locked for a look.
    pub fn lock(&self) -> MutexGuard<'_, DemandState> {
        // Tables without relations that a panic could leave half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread makes titles: it is unparked when there is something to be made.
    pub fn work_here(&self) {
        let _ = self.maker.set(std::thread::current());
    }

    /// A viewer would have `parent` at this speed.
    pub fn wish(&self, parent: TitleId, scale: Scale) {
        let mut state = self.lock();
        let asked = state.wishes.ask(MonotonicClock.now(), Wish { parent, scale });
        match asked {
            WishOutcome::Known | WishOutcome::Refused => return,
            WishOutcome::New => state.heard += 1,
            WishOutcome::Crowded => {
                state.heard += 1;
                state.dropped += 1;
            }
            WishOutcome::Dropped => {
                state.dropped += 1;
                return;
            }
        }
        drop(state);
        if let Some(maker) = self.maker.get() {
            maker.unpark();
        }
    }

    /// One more viewer of a title that was made on use; `false`: it is being removed.
    pub fn begin_use(&self, id: TitleId) -> bool {
        self.lock().uses.begin(id, unix_now())
    }

    /// One viewer less of a title, however it was made.
    pub fn end_use(&self, id: TitleId) {
        self.lock().uses.end(id, unix_now());
    }
}
