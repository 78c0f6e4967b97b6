use std::net::Ipv6Addr;

use etherparse::{ArpOperation, SlicedPacket};
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, IpAddress, Ipv6Packet, NdiscRepr};

use super::super::rig::*;
use super::*;
use crate::limits::{OWN_FRAMES, SOLICITS_PER_SECOND, WAITING_FRAMES};
use crate::send::Payload;

/// Returns the content of the ARP request in a frame of ours: the frame's destination, the sender's
/// address, the requested address.
fn asked_v4(frame: &[u8]) -> (Mac, Ipv4Addr, Ipv4Addr) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::NetSlice::Arp(arp)) = sliced.net else { panic!("{frame:02x?}") };
    let arp = arp.to_packet().try_eth_ipv4().unwrap();
    assert_eq!((arp.operation, arp.sender_mac, arp.target_mac), (ArpOperation::REQUEST, OUR_MAC, [0; 6]));
    (to(frame), arp.sender_ipv4.into(), arp.target_ipv4.into())
}

/// The same by neighbour discovery, as smoltcp reads it.
fn asked_v6(frame: &[u8]) -> (Mac, Ipv6Addr, Ipv6Addr, Ipv6Addr) {
    assert_eq!(frame[12..14], [0x86, 0xdd]);
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let repr = Icmpv6Repr::parse(&source, &destination, &icmp, &Default::default()).unwrap();
    let Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, lladdr }) = repr else {
        panic!("{repr:?}")
    };
    assert_eq!(lladdr.unwrap().as_bytes(), OUR_MAC);
    assert_eq!((ip.hop_limit(), IpAddress::from(source).is_unicast()), (255, true));
    (to(frame), source, destination, target_addr)
}

fn learn(interface: &mut Interface, mac: Mac, ip: IpAddr, now: Instant) {
    let frame = match ip {
        IpAddr::V4(ip) => arp_reply((mac, ip)),
        IpAddr::V6(ip) => {
            let own = if ip.is_unicast_link_local() { OUR_LOCAL_V6 } else { OUR_V6 };
            advertisement(mac, ip, own, SOLICITED | OVERRIDE)
        }
    };
    let _ = interface.input(&frame, now);
}

#[test]
fn segment_waits_until_its_neighbour_is_resolved() {
    let mut interface = interface();
    for (remote, neighbour) in [
        (IpAddr::V4(THEIR_V4), IpAddr::V4(THEIR_V4)),
        (FAR_V4.into(), GATEWAY_V4.into()),
        (THEIR_V6.into(), THEIR_V6.into()),
        (FAR_V6.into(), GATEWAY_V6.into()),
    ] {
        let flow = flow(remote);
        assert_eq!(send(&mut interface, &flow, 1, START).0, Outgoing::Waiting);
        let [question] = &sent(&mut interface)[..] else { panic!("one question for {neighbour}") };
        match neighbour {
            IpAddr::V4(ip) => assert_eq!(asked_v4(question), (EVERYBODY, OUR_V4, ip)),
            IpAddr::V6(ip) => {
                let own = if ip == GATEWAY_V6 { OUR_LOCAL_V6 } else { OUR_V6 };
                let group = nd::solicited_group(ip);
                assert_eq!(asked_v6(question), (nd::group_mac(group), own, group, ip));
            }
        }
        // A later one takes its place and causes no further request.
        assert_eq!(send(&mut interface, &flow, 2, START).0, Outgoing::Waiting);
        assert!(sent(&mut interface).is_empty());
        learn(&mut interface, THEIR_MAC, neighbour, START);
        let [waited] = &sent(&mut interface)[..] else { panic!("the later one of {remote}") };
        let (outgoing, next) = send(&mut interface, &flow, 2, START);
        assert_eq!((outgoing, to(&next)), (Outgoing::Written(next.len()), THEIR_MAC));
        assert_eq!(waited, &next, "it is as if it had not waited");
    }
    let c = interface.counters();
    assert_eq!((c.segments_waiting, c.segments_unresolved, c.segments_out, c.resolved), (8, 4, 8, 4));
    assert_eq!((c.solicits_out, c.own_dropped, c.too_long), (4, 0, 0));
    assert_eq!(interface.frames.free(), OWN_FRAMES);
}

