use etherparse::{ArpOperation, SlicedPacket};
use smoltcp::wire::{Icmpv6Packet, Icmpv6Repr, Ipv6Packet, NdiscNeighborFlags, NdiscRepr};

use super::super::rig::*;
use super::*;
use crate::ip::Outgoing;

/// Returns the content of the ARP message in a frame of ours.
fn said_v4(frame: &[u8]) -> (ArpOperation, (Mac, Ipv4Addr), (Mac, Ipv4Addr)) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    assert_eq!(
        sliced.link.and_then(|link| link.to_header().and_then(|l| l.ethernet2())).unwrap().source,
        OUR_MAC
    );
    let Some(etherparse::NetSlice::Arp(arp)) = sliced.net else { panic!("{frame:02x?}") };
    let arp = arp.to_packet().try_eth_ipv4().unwrap();
    (arp.operation, (arp.sender_mac, arp.sender_ipv4.into()), (arp.target_mac, arp.target_ipv4.into()))
}

/// Returns the content of the advertisement in a frame of ours, as smoltcp reads it: target, flags,
/// and destination.
fn said_v6(frame: &[u8]) -> (Ipv6Addr, NdiscNeighborFlags, Ipv6Addr) {
    let ip = Ipv6Packet::new_checked(&frame[14..]).unwrap();
    let icmp = Icmpv6Packet::new_checked(ip.payload()).unwrap();
    let (source, destination) = (ip.src_addr(), ip.dst_addr());
    let repr = Icmpv6Repr::parse(&source, &destination, &icmp, &Default::default()).unwrap();
    let Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr }) = repr else {
        panic!("{repr:?}")
    };
    assert_eq!((lladdr.unwrap().as_bytes(), ip.hop_limit(), source), (&OUR_MAC[..], 255, target_addr));
    (target_addr, flags, destination)
}

#[test]
fn requests_for_own_addresses_are_answered() {
    let mut interface = interface();
    let request = arp_request((THEIR_MAC, THEIR_V4), OUR_V4);
    assert!(matches!(interface.input(&request, START), Incoming::Done));
    let replies = sent(&mut interface);
    assert_eq!((replies.len(), to(&replies[0]), replies[0].len()), (1, THEIR_MAC, 42));
    assert_eq!(said_v4(&replies[0]), (ArpOperation::REPLY, (OUR_MAC, OUR_V4), (THEIR_MAC, THEIR_V4)));
    // The sender of a request is known from then on.
    assert_eq!(to(&send(&mut interface, &flow(THEIR_V4), 1, START).1), THEIR_MAC);

    for own in [OUR_V6, OUR_LOCAL_V6] {
        let request = solicitation((THEIR_MAC, THEIR_V6), own);
        assert!(matches!(interface.input(&request, START), Incoming::Done));
        let replies = sent(&mut interface);
        assert_eq!((replies.len(), to(&replies[0])), (1, THEIR_MAC));
        let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE;
        assert_eq!(said_v6(&replies[0]), (own, flags, THEIR_V6));
    }
    assert_eq!(to(&send(&mut interface, &flow(THEIR_V6), 1, START).1), THEIR_MAC);
    // A probe of our own entry comes by unicast, and may do without the option.
    let probe = discovery((THEIR_V6, OUR_V6), (THEIR_MAC, OUR_MAC), [135, 0, 0], OUR_V6, &[]);
    assert!(matches!(interface.input(&probe, START), Incoming::Done));
    assert_eq!(to(&sent(&mut interface)[0]), THEIR_MAC);
    assert_eq!(interface.counters().solicited, 4);
}

#[test]
fn arp_and_ndp_between_others_go_to_kernel_without_learning() {
    let mut interface = interface();
    let frames = [
        arp_request((THEIR_MAC, THEIR_V4), GATEWAY_V4),
        arp(ArpOperation::REPLY, (THEIR_MAC, THEIR_V4), (OTHER_MAC, GATEWAY_V4), OTHER_MAC),
        arp(ArpOperation(3), (THEIR_MAC, THEIR_V4), (OUR_MAC, OUR_V4), OUR_MAC),
        solicitation((THEIR_MAC, THEIR_V6), FAR_V6),
        advertisement(THEIR_MAC, THEIR_V6, ALL_NODES, OVERRIDE),
    ];
    for frame in frames {
        assert!(is_for_kernel(&interface.input(&frame, START)), "{frame:02x?}");
    }
    // An answer that was not asked for is for us, and forgotten.
    let _ = interface.input(&arp_reply((THEIR_MAC, THEIR_V4)), START);
    let _ = interface.input(&advertisement(THEIR_MAC, THEIR_V6, OUR_V6, SOLICITED | OVERRIDE), START);
    assert!(sent(&mut interface).is_empty());
    for remote in [IpAddr::V4(THEIR_V4), THEIR_V6.into()] {
        assert_eq!(send(&mut interface, &flow(remote), 1, START).0, Outgoing::Waiting, "{remote}");
    }
}

