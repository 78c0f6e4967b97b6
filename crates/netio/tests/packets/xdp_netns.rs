//! AF_XDP across a veth pair between network namespaces, received by ordinary UDP sockets, which check every sum.
//! Needs root; skipped otherwise.
//!
//! `xdp_bulk_transfer_has_no_checksum_errors` sends 100,000 packets; with `MILLRACE_PACKETS=10000000` in the environment ten
//! million, which takes a minute or two:
//!
//! ```text
//! MILLRACE_PACKETS=10000000 cargo test --release -p millrace-netio --test packets xdp_netns::many_packets -- --nocapture
//! ```

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use crate::support;
use crate::support::xdp::*;
use crate::support::*;
use millrace_core::limits::EXTENT_BYTES;
use millrace_core::packet::WireLayout;
use millrace_core::pool::HeapRegion;
use millrace_core::seam::{Payload, PayloadSource, SendOutcome, Transmit};
use millrace_netio::recv::UdpRx;
use millrace_netio::route::RouteWatch;
use millrace_netio::xdp::{Strategy, XdpConfig, XdpError, XdpTx};

/// The strategies that a veth pair supports.
const STRATEGIES: [Strategy; 2] = [Strategy::Staging, Strategy::Chained];

fn heap(extents: u32) -> Box<HeapRegion> {
    Box::new(HeapRegion::new(extents as usize + 8))
}

fn rx(net: &Wire, addr: &str) -> (UdpRx, SocketAddr) {
    net.viewers.inside(|| receiver(addr))
}

#[test]
fn xdp_strategies_deliver_to_ordinary_udp_socket() {
    let Some(net) = Wire::new() else { return };
    for (strategy, family) in STRATEGIES.into_iter().flat_map(|s| FAMILIES.map(|f| (s, f))) {
        let (arena, leases) = film(heap(2), 2, 196);
        let Some(mut tx) = open(&net, config(&arena, Some(strategy))) else { return };
        assert_eq!(tx.strategy(), strategy);
        let (mut viewer, to) = rx(&net, family);
        let mut wanted = 0;
        for round in 0..40u32 {
            let (place, count) = (round * 2, 1 + (round * 13) % 92);
            let lease = &leases[round as usize % 2];
            let wire = packets(0, to, lease, place, count);
            assert!(tx.can_send(&wire.0));
            let headers = pattern(round + 1000, 12 * count as usize);
            let own =
                Payload::Patched { headers: &headers, bytes: lease.wire(place, count), segment: SEGMENT };
            let own = (Transmit { payload: own, ..packets(1, to, lease, place, count).0 }, wire.1);
            // Memory without a known source, of odd lengths, and RTCP.
            let loose = pattern(round, SEGMENT * 3 - round as usize);
            let loose = (support::wire(2, udp(to, to), &loose, SEGMENT), None);
            let report = pattern(round, 77 + round as usize);
            let report = (rtcp(3, udp(to, to), &report), None);
            let sent: Vec<Vec<u8>> =
                [wire, own, loose, report].iter().flat_map(|(t, _)| datagrams(t.payload)).collect();
            assert_eq!(send_entries(&mut tx, vec![wire, own, loose, report]), [SendOutcome::Sent; 4]);
            let got = receive(&mut viewer, sent.len());
            assert!(got == sent, "{strategy} {family} round {round}: {} of {}", got.len(), sent.len());
            wanted += sent.len() as u64;
        }
        assert!(!tx.poll(), "all has come back");
        let counters = *tx.counters();
        assert_eq!((counters.datagrams, counters.held_leases), (wanted, 0), "{counters:?}");
        assert_eq!((counters.invalid_descriptors, counters.stray_completions), (0, 0), "{counters:?}");
        assert_eq!(counters.chained > 0, strategy == Strategy::Chained);
        assert_eq!(counters.rows_built, 3);
    }
    assert_eq!(checksum_errors(&net), 0);
}

#[test]
fn datagrams_come_from_the_servers_address_and_ports() {
    let Some(net) = Wire::new() else { return };
    let (arena, leases) = film(heap(1), 1, 196);
    let Some(mut tx) = open(&net, config(&arena, None)) else { return };
    assert_eq!(tx.strategy(), Strategy::Staging, "what suits a veth pair");
    for (family, server) in FAMILIES.into_iter().zip(["10.77.0.1", "fd77::1"]) {
        let viewer = net.viewers.inside(|| UdpSocket::bind((family, 0)).unwrap());
        viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
        let to = viewer.local_addr().unwrap();
        let report = (rtcp(0, udp(to, to), b"report"), None);
        assert_eq!(
            send_entries(&mut tx, vec![packets(0, to, &leases[0], 0, 1), report]),
            [SendOutcome::Sent; 2]
        );
        let mut bytes = [0; 2000];
        for port in [PORT, PORT + 1] {
            let (_, from) = viewer.recv_from(&mut bytes).unwrap();
            assert_eq!((from.ip(), from.port()), (server.parse().unwrap(), port));
        }
    }
}

