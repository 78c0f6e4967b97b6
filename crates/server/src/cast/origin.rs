//! Times of the splice, and of our clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millrace_core::time::{Instant, NS_PER_S};
use millrace_media::ts_packet::SYSTEM_HZ;

/// The moment in our time that stands for one of the splice's.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaceOrigin {
    pub(super) at: Instant,
    pub(super) time: u64,
}

/// Nanoseconds of a time of the splice.
pub(super) fn ns_of(ticks: u64) -> u64 {
    u64::try_from(u128::from(ticks) * u128::from(NS_PER_S) / u128::from(SYSTEM_HZ)).unwrap_or(u64::MAX)
}

/// The time at which the splice's time 0 is due, in nanoseconds of the clock. The thread that reads ahead learns from it when its packets are due.
#[derive(Clone, Debug)]
pub struct SharedOrigin(Arc<AtomicI64>);

impl Default for SharedOrigin {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(Self::NONE)))
    }
}

impl SharedOrigin {
    const NONE: i64 = i64::MIN;

    pub(super) fn set(&self, origin: PaceOrigin) {
        // Alone: nothing else is read by it.
        self.0
            .store(origin.at.0.cast_signed().saturating_sub_unsigned(ns_of(origin.time)), Ordering::Relaxed);
    }

    /// Nanoseconds from `now` until the packet of this time (27 MHz) is due; 0 before anything was sent.
    pub fn ns_until(&self, now: Instant, time: u64) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            Self::NONE => 0,
            zero_ns => {
                let due_ns = zero_ns.saturating_add_unsigned(ns_of(time));
                u64::try_from(due_ns.saturating_sub_unsigned(now.0)).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_is_due_at_its_distance_from_the_origin() {
        let shared = SharedOrigin::default();
        assert_eq!(shared.ns_until(Instant(5), SYSTEM_HZ), 0, "before anything was sent");
        // Ten seconds of the splice have gone by after one second of our clock.
        shared.set(PaceOrigin { at: Instant(NS_PER_S), time: 10 * SYSTEM_HZ });
        assert_eq!(shared.ns_until(Instant(NS_PER_S), 11 * SYSTEM_HZ), NS_PER_S);
        assert_eq!(shared.ns_until(Instant(NS_PER_S / 2), 10 * SYSTEM_HZ), NS_PER_S / 2);
        assert_eq!(shared.ns_until(Instant(3 * NS_PER_S), 11 * SYSTEM_HZ), 0, "it is late");
    }
}
