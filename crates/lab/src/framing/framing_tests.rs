//! All versions against each other. That the last of them is right is tested beside the template, in `millrace-core`.

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::random::SplitMix;
use millrace_core::wire::checksum::{ChecksumAlgorithm, sum16};
use millrace_core::wire::frame::{Flow, LinkHeader, MAX_HEADER_BYTES, MAX_UDP_PAYLOAD_BYTES};
use proptest::prelude::*;

use super::*;

#[path = "../../../core/src/wire/frame/given.rs"]
mod given;

use given::{LINK, RTP, TAGGED, any_flow, any_link, any_payload, flow, flows};

/// The procedures by themselves give the checksum that is in the datagram.
fn assert_procedures(connection: &Connection, datagram: &Datagram<'_>) {
    let mut out = [0; MAX_HEADER_BYTES];
    let written = full(connection, datagram, &mut out);
    let check = u16::from_be_bytes([out[written - 14], out[written - 13]]);
    let overlay = procedures::Overlay::new(connection, datagram).unwrap();
    for kind in ChecksumAlgorithm::ALL {
        assert_eq!(procedures::in_cksum(kind, &overlay, datagram.payload), check, "{kind:?}");
    }
    assert_eq!(procedures::in_quick_cksum(&overlay, datagram.payload_sum), check);
    assert_eq!(procedures::in_quick_cksum_udp_ip_hdr(connection, datagram), check);
}

/// Asserts that every version writes the same bytes, which are those of the template.
fn assert_same(link: &LinkHeader, flow: &Flow, datagram: &Datagram<'_>) {
    let connection = Connection::new(link, flow).unwrap();
    assert_procedures(&connection, datagram);
    let all = VERSIONS.map(|(name, version)| {
        let mut out = [0xa5; MAX_HEADER_BYTES + 1];
        let written = version(&connection, datagram, &mut out);
        assert!(out[written..].iter().all(|&byte| byte == 0xa5), "{name} writes no more than it says");
        (name, out[..written].to_vec())
    });
    let prebuilt = pre_output(flow.source.ip(), &datagram.rtp, datagram.payload).unwrap();
    let mut out = [0xa5; MAX_HEADER_BYTES];
    let written = quick_output(&connection, &prebuilt, datagram.ip_id, &mut out);
    for (name, headers) in &all {
        assert_eq!(*headers, out[..written], "{name} beside quick_output");
    }
    assert_eq!(full_fast(&connection, datagram, &mut out), written);
    assert_eq!(all[0].1, out[..written], "full_fast");
}

#[test]
fn framing_versions_agree_for_payloads_up_to_9000_bytes() {
    let mut random = SplitMix(1);
    let payload: Vec<u8> = (0..9000).map(|_| random.next() as u8).collect();
    for size in 1..=payload.len() {
        let payload = &payload[..size];
        let datagram = Datagram { rtp: RTP, payload, payload_sum: sum16(payload), ip_id: size as u16 };
        for (flow, link) in flows().iter().zip([LINK, TAGGED]) {
            assert_same(&link, flow, &datagram);
        }
    }
}

/// A checksum that comes out as 0x0000 is one of two zeros, and a payload of zeros the other.
#[test]
fn framing_versions_agree_on_zero_checksum() {
    for flow in &flows() {
        for bytes in [1, 2, 3, 1316, 1317] {
            for byte in [0, 0xff] {
                let payload = vec![byte; bytes];
                let datagram =
                    Datagram { rtp: RTP, payload: &payload, payload_sum: sum16(&payload), ip_id: 9 };
                assert_same(&LINK, flow, &datagram);
                // The difference between the sum and all ones, so that its complement is zero.
                let connection = Connection::new(&LINK, flow).unwrap();
                let mut out = [0; MAX_HEADER_BYTES];
                let written = v4(&connection, &datagram, &mut out);
                let check = &out[written - RTP_HEADER_BYTES - 2..][..2];
                let mut payload = payload.clone();
                if byte == 0 && bytes > 1 {
                    payload[..2].copy_from_slice(check);
                }
                assert_same(
                    &LINK,
                    flow,
                    &Datagram { payload: &payload, payload_sum: sum16(&payload), ..datagram },
                );
            }
        }
    }
}

#[test]
fn framing_versions_reject_oversized_datagram_or_short_buffer() {
    let long = vec![0; MAX_UDP_PAYLOAD_BYTES - RTP_HEADER_BYTES + 1];
    for flow in &flows() {
        let connection = Connection::new(&TAGGED, flow).unwrap();
        let longest = Datagram { rtp: RTP, payload: &long[1..], payload_sum: 0, ip_id: 0 };
        assert_same(&TAGGED, flow, &longest);
        for (name, version) in VERSIONS {
            let mut out = [3; MAX_HEADER_BYTES];
            let too_long = Datagram { payload: &long, ..longest };
            assert_eq!(version(&connection, &too_long, &mut out), 0, "{name}");
            let bytes = version(&connection, &longest, &mut [0; MAX_HEADER_BYTES]);
            assert_eq!(version(&connection, &longest, &mut out[..bytes - 1]), 0, "{name}");
            assert_eq!(out, [3; MAX_HEADER_BYTES], "{name}");
        }
        assert_eq!(pre_output(flow.source.ip(), &RTP, &long), None);
    }
    assert!(Connection::new(&LINK, &flow("192.0.2.1:1", "[2001:db8::1]:2")).is_none());
}

/// One prebuilt datagram serves every viewer.
#[test]
fn pre_output_is_shared_by_many_viewers() {
    let payload = [0x47; 1316];
    let source = flows()[0].source;
    let prebuilt = pre_output(source.ip(), &RTP, &payload).unwrap();
    for viewer in 0..500u16 {
        let to = format!("10.{}.{}.9:{}", viewer % 251, viewer / 7, 1 + viewer * 131);
        let flow = flow(&format!("192.0.2.1:{}", 1000 + viewer), &to);
        let mut out = [0; MAX_HEADER_BYTES];
        let connection = Connection::new(&LINK, &flow).unwrap();
        let written = quick_output(&connection, &prebuilt, viewer, &mut out);
        let datagram = Datagram { rtp: RTP, payload: &payload, payload_sum: sum16(&payload), ip_id: viewer };
        let mut expected = [0; MAX_HEADER_BYTES];
        assert_eq!(v4(&connection, &datagram, &mut expected), written);
        assert_eq!(out, expected);
    }
}

proptest! {
    #[test]
    fn framing_versions_agree_on_any_datagram(flow in any_flow(), link in any_link(), rtp: [u8; 12], ip_id: u16,
                                     payload in any_payload()) {
        let datagram = Datagram { rtp, payload: &payload, payload_sum: sum16(&payload), ip_id };
        assert_same(&link, &flow, &datagram);
    }
}
