//! The facts known about a media packet before it is sent, and the layout of packets in a cache
//! extent.

use crate::limits::{
    DEFAULT_PACKET_BYTES, EXTENT_BYTES, FEC_HEADER_BYTES, MAX_PACKET_BYTES, MIN_BLOCK_BYTES,
    RTP_HEADER_BYTES, TS_PACKET_BYTES,
};
use crate::time::MediaTicks;

/// Metadata of one media packet, 8 bytes: the same word in the metadata file and in memory.
///
/// | bits | field |
/// | --- | --- |
/// | 0..16 | uncomplemented one's-complement sum of the payload, as from an even offset, network byte order value |
/// | 16..24 | flags: [`PacketMeta::RANDOM_ACCESS`], [`PacketMeta::DISCONTINUITY`], in memory only [`PacketMeta::MISSING`] |
/// | 24..64 | media time in 90 kHz ticks from the title's first packet (40 bits: 141 days) |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct PacketMeta(u64);

impl PacketMeta {
    /// Size on disk and in memory.
    pub const BYTES: usize = 8;
    /// A decoder can start at the first TS packet with a random access indicator in here.
    pub const RANDOM_ACCESS: u8 = 1;
    /// The source's clock jumped here (PCR discontinuity); media time goes on smoothly.
    pub const DISCONTINUITY: u8 = 2;
    /// The packet is not in its extent: the disk that has it is lost, and the viewer that the extent is lent to repairs that
    /// itself. In memory only.
    pub const MISSING: u8 = 0x80;
    /// Largest media time that fits.
    pub const MAX_TICKS: u64 = (1 << 40) - 1;

    /// Packs the three fields; media time beyond 141 days is clamped.
    pub fn new(sum: u16, flags: u8, time: MediaTicks) -> Self {
        Self(u64::from(sum) | u64::from(flags) << 16 | time.0.min(Self::MAX_TICKS) << 24)
    }

    /// The payload's uncomplemented one's-complement sum ([`crate::wire::checksum::sum16`]).
    pub fn sum(self) -> u16 {
        self.0 as u16
    }

    /// The flag bits.
    pub fn flags(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// Whether a decoder can start here.
    pub fn is_random_access(self) -> bool {
        self.flags() & Self::RANDOM_ACCESS != 0
    }

    /// Whether the packet is not there ([`PacketMeta::MISSING`]).
    #[inline]
    pub fn is_missing(self) -> bool {
        self.flags() & Self::MISSING != 0
    }

    /// When the packet's first byte leaves, from the title's first packet.
    #[inline]
    pub fn time(self) -> MediaTicks {
        MediaTicks(self.0 >> 24)
    }

    /// Little-endian bytes, as stored.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// From stored bytes. Every value is valid; whether it is right is for the file's checksum to say.
    #[inline]
    pub fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }
}

/// How one title's packets lie in a cache extent ("wire layout"): slots of RTP header + payload back to back, so that
/// any run of packets is one contiguous, GSO-ready range; the packets' [`PacketMeta`] lie at the extent's end. In a raw layout
/// ([`WireLayout::raw`]) the slots have no header.
///
/// ```text
/// | hdr 0 | payload 0 | hdr 1 | payload 1 | ...      ... | meta 0 | meta 1 | ... | meta n-1 |
/// 0                   slot_bytes                         EXTENT_BYTES - 8 n       EXTENT_BYTES
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WireLayout {
    /// Bits 0..6: TS packets in a packet, [`WireLayout::FEC`] or [`WireLayout::RAW`]. Bits 6..16: packets that an extent could hold beside those
    /// that it does. Blocks of any bytes have the rest of what six bits can say, from [`WireLayout::BLOCKS`] on: that and bits 6..16 are their
    /// size. Two bytes in all, because each lease has a copy.
    bits: u16,
}

impl std::fmt::Debug for WireLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WireLayout")
            .field("packet_bytes", &self.packet_bytes())
            .field("packets_per_extent", &self.packets_per_extent())
            .finish()
    }
}

impl WireLayout {
    const KIND_BITS: u32 = 6;
    const KIND: u16 = (1 << Self::KIND_BITS) - 1;
    /// Stands for FEC datagrams where else the number of TS packets stands.
    const FEC: u16 = Self::KIND;
    /// Stands for packets of the default size without RTP headers.
    const RAW: u16 = Self::KIND - 1;
    /// The first of those that stand for blocks of any bytes.
    const BLOCKS: u16 = (MAX_PACKET_BYTES / TS_PACKET_BYTES) as u16 + 1;
    const DEFAULT: u16 = (DEFAULT_PACKET_BYTES / TS_PACKET_BYTES) as u16;
    const FEC_BYTES: usize = FEC_HEADER_BYTES + DEFAULT_PACKET_BYTES;

