//! How fast repair and scrub may read and write: a bound that leaves the disks to the viewers.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};

use super::error::RepairError;
use crate::limits::volume::PACE_SLICE_NS;

/// The time and the only wait of repair and scrub, so that a test can count instead of waiting.
pub trait Timekeeper: Clock {
    /// Returns after about `ns` nanoseconds.
    fn wait_ns(&self, ns: u64);
}

/// Bytes a second, bounded over any stretch of time longer than [`PACE_SLICE_NS`]; and whether to go on at all.
pub(crate) struct RepairThrottle<'a> {
    time: &'a dyn Timekeeper,
    stop: &'a AtomicBool,
    /// 0: no bound.
    bytes_per_s: u64,
    /// The earliest time at which the bytes counted until now may have been moved.
    due: Instant,
}

impl<'a> RepairThrottle<'a> {
    /// From now on; `bytes_per_s` 0 means as fast as the disks can.
    pub(crate) fn new(time: &'a dyn Timekeeper, stop: &'a AtomicBool, bytes_per_s: u64) -> Self {
        Self { time, stop, bytes_per_s, due: time.now() }
    }

    /// `bytes` have been read or written: waits until they may have been.
    ///
    /// # Errors
    /// If the user wants to stop.
    pub(crate) fn moved(&mut self, bytes: u64) -> Result<(), RepairError> {
        self.check()?;
        // Also without a bound: the timekeeper sees by it that the work goes on.
        let now = self.time.now();
        if self.bytes_per_s == 0 || bytes == 0 {
            return Ok(());
        }
        let idle_since = Instant(now.0.saturating_sub(PACE_SLICE_NS));
        let cost = u128::from(bytes) * u128::from(NS_PER_S) / u128::from(self.bytes_per_s);
        self.due = self.due.max(idle_since).plus_ns(u64::try_from(cost).unwrap_or(u64::MAX));
        let mut left = self.due.ns_since(now);
        while left > 0 {
            // In slices, so that a user can stop without waiting for a slow bound.
            let slice = left.min(PACE_SLICE_NS);
            self.time.wait_ns(slice);
            self.check()?;
            left -= slice;
        }
        Ok(())
    }

    /// Whether the user wants to stop.
    pub(crate) fn check(&self) -> Result<(), RepairError> {
        if self.stop.load(Ordering::Relaxed) { Err(RepairError::Stopped) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    struct PaceTestClock(Cell<u64>);

    impl Clock for PaceTestClock {
        fn now(&self) -> Instant {
            Instant(self.0.get())
        }
    }

    impl Timekeeper for PaceTestClock {
        fn wait_ns(&self, ns: u64) {
            self.0.set(self.0.get() + ns);
        }
    }

    proptest! {
        #[test]
        fn never_faster_than_the_bound(rate in 1_000u64..1_000_000_000, steps in prop::collection::vec((1u64..2_000_000, 0u64..300_000_000), 1..40)) {
            let (time, stop) = (PaceTestClock(Cell::new(5)), AtomicBool::new(false));
            let mut pace = RepairThrottle::new(&time, &stop, rate);
            let (start, mut moved) = (time.now(), 0u128);
            for (bytes, idle_ns) in steps {
                time.wait_ns(idle_ns);
                pace.moved(bytes).unwrap();
                moved += u128::from(bytes);
                let spent = u128::from(time.now().ns_since(start) + PACE_SLICE_NS) * u128::from(rate) / u128::from(NS_PER_S);
                prop_assert!(moved <= spent + 40, "{moved} bytes, {spent} allowed");
            }
        }
    }

    #[test]
    fn pace_without_bound_never_waits_and_honours_stop() {
        let (time, stop) = (PaceTestClock(Cell::new(0)), AtomicBool::new(false));
        let mut pace = RepairThrottle::new(&time, &stop, 0);
        pace.moved(u64::MAX).unwrap();
        assert_eq!(time.now(), Instant(0));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(pace.moved(1), Err(RepairError::Stopped)));
    }
}
