//! Every method and every status it can be answered with (RFC 2326 sections 10 and 11).

use crate::rtsp_support::{Answer, SECOND, World};
use millrace_server::service::ServiceEvent;

fn status(w: &mut World, request: &str) -> u16 {
    let c = w.connect();
    let answer = w.ask(c, request);
    w.hang_up(c);
    answer.status
}

#[test]
fn options_on_a_star_on_a_url_and_with_a_session() {
    let mut w = World::new();
    assert_eq!(status(&mut w, "OPTIONS * RTSP/1.0\nCSeq: 1"), 200);
    assert_eq!(status(&mut w, "OPTIONS rtsp://192.0.2.1/nothing RTSP/1.0\nCSeq: 1"), 200);
    assert_eq!(status(&mut w, "OPTIONS * RTSP/1.0\nCSeq: 1\nSession: gone"), 454);
    let c = w.connect();
    let id = w.setup_udp(c);
    let a = w.ask(c, &format!("OPTIONS * RTSP/1.0\nCSeq: 9\nSession: {id};timeout=60"));
    assert_eq!((a.status, a.session()), (200, id));
}

#[test]
fn request_with_general_error_returns_matching_status() {
    let mut w = World::new();
    assert_eq!(status(&mut w, "OPTIONS * RTSP/1.0"), 400, "no CSeq");
    assert_eq!(status(&mut w, "OPTIONS * RTSP/1.0\nCSeq: x"), 400);
    assert_eq!(status(&mut w, "OPTIONS * RTSP/1.0\nCSeq: -1"), 400);
    assert_eq!(status(&mut w, "OPTIONS * RTSP/2.0\nCSeq: 1"), 505);
    assert_eq!(status(&mut w, "OPTIONS * RTSP/7.3\nCSeq: 1"), 505);
    assert_eq!(status(&mut w, "DESCRIBE http://192.0.2.1/film RTSP/1.0\nCSeq: 1"), 400);
    assert_eq!(status(&mut w, "SETUP * RTSP/1.0\nCSeq: 1"), 405);
    assert_eq!(status(&mut w, "PLAY * RTSP/1.0\nCSeq: 1"), 405);
    for method in ["ANNOUNCE", "RECORD", "REDIRECT", "FROBNICATE", "PLAY_NOTIFY"] {
        let c = w.connect();
        let answer = w.ask(c, &format!("{method} rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1"));
        assert_eq!((answer.status, answer.has("public")), (501, true), "{method}");
    }
    let c = w.connect();
    for header in ["Require", "Proxy-Require"] {
        let a = w.ask(c, &format!("SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 4\n{header}: funky-feature\nTransport: RTP/AVP/TCP"));
        assert_eq!((a.status, a.get("unsupported"), a.get("cseq")), (551, "funky-feature", "4"));
    }
    let long = format!("OPTIONS rtsp://192.0.2.1/{} RTSP/1.0\nCSeq: 1", "x".repeat(3000));
    assert_eq!(status(&mut w, &long), 414);
    w.assert_empty();
}

