//! Cost of a turn of our TCP, in nanoseconds: for an acknowledgment, processed after the output
//! stage or at once, and for a segment of data from due to frame. The peers are headers written
//! beforehand; nothing is sent, and time is virtual.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant as StdInstant;

use anyhow::{Context, ensure};
use millrace_core::ids::TitleRef;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, Happened};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::send::{ExtentRange, SlotPart};
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{Arrived, ConnectionId, FrameDisposal, OutgoingSegment, Settings, Stack};
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Stamps, TcpOptions, Template, parse};

use crate::frame::stats::median;
use crate::frame::{Bench, NoiseMeter, Options, Promise, Report, Row, Turns};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "tcp-turns",
    shows: "ns for an acknowledgment that is processed behind the output stage, beside one that is processed at once; for a segment of data from due to frame, beside a bare loop that writes its header",
    not_for: "what a device costs, or a whole server: nothing is sent, and the peers never lose anything",
    options: &["runs", "quick"],
    targets: &["tcp-deferred-ratio", "tcp-segment-ratio"],
    needs: &[],
    run,
};

/// Connections, and ACKs for each of them in a turn of [`ACKS_PER_TURN`].
const SCENES: [(u32, u32); 4] = [(10_000, 2), (10_000, 1), (64, 2), (64, 1)];
/// The scene that the promise is about.
const PROMISED: (u32, u32) = (10_000, 2);
pub(super) const ACKS_PER_TURN: u32 = 64;
const DEFERRED_BOUND: f64 = 1.5;
/// Time of a segment from due to frame, relative to a bare loop that writes the headers of as many connections.
const SEGMENT_BOUND: f64 = 20.0;
/// The stack's address and port; the peers' are made from their numbers.
const HERE: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 0, 0, 1), 80);
const START: Instant = Instant(1 << 40);
/// Between sending and acknowledgment.
const RTT_NS: u64 = 20_000_000;
const PACKET: u32 = DEFAULT_PACKET_BYTES as u32;
const WINDOW: u16 = u16::MAX;
const SCALE: u8 = 7;
const HEADER_ROOM: usize = 60;

fn run(options: &Options) -> anyhow::Result<Report> {
    let (mut report, mut noise) = (Report::new("tcp-turns"), NoiseMeter::start());
    let turns_each = options.pick(20, 2_000, 10_000);
    for (connections, each) in SCENES {
        let connections = if options.tiny { connections.min(128) } else { connections };
        let label = format!("{connections} connections, {each} ACKs for each of {}", ACKS_PER_TURN / each);
        options.say(&label);
        let is_judged = (connections, each) == PROMISED || options.tiny && each == 2;
        let turn = |at: usize, _| {
            Ground::new(connections, at == 0)?.measure(turns_each, (ACKS_PER_TURN / each, each))
        };
        let targets = |turns: &Turns<Took>| if is_judged { promises(turns) } else { Vec::new() };
        let turns = Turns::take(options, &mut noise, &["behind the output stage", "at once"], turn, targets)?;
        report.rows.push(
            Row::new(label)
                .with("behind the output stage", turns.median(0, |took| took.ack), "ns/ACK")
                .with("at once", turns.median(1, |took| took.ack), "ns/ACK")
                .with("ratio", turns.ratio(1, 0, |took| took.ack).mid, "")
                .with("a segment of data", turns.median(0, |took| took.segment), "ns")
                .with("its header alone", turns.median(0, |took| took.header), "ns"),
        );
        if is_judged {
            report.promises = promises(&turns);
        }
    }
    report.noise = Some(noise.finish());
    Ok(report)
}

fn promises(turns: &Turns<Took>) -> Vec<Promise> {
    let segment = turns.interval(0, |took| took.segment / took.header);
    vec![
        Promise::at_least("tcp-deferred-ratio", turns.ratio(1, 0, |took| took.ack), DEFERRED_BOUND, ""),
        Promise::at_most("tcp-segment-ratio", segment, SEGMENT_BOUND, "of a loop that writes headers"),
    ]
}

/// One of the other ends.
struct Peer {
    flow: FlowKey,
    template: Template,
    id: Option<ConnectionId>,
    /// Its own next number, and the next that it expects.
    seq: Seq,
    ack: Seq,
    /// The time stamp that it echoes.
    echo: u32,
}

impl Peer {
    fn new(number: u32) -> Self {
        let [_, b, c, d] = (0x0a01_0000 + (number >> 8 << 8) + number % 250 + 1).to_be_bytes();
        let there = SocketAddr::from((Ipv4Addr::new(10, b, c, d), 1024 + (number % 60_000) as u16));
        let flow = FlowKey::new(there, HERE.into()).expect("both are of IPv4");
        Self {
            flow,
            template: Template::new(&flow),
            id: None,
            seq: Seq(number.wrapping_mul(77)),
            ack: Seq(0),
            echo: 0,
        }
    }

    /// Writes the segment that the peer would send now.
    fn segment(&self, flags: Flags, options: TcpOptions, room: &mut [u8; HEADER_ROOM]) -> usize {
        let ack = if flags.has(Flags::ACK) { self.ack } else { Seq(0) };
        let head = Head { seq: self.seq, ack, flags, window: WINDOW, urgent: 0, options };
        self.template.write(&head, Body::EMPTY, room)
    }

