//! The CRCs of the default-size packets that an extent consists of, compared with the bytes while these are hot in the
//! processor's cache.

use std::ops::Range;

use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES};

use crate::meta::{CrcFile, META_BLOCK_BYTES, PacketCrc, Record};

const PACKET: u64 = DEFAULT_PACKET_BYTES as u64;

/// Room for the blocks of CRCs of one extent, read to the borders of packets.
pub(super) const CRCS_STAGING_BYTES: usize =
    ((EXTENT_BYTES / DEFAULT_PACKET_BYTES + 2).div_ceil(PacketCrc::PER_BLOCK as usize) + 1)
        * META_BLOCK_BYTES;

/// The default-size packets that bytes of a title touch.
pub(super) fn packets_of(bytes: &Range<u64>) -> Range<u32> {
    // A title has fewer packets than fit.
    (bytes.start / PACKET) as u32..bytes.end.div_ceil(PACKET) as u32
}

/// The same bytes up to the borders of these packets, in a title of `media_bytes`.
pub(super) fn to_borders(bytes: &Range<u64>, media_bytes: u64) -> Range<u64> {
    let packets = packets_of(bytes);
    u64::from(packets.start) * PACKET..(u64::from(packets.end) * PACKET).min(media_bytes)
}

/// The CRCs of some packets, if they are known. Without them nothing is wrong: the sums of 16 bits are all there is.
#[derive(Debug, Default)]
pub(super) struct Crcs {
    first: u32,
    crcs: Vec<PacketCrc>,
}

impl Crcs {
    /// None are known.
    pub(super) fn forget(&mut self) {
        self.crcs.clear();
    }

    /// Takes those of `packets` from the first copy of their blocks that is good. Whether there was one; else none are known.
    pub(super) fn load<'a>(
        &mut self,
        packets: &Range<u32>,
        mut copies: impl Iterator<Item = &'a [u8]>,
    ) -> bool {
        self.first = packets.start;
        self.crcs.clear();
        self.crcs.resize(packets.len(), PacketCrc::default());
        let block = CrcFile::block_of(packets.start);
        let found =
            copies.any(|blocks| CrcFile::decode(blocks, block, packets.start, &mut self.crcs).is_ok());
        if !found {
            self.crcs.clear();
        }
        found
    }

    /// Whether they are known.
    pub(super) fn are_known(&self) -> bool {
        !self.crcs.is_empty()
    }

    /// Whether the bytes of a packet are those that were stored, if its CRC is known.
    pub(super) fn prove(&self, packet: u32, bytes: &[u8]) -> Option<bool> {
        let crc = packet.checked_sub(self.first).and_then(|at| self.crcs.get(at as usize));
        crc.map(|crc| *crc == PacketCrc::of(bytes))
    }

    /// Compares with the bytes of an extent as its packets, of any size, are built one after the other.
    pub(super) fn walk(&self) -> Walk<'_> {
        Walk { crcs: self, results: Vec::new() }
    }
}

/// Goes through the packets of an extent.
pub(super) struct Walk<'a> {
    crcs: &'a Crcs,
    /// Of each default-size packet from the first on: whether it is right.
    results: Vec<bool>,
}

impl Walk<'_> {
    /// Whether all default-size packets that these bytes touch are right; `get` has the bytes of a packet, if they came. Each
    /// is looked at once, when the first of its bytes is asked about: the bytes of an extent are asked about in order.
    pub(super) fn is_right<'b>(
        &mut self,
        bytes: &Range<u64>,
        get: impl Fn(&Range<u64>) -> Option<&'b [u8]>,
    ) -> bool {
        if self.crcs.crcs.is_empty() {
            return true;
        }
        let at = |packet: u32| (packet.saturating_sub(self.crcs.first)) as usize;
        let touched = packets_of(bytes);
        let touched = at(touched.start)..at(touched.end).min(self.crcs.crcs.len());
        for place in self.results.len()..touched.end {
            let packet = self.crcs.first + place as u32;
            let start = u64::from(packet) * PACKET;
            let found = get(&(start..start + PACKET));
            self.results.push(found.is_some_and(|found| self.crcs.prove(packet, found) != Some(false)));
        }
        self.results.get(touched).is_some_and(|results| results.iter().all(|right| *right))
    }
}

#[cfg(test)]
pub(super) use self::tests::file_of;

#[cfg(test)]
#[path = "crcs_tests.rs"]
mod tests;