#[test]
fn gateway_once_resolved_serves_all_remote_hosts() {
    let mut interface = interface();
    send(&mut interface, &flow(FAR_V4), 1, START);
    learn(&mut interface, THEIR_MAC, GATEWAY_V4.into(), START);
    sent(&mut interface);
    for number in 0..100 {
        let flow = flow(Ipv4Addr::new(203, 0, 113, number));
        let (outgoing, frame) = send(&mut interface, &flow, 1, START);
        assert_eq!((outgoing, to(&frame)), (Outgoing::Written(54), THEIR_MAC));
    }
    assert!(sent(&mut interface).is_empty());
}

#[test]
fn resolution_without_answer_drops_segment_and_can_restart() {
    for remote in [IpAddr::V4(THEIR_V4), THEIR_V6.into(), FAR_V4.into()] {
        let mut interface = interface();
        send(&mut interface, &flow(remote), 1, START);
        let mut questions = sent(&mut interface).len();
        for s in 1..=3 {
            assert!(interface.next_due(at_s(s - 1)).is_some_and(|due| due <= at_s(s)));
            interface.protocol(at_s(s));
            questions += sent(&mut interface).len();
        }
        assert_eq!((questions, interface.counters().unresolved), (3, 1), "{remote}");
        assert_eq!(interface.frames.free(), OWN_FRAMES);
        assert_eq!(send(&mut interface, &flow(remote), 1, at_s(3)).0, Outgoing::Dropped);
        interface.protocol(at_s(6));
        assert_eq!(interface.next_due(at_s(6)), None);
        assert_eq!(send(&mut interface, &flow(remote), 1, at_s(6)).0, Outgoing::Waiting);
        assert_eq!(interface.counters().segments_unresolved, 2);
    }
}

#[test]
fn send_without_route_is_dropped_and_counted() {
    let mut settings = settings(ETHERNET);
    (settings.gateway_v4, settings.gateway_v6) = (None, None);
    let mut interface = interface_of(&settings);
    for remote in ["198.51.100.7", "2001:db8:ff::7", "192.0.2.255", "192.0.2.1", "2001:db8::1"] {
        let flow = flow(remote.parse::<IpAddr>().unwrap());
        assert_eq!(send(&mut interface, &flow, 1, START).0, Outgoing::Dropped, "{remote}");
    }
    assert_eq!(interface.counters().no_route, 5);
    assert!(sent(&mut interface).is_empty());
}

#[test]
fn arp_flood_evicts_no_neighbour_and_starves_no_resolution() {
    let mut settings = settings(ETHERNET);
    settings.addresses[0].prefix = 8;
    let mut interface = interface_of(&settings);
    let live: Vec<Ipv4Addr> = (0..100).map(|number| Ipv4Addr::new(192, 1, 0, number)).collect();
    for &ip in &live {
        send(&mut interface, &flow(ip), 1, START);
        learn(&mut interface, THEIR_MAC, ip.into(), START);
    }
    sent(&mut interface);
    let mut replies = 0;
    for number in 0..50_000u32 {
        let [_, b, c, d] = (number + 0x20_0000).to_be_bytes();
        let stranger = ([2, 9, 9, b, c, d], Ipv4Addr::new(192, b, c, d));
        let _ = interface.input(&arp_request(stranger, OUR_V4), at_s(1));
        replies += sent(&mut interface).len();
    }
    assert_eq!(replies, 50_000, "each was answered");
    for &ip in &live {
        let (outgoing, frame) = send(&mut interface, &flow(ip), 1, at_s(2));
        assert_eq!((outgoing, to(&frame)), (Outgoing::Written(54), THEIR_MAC));
    }
    // There still is a place for a new neighbour.
    assert_eq!(send(&mut interface, &flow(Ipv4Addr::new(192, 2, 0, 1)), 1, at_s(2)).0, Outgoing::Waiting);
    assert_eq!(interface.counters().conflicts, 0);
}

