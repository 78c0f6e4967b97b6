//! Where the units of a title's stripes lie: the one place that does this arithmetic.
//!
//! A stripe is `k` data units and `m` parity units; a unit is `U` packets of the default size. Data unit `u` of stripe `r` holds
//! packets `(r k + u) U` onwards of the title; beyond the title's end everything counts as zero. Codeword `j` of a stripe is packet
//! `j` of each of its units.
//!
//! A title lies on `n` members, and `k + m` is a multiple of `n`: each member has `c = (k + m) / n` units of each stripe. Unit
//! `u` (parity `p` is unit `k + p`) of stripe `r` lies on position `(u + r) mod n`, so parity goes round. A member has its data
//! units in one file and its parity units in another, both in order of stripe, then unit:
//!
//! ```text
//!   n = 3, k = 4, m = 2        position 0      position 1      position 2
//!   stripe 0                      d0  d3          d1  p0          d2  p1
//!   stripe 1                      d2  p1          d0  d3          d1  p0
//!   stripe 2                      d1  p0          d2  p1          d0  d3
//! ```
//!
//! A member's part of any run of stripes is one range of each of its files. With one member this
//! range is the title itself.

use std::ops::Range;

use millrace_core::fec::Spread;
use millrace_core::limits::{
    DEFAULT_PACKET_BYTES, MAX_DATA_UNITS, MAX_FEC_MATRIX_PACKETS, MAX_PARITY_UNITS, MAX_TITLE_PACKETS,
    MAX_UNIT_PACKETS,
};
use millrace_core::packet::WireLayout;
use millrace_core::units::Count;

use crate::limits::MAX_MEMBERS;

/// Fewest data units in a stripe that ST 2022-1 takes (D is 4 to 20).
const MIN_FEC_DATA_UNITS: u16 = 4;
/// Most data units in a stripe that it takes.
const MAX_FEC_DATA_UNITS: u16 = 20;
/// Data units in a stripe of a volume with one member, whose parity is for the network only: an eighth more on the disk.
const ALONE_DATA_UNITS: u16 = 8;

/// How the stripes of a volume are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Data units in a stripe.
    pub k: u16,
    /// Parity units in a stripe.
    pub m: u16,
    /// Media packets in a unit ("U").
    pub unit_packets: u32,
    /// Members of the volume.
    pub members: u16,
}

impl Geometry {
    /// One member, no parity. Units are as long as ST 2022-1 columns may be.
    pub const SINGLE: Self = Self { k: 1, m: 0, unit_packets: MAX_UNIT_PACKETS, members: 1 };

    /// Stripes that hold `packets` media packets.
    pub fn stripes(&self, packets: u32) -> u64 {
        let stripe = u64::from(self.k.max(1)) * u64::from(self.unit_packets.max(1));
        u64::from(packets).div_ceil(stripe)
    }

    /// Whether a title is one plain file on one member, as in volumes of older versions.
    pub fn is_single(&self) -> bool {
        (self.k, self.m, self.members) == (1, 0, 1)
    }