#[test]
fn reply_echoes_cseq_and_timestamp_and_has_date() {
    let mut w = World::with(|config| config.wall_offset_ns = 784_111_677 * SECOND);
    let c = w.connect();
    let a = w.ask(c, "OPTIONS * RTSP/1.0\nCSeq: 4294967295\nTimestamp: 3.125");
    assert_eq!((a.get("cseq"), a.get("timestamp")), ("4294967295", "3.125"));
    assert_eq!(a.get("date"), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert!(a.get("server").starts_with("millrace/"));
}

#[test]
fn connection_close_is_obeyed_after_the_reply() {
    let mut w = World::new();
    let c = w.connect();
    assert_eq!(w.ask(c, "OPTIONS * RTSP/1.0\nCSeq: 1\nConnection: close").status, 200);
    assert!(w.closed.contains(&c));
}

#[test]
fn describe() {
    let mut w = World::new();
    assert_eq!(status(&mut w, "DESCRIBE rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1"), 200);
    assert_eq!(
        status(
            &mut w,
            "DESCRIBE rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 1\nAccept: application/rtsl, application/sdp;level=-2"
        ),
        200
    );
    assert_eq!(status(&mut w, "DESCRIBE rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nAccept: text/html"), 406);
    for url in [
        "rtsp://192.0.2.1/nothing",
        "rtsp://192.0.2.1/",
        "rtsp://192.0.2.1",
        "rtsp://192.0.2.1/film/track2",
        "rtsp://192.0.2.1/%ff",
    ] {
        assert_eq!(status(&mut w, &format!("DESCRIBE {url} RTSP/1.0\nCSeq: 1")), 404, "{url}");
    }
    let c = w.connect();
    let a = w.ask(c, "DESCRIBE rtsp://user:secret@192.0.2.1:8554/film?x=y RTSP/1.0\nCSeq: 1");
    assert_eq!(a.get("content-base"), "rtsp://192.0.2.1:8554/film/");
}

fn setup(w: &mut World, url: &str, transport: &str) -> Answer {
    let c = w.connect();
    let answer = w.ask(c, &format!("SETUP {url} RTSP/1.0\nCSeq: 1\nTransport: {transport}"));
    w.hang_up(c);
    answer
}

#[test]
fn setup_urls() {
    let mut w = World::new();
    for url in ["film", "film/", "film/track1", "film/track1/"] {
        let answer = setup(&mut w, &format!("rtsp://192.0.2.1/{url}"), "RTP/AVP/TCP");
        assert_eq!(answer.status, 200, "{url}");
    }
    assert_eq!(setup(&mut w, "rtsp://192.0.2.1/", "RTP/AVP/TCP").status, 459, "the folder of all titles");
    assert_eq!(setup(&mut w, "rtsp://192.0.2.1", "RTP/AVP/TCP").status, 459);
    assert_eq!(setup(&mut w, "rtsp://192.0.2.1/nothing", "RTP/AVP/TCP").status, 404);
    assert_eq!(setup(&mut w, "rtsp://192.0.2.1/film/track2", "RTP/AVP/TCP").status, 404);
    assert_eq!(setup(&mut w, "rtsp://192.0.2.1/broken", "RTP/AVP/TCP").status, 500);
    let crowded = setup(&mut w, "rtsp://192.0.2.1/crowded", "RTP/AVP/TCP");
    assert_eq!((crowded.status, crowded.get("retry-after")), (503, "10"));
    w.assert_empty();
}

#[test]
fn setup_transports() {
    let mut w = World::new();
    let url = "rtsp://192.0.2.1/film";
    let c = w.connect();
    assert_eq!(w.ask(c, &format!("SETUP {url} RTSP/1.0\nCSeq: 1")).status, 400, "no Transport");
    for refused in [
        "RTP/AVP;multicast",
        "MP2T/H2221/UDP;unicast",
        "MP2T/H2222/TCP;unicast;client_port=5000",
        "MP2T/UDP;unicast",
        "MP2T/RTP/UDP;multicast;client_port=5000-5001",
        "RAW/RAW/UDP;multicast;client_port=5000-5001",
        "RAW/RAW/UDP;unicast;client_port=5000-5001;mode=RECORD",
        "RTP/SAVP;unicast;client_port=5000-5001",
        "RTP/AVP;unicast",
        "RTP/AVP;unicast;client_port=0-1",
        "RTP/AVP;unicast;client_port=65535",
        "RTP/AVP;unicast;client_port=70000-70001",
        "RTP/AVP/TCP;unicast;interleaved=0-1;mode=RECORD",
        "RTP/AVP;dest_addr=\"/\"",
        "",
    ] {
        let answer = setup(&mut w, url, refused);
        assert_eq!((answer.status, answer.has("session")), (461, false), "{refused}");
    }
    // The first acceptable one of a list wins.
    let list =
        setup(&mut w, url, "RTP/AVP;multicast;ttl=127, RTP/AVP;unicast;client_port=6000-6001, RTP/AVP/TCP");
    assert!(
        list.get("transport").starts_with("RTP/AVP;unicast;client_port=6000-6001;server_port=50000-50001;")
    );
    // A single port: RTCP on the next.
    assert!(
        setup(&mut w, url, "RTP/AVP;client_port=7000").get("transport").contains("client_port=7000-7001;")
    );
    w.wait(70 * SECOND); // sessions by UDP outlive their connections
    w.assert_empty();
}

#[test]
fn setup_by_names_of_set_top_boxes_is_answered_in_these_names() {
    let mut w = World::new();
    let url = "rtsp://192.0.2.1/film/?user=box&icpid=7";
    for (asked, answered, opened) in [
        (
            "MP2T/RTP/UDP;unicast;client_port=6000-6001",
            "MP2T/RTP/UDP;unicast;client_port=6000-6001;",
            "open udp 192.0.2.7 6000 6001",
        ),
        (
            "MP2T/UDP;unicast;client_port=6000-6001",
            "MP2T/UDP;unicast;client_port=6000;",
            "open raw 192.0.2.7 6000",
        ),
        (
            "mp2t/rtp/tcp;unicast;destination=192.0.2.7;client_port=0-0",
            "MP2T/RTP/TCP;unicast;interleaved=0-1;ssrc=",
            "open tcp 0 1",
        ),
        ("MP2T / TCP ; interleaved = 4 - 5", "MP2T/TCP;unicast;interleaved=4-5;mode=", "open tcp 4 5"),
    ] {
        let conn = w.connect();
        let answer = w.ask(conn, &format!("SETUP {url} RTSP/1.0\nCSeq: 1\nTransport: {asked}"));
        assert_eq!(answer.status, 200, "{asked}: {answer:?}");
        assert!(answer.get("transport").starts_with(answered), "{asked}: {answer:?}");
        assert!(w.take_log().contains(&opened.to_owned()), "{asked}");
        let id = answer.session();
        for (range, from) in [("beginning-", "npt=0.000-"), ("now-", ""), ("end-", "npt=5")] {
            let play = w.ask_session(conn, "PLAY", &id, &format!("Range: npt={range}"));
            assert_eq!(play.status, 200, "{range}: {play:?}");
            assert!(play.get("range").starts_with(from), "{range}: {play:?}");
        }
        assert_eq!(w.ask_session(conn, "PLAY", &id, "Range: clock=beginning-").status, 200);
        assert_eq!(
            w.ask_session(conn, "PLAY", &id, "Range: smpte-25=0:00:20:00-").get("range"),
            "npt=20.000-60.000"
        );
        assert_eq!(w.ask_session(conn, "PLAY", &id, "Range: clock=20261128T100000Z-").status, 501);
        assert_eq!(w.ask_session(conn, "TEARDOWN", &id, "").status, 200);
        w.hang_up(conn);
    }
}

#[test]
fn media_by_udp_comes_from_the_address_that_was_called() {
    let mut w = World::with(|config| config.route_source = |_| Some([192, 0, 2, 9].into()));
    let setup =
        "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port=5000-5001";
    let source = |w: &World| w.server.sessions(&w.service, w.now)[0].path.source();
    let c = w.connect();
    let answer = w.ask(c, setup);
    assert!(answer.get("transport").contains(";source=192.0.2.1;"), "{answer:?}");
    assert!(!source(&w).is_by_route());
    // A URL with a host name does not show which address the viewer used.
    let d = w.connect_from("192.0.2.8:40000");
    let answer = w.ask(d, &setup.replace("192.0.2.1", "tv.example"));
    assert!(!answer.get("transport").contains("source="), "{answer:?}");
    // The route already uses that address.
    let mut w = World::with(|config| config.route_source = |_| Some([192, 0, 2, 1].into()));
    let c = w.connect();
    assert_eq!((w.ask(c, setup).status, source(&w).is_by_route()), (200, true));
}

#[test]
fn connection_bound_to_engine_refuses_udp_transport() {
    let mut w = World::new();
    let url = "rtsp://192.0.2.1/film";
    let c = w.connect();
    w.service.bind_conn(c, 0);
    let ask = |w: &mut World, transport: &str| {
        w.ask(c, &format!("SETUP {url} RTSP/1.0\nCSeq: 1\nTransport: {transport}"))
    };
    for by_udp in ["RTP/AVP;unicast;client_port=6000-6001", "RAW/RAW/UDP;unicast;client_port=6000"] {
        let answer = ask(&mut w, by_udp);
        assert_eq!((answer.status, answer.has("session")), (461, false), "{answer:?}");
        assert!(answer.reason.contains("RTP/AVP/TCP interleaved: no UDP comes from"), "{answer:?}");
    }
    // The server takes the available transport of a list.
    let answer = ask(&mut w, "RTP/AVP;unicast;client_port=6000-6001, RTP/AVP/TCP;unicast;interleaved=0-1");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(answer.get("transport").starts_with("RTP/AVP/TCP;unicast;interleaved=0-1;"), "{answer:?}");
    // A session by UDP that another connection has made can be spoken of here.
    let other = w.connect();
    let session = w.setup_udp(other);
    assert_eq!(w.ask_session(c, "PLAY", &session, "").status, 200);
    assert_eq!(w.ask_session(c, "TEARDOWN", &session, "").status, 200);
    w.hang_up(c);
    w.hang_up(other);
    w.assert_empty();
}

#[test]
fn udp_goes_to_the_peer_whatever_destination_says() {
    let mut w = World::new();
    let c = w.connect();
    let a = w.ask(c, "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;destination=198.51.100.9;client_port=5000-5001");
    assert_eq!(a.status, 200);
    assert!(!a.get("transport").contains("198.51.100.9"));
    assert_eq!(w.take_log()[0], "open udp 192.0.2.7 5000 5001");
    // A viewer that came through an IPv6 socket with an IPv4 address counts as IPv4.
    let peer = "[::ffff:192.0.2.8]:4000".parse().unwrap();
    let c = w
        .server
        .face(&mut w.service)
        .conn_opened(w.now, peer, "[::ffff:192.0.2.1]:554".parse().unwrap())
        .unwrap();
    let b = w.ask(
        c,
        "SETUP rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port=5000-5001",
    );
    assert!(b.get("transport").contains("server_port=50000-50001"));
    assert!(w.take_log().contains(&"open udp 192.0.2.8 5000 5001".to_owned()));
}

#[test]
fn setup_of_ready_session_changes_transport() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=10-").status, 200);
    // Playing: 455 with the allowed methods.
    let a = w.ask_session(c, "SETUP", &id, "Transport: RTP/AVP/TCP;interleaved=0-1");
    assert_eq!((a.status, a.session()), (455, id.clone()));
    assert!(a.get("allow").contains("PAUSE") && !a.get("allow").contains("SETUP"));
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    w.take_log();
    // Ready: the same session, another stream.
    let b = w.ask_session(c, "SETUP", &id, "Transport: RTP/AVP/TCP;interleaved=0-1");
    assert_eq!((b.status, b.session()), (200, id.clone()));
    assert_eq!(w.take_log(), ["attach", "close", "open tcp 0 1", "reply 200"]);
    assert_eq!((w.service.streams().len(), w.service.place_count(), w.open_titles.open_count()), (1, 1, 1));
    // It goes on where it was, without a jump in the sequence.
    let d = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((d.status, d.get("range")), (200, "npt=11.0025-60.000"));
    assert_eq!(w.take_log(), ["reply 200", "play 4401..24000 seq 4402 in 50ms"]);
    // Another title in the same session: that would be an aggregate.
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    let e = w.ask(
        c,
        &format!("SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 7\nSession: {id}\nTransport: RTP/AVP/TCP"),
    );
    assert_eq!(e.status, 459);
    // A session that is not there.
    assert_eq!(w.ask_session(c, "SETUP", "nobody", "Transport: RTP/AVP/TCP").status, 454);
    w.hang_up(c);
    w.assert_empty();
}

