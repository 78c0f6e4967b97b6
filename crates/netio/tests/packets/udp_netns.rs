//! UDP across a veth pair between network namespaces: what loopback cannot show. Needs root; skipped otherwise.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use millrace_core::seam::{Payload, SendOutcome, Transmit};
use millrace_netio::recv::UdpRx;
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

const MODES: [GsoMode; 2] = [GsoMode::Auto, GsoMode::Off];
/// A viewer's address in each family, and one that has a route but no host behind it.
const FAMILIES: [&str; 2] = ["10.77.0.2", "fd77::2"];

fn tx(wire: &Wire, gso: GsoMode) -> KernelTx {
    wire.server.inside(|| sender(gso, 0))
}

fn rx(wire: &Wire, addr: &str) -> (UdpRx, SocketAddr) {
    wire.viewers.inside(|| receiver(addr))
}

fn to(addr: SocketAddr) -> millrace_core::seam::Dest {
    udp(addr, addr)
}

fn unreachable(errno: i32) -> SendOutcome {
    SendOutcome::Unreachable { errno }
}

#[test]
fn udp_datagrams_arrive_with_valid_checksums() {
    let Some(net) = Wire::new() else { return };
    for (gso, family) in MODES.into_iter().flat_map(|m| FAMILIES.map(|f| (m, f))) {
        let mut tx = tx(&net, gso);
        let (mut viewer, addr) = rx(&net, family);
        let mut wanted = 0;
        for round in 0..50 {
            let count = 1 + (round as usize * 13) % 92;
            let bytes = pattern(round, 1328 * count - round as usize);
            let headers = pattern(round + 1000, 12 * count);
            let batch = [
                wire(0, to(addr), &bytes, 1328),
                patched(0, to(addr), &headers, &bytes, 1328),
                rtcp(0, to(addr), &bytes[..77]),
            ];
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 3]);
            let sent: Vec<_> = batch[..2].iter().flat_map(|t| datagrams(t.payload)).collect();
            let mut got = receive(&mut viewer, sent.len() + 1);
            // RTCP leaves another socket and may be anywhere; all RTP is in order.
            let report = got.iter().position(|d| d[..] == bytes[..77]).expect("the report");
            got.remove(report);
            assert!(got == sent, "{gso:?} {family} round {round}: {} of {}", got.len(), sent.len());
            wanted += sent.len() as u64 + 1;
        }
        assert_eq!(tx.gso(), gso == GsoMode::Auto);
        assert_eq!(tx.counters().datagrams, wanted);
    }
    for (file, group, prefix) in [("snmp", "Udp", ""), ("snmp6", "", "Udp6")] {
        let count = |name: &str| net.viewers.counter(file, group, &format!("{prefix}{name}"));
        assert_eq!(count("InCsumErrors"), 0);
        assert_eq!(count("InErrors"), 0);
        assert!(count("InDatagrams") > 8000);
    }
}

#[test]
fn port_unreachable_affects_only_its_viewer() {
    let Some(net) = Wire::new() else { return };
    // Types of ICMP messages that the kernel holds back when there are many (icmp(7)): none, and one that we do not use.
    net.viewers.must("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=200");
    for (gso, family) in MODES.into_iter().flat_map(|m| FAMILIES.map(|f| (m, f))) {
        let mut tx = tx(&net, gso);
        let mut viewers = [rx(&net, family), rx(&net, family)];
        let (_closed, gone) = net.viewers.inside(|| closed_port(family));
        let mut refused = 0;
        for round in 0..100 {
            let bytes = pattern(round, 1328 * (1 + round as usize % 7));
            let batch = [
                wire(0, to(viewers[0].1), &bytes, 1328),
                wire(1, to(gone), &bytes, 1328),
                wire(2, to(viewers[1].1), &bytes, 1328),
            ];
            let outcomes = send(&mut tx, &batch);
            assert_eq!((outcomes[0], outcomes[2]), (SendOutcome::Sent, SendOutcome::Sent));
            refused += usize::from(outcomes[1] == unreachable(libc::ECONNREFUSED));
            let wanted = datagrams(batch[0].payload);
            for (viewer, _) in &mut viewers {
                assert!(receive(viewer, wanted.len()) == wanted, "{gso:?} {family} round {round}");
            }
        }
        // Every second send gets through to the closed port and is answered; softirqs may put some answers off.
        assert!((30..=80).contains(&refused), "{gso:?} {family}: told {refused} times");
        assert_eq!(tx.counters().icmp_hearsay, 0);
        assert_eq!(tx.poll_unreachable(), Some((gone, libc::ECONNREFUSED)));
    }
}

