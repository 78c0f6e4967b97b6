//! How sessions live and die: signs of life, the end of the film, limits, failures, shutdown.

use crate::rtsp_support::{MS, SECOND, World, receiver_report};
use millrace_core::ids::RunSerial;
use millrace_offload::command::{self, FailReason, LeaseFailure, RunEnd, StopReason, StreamEvent};
use millrace_server::service::{ConnRefusal, EndReason, RateBasis, ServiceEvent};
use millrace_server::session::{SessionState, UdpPort};

const RTCP: &str = "192.0.2.7:5001";
const RTP: &str = "192.0.2.7:5000";

fn ended(w: &World) -> Vec<EndReason> {
    let reason = |notice: &ServiceEvent| match notice {
        ServiceEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    };
    w.notices.iter().filter_map(reason).collect()
}

#[test]
fn session_survives_temporary_loss_of_its_title() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    let lost = |w: &mut World, lost| w.open_titles.0.lock().unwrap().members_lost = lost;
    lost(&mut w, true);
    for (method, more) in [("PLAY", ""), ("PLAY", "Range: npt=10-")] {
        let refused = w.ask_session(c, method, &id, more);
        assert_eq!((refused.status, refused.get("retry-after")), (503, "10"), "{refused:?}");
        assert_eq!(refused.reason, "Service Unavailable: 2 members lost (b, c), 1 may be");
        assert_eq!(refused.session(), id);
    }
    lost(&mut w, false);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    w.wait(SECOND);
    // What plays goes on for as long as the engine has packets, but is not moved to where there may be none.
    lost(&mut w, true);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200, "it plays already");
    w.take_log();
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=20-").status, 503);
    assert!(w.take_log().iter().all(|line| !line.starts_with("pause")), "it plays on where it is");
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 503);
    lost(&mut w, false);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    assert_eq!(w.ask_session(c, "TEARDOWN", &id, "").status, 200);
    w.wait(SECOND);
    w.assert_empty();
}

#[test]
fn fec_switch_with_lost_parity_continues_without_fec() {
    let mut w = World::new();
    let c = w.connect();
    let ports = "Transport: RTP/AVP;unicast;client_port=5000-5001";
    let set_up =
        w.ask(c, &format!("SETUP rtsp://192.0.2.1/safe RTSP/1.0\nCSeq: 1\n{ports}\nX-Millrace-FEC: xor"));
    assert_eq!((set_up.status, w.counters().sessions_with_fec), (200, 1), "{set_up:?}");
    let id = set_up.session();
    w.open_titles.0.lock().unwrap().members_lost = true;
    let switched = w.ask_session(c, "SET_PARAMETER", &id, "Content-Length: 8\n\nfec: all");
    assert_eq!((switched.status, switched.get("x-millrace-fec")), (200, "off"), "{switched:?}");
    let why = |notice: &ServiceEvent| matches!(notice, ServiceEvent::Broken { reason, .. } if reason.contains("b, c"));
    assert!(w.notices.iter().any(why), "{:?}", w.notices);
    assert_eq!(w.service.streams().len(), 1, "its title is open");
    w.ask_session(c, "TEARDOWN", &id, "");
    w.assert_empty();
}

#[test]
fn setup_of_lost_title_keeps_existing_session() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    let ports = "Transport: RTP/AVP;unicast;client_port=5000-5001";
    let refused = w.ask(c, &format!("SETUP rtsp://192.0.2.1/torn RTSP/1.0\nCSeq: 2\n{ports}"));
    assert_eq!((refused.status, refused.get("retry-after")), (503, "10"));
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200, "the session on the same ports is still there");
}

#[test]
fn udp_session_without_keep_alive_expires() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "");
    // The announced time and its slack have not passed.
    w.wait(64 * SECOND);
    assert_eq!(w.service.streams().len(), 1);
    w.wait(2 * SECOND);
    assert_eq!(ended(&w), [EndReason::Expired]);
    assert!(w.closed.contains(&c), "its connection was as idle as the session");
    let again = w.connect();
    assert_eq!(w.ask_session(again, "PLAY", &id, "").status, 454);
    w.assert_empty();
}

