use etherparse::{Icmpv4Type, Icmpv6Type, IpHeaders, IpNumber, PacketBuilder, SlicedPacket, TransportSlice};

use super::super::rig::*;
use super::super::{Incoming, Interface, LinkLayer};
use super::*;
use crate::limits::ECHO_REPLIES_PER_SECOND;
use crate::stack::{IcmpError, Undelivered};

fn icmp_v4(kind: Icmpv4Type, payload: &[u8]) -> Vec<u8> {
    let ip = IpHeaders::Ipv4(ipv4(FAR_V4, OUR_V4), Default::default());
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC).ip(ip).icmpv4(kind).write(&mut frame, payload).unwrap();
    frame
}

fn icmp_v6(kind: Icmpv6Type, payload: &[u8]) -> Vec<u8> {
    let ip = IpHeaders::Ipv6(ipv6(FAR_V6, OUR_V6), Default::default());
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(THEIR_MAC, OUR_MAC).ip(ip).icmpv6(kind).write(&mut frame, payload).unwrap();
    frame
}

fn raw_v4(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    icmp_v4(Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest }, payload)
}

fn raw_v6(kind: u8, code: u8, rest: [u8; 4], payload: &[u8]) -> Vec<u8> {
    icmp_v6(Icmpv6Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: rest }, payload)
}

/// What our side sent and a router quotes: from the IP header on.
fn quoted(segment: &[u8], bytes: usize) -> Vec<u8> {
    segment[14..][..bytes].to_vec()
}

fn our_v4() -> Vec<u8> {
    segment_v4(OUR_V4, FAR_V4, b"what we sent")
}

fn our_v6() -> Vec<u8> {
    segment_v6(OUR_V6, FAR_V6, b"what we sent")
}

fn error(interface: &mut Interface, frame: &[u8]) -> IcmpError {
    match interface.input(frame, START) {
        Incoming::Error(error) => error,
        other => panic!("{other:?} {:?} {frame:02x?}", interface.counters),
    }
}

#[test]
fn echo_requests_are_answered_byte_for_byte() {
    for length in [0, 1, 2, 7, 56, 1471, 1472] {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        let mut interface = interface();
        let request =
            icmp_v4(Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 9, seq: 3 }), &payload);
        assert!(matches!(interface.input(&request, START), Incoming::Done));
        let [reply] = &sent(&mut interface)[..] else { panic!("one reply to {length} bytes") };
        let mut expected = Vec::new();
        let ip = etherparse::Ipv4Header { identification: 0, dont_fragment: true, ..ipv4(OUR_V4, FAR_V4) };
        PacketBuilder::ethernet2(OUR_MAC, THEIR_MAC)
            .ip(IpHeaders::Ipv4(ip, Default::default()))
            .icmpv4_echo_reply(9, 3)
            .write(&mut expected, &payload)
            .unwrap();
        assert_eq!(reply, &expected);
        assert_eq!(interface.counters().echo_replies, 1);
    }
    for length in [0, 1, 2, 7, 56, 1451, 1452] {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        let mut interface = interface();
        let request =
            icmp_v6(Icmpv6Type::EchoRequest(etherparse::IcmpEchoHeader { id: 9, seq: 3 }), &payload);
        assert!(matches!(interface.input(&request, START), Incoming::Done));
        let [reply] = &sent(&mut interface)[..] else { panic!("one reply to {length} bytes") };
        let mut expected = Vec::new();
        PacketBuilder::ethernet2(OUR_MAC, THEIR_MAC)
            .ip(IpHeaders::Ipv6(ipv6(OUR_V6, FAR_V6), Default::default()))
            .icmpv6_echo_reply(9, 3)
            .write(&mut expected, &payload)
            .unwrap();
        assert_eq!(reply, &expected);
    }
}

#[test]
fn echo_checksum_with_either_zero_is_valid() {
    for word in 0..=40u16 {
        let payload = word.to_be_bytes();
        let echo = etherparse::IcmpEchoHeader { id: 0, seq: 0 };
        let request = icmp_v4(Icmpv4Type::EchoRequest(echo), &payload);
        let mut interface = interface_bare();
        interface.input(&request[14..], START);
        let replies = sent(&mut interface);
        let sliced = SlicedPacket::from_ip(&replies[0]).unwrap();
        let Some(TransportSlice::Icmpv4(reply)) = sliced.transport else { panic!("{:?}", sliced.transport) };
        assert!(reply.header().icmp_type == Icmpv4Type::EchoReply(echo));
        assert_eq!(reply.header().checksum, reply.icmp_type().calc_checksum(&payload), "{word:04x}");
    }
    // 0xf7ff makes the sum of the request zero, 0xffff that of the reply.
    for word in [0xf7ff, 0xf7fe, 0xf800, 0xffff, 0xfffe] {
        let payload = u16::to_be_bytes(word);
        let request =
            icmp_v4(Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 0, seq: 0 }), &payload);
        let mut interface = interface_bare();
        assert!(matches!(interface.input(&request[14..], START), Incoming::Done), "{word:04x}");
        assert_eq!(sum16(&sent(&mut interface)[0][20..]), 0xffff, "{word:04x}");
        // The other zero, where there is one.
        let mut other = request[14..].to_vec();
        if other[22..24] == [0, 0] {
            other[22..24].fill(0xff);
            assert!(matches!(interface.input(&other, START), Incoming::Done), "{word:04x}");
        }
    }
}

