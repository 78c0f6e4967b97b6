//! Many connections on one stack: listeners and their bounds, slots that are used again, ACKs that are put off.

use std::net::SocketAddr;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_core::wire::checksum::sum16;
use millrace_tcp::conn::{Config, ConnectionState, Happened, Reason};
use millrace_tcp::seq::Seq;
use millrace_tcp::stack::{
    CallError, ConnectionId, FrameDisposal, IcmpError, IcmpKind, Settings, Stack, Undelivered,
};
use millrace_tcp::wire::{Body, Flags, FlowKey, Head, Stamps, TcpOptions, Template, parse};

use crate::sim;
use crate::sim::{MS, Packet};

fn server_end() -> SocketAddr {
    "10.0.0.2:80".parse().expect("an address")
}

fn settings(connections: u32, secret: u64) -> Settings {
    let base = sim::ours::settings(Config { paced: false, ..Config::default() }, secret);
    Settings {
        connections,
        requests: 16,
        time_waits: 64,
        records: 4 * connections,
        descriptors: 2 * connections,
        host_pages: 2 * connections,
        ..base
    }
}

/// Two stacks with nothing between them.
struct Pair {
    client: Stack,
    server: Stack,
    now: Instant,
}

fn packets(stack: &mut Stack, now: Instant) -> Vec<Packet> {
    stack.protocol(now);
    let mut packets = Vec::new();
    stack.output(now, &mut |out| {
        packets.push(Packet::of(out));
        FrameDisposal::Copied
    });
    packets
}

fn give(stack: &mut Stack, packets: &[Packet], now: Instant) {
    for packet in packets {
        stack.input(&packet.arrived(now), now);
    }
}

impl Pair {
    fn new(connections: u32) -> Self {
        let client = Stack::new(&settings(connections, 1));
        let server = Stack::new(&settings(connections, 2));
        Self { client, server, now: Instant(1_000 * MS) }
    }

    fn open(&mut self) -> ConnectionId {
        let local = "10.0.0.1:0".parse().expect("an address");
        self.client.open(local, server_end(), self.now).expect("a connection")
    }

    /// Lets both talk for `turns` milliseconds.
    fn talk(&mut self, turns: u64) {
        for _ in 0..turns {
            let out = packets(&mut self.client, self.now);
            give(&mut self.server, &out, self.now);
            let back = packets(&mut self.server, self.now);
            give(&mut self.client, &back, self.now);
            self.now = self.now.plus_ns(MS);
        }
    }
}

fn events(stack: &mut Stack) -> Vec<(ConnectionId, Happened, Reason)> {
    std::iter::from_fn(|| stack.poll_event())
        .map(|event| (event.connection, event.happened, event.reason))
        .collect()
}

#[test]
fn listener_holds_at_most_backlog_unaccepted_connections() {
    //= RFC 9293 section 3.9.1.1
    //= type=test
    //# Every passive OPEN call either creates a new connection record in
    //# LISTEN state, or it returns an error; it MUST NOT affect any
    //# previously created connection record (MUST-41).
    let mut pair = Pair::new(64);
    pair.server.listen(server_end(), 4).expect("a listener");
    assert_eq!(pair.server.listen(server_end(), 4), Err(CallError::Exists));
    let ids: Vec<_> = (0..10).map(|_| pair.open()).collect();
    for &id in &ids {
        // Whoever answers a cookie that is not taken has to say something again.
        pair.client.write(id, b"hello", pair.now).expect("room");
    }
    pair.talk(20);
    assert_eq!(pair.server.connections(), 4);
    let seen = events(&mut pair.server);
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|(_, happened, _)| happened.has(Happened::ESTABLISHED)));
    // The others come in as their handshakes are repeated.
    for _ in 0..20 {
        pair.talk(1_000);
        events(&mut pair.server);
    }
    assert_eq!(pair.server.connections(), 10);
    assert!(ids.iter().all(|&id| pair.client.state(id) == ConnectionState::Established));
}

#[test]
fn release_of_accepted_connection_frees_no_backlog_entry() {
    let mut pair = Pair::new(64);
    pair.server.listen(server_end(), 2).expect("a listener");
    pair.open();
    pair.talk(3);
    let (seen, ..) = events(&mut pair.server)[0];
    pair.open();
    pair.open();
    pair.talk(3);
    assert_eq!(pair.server.connections(), 3);
    pair.server.abort(seen, pair.now);
    pair.server.release(seen, pair.now);
    assert_eq!(pair.server.connections(), 2);
    let last = pair.open();
    pair.client.write(last, b"hello", pair.now).expect("room");
    pair.talk(20);
    assert_eq!(pair.server.connections(), 2, "two that nobody has seen");
}

#[test]
fn slot_of_unreported_connection_is_reusable() {
    let mut pair = Pair::new(3);
    pair.server.listen(server_end(), 3).expect("a listener");
    let id = pair.open();
    pair.talk(3);
    pair.client.abort(id, pair.now);
    pair.client.release(id, pair.now);
    // Its number still stands in the queue.
    assert_eq!((events(&mut pair.client), pair.client.connections()), (vec![], 0));
    let local = "10.0.0.1:0".parse().expect("an address");
    let opened = (0..4).filter(|_| pair.client.open(local, server_end(), pair.now).is_ok()).count();
    assert_eq!(opened, 3);
}

