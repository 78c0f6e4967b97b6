//! A synthetic title: its packets' times come from a function, its extents are filled on demand.

use std::rc::Rc;
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::limits::{EXTENT_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::Timeline;
use millrace_engine::RunMedia;

#[derive(Clone)]
pub struct Film {
    pub title: TitleRef,
    pub layout: WireLayout,
    pub packets: u32,
    /// Payload of the last packet, in bytes.
    pub last_bytes: u16,
    pub timeline: Timeline,
    /// Packets that are not there, for viewers that repair them.
    pub missing: fn(u32) -> bool,
    time: Rc<dyn Fn(u32) -> u64>,
}

impl Film {
    /// `packets` packets of 1316 bytes; `time` gives each one's ticks.
    pub fn new(title: u32, packets: u32, time: impl Fn(u32) -> u64 + 'static) -> Self {
        Self {
            title: TitleRef(title),
            layout: WireLayout::new(1316).unwrap(),
            packets,
            last_bytes: 1316,
            timeline: Timeline { ssrc: 0x5eed_0000 | title, timestamp_base: 0xffff_0000 ^ title },
            missing: |_| false,
            time: Rc::new(time),
        }
    }

    /// Constant bit rate.
    pub fn constant(title: u32, packets: u32, bits_per_s: u64) -> Self {
        Self::new(title, packets, move |p| u64::from(p) * 1316 * 8 * 90_000 / bits_per_s)
    }

    /// With a short last packet.
    pub fn ending_with(mut self, last_bytes: u16) -> Self {
        self.last_bytes = last_bytes;
        self
    }

    /// Returns the film as a run names it, for a viewer that can repair `spare` packets of a
    /// codeword.
    pub fn media(&self, spare: u8) -> RunMedia {
        let Self { title, packets, timeline, layout, .. } = *self;
        RunMedia { title, packets, timeline, layout, spare }
    }

    pub fn time(&self, packet: u32) -> MediaTicks {
        MediaTicks((self.time)(packet))
    }

    pub fn extents(&self) -> u32 {
        self.packets.div_ceil(self.layout.packets_per_extent())
    }

    pub fn content(&self, extent: u32) -> ExtentContent {
        let per_extent = self.layout.packets_per_extent();
        let first_packet = extent * per_extent;
        let packets = per_extent.min(self.packets - first_packet);
        let is_last = first_packet + packets == self.packets;
        let last_packet_bytes = if is_last { self.last_bytes } else { self.layout.packet_bytes() as u16 };
        ExtentContent {
            title: self.title,
            number: extent,
            first_packet,
            packets,
            last_packet_bytes,
            layout: self.layout,
            spare: u8::from((first_packet..first_packet + packets).any(self.missing)),
        }
    }

    /// Fills free place `at` of `arena` with `extent` (headers and metadata; the engine reads no payload) and lends it.
    pub fn load(&self, arena: &Arc<ExtentArena>, at: u32, extent: u32) -> Lease {
        let content = self.content(extent);
        let mut fill = arena.fill(at).expect("a free extent");
        let bytes = fill.bytes_mut();
        for place in 0..content.packets {
            let packet = content.first_packet + place;
            let time = self.time(packet);
            let flags = if (self.missing)(packet) { PacketMeta::MISSING } else { 0 };
            let slot = place as usize * self.layout.slot_bytes();
            let header = self.timeline.header(packet, time).emit();
            bytes[slot..slot + RTP_HEADER_BYTES].copy_from_slice(&header);
            let meta = self.layout.meta_offset(place, content.packets);
            bytes[meta..meta + PacketMeta::BYTES]
                .copy_from_slice(&PacketMeta::new(0, flags, time).to_bytes());
        }
        assert_eq!(bytes.len(), EXTENT_BYTES);
        fill.publish();
        arena.lend(at, content).expect("just filled")
    }
}
