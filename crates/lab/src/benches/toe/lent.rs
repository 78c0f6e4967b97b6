//! Chunks that are not copied on the host: ranges of leased extents are sent from where they lie,
//! and received bytes are leased where they have arrived.

use std::io;
use std::sync::Arc;

use anyhow::Context;
use millrace_core::ids::TitleRef;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_offload::toe::{ExtentRange, SlotPart, TcpStream};

use super::work::Chunks;

/// Extents that are walked from end to end, in as many chunks each as it holds.
pub(super) struct Extents {
    leases: Vec<Lease>,
    packet: u32,
    chunks: u32,
}

impl Extents {
    /// # Errors
    /// Memory is not available.
    pub(super) fn new(bytes: usize, chunk: usize) -> anyhow::Result<Self> {
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("no layout")?;
        let (packets, packet) = (layout.packets_per_extent(), layout.packet_bytes());
        let chunks = packets as usize * packet / chunk;
        let count = bytes.div_ceil(chunks * chunk).max(1);
        let arena = ExtentArena::new(Box::new(HeapRegion::new(count)));
        let mut leases = Vec::with_capacity(count);
        for number in 0..count as u32 {
            let mut fill = arena.fill(number).context("an extent")?;
            let all = fill.bytes_mut();
            all.fill(0x47);
            for place in 0..packets {
                let payload = place as usize * layout.slot_bytes() + layout.header_bytes();
                let sum = sum16(&all[payload..payload + packet]);
                let at = layout.meta_offset(place, packets);
                all[at..at + 8].copy_from_slice(&PacketMeta::new(sum, 0, MediaTicks(0)).to_bytes());
            }
            fill.publish();
            let content = ExtentContent {
                title: TitleRef(0),
                number,
                first_packet: number * packets,
                packets,
                last_packet_bytes: packet as u16,
                layout,
                spare: 0,
            };
            leases.push(Arc::clone(&arena).lend(number, content).context("a lease")?);
        }
        Ok(Self { leases, packet: packet as u32, chunks: chunks as u32 })
    }

    /// Chunk `at` of the walk.
    fn range(&self, at: usize, bytes: u32) -> (&Lease, ExtentRange) {
        let lease = &self.leases[at / self.chunks as usize % self.leases.len()];
        let from = at as u32 % self.chunks * bytes;
        let range = ExtentRange {
            place: from / self.packet,
            skip: from % self.packet,
            bytes,
            part: SlotPart::Payloads,
        };
        (lease, range)
    }
}

/// A connection of the engine whose chunks lie in extents, or stay where they have come.
pub(super) struct ZeroCopyStream<'a> {
    pub(super) stream: &'a TcpStream,
    pub(super) extents: &'a Extents,
    pub(super) at: usize,
}

impl Chunks for ZeroCopyStream<'_> {
    fn give(&mut self, chunk: &[u8]) -> io::Result<()> {
        let (lease, range) = self.extents.range(self.at, chunk.len() as u32);
        self.at = self.at.wrapping_add(1);
        self.stream.send_extent(lease, range)
    }

    fn take(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Ok(self.stream.read_lent()?.len())
    }
}
