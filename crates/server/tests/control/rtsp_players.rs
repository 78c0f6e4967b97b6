//! The dialects of real players as they were captured, played against the session layer: one test a player, its
//! requests lettered in order.

use crate::rtsp_support::{SECOND, VIEWER, World, receiver_report};
use millrace_server::session::UdpPort;

#[test]
fn ffmpeg_by_udp_with_a_seek() {
    let mut w = World::new();
    let c = w.connect();
    // A: OPTIONS must be 200, or ffmpeg gives up.
    let a = w.ask(c, "OPTIONS rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 1\nUser-Agent: Lavf59.27.100");
    assert_eq!((a.status, a.get("cseq")), (200, "1"));
    assert!(a.get("public").contains("GET_PARAMETER"));
    // B: DESCRIBE.
    let b = w.ask(c, "DESCRIBE rtsp://192.0.2.1:8554/film RTSP/1.0\nAccept: application/sdp\nCSeq: 2\nUser-Agent: Lavf59.27.100");
    assert_eq!((b.status, b.get("content-type")), (200, "application/sdp"));
    assert_eq!(b.get("content-base"), "rtsp://192.0.2.1:8554/film/");
    for line in [
        "m=video 0 RTP/AVP 33",
        "a=rtpmap:33 MP2T/90000",
        "a=control:track1",
        "a=control:*",
        "a=range:npt=0-60.000",
    ] {
        assert!(b.body.lines().any(|l| l == line), "{line} in {}", b.body);
    }
    // C: SETUP, with /UDP in the transport's name, which comes back.
    let s = w.ask(
        c,
        "SETUP rtsp://192.0.2.1:8554/film/track1 RTSP/1.0\nTransport: RTP/AVP/UDP;unicast;client_port=24016-24017\nCSeq: 3\nUser-Agent: Lavf59.27.100",
    );
    assert_eq!(
        s.get("transport"),
        "RTP/AVP/UDP;unicast;client_port=24016-24017;server_port=50000-50001;ssrc=1234ABCD;source=192.0.2.1;mode=\"PLAY\""
    );
    assert!(s.get("session").ends_with(";timeout=60"));
    let id = s.session();
    assert_eq!(w.take_log(), ["reply 200", "reply 200", "open udp 192.0.2.7 24016 24017", "reply 200"]);
    // D: PLAY from the start, on the Content-Base with its slash. The reply goes out before the packets may.
    let p = w.ask(c, &format!("PLAY rtsp://192.0.2.1:8554/film/ RTSP/1.0\nRange: npt=0.000-\nCSeq: 4\nUser-Agent: Lavf59.27.100\nSession: {id}"));
    assert_eq!(p.get("range"), "npt=0.000-60.000");
    assert_eq!(p.get("rtp-info"), "url=rtsp://192.0.2.1:8554/film/track1;seq=1;rtptime=1000000");
    assert_eq!(w.take_log(), ["reply 200", "play 0..24000 seq 1 in 0ms"]);
    // E: it probes for a second, then seeks: PAUSE, PLAY with a Range. The sequence goes on, the time jumps.
    w.wait(SECOND);
    let e = w.ask(c, &format!("PAUSE rtsp://192.0.2.1:8554/film/ RTSP/1.0\nCSeq: 5\nSession: {id}"));
    assert_eq!(e.status, 200);
    let f = w.ask(
        c,
        &format!("PLAY rtsp://192.0.2.1:8554/film/ RTSP/1.0\nRange: npt=21.000-\nCSeq: 6\nSession: {id}"),
    );
    assert_eq!(f.get("range"), "npt=20.000-60.000", "the I-frame before the wish");
    assert_eq!(f.get("rtp-info"), "url=rtsp://192.0.2.1:8554/film/track1;seq=402;rtptime=2800000");
    assert_eq!(w.take_log(), ["pause", "reply 200", "reply 200", "play 8000..24000 seq 402 in 0ms"]);
    // F: keep-alive every timeout/2.
    w.wait(30 * SECOND);
    let k = w.ask(c, &format!("GET_PARAMETER rtsp://192.0.2.1:8554/film/ RTSP/1.0\nCSeq: 7\nSession: {id}"));
    assert_eq!((k.status, k.session()), (200, id.clone()));
    // G: TEARDOWN, and the connection is gone before the answer.
    w.tell(c, &format!("TEARDOWN rtsp://192.0.2.1:8554/film/ RTSP/1.0\nCSeq: 8\nSession: {id}"));
    w.hang_up(c);
    w.assert_empty();
}

