//! The repair capacity that a viewer itself needs to make do with an extent that has holes.

use std::ops::Range;

use crate::member_set::PositionSet;
use crate::stripes::StripeLayout;

/// The missing symbols of a codeword.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    /// Data symbols.
    pub(super) data: usize,
    /// The first parity.
    pub(super) first_parity: bool,
    /// Parity symbols, the first among them.
    pub(super) parity: usize,
}

impl Missing {
    /// Returns the symbols missing from the codewords of stripe `stripe` without its units on
    /// these positions. Units beyond the end of the media are zeros and never missing.
    pub(super) fn of_stripe(stripes: &StripeLayout, stripe: u32, positions: PositionSet) -> Self {
        let (k, m) = (stripes.k(), stripes.m());
        let gone = |unit: usize| positions.contains(stripes.position_of(stripe, unit) as u16);
        Self {
            data: (0..k).filter(|&unit| gone(unit) && stripes.media_in_unit(stripe, unit) > 0).count(),
            first_parity: m > 0 && gone(k),
            parity: (k..k + m).filter(|&unit| gone(unit)).count(),
        }
    }

    /// Returns the repair that a viewer must be capable of: none (0), one packet by XOR (1), or
    /// with all `m` parities. `None`: the remaining parities do not suffice.
    pub(super) fn demands(self, m: usize) -> Option<u8> {
        match self.data {
            0 => Some(0),
            1 if m > 0 && !self.first_parity => Some(1),
            data if data + self.parity <= m => u8::try_from(m).ok(),
            _ => None,
        }
    }
}

/// Returns the repair capacity required of a viewer that receives these stripes without the units
/// on these positions.
pub(super) fn demanded(stripes: &StripeLayout, touched: &Range<u32>, positions: PositionSet) -> Option<u8> {
    // The same units are missing every n stripes; the last stripe may have fewer.
    let last = touched.end.saturating_sub(1);
    let first = touched.start..touched.end.min(touched.start + stripes.members() as u32);
    first
        .chain([last])
        .map(|stripe| Missing::of_stripe(stripes, stripe, positions).demands(stripes.m()))
        .try_fold(0, |most, demand| Some(most.max(demand?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::superblock::Geometry;

    #[test]
    fn xor_repairs_one_packet_if_the_first_parity_is_there() {
        let missing = |data, first_parity, parity| Missing { data, first_parity, parity };
        assert_eq!(missing(0, true, 2).demands(2), Some(0), "all media is there");
        assert_eq!(missing(1, false, 0).demands(1), Some(1));
        assert_eq!(missing(1, false, 3).demands(4), Some(1));
        assert_eq!(missing(1, true, 1).demands(1), None);
        assert_eq!(missing(1, true, 1).demands(2), Some(2), "the other parity has to do");
        assert_eq!(missing(2, false, 2).demands(4), Some(4));
        assert_eq!(missing(3, false, 2).demands(4), None);
        assert_eq!(missing(1, false, 0).demands(0), None);
    }

    #[test]
    fn demanded_with_one_of_three_members_lost_is_two() {
        let stripes =
            StripeLayout::new(&Geometry { k: 4, m: 2, unit_packets: 4, members: 3 }, 1316 * 16 * 7).unwrap();
        for position in 0..3 {
            let gone = PositionSet::of(position);
            let mut demands: Vec<_> =
                (0..3).map(|stripe| Missing::of_stripe(&stripes, stripe, gone).demands(2).unwrap()).collect();
            demands.sort_unstable();
            // Two data units; a data unit and the first parity; a data unit and the second.
            assert_eq!(demands, [1, 2, 2]);
            assert_eq!(demanded(&stripes, &(0..7), gone), Some(2));
        }
        assert_eq!(demanded(&stripes, &(0..7), PositionSet::EMPTY), Some(0));
        assert_eq!(demanded(&stripes, &(0..7), PositionSet::from([0, 1])), None);
    }
}
