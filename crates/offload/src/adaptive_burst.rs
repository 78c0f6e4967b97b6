//! Longer bursts when the core is busy.
//!
//! A datagram in a long burst costs the kernel less than one in a short burst (`millrace bench tx`: 1.0 us among 8 and
//! 0.7 us among 44 on veth), a short burst is kinder to the buffers between here and the viewer. So bursts are short as long as there is time to
//! spare, and grow as the core fills up: at the point where viewers would begin to wait for processor time, they get
//! their packets a few milliseconds earlier instead.

use millrace_core::time::Instant;

use crate::limits::BURST_LOOK_NS;

/// Busy share, in thousandths, up to which bursts keep their shortest length.
const CALM_PERMILLE: u64 = 250;
/// Busy share at which bursts reach their greatest length. The lead of bursts when wake-ups are
/// shared shrinks as the core fills up, and the two together stay within 20 ms.
const BUSY_PERMILLE: u64 = 800;

/// Chooses the length of bursts from the busy time of a loop.
#[derive(Clone, Copy, Debug)]
pub struct AdaptiveBurst {
    least_ns: u64,
    most_ns: u64,
    /// Busy share in thousandths: seven parts of its previous value, one part of the latest
    /// measurement.
    share_permille: u64,
    looked: Instant,
    busy_ns: u64,
}

impl AdaptiveBurst {
    /// Bursts between `least_ns` and `most_ns`; always `least_ns` if that is the greater of the two.
    pub fn new(least_ns: u64, most_ns: u64, now: Instant) -> Self {
        Self { least_ns, most_ns: most_ns.max(least_ns), share_permille: 0, looked: now, busy_ns: 0 }
    }

    /// Takes the total busy time of the loop once a turn; returns the length of bursts from now on
    /// if it is time to decide it again.
    pub fn look(&mut self, now: Instant, busy_ns: u64) -> Option<u64> {
        let passed_ns = now.ns_since(self.looked);
        if passed_ns < BURST_LOOK_NS || self.least_ns == self.most_ns {
            return None;
        }
        let share = (busy_ns.saturating_sub(self.busy_ns) * 1000 / passed_ns).min(1000);
        self.share_permille = (7 * self.share_permille + share) / 8;
        (self.looked, self.busy_ns) = (now, busy_ns);
        let above = self.share_permille.clamp(CALM_PERMILLE, BUSY_PERMILLE) - CALM_PERMILLE;
        Some(self.least_ns + (self.most_ns - self.least_ns) * above / (BUSY_PERMILLE - CALM_PERMILLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The length after `looks` looks at a loop that is busy for `permille` of the time.
    fn settled(adaptive_burst: &mut AdaptiveBurst, looks: u64, permille: u64) -> u64 {
        let (start, busy) = (adaptive_burst.looked, adaptive_burst.busy_ns);
        let mut last = 0;
        for n in 1..=looks {
            let at = start.plus_ns(n * BURST_LOOK_NS);
            last = adaptive_burst.look(at, busy + n * BURST_LOOK_NS * permille / 1000).expect("it is time");
        }
        last
    }

    #[test]
    fn bursts_grow_with_the_load_and_shrink_again() {
        let mut adaptive_burst = AdaptiveBurst::new(10 * MS, 18 * MS, Instant(0));
        assert_eq!(settled(&mut adaptive_burst, 100, 200), 10 * MS);
        let half = settled(&mut adaptive_burst, 100, 525);
        assert!((13 * MS..=15 * MS).contains(&half), "{half}");
        assert_eq!(settled(&mut adaptive_burst, 100, 950), 18 * MS);
        assert_eq!(settled(&mut adaptive_burst, 100, 100), 10 * MS);
    }

    #[test]
    fn adaptive_burst_after_single_busy_sample_is_unchanged() {
        let mut adaptive_burst = AdaptiveBurst::new(10 * MS, 18 * MS, Instant(0));
        settled(&mut adaptive_burst, 100, 100);
        assert_eq!(settled(&mut adaptive_burst, 1, 1000), 10 * MS);
    }

    #[test]
    fn between_looks_and_without_a_range_nothing_changes() {
        let mut adaptive_burst = AdaptiveBurst::new(10 * MS, 18 * MS, Instant(0));
        assert_eq!(adaptive_burst.look(Instant(BURST_LOOK_NS - 1), 1), None);
        let mut fixed = AdaptiveBurst::new(20 * MS, 18 * MS, Instant(0));
        assert_eq!(fixed.look(Instant(10 * BURST_LOOK_NS), 10 * BURST_LOOK_NS), None);
    }
}
