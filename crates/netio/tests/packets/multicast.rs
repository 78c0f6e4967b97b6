//! Datagrams to groups: every member gets each of them once, by the configured interface, source
//! address, TTL and loopback setting; by the kernel's sockets and by AF_XDP alike.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::support::xdp::*;
use crate::support::*;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use millrace_core::ids::MulticastId;
use millrace_core::pool::HeapRegion;
use millrace_core::seam::{Dest, PayloadSource, SendOutcome, Transmit};
use millrace_netio::limits::MAX_MULTICAST_SOCKETS;
use millrace_netio::multicast::{MulticastSettings, MulticastSocket};
use millrace_netio::recv::{UdpRx, UdpRxConfig};
use millrace_netio::xdp::{Strategy, XdpConfig, XdpTx};
use millrace_netio::{GsoMode, KernelTx, NetError};
use rustix::net::{AddressFamily, SocketType, sockopt};

/// A group of each family, the sender's addresses on its two interfaces, and those of the hosts behind them.
const GROUPS: [&str; 2] = ["239.77.1.2", "ff15::77:1"];
const ON_VA: [&str; 2] = ["10.77.0.1", "fd77::1"];
const ON_VC: [&str; 2] = ["10.78.0.1", "fd78::1"];
const GROUP_PORT: u16 = 7002;

/// The wire with a second one beside it: `vc` of the server leads to `vd` of another host.
struct Net {
    wire: Wire,
    other: Netns,
}

impl Net {
    fn new() -> Option<Self> {
        let wire = Wire::new()?;
        let other = Netns::new("o");
        wire.server.ip(&format!("link add vc type veth peer name vd netns {}", other.name));
        for (ns, device, [v4, v6]) in [
            (&wire.server, "vc", ["10.78.0.1/24", "fd78::1/64"]),
            (&other, "vd", ["10.78.0.2/24", "fd78::2/64"]),
        ] {
            ns.ip(&format!("addr add {v4} dev {device}"));
            ns.ip(&format!("addr add {v6} dev {device} nodad"));
            ns.ip(&format!("link set {device} up"));
        }
        wire.server.wait_until_up("vc");
        other.wait_until_up("vd");
        // As on the other pair: bursts are cut before they cross it.
        wire.server.must("ethtool -K vc tx off tso off tx-udp-segmentation off");
        Some(Self { wire, other })
    }

    /// Sends by `va`, and by `vc`.
    fn sender(&self, gso: GsoMode, settings: &[MulticastSettings]) -> KernelTx {
        self.wire.server.inside(|| {
            let mut tx = sender(gso, 0);
            for (settings, number) in settings.iter().zip(0..) {
                let id = tx.add_multicast(MulticastSocket::open(*settings).unwrap()).unwrap();
                assert_eq!(id, MulticastId(number));
            }
            tx
        })
    }

    fn settings(&self, device: &str, source: &str, ttl: u8, is_looped: bool) -> MulticastSettings {
        let if_index = index_of(&self.wire.server, device);
        MulticastSettings { if_index, source: SocketAddr::new(source.parse().unwrap(), 0), ttl, is_looped }
    }
}

fn index_of(ns: &Netns, device: &str) -> u32 {
    let text = ns.must(&format!("ip -o link show dev {device}"));
    text.split(':').next().unwrap().trim().parse().expect("the number of the device")
}