#[test]
fn rtcp_and_punches_from_the_session_ports_keep_it_alive() {
    for (port, from) in [(UdpPort::Rtcp, RTCP), (UdpPort::Rtp, RTP), (UdpPort::Rtcp, RTP)] {
        let mut w = World::new();
        let c = w.connect();
        w.setup_udp(c);
        w.hang_up(c); // a session is not tied to its connection
        for _ in 0..5 {
            w.wait(40 * SECOND);
            w.server.face(&mut w.service).handle_datagram(
                w.now,
                port,
                from.parse().unwrap(),
                &receiver_report(0, false),
            );
        }
        assert_eq!(w.service.streams().len(), 1, "{port:?} {from}");
        w.wait(70 * SECOND);
        w.assert_empty();
    }
}

#[test]
fn strangers_keep_nobody_alive() {
    let mut w = World::new();
    let c = w.connect();
    w.setup_udp(c);
    for _ in 0..2 {
        w.wait(35 * SECOND);
        for stranger in ["192.0.2.8:5001", "198.51.100.1:5001"] {
            w.server.face(&mut w.service).handle_datagram(
                w.now,
                UdpPort::Rtcp,
                stranger.parse().unwrap(),
                &receiver_report(0x1234_abcd, false),
            );
        }
        w.server.face(&mut w.service).handle_datagram(
            w.now,
            UdpPort::Rtcp,
            "192.0.2.7:9".parse().unwrap(),
            b"no RTCP at all",
        );
    }
    w.assert_empty();
    assert_eq!(w.counters().rtcp_unknown, 6);
}

#[test]
fn rtcp_report_from_unknown_port_counts_if_session_is_unambiguous() {
    let mut w = World::new();
    let c = w.connect();
    let from = "192.0.2.7:33333".parse().unwrap();
    w.setup_udp(c);
    w.wait(50 * SECOND);
    w.server.face(&mut w.service).handle_datagram(
        w.now,
        UdpPort::Rtcp,
        from,
        &receiver_report(0x1234_abcd, false),
    );
    w.wait(50 * SECOND);
    assert_eq!(w.service.streams().len(), 1);
    // Two sessions of the same title at that address: it could be either.
    w.ask(
        c,
        "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;unicast;client_port=6000-6001",
    );
    w.server.face(&mut w.service).handle_datagram(
        w.now,
        UdpPort::Rtcp,
        from,
        &receiver_report(0x1234_abcd, false),
    );
    assert_eq!(w.counters().rtcp_unknown, 1);
}

#[test]
fn interleaved_sessions_live_as_long_as_their_connection() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_tcp(c);
    w.ask_session(c, "PLAY", &id, "");
    w.wait(SECOND);
    // GStreamer and VLC say nothing while they pause over TCP.
    w.ask_session(c, "PAUSE", &id, "");
    w.wait(3600 * SECOND);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    w.hang_up(c);
    assert_eq!(ended(&w), [EndReason::Disconnected]);
    w.assert_empty();
    // One that has never played ends at its time-out.
    let c = w.connect();
    w.setup_tcp(c);
    w.wait(64 * SECOND);
    assert_eq!(w.service.streams().len(), 1);
    w.wait(2 * SECOND);
    assert_eq!(ended(&w).last(), Some(&EndReason::Expired));
    w.assert_empty();
}

#[test]
fn loss_reports_change_nothing() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "");
    w.take_log();
    for _ in 0..100 {
        w.server.face(&mut w.service).handle_datagram(
            w.now,
            UdpPort::Rtcp,
            RTCP.parse().unwrap(),
            &receiver_report(0x1234_abcd, false),
        );
        w.settle();
    }
    assert_eq!(w.take_log(), Vec::<String>::new());
    assert_eq!(w.server.sessions(&w.service, w.now)[0].state, SessionState::Playing);
}

