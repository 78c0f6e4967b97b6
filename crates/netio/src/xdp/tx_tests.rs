//! Devices over rings in memory: frames byte for byte against an independent builder, and how long
//! memory is held.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, IpHeaders, IpNumber, Ipv4Header, Ipv6Header, PacketBuilder, PacketHeaders};
use millrace_core::ids::{ConnId, TitleRef};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentContent, HeapRegion, Lease};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::LinkHeader;
use proptest::prelude::*;
use proptest::strategy::Strategy as _;

use super::super::strategy::Strategy;
use super::*;
use crate::route::Hop;

const SEGMENT: usize = 1328;
const VIEWERS: [&str; 2] = ["10.9.8.7:5004", "[2001:db8::9]:5006"];

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn bytes(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// An arena with two media extents, the first filled with packets, and `aside` extents for frames.
fn film(aside: u32, packet_bytes: usize, packets: u32) -> (Arc<ExtentArena>, Lease) {
    let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(2 + aside as usize)), aside);
    let layout = WireLayout::new(packet_bytes).unwrap();
    let mut fill = arena.fill(1).unwrap();
    let memory = fill.bytes_mut();
    let slot = layout.slot_bytes();
    for place in 0..packets {
        let packet = bytes(place, slot);
        memory[place as usize * slot..][..slot].copy_from_slice(&packet);
        let meta = PacketMeta::new(sum16(&packet[12..]), 0, MediaTicks(0));
        memory[layout.meta_offset(place, packets)..][..8].copy_from_slice(&meta.to_bytes());
    }
    fill.publish();
    let content = ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets,
        last_packet_bytes: packet_bytes as u16,
        layout,
        spare: 0,
    };
    let lease = arena.lend(1, content).unwrap();
    (arena, lease)
}

fn hop(is_v4: bool, vlan: Option<u16>) -> Hop {
    Hop {
        if_index: 7,
        link: LinkHeader { destination: [2, 0, 0, 0, 0, 9], source: [2, 0, 0, 0, 0, 1], vlan },
        source: if is_v4 { [10, 0, 0, 1].into() } else { IpAddr::V6("2001:db8::1".parse().unwrap()) },
        mtu: 1500,
        hop_limit: 61,
        usable: true,
        generation: 0,
    }
}

fn hops(vlan: Option<u16>) -> HopTable {
    HopTable::fixed(VIEWERS.map(|v| (addr(v).ip(), hop(addr(v).is_ipv4(), vlan))).into())
}

fn config(arena: &Arc<ExtentArena>, strategy: Strategy) -> XdpConfig {
    XdpConfig {
        interface: "7".into(),
        queue: 0,
        arena: Arc::clone(arena),
        strategy: Some(strategy),
        streams: 4,
        port: 6970,
        rtcp_port: 6971,
        tx_budget: 64,
    }
}

fn stream(index: u32) -> StreamId {
    StreamId { index, generation: 0 }
}

fn udp(to: &str) -> Dest {
    Dest::udp(addr(to), Some(addr(to).port() + 1))
}

/// Entries with or without the place that they came from.
struct Entries<'a>(Vec<(Transmit<'a>, Option<PayloadSource<'a>>)>);

impl TransmitBatch for Entries<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        self.0[index].0
    }
    fn source(&self, index: usize) -> Option<PayloadSource<'_>> {
        self.0[index].1
    }
}

/// `count` packets of the title to a viewer.
fn wire<'a>(
    index: u32,
    to: &str,
    lease: &'a Lease,
    place: u32,
    count: u32,
) -> (Transmit<'a>, Option<PayloadSource<'a>>) {
    let segment = lease.content().layout.slot_bytes();
    let payload = Payload::Wire { bytes: lease.wire(place, count), segment };
    (Transmit { stream: stream(index), dest: udp(to), payload }, Some(PayloadSource { lease, place }))
}

fn send(tx: &mut XdpTx, entries: Vec<(Transmit<'_>, Option<PayloadSource<'_>>)>) -> Vec<SendOutcome> {
    let mut outcomes = vec![SendOutcome::Closed { errno: -1 }; entries.len()];
    tx.send(&Entries(entries), &mut outcomes);
    outcomes
}