/// A receiver that has joined the group on this device; several may, at one port.
fn joined(ns: &Netns, device: &str, group: &str) -> UdpRx {
    let (group, if_index): (IpAddr, u32) = (group.parse().unwrap(), index_of(ns, device));
    ns.inside(|| {
        let family = if group.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket(family, SocketType::DGRAM, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        rustix::net::bind(&socket, &SocketAddr::new(group, GROUP_PORT)).unwrap();
        match group {
            IpAddr::V4(group) => {
                let none = std::net::Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_add_membership_with_ifindex(&socket, &group, &none, if_index).unwrap();
            }
            IpAddr::V6(group) => {
                UdpSocket::from(socket.try_clone().unwrap()).join_multicast_v6(&group, if_index).unwrap()
            }
        }
        let config = UdpRxConfig { receive_buffer: Some(8 << 20), ..UdpRxConfig::default() };
        UdpRx::new(UdpSocket::from(socket), config).unwrap()
    })
}

fn to_group(group: &str, via: u8) -> Dest {
    Dest::Multicast {
        group: group.parse().unwrap(),
        port: GROUP_PORT,
        rtcp_port: Some(GROUP_PORT + 1),
        via: MulticastId(via),
    }
}

#[test]
fn multicast_datagrams_reach_all_members_once() {
    let Some(net) = Net::new() else { return };
    for (gso, family) in [GsoMode::Auto, GsoMode::Off].into_iter().flat_map(|gso| [0, 1].map(|f| (gso, f))) {
        let group = GROUPS[family];
        let mut tx = net.sender(gso, &[net.settings("va", ON_VA[family], 3, false)]);
        let mut receivers = [0; 2].map(|_| joined(&net.wire.viewers, "vb", group));
        let mut elsewhere = joined(&net.other, "vd", group);
        let (bytes, headers) = (pattern(1, 1328 * 92 - 40), pattern(2, 12 * 92));
        let dest = to_group(group, 0);
        let batch = [wire(0, dest, &bytes, 1328), patched(0, dest, &headers, &bytes, 1328)];
        assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 2]);
        let wanted: Vec<_> = batch.iter().flat_map(|entry| datagrams(entry.payload)).collect();
        for rx in &mut receivers {
            assert!(receive(rx, wanted.len()) == wanted, "{gso:?} {group}");
            assert!(receive_now(rx).is_empty(), "{gso:?} {group}: once");
        }
        assert!(receive_now(&mut elsewhere).is_empty(), "not by another interface");
        assert_eq!(tx.counters().gso_sends > 0, gso == GsoMode::Auto);
        assert_eq!(tx.counters().icmp_errors, 0);
    }
}

/// Everything that comes in by a device, as frames.
struct Tap(OwnedFd);

/// What of a frame is of interest here.
#[derive(Debug, PartialEq)]
struct Seen {
    mac: [u8; 6],
    from: IpAddr,
    port: u16,
    ttl: u8,
    bytes: Vec<u8>,
}

impl Tap {
    fn new(ns: &Netns) -> Self {
        let all = std::num::NonZero::new(u32::from((libc::ETH_P_ALL as u16).to_be())).unwrap();
        let protocol = Some(rustix::net::Protocol::from_raw(all));
        Self(ns.inside(|| rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, protocol).unwrap()))
    }

    /// The next datagram to the groups' port that is there.
    fn next(&self) -> Option<Seen> {
        let mut frame = [0; 2048];
        loop {
            let (count, _) = rustix::net::recv(&self.0, &mut frame, rustix::net::RecvFlags::DONTWAIT).ok()?;
            if let Some(seen) = seen(&frame[..count]) {
                return Some(seen);
            }
        }
    }

    fn receive(&self, count: usize) -> Vec<Seen> {
        let (mut got, ends) = (Vec::new(), Instant::now() + TIMEOUT);
        while got.len() < count {
            match self.next() {
                Some(seen) => got.push(seen),
                None => std::thread::yield_now(),
            }
            assert!(Instant::now() < ends, "{got:?}");
        }
        got
    }
}

fn seen(frame: &[u8]) -> Option<Seen> {
    let parsed = PacketHeaders::from_ethernet_slice(frame).ok()?;
    let TransportHeader::Udp(udp) = parsed.transport? else { return None };
    let (from, ttl) = match parsed.net? {
        NetHeaders::Ipv4(ip, _) => (IpAddr::from(ip.source), ip.time_to_live),
        NetHeaders::Ipv6(ip, _) => (IpAddr::from(ip.source), ip.hop_limit),
        _ => return None,
    };
    let bytes = parsed.payload.slice().to_vec();
    let mac = frame[..6].try_into().ok()?;
    (udp.destination_port == GROUP_PORT).then_some(Seen { mac, from, port: udp.source_port, ttl, bytes })
}