#[test]
fn bye_ends_a_session_only_together_with_its_connection() {
    let mut w = World::new();
    let bye = receiver_report(0x1234_abcd, true);
    // A: BYE alone ends nothing: it can be forged, and live555 sends one before it is done.
    let c = w.connect();
    let id = w.setup_udp(c);
    w.server.face(&mut w.service).handle_datagram(w.now, UdpPort::Rtcp, RTCP.parse().unwrap(), &bye);
    w.settle();
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    // B: that PLAY was a sign of life, so the end of the connection alone ends nothing either.
    w.hang_up(c);
    assert_eq!(w.service.streams().len(), 1);
    // C: both.
    w.server.face(&mut w.service).handle_datagram(w.now, UdpPort::Rtcp, RTCP.parse().unwrap(), &bye);
    w.settle();
    assert_eq!(ended(&w), [EndReason::Disconnected]);
    w.assert_empty();
}

#[test]
fn session_after_disconnect_continues_on_another_connection() {
    let mut w = World::new();
    let first = w.connect();
    let id = w.setup_udp(first);
    w.ask_session(first, "PLAY", &id, "");
    w.hang_up(first);
    let second = w.connect_from("192.0.2.7:40001");
    assert_eq!(w.ask_session(second, "PAUSE", &id, "").status, 200);
    assert_eq!(w.ask_session(second, "TEARDOWN", &id, "").status, 200);
    w.assert_empty();
}

#[test]
fn setup_on_port_of_stale_session_replaces_it() {
    let mut w = World::with(|config| config.service.max_streams = 1);
    // A: a box that was switched off and on again: its old connection still counts as open, the server is full.
    let old = w.connect();
    let first = w.setup_udp(old);
    w.ask_session(old, "PLAY", &first, "");
    w.wait(31 * SECOND);
    let new = w.connect_from("192.0.2.7:40001");
    let second = w.setup_udp(new);
    assert_eq!(ended(&w), [EndReason::Replaced]);
    assert_eq!(w.ask_session(old, "PLAY", &first, "").status, 454);
    // B: a box that changes the channel without TEARDOWN.
    let third = w
        .ask(new, "SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;client_port=5000-5001");
    assert_eq!(w.ask_session(new, "PLAY", &second, "").status, 454);
    assert_eq!(w.ask_session(new, "PLAY", &third.session(), "").status, 200);
    // C: the same port of another address is another port, and a session may ask for its own port again.
    w.ask_session(new, "PAUSE", &third.session(), "");
    let again = format!("Session: {}\nTransport: RTP/AVP;client_port=5000-5001", third.session());
    let again = w.ask(new, &format!("SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 3\n{again}"));
    assert_eq!((again.status, again.session()), (200, third.session()));
    assert_eq!(w.counters().sessions_replaced, 2);
    w.ask_session(new, "TEARDOWN", &third.session(), "");
    w.assert_empty();
}

#[test]
fn setup_at_port_of_a_live_viewer_is_refused_and_ends_nothing() {
    let mut w = World::new();
    let victim = w.connect();
    let id = w.setup_udp(victim);
    w.ask_session(victim, "PLAY", &id, "");
    let other = w.connect_from("192.0.2.7:40001");
    let setup = |w: &mut World, conn, transport: &str| {
        w.ask(conn, &format!("SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 1\nTransport: {transport}"))
    };
    // Requests that overlap its RTP or RTCP port.
    for ports in ["5000-5001", "5001-5002", "4999-5000", "5000"] {
        let refused = setup(&mut w, other, &format!("RTP/AVP;unicast;client_port={ports}"));
        assert_eq!((refused.status, refused.has("session")), (461, false), "{ports}");
        assert!(refused.reason.contains("uses UDP port 500"), "{refused:?}");
    }
    assert_eq!(setup(&mut w, other, "RAW/RAW/UDP;unicast;client_port=5001").status, 461);
    // The server chooses the first possible entry of a list.
    let list =
        setup(&mut w, other, "RTP/AVP;client_port=5000-5001,RTP/AVP;client_port=6000-6001,RTP/AVP/TCP");
    assert!(list.get("transport").contains("client_port=6000-6001;"), "{list:?}");
    assert_eq!(w.ask_session(other, "TEARDOWN", &list.session(), "").status, 200);
    // A viewer that sends reports is present, however old its last request is.
    for _ in 0..8 {
        w.wait(5 * SECOND);
        let from = "192.0.2.7:5001".parse().unwrap();
        w.server.face(&mut w.service).handle_datagram(
            w.now,
            UdpPort::Rtcp,
            from,
            &receiver_report(0x1234_abcd, false),
        );
        assert_eq!(setup(&mut w, other, "RTP/AVP;client_port=5000-5001").status, 461);
    }
    assert_eq!(w.ask_session(victim, "PLAY", &id, "").status, 200);
    assert_eq!(ended(&w), [EndReason::TornDown]);
    // The viewer has stopped reporting.
    w.wait(16 * SECOND);
    assert_eq!(setup(&mut w, other, "RTP/AVP;client_port=5000-5001").status, 200);
    assert_eq!(ended(&w), [EndReason::TornDown, EndReason::Replaced]);
}

