//! After `Stack::new` a stack neither allocates nor frees, and every pool is as full afterwards as before: counted by a global allocator of this test through
//! a flood of SYNs and through many connections.
//!
//! `MILLRACE_TCP_SYNS` and `MILLRACE_TCP_CONNECTIONS` say how many; by default 10^6 and 10^5.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, ConnectionState, Happened};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{Arrived, ConnectionId, FrameDisposal, Settings, Stack};
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Stamps, Template};
use millrace_testkit::counting::{Counting, calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MS: u64 = 1_000_000;
const BACKLOG: u32 = 256;
/// Connections at once.
const ROUND: u32 = 50;

fn count(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn end(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(10, 0, 0, last).into(), port)
}

fn stack(secret: u64) -> Stack {
    let cluster = ClusterSize { bytes: 1 << 20, page_bytes: 2048 };
    Stack::new(&Settings {
        config: Config { paced: false, ..Config::default() },
        connections: 2 * ROUND,
        requests: BACKLOG,
        listeners: 16,
        time_waits: 512,
        records: 1024,
        descriptors: 512,
        host_pages: 512,
        clusters: vec![cluster, cluster],
        defers_acks: true,
        cookies: true,
        ports: (40_000..=50_000).into(),
        secret: [secret, 9],
    })
}

/// Segments under way; nothing of it grows.
struct Pipe {
    segments: Vec<Segment>,
    used: usize,
}

#[derive(Clone)]
struct Segment {
    source: IpAddr,
    destination: IpAddr,
    length: usize,
    bytes: [u8; 1600],
}

impl Pipe {
    fn new() -> Self {
        let nobody: IpAddr = Ipv4Addr::UNSPECIFIED.into();
        let empty = Segment { source: nobody, destination: nobody, length: 0, bytes: [0; 1600] };
        Self { segments: vec![empty; 1024], used: 0 }
    }

    /// Takes the outgoing segments and returns their number.
    fn fill(&mut self, stack: &mut Stack, now: Instant) -> usize {
        stack.protocol(now);
        stack.output(now, &mut |out| {
            let Some(segment) = self.segments.get_mut(self.used) else { return FrameDisposal::Full };
            self.used += 1;
            (segment.source, segment.destination) = (out.flow.local().ip(), out.flow.remote().ip());
            segment.length = 0;
            for slice in [out.header].iter().chain(out.payload.slices()) {
                let from = segment.length;
                segment.length += slice.len();
                segment.bytes[from..segment.length].copy_from_slice(slice);
            }
            FrameDisposal::Copied
        })
    }

    /// Delivers the segments for `address`; the rest is dropped.
    fn empty(&mut self, stack: &mut Stack, address: IpAddr, now: Instant) {
        for segment in &self.segments[..self.used] {
            if segment.destination == address {
                let (source, destination) =
                    (SocketAddr::new(segment.source, 0), SocketAddr::new(segment.destination, 0));
                let bytes = &segment.bytes[..segment.length];
                stack.input(
                    &Arrived { source, destination, is_marked: false, is_checked: false, bytes, at: now },
                    now,
                );
            }
        }
        self.used = 0;
    }
}

struct Pair {
    client: Stack,
    server: Stack,
    pipe: Pipe,
    now: Instant,
}

impl Pair {
    fn new() -> Self {
        let mut server = stack(2);
        server.listen(end(2, 80), BACKLOG).expect("a listener");
        Self { client: stack(1), server, pipe: Pipe::new(), now: Instant(1_000 * MS) }
    }

    fn open(&mut self) -> ConnectionId {
        self.client.open(end(1, 0), end(2, 80), self.now).expect("a connection")
    }

    /// Lets both talk until they have nothing to say.
    fn talk(&mut self) {
        loop {
            let there = self.pipe.fill(&mut self.client, self.now);
            self.pipe.empty(&mut self.server, end(2, 0).ip(), self.now);
            let back = self.pipe.fill(&mut self.server, self.now);
            self.pipe.empty(&mut self.client, end(1, 0).ip(), self.now);
            if there + back == 0 {
                return;
            }
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ns(ms * MS);
        self.talk();
    }

    /// Reads the data available on the server's side and returns the number of bytes.
    fn read(&mut self, id: ConnectionId) -> usize {
        let mut to = [0; 4_000];
        self.server.read(id, &mut to, self.now).unwrap_or(0)
    }

    fn assert_is_empty(&self) {
        for stack in [&self.client, &self.server] {
            assert_eq!((stack.connections(), stack.requests(), stack.time_waits()), (0, 0, 0));
            let store = stack.store();
            assert_eq!((store.used(), store.leases(), store.host_pages()), (0, 0, 0));
            assert_eq!([0, 1].map(|cluster| stack.pages().used(cluster).0), [0, 0]);
        }
    }
}

/// A SYN from anywhere.
fn syn(number: u32, bytes: &mut [u8; 60]) -> (SocketAddr, usize) {
    let source =
        SocketAddr::new(Ipv4Addr::from(0x0b00_0000 + number / 7).into(), 1_000 + (number % 7) as u16);
    let flow = FlowKey::new(source, end(2, 80)).expect("one family");
    let mut head = Head { seq: Seq(number), flags: Flags::SYN, window: 1000, ..Head::default() };
    head.options.mss = Some(1460);
    if number.is_multiple_of(2) {
        head.options.stamps = Some(Stamps { value: number, echo: 0 });
    }
    (source, Template::new(&flow).write(&head, Body::EMPTY, bytes))
}

#[test]
fn syn_flood_allocates_nothing_and_admits_other_clients() {
    let syns = count("MILLRACE_TCP_SYNS", 1_000_000);
    let mut pair = Pair::new();
    let (mut clients, mut bytes) = (0, [0; 60]);
    let before = calls();
    for number in 0..syns {
        let (source, length) = syn(number, &mut bytes);
        let (destination, bytes, at) = (end(2, 80), &bytes[..length], pair.now);
        pair.server
            .input(&Arrived { source, destination, is_marked: false, is_checked: false, bytes, at }, at);
        // 10^6 in 100 s: the first requests time out, and others take their place.
        pair.now = pair.now.plus_ns(MS / 10);
        if number % 64 == 0 {
            pair.pipe.fill(&mut pair.server, pair.now);
            pair.pipe.used = 0;
            assert!(pair.server.requests() <= BACKLOG && pair.server.connections() == 0);
        }
        if number % 5_000 == 4_999 {
            let id = pair.open();
            pair.talk();
            assert_eq!(pair.client.state(id), ConnectionState::Established, "client {clients}");
            assert_eq!(pair.client.write(id, b"hello", pair.now), Ok(5));
            pair.talk();
            let event = pair.server.poll_event().expect("a connection");
            assert!(event.happened.has(Happened::ESTABLISHED));
            assert_eq!(pair.read(event.connection), 5);
            pair.client.close(id, pair.now).expect("open");
            pair.talk();
            pair.server.close(event.connection, pair.now).expect("open");
            pair.talk();
            pair.client.release(id, pair.now);
            pair.server.release(event.connection, pair.now);
            while pair.server.poll_event().is_some() || pair.client.poll_event().is_some() {}
            clients += 1;
        }
    }
    assert_eq!(calls() - before, 0, "calls of the allocator");
    let counters = pair.server.counters();
    assert_eq!(counters.accepted, u64::from(syns / 5_000));
    assert!(counters.cookies_taken * 2 > counters.accepted, "{counters:?}");
    assert!(counters.cookies_sent * 10 > u64::from(syns) * 9, "{counters:?}");
    // Every unanswered request ends, as TIME-WAIT does.
    for _ in 0..130 {
        pair.pass(1_000);
    }
    pair.assert_is_empty();
    // The backlog has room again: the next SYN is remembered.
    let id = pair.open();
    pair.pipe.fill(&mut pair.client, pair.now);
    pair.pipe.empty(&mut pair.server, end(2, 0).ip(), pair.now);
    assert_eq!(pair.server.requests(), 1);
    pair.talk();
    assert_eq!(pair.client.state(id), ConnectionState::Established);
}

/// How a connection ends: which side goes first, and how.
fn finish(pair: &mut Pair, client: ConnectionId, server: ConnectionId, kind: u32) {
    let now = pair.now;
    match kind % 8 {
        0 => pair.client.abort(client, now),
        1 => pair.server.abort(server, now),
        // With unread data: a reset.
        2 => pair.server.release(server, now),
        // Both at once.
        3 => {
            pair.read(server);
            pair.client.close(client, now).expect("open");
            pair.server.close(server, now).expect("open");
        }
        4 | 5 => {
            pair.read(server);
            pair.client.close(client, now).expect("open");
            pair.talk();
            pair.server.close(server, now).expect("open");
        }
        _ => {
            pair.read(server);
            pair.server.close(server, now).expect("open");
            pair.talk();
            pair.client.close(client, now).expect("open");
        }
    }
}

#[test]
fn connections_come_and_go_without_growth() {
    let rounds = count("MILLRACE_TCP_CONNECTIONS", 100_000) / ROUND;
    let mut pair = Pair::new();
    let mut ids = Vec::with_capacity(ROUND as usize);
    let mut peers = Vec::with_capacity(ROUND as usize);
    let before = calls();
    for round in 0..rounds {
        for _ in 0..ROUND {
            ids.push(pair.open());
        }
        pair.talk();
        for &id in &ids {
            assert_eq!(pair.client.state(id), ConnectionState::Established, "round {round}");
            assert_eq!(pair.client.write(id, &[7; 3_000], pair.now), Ok(3_000), "round {round}");
        }
        pair.pass(1);
        while let Some(event) = pair.server.poll_event() {
            peers.push(event.connection);
        }
        assert_eq!(peers.len(), ids.len(), "round {round}");
        for number in 0..ids.len() {
            // Which of the client's is the peer of it does not matter to the way in which it ends.
            finish(&mut pair, ids[number], peers[number], round + number as u32);
        }
        pair.pass(50);
        for (client, server) in ids.drain(..).zip(peers.drain(..)) {
            pair.client.release(client, pair.now);
            pair.server.release(server, pair.now);
        }
        pair.pass(50);
        assert_eq!((pair.client.connections(), pair.server.connections()), (0, 0), "round {round}");
        while pair.server.poll_event().is_some() || pair.client.poll_event().is_some() {}
    }
    assert_eq!(calls() - before, 0, "calls of the allocator");
    let (client, server) = (pair.client.counters(), pair.server.counters());
    let all = u64::from(rounds * ROUND);
    assert_eq!((client.opened, server.accepted), (all, all));
    assert!(client.resets_in * 10 > all && server.resets_in * 10 > all, "{client:?} {server:?}");
    assert!(pair.client.time_waits() > 100 && pair.server.time_waits() > 100);
    pair.pass(61_000);
    pair.assert_is_empty();
}
