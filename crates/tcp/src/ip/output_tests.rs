use etherparse::{NetSlice, SlicedPacket};
use millrace_core::random::SplitMix;

use super::super::rig::*;
use super::super::{LinkLayer, Settings};
use super::*;
use crate::send::Payload;
use crate::wire::FlowKey;

fn bare(settings: Settings) -> Interface {
    interface_of(&Settings { link: LinkLayer::Ip, ..settings })
}

/// A header without an end that is known.
fn random_flow(random: &mut SplitMix, is_v4: bool) -> FlowKey {
    let mut bytes = || std::array::from_fn::<u8, 16, _>(|_| random.next() as u8);
    let (a, b) = (bytes(), bytes());
    let ends: [std::net::IpAddr; 2] = if is_v4 {
        [[a[0], a[1], a[2], a[3]].into(), [b[0], b[1], b[2], b[3]].into()]
    } else {
        let with_prefix = |mut ip: [u8; 16]| {
            ip[0] = 0x20;
            Ipv6Addr::from(ip)
        };
        [with_prefix(a).into(), with_prefix(b).into()]
    };
    FlowKey::new((ends[0], 80).into(), (ends[1], 40_000).into()).unwrap()
}

#[test]
fn headers_are_what_another_implementation_reads_in_them() {
    let mut random = SplitMix(5);
    let mut settings = settings(ETHERNET);
    (settings.dscp, settings.hop_limit) = (0x2e, 61);
    for vlan in [None, Some(0xabc)] {
        settings.link = LinkLayer::Ethernet { mac: OUR_MAC, vlan };
        let interface = Interface::new(&settings, START).unwrap();
        for number in 0..4000 {
            let is_v4 = number % 2 == 0;
            let flow = random_flow(&mut random, is_v4);
            let header: Vec<u8> = (0..20 + 4 * random.below(11)).map(|_| random.next() as u8).collect();
            let is_capable = random.below(2) == 1;
            let bytes = random.below(1501 - 40 - header.len() as u64) as u32;
            let mut out = out(&flow, &header);
            out.payload.bytes = bytes;
            out.ecn = if is_capable { Ecn::Capable } else { Ecn::NotCapable };
            let mut frame = vec![0xaa; 2000];
            let headers = interface.put_headers(&out, THEIR_MAC, &mut frame);
            frame.truncate(headers + bytes as usize);
            let sliced = etherparse::LaxSlicedPacket::from_ethernet(&frame).unwrap();
            assert_eq!(frame[..12], [THEIR_MAC, OUR_MAC].concat());
            assert_eq!(sliced.vlan_ids().first().map(|id| id.value()), vlan);
            let length = header.len() + bytes as usize;
            match sliced.net.unwrap() {
                etherparse::LaxNetSlice::Ipv4(ip) => {
                    let ip = ip.header().to_header();
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    assert_eq!(usize::from(ip.total_len), 20 + length);
                    assert_eq!(std::net::IpAddr::from(ip.source), flow.local().ip());
                    assert_eq!(std::net::IpAddr::from(ip.destination), flow.remote().ip());
                    assert!(ip.dont_fragment && !ip.more_fragments && ip.identification == 0);
                    assert_eq!((ip.dscp.value(), ip.ecn as u8), (0x2e, if is_capable { 2 } else { 0 }));
                    assert_eq!((ip.time_to_live, ip.protocol.0), (61, 6));
                }
                etherparse::LaxNetSlice::Ipv6(ip) => {
                    let ip = ip.header().to_header();
                    assert_eq!(usize::from(ip.payload_length), length);
                    assert_eq!(std::net::IpAddr::from(ip.source), flow.local().ip());
                    assert_eq!(std::net::IpAddr::from(ip.destination), flow.remote().ip());
                    assert_eq!(ip.traffic_class, 0x2e << 2 | if is_capable { 2 } else { 0 });
                    assert_eq!((ip.hop_limit, ip.next_header.0), (61, 6));
                }
                other => panic!("{other:?}"),
            }
            let link = if vlan.is_some() { 18 } else { 14 };
            let ip = if is_v4 { 20 } else { 40 };
            assert_eq!(frame[link + ip..headers], header);
        }
    }
}