/// Internet checksum, straight from RFC 1071.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |b| u32::from(*b)));
    let sum = words.fold(0, |sum, word| (sum + word) % 0xffff);
    (!(sum as u16)).to_be_bytes()
}

/// "Destination unreachable" (RFC 792) about a datagram from `server` to `viewer`.
fn unreachable_message(code: u8, server: SocketAddr, viewer: SocketAddr) -> Vec<u8> {
    let octets = |addr: SocketAddr| match addr.ip() {
        std::net::IpAddr::V4(v4) => v4.octets(),
        std::net::IpAddr::V6(_) => panic!("IPv4 only"),
    };
    let mut inner = vec![0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0];
    inner.extend(octets(server));
    inner.extend(octets(viewer));
    let sum = checksum(&inner);
    inner[10..12].copy_from_slice(&sum);
    inner.extend([server.port().to_be_bytes(), viewer.port().to_be_bytes(), [0, 16], [0, 0]].concat());
    let mut icmp = [[3, code, 0, 0, 0, 0, 0, 0].to_vec(), inner].concat();
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    icmp
}

#[test]
fn forged_icmp_about_somebody_else_changes_nothing() {
    let Some(net) = Wire::new() else { return };
    let pair = net.server.inside(|| bind_pair("10.77.0.1".parse().unwrap(), first_port(), 65_000).unwrap());
    let server = pair.rtp.local_addr().unwrap();
    let config = KernelTxConfig { v4: Some(pair), ..KernelTxConfig::default() };
    let mut tx = net.server.inside(|| KernelTx::new(config).unwrap());
    let (mut viewer, addr) = rx(&net, "10.77.0.2");
    let raw = net.viewers.inside(|| {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::RAW);
        let raw = rustix::net::socket_with(family, kind, flags, Some(rustix::net::ipproto::ICMP)).unwrap();
        rustix::net::bind(&raw, &SocketAddr::from(([10, 77, 0, 3], 0))).unwrap();
        raw
    });
    // Host unreachable and port unreachable.
    let lies = [1, 3].map(|code| unreachable_message(code, server, addr));
    /// Stops the liar however the test ends.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = Stop(&stop);
        let liar = scope.spawn(|| {
            let mut told = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let lie = &lies[told as usize % lies.len()];
                rustix::net::sendto(&raw, lie, rustix::net::SendFlags::empty(), &server).unwrap();
                told += 1;
            }
            told
        });
        // Until enough lies have been heard, however the two threads are scheduled.
        let deadline = Instant::now() + TIMEOUT;
        let mut round = 0;
        while (round < 300 || tx.counters().icmp_hearsay < 1000) && Instant::now() < deadline {
            let bytes = pattern(round, 1328 * (1 + round as usize % 40));
            let batch = [wire(0, to(addr), &bytes, 1328), wire(0, to(addr), &bytes[..9], 1328)];
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 2], "round {round}");
            let wanted: Vec<_> = batch.iter().flat_map(|t| datagrams(t.payload)).collect();
            assert!(receive(&mut viewer, wanted.len()) == wanted, "round {round}");
            round += 1;
        }
        drop(guard);
        assert!(liar.join().unwrap() > 0);
    });
    assert!(tx.counters().icmp_hearsay > 0, "{:?}", tx.counters());
    assert_eq!(tx.poll_unreachable(), None);
}

#[test]
fn offline_viewer_is_reported_as_host_unreachable() {
    let Some(net) = Wire::new() else { return };
    // One question in 20 ms instead of three in three seconds.
    for family in ["ipv4", "ipv6"] {
        let settings =
            format!("net.{family}.neigh.va.mcast_solicit=1 net.{family}.neigh.va.retrans_time_ms=20");
        net.server.must(&format!("sysctl -qw {settings}"));
    }
    for (family, off) in FAMILIES.into_iter().zip(["10.77.0.99", "fd77::99"]) {
        let mut tx = tx(&net, GsoMode::Auto);
        let (mut viewer, addr) = rx(&net, family);
        let off = SocketAddr::new(off.parse().unwrap(), 5000);
        let deadline = Instant::now() + TIMEOUT;
        let mut told = false;
        while !told && Instant::now() < deadline {
            let outcomes =
                send(&mut tx, &[wire(0, to(off), b"are you there", 99), wire(1, to(addr), b"you are", 99)]);
            assert_eq!(outcomes[1], SendOutcome::Sent);
            assert_eq!(receive(&mut viewer, 1), [b"you are"]);
            told = outcomes[0] == unreachable(libc::EHOSTUNREACH);
        }
        assert!(told, "{family}: {:?}", tx.counters());
        assert_eq!(tx.poll_unreachable(), Some((off, libc::EHOSTUNREACH)));
    }
}

