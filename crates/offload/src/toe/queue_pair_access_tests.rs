//! A loop that is a host of an engine, beside what holds for both kinds of engine.

use millrace_core::limits::MAX_CONN_PENDING_BYTES;

use super::*;
use crate::toe::host::Host;

const ANY: ([u8; 4], u16) = ([0; 4], 0);
const VIEWER: ([u8; 4], u16) = ([10, 0, 0, 2], 554);

impl EgressRig {
    /// A viewer that was called by a host whose pair is the loop's by now.
    pub(super) fn apart() -> Self {
        let mut rig = Self::handed_over(|_| {});
        rig.tx.add_conn(CONN, rig.name.into()).unwrap();
        rig
    }

    /// The loop has the pair, and has not heard of the connection.
    fn handed_over(change: impl Fn(&mut EngineSettings)) -> Self {
        Self::handed_over_with(1, change).0
    }

    /// Does the same with `count` connections, the first of them being the rig's; returns their
    /// names, and their sockets here and there.
    fn handed_over_with(
        count: usize,
        change: impl Fn(&mut EngineSettings),
    ) -> (Self, Vec<(EngineSocket, [u32; 2])>) {
        let mut rig = Self::accepted(|_| {});
        let mut own = settings([10, 0, 0, 3]);
        own.pair.send_buffers = 256;
        change(&mut own);
        let (engine, state) = core(&own);
        let end = End { out: Arc::clone(&rig.wires[0]), back: Arc::clone(&rig.wires[1]) };
        let mut sockets = Sockets::new(Host::new(state, Arc::clone(&rig.home))).unwrap();
        // What turned before is gone.
        rig.tx.engine = None;
        rig.apart = Some((engine, end));
        let listener = rig.far.listen(VIEWER.into(), 8, false).unwrap();
        let mut connections = Vec::new();
        for _ in 0..count {
            rig.far.ask_for_next(listener).unwrap();
            rig.turn();
            let here = sockets.connect(ANY.into(), VIEWER.into()).unwrap();
            rig.until(|_| {
                sockets.hear();
                sockets.outcome(here).unwrap()
            });
            let there = rig.until(|rig| rig.far.take_next(listener).unwrap());
            connections.push((sockets.engine_socket(here), [here, there]));
        }
        (rig.name, rig.sockets) = connections[0];
        rig.tx.engine = Some(EngineAccess::QueuePair(QueuePairAccess::new(sockets).unwrap()));
        (rig, connections)
    }

    fn gone(&mut self) -> i32 {
        let (conn, errno) = self.until(|rig| rig.tx.poll_conn_gone());
        assert_eq!((conn, self.tx.poll_conn_gone()), (CONN, None));
        errno
    }
}

#[test]
fn names_that_are_no_connection_of_the_pair_are_refused() {
    let mut rig = EgressRig::handed_over(|_| {});
    let name = rig.name;
    for wrong in [
        EngineSocket { engine: name.engine + 1, ..name },
        EngineSocket { pair: 1, ..name },
        EngineSocket { generation: name.generation + 1, ..name },
        EngineSocket { socket: 1 - name.socket, ..name },
        EngineSocket { socket: 99, ..name },
    ] {
        assert_eq!(rig.tx.add_conn(CONN, wrong.into()), Err(libc::EBADF), "{wrong:?}");
    }
    rig.tx.add_conn(CONN, name.into()).unwrap();
    assert_eq!(rig.tx.add_conn(ConnId(4), name.into()), Err(libc::EBUSY));
}

/// Data from a viewer is never read, and takes no buffer for good.
#[test]
fn receive_buffers_with_unread_viewer_data_stay_available() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::apart();
    let there = rig.sockets[1];
    for round in 0..20 {
        // More than all receive buffers of the pair hold.
        let mut left = 100_000;
        rig.until(|rig| {
            let parts = [IoSlice::new(&[7; 10_000])];
            left -= rig.far.write(there, &parts).unwrap().unwrap_or(0).min(left);
            (left == 0).then_some(())
        });
        rig.until(|rig| rig.far.is_flushed(there).unwrap().then_some(()));
        assert_eq!(rig.send_patched(&lease, 0, round), PACKETS);
        rig.read_all();
    }
}

/// A connection reported as writable is not reported again before it has refused data again,
/// whatever else the engine reports.
#[test]
fn room_is_told_once_whatever_else_is_told() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::apart();
    rig.fill_up(&lease);
    rig.until(|rig| {
        rig.read();
        rig.tx.poll_conn_writable()
    });
    rig.read_all();
    let there = rig.sockets[1];
    for _ in 0..5 {
        rig.far.write(there, &[IoSlice::new(b"a word")]).unwrap();
        rig.until(|rig| rig.far.is_flushed(there).unwrap().then_some(()));
        (0..20).for_each(|_| rig.turn());
        assert_eq!(rig.tx.poll_conn_writable(), None);
    }
}

/// Unreported news of a connection does not reach the next one with the same name.
#[test]
fn news_of_a_connection_that_was_given_up_do_not_reach_the_next_one_of_its_name() {
    let (mut rig, connections) = EgressRig::handed_over_with(2, |_| {});
    let [(first, [_, first_there]), (second, sockets)] = connections[..] else { panic!("two") };
    rig.tx.add_conn(CONN, first.into()).unwrap();
    rig.far.close(first_there, true);
    for _ in 0..20 {
        rig.now = rig.now.plus_ns(STEP_NS);
        rig.turn_peer();
    }
    // Its end has arrived here, and has not been reported.
    rig.tx.tend(rig.now);
    let Some(EngineAccess::QueuePair(apart)) = &rig.tx.engine else { panic!("no engine") };
    assert!(apart.has_news());
    rig.tx.remove_conn(CONN).unwrap();
    (rig.name, rig.sockets) = (second, sockets);
    rig.tx.add_conn(CONN, second.into()).unwrap();
    rig.tx.flush_conns();
    assert_eq!(rig.tx.poll_conn_gone(), None);
    rig.write_control(b"hello");
    rig.read_all();
}

