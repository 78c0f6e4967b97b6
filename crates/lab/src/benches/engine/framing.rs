//! A device that sends nothing but writes the headers of every datagram, from the viewer's template and the stored sums.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::ensure;
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::prefetch::{prefetch, prefetch_all};
use millrace_core::seam::{Payload, Transmit, TransmitBatch};
use millrace_core::wire::frame::{Flow, LinkHeader, MAX_HEADER_BYTES, Template};

/// Frames whose headers are written one after the other: they stay in the cache, as a ring of a device does.
const RING: usize = 256;

/// Where stream `index` is watched.
pub(super) fn viewer(index: u32, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 | index), port)
}

/// The headers of stream `index`.
pub(super) fn template(index: u32) -> Template {
    let link = LinkHeader { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], vlan: None };
    let flow = Flow {
        source: SocketAddr::from(([10, 255, 0, 1], 5004)),
        destination: viewer(index, 5000).into(),
        hop_limit: 64,
        traffic_class: 0,
    };
    Template::new(&link, &flow).expect("both addresses are of one family")
}

/// A row a stream, as a device has it: two cache lines.
#[repr(align(128))]
struct FramingRow {
    datagrams: u16,
    headers: Template,
}

/// The device.
pub(super) struct Framing {
    rows: Vec<FramingRow>,
    ring: Vec<[u8; MAX_HEADER_BYTES]>,
    at: usize,
}

impl Framing {
    pub(super) fn new(streams: u32) -> anyhow::Result<Self> {
        ensure!(streams < 1 << 24, "at most 2^24 streams have addresses of their own");
        let rows = (0..streams).map(|index| FramingRow { datagrams: 0, headers: template(index) }).collect();
        Ok(Self { rows, ring: vec![[0; MAX_HEADER_BYTES]; RING], at: 0 })
    }

    pub(super) fn send(&mut self, batch: &impl TransmitBatch) {
        // The data that the entries need is fetched in parallel instead of one after the other.
        for at in 0..batch.len() {
            let transmit = batch.get(at);
            prefetch_all(&self.rows[transmit.stream.index as usize]);
            if let Payload::Wire { bytes, .. } = transmit.payload {
                prefetch(bytes);
            }
        }
        for at in 0..batch.len() {
            let transmit = batch.get(at);
            if let Some(source) = batch.source(at) {
                let metas = source.lease.metas(source.place, transmit.datagrams() as u32);
                self.frame(&transmit, metas);
            }
        }
    }

    fn frame(&mut self, transmit: &Transmit<'_>, metas: &[[u8; PacketMeta::BYTES]]) {
        let (bytes, segment, own) = match transmit.payload {
            Payload::Wire { bytes, segment } => (bytes, segment, None),
            Payload::Patched { headers, bytes, segment } => (bytes, segment, Some(headers)),
            Payload::Rtcp(_) | Payload::Bytes(_) => return,
        };
        let row = &mut self.rows[transmit.stream.index as usize];
        for (place, (datagram, &meta)) in bytes.chunks(segment).zip(metas).enumerate() {
            let rtp = own.map_or(datagram, |headers| &headers[place * RTP_HEADER_BYTES..]);
            let Some(rtp) = rtp.first_chunk() else { continue };
            let (sum, payload_bytes) =
                (PacketMeta::from_bytes(meta).sum(), datagram.len() - RTP_HEADER_BYTES);
            row.datagrams = row.datagrams.wrapping_add(1);
            let frame = &mut self.ring[self.at % RING];
            row.headers.emit(frame, rtp, sum, payload_bytes, row.datagrams);
            black_box(&frame);
            self.at += 1;
        }
    }
}
