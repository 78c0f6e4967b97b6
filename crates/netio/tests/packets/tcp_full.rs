//! Full connections: which ones are reported when there is room, and the cost while there is none.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::support::*;
use millrace_core::ids::ConnId;
use millrace_core::seam::SendOutcome;
use millrace_netio::{GsoMode, KernelTx};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A connection of the sender; the reader does not wait for bytes.
fn add(tx: &mut KernelTx, conn: u32) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    reader.set_nonblocking(true).unwrap();
    let writer = listener.accept().unwrap().0;
    tx.add_conn(ConnId(conn), writer.try_clone().unwrap().into()).unwrap();
    (writer, reader)
}

/// Sends until the connection refuses.
fn fill(tx: &mut KernelTx, conn: u32) {
    let bytes = pattern(conn, 92 * 1000);
    loop {
        match send(tx, &[wire(conn, tcp(conn), &bytes, 1000)])[0] {
            SendOutcome::Sent => {}
            SendOutcome::Blocked { .. } => return,
            other => panic!("{other:?}"),
        }
    }
}

/// Reads all available data.
fn drain(reader: &mut TcpStream) {
    let mut sink = [0; 1 << 16];
    while reader.read(&mut sink).is_ok_and(|count| count > 0) {}
}

/// Waits until the sender has something to look at.
fn wait_for_report(tx: &KernelTx) {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let fd = tx.full_conns_fd().expect("a connection is watched");
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "nothing is reported");
}

/// More than are reported in one call.
#[test]
fn full_connection_is_reported_writable_once() {
    const CONNS: u32 = 200;
    let mut tx = sender(GsoMode::Auto, CONNS as usize);
    let mut conns: Vec<_> = (0..CONNS).map(|conn| add(&mut tx, conn)).collect();
    assert!(!tx.flush_conns() && tx.full_conns_fd().is_none(), "nothing is asked while none is full");
    for conn in (0..CONNS).step_by(2) {
        fill(&mut tx, conn);
        // Tried again in vain, it is not watched twice.
        fill(&mut tx, conn);
    }
    assert!(!tx.flush_conns());
    assert_eq!((tx.poll_conn_writable(), tx.counters().tcp_waits), (None, u64::from(CONNS / 2)));
    let mut told = vec![0; CONNS as usize];
    while told.iter().sum::<u32>() < CONNS / 2 {
        conns.iter_mut().for_each(|(_, reader)| drain(reader));
        wait_for_report(&tx);
        tx.flush_conns();
        while let Some(conn) = tx.poll_conn_writable() {
            told[conn.0 as usize] += 1;
        }
    }
    // The rest of a frame may have gone in two pieces; this is not reported.
    while tx.full_conns_fd().is_some() {
        conns.iter_mut().for_each(|(_, reader)| drain(reader));
        tx.flush_conns();
    }
    assert_eq!(tx.poll_conn_writable(), None);
    assert!(told.iter().zip(0..).all(|(&times, conn)| times == u32::from(conn % 2 == 0)), "{told:?}");
    // A connection that was reported can be written again.
    let bytes = pattern(1, 100);
    assert_eq!(send(&mut tx, &[wire(0, tcp(0), &bytes, 100)]), [SendOutcome::Sent]);
}

#[test]
fn full_connection_with_closed_peer_is_reported_without_write() {
    let mut tx = sender(GsoMode::Auto, 1);
    let (_writer, reader) = add(&mut tx, 0);
    fill(&mut tx, 0);
    let calls = tx.counters().tcp_calls;
    drop(reader);
    wait_for_report(&tx);
    tx.flush_conns();
    let (conn, errno) = tx.poll_conn_gone().expect("it is noticed");
    assert!(conn == ConnId(0) && [libc::ECONNRESET, libc::EPIPE].contains(&errno), "{errno}");
    assert_eq!((tx.poll_conn_writable(), tx.counters().tcp_calls), (None, calls));
}

/// The control side keeps a duplicate of the descriptor, so closing ours does not take it out of the set.
#[test]
fn full_connection_removal_does_not_affect_successor() {
    let mut tx = sender(GsoMode::Auto, 1);
    let (first_writer, mut first) = add(&mut tx, 0);
    fill(&mut tx, 0);
    drop(tx.remove_conn(ConnId(0)));
    assert!(tx.full_conns_fd().is_none());
    let (_writer, mut second) = add(&mut tx, 0);
    fill(&mut tx, 0);
    // There is room in the first one again.
    let mut fds = [PollFd::new(&first_writer, PollFlags::OUT)];
    while poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 0 {
        drain(&mut first);
    }
    tx.flush_conns();
    assert_eq!(tx.poll_conn_writable(), None);
    while tx.poll_conn_writable() != Some(ConnId(0)) {
        drain(&mut second);
        wait_for_report(&tx);
        tx.flush_conns();
    }
    assert!(tx.full_conns_fd().is_none());
}

#[test]
fn backlog_bytes_counts_undelivered_data() {
    let mut tx = sender(GsoMode::Auto, 2);
    let (_writer, mut reader) = add(&mut tx, 0);
    assert_eq!([0, 1].map(|conn| tx.backlog_bytes(ConnId(conn))), [Some(0), None]);
    fill(&mut tx, 0);
    let ends = std::time::Instant::now() + TIMEOUT;
    // The peer still acknowledges data that it takes into a nearly full buffer: this comes to an
    // end.
    let backlog = |tx: &KernelTx| tx.backlog_bytes(ConnId(0)).expect("it is there");
    let settled = |tx: &KernelTx| loop {
        let before = backlog(tx);
        std::thread::sleep(Duration::from_millis(50));
        if backlog(tx) == before {
            return before;
        }
        assert!(std::time::Instant::now() < ends, "{before} bytes, and fewer and fewer");
    };
    let before = settled(&tx);
    assert!(before > 100_000, "{before}");
    tx.write_control(ConnId(0), &[7; 1_000]).unwrap();
    assert_eq!(settled(&tx), before + 1_000, "control bytes that wait count");
    while tx.backlog_bytes(ConnId(0)) != Some(0) {
        tx.flush_conns();
        drain(&mut reader);
        assert!(std::time::Instant::now() < ends, "{:?} bytes are left", tx.backlog_bytes(ConnId(0)));
    }
    tx.remove_conn(ConnId(0)).unwrap();
    assert_eq!(tx.backlog_bytes(ConnId(0)), None);
}
