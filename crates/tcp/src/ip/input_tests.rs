use etherparse::{EtherType, IpEcn, IpHeaders, PacketBuilder, VlanId};

use super::super::rig::*;
use super::super::{IpCounters, LinkLayer};
use super::*;

/// Padding for six bytes of options: PadN with four bytes in it.
const PAD_6: &[u8] = &[1, 4, 0, 0, 0, 0];
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

fn drops(frame: &[u8], counter: impl Fn(&IpCounters) -> u64) {
    let mut interface = interface();
    let is_dropped = is_dropped(&interface.input(frame, START));
    assert!(is_dropped && counter(&interface.counters) == 1, "{:?} {frame:02x?}", interface.counters);
}

fn leaves(frame: &[u8]) {
    assert!(is_for_kernel(&interface().input(frame, START)), "{frame:02x?}");
}

fn segment<'f>(interface: &mut Interface, frame: &'f [u8]) -> Arrived<'f> {
    match interface.input(frame, START) {
        Incoming::Segment(arrived) => arrived,
        other => panic!("{other:?} {:?}", interface.counters),
    }
}

#[test]
fn ipv4_segment_with_options_or_padding_is_extracted() {
    let plain = segment_v4(FAR_V4, OUR_V4, b"odd");
    let tcp = plain[34..].to_vec();
    // No operation, Record Route with room for one address, an unknown option of two bytes, end of
    // the list, padding.
    let mut options = ipv4(FAR_V4, OUR_V4);
    options.options = [1, 7, 7, 4, 0, 0, 0, 0, 30, 2, 0, 0][..].try_into().unwrap();
    let with_options = segment_behind(IpHeaders::Ipv4(options, Default::default()), b"odd");
    let padded = [&plain[..], &[0; 9]].concat();
    let no_hops_left = changed(plain.clone(), |ip| ip[8] = 0);
    let no_df = changed(plain.clone(), |ip| ip[6] = 0);
    for frame in [plain, with_options, padded, no_hops_left, no_df] {
        let arrived = segment(&mut interface(), &frame);
        assert_eq!(arrived.bytes, tcp);
        assert_eq!((arrived.source, arrived.destination), ((FAR_V4, 0).into(), (OUR_V4, 0).into()));
        assert!(!arrived.is_marked && arrived.at == START);
    }
}

#[test]
fn ipv6_segment_behind_extension_headers_is_extracted() {
    let plain = segment_v6(FAR_V6, OUR_V6, b"odd");
    let tcp = plain[54..].to_vec();
    let router_alert: &[u8] = &[5, 2, 0, 0, 1, 0];
    let to_be_skipped: &[u8] = &[0x1e, 4, 9, 9, 9, 9];
    let visited: &[u8] = &[0, 0, 0, 0, 0, 0];
    let chains: [&[(u8, &[u8])]; 5] = [
        &[],
        &[(HOP_BY_HOP, router_alert)],
        &[(DESTINATION, to_be_skipped), (ROUTING, visited), (DESTINATION, PAD_6)],
        &[(HOP_BY_HOP, &[0; 6]), (DESTINATION, &[0; 14])],
        &[(DESTINATION, PAD_6); 8],
    ];
    for chain in chains {
        let frame = [&extended(plain.clone(), chain)[..], &[0; 3]].concat();
        let arrived = segment(&mut interface(), &frame);
        assert_eq!(arrived.bytes, tcp, "{chain:?}");
        assert_eq!((arrived.source, arrived.destination), ((FAR_V6, 0).into(), (OUR_V6, 0).into()));
    }
}

#[test]
fn link_local_ends_have_the_number_of_the_interface() {
    let frame = segment_v6(GATEWAY_V6, OUR_LOCAL_V6, b"");
    let arrived = segment(&mut interface(), &frame);
    let end = |ip| SocketAddr::V6(std::net::SocketAddrV6::new(ip, 0, 0, SCOPE));
    assert_eq!((arrived.source, arrived.destination), (end(GATEWAY_V6), end(OUR_LOCAL_V6)));
}

#[test]
fn congestion_marks_are_seen_and_no_others() {
    for (ecn, is_marked) in [(IpEcn::NotEct, false), (IpEcn::Ect1, false), (IpEcn::Ect0, false)]
        .into_iter()
        .chain([(IpEcn::CongestionExperienced, true)])
    {
        let mut v4 = ipv4(FAR_V4, OUR_V4);
        v4.ecn = ecn;
        let frame = segment_behind(IpHeaders::Ipv4(v4, Default::default()), b"");
        assert_eq!(segment(&mut interface(), &frame).is_marked, is_marked, "{ecn:?}");
        let mut v6 = ipv6(FAR_V6, OUR_V6);
        v6.traffic_class = 0xfc | ecn as u8;
        let frame = segment_behind(IpHeaders::Ipv6(v6, Default::default()), b"");
        assert_eq!(segment(&mut interface(), &frame).is_marked, is_marked, "{ecn:?}");
    }
}