#[test]
fn own_addresses_are_announced_twice() {
    let mut interface = Interface::new(&settings(ETHERNET), START).unwrap();
    assert_eq!(interface.next_due(START), Some(START));
    for (s, expected) in [(0, 3), (1, 0), (2, 3), (3, 0), (100, 0)] {
        interface.protocol(at_s(s));
        let frames = sent(&mut interface);
        assert_eq!(frames.len(), expected, "after {s} s");
        if let [v4, local, v6] = &frames[..] {
            assert_eq!(said_v4(v4), (ArpOperation::REQUEST, (OUR_MAC, OUR_V4), ([0; 6], OUR_V4)));
            assert_eq!(to(v4), EVERYBODY);
            assert_eq!(said_v6(local), (OUR_LOCAL_V6, NdiscNeighborFlags::OVERRIDE, ALL_NODES));
            assert_eq!(said_v6(v6), (OUR_V6, NdiscNeighborFlags::OVERRIDE, ALL_NODES));
            assert_eq!(to(v6), [0x33, 0x33, 0, 0, 0, 1]);
        }
    }
    assert_eq!(interface.next_due(at_s(100)), None);
    let groups: Vec<String> =
        settings(crate::ip::LinkLayer::Ip).solicited_groups().map(|group| group.to_string()).collect();
    assert_eq!(groups, ["ff02::1:ff00:1", "ff02::1:ff00:1"]);
    let mut bare = Interface::new(&settings(crate::ip::LinkLayer::Ip), START).unwrap();
    bare.protocol(START);
    assert!(sent(&mut bare).is_empty() && bare.next_due(START).is_none());
}

#[test]
fn address_conflict_is_answered_at_limited_rate() {
    let unspecified = Ipv4Addr::UNSPECIFIED;
    for frame in [
        arp_request((OTHER_MAC, OUR_V4), THEIR_V4),
        arp_request((OTHER_MAC, OUR_V4), OUR_V4),
        arp(ArpOperation::REPLY, (OTHER_MAC, OUR_V4), (THEIR_MAC, THEIR_V4), THEIR_MAC),
        advertisement(OTHER_MAC, OUR_V6, ALL_NODES, OVERRIDE),
    ] {
        let mut interface = interface();
        let mut defences = Vec::new();
        for s in 0..25 {
            assert!(matches!(interface.input(&frame, at_s(s)), Incoming::Done), "{frame:02x?}");
            defences.extend(sent(&mut interface).into_iter().map(|_| s));
        }
        assert_eq!((defences, interface.counters().conflicts), (vec![0, 10, 20], 25));
    }
    // A host that probes an address before it takes it (RFC 5227, RFC 4862) is notified that it is
    // taken; nothing is remembered of this host.
    let mut interface = interface();
    let _ = interface.input(&arp_request((OTHER_MAC, unspecified), OUR_V4), START);
    let reply = &sent(&mut interface)[0];
    assert_eq!(said_v4(reply), (ArpOperation::REPLY, (OUR_MAC, OUR_V4), (OTHER_MAC, unspecified)));
    let group = nd::solicited_group(OUR_V6);
    let macs = (OTHER_MAC, nd::group_mac(group));
    let probe = discovery((Ipv6Addr::UNSPECIFIED, group), macs, [135, 0, 0], OUR_V6, &[]);
    let _ = interface.input(&probe, START);
    assert_eq!(said_v6(&sent(&mut interface)[0]), (OUR_V6, NdiscNeighborFlags::OVERRIDE, ALL_NODES));
    let _ = interface.input(&probe, START);
    assert_eq!(sent(&mut interface).len(), 1, "each of them has to be told");
    assert_eq!(interface.counters().conflicts, 0);
    // Frames of our own that the device returns are no conflict.
    let own = [
        arp_request((OUR_MAC, OUR_V4), OUR_V4),
        discovery(
            (OUR_V6, ALL_NODES),
            (OUR_MAC, nd::group_mac(ALL_NODES)),
            [136, 0, OVERRIDE],
            OUR_V6,
            &link_option(2, OUR_MAC),
        ),
    ];
    for frame in own {
        assert!(is_for_kernel(&interface.input(&frame, START)));
    }
    assert_eq!(interface.counters().conflicts, 0);
}