#[test]
fn play_and_pause_need_a_session() {
    let mut w = World::new();
    for method in ["PLAY", "PAUSE"] {
        let c = w.connect();
        let none = w.ask(c, &format!("{method} rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1"));
        assert_eq!((none.status, none.get("allow")), (455, "OPTIONS, DESCRIBE, SETUP"));
        assert_eq!(w.ask_session(c, method, "nobody", "").status, 454);
    }
    assert_eq!(status(&mut w, "TEARDOWN rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1"), 454);
    assert_eq!(status(&mut w, "TEARDOWN rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nSession: nobody"), 454);
}

#[test]
fn pause_is_idempotent_and_resume_goes_on() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200, "never played");
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=0-30").status, 200);
    w.wait(2 * SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "Range: npt=5-").status, 200);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200, "already paused");
    w.take_log();
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!(a.get("range"), "npt=2.0025-30.000", "where it stopped, to where it was going");
    assert_eq!(a.get("rtp-info"), "url=rtsp://192.0.2.1/film/track1;seq=802;rtptime=1180225");
    assert_eq!(w.take_log(), ["reply 200", "play 801..12000 seq 802 in 0ms"]);
}

/// A viewer that reads packets from the connection loses packets that directly follow the reply;
/// and the replies of such a connection are written by an engine that need not be the one that
/// sends by UDP.
#[test]
fn packets_wait_behind_replies_that_an_engine_writes() {
    let mut w = World::new();
    let (c, plain) = (w.connect(), w.connect());
    let by_tcp = w.setup_tcp(c);
    let by_udp = w.setup_udp(c);
    for (conn, session, play) in [
        (c, &by_tcp, "play 0..24000 seq 1 in 50ms"),
        (plain, &by_tcp, "play 4000..24000 seq 1 in 50ms"),
        (c, &by_udp, "play 0..24000 seq 1 in 50ms"),
        (plain, &by_udp, "play 4000..24000 seq 1 in 0ms"),
    ] {
        let range = if conn == c { "" } else { "Range: npt=10-" };
        assert_eq!(w.ask_session(conn, "PLAY", session, range).status, 200);
        assert_eq!(w.take_log().last().unwrap(), play);
    }
}

