//! Departures spread over the round trip.

use millrace_core::time::Instant;

use crate::limits::BURST_SEGMENTS;

/// How fast segments may leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// The window in bytes that is to leave within a round trip.
    pub(crate) cwnd: u32,
    /// Round-trip time in nanoseconds; 0: not known, nothing is spread.
    pub(crate) srtt_ns: u64,
    pub(crate) mss: u32,
    pub(crate) is_slow_start: bool,
}

impl Rate {
    /// How long `bytes` take, in nanoseconds.
    ///
    /// Twice the window in a round trip while it doubles, so that the spreading does not hold it back; a fifth more than the window
    /// afterwards, so that acknowledgments rather than the spreading set the rate (the factors of Linux).
    fn takes_ns(&self, bytes: u32) -> u64 {
        let fifths = if self.is_slow_start { 10 } else { 6 };
        u64::from(bytes) * self.srtt_ns * 5 / (u64::from(self.cwnd.max(1)) * fifths)
    }
}

/// When the next segment may leave.
#[derive(Debug)]
pub(crate) struct SegmentPacer {
    next: Instant,
}

impl SegmentPacer {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now }
    }

    /// The moment to wait for, if it is not now.
    pub(crate) fn wait(&self, now: Instant) -> Option<Instant> {
        (self.next > now).then_some(self.next)
    }

    /// A segment left.
    pub(crate) fn sent(&mut self, now: Instant, bytes: u32, rate: &Rate) {
        // Time that was not used is kept for a burst of ten segments, not longer.
        let burst_ns = rate.takes_ns(BURST_SEGMENTS.saturating_sub(1) * rate.mss);
        let earliest = Instant(now.0.saturating_sub(burst_ns));
        self.next = self.next.max(earliest).plus_ns(rate.takes_ns(bytes));
    }

    /// Nothing leaves before `until`.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
