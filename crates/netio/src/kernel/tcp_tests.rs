use super::*;
use millrace_core::seam::Payload;
use std::io::Read;
use std::net::{TcpListener, TcpStream};

/// Both ends of a connection; the sender's buffer is tiny.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let writer = listener.accept().unwrap().0;
    (writer, reader)
}

fn conns(count: usize) -> (Conns, TxCounters) {
    (Conns::new(count).unwrap(), TxCounters::default())
}

const ID: ConnId = ConnId(1);

#[test]
fn ids_are_checked_and_freed() {
    let (mut conns, _) = conns(2);
    let (writer, _reader) = connection();
    let spare = || connection().0.into();
    assert!(matches!(conns.add(ConnId(2), spare()), Err(NetError::ConnId { limit: 2, .. })));
    conns.add(ID, writer.into()).unwrap();
    assert!(matches!(conns.add(ID, spare()), Err(NetError::ConnInUse { conn: ID })));
    assert!(conns.remove(ConnId(0)).is_none() && conns.remove(ConnId(9)).is_none());
    assert!(conns.remove(ID).is_some() && conns.remove(ID).is_none());
    conns.add(ID, spare()).unwrap();
}

#[test]
fn something_else_than_tcp_is_refused() {
    let (mut conns, _) = conns(2);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = conns.add(ID, udp.into()).unwrap_err().to_string();
    assert!(error.starts_with("connection 1: cannot set TCP_NODELAY"), "{error}");
    assert!(error.ends_with("give a connected TCP or Unix stream socket"), "{error}");
}

#[test]
fn unknown_connections_are_closed_and_unknown() {
    let (mut conns, mut counters) = conns(2);
    let shape = DatagramShape::of(Payload::Rtcp(b"x")).unwrap();
    for id in [ConnId(0), ConnId(7)] {
        assert_eq!(
            conns.send(id, 0, &shape, 1, &mut counters),
            SendOutcome::Closed { errno: libc::ENOTCONN }
        );
        assert_eq!(conns.write_control(id, b"x", &mut counters), Err(ConnError::Unknown { conn: id }));
    }
}

#[test]
fn send_of_oversized_packet_fails_and_stream_continues() {
    let (mut conns, mut counters) = conns(2);
    let (writer, mut reader) = connection();
    conns.add(ID, writer.into()).unwrap();
    let long = vec![1; MAX_PACKET + 1];
    let shape = DatagramShape::of(Payload::Wire { bytes: &long, segment: long.len() }).unwrap();
    let refused = SendOutcome::Unreachable { errno: libc::EMSGSIZE };
    assert_eq!(conns.send(ID, 0, &shape, 1, &mut counters), refused);
    let shape = DatagramShape::of(Payload::Wire { bytes: &long, segment: MAX_PACKET }).unwrap();
    assert_eq!(conns.send(ID, 6, &shape, 1, &mut counters), SendOutcome::Sent);
    let mut got = vec![0; 4 + MAX_PACKET + 5];
    reader.read_exact(&mut got).unwrap();
    let length = (MAX_PACKET as u16).to_be_bytes();
    assert_eq!(got[..4], [b'$', 6, length[0], length[1]]);
    assert_eq!(got[4 + MAX_PACKET..], [b'$', 6, 0, 1, 1]);
}

/// Returns whether data still waits after everything that can be sent has been sent.
fn is_stuck(conns: &mut Conns, counters: &mut TxCounters) -> bool {
    conns.flush_all(counters);
    conns.is_waiting(ID)
}

/// Fills the connection until control bytes have to wait; how many were given.
fn stuff(conns: &mut Conns, counters: &mut TxCounters, chunk: &[u8]) -> usize {
    let mut given = 0;
    while !conns.is_waiting(ID) {
        conns.write_control(ID, chunk, counters).unwrap();
        given += chunk.len();
    }
    given
}

#[test]
fn control_bytes_wait_up_to_the_limit_and_then_nothing_is_taken() {
    let (mut conns, mut counters) = conns(2);
    let (writer, mut reader) = connection();
    conns.add(ID, writer.into()).unwrap();
    let chunk = vec![b'a'; 10_000];
    let mut given = stuff(&mut conns, &mut counters, &chunk);
    let error = loop {
        match conns.write_control(ID, &chunk, &mut counters) {
            Ok(()) => given += chunk.len(),
            Err(error) => break error,
        }
    };
    let ConnError::TooMuchPending { conn: ID, pending, asked: 10_000 } = error else { panic!("{error:?}") };
    assert!(pending <= MAX_CONN_PENDING_BYTES && pending + 10_000 > MAX_CONN_PENDING_BYTES, "{pending}");
    assert!(error.to_string().contains("the viewer does not read"), "{error}");
    // Less still fits, and the order is kept.
    conns.write_control(ID, b"end", &mut counters).unwrap();
    assert!(is_stuck(&mut conns, &mut counters));
    let expected = given + 3;
    let got = std::thread::spawn(move || {
        let mut got = vec![0; expected];
        reader.read_exact(&mut got).unwrap();
        got
    });
    while is_stuck(&mut conns, &mut counters) {
        std::thread::yield_now();
    }
    let got = got.join().unwrap();
    assert!(got[..given].iter().all(|b| *b == b'a') && got.ends_with(b"end"));
    // A message longer than the limit can never be promised to go out whole.
    let long = vec![0; MAX_CONN_PENDING_BYTES + 1];
    assert!(matches!(
        conns.write_control(ID, &long, &mut counters),
        Err(ConnError::TooMuchPending { pending: 0, .. })
    ));
}