/// The same frame by an independent implementation. The identification is ours to choose, so it is
/// taken over.
fn oracle(frame: &[u8], to: &str, vlan: Option<u16>, port: u16, payload: &[u8]) -> Vec<u8> {
    let to = addr(to);
    let hop = hop(to.is_ipv4(), vlan);
    let builder = PacketBuilder::ethernet2(hop.link.source, hop.link.destination);
    let header = PacketHeaders::from_ethernet_slice(frame).expect("a frame that parses").net;
    let ip = match (hop.source, to.ip(), header) {
        (IpAddr::V4(source), IpAddr::V4(to), Some(etherparse::NetHeaders::Ipv4(is, _))) => {
            let length = (payload.len() + 8) as u16;
            let mut header =
                Ipv4Header::new(length, hop.hop_limit, IpNumber::UDP, source.octets(), to.octets()).unwrap();
            header.identification = is.identification;
            header.dont_fragment = true;
            IpHeaders::Ipv4(header, Default::default())
        }
        (IpAddr::V6(source), IpAddr::V6(to), Some(etherparse::NetHeaders::Ipv6(..))) => {
            let header = Ipv6Header {
                hop_limit: hop.hop_limit,
                source: source.octets(),
                destination: to.octets(),
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Default::default())
        }
        other => panic!("{other:?}"),
    };
    let mut out = Vec::new();
    match vlan {
        Some(id) => {
            let builder = builder.vlan(etherparse::VlanHeader::Single(etherparse::SingleVlanHeader {
                vlan_id: id.try_into().unwrap(),
                ether_type: EtherType(0),
                ..Default::default()
            }));
            builder.ip(ip).udp(port, to.port()).write(&mut out, payload).unwrap();
        }
        None => builder.ip(ip).udp(port, to.port()).write(&mut out, payload).unwrap(),
    }
    out
}

#[test]
fn xdp_frames_match_independent_builder_for_all_strategies() {
    for (strategy, vlan, to) in Strategy::ALL
        .into_iter()
        .flat_map(|s| [None, Some(77)].map(|v| (s, v)))
        .flat_map(|(s, v)| VIEWERS.map(|a| (s, v, a)))
    {
        let (arena, lease) = film(3, 1316, 196);
        let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, strategy), hops(vlan)).unwrap();
        assert_eq!(tx.strategy(), strategy);
        let (headers, report) = (bytes(999, 12 * 30), bytes(5, 76));
        let plain = wire(0, to, &lease, 160, 36);
        let (mut patched, source) = wire(1, to, &lease, 10, 30);
        patched.payload = Payload::Patched { headers: &headers, bytes: lease.wire(10, 30), segment: SEGMENT };
        let rtcp = Transmit { stream: stream(0), dest: udp(to), payload: Payload::Rtcp(&report) };
        // The same from memory without a known source, with odd lengths, and shorter than an RTP
        // header.
        let loose = bytes(6, 3 * SEGMENT + 7);
        let mut unknown = plain.0;
        unknown.payload = Payload::Wire { bytes: &loose, segment: SEGMENT };
        let entries = vec![plain, (patched, source), (rtcp, None), (unknown, None)];
        let mut wanted: Vec<(u16, Vec<u8>)> =
            lease.wire(160, 36).chunks(SEGMENT).map(|d| (6970, d.to_vec())).collect();
        let pairs = headers.chunks(12).zip(lease.wire(10, 30).chunks(SEGMENT));
        wanted.extend(pairs.map(|(h, d)| (6970, [h, &d[12..]].concat())));
        wanted.push((6971, report.clone()));
        wanted.extend(loose.chunks(SEGMENT).map(|d| (6970, d.to_vec())));
        assert_eq!(send(&mut tx, entries), [SendOutcome::Sent; 4]);
        let mut got = Vec::new();
        while let Some(packet) = nic.take() {
            let is_chained = packet.descriptors.len() > 1;
            assert_eq!(is_chained, strategy.is_chained() && got.len() < 66, "datagram {}", got.len());
            got.push(packet);
        }
        assert_eq!((got.len(), nic.invalid_descriptors()), (wanted.len(), 0));
        for (packet, (port, datagram)) in got.iter().zip(&wanted) {
            let rtcp_to = format!("{}", SocketAddr::new(addr(to).ip(), addr(to).port() + 1));
            let to = if *port == 6971 { &rtcp_to } else { to };
            assert!(
                packet.frame == oracle(&packet.frame, to, vlan, *port, datagram),
                "{strategy} {vlan:?} {to}"
            );
            nic.complete(packet);
        }
        assert!(!tx.poll(), "all is done");
        let counters = tx.counters();
        let chained = if strategy.is_chained() { 66 } else { 0 };
        assert_eq!((counters.datagrams, counters.chained, counters.staged), (71, chained, 71 - chained));
        assert_eq!(counters.bytes, wanted.iter().map(|(_, d)| d.len() as u64).sum::<u64>());
        assert_eq!((counters.entries, counters.batches, counters.rows_built), (4, 1, 2));
        assert_eq!(counters.stray_completions, 0);
    }
}