#[test]
fn play_while_playing() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    w.wait(SECOND);
    w.take_log();
    // Without a Range nothing changes.
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((a.status, a.has("rtp-info")), (200, false));
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=now-").status, 200);
    assert_eq!(w.take_log(), ["reply 200", "reply 200"]);
    // With one it is a seek: the stream stops first, so that the reply can name the next sequence number.
    let b = w.ask_session(c, "PLAY", &id, "Range: npt=45.5-50");
    assert_eq!(b.get("range"), "npt=44.000-50.000");
    assert_eq!(b.get("rtp-info"), "url=rtsp://192.0.2.1/film/track1;seq=402;rtptime=4960000");
    assert_eq!(w.take_log(), ["pause", "reply 200", "play 17600..20000 seq 402 in 0ms"]);
    // A new end only: from here.
    w.wait(SECOND);
    let d = w.ask_session(c, "PLAY", &id, "Range: npt=now-48");
    assert_eq!(d.get("range"), "npt=45.0025-48.000");
}

#[test]
fn seek_reply_waits_for_engine_and_blocks_other_requests() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    w.wait(SECOND);
    w.engine.silent = true;
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 20\nSession: {id}\nRange: npt=30-"));
    assert!(w.server.is_waiting(c));
    // Another connection cannot get in between.
    let other = w.connect();
    assert_eq!(w.ask_session(other, "PLAY", &id, "Range: npt=10-").status, 455);
    assert_eq!(w.ask_session(other, "SETUP", &id, "Transport: RTP/AVP/TCP").status, 455);
    w.engine.silent = false;
    w.settle();
    assert!(!w.server.is_waiting(c));
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!((answer.status, answer.get("cseq"), answer.get("range")), (200, "20", "npt=30.000-60.000"));
    // An engine that does not answer: 503 after two seconds, and the connection goes on.
    w.engine.silent = true;
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 21\nSession: {id}\nRange: npt=40-"));
    w.wait(3 * SECOND);
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!((answer.status, answer.get("cseq")), (503, "21"));
    assert!(!w.server.is_waiting(c));
    // TEARDOWN from elsewhere ends the wait with 454.
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 22\nSession: {id}\nRange: npt=40-"));
    assert_eq!(w.ask_session(other, "TEARDOWN", &id, "").status, 200);
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!((answer.status, answer.get("cseq")), (454, "22"));
    w.engine.silent = false;
    w.settle();
    w.assert_empty();
}

