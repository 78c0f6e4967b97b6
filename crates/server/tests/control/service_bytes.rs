//! Bytes of titles in connections, in virtual time, without a protocol: ordered, sent, taken back; viewers and engines that go, ceilings.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_offload::command::StopReason;
use millrace_server::service::{ConnKey, EndReason, Exhausted, Refusal, ServiceEvent, StreamKey, StreamPath};

/// A film's default packet.
const SIZE: u64 = 1316;

fn order(desk: &mut Desk, conn: ConnKey) -> Result<StreamKey, Refusal> {
    let request = desk.request("film", conn, StreamPath::Bytes { conn });
    desk.admit(request).map(|admitted| admitted.stream)
}

fn send(desk: &mut Desk, key: StreamKey, bytes: std::ops::Range<u64>) -> Result<(), Refusal> {
    let played = desk.service.play_bytes(desk.now, key, &bytes, 0);
    desk.settle();
    played
}

fn has(desk: &Desk, wanted: impl Fn(&ServiceEvent) -> bool) -> usize {
    desk.events.iter().filter(|event| wanted(event)).count()
}

#[test]
fn byte_order_completes_and_connection_is_reusable() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    for round in 1..=3 {
        let key = order(&mut desk, conn).unwrap();
        assert_eq!(desk.service.reserve_bytes(desk.now, key, &(5..5)), Err(Refusal::EmptyRange));
        assert_eq!(desk.service.reserve_bytes(desk.now, key, &(0..u64::MAX)), Err(Refusal::EmptyRange));
        assert_eq!(desk.service.reserved_streams(), 0);
        assert_eq!(send(&mut desk, key, 4 * SIZE + 7..400 * SIZE), Ok(()));
        assert_eq!(desk.service.reserved_streams(), 1);
        assert_eq!(send(&mut desk, key, 0..SIZE), Err(Refusal::Busy), "a stream of bytes has one run");
        desk.wait(3 * SECOND);
        assert_eq!(has(&desk, |event| *event == ServiceEvent::BytesSent { conn }), round);
        assert_eq!(has(&desk, |event| *event == ServiceEvent::ConnectionReturned { conn }), round);
        assert!(!desk.service.take_back(conn), "no engine writes to it");
        assert_eq!(desk.take_commands(), ["open", "play 4..400"], "the engine does the rest by itself");
        desk.writes_itself(conn);
    }
    assert_eq!((desk.counters.deliveries, desk.counters.deliveries_broken), (3, 0));
    // They belong to no session.
    assert_eq!((desk.counters.sessions_started, desk.counters.titles_finished), (0, 0));
    desk.hang_up(conn);
    desk.assert_empty();
    assert!(desk.take_commands().is_empty(), "nothing of it is left in the engine");
}

#[test]
fn byte_order_ends_in_any_state_when_viewer_disconnects() {
    for wait in [false, true] {
        let mut desk = Desk::new();
        let conn = desk.conn();
        let key = order(&mut desk, conn).unwrap();
        send(&mut desk, key, 0..400 * SIZE).unwrap();
        if wait {
            desk.engine.keeps_conns = true;
            desk.wait(3 * SECOND);
            assert_eq!(has(&desk, |event| matches!(event, ServiceEvent::ConnectionReturned { .. })), 0);
        }
        desk.hang_up(conn);
        desk.assert_empty();
        let ends = if wait { (1, 0) } else { (0, 1) };
        assert_eq!((desk.counters.deliveries, desk.counters.deliveries_broken), ends);
    }
}

/// The engine has released the stream and the connection, and the service ends both before the event arrives.
#[test]
fn byte_order_ended_while_its_engine_lets_go_leaves_nothing() {
    let mut desk = Desk::new();
    for _ in 0..2 {
        let conn = desk.conn();
        let key = order(&mut desk, conn).unwrap();
        send(&mut desk, key, 0..400 * SIZE).unwrap();
        desk.settle();
        desk.now = desk.now.plus_ns(3 * SECOND);
        desk.engine.advance(desk.now);
        assert_eq!(desk.engine.streams.len(), 0, "the engine has closed it");
        desk.service.close(desk.now, key, EndReason::Overloaded);
        desk.hang_up(conn);
        desk.assert_empty();
    }
    assert_eq!((desk.counters.deliveries, desk.counters.deliveries_broken), (0, 2));
}

#[test]
fn orders_count_against_the_ceilings_and_are_refused_before_anything_is_written() {
    let mut desk = Desk::with(|config| config.max_streams = 1);
    let film = desk.udp("film", 5000);
    desk.play(film, None).unwrap();
    desk.take_commands();
    let conn = desk.conn();
    assert_eq!(order(&mut desk, conn), Err(Refusal::Exhausted(Exhausted::Streams { max: 1 })));
    assert!(desk.take_commands().is_empty());
    desk.close(film);
    let key = order(&mut desk, conn).unwrap();
    // Another one has come first.
    let other = desk.udp("film", 5000);
    desk.play(other, None).unwrap();
    assert_eq!(
        desk.service.reserve_bytes(desk.now, key, &(0..SIZE)),
        Err(Refusal::Exhausted(Exhausted::Streams { max: 1 }))
    );
}

#[test]
fn byte_order_ended_by_overload_is_closed_without_bye() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let key = order(&mut desk, conn).unwrap();
    send(&mut desk, key, 0..400 * SIZE).unwrap();
    desk.take_commands();
    assert_eq!(desk.service.end_newest(desk.now, 0, 1), 1);
    desk.settle();
    assert_eq!(desk.take_commands(), ["close"]);
    assert_eq!((desk.ends(), desk.counters.deliveries_broken), (vec![EndReason::Overloaded], 1));
    assert_eq!(has(&desk, |event| matches!(event, ServiceEvent::BytesSent { .. })), 0);
    desk.hang_up(conn);
    desk.assert_empty();
}

#[test]
fn byte_order_cut_by_shutdown_is_not_reported_as_sent() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let key = order(&mut desk, conn).unwrap();
    send(&mut desk, key, 0..400 * SIZE).unwrap();
    let place = *desk.engine.streams.keys().next().unwrap();
    desk.engine.end_run(place, StopReason::ShutDown);
    desk.settle();
    assert_eq!(has(&desk, |event| matches!(event, ServiceEvent::BytesSent { .. })), 0);
    assert_eq!(desk.ends(), [EndReason::Shutdown]);
}
