//! Admission: SETUP checks, PLAY reserves, a pause keeps the reservation for a while, one address
//! has a share.

use crate::rtsp_support::*;
use millrace_server::service::{ConnKey, EndReason, ServiceEvent};
use millrace_server::session::ServerConfig;

const MBIT: u64 = 1_000_000;

fn world(max_streams: usize, change: impl FnOnce(&mut ServerConfig)) -> World {
    World::with(|config| {
        config.service.max_streams = max_streams;
        config.service.streams_per_engine = 20_000;
        config.service.conns_per_engine = 4096;
        change(config);
    })
}

/// SETUP interleaved of `film`, whatever comes of it.
fn try_setup(w: &mut World, conn: ConnKey) -> Answer {
    w.ask(conn, "SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP")
}

/// A viewer of its own at `peer` who sets up and plays; the statuses of both.
fn newcomer(w: &mut World, peer: &str) -> (u16, u16) {
    let conn = w.connect_from(peer);
    let setup = try_setup(w, conn);
    if setup.status != 200 {
        return (setup.status, 0);
    }
    let play = w.ask_session(conn, "PLAY", &setup.session(), "");
    (200, play.status)
}

fn ended_early(w: &World) -> usize {
    let early = |n: &&ServiceEvent| matches!(n, ServiceEvent::Closed { reason: EndReason::TablesFull, .. });
    w.notices.iter().filter(early).count()
}

#[test]
fn setups_without_play_reserve_no_bit_rate() {
    let mut w = world(5000, |config| config.service.max_rate = Some("100Mb/s".parse().unwrap()));
    // 48 sessions of 4 Mb/s: 192 Mb/s, if they counted.
    let conns = [w.connect(), w.connect(), w.connect()];
    for conn in conns {
        for _ in 0..16 {
            assert_eq!(try_setup(&mut w, conn).status, 200);
        }
    }
    assert_eq!(
        (w.service.streams().len(), w.service.reserved_rate(), w.service.reserved_streams()),
        (48, 0, 0)
    );
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
    assert_eq!((w.service.reserved_rate(), w.service.reserved_streams()), (4 * MBIT, 1));
    // They end at the announced time-out, though their connections stay open; who plays stays.
    w.wait(66 * SECOND);
    assert_eq!(w.service.streams().len(), 1);
    assert_eq!(w.counters().sessions_expired, 48);
}

#[test]
fn hundreds_of_connections_fill_no_stream_places() {
    let mut w = world(5000, |config| config.service.max_sessions = 10_000);
    for number in 0..310u32 {
        // Five addresses, so that no address runs out of sessions.
        let conn = w.connect_from(&format!("203.0.113.{}:{}", number % 5, 2000 + number));
        for _ in 0..16 {
            assert_eq!(try_setup(&mut w, conn).status, 200);
        }
    }
    assert_eq!((w.service.streams().len(), w.service.reserved_streams()), (4960, 0));
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
    assert_eq!(ended_early(&w), 0);
}

#[test]
fn tables_that_fill_up_lose_those_that_have_been_idle_longest() {
    let mut w = world(10, |config| config.service.max_sessions = 20);
    let player = w.connect_from("198.51.100.9:1");
    let playing = w.setup_tcp(player);
    assert_eq!(w.ask_session(player, "PLAY", &playing, "").status, 200);
    let paused = w.connect_from("198.51.100.8:1");
    let held = w.setup_tcp(paused);
    w.ask_session(paused, "PLAY", &held, "");
    w.wait(SECOND);
    w.ask_session(paused, "PAUSE", &held, "");
    let crowd = [w.connect(), w.connect_from("203.0.113.1:1")];
    for _ in 0..14 {
        for conn in crowd {
            assert_eq!(try_setup(&mut w, conn).status, 200);
        }
        w.wait(SECOND / 2);
    }
    // 16 of 20 are 80 %.
    assert_eq!(w.service.streams().len(), 16);
    assert_eq!(ended_early(&w), 2 + 28 - 16);
    assert_eq!(w.counters().sessions_ended_early, 14);
    // Neither the viewer that plays nor the one that paused only just now has been ended.
    assert_eq!(w.ask_session(player, "PAUSE", &playing, "").status, 200);
    assert_eq!(w.ask_session(paused, "PLAY", &held, "").status, 200);
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
}

