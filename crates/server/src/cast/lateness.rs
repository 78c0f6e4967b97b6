//! How late datagrams left, in buckets whose bounds are an eighth of their value apart.

/// Buckets of each power of two, and their bits.
const PER_OCTAVE: u64 = 8;
const OCTAVE_BITS: u32 = 3;

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct LatenessBuckets {
    counts: Box<[u64; 64 * PER_OCTAVE as usize]>,
    max_ns: u64,
}

impl Default for LatenessBuckets {
    fn default() -> Self {
        Self { counts: Box::new([0; 64 * PER_OCTAVE as usize]), max_ns: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PER_OCTAVE {
        return ns as usize;
    }
    let octave = ns.ilog2() - OCTAVE_BITS;
    (u64::from(octave) * PER_OCTAVE + (ns >> octave)) as usize
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PER_OCTAVE {
        return bucket;
    }
    let octave = bucket / PER_OCTAVE - 1;
    // The bound of the last bucket is 2^64.
    ((bucket - octave * PER_OCTAVE + 1) << octave).wrapping_sub(1)
}

impl LatenessBuckets {
    /// Counts a datagram.
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    /// The latest one.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// This share of all, in thousandths, was at most as late; 0 if nothing was counted.
    pub fn at_permille(&self, permille: u64) -> u64 {
        let total: u64 = self.counts.iter().sum();
        let rank = (total * permille).div_ceil(1000);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            total > 0 && seen >= rank
        });
        found.map_or(0, |bucket| upper(bucket).min(self.max_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_an_eighth() {
        let mut buckets = LatenessBuckets::default();
        assert_eq!(buckets.at_permille(990), 0);
        (1..=1000).for_each(|us| buckets.record(us * 1000));
        for (permille, ns) in [(500, 500_000), (990, 990_000), (1000, 1_000_000)] {
            let found = buckets.at_permille(permille);
            assert!((ns..=ns + ns / 8).contains(&found), "{permille}: {found}");
        }
        assert_eq!(buckets.max_ns(), 1_000_000);
    }

    #[test]
    fn buckets_cover_all_values_in_order() {
        for ns in [0, 1, 7, 8, 15, 16, 17, 31, 1000, u64::from(u32::MAX), u64::MAX] {
            let at = bucket(ns);
            assert!(upper(at) >= ns && (at == 0 || upper(at - 1) < ns), "{ns}: {at}");
        }
    }
}