#[test]
fn open_to_port_without_listener_is_refused() {
    let mut pair = Pair::new(4);
    let id = pair.open();
    pair.talk(3);
    assert_eq!(pair.client.state(id), ConnectionState::Closed);
    assert_eq!(events(&mut pair.client), [(id, Happened::CLOSED, Reason::Refused)]);
    assert_eq!(pair.client.write(id, b"x", pair.now), Err(CallError::NoConnection));
    pair.client.release(id, pair.now);
    assert_eq!(pair.client.connections(), 0);
}

/// Two clients that send the same to the same peer: one defers ACKs; the other takes only the last
/// ACK of each turn, after its output stage. Their output must be identical, byte for byte.
#[test]
fn deferred_acks_are_as_if_those_that_were_merged_had_been_lost() {
    for seed in 0..30 {
        let mut random = SplitMix(seed);
        let mut pair = Pair::new(4);
        pair.client = Stack::new(&Settings { defers_acks: true, host_pages: 64, ..settings(4, 1) });
        let mut prompt = Stack::new(&Settings { defers_acks: false, host_pages: 64, ..settings(4, 1) });
        pair.server.listen(server_end(), 4).expect("a listener");
        let id = pair.open();
        let twin = prompt
            .open("10.0.0.1:0".parse().expect("an address"), server_end(), pair.now)
            .expect("a connection");
        for turn in 0..300 {
            let server_id = events(&mut pair.server).first().map(|event| event.0);
            if pair.client.state(id) == ConnectionState::Established {
                let bytes = vec![7; random.below(20_000) as usize];
                let written = pair.client.write(id, &bytes, pair.now);
                assert_eq!(written, prompt.write(twin, &bytes, pair.now), "seed {seed}, turn {turn}");
            }
            let out = packets(&mut pair.client, pair.now);
            let same = packets(&mut prompt, pair.now);
            assert!(
                out.iter().map(|packet| &packet.bytes).eq(same.iter().map(|packet| &packet.bytes)),
                "seed {seed}, turn {turn}"
            );
            let mut acks = Vec::new();
            for some in out.chunks(1 + random.below(3) as usize) {
                give(&mut pair.server, some, pair.now);
                acks.extend(packets(&mut pair.server, pair.now));
                if let Some(server_id) = server_id {
                    let mut to = vec![0; random.below(9_000) as usize];
                    pair.server.read(server_id, &mut to, pair.now).expect("open");
                }
            }
            pair.now = pair.now.plus_ns(random.below(3) * MS + 1);
            if pair.client.state(id) != ConnectionState::Established {
                give(&mut pair.client, &acks, pair.now);
                give(&mut prompt, &acks, pair.now);
                continue;
            }
            give(&mut pair.client, &acks, pair.now);
            let out = packets(&mut pair.client, pair.now);
            let same = packets(&mut prompt, pair.now);
            assert!(
                out.iter().map(|packet| &packet.bytes).eq(same.iter().map(|packet| &packet.bytes)),
                "seed {seed}, turn {turn}"
            );
            give(&mut pair.server, &out, pair.now);
            give(&mut prompt, &acks[acks.len().saturating_sub(1)..], pair.now);
        }
        let counters = pair.client.counters();
        assert!(counters.acks_merged > 20 && prompt.counters().acks_deferred == 0, "{counters:?}");
    }
}

#[test]
fn time_wait_answers_a_repeated_fin_and_lets_a_new_connection_in() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let local: SocketAddr = "10.0.0.1:45000".parse().expect("an address");
    let id = pair.client.open(local, server_end(), pair.now).expect("a connection");
    pair.talk(3);
    let (server_id, ..) = events(&mut pair.server)[0];
    pair.server.close(server_id, pair.now).expect("open");
    pair.talk(2);
    pair.client.close(id, pair.now).expect("open");
    let fin = packets(&mut pair.client, pair.now);
    give(&mut pair.server, &fin, pair.now);
    assert_eq!((pair.server.state(server_id), pair.server.time_waits()), (ConnectionState::TimeWait, 1));
    packets(&mut pair.server, pair.now);
    // Its ACK is lost: the FIN comes again.
    give(&mut pair.server, &fin, pair.now);
    let answer = packets(&mut pair.server, pair.now);
    assert_eq!(answer.len(), 1);
    give(&mut pair.client, &answer, pair.now);
    packets(&mut pair.client, pair.now);
    assert_eq!(pair.client.state(id), ConnectionState::Closed);
    pair.client.release(id, pair.now);
    pair.now = pair.now.plus_ns(1_000 * MS);
    let again = pair.client.open(local, server_end(), pair.now).expect("a connection");
    pair.talk(3);
    assert_eq!((pair.client.state(again), pair.server.time_waits()), (ConnectionState::Established, 0));
    pair.now = pair.now.plus_ns(61_000 * MS);
    pair.talk(1);
    assert_eq!(pair.client.state(again), ConnectionState::Established);
}