#[test]
fn setups_without_play_leave_engine_slots_for_new_viewers() {
    let mut w = world(10, |config| config.service.streams_per_engine = 20);
    let crowd = [w.connect(), w.connect_from("203.0.113.1:1")];
    for _ in 0..14 {
        for conn in crowd {
            assert_eq!(try_setup(&mut w, conn).status, 200);
        }
    }
    assert_eq!((w.service.streams().len(), w.service.place_count()), (16, 16));
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
}

#[test]
fn pause_keeps_reservation_for_one_minute() {
    let mut w = world(1, |_| {});
    let conn = w.connect();
    let id = w.setup_tcp(conn);
    assert_eq!(w.ask_session(conn, "PLAY", &id, "").status, 200);
    w.wait(SECOND);
    w.ask_session(conn, "PAUSE", &id, "");
    // A: within the minute no other viewer gets it, and PLAY goes on.
    w.wait(50 * SECOND);
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (453, 0));
    assert_eq!(w.ask_session(conn, "PLAY", &id, "").status, 200);
    w.wait(SECOND);
    w.ask_session(conn, "PAUSE", &id, "");
    // B: after it the next viewer gets it, and PLAY asks again.
    w.wait(61 * SECOND);
    assert_eq!((w.service.reserved_streams(), w.service.reserved_rate()), (0, 0));
    let other = w.connect_from("198.51.100.1:1001");
    let second = w.setup_tcp(other);
    assert_eq!(w.ask_session(other, "PLAY", &second, "").status, 200);
    w.take_log();
    let refused = w.ask_session(conn, "PLAY", &id, "");
    assert_eq!((refused.status, refused.session()), (453, id.clone()));
    assert_eq!(refused.reason, "Not Enough Bandwidth: all 1 streams are in use (--max-streams)");
    assert_eq!(w.take_log(), ["reply 453"], "the engine heard nothing of it");
    // C: it is still there, and goes on where it stopped once there is room.
    w.ask_session(other, "TEARDOWN", &second, "");
    let resumed = w.ask_session(conn, "PLAY", &id, "");
    assert_eq!(resumed.status, 200);
    assert_eq!(w.take_log().last().unwrap(), "play 762..24000 seq 763 in 50ms");
    w.ask_session(conn, "TEARDOWN", &id, "");
    w.hang_up(other);
    w.assert_empty();
}

#[test]
fn pause_reservation_duration_follows_setting() {
    let mut w = world(1, |config| config.service.pause_reservation_ns = 5 * SECOND);
    let conn = w.connect();
    let id = w.setup_tcp(conn);
    w.ask_session(conn, "PLAY", &id, "Range: npt=0-2");
    // The end of the range is no different: 2 s of film, BYE 2.5 s behind it.
    w.wait(8 * SECOND);
    assert_eq!(w.service.reserved_streams(), 1);
    w.wait(3 * SECOND);
    assert_eq!(w.service.reserved_streams(), 0);
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
}