fn interface_bare() -> Interface {
    interface_of(&settings(LinkLayer::Ip))
}

#[test]
fn echo_is_refused_to_whom_it_could_be_abused_by() {
    let request = icmp_v4(Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 1 }), b"abc");
    let mut interface = interface();
    // Wrong sum; sent to everybody; from everybody.
    let mut wrong = request.clone();
    wrong[36] ^= 1;
    assert!(is_dropped(&interface.input(&wrong, START)));
    let mut broadcast = request.clone();
    broadcast[..6].fill(0xff);
    assert!(is_dropped(&interface.input(&broadcast, START)));
    let smurf = changed(request.clone(), |ip| ip[12..16].copy_from_slice(&[192, 0, 2, 255]));
    assert!(is_dropped(&interface.input(&smurf, START)));
    let c = *interface.counters();
    assert_eq!((c.bad_checksums, c.misdirected, c.martians, c.echo_replies), (1, 1, 1, 0));
    assert!(sent(&mut interface).is_empty());
    // A kernel that has the address too may answer.
    let mut settings = settings(ETHERNET);
    settings.answers_echo = false;
    assert!(is_for_kernel(&interface_of(&settings).input(&request, START)));
    // An answer to the kernel's own request.
    let reply = icmp_v4(Icmpv4Type::EchoReply(etherparse::IcmpEchoHeader { id: 1, seq: 1 }), b"abc");
    assert!(is_for_kernel(&interface.input(&reply, START)));
}

#[test]
fn echo_replies_are_limited() {
    let request = icmp_v4(Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 1 }), b"abc");
    let mut interface = interface();
    let mut replies = 0;
    for ms in 0..2000 {
        for _ in 0..3 {
            interface.input(&request, START.plus_ns(ms * 1_000_000));
        }
        replies += sent(&mut interface).len() as u64;
    }
    let expected = u64::from(ECHO_REPLIES_PER_SECOND) * 2;
    assert!((expected..=expected + expected / 10).contains(&replies), "{replies}");
    assert_eq!(interface.counters().echo_replies + interface.counters().echo_limited, 6000);
}

#[test]
fn errors_about_own_segments_are_passed_on() {
    let mut interface = interface();
    let quote = quoted(&our_v4(), 28);
    let expected = |kind| IcmpError {
        local: (OUR_V4, THEIR_PORT).into(),
        remote: (FAR_V4, OUR_PORT).into(),
        seq: Seq(1),
        kind,
    };
    let undelivered = |why| expected(IcmpKind::Undelivered(why));
    let too_big = raw_v4(3, 4, [0, 0, 5, 100], &quote);
    assert_eq!(error(&mut interface, &too_big), expected(IcmpKind::TooBig { mtu: 1380 }));
    assert_eq!(error(&mut interface, &raw_v4(3, 3, [0; 4], &quote)), undelivered(Undelivered::Port));
    assert_eq!(error(&mut interface, &raw_v4(11, 0, [0; 4], &quote)), undelivered(Undelivered::TimeExceeded));
    let mut with_options = ipv4(OUR_V4, FAR_V4);
    with_options.options = [1; 8].into();
    let behind = segment_behind(IpHeaders::Ipv4(with_options, Default::default()), b"");
    let frame = raw_v4(3, 1, [0; 4], &quoted(&behind, 36));
    assert_eq!(error(&mut interface, &frame), undelivered(Undelivered::Host));

    let quote = quoted(&our_v6(), 48);
    let frame = raw_v6(2, 0, [0, 0, 5, 100], &quote);
    let expected = IcmpError {
        local: (OUR_V6, THEIR_PORT).into(),
        remote: (FAR_V6, OUR_PORT).into(),
        seq: Seq(1),
        kind: IcmpKind::TooBig { mtu: 1380 },
    };
    assert_eq!(error(&mut interface, &frame), expected);
    let quote = quoted(&extended(our_v6(), &[(60, &[1, 4, 0, 0, 0, 0])]), 56);
    assert_eq!(error(&mut interface, &raw_v6(2, 0, [0, 0, 5, 100], &quote)), expected);
    assert_eq!(interface.counters().errors_in, 6);
    // From a router of this link about a link-local end.
    let quote = quoted(&segment_v6(OUR_LOCAL_V6, GATEWAY_V6, b""), 48);
    let local = error(&mut interface, &raw_v6(1, 3, [0; 4], &quote)).local;
    assert_eq!(local, SocketAddr::V6(SocketAddrV6::new(OUR_LOCAL_V6, THEIR_PORT, 0, SCOPE)));
}

