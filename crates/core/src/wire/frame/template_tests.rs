//! The template against packets that another implementation built, and the corner cases of stored sums.

use etherparse::{
    Ethernet2Header, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, SingleVlanHeader, UdpHeader,
};
use proptest::prelude::*;

use super::super::given::{LINK, RTP, TAGGED, any_flow, any_link, any_payload, flows};
use super::*;
use crate::random::SplitMix;

/// What differs from datagram to datagram.
#[derive(Clone, Copy)]
struct Datagram<'a> {
    rtp: [u8; RTP_HEADER_BYTES],
    payload: &'a [u8],
    payload_sum: u16,
    ip_id: u16,
}

fn emit(template: &Template, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    let Datagram { rtp, payload, payload_sum, ip_id } = datagram;
    template.emit(out, rtp, *payload_sum, payload.len(), *ip_id)
}

/// Headers as etherparse writes them.
fn oracle(link: &LinkHeader, flow: &Flow, datagram: &Datagram<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let content = [&datagram.rtp, datagram.payload].concat();
    let udp_bytes = (UDP_HEADER_BYTES + content.len()) as u16;
    let (source, destination) = (flow.source.ip(), flow.destination.ip());
    let ether_type = if source.is_ipv4() { etherparse::EtherType::IPV4 } else { etherparse::EtherType::IPV6 };
    let outer = link.vlan.map_or(ether_type, |_| etherparse::EtherType::VLAN_TAGGED_FRAME);
    let ethernet = Ethernet2Header { source: link.source, destination: link.destination, ether_type: outer };
    ethernet.write(&mut out).unwrap();
    if let Some(vlan) = link.vlan {
        let vlan_id = vlan.try_into().unwrap();
        SingleVlanHeader { vlan_id, ether_type, ..Default::default() }.write(&mut out).unwrap();
    }
    let mut udp = UdpHeader {
        source_port: flow.source.port(),
        destination_port: flow.destination.port(),
        length: udp_bytes,
        checksum: 0,
    };
    match (source, destination) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            let mut ip = Ipv4Header::new(
                udp_bytes,
                flow.hop_limit,
                IpNumber::UDP,
                source.octets(),
                destination.octets(),
            )
            .unwrap();
            ip.dscp = (flow.traffic_class >> 2).try_into().unwrap();
            ip.ecn = (flow.traffic_class & 3).try_into().unwrap();
            ip.identification = datagram.ip_id;
            ip.dont_fragment = true;
            ip.header_checksum = ip.calc_header_checksum();
            ip.write(&mut out).unwrap();
            udp.checksum = udp.calc_checksum_ipv4(&ip, &content).unwrap();
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            let ip = Ipv6Header {
                traffic_class: flow.traffic_class,
                flow_label: Ipv6FlowLabel::default(),
                payload_length: udp_bytes,
                next_header: IpNumber::UDP,
                hop_limit: flow.hop_limit,
                source: source.octets(),
                destination: destination.octets(),
            };
            ip.write(&mut out).unwrap();
            udp.checksum = udp.calc_checksum_ipv6(&ip, &content).unwrap();
        }
        _ => unreachable!("families are the same in tests"),
    }
    udp.write(&mut out).unwrap();
    out.extend(datagram.rtp);
    out
}

/// RFC 768 and RFC 8200 section 8.1, byte by byte, without any code of ours: the sum over pseudo header, UDP header and content
/// of a finished datagram is all ones, and the field is not zero.
fn is_sound(headers: &[u8], payload: &[u8], flow: &Flow) -> bool {
    let udp = headers.len() - RTP_HEADER_BYTES - UDP_HEADER_BYTES;
    let mut bytes = match (flow.source.ip(), flow.destination.ip()) {
        (std::net::IpAddr::V4(a), std::net::IpAddr::V4(b)) => [a.octets(), b.octets()].concat(),
        (std::net::IpAddr::V6(a), std::net::IpAddr::V6(b)) => [a.octets(), b.octets()].concat(),
        _ => return false,
    };
    bytes.extend([0, 17, headers[udp + 4], headers[udp + 5]]);
    bytes.extend(&headers[udp..]);
    bytes.extend(payload);
    let word = |pair: &[u8]| u64::from(pair[0]) * 256 + u64::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = sum % 0x1_0000 + sum / 0x1_0000;
    }
    sum == 0xffff && headers[udp + 6..udp + 8] != [0, 0]
}