#[test]
fn frames_of_other_vlans_are_left_alone() {
    let tagged = |id: u16| {
        let builder = PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC).single_vlan(VlanId::try_new(id).unwrap());
        let builder = builder.ip(IpHeaders::Ipv4(ipv4(FAR_V4, OUR_V4), Default::default()));
        let mut frame = Vec::new();
        builder.tcp(1, 2, 3, 4).write(&mut frame, b"").unwrap();
        frame
    };
    let untagged = segment_v4(FAR_V4, OUR_V4, b"");
    let is_taken = |vlan, frame: &[u8]| {
        let mut interface = interface_of(&settings(LinkLayer::Ethernet { mac: OUR_MAC, vlan }));
        match interface.input(frame, START) {
            Incoming::Segment(_) => true,
            incoming => {
                assert!(is_for_kernel(&incoming));
                false
            }
        }
    };
    // A tag with identifier 0 is a priority.
    let cases: Vec<bool> = [None, Some(7)]
        .into_iter()
        .flat_map(|vlan| [&untagged, &tagged(0), &tagged(7), &tagged(8)].map(|frame| is_taken(vlan, frame)))
        .collect();
    assert_eq!(cases, [true, true, false, false, false, false, true, false]);
    for cut in 14..18 {
        assert!(is_dropped(&interface().input(&tagged(0)[..cut], START)));
    }
}

#[test]
fn input_without_link_header_dispatches_by_ip_version() {
    let mut interface = interface_of(&settings(LinkLayer::Ip));
    let (v4, v6) = (segment_v4(FAR_V4, OUR_V4, b"x"), segment_v6(FAR_V6, OUR_V6, b"x"));
    assert_eq!(segment(&mut interface, &v4[14..]).bytes, &v4[34..]);
    assert_eq!(segment(&mut interface, &v6[14..]).bytes, &v6[54..]);
    assert!(is_dropped(&interface.input(&[], START)));
    assert!(is_for_kernel(&interface.input(&[0x50; 40], START)));
}

#[test]
fn input_of_truncated_frame_is_dropped_as_malformed() {
    let v6 = segment_v6(FAR_V6, OUR_V6, b"abc");
    let frames = [
        segment_v4(FAR_V4, OUR_V4, b"abc"),
        extended(v6.clone(), &[(HOP_BY_HOP, PAD_6), (ROUTING, &[0; 6]), (DESTINATION, PAD_6)]),
        v6,
        arp_request((THEIR_MAC, THEIR_V4), OUR_V4)[..42].to_vec(),
        solicitation((THEIR_MAC, THEIR_V6), OUR_V6),
    ];
    for frame in frames {
        assert!(!is_dropped(&interface().input(&frame, START)), "{frame:02x?}");
        for cut in 0..frame.len() {
            let mut interface = interface();
            assert!(is_dropped(&interface.input(&frame[..cut], START)), "{cut} of {frame:02x?}");
            assert_eq!(interface.counters.malformed, 1, "{cut} of {frame:02x?}");
            assert!(sent(&mut interface).is_empty());
        }
    }
}

#[test]
fn lengths_that_cannot_be_are_refused() {
    let v4 = || segment_v4(FAR_V4, OUR_V4, b"abc");
    // A header shorter than a header, or longer than the packet; a packet shorter than its header, or longer than the frame.
    drops(&changed(v4(), |ip| ip[0] = 0x44), |c| c.malformed);
    drops(&changed(v4(), |ip| ip[0] = 0x65), |c| c.malformed);
    drops(&changed(v4(), |ip| ip[2..4].copy_from_slice(&[0, 19])), |c| c.malformed);
    drops(&changed(v4(), |ip| ip[2..4].copy_from_slice(&[0, 44])), |c| c.malformed);
    // Options: without their length, shorter than kind and length, beyond the header.
    for options in [[1, 1, 1, 7], [7, 1, 0, 0], [7, 0, 0, 0], [7, 5, 0, 0]] {
        let mut header = ipv4(FAR_V4, OUR_V4);
        header.options = options.into();
        drops(&segment_behind(IpHeaders::Ipv4(header, Default::default()), b""), |c| c.malformed);
    }
    let v6 = || segment_v6(FAR_V6, OUR_V6, b"abc");
    let mut longer = v6();
    longer[19] += 1;
    drops(&longer, |c| c.malformed);
    let mut other = v6();
    other[14] = 0x45;
    drops(&other, |c| c.malformed);
    for options in [[1, 5, 0, 0, 0, 0], [1, 1, 0, 1, 2, 0], [0, 0, 0, 0, 0, 1], [0x1e, 9, 0, 0, 0, 0]] {
        drops(&extended(v6(), &[(DESTINATION, &options)]), |c| c.malformed);
    }
    drops(&extended(v6(), &[(DESTINATION, PAD_6), (HOP_BY_HOP, PAD_6)]), |c| c.malformed);
}