#[test]
fn errors_that_quote_anything_else_are_not() {
    let mut interface = interface();
    // Too little is quoted, at each length.
    let full = quoted(&our_v4(), 28);
    for cut in 0..28 {
        assert!(is_dropped(&interface.input(&raw_v4(3, 3, [0; 4], &full[..cut]), START)), "{cut}");
    }
    let full = quoted(&our_v6(), 48);
    for cut in 0..48 {
        assert!(is_dropped(&interface.input(&raw_v6(1, 4, [0; 4], &full[..cut]), START)), "{cut}");
    }
    assert_eq!((interface.counters().malformed, interface.counters().errors_in), (28 + 48, 0));
    // Another protocol: a socket of the kernel.
    let udp = changed(our_v4(), |ip| ip[9] = IpNumber::UDP.0);
    assert!(is_for_kernel(&interface.input(&raw_v4(3, 3, [0; 4], &quoted(&udp, 28)), START)));
    let mut udp = our_v6();
    udp[20] = IpNumber::UDP.0;
    assert!(is_for_kernel(&interface.input(&raw_v6(1, 4, [0; 4], &quoted(&udp, 48)), START)));
    // A fragment that is not the first has no ports.
    let later = changed(our_v4(), |ip| ip[7] = 9);
    assert!(is_dropped(&interface.input(&raw_v4(3, 3, [0; 4], &quoted(&later, 28)), START)));
    // Not from here; not to anywhere.
    let foreign = segment_v4(THEIR_V4, FAR_V4, b"");
    assert!(is_dropped(&interface.input(&raw_v4(3, 3, [0; 4], &quoted(&foreign, 28)), START)));
    let nowhere = segment_v4(OUR_V4, Ipv4Addr::LOCALHOST, b"");
    assert!(is_dropped(&interface.input(&raw_v4(3, 3, [0; 4], &quoted(&nowhere, 28)), START)));
    assert_eq!(interface.counters().martians, 2);
    // Source quench, redirects and router advertisements are not errors for TCP.
    let quote = quoted(&our_v4(), 28);
    assert!(is_for_kernel(&interface.input(&raw_v4(4, 0, [0; 4], &quote), START)));
    assert!(is_for_kernel(&interface.input(&raw_v4(5, 1, [192, 0, 2, 9], &quote), START)));
    assert!(is_for_kernel(&interface.input(&raw_v6(137, 0, [0; 4], &[0; 32]), START)));
    assert!(is_for_kernel(&interface.input(&raw_v6(134, 0, [0; 4], &[0; 8]), START)));
    assert_eq!(interface.counters().errors_in, 0);
}

#[test]
fn icmp_error_with_flipped_bit_is_rejected() {
    for frame in [
        raw_v4(3, 4, [0, 0, 5, 100], &quoted(&our_v4(), 28)),
        raw_v6(2, 0, [0, 0, 5, 100], &quoted(&our_v6(), 48)),
    ] {
        for bit in 14 * 8..frame.len() * 8 {
            let mut frame = frame.clone();
            frame[bit / 8] ^= 1 << (bit % 8);
            let is_error = matches!(interface().input(&frame, START), Incoming::Error(_));
            // Class, label and hop limit of IPv6 are not covered.
            let is_uncovered =
                frame[14] >> 4 == 6 && (14..18).contains(&(bit / 8)) || bit / 8 == 21 && frame.len() > 80;
            assert!(!is_error || is_uncovered, "bit {bit}");
        }
    }
}

#[test]
fn messages_without_a_header_are_malformed() {
    let mut v4 = icmp_v4(Icmpv4Type::EchoRequest(etherparse::IcmpEchoHeader { id: 1, seq: 1 }), b"");
    for bytes in 0..8u8 {
        v4 = changed(v4, |ip| ip[3] = 20 + bytes);
        assert!(is_dropped(&interface().input(&v4, START)));
    }
}