/// RFC 1112 section 6.4, RFC 2464 section 7, written down by hand.
const MACS: [[u8; 6]; 2] = [[0x01, 0x00, 0x5e, 77, 1, 2], [0x33, 0x33, 0x00, 0x77, 0x00, 0x01]];

#[test]
fn interface_source_and_time_to_live_are_those_of_the_socket() {
    let Some(net) = Net::new() else { return };
    for family in [0, 1] {
        let settings =
            [net.settings("va", ON_VA[family], 1, false), net.settings("vc", ON_VC[family], 7, false)];
        let (mut tx, group) = (net.sender(GsoMode::Off, &settings), GROUPS[family]);
        let taps = [Tap::new(&net.wire.viewers), Tap::new(&net.other)];
        let (near, far) = (pattern(1, 300), pattern(2, 200));
        let batch = [wire(0, to_group(group, 0), &near, 100), wire(1, to_group(group, 1), &far, 100)];
        assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 2]);
        for ((tap, bytes), (from, ttl)) in
            taps.iter().zip([&near, &far]).zip([(ON_VA[family], 1), (ON_VC[family], 7)])
        {
            let got = tap.receive(bytes.len() / 100);
            for (seen, bytes) in got.iter().zip(bytes.chunks(100)) {
                let wanted = (MACS[family], from.parse::<IpAddr>().unwrap(), ttl, bytes);
                assert_eq!((seen.mac, seen.from, seen.ttl, &seen.bytes[..]), wanted);
            }
            assert_eq!(tap.next(), None, "nothing else");
        }
    }
}

#[test]
fn this_host_hears_it_if_it_shall() {
    let Some(net) = Net::new() else { return };
    for (family, is_looped) in [(0, true), (0, false), (1, true), (1, false)] {
        let group = GROUPS[family];
        let mut tx = net.sender(GsoMode::Auto, &[net.settings("va", ON_VA[family], 1, is_looped)]);
        let mut at_home = joined(&net.wire.server, "va", group);
        let mut away = joined(&net.wire.viewers, "vb", group);
        let bytes = pattern(1, 500);
        assert_eq!(send(&mut tx, &[wire(0, to_group(group, 0), &bytes, 100)]), [SendOutcome::Sent]);
        assert_eq!(receive(&mut away, 5).len(), 5);
        // Looped-back datagrams arrive before a frame leaves.
        let heard = if is_looped { receive(&mut at_home, 5) } else { receive_now(&mut at_home) };
        assert_eq!(heard.len(), if is_looped { 5 } else { 0 }, "{group}");
    }
}

#[test]
fn multicast_socket_with_invalid_settings_returns_error() {
    let Some(net) = Net::new() else { return };
    let good = net.settings("va", ON_VA[0], 1, false);
    let mut tx = net.sender(GsoMode::Auto, &[good; MAX_MULTICAST_SOCKETS]);
    net.wire.server.inside(|| {
        let full = tx.add_multicast(MulticastSocket::open(good).unwrap()).unwrap_err();
        assert!(matches!(full, NetError::TooManyMulticast { limit: MAX_MULTICAST_SOCKETS }), "{full}");
        let nowhere = MulticastSettings { source: "10.99.0.1:0".parse().unwrap(), ..good };
        assert!(matches!(MulticastSocket::open(nowhere), Err(NetError::Bind { .. })));
        for source in ON_VA {
            let source = SocketAddr::new(source.parse().unwrap(), 0);
            let nothing = MulticastSettings { if_index: 9999, source, ..good };
            let error = MulticastSocket::open(nothing).unwrap_err().to_string();
            assert!(error.contains("cannot choose its interface"), "{error}");
        }
        assert_ne!(MulticastSocket::open(good).unwrap().settings().source.port(), 0);
    });
    let unknown = to_group(GROUPS[0], MAX_MULTICAST_SOCKETS as u8);
    let outcome = SendOutcome::Unreachable { errno: libc::ENODEV };
    assert_eq!(send(&mut tx, &[wire(0, unknown, b"x", 1)]), [outcome]);
}

