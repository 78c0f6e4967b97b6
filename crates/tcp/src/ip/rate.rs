//! So many a second, and no more than a tenth of that at once.

use millrace_core::time::{Instant, NS_PER_S};

/// A bucket of tokens.
#[derive(Debug)]
pub(super) struct Rate {
    /// Nanoseconds that one costs.
    cost_ns: u64,
    /// The bucket holds what has come in since then, up to a tenth of a second.
    since: Instant,
}

/// What the bucket holds at most, in nanoseconds.
const DEPTH: u64 = NS_PER_S / 10;

impl Rate {
    /// `per_second` from 10 to 10^9.
    pub(super) const fn new(per_second: u32) -> Self {
        Self { cost_ns: NS_PER_S / per_second as u64, since: Instant(0) }
    }

    /// Whether one more may be.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let since = self.since.max(Instant(now.0.saturating_sub(DEPTH)));
        let is_free = now.ns_since(since) >= self.cost_ns;
        if is_free {
            self.since = since.plus_ns(self.cost_ns);
        }
        is_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_at_once_then_one_each_time_one_has_come_in() {
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
    fn a_clock_that_goes_back_grants_nothing() {
        let mut rate = Rate::new(10);
        assert!(rate.take(Instant(5 * NS_PER_S)));
        assert!(!rate.take(Instant(NS_PER_S)));
    }
}