    /// Chooses a layout of stripes for `members` members that tolerates the loss of `tolerance` of
    /// them. If possible, the parity is also column FEC as in ST 2022-1; to make that possible, a
    /// member may have several units of a stripe. With one member no loss can be tolerated:
    /// `network` parity units then serve viewers alone.
    ///
    /// # Errors
    /// The fault, in words for people.
    pub fn choose(members: usize, tolerance: usize, network: usize) -> Result<Self, String> {
        if !(1..=MAX_MEMBERS).contains(&members) {
            return Err(format!("{members} members; a volume has 1 to {MAX_MEMBERS}"));
        }
        if tolerance >= members {
            let members = Count(members as u64, "member");
            let (most, fec) = match members.0 - 1 {
                0 => (0, "; for parity that serves the network alone use --fec"),
                most => (most, ""),
            };
            return Err(format!(
                "parity {tolerance} with {members}; of {members} at most {most} may be lost{fec}"
            ));
        }
        if network > 0 && members > 1 {
            return Err(
                "parity for the network alone is for one member; with more, the volume's parity serves both"
                    .to_owned(),
            );
        }
        let data_members = members - tolerance;
        // The fewest units on each member that make the stripes long enough for ST 2022-1, within
        // the limits of the code.
        let most = MAX_PARITY_UNITS.checked_div(tolerance).unwrap_or(MAX_DATA_UNITS);
        if most == 0 {
            return Err(format!("parity {tolerance}; at most {MAX_PARITY_UNITS} members may be lost"));
        }
        let each = usize::from(MIN_FEC_DATA_UNITS).div_ceil(data_members).min(most);
        let (k, m) = match (members, tolerance, network) {
            (1, _, 0) => return Ok(Self::SINGLE),
            (1, _, 1..=MAX_PARITY_UNITS) => (usize::from(ALONE_DATA_UNITS), network),
            (1, ..) => return Err(format!("{network} parity units; at most {MAX_PARITY_UNITS}")),
            (_, 0, _) => (data_members, 0),
            _ => (data_members * each, tolerance * each),
        };
        if m > 2 * k {
            return Err(format!(
                "{tolerance} of {members} members may be lost: that needs more than twice as much parity as data; keep copies instead"
            ));
        }
        let (k, m) = (k as u16, m as u16);
        Ok(Self { k, m, unit_packets: Self::unit_for(k), members: members as u16 })
    }

    /// Packets in a unit: as many as the network's FEC may have, for the longer a unit is, the longer a burst of losses may be,
    /// but so that whole stripes fill seven eighths of an extent.
    fn unit_for(k: u16) -> u32 {
        let room = WireLayout::new(DEFAULT_PACKET_BYTES).map_or(1, WireLayout::packets_per_extent);
        let k = u32::from(k);
        let longest = MAX_UNIT_PACKETS.min(MAX_FEC_MATRIX_PACKETS / k).max(1);
        let filled = |unit: u32| room - room % (k * unit);
        let most = (1..=longest).map(filled).max().unwrap_or(room);
        (1..=longest).rev().find(|&unit| filled(unit) >= most.min(room / 8 * 7)).unwrap_or(1)
    }

    /// Units of each stripe that a member has; 0 if the members do not divide the stripe.
    pub fn units_per_member(&self) -> u16 {
        let units = self.k.saturating_add(self.m);
        if self.members > 0 && units.is_multiple_of(self.members) { units / self.members } else { 0 }
    }

    /// Members that may be lost without loss of media.
    pub fn tolerance(&self) -> u16 {
        self.m.checked_div(self.units_per_member()).unwrap_or(0).min(self.members.saturating_sub(1))
    }

    /// Whether the first parity is column FEC as SMPTE ST 2022-1 allows it: L up to 20, D 4 to 20, L x D up to 100.
    pub fn is_st2022(&self) -> bool {
        self.m > 0
            && (MIN_FEC_DATA_UNITS..=MAX_FEC_DATA_UNITS).contains(&self.k)
            && self.unit_packets <= MAX_UNIT_PACKETS
            && u32::from(self.k) * self.unit_packets <= MAX_FEC_MATRIX_PACKETS
    }
}

/// The stripes of one title. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeLayout {
    k: u16,
    m: u16,
    members: u16,
    unit_packets: u32,
    media_bytes: u64,
}