/// SETUP of `title` by a player of this name, then PLAY from `range`: the `Range` of the answer.
fn played_from(title: &str, agent: &str, range: &str) -> String {
    let mut w = World::new();
    let c = w.connect();
    let setup = w.ask(
        c,
        &format!("SETUP rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP/TCP;interleaved=0-1"),
    );
    let more = format!("User-Agent: {agent}\nRange: {range}");
    let answer = w.ask_session(c, "PLAY", &setup.session(), &more);
    assert_eq!(answer.status, 200, "{title} {range}: {answer:?}");
    let rtptime = answer.get("rtp-info").rsplit_once('=').unwrap().1.parse::<u32>().unwrap();
    let start = answer.get("range").trim_start_matches("npt=").split('-').next().unwrap().to_owned();
    let ticks = (start.parse::<f64>().unwrap() * 90_000.0).round() as u32;
    assert_eq!(rtptime, 1_000_000 + ticks, "both say the same place");
    answer.get("range").to_owned()
}

const LAVF: &str = "Lavf59.27.100";

#[test]
fn ffmpeg_asks_in_time_stamps_and_is_answered_in_media_time() {
    for (title, range, from) in [
        // It plays from 0 before it knows a stamp.
        ("recording", "npt=0.000-", "npt=0.000-60.700"),
        ("recording", "npt=5000.000-", "npt=0.000-60.700"),
        ("recording", "npt=5021.000-", "npt=20.000-60.700"),
        ("recording", "npt=4000.000-", "npt=0.000-60.700"),
        ("recording", "npt=9000.000-", "npt=58.000-60.700"),
        ("recording", "npt=5021.000-5030", "npt=20.000-30.000"),
        ("wrapping", "npt=0.000-", "npt=0.000-60.700"),
        ("wrapping", "npt=-5.000-", "npt=20.000-60.700"),
        ("wrapping", "npt=-4.-900-", "npt=20.000-60.700"),
        ("wrapping", "npt=4.500-", "npt=30.000-60.700"),
        ("feature", "npt=1800.000-", "npt=0.000-7200.700"),
        ("feature", "npt=2401.000-", "npt=600.000-7200.700"),
        ("feature", "npt=8400.000-", "npt=6600.000-7200.700"),
        ("joined", "npt=5040.000-", "npt=40.000-60.700"),
        ("joined", "npt=105.000-", "npt=34.000-60.700"),
        // Nothing is known of its stamps.
        ("film", "npt=21.000-", "npt=20.000-60.000"),
        ("film", "npt=5000.000-", "npt=58.000-60.000"),
    ] {
        assert_eq!(played_from(title, LAVF, range), from, "{title} {range}");
    }
}

