//! Reception by the kernel's sockets: datagrams of a peer in another namespace, each once, in order, with the right addresses;
//! more than there is room for; an interface that is taken away. Needs root; skipped otherwise.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant as StdInstant;

use crate::support::*;
use millrace_core::limits::RX_BATCH_PACKETS;
use millrace_core::time::Instant;
use millrace_netio::recv::UdpRxConfig;
use millrace_netio::{KernelRx, ReceivedDatagram};

/// Where the socket receives.
const LOCAL: [&str; 3] = ["10.77.0.2:5004", "10.77.0.3:5004", "[fd77::2]:5004"];

fn local(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// One socket for both families.
fn receiver(net: &Wire, receive_buffer: usize) -> KernelRx {
    let socket = net.viewers.inside(|| UdpSocket::bind("[::]:5004")).expect("a socket");
    let config =
        UdpRxConfig { gro: true, batch: 8, receive_buffer: Some(receive_buffer), ..Default::default() };
    KernelRx::new(socket, config).expect("options")
}

/// Senders in the other namespace, each with one destination: two of them to the same.
fn flows(net: &Wire) -> Vec<(UdpSocket, SocketAddr)> {
    let pairs = [
        ("10.77.0.1:0", LOCAL[0]),
        ("10.77.0.1:0", LOCAL[0]),
        ("10.77.0.1:0", LOCAL[1]),
        ("[fd77::1]:0", LOCAL[2]),
    ];
    pairs.map(|(from, to)| (net.server.inside(|| UdpSocket::bind(from)).expect("a socket"), local(to))).into()
}

/// The clock of a loop.
fn now(begun: StdInstant) -> Instant {
    Instant(1 << 40).plus_ns(begun.elapsed().as_nanos() as u64)
}

#[test]
fn each_datagram_is_delivered_once_in_order() {
    let Some(net) = Wire::new() else { return };
    let mut rx = receiver(&net, 8 << 20);
    let flows = flows(&net);
    let begun = StdInstant::now();
    let mut got: HashMap<SocketAddr, Vec<Vec<u8>>> = HashMap::new();
    let mut last = Instant(0);
    // Empty ones, odd ones, the longest that fits; more in all than any ring holds.
    let sizes = [0, 1, 7, 333, 1000, 1451, 1452, 512];
    let payload = |flow: usize, round: u32| {
        pattern(flow as u32 * 1000 + round, sizes[(flow + round as usize) % sizes.len()])
    };
    let (rounds, mut sent_bytes) = (150u32, 0);
    for round in 0..rounds {
        let round_begun = StdInstant::now();
        for (number, (socket, to)) in flows.iter().enumerate() {
            let bytes = payload(number, round);
            sent_bytes += bytes.len() as u64;
            socket.send_to(&bytes, to).expect("send");
        }
        let wanted = flows.len() * (round as usize + 1);
        while got.values().map(Vec::len).sum::<usize>() < wanted {
            assert!(round_begun.elapsed() < TIMEOUT, "datagrams are missing in round {round}");
            let now = now(begun);
            let mut shown = 0;
            let mut sink = |r: &ReceivedDatagram<'_>| {
                let (_, to) = flows
                    .iter()
                    .find(|(socket, _)| socket.local_addr().expect("bound") == r.source)
                    .expect("a source that sent something");
                assert_eq!(r.destination, *to);
                assert!(last <= r.arrival && r.arrival <= now, "{last:?} {r:?}");
                last = r.arrival;
                got.entry(r.source).or_default().push(r.bytes.to_vec());
                shown += 1;
            };
            let taken = rx.receive(now, &mut sink).expect("a socket");
            assert!(shown <= taken && taken <= RX_BATCH_PACKETS, "{shown} of {taken}");
        }
    }
    for (number, (socket, _)) in flows.iter().enumerate() {
        let expected: Vec<_> = (0..rounds).map(|round| payload(number, round)).collect();
        assert!(got[&socket.local_addr().expect("bound")] == expected, "flow {number}");
    }
    let counters = *rx.counters();
    assert_eq!((counters.packets, counters.bytes), (u64::from(rounds) * 4, sent_bytes));
    assert_eq!((counters.dropped, counters.truncated), (0, 0));
}

#[test]
fn overflow_is_counted_and_rest_is_undamaged() {
    let Some(net) = Wire::new() else { return };
    let mut rx = receiver(&net, 8192);
    let (socket, to) = flows(&net).remove(0);
    // Less than a veth interface itself holds.
    let mut sent = 0u32;
    let send = |sent: &mut u32| {
        socket.send_to(&pattern(*sent, 1000), to).expect("send");
        *sent += 1;
    };
    while sent < 200 {
        send(&mut sent);
    }
    let begun = StdInstant::now();
    let (mut got, mut time) = (Vec::new(), Instant(1 << 40));
    loop {
        let taken = rx.receive(time, &mut |r| got.push(r.bytes.to_vec())).expect("a socket");
        if got.len() as u64 + rx.counters().dropped == u64::from(sent) {
            break;
        }
        assert!(begun.elapsed() < TIMEOUT, "{:?} of {sent}", rx.counters());
        time = time.plus_ns(1_000_000);
        if taken == 0 && sent < 1000 {
            // The kernel reports drops with the next datagram that finds room.
            send(&mut sent);
        }
    }
    assert!(rx.counters().dropped > 0, "{:?}", rx.counters());
    // Those that came are whole, and in the order in which they were sent.
    let mut expected = (0..sent).map(|number| pattern(number, 1000));
    for bytes in &got {
        assert!(expected.any(|other| other == *bytes), "a datagram is damaged or out of order");
    }
    assert!(!got.is_empty());
    assert_eq!(rx.counters().packets, got.len() as u64);
}

#[test]
fn removed_interface_is_no_failure_of_the_socket() {
    let Some(net) = Wire::new() else { return };
    let mut rx = receiver(&net, 8 << 20);
    let (socket, to) = flows(&net).remove(0);
    socket.send_to(b"before", to).expect("send");
    let begun = StdInstant::now();
    let time = Instant(1 << 40);
    let mut got = Vec::new();
    while got.is_empty() {
        assert!(begun.elapsed() < TIMEOUT, "nothing came");
        rx.receive(time, &mut |r| got.push(r.bytes.to_vec())).expect("a socket");
    }
    assert_eq!(got, [b"before"]);
    net.server.ip("link del va");
    // A socket outlives interfaces; others may bring something yet.
    for _ in 0..2 {
        assert_eq!(rx.receive(time, &mut |r| panic!("{r:?}")).expect("a socket"), 0);
    }
}
