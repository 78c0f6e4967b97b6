//! Frames that the template built come back; each possible fault is reported.

use proptest::prelude::*;

use super::super::given::{LINK, TAGGED, any_flow, any_link, any_payload, flow};
use super::super::{Flow, Template};
use super::*;

fn frame(link: &super::super::LinkHeader, flow: &Flow, payload: &[u8]) -> Vec<u8> {
    let template = Template::new(link, flow).unwrap();
    let mut out = vec![0; template.header_bytes()];
    assert_eq!(template.emit_raw(&mut out, sum16(payload), payload.len(), 7), template.header_bytes());
    out.extend(payload);
    out
}

/// An IPv4 datagram from 192.0.2.1:5004 to 198.51.100.7:40000.
fn v4() -> Vec<u8> {
    frame(&LINK, &flow("192.0.2.1:5004", "198.51.100.7:40000"), b"payload")
}

fn v6() -> Vec<u8> {
    frame(&TAGGED, &flow("[fe80::1]:5004", "[fd00::7]:40000"), b"payload")
}

/// The frame with `value` at `at`, its IPv4 header checksum right again.
fn with(mut frame: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    frame[at] = value;
    if frame[12] == 8 {
        frame[24..26].fill(0);
        let check = !sum16(&frame[14..34]);
        frame[24..26].copy_from_slice(&check.to_be_bytes());
    }
    frame
}

proptest! {
    #[test]
    fn parse_of_template_frame_returns_flow_and_payload(link in any_link(), flow in any_flow(), payload in any_payload(), padding in 0usize..50) {
        prop_assume!(!flow.source.ip().is_unspecified() && !flow.source.ip().is_multicast());
        prop_assume!(flow.source.ip().to_string() != "255.255.255.255");
        let mut frame = frame(&link, &flow, &payload);
        frame.resize(frame.len() + padding, 0xaa);
        let packet = parse(&frame, 0).unwrap();
        prop_assert_eq!(packet.protocol, Protocol::Udp);
        prop_assert_eq!(packet.source.ip(), flow.source.ip().to_canonical());
        prop_assert_eq!(packet.destination.ip(), flow.destination.ip().to_canonical());
        prop_assert_eq!((packet.source.port(), packet.destination.port()), (flow.source.port(), flow.destination.port()));
        prop_assert_eq!(packet.bytes, &payload[..]);
    }
}

#[test]
fn everything_wrong_has_its_name() {
    let wrong = |frame: Vec<u8>| parse(&frame, 0).unwrap_err();
    assert_eq!(wrong(with(v4(), 13, 6)), Unfit::Link); // ARP
    assert_eq!(wrong(with(v4(), 14, 0x46)), Unfit::Options);
    assert_eq!(wrong(with(v4(), 20, 0x20)), Unfit::Fragment); // the first
    assert_eq!(wrong(with(v4(), 21, 1)), Unfit::Fragment); // another
    assert_eq!(wrong(with(v4(), 23, 1)), Unfit::Protocol); // ICMP
    assert_eq!(wrong(with(v4(), 17, 36)), Unfit::Length); // longer than the frame
    assert_eq!(wrong(with(v4(), 17, 19)), Unfit::Length); // shorter than its header
    assert_eq!(wrong(with(v4(), 39, 7)), Unfit::Length); // UDP shorter than its header
    assert_eq!(wrong(with(v4(), 39, 16)), Unfit::Length); // UDP longer than the packet
    assert_eq!(wrong(with(v4(), 26, 224)), Unfit::Source);
    assert_eq!(wrong(with(v4(), 48, b'x')), Unfit::Checksum);
    let mut header = v4();
    header[22] ^= 1; // the TTL
    assert_eq!(wrong(header), Unfit::Checksum);
    assert_eq!(wrong(with(v6(), 24, 0)), Unfit::Protocol); // hop-by-hop options
    assert_eq!(wrong(with(v6(), 18, 0x40)), Unfit::Link); // another version
    assert_eq!(wrong(with(v6(), 26, 0xff)), Unfit::Source);
    for whole in [v4(), v6()] {
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len], 0), Err(Unfit::Length), "{len} bytes");
        }
    }
}

#[test]
fn parse_zero_udp_checksum_passes_ipv4_but_not_ipv6() {
    let mut bytes = v4();
    bytes[40..42].fill(0);
    assert_eq!(parse(&bytes, 0).unwrap().bytes, b"payload");
    let mut bytes = v6();
    bytes[64..66].fill(0);
    assert_eq!(parse(&bytes, 0), Err(Unfit::Checksum));
}

#[test]
fn link_local_addresses_say_by_which_interface() {
    let bytes = v6();
    let packet = parse(&bytes, 9).unwrap();
    assert_eq!(packet.source.to_string(), "[fe80::1%9]:5004");
    assert_eq!(packet.destination.to_string(), "[fd00::7]:40000");
}