#[test]
fn setup_that_is_not_admitted_replaces_nothing() {
    let mut w = World::with(|config| config.service.max_streams = 1);
    let gone = w.connect();
    let id = w.setup_udp(gone);
    w.ask_session(gone, "PLAY", &id, "");
    w.hang_up(gone);
    let other = w.connect_from("192.0.2.7:40001");
    let ports = "Transport: RTP/AVP;unicast;client_port=5000-5001";
    let refused = w.ask(other, &format!("SETUP rtsp://192.0.2.1/broken RTSP/1.0\nCSeq: 1\n{ports}"));
    assert_eq!(refused.status, 500);
    // The existing stream still has its reservation.
    let third = w.connect_from("192.0.2.8:40001");
    let full = w.ask(third, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP");
    assert_eq!((full.status, ended(&w)), (453, vec![]));
    assert_eq!(w.ask_session(other, "PAUSE", &id, "").status, 200);
}

#[test]
fn end_of_title_is_reported_once_and_keeps_session() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "Range: npt=0-4");
    w.wait(8 * SECOND);
    let finished = w.notices.iter().filter(|n| matches!(n, ServiceEvent::Finished { .. })).count();
    assert_eq!((finished, w.service.streams().len()), (1, 1));
    assert_eq!(w.server.sessions(&w.service, w.now)[0].state, SessionState::Ready);
    // A: a jump back; the sequence goes on behind BYE.
    w.take_log();
    let a = w.ask_session(c, "PLAY", &id, "Range: npt=2-3");
    assert_eq!(a.get("rtp-info"), "url=rtsp://192.0.2.1/film/track1;seq=1601;rtptime=1180000");
    assert_eq!(w.take_log(), ["reply 200", "play 800..1200 seq 1601 in 0ms"]);
    w.wait(5 * SECOND);
    // B: without a Range it begins again (RFC 2326 section 10.5: it was not paused).
    let b = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((b.status, b.get("range")), (200, "npt=0.000-60.000"));
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "TEARDOWN", &id, "").status, 200);
    w.assert_empty();
    assert_eq!(w.counters().titles_finished, 2);
}

#[test]
fn pause_crossing_end_of_title_allows_later_play() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "Range: npt=0-4");
    w.engine.silent = true;
    w.wait(8 * SECOND); // Ended is on its way
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 9\nSession: {id}\nRange: npt=10-"));
    w.engine.silent = false;
    w.settle();
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!(answer.get("rtp-info"), "url=rtsp://192.0.2.1/film/track1;seq=1601;rtptime=1900000");
}

#[test]
fn sequence_numbers_wrap() {
    let mut w = World::new();
    let c = w.connect();
    let s = w.ask(c, "SETUP rtsp://192.0.2.1/long RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP");
    let id = s.session();
    let a = w.ask_session(c, "PLAY", &id, "Range: npt=164-");
    assert_eq!(
        a.get("rtp-info"),
        "url=rtsp://192.0.2.1/long;seq=65;rtptime=15760000",
        "65,600 + 1 mod 65,536"
    );
    w.wait(163 * SECOND + 50 * MS);
    let b = w.ask_session(c, "PLAY", &id, "Range: npt=0-");
    assert_eq!(b.get("rtp-info"), "url=rtsp://192.0.2.1/long;seq=65266;rtptime=1000000");
}