#[test]
fn chained_lease_is_held_until_last_completion() {
    let (arena, lease) = film(2, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
    let entries = VIEWERS.map(|to| wire(u32::from(to.contains(']')), to, &lease, 0, 5));
    assert_eq!(send(&mut tx, entries.into()), [SendOutcome::Sent; 2]);
    drop(lease);
    let packets: Vec<_> = std::iter::from_fn(|| nic.take()).collect();
    assert_eq!(packets.len(), 10);
    for packet in &packets {
        assert!(tx.poll());
        assert_eq!((arena.leases(1), arena.reclaim(1)), (1, false));
        assert_eq!(tx.counters().held_leases, 1);
        nic.complete(packet);
    }
    assert!(!tx.poll());
    let counters = tx.counters();
    assert_eq!((counters.held_leases, counters.held_leases_max, counters.completions), (0, 1, 20));
    assert!(arena.reclaim(1), "nobody holds it any more");
}

#[test]
fn staged_lease_is_released_immediately() {
    let (arena, lease) = film(1, 1316, 196);
    let (mut tx, _nic) = XdpTx::over_memory(config(&arena, Strategy::Staging), hops(None)).unwrap();
    assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 9)]), [SendOutcome::Sent]);
    drop(lease);
    assert!(arena.reclaim(1));
}

/// A device that takes packets and keeps them: nothing it has is written again, and entries are blocked exactly.
#[test]
fn outstanding_frames_are_not_rewritten_until_completion() {
    for strategy in Strategy::ALL {
        let (arena, lease) = film(2, 1316, 196);
        let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, strategy), hops(None)).unwrap();
        let (mut sent, mut place) = (0, 0);
        let mut held = Vec::new();
        let blocked = loop {
            let outcome = send(&mut tx, vec![wire(0, VIEWERS[0], &lease, place, 49)])[0];
            held.extend(std::iter::from_fn(|| nic.take()));
            match outcome {
                SendOutcome::Sent => sent += 49,
                SendOutcome::Blocked { taken } => break usize::from(taken),
                other => panic!("{other:?}"),
            }
            place = (place + 49) % 196;
        };
        sent += blocked;
        assert_eq!(held.len(), sent);
        let frames: BTreeSet<u64> = held.iter().map(|p| p.descriptors[0].address).collect();
        assert_eq!(frames.len(), sent, "{strategy}: each in a frame of its own");
        // One header frame for each datagram, or 128 full frames in each of the two extents.
        assert_eq!(sent, if strategy.is_chained() { 2048 } else { 256 }, "{strategy}");
        assert_eq!(tx.counters().ring_full, 1);
        for (n, packet) in held.iter().enumerate() {
            let again: Vec<Vec<u8>> = packet
                .descriptors
                .iter()
                .map(|d| super::super::sys::read_memory(&arena, d.address, d.len as usize).unwrap())
                .collect();
            assert!(again.concat() == packet.frame, "{strategy}: packet {n} was written while it was out");
        }
        // One comes back, so one more goes out: in the very frame.
        nic.complete(&held[3]);
        let one = send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 2)]);
        assert_eq!(one, [SendOutcome::Blocked { taken: 1 }]);
        let packet = nic.take().unwrap();
        assert_eq!(packet.descriptors[0].address, held[3].descriptors[0].address);
    }
}