#[test]
fn source_routes_and_options_that_forbid_to_go_on_are_refused() {
    for kind in [131, 137] {
        let mut header = ipv4(FAR_V4, OUR_V4);
        header.options = [1, kind, 7, 4, 1, 2, 3, 4].into();
        drops(&segment_behind(IpHeaders::Ipv4(header, Default::default()), b""), |c| c.bad_options);
    }
    let v6 = || segment_v6(FAR_V6, OUR_V6, b"abc");
    for kind in [0x40, 0x80, 0xc2] {
        drops(&extended(v6(), &[(HOP_BY_HOP, &[kind, 4, 0, 0, 0, 0])]), |c| c.bad_options);
        drops(&extended(v6(), &[(DESTINATION, &[kind, 4, 0, 0, 0, 0])]), |c| c.bad_options);
    }
    let mut route = [0; 22];
    route[1] = 1;
    drops(&extended(v6(), &[(ROUTING, &route)]), |c| c.bad_options);
    drops(&extended(v6(), &[(DESTINATION, PAD_6); 9]), |c| c.bad_options);
    drops(&extended(v6(), &[(DESTINATION, &[0; 254]), (DESTINATION, PAD_6)]), |c| c.bad_options);
}

#[test]
fn ipv4_header_with_flipped_bit_is_not_accepted() {
    let frame = segment_v4(FAR_V4, OUR_V4, b"abc");
    for bit in 14 * 8..34 * 8 {
        let mut frame = frame.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        let incoming = interface().input(&frame, START);
        assert!(matches!(incoming, Incoming::Dropped | Incoming::ForKernel), "bit {bit}");
    }
}

#[test]
fn ipv4_header_checksum_with_either_zero_is_valid() {
    let frame = segment_v4(FAR_V4, OUR_V4, b"");
    let checksum = |frame: &[u8]| u16::from_be_bytes([frame[24], frame[25]]);
    let zero = (0..=u16::MAX)
        .map(|id| changed(frame.clone(), |ip| ip[4..6].copy_from_slice(&id.to_be_bytes())))
        .find(|frame| checksum(frame) == 0)
        .unwrap();
    let mut ones = zero.clone();
    ones[24..26].fill(0xff);
    for frame in [zero, ones] {
        assert!(matches!(interface().input(&frame, START), Incoming::Segment(_)), "{:04x}", checksum(&frame));
    }
}

#[test]
fn input_of_non_tcp_or_foreign_packet_is_left_to_kernel() {
    let udp = |ip: IpHeaders| {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC).ip(ip).udp(1, 2).write(&mut frame, b"x").unwrap();
        frame
    };
    leaves(&udp(IpHeaders::Ipv4(ipv4(FAR_V4, OUR_V4), Default::default())));
    leaves(&udp(IpHeaders::Ipv6(ipv6(FAR_V6, OUR_V6), Default::default())));
    // To others: neighbours, groups, everybody.
    for destination in
        [THEIR_V4, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::BROADCAST, Ipv4Addr::new(192, 0, 2, 255)]
    {
        leaves(&segment_v4(FAR_V4, destination, b""));
    }
    for destination in [THEIR_V6, super::super::nd::ALL_NODES] {
        leaves(&segment_v6(FAR_V6, destination, b""));
    }
    // Faults in a packet for others are theirs to find.
    leaves(&extended(
        segment_v6(FAR_V6, super::super::nd::ALL_NODES, b""),
        &[(DESTINATION, &[0x80, 4, 0, 0, 0, 0])],
    ));
    leaves(&framed(EtherType(0x88cc), &[0; 50]));
    leaves(&framed(EtherType(0x002e), &[0; 50]));
}

#[test]
fn fragments_are_for_the_kernel_and_counted() {
    let fragments = [
        changed(segment_v4(FAR_V4, OUR_V4, b""), |ip| ip[6] = 0x20),
        changed(segment_v4(FAR_V4, OUR_V4, b""), |ip| ip[7] = 1),
        extended(segment_v6(FAR_V6, OUR_V6, b""), &[(FRAGMENT, &[0, 1, 0, 0, 0, 1])]),
        extended(segment_v6(FAR_V6, OUR_V6, b""), &[(HOP_BY_HOP, PAD_6), (FRAGMENT, &[0; 6])]),
    ];
    for fragment in fragments {
        let mut interface = interface();
        assert!(is_for_kernel(&interface.input(&fragment, START)));
        assert_eq!((interface.counters.fragments, interface.counters.for_kernel), (1, 1));
    }
}

#[test]
fn martian_source_is_dropped_and_counted() {
    let v4 = [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.255",
        "192.0.2.1",
    ];
    for source in v4 {
        drops(&segment_v4(source.parse().unwrap(), OUR_V4, b""), |c| c.martians);
    }
    for source in ["::", "::1", "ff02::1", "::ffff:198.51.100.7", "2001:db8::1", "fe80::1"] {
        drops(&segment_v6(source.parse().unwrap(), OUR_V6, b""), |c| c.martians);
    }
}

#[test]
fn segment_to_other_or_group_mac_is_dropped_as_misdirected() {
    for packet in [segment_v4(FAR_V4, OUR_V4, b""), segment_v6(FAR_V6, OUR_V6, b"")] {
        for to in [OTHER_MAC, EVERYBODY, [0x33, 0x33, 0, 0, 0, 1]] {
            let mut frame = packet.clone();
            frame[..6].copy_from_slice(&to);
            drops(&frame, |c| c.misdirected);
        }
    }
}