/// The viewer in the middle cannot be reached, with `errno`; the others must not notice. Each
/// parameter holds one value per family.
fn only_one_is_unreachable(net: &Wire, middle: [&str; 2], errno: [i32; 2]) {
    for (gso, (family, (middle, errno))) in MODES
        .into_iter()
        .flat_map(|m| FAMILIES.into_iter().zip(middle.into_iter().zip(errno)).map(move |x| (m, x)))
    {
        let mut tx = tx(net, gso);
        let mut viewers = [rx(net, family), rx(net, family)];
        let middle = SocketAddr::new(middle.parse().unwrap(), 5000);
        for round in 0..10 {
            let bytes = pattern(round, 1328 * 92);
            let batch = [
                wire(0, to(viewers[0].1), &bytes, 1328),
                wire(1, to(middle), &bytes, 1328),
                rtcp(1, to(middle), &bytes[..40]),
                wire(2, to(viewers[1].1), &bytes, 1328),
            ];
            let outcomes = send(&mut tx, &batch);
            let wanted = [SendOutcome::Sent, unreachable(errno), unreachable(errno), SendOutcome::Sent];
            assert_eq!(outcomes, wanted, "{gso:?} {family}");
            let wanted = datagrams(batch[0].payload);
            for (viewer, _) in &mut viewers {
                assert!(receive(viewer, wanted.len()) == wanted, "{gso:?} {family} round {round}");
            }
        }
        assert_eq!(tx.gso(), gso == GsoMode::Auto, "a bad address says nothing about GSO");
    }
}

#[test]
fn missing_route_affects_only_its_viewer() {
    let Some(net) = Wire::new() else { return };
    only_one_is_unreachable(&net, ["198.51.100.1", "2001:db8::1"], [libc::ENETUNREACH; 2]);
}

#[test]
fn routes_that_refuse_stay_with_their_viewer() {
    let Some(net) = Wire::new() else { return };
    for (kind, errno) in [
        ("unreachable", [libc::EHOSTUNREACH; 2]),
        ("prohibit", [libc::EACCES; 2]),
        ("blackhole", [libc::EINVAL; 2]),
    ] {
        net.server.ip(&format!("route add {kind} 198.51.100.1"));
        net.server.ip(&format!("-6 route add {kind} 2001:db8::1"));
        only_one_is_unreachable(&net, ["198.51.100.1", "2001:db8::1"], errno);
        net.server.ip(&format!("route del {kind} 198.51.100.1"));
        net.server.ip(&format!("-6 route del {kind} 2001:db8::1"));
    }
}

#[test]
fn packet_filter_affects_only_its_viewer() {
    let Some(net) = Wire::new() else { return };
    for (program, addr) in [("iptables", "10.77.0.3"), ("ip6tables", "fd77::3")] {
        let output = net.server.command(&format!("{program} -A OUTPUT -p udp -d {addr} -j DROP"));
        if !output.status.success() {
            eprintln!("skipped: {program}: {}", String::from_utf8_lossy(&output.stderr));
            return;
        }
    }
    only_one_is_unreachable(&net, ["10.77.0.3", "fd77::3"], [libc::EPERM; 2]);
}

#[test]
fn small_path_mtu_disables_gso_for_its_viewer_only() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("route add 10.77.0.3 dev va mtu 1000");
    net.server.ip("-6 route add fd77::3 dev va mtu 1300");
    for (wide, narrow) in FAMILIES.into_iter().zip(["10.77.0.3", "fd77::3"]) {
        let mut tx = tx(&net, GsoMode::Auto);
        let mut viewers = [rx(&net, wide), rx(&net, narrow)];
        for round in 0..20 {
            let bytes = pattern(round, 1328 * 30 - 5);
            let batch = viewers.each_ref().map(|(_, addr)| wire(0, to(*addr), &bytes, 1328));
            assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 2]);
            let wanted = datagrams(batch[0].payload);
            for (viewer, addr) in &mut viewers {
                assert!(receive(viewer, wanted.len()) == wanted, "{addr} round {round}");
            }
        }
        assert!(tx.gso(), "one narrow path does not speak for all");
        assert_eq!((tx.counters().gso_refused, tx.counters().gso_sends), (1, 20), "{narrow}: remembered");
    }
}