#[test]
fn answers_to_addresses_that_nobody_has_are_no_broadcast_storm() {
    let mut settings = settings(ETHERNET);
    settings.addresses[0].prefix = 8;
    let mut interface = interface_of(&settings);
    send(&mut interface, &flow(THEIR_V4), 1, START);
    learn(&mut interface, THEIR_MAC, THEIR_V4.into(), START);
    sent(&mut interface);
    let mut questions = 0;
    for ms in 0..1000u32 {
        let now = START.plus_ns(u64::from(ms) * 1_000_000);
        for number in 0..50 {
            let [_, b, c, d] = (ms * 50 + number + 0x20_0000).to_be_bytes();
            send(&mut interface, &flow(Ipv4Addr::new(192, b, c, d)), 1, now);
        }
        interface.protocol(now);
        questions += sent(&mut interface).len();
    }
    let limit = SOLICITS_PER_SECOND as usize * 11 / 10;
    assert!(questions <= limit, "{questions}");
    assert!(interface.counters().solicits_limited > 10_000);
    // Segments to known neighbours are still sent, and gateways are asked for whatever the other
    // requests are.
    assert_eq!(to(&send(&mut interface, &flow(THEIR_V4), 1, START).1), THEIR_MAC);
    send(&mut interface, &flow(FAR_V4), 1, START);
    assert!(sent(&mut interface).iter().any(|frame| asked_v4(frame).2 == GATEWAY_V4));
    for s in 1..100 {
        interface.protocol(at_s(s));
        sent(&mut interface);
    }
    assert_eq!(interface.frames.free(), OWN_FRAMES);
}

#[test]
fn waiting_segments_are_limited_to_waiting_frames() {
    let mut interface = interface();
    for number in 2..202 {
        send(&mut interface, &flow(Ipv4Addr::new(192, 0, 2, number)), 1, START);
    }
    let c = interface.counters();
    assert_eq!((c.segments_waiting, c.too_long), (WAITING_FRAMES as u64, 0));
    assert!(c.own_dropped >= 200 - WAITING_FRAMES as u64);
    // Requests are still answered.
    sent(&mut interface);
    let _ = interface.input(&arp_request((THEIR_MAC, THEIR_V4), OUR_V4), START);
    assert_eq!(sent(&mut interface).len(), 2, "the answer, and the segment that waited for who asked");
}

#[test]
fn tcp_progress_keeps_neighbour_without_probes() {
    let run = |moves: bool| {
        let mut interface = interface();
        send(&mut interface, &flow(THEIR_V4), 1, START);
        learn(&mut interface, THEIR_MAC, THEIR_V4.into(), START);
        sent(&mut interface);
        let mut probes = Vec::new();
        for s in 0..120 {
            send_moved(&mut interface, &flow(THEIR_V4), at_s(s), if moves { 1 } else { 1 + s });
            interface.protocol(at_s(s));
            probes.extend(sent(&mut interface).into_iter().map(|frame| (s, to(&frame))));
        }
        probes
    };
    assert_eq!(run(true), []);
    let probes = run(false);
    assert_eq!(probes[..4], [(35, THEIR_MAC), (36, THEIR_MAC), (37, THEIR_MAC), (38, EVERYBODY)]);
}

#[test]
fn far_ends_confirm_the_gateway() {
    let mut interface = interface();
    for (far, gateway) in [(IpAddr::V4(FAR_V4), IpAddr::V4(GATEWAY_V4)), (FAR_V6.into(), GATEWAY_V6.into())] {
        send(&mut interface, &flow(far), 1, START);
        learn(&mut interface, THEIR_MAC, gateway, START);
        sent(&mut interface);
        send_moved(&mut interface, &flow(far), at_s(35), 6);
        send(&mut interface, &flow(far), 1, at_s(58));
        interface.protocol(at_s(64));
        assert!(sent(&mut interface).is_empty(), "{far} had moved at 29 s");
        send(&mut interface, &flow(far), 1, at_s(64));
        interface.protocol(at_s(69));
        assert_eq!(sent(&mut interface).len(), 1);
        learn(&mut interface, THEIR_MAC, gateway, at_s(69));
    }
}

