//! The program against the rule written down with slices, on packets damaged in every way.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::program::{XDP_PASS, XDP_REDIRECT};
use super::*;
use crate::bpf::TestRun;

const V4: &str = "10.1.2.3:5004";
const V6: &str = "[fd00::77]:443";
/// TCP ports with the errors about them; nothing else of their addresses is steered but [`V4`].
const STACK: [&str; 2] = ["10.1.2.3:8080", "[fd00::77]:8080"];
/// Addresses that are steered as a whole.
const OWN: [&str; 2] = ["10.9.8.7", "fd00::99"];

fn local(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn own(index: usize) -> IpAddr {
    OWN[index].parse().unwrap()
}

/// A program that steers UDP to [`V4`], TCP to [`V6`], [`STACK`] and all of [`OWN`], and the socket that it gives packets of queue 0.
fn steering() -> Option<(Steering, OwnedFd)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: BPF needs root");
        return None;
    }
    let steering = Steering::load(MAX_STEERED_PORTS).unwrap();
    steering.steer(Protocol::Udp, local(V4)).unwrap();
    steering.steer(Protocol::Tcp, local(V6)).unwrap();
    STACK.iter().for_each(|port| steering.steer_tcp(local(port)).unwrap());
    steering.steer_address(own(0)).unwrap();
    steering.steer_address(own(1)).unwrap();
    match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(socket) => {
            steering.set_socket(0, socket.as_fd()).unwrap();
            Some((steering, socket))
        }
        Err(errno) => {
            eprintln!("skipped: no AF_XDP socket: {errno}");
            None
        }
    }
}

fn verdict(steering: &Steering, packet: &[u8]) -> i32 {
    steering.program.test_run(&TestRun { packet, context: &[], repeat: 1 }).unwrap().result
}

/// A frame to `to`, with `tags` VLAN tags.
fn frame(protocol: Protocol, to: SocketAddr, tags: usize) -> Vec<u8> {
    packet(protocol.number(), to, tags)
}

fn link(tags: usize) -> Vec<u8> {
    [vec![2; 12], [0x81, 0, 0, 5].repeat(tags)].concat()
}

/// ARP about an address: a request or an answer, as far as the program is concerned.
fn arp(about: Ipv4Addr, tags: usize) -> Vec<u8> {
    let mut bytes = link(tags);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 4, 4, 4, 4, 4, 4, 10, 1, 2, 4, 0, 0, 0, 0, 0, 0]);
    bytes.extend(about.octets());
    bytes.extend([0; 18]);
    bytes
}

/// An ICMPv6 message of this type to a group, about an address.
fn discovery(kind: u8, about: Ipv6Addr, tags: usize) -> Vec<u8> {
    let mut bytes = packet(58, local("[ff02::1:ff00:99]:0"), tags);
    let message = 14 + 4 * tags + 40;
    bytes[message] = kind;
    bytes[message + 8..message + 24].copy_from_slice(&about.octets());
    bytes
}

/// A packet of any protocol, with what would be a port.
fn packet(protocol: u8, to: SocketAddr, tags: usize) -> Vec<u8> {
    let mut bytes = link(tags);
    match to.ip() {
        IpAddr::V4(v4) => {
            bytes.extend([0x08, 0, 0x45, 0, 0, 60, 0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 1, 2, 4]);
            bytes.extend(v4.octets());
        }
        IpAddr::V6(v6) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, protocol, 64]);
            bytes.extend([0xfd; 16]);
            bytes.extend(v6.octets());
        }
    }
    bytes.extend([7, 7]);
    bytes.extend(to.port().to_be_bytes());
    bytes.extend([9; 36]);
    bytes
}

