//! RTP interleaved in TCP through real connections: the byte stream always parses into whole frames.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::support::connections::{Dice, add, connection, wait_writable};
use crate::support::*;
use millrace_core::ids::ConnId;
use millrace_core::limits::{
    MAX_BATCH_BURSTS, MAX_CONN_PENDING_BYTES, MAX_TCP_WRITE_BYTES, RTP_HEADER_BYTES,
};
use millrace_core::seam::{Payload, SendOutcome, Transmit};
use millrace_netio::{ConnError, GsoMode, KernelTx};

/// The content of the stream: frames and the bytes between them.
#[derive(Debug, PartialEq)]
enum Piece {
    Frame { channel: u8, packet: Vec<u8> },
    Control(Vec<u8>),
}

/// Control messages here are lines; a frame begins with '$' (RFC 2326 section 10.12).
fn parse(mut stream: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while let Some(first) = stream.first() {
        if *first == b'$' {
            let length = usize::from(u16::from_be_bytes([stream[2], stream[3]]));
            pieces.push(Piece::Frame { channel: stream[1], packet: stream[4..4 + length].to_vec() });
            stream = &stream[4 + length..];
        } else {
            let end = stream.iter().position(|b| *b == b'\n').expect("a whole line") + 1;
            pieces.push(Piece::Control(stream[..end].to_vec()));
            stream = &stream[end..];
        }
    }
    pieces
}

#[test]
fn frames_are_as_rfc_2326_says() {
    let mut tx = sender(GsoMode::Auto, 4);
    let (writer, mut reader) = connection(None, None);
    add(&mut tx, 3, &writer);
    let bytes = pattern(1, 1328 * 92 - 500);
    let headers = pattern(2, RTP_HEADER_BYTES * 92);
    let report = pattern(3, 64);
    let batch = [
        wire(0, tcp(3), &bytes[..13 * 1328 - 7], 1328),
        rtcp(0, tcp(3), &report),
        patched(0, tcp(3), &headers, &bytes[..20 * 1328], 1328),
    ];
    assert_eq!(send(&mut tx, &batch), [SendOutcome::Sent; 3]);
    tx.write_control(ConnId(3), b"RTSP/1.0 200 OK\n").unwrap();
    let mut wanted: Vec<_> =
        datagrams(batch[0].payload).into_iter().map(|packet| Piece::Frame { channel: 0, packet }).collect();
    wanted.push(Piece::Frame { channel: 1, packet: report.clone() });
    wanted.extend(datagrams(batch[2].payload).into_iter().map(|packet| Piece::Frame { channel: 0, packet }));
    wanted.push(Piece::Control(b"RTSP/1.0 200 OK\n".to_vec()));
    drop(tx);
    drop(writer);
    let mut stream = Vec::new();
    reader.read_to_end(&mut stream).unwrap();
    assert!(parse(&stream) == wanted);
}

#[test]
fn slow_reader_receives_whole_frames_with_control_between() {
    for seed in 0..6 {
        let mut tx = sender(GsoMode::Auto, 1);
        // The smallest buffers that Linux gives: every call takes a piece of a frame.
        let (writer, mut reader) = connection(Some(1), Some(1));
        let fd = add(&mut tx, 0, &writer);
        let thread = std::thread::spawn(move || {
            let mut dice = Dice(seed ^ 0x55);
            let mut stream = Vec::new();
            let mut chunk = vec![0; 5000];
            loop {
                let size = 1 + dice.below(chunk.len());
                match reader.read(&mut chunk[..size]).unwrap() {
                    0 => return stream,
                    count => stream.extend_from_slice(&chunk[..count]),
                }
            }
        });
        let wanted = write_mixture(&mut tx, &fd, seed);
        let counters = *tx.counters();
        assert!(counters.split_frames > 50, "seed {seed}: {counters:?}");
        drop((tx, fd, writer));
        let got = parse(&thread.join().unwrap());
        assert_eq!(got.len(), wanted.len(), "seed {seed}");
        assert!(got == wanted, "seed {seed}");
    }
}

