//! Records of packets of any size from the range sums and the records of default-size packets.
//!
//! The sum of a packet is a difference of two prefix sums. Its flags are all those of the default-size packets it touches,
//! its time lies on the line between the two default-size packets around its first byte. The metadata files of other
//! sizes are made by the same rule, so a packet has the same record whichever form it comes from.

use std::ops::Range;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, TS_PACKET_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;

use super::ranges::SumsBlocks;
use crate::format::sums::{SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsError, SumsHeader};
use crate::index::ClockPiece;
use crate::meta::{MetaBlocks, MetaError, MetaFile};

const DEFAULT: u64 = DEFAULT_PACKET_BYTES as u64;

/// Room for the blocks of range sums that one extent needs.
pub const DERIVED_SUMS_BYTES: usize =
    ((EXTENT_BYTES / TS_PACKET_BYTES).div_ceil(SUMS_PER_BLOCK) + 1) * SUMS_BLOCK_BYTES;

/// Records could not be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeriveError {
    /// From the metadata.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// From the range sums.
    #[error(transparent)]
    Sums(#[from] SumsError),
}

/// The source of the time and the flags of any byte of a title: the records of its default-size
/// packets, and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) data_bytes: u64,
    pub(crate) duration: MediaTicks,
}

impl Rule {
    /// Default-size packets that are needed for `bytes`: those that they touch, and the next if there is one.
    pub(crate) fn packets(&self, bytes: &Range<u64>) -> Range<u32> {
        let last = self.data_bytes.div_ceil(DEFAULT);
        let end = (bytes.end.div_ceil(DEFAULT) + 1).min(last);
        (bytes.start / DEFAULT).min(end) as u32..end as u32
    }

    /// All flags of the default-size packets that `bytes`, which are not empty, touch.
    pub(crate) fn flags<E>(
        &self,
        bytes: &Range<u64>,
        record: impl Fn(u32) -> Result<PacketMeta, E>,
    ) -> Result<u8, E> {
        let touched = bytes.start / DEFAULT..=(bytes.end.max(bytes.start + 1) - 1) / DEFAULT;
        touched.into_iter().try_fold(0, |flags, packet| Ok(flags | record(packet as u32)?.flags()))
    }

    /// On the line between the two default-size packets around `byte`.
    pub(crate) fn time<E>(
        &self,
        byte: u64,
        record: impl Fn(u32) -> Result<PacketMeta, E>,
    ) -> Result<MediaTicks, E> {
        let (packet, along) = (byte / DEFAULT, byte % DEFAULT);
        let here = record(packet as u32)?.time();
        if along == 0 {
            return Ok(here);
        }
        let next = (packet + 1) * DEFAULT;
        if next < self.data_bytes {
            // ClockPiece::time_of for a whole packet: times have 40 bits, so the product fits and needs no long division.
            let rise = record(packet as u32 + 1)?.time().since(here).0;
            return Ok(MediaTicks(here.0 + along * rise / DEFAULT));
        }
        let end = ClockPiece { byte: self.data_bytes, time: self.duration };
        Ok(ClockPiece { byte: packet * DEFAULT, time: here }.time_of(&end, byte))
    }
}

/// Derives the records of one packet size of one title. Nothing is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    sums: SumsHeader,
    packet_bytes: u64,
    rule: Rule,
}

impl Derived {
    /// For packets of `layout` in a title of this duration; `None` if its grains are not whole TS packets, or the packets
    /// not whole grains.
    pub fn new(sums: &SumsHeader, layout: WireLayout, duration: MediaTicks) -> Option<Self> {
        let (grain, packet) = (usize::from(sums.grain_bytes), layout.packet_bytes());
        let fits = grain.is_multiple_of(TS_PACKET_BYTES) && packet.is_multiple_of(grain);
        let rule = Rule { data_bytes: sums.data_bytes, duration };
        fits.then_some(Self { sums: *sums, packet_bytes: packet as u64, rule })
    }

    /// Bytes of the title that `count` packets from `first` on have.
    fn bytes(&self, first: u32, count: u32) -> Range<u64> {
        let at = |packet: u64| (packet * self.packet_bytes).min(self.rule.data_bytes);
        at(u64::from(first))..at(u64::from(first) + u64::from(count))
    }

    /// Bytes of the default-size metadata file that these packets are derived from: whole blocks.
    pub fn meta_range(&self, first: u32, count: u32) -> Range<u64> {
        let packets = self.rule.packets(&self.bytes(first, count));
        MetaFile::block_range(packets.start, packets.end - packets.start)
    }

    /// Bytes of the range sums file that these packets are derived from: whole blocks.
    pub fn sums_range(&self, first: u32, count: u32) -> Range<u64> {
        self.sums.block_range(&self.grains(&self.bytes(first, count)))
    }

    fn grains(&self, bytes: &Range<u64>) -> Range<u64> {
        let grain = u64::from(self.sums.grain_bytes);
        bytes.start / grain..bytes.end.div_ceil(grain)
    }

    /// Derives records `first..first + out.len()` from the bytes of the two ranges.
    ///
    /// # Errors
    /// If blocks are damaged or missing.
    pub fn derive(
        &self,
        meta: &[u8],
        sums: &[u8],
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), DeriveError> {
        let count = u32::try_from(out.len()).unwrap_or(u32::MAX);
        let all = self.bytes(first, count);
        let metas = MetaBlocks::open(meta, MetaFile::block_of(self.rule.packets(&all).start))?;
        let first_block = self.grains(&all).start / SUMS_PER_BLOCK as u64;
        let sums = SumsBlocks::open(sums, first_block as u32)?;
        for (packet, out) in (first..).zip(out) {
            let bytes = self.bytes(packet, 1);
            let grains = self.grains(&bytes);
            let sum = sums.between(grains.start, grains.end)?;
            let flags = self.rule.flags(&bytes, |packet| metas.get(packet))?;
            *out = PacketMeta::new(sum, flags, self.rule.time(bytes.start, |packet| metas.get(packet))?);
        }
        Ok(())
    }
}