#[test]
fn ffmpeg_falls_back_from_udp_to_tcp_on_the_same_connection() {
    let mut w = World::with(|config| config.session_timeout_ns = 10 * SECOND);
    let c = w.connect();
    let first = w.setup_udp(c);
    assert_eq!(w.ask_session(c, "PLAY", &first, "Range: npt=0.000-").status, 200);
    // A: nothing arrived: PAUSE, then SETUP by TCP without a Session header. The old session is left alone.
    assert_eq!(w.ask_session(c, "PAUSE", &first, "").status, 200);
    let a = w.ask(
        c,
        "SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\nCSeq: 6",
    );
    assert_eq!(a.get("transport"), "RTP/AVP/TCP;unicast;interleaved=0-1;ssrc=1234ABCD;mode=\"PLAY\"");
    let second = a.session();
    assert_ne!(first, second);
    // B: both are there; the new one plays.
    w.take_log();
    let b = w.ask_session(c, "PLAY", &second, "Range: npt=0.000-");
    assert_eq!(b.get("rtp-info"), "url=rtsp://192.0.2.1/film/track1;seq=1;rtptime=1000000");
    assert_eq!(w.take_log(), ["reply 200", "play 0..24000 seq 1 in 50ms"]);
    assert_eq!(w.service.streams().len(), 2);
    // C: the old one expires by itself, the new one does not: its connection is open.
    w.wait(30 * SECOND);
    assert_eq!(w.service.streams().len(), 1);
    assert_eq!(w.ask_session(c, "TEARDOWN", &second, "").status, 200);
    w.assert_empty();
}

#[test]
fn vlc_with_live555_refused_udp_goes_on_by_tcp() {
    let mut w = World::with(|config| config.ports_v4 = None);
    let c = w.connect();
    let agent = "User-Agent: LibVLC/3.0.24 (LIVE555 Streaming Media v2026.06.24)";
    assert_eq!(
        w.ask(c, &format!("OPTIONS rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 2\n{agent}")).status,
        200
    );
    assert_eq!(
        w.ask(
            c,
            &format!(
                "DESCRIBE rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 3\n{agent}\nAccept: application/sdp"
            )
        )
        .status,
        200
    );
    // A: 461 without a Session header, in the same connection TCP is tried.
    let a = w.ask(c, &format!("SETUP rtsp://192.0.2.1:8554/film/track1 RTSP/1.0\nCSeq: 4\n{agent}\nTransport: RTP/AVP;unicast;client_port=61234-61235"));
    assert_eq!((a.status, a.has("session")), (461, false));
    let b = w.ask(c, &format!("SETUP rtsp://192.0.2.1:8554/film/track1 RTSP/1.0\nCSeq: 5\n{agent}\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1"));
    let id = b.session();
    // B: the engine gets the connection before the stream, and the stream before the reply goes out through it.
    assert_eq!(w.take_log()[2..], ["reply 461", "attach", "open tcp 0 1", "reply 200"]);
    let p = w.ask_session(c, "PLAY", &id, "Range: npt=0.000-");
    assert_eq!(p.status, 200);
    // C: a receiver report on channel 1 that claims 99 % loss changes nothing.
    w.wait(3 * SECOND);
    let mut frame = vec![b'$', 1];
    let report = receiver_report(0x1234_abcd, false);
    frame.extend((report.len() as u16).to_be_bytes());
    frame.extend(&report);
    w.take_log();
    w.push(c, &frame);
    assert_eq!(w.take_log(), Vec::<String>::new());
    let info = &w.server.sessions(&w.service, w.now)[0];
    assert_eq!(info.report.map(|r| (r.fraction_lost, r.cumulative_lost)), Some((255, -1)));
    // D: paused over TCP it sends nothing for five minutes, and resumes.
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    w.wait(300 * SECOND);
    let r = w.ask_session(c, "PLAY", &id, "");
    assert_eq!(r.status, 200, "{r:?}");
    // E: seek: PAUSE, PLAY Range.
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    let s = w.ask_session(c, "PLAY", &id, "Range: npt=30.000-");
    assert_eq!(s.get("range"), "npt=30.000-60.000");
    // F: its connection breaks (RST): the session goes with it.
    w.hang_up(c);
    w.assert_empty();
    assert_eq!(w.take_log().last().unwrap(), "drop conn");
}