#[test]
fn neighbour_of_last_segment_after_eviction_is_not_reused() {
    let mut settings = settings(ETHERNET);
    settings.neighbours = 8;
    let mut interface = interface_of(&settings);
    let ips: Vec<Ipv4Addr> = (10..19).map(|number| Ipv4Addr::new(192, 0, 2, number)).collect();
    for &ip in &ips[..7] {
        send(&mut interface, &flow(ip), 1, START);
        learn(&mut interface, THEIR_MAC, ip.into(), START);
    }
    // The eighth is the last that something was sent to, and does not answer.
    send(&mut interface, &flow(ips[7]), 1, START);
    for s in 1..=6 {
        interface.protocol(at_s(s));
    }
    sent(&mut interface);
    // It is asked for again, by its own address, as long as no other neighbour needs its place.
    assert_eq!(send(&mut interface, &flow(ips[7]), 1, at_s(7)).0, Outgoing::Waiting);
    assert_eq!(asked_v4(&sent(&mut interface)[0]), (EVERYBODY, OUR_V4, ips[7]));
    for s in 8..=13 {
        interface.protocol(at_s(s));
    }
    sent(&mut interface);
    // A host that asks for us gets the place.
    let _ = interface.input(&arp_request((OTHER_MAC, ips[8]), OUR_V4), at_s(14));
    assert_eq!(interface.counters().table_full, 0);
    assert_eq!(send(&mut interface, &flow(ips[7]), 1, at_s(14)).0, Outgoing::Waiting);
    // And loses it to the one that is sent to; further ones find no room.
    assert_eq!(
        send(&mut interface, &flow(ips[8]), 1, at_s(14)).0,
        Outgoing::Waiting,
        "in the place of the eighth"
    );
    learn(&mut interface, OTHER_MAC, ips[8].into(), at_s(14));
    assert_eq!(to(&send(&mut interface, &flow(ips[8]), 1, at_s(14)).1), OTHER_MAC);
    assert_eq!(send(&mut interface, &flow(ips[7]), 1, at_s(14)).0, Outgoing::Dropped);
    assert_eq!(to(&send(&mut interface, &flow(ips[8]), 1, at_s(14)).1), OTHER_MAC);
    assert_eq!(interface.counters().table_full, 1);
}

#[test]
fn unsolicited_advertisement_is_verified_by_probe() {
    let mut interface = interface();
    send(&mut interface, &flow(THEIR_V6), 1, START);
    assert_eq!(sent(&mut interface).len(), 1);
    // To us alone, but no answer (RFC 4861 section 7.2.5: STALE).
    let _ = interface.input(&advertisement(THEIR_MAC, THEIR_V6, OUR_V6, OVERRIDE), START);
    assert_eq!(sent(&mut interface).len(), 1, "what has waited");
    interface.protocol(at_s(6));
    let [probe] = &sent(&mut interface)[..] else { panic!("one question") };
    assert_eq!(asked_v6(probe), (THEIR_MAC, OUR_V6, THEIR_V6, THEIR_V6));
}

#[test]
fn waiting_segment_holds_all_payload_pieces() {
    let mut interface = interface();
    let flow = flow(THEIR_V4);
    let out = OutgoingSegment { payload: Payload::of(&[b"one, ", b"two"]), ..out(&flow, &[0x50; 20]) };
    let mut frame = [0; 2000];
    assert_eq!(interface.frame(&out, START, &mut frame), Outgoing::Waiting);
    sent(&mut interface);
    learn(&mut interface, THEIR_MAC, THEIR_V4.into(), START);
    let [waited] = &sent(&mut interface)[..] else { panic!("the segment") };
    assert_eq!((waited.len(), &waited[54..]), (62, &b"one, two"[..]));
    let Outgoing::Written(bytes) = interface.frame(&out, START, &mut frame) else { panic!("it is known") };
    assert_eq!(&frame[..bytes], &waited[..]);
}