#[test]
fn time_wait_has_time_stamps_only_if_the_connection_had() {
    for stamps in [true, false] {
        let settings = |secret| {
            let base = settings(4, secret);
            Settings { config: Config { stamps, ..base.config }, ..base }
        };
        let (client, server) = (Stack::new(&settings(1)), Stack::new(&settings(2)));
        let mut pair = Pair { client, server, now: Instant(1_000 * MS) };
        pair.server.listen(server_end(), 4).expect("a listener");
        let id = pair.open();
        pair.talk(3);
        let (server_id, ..) = events(&mut pair.server)[0];
        pair.server.close(server_id, pair.now).expect("open");
        pair.talk(2);
        pair.client.close(id, pair.now).expect("open");
        let fin = packets(&mut pair.client, pair.now);
        give(&mut pair.server, &fin, pair.now);
        packets(&mut pair.server, pair.now);
        give(&mut pair.server, &fin, pair.now);
        let answer = packets(&mut pair.server, pair.now);
        let [answer] = &answer[..] else { panic!("{} answers", answer.len()) };
        let segment = parse(&answer.bytes).expect("a segment");
        assert_eq!((segment.flags, segment.options.stamps.is_some()), (Flags::ACK, stamps));
    }
}

#[test]
fn ends_of_two_families_and_a_full_table_are_refused() {
    let mut pair = Pair::new(2);
    let local: SocketAddr = "[::1]:0".parse().expect("an address");
    assert_eq!(pair.client.open(local, server_end(), pair.now), Err(CallError::Families));
    pair.open();
    pair.open();
    let local: SocketAddr = "10.0.0.1:0".parse().expect("an address");
    assert_eq!(pair.client.open(local, server_end(), pair.now), Err(CallError::NoRoom));
}

#[test]
fn slot_reused_while_still_queued_serves_next_connection() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let first = pair.open();
    pair.talk(10);
    events(&mut pair.client);
    // It has something to send and something to tell, and is gone.
    pair.client.write(first, b"never sent", pair.now).expect("room");
    pair.client.abort(first, pair.now);
    pair.client.release(first, pair.now);
    assert_eq!(pair.client.connections(), 0);
    let second = pair.open();
    assert_eq!(second.number(), first.number());
    assert_eq!(events(&mut pair.client), [], "nothing has happened to this one");
    pair.talk(10);
    assert_eq!(events(&mut pair.client), [(second, Happened::ESTABLISHED, Reason::Finished)]);
    pair.client.write(second, b"hello", pair.now).expect("room");
    pair.talk(60);
    assert_eq!(pair.client.unacked_bytes(second), 0);
    // All of them, again and again: each number is given out once.
    for _ in 0..3 {
        let ids: Vec<_> = (0..3).map(|_| pair.open()).collect();
        let mut numbers: Vec<_> = ids.iter().map(|id| id.number()).chain([second.number()]).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2, 3]);
        for id in ids {
            pair.client.abort(id, pair.now);
            pair.client.release(id, pair.now);
        }
    }
    assert_eq!((pair.client.connections(), pair.client.state(second)), (1, ConnectionState::Established));
}

#[test]
fn acknowledgments_that_stand_in_line_are_all_processed_in_their_turn() {
    let mut pair = Pair::new(64);
    pair.server.listen(server_end(), 64).expect("a listener");
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend((0..14).map(|_| pair.open()));
        pair.talk(10);
    }
    for &id in &ids {
        // Two full segments, which are acknowledged at once.
        pair.client.write(id, &[7; 2 * 1448], pair.now).expect("room");
    }
    let out = packets(&mut pair.client, pair.now);
    give(&mut pair.server, &out, pair.now);
    let acks = packets(&mut pair.server, pair.now.plus_ns(MS));
    assert_eq!(acks.len(), ids.len());
    // None of them, nor more than the line has room for, is lost on the way to the turn's end.
    pair.now = pair.now.plus_ns(MS);
    give(&mut pair.client, &acks, pair.now);
    assert_eq!(pair.client.next_due(pair.now), Some(pair.now), "they wait to be processed");
    pair.client.protocol(pair.now);
    pair.client.output(pair.now, &mut |_| FrameDisposal::Copied);
    assert!(ids.iter().all(|&id| pair.client.unacked_bytes(id) == 0));
}

