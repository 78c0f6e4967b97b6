//! The real monotonic clock, and its distance from the wall clock.

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

fn ns(t: Timespec) -> u64 {
    (t.tv_sec.max(0) as u64).saturating_mul(NS_PER_S).saturating_add(t.tv_nsec as u64)
}

impl Clock for MonotonicClock {
    fn now(&self) -> Instant {
        Instant(ns(clock_gettime(ClockId::Monotonic)))
    }
}

/// Nanoseconds to add to the monotonic clock to get Unix time: for the NTP timestamps of sender reports. Taken once;
/// steps of the wall clock afterwards do not reach the viewers.
pub fn wall_offset_ns() -> u64 {
    ns(clock_gettime(ClockId::Realtime)).saturating_sub(ns(clock_gettime(ClockId::Monotonic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_and_wall_agree_with_std() {
        let a = MonotonicClock.now();
        let unix =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let b = MonotonicClock.now();
        assert!(b >= a);
        assert!(unix.abs_diff(wall_offset_ns() + b.0) < NS_PER_S);
    }
}