#[test]
fn discovery_that_breaks_its_rules_is_refused() {
    let group = nd::solicited_group(OUR_V6);
    let (macs, ends) = ((THEIR_MAC, nd::group_mac(group)), (THEIR_V6, group));
    let option = link_option(1, THEIR_MAC);
    let good = discovery(ends, macs, [135, 0, 0], OUR_V6, &option);
    let hops = |mut frame: Vec<u8>| {
        frame[21] = 254;
        frame
    };
    let unspecified = Ipv6Addr::UNSPECIFIED;
    let advert =
        |to, flags| discovery((THEIR_V6, to), macs, [136, 0, flags], THEIR_V6, &link_option(2, THEIR_MAC));
    let bad = [
        hops(good.clone()),
        discovery(ends, macs, [135, 1, 0], OUR_V6, &option),
        discovery(ends, macs, [135, 0, 0], group, &option),
        discovery(ends, macs, [135, 0, 0], OUR_V6, &[1, 0, 0, 0, 0, 0, 0, 0]),
        discovery(ends, macs, [135, 0, 0], OUR_V6, &[1, 2, 0, 0, 0, 0, 0, 0]),
        discovery(ends, macs, [135, 0, 0], OUR_V6, &[14]),
        discovery((unspecified, group), macs, [135, 0, 0], OUR_V6, &option),
        discovery((unspecified, OUR_V6), macs, [135, 0, 0], OUR_V6, &[]),
        hops(advert(OUR_V6, OVERRIDE)),
        advert(ALL_NODES, SOLICITED | OVERRIDE),
        discovery((unspecified, OUR_V6), macs, [136, 0, 0], THEIR_V6, &[]),
    ];
    for (number, frame) in bad.iter().enumerate() {
        let mut interface = interface();
        assert!(is_dropped(&interface.input(frame, START)), "{number}");
        assert_eq!((interface.counters().bad_discovery, sent(&mut interface).len()), (1, 0), "{number}");
    }
    // Options that are not known are passed over, before and behind the one that is.
    let options = [&[14, 1, 0, 0, 0, 0, 0, 0][..], &option, &[253, 2], &[0; 14]].concat();
    let frame = discovery(ends, macs, [135, 0, 0], OUR_V6, &options);
    for frame in [good.clone(), frame] {
        let mut interface = interface();
        assert!(matches!(interface.input(&frame, START), Incoming::Done));
        assert_eq!(sent(&mut interface).len(), 1);
        assert_eq!(to(&send(&mut interface, &flow(THEIR_V6), 1, START).1), THEIR_MAC);
    }
    // Another option of the same length is no address: the host is answered, and must be asked for
    // its address.
    let frame = discovery((THEIR_V6, OUR_V6), macs, [135, 0, 0], OUR_V6, &[14, 1, 2, 0, 0, 0, 0, 9]);
    let mut other = interface();
    assert!(matches!(other.input(&frame, START), Incoming::Done));
    assert_eq!(sent(&mut other).len(), 1);
    assert_eq!(send(&mut other, &flow(THEIR_V6), 1, START).0, Outgoing::Waiting);
    // Each bit behind the IP header is covered by the checksum.
    for bit in 54 * 8..good.len() * 8 {
        let mut frame = good.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let mut interface = interface();
        let _ = interface.input(&frame, START);
        assert!(sent(&mut interface).is_empty(), "bit {bit}");
    }
}

#[test]
fn arp_and_ndp_with_invalid_sender_are_not_learned() {
    let mut interface = interface();
    for mac in [EVERYBODY, [1, 0, 0x5e, 0, 0, 1], [0; 6]] {
        let _ = interface.input(&arp_request((mac, THEIR_V4), OUR_V4), START);
        let mut frame = solicitation((mac, THEIR_V6), OUR_V6);
        frame[6..12].copy_from_slice(&THEIR_MAC);
        let _ = interface.input(&frame, START);
    }
    assert_eq!((interface.counters().martians, sent(&mut interface).len()), (6, 0));
    // Nothing is remembered of these, whichever are answered.
    for ip in ["127.0.0.1", "224.0.0.1", "192.0.2.255", "198.51.100.7"] {
        let _ = interface.input(&arp_request((THEIR_MAC, ip.parse().unwrap()), OUR_V4), START);
    }
    for ip in ["::1", "ff02::1", "::ffff:192.0.2.9"] {
        let _ = interface.input(&solicitation((THEIR_MAC, ip.parse().unwrap()), OUR_V6), START);
    }
    assert_eq!(interface.counters().resolved, 0);
}

#[test]
fn answers_beyond_the_room_are_dropped_and_counted() {
    let mut interface = interface();
    for _ in 0..1000 {
        let _ = interface.input(&arp_request((THEIR_MAC, THEIR_V4), OUR_V4), START);
    }
    let limit = crate::limits::OWN_FRAMES;
    // A device that takes one frame at a time.
    let mut frames = 0;
    let mut takes = || {
        frames += 1;
        frames % 2 == 1
    };
    while interface.output(&mut |_| takes()) > 0 {}
    assert_eq!(interface.counters().solicited, limit as u64);
    assert_eq!(interface.counters().own_dropped, 1000 - limit as u64);
    assert_eq!(interface.counters().too_long, 0);
    assert_eq!(interface.next_due(START), None);
}