#[test]
fn acknowledgments_that_are_merged_report_the_blocks_of_all() {
    let in_flight = |defers_acks| {
        let client = Stack::new(&Settings { defers_acks, ..settings(4, 1) });
        let mut pair = Pair { client, server: Stack::new(&settings(4, 2)), now: Instant(1_000 * MS) };
        pair.server.listen(server_end(), 4).expect("a listener");
        let id = pair.open();
        pair.talk(3);
        pair.client.write(id, &[7; 10 * 1448], pair.now).expect("room");
        let out = packets(&mut pair.client, pair.now);
        assert_eq!(out.len(), 10);
        // Every second one arrives. An option with time stamps has room for three blocks, the newest: the first is in the first ACK alone.
        let mut acks = Vec::new();
        for packet in out.iter().skip(1).step_by(2).take(4) {
            give(&mut pair.server, std::slice::from_ref(packet), pair.now);
            acks.extend(packets(&mut pair.server, pair.now));
        }
        let blocks = |packet: &Packet| parse(&packet.bytes).expect("a segment").options.sacks.blocks().len();
        assert_eq!(acks.iter().map(blocks).collect::<Vec<_>>(), [1, 2, 3, 3]);
        pair.now = pair.now.plus_ns(20 * MS);
        give(&mut pair.client, &acks, pair.now);
        if defers_acks {
            pair.client.output(pair.now, &mut |_| panic!("nothing is ready before they are processed"));
        }
        assert_eq!(pair.client.counters().acks_merged, if defers_acks { 3 } else { 0 });
        let in_flight = pair.client.info(id.number(), pair.now).expect("a connection").1.in_flight_bytes;
        let seq = |packet: &Packet| parse(&packet.bytes).expect("a segment").seq;
        let again: Vec<Seq> = packets(&mut pair.client, pair.now).iter().map(seq).collect();
        assert!(again.len() > 1 && again[0] == seq(&out[0]), "what is missing goes again: {again:?}");
        assert!(!again.contains(&seq(&out[1])), "what the first ACK has reported does not");
        in_flight
    };
    let (merged, at_once) = (in_flight(true), in_flight(false));
    assert_eq!(merged, at_once);
    assert!(merged <= 6 * 1448, "{merged}");
}

/// A segment with these flags between these ends, as it comes from outside.
fn from_outside(source: &str, destination: &str, flags: Flags) -> Packet {
    with_payload(source, destination, Head { flags, window: 1_000, ..Head::default() }, b"")
}

fn with_payload(source: &str, destination: &str, head: Head, payload: &[u8]) -> Packet {
    let (source, destination): (SocketAddr, SocketAddr) =
        (source.parse().expect("an address"), destination.parse().expect("an address"));
    let flow = FlowKey::new(source, destination).expect("of one family");
    let mut bytes = vec![0; 60];
    let body = Body::new(sum16(payload), payload.len() as u32);
    let len = Template::new(&flow).write(&head, body, &mut bytes);
    bytes.truncate(len);
    bytes.extend_from_slice(payload);
    Packet {
        source: source.ip(),
        destination: destination.ip(),
        is_capable: false,
        is_marked: false,
        is_damaged: false,
        bytes,
    }
}

#[test]
fn open_and_syn_with_non_unicast_address_are_rejected() {
    let mut pair = Pair::new(4);
    //= RFC 9293 section 3.9.1.1
    //= type=test
    //# A TCP implementation MUST reject as an error a local OPEN call for an
    //# invalid remote IP address (e.g., a broadcast or multicast address)
    //# (MUST-46).
    let local: SocketAddr = "10.0.0.1:0".parse().expect("an address");
    for remote in ["255.255.255.255:80", "224.0.0.1:80", "239.255.0.1:80", "0.0.0.0:80"] {
        let remote = remote.parse().expect("an address");
        assert_eq!(pair.client.open(local, remote, pair.now), Err(CallError::Address), "{remote}");
    }
    //= RFC 9293 section 3.9.2.3
    //= type=test
    //# An incoming SYN with an invalid source address MUST be ignored
    //# |  either by TCP or by the IP layer [(MUST-63)] (see
    //# |  Section 3.2.1.3).
    //= RFC 9293 section 3.9.2.3
    //= type=test
    //# A TCP implementation MUST silently discard an incoming SYN segment
    //# |  that is addressed to a broadcast or multicast address [(MUST-57)].
    pair.server.listen("0.0.0.0:80".parse().expect("an address"), 4).expect("a listener");
    for (source, destination) in [
        ("224.0.0.1:9", "10.0.0.2:80"),
        ("255.255.255.255:9", "10.0.0.2:80"),
        ("0.0.0.0:9", "10.0.0.2:80"),
        ("10.0.0.1:9", "224.0.0.1:80"),
        ("10.0.0.1:9", "255.255.255.255:80"),
        // Without a listener there is no reset either.
        ("10.0.0.1:9", "255.255.255.255:81"),
    ] {
        give(&mut pair.server, &[from_outside(source, destination, Flags::SYN)], pair.now);
        assert_eq!((packets(&mut pair.server, pair.now).len(), pair.server.requests()), (0, 0), "{source}");
    }
    give(&mut pair.server, &[from_outside("10.0.0.1:9", "10.0.0.2:80", Flags::SYN)], pair.now);
    assert_eq!((packets(&mut pair.server, pair.now).len(), pair.server.requests()), (1, 1));
}