#[test]
fn checksums_at_both_zeros_are_right() {
    // All lengths with one pair of addresses: the sum takes more than a thousand values, 0xffff and its neighbours among those of the second.
    let mut seen = std::collections::HashSet::new();
    let mut interface = bare(settings(ETHERNET));
    interface.mtu = u16::MAX;
    let flow = flow(FAR_V4);
    for bytes in 0..65_535 - 40 {
        let mut out = out(&flow, &[0; 20]);
        out.payload.bytes = bytes;
        let mut frame = [0; 40];
        assert_eq!(interface.put_headers(&out, Mac::default(), &mut frame), 40);
        assert_eq!(sum16(&frame[..20]), 0xffff, "{bytes}");
        seen.insert(u16::from_be_bytes([frame[10], frame[11]]));
    }
    assert!(seen.contains(&0) && seen.contains(&1) && seen.contains(&0xfffe) && !seen.contains(&0xffff));
}

#[test]
fn flow_label_depends_on_flow_and_secret() {
    let mut random = SplitMix(6);
    let interface = bare(settings(ETHERNET));
    let label = |interface: &Interface, flow: &FlowKey| {
        let mut frame = [0; 60];
        assert_eq!(interface.put_headers(&out(flow, &[0; 20]), Mac::default(), &mut frame), 60);
        u32::from_be_bytes([0, frame[1] & 15, frame[2], frame[3]])
    };
    let flows: Vec<FlowKey> = (0..1000).map(|_| random_flow(&mut random, false)).collect();
    let labels: std::collections::HashSet<u32> = flows.iter().map(|flow| label(&interface, flow)).collect();
    assert!(labels.len() > 990, "{} of 1000", labels.len());
    // Ports are part of it, and so is the secret.
    let ports: std::collections::HashSet<u32> =
        (1000..2000).map(|port| label(&interface, &flows[0].with_local_port(port))).collect();
    assert!(ports.len() > 900, "{} of 1000", ports.len());
    let other = bare(Settings { secret: [9, 9], ..settings(ETHERNET) });
    assert_ne!(label(&interface, &flows[0]), label(&other, &flows[0]));
    assert_eq!(label(&interface, &flows[0]), label(&interface, &flows[0]));
}

#[test]
fn output_of_oversized_packet_or_to_short_buffer_is_dropped() {
    for (remote, headers) in [(std::net::IpAddr::V4(FAR_V4), 40), (FAR_V6.into(), 60)] {
        let mut interface = bare(settings(ETHERNET));
        let flow = flow(remote);
        let mut frame = vec![0; 1500];
        let mut out = out(&flow, &[0; 20]);
        for (bytes, fits) in [(1500 - headers, true), (1501 - headers, false), (u32::MAX, false)] {
            out.payload.bytes = bytes;
            let written = interface.headers(&out, START, &mut frame);
            let expected = if fits { Outgoing::Written(headers as usize) } else { Outgoing::Dropped };
            assert_eq!(written, expected, "{bytes}");
        }
        out.payload = Payload::default();
        for room in 0..headers as usize {
            assert_eq!(interface.headers(&out, START, &mut frame[..room]), Outgoing::Dropped, "{room}");
        }
        assert_eq!(interface.frame(&out, START, &mut frame[..1499]), Outgoing::Dropped);
        assert_eq!(interface.counters().too_long, 3 + u64::from(headers));
        assert_eq!(interface.counters().segments_out, 1);
    }
}

#[test]
fn output_without_link_header_needs_no_resolution() {
    let mut interface = bare(settings(ETHERNET));
    for remote in [std::net::IpAddr::V4(THEIR_V4), FAR_V4.into(), THEIR_V6.into(), FAR_V6.into()] {
        let (outgoing, frame) = send(&mut interface, &flow(remote), 9, START);
        assert_eq!(outgoing, Outgoing::Written(frame.len()));
        let sliced = SlicedPacket::from_ip(&frame).unwrap();
        assert!(matches!(sliced.net, Some(NetSlice::Ipv4(_) | NetSlice::Ipv6(_))));
    }
    assert!(sent(&mut interface).is_empty() && interface.next_due(START).is_none());
}