#[test]
fn route_watch_provides_next_hops_for_xdp() {
    let Some(net) = Wire::new() else { return };
    let (arena, leases) = film(heap(1), 1, 196);
    let open = || {
        let watch = RouteWatch::start().expect("a watch of routes");
        let tx = XdpTx::open(config(&arena, None), watch.table());
        (watch, tx)
    };
    let (_watch, tx) = net.server.inside(open);
    let mut tx = tx.unwrap_or_else(|error| panic!("{error}"));
    for family in FAMILIES {
        let (mut viewer, to) = rx(&net, family);
        let entry = packets(u32::from(to.is_ipv6()), to, &leases[0], 0, 9);
        let deadline = Instant::now() + TIMEOUT;
        while !tx.can_send(&entry.0) {
            assert!(Instant::now() < deadline, "{family}: no way was found");
            std::thread::yield_now();
        }
        assert_eq!(send_entries(&mut tx, vec![entry]), [SendOutcome::Sent]);
        assert!(receive(&mut viewer, 9) == datagrams(entry.0.payload), "{family}");
    }
    let nowhere = "198.51.100.1:5004".parse().unwrap();
    assert!(!tx.can_send(&packets(0, nowhere, &leases[0], 0, 1).0));
}

#[test]
fn datagram_longer_than_mtu_is_refused_locally() {
    let Some(net) = Wire::new() else { return };
    let (arena, _leases) = film(heap(1), 1, 196);
    for strategy in STRATEGIES {
        let Some(mut tx) = open(&net, config(&arena, Some(strategy))) else { return };
        for (family, longest) in FAMILIES.into_iter().zip([1472, 1452]) {
            let (mut viewer, to) = rx(&net, family);
            let bytes = pattern(1, 1473);
            let of = |length| support::wire(0, udp(to, to), &bytes[..length], length);
            assert!(tx.can_send(&of(longest)) && !tx.can_send(&of(longest + 1)));
            let refused = SendOutcome::Unreachable { errno: libc::EMSGSIZE };
            assert_eq!(send_entries(&mut tx, vec![(of(longest + 1), None)]), [refused]);
            assert_eq!(send_entries(&mut tx, vec![(of(longest), None)]), [SendOutcome::Sent]);
            assert_eq!(receive(&mut viewer, 1), [&bytes[..longest]], "{strategy} {family}");
            assert!(receive_now(&mut viewer).is_empty());
        }
    }
}

/// Sends until the device reports that it is dead, without any panic; everything is returned.
fn dies(strategy: Strategy, kill: impl FnOnce(&Wire)) {
    let Some(net) = Wire::new() else { return };
    let (arena, leases) = film(heap(1), 1, 196);
    let Some(mut tx) = open(&net, config(&arena, Some(strategy))) else { return };
    let (mut viewer, to) = rx(&net, FAMILIES[0]);
    let entry = || packets(0, to, &leases[0], 3, 92);
    assert_eq!(send_entries(&mut tx, vec![entry()]), [SendOutcome::Sent]);
    assert_eq!(receive(&mut viewer, 92).len(), 92);
    kill(&net);
    let outcomes = send_entries(&mut tx, vec![entry(), entry()]);
    assert!(tx.failure().is_some(), "{outcomes:?}");
    let text = tx.failure().unwrap().to_string();
    assert!(text.contains("va") && text.contains("down or gone"), "{text}");
    assert_eq!(send_entries(&mut tx, vec![entry()]), [SendOutcome::Unreachable { errno: libc::ENETDOWN }]);
    assert!(!tx.can_send(&entry().0) && !tx.poll());
    assert_eq!(arena.leases(0), 1, "only the test's own");
    assert_eq!(tx.counters().held_leases, 0);
}

#[test]
fn deleted_interface_is_reported_as_failure() {
    for strategy in STRATEGIES {
        dies(strategy, |net| net.server.ip("link del va"));
    }
}

#[test]
fn interface_down_is_reported_as_failure() {
    dies(Strategy::Staging, |net| net.server.ip("link set va down"));
}

/// A device that has nothing to send hears of it too.
#[test]
fn poll_of_idle_device_detects_lost_interface() {
    for command in ["link del va", "link set va down"] {
        let Some(net) = Wire::new() else { return };
        let (arena, _leases) = film(heap(1), 1, 196);
        let Some(mut tx) = open(&net, config(&arena, None)) else { return };
        net.server.ip(command);
        let polls = (0..300).take_while(|_| !tx.poll() && tx.failure().is_none()).count();
        assert!(tx.failure().is_some(), "{command}: after {polls} polls");
    }
}