/// Bursts, patched bursts, reports and control lines in a random order; each waits for the reader where it is blocked.
fn write_mixture(tx: &mut KernelTx, fd: &OwnedFd, seed: u32) -> Vec<Piece> {
    let mut dice = Dice(seed);
    let mut wanted = Vec::new();
    for round in 0..150 {
        let count = 1 + dice.below(12);
        let bytes = pattern(round, 1328 * count - dice.below(1300));
        let headers = pattern(round + 500, RTP_HEADER_BYTES * count);
        let entry = match dice.below(4) {
            0 => wire(0, tcp(0), &bytes, 1328),
            1 => patched(0, tcp(0), &headers, &bytes, 1328),
            2 => rtcp(0, tcp(0), &bytes[..28]),
            _ => {
                let line = format!("RTSP/1.0 200 OK reply {round} {}\n", "x".repeat(dice.below(3000)));
                while let Err(error) = tx.write_control(ConnId(0), line.as_bytes()) {
                    assert!(matches!(error, ConnError::TooMuchPending { .. }), "{error}");
                    wait_writable(fd);
                }
                wanted.push(Piece::Control(line.into_bytes()));
                continue;
            }
        };
        let channel = u8::from(matches!(entry.payload, Payload::Rtcp(_)));
        wanted.extend(datagrams(entry.payload).into_iter().map(|packet| Piece::Frame { channel, packet }));
        push(tx, fd, entry);
    }
    while tx.flush_conns() || tx.full_conns_fd().is_some() {
        wait_writable(fd);
    }
    wanted
}