#[test]
fn connection_keeps_local_address_and_sends_mss_in_syn_only() {
    let mut pair = Pair::new(4);
    pair.server.listen("0.0.0.0:80".parse().expect("an address"), 4).expect("a listener");
    //= RFC 9293 section 3.9.1.1
    //= type=test
    //# The optional "local IP address" parameter MUST be supported to allow
    //# the specification of the local IP address (MUST-43).
    let local: SocketAddr = "10.0.0.77:0".parse().expect("an address");
    let remote: SocketAddr = "10.0.0.99:80".parse().expect("an address");
    let id = pair.client.open(local, remote, pair.now).expect("a connection");
    assert_eq!(pair.client.ends(id).map(|(local, _)| local.ip()), Some(local.ip()));
    pair.client.write(id, &[7; 20_000], pair.now).expect("room");
    let mut count = 0;
    for turn in 0..30 {
        for (address, is_client) in [(local.ip(), true), (remote.ip(), false)] {
            let (from, to) = match is_client {
                true => (&mut pair.client, &mut pair.server),
                false => (&mut pair.server, &mut pair.client),
            };
            let out = packets(from, pair.now);
            for packet in &out {
                //= RFC 9293 section 3.9.1.1
                //= type=test
                //# At all other times, a previous segment has either been sent or
                //# received on this connection, and TCP implementations MUST use the
                //# same local address that was used in those previous segments (MUST-
                //# 45).
                assert_eq!(packet.source, address);
                //= RFC 9293 section 3.2
                //= type=test
                //# This field may be
                //# sent in the initial connection request (i.e., in segments with the
                //# SYN control bit set) and MUST NOT be sent in other segments (MUST-
                //# 65).
                let segment = parse(&packet.bytes).expect("a segment");
                assert_eq!(segment.options.mss.is_some(), segment.flags.has(Flags::SYN));
                count += 1;
            }
            give(to, &out, pair.now);
        }
        if turn == 20 {
            pair.client.close(id, pair.now).expect("open");
        }
        pair.now = pair.now.plus_ns(50 * MS);
    }
    assert!(count > 15, "{count} segments");
}

#[test]
fn listen_on_port_of_connection_in_syn_sent_succeeds() {
    //= RFC 9293 section 3.9.1.1
    //= type=test
    //# A TCP implementation that supports multiple concurrent connections
    //# MUST provide an OPEN call that will functionally allow an application
    //# to LISTEN on a port while a connection block with the same local port
    //# is in SYN-SENT or SYN-RECEIVED state (MUST-42).
    let mut pair = Pair::new(4);
    let here: SocketAddr = "10.0.0.1:4000".parse().expect("an address");
    let id = pair.client.open(here, server_end(), pair.now).expect("a connection");
    let syn = packets(&mut pair.client, pair.now);
    assert_eq!((syn.len(), pair.client.state(id)), (1, ConnectionState::SynSent));
    pair.client.listen(here, 4).expect("a listener beside it");
    give(&mut pair.server, &syn, pair.now);
    // Another peer gets in.
    let local: SocketAddr = "10.0.0.2:0".parse().expect("an address");
    let other = pair.server.open(local, here, pair.now).expect("a connection");
    pair.talk(3);
    assert_eq!(
        (pair.server.state(other), pair.client.state(id)),
        (ConnectionState::Established, ConnectionState::Closed)
    );
    let reasons: Vec<_> = events(&mut pair.client).iter().map(|event| event.2).collect();
    assert!(reasons.contains(&Reason::Refused), "nobody listens at the other end: {reasons:?}");
}

#[test]
fn segments_of_one_turn_are_acknowledged_together() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let id = pair.open();
    pair.talk(3);
    pair.client.write(id, &[7; 12_000], pair.now).expect("room");
    let out = packets(&mut pair.client, pair.now);
    assert!(out.len() >= 8, "{}", out.len());
    //= RFC 9293 section 3.10.7.4
    //= type=test
    //# In general, the processing of received segments MUST be
    //# implemented to aggregate ACK segments whenever possible
    //# (MUST-58).  For example, if the TCP endpoint is processing a
    //# series of queued segments, it MUST process them all before
    //# sending any ACK segments (MUST-59).
    give(&mut pair.server, &out, pair.now);
    let acks = packets(&mut pair.server, pair.now);
    assert_eq!(acks.len(), 1);
    let (ack, last) = (parse(&acks[0].bytes), parse(&out[out.len() - 1].bytes));
    let (ack, last) = (ack.expect("a segment"), last.expect("a segment"));
    assert_eq!(ack.ack, last.seq + last.payload.len() as u32);
}

