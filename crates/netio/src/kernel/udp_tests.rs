use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Two neighbouring even ports, free a moment ago: taken by the pair that is returned.
fn some_pair(addr: IpAddr) -> (UdpPair, u16) {
    let pair = bind_pair(addr, 20_000 + (std::process::id() % 10_000) as u16, 65_000).unwrap();
    let port = pair.ports().unwrap().0;
    (pair, port)
}

#[test]
fn bind_pair_takes_first_free_even_port() {
    for addr in [V4, V6] {
        let (pair, port) = some_pair(addr);
        assert!(port.is_multiple_of(2));
        assert_eq!(pair.ports().unwrap(), (port, port + 1));
        assert_eq!(pair.rtp.local_addr().unwrap().ip(), addr);
        let (second, other) = some_pair(addr);
        assert!(other > port, "the first is taken");
        drop(second);
        // An odd start is moved to the even port above it.
        let error = bind_pair(addr, port - 1, port).unwrap_err();
        assert!(matches!(error, NetError::PortRange { .. }) || matches!(error, NetError::NoFreePair { .. }));
    }
}

#[test]
fn bind_pair_allows_same_ports_in_both_families() {
    let (v4, port) = some_pair(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let v6 = bind_pair(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port, port + 1);
    assert_eq!(v6.unwrap().ports().unwrap(), v4.ports().unwrap());
}

#[test]
fn sockets_do_not_wait() {
    let (pair, _) = some_pair(V4);
    let mut buffer = [0; 8];
    assert_eq!(pair.rtcp.recv_from(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    pair.rtp.send_to(b"x", pair.rtcp.local_addr().unwrap()).unwrap();
    assert_eq!(pair.rtcp.recv_from(&mut buffer).unwrap(), (1, pair.rtp.local_addr().unwrap()));
}

#[test]
fn bind_pair_with_invalid_range_returns_port_range_error() {
    for (first, last) in [(0, 0), (0, 2), (7001, 7002), (7002, 7002), (65_535, 65_535), (9, 3)] {
        let error = bind_pair(V4, first, last).unwrap_err();
        assert!(matches!(error, NetError::PortRange { .. }), "{first}-{last}: {error}");
        assert!(error.to_string().contains(&format!("UDP ports {first}-{last}")), "{error}");
    }
}

#[test]
fn bind_pair_accepts_highest_port_pair() {
    match bind_pair(V4, 65_534, 65_535) {
        Ok(pair) => assert_eq!(pair.ports().unwrap(), (65_534, 65_535)),
        Err(error) => assert!(matches!(error, NetError::NoFreePair { tried: 1, .. }), "{error}"),
    }
}

#[test]
fn bind_pair_in_full_range_reports_no_free_pair() {
    let (_pair, port) = some_pair(V4);
    // Only the second port is taken: the pair is not free either.
    let Ok(lone) = UdpSocket::bind((V4, port + 3)) else { return some_other_program_is_there() };
    let error = bind_pair(V4, port, port + 3).unwrap_err();
    drop(lone);
    let text = error.to_string();
    assert!(matches!(error, NetError::NoFreePair { tried: 2, .. }), "{text}");
    assert!(
        text.contains(&format!("UDP ports {port}-{} of 127.0.0.1: none of the 2 pairs", port + 3)),
        "{text}"
    );
    assert!(text.contains("ss -ulpn"), "{text}");
}

fn some_other_program_is_there() {
    eprintln!("skipped: another program took the neighbouring port");
}

#[test]
fn bind_pair_with_foreign_address_returns_bind_error() {
    let error = bind_pair("192.0.2.1".parse().unwrap(), 50_000, 60_000).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, NetError::Bind { .. }), "{text}");
    assert!(text.contains("192.0.2.1:50000") && text.contains("address of this machine"), "{text}");
}

/// One address and all, of both families.
const PLACES: [IpAddr; 4] = [V4, IpAddr::V4(Ipv4Addr::UNSPECIFIED), V6, IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

/// Ports for `senders` senders, and the first of them. No other test shares any in this range.
fn some_ports(addr: IpAddr, senders: usize) -> (UdpPorts, u16) {
    let ports = bind_ports(addr, 40_000 + (std::process::id() % 5_000) as u16, 65_000, senders).unwrap();
    let port = ports.receiver.ports().unwrap().0;
    (ports, port)
}

/// This host, and all addresses, in the family of `addr`.
fn relatives(addr: IpAddr) -> [IpAddr; 2] {
    if addr.is_ipv4() { [PLACES[0], PLACES[1]] } else { [PLACES[2], PLACES[3]] }
}

/// Sends from 32 ports of this host to `port`; how many came to `receiver` within a time that is more than enough.
fn come_to(receiver: &UdpSocket, addr: IpAddr, port: u16) -> usize {
    let [here, _] = relatives(addr);
    for _ in 0..32 {
        UdpSocket::bind((here, 0)).unwrap().send_to(b"x", (here, port)).unwrap();
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    let mut came = 0;
    while came < 32 && std::time::Instant::now() < end {
        match receiver.recv_from(&mut [0; 8]) {
            Ok(_) => came += 1,
            Err(_) => std::thread::yield_now(),
        }
    }
    came
}

#[test]
fn incoming_datagrams_reach_receiver_socket_of_group() {
    for addr in PLACES {
        let (mut ports, port) = some_ports(addr, 3);
        loop {
            let UdpPair { rtp, rtcp } = &ports.receiver;
            for (socket, port) in [(rtp, port), (rtcp, port + 1)] {
                // As it is, and as if the kernel asked a sender first: then the program of the group decides.
                for shares in [false, true] {
                    sockopt::set_socket_reuseport(socket, shares).unwrap();
                    assert_eq!(come_to(socket, addr, port), 32, "{addr} {shares} {}", ports.senders.len());
                }
                sockopt::set_socket_reuseport(socket, false).unwrap();
            }
            // When one socket closes, the kernel renumbers the others.
            if ports.senders.is_empty() {
                break;
            }
            ports.senders.remove(0);
        }
    }
}

#[test]
fn bound_ports_cannot_be_shared_by_other_sockets() {
    for addr in PLACES {
        let (mut ports, port) = some_ports(addr, 2);
        let is_taken = |error: io::Error| error.kind() == io::ErrorKind::AddrInUse;
        for port in [port, port + 1].repeat(2) {
            for usage in [Use::Alone, Use::Shared] {
                for place in relatives(addr) {
                    let bound = bind_for(SocketAddr::new(place, port), usage);
                    assert!(bound.is_err_and(|(_, error)| is_taken(error)), "{addr} {place}:{port}");
                }
            }
            // The same without one of them.
            ports.senders.pop();
        }
        let error = bind_ports(addr, port, port + 1, 2).unwrap_err();
        assert!(matches!(error, NetError::NoFreePair { .. }), "{error}");
    }
}

#[test]
fn ports_that_somebody_is_ready_to_share_are_not_free() {
    for addr in PLACES {
        let share = |port| bind_for(SocketAddr::new(addr, port), Use::Shared).ok();
        let first = 30_000 + (std::process::id() % 5_000) as u16 * 2;
        let (port, other) = (first..).find_map(|port| Some((port, share(port)?))).unwrap();
        let port = port - port % 2;
        assert!(bind_ports(addr, port, port + 1, 1).is_err(), "{addr}: {other:?}");
    }
}