impl StripeLayout {
    /// The stripes of a title of `media_bytes`. `None` if the geometry is one that this arithmetic is not for: members that do not
    /// divide `k + m`, values out of their limits, or more packets than a title can have.
    pub fn new(geometry: &Geometry, media_bytes: u64) -> Option<Self> {
        let Geometry { k, m, unit_packets, members } = *geometry;
        let fits = (1..=MAX_DATA_UNITS).contains(&usize::from(k))
            && usize::from(m) <= MAX_PARITY_UNITS
            && (1..=MAX_MEMBERS).contains(&usize::from(members))
            && (1..=MAX_UNIT_PACKETS).contains(&unit_packets)
            && (geometry.units_per_member() > 0 || members == 1)
            && media_bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) <= MAX_TITLE_PACKETS;
        fits.then_some(Self { k, m, members, unit_packets, media_bytes })
    }

    /// Data units in a stripe.
    pub fn k(&self) -> usize {
        usize::from(self.k)
    }

    /// Parity units in a stripe.
    pub fn m(&self) -> usize {
        usize::from(self.m)
    }

    /// Members that the title lies on.
    pub fn members(&self) -> usize {
        usize::from(self.members)
    }

    /// Units of each stripe on each member ("c").
    pub fn units_per_member(&self) -> usize {
        (self.k() + self.m()) / self.members()
    }

    /// Members that may be lost.
    pub fn tolerance(&self) -> usize {
        (self.m() / self.units_per_member()).min(self.members() - 1)
    }

    /// Packets in a unit ("U"); also codewords in a row.
    pub fn unit_packets(&self) -> u32 {
        self.unit_packets
    }

    /// Bytes of a full unit.
    pub fn unit_bytes(&self) -> usize {
        self.unit_packets as usize * DEFAULT_PACKET_BYTES
    }

    /// In which order the FEC packets of the parity leave.
    pub fn spread(&self) -> Spread {
        Spread::new(self.k(), self.m(), self.unit_packets)
    }

    /// Packets of media in a full stripe.
    pub fn stripe_packets(&self) -> u32 {
        u32::from(self.k) * self.unit_packets
    }

    /// Bytes of media in a full stripe.
    pub fn stripe_bytes(&self) -> u64 {
        self.k() as u64 * self.unit_bytes() as u64
    }

    /// Length of the title.
    pub fn media_bytes(&self) -> u64 {
        self.media_bytes
    }

    /// Default-size packets of the title.
    pub fn packets(&self) -> u32 {
        self.media_bytes.div_ceil(DEFAULT_PACKET_BYTES as u64) as u32
    }

    /// Stripes; the last may not be full.
    pub fn stripes(&self) -> u32 {
        self.media_bytes.div_ceil(self.stripe_bytes()) as u32
    }

    /// Parity packets of the title: each stripe has `m U`, also the last.
    pub fn parity_packets(&self) -> u64 {
        u64::from(self.stripes()) * u64::from(self.m) * u64::from(self.unit_packets)
    }

    /// Record of parity packet `j` of parity `p` of stripe `stripe` in `parity.mrp`.
    pub fn parity_record(&self, stripe: u32, p: usize, j: u32) -> u64 {
        (u64::from(stripe) * u64::from(self.m) + p as u64) * u64::from(self.unit_packets) + u64::from(j)
    }

    /// The stripes that `bytes` of the title touch.
    pub fn stripes_of(&self, bytes: &Range<u64>) -> Range<u32> {
        let end = bytes.end.min(self.media_bytes);
        let first = (bytes.start.min(end) / self.stripe_bytes()) as u32;
        first..(end.div_ceil(self.stripe_bytes()) as u32).max(first)
    }

    /// Where unit `unit` of stripe `stripe` lies: data units are 0 to k, parity units k to k + m.
    pub fn position_of(&self, stripe: u32, unit: usize) -> usize {
        (unit + stripe as usize % self.members()) % self.members()
    }

    /// The units of stripe `stripe` on a position, ascending: data units first.
    pub fn units_on(&self, position: usize, stripe: u32) -> impl Iterator<Item = usize> + use<> {
        let n = self.members();
        let first = (position + n - stripe as usize % n) % n;
        (first..self.k() + self.m()).step_by(n)
    }

    /// Bytes of media in data unit `unit` of stripe `stripe`: less than a unit at the title's end, 0 behind it.
    pub fn media_in_unit(&self, stripe: u32, unit: usize) -> usize {
        let start = u64::from(stripe) * self.stripe_bytes() + unit as u64 * self.unit_bytes() as u64;
        self.media_bytes.saturating_sub(start).min(self.unit_bytes() as u64) as usize
    }

    /// Data (or parity) units of stripes `0..stripe` on a position.
    fn units_before(&self, position: usize, stripe: u32, data: bool) -> u64 {
        let n = self.members() as u32;
        // In n stripes running, each unit comes by each position once.
        let whole = u64::from(stripe / n) * if data { self.k() } else { self.m() } as u64;
        let rest: usize =
            (stripe - stripe % n..stripe).map(|stripe| self.count_on(position, stripe, data)).sum();
        whole + rest as u64
    }

    fn count_on(&self, position: usize, stripe: u32, data: bool) -> usize {
        self.units_on(position, stripe).filter(|&unit| (unit < self.k()) == data).count()
    }

    /// Offset of a unit in its file: of data units in the data file of [`StripeLayout::position_of`], of parity units in the parity
    /// file there.
    pub fn offset_of(&self, stripe: u32, unit: usize) -> u64 {
        let (position, data) = (self.position_of(stripe, unit), unit < self.k());
        let same = |&other: &usize| other < unit && (other < self.k()) == data;
        let before = self.units_on(position, stripe).filter(same).count() as u64;
        (self.units_before(position, stripe, data) + before) * self.unit_bytes() as u64
    }

    /// Length of the data file on a position: it ends with the title.
    pub fn data_file_bytes(&self, position: usize) -> u64 {
        self.data_range(position, 0..self.stripes()).end
    }

    /// Length of the parity file on a position: whole units.
    pub fn parity_file_bytes(&self, position: usize) -> u64 {
        self.parity_range(position, 0..self.stripes()).end
    }

    /// Returns the part of a position's data file for these stripes: all its data units of them,
    /// one after another.
    pub fn data_range(&self, position: usize, stripes: Range<u32>) -> Range<u64> {
        let end_stripe = stripes.end.min(self.stripes());
        let start =
            self.units_before(position, stripes.start.min(end_stripe), true) * self.unit_bytes() as u64;
        if end_stripe <= stripes.start {
            return start..start;
        }
        // All stripes but the last are full.
        let last = end_stripe - 1;
        let full = self.units_before(position, last, true) * self.unit_bytes() as u64;
        let in_last: usize = self
            .units_on(position, last)
            .take_while(|&u| u < self.k())
            .map(|u| self.media_in_unit(last, u))
            .sum();
        start..full + in_last as u64
    }

    /// Returns the part of a position's parity file for these stripes.
    pub fn parity_range(&self, position: usize, stripes: Range<u32>) -> Range<u64> {
        let end_stripe = stripes.end.min(self.stripes());
        let at = |stripe| self.units_before(position, stripe, false) * self.unit_bytes() as u64;
        at(stripes.start.min(end_stripe))..at(end_stripe)
    }

    /// First record and number of records of the title of these stripes.
    pub(crate) fn media_records(&self, touched: &Range<u32>) -> (u32, u32) {
        let at = |stripe: u32| u64::from(stripe) * u64::from(self.stripe_packets());
        let clip = |packet: u64| packet.min(u64::from(self.packets())) as u32;
        let first = clip(at(touched.start));
        (first, clip(at(touched.end)) - first)
    }

    /// First record and number of records of the parity of these stripes.
    pub(crate) fn parity_records(&self, touched: &Range<u32>) -> (u32, u32) {
        let at = |stripe: u32| u32::try_from(self.parity_record(stripe, 0, 0)).unwrap_or(u32::MAX);
        (at(touched.start), at(touched.end) - at(touched.start))
    }

    /// The stripes that packets of a track belong to.
    pub(crate) fn track_stripes(&self, track: u8, packets: &Range<u32>) -> Range<u32> {
        let in_stripe = (self.spread().parities(track).len() as u32 * self.unit_packets()).max(1);
        packets.start / in_stripe..packets.end.div_ceil(in_stripe).min(self.stripes())
    }

    /// The layout of default-size packets in extents: whole stripes, where there are stripes to speak of.
    pub fn layout(&self, layout: WireLayout) -> WireLayout {
        if self.members > 1 && layout.packet_bytes() == DEFAULT_PACKET_BYTES {
            layout.with_row(self.stripe_packets())
        } else {
            layout
        }
    }
}

#[cfg(test)]
#[path = "stripes_tests.rs"]
mod tests;