#[test]
fn keep_alive_probes_only_connections_that_enabled_it() {
    let quick = |secret| {
        let mut settings = settings(4, secret);
        settings.config.keep_alive_ns = 10_000 * MS;
        Stack::new(&settings)
    };
    let mut pair = Pair { client: quick(1), server: quick(2), now: Instant(1_000 * MS) };
    pair.server.listen(server_end(), 4).expect("a listener");
    let ids = [pair.open(), pair.open()];
    pair.talk(3);
    //= RFC 9293 section 3.8.4
    //= type=test
    //# If
    //# keep-alives are included, the application MUST be able to turn them
    //# on or off for each TCP connection (MUST-24), and they MUST default to
    //# off (MUST-25).
    let probes = |pair: &mut Pair| {
        let before = pair.client.counters().keep_alives;
        for _ in 0..50 {
            pair.now = pair.now.plus_ns(1_000 * MS);
            pair.talk(1);
        }
        pair.client.counters().keep_alives - before
    };
    assert_eq!(probes(&mut pair), 0);
    pair.client.keep_alive(ids[0], true, pair.now);
    let of_one = probes(&mut pair);
    assert!((3..=6).contains(&of_one), "{of_one}");
    pair.client.keep_alive(ids[1], true, pair.now);
    let of_both = probes(&mut pair);
    assert!((2 * of_one - 2..=2 * of_one + 2).contains(&of_both), "{of_both}");
    pair.client.keep_alive(ids[0], false, pair.now);
    pair.client.keep_alive(ids[1], false, pair.now);
    assert_eq!(probes(&mut pair), 0);
}

#[test]
fn user_timeout_applies_to_its_connection_only() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let ids = [pair.open(), pair.open()];
    pair.talk(3);
    pair.client.user_timeout(ids[0], 5_000 * MS, pair.now);
    for id in ids {
        pair.client.write(id, b"abc", pair.now).expect("room");
    }
    events(&mut pair.client);
    for _ in 0..60 {
        packets(&mut pair.client, pair.now);
        pair.now = pair.now.plus_ns(100 * MS);
    }
    assert_eq!(pair.client.state(ids[0]), ConnectionState::Closed);
    assert_eq!(pair.client.state(ids[1]), ConnectionState::Established);
    assert!(events(&mut pair.client).iter().any(|event| event.2 == Reason::TimedOut));
}

/// The information shown about a connection while everything that it sends is lost, and when all
/// has arrived.
#[test]
fn info_reports_connection_state_during_and_after_loss() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let id = pair.open();
    let look = |pair: &Pair| pair.client.info(id.number(), pair.now).expect("a connection").1;
    assert_eq!(
        (pair.client.capacity(), look(&pair).state, look(&pair).rtt_ns),
        (4, ConnectionState::SynSent, None)
    );
    pair.talk(3);
    let open = look(&pair);
    assert_eq!(
        (open.state, open.retransmitted, open.ssthresh_bytes),
        (ConnectionState::Established, 0, None)
    );
    assert!(open.has_sack && open.has_stamps && !open.is_recovering && open.rtt_ns.is_some(), "{open:?}");
    assert!(open.cwnd_bytes >= u32::from(open.mss_bytes) && open.send_window_bytes > 1000, "{open:?}");
    pair.client.write(id, b"abc", pair.now).expect("room");
    let before = pair.now;
    for _ in 0..30 {
        packets(&mut pair.client, pair.now);
        pair.now = pair.now.plus_ns(100 * MS);
    }
    let stuck = look(&pair);
    assert_eq!((stuck.unacked_bytes, stuck.unsent_bytes), (3, 0));
    assert!(stuck.is_recovering && stuck.retransmitted >= 2 && stuck.ssthresh_bytes.is_some(), "{stuck:?}");
    assert_eq!(u64::from(stuck.retransmitted), pair.client.counters().retransmitted);
    assert!(stuck.silent_ns >= pair.now.ns_since(before) && stuck.rto_ns > open.rto_ns, "{stuck:?}");
    pair.talk(4_000);
    let done = look(&pair);
    assert!(done.unacked_bytes == 0 && !done.is_recovering && done.silent_ns < stuck.silent_ns + 4_000 * MS);
    let (_, there) = pair.server.info(0, pair.now).expect("the other end");
    assert_eq!((there.unread_bytes, there.retransmitted), (3, 0));
    assert_eq!(pair.client.info(3, pair.now), None);
    assert_eq!(pair.client.info(4, pair.now), None, "a number beyond the capacity");
}

#[test]
fn next_due_is_now_with_pending_work_else_next_timer() {
    let mut pair = Pair::new(4);
    assert_eq!(pair.client.next_due(pair.now), None);
    // A connection that is ready.
    pair.server.listen(server_end(), 4).expect("a listener");
    let id = pair.open();
    assert_eq!(pair.client.next_due(pair.now), Some(pair.now));
    let syn = packets(&mut pair.client, pair.now);
    let second = pair.client.next_due(pair.now).expect("the SYN's timer");
    assert!(second > pair.now);
    // An answer to a peer without a connection.
    give(&mut pair.client, &[from_outside("10.0.0.9:9", "10.0.0.1:9", Flags::SYN)], pair.now);
    assert_eq!(pair.client.next_due(pair.now), Some(pair.now));
    assert_eq!(packets(&mut pair.client, pair.now).len(), 1, "a reset");
    assert_eq!(pair.client.next_due(pair.now), Some(second));
    // A request, and its timer.
    give(&mut pair.server, &syn, pair.now);
    let syn_ack = packets(&mut pair.server, pair.now);
    assert!(pair.server.next_due(pair.now).is_some_and(|due| due > pair.now));
    give(&mut pair.client, &syn_ack, pair.now);
    pair.talk(3);
    // A noted ACK alone.
    pair.client.write(id, b"abc", pair.now).expect("room");
    let data = packets(&mut pair.client, pair.now);
    give(&mut pair.server, &data, pair.now);
    let mut ack = packets(&mut pair.server, pair.now);
    assert!(ack.is_empty());
    pair.now = pair.server.next_due(pair.now).expect("a delayed ACK");
    ack.extend(packets(&mut pair.server, pair.now));
    assert_eq!(ack.len(), 1);
    packets(&mut pair.client, pair.now);
    assert_ne!(pair.client.next_due(pair.now), Some(pair.now));
    give(&mut pair.client, &ack, pair.now);
    assert_eq!(pair.client.next_due(pair.now), Some(pair.now));
    assert_eq!(pair.client.counters().acks_deferred, 0, "it is noted and no more");
}