/// An ICMP message of this type to the host that has sent the segment which it quotes, from a port.
fn error(kind: u8, about: SocketAddr, tags: usize) -> Vec<u8> {
    let (protocol, header, source) = if about.is_ipv4() { (1, 20, 12) } else { (58, 40, 8) };
    let mut bytes = packet(protocol, (about.ip(), 0).into(), tags);
    let message = 14 + 4 * tags + header;
    bytes.truncate(message);
    bytes.extend([kind, 4, 0, 0, 0, 0, 5, 0]);
    // The segment sent: its destination is the source that others have here.
    let mut quoted = packet(6, (about.ip(), 0).into(), 0)[14..][..header + 8].to_vec();
    quoted.copy_within(source + (header - source) / 2..header, source);
    quoted[header..header + 4].copy_from_slice(&[about.port().to_be_bytes(), [0, 80]].concat());
    bytes.extend(quoted);
    bytes
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Returns the source port of the segment that an ICMP error to `address` quotes; 0: the message is
/// no such error.
fn quoted(address: IpAddr, message: &[u8]) -> u16 {
    let found = || {
        let (kind, quote) = (*message.first()?, message.get(8..)?);
        let (source, port): (IpAddr, _) = match address {
            IpAddr::V4(_) => {
                let quote = quote.get(..28).filter(|_| [3, 11, 12].contains(&kind))?;
                let is_whole = quote[6] & 0x3f == 0 && quote[7] == 0;
                if quote[0] != 0x45 || !is_whole || quote[9] != 6 {
                    return None;
                }
                (<[u8; 4]>::try_from(&quote[12..16]).ok()?.into(), be16(quote, 20)?)
            }
            IpAddr::V6(_) => {
                let quote = quote.get(..48).filter(|_| kind < 128)?;
                if quote[0] >> 4 != 6 || quote[6] != 6 {
                    return None;
                }
                (<[u8; 16]>::try_from(&quote[8..24]).ok()?.into(), be16(quote, 40)?)
            }
        };
        (source == address).then_some(port)
    };
    found().unwrap_or(0)
}

/// The rule: the addressee of a packet, if it is one that may be steered. For messages about an
/// address the port is 0, for errors it is the port of the quoted segment.
fn addressee(frame: &[u8]) -> Option<(u8, SocketAddr)> {
    let tagged = be16(frame, 12)? == 0x8100;
    let (ether_type, ip) =
        if tagged { (be16(frame, 16)?, frame.get(18..)?) } else { (be16(frame, 12)?, frame.get(14..)?) };
    let (address, protocol, segment): (IpAddr, u8, &[u8]) = match ether_type {
        0x0806 => {
            let message = ip.get(..28).filter(|message| message[..6] == [0, 1, 8, 0, 6, 4])?;
            return Some((1, (<[u8; 4]>::try_from(&message[24..]).ok()?, 0).into()));
        }
        0x0800 => {
            let (header, segment) = ip.split_at_checked(20)?;
            let is_behind = header[6] & 0x1f != 0 || header[7] != 0;
            let is_first = header[6] & 0x20 != 0;
            if header[0] != 0x45 || is_behind || is_first && header[9] != 6 {
                return None;
            }
            (<[u8; 4]>::try_from(&header[16..20]).ok()?.into(), header[9], segment)
        }
        0x86dd => {
            let (header, segment) = ip.split_at_checked(40)?;
            if header[0] >> 4 != 6 {
                return None;
            }
            if header[6] == 58 && header[24] == 0xff {
                let message = segment.get(..24).filter(|message| matches!(message[0], 135 | 136))?;
                return Some((58, (<[u8; 16]>::try_from(&message[8..]).ok()?, 0).into()));
            }
            let (protocol, segment) = match header[6] {
                44 => {
                    let (fragment, segment) = segment.split_at_checked(8)?;
                    let is_first = fragment[2] == 0 && fragment[3] & 0xf8 == 0;
                    (6, Some(segment).filter(|_| fragment[0] == 6 && is_first)?)
                }
                protocol => (protocol, segment),
            };
            (<[u8; 16]>::try_from(&header[24..40]).ok()?.into(), protocol, segment)
        }
        _ => return None,
    };
    let port = be16(segment, 2)?;
    let is_icmp = protocol == if address.is_ipv4() { 1 } else { 58 };
    Some((protocol, SocketAddr::new(address, if is_icmp { quoted(address, segment) } else { port })))
}

fn expected(frame: &[u8]) -> i32 {
    let is_steered = match addressee(frame) {
        Some((protocol, to)) => {
            let whole = |protocol| {
                matches!(protocol, 6 | 1) && to.ip() == own(0)
                    || matches!(protocol, 6 | 58) && to.ip() == own(1)
            };
            let [stack_v4, stack_v6] = STACK.map(local);
            let ports = [
                (17, local(V4)),
                (6, local(V6)),
                (6, stack_v4),
                (6, stack_v6),
                (1, stack_v4),
                (58, stack_v6),
            ];
            ports.contains(&(protocol, to)) || whole(protocol)
        }
        None => false,
    };
    if is_steered { XDP_REDIRECT } else { XDP_PASS }
}

#[test]
fn steer_port_redirects_only_matching_packets() {
    let Some((steering, _socket)) = steering() else { return };
    for tags in 0..3 {
        let wanted = if tags < 2 { XDP_REDIRECT } else { XDP_PASS };
        assert_eq!(verdict(&steering, &frame(Protocol::Udp, local(V4), tags)), wanted);
        assert_eq!(verdict(&steering, &frame(Protocol::Tcp, local(V6), tags)), wanted);
        for (protocol, to) in [
            (Protocol::Tcp, V4),
            (Protocol::Udp, V6),
            (Protocol::Udp, "10.1.2.3:5005"),
            (Protocol::Udp, "10.1.2.4:5004"),
            (Protocol::Tcp, "[fd00::78]:443"),
            (Protocol::Tcp, "[a01:203::]:443"),
        ] {
            assert_eq!(verdict(&steering, &frame(protocol, local(to), tags)), XDP_PASS, "{to}");
        }
    }
    // Any fragment, the first one too; options; another version.
    for (at, value) in [(20, 0x20), (20, 0x60), (21, 1), (14, 0x46), (14, 0x55), (12, 0x86)] {
        let mut bytes = frame(Protocol::Udp, local(V4), 0);
        bytes[at] = value;
        assert_eq!((verdict(&steering, &bytes), expected(&bytes)), (XDP_PASS, XDP_PASS), "{at}");
    }
}

#[test]
fn steer_address_redirects_its_ip_arp_and_discovery_only() {
    let Some((steering, _socket)) = steering() else { return };
    let [v4, v6] = [own(0), own(1)];
    let (IpAddr::V4(arp4), IpAddr::V6(nd6)) = (v4, v6) else { unreachable!() };
    for tags in 0..3 {
        let wanted = if tags < 2 { XDP_REDIRECT } else { XDP_PASS };
        let steered = [
            packet(6, (v4, 1).into(), tags),
            packet(6, (v4, 65_535).into(), tags),
            packet(6, (v6, 80).into(), tags),
            packet(1, (v4, 0).into(), tags),
            packet(1, (v4, 0x1234).into(), tags),
            packet(58, (v6, 0x1234).into(), tags),
            arp(arp4, tags),
            discovery(135, nd6, tags),
            discovery(136, nd6, tags),
        ];
        for (number, bytes) in steered.iter().enumerate() {
            assert_eq!((verdict(&steering, bytes), expected(bytes)), (wanted, wanted), "{number}, {tags}");
        }
        let neighbour = Ipv6Addr::from_bits(nd6.to_bits() ^ 1 << 64);
        let others = [
            packet(17, (v4, 53).into(), tags),
            packet(17, (v6, 53).into(), tags),
            packet(58, (v4, 53).into(), tags),
            packet(1, (v6, 53).into(), tags),
            packet(2, (v4, 53).into(), tags),
            packet(1, local(V4), tags),
            packet(58, local(V6), tags),
            arp(Ipv4Addr::new(10, 1, 2, 3), tags),
            arp(Ipv4Addr::new(10, 9, 8, 6), tags),
            // Another address of the same group.
            discovery(135, neighbour, tags),
            discovery(134, nd6, tags),
            discovery(137, nd6, tags),
        ];
        for (number, bytes) in others.iter().enumerate() {
            assert_eq!(
                (verdict(&steering, bytes), expected(bytes)),
                (XDP_PASS, XDP_PASS),
                "{number}, {tags}"
            );
        }
    }
    // A fragment that is not the first, options; ARP of another kind, cut short.
    for (at, value) in [(20, 0x20 | 1), (21, 1), (14, 0x46)] {
        let mut bytes = packet(6, (v4, 80).into(), 0);
        bytes[at] = value;
        assert_eq!(verdict(&steering, &bytes), XDP_PASS, "{at}");
    }
    for at in 14..20 {
        let mut bytes = arp(arp4, 0);
        bytes[at] ^= 2;
        assert_eq!(verdict(&steering, &bytes), XDP_PASS, "{at}");
    }
    assert_eq!(verdict(&steering, &arp(arp4, 0)[..14 + 27]), XDP_PASS);
    assert_eq!(verdict(&steering, &discovery(135, nd6, 0)[..14 + 40 + 23]), XDP_PASS);
    for address in [v4, v6] {
        assert!(steering.unsteer_address(address).unwrap());
        assert!(!steering.unsteer_address(address).unwrap());
    }
    for bytes in [arp(arp4, 0), packet(6, (v4, 80).into(), 0), packet(58, (v6, 0).into(), 0)] {
        assert_eq!(verdict(&steering, &bytes), XDP_PASS);
    }
    assert!(steering.steer_address("0.0.0.0".parse().unwrap()).is_err());
}

#[test]
fn steer_tcp_redirects_port_and_its_icmp_errors_only() {
    let Some((steering, _socket)) = steering() else { return };
    let judge = |bytes: &[u8], wanted, what: &str| {
        assert_eq!((verdict(&steering, bytes), expected(bytes)), (wanted, wanted), "{what}");
    };
    for tags in 0..2 {
        for stack in STACK.map(local) {
            let (is_v4, ip) = (stack.is_ipv4(), stack.ip());
            judge(&packet(6, stack, tags), XDP_REDIRECT, "a segment");
            let errors = if is_v4 { &[3, 11, 12][..] } else { &[1, 2, 3, 4] };
            for &kind in errors {
                judge(&error(kind, stack, tags), XDP_REDIRECT, "an error");
            }
            let icmp = if is_v4 { 1 } else { 58 };
            let echo = if is_v4 { 8 } else { 128 };
            let others = [
                packet(17, stack, tags),
                packet(6, (ip, 8081).into(), tags),
                // Bytes where another protocol has its port are not a port.
                packet(icmp, stack, tags),
                error(echo, stack, tags),
                error(if is_v4 { 0 } else { 129 }, stack, tags),
                error(errors[0], (ip, 8081).into(), tags),
                // A port that is steered without the errors.
                error(errors[0], local(if is_v4 { V4 } else { V6 }), tags),
                if let IpAddr::V4(ip) = ip { arp(ip, tags) } else { discovery(135, ip_v6(ip), tags) },
            ];
            for (number, bytes) in others.iter().enumerate() {
                judge(bytes, XDP_PASS, &format!("{number}, {tags}"));
            }
            // Quoted: another protocol, a fragment or extension header, another host's segment;
            // truncated.
            let quote = 14 + 4 * tags + if is_v4 { 28 } else { 48 };
            let places = if is_v4 {
                [(9, 17), (6, 0x20), (0, 0x46), (12, 11)]
            } else {
                [(6, 17), (6, 44), (0, 0x45), (8, 1)]
            };
            for (at, value) in places {
                let mut bytes = error(errors[0], stack, tags);
                bytes[quote + at] = value;
                judge(&bytes, XDP_PASS, &format!("{at} = {value}"));
            }
            let bytes = error(errors[0], stack, tags);
            judge(&bytes[..bytes.len() - 1], XDP_PASS, "short");
        }
    }
    // About an address that is steered as a whole all errors are.
    for (kind, ip) in [(3, own(0)), (2, own(1))] {
        judge(&error(kind, (ip, 8080).into(), 0), XDP_REDIRECT, "of a whole address");
    }
    assert!(steering.steer_tcp("0.0.0.0:80".parse().unwrap()).is_err());
}

/// A fragment of an IPv6 packet's content, from this offset on; more of them follow.
fn fragment_v6(packet: &[u8], tags: usize, offset: u16) -> Vec<u8> {
    let at = 14 + 4 * tags;
    let mut bytes = packet.to_vec();
    let protocol = std::mem::replace(&mut bytes[at + 6], 44);
    let [high, low] = (offset | 1).to_be_bytes();
    drop(bytes.splice(at + 40..at + 40, [protocol, 0, high, low, 0, 0, 0, 9]));
    bytes
}

/// The kernel never has the whole of a segment that was cut on its way, of anything else it has.
#[test]
fn steer_tcp_redirects_first_fragment_only() {
    let Some((steering, _socket)) = steering() else { return };
    let judge = |bytes: &[u8], wanted, what: &str| {
        assert_eq!((verdict(&steering, bytes), expected(bytes)), (wanted, wanted), "{what}");
    };
    let [stack_v4, stack_v6] = STACK.map(local);
    for tags in 0..2 {
        let flags = 14 + 4 * tags + 6;
        for (protocol, to, is_steered) in [
            (6, stack_v4, true),
            (6, (own(0), 80).into(), true),
            (6, (stack_v4.ip(), 8081).into(), false),
            (17, local(V4), false),
            (1, (own(0), 0).into(), false),
        ] {
            let mut bytes = packet(protocol, to, tags);
            bytes[flags] = 0x20;
            let wanted = if is_steered { XDP_REDIRECT } else { XDP_PASS };
            judge(&bytes, wanted, &format!("{protocol} {to}: the first"));
            for (high, low) in [(0x20, 1), (0x21, 0), (0, 1), (0x1f, 0xff)] {
                (bytes[flags], bytes[flags + 1]) = (high, low);
                judge(&bytes, XDP_PASS, &format!("{protocol} {to}: {high} {low}"));
            }
        }
        for (protocol, to, is_steered) in [
            (6, stack_v6, true),
            (6, (own(1), 80).into(), true),
            (6, (stack_v6.ip(), 8081).into(), false),
            (17, local(V6), false),
            (58, (own(1), 0).into(), false),
        ] {
            let whole = packet(protocol, to, tags);
            let wanted = if is_steered { XDP_REDIRECT } else { XDP_PASS };
            let first = fragment_v6(&whole, tags, 0);
            judge(&first, wanted, &format!("{protocol} {to}: the first"));
            judge(&first[..14 + 4 * tags + 40 + 8 + 3], XDP_PASS, "short");
            judge(&first[..14 + 4 * tags + 40 + 7], XDP_PASS, "shorter");
            for offset in [8, 0x100, 0xfff8] {
                judge(&fragment_v6(&whole, tags, offset), XDP_PASS, &format!("{protocol} {to}: {offset}"));
            }
        }
    }
}

fn ip_v6(ip: IpAddr) -> Ipv6Addr {
    let IpAddr::V6(ip) = ip else { panic!("{ip} is no IPv6 address") };
    ip
}

#[test]
fn ports_and_sockets_come_and_go() {
    let Some((steering, socket)) = steering() else { return };
    let packet = frame(Protocol::Udp, local(V4), 0);
    assert!(steering.unsteer(Protocol::Udp, local(V4)).unwrap());
    assert!(!steering.unsteer(Protocol::Udp, local(V4)).unwrap());
    assert_eq!(verdict(&steering, &packet), XDP_PASS);
    // An IPv4 address may be written as an IPv6 one.
    steering.steer(Protocol::Udp, local("[::ffff:10.1.2.3]:5004")).unwrap();
    assert_eq!(verdict(&steering, &packet), XDP_REDIRECT);
    steering.clear_socket(0).unwrap();
    steering.clear_socket(0).unwrap();
    assert!(steering.clear_socket(MAX_XDP_QUEUES).is_err());
    assert_eq!(verdict(&steering, &packet), XDP_PASS);
    steering.set_socket(0, socket.as_fd()).unwrap();
    assert_eq!(verdict(&steering, &packet), XDP_REDIRECT);
    steering.set_socket(1, socket.as_fd()).unwrap();
    let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for refused in
        [steering.set_socket(2, other.as_fd()), steering.set_socket(MAX_XDP_QUEUES, socket.as_fd())]
    {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("steering") && text.contains("steer_sockets"), "{text}");
    }
}

