//! IP around segments: as much of it as a TUN device asks for. No fragments, no options are sent, no extension headers are understood.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::wire::checksum::sum16;
use millrace_tcp::stack::{Ecn, Out};

const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const TCP: u8 = 6;
/// Don't Fragment, in the word of flags and offset.
const DONT_FRAGMENT: u16 = 0x4000;
/// More Fragments, and the offset.
const IS_FRAGMENT: u16 = 0x3fff;
const HOPS: u8 = 64;
/// ECN field: congestion experienced, ECN-capable.
const MARKED: u8 = 3;
const CAPABLE: u8 = 2;

/// A packet with a segment in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    pub(super) is_marked: bool,
    pub(super) segment: &'a [u8],
}

/// Reads a packet; `None`: it has no whole segment in it, or comes from nobody that could be answered.
pub(super) fn parse(packet: &[u8]) -> Option<Packet<'_>> {
    let parsed = match packet.first()? >> 4 {
        4 => parse_v4(packet),
        6 => parse_v6(packet),
        _ => None,
    }?;
    let can_answer = match parsed.source {
        IpAddr::V4(source) => !source.is_broadcast() && !source.is_multicast() && !source.is_unspecified(),
        IpAddr::V6(source) => !source.is_multicast() && !source.is_unspecified(),
    };
    can_answer.then_some(parsed)
}

fn parse_v4(packet: &[u8]) -> Option<Packet<'_>> {
    let word = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
    let header = usize::from(packet.first()? & 15) * 4;
    let is_fit = header >= V4_BYTES
        && packet.get(9) == Some(&TCP)
        && word(6)? & IS_FRAGMENT == 0
        && sum16(packet.get(..header)?) == u16::MAX;
    let segment = packet.get(header..usize::from(word(2)?)).filter(|_| is_fit)?;
    let is_marked = packet.get(1)? & MARKED == MARKED;
    Some(Packet { source: address(12)?.into(), destination: address(16)?.into(), is_marked, segment })
}

fn parse_v6(packet: &[u8]) -> Option<Packet<'_>> {
    let (header, rest) = packet.split_at_checked(V6_BYTES)?;
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(header.get(at..at + 16)?).ok()?));
    let bytes = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let segment = rest.get(..bytes).filter(|_| header[6] == TCP)?;
    // The ECN field is the end of the traffic class, whose lower half begins the second byte.
    let is_marked = header[1] >> 4 & MARKED == MARKED;
    Some(Packet { source: address(8)?.into(), destination: address(24)?.into(), is_marked, segment })
}

/// Writes a packet around a segment; its length, or `None` if it does not fit.
pub(super) fn write(out: &Out<'_>, id: u16, packet: &mut [u8]) -> Option<usize> {
    let bytes = out.header.len() + out.payload.bytes as usize;
    let ecn = if out.ecn == Ecn::Capable { CAPABLE } else { 0 };
    let header = match (out.flow.local().ip(), out.flow.remote().ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = packet.get_mut(..V4_BYTES)?;
            header.fill(0);
            (header[0], header[1]) = (0x45, ecn);
            header[2..4].copy_from_slice(&u16::try_from(V4_BYTES + bytes).ok()?.to_be_bytes());
            header[4..6].copy_from_slice(&id.to_be_bytes());
            header[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
            (header[8], header[9]) = (HOPS, TCP);
            header[12..16].copy_from_slice(&source.octets());
            header[16..20].copy_from_slice(&destination.octets());
            let sum = !sum16(header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            V4_BYTES
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = packet.get_mut(..V6_BYTES)?;
            header.fill(0);
            (header[0], header[1]) = (0x60, ecn << 4);
            header[4..6].copy_from_slice(&u16::try_from(bytes).ok()?.to_be_bytes());
            (header[6], header[7]) = (TCP, HOPS);
            header[8..24].copy_from_slice(&source.octets());
            header[24..40].copy_from_slice(&destination.octets());
            V6_BYTES
        }
        _ => return None,
    };
    let mut at = header;
    for piece in [out.header].iter().chain(out.payload.slices()) {
        packet.get_mut(at..at + piece.len())?.copy_from_slice(piece);
        at += piece.len();
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_tcp::send::Payload;
    use millrace_tcp::wire::FlowKey;

    fn written(local: &str, remote: &str, ecn: Ecn) -> Vec<u8> {
        let flow = FlowKey::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap();
        let out = Out {
            flow: &flow,
            ecn,
            header: b"twenty bytes of head",
            payload: Payload::default(),
            frame: None,
        };
        let mut packet = vec![0xff; 200];
        let bytes = write(&out, 7, &mut packet).unwrap();
        assert!(write(&out, 7, &mut packet[..bytes - 1]).is_none(), "no room");
        packet.truncate(bytes);
        packet
    }

    #[test]
    fn what_is_written_is_read() {
        for (local, remote) in [("192.0.2.1:1", "198.51.100.2:2"), ("[2001:db8::1]:1", "[2001:db8::2]:2")] {
            let mut packet = written(local, remote, Ecn::Capable);
            let parsed = parse(&packet).unwrap();
            assert_eq!(parsed.source.to_string(), local.rsplit_once(':').unwrap().0.trim_matches(['[', ']']));
            assert_eq!(parsed.segment, b"twenty bytes of head");
            assert!(!parsed.is_marked);
            // Something behind it, as Ethernet leaves there, is not of the segment.
            packet.push(0);
            assert_eq!(parse(&packet).unwrap().segment, b"twenty bytes of head");
            packet.truncate(packet.len() - 2);
            assert_eq!(parse(&packet), None, "cut short");
        }
    }

    #[test]
    fn a_mark_of_a_router_is_seen() {
        let mut packet = written("192.0.2.1:1", "198.51.100.2:2", Ecn::Capable);
        packet[1] |= MARKED;
        packet[10..12].fill(0);
        let sum = !sum16(&packet[..V4_BYTES]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        assert!(parse(&packet).unwrap().is_marked);
        let mut packet = written("[2001:db8::1]:1", "[2001:db8::2]:2", Ecn::NotCapable);
        packet[1] |= MARKED << 4;
        assert!(parse(&packet).unwrap().is_marked);
    }

    #[test]
    fn other_packets_are_passed_over() {
        let good = written("192.0.2.1:1", "198.51.100.2:2", Ecn::NotCapable);
        for (at, value, why) in [
            (0, 0x55, "version"),
            (0, 0x44, "header length"),
            (6, 0x20, "a fragment"),
            (9, 17, "UDP"),
            (8, 63, "the header's sum"),
        ] {
            let mut packet = good.clone();
            packet[at] = value;
            assert_eq!(parse(&packet), None, "{why}");
        }
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&written("255.255.255.255:1", "198.51.100.2:2", Ecn::NotCapable)), None);
    }

    #[test]
    fn nothing_panics() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = parse(bytes);
        });
    }
}
