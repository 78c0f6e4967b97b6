//! Limits events to a number per second, and to a tenth of this number at once.

use millrace_core::time::{Instant, NS_PER_S};

/// Grants are spread evenly, except for those that fit the depth.
#[derive(Debug)]
pub(super) struct Rate {
    /// Nanoseconds from one to the next.
    cost_ns: u64,
    /// When everything that was granted will have had its time.
    until: Instant,
}

/// How far ahead of its time something may be granted, in nanoseconds.
const DEPTH: u64 = NS_PER_S / 10;

impl Rate {
    /// `per_second` from 10 to 10^9.
    pub(super) const fn new(per_second: u32) -> Self {
        Self { cost_ns: NS_PER_S / per_second as u64, until: Instant(0) }
    }

    /// Whether one more may be.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let until = self.until.max(now).plus_ns(self.cost_ns);
        let is_free = until.ns_since(now) <= DEPTH;
        if is_free {
            self.until = until;
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_take_allows_burst_of_a_tenth_then_steady_rate() {
        let mut rate = Rate::new(100);
        let start = Instant(NS_PER_S);
        assert_eq!((0..50).filter(|_| rate.take(start)).count(), 10);
        assert!(!rate.take(start.plus_ns(9_999_999)));
        assert!(rate.take(start.plus_ns(10_000_000)));
        assert!(!rate.take(start.plus_ns(10_000_001)));
        // A pause saves up no more than the depth.
        assert_eq!((0..50).filter(|_| rate.take(start.plus_ns(60 * NS_PER_S))).count(), 10);
    }

    #[test]
    fn rate_take_at_clock_start_allows_full_burst() {
        let mut rate = Rate::new(100);
        assert_eq!((0..50).filter(|_| rate.take(Instant(1))).count(), 10);
    }

    #[test]
    fn rate_take_with_clock_going_back_is_refused() {
        let mut rate = Rate::new(10);
        assert!(rate.take(Instant(5 * NS_PER_S)));
        assert!(!rate.take(Instant(NS_PER_S)));
    }
}
