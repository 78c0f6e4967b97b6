//! The random draws of a load: shares, choices and times, each viewer's from a generator of its
//! own.

use std::time::Duration;

use millrace_core::random::SplitMix;

/// A generator.
#[derive(Clone, Debug)]
pub(super) struct Rng(SplitMix);

impl Rng {
    /// The generator number `number` of `seed`. Neighbouring numbers have nothing in common.
    pub(super) fn new(seed: u64, number: u64) -> Self {
        Self(SplitMix::numbered(seed, number))
    }

    /// From 0 up to, not including, 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 up to, not including, `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    /// A time whose mean is `mean`, as between events that do not know of each other.
    pub(super) fn exponential(&mut self, mean: Duration) -> Duration {
        // 1 - unit is never 0, so the logarithm is finite: at most 37 times the mean.
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rng_same_seed_repeats_and_other_seed_differs() {
        let take = |seed, number| {
            let mut rng = Rng::new(seed, number);
            [rng.0.next(), rng.0.next(), rng.0.next()]
        };
        assert_eq!(take(1, 7), take(1, 7));
        assert_ne!(take(1, 7), take(1, 8));
        assert_ne!(take(1, 7), take(2, 7));
        assert_ne!(take(1, 0)[0], take(0, 1)[0]);
    }

    #[test]
    fn means_are_what_they_should_be() {
        let mut rng = Rng::new(42, 0);
        let count = 100_000;
        let unit: f64 = (0..count).map(|_| rng.unit()).sum::<f64>() / f64::from(count);
        assert!((unit - 0.5).abs() < 0.005, "{unit}");
        let mean: f64 =
            (0..count).map(|_| rng.exponential(Duration::from_secs(8)).as_secs_f64()).sum::<f64>()
                / f64::from(count);
        assert!((mean - 8.0).abs() < 0.2, "{mean}");
        let mut seen = [0u32; 5];
        (0..count).for_each(|_| seen[rng.below(5)] += 1);
        assert!(seen.iter().all(|n| (19_000..21_000).contains(n)), "{seen:?}");
    }
}