    /// Layout for payloads of `packet_bytes`; `None` unless a multiple of 188 and at most [`MAX_PACKET_BYTES`].
    pub fn new(packet_bytes: usize) -> Option<Self> {
        let fits = packet_bytes > 0
            && packet_bytes <= MAX_PACKET_BYTES
            && packet_bytes.is_multiple_of(TS_PACKET_BYTES);
        fits.then_some(Self { bits: (packet_bytes / TS_PACKET_BYTES) as u16 })
    }

    /// Layout of FEC datagrams (SMPTE ST 2022-1): behind the RTP header stand the FEC header and the parity of default-size
    /// packets.
    pub fn fec() -> Self {
        Self { bits: Self::FEC }
    }

    /// Layout of blocks of `block_bytes` of anything, without headers; `None` unless [`MIN_BLOCK_BYTES`] to [`MAX_PACKET_BYTES`].
    pub fn blocks(block_bytes: usize) -> Option<Self> {
        let fits = (MIN_BLOCK_BYTES..=MAX_PACKET_BYTES).contains(&block_bytes);
        let high = block_bytes >> (16 - Self::KIND_BITS);
        fits.then(|| Self { bits: (Self::BLOCKS + high as u16) | (block_bytes as u16) << Self::KIND_BITS })
    }

    /// Size of a block, if it is a layout of blocks.
    #[inline]
    fn block_bytes(self) -> Option<usize> {
        let kind = self.bits & Self::KIND;
        (Self::BLOCKS..Self::RAW).contains(&kind).then(|| {
            let high = usize::from(kind - Self::BLOCKS) << (16 - Self::KIND_BITS);
            high | usize::from(self.bits >> Self::KIND_BITS)
        })
    }

    /// Returns the whole layout in two bytes; never all ones.
    pub(crate) fn bits(self) -> u16 {
        self.bits
    }

    /// The same packets in the same extents without RTP headers, for receivers that take TS in datagrams; `None` unless they have
    /// the default size.
    pub fn raw(self) -> Option<Self> {
        (self.bits & Self::KIND == Self::DEFAULT).then(|| {
            let room = Self { bits: Self::RAW }.packets_per_extent();
            let unused = room - self.packets_per_extent();
            Self { bits: Self::RAW | (unused as u16) << Self::KIND_BITS }
        })
    }

    /// Whether its packets have no RTP headers.
    #[inline]
    pub fn is_raw(self) -> bool {
        (Self::BLOCKS..=Self::RAW).contains(&(self.bits & Self::KIND))
    }

    /// The same with whole rows of `row_packets` packets in an extent, so that no row is read for two extents; unchanged
    /// if a row does not fit, or if they are blocks, which have no rows.
    pub fn with_row(self, row_packets: u32) -> Self {
        if self.block_bytes().is_some() {
            return self;
        }
        let whole = Self { bits: self.bits & Self::KIND };
        let room = whole.packets_per_extent();
        match room.checked_rem(row_packets) {
            // The remainder is less than a row, and less than half of an extent's capacity.
            Some(rest) if rest < room => Self { bits: whole.bits | (rest as u16) << Self::KIND_BITS },
            _ => whole,
        }
    }

    /// Returns the payload bytes of a full packet: those behind the RTP header, if it has one.
    #[inline]
    pub fn packet_bytes(self) -> usize {
        match self.bits & Self::KIND {
            Self::FEC => Self::FEC_BYTES,
            Self::RAW => DEFAULT_PACKET_BYTES,
            grains => self.block_bytes().unwrap_or(usize::from(grains) * TS_PACKET_BYTES),
        }
    }

    /// Bytes of a slot before the payload: an RTP header or nothing.
    #[inline]
    pub fn header_bytes(self) -> usize {
        if self.is_raw() { 0 } else { RTP_HEADER_BYTES }
    }

    /// Bytes from one slot to the next: the datagram's length.
    #[inline]
    pub fn slot_bytes(self) -> usize {
        self.header_bytes() + self.packet_bytes()
    }

    /// Packets in a full extent.
    pub fn packets_per_extent(self) -> u32 {
        let room = EXTENT_BYTES / (self.slot_bytes() + PacketMeta::BYTES);
        let unused = if self.block_bytes().is_some() { 0 } else { self.bits >> Self::KIND_BITS };
        room as u32 - u32::from(unused)
    }

    /// The extent that holds packet `packet` and its place there.
    pub fn locate(self, packet: u32) -> (u32, u32) {
        (packet / self.packets_per_extent(), packet % self.packets_per_extent())
    }