#[test]
fn xdp_queue_is_free_after_device_drop() {
    let Some(net) = Wire::new() else { return };
    let (arena, leases) = film(heap(1), 1, 196);
    for _ in 0..5 {
        let Some(mut tx) = open(&net, config(&arena, None)) else { return };
        let (mut viewer, to) = rx(&net, FAMILIES[1]);
        assert_eq!(send_entries(&mut tx, vec![packets(0, to, &leases[0], 0, 5)]), [SendOutcome::Sent]);
        assert_eq!(receive(&mut viewer, 5).len(), 5);
    }
}

#[test]
fn xdp_open_failure_states_cause() {
    let Some(net) = Wire::new() else { return };
    let (arena, _leases) = film(heap(1), 1, 196);
    let Some(first) = open(&net, config(&arena, None)) else { return };
    let try_open = |config: XdpConfig| net.server.inside(|| XdpTx::open(config, hops(&net))).err().unwrap();
    let base = || config(&arena, None);
    let busy = try_open(base()).to_string();
    assert!(busy.contains("another AF_XDP socket"), "{busy}");
    drop(first);
    let no_queue = try_open(XdpConfig { queue: 9, ..base() }).to_string();
    assert!(no_queue.contains("queue 9") && no_queue.contains("no such queue"), "{no_queue}");
    let nobody = try_open(XdpConfig { interface: "vc".into(), ..base() });
    assert!(matches!(nobody, XdpError::NoInterface { .. }), "{nobody}");
    for strategy in [Strategy::ZeroCopyStaging, Strategy::ZeroCopyChained] {
        let text = try_open(XdpConfig { strategy: Some(strategy), ..base() }).to_string();
        assert!(text.contains("zero-copy"), "{text}");
    }
    net.server.ip("link set va down");
    let down = try_open(base()).to_string();
    assert!(down.contains("ip link set up"), "{down}");
}

/// A process that may not lock that much memory gets an error that reports it.
#[test]
fn memory_that_may_not_be_locked_is_named() {
    let Some(net) = Wire::new() else { return };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|bytes| *bytes <= 64 << 20) else {
        eprintln!("skipped: the limit of locked memory is too high to reach it in a test");
        return;
    };
    let extents = (limit / EXTENT_BYTES as u64) as u32 + 1;
    let (arena, _leases) = film(heap(extents), extents, 1);
    let open = || {
        // Of this thread alone.
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::IPC_LOCK);
        rustix::thread::set_capabilities(None, sets).unwrap();
        XdpTx::open(config(&arena, None), hops(&net)).err()
    };
    let error = net.server.inside(open).expect("a refusal");
    assert!(matches!(error, XdpError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("CAP_IPC_LOCK"), "{error}");
}

/// A jumbo frame needs a staging frame of twice the length, or several descriptors.
#[test]
fn jumbo_frames_go_by_either_strategy() {
    let Some(net) = Wire::new() else { return };
    net.server.ip("link set va mtu 9000");
    net.viewers.ip("link set vb mtu 9000");
    for (strategy, packet_bytes) in STRATEGIES.into_iter().zip([188 * 21, 188 * 47]) {
        let (arena, leases) = film_of(heap(1), 1, 29, WireLayout::new(packet_bytes).unwrap());
        let table = hops_of(interface_index(&net), 9000);
        let tx = net.server.inside(|| XdpTx::open(config(&arena, Some(strategy)), table));
        let mut tx = tx.unwrap_or_else(|error| panic!("{error}"));
        for (n, family) in FAMILIES.into_iter().enumerate() {
            let (mut viewer, to) = rx(&net, family);
            let entry = packets(n as u32, to, &leases[0], 4, 25);
            assert!(tx.can_send(&entry.0));
            assert_eq!(send_entries(&mut tx, vec![entry]), [SendOutcome::Sent], "{strategy} {family}");
            assert!(receive(&mut viewer, 25) == datagrams(entry.0.payload), "{strategy} {family}");
            // What fits no frame is left to the kernel, unless it is not copied.
            let long = leases[0].wire(0, 2);
            let long = support::wire(n as u32, udp(to, to), &long[..8000.min(long.len())], 8000);
            assert_eq!(tx.can_send(&long), strategy == Strategy::Chained);
        }
        assert!(!tx.poll());
        assert_eq!((tx.counters().invalid_descriptors, tx.counters().stray_completions), (0, 0));
    }
    assert_eq!(checksum_errors(&net), 0);
}