/// Returns the output of the template, which is sound.
fn frame(link: &LinkHeader, flow: &Flow, datagram: &Datagram<'_>) -> Vec<u8> {
    let template = Template::new(link, flow).unwrap();
    let mut out = [0xa5; MAX_HEADER_BYTES + 1];
    let written = emit(&template, datagram, &mut out);
    assert!(out[written..].iter().all(|&byte| byte == 0xa5), "it writes no more than it says");
    let headers = out[..written].to_vec();
    assert!(is_sound(&headers, datagram.payload, flow));
    headers
}

#[test]
fn template_for_payload_sizes_to_9000_equals_oracle() {
    let mut random = SplitMix(1);
    let payload: Vec<u8> = (0..9000).map(|_| random.next() as u8).collect();
    for size in 1..=payload.len() {
        let payload = &payload[..size];
        let datagram = Datagram { rtp: RTP, payload, payload_sum: sum16(payload), ip_id: size as u16 };
        for (flow, link) in flows().iter().zip([LINK, TAGGED]) {
            assert_eq!(frame(&link, flow, &datagram), oracle(&link, flow, &datagram), "{size} bytes");
        }
    }
}

/// Stored sums of 0x0000 (zeros only) and 0xffff (a multiple that is not zero), even and odd lengths.
#[test]
fn template_with_payload_sum_zero_or_ffff_equals_oracle() {
    let mut almost = vec![0; 1317];
    almost[700..702].fill(0xff);
    for (payload, expected) in [
        (vec![0; 1316], 0),
        (vec![0; 1], 0),
        (vec![0; 1317], 0),
        (vec![0xff; 1316], 0xffff),
        (vec![0xff; 2], 0xffff),
        (almost, 0xffff),
    ] {
        let payload_sum = sum16(&payload);
        assert_eq!(payload_sum, expected);
        for flow in &flows() {
            for link in [LINK, TAGGED] {
                let datagram = Datagram { rtp: RTP, payload: &payload, payload_sum, ip_id: 0 };
                let headers = frame(&link, flow, &datagram);
                assert_eq!(headers, oracle(&link, flow, &datagram));
                // The two zeros are one class, and the pseudo header is never zero: a stored sum in the other form does no harm.
                let other = Datagram { payload_sum: !payload_sum, ..datagram };
                let mut out = [0; MAX_HEADER_BYTES];
                let written = emit(&Template::new(&link, flow).unwrap(), &other, &mut out);
                assert_eq!(out[..written], headers);
            }
        }
    }
}

/// A checksum that comes out as 0x0000 would mean "none" (IPv4) or be illegal (IPv6); 0xffff is sent.
#[test]
fn udp_checksum_of_zero_is_sent_as_ffff() {
    for flow in &flows() {
        for bytes in [2, 3, 1316, 1317] {
            let mut payload = vec![0; bytes];
            for round in 0..2 {
                let datagram =
                    Datagram { rtp: RTP, payload: &payload, payload_sum: sum16(&payload), ip_id: 9 };
                let headers = frame(&LINK, flow, &datagram);
                assert_eq!(headers, oracle(&LINK, flow, &datagram));
                let check = &headers[headers.len() - RTP_HEADER_BYTES - 2..][..2];
                if round == 1 {
                    assert_eq!(check, [0xff, 0xff]);
                }
                // The difference of the sum to all ones, so that the next round's sum is all ones
                // and its complement zero.
                let check = [check[0], check[1]];
                payload[..2].copy_from_slice(&check);
            }
        }
    }
}

/// The odd byte at the end is the upper half of a word whose lower half is zero, and is not sent.
#[test]
fn sum16_of_odd_payload_equals_zero_padded_payload() {
    let (odd, even) = ([1, 2, 3], [1, 2, 3, 0]);
    assert_eq!(sum16(&odd), sum16(&even));
    for flow in &flows() {
        let datagram = Datagram { rtp: RTP, payload: &odd, payload_sum: sum16(&odd), ip_id: 1 };
        assert_eq!(frame(&LINK, flow, &datagram), oracle(&LINK, flow, &datagram));
    }
}

/// Sums compose only at even offsets: every header is even, so the payload behind them begins at one.
#[test]
fn headers_are_even() {
    for bytes in [MAX_HEADER_BYTES, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, RTP_HEADER_BYTES, UDP_HEADER_BYTES]
    {
        assert_eq!(bytes % 2, 0);
    }
}

/// Only zeros sum to 0x0000; an addition never comes back to it.
#[test]
fn add_is_zero_only_for_two_zeros() {
    for a in 0..=u16::MAX {
        for b in [0, 1, 0x7fff, 0x8000, 0xfffe, 0xffff, !a, a, a.wrapping_neg()] {
            assert_eq!(add(a, b) == 0, a == 0 && b == 0, "{a:#x} {b:#x}");
        }
    }
}

