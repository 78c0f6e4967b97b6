//! UDP through real sockets on the loopback device: bytes and order exact, and the errors of one viewer stay his own.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use crate::support::*;
use millrace_core::seam::{Payload, SendOutcome, Transmit};
use millrace_core::source::SourceTable;
use millrace_netio::{
    GsoMode, IcmpReader, KernelTx, KernelTxConfig, NetError, UdpPair, bind_pair, bind_ports,
};

const MODES: [GsoMode; 2] = [GsoMode::Auto, GsoMode::Off];
const FAMILIES: [&str; 2] = ["127.0.0.1", "::1"];

/// Segment length, datagrams, bytes that the last one lacks.
const SHAPES: [(usize, usize, usize); 9] = [
    (1328, 1, 0),
    (1328, 1, 700),
    (1328, 7, 0),
    (1328, 7, 188),
    (1328, 44, 0),
    (1328, 92, 0),
    (1328, 92, 1128),
    (200, 92, 150),
    (9036, 20, 1),
];

#[test]
fn bytes_and_order_are_exact_for_every_kind_of_payload() {
    for (gso, family) in MODES.into_iter().flat_map(|m| FAMILIES.map(|f| (m, f))) {
        let mut tx = sender(gso, 0);
        assert_eq!(tx.gso(), gso == GsoMode::Auto);
        let (mut rtp_rx, rtp_addr) = receiver(family);
        let (mut rtcp_rx, rtcp_addr) = receiver(family);
        let dest = udp(rtp_addr, rtcp_addr);
        for (segment, count, lacks) in SHAPES {
            let bytes = pattern(segment as u32, segment * count - lacks);
            let headers = pattern(99, 12 * count);
            let report = pattern(5, 64);
            let batch = [
                wire(0, dest, &bytes, segment),
                rtcp(0, dest, &report),
                patched(0, dest, &headers, &bytes, segment),
            ];
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 3]);
            let mut wanted = datagrams(batch[0].payload);
            wanted.extend(datagrams(batch[2].payload));
            let got = receive(&mut rtp_rx, wanted.len());
            assert!(
                got == wanted,
                "{gso:?} {family}: {count} x {segment} - {lacks}: {} datagrams",
                got.len()
            );
            assert_eq!(receive(&mut rtcp_rx, 1), [report]);
        }
        assert!(receive_now(&mut rtp_rx).is_empty() && receive_now(&mut rtcp_rx).is_empty());
        assert_eq!(tx.counters().gso_sends > 0, gso == GsoMode::Auto);
        assert_eq!(tx.counters().gso_refused, 0);
    }
}

#[test]
fn gso_needs_one_message_for_many_datagrams() {
    let mut tx = sender(GsoMode::Auto, 0);
    let (mut rx, addr) = receiver("127.0.0.1");
    let bytes = pattern(1, 1328 * 92);
    assert_eq!(send(&mut tx, &[wire(0, udp(addr, addr), &bytes, 1328)]), [SendOutcome::Sent]);
    // 49 datagrams of 1328 bytes fit the 65,507 bytes of one send; the other 43 are the second.
    assert_eq!((tx.counters().gso_sends, tx.counters().udp_calls), (2, 1));
    assert_eq!((tx.counters().datagrams, tx.counters().bytes), (92, 92 * 1328));
    assert_eq!(receive(&mut rx, 92).len(), 92);
}

#[test]
fn full_batch_reaches_all_viewers_in_order() {
    for gso in MODES {
        let mut tx = sender(gso, 0);
        let mut viewers: Vec<_> = (0..8).map(|n| receiver(FAMILIES[n % 2])).collect();
        let bytes: Vec<_> = (0..70).map(|n| pattern(n, 1328 * (1 + n as usize % 9))).collect();
        // More entries than one batch may hold: taken all the same.
        let batch: Vec<Transmit<'_>> = (0..70)
            .map(|n| wire(n % 8, udp(viewers[n as usize % 8].1, viewers[0].1), &bytes[n as usize], 1328))
            .collect();
        assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 70]);
        for (viewer, (rx, _)) in viewers.iter_mut().enumerate() {
            let wanted: Vec<_> =
                batch.iter().skip(viewer).step_by(8).flat_map(|t| datagrams(t.payload)).collect();
            assert!(receive(rx, wanted.len()) == wanted, "viewer {viewer}");
        }
    }
}