/// Two extents in turn to two viewers of each family, every datagram compared, every checksum verified by the kernel.
#[test]
fn xdp_bulk_transfer_has_no_checksum_errors() {
    let Some(net) = Wire::new() else { return };
    let total: u64 = std::env::var("MILLRACE_PACKETS").map_or(100_000, |n| n.parse().expect("a number"));
    let (arena, leases) = film(heap(16), 16, 196);
    let begun = Instant::now();
    let mut received = 0;
    for strategy in STRATEGIES {
        let Some(mut tx) = open(&net, config(&arena, Some(strategy))) else { return };
        let mut viewers = ["10.77.0.2", "fd77::2", "10.77.0.3", "fd77::3"].map(|family| rx(&net, family));
        let mut round = 0;
        while received < total * (1 + u64::from(strategy == STRATEGIES[1])) / 2 {
            round += 1;
            let (place, count) = (round * 7 % 105, 1 + round * 29 % 91);
            let lease = &leases[round as usize % 16];
            let headers = pattern(round, 12 * count as usize);
            let entry = |n: usize| {
                let (transmit, source) = packets(n as u32, viewers[n].1, lease, place, count);
                let bytes = lease.wire(place, count);
                match n {
                    2.. => {
                        let payload = Payload::Patched { headers: &headers, bytes, segment: SEGMENT };
                        (Transmit { payload, ..transmit }, source)
                    }
                    _ => (transmit, source),
                }
            };
            assert_eq!(send_entries(&mut tx, (0..4).map(entry).collect()), [SendOutcome::Sent; 4]);
            for (n, (viewer, _)) in viewers.iter_mut().enumerate() {
                received += expect(viewer, lease.wire(place, count), (n >= 2).then_some(&headers[..]));
            }
        }
        let counters = *tx.counters();
        assert_eq!((counters.invalid_descriptors, counters.stray_completions), (0, 0), "{counters:?}");
    }
    assert_eq!(checksum_errors(&net), 0);
    eprintln!("{received} packets arrived whole, no checksum was wrong, {:?}", begun.elapsed());
}

/// The control: a sum that is wrong in the store is noticed by the receiver's kernel, so the other tests would notice too.
#[test]
fn wrong_stored_checksum_is_dropped_by_receiver() {
    let Some(net) = Wire::new() else { return };
    for (strategy, family) in STRATEGIES.into_iter().zip(FAMILIES) {
        let (arena, leases) = film(heap(2), 2, 196);
        let Some(mut tx) = open(&net, config(&arena, Some(strategy))) else { return };
        let (mut viewer, to) = rx(&net, family);
        let before = checksum_errors(&net);
        let (transmit, _) = packets(0, to, &leases[0], 7, 3);
        // The sums of other packets.
        let source = Some(PayloadSource { lease: &leases[0], place: 8 });
        assert_eq!(send_entries(&mut tx, vec![(transmit, source)]), [SendOutcome::Sent]);
        assert_eq!(send_entries(&mut tx, vec![packets(0, to, &leases[0], 0, 1)]), [SendOutcome::Sent]);
        assert!(receive(&mut viewer, 1) == datagrams(packets(0, to, &leases[0], 0, 1).0.payload));
        assert_eq!(checksum_errors(&net) - before, 3, "{strategy}");
    }
}

/// Receives these datagrams, in order, without keeping them.
fn expect(viewer: &mut UdpRx, bytes: &[u8], headers: Option<&[u8]>) -> u64 {
    let mut count = 0;
    while count * SEGMENT < bytes.len() {
        let before = count;
        for datagram in viewer.recv(Some(TIMEOUT)).expect("receive") {
            let wanted = &bytes[count * SEGMENT..][..SEGMENT];
            let header = headers.map_or(&wanted[..12], |h| &h[12 * count..][..12]);
            assert!(datagram.bytes[..12] == *header, "header {count}");
            assert!(datagram.bytes[12..] == wanted[12..], "datagram {count}");
            count += 1;
        }
        assert!(count > before, "{count} of {} arrived", bytes.len() / SEGMENT);
    }
    count as u64
}

/// No arena is too small for the extents aside that the other tests take for granted.
#[test]
fn xdp_device_takes_and_returns_spare_extents() {
    let Some(net) = Wire::new() else { return };
    let (arena, leases) = film(heap(1), 1, 196);
    let Some(tx) = open(&net, config(&arena, None)) else { return };
    assert_eq!(arena.aside().filter_map(|extent| arena.fill(extent)).count(), 0);
    assert_eq!(arena.memory().1, 9 * EXTENT_BYTES);
    drop(tx);
    let deadline = Instant::now() + Duration::from_secs(5);
    while arena.aside().filter_map(|extent| arena.fill(extent)).count() < 8 {
        assert!(Instant::now() < deadline, "the extents were not given back");
        std::thread::yield_now();
    }
    assert_eq!(arena.leases(0), leases.len() as u32);
}
