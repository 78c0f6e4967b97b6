//! Whatever comes by a network interface, nothing panics, and nothing is taken that another implementation does not take.
//!
//! Seeds are in `__fuzz__/frame/corpus`: one frame each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use etherparse::checksum::Sum16BitWords;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use millrace_core::seam::Protocol;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::{ParsedPacket, Unfit, parse};

fn seeds() -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference/__fuzz__/frame/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Checksums are the same: zero has two forms.
fn same(a: u16, b: u16) -> bool {
    a % 0xffff == b % 0xffff
}

/// What etherparse finds in a frame if all checksums are right.
fn oracle(frame: &[u8]) -> Option<ParsedPacket<'_>> {
    let found = SlicedPacket::from_ethernet(frame).ok()?;
    let (from, to): (IpAddr, IpAddr) = match found.net? {
        NetSlice::Ipv4(v4) => {
            let header = v4.header();
            // Over the bytes as they came: a header that etherparse has parsed has lost its reserved bits.
            if Sum16BitWords::new().add_slice(header.slice()).ones_complement() != 0 {
                return None;
            }
            (header.source_addr().into(), header.destination_addr().into())
        }
        NetSlice::Ipv6(v6) => (v6.header().source_addr().into(), v6.header().destination_addr().into()),
        NetSlice::Arp(_) => return None,
    };
    let (protocol, ports, bytes, sums) = match found.transport? {
        TransportSlice::Udp(udp) => {
            let right = match (from, to) {
                (IpAddr::V4(a), IpAddr::V4(b)) => {
                    udp.to_header().calc_checksum_ipv4_raw(a.octets(), b.octets(), udp.payload())
                }
                (IpAddr::V6(a), IpAddr::V6(b)) => {
                    udp.to_header().calc_checksum_ipv6_raw(a.octets(), b.octets(), udp.payload())
                }
                _ => return None,
            };
            let is_unsummed = udp.checksum() == 0;
            let sums = if is_unsummed { from.is_ipv4() } else { same(udp.checksum(), right.ok()?) };
            (Protocol::Udp, [udp.source_port(), udp.destination_port()], udp.payload(), sums)
        }
        TransportSlice::Tcp(tcp) => {
            // As above.
            let sum = match (from, to) {
                (IpAddr::V4(a), IpAddr::V4(b)) => {
                    Sum16BitWords::new().add_4bytes(a.octets()).add_4bytes(b.octets())
                }
                (IpAddr::V6(a), IpAddr::V6(b)) => {
                    Sum16BitWords::new().add_16bytes(a.octets()).add_16bytes(b.octets())
                }
                _ => return None,
            };
            let length = (tcp.slice().len() as u16).to_be_bytes();
            let sums =
                sum.add_2bytes([0, 6]).add_2bytes(length).add_slice(tcp.slice()).ones_complement() == 0;
            (Protocol::Tcp, [tcp.source_port(), tcp.destination_port()], tcp.slice(), sums)
        }
        _ => return None,
    };
    let [source, destination] = [SocketAddr::new(from, ports[0]), SocketAddr::new(to, ports[1])];
    sums.then_some(ParsedPacket { protocol, source, destination, bytes })
}

/// Nothing is taken that the other does not take, and what both take is the same.
fn check(frame: &[u8]) -> Result<(), Unfit> {
    let packet = parse(frame, 0)?;
    assert_eq!(Some(packet), oracle(frame), "{frame:02x?}");
    Ok(())
}

/// Puts right checksums into a frame as far as its headers are where those of the seed were.
fn seal(frame: &mut [u8]) {
    let at = if frame.get(12..14) == Some(&[0x81, 0]) { 18 } else { 14 };
    let Some(ip) = frame.get_mut(at..) else { return };
    let is_v4 = ip.first() == Some(&0x45);
    let header_bytes = if is_v4 { 20 } else { 40 };
    if ip.len() < header_bytes {
        return;
    }
    let (header, rest) = ip.split_at_mut(header_bytes);
    let (addresses, protocol) = if is_v4 { (12, header[9]) } else { (8, header[6]) };
    if is_v4 {
        header[10..12].fill(0);
        let check = !sum16(header);
        header[10..12].copy_from_slice(&check.to_be_bytes());
    }
    let length = if is_v4 {
        usize::from(u16::from_be_bytes([header[2], header[3]])).saturating_sub(20)
    } else {
        usize::from(u16::from_be_bytes([header[4], header[5]]))
    };
    let Some(segment) = rest.get_mut(..length) else { return };
    let (length, check) = match protocol {
        17 if segment.len() >= 8 => (usize::from(u16::from_be_bytes([segment[4], segment[5]])), 6),
        _ => (length, 16),
    };
    if let Some(segment) = segment.get_mut(..length).filter(|s| s.len() >= check + 2) {
        segment[check..check + 2].fill(0);
        let pseudo =
            [&header[addresses..], &[0, protocol], &(length as u16).to_be_bytes()[..], &*segment].concat();
        let sum = !sum16(&pseudo);
        segment[check..check + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

#[test]
fn fuzz_frames() {
    bolero::check!(name = "frame").for_each(|frame: &[u8]| {
        let _ = check(frame);
    });
}

#[test]
fn fuzz_edited_frames() {
    let seeds = seeds();
    let edits = bolero::produce::<(u8, Vec<(u8, u8)>, u8, bool)>();
    bolero::check!(name = "frame_edited").with_generator(edits).with_iterations(20_000).for_each(
        |(seed, edits, cut, sealed)| {
            let mut frame = seeds[usize::from(*seed) % seeds.len()].clone();
            for (at, value) in edits {
                // Most edits meet the headers.
                let at = usize::from(*at) % frame.len();
                frame[at] = *value;
            }
            // One in four is cut.
            if cut % 4 == 0 {
                frame.truncate(frame.len().saturating_sub(usize::from(cut / 4)));
            }
            if *sealed {
                seal(&mut frame);
            }
            let _ = check(&frame);
        },
    );
}

#[test]
fn seeds_are_what_their_names_say() {
    let expected = [
        ("double_tag", Err(Unfit::Link)),
        ("fragment", Err(Unfit::Fragment)),
        ("icmp", Err(Unfit::Protocol)),
        ("tcp_v4_options", Ok(())),
        ("tcp_v6", Ok(())),
        ("udp_v4", Ok(())),
        ("udp_v4_no_checksum_padded", Ok(())),
        ("udp_v6_tagged", Ok(())),
    ];
    let seeds = seeds();
    assert_eq!(seeds.len(), expected.len());
    for (seed, (name, outcome)) in seeds.iter().zip(expected) {
        assert_eq!(check(seed), outcome, "{name}");
        // And sealing changes nothing but a missing checksum.
        let mut sealed = seed.clone();
        seal(&mut sealed);
        assert_eq!(check(&sealed), outcome, "{name}, sealed");
        // What fills a short frame up is not of the packet, nor in its sum.
        let padded = [&seed[..], &[0xaa; 7]].concat();
        assert_eq!(parse(&padded, 0), parse(seed, 0), "{name}, padded");
    }
}
