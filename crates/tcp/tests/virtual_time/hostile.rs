//! Peers that lie, and third parties that send blind: no other connection is harmed, and nothing is
//! held for them beyond its bound.
//!
//! | peer | must not |
//! | --- | --- |
//! | sends anything | crash, leave anything behind |
//! | acknowledges data that it has not received, or that was never sent | get more than congestion control allows, or the stream out of order |
//! | divides ACKs | make the congestion window grow faster |
//! | lies in SACK blocks, takes them back | stall the stream, have it changed |
//! | shrinks its window, shuts it, opens it by bytes | be sent more than it ever offered, or be given up |
//! | sends other bytes for the same numbers | change bytes already read, pin memory |
//! | drips bytes with holes between them | take more pages than a connection may |
//! | knows no sequence numbers (RST, SYN, ACK, FIN) | reset or change anything |

use std::net::SocketAddr;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, ConnectionState};
use millrace_tcp::limits::MAX_EARLY_PAGES;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{Arrived, ConnectionId, FrameDisposal, Settings, Stack};
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Sacks, Stamps, TcpOptions, Template, parse};

use crate::sim;
use crate::sim::MS;
use crate::sim::app::stream;

fn end(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn stack(secret: u64) -> Stack {
    stack_with(Config { receive_bytes: 20_000, ..Config::default() }, secret, true)
}

fn stack_with(config: Config, secret: u64, defers_acks: bool) -> Stack {
    // More pages than one connection may have.
    let clusters = vec![ClusterSize { bytes: 1 << 20, page_bytes: 2_048 }; 2];
    let mut stack = Stack::new(&Settings { defers_acks, clusters, ..sim::ours::settings(config, secret) });
    stack.listen(end("10.0.0.2:80"), 4).expect("a listener");
    stack
}

/// Segments that go out, with the end that each is for.
fn out(stack: &mut Stack, now: Instant) -> Vec<(SocketAddr, SocketAddr, Vec<u8>)> {
    stack.protocol(now);
    let mut segments = Vec::new();
    stack.output(now, &mut |out| {
        let mut bytes = out.header.to_vec();
        out.payload.slices().iter().for_each(|slice| bytes.extend_from_slice(slice));
        segments.push((out.flow.local(), out.flow.remote(), bytes));
        FrameDisposal::Copied
    });
    segments
}

fn give(stack: &mut Stack, source: SocketAddr, destination: SocketAddr, bytes: &[u8], now: Instant) {
    stack.input(&Arrived { source, destination, is_marked: false, is_checked: false, bytes, at: now }, now);
}

/// A segment from one end to another.
fn forge(from: SocketAddr, to: SocketAddr, head: &Head, payload: &[u8]) -> Vec<u8> {
    let flow = FlowKey::new(from, to).expect("one family");
    let mut header = [0; 60];
    let body = Body::new(millrace_core::wire::checksum::sum16(payload), payload.len() as u32);
    let length = Template::new(&flow).write(head, body, &mut header);
    [&header[..length], payload].concat()
}

/// Anything at all, near `seq` and `ack`.
fn anything(random: &mut SplitMix, seq: Seq, ack: Seq) -> (Head, Vec<u8>) {
    let mut near = |at: Seq| match random.below(4) {
        0 => at,
        1 => at + random.below(3_000) as u32,
        2 => at - random.below(3_000) as u32,
        _ => at + random.below(200_000) as u32 - 100_000,
    };
    let (seq, ack) = (near(seq), near(ack));
    let mut sacks = Sacks::default();
    for _ in 0..random.below(4) {
        let left = ack + random.below(40_000) as u32 - 5_000;
        sacks.push(left, left + random.below(5_000) as u32);
    }
    let flags = match random.below(4) {
        0 => Flags(random.below(256) as u8),
        _ => Flags::ACK,
    };
    // A reset or SYN that is right ends the game too soon.
    let flags = if random.below(20) > 0 { flags.without(Flags::RST) } else { flags };
    let stamps = Stamps { value: random.below(1_000) as u32, echo: random.below(1 << 32) as u32 };
    let options =
        TcpOptions { sacks, stamps: (random.below(2) == 0).then_some(stamps), ..TcpOptions::default() };
    let window = [0, 1, 500, 65_535][random.below(4) as usize];
    let head = Head { seq, ack, flags, window, urgent: random.below(2_000) as u16, options };
    let payload = stream(random.next(), 0, [0, 1, 700, 1_400][random.below(4) as usize]);
    (head, payload)
}

/// A peer that has shaken hands and then sends anything; all connections that it got.
fn liar(server: &mut Stack, random: &mut SplitMix, now: &mut Instant) -> Option<Vec<ConnectionId>> {
    let (from, to) = (end("10.0.0.66:666"), end("10.0.0.2:80"));
    let mut seq = Seq(random.next() as u32);
    let mut head = Head { seq, flags: Flags::SYN, window: 60_000, ..Head::default() };
    head.options.mss = Some([88, 536, 1460][random.below(3) as usize]);
    head.options.is_sack_permitted = random.below(4) > 0;
    head.options.stamps = (random.below(2) == 0).then_some(Stamps { value: 1, echo: 0 });
    give(server, from, to, &forge(from, to, &head, &[]), *now);
    let answer = out(server, *now);
    let syn_ack = parse(&answer.iter().find(|out| out.1 == from)?.2).ok()?;
    let mut ack = syn_ack.seq + 1;
    seq += 1;
    let stamps = syn_ack.options.stamps.map(|stamps| Stamps { value: 2, echo: stamps.value });
    let options = TcpOptions { stamps, ..TcpOptions::default() };
    let head = Head { seq, ack, flags: Flags::ACK, window: 60_000, options, ..Head::default() };
    give(server, from, to, &forge(from, to, &head, &[]), *now);
    let id = server.poll_event()?.connection;
    let mut all = vec![id];
    for _ in 0..200 {
        let _ = server.write(id, &[9; 3_000], *now);
        let (head, payload) = anything(random, seq, ack);
        give(server, from, to, &forge(from, to, &head, &payload), *now);
        for (_, _, bytes) in out(server, *now) {
            let segment = parse(&bytes).expect("what goes out is well formed");
            if segment.flags.has(Flags::ACK) {
                (seq, ack) = (segment.ack, segment.seq + segment.seq_len());
            }
        }
        if random.below(3) == 0 {
            let mut to = [0; 5_000];
            let _ = server.read(id, &mut to, *now);
        }
        *now = now.plus_ns(random.below(40) * MS);
        while let Some(event) = server.poll_event() {
            all.push(event.connection);
        }
        while server.poll_wanted().is_some() {}
    }
    Some(all)
}

#[test]
fn stack_with_random_peer_stays_within_bounds_and_keeps_no_state() {
    for seed in 0..400 {
        let mut random = SplitMix::numbered(seed, 9);
        let mut now = Instant(5_000 * MS);
        let mut server = stack(seed);
        let Some(all) = liar(&mut server, &mut random, &mut now) else { panic!("seed {seed}: no handshake") };
        for id in all {
            server.abort(id, now);
            server.release(id, now);
        }
        // Requests that were never answered time out.
        for _ in 0..80 {
            now = now.plus_ns(1_000 * MS);
            out(&mut server, now);
        }
        while let Some(event) = server.poll_event() {
            server.release(event.connection, now);
        }
        assert_eq!((server.connections(), server.requests()), (0, 0), "seed {seed}");
        let store = server.store();
        assert_eq!((store.used(), store.host_pages()), (0, 0), "seed {seed}");
        assert_eq!(server.pages().used(0).0 + server.pages().used(1).0, 0, "seed {seed}");
    }
}

/// The stream that the server sends to a [`Rogue`].
const STREAM: u64 = 3;
/// Offered at first; as much as goes without scaling.
const OPEN: u16 = 60_000;

/// A peer whose every segment is made by hand, at sequence numbers that count from the first byte on.
struct Rogue {
    stack: Stack,
    id: ConnectionId,
    now: Instant,
    /// Our first byte, and the server's.
    first: Seq,
    their_first: Seq,
    /// Bytes that the server has written, and the total it has to write.
    written: u64,
    to_write: u64,
    /// Which bytes of the server's stream were received.
    got: Vec<bool>,
}

impl Rogue {
    fn new(to_write: u64) -> Self {
        let mut stack =
            stack_with(Config { receive_bytes: 20_000, paced: false, ..Config::default() }, 5, false);
        let mut now = Instant(5_000 * MS);
        let (from, to) = (end("10.0.0.66:666"), end("10.0.0.2:80"));
        let mut head =
            Head { seq: Seq(u32::MAX - 5_000), flags: Flags::SYN, window: OPEN, ..Head::default() };
        (head.options.mss, head.options.is_sack_permitted) = (Some(1460), true);
        give(&mut stack, from, to, &forge(from, to, &head, &[]), now);
        let answer = out(&mut stack, now).remove(0).2;
        let their_first = parse(&answer).expect("a SYN,ACK").seq + 1;
        let first = head.seq + 1;
        now = now.plus_ns(20 * MS);
        let head = Head { seq: first, ack: their_first, flags: Flags::ACK, window: OPEN, ..Head::default() };
        give(&mut stack, from, to, &forge(from, to, &head, &[]), now);
        let id = stack.poll_event().expect("a connection").connection;
        let got = vec![false; to_write as usize];
        Self { stack, id, now, first, their_first, written: 0, to_write, got }
    }

    /// Sends bytes from `at` on, acknowledges up to `ack`, offers `window` and reports `sacks`.
    fn say(&mut self, at: u32, ack: u32, window: u16, sacks: &[(u32, u32)], payload: &[u8]) {
        let (from, to) = (end("10.0.0.66:666"), end("10.0.0.2:80"));
        let mut head = Head {
            seq: self.first + at,
            ack: self.their_first + ack,
            flags: Flags::ACK,
            window,
            ..Head::default()
        };
        for &(left, right) in sacks {
            head.options.sacks.push(self.their_first + left, self.their_first + right);
        }
        give(&mut self.stack, from, to, &forge(from, to, &head, payload), self.now);
    }

    fn acks(&mut self, ack: u32, window: u16) {
        self.say(0, ack, window, &[], &[]);
    }

    /// Returns the data that the server sends after `ms` milliseconds, as ranges of its stream.
    /// Every byte must be right.
    fn after(&mut self, ms: u64) -> Vec<(u32, u32)> {
        self.now = self.now.plus_ns(ms * MS);
        while self.written < self.to_write {
            let bytes = stream(STREAM, self.written, 4_000.min(self.to_write - self.written) as usize);
            match self.stack.write(self.id, &bytes, self.now) {
                Ok(taken @ 1..) => self.written += taken as u64,
                _ => break,
            }
        }
        let mut ranges = Vec::new();
        for (.., bytes) in out(&mut self.stack, self.now) {
            let segment = parse(&bytes).expect("what goes out is well formed");
            let at = segment.seq.since(self.their_first);
            let Ok(from) = u32::try_from(at) else { continue };
            assert_eq!(segment.payload, stream(STREAM, u64::from(from), segment.payload.len()), "at {at}");
            if !segment.payload.is_empty() {
                ranges.push((from, from + segment.payload.len() as u32));
            }
        }
        ranges
    }

    /// From now on an honest receiver: takes everything in until all of the stream is there.
    fn listens_to_the_end(&mut self, mut ack: u32) {
        for _ in 0..20_000 {
            for (from, to) in self.after(10) {
                self.got[from as usize..to as usize].fill(true);
                while self.got.get(ack as usize) == Some(&true) {
                    ack += 1;
                }
                self.acks(ack, OPEN);
            }
            if u64::from(ack) == self.to_write {
                return;
            }
        }
        panic!("{ack} of {} came: {:?}", self.to_write, self.stack.counters());
    }

    fn ends(mut self) {
        self.stack.abort(self.id, self.now);
        self.stack.release(self.id, self.now);
        out(&mut self.stack, self.now);
        let (store, pages) = (self.stack.store(), self.stack.pages());
        assert_eq!((store.used(), store.host_pages(), self.stack.connections()), (0, 0, 0));
        assert_eq!((pages.used(0).0, pages.used(1).0), (0, 0));
    }
}

#[test]
fn acknowledgments_of_what_was_never_sent_do_nothing() {
    let mut rogue = Rogue::new(200_000);
    let sent = rogue.after(1).iter().map(|range| range.1).max().expect("the initial window");
    let unacked = rogue.stack.unacked_bytes(rogue.id);
    for beyond in [1, 1_448, 1 << 20, 1 << 30] {
        rogue.acks(sent + beyond, OPEN);
        rogue.say(0, sent + beyond, OPEN, &[(0, sent)], &[]);
    }
    assert_eq!(rogue.stack.unacked_bytes(rogue.id), unacked);
    assert_eq!(rogue.stack.counters().bad_acks, 8);
    assert_eq!(rogue.after(0), [], "nothing more goes");
    rogue.listens_to_the_end(0);
    rogue.ends();
}

#[test]
fn optimistic_acknowledgments_get_no_more_than_was_offered_and_no_more_than_the_window_allows() {
    // Each segment is acknowledged the moment it leaves, whether it came or not: the round trip seems to be nothing.
    let mut rogue = Rogue::new(2_000_000);
    let mut acked = 0;
    for _ in 0..400 {
        for (from, to) in rogue.after(1) {
            assert!(to <= acked + u32::from(OPEN), "{from} to {to} was never offered");
            acked = acked.max(to);
        }
        rogue.acks(acked, OPEN);
        let store = rogue.stack.store();
        assert!(store.host_pages() <= 32 && store.used() <= 64);
    }
    rogue.to_write = rogue.written;
    rogue.got.truncate(rogue.written as usize);
    rogue.listens_to_the_end(acked);
    rogue.ends();
}

/// Bytes that go after the first round, if its ACK comes in `pieces`.
fn growth(pieces: u32) -> u32 {
    let mut rogue = Rogue::new(400_000);
    // One turn of a connection is not all that its window allows.
    let sent = |rogue: &mut Rogue| (0..20).flat_map(|_| rogue.after(0)).map(|range| range.1).max();
    let first = sent(&mut rogue).expect("the initial window");
    rogue.now = rogue.now.plus_ns(50 * MS);
    for piece in 1..=pieces {
        rogue.acks(first * piece / pieces, OPEN);
    }
    let second = sent(&mut rogue).expect("more");
    rogue.ends();
    second - first
}

#[test]
fn divided_acknowledgments_open_the_congestion_window_no_faster() {
    let honest = growth(10);
    for pieces in [100, 1_000] {
        let divided = growth(pieces);
        assert!(divided <= honest + 2 * 1_448, "{pieces} pieces: {divided} bytes, {honest} in segments");
    }
}

#[test]
fn blocks_that_lie_neither_stall_nor_change_the_stream() {
    for seed in 0..50 {
        let mut random = SplitMix::numbered(seed, 11);
        let mut rogue = Rogue::new(150_000);
        let (mut acked, mut sent) = (0, 0);
        for _ in 0..60 {
            for (_, to) in rogue.after(10 + random.below(300)) {
                sent = sent.max(to);
            }
            // Blocks of sent, unsent and acknowledged data, some inverted; a block may take back
            // the previous one.
            let mut blocks = Vec::new();
            for _ in 0..1 + random.below(4) {
                let left = random.below(u64::from(sent) + 20_000) as u32;
                let length = random.below(30_000) as u32;
                let right = if random.below(8) == 0 { left.saturating_sub(length) } else { left + length };
                blocks.push((left, right));
            }
            if random.below(4) == 0 {
                acked += random.below(u64::from(sent - acked) + 1) as u32;
            }
            rogue.say(0, acked, OPEN, &blocks, &[]);
        }
        // It has none of the data it reported: everything after the last acknowledgment must be
        // sent.
        rogue.listens_to_the_end(acked);
        rogue.ends();
    }
}

#[test]
fn send_window_that_shrinks_is_never_exceeded_and_is_probed() {
    for seed in 0..40 {
        let mut random = SplitMix::numbered(seed, 12);
        let mut rogue = Rogue::new(100_000);
        let (mut acked, mut sent, mut edge) = (0u32, 0u32, u32::from(OPEN));
        for _ in 0..60 {
            let window = [0, 0, 1, 100, 1_000, 9_000][random.below(6) as usize];
            rogue.acks(acked, window);
            let now_open = acked + u32::from(window);
            edge = edge.max(now_open);
            for (from, to) in rogue.after(1 + random.below(5_000)) {
                // A probe carries one byte behind the edge.
                assert!(to <= edge.max(sent) + 1, "seed {seed}: {from} to {to}, offered up to {edge}");
                assert!(from <= sent, "seed {seed}: a hole at {sent}");
                sent = sent.max(to);
            }
            if random.below(2) == 0 {
                acked += random.below(u64::from(sent - acked) + 1) as u32;
            }
        }
        assert_ne!(rogue.stack.state(rogue.id), ConnectionState::Closed, "seed {seed}");
        // Shut for longer than any pause between probes: one has to come.
        let probes = rogue.stack.counters().window_probes;
        acked = sent;
        rogue.acks(acked, 0);
        for _ in 0..100 {
            let probed = rogue.after(1_000);
            assert!(
                probed.iter().all(|&(from, to)| (from, to) == (acked, acked + 1)),
                "seed {seed}: {probed:?}"
            );
        }
        let is_waiting = u64::from(acked) < rogue.to_write;
        assert!(!is_waiting || rogue.stack.counters().window_probes > probes, "seed {seed}");
        rogue.acks(acked, OPEN);
        rogue.listens_to_the_end(acked);
        rogue.ends();
    }
}

/// Byte `at` in a version of its own: the byte shows its position and its version.
fn versioned(at: u64, version: u8) -> u8 {
    (at % 61) as u8 * 4 + version
}

#[test]
fn other_bytes_for_the_same_numbers_change_nothing_that_was_read() {
    for seed in 0..20 {
        let mut random = SplitMix::numbered(seed, 13);
        let mut rogue = Rogue::new(0);
        let mut read = Vec::new();
        while read.len() < 60_000 {
            for _ in 0..12 {
                let near = (read.len() as u64 + random.below(18_000)).saturating_sub(2_000);
                let at = if random.below(3) == 0 { read.len() as u64 } else { near };
                let version = random.below(4) as u8;
                let payload: Vec<_> =
                    (at..at + 1 + random.below(1_400)).map(|at| versioned(at, version)).collect();
                rogue.say(at as u32, 0, OPEN, &[], &payload);
            }
            rogue.after(random.below(100));
            let mut to = vec![0; random.below(20_000) as usize];
            let bytes = rogue.stack.read(rogue.id, &mut to, rogue.now).expect("open");
            for &byte in &to[..bytes] {
                let at = read.len() as u64;
                assert_eq!(byte / 4, versioned(at, 0) / 4, "seed {seed}: byte {at} is from another place");
                read.push(byte);
            }
            assert!(rogue.stack.pages().used(0).0 + rogue.stack.pages().used(1).0 <= 128 + 64, "seed {seed}");
        }
        rogue.ends();
    }
}

#[test]
fn dripped_bytes_take_no_more_pages_than_a_connection_may_have() {
    let mut rogue = Rogue::new(0);
    // Every other byte, the first one last.
    for at in (2..10_000).step_by(2) {
        rogue.say(at, 0, OPEN, &[], &[versioned(u64::from(at), 0)]);
        assert!(rogue.stack.pages().used(1).0 <= u32::from(MAX_EARLY_PAGES), "at {at}");
        assert_eq!(rogue.stack.pages().used(0).0, 0, "at {at}");
        if at % 100 == 0 {
            rogue.after(1);
        }
    }
    let mut read = 0;
    for at in 0..10_000 {
        rogue.say(at, 0, OPEN, &[], &[versioned(u64::from(at), 0)]);
        let mut to = [0; 64];
        let bytes = rogue.stack.read(rogue.id, &mut to, rogue.now).expect("open");
        for &byte in &to[..bytes] {
            assert_eq!(byte, versioned(read, 0), "byte {read}");
            read += 1;
        }
        rogue.after(1);
    }
    while let Ok(bytes @ 1..) = rogue.stack.read(rogue.id, &mut [0; 64], rogue.now) {
        read += bytes as u64;
    }
    assert_eq!(read, 10_000);
    rogue.ends();
}

#[test]
fn shots_in_the_dark_neither_reset_nor_change_what_is_received() {
    for seed in 0..20 {
        let mut random = SplitMix::numbered(seed, 10);
        let mut now = Instant(5_000 * MS);
        let (mut server, mut client) = (stack(seed), stack(seed + 1));
        let (from, to) = (end("10.0.0.1:4000"), end("10.0.0.2:80"));
        let id = client.open(from, to, now).expect("a connection");
        let mut server_id = None;
        let (mut sent, mut received) = (0u64, 0u64);
        for _ in 0..1_500 {
            if client.state(id) == ConnectionState::Established {
                let bytes = stream(seed, sent, 900);
                sent += client.write(id, &bytes, now).expect("open") as u64;
            }
            for (source, destination, bytes) in out(&mut client, now) {
                give(&mut server, source, destination, &bytes, now);
            }
            for (source, destination, bytes) in out(&mut server, now) {
                give(&mut client, source, destination, &bytes, now);
            }
            // Whoever shoots knows both ends, and nothing of the numbers.
            for (target, from, to) in [(&mut server, from, to), (&mut client, to, from)] {
                let (seq, ack) = (Seq(random.next() as u32), Seq(random.next() as u32));
                let flags = [Flags::RST, Flags::SYN, Flags::ACK, Flags::FIN.with(Flags::ACK)];
                let head =
                    Head { seq, ack, flags: flags[random.below(4) as usize], window: 9, ..Head::default() };
                give(target, from, to, &forge(from, to, &head, b"evil"), now);
            }
            server_id = server_id.or_else(|| server.poll_event().map(|event| event.connection));
            if let Some(id) = server_id {
                let mut to = vec![0; 4_000];
                let bytes = server.read(id, &mut to, now).expect("open");
                assert_eq!(to[..bytes], stream(seed, received, bytes), "seed {seed}");
                received += bytes as u64;
            }
            now = now.plus_ns(MS);
        }
        assert_eq!(client.state(id), ConnectionState::Established, "seed {seed}");
        assert!(received > 500_000, "seed {seed}: {received}");
    }
}
