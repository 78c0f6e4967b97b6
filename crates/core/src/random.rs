//! Random numbers that are the same for the same seed on every machine.

/// Parts of a million: the unit of all probabilities here.
pub const MILLION: u64 = 1_000_000;

/// 2^64 divided by the golden ratio: the step of the state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads the bits of a number over all of them, one to one: the output function of [`SplitMix`].
pub const fn mix(z: u64) -> u64 {
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): eight bytes of state.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The generator number `number` of `seed`. Neighbouring numbers have nothing in common.
    pub const fn numbered(seed: u64, number: u64) -> Self {
        Self(mix(seed.wrapping_add(STEP)) ^ mix(number.wrapping_mul(STEP).wrapping_add(1)))
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // it never ends: an iterator would only add an Option
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `limit` (> 0), by multiplication: the bias is below 2^-24 for limits up to 2^40.
    pub const fn below(&mut self, limit: u64) -> u64 {
        ((self.next() as u128 * limit as u128) >> 64) as u64
    }

    /// True with the given probability; draws nothing for 0, so that a plan without faults costs nothing.
    pub const fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(MILLION) < ppm as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_matches_published_test_vectors() {
        let mut random = SplitMix(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(expected.map(|_| random.next()), expected);
    }

    #[test]
    fn numbers_stay_below_their_limit_and_chances_are_kept() {
        let mut random = SplitMix(7);
        assert!((0..10_000).all(|_| random.below(10) < 10));
        assert_eq!((0..10_000).filter(|_| random.hits(1_000_000)).count(), 10_000);
        let before = random.0;
        assert!(!random.hits(0) && random.0 == before);
    }
}