#[test]
fn wildcards_are_refused() {
    for text in ["0.0.0.0:1", "[::]:1", "255.255.255.255:1", "[::ffff:0.0.0.0]:1"] {
        let fault = key(Protocol::Tcp, local(text)).unwrap_err().to_string();
        assert!(fault.contains("which of this machine's addresses"), "{fault}");
    }
    assert_eq!(key(Protocol::Udp, local(V4)).unwrap()[..4], [10, 1, 2, 3]);
}

proptest! {
    #[test]
    fn steering_verdict_matches_rule_for_any_damage(
        kind in 0usize..16,
        tags in 0usize..3,
        edits in proptest::collection::vec((0usize..110, prop_oneof![any::<u8>(), Just(0x45), Just(0x60), Just(17), Just(6), Just(58), Just(1), Just(135), Just(0xff), Just(0), Just(0x20), Just(44)]), 0..4),
        cut in prop_oneof![Just(0usize), 0usize..110],
    ) {
        // Made once: a thread's tests run one after the other.
        thread_local!(static STEERING: Option<(Steering, OwnedFd)> = steering());
        let (IpAddr::V4(v4), IpAddr::V6(v6)) = (own(0), own(1)) else { unreachable!() };
        let mut bytes = match kind {
            0 => frame(Protocol::Udp, local(V4), tags),
            1 => frame(Protocol::Tcp, local(V4), tags),
            2 => frame(Protocol::Udp, local(V6), tags),
            3 => frame(Protocol::Tcp, local(V6), tags),
            4 => packet(6, (v4, 80).into(), tags),
            5 => packet(1, (v4, 80).into(), tags),
            6 => packet(6, (v6, 80).into(), tags),
            7 => packet(58, (v6, 80).into(), tags),
            8 => arp(v4, tags),
            9 => packet(6, local(STACK[0]), tags),
            10 => error(3, local(STACK[0]), tags),
            11 => error(2, local(STACK[1]), tags),
            12 => error(11, (v4, 80).into(), tags),
            13 => fragment_v6(&packet(6, local(STACK[1]), tags), tags, 0),
            14 => fragment_v6(&packet(6, (v6, 80).into(), tags), tags, 8),
            _ => discovery(135, v6, tags),
        };
        for (at, value) in edits {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        // The kernel takes no frame that is shorter than an Ethernet header.
        bytes.truncate((bytes.len() - cut.min(bytes.len())).max(14));
        STEERING.with(|made| -> Result<(), TestCaseError> {
            if let Some((steering, _)) = made {
                prop_assert_eq!(verdict(steering, &bytes), expected(&bytes));
            }
            Ok(())
        })?;
    }
}