#[test]
fn send_from_named_source_leaves_from_that_address() {
    for (gso, family, source) in
        MODES.into_iter().flat_map(|gso| [(gso, "127.0.0.1", "127.0.1.1"), (gso, "::1", "::1")])
    {
        let sources = Arc::new(SourceTable::default());
        let from: IpAddr = source.parse().unwrap();
        let mut tx = sender(gso, 0).with_sources(Arc::clone(&sources));
        let viewer = || {
            let socket = UdpSocket::bind((family, 0)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            let local = socket.local_addr().unwrap();
            (socket, local)
        };
        let ((rtp, rtp_addr), (reports, reports_addr)) = (viewer(), viewer());
        let by_route = udp(rtp_addr, reports_addr);
        let named = by_route.with_source(sources.row_of(from));
        let (bytes, report) = (pattern(7, 1328 * 5), pattern(8, 64));
        let batch = [
            wire(0, named, &bytes, 1328),
            wire(1, by_route, &bytes, 1328),
            wire(2, named, &bytes[..1328], 1328),
            rtcp(3, named, &report),
        ];
        assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 4]);
        let origin = |socket: &UdpSocket| socket.recv_from(&mut [0; 2048]).unwrap().1.ip();
        let by_route: IpAddr = family.parse().unwrap();
        let media: Vec<_> = (0..11).map(|_| origin(&rtp)).collect();
        assert_eq!(media, [[from; 5].as_slice(), &[by_route; 5], &[from]].concat());
        assert_eq!(origin(&reports), from);
        // A source address of the other family is ignored.
        let other: IpAddr = if from.is_ipv4() { "::1" } else { "127.0.1.1" }.parse().unwrap();
        let odd = udp(rtp_addr, reports_addr).with_source(sources.row_of(other));
        assert_eq!(send(&mut tx, &[wire(0, odd, &bytes[..9], 9)]), [SendOutcome::Sent]);
        assert_eq!(origin(&rtp), by_route);
    }
}

#[test]
fn ipv4_mapped_address_is_sent_by_ipv4() {
    let mut tx = sender(GsoMode::Auto, 0);
    let (mut rx, addr) = receiver("127.0.0.1");
    let dressed: SocketAddr = format!("[::ffff:127.0.0.1]:{}", addr.port()).parse().unwrap();
    assert_eq!(send(&mut tx, &[wire(0, udp(dressed, dressed), b"hello", 100)]), [SendOutcome::Sent]);
    assert_eq!(receive(&mut rx, 1), [b"hello"]);
}

#[test]
fn unreachable_entries_do_not_stop_rest_of_batch() {
    for gso in MODES {
        let v4 = bind_pair("127.0.0.1".parse().unwrap(), first_port(), 65_000).unwrap();
        let config = KernelTxConfig { v4: Some(v4), v6: None, gso, conns: 0 };
        let mut tx = KernelTx::new(config).unwrap();
        let (mut rx, addr) = receiver("127.0.0.1");
        let dest = udp(addr, addr);
        let to = |text: &str| {
            let addr: SocketAddr = text.parse().unwrap();
            udp(addr, addr)
        };
        let bytes = pattern(3, 3000);
        let headers = [0; 12];
        let batch = [
            wire(0, dest, &bytes[..9], 10),
            wire(1, to("[::1]:5000"), &bytes, 1000),
            wire(2, to("127.0.0.1:0"), &bytes, 1000),
            wire(3, dest, &bytes, 0),
            patched(4, dest, &headers, &bytes, 1000),
            wire(5, to("255.255.255.255:5000"), &bytes, 1000),
            wire(6, dest, &[], 10),
            wire(7, dest, &bytes[9..19], 10),
        ];
        let got = send(&mut tx, &batch);
        let unreachable = |errno| SendOutcome::Unreachable { errno };
        let wanted = [
            SendOutcome::Sent,
            unreachable(libc::EAFNOSUPPORT),
            unreachable(libc::EINVAL),
            unreachable(libc::EINVAL),
            unreachable(libc::EINVAL),
            unreachable(libc::EACCES),
            SendOutcome::Sent,
            SendOutcome::Sent,
        ];
        // Which errno an address bound to loopback gets for broadcast is the kernel's choice.
        assert_eq!(got[..5], wanted[..5]);
        assert!(matches!(got[5], SendOutcome::Unreachable { .. }), "{:?}", got[5]);
        assert_eq!(got[6..], wanted[6..]);
        assert_eq!(receive(&mut rx, 2), [&bytes[..9], &bytes[9..19]]);
        assert_eq!(tx.counters().unreachable, 5);
        // None of this speaks against GSO.
        assert_eq!(tx.gso(), gso == GsoMode::Auto);
    }
}