#[test]
fn max_streams_reached_refuses_next_setup_with_453() {
    let mut w = World::with(|config| {
        config.service.max_streams = 2;
        config.service.address_share_percent = 100;
    });
    let c = w.connect();
    let first = w.setup_tcp(c);
    let second = w.setup_tcp(c);
    for id in [&first, &second] {
        assert_eq!(w.ask_session(c, "PLAY", id, "").status, 200);
    }
    let a = w.ask(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP/TCP");
    assert_eq!((a.status, a.has("session")), (453, false));
    assert_eq!(a.reason, "Not Enough Bandwidth: all 2 streams are in use (--max-streams)");
    assert!(matches!(w.notices.last(), Some(ServiceEvent::Refused { status: 453, .. })));
    // A viewer that leaves makes room.
    w.ask_session(c, "TEARDOWN", &first, "");
    w.setup_tcp(c);
    w.hang_up(c);
    w.assert_empty();
}

#[test]
fn streams_per_engine_reached_refuses_setup_with_453() {
    let mut w = World::with(|config| config.service.streams_per_engine = 1);
    let c = w.connect();
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "");
    let more = "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP;client_port=7000";
    assert_eq!(w.ask(c, more).status, 453);
    // Its place is free only when the engine has reported it.
    w.engine.silent = true;
    w.ask_session(c, "TEARDOWN", &id, "");
    assert_eq!((w.service.streams().len(), w.service.place_count()), (0, 1));
    assert_eq!(w.ask(c, more).status, 453);
    w.engine.silent = false;
    w.settle();
    assert_eq!(w.ask(c, more).status, 200);
}

