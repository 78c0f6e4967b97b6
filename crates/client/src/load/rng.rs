//! Random numbers that a seed repeats: SplitMix64 (Steele, Lea and Flood, 2014), which needs eight bytes a viewer.

use std::time::Duration;

/// A generator.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

/// 2^64 divided by the golden ratio: the step of the state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The generator number `number` of `seed`. Neighbouring numbers have nothing in common.
    pub(super) fn new(seed: u64, number: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)) ^ mix(number.wrapping_mul(STEP).wrapping_add(1)))
    }

    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// From 0 up to, not including, 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 up to, not including, `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
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
    fn the_same_seed_gives_the_same_numbers_and_others_give_others() {
        let take = |seed, number| {
            let mut rng = Rng::new(seed, number);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
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