#[test]
fn closed_port_of_one_viewer_does_not_affect_others() {
    for (gso, family) in MODES.into_iter().flat_map(|m| FAMILIES.map(|f| (m, f))) {
        let mut tx = sender(gso, 0);
        let (mut before, before_addr) = receiver(family);
        let (mut after, after_addr) = receiver(family);
        let (_closed, gone) = closed_port(family);
        let mut wanted = Vec::new();
        let mut refused = 0;
        for round in 0..100 {
            let bytes = pattern(round, 1328 * (1 + round as usize % 5));
            let to = |addr| udp(addr, addr);
            let batch = [
                wire(0, to(before_addr), &bytes, 1328),
                wire(1, to(gone), &bytes, 1328),
                wire(2, to(after_addr), &bytes, 1328),
            ];
            let outcomes = send(&mut tx, &batch);
            assert_eq!((outcomes[0], outcomes[2]), (SendOutcome::Sent, SendOutcome::Sent));
            match outcomes[1] {
                SendOutcome::Sent => {}
                SendOutcome::Unreachable { errno: libc::ECONNREFUSED } => refused += 1,
                other => panic!("{other:?}"),
            }
            wanted.extend(datagrams(batch[0].payload));
        }
        assert!(receive(&mut before, wanted.len()) == wanted, "{gso:?} {family}: the viewer before");
        assert!(receive(&mut after, wanted.len()) == wanted, "{gso:?} {family}: the viewer after");
        // Each send to the closed port is answered by ICMP at once, and the next send reports it.
        assert_eq!(refused, 50, "{gso:?} {family}");
        assert!(tx.counters().icmp_errors >= 50);
        assert_eq!(tx.poll_unreachable(), Some((gone, libc::ECONNREFUSED)));
        let mut told = 1;
        while let Some(told_of) = tx.poll_unreachable() {
            assert_eq!(told_of, (gone, libc::ECONNREFUSED));
            told += 1;
        }
        assert!((2..=64).contains(&told), "{told}");
    }
}

#[test]
fn refused_rtcp_does_not_stop_rtp_of_the_same_viewer() {
    let mut tx = sender(GsoMode::Auto, 0);
    let (mut rx, addr) = receiver("127.0.0.1");
    let (_closed, no_rtcp) = closed_port("127.0.0.1");
    let dest = udp(addr, no_rtcp);
    for round in 0..20 {
        let bytes = pattern(round, 4000);
        let outcomes = send(&mut tx, &[wire(0, dest, &bytes, 1328), rtcp(0, dest, &bytes[..40])]);
        assert_eq!(outcomes[0], SendOutcome::Sent);
        assert_eq!(receive(&mut rx, 4), datagrams(Payload::Wire { bytes: &bytes, segment: 1328 }));
    }
}

#[test]
fn reopened_port_is_served_after_one_refused_send() {
    let mut tx = sender(GsoMode::Auto, 0);
    let (rx, addr) = receiver("127.0.0.1");
    let dest = udp(addr, addr);
    drop(rx);
    assert_eq!(send(&mut tx, &[wire(0, dest, b"one", 10)]), [SendOutcome::Sent]);
    // A send to another viewer picks the error up.
    let (_other, other_addr) = receiver("127.0.0.1");
    assert_eq!(send(&mut tx, &[wire(1, udp(other_addr, other_addr), b"x", 10)]), [SendOutcome::Sent]);
    let back = std::net::UdpSocket::bind(addr).unwrap();
    let refused = SendOutcome::Unreachable { errno: libc::ECONNREFUSED };
    assert_eq!(send(&mut tx, &[wire(0, dest, b"two", 10)]), [refused]);
    assert_eq!(send(&mut tx, &[wire(0, dest, b"three", 10)]), [SendOutcome::Sent]);
    let mut buffer = [0; 10];
    assert_eq!(back.recv(&mut buffer).unwrap(), 5);
    assert_eq!(&buffer[..5], b"three");
}

