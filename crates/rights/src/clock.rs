//! The time, for callers that do not have it: the only file here that reads a clock.

use millrace_core::time::{Instant, NS_PER_S};
use rustix::time::{ClockId, clock_gettime};

/// A moment on both clocks: one that never jumps, for waits, and one shared with others, for
/// expiry. All callers of one [`Gate`](crate::Gate) take them from `CLOCK_MONOTONIC` and
/// `CLOCK_REALTIME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Of the monotonic clock.
    pub mono: Instant,
    /// Seconds since 1970.
    pub unix_s: u64,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        let mono = clock_gettime(ClockId::Monotonic);
        let ns = (mono.tv_sec.max(0) as u64).saturating_mul(NS_PER_S).saturating_add(mono.tv_nsec as u64);
        Self { mono: Instant(ns), unix_s: clock_gettime(ClockId::Realtime).tv_sec.max(0) as u64 }
    }
}
