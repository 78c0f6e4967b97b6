//! The stream that is framed: payloads of one size in the memory that the server's cache uses, with their stored sums.

use std::cell::Cell;
use std::sync::Arc;

use crate::framing::{Connection, Datagram};
use anyhow::Context;
use millrace_core::ids::TitleRef;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, Lease};
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::{Flow, LinkHeader};
use millrace_core::wire::rtp::Timeline;
use millrace_offload::hugepage::PageRegion;

/// Length of the stream that the paper sends.
pub(super) const STREAM_BYTES: usize = 225_000_000;
/// Its packet sizes.
pub(super) const SIZES: [usize; 4] = [1 << 10, 2 << 10, 4 << 10, 8 << 10];
/// Memory that a hot stream cycles through: two of the largest packets, half of a first-level
/// cache.
pub(super) const HOT_BYTES: usize = 16 << 10;

/// Payload bytes, filled and never written again: an arena as the server has it, on huge pages where there are any.
pub(super) struct PayloadMemory {
    extents: Vec<Lease>,
    pub(super) arena: Arc<ExtentArena>,
    /// The kind of memory, in words.
    pub(super) kind: &'static str,
}

impl PayloadMemory {
    pub(super) fn new(bytes: usize) -> anyhow::Result<Self> {
        Self::with_frames(bytes, 0)
    }

    /// Does the same with `aside` extents set aside, in which a device builds its frames.
    pub(super) fn with_frames(bytes: usize, aside: u32) -> anyhow::Result<Self> {
        let whole = bytes.next_multiple_of(EXTENT_BYTES) + aside as usize * EXTENT_BYTES;
        let region = PageRegion::present(whole as u64).context("memory for the payloads")?;
        let arena = ExtentArena::with_aside(Box::new(region), aside);
        let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("the default packet")?;
        let mut random = SplitMix(2001);
        let mut extents = Vec::new();
        for number in 0..bytes.div_ceil(EXTENT_BYTES) as u32 {
            let mut fill = arena.fill(number).context("a free extent")?;
            for word in fill.bytes_mut().as_chunks_mut::<8>().0 {
                *word = random.next().to_ne_bytes();
            }
            fill.publish();
            let content = ExtentContent {
                title: TitleRef(0),
                number,
                first_packet: number * layout.packets_per_extent(),
                packets: layout.packets_per_extent(),
                last_packet_bytes: DEFAULT_PACKET_BYTES as u16,
                layout,
                spare: 0,
            };
            extents.push(arena.lend(number, content).context("the extent that was just filled")?);
        }
        Ok(Self { extents, kind: arena.describe(), arena })
    }

    fn bytes(&self) -> usize {
        self.extents.len() * EXTENT_BYTES
    }

    fn at(&self, offset: usize, length: usize) -> &[u8] {
        &self.extents[offset / EXTENT_BYTES].bytes()[offset % EXTENT_BYTES..][..length]
    }
}

/// Which memory payloads are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheState {
    /// First-level cache.
    Hot,
    /// Anywhere in a memory that no cache holds, in random order.
    Cold,
    /// The same memory from front to back, as one title after the other is read.
    InOrder,
}

impl CacheState {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
            Self::InOrder => "in order",
        }
    }
}

/// Packets of one size. Each user takes different packets, so that none finds packets in a cache
/// that another has read.
pub(super) struct PacketStream<'m> {
    memory: &'m PayloadMemory,
    pub(super) packet_bytes: usize,
    pub(super) state: CacheState,
    /// Places in memory, in units of a packet, in the order of sending.
    order: Vec<u32>,
    /// Metadata by place: as a metadata file in memory.
    metas: Vec<[u8; PacketMeta::BYTES]>,
    next: Cell<usize>,
    timeline: Timeline,
}

impl<'m> PacketStream<'m> {
    pub(super) fn new(memory: &'m PayloadMemory, packet_bytes: usize, state: CacheState) -> Self {
        let bytes = if state == CacheState::Hot { HOT_BYTES.min(memory.bytes()) } else { memory.bytes() };
        let places = bytes / packet_bytes;
        let meta = |place: usize| {
            let sum = sum16(memory.at(place * packet_bytes, packet_bytes));
            PacketMeta::new(sum, 0, MediaTicks(place as u64)).to_bytes()
        };
        let metas = (0..places).map(meta).collect();
        let mut order: Vec<u32> = (0..places as u32).collect();
        if state == CacheState::Cold {
            let mut random = SplitMix(packet_bytes as u64);
            for at in (1..places).rev() {
                order.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        let timeline = Timeline { ssrc: 0x5eed_0001, timestamp_base: 0xffff_ff00 };
        Self { memory, packet_bytes, state, order, metas, next: Cell::new(0), timeline }
    }

    /// Returns the name of a row of this stream.
    pub(super) fn label(&self) -> String {
        format!("{}, {} KB", self.state.name(), self.packet_bytes >> 10)
    }

    /// Numbers of the next `count` packets, which then belong to the caller.
    pub(super) fn take(&self, count: usize) -> std::ops::Range<usize> {
        let first = self.next.replace(self.next.get() + count);
        first..first + count
    }

    /// Where the metadata of packet `number` lies.
    pub(super) fn place(&self, number: usize) -> usize {
        self.order[number % self.order.len()] as usize
    }

    /// The metadata of all places.
    pub(super) fn metas(&self) -> &[[u8; PacketMeta::BYTES]] {
        &self.metas
    }

    /// Returns packet `number`: the place of its payload and its stored data. Looks at the
    /// metadata, not at the payload.
    pub(super) fn datagram(&self, number: usize) -> Datagram<'m> {
        let payload_sum = PacketMeta::from_bytes(self.metas[self.place(number)]).sum();
        Datagram { payload_sum, ..self.datagram_without_sum(number) }
    }

    /// The same without a look at the metadata either: the sum is 0.
    pub(super) fn datagram_without_sum(&self, number: usize) -> Datagram<'m> {
        let place = self.place(number);
        let header = self.timeline.header(number as u32, MediaTicks(number as u64 * 90));
        Datagram {
            rtp: header.emit(),
            payload: self.memory.at(place * self.packet_bytes, self.packet_bytes),
            payload_sum: 0,
            ip_id: number as u16,
        }
    }
}

/// A viewer at this address: IPv4 like the paper's.
pub(super) fn connection_to(address: [u8; 4]) -> anyhow::Result<Connection> {
    let link = LinkHeader { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], vlan: None };
    let flow = Flow {
        source: ([10, 99, 0, 7], 5004).into(),
        destination: (address, 40_000).into(),
        hop_limit: 64,
        traffic_class: 0,
    };
    Connection::new(&link, &flow).context("both addresses are IPv4")
}

/// Address of the viewer, which is this machine's where packets are really sent.
pub(super) const VIEWER: [u8; 4] = [10, 99, 0, 1];
