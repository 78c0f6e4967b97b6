//! `Scale` and `Speed` as players send them: the contents of the replies, refusals, and titles
//! whose other speeds have to be opened first.

use crate::rtsp_support::{Answer, SECOND, World};
use millrace_core::units::BitRate;
use millrace_server::service::{ConnKey, OpenError, ServiceEvent, TitlePart};

/// `Range`, `Scale`, `RTP-Info` without its URL.
fn played(answer: &Answer) -> (&str, &str, &str) {
    assert_eq!(answer.status, 200, "{answer:?}");
    let info = answer.get("rtp-info").split_once(';').map_or("", |(_, numbers)| numbers);
    (answer.get("range"), answer.get("scale"), info)
}

/// A player by UDP that plays `film` from its beginning.
fn player(w: &mut World) -> (ConnKey, String) {
    let conn = w.connect();
    let id = w.setup_udp(conn);
    let answer = w.ask_session(conn, "PLAY", &id, "Range: npt=0-");
    assert_eq!(played(&answer), ("npt=0.000-60.000", "", "seq=1;rtptime=1000000"));
    (conn, id)
}

fn parameters(w: &mut World, conn: ConnKey, id: &str) -> String {
    let body = "position\nscale\nspeed\nstream_state";
    let answer =
        w.ask_session(conn, "GET_PARAMETER", id, &format!("Content-Length: {}\n\n{body}", body.len() + 3));
    answer.body.replace("\r\n", " ").trim_end().to_owned()
}

#[test]
fn play_reply_reports_granted_scale_and_range() {
    let mut w = World::new();
    let (c, id) = player(&mut w);
    w.wait(10 * SECOND);
    // As live555 sends it.
    let a = w.ask_session(c, "PLAY", &id, "Scale: 4.000000");
    assert_eq!(played(&a), ("npt=8.000-60.000", "4.0", "seq=4002;rtptime=1900225"));
    w.wait(5 * SECOND);
    assert_eq!(parameters(&mut w, c, &id), "position: 28.000 scale: 4.0 speed: 1.0 stream_state: playing");
    // RFC 2326 section 10.5: "If a stream is playing, such a PLAY request causes no further action".
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((a.status, a.has("range"), a.get("scale")), (200, false, "4.0"));
    let a = w.ask_session(c, "PLAY", &id, "Scale: 4");
    assert_eq!((a.status, a.get("scale")), (200, "4.0"));
    let a = w.ask_session(c, "PLAY", &id, "Scale: -3.5\nRange: npt=30-0");
    assert_eq!(played(&a), ("npt=36.000-0.000", "-4.0", "seq=6003;rtptime=2350450"));
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    assert_eq!(parameters(&mut w, c, &id), "position: 31.990 scale: -4.0 speed: 1.0 stream_state: ready");
    let a = w.ask_session(c, "PLAY", &id, "Scale: -4");
    assert_eq!(played(&a), ("npt=31.990-0.000", "-4.0", "seq=6404;rtptime=2440675"));
    // RFC 7826 section 2.5.1: "Scale = 1.0 is the default value that is used if no scale is specified".
    let a = w.ask_session(c, "PLAY", &id, "Range: npt=20-");
    assert_eq!((a.get("range"), a.get("scale")), ("npt=20.000-60.000", ""));
    assert_eq!(parameters(&mut w, c, &id), "position: 20.000 scale: 1.0 speed: 1.0 stream_state: playing");
    assert_eq!(w.ask_session(c, "TEARDOWN", &id, "").status, 200);
    w.assert_empty();
}

#[test]
fn rewind_ends_in_ready() {
    let mut w = World::new();
    let (c, id) = player(&mut w);
    w.wait(20 * SECOND);
    let a = w.ask_session(c, "PLAY", &id, "Scale: -4.0");
    assert_eq!(a.get("range"), "npt=28.000-0.000");
    w.wait(7 * SECOND + SECOND / 2);
    assert_eq!(parameters(&mut w, c, &id), "position: 0.000 scale: -4.0 speed: 1.0 stream_state: ready");
    // The session remains set up, and so do the requests allowed in this state.
    let a = w.ask_session(c, "PLAY", &id, "Scale: -4.0");
    assert_eq!((a.status, a.reason.as_str()), (457, "Invalid Range: the beginning has been reached"));
    let a = w.ask_session(c, "PLAY", &id, "");
    assert_eq!((a.status, a.get("range"), a.get("scale")), (200, "npt=0.000-60.000", ""));
}

