//! For any incoming frame: nothing panics, each frame is counted once, and each accepted packet
//! equals the one that another implementation finds there.
//!
//! Seeds are in `__fuzz__/frame/corpus`: one Ethernet frame each.

use std::net::IpAddr;
use std::path::PathBuf;

use etherparse::{InternetSlice, SlicedPacket};
use millrace_core::time::{Instant, NS_PER_S};
use millrace_tcp::ip::{Incoming, Interface, IpCounters, LinkLayer, Outgoing, Settings};
use millrace_tcp::stack::{Arrived, Ecn, OutgoingSegment};
use millrace_tcp::wire::FlowKey;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const START: Instant = Instant(NS_PER_S);

fn seeds() -> Vec<(String, Vec<u8>)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/virtual_time/__fuzz__/frame/corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let name = |file: &PathBuf| file.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|file| (name(file), std::fs::read(file).unwrap())).collect()
}

fn interface(link: LinkLayer) -> Interface {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let mut settings = Settings::new(link, [1, 2]).with(ip("192.0.2.1"), 24).with(ip("2001:db8::1"), 64);
    settings.gateway_v4 = Some("192.0.2.254".parse().unwrap());
    settings.gateway_v6 = Some("fe80::fe".parse().unwrap());
    settings.neighbours = 8;
    Interface::new(&settings, START).unwrap()
}

const ETHERNET: LinkLayer = LinkLayer::Ethernet { mac: MAC, vlan: None };

/// Outcome of a frame, for people and for seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Segment,
    Error,
    Done,
    Dropped,
    ForKernel,
}

fn outcomes(c: &IpCounters) -> u64 {
    let dropped =
        c.malformed + c.bad_checksums + c.martians + c.misdirected + c.bad_options + c.bad_discovery;
    c.segments_in + c.errors_in + c.handled + c.for_kernel + dropped
}

/// A segment that was taken is the one that etherparse finds.
fn check_segment(frame: &[u8], link: LinkLayer, arrived: &Arrived<'_>) {
    let sliced = match link {
        LinkLayer::Ip => SlicedPacket::from_ip(frame),
        LinkLayer::Ethernet { .. } => SlicedPacket::from_ethernet(frame),
    };
    // etherparse refuses frames with errors behind the IP header, which the interface does not
    // inspect.
    let Ok(sliced) = sliced else { return };
    let Some(net) = sliced.net else { panic!("no packet in {frame:02x?}") };
    let (source, destination, bytes, marked): (IpAddr, IpAddr, &[u8], _) = match &net {
        InternetSlice::Ipv4(ip) => {
            let header = ip.header();
            // Over the bytes that came: etherparse's own header has no room for the reserved flag.
            assert_eq!(millrace_core::wire::checksum::sum16(header.slice()), 0xffff, "{frame:02x?}");
            let ends = (header.source_addr().into(), header.destination_addr().into());
            (ends.0, ends.1, ip.payload().payload, header.ecn() as u8 == 3)
        }
        InternetSlice::Ipv6(ip) => {
            let header = ip.header();
            let ends = (header.source_addr().into(), header.destination_addr().into());
            // A length of 0 means no payload; etherparse reads it as that of a jumbogram and
            // returns all that follows.
            let bytes = if header.payload_length() == 0 { &[] } else { ip.payload().payload };
            (ends.0, ends.1, bytes, header.traffic_class() & 3 == 3)
        }
        InternetSlice::Arp(_) => panic!("no segment in {frame:02x?}"),
    };
    assert_eq!((arrived.source.ip(), arrived.destination.ip()), (source, destination));
    assert_eq!((arrived.bytes, arrived.is_marked), (bytes, marked), "{frame:02x?}");
}

/// Gives a frame to an interface, and to the device what follows.
fn take(interface: &mut Interface, link: LinkLayer, frame: &[u8], now: Instant) -> Came {
    let before = outcomes(interface.counters());
    let came = match interface.input(frame, now) {
        Incoming::Segment(arrived) => {
            check_segment(frame, link, &arrived);
            Came::Segment
        }
        Incoming::Error(error) => {
            assert!(FlowKey::new(error.local, error.remote).is_some());
            Came::Error
        }
        Incoming::Done => Came::Done,
        Incoming::Dropped => Came::Dropped,
        Incoming::ForKernel => Came::ForKernel,
    };
    assert_eq!(outcomes(interface.counters()), before + 1, "each frame is counted once");
    interface.protocol(now);
    interface.output(&mut |frame| {
        // Every frame sent is valid, and its source is always our own.
        match link {
            LinkLayer::Ip => drop(SlicedPacket::from_ip(frame).expect("a packet")),
            LinkLayer::Ethernet { mac, .. } => {
                assert_eq!(frame[6..12], mac);
                SlicedPacket::from_ethernet(frame).expect("a frame");
            }
        }
        true
    });
    came
}