#[test]
fn vlc_of_debian_by_satip() {
    let mut w = World::new();
    let c = w.connect();
    // A: SETUP first, CSeq 0, no User-Agent, on the title's own URL.
    let a = w.ask(c, "SETUP rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 0\nTransport: RTP/AVP;unicast;client_port=5000-5001");
    assert_eq!((a.status, a.get("cseq")), (200, "0"));
    let id = a.session();
    // B: PLAY on a URL that names nothing: only the Session header ties it.
    let b = w.ask(c, &format!("PLAY rtsp://192.0.2.1:8554/stream=0 RTSP/1.0\nCSeq: 1\nSession: {id}"));
    assert_eq!(b.status, 200);
    assert_eq!(
        w.take_log(),
        ["open udp 192.0.2.7 5000 5001", "reply 200", "reply 200", "play 0..24000 seq 1 in 0ms"]
    );
    // C: OPTIONS as keep-alive, every timeout - 5 s; no RTCP at all.
    for cseq in 2..5 {
        w.wait(55 * SECOND);
        let k = w
            .ask(c, &format!("OPTIONS rtsp://192.0.2.1:8554/stream=0 RTSP/1.0\nCSeq: {cseq}\nSession: {id}"));
        assert_eq!(k.status, 200);
    }
    // D: the film has ended meanwhile; TEARDOWN on the odd URL.
    let d = w.ask(c, &format!("TEARDOWN rtsp://192.0.2.1:8554/stream=0 RTSP/1.0\nCSeq: 9\nSession: {id}"));
    assert_eq!(d.status, 200);
    w.assert_empty();
}