#[test]
fn full_ring_blocks_and_send_resumes_at_same_datagram() {
    let (arena, lease) = film(8, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
    let mut datagrams = Vec::new();
    for round in 0..200 {
        let (mut place, mut left) = (round % 100, 92);
        while left > 0 {
            match send(&mut tx, vec![wire(0, VIEWERS[0], &lease, place, left)])[0] {
                SendOutcome::Sent => left = 0,
                SendOutcome::Blocked { taken } => {
                    (place, left) = (place + u32::from(taken), left - u32::from(taken));
                    datagrams.extend(nic.run());
                }
                other => panic!("{other:?}"),
            }
        }
    }
    datagrams.extend(nic.run());
    let wanted: Vec<&[u8]> = (0..200).flat_map(|round| lease.wire(round % 100, 92).chunks(SEGMENT)).collect();
    let got: Vec<&[u8]> = datagrams.iter().map(|f| &f[42..]).collect();
    assert!(got == wanted, "{} of {}", got.len(), wanted.len());
    assert!(tx.counters().ring_full > 10, "{:?}", tx.counters());
    tx.poll();
    assert_eq!(tx.counters().held_leases, 0);
}

#[test]
fn blocked_stream_keeps_order_within_batch() {
    let (arena, lease) = film(1, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Staging), hops(None)).unwrap();
    let far = Transmit { dest: udp("192.0.2.1:5004"), ..wire(0, VIEWERS[0], &lease, 0, 1).0 };
    let entries = vec![(far, None), wire(0, VIEWERS[0], &lease, 1, 1), wire(1, VIEWERS[1], &lease, 2, 1)];
    let outcomes = send(&mut tx, entries);
    let unreachable = SendOutcome::Unreachable { errno: libc::EHOSTUNREACH };
    assert_eq!(outcomes, [unreachable, SendOutcome::Blocked { taken: 0 }, SendOutcome::Sent]);
    assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 1, 1)]), [SendOutcome::Sent], "the next batch");
    assert_eq!(nic.run().len(), 2);
}

#[test]
fn can_send_agrees_with_send_result() {
    let (arena, lease) = film(1, 1316, 196);
    let long = film(2, 1504, 4);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Staging), hops(None)).unwrap();
    let good = wire(0, VIEWERS[0], &lease, 0, 1).0;
    let with = |dest| Transmit { dest, ..good };
    let tcp = Dest::Interleaved { conn: ConnId(0), rtp_channel: 0, rtcp_channel: 1 };
    for (transmit, errno) in [
        (with(tcp), libc::EOPNOTSUPP),
        (with(udp("192.0.2.1:5004")), libc::EHOSTUNREACH),
        (with(udp("[fe80::1]:5004")), libc::EHOSTUNREACH),
        (Transmit { stream: stream(4), ..good }, libc::EHOSTUNREACH),
        (wire(0, VIEWERS[0], &long.1, 0, 2).0, libc::EMSGSIZE),
        (wire(0, VIEWERS[1], &long.1, 0, 2).0, libc::EMSGSIZE),
        (Transmit { payload: Payload::Wire { bytes: &[1], segment: 0 }, ..good }, libc::EINVAL),
    ] {
        assert!(!tx.can_send(&transmit), "{transmit:?}");
        assert_eq!(send(&mut tx, vec![(transmit, None)]), [SendOutcome::Unreachable { errno }]);
    }
    // Exactly the MTU, and one byte more.
    for (to, bytes) in [(VIEWERS[0], 1472), (VIEWERS[1], 1452)] {
        let film = vec![7; bytes + 1];
        let of = |length: usize| Transmit {
            payload: Payload::Wire { bytes: &film[..length], segment: length },
            dest: udp(to),
            ..good
        };
        assert!(tx.can_send(&of(bytes)) && !tx.can_send(&of(bytes + 1)));
        assert_eq!(send(&mut tx, vec![(of(bytes), None)]), [SendOutcome::Sent]);
    }
    assert!(tx.can_send(&good));
    assert_eq!(nic.run().iter().map(Vec::len).collect::<Vec<_>>(), [1514; 2]);
    assert_eq!((tx.counters().unreachable, tx.counters().ring_full), (7, 0));
    let only = XdpConfig { interface: "8".into(), ..config(&long.0, Strategy::Staging) };
    let (mut other, _nic) = XdpTx::over_memory(only, hops(None)).unwrap();
    assert!(!other.can_send(&good), "the next hop is behind interface 7");
}

#[test]
fn arena_without_spare_extents_is_rejected() {
    for (strategy, aside) in [(Strategy::Staging, 0), (Strategy::Chained, 1)] {
        let (arena, _lease) = film(aside, 1316, 1);
        let error = XdpTx::over_memory(config(&arena, strategy), hops(None)).err().unwrap();
        let text = error.to_string();
        assert!(
            text.contains(&strategy.to_string()) && text.contains(&format!("{aside} are free")),
            "{text}"
        );
    }
}