#[test]
fn segment_ending_below_window_does_not_complete_handshake() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let (caller, server) = ("10.0.0.1:9", "10.0.0.2:80");
    give(&mut pair.server, &[from_outside(caller, server, Flags::SYN)], pair.now);
    let syn_ack = packets(&mut pair.server, pair.now);
    let ack = parse(&syn_ack[0].bytes).expect("a segment").seq + 1;
    let head = Head { seq: Seq(0), ack, flags: Flags::ACK, window: 1_000, ..Head::default() };
    // The number of the SYN, which was taken already.
    give(&mut pair.server, &[with_payload(caller, server, head, b"a")], pair.now);
    assert_eq!((pair.server.requests(), pair.server.connections()), (1, 0));
    let answer = packets(&mut pair.server, pair.now);
    assert_eq!(answer.len(), 1);
    let answer = parse(&answer[0].bytes).expect("a segment");
    assert_eq!((answer.flags, answer.seq, answer.ack), (Flags::ACK, ack, Seq(1)));
    // Its second byte is the first of the window.
    give(&mut pair.server, &[with_payload(caller, server, head, b"ab")], pair.now);
    assert_eq!((pair.server.requests(), pair.server.connections()), (0, 1));
    let (id, ..) = events(&mut pair.server)[0];
    let mut to = [0; 9];
    assert_eq!(pair.server.read(id, &mut to, pair.now), Ok(1));
    assert_eq!(to[0], b'b');
}

#[test]
fn icmp_error_reaches_only_connection_of_quoted_segment() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 4).expect("a listener");
    let ids = [pair.open(), pair.open()];
    pair.talk(3);
    events(&mut pair.client);
    for id in ids {
        pair.client.write(id, b"hello", pair.now).expect("room");
    }
    let out = packets(&mut pair.client, pair.now);
    assert_eq!(out.len(), 2);
    for (packet, id) in out.iter().zip(ids) {
        let segment = parse(&packet.bytes).expect("a segment");
        let (local, remote) = pair.client.ends(id).expect("open");
        assert_eq!(segment.source, local.port());
        let kind = IcmpKind::Undelivered(Undelivered::Host);
        let error = IcmpError { local, remote, seq: segment.seq, kind };
        //= RFC 9293 section 3.9.2.2
        //= type=test
        //# TCP implementations MUST act on an ICMP error message passed up from
        //# the IP layer, directing it to the connection that created the error
        //# (MUST-54).
        pair.client.icmp(&error, pair.now);
        assert_eq!(events(&mut pair.client), [(id, Happened::UNDELIVERED, Reason::Finished)]);
        assert_eq!(pair.client.undelivered(id), Some(Undelivered::Host));
        // With the ends swapped, it matches no connection here.
        let error = IcmpError { local: remote, remote: local, ..error };
        pair.client.icmp(&error, pair.now);
        assert_eq!(events(&mut pair.client), []);
    }
    assert_eq!((pair.client.counters().icmp_in, pair.client.counters().icmp_ignored), (4, 2));
}

#[test]
fn syn_cookie_offers_options_only_with_timestamps() {
    let mut pair = Pair::new(4);
    pair.server.listen(server_end(), 1).expect("a listener");
    // One may wait: whoever else comes gets a cookie.
    give(&mut pair.server, &[from_outside("10.0.0.9:9", "10.0.0.2:80", Flags::SYN)], pair.now);
    packets(&mut pair.server, pair.now);
    let everything = TcpOptions {
        mss: Some(1200),
        scale: Some(3),
        is_sack_permitted: true,
        stamps: Some(Stamps { value: 7_000, echo: 0 }),
        ..TcpOptions::default()
    };
    let flags = Flags::SYN.with(Flags::ECE).with(Flags::CWR);
    for (options, is_remembered) in [(everything, true), (TcpOptions { stamps: None, ..everything }, false)] {
        let head = Head { flags, options, window: 1_000, ..Head::default() };
        give(&mut pair.server, &[with_payload("10.0.0.1:9", "10.0.0.2:80", head, b"")], pair.now);
        let answer = packets(&mut pair.server, pair.now);
        assert_eq!((answer.len(), pair.server.requests()), (1, 1));
        let answer = parse(&answer[0].bytes).expect("a segment");
        let offered = answer.options;
        assert_eq!(offered.scale.is_some(), is_remembered);
        assert_eq!((offered.is_sack_permitted, offered.stamps.is_some()), (is_remembered, is_remembered));
        assert_eq!(answer.flags.has(Flags::ECE), is_remembered);
    }
    assert_eq!(pair.server.counters().cookies_sent, 2);
}

