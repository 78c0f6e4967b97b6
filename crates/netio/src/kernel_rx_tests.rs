use std::time::Duration;

use super::*;

fn receiver(bind: &str, config: UdpRxConfig) -> (KernelRx, u16) {
    let socket = UdpSocket::bind(bind).unwrap();
    let port = socket.local_addr().unwrap().port();
    (KernelRx::new(socket, config).unwrap(), port)
}

/// Receives until `count` packets were shown; returns them as mapped by `of`.
fn receive<T>(rx: &mut KernelRx, count: usize, mut of: impl FnMut(&ReceivedDatagram<'_>) -> T) -> Vec<T> {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    let mut got = Vec::new();
    while got.len() < count && std::time::Instant::now() < end {
        let before = got.len();
        rx.receive(Instant(1 << 60), &mut |received| got.push(of(received))).unwrap();
        assert!(got.len() - before <= RX_BATCH_PACKETS);
    }
    got
}

#[test]
fn dual_stack_socket_reports_destination_of_each_datagram() {
    let (mut rx, port) = receiver("[::]:0", UdpRxConfig::default());
    let [v4, v6] = ["127.0.0.1:0", "[::1]:0"].map(|at| UdpSocket::bind(at).unwrap());
    let targets = [SocketAddr::from(([127, 0, 0, 9], port)), SocketAddr::new("::1".parse().unwrap(), port)];
    v4.send_to(b"four", targets[0]).unwrap();
    v6.send_to(b"six", targets[1]).unwrap();
    let got = receive(&mut rx, 2, |r| (r.bytes.to_vec(), r.source, r.destination, r.train));
    let from = [&v4, &v6].map(|socket| socket.local_addr().unwrap());
    assert_eq!(
        got,
        [(b"four".to_vec(), from[0], targets[0], None), (b"six".to_vec(), from[1], targets[1], None)]
    );
    let expected = RxCounters { packets: 2, bytes: 7, ..*rx.counters() };
    assert_eq!(*rx.counters(), expected);
}

#[test]
fn bound_address_is_used_as_destination() {
    let (mut rx, port) = receiver("127.0.0.1:0", UdpRxConfig::default());
    let target = SocketAddr::from(([127, 0, 0, 1], port));
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"", target).unwrap();
    assert_eq!(receive(&mut rx, 1, |r| (r.bytes.len(), r.destination)), [(0, target)]);
}

#[test]
fn batch_without_room_leaves_rest_of_train_for_next() {
    let config = UdpRxConfig { gro: true, batch: 4, ..UdpRxConfig::default() };
    let (mut rx, port) = receiver("127.0.0.1:0", config);
    let target = SocketAddr::from(([127, 0, 0, 1], port));
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut arena = crate::sys::mmsg::SendArena::new(1, 1);
    // Trains of 50: the end of a batch is inside the second.
    for train in 0..3u8 {
        let bytes: Vec<u8> = (0..50).flat_map(|n| [train, n]).collect();
        let mut plan = arena.plan();
        plan.to(target, None);
        plan.push(Some(2), [&bytes[..]]);
        assert_eq!(plan.send(sender.as_fd(), 0..1), Ok(1));
    }
    let got = receive(&mut rx, 150, |r| (r.bytes.to_vec(), r.train));
    let expected: Vec<_> =
        (0..150u16).map(|n| (vec![(n / 50) as u8, (n % 50) as u8], Some(n % 50))).collect();
    assert_eq!(got, expected);
    assert_eq!((rx.counters().coalesced, rx.counters().packets, rx.counters().bytes), (150, 150, 300));
    assert!(rx.counters().batches >= 3);
    assert_eq!(rx.receive(Instant(1 << 60), &mut |_| panic!("nothing was sent")).unwrap(), 0);
}

#[test]
fn batch_of_truncated_datagrams_only_still_counts_as_work() {
    let config = UdpRxConfig { datagram_bytes: 10, batch: 2, ..UdpRxConfig::default() };
    let (mut rx, port) = receiver("127.0.0.1:0", config);
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [&[1; 11][..], &[2; 12], &[3; 10]] {
        sender.send_to(bytes, ("127.0.0.1", port)).unwrap();
    }
    let mut got = Vec::new();
    let mut turn = || rx.receive(Instant(1 << 60), &mut |r| got.push(r.bytes.to_vec())).unwrap();
    assert_eq!((turn(), turn(), turn()), (1, 1, 0));
    assert_eq!((got, rx.counters().truncated), (vec![vec![3; 10]], 2));
}

#[test]
fn arrivals_are_the_kernels_in_order_and_never_in_the_future() {
    let (mut rx, port) = receiver("127.0.0.1:0", UdpRxConfig::default());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut now = Instant(1 << 50);
    let mut got = Vec::new();
    // The kernel begins to stamp a moment after a socket has asked for it; until then a stamp is the time of the call (sock_recv_timestamp).
    for _ in 0..50 {
        got.clear();
        now = now.plus_ns(1_000_000_000);
        sender.send_to(b"first", ("127.0.0.1", port)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        sender.send_to(b"second", ("127.0.0.1", port)).unwrap();
        rx.receive(now, &mut |r| got.push(r.arrival)).unwrap();
        if got[1].ns_since(got[0]) >= 10_000_000 {
            break;
        }
    }
    // The stamps are those of the kernel, not of the call: the sleep is between them.
    assert!(got[1].ns_since(got[0]) >= 10_000_000 && got[1] <= now, "{got:?}");
    // Of a clock that is behind, the later arrival holds.
    sender.send_to(b"third", ("127.0.0.1", port)).unwrap();
    rx.receive(Instant(1 << 49), &mut |r| got.push(r.arrival)).unwrap();
    assert_eq!(got[2], got[1]);
}

#[test]
fn receive_on_unusable_socket_fails_each_time() {
    // A socket that waits for connections has no datagrams, now or later.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::from(std::os::fd::OwnedFd::from(listener));
    let mut rx = KernelRx::new(socket, UdpRxConfig::default()).unwrap();
    for _ in 0..2 {
        let gone = rx.receive(Instant(0), &mut |_| panic!("nothing can come")).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
    }
}