/// Jumbo frames: a payload of several chunks, and one that is cut at the ends of pages.
#[test]
fn long_payloads_take_more_descriptors() {
    for (strategy, most) in [(Strategy::Chained, 4), (Strategy::ZeroCopyChained, 5)] {
        let (arena, lease) = film(2, 188 * 48, 28);
        let jumbo = Hop { mtu: 9216, ..hop(true, None) };
        let table = HopTable::fixed(vec![(addr(VIEWERS[0]).ip(), jumbo)]);
        let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, strategy), table).unwrap();
        assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 28)]), [SendOutcome::Sent]);
        let packets: Vec<_> = std::iter::from_fn(|| nic.take()).collect();
        assert_eq!((packets.len(), nic.invalid_descriptors()), (28, 0));
        for (packet, datagram) in packets.iter().zip(lease.wire(0, 28).chunks(188 * 48 + 12)) {
            assert!(packet.frame == oracle(&packet.frame, VIEWERS[0], None, 6970, datagram));
            nic.complete(packet);
        }
        assert_eq!(packets.iter().map(|p| p.descriptors.len()).max(), Some(most), "{strategy}");
        tx.poll();
        assert_eq!((tx.counters().held_leases, tx.counters().stray_completions), (0, 0));
        // Without its source it would have to be copied into a frame, which is too short for it.
        let copied = vec![(wire(0, VIEWERS[0], &lease, 0, 1).0, None)];
        assert_eq!(send(&mut tx, copied), [SendOutcome::Unreachable { errno: libc::EMSGSIZE }]);
    }
}

#[test]
fn wakeup_is_skipped_for_polling_device() {
    let (arena, lease) = film(1, 1316, 196);
    let (mut tx, mut nic) =
        XdpTx::over_memory(config(&arena, Strategy::ZeroCopyStaging), hops(None)).unwrap();
    nic.ask_for_wakeup(false);
    assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 70)]), [SendOutcome::Sent]);
    assert_eq!((nic.wakeups(), nic.run().len()), (0, 70));
    nic.ask_for_wakeup(true);
    send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 1)]);
    assert_eq!((nic.wakeups(), tx.counters().wakeups), (1, 1));
    // The budget is 64: the kernel is made to look in between.
    send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 92)]);
    assert_eq!((nic.wakeups(), nic.run().len()), (3, 93));
}

#[test]
fn gone_device_releases_all_leases_and_frames() {
    for errno in [libc::ENETDOWN, libc::ENXIO] {
        let (arena, lease) = film(2, 1316, 196);
        let (mut tx, nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
        nic.answer(libc::EBUSY);
        assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 9)]), [SendOutcome::Sent]);
        assert!(tx.failure().is_none() && tx.poll(), "busy is not gone");
        nic.answer(errno);
        assert_eq!(
            send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 9, 9)]),
            [SendOutcome::Sent],
            "as on a lossy link"
        );
        let text = tx.failure().unwrap().to_string();
        assert!(text.contains("down or gone"), "{text}");
        let refused = [SendOutcome::Unreachable { errno: libc::ENETDOWN }; 2];
        let entries = vec![wire(0, VIEWERS[0], &lease, 0, 9), wire(1, VIEWERS[1], &lease, 0, 1)];
        assert_eq!(send(&mut tx, entries), refused);
        assert!(!tx.can_send(&wire(0, VIEWERS[0], &lease, 0, 1).0) && !tx.poll());
        drop(lease);
        assert!(arena.reclaim(1) && tx.counters().held_leases == 0);
        assert_eq!(
            arena.aside().filter_map(|n| arena.fill(n)).count(),
            2,
            "frames too, before it is dropped"
        );
    }
}