#[test]
fn speed_is_answered_with_what_is_granted() {
    let mut w = World::with(|config| {
        config.service.max_rate = Some(BitRate(9_000_000));
        config.service.address_share_percent = 100;
    });
    let conn = w.connect();
    let id = w.setup_tcp(conn);
    // RFC 7826 has ranges of speeds.
    let a = w.ask_session(conn, "PLAY", &id, "Speed: 1.0-1.5\nScale: 1");
    assert_eq!((a.status, a.get("speed"), a.get("scale")), (200, "1.5", "1.0"));
    assert_eq!(w.take_log().last().unwrap(), "play 0..24000 seq 1 speed 1500 in 50ms");
    let a = w.ask_session(conn, "PLAY", &id, "Speed: 4\nRange: npt=20-");
    assert_eq!((a.status, a.get("speed"), a.get("range")), (200, "2.0", "npt=20.000-60.000"));
    w.wait(2 * SECOND);
    assert_eq!(parameters(&mut w, conn, &id), "position: 23.900 scale: 1.0 speed: 2.0 stream_state: playing");
    let a = w.ask_session(conn, "PLAY", &id, "Speed: 2\nScale: 4");
    assert_eq!((a.status, a.get("speed"), a.get("scale")), (200, "2.0", "4.0"));
    assert_eq!(w.ask_session(conn, "TEARDOWN", &id, "").status, 200);
    w.assert_empty();
}

#[test]
fn play_with_invalid_scale_or_speed_changes_nothing() {
    let mut w = World::new();
    let (c, id) = player(&mut w);
    w.wait(SECOND);
    w.take_log();
    for (header, status) in [
        ("Scale: 0", 400),
        ("Scale: fast", 400),
        ("Scale: -", 400),
        ("Speed: 0", 400),
        ("Speed: -1", 400),
        ("Speed: 2-1", 400),
        ("Scale: -4\nRange: npt=0-", 457),
        ("Scale: -4\nRange: npt=20-20", 457),
        ("Scale: 4\nRange: npt=20-10", 457),
        ("Scale: 4\nRange: clock=19961108T142300Z-", 501),
    ] {
        let a = w.ask_session(c, "PLAY", &id, header);
        assert_eq!((a.status, a.session()), (status, id.clone()), "{header}");
    }
    assert_eq!(w.take_log().iter().filter(|line| !line.starts_with("reply")).count(), 0);
    assert!(parameters(&mut w, c, &id).ends_with("scale: 1.0 speed: 1.0 stream_state: playing"));
    // A title that cannot be played backwards is refused as such; RFC 2326 section 11.3.7 has a
    // status for it.
    let other = w.connect();
    let setup = "SETUP rtsp://192.0.2.1/other/track1 RTSP/1.0\nCSeq: 1\nTransport: RTP/AVP;unicast;client_port=6000-6001";
    let id = w.ask(other, setup).session();
    let a = w.ask_session(other, "PLAY", &id, "Scale: -2\nRange: npt=10-0");
    assert_eq!(a.status, 456);
    assert!(a.reason.ends_with("the title cannot be played backwards"), "{}", a.reason);
    assert_eq!(w.ask_session(other, "PLAY", &id, "Scale: 2").get("scale"), "4.0");
}

/// A title made from another is sent in its place, and has no name of its own.
#[test]
fn trick_title_requested_by_name_returns_404() {
    let mut w = World::new();
    let c = w.connect();
    let describe = "DESCRIBE rtsp://192.0.2.1/film@400 RTSP/1.0\nCSeq: 1";
    let setup =
        "SETUP rtsp://192.0.2.1/film@400 RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;unicast;client_port=6000-6001";
    assert_eq!([describe, setup].map(|request| w.ask(c, request).status), [404, 404]);
}

/// A speed whose title is on a slow disk: only the session that asked for it waits.
#[test]
fn another_speed_is_opened_first() {
    let mut w = World::new();
    let (c, id) = player(&mut w);
    w.wait(4 * SECOND);
    w.open_titles.0.lock().unwrap().on_disk = true;
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 7\nSession: {id}\nScale: 4"));
    assert!(w.answers.get(&c).is_none_or(|answers| answers.is_empty()), "its times are being opened");
    w.wait(2 * SECOND);
    let need = w.opened(Ok(()));
    assert_eq!((need.title.as_str(), need.part), ("film@400", TitlePart::Times { packet_bytes: 1316 }));
    let need = w.opened(Ok(()));
    assert!(matches!(need.part, TitlePart::Media { is_raw: false, .. }), "{need:?}");
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    // It has played on meanwhile.
    assert_eq!(played(&answer), ("npt=0.000-60.000", "4.0", "seq=2402;rtptime=1540225"));
    // Back and forth: it is open.
    w.wait(2 * SECOND);
    assert_eq!(w.ask_session(c, "PLAY", &id, "Scale: 1").get("scale"), "1.0");
    assert_eq!(w.ask_session(c, "PLAY", &id, "Scale: 4").get("scale"), "4.0");
}