#[test]
fn icmp_errors_for_any_sender_reach_receiver_socket() {
    for family in FAMILIES {
        let ports = bind_ports(family.parse().unwrap(), first_port(), 65_000, 3).unwrap();
        let source = ports.receiver.rtp.local_addr().unwrap();
        let (mut rx, addr) = receiver(family);
        let mut icmp = IcmpReader::default();
        for pair in ports.senders {
            let mut tx = KernelTx::new(config_of(pair)).unwrap();
            let closed: Vec<_> = (0..8).map(|_| closed_port(family)).collect();
            for (_, gone) in &closed {
                let batch = [wire(0, udp(*gone, *gone), b"x", 9), wire(1, udp(addr, addr), b"y", 9)];
                assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 2]);
                let from: Vec<_> = rx.recv(Some(TIMEOUT)).unwrap().map(|d| d.from).collect();
                assert_eq!(from, [source], "whoever sends");
                let mut told = Vec::new();
                let end = std::time::Instant::now() + TIMEOUT;
                while told.is_empty() && std::time::Instant::now() < end {
                    icmp.read(&ports.receiver.rtp, |dest, errno| told.push((dest, errno)));
                }
                assert_eq!(told, [(*gone, libc::ECONNREFUSED)]);
            }
            assert_eq!((tx.counters().icmp_errors, icmp.hearsay()), (0, 0), "{family}");
            // The notified sender is the one that reports the error, once.
            let (_, gone) = closed[0];
            tx.note_unreachable(gone, libc::ECONNREFUSED);
            let again = [(); 2].map(|()| send(&mut tx, &[wire(0, udp(gone, gone), b"x", 9)])[0]);
            assert_eq!(again, [SendOutcome::Unreachable { errno: libc::ECONNREFUSED }, SendOutcome::Sent]);
            assert_eq!(tx.counters().icmp_errors, 1);
            while icmp.read(&ports.receiver.rtp, |_, _| ()) {}
        }
    }
}

/// A sender from this pair only.
fn config_of(pair: UdpPair) -> KernelTxConfig {
    let is_v4 = pair.rtp.local_addr().unwrap().is_ipv4();
    let (v4, v6) = if is_v4 { (Some(pair), None) } else { (None, Some(pair)) };
    KernelTxConfig { v4, v6, ..KernelTxConfig::default() }
}

#[test]
fn icmp_storm_pauses_error_reports_without_loss() {
    let mut tx = sender(GsoMode::Auto, 0);
    let (mut rx, addr) = receiver("127.0.0.1");
    let gone: Vec<_> = (0..32).map(|_| closed_port("127.0.0.1")).collect();
    let bytes = pattern(1, 2 * 1328);
    // Every second entry provokes an ICMP error that hits the entry behind it.
    let batch: Vec<_> = gone
        .iter()
        .enumerate()
        .flat_map(|(n, (_, closed))| {
            [
                wire(2 * n as u32, udp(*closed, *closed), &bytes, 1328),
                wire(2 * n as u32 + 1, udp(addr, addr), &bytes, 1328),
            ]
        })
        .collect();
    assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 64]);
    assert_eq!(receive(&mut rx, 64).len(), 64);
    assert_eq!(tx.counters().icmp_storms, 1);
    let heard = tx.counters().icmp_errors;
    assert!((16..32).contains(&heard), "{heard}");
    // Bounded: at worst a few calls for each message.
    assert!(tx.counters().udp_calls < 200, "{} calls", tx.counters().udp_calls);
    let deaf: Vec<_> = (0..1023).flat_map(|_| send(&mut tx, &batch[..2])).collect();
    let first_report = usize::from(deaf[0] != SendOutcome::Sent);
    assert!(deaf[first_report..].iter().all(|o| *o == SendOutcome::Sent), "hears nothing, loses nothing");
    assert_eq!(tx.counters().icmp_errors, heard);
    let again: Vec<_> = (0..4).flat_map(|_| send(&mut tx, &batch[..2])).collect();
    assert!(again.contains(&SendOutcome::Unreachable { errno: libc::ECONNREFUSED }), "{again:?}");
    assert_eq!(tx.counters().icmp_storms, 1);
}

#[test]
fn pairs_of_the_wrong_family_are_refused() {
    let pair = bind_pair("::1".parse().unwrap(), first_port(), 65_000).unwrap();
    let config = KernelTxConfig { v4: Some(pair), ..KernelTxConfig::default() };
    let Err(error) = KernelTx::new(config) else { panic!("an IPv6 pair for IPv4") };
    assert!(matches!(error, NetError::Family { wanted: "IPv4", .. }), "{error}");
}

#[test]
#[should_panic(expected = "2 entries, room for 1 outcomes")]
fn too_few_outcomes_are_a_mistake_of_the_caller() {
    let mut tx = sender(GsoMode::Auto, 0);
    let batch = [rtcp(0, tcp(0), b"x"); 2];
    millrace_core::seam::PacketTx::send(&mut tx, &millrace_netio::null::SliceBatch(&batch), &mut [UNSET]);
}