#[test]
fn gstreamer_tries_udp_multicast_tcp_and_seeks_with_speed() {
    let mut w = World::with(|config| config.ports_v4 = None);
    let c = w.connect();
    // A: two User-Agent lines and Real's headers.
    let a = w.ask(
        c,
        "OPTIONS rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 1\nUser-Agent: GStreamer/1.22.0\nUser-Agent: GStreamer/1.22.0\n\
         ClientChallenge: 9e26d33f2984236010ef6253fb1887f7\nCompanyID: KnKV4M4I/B2FjJ1TToLycw==\nGUID: 00000000-0000-0000-0000-000000000000\n\
         RegionData: 0\nPlayerStarttime: [28/03/2003:22:50:23 00:00]\nClientID: Linux_2.4_6.0.9.1235_play32_RN01_EN_586",
    );
    assert_eq!(a.status, 200);
    assert_eq!(
        w.ask(c, "DESCRIBE rtsp://192.0.2.1:8554/film RTSP/1.0\nCSeq: 2\nAccept: application/sdp").status,
        200
    );
    // B: UDP, then multicast, then TCP.
    for transport in ["RTP/AVP;unicast;client_port=41234-41235", "RTP/AVP;multicast"] {
        let refused = w.ask(
            c,
            &format!("SETUP rtsp://192.0.2.1:8554/film/track1 RTSP/1.0\nCSeq: 3\nTransport: {transport}"),
        );
        assert_eq!((refused.status, refused.has("session")), (461, false));
    }
    let b = w.ask(c, "SETUP rtsp://192.0.2.1:8554/film/track1 RTSP/1.0\nCSeq: 5\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1");
    let id = b.session();
    // C: PLAY with the end of a=range.
    let p = w.ask_session(c, "PLAY", &id, "Range: npt=0-60.000");
    assert_eq!(p.get("range"), "npt=0.000-60.000");
    // D: no keep-alive while data flows, none while paused.
    w.wait(10 * SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    w.wait(200 * SECOND);
    // E: fast forward: Speed by default, Scale in trick mode.
    let e = w.ask_session(c, "PLAY", &id, "Range: npt=30-\nSpeed: 2.0");
    assert_eq!(
        (e.status, e.get("speed"), e.has("scale"), e.get("range")),
        (200, "2.0", false, "npt=30.000-60.000")
    );
    w.wait(SECOND);
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    let f = w.ask_session(c, "PLAY", &id, "Range: npt=40-\nScale: 4.0");
    // Without Speed it would take Scale for the delivery rate, and show nothing backwards.
    assert_eq!((f.get("scale"), f.get("speed"), f.get("range")), ("4.0", "1.0", "npt=40.000-60.000"));
    // F: PAUSE always comes before TEARDOWN.
    assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
    assert_eq!(w.ask_session(c, "TEARDOWN", &id, "").status, 200);
    w.hang_up(c);
    w.assert_empty();
}

/// GStreamer, like any player that is not known to wait for the RTCP BYE, ends by its clock and would
/// cut off the last pictures. Other players show the announced end as the title's length.
#[test]
fn announced_end_is_later_for_players_that_do_not_end_by_bye() {
    for (agent, end) in [
        ("GStreamer/1.22.0", "62.000"),
        ("SomethingNew/1.0", "62.000"),
        ("Lavf59.27.100", "60.000"),
        ("LibVLC/3.0.24 (LIVE555 Streaming Media v2026.06.24)", "60.000"),
        ("millrace/0.1.0", "60.000"),
        ("", "60.000"),
    ] {
        let mut w = World::new();
        let c = w.connect();
        let line = if agent.is_empty() { String::new() } else { format!("\nUser-Agent: {agent}") };
        let describe =
            format!("DESCRIBE rtsp://192.0.2.1/film RTSP/1.0\nCSeq: 1\nAccept: application/sdp{line}");
        let sdp = w.ask(c, &describe).body;
        let range = sdp.lines().find(|line| line.starts_with("a=range:"));
        assert_eq!(range, Some(&format!("a=range:npt=0-{end}")[..]), "{agent}");
        let id = w.setup_udp(c);
        let played = w.ask_session(c, "PLAY", &id, &format!("Range: npt=0-{line}"));
        assert_eq!(played.get("range"), format!("npt=0.000-{end}"), "{agent}");
        // Only the announcement is later: the stream ends where the title does.
        assert_eq!(w.take_log().last().unwrap(), "play 0..24000 seq 1 in 0ms", "{agent}");
    }
}

#[test]
fn openrtsp_without_any_keep_alive() {
    let mut w = World::new();
    let c = w.connect();
    assert_eq!(w.ask(c, "OPTIONS rtsp://192.0.2.1/long RTSP/1.0\nCSeq: 2\nUser-Agent: openRTSP (LIVE555 Streaming Media v2026.06.24)").status, 200);
    assert_eq!(
        w.ask(c, "DESCRIBE rtsp://192.0.2.1/long RTSP/1.0\nCSeq: 3\nAccept: application/sdp").status,
        200
    );
    let s = w.ask(c, "SETUP rtsp://192.0.2.1/long/track1 RTSP/1.0\nCSeq: 4\nTransport: RTP/AVP;unicast;client_port=52000-52001");
    let id = s.session();
    // A: -s 20 -d 900 -z 2: it takes the end that is answered as its duration.
    let a = w.ask(c, &format!("PLAY rtsp://192.0.2.1/long/ RTSP/1.0\nCSeq: 5\nSession: {id}\nScale: 2.000000\nRange: npt=20.000-920.000"));
    // The nearest speed there is, from the access point before that place.
    assert_eq!((a.get("range"), a.get("scale")), ("npt=16.000-920.000", "4.0"));
    assert_eq!(a.get("rtp-info"), "url=rtsp://192.0.2.1/long/track1;seq=1601;rtptime=1000000");
    assert_eq!(w.take_log().last().unwrap(), "play 1600..92000 seq 1601 in 0ms");
    // B: receiver reports every few seconds are its only sign of life, the RTSP connection is silent.
    for _ in 0..60 {
        w.wait(5 * SECOND);
        let from = "192.0.2.7:52001".parse().unwrap();
        w.server.face(&mut w.service).handle_datagram(
            w.now,
            UdpPort::Rtcp,
            from,
            &receiver_report(0x1234_abcd, false),
        );
    }
    assert_eq!(w.service.streams().len(), 1);
    // C: it waits for the reply to TEARDOWN for ever.
    let t = w.ask(c, &format!("TEARDOWN rtsp://192.0.2.1/long/ RTSP/1.0\nCSeq: 6\nSession: {id}"));
    assert_eq!(t.status, 200);
    w.assert_empty();
    assert_eq!(w.counters().rtcp_received, 60);
}

#[test]
fn gortsplib_of_mediamtx() {
    let mut w = World::new();
    let c = w.connect_from("[2001:db8::7]:40000");
    assert_eq!(
        w.ask(c, "OPTIONS rtsp://[2001:db8::1]:8554/film RTSP/1.0\nCSeq: 1\nUser-Agent: gortsplib").status,
        200
    );
    let d = w.ask(c, "DESCRIBE rtsp://[2001:db8::1]:8554/film RTSP/1.0\nAccept: application/sdp\nCSeq: 2\nUser-Agent: gortsplib");
    assert!(d.body.contains("c=IN IP6 ::\r\n"), "{}", d.body);
    let s = w.ask(
        c,
        "SETUP rtsp://[2001:db8::1]:8554/film/track1 RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP;unicast;client_port=10000-10001;mode=play",
    );
    assert!(s.get("transport").contains("server_port=50002-50003"), "{s:?}");
    let p = w.ask(
        c,
        &format!(
            "PLAY rtsp://[2001:db8::1]:8554/film/ RTSP/1.0\nCSeq: 4\nRange: npt=0-\nSession: {}",
            s.session()
        ),
    );
    assert_eq!(p.get("rtp-info"), "url=rtsp://[2001:db8::1]:8554/film/track1;seq=1;rtptime=1000000");
    assert_eq!(w.take_log()[2], "open udp 2001:db8::7 10000 10001");
    assert_eq!(w.ask_session(c, "TEARDOWN", &s.session(), "").status, 200);
    w.assert_empty();
}

#[test]
fn several_sessions_on_one_connection_have_channels_of_their_own() {
    let mut w = World::new();
    let c = w.connect();
    let first = w.setup_tcp(c);
    // A: the same channels are requested again: the reply assigns the next free pair.
    let a = w.ask(
        c,
        "SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1",
    );
    assert!(a.get("transport").starts_with("RTP/AVP/TCP;unicast;interleaved=2-3;"), "{a:?}");
    // B: no channels named.
    let b = w.ask(c, "SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 3\nTransport: RTP/AVP/TCP;unicast");
    assert!(b.get("transport").contains("interleaved=4-5"), "{b:?}");
    // C: odd channels are fine if they are free.
    let d = w.ask(
        c,
        "SETUP rtsp://192.0.2.1/other RTSP/1.0\nCSeq: 4\nTransport: RTP/AVP/TCP;unicast;interleaved=201",
    );
    assert!(d.get("transport").contains("interleaved=201-202"), "{d:?}");
    // D: the connection was handed to the engine once.
    assert_eq!(w.take_log().iter().filter(|line| *line == "attach").count(), 1);
    // E: tearing one down leaves the others.
    assert_eq!(w.ask_session(c, "TEARDOWN", &first, "").status, 200);
    assert_eq!(w.service.streams().len(), 3);
    let paths: Vec<_> = w.server.sessions(&w.service, w.now).iter().map(|info| info.path).collect();
    assert!(paths.iter().all(|path| path.conn() == Some(c)));
    w.hang_up(c);
    w.assert_empty();
    assert_eq!(w.service.connection_count(), 0);
    let _ = VIEWER;
}

#[test]
fn receivers_of_plain_datagrams() {
    for (name, ports) in [("RAW/RAW/UDP", "5004-5005"), ("MP2T/H2221/UDP", "5004")] {
        let mut w = World::new();
        let c = w.connect();
        // A: one port, and nothing about RTP, whether one was asked for or two.
        let a = w.ask(c, &format!("SETUP rtsp://192.0.2.1/film/track1 RTSP/1.0\nCSeq: 1\nTransport: {name};multicast, {name};unicast;client_port={ports}\nX-Millrace-FEC: xor"));
        assert_eq!(
            a.get("transport"),
            format!("{name};unicast;client_port=5004;server_port=50000;source=192.0.2.1;mode=\"PLAY\"")
        );
        assert_eq!(a.get("x-millrace-fec"), "off;reason=\"FEC is available over RTP only\"");
        let id = a.session();
        assert_eq!(w.take_log(), ["open raw 192.0.2.7 5004", "reply 200"]);
        // B: the reply gives the range that plays; raw datagrams have no numbers and time stamps.
        let b = w.ask_session(c, "PLAY", &id, "Range: npt=21.000-");
        assert_eq!((b.status, b.get("range"), b.has("rtp-info")), (200, "npt=20.000-60.000", false));
        assert_eq!(w.take_log(), ["reply 200", "play 8000..24000 seq 8001 in 0ms"]);
        // C: without reports only requests and datagrams from its port keep it.
        w.wait(50 * SECOND);
        assert_eq!(w.ask_session(c, "GET_PARAMETER", &id, "").status, 200);
        w.wait(50 * SECOND);
        assert_eq!(w.service.streams().len(), 1);
        // D: the same viewer by RTP, where it stopped.
        assert_eq!(w.ask_session(c, "PAUSE", &id, "").status, 200);
        let d = w.ask_session(c, "SETUP", &id, "Transport: RTP/AVP;unicast;client_port=5004-5005");
        assert!(
            d.get("transport")
                .starts_with("RTP/AVP;unicast;client_port=5004-5005;server_port=50000-50001;ssrc=")
        );
        w.wait(70 * SECOND);
        assert_eq!(w.service.streams().len(), 0, "it says nothing any more");
        w.hang_up(c);
        w.assert_empty();
    }
}
