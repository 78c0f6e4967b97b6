//! Segment size on paths that change, in virtual time: segments stay made of whole stored packets
//! wherever these fit.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion, Lease};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::checksum::sum16;
use millrace_tcp::conn::{Config, Happened};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::send::{ExtentRange, SlotPart};
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{
    Arrived, CallError, ConnectionId, FrameDisposal, IcmpError, IcmpKind, Settings, Stack,
};
use millrace_tcp::wire::parse;

const MS: u64 = 1_000_000;
const PACKET: usize = 1316;
/// Packets of the extent, which is sent over and over.
const PACKETS: u32 = 40;
const LAP: u32 = PACKETS * PACKET as u32;
const DELAY_NS: u64 = 5 * MS;
const IP_BYTES: usize = 20;
/// Of headers with time stamps.
const HEADERS: u16 = 52;

fn settings(mtu: u16) -> Settings {
    let cluster = ClusterSize { bytes: 1 << 20, page_bytes: 2048 };
    Settings {
        config: Config { mtu, receive_bytes: 256 << 10, ..Config::default() },
        connections: 4,
        requests: 4,
        listeners: 16,
        time_waits: 4,
        records: 4096,
        descriptors: 64,
        host_pages: 16,
        clusters: vec![cluster, cluster],
        defers_acks: true,
        cookies: false,
        ports: (40_000..=50_000).into(),
        secret: [3, 4],
    }
}

fn byte(at: u32) -> u8 {
    ((at / 7) ^ (at % 251)) as u8
}

fn extent() -> (Arc<ExtentArena>, Lease) {
    let layout = WireLayout::new(PACKET).expect("a layout");
    let content = ExtentContent {
        title: TitleRef(1),
        number: 0,
        first_packet: 0,
        packets: PACKETS,
        last_packet_bytes: PACKET as u16,
        layout,
        spare: 0,
    };
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let mut fill = arena.fill(0).expect("an extent");
    let bytes = fill.bytes_mut();
    for packet in 0..PACKETS {
        let first = packet * PACKET as u32;
        let payload: Vec<u8> = (first..first + PACKET as u32).map(byte).collect();
        let at = packet as usize * layout.slot_bytes() + layout.header_bytes();
        bytes[at..at + PACKET].copy_from_slice(&payload);
        let meta = PacketMeta::new(sum16(&payload), 0, MediaTicks(0)).to_bytes();
        let record = layout.meta_offset(packet, PACKETS);
        bytes[record..record + 8].copy_from_slice(&meta);
    }
    fill.publish();
    let lease = arena.lend(0, content).expect("a lease");
    (arena, lease)
}

/// A segment of data on its way: offset in the stream, length.
type Sent = (u32, u32);

struct World {
    server: Stack,
    client: Stack,
    id: ConnectionId,
    reader: ConnectionId,
    /// The server's sequence number of byte 0.
    first: Seq,
    now: Instant,
    lease: Lease,
    _arena: Arc<ExtentArena>,
    to_client: VecDeque<(Instant, Vec<u8>)>,
    to_server: VecDeque<(Instant, Vec<u8>)>,
    reports: VecDeque<(Instant, IcmpError)>,
    /// Largest packet of the path, with its IP header.
    path_mtu: usize,
    /// The router reports packets that it does not take.
    is_honest: bool,
    read: u32,
    expected: Vec<u8>,
    sent: Vec<Sent>,
    dropped: u32,
}

fn ends() -> (SocketAddr, SocketAddr) {
    ("10.0.0.1:80".parse().expect("an end"), "10.0.0.2:40000".parse().expect("an end"))
}

fn arrived(from: IpAddr, to: IpAddr, bytes: &[u8], at: Instant) -> Arrived<'_> {
    Arrived {
        source: SocketAddr::new(from, 0),
        destination: SocketAddr::new(to, 0),
        is_marked: false,
        is_checked: false,
        bytes,
        at,
    }
}

