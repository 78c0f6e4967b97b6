//! Peers that lie, and others who shoot in the dark: nobody else is harmed, nothing is held for them beyond its bound.

#[allow(dead_code)] // the simulation uses the rest of it
mod sim;

use std::net::SocketAddr;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_tcp::conn::{Config, State};
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{Arrived, ConnectionId, Stack, Taken};
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Options, Sacks, Stamps, Template, parse};

use sim::MS;
use sim::app::stream;

fn end(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn stack(secret: u64) -> Stack {
    let config = Config { receive_bytes: 20_000, ..Config::default() };
    let mut stack = Stack::new(&sim::ours::settings(config, secret));
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
        Taken::Copied
    });
    segments
}

fn give(stack: &mut Stack, source: SocketAddr, destination: SocketAddr, bytes: &[u8], now: Instant) {
    stack.input(&Arrived { source, destination, is_marked: false, bytes, at: now }, now);
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
    let options = Options { sacks, stamps: (random.below(2) == 0).then_some(stamps), ..Options::default() };
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
    let options = Options { stamps, ..Options::default() };
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
fn a_peer_that_sends_anything_is_held_to_its_bounds_and_leaves_nothing() {
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
            if client.state(id) == State::Established {
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
        assert_eq!(client.state(id), State::Established, "seed {seed}");
        assert!(received > 500_000, "seed {seed}: {received}");
    }
}