#[test]
fn other_players_ask_in_media_time_unless_that_is_not_in_the_title() {
    for (title, range, from) in [
        ("feature", "npt=1800-", "npt=1800.000-7200.700"),
        ("feature", "npt=2401-2500", "npt=2400.000-2500.000"),
        ("feature", "npt=8001-8010", "npt=6200.000-6210.000"),
        ("recording", "npt=21-", "npt=20.000-60.700"),
        ("recording", "npt=5021-", "npt=20.000-60.700"),
        ("wrapping", "npt=-5-", "npt=20.000-60.700"),
        ("wrapping", "npt=0-", "npt=0.000-60.700"),
        ("film", "npt=60-", "npt=58.000-60.000"),
        ("film", "npt=61.5-", "npt=58.000-60.000"),
        ("film", "npt=70-80", "npt=58.000-60.000"),
        ("film", "npt=-3-", "npt=0.000-60.000"),
        ("film", "npt=-3-20", "npt=0.000-20.000"),
    ] {
        assert_eq!(played_from(title, "LibVLC/3.0.24", range), from, "{title} {range}");
    }
}

/// ffplay's keys ask by the stamp that it shows. Behind a join that is another recording's.
#[test]
fn seek_in_joined_recording_counts_from_current_part() {
    let mut w = World::new();
    let c = w.connect();
    let id = w
        .ask(
            c,
            "SETUP rtsp://192.0.2.1/joined RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port=5000-5001",
        )
        .session();
    let seek = |w: &mut World, range: &str| {
        assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
        let answer = w.ask_session(c, "PLAY", &id, &format!("User-Agent: {LAVF}\nRange: npt={range}"));
        answer.get("range").to_owned()
    };
    assert_eq!(seek(&mut w, "5025.000-"), "npt=24.000-60.700");
    w.wait(8 * SECOND);
    // At 32 s of film it shows stamp 102 s.
    assert_eq!(seek(&mut w, "112.000-"), "npt=42.000-60.700", "ten seconds on");
    assert_eq!(seek(&mut w, "95.000-"), "npt=24.000-60.700", "back across the join");
}