#[test]
fn nonsense_completions_are_counted_and_do_no_harm() {
    let (arena, lease) = film(2, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
    let frames = u64::from(arena.aside().start) * 262_144;
    for address in [0, 5, 262_144, frames, frames + 1, frames + 128, frames + 262_144, u64::MAX, u64::MAX / 2]
    {
        assert!(nic.complete_address(address));
    }
    assert!(!tx.poll());
    assert_eq!((tx.counters().stray_completions, tx.counters().completions), (9, 9));
    assert_eq!(send(&mut tx, vec![wire(0, VIEWERS[0], &lease, 0, 92)]), [SendOutcome::Sent]);
    assert_eq!(nic.run().len(), 92);
}

#[test]
fn source_with_invalid_place_falls_back_to_copy() {
    let (arena, lease) = film(2, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
    let (transmit, _) = wire(0, VIEWERS[0], &lease, 190, 6);
    for place in [191, u32::MAX] {
        let source = Some(PayloadSource { lease: &lease, place });
        assert_eq!(send(&mut tx, vec![(transmit, source)]), [SendOutcome::Sent]);
        let got = nic.run();
        let datagrams = lease.wire(190, 6).chunks(SEGMENT);
        assert!(got.iter().zip(datagrams).all(|(f, d)| *f == oracle(f, VIEWERS[0], None, 6970, d)));
    }
}

/// What does not lie in the extent whose lease comes with it is copied: that lease would not keep it as it is.
#[test]
fn source_in_other_extent_is_copied() {
    let (arena, lease) = film(2, 1316, 196);
    let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, Strategy::Chained), hops(None)).unwrap();
    arena.fill(0).unwrap().publish();
    let other = arena.lend(0, lease.content()).unwrap();
    let (_arena, foreign) = film(2, 1316, 196);
    for source in [&other, &foreign] {
        let (transmit, _) = wire(0, VIEWERS[0], &lease, 0, 5);
        let source = Some(PayloadSource { lease: source, place: 0 });
        assert_eq!(send(&mut tx, vec![(transmit, source)]), [SendOutcome::Sent]);
        assert_eq!(tx.counters().held_leases, 0);
        assert!(nic.run().iter().zip(lease.wire(0, 5).chunks(SEGMENT)).all(|(f, d)| f[42..] == *d));
    }
    assert!(!tx.poll());
    assert_eq!((tx.counters().staged, tx.counters().stray_completions), (10, 0));
}

#[derive(Clone, Debug)]
enum TxStep {
    Send { stream: u32, place: u32, count: u32, known: bool },
    Take(usize),
    Complete(usize),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<TxStep>> {
    let step = prop_oneof![
        (0u32..2, 0u32..104, 1u32..92, any::<bool>())
            .prop_map(|(stream, place, count, known)| TxStep::Send { stream, place, count, known }),
        (0usize..200).prop_map(TxStep::Take),
        (0usize..200).prop_map(TxStep::Complete),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    /// Whatever a device takes, and whenever it completes it: the part taken of each entry arrives
    /// once, in order, unharmed.
    #[test]
    fn accepted_datagrams_arrive_once_in_order(steps in steps(), chained: bool) {
        let (arena, lease) = film(2, 1316, 196);
        let strategy = if chained { Strategy::ZeroCopyChained } else { Strategy::Staging };
        let (mut tx, mut nic) = XdpTx::over_memory(config(&arena, strategy), hops(None)).unwrap();
        let (mut wanted, mut got, mut out) = (Vec::new(), Vec::new(), std::collections::VecDeque::new());
        for step in steps {
            match step {
                TxStep::Send { stream, place, count, known } => {
                    let (transmit, source) = wire(stream, VIEWERS[stream as usize], &lease, place, count);
                    let taken = match send(&mut tx, vec![(transmit, source.filter(|_| known))])[0] {
                        SendOutcome::Sent => count,
                        SendOutcome::Blocked { taken } => u32::from(taken),
                        other => panic!("{other:?}"),
                    };
                    wanted.extend((place..place + taken).map(|p| (stream, p)));
                }
                TxStep::Take(count) => out.extend(std::iter::from_fn(|| nic.take()).take(count)),
                TxStep::Complete(count) => {
                    for packet in out.drain(..count.min(out.len())) {
                        nic.complete(&packet);
                        got.push(packet.frame);
                    }
                }
            }
        }
        got.extend(out.into_iter().map(|packet| { nic.complete(&packet); packet.frame }));
        while tx.poll() {
            got.extend(nic.run());
        }
        prop_assert_eq!(got.len(), wanted.len());
        for (frame, (stream, place)) in got.iter().zip(wanted) {
            let to = VIEWERS[stream as usize];
            prop_assert!(*frame == oracle(frame, to, None, 6970, lease.wire(place, 1)));
        }
        prop_assert_eq!(tx.counters().stray_completions, 0);
        drop(lease);
        prop_assert!(arena.reclaim(1));
    }
}
