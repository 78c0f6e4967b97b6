//! The maximum and minimum speed of uploads. The caller passes the time to both.

use std::time::Duration;

use millrace_core::time::Instant;

use crate::limits::{LEAST_UPLOAD_RATE, UPLOAD_BURST_BYTES};

/// The rate that all uploads have together.
#[derive(Debug)]
pub(super) struct UploadThrottle {
    bytes_per_s: u64,
    /// When the bytes already let through are over at that rate.
    free: Option<Instant>,
}

impl UploadThrottle {
    pub(super) fn new(bits_per_s: u64) -> Self {
        Self { bytes_per_s: (bits_per_s / 8).max(1), free: None }
    }

    /// Lets bytes through, and returns how long they must wait.
    pub(super) fn take(&mut self, now: Instant, bytes: usize) -> Duration {
        let burst = self.ns_of(UPLOAD_BURST_BYTES);
        // Time in which nothing came is good for a burst, no more.
        let from = self.free.map_or(now, |free| free.max(now));
        let free = from.plus_ns(self.ns_of(bytes as u64));
        self.free = Some(free);
        Duration::from_nanos(free.ns_since(now).saturating_sub(burst))
    }

    fn ns_of(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// How long to wait for a client: the bytes that it brings earn additional time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    most: Duration,
    left: Duration,
}

impl Stall {
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, left: most }
    }

    /// The longest that it is waited for now.
    pub(crate) fn left(&self) -> Duration {
        self.left
    }

    /// Records that bytes came after this much time.
    pub(crate) fn came(&mut self, after: Duration, bytes: usize) {
        let worth = Duration::from_nanos(bytes as u64 * 1_000_000_000 / LEAST_UPLOAD_RATE);
        self.left = (self.left.saturating_sub(after) + worth).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A client that waits as instructed gets the rate and a burst, and never less than the
        /// rate.
        #[test]
        fn pace_limits_to_rate_and_uses_it_fully(rate in 1_000_000u64..1 << 33, pieces in proptest::collection::vec((1usize..600_000, 0u64..50_000), 1..200)) {
            let mut pace = UploadThrottle::new(rate);
            let (mut now, mut sent, mut idle) = (Instant(0), 0u64, 0u64);
            for (bytes, pause_us) in pieces {
                now = now.plus_ns(pause_us * 1000);
                idle += pause_us * 1000;
                now = now.plus_ns(pace.take(now, bytes).as_nanos() as u64);
                sent += bytes as u64;
                let most = UPLOAD_BURST_BYTES + now.0 / 8 * rate / 1_000_000_000 + bytes as u64 + 1024;
                prop_assert!(sent <= most, "{sent} bytes in {} ns at {rate}", now.0);
            }
            let needed = (u128::from(sent) * 8_000_000_000 / u128::from(rate)) as u64;
            prop_assert!(now.0 <= needed + idle + 1_000_000, "{} ns for {needed}", now.0);
        }

        /// Of whoever brings less than the least rate an end is seen; whoever brings more is never sent away.
        #[test]
        fn stall_ends_uploads_below_minimum_rate_only(bytes in 1usize..100_000) {
            // So close to the rate it takes days.
            prop_assume!(!(16_000..LEAST_UPLOAD_RATE as usize).contains(&bytes));
            let every = Duration::from_secs(1);
            let mut stall = Stall::new(Duration::from_secs(30));
            let mut seconds = 0;
            while stall.left() > every && seconds < 100_000 {
                stall.came(every, bytes);
                seconds += 1;
            }
            let is_slow = (bytes as u64) < LEAST_UPLOAD_RATE;
            prop_assert_eq!(seconds < 100_000, is_slow, "{} bytes a second: {}", bytes, seconds);
        }
    }
}