#[test]
fn refusal_is_logged_once_with_its_reason() {
    let mut w = World::new();
    let c = w.connect();
    let refusal = |w: &mut World| match w.notices.pop() {
        Some(ServiceEvent::Refused { title, status, reason, .. }) => (title, status, reason),
        other => panic!("{other:?}"),
    };
    w.ask(c, "DESCRIBE rtsp://192.0.2.1/none RTSP/1.0\nCSeq: 1");
    assert_eq!(refusal(&mut w), ("none".into(), 404, "DESCRIBE: Not Found: no such title".into()));
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "Range: npt=20-10");
    let (title, status, reason) = refusal(&mut w);
    assert_eq!((title.as_str(), status), ("film", 457));
    assert_eq!(reason, "PLAY: Invalid Range: the range must end after its start (Range: npt=20-10)");
    w.ask_session(c, "PLAY", &id, "Range: npt=\u{202e}x-");
    assert!(
        refusal(&mut w).2.ends_with("(Range: npt=?x-)"),
        "what a viewer sends does not reach the log raw"
    );
    // Found out only when the stream stands still.
    assert_eq!(w.ask_session(c, "PLAY", &id, "").status, 200);
    w.wait(3 * SECOND);
    w.ask_session(c, "PLAY", &id, "Range: npt=now-1");
    assert_eq!(refusal(&mut w).2, "PLAY: Invalid Range: there is nothing left to play");
    // A refusal for lack of room has one line, as before.
    let count = w.notices.len();
    w.ask(c, "DESCRIBE rtsp://192.0.2.1/torn RTSP/1.0\nCSeq: 9");
    assert_eq!(w.notices.len(), count + 1);
}

#[test]
fn ranges_that_make_no_sense() {
    let mut w = World::new();
    let c = w.connect();
    let id = w.setup_udp(c);
    w.take_log();
    for (range, status) in [
        ("npt=10-10", 457),
        ("npt=-2--1", 457),
        ("npt=-2-0", 457),
        ("npt=20-10", 457),
        ("npt=-0", 457),
        ("npt=x-", 457),
        ("npt=", 457),
        ("clock=19961108T142300Z-", 501),
        ("smpte=10:20-", 457),
        ("bytes=0-100", 501),
    ] {
        let answer = w.ask_session(c, "PLAY", &id, &format!("Range: {range}"));
        assert_eq!((answer.status, answer.session()), (status, id.clone()), "{range}");
    }
    assert!(w.take_log().iter().all(|line| line.starts_with("reply")), "nothing was sent to the engine");
    // The end may lie behind the title's, and -b means up to b.
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=0-1000").get("range"), "npt=0.000-60.000");
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    assert_eq!(
        w.ask_session(c, "PLAY", &id, "Range: npt=-1").status,
        457,
        "one second has been played already"
    );
    assert_eq!(w.ask_session(c, "PLAY", &id, "Range: npt=-20").get("range"), "npt=1.0025-20.000");
}

#[test]
fn play_reply_omits_rtp_info_and_range_if_inexact() {
    let mut w = World::new();
    let c = w.connect();
    let s =
        w.ask(c, "SETUP rtsp://192.0.2.1/blind RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;client_port=5000-5001");
    let id = s.session();
    assert!(w.ask_session(c, "PLAY", &id, "").has("rtp-info"), "access points have their times");
    w.wait(SECOND);
    w.ask_session(c, "PAUSE", &id, "");
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((a.status, a.has("rtp-info"), a.has("range")), (200, false, false));
    assert_eq!(w.take_log().last().unwrap(), "play 401..24000 seq 402 in 0ms");
}