#[test]
fn gso_refused_for_all_viewers_is_disabled_for_socket() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("link set va mtu 1300");
    net.viewers.ip("link set vb mtu 1300");
    let mut tx = tx(&net, GsoMode::Auto);
    assert!(tx.gso());
    let mut viewers: Vec<_> = (0..10).map(|_| rx(&net, "10.77.0.2")).collect();
    let bytes = pattern(1, 1328 * 20);
    let wanted = datagrams(Payload::Wire { bytes: &bytes, segment: 1328 });
    for round in 0..3 {
        let batch: Vec<_> = viewers.iter().map(|(_, addr)| wire(0, to(*addr), &bytes, 1328)).collect();
        assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 10]);
        for (viewer, _) in &mut viewers {
            assert!(receive(viewer, wanted.len()) == wanted, "round {round}");
        }
    }
    // Eight viewers in a row settle it; the ninth was in the same call.
    assert!((8..=9).contains(&tx.counters().gso_refused), "{:?}", tx.counters());
    assert_eq!(tx.counters().gso_sends, 0);
}

#[test]
fn viewers_that_cannot_be_reached_at_all_do_not_speak_against_gso() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("route add blackhole 198.51.100.0/24");
    let mut tx = tx(&net, GsoMode::Auto);
    let bytes = pattern(1, 1328 * 5);
    for n in 0..20 {
        let nowhere = SocketAddr::from(([198, 51, 100, n], 5000));
        assert_eq!(send(&mut tx, &[wire(0, to(nowhere), &bytes, 1328)]), [unreachable(libc::EINVAL)]);
    }
    assert!(tx.gso());
    assert_eq!(tx.counters().gso_refused, 0);
}

/// Sends everything, taking up each entry where it was blocked; how often entries were blocked.
fn push_all(tx: &mut KernelTx, entries: &[Transmit<'_>], deadline: Instant) -> usize {
    let mut rest: Vec<Transmit<'_>> = entries.to_vec();
    let mut blocks = 0;
    while !rest.is_empty() {
        assert!(Instant::now() < deadline, "{} entries are still blocked", rest.len());
        let outcomes = send(tx, &rest);
        let mut left = Vec::new();
        for (entry, outcome) in rest.iter().zip(outcomes) {
            match outcome {
                SendOutcome::Sent => {}
                SendOutcome::Blocked { taken } => {
                    let Payload::Wire { bytes, segment } = entry.payload else { panic!("only wire here") };
                    let bytes = &bytes[usize::from(taken) * segment..];
                    assert!(!bytes.is_empty(), "blocked after the last datagram");
                    left.push(Transmit { payload: Payload::Wire { bytes, segment }, ..*entry });
                }
                other => panic!("{other:?}"),
            }
        }
        blocks += left.len();
        rest = left;
        std::thread::yield_now();
    }
    blocks
}

/// Through a slow device: nothing lost, nothing doubled, everything in order, whoever runs out of room.
fn slow_device(qdisc: &str, send_buffer: usize) {
    let Some(net) = Wire::new() else { return };
    net.server.must(&format!("tc qdisc add dev va root {qdisc}"));
    for gso in MODES {
        let mut tx = tx(&net, gso);
        tx.set_send_buffer(send_buffer).unwrap();
        let mut viewers: Vec<_> = (0..3).map(|_| rx(&net, "10.77.0.2")).collect();
        let bytes: Vec<_> = (0..90).map(|n| pattern(n, 1328 * (1 + n as usize % 11) - 3)).collect();
        let batch: Vec<_> =
            (0..90).map(|n| wire(n as u32 % 3, to(viewers[n % 3].1), &bytes[n], 1328)).collect();
        let blocks = push_all(&mut tx, &batch, Instant::now() + Duration::from_secs(60));
        assert!(blocks > 0, "{gso:?}: the device was not slow enough");
        assert!(tx.counters().blocked as usize >= blocks);
        for (n, (viewer, _)) in viewers.iter_mut().enumerate() {
            let wanted: Vec<_> = batch.iter().skip(n).step_by(3).flat_map(|t| datagrams(t.payload)).collect();
            let got = receive(viewer, wanted.len());
            assert!(got == wanted, "{gso:?}: viewer {n}: {} of {}", got.len(), wanted.len());
        }
        std::thread::yield_now();
        assert!(viewers.iter_mut().all(|(viewer, _)| receive_now(viewer).is_empty()), "doubled");
    }
}

#[test]
fn full_send_buffer_blocks_at_exact_datagram() {
    // The queue holds all; the packets in it count against the socket.
    slow_device("tbf rate 80mbit burst 128k limit 100m", 150_000);
}

#[test]
fn full_device_queue_blocks_at_exact_datagram() {
    // The queue refuses data that the socket could still hold.
    slow_device("tbf rate 80mbit burst 128k limit 200k", 4 << 20);
}
