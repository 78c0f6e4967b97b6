//! The bursts that a measurement sends: packets in extents as the cache has them, to one address.

use std::net::SocketAddr;
use std::sync::Arc;

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_BATCH_BURSTS, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::seam::{Dest, Payload, PayloadSource, Transmit, TransmitBatch};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

/// Filled extents of an arena, and where their packets go.
pub struct SamplePackets {
    leases: Vec<Lease>,
    dest: Dest,
    layout: WireLayout,
    /// Packets taken until now, over all extents.
    at: u32,
}

impl SamplePackets {
    /// Fills `extents` extents of `arena` with packets. `None` if they are not free.
    pub fn new(arena: &Arc<ExtentArena>, extents: u32, to: SocketAddr) -> Option<Self> {
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES)?;
        let leases = (0..extents).map(|extent| filled(arena, extent, layout)).collect::<Option<_>>()?;
        Some(Self { leases, dest: Dest::udp(to, None), layout, at: 0 })
    }

    /// A batch of `entries` bursts of `datagrams` each, for as many streams, from where the last one ended.
    pub fn batch(&mut self, entries: usize, datagrams: usize) -> SampleBatch<'_> {
        let per_extent = self.layout.packets_per_extent();
        let count = (datagrams as u32).clamp(1, per_extent);
        let entries = entries.clamp(1, MAX_BATCH_BURSTS);
        let mut places = [(0, 0); MAX_BATCH_BURSTS];
        for place in &mut places[..entries] {
            // No burst goes beyond its extent.
            if self.at % per_extent + count > per_extent {
                self.at = self.at.next_multiple_of(per_extent);
            }
            self.at %= per_extent * self.leases.len() as u32;
            *place = ((self.at / per_extent) as u8, self.at % per_extent);
            self.at += count;
        }
        SampleBatch { sample: self, places, entries, count }
    }
}

fn filled(arena: &Arc<ExtentArena>, extent: u32, layout: WireLayout) -> Option<Lease> {
    let packets = layout.packets_per_extent();
    let mut fill = arena.fill(extent)?;
    let bytes = fill.bytes_mut();
    for place in 0..packets {
        let slot = &mut bytes[place as usize * layout.slot_bytes()..][..layout.slot_bytes()];
        let (header, payload) = slot.split_at_mut(RTP_HEADER_BYTES);
        header.fill(0);
        header[0] = 0x80;
        for (n, byte) in payload.iter_mut().enumerate() {
            *byte = (n as u32).wrapping_mul(31).wrapping_add(place) as u8;
        }
        let meta = PacketMeta::new(sum16(payload), 0, MediaTicks(0));
        let at = layout.meta_offset(place, packets);
        bytes[at..at + PacketMeta::BYTES].copy_from_slice(&meta.to_bytes());
    }
    fill.publish();
    let content = ExtentContent {
        title: TitleRef(0),
        number: extent,
        first_packet: extent * packets,
        packets,
        last_packet_bytes: layout.packet_bytes() as u16,
        layout,
        spare: 0,
    };
    arena.lend(extent, content)
}

/// Some of a sample's packets, as a batch.
pub struct SampleBatch<'a> {
    sample: &'a SamplePackets,
    /// Extent and place in it.
    places: [(u8, u32); MAX_BATCH_BURSTS],
    entries: usize,
    count: u32,
}

impl TransmitBatch for SampleBatch<'_> {
    fn len(&self) -> usize {
        self.entries
    }

    fn get(&self, index: usize) -> Transmit<'_> {
        let (extent, place) = self.places[index];
        let bytes = self.sample.leases[usize::from(extent)].wire(place, self.count);
        Transmit {
            stream: StreamId { index: index as u32, generation: 0 },
            dest: self.sample.dest,
            payload: Payload::Wire { bytes, segment: self.sample.layout.slot_bytes() },
        }
    }

    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        let (extent, place) = self.places[index];
        Some(PayloadSource { lease: &self.sample.leases[usize::from(extent)], place })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::pool::HeapRegion;

    #[test]
    fn bursts_are_whole_and_walk_through_all_extents() {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(2)));
        let mut sample = SamplePackets::new(&arena, 2, "192.0.2.1:9".parse().unwrap()).unwrap();
        let mut seen = std::collections::HashSet::new();
        for datagrams in [1, 2, 4, 8, 16, 44] {
            for _ in 0..40 {
                let batch = sample.batch(64, datagrams);
                assert_eq!(batch.len(), 64);
                for index in 0..batch.len() {
                    let (transmit, source) = (batch.get(index), batch.source(index).unwrap());
                    assert_eq!(transmit.datagrams(), datagrams);
                    seen.insert((source.lease.extent(), source.place));
                    let Payload::Wire { bytes, .. } = transmit.payload else { panic!("not on the wire") };
                    assert_eq!(sum16(&bytes[12..1328]), source.lease.meta(source.place).sum());
                }
            }
        }
        assert_eq!(seen.len(), 2 * 196);
        assert!(SamplePackets::new(&arena, 1, "192.0.2.1:9".parse().unwrap()).is_none(), "in use");
    }
}