#[test]
fn another_speed_that_cannot_be_opened_is_the_next_one() {
    let mut w = World::new();
    let (c, id) = player(&mut w);
    w.wait(4 * SECOND);
    w.open_titles.0.lock().unwrap().on_disk = true;
    w.tell(
        c,
        &format!("PLAY rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 7\nSession: {id}\nScale: -4\nRange: npt=20-"),
    );
    let broken = OpenError::Broken("meta-1316.mrp: checksum mismatch".into());
    assert_eq!(w.opened(Ok(())).title, "film@-400");
    assert_eq!(w.opened(Err(broken)).title, "film@-400");
    assert_eq!(w.opened(Ok(())).title, "film@-100");
    assert_eq!(w.opened(Ok(())).title, "film@-100");
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!((answer.get("range"), answer.get("scale")), ("npt=20.000-0.000", "-1.0"));
    let told =
        |event: &ServiceEvent| matches!(event, ServiceEvent::Broken { title, .. } if title == "film@-400");
    assert!(w.notices.iter().any(told));
    // The session ends while something is being opened for it.
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 8\nSession: {id}\nScale: 16"));
    w.hang_up(c);
    w.wait(70 * SECOND);
    w.opened(Ok(()));
    w.assert_empty();
}

/// Media at another speed is transformed as the title is, and the replies report it; a speed that
/// is not available in this form is not played.
#[test]
fn another_speed_of_a_transformed_title_is_transformed_too() {
    let mut w = World::new();
    let c = w.connect();
    let setup = "SETUP rtsp://192.0.2.1/film/track1?transform=german RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;unicast;client_port=6000-6001";
    let setup = w.ask(c, setup);
    let (id, ssrc) = (setup.session(), "ssrc=DDDD0000");
    assert!(
        setup.get("transport").contains(ssrc) && setup.get("x-millrace-transform") == "german",
        "{setup:?}"
    );
    let answer = w.ask_session(c, "PLAY", &id, "Range: npt=0-");
    assert_eq!(answer.get("x-millrace-transform"), "german");
    w.wait(4 * SECOND);
    w.open_titles.0.lock().unwrap().on_disk = true;
    w.tell(c, &format!("PLAY rtsp://192.0.2.1/film/ RTSP/1.0\nCSeq: 7\nSession: {id}\nScale: 4"));
    assert_eq!(w.opened(Ok(())).part, TitlePart::Times { packet_bytes: 1316 });
    let need = w.opened(Ok(()));
    let derived = TitlePart::Derived { packet_bytes: 1316, is_raw: false, number: 0 };
    assert_eq!((need.title.as_str(), need.part), ("film@400", derived));
    let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
    assert_eq!((answer.get("scale"), answer.get("x-millrace-transform")), ("4.0", "german"), "{answer:?}");
    // The viewer's packets go on with the SSRC of SETUP.
    let run = w.engine.streams.values().find_map(|stream| stream.playing).expect("it plays");
    assert_eq!(run.spec.media.timeline.ssrc, 0xdddd_0000);
    w.open_titles.0.lock().unwrap().on_disk = false;
    let answer = w.ask_session(c, "PLAY", &id, "Scale: -1\nRange: npt=20-");
    assert_eq!((answer.get("scale"), answer.get("x-millrace-transform")), ("-4.0", "german"), "{answer:?}");
    let told = |event: &ServiceEvent| matches!(event, ServiceEvent::Broken { title, reason } if title == "film@-100" && reason.contains("PID 256"));
    assert!(w.notices.iter().any(told));
    // The other viewer's stream is not transformed.
    let (d, other) = player(&mut w);
    let answer = w.ask_session(d, "PLAY", &other, "Scale: -1\nRange: npt=20-");
    assert_eq!((answer.get("scale"), answer.get("x-millrace-transform")), ("-1.0", ""), "{answer:?}");
    [(c, id), (d, other)].iter().for_each(|(conn, id)| {
        w.ask_session(*conn, "TEARDOWN", id, "");
    });
    w.assert_empty();
}