    fn stamps(&self, now: Instant) -> Option<Stamps> {
        Some(Stamps { value: (now.0 / 1_000_000) as u32, echo: self.echo })
    }

    fn arrived<'a>(&self, bytes: &'a [u8], at: Instant) -> Arrived<'a> {
        Arrived {
            source: self.flow.local(),
            destination: self.flow.remote(),
            is_marked: false,
            is_checked: false,
            bytes,
            at,
        }
    }
}

/// Medians over turns, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    /// An acknowledgment.
    pub(super) ack: f64,
    /// A segment of data from due to frame.
    pub(super) segment: f64,
    /// The header of a segment, written by a loop that does nothing else.
    header: f64,
}

/// A stack with connections that are all established.
pub(super) struct Ground {
    stack: Stack,
    peers: Vec<Peer>,
    lease: Lease,
    now: Instant,
}

impl Ground {
    pub(super) fn new(connections: u32, defers_acks: bool) -> anyhow::Result<Self> {
        let settings = Settings {
            config: Config { paced: false, ..Config::default() },
            connections: connections + 8,
            requests: 1024,
            listeners: 16,
            time_waits: 8,
            records: 8 * connections + 1024,
            descriptors: 4 * connections + 1024,
            host_pages: 16,
            clusters: vec![ClusterSize { bytes: 1 << 20, page_bytes: 2048 }; 2],
            defers_acks,
            cookies: false,
            ports: (49_152..=65_535).into(),
            secret: [1, 2],
        };
        let mut ground = Self {
            stack: Stack::new(&settings),
            peers: (0..connections).map(Peer::new).collect(),
            lease: extent()?,
            now: START,
        };
        ground.stack.listen(HERE.into(), 512).ok().context("listen")?;
        ground.connect()?;
        Ok(ground)
    }

    /// All handshakes, some at a time.
    fn connect(&mut self) -> anyhow::Result<()> {
        let mut room = [0; HEADER_ROOM];
        for first in (0..self.peers.len()).step_by(256) {
            let last = self.peers.len().min(first + 256);
            let options = |now| TcpOptions {
                mss: Some(1460),
                scale: Some(SCALE),
                is_sack_permitted: true,
                stamps: Some(Stamps { value: now, echo: 0 }),
                ..TcpOptions::default()
            };
            for peer in &self.peers[first..last] {
                let bytes = peer.segment(Flags::SYN, options((self.now.0 / 1_000_000) as u32), &mut room);
                self.stack.input(&peer.arrived(&room[..bytes], self.now), self.now);
            }
            self.take_out(|peer, seq, _| peer.ack = seq + 1);
            self.now = self.now.plus_ns(RTT_NS);
            for peer in &mut self.peers[first..last] {
                peer.seq += 1;
                let options = TcpOptions { stamps: peer.stamps(self.now), ..TcpOptions::default() };
                let bytes = peer.segment(Flags::ACK, options, &mut room);
                self.stack.input(&peer.arrived(&room[..bytes], self.now), self.now);
            }
            self.take_out(|_, _, _| {});
            while let Some(event) = self.stack.poll_event() {
                let ends = self.stack.ends(event.connection).context("a connection that is gone")?;
                let flow = FlowKey::new(ends.1, ends.0).context("two families")?;
                if event.happened.has(Happened::ESTABLISHED)
                    && let Some(peer) = self.peers.iter_mut().find(|peer| peer.flow == flow)
                {
                    peer.id = Some(event.connection);
                    // As a stream has it: its last packet does not wait for an acknowledgment.
                    self.stack.nagle(event.connection, false, self.now);
                }
            }
        }
        ensure!(self.peers.iter().all(|peer| peer.id.is_some()), "some connections were not made");
        Ok(())
    }