#[test]
fn address_share_limits_single_address_to_half() {
    // A: of the streams.
    let mut w = world(8, |_| {});
    let many = w.connect();
    for _ in 0..4 {
        let id = w.setup_tcp(many);
        assert_eq!(w.ask_session(many, "PLAY", &id, "").status, 200);
    }
    let refused = try_setup(&mut w, many);
    assert_eq!(refused.status, 453);
    assert_eq!(
        refused.reason,
        "Not Enough Bandwidth: all 4 streams that one address may have are in use (--share-per-address)"
    );
    for peer in ["198.51.100.1:1000", "198.51.100.2:1000"] {
        assert_eq!(newcomer(&mut w, peer), (200, 200));
    }
    w.hang_up(many);
    assert_eq!(w.service.reserved_streams(), 2);
    // B: of the bit rate. Set up while there is room, they are refused when they play.
    let mut w = world(100, |config| config.service.max_rate = Some("20Mb/s".parse().unwrap()));
    let many = w.connect();
    let ids: Vec<_> = (0..3).map(|_| w.setup_tcp(many)).collect();
    let statuses: Vec<_> = ids.iter().map(|id| w.ask_session(many, "PLAY", id, "").status).collect();
    assert_eq!(statuses, [200, 200, 453], "8 of 10 Mb/s");
    assert_eq!(newcomer(&mut w, "198.51.100.1:1000"), (200, 200));
    // C: one title it may always play, a whole /64 counts as one address, and the share is a setting.
    let mut w = world(100, |config| {
        config.service.max_rate = Some("12Mb/s".parse().unwrap());
        config.service.address_share_percent = 10;
    });
    assert_eq!(newcomer(&mut w, "[2001:db8::1]:1"), (200, 200));
    assert_eq!(newcomer(&mut w, "[2001:db8::2]:1"), (453, 0));
    assert_eq!(newcomer(&mut w, "[2001:db8:0:1::2]:1"), (200, 200));
}

/// Sessions that play, seek, pause for long, move to another transport and end by all ways leave nothing reserved.
#[test]
fn reservations_after_any_session_end_are_released() {
    let mut w = world(100, |config| config.service.max_rate = Some("1Gb/s".parse().unwrap()));
    let conn = w.connect();
    let id = w.setup_tcp(conn);
    w.ask_session(conn, "PLAY", &id, "");
    w.ask_session(conn, "PLAY", &id, "Range: npt=30-");
    assert_eq!(w.service.reserved_rate(), 4 * MBIT);
    w.ask_session(conn, "PAUSE", &id, "");
    // A move keeps it.
    let to_udp = format!("Session: {id}\nTransport: RTP/AVP;client_port=7000-7001");
    let moved = w.ask(conn, &format!("SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 3\n{to_udp}"));
    assert_eq!((moved.status, w.service.reserved_rate()), (200, 4 * MBIT));
    for _ in 0..3 {
        w.wait(30 * SECOND);
        w.ask_session(conn, "GET_PARAMETER", &id, "");
    }
    assert_eq!((w.service.streams().len(), w.service.reserved_rate()), (1, 0));
    assert_eq!(w.ask_session(conn, "PLAY", &id, "").status, 200);
    assert_eq!((w.service.reserved_streams(), w.service.reserved_rate()), (1, 4 * MBIT));
    w.wait(70 * SECOND);
    w.assert_empty();
    assert_eq!(w.service.reserved_streams(), 0);
}

#[test]
fn session_ended_by_overload_gets_bye_and_453() {
    let mut w = world(100, |_| {});
    let (old, new) = (w.connect(), w.connect_from("198.51.100.1:1000"));
    let (first, second) = (w.setup_tcp(old), w.setup_tcp(new));
    w.ask_session(old, "PLAY", &first, "");
    w.ask_session(new, "PLAY", &second, "");
    w.wait(SECOND);
    w.take_log();
    assert_eq!(w.on_service(|service, now| service.end_newest(now, 0, 1)), 1);
    w.settle();
    assert_eq!(w.take_log(), ["play 24000..24000 seq 24001 in 0ms"], "nothing but BYE");
    let refused = w.ask_session(new, "PLAY", &second, "Range: npt=10-");
    assert_eq!((refused.status, refused.session()), (453, second.clone()));
    w.wait(3 * SECOND);
    assert_eq!(w.ask_session(new, "PLAY", &second, "").status, 454);
    assert!(!w.closed.contains(&new), "BYE has told its player");
    assert_eq!(w.server.sessions(&w.service, w.now).len(), 1);
    let told = w.notices.iter().rev().find(|event| matches!(event, ServiceEvent::Closed { .. })).unwrap();
    assert!(told.is_warning(), "{told}");
}
