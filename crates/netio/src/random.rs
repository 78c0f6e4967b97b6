//! Random numbers that are the same for the same seed on every machine.

/// Parts of a million: the unit of all probabilities here.
pub(crate) const MILLION: u64 = 1_000_000;

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit` (> 0), by multiplication: the bias is below 2^-24 for the limits used here.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// True with the given probability; draws nothing for 0, so that a plan without faults costs nothing.
    pub(crate) fn hits(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(MILLION) < u64::from(ppm)
    }
}