fn check(frame: &[u8]) -> Came {
    let bare = frame.get(14..).unwrap_or_default();
    take(&mut interface(LinkLayer::Ip), LinkLayer::Ip, bare, START);
    take(&mut interface(ETHERNET), ETHERNET, frame, START)
}

#[test]
fn fuzz_frames() {
    bolero::check!(name = "frame").for_each(|bytes: &[u8]| {
        check(bytes);
    });
}

#[test]
fn fuzz_edited_frames() {
    let seeds = seeds();
    let edits = bolero::produce::<(u8, Vec<(u8, u8)>, u8)>();
    bolero::check!(name = "frame_edited").with_generator(edits).with_iterations(20_000).for_each(
        |(seed, edits, cut)| {
            let mut bytes = seeds[usize::from(*seed) % seeds.len()].1.clone();
            for (at, value) in edits {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            repair(&mut bytes, *cut & 2 != 0);
            // One in four is cut.
            if cut % 4 == 0 {
                bytes.truncate(bytes.len().saturating_sub(usize::from(cut / 4)));
            }
            check(&bytes);
        },
    );
}

/// Corrects the checksum of an IPv4 header, so that the code behind it is reached.
fn repair(frame: &mut [u8], is_wanted: bool) {
    if !is_wanted || frame.len() < 34 || frame[12..14] != [8, 0] {
        return;
    }
    let header = (usize::from(frame[14] & 15) * 4).max(20).min(frame.len() - 14);
    frame[24..26].fill(0);
    let check = !millrace_core::wire::checksum::sum16(&frame[14..14 + header]);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
}

/// A long life: frames, segments that go out, and time, in any order.
#[test]
fn fuzz_lives() {
    let seeds = seeds();
    let steps = bolero::produce::<Vec<(u8, u8, u8)>>();
    bolero::check!(name = "frame_lives").with_generator(steps).with_iterations(5_000).for_each(|steps| {
        let mut interface = interface(ETHERNET);
        let mut now = START;
        for &(step, a, b) in steps {
            match step % 4 {
                0 => {
                    let mut frame = seeds[usize::from(a) % seeds.len()].1.clone();
                    // Another sender of ARP and discovery, at times.
                    if let Some(byte) = frame.get_mut(31) {
                        *byte ^= b & 3;
                    }
                    take(&mut interface, ETHERNET, &frame, now);
                }
                1 => now = now.plus_ns(u64::from(b) * u64::from(b) * 2_000_000),
                _ => {
                    let remote: IpAddr = match a % 4 {
                        0 => [192, 0, 2, b].into(),
                        1 => [198, 51, 100, b].into(),
                        2 => [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(b)].into(),
                        _ => [0x2001, 0xdb8, 9, 0, 0, 0, 0, u16::from(b)].into(),
                    };
                    let local: IpAddr = if remote.is_ipv4() {
                        [192, 0, 2, 1].into()
                    } else {
                        [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()
                    };
                    let flow = FlowKey::new((local, 80).into(), (remote, 4000).into()).unwrap();
                    let header = [0x50; 20];
                    let out = OutgoingSegment {
                        flow: &flow,
                        ecn: Ecn::NotCapable,
                        header: &header,
                        payload: Default::default(),
                        moved_ns: if a & 16 != 0 { 0 } else { OutgoingSegment::NEVER },
                        frame: None,
                    };
                    let mut frame = [0; 2000];
                    if let Outgoing::Written(bytes) = interface.frame(&out, now, &mut frame) {
                        assert!(
                            frame[0] & 1 == 0 && frame[..6] != [0; 6],
                            "to one station: {:02x?}",
                            &frame[..bytes]
                        );
                    }
                }
            }
            interface.protocol(now);
            assert!(
                interface.next_due(now).is_none_or(|due| due > now || interface_has_frames(&mut interface))
            );
        }
    });
}

/// Takes the frames that make an interface due now.
fn interface_has_frames(interface: &mut Interface) -> bool {
    interface.output(&mut |_| true) > 0
}

#[test]
fn seeds_are_what_their_names_say() {
    let came = |name: &str| match name.split('_').next().unwrap() {
        "segment" => Came::Segment,
        "error" => Came::Error,
        "done" => Came::Done,
        "dropped" => Came::Dropped,
        "kernel" => Came::ForKernel,
        other => panic!("{other}"),
    };
    let seeds = seeds();
    assert_eq!(seeds.len(), 26);
    for (name, bytes) in &seeds {
        assert_eq!(check(bytes), came(name), "{name}");
    }
}