#[test]
fn connections_that_are_being_opened_count_against_the_backlog() {
    let mut pair = Pair::new(4);
    let mut without_cookies = settings(4, 2);
    without_cookies.cookies = false;
    pair.server = Stack::new(&without_cookies);
    pair.server.listen(server_end(), 2).expect("a listener");
    let first = [pair.open(), pair.open()];
    let syns = packets(&mut pair.client, pair.now);
    give(&mut pair.server, &syns, pair.now);
    let answers = packets(&mut pair.server, pair.now);
    assert_eq!((answers.len(), pair.server.requests()), (2, 2));
    // The end of one handshake and the begin of a third come together: there is no moment in which anybody could look at the first.
    give(&mut pair.client, &answers[..1], pair.now);
    let third = pair.open();
    let both = packets(&mut pair.client, pair.now);
    assert_eq!(both.len(), 2);
    give(&mut pair.server, &both, pair.now);
    let answers = packets(&mut pair.server, pair.now);
    assert!(answers.iter().all(|packet| !parse(&packet.bytes).expect("a segment").flags.has(Flags::SYN)));
    assert_eq!((pair.server.requests(), pair.server.counters().syns_dropped), (1, 1));
    // Once that has been polled there is room, and the SYN is sent again.
    assert_eq!(events(&mut pair.server).len(), 1);
    for _ in 0..3_000 {
        pair.talk(1);
        events(&mut pair.server);
    }
    for id in first.into_iter().chain([third]) {
        assert_eq!(pair.client.state(id), ConnectionState::Established);
    }
}

/// Three callers of a listener that has room for two: the third was answered with a cookie.
fn a_cookie_that_finds_no_room(requests: u32) -> (Pair, ConnectionId) {
    let mut pair = Pair::new(8);
    pair.server = Stack::new(&Settings { requests, ..settings(8, 2) });
    pair.server.listen(server_end(), 2).expect("a listener");
    let ids = [pair.open(), pair.open(), pair.open()];
    pair.talk(3);
    assert!(ids.iter().all(|&id| pair.client.state(id) == ConnectionState::Established), "all believe it");
    assert_eq!((pair.server.connections(), pair.server.counters().overflows), (2, 1));
    (pair, ids[2])
}

#[test]
fn cookie_reply_with_full_backlog_is_admitted_later() {
    let (mut pair, _) = a_cookie_that_finds_no_room(16);
    assert_eq!(pair.server.requests(), 1);
    // Still no room: data from the peer is an attempt, and the data is lost.
    pair.talk(2_000);
    assert_eq!((pair.server.connections(), pair.server.requests()), (2, 1));
    assert_eq!(events(&mut pair.server).len(), 2);
    pair.talk(4_000);
    assert_eq!((pair.server.connections(), pair.server.requests()), (3, 0));
    let third = events(&mut pair.server);
    assert_eq!(third.len(), 1);
    // It is a connection like the others.
    pair.server.write(third[0].0, b"welcome", pair.now).expect("room");
    pair.talk(3);
    assert_eq!(events(&mut pair.client).iter().filter(|event| event.1.has(Happened::READABLE)).count(), 1);
}

#[test]
fn cookie_reply_without_free_slot_is_finally_reset() {
    // After the last try: 1 + 2 + 4 + 8 + 16 + 32 s.
    let (mut pair, third) = a_cookie_that_finds_no_room(16);
    pair.talk(62_000);
    assert_eq!(pair.client.state(third), ConnectionState::Established);
    pair.talk(2_000);
    let closed = |pair: &mut Pair| {
        let all = events(&mut pair.client);
        all.into_iter().filter(|event| event.1.has(Happened::CLOSED)).collect::<Vec<_>>()
    };
    assert_eq!(closed(&mut pair).iter().map(|event| event.2).collect::<Vec<_>>(), [Reason::Reset]);
    assert_eq!((pair.client.state(third), pair.server.requests()), (ConnectionState::Closed, 0));
    // At once where there is nothing to remember it in.
    let mut pair = Pair::new(8);
    pair.server = Stack::new(&Settings { requests: 1, ..settings(8, 2) });
    pair.server.listen(server_end(), 1).expect("a listener");
    for _ in 0..3 {
        pair.open();
    }
    pair.talk(4);
    assert_eq!((pair.server.connections(), pair.server.requests()), (1, 1));
    assert_eq!(closed(&mut pair).iter().map(|event| event.2).collect::<Vec<_>>(), [Reason::Reset]);
    assert_eq!(pair.server.counters().overflows, 2);
}