#[test]
fn parameters() {
    let mut w = World::new();
    let c = w.connect();
    assert_eq!(w.ask(c, "GET_PARAMETER * RTSP/1.0\nCSeq: 1").status, 200, "keep-alive without a session");
    let id = w.setup_udp(c);
    w.ask_session(c, "PLAY", &id, "Range: npt=10-");
    w.wait(2 * SECOND);
    let a = w.ask_session(c, "GET_PARAMETER", &id, "Content-Length: 29\n\nposition\nstream_state\nscale");
    assert_eq!((a.status, a.get("content-type")), (200, "text/parameters"));
    assert_eq!(a.body, "position: 12.000\r\nstream_state: playing\r\nscale: 1.0\r\n");
    let b = w.ask_session(c, "GET_PARAMETER", &id, "Content-Length: 19\n\nduration\npacket_rx");
    assert_eq!((b.status, b.body.as_str()), (451, "packet_rx\r\n"));
    assert_eq!(w.ask_session(c, "SET_PARAMETER", &id, "").status, 200);
    let d = w.ask_session(c, "SET_PARAMETER", &id, "Content-Length: 10\n\nvolume: 11");
    assert_eq!((d.status, d.body.as_str()), (451, "volume\r\n"));
    assert_eq!(w.ask_session(c, "GET_PARAMETER", "nobody", "").status, 454);
}

#[test]
fn bad_bytes_are_answered_once_and_the_connection_is_closed() {
    let mut w = World::new();
    let c = w.connect();
    w.push(c, b"GET /film HTTP/1.1\r\nHost: x\r\n\r\nOPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n");
    let answers = w.answers.remove(&c).unwrap();
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [400]);
    assert_eq!(answers[0].get("connection"), "close");
    assert!(w.closed.contains(&c));
    let c = w.connect();
    w.push(c, &[b'x'; 1_000_000]);
    assert_eq!(w.answers[&c][0].status, 414);
    assert_eq!(w.counters().bad_messages, 2);
}

#[test]
fn transform_in_query_selects_transformed_title() {
    let mut w = World::new();
    let c = w.connect();
    let describe = |w: &mut World, query: &str| {
        w.ask(c, &format!("DESCRIBE rtsp://192.0.2.1/safe{query} RTSP/1.0\nCSeq: 1"))
    };
    let plain = describe(&mut w, "");
    assert!(
        plain.body.contains("a=control:track1\r\n") && plain.body.contains("x-millrace-fec"),
        "{plain:?}"
    );
    let german = describe(&mut w, "?x=1&transform=german");
    assert!(german.body.contains("a=control:track1?transform=german\r\n"), "{german:?}");
    assert!(!german.body.contains("x-millrace-fec"), "its packets are not those of the parity: {german:?}");
    let unknown = describe(&mut w, "?transform=German");
    assert!(
        unknown.status == 404 && unknown.reason.contains("no transformation of that name"),
        "{unknown:?}"
    );
    let setup = |w: &mut World, query: &str, more: &str| {
        let url = format!("rtsp://192.0.2.1/safe/track1?{query}");
        w.ask(c, &format!("SETUP {url} RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP/TCP{more}"))
    };
    let unfit = setup(&mut w, "transform=french", "");
    assert_eq!(unfit.status, 404);
    assert!(unfit.reason.contains("no audio in fra"), "{unfit:?}");
    let a = setup(&mut w, "transform=german", "");
    assert!(a.status == 200 && a.get("transport").contains("ssrc=DDDD0000"), "{a:?}");
    // FEC is refused, the title is not.
    let fec = setup(&mut w, "transform=german&fec=xor", "");
    assert!(fec.status == 200 && fec.get("x-millrace-fec").starts_with("off"), "{fec:?}");
    // Another transformation is another title.
    let session = format!("\nSession: {}", a.session());
    assert_eq!(setup(&mut w, "transform=german", &session).status, 200);
    for query in ["", "transform=french"] {
        assert_eq!(setup(&mut w, query, &session).status, 459, "{query}");
    }
}