/// Packets of an extent to a group.
fn to_group_of<'a>(
    group: &str,
    via: u8,
    of: (Transmit<'a>, Option<PayloadSource<'a>>),
) -> (Transmit<'a>, Option<PayloadSource<'a>>) {
    (Transmit { dest: to_group(group, via), ..of.0 }, of.1)
}

#[test]
fn frames_past_the_sockets_are_the_same_and_need_no_neighbour() {
    let source = |text: &str| SocketAddr::new(text.parse().unwrap(), 4000);
    let settings = |if_index, from: &str, is_looped| MulticastSettings {
        if_index,
        source: source(from),
        ttl: 5,
        is_looped,
    };
    let all = [
        settings(7, ON_VA[0], false),
        settings(7, ON_VA[1], false),
        settings(7, ON_VA[0], true),
        settings(8, ON_VA[1], false),
    ];
    let anywhere: SocketAddr = "10.77.0.2:9".parse().unwrap();
    for strategy in Strategy::ALL {
        let (arena, leases) = film(Box::new(HeapRegion::new(9)), 1, 20);
        let config = XdpConfig { interface: "7".into(), ..config(&arena, Some(strategy)) };
        let (mut tx, mut nic) = XdpTx::over_memory(config, fixed_hops(7)).unwrap();
        let entry = |via: usize, place| {
            let of = packets(via as u32, anywhere, &leases[0], place, 4);
            to_group_of(GROUPS[via % 2], via as u8, of)
        };
        assert!(!tx.can_send(&entry(0, 0).0), "it has not been told of any");
        tx.set_multicast(&all);
        let can = [0, 1, 2, 3, 4].map(|via| tx.can_send(&entry(via, 0).0));
        assert_eq!(can, [true, true, false, false, false], "not what this host hears, nor by another device");
        let report = rtcp(0, to_group(GROUPS[0], 0), b"report");
        assert!(!tx.can_send(&report), "reports take the kernel's path");
        assert_eq!(send_entries(&mut tx, vec![entry(0, 0), entry(1, 4)]), [SendOutcome::Sent; 2]);
        let frames = nic.run();
        assert_eq!(frames.len(), 8, "{strategy}");
        for (frame, (stored, number)) in frames.iter().zip(leases[0].wire(0, 8).chunks(SEGMENT).zip(0..)) {
            let family = number / 4;
            let wanted = Seen {
                mac: MACS[family],
                from: ON_VA[family].parse().unwrap(),
                port: 4000,
                ttl: 5,
                bytes: stored.to_vec(),
            };
            assert_eq!(seen(frame), Some(wanted), "{strategy}");
        }
        assert_eq!(tx.counters().rows_built, 2);
    }
}

#[test]
fn by_xdp_all_who_have_joined_get_every_packet_once() {
    let Some(net) = Net::new() else { return };
    for family in [0, 1] {
        let (arena, leases) = film(Box::new(HeapRegion::new(9)), 1, 196);
        let Some(mut tx) = open(&net.wire, config(&arena, Some(Strategy::Staging))) else { return };
        tx.set_multicast(&[net.settings("va", ON_VA[family], 1, false)]);
        let mut receivers = [0; 2].map(|_| joined(&net.wire.viewers, "vb", GROUPS[family]));
        let of = packets(0, SocketAddr::new(FAMILIES[family].parse().unwrap(), 9), &leases[0], 3, 60);
        let entry = to_group_of(GROUPS[family], 0, of);
        assert_eq!(send_entries(&mut tx, vec![entry]), [SendOutcome::Sent]);
        let wanted = datagrams(entry.0.payload);
        for rx in &mut receivers {
            assert!(receive(rx, wanted.len()) == wanted, "{}", GROUPS[family]);
            assert!(receive_now(rx).is_empty(), "once");
        }
        assert_eq!(checksum_errors(&net.wire), 0);
    }
}