impl World {
    fn new(mtu: u16, path_mtu: usize) -> Self {
        let (server_end, client_end) = ends();
        let (mut server, mut client) = (Stack::new(&settings(mtu)), Stack::new(&settings(mtu)));
        server.listen(server_end, 2).expect("a listener");
        let now = Instant(1 << 40);
        let reader = client.open(client_end, server_end, now).expect("a connection");
        let (arena, lease) = extent();
        let mut world = Self {
            server,
            client,
            id: reader,
            reader,
            first: Seq(0),
            now,
            lease,
            _arena: arena,
            to_client: VecDeque::new(),
            to_server: VecDeque::new(),
            reports: VecDeque::new(),
            path_mtu,
            is_honest: false,
            read: 0,
            expected: (0..LAP).map(byte).collect(),
            sent: Vec::new(),
            dropped: 0,
        };
        for _ in 0..40 {
            world.step(false);
        }
        let event = world.server.poll_event().expect("a connection");
        assert!(event.happened.has(Happened::ESTABLISHED));
        world.id = event.connection;
        world
    }

    /// A millisecond.
    fn step(&mut self, is_queueing: bool) {
        let (server_end, client_end) = ends();
        while is_queueing && self.server.unacked_bytes(self.id) < 512 << 10 {
            let range = ExtentRange { place: 0, skip: 0, bytes: LAP, part: SlotPart::Payloads };
            match self.server.send_extent(self.id, self.lease.clone(), range, self.now) {
                Ok(()) => {}
                Err((CallError::NoRoom, _)) => break,
                Err((error, _)) => panic!("{error}"),
            }
        }
        let now = self.now;
        while self.to_server.front().is_some_and(|(at, _)| *at <= now) {
            let (at, bytes) = self.to_server.pop_front().expect("a packet");
            self.server.input(&arrived(client_end.ip(), server_end.ip(), &bytes, at), now);
        }
        while self.to_client.front().is_some_and(|(at, _)| *at <= now) {
            let (at, bytes) = self.to_client.pop_front().expect("a packet");
            self.client.input(&arrived(server_end.ip(), client_end.ip(), &bytes, at), now);
        }
        while self.reports.front().is_some_and(|(at, _)| *at <= now) {
            let (_, error) = self.reports.pop_front().expect("a report");
            self.server.icmp(&error, now);
        }
        self.run_server();
        self.run_client();
        self.now = now.plus_ns(MS);
    }

    fn run_server(&mut self) {
        let (server_end, client_end) = ends();
        let Self { server, now, first, to_client, reports, path_mtu, is_honest, sent, dropped, .. } = self;
        server.protocol(*now);
        server.output(*now, &mut |out| {
            let mut bytes = out.header.to_vec();
            out.payload.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
            let segment = parse(&bytes).expect("a segment");
            if segment.payload.is_empty() {
                *first = segment.seq + segment.seq_len();
            } else {
                sent.push((segment.seq.since(*first) as u32, segment.payload.len() as u32));
            }
            if IP_BYTES + bytes.len() <= *path_mtu {
                to_client.push_back((now.plus_ns(DELAY_NS), bytes));
                return FrameDisposal::Copied;
            }
            *dropped += 1;
            if *is_honest {
                let kind = IcmpKind::TooBig { mtu: *path_mtu as u32 };
                let error = IcmpError { local: server_end, remote: client_end, seq: segment.seq, kind };
                reports.push_back((now.plus_ns(DELAY_NS), error));
            }
            FrameDisposal::Copied
        });
    }

    /// Takes everything and looks at each byte.
    fn run_client(&mut self) {
        let Self { client, now, to_server, read, reader, expected, .. } = self;
        let mut to = vec![0; 1 << 16];
        while let Ok(bytes @ 1..) = client.read(*reader, &mut to, *now) {
            let mut got = &to[..bytes];
            while !got.is_empty() {
                let at = (*read % LAP) as usize;
                let (now, later) = got.split_at(got.len().min(expected.len() - at));
                assert!(*now == expected[at..at + now.len()], "wrong bytes from {read} on");
                (*read, got) = (*read + now.len() as u32, later);
            }
        }
        client.protocol(*now);
        client.output(*now, &mut |out| {
            to_server.push_back((now.plus_ns(DELAY_NS), out.header.to_vec()));
            FrameDisposal::Copied
        });
    }