    /// Offset of packet `place`'s metadata in an extent of `count` packets.
    #[inline]
    pub fn meta_offset(self, place: u32, count: u32) -> usize {
        EXTENT_BYTES - (count - place) as usize * PacketMeta::BYTES
    }
}

// The fields of a layout have room for every value.
const _: () = {
    assert!(
        WireLayout::BLOCKS + ((MAX_PACKET_BYTES >> (16 - WireLayout::KIND_BITS)) as u16) < WireLayout::RAW
    );
    // No more of them in an extent than of the smallest packets.
    assert!(MIN_BLOCK_BYTES >= RTP_HEADER_BYTES + TS_PACKET_BYTES);
    assert!(EXTENT_BYTES / (RTP_HEADER_BYTES + TS_PACKET_BYTES + PacketMeta::BYTES) / 2 < 1 << 10);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_round_trip_and_clamp() {
        let meta = PacketMeta::new(0xabcd, PacketMeta::RANDOM_ACCESS, MediaTicks(123_456_789));
        let meta = PacketMeta::from_bytes(meta.to_bytes());
        assert_eq!((meta.sum(), meta.flags(), meta.time()), (0xabcd, 1, MediaTicks(123_456_789)));
        assert!(meta.is_random_access());
        assert_eq!(PacketMeta::new(0, 0, MediaTicks(u64::MAX)).time().0, PacketMeta::MAX_TICKS);
    }

    #[test]
    fn layout_of_the_default_packet() {
        let layout = WireLayout::new(1316).unwrap();
        let n = layout.packets_per_extent();
        assert_eq!(n, 196);
        assert!(n as usize * layout.slot_bytes() <= layout.meta_offset(0, n));
        assert_eq!(layout.meta_offset(n - 1, n) + 8, EXTENT_BYTES);
        assert_eq!(layout.locate(197), (1, 1));
        assert_eq!(WireLayout::new(1300), None);
        assert_eq!(WireLayout::new(0), None);
        assert_eq!(WireLayout::new(188 * 49), None);
    }

    #[test]
    fn raw_packets_lie_in_the_same_extents_without_headers() {
        for layout in [WireLayout::new(1316).unwrap(), WireLayout::new(1316).unwrap().with_row(64)] {
            let raw = layout.raw().unwrap();
            assert!(raw.is_raw() && !layout.is_raw() && raw != layout);
            assert_eq!((raw.packet_bytes(), raw.header_bytes(), raw.slot_bytes()), (1316, 0, 1316));
            assert_eq!(raw.packets_per_extent(), layout.packets_per_extent());
            let n = raw.packets_per_extent();
            assert!(n as usize * raw.slot_bytes() <= raw.meta_offset(0, n));
            assert_eq!(raw.raw(), None);
        }
        assert_eq!((WireLayout::new(188).unwrap().raw(), WireLayout::fec().raw()), (None, None));
    }

    #[test]
    fn blocks_of_any_size_lie_side_by_side_without_headers() {
        let mut seen = std::collections::BTreeSet::new();
        for bytes in MIN_BLOCK_BYTES..=MAX_PACKET_BYTES {
            let layout = WireLayout::blocks(bytes).unwrap();
            assert_eq!(
                (layout.packet_bytes(), layout.slot_bytes(), layout.header_bytes()),
                (bytes, bytes, 0)
            );
            assert!(layout.is_raw() && layout.raw().is_none() && layout.with_row(64) == layout);
            let n = layout.packets_per_extent();
            assert!(n as usize * bytes <= layout.meta_offset(0, n) && n <= 1260);
            assert!(layout.bits() != u16::MAX && seen.insert(layout.bits()), "{bytes}");
        }
        assert!(
            !seen.contains(&WireLayout::new(1316).unwrap().bits())
                && !seen.contains(&WireLayout::fec().bits())
        );
        assert_eq!([0, MIN_BLOCK_BYTES - 1, MAX_PACKET_BYTES + 1].map(WireLayout::blocks), [None; 3]);
    }

    #[test]
    fn extents_of_whole_rows() {
        let layout = WireLayout::new(1316).unwrap();
        assert_eq!(layout.with_row(64).packets_per_extent(), 192);
        assert_eq!(layout.with_row(64).locate(192), (1, 0));
        assert_eq!(layout.with_row(0), layout);
        assert_eq!(layout.with_row(197), layout);
        let fec = WireLayout::fec();
        assert_eq!((fec.packet_bytes(), fec.slot_bytes(), fec.packets_per_extent()), (1332, 1344, 193));
    }
}
