//! The bins of lateness: log-linear, the same arithmetic as in the program.

/// Nanoseconds are counted in units of `1 << UNIT_BITS`: a shift instead of a division, 1.024 us.
pub(super) const UNIT_BITS: u32 = 10;
/// Values below `1 << LINEAR_BITS` units have a bin each; each octave above has as many bins.
pub(super) const LINEAR_BITS: u32 = 6;
/// Values have at most this number of bits of units: 68 s.
pub(super) const VALUE_BITS: u32 = 26;
/// Bins of the histogram.
pub(super) const BINS: usize = ((VALUE_BITS - LINEAR_BITS + 1) << LINEAR_BITS) as usize;

/// The bin of a lateness.
pub(super) fn bin_of(lateness_ns: u64) -> usize {
    let units = (lateness_ns >> UNIT_BITS).min((1 << VALUE_BITS) - 1);
    let bits = u64::BITS - units.leading_zeros();
    let shift = bits.saturating_sub(LINEAR_BITS + 1);
    ((u64::from(shift) << LINEAR_BITS) + (units >> shift)) as usize
}

/// Smallest lateness of a bin, in nanoseconds.
fn lower_edge_ns(bin: usize) -> u64 {
    let bin = bin as u64;
    let shift = (bin >> LINEAR_BITS).saturating_sub(1);
    ((bin - (shift << LINEAR_BITS)) << shift) << UNIT_BITS
}

/// Lower edge in microseconds and count of the bins that are not empty.
pub(super) fn edges(bins: &[u64]) -> Vec<(u64, u64)> {
    let filled = bins.iter().enumerate().filter(|(_, count)| **count > 0);
    filled.map(|(bin, &count)| (lower_edge_ns(bin) / 1000, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_and_bins_agree_and_bins_are_narrow() {
        for bin in 0..BINS {
            let edge = lower_edge_ns(bin);
            assert_eq!(bin_of(edge), bin);
            assert!(edge == 0 || bin_of(edge - 1) == bin - 1, "bin {bin}");
            let width = lower_edge_ns(bin + 1) - edge;
            assert!(width <= 1024 || width * 100 <= edge * 2, "bin {bin}: {width} ns from {edge} ns");
        }
    }

    #[test]
    fn bin_of_one_hour_is_last_bin() {
        assert!(bin_of(60_000_000_000) < BINS - 1);
        assert_eq!(bin_of(3_600_000_000_000), BINS - 1);
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    #[test]
    fn edges_list_only_nonempty_bins() {
        let mut bins = vec![0; BINS];
        bins[0] = 3;
        bins[bin_of(1_000_000)] = 2;
        let edges = edges(&bins);
        assert_eq!(edges[0], (0, 3));
        assert_eq!((edges[1].1, edges.len()), (2, 2));
        assert!((980..=1000).contains(&edges[1].0), "{edges:?}");
    }
}