/// Why sums are never subtracted: a remainder of only zeros comes out as the other zero.
#[test]
fn subtraction_of_sums_yields_ffff_instead_of_zero() {
    let (a, b) = ([0x12, 0x34, 0x56, 0x78], [0; 4]);
    let whole = sum16(&[a, b].concat());
    assert_eq!(sum16(&b), 0);
    assert_eq!(add(whole, !sum16(&a)), 0xffff);
}

/// The IPv4 identification changes from datagram to datagram: the checksum follows it by RFC 1624's
/// equation 3, and is the checksum of the whole header.
#[test]
fn ipv4_checksum_after_new_identification_follows_rfc_1624() {
    let template = Template::new(&LINK, &flows()[0]).unwrap();
    let ip_header = |ip_id| {
        let datagram = Datagram { rtp: RTP, payload: &[1; 100], payload_sum: sum16(&[1; 100]), ip_id };
        let mut out = [0; MAX_HEADER_BYTES];
        assert_eq!(emit(&template, &datagram, &mut out), 54);
        out[14..34].to_vec()
    };
    let check = |header: &[u8]| u16::from_be_bytes([header[10], header[11]]);
    let mut before = ip_header(0);
    for ip_id in (1..=u16::MAX).step_by(7).chain([u16::MAX, 0]) {
        let header = ip_header(ip_id);
        let old_id = u16::from_be_bytes([before[4], before[5]]);
        assert_eq!(check(&header), !add(add(!check(&before), !old_id), ip_id), "{ip_id}");
        assert_eq!(sum16(&header), 0xffff);
        before = header;
    }
}

/// The longest datagram is one that the other implementation writes too.
#[test]
fn template_for_longest_datagram_equals_oracle() {
    let longest = vec![0; MAX_UDP_PAYLOAD_BYTES - RTP_HEADER_BYTES];
    for flow in &flows() {
        let datagram = Datagram { rtp: RTP, payload: &longest, payload_sum: 0, ip_id: 0 };
        assert_eq!(frame(&TAGGED, flow, &datagram), oracle(&TAGGED, flow, &datagram));
    }
}

proptest! {
    #[test]
    fn template_for_any_flow_and_payload_equals_oracle(flow in any_flow(), link in any_link(), rtp: [u8; 12], ip_id: u16,
                                       payload in any_payload()) {
        let datagram = Datagram { rtp, payload: &payload, payload_sum: sum16(&payload), ip_id };
        prop_assert_eq!(frame(&link, &flow, &datagram), oracle(&link, &flow, &datagram));
    }

    /// Whatever room and length: all or nothing, and never a panic.
    #[test]
    fn emit_with_any_buffer_size_writes_whole_header_or_nothing(flow in any_flow(), link in any_link(), room in 0usize..100,
                                               payload_bytes in prop_oneof![0usize..70_000, any::<usize>()]) {
        let template = Template::new(&link, &flow).unwrap();
        let mut out = vec![0xa5; room];
        for is_raw in [false, true] {
            let (bytes, written) = match is_raw {
                true => (template.header_bytes(), template.emit_raw(&mut out, 1, payload_bytes, 2)),
                false => (template.header_bytes() + 12, template.emit(&mut out, &RTP, 1, payload_bytes, 2)),
            };
            let most = MAX_UDP_PAYLOAD_BYTES - (bytes - template.header_bytes());
            let fits = room >= bytes && payload_bytes <= most;
            prop_assert_eq!(written, if fits { bytes } else { 0 });
            prop_assert!(out[written..].iter().all(|&byte| byte == 0xa5));
            out.fill(0xa5);
        }
    }

    /// Without an RTP header of its own the datagram is the same as with it, if it is given as part of the payload.
    #[test]
    fn emit_raw_with_rtp_in_payload_equals_emit(flow in any_flow(), link in any_link(), rtp: [u8; 12], ip_id: u16,
                                           payload in any_payload()) {
        let datagram = Datagram { rtp, payload: &payload, payload_sum: sum16(&payload), ip_id };
        let expected = frame(&link, &flow, &datagram);
        let content = [&rtp[..], &payload].concat();
        let mut out = [0; MAX_HEADER_BYTES];
        let template = Template::new(&link, &flow).unwrap();
        let written = template.emit_raw(&mut out, sum16(&content), content.len(), ip_id);
        prop_assert_eq!(&out[..written], &expected[..template.header_bytes()]);
        let folded = fold(u64::from(sum16(&rtp)) + u64::from(sum16(&payload)));
        prop_assert_eq!(folded, sum16(&content));
    }
}