#[test]
fn bit_rates_are_summed() {
    for (basis, fit) in [(RateBasis::Mean, 2), (RateBasis::Peak, 1)] {
        let mut w = World::with(|config| {
            config.service.rate_basis = basis;
            config.service.max_rate = Some("10Mb/s".parse().unwrap());
            config.service.address_share_percent = 100;
        });
        let c = w.connect();
        for _ in 0..fit {
            let id = w.setup_tcp(c);
            assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
        }
        let a = w.ask(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP/TCP");
        assert_eq!(a.status, 453, "{basis:?}");
        assert!(a.reason.contains("of 10Mb/s in use"), "{}", a.reason);
        w.hang_up(c);
        w.assert_empty();
    }
}

#[test]
fn sessions_of_one_connection_and_of_one_address_are_bounded() {
    let mut w = World::with(|config| {
        config.service.max_sessions_per_connection = 2;
        config.service.max_sessions_per_address = 3;
    });
    let first = w.connect();
    let udp = |port: u16| {
        format!("SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP;client_port={port}")
    };
    assert_eq!(w.ask(first, &udp(7000)).status, 200);
    assert_eq!(w.ask(first, &udp(7002)).status, 200);
    assert_eq!(w.ask(first, &udp(7004)).status, 503, "of one connection");
    let second = w.connect();
    assert_eq!(w.ask(second, &udp(7006)).status, 200);
    assert_eq!(w.ask(second, &udp(7008)).status, 503, "of one address");
    let elsewhere = w.connect_from("192.0.2.8:1000");
    assert_eq!(w.ask(elsewhere, &udp(7000)).status, 200);
    w.wait(70 * SECOND);
    w.assert_empty();
    let again = w.connect();
    assert_eq!(w.ask(again, &udp(7000)).status, 200, "the counts went back");
}

#[test]
fn connections_are_bounded_in_all_and_by_address() {
    let mut w = World::with(|config| {
        config.service.max_connections = 5;
        config.service.max_connections_per_address = 2;
    });
    let open = |w: &mut World, peer: &str| {
        w.server.face(&mut w.service).conn_opened(
            w.now,
            peer.parse().unwrap(),
            "192.0.2.1:554".parse().unwrap(),
        )
    };
    let a = open(&mut w, "192.0.2.7:1").unwrap();
    open(&mut w, "192.0.2.7:2").unwrap();
    assert_eq!(open(&mut w, "192.0.2.7:3"), Err(ConnRefusal::Address));
    // One IPv6 /64 is one address.
    open(&mut w, "[2001:db8::1]:1").unwrap();
    open(&mut w, "[2001:db8::2]:1").unwrap();
    assert_eq!(open(&mut w, "[2001:db8::3]:1"), Err(ConnRefusal::Address));
    open(&mut w, "[2001:db8:0:1::3]:1").unwrap();
    assert_eq!(open(&mut w, "192.0.2.9:1"), Err(ConnRefusal::Full));
    w.hang_up(a);
    open(&mut w, "192.0.2.7:4").unwrap();
    let counters = w.counters();
    assert_eq!((counters.connections_refused, counters.connections_refused_address), (1, 2));
}

#[test]
fn slow_and_silent_connections_are_closed() {
    let mut w = World::new();
    let silent = w.connect();
    let slow = w.connect();
    let idle = w.connect();
    w.push(slow, b"OPTIONS rtsp://192.0.2.1/film RTSP/1.0\r\nCS");
    w.ask(idle, "OPTIONS * RTSP/1.0\nCSeq: 1");
    for _ in 0..4 {
        w.wait(2 * SECOND);
        w.push(slow, b"e"); // a byte now and then does not help
    }
    assert!(w.closed.is_empty());
    w.wait(3 * SECOND);
    assert!(w.closed.contains(&silent) && w.closed.contains(&slow) && !w.closed.contains(&idle));
    assert_eq!(w.answers[&slow][0].status, 408);
    assert_eq!(w.counters().connections_too_slow, 2);
    // One that has spoken but has no session is closed after the session time-out.
    w.wait(60 * SECOND);
    assert!(w.closed.contains(&idle));
    // One with a session stays.
    let busy = w.connect();
    let id = w.setup_tcp(busy);
    w.ask_session(busy, "PLAY", &id, "");
    w.wait(600 * SECOND);
    assert!(!w.closed.contains(&busy));
    // But not if it stops inside a message.
    w.push(busy, b"$");
    w.wait(12 * SECOND);
    assert!(w.closed.contains(&busy));
}

#[test]
fn stream_failure_ends_session_with_reason() {
    for (reason, end) in [
        (FailReason::SlowReader, EndReason::Failed(FailReason::SlowReader)),
        (FailReason::ConnectionClosed(104), EndReason::Disconnected),
        (
            FailReason::ReadError(LeaseFailure::Checksum),
            EndReason::Failed(FailReason::ReadError(LeaseFailure::Checksum)),
        ),
        (FailReason::Unreachable(111), EndReason::Failed(FailReason::Unreachable(111))),
    ] {
        let mut w = World::new();
        let c = w.connect();
        let id = w.setup_tcp(c);
        w.ask_session(c, "PLAY", &id, "");
        w.wait(SECOND);
        let stream = *w.engine.streams.keys().next().unwrap();
        w.engine.tell(StreamEvent::Failed { stream, reason });
        w.settle();
        assert_eq!(ended(&w), [end]);
        assert!(w.closed.contains(&c), "its player would wait for ever");
        w.assert_empty();
    }
}

#[test]
fn another_session_on_the_connection_survives_the_failure_of_one() {
    let mut w = World::new();
    let c = w.connect();
    w.setup_tcp(c);
    let stream = *w.engine.streams.keys().next().unwrap();
    let other = w.setup_tcp(c);
    w.engine.tell(StreamEvent::Failed { stream, reason: FailReason::ReadError(LeaseFailure::Io(5)) });
    w.settle();
    assert!(!w.closed.contains(&c));
    assert_eq!(w.ask_session(c, "PLAY", &other, "").status, 200);
}

#[test]
fn stream_refused_by_engine_leaks_nothing() {
    let mut w = World::new();
    w.engine.max_streams = 0;
    let c = w.connect();
    w.tell(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;client_port=5000");
    assert!(matches!(ended(&w)[..], [EndReason::Refused(_)]));
    w.assert_empty();
    w.engine.max_streams = 1;
    let again = w.connect();
    w.setup_udp(again);
}

#[test]
fn connection_lost_in_engine_ends_its_interleaved_sessions() {
    let mut w = World::new();
    let c = w.connect();
    w.setup_tcp(c);
    let udp = w.ask(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;client_port=7000");
    let conn = millrace_core::ids::ConnId(*w.engine.conns.iter().next().unwrap());
    for _ in 0..2 {
        w.engine_event(0, command::Event::ConnGone { conn, errno: 104 }); // it may be told twice
        w.settle();
    }
    assert!(w.closed.contains(&c));
    assert_eq!(w.service.streams().len(), 1, "the one by UDP lives on");
    w.hang_up(c);
    let again = w.connect();
    assert_eq!(w.ask_session(again, "PLAY", &udp.session(), "").status, 200);
}

#[test]
fn late_events_of_closed_streams_find_nobody() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    let stream = *w.engine.streams.keys().next().unwrap();
    w.ask_session(c, "TEARDOWN", &id, "");
    w.setup_udp(c); // the same place, another generation
    let run = RunSerial(1);
    let end = RunEnd {
        run,
        reason: StopReason::Finished,
        next_packet: 1,
        next_sequence: 1,
        bursts: 1,
        packets: 1,
        bytes: 1,
        missing: 0,
        next_due: w.now,
    };
    for event in [
        StreamEvent::RunBegan { stream, run, at: w.now },
        StreamEvent::RunEnded { stream, end },
        StreamEvent::RunEnded { stream, end: RunEnd { reason: StopReason::Paused, ..end } },
        StreamEvent::Failed { stream, reason: FailReason::SlowReader },
        StreamEvent::Closed { stream, packets: 1, bytes: 1, unreachable: 0, late: 0 },
    ] {
        w.engine_event(0, command::Event::Stream(event));
        w.engine_event(7, command::Event::Stream(event));
    }
    w.settle();
    assert_eq!((w.service.streams().len(), w.service.place_count()), (1, 1));
}

#[test]
fn session_events_are_logged_in_one_line_each() {
    let mut w = World::new();
    let c = w.connect();
    let s = w.ask(
        c,
        "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nUser-Agent: VLC\nTransport: RTP/AVP;unicast;client_port=5000-5001",
    );
    let id = s.session();
    w.ask_session(c, "PLAY", &id, "");
    w.wait(SECOND);
    w.ask_session(c, "PLAY", &id, "Range: npt=20-");
    w.ask_session(c, "PAUSE", &id, "");
    w.ask_session(c, "TEARDOWN", &id, "");
    let lines: Vec<_> = w.notices.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "session 00000000 started: film for 192.0.2.7:40000 by udp 5000-5001 (VLC), asked for by conn-1, engine 0",
            "session 00000000 plays: film from 0:00:00.000",
            "session 00000000 seeks: film from 0:00:20.000",
            "session 00000000 pauses: film",
            "session 00000000 ended: film for 192.0.2.7:40000, torn down, after 1.0 s, 8001 packets, 10625328 bytes, \
             0 refused, 0 late",
        ]
    );
    assert!(w.notices.iter().all(|notice| !notice.is_failure() && !notice.is_warning()));
    assert!(!lines.iter().any(|line| line.contains(&id)), "the name is the key to the session");
}

#[test]
fn shutdown_ends_everything() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_tcp(c);
    w.ask_session(c, "PLAY", &id, "");
    w.setup_udp(c);
    assert_eq!(w.service.begin_shutdown(), 1, "one viewer waits for BYE");
    let refused = w.server.face(&mut w.service).conn_opened(
        w.now,
        "192.0.2.9:1".parse().unwrap(),
        "192.0.2.1:554".parse().unwrap(),
    );
    assert_eq!(refused, Err(ConnRefusal::ShuttingDown));
    let more = w.ask(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 9\nTransport: RTP/AVP/TCP");
    assert_eq!(more.status, 503);
    w.server.face(&mut w.service).shut_down(w.now);
    w.settle();
    assert!(w.closed.contains(&c));
    assert_eq!(ended(&w), [EndReason::Shutdown, EndReason::Shutdown]);
    w.assert_empty();
}

#[test]
fn engine_gone_releases_all_streams_and_titles() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.setup_udp(c);
    w.engine.silent = true;
    w.ask_session(c, "TEARDOWN", &id, "");
    w.on_service(|service, now| service.engine_gone(now, 0));
    w.settle();
    assert_eq!((w.service.streams().len(), w.service.place_count(), w.open_titles.open_count()), (0, 0, 0));
}