/// Sends one entry whole.
fn push(tx: &mut KernelTx, fd: &OwnedFd, mut entry: Transmit<'_>) {
    loop {
        match send(tx, &[entry])[0] {
            SendOutcome::Sent => return,
            SendOutcome::Blocked { taken } => {
                let taken = usize::from(taken);
                entry.payload = match entry.payload {
                    Payload::Wire { bytes, segment } => {
                        Payload::Wire { bytes: &bytes[taken * segment..], segment }
                    }
                    Payload::Patched { headers, bytes, segment } => Payload::Patched {
                        headers: &headers[taken * RTP_HEADER_BYTES..],
                        bytes: &bytes[taken * segment..],
                        segment,
                    },
                    Payload::Rtcp(bytes) => {
                        assert_eq!(taken, 0, "one packet is taken or not");
                        Payload::Rtcp(bytes)
                    }
                    Payload::Bytes(_) => unreachable!("frames only"),
                };
                wait_writable(fd);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn control_waits_behind_the_frame_that_is_being_sent() {
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, mut reader) = connection(Some(1), Some(1));
    let fd = add(&mut tx, 0, &writer);
    let bytes = pattern(1, 1328 * 64);
    // Until nothing moves any more, however often it is tried; then the rest of a torn frame waits.
    let (mut frames, mut tries) = (0, 0);
    while tries < 100 {
        match send(&mut tx, &[wire(0, tcp(0), &bytes, 1328)])[0] {
            SendOutcome::Sent => frames += 64,
            SendOutcome::Blocked { taken: 0 } => tries += 1,
            SendOutcome::Blocked { taken } => (frames, tries) = (frames + usize::from(taken), 0),
            other => panic!("{other:?}"),
        }
    }
    assert!(tx.counters().split_frames > 0);
    tx.write_control(ConnId(0), b"a reply\n").unwrap();
    tx.write_control(ConnId(0), b"another\n").unwrap();
    assert_eq!(send(&mut tx, &[rtcp(0, tcp(0), b"report")]), [SendOutcome::Blocked { taken: 0 }]);
    let thread = std::thread::spawn(move || {
        let mut stream = Vec::new();
        reader.read_to_end(&mut stream).unwrap();
        stream
    });
    push(&mut tx, &fd, rtcp(0, tcp(0), b"report"));
    drop((tx, fd, writer));
    let pieces = parse(&thread.join().unwrap());
    assert_eq!(pieces.len(), frames + 3);
    assert_eq!(pieces[frames], Piece::Control(b"a reply\n".to_vec()));
    assert_eq!(pieces[frames + 1], Piece::Control(b"another\n".to_vec()));
    assert_eq!(pieces[frames + 2], Piece::Frame { channel: 1, packet: b"report".to_vec() });
}

#[test]
fn tcp_send_to_stalled_viewer_blocks_within_bounded_bytes() {
    let mut tx = sender(GsoMode::Auto, 1);
    let window = 64 * 1024;
    let (writer, _reader) = connection(None, Some(window));
    add(&mut tx, 0, &writer);
    let bytes = pattern(1, 1328 * 7);
    let mut taken = 0;
    let deadline = Instant::now() + TIMEOUT;
    while send(&mut tx, &[wire(0, tcp(0), &bytes, 1328)]) == [SendOutcome::Sent] {
        taken += bytes.len();
        assert!(Instant::now() < deadline, "{taken} bytes and not blocked");
    }
    // The receiver's buffer (the kernel doubles it), what TCP may hold unsent, and one call on top.
    let bound = 2 * window + 2 * MAX_TCP_WRITE_BYTES + 2 * bytes.len();
    assert!(taken <= bound, "{taken} bytes before it was noticed, expected at most {bound}");
    eprintln!("a viewer with a receive buffer of {window} bytes was blocked after {taken} bytes");
}

#[test]
fn beyond_the_longest_batch_nothing_overtakes_what_was_held_back() {
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, _reader) = connection(Some(1), Some(1));
    add(&mut tx, 0, &writer);
    let (mut rx, addr) = receiver("127.0.0.1");
    let bytes = pattern(1, 1328 * 64);
    while send(&mut tx, &[wire(0, tcp(0), &bytes, 1328)]) != [SendOutcome::Blocked { taken: 0 }] {}
    let datagram = wire(1, udp(addr, addr), &bytes[..9], 9);
    let mut batch = vec![datagram; MAX_BATCH_BURSTS + 2];
    batch[0] = wire(0, tcp(0), &bytes, 1328);
    let outcomes = send(&mut tx, &batch);
    assert_eq!(outcomes[0], SendOutcome::Blocked { taken: 0 });
    assert!(outcomes[1..MAX_BATCH_BURSTS].iter().all(|o| *o == SendOutcome::Sent));
    assert_eq!(outcomes[MAX_BATCH_BURSTS..], [SendOutcome::Blocked { taken: 0 }; 2]);
    assert_eq!(receive(&mut rx, MAX_BATCH_BURSTS - 1).len(), MAX_BATCH_BURSTS - 1);
    assert_eq!(receive_now(&mut rx).len(), 0);
}

#[test]
fn closed_connection_leaves_others_unaffected() {
    let mut tx = sender(GsoMode::Auto, 2);
    let (writer, reader) = connection(None, None);
    let (other_writer, mut other_reader) = connection(None, None);
    add(&mut tx, 0, &writer);
    add(&mut tx, 1, &other_writer);
    let bytes = pattern(1, 1328 * 3);
    let mut sent = 0;
    drop(reader);
    let errno = loop {
        let outcomes = send(&mut tx, &[wire(0, tcp(0), &bytes, 1328), wire(1, tcp(1), &bytes, 1328)]);
        assert_eq!(outcomes[1], SendOutcome::Sent);
        sent += 1;
        match outcomes[0] {
            SendOutcome::Sent => assert!(sent < 1000, "the reset never comes"),
            SendOutcome::Closed { errno } => break errno,
            other => panic!("{other:?}"),
        }
    };
    assert!([libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
    assert_eq!(tx.poll_conn_gone(), Some((ConnId(0), errno)));
    assert_eq!(send(&mut tx, &[rtcp(0, tcp(0), b"x")]), [SendOutcome::Closed { errno }]);
    assert_eq!(tx.poll_conn_gone(), None, "told once");
    assert!(tx.remove_conn(ConnId(0)).is_some());
    assert_eq!(send(&mut tx, &[rtcp(0, tcp(0), b"x")]), [SendOutcome::Closed { errno: libc::ENOTCONN }]);
    let mut stream = vec![0; sent * 3 * (4 + 1328)];
    other_reader.read_exact(&mut stream).unwrap();
    assert_eq!(parse(&stream).len(), 3 * sent);
}

#[test]
fn much_control_for_a_viewer_that_does_not_read_is_refused() {
    let mut tx = sender(GsoMode::Auto, 1);
    let (writer, _reader) = connection(Some(1), Some(1));
    add(&mut tx, 0, &writer);
    let line = [b'x'; 4096];
    let mut accepted = 0;
    let error = loop {
        match tx.write_control(ConnId(0), &line) {
            Ok(()) => accepted += line.len(),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ConnError::TooMuchPending { .. }), "{error}");
    assert!(
        (MAX_CONN_PENDING_BYTES - 4096..MAX_CONN_PENDING_BYTES + 300_000).contains(&accepted),
        "{accepted}"
    );
    tx.flush_conns();
    assert!(tx.full_conns_fd().is_some(), "it still waits");
    assert_eq!(send(&mut tx, &[rtcp(0, tcp(0), b"x")]), [SendOutcome::Blocked { taken: 0 }]);
}