    /// Streams for `ms` milliseconds and returns the segments sent.
    fn stream(&mut self, ms: u64) -> Vec<Sent> {
        self.sent.clear();
        let before = self.read;
        for _ in 0..ms {
            self.step(true);
        }
        assert!(self.read > before, "nothing came through");
        std::mem::take(&mut self.sent)
    }

    fn largest(sent: &[Sent]) -> u32 {
        sent.iter().map(|&(_, bytes)| bytes).max().expect("data")
    }
}

/// How many segments are not made of whole packets although the segment size has room for one.
fn off_grid(sent: &[Sent]) -> usize {
    let packet = PACKET as u32;
    sent.iter().filter(|&&(at, bytes)| at % packet != 0 || bytes % packet != 0).count()
}

#[test]
fn mtu_search_from_ethernet_size_finds_jumbo_size() {
    let mut world = World::new(9000, 9000);
    let first = world.stream(30);
    assert_eq!(World::largest(&first[..4]), PACKET as u32, "it begins with what Ethernet takes");
    let sent = world.stream(3_000);
    assert_eq!((world.dropped, World::largest(&sent)), (0, 8948), "the probe");
    let late = world.stream(500);
    assert!(late.iter().filter(|&&(_, bytes)| bytes == 6 * PACKET as u32).count() > late.len() * 3 / 4);
    assert_eq!(world.server.counters().timeouts, 0);
}

#[test]
fn path_mtu_reduction_with_icmp_needs_no_timeout_and_keeps_packet_grid() {
    let mut world = World::new(9000, 9000);
    world.stream(3_000);
    let before = world.read;
    (world.path_mtu, world.is_honest) = (1500, true);
    let sent = world.stream(1_000);
    let counters = world.server.counters();
    assert_eq!(counters.timeouts, 0, "no time-out was needed");
    assert!(
        counters.icmp_too_big >= 1 && counters.icmp_ignored > 0,
        "the others of a flight tell nothing new"
    );
    let small: Vec<Sent> = sent.iter().copied().filter(|&(_, bytes)| bytes <= 1448).collect();
    assert!(small.len() > 500, "{}", small.len());
    // Where the probe of the search ended a packet was cut, at most once.
    assert!(off_grid(&small) <= 4, "{} of {}", off_grid(&small), small.len());
    assert!(world.read - before > 1 << 20);
}

#[test]
fn path_mtu_reduction_without_icmp_is_detected_by_timeout() {
    let mut world = World::new(9000, 9000);
    world.stream(3_000);
    world.path_mtu = 1500;
    world.stream(4_000);
    let sent = world.stream(4_000);
    assert!(World::largest(&sent) <= 8948 && world.server.counters().timeouts >= 2);
    // 1200 bytes at first; then the sizes between that and the size that passed before are
    // searched.
    let timeouts = world.server.counters().timeouts;
    world.stream(60_000);
    let sent = world.stream(1_000);
    assert_eq!(world.server.counters().timeouts, timeouts, "losing probes costs no time-out");
    assert_eq!((World::largest(&sent), off_grid(&sent)), (PACKET as u32, 0), "one packet a segment again");
}

#[test]
fn packets_are_cut_at_the_same_places_where_none_fits() {
    let mut world = World::new(1500, 1500);
    world.stream(500);
    (world.path_mtu, world.is_honest) = (1000, true);
    world.stream(500);
    let sent = world.stream(1_000);
    let mss = u32::from(1000 - HEADERS);
    let packet = PACKET as u32;
    let wrong: Vec<&Sent> = sent
        .iter()
        .filter(|&&(at, bytes)| {
            !matches!((at % packet, bytes), (0, b) if b == mss) && (at % packet, bytes) != (mss, packet - mss)
        })
        .collect();
    assert!(
        sent.len() > 500 && wrong.is_empty(),
        "{} of {}: {:?}",
        wrong.len(),
        sent.len(),
        &wrong[..wrong.len().min(4)]
    );
    // Ten minutes later the path takes more again.
    world.path_mtu = 1500;
    while world.server.unacked_bytes(world.id) > 0 {
        world.step(false);
    }
    world.now = world.now.plus_ns(600_000 * MS);
    world.stream(3_000);
    let sent = world.stream(1_000);
    assert_eq!((World::largest(&sent), off_grid(&sent)), (packet, 0));
}
