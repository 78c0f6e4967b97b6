//! The order in which a title's FEC packets leave, and the packets of the title they leave with:
//! the one place that knows it.
//!
//! A row of the title has `U` columns of `k` packets; each column has `m` parities. They leave while the packets of the row behind
//! it do, in `U` slots, one every `k` packets. The first parity, which other receivers know too, has a track of its own and leaves
//! column by column. The others are the second track. Parity `p` of a column leaves some slots before the first parity does, or,
//! where that would be too early, as many slots before the row's end:
//!
//! ```text
//!   k = 4, m = 2, U = 8        slot   0   1   2   3   4   5   6   7
//!   track 1, parity 0 of column       0   1   2   3   4   5   6   7
//!   track 2, parity 1 of column       2   3   4   5   6   7   0   1
//! ```
//!
//! A codeword survives `m` losses. Its packets of media lie `U` apart, so a burst must be kept from
//! taking a parity too many. The worst case is a burst over the end of a row: the last packets of a
//! column, and then its parities. Columns at the end of a unit are the last to lose media, so their
//! parities should come late; but each slot must carry some column. A distance of `U / k` slots
//! from one parity of a column to the next minimizes this loss: the parities are then as far apart
//! as packets of media. With more parities than packets, only `U / m` is possible.

use std::ops::Range;

/// The order of departure of FEC packets. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    data_units: u32,
    parity_units: u32,
    unit_packets: u32,
}

/// The position that an FEC packet protects, and when it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FecPlace {
    /// Row of the title.
    pub row: u32,
    /// Column of the row.
    pub column: u32,
    /// Which of the column's parities it is.
    pub parity: usize,
    /// Slot in which it leaves, counted from the title's first.
    pub slot: u32,
}

impl Spread {
    /// For rows of `k` data units and `m` parity units of `unit_packets` packets. A row without data, or with units of nothing, counts
    /// as if there was one.
    pub fn new(k: usize, m: usize, unit_packets: u32) -> Self {
        let narrow = |units: usize| u32::try_from(units).unwrap_or(u32::MAX);
        Self { data_units: narrow(k).max(1), parity_units: narrow(m), unit_packets: unit_packets.max(1) }
    }

    /// The parities that a track carries: the first is track 1, all others are track 2.
    pub fn parities(&self, track: u8) -> Range<usize> {
        let m = self.parity_units as usize;
        if track == 1 { 0..m.min(1) } else { 1..m.max(1) }
    }

    /// What packet `packet` of a track is.
    pub fn place(&self, track: u8, packet: u32) -> FecPlace {
        let parities = self.parities(track);
        let each = parities.len().max(1) as u32;
        let (slot, parity) = (packet / each, parities.start + (packet % each) as usize);
        FecPlace { row: slot / self.unit_packets, column: self.column(slot, parity), parity, slot }
    }

    /// Column of its row whose parity `parity` leaves in a slot.
    pub fn column(&self, slot: u32, parity: usize) -> u32 {
        (slot % self.unit_packets + self.lead(parity)) % self.unit_packets
    }

    /// Slot in which a parity of a column of a row leaves.
    pub fn slot(&self, row: u32, column: u32, parity: usize) -> u32 {
        let unit = self.unit_packets;
        let place = (column % unit + unit - self.lead(parity)) % unit;
        row.saturating_mul(unit).saturating_add(place)
    }

    /// The packet of the title with whose time a slot's FEC packets leave. It may lie behind the title's end.
    pub fn departs_with(&self, slot: u32) -> u64 {
        (u64::from(self.unit_packets) + u64::from(slot)) * u64::from(self.data_units)
    }

    /// First slot that leaves with packet `packet` of the title or one behind it.
    pub fn first_due(&self, packet: u32) -> u32 {
        packet.div_ceil(self.data_units).saturating_sub(self.unit_packets)
    }

    /// Returns how many slots before the first parity a parity of a column leaves: less than a
    /// unit.
    fn lead(&self, parity: usize) -> u32 {
        // A row in units: the title's packets of a column are one unit apart, and this many units
        // fit.
        let units = self.data_units.max(self.parity_units);
        // No two parities in one slot, as long as there are slots.
        let length = self.unit_packets.max(units);
        (parity as u32 * length).div_ceil(units) % self.unit_packets
    }
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;
