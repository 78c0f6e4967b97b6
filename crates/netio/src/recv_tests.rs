use super::*;
use std::time::SystemTime;

fn receiver(config: UdpRxConfig) -> (UdpRx, SocketAddr, UdpSocket) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = socket.local_addr().unwrap();
    (UdpRx::new(socket, config).unwrap(), addr, UdpSocket::bind("127.0.0.1:0").unwrap())
}

fn now_unix_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

const SOON: Option<Duration> = Some(Duration::from_secs(5));

#[test]
fn recv_batch_has_bytes_senders_and_timestamps_in_order() {
    let (mut rx, addr, sender) = receiver(UdpRxConfig { batch: 8, ..UdpRxConfig::default() });
    let before = now_unix_ns();
    for n in 0..10u8 {
        sender.send_to(&vec![n; usize::from(n)], addr).unwrap();
    }
    let first: Vec<_> =
        rx.recv(SOON).unwrap().map(|d| (d.bytes.to_vec(), d.from, d.arrival, d.segment)).collect();
    let after = now_unix_ns();
    assert_eq!(first.len(), 8, "as many as a batch holds");
    for (n, (bytes, from, arrival, segment)) in first.iter().enumerate() {
        assert_eq!((bytes, *from, *segment), (&vec![n as u8; n], sender.local_addr().unwrap(), 0));
        // The kernel's clock is the same; it may be set while we run, but not by an hour.
        let arrival = arrival.unwrap();
        assert!(arrival >= before.saturating_sub(3_600_000_000_000) && arrival <= after + 3_600_000_000_000);
    }
    assert!(first.windows(2).all(|w| w[0].2 <= w[1].2));
    let second: Vec<_> = rx.recv(SOON).unwrap().map(|d| d.bytes.len()).collect();
    assert_eq!(second, [8, 9]);
    assert_eq!(rx.recv(Some(Duration::ZERO)).unwrap().count(), 0);
}

#[test]
fn recv_timeout_is_respected() {
    let (mut rx, addr, sender) = receiver(UdpRxConfig::default());
    let start = Instant::now();
    assert_eq!(rx.recv(Some(Duration::from_millis(30))).unwrap().count(), 0);
    assert!(start.elapsed() >= Duration::from_millis(30));
    // Without a limit it waits until something comes.
    let waiting = std::thread::spawn(move || rx.recv(None).unwrap().map(|d| d.bytes.to_vec()).next());
    sender.send_to(b"late", addr).unwrap();
    assert_eq!(waiting.join().unwrap(), Some(b"late".to_vec()));
}

#[test]
fn too_long_datagrams_are_counted_and_passed_over() {
    let (mut rx, addr, sender) = receiver(UdpRxConfig { datagram_bytes: 100, ..UdpRxConfig::default() });
    for length in [100, 101, 99] {
        sender.send_to(&vec![1; length], addr).unwrap();
    }
    let lengths: Vec<_> = rx.recv(SOON).unwrap().map(|d| d.bytes.len()).collect();
    assert_eq!((lengths, rx.truncated()), (vec![100, 99], 1));
}

#[test]
fn drops_of_a_full_buffer_are_counted() {
    let config = UdpRxConfig { batch: 64, receive_buffer: Some(8192), ..UdpRxConfig::default() };
    let (mut rx, addr, sender) = receiver(config);
    assert!(rx.receive_buffer().unwrap() < 100_000);
    let mut received = 0;
    for _ in 0..200 {
        sender.send_to(&[0; 1000], addr).unwrap();
    }
    received += drain(&mut rx);
    // The count comes with the next datagram that finds room.
    sender.send_to(&[0; 1000], addr).unwrap();
    received += drain(&mut rx);
    assert!(rx.dropped() > 0);
    assert_eq!(received as u64 + rx.dropped(), 201);
}

fn drain(rx: &mut UdpRx) -> usize {
    let mut count = 0;
    loop {
        match rx.recv(Some(Duration::ZERO)).unwrap().count() {
            0 => return count,
            n => count += n,
        }
    }
}

#[test]
fn drop_count_continues_past_32_bits() {
    let mut count = DropCount::default();
    count.update(u32::MAX - 1);
    count.update(3);
    assert_eq!(count.total, u64::from(u32::MAX) + 4);
}

#[test]
fn trains_are_cut_up_again() {
    let (mut rx, addr, sender) = receiver(UdpRxConfig { gro: true, ..UdpRxConfig::default() });
    assert!(rx.gro());
    let train: Vec<u8> = (0..250).collect();
    let mut arena = crate::sys::mmsg::SendArena::new(1, 1);
    let mut plan = arena.plan();
    plan.to(addr, None);
    plan.push(Some(100), [&train[..]]);
    assert_eq!(plan.send(sender.as_fd(), 0..1), Ok(1));
    sender.send_to(b"", addr).unwrap();
    sender.send_to(b"alone", addr).unwrap();
    let mut got = Vec::new();
    while got.len() < 5 {
        let before = got.len();
        got.extend(rx.recv(SOON).unwrap().map(|d| (d.bytes.to_vec(), d.segment)));
        assert!(got.len() > before, "{got:?}");
    }
    let wanted =
        [(&train[..100], 0), (&train[100..200], 1), (&train[200..], 2), (&b""[..], 0), (&b"alone"[..], 0)];
    assert_eq!(got, wanted.map(|(bytes, place)| (bytes.to_vec(), place)));
}

#[test]
fn recv_ignores_icmp_error() {
    let (mut rx, addr, sender) = receiver(UdpRxConfig::default());
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    set_int(rx.socket().as_fd(), libc::SOL_IP, libc::IP_RECVERR, 1).unwrap();
    rx.socket().send_to(b"anybody there?", nobody).unwrap();
    // On loopback the refusal is there before send_to returns.
    sender.send_to(b"yes", addr).unwrap();
    let got: Vec<_> = rx.recv(SOON).unwrap().map(|d| d.bytes.to_vec()).collect();
    assert_eq!(got, [b"yes".to_vec()]);
}