    /// Everything that goes out, shown to the peer that it is for with sequence number and length of its payload.
    fn take_out(&mut self, mut take: impl FnMut(&mut Peer, Seq, u32)) {
        let peers = &mut self.peers;
        let by_flow = |peers: &[Peer], flow: FlowKey| peers.iter().position(|peer| peer.flow == flow);
        self.stack.protocol(self.now);
        self.stack.output(self.now, &mut |out: &OutgoingSegment<'_>| {
            let found = by_flow(peers, out.flow.reversed());
            if let (Some(at), Ok(segment)) = (found, parse(out.header)) {
                peers[at].echo = segment.options.stamps.map_or(0, |stamps| stamps.value);
                take(&mut peers[at], segment.seq, out.payload.bytes);
            }
            FrameDisposal::Copied
        });
    }

    /// Measures the times when in each turn `chosen` connections send `each` segments, which are
    /// then acknowledged.
    pub(super) fn measure(&mut self, turns: u64, (chosen, each): (u32, u32)) -> anyhow::Result<Took> {
        let [mut acks, mut segments, mut headers] = [const { Vec::new() }; 3];
        let mut random = SplitMix(7);
        let (many, in_turn) = (chosen as usize, chosen * each);
        let step = self.peers.len() / many;
        let mut written = vec![([0; HEADER_ROOM], 0, 0); in_turn as usize];
        for _ in 0..turns {
            // Any connections, each once: those of a turn have nothing in common in a server either.
            let offset = random.below(step as u64) as usize;
            let chosen: Vec<usize> = (0..many).map(|n| n * step + offset).collect();
            headers.push(self.write_headers_timed(&chosen, each));
            self.queue(&chosen, each)?;
            segments.push(self.send_timed(&chosen, each)?);
            self.now = self.now.plus_ns(RTT_NS);
            self.stack.protocol(self.now);
            self.write_acks(&chosen, each, &mut written);
            let begun = StdInstant::now();
            for (bytes, len, peer) in &written {
                let arrived = self.peers[*peer].arrived(&bytes[..*len], self.now);
                self.stack.input(&arrived, self.now);
            }
            let sent = self.stack.output(self.now, &mut |_| FrameDisposal::Copied);
            acks.push(begun.elapsed().as_nanos() as f64 / f64::from(in_turn));
            ensure!(sent == 0, "{sent} segments went out while acknowledgments were processed");
            while self.stack.poll_event().is_some() {}
            for &at in &chosen {
                let unacked = self.peers[at].id.map_or(0, |id| self.stack.unacked_bytes(id));
                ensure!(unacked == 0, "{unacked} bytes are not acknowledged");
            }
        }
        Ok(Took { ack: median(&acks), segment: median(&segments), header: median(&headers) })
    }

    /// Writes as many headers of the same connections from records that are as cold: nanoseconds a header.
    fn write_headers_timed(&self, chosen: &[usize], each: u32) -> f64 {
        let mut room = [0; HEADER_ROOM];
        let begun = StdInstant::now();
        for _ in 0..each {
            for &at in chosen {
                let peer = &self.peers[at];
                let options = TcpOptions { stamps: peer.stamps(self.now), ..TcpOptions::default() };
                black_box(peer.segment(Flags::ACK, options, black_box(&mut room)));
            }
        }
        begun.elapsed().as_nanos() as f64 / (chosen.len() * each as usize) as f64
    }

    /// Queues `each` segments for each chosen connection.
    fn queue(&mut self, chosen: &[usize], each: u32) -> anyhow::Result<()> {
        for &at in chosen {
            let id = self.peers[at].id.context("no connection")?;
            let range = ExtentRange { place: 0, skip: 0, bytes: each * PACKET, part: SlotPart::Payloads };
            let sent = self.stack.send_extent(id, self.lease.clone(), range, self.now);
            sent.map_err(|(error, _)| error).context("send")?;
        }
        Ok(())
    }

    /// The output stage with all of them ready: nanoseconds a segment.
    fn send_timed(&mut self, chosen: &[usize], each: u32) -> anyhow::Result<f64> {
        let mut headers: Vec<(FlowKey, u32)> = Vec::with_capacity(chosen.len() * each as usize);
        let (mut sent, wanted) = (0, chosen.len() * each as usize);
        let begun = StdInstant::now();
        // A turn takes a little of each connection that is ready.
        for _ in 0..each {
            sent += self.stack.output(self.now, &mut |out: &OutgoingSegment<'_>| {
                // The headers that a device would get.
                let stamp =
                    out.header.get(24..28).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
                headers.push((*out.flow, stamp));
                FrameDisposal::Copied
            });
        }
        let took = begun.elapsed().as_nanos() as f64;
        ensure!(sent == wanted, "{sent} segments went out, not {wanted}");
        for &at in chosen {
            let peer = &mut self.peers[at];
            peer.echo =
                headers.iter().find(|(flow, _)| flow.reversed() == peer.flow).map_or(0, |(_, stamp)| *stamp);
        }
        Ok(took / sent as f64)
    }

    /// Acknowledgments of all that was sent: one for each segment if `each` is more than one, else one.
    fn write_acks(&mut self, chosen: &[usize], each: u32, to: &mut [([u8; HEADER_ROOM], usize, usize)]) {
        let mut slots = to.iter_mut();
        // One of each connection behind the other: as they come from many peers at once.
        for _ in 0..each {
            for (&at, slot) in chosen.iter().zip(&mut slots) {
                let peer = &mut self.peers[at];
                peer.ack += PACKET;
                let options = TcpOptions { stamps: peer.stamps(self.now), ..TcpOptions::default() };
                slot.1 = peer.segment(Flags::ACK, options, &mut slot.0);
                slot.2 = at;
            }
        }
    }
}

/// An extent of stored packets.
pub(super) fn extent() -> anyhow::Result<Lease> {
    let layout = WireLayout::new(DEFAULT_PACKET_BYTES).context("no layout")?;
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let fill = arena.fill(0).context("an extent")?;
    fill.publish();
    let content = ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets: layout.packets_per_extent(),
        last_packet_bytes: DEFAULT_PACKET_BYTES as u16,
        layout,
        spare: 0,
    };
    let lease = Arc::clone(&arena).lend(0, content).context("a lease")?;
    Ok(lease)
}