#[test]
fn blocked_entry_stops_later_entries_of_same_batch() {
    let (mut conns, mut counters) = conns(2);
    let (writer, mut reader) = connection();
    conns.add(ID, writer.into()).unwrap();
    let bytes = vec![7; 64 * 1000];
    let burst = DatagramShape::of(Payload::Wire { bytes: &bytes, segment: 1000 }).unwrap();
    while conns.send(ID, 0, &burst, 1, &mut counters) == SendOutcome::Sent {}
    // The viewer reads everything between two entries of the batch: there is room, but not for the second.
    reader.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 1 << 20];
    while reader.read(&mut buffer).is_ok() || is_stuck(&mut conns, &mut counters) {}
    let report = DatagramShape::of(Payload::Rtcp(b"report")).unwrap();
    assert_eq!(conns.send(ID, 1, &report, 1, &mut counters), SendOutcome::Blocked { taken: 0 });
    assert_eq!(conns.send(ID, 1, &report, 2, &mut counters), SendOutcome::Sent);
}

#[test]
fn closed_connection_is_reported_once_and_id_is_reusable() {
    let (mut conns, mut counters) = conns(2);
    let (writer, reader) = connection();
    conns.add(ID, writer.into()).unwrap();
    stuff(&mut conns, &mut counters, &[0; 10_000]);
    // Unread bytes at the other end make this a reset (RFC 2525 section 2.17).
    drop(reader);
    let errno = loop {
        match conns.write_control(ID, b"x", &mut counters) {
            Ok(()) => std::thread::yield_now(),
            Err(ConnError::Gone { conn: ID, errno }) => break errno,
            Err(other) => panic!("{other}"),
        }
    };
    assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
    let shape = DatagramShape::of(Payload::Rtcp(b"x")).unwrap();
    for _ in 0..3 {
        assert_eq!(conns.send(ID, 0, &shape, 1, &mut counters), SendOutcome::Closed { errno });
        assert_eq!(conns.write_control(ID, b"x", &mut counters), Err(ConnError::Gone { conn: ID, errno }));
    }
    assert!(!is_stuck(&mut conns, &mut counters), "nothing waits for a dead connection");
    assert_eq!((conns.poll_gone(), conns.poll_gone()), (Some((ID, errno)), None));
    assert!(conns.remove(ID).is_some());
    let (writer, mut reader) = connection();
    conns.add(ID, writer.into()).unwrap();
    assert_eq!(conns.send(ID, 0, &shape, 1, &mut counters), SendOutcome::Sent);
    assert_eq!(conns.poll_gone(), None);
    let mut got = [0; 5];
    reader.read_exact(&mut got).unwrap();
    assert_eq!(got, [b'$', 0, 0, 1, b'x']);
}

#[test]
fn removed_connection_leaves_no_pending_state() {
    let (mut conns, mut counters) = conns(2);
    // More often than the lists have room for, if anything were left in them.
    for _ in 0..10 {
        let (writer, reader) = connection();
        conns.add(ID, writer.into()).unwrap();
        stuff(&mut conns, &mut counters, &[0; 10_000]);
        drop(reader);
        while conns.write_control(ID, b"x", &mut counters).is_ok() {
            std::thread::yield_now();
        }
        assert!(conns.remove(ID).is_some());
        assert!(!conns.flush_all(&mut counters));
        assert!(conns.writable_fd().is_none());
        assert_eq!(conns.poll_writable(), None);
        assert_eq!(conns.poll_gone(), None, "nobody is told of a connection that was removed");
        // The connection is returned, and removed before that is reported.
        conns.add(ID, connection().0.into()).unwrap();
        assert!(conns.give_back(ID, &mut counters) && conns.remove(ID).is_some());
        conns.add(ID, connection().0.into()).unwrap();
        assert!(conns.poll_returned().is_none() && conns.remove(ID).is_some(), "its successor stays");
    }
    assert!(conns.gone.capacity() < 8 && conns.retried.capacity() < 8 && conns.writable.capacity() < 8);
}