/// Connections of a loop that ends, or drops its pair, end after the data already given, whether it
/// writes to them or not.
#[test]
fn loop_end_or_pair_drop_closes_connections_after_sent_data() {
    for (is_lent, is_dropped) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = EgressRig::handed_over(|_| {});
        if is_lent {
            rig.tx.add_conn(CONN, rig.name.into()).unwrap();
            rig.write_control(b"the last reply");
        }
        match is_dropped {
            true => rig.tx.engine = None,
            false => rig.tx.shut_down(rig.now),
        }
        let mut has_ended = false;
        for _ in 0..100 {
            rig.now = rig.now.plus_ns(STEP_NS);
            rig.turn_peer();
            has_ended |= rig.read();
        }
        assert!(has_ended && rig.got == rig.due, "lent: {is_lent}, dropped: {is_dropped}");
    }
}

#[test]
fn remove_conn_closes_connection_after_sent_data() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::apart();
    rig.fill(&lease);
    rig.write_control(b"that was all");
    let socket = rig.tx.remove_conn(CONN).unwrap();
    assert!(matches!(socket, ConnSocket::Engine(name) if name == rig.name));
    assert_eq!(rig.tx.add_conn(CONN, rig.name.into()), Err(libc::EBADF), "it is nobody's any more");
    assert_eq!(rig.tx.backlog_bytes(CONN), None);
    rig.until(|rig| rig.read().then_some(()));
    assert!(rig.got == rig.due, "{} of {} bytes came, or others", rig.got.len(), rig.due.len());
    rig.until(|rig| (rig.leases() == 0).then_some(()));
    assert_eq!(film.arena.leases(0), 1);
}

#[test]
fn viewer_reset_or_engine_end_is_reported_and_releases_leases() {
    for is_end in [false, true] {
        let film = TestExtent::new(rtp(), &[]);
        let lease = film.lease();
        let mut rig = EgressRig::apart();
        rig.fill(&lease);
        (0..10).for_each(|_| rig.turn());
        let expected = if is_end {
            rig.engine().stop();
            libc::ENETDOWN
        } else {
            let there = rig.sockets[1];
            rig.far.close(there, true);
            libc::ECONNRESET
        };
        assert_eq!(rig.gone(), expected);
        let outcome = rig.send(INTERLEAVED, Payload::Rtcp(&[1]), None);
        assert_eq!(outcome, SendOutcome::Closed { errno: expected });
        assert_eq!(rig.tx.write_control(CONN, b"x"), Err(expected));
        rig.tx.remove_conn(CONN).unwrap();
        if is_end {
            assert!(rig.tx.engine.is_none(), "another one may come");
            rig.apart = None;
        } else {
            rig.until(|rig| (rig.leases() == 0).then_some(()));
        }
        assert_eq!(film.arena.leases(0), 1, "is end: {is_end}");
    }
}

/// Replies have no share, but a bound.
#[test]
fn replies_to_a_viewer_who_does_not_read_end_the_connection_at_last() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::apart();
    rig.fill_up(&lease);
    let mut taken = 0;
    let refused = loop {
        match rig.tx.write_control(CONN, &[b'r'; 1000]) {
            Ok(()) => taken += 1000,
            Err(errno) => break errno,
        }
        assert!(taken < 1 << 20, "there is no end of it");
    };
    assert_eq!(refused, libc::ENOBUFS);
    assert!(taken >= MAX_CONN_PENDING_BYTES / 2, "{taken} bytes");
    rig.due.extend(vec![b'r'; taken]);
    rig.read_all();
}

/// A head takes a chunk of its own, since the data after it lies in an extent: a connection that
/// finds none is notified when there is one.
#[test]
fn connection_without_chunk_becomes_writable_when_one_is_free() {
    let film = TestExtent::new(rtp(), &[]);
    let lease = film.lease();
    let mut rig = EgressRig::handed_over(|own| own.pair.send_buffers = 16);
    rig.tx.add_conn(CONN, rig.name.into()).unwrap();
    let mut skip = rig.send_patched(&lease, 0, 1);
    // The sixteenth is for replies.
    assert_eq!((skip, rig.tx.poll_conn_writable()), (15, None));
    while skip < PACKETS {
        rig.until(|rig| {
            rig.read();
            rig.tx.poll_conn_writable()
        });
        let taken = rig.send_patched(&lease, skip, 1);
        assert!(taken > 0, "it was told of room that is not there");
        skip += taken;
    }
    rig.read_all();
}

#[test]
fn pair_settings_without_space_for_replies_are_refused() {
    let settings = EngineSettings {
        pair: crate::toe::PairSettings { send_bytes: 8192, send_buffers: 8, ..Default::default() },
        ..settings([10, 0, 0, 1])
    };
    let (_engine, state) = core(&settings);
    let home = Arc::new(Home::new(Arc::new(EventBell::new().unwrap()), Vec::new(), Vec::new()));
    let sockets = Sockets::new(Host::new(state, home)).unwrap();
    let error = QueuePairAccess::new(sockets).err().unwrap().to_string();
    assert!(error.contains("65536 bytes") && error.contains("choose send_buffers"), "{error}");
}
