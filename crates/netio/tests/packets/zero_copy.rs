//! Sends without copying: the bytes arrive as they are, and extents come back when the kernel is done with them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::films::*;
use crate::support::*;
use millrace_core::pool::Lease;
use millrace_core::seam::SendOutcome;
use millrace_netio::recv::UdpRx;
use millrace_netio::{GsoMode, KernelTx, ZeroCopy};

/// Sends one batch without copying; every outcome must have been written.
fn send(tx: &mut KernelTx, pieces: &[Piece<'_>]) -> Vec<SendOutcome> {
    let mut outcomes = vec![UNSET; pieces.len()];
    tx.send_zero_copy(&PieceBatch(pieces), &mut outcomes);
    assert!(!outcomes.contains(&UNSET), "an entry has no outcome: {outcomes:?}");
    outcomes
}

/// Reads completions until all sends are complete.
fn settle(tx: &mut KernelTx) {
    let deadline = Instant::now() + TIMEOUT;
    while tx.reap() > 0 {
        assert!(Instant::now() < deadline, "{} sends are not complete: {:?}", tx.reap(), tx.counters());
        std::thread::yield_now();
    }
}

fn to(addr: SocketAddr) -> millrace_core::seam::Dest {
    udp(addr, addr)
}

fn tx(net: &Wire) -> KernelTx {
    net.server.inside(|| sender(GsoMode::Auto, 0))
}

fn rx(net: &Wire, addr: &str) -> (UdpRx, SocketAddr) {
    net.viewers.inside(|| receiver(addr))
}

/// Lets the viewers' device drop everything that comes in, before anything could copy it. Without checksum offload the
/// kernel copies in any case, to sum on the way.
fn shut(net: &Wire) {
    net.server.must("ethtool -K va tx on tso off tx-udp-segmentation off");
    net.viewers.must("tc qdisc add dev vb clsact");
    let filter = ["tc", "filter", "add", "dev", "vb", "ingress", "protocol", "all", "bpf", "da", "bytecode"];
    let output = net.viewers.command_of(&[&filter[..], &["1,6 0 0 2"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn bytes_are_exact_over_loopback_and_copying_is_noticed() {
    for family in ["127.0.0.1", "::1"] {
        let films = Films::new(3);
        let leases: Vec<Lease> = (0..3).map(|n| films.lease(n)).collect();
        let mut tx = sender(GsoMode::Auto, 0);
        let (mut viewer, addr) = receiver(family);
        assert_eq!(tx.zero_copy(), ZeroCopy::Ready);
        for round in 0..100u32 {
            let lease = &leases[round as usize % 3];
            let headers = pattern(round, 12 * 20);
            let mut pieces = [
                Piece::new(0, to(addr), lease, round % 90, 1 + round),
                Piece::new(0, to(addr), lease, round, 44),
                Piece::new(0, to(addr), lease, 7, 20),
                Piece::new(0, to(addr), lease, 9, 20),
            ];
            pieces[2].headers = Some(&headers);
            pieces[3].is_known = false;
            assert_eq!(send(&mut tx, &pieces), [SendOutcome::Sent; 4]);
            let wanted: Vec<_> = pieces.iter().flat_map(Piece::datagrams).collect();
            assert!(receive(&mut viewer, wanted.len()) == wanted, "{family} round {round}");
        }
        settle(&mut tx);
        assert_eq!(films.out(), 3, "only the test's own leases are out");
        let counters = *tx.counters();
        assert!(counters.zero_copy_sends >= 64 && counters.zero_copy_sends < 150, "{counters:?}");
        assert_eq!(counters.zero_copy_copied, counters.zero_copy_sends, "a receiver on this host");
    }
}

#[test]
fn zero_copy_is_disabled_when_kernel_copies_anyway() {
    let films = Films::new(1);
    let lease = films.lease(0);
    let mut tx = sender(GsoMode::Auto, 0);
    let (mut viewer, addr) = receiver("127.0.0.1");
    let mut sends = 0;
    while tx.counters().zero_copy_sends == sends {
        assert!(sends < 1000, "{:?}", tx.counters());
        send(&mut tx, &[Piece::new(0, to(addr), &lease, 0, 20)]);
        receive(&mut viewer, 20);
        sends += 1;
    }
    // IPv6 has not been tried; with one family only there is no other answer.
    assert_eq!(tx.zero_copy(), ZeroCopy::Ready);
    let v4 = millrace_netio::bind_pair("127.0.0.1".parse().unwrap(), first_port(), 65_000).unwrap();
    let config = millrace_netio::KernelTxConfig { v4: Some(v4), v6: None, gso: GsoMode::Auto, conns: 0 };
    let mut tx = KernelTx::new(config).unwrap();
    for _ in 0..200 {
        send(&mut tx, &[Piece::new(0, to(addr), &lease, 0, 20)]);
        receive(&mut viewer, 20);
    }
    assert_eq!(tx.zero_copy(), ZeroCopy::CopiedAnyway);
    assert!((64..110).contains(&tx.counters().zero_copy_sends), "{:?}", tx.counters());
}

#[test]
fn zero_copy_skips_short_patched_or_unknown_payloads() {
    let films = Films::new(1);
    let lease = films.lease(0);
    let headers = pattern(1, 12 * 92);
    for gso in [GsoMode::Auto, GsoMode::Off] {
        let mut tx = sender(gso, 0);
        let (mut viewer, addr) = receiver("127.0.0.1");
        let long = if gso == GsoMode::Auto { 7 } else { 44 };
        let mut pieces = [
            Piece::new(0, to(addr), &lease, 0, long),
            Piece::new(0, to(addr), &lease, 3, 1),
            Piece::new(0, to(addr), &lease, 1, 92),
            Piece::new(0, to(addr), &lease, 2, 92),
        ];
        pieces[2].headers = Some(&headers);
        pieces[3].is_known = false;
        assert_eq!(send(&mut tx, &pieces), [SendOutcome::Sent; 4]);
        let wanted: Vec<_> = pieces.iter().flat_map(Piece::datagrams).collect();
        assert!(receive(&mut viewer, wanted.len()) == wanted, "{gso:?}");
        assert_eq!((tx.counters().zero_copy_sends, films.out()), (0, 1));
        // The plain call copies everything.
        let mut outcomes = [UNSET; 1];
        let pieces = [Piece::new(0, to(addr), &lease, 0, 44)];
        millrace_core::seam::PacketTx::send(&mut tx, &PieceBatch(&pieces), &mut outcomes);
        assert_eq!((outcomes, tx.counters().zero_copy_sends), ([SendOutcome::Sent], 0));
    }
}

#[test]
fn across_a_wire_nothing_is_copied_and_every_lease_comes_back() {
    let Some(net) = Wire::new() else { return };
    let films = Films::new(4);
    let leases: Vec<Lease> = (0..4).map(|n| films.lease(n)).collect();
    for family in ["10.77.0.2", "fd77::2"] {
        let mut tx = tx(&net);
        let (mut viewer, addr) = rx(&net, family);
        for round in 0..60u32 {
            let lease = &leases[round as usize % 4];
            let pieces = [
                Piece::new(0, to(addr), lease, round, 44),
                Piece::new(1, to(addr), lease, 100, 92),
                Piece::new(2, to(addr), lease, 50, 3),
                Piece::new(3, to(addr), lease, round, 8),
            ];
            assert_eq!(send(&mut tx, &pieces), [SendOutcome::Sent; 4]);
            let wanted: Vec<_> = pieces.iter().flat_map(Piece::datagrams).collect();
            assert!(receive(&mut viewer, wanted.len()) == wanted, "{family} round {round}");
        }
        settle(&mut tx);
        assert_eq!(films.out(), 4);
    }
    let errors = net.viewers.counter("snmp", "Udp", "InCsumErrors");
    assert_eq!((errors, net.viewers.counter("snmp6", "", "Udp6InCsumErrors")), (0, 0));
    // Into a device that drops: nothing is copied.
    let (_viewer, addr) = rx(&net, "10.77.0.2");
    shut(&net);
    let mut tx = tx(&net);
    for round in 0..300u32 {
        let pieces = [Piece::new(0, to(addr), &leases[round as usize % 4], round % 100, 44)];
        assert_eq!(send(&mut tx, &pieces), [SendOutcome::Sent]);
    }
    settle(&mut tx);
    let counters = tx.counters();
    assert_eq!((counters.zero_copy_sends, counters.zero_copy_copied), (300, 0), "{counters:?}");
    assert_eq!((films.out(), tx.zero_copy()), (4, ZeroCopy::Ready));
}

/// A wire with a queue in front of it that lets 80 Mbit/s through.
fn slow() -> Option<Wire> {
    let net = Wire::new()?;
    net.server.must("tc qdisc add dev va root tbf rate 80mbit burst 128k limit 100m");
    Some(net)
}

#[test]
fn zero_copy_with_too_many_outstanding_sends_copies_rest() {
    let Some(net) = slow() else { return };
    let films = Films::new(2);
    let leases: Vec<Lease> = (0..2).map(|n| films.lease(n)).collect();
    let mut tx = tx(&net);
    tx.set_send_buffer(32 << 20).unwrap();
    let (mut viewer, addr) = rx(&net, "10.77.0.2");
    let pieces: Vec<Piece<'_>> =
        (0..200u32).map(|n| Piece::new(n, to(addr), &leases[n as usize % 2], n % 180, 8 + n % 3)).collect();
    let mut most_out = 0;
    for batch in pieces.chunks(50) {
        assert!(send(&mut tx, batch).iter().all(|o| *o == SendOutcome::Sent));
        most_out = most_out.max(films.out() - 2);
    }
    let counters = *tx.counters();
    assert!(counters.zero_copy_full > 0, "{counters:?}");
    assert!((100..=128).contains(&most_out), "{most_out}");
    let wanted: Vec<_> = pieces.iter().flat_map(Piece::datagrams).collect();
    assert!(receive(&mut viewer, wanted.len()) == wanted);
    settle(&mut tx);
    assert_eq!(films.out(), 2);
}

#[test]
fn leases_are_released_when_sender_is_dropped() {
    let Some(net) = slow() else { return };
    let films = Films::new(1);
    let lease = films.lease(0);
    let mut tx = tx(&net);
    tx.set_send_buffer(32 << 20).unwrap();
    let (_viewer, addr) = rx(&net, "10.77.0.2");
    for n in 0..30 {
        assert_eq!(send(&mut tx, &[Piece::new(0, to(addr), &lease, n, 40)]), [SendOutcome::Sent]);
    }
    assert!(films.out() > 1, "{:?}", tx.counters());
    drop(tx);
    assert_eq!(films.out(), 1);
}

#[test]
fn senders_on_one_port_count_their_own_completions() {
    let Some(net) = Wire::new() else { return };
    let films = Films::new(2);
    let leases: Vec<Lease> = (0..2).map(|n| films.lease(n)).collect();
    let addr = "10.77.0.1".parse().unwrap();
    let ports = net.server.inside(|| millrace_netio::bind_ports(addr, first_port(), 65_000, 2).unwrap());
    let sender = |pair| {
        let config = millrace_netio::KernelTxConfig { v4: Some(pair), ..Default::default() };
        net.server.inside(|| KernelTx::new(config).unwrap())
    };
    let mut senders: Vec<_> = ports.senders.into_iter().map(sender).collect();
    let (mut viewer, addr) = rx(&net, "10.77.0.2");
    // Too short to go without copying: it only makes the hosts know each other.
    assert_eq!(send(&mut senders[0], &[Piece::new(0, to(addr), &leases[0], 0, 1)]), [SendOutcome::Sent]);
    assert_eq!(receive(&mut viewer, 1).len(), 1);
    shut(&net);
    for round in 0..100 {
        for (tx, lease) in senders.iter_mut().zip(&leases) {
            assert_eq!(send(tx, &[Piece::new(0, to(addr), lease, round, 44)]), [SendOutcome::Sent]);
        }
    }
    for tx in &mut senders {
        settle(tx);
        assert_eq!((tx.counters().zero_copy_sends, tx.zero_copy()), (100, ZeroCopy::Ready));
    }
    assert_eq!(films.out(), 2, "each lease came back to the sender that held it");
}

#[test]
fn completions_and_icmp_errors_share_a_queue_and_not_a_meaning() {
    let Some(net) = Wire::new() else { return };
    net.viewers.must("sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv6.icmp.ratemask=200");
    for family in ["10.77.0.2", "fd77::2"] {
        let films = Films::new(2);
        let leases: Vec<Lease> = (0..2).map(|n| films.lease(n)).collect();
        let mut tx = tx(&net);
        let mut viewers = [rx(&net, family), rx(&net, family)];
        let (_closed, gone) = net.viewers.inside(|| closed_port(family));
        let mut refused = 0;
        for round in 0..60 {
            let pieces = [
                Piece::new(0, to(viewers[0].1), &leases[0], round, 20),
                Piece::new(1, to(gone), &leases[1], round, 9),
                Piece::new(2, to(viewers[1].1), &leases[0], round, 20),
            ];
            let outcomes = send(&mut tx, &pieces);
            assert_eq!((outcomes[0], outcomes[2]), (SendOutcome::Sent, SendOutcome::Sent), "round {round}");
            refused += u32::from(outcomes[1] == SendOutcome::Unreachable { errno: libc::ECONNREFUSED });
            let wanted = pieces[0].datagrams();
            for (viewer, _) in &mut viewers {
                assert!(receive(viewer, wanted.len()) == wanted, "{family} round {round}");
            }
        }
        assert!(refused >= 10, "{family}: told {refused} times: {:?}", tx.counters());
        assert_eq!(tx.poll_unreachable(), Some((gone, libc::ECONNREFUSED)));
        settle(&mut tx);
        assert_eq!((films.out(), tx.counters().icmp_hearsay), (2, 0));
        assert!(tx.counters().zero_copy_sends > 60, "{:?}", tx.counters());
    }
}

#[test]
fn sends_that_fail_before_or_behind_their_number_do_not_disturb_the_count() {
    let Some(net) = Wire::new() else { return };
    // Refused before anything is built, by the path's MTU, and by a packet filter when all is built.
    net.server.ip("route add unreachable 198.51.100.1");
    net.server.ip("route add 10.77.0.3 dev va mtu 1000");
    let filter = net.server.command("iptables -A OUTPUT -p udp -d 10.77.0.9 -j DROP");
    if !filter.status.success() {
        eprintln!("skipped in part: iptables: {}", String::from_utf8_lossy(&filter.stderr));
    }
    let films = Films::new(1);
    let lease = films.lease(0);
    let mut tx = tx(&net);
    let (mut viewer, addr) = rx(&net, "10.77.0.2");
    let (mut narrow, narrow_addr) = rx(&net, "10.77.0.3");
    let port = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 5000);
    for round in 0..20u32 {
        let pieces = [
            Piece::new(0, to(addr), &lease, round, 20),
            Piece::new(1, to(port("198.51.100.1")), &lease, round, 20),
            Piece::new(0, to(addr), &lease, round + 20, 20),
            Piece::new(2, to(port("10.77.0.9")), &lease, round, 20),
            Piece::new(3, to(narrow_addr), &lease, round, 20),
            Piece::new(0, to(addr), &lease, round + 40, 20),
        ];
        let outcomes = send(&mut tx, &pieces);
        let errno = if filter.status.success() { libc::EPERM } else { libc::EHOSTUNREACH };
        assert_eq!(outcomes[1], SendOutcome::Unreachable { errno: libc::EHOSTUNREACH });
        if filter.status.success() {
            assert_eq!(outcomes[3], SendOutcome::Unreachable { errno });
        }
        assert!([0, 2, 4, 5].iter().all(|n| outcomes[*n] == SendOutcome::Sent), "{outcomes:?}");
        let wanted: Vec<_> = [0, 2, 5].iter().flat_map(|n: &usize| pieces[*n].datagrams()).collect();
        assert!(receive(&mut viewer, wanted.len()) == wanted, "round {round}");
        assert!(receive(&mut narrow, 20) == pieces[4].datagrams(), "round {round}");
    }
    settle(&mut tx);
    assert_eq!((films.out(), tx.zero_copy()), (1, ZeroCopy::Ready), "{:?}", tx.counters());
    assert!(tx.gso());
    assert!(receive_now(&mut viewer).is_empty() && receive_now(&mut narrow).is_empty(), "doubled");
}

#[test]
fn zero_copy_without_option_memory_copies_without_loss() {
    let Some(net) = slow() else { return };
    let films = Films::new(1);
    let lease = films.lease(0);
    // Room for about ten completions; the value is the namespace's own since Linux 6.8.
    if !net.server.command("sysctl -qw net.core.optmem_max=6000").status.success() {
        eprintln!("skipped: net.core.optmem_max cannot be set in a namespace (Linux before 6.8)");
        return;
    }
    let mut tx = tx(&net);
    tx.set_send_buffer(32 << 20).unwrap();
    let (mut viewer, addr) = rx(&net, "10.77.0.2");
    let pieces: Vec<Piece<'_>> = (0..100).map(|n| Piece::new(n, to(addr), &lease, n, 8)).collect();
    let mut most_out = 0;
    for batch in pieces.chunks(25) {
        assert!(send(&mut tx, batch).iter().all(|o| *o == SendOutcome::Sent));
        most_out = most_out.max(films.out() - 1);
    }
    assert!((1..30).contains(&most_out), "{most_out}: {:?}", tx.counters());
    let wanted: Vec<_> = pieces.iter().flat_map(Piece::datagrams).collect();
    assert!(receive(&mut viewer, wanted.len()) == wanted);
    let deadline = Instant::now() + Duration::from_secs(10);
    while tx.reap() > 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!((films.out(), tx.zero_copy()), (1, ZeroCopy::Ready));
}
