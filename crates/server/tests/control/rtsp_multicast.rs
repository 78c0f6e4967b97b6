//! Multicast: viewers that share one stream of a live title to a group.

use std::net::IpAddr;

use millrace_server::service::{CastNotice, CastStatus, ConnKey, GroupRange, MulticastGroups, ServiceEvent};

use crate::rtsp_support::{Answer, SECOND, World};

const RANGE: &str = "RTP/AVP;multicast";

fn groups(v4: &str, v6: Option<&str>) -> MulticastGroups {
    let range = |text: &str| {
        let (first, prefix) = text.split_once('/').unwrap();
        GroupRange::new(first.parse().unwrap(), prefix.parse().unwrap()).unwrap()
    };
    MulticastGroups {
        v4: Some(range(v4)),
        v6: v6.map(range),
        first_port: 20_000,
        last_port: 20_999,
        ttl: 3,
        interface: None,
        taken: Vec::new(),
    }
}

fn world(v4: &str) -> World {
    let groups = groups(v4, Some("ff18::4d52:0/112"));
    World::with(|config| config.service.multicast = Some(groups))
}

fn setup(w: &mut World, conn: ConnKey, title: &str, transport: &str) -> Answer {
    w.ask(conn, &format!("SETUP rtsp://192.0.2.1/{title}/track1 RTSP/1.0\nCSeq: 1\nTransport: {transport}"))
}

fn ask(w: &mut World, conn: ConnKey, method: &str, session: &str) -> Answer {
    w.ask(conn, &format!("{method} rtsp://192.0.2.1/live/news/ RTSP/1.0\nCSeq: 5\nSession: {session}"))
}

/// A viewer that plays; its connection and its session.
fn listener(w: &mut World, peer: &str) -> (ConnKey, String) {
    let conn = w.connect_from(peer);
    let answer = setup(w, conn, "live/news", RANGE);
    assert_eq!(answer.status, 200, "{answer:?}");
    let session = answer.session();
    assert_eq!(ask(w, conn, "PLAY", &session).status, 200);
    (conn, session)
}

/// A parameter of a `Transport` header.
fn parameter(answer: &Answer, name: &str) -> String {
    let transport = answer.get("transport");
    let mut parts = transport.split(';').filter_map(|part| part.split_once('='));
    parts.find(|(key, _)| *key == name).unwrap_or_else(|| panic!("no {name} in {transport}")).1.to_owned()
}

fn only_cast(w: &World) -> CastStatus {
    let [cast] = &w.service.casts()[..] else { panic!("{:?}", w.service.casts()) };
    cast.clone()
}

fn count(w: &World, what: &str) -> usize {
    w.log.iter().filter(|line| line.starts_with(what)).count()
}

#[test]
fn listeners_of_title_share_one_cast_from_first_play_to_last_teardown() {
    let mut w = world("239.192.0.0/16");
    let conn = w.connect_from("192.0.2.50:999");
    // The client's own wishes do not count.
    let asked = "RTP/AVP;multicast;destination=239.9.9.9;port=4000-4001;ttl=200";
    let answer = setup(&mut w, conn, "live/news", asked);
    let (group, port) = (parameter(&answer, "destination"), parameter(&answer, "port"));
    let group: IpAddr = group.parse().unwrap();
    assert!(group.to_string().starts_with("239.192."), "{answer:?}");
    let rtp: u16 = port.split_once('-').unwrap().0.parse().unwrap();
    assert_eq!((port, rtp % 2), (format!("{rtp}-{}", rtp + 1), 0));
    assert_eq!((parameter(&answer, "ttl"), parameter(&answer, "ssrc")), ("3".into(), "1234ABCD".into()));
    assert!(answer.get("transport").starts_with("RTP/AVP;multicast;"), "{answer:?}");
    let first = answer.session();
    assert_eq!(w.service.reserved_streams(), 0, "nothing plays yet");
    let played = ask(&mut w, conn, "PLAY", &first);
    assert_eq!((played.status, played.get("range"), played.has("rtp-info")), (200, "npt=now-", false));
    let (other, second) = listener(&mut w, "192.0.2.51:999");
    assert_eq!(count(&w, &format!("open cast {group} {rtp}")), 1);
    assert_eq!((count(&w, "open"), count(&w, "play")), (1, 1), "{:?}", w.log);
    assert_eq!((w.service.reserved_streams(), w.service.session_count()), (1, 2), "one cast counts once");
    let cast = only_cast(&w);
    assert_eq!(
        (cast.title.as_str(), cast.to.group, cast.to.port, cast.listeners),
        ("live/news", group, rtp, 2)
    );
    assert!(cast.is_sending && cast.trouble.is_none(), "{cast:?}");
    // One pauses: the other one goes on. When both have paused, so does the cast.
    assert_eq!(ask(&mut w, conn, "PAUSE", &first).status, 200);
    assert_eq!(count(&w, "pause"), 0);
    assert_eq!(ask(&mut w, other, "PAUSE", &second).status, 200);
    assert_eq!((count(&w, "pause"), only_cast(&w).is_sending), (1, false));
    assert_eq!(ask(&mut w, conn, "PLAY", &first).status, 200);
    assert_eq!((count(&w, "play"), only_cast(&w).is_sending), (2, true));
    assert_eq!(ask(&mut w, conn, "TEARDOWN", &first).status, 200);
    assert_eq!((only_cast(&w).listeners, count(&w, "close")), (1, 0));
    assert_eq!(ask(&mut w, other, "TEARDOWN", &second).status, 200);
    assert_eq!(count(&w, "close"), 1);
    assert_eq!(w.service.casts(), []);
    w.assert_empty();
    // The title keeps its group.
    let again = setup(&mut w, conn, "live/news", RANGE);
    assert_eq!(parameter(&again, "destination"), group.to_string());
}

#[test]
fn setup_of_stored_title_or_without_groups_is_refused_with_reason() {
    let mut w = world("239.192.0.0/16");
    let conn = w.connect();
    let answer = setup(&mut w, conn, "film", RANGE);
    assert_eq!(answer.status, 461);
    assert!(answer.reason.contains("multicast is for channels and live titles"), "{answer:?}");
    // The first acceptable entry of the list counts.
    let both = setup(&mut w, conn, "film", "RTP/AVP;multicast,RTP/AVP;unicast;client_port=5000-5001");
    assert!(both.status == 200 && both.get("transport").contains("unicast"), "{both:?}");
    let first = setup(&mut w, conn, "live/news", "RTP/AVP;unicast;client_port=5002-5003,RTP/AVP;multicast");
    assert!(first.get("transport").contains("unicast"), "{first:?}");
    let raw = setup(&mut w, conn, "live/news", "MP2T/UDP;multicast");
    assert_eq!(raw.status, 461, "no numbers, no group");
    let mut without = World::new();
    let conn = without.connect();
    let answer = setup(&mut without, conn, "live/news", RANGE);
    assert!(answer.status == 461 && answer.reason.contains("--multicast"), "{answer:?}");
}

#[test]
fn groups_that_are_used_are_passed_over_until_none_is_left() {
    let mut w = world("239.192.0.0/31");
    let conn = w.connect();
    let news = setup(&mut w, conn, "live/news", RANGE);
    let sport = setup(&mut w, conn, "live/sport", RANGE);
    let [a, b] = [&news, &sport].map(|answer| parameter(answer, "destination"));
    assert_ne!(a, b);
    let mut one = world("239.192.0.0/32");
    let conn = one.connect();
    let news = setup(&mut one, conn, "live/news", RANGE);
    let refused = setup(&mut one, conn, "live/sport", RANGE);
    assert!(
        refused.status == 461 && refused.reason.contains("1 multicast groups of this server are in use"),
        "{refused:?}"
    );
    // A title that has ended gives its group back with its last listener.
    one.open_titles.0.lock().unwrap().ended.push("live/news".into());
    assert_eq!(setup(&mut one, conn, "live/sport", RANGE).status, 461);
    assert_eq!(ask(&mut one, conn, "TEARDOWN", &news.session()).status, 200);
    let sport = setup(&mut one, conn, "live/sport", RANGE);
    assert_eq!(parameter(&sport, "destination"), "239.192.0.0");
}

#[test]
fn viewer_by_ipv6_gets_group_of_ipv6() {
    let mut w = world("239.192.0.0/16");
    let (_, _) = listener(&mut w, "192.0.2.50:999");
    let conn = w.connect_from("[2001:db8::7]:999");
    let answer = setup(&mut w, conn, "live/news", RANGE);
    assert!(parameter(&answer, "destination").starts_with("ff18::4d52:"), "{answer:?}");
    assert_eq!(w.service.casts().len(), 2, "one of each family");
    let only_v4 = groups("239.192.0.0/16", None);
    let mut w = World::with(|config| config.service.multicast = Some(only_v4));
    let conn = w.connect_from("[2001:db8::7]:999");
    let answer = setup(&mut w, conn, "live/news", RANGE);
    assert!(answer.status == 461 && answer.reason.contains("no IPv6 groups"), "{answer:?}");
}

#[test]
fn description_has_group_only_when_it_is_asked_for() {
    let mut w = world("239.192.0.0/16");
    let conn = w.connect();
    let mut describe =
        |query: &str| w.ask(conn, &format!("DESCRIBE rtsp://192.0.2.1/live/news{query} RTSP/1.0\nCSeq: 1"));
    let plain = describe("").body;
    assert!(plain.contains("c=IN IP4 0.0.0.0\r\n") && plain.contains("m=video 0 "), "{plain}");
    let body = describe("?multicast").body;
    let answer = setup(&mut w, conn, "live/news", RANGE);
    let (group, port) = (parameter(&answer, "destination"), parameter(&answer, "port"));
    let port = port.split_once('-').unwrap().0;
    assert!(body.contains(&format!("c=IN IP4 {group}/3\r\n")), "{body}");
    assert!(body.contains(&format!("m=video {port} RTP/AVP 33\r\n")), "{body}");
    let refused = w.ask(conn, "DESCRIBE rtsp://192.0.2.1/film?multicast RTSP/1.0\nCSeq: 1");
    assert_eq!(refused.status, 461);
}

#[test]
fn silent_listener_expires_and_keep_alive_or_report_prevents_that() {
    let mut w = world("239.192.0.0/16");
    let (gone, _) = listener(&mut w, "192.0.2.50:999");
    let (kept, session) = listener(&mut w, "192.0.2.51:999");
    let (_, _) = listener(&mut w, "192.0.2.52:999");
    w.hang_up(gone);
    assert_eq!(only_cast(&w).listeners, 3, "a session outlives its connection");
    for _ in 0..4 {
        w.wait(30 * SECOND);
        assert_eq!(ask(&mut w, kept, "GET_PARAMETER", &session).status, 200);
        let report = crate::rtsp_support::receiver_report(0x1234_abcd, false);
        let now = w.now;
        w.rtsp().handle_datagram(
            now,
            millrace_server::session::UdpPort::Rtcp,
            "192.0.2.52:4444".parse().unwrap(),
            &report,
        );
        w.settle();
    }
    assert_eq!((only_cast(&w).listeners, w.counters().sessions_expired), (2, 1));
    w.wait(100 * SECOND);
    w.assert_empty();
}

#[test]
fn many_setups_of_one_client_are_bounded() {
    let groups = groups("239.192.0.0/16", None);
    let mut w = World::with(|config| {
        config.service.multicast = Some(groups);
        config.service.max_sessions_per_address = 40;
    });
    let mut admitted = 0;
    let mut refused = 0;
    for number in 0..1000 {
        let conn = w.connect_from(&format!("192.0.2.50:{}", 1000 + number % 50));
        let answer = setup(&mut w, conn, "live/news", RANGE);
        match answer.status {
            200 => admitted += 1,
            503 => refused += 1,
            other => panic!("{other}"),
        }
        w.hang_up(conn);
    }
    let max = w.service.config().max_sessions_per_address;
    assert_eq!((admitted, refused), (max, 1000 - max));
    assert_eq!((count(&w, "open"), only_cast(&w).listeners), (1, max));
    // Another client is not affected.
    listener(&mut w, "198.51.100.7:999");
    w.wait(70 * SECOND);
    w.assert_empty();
}

#[test]
fn datagrams_that_are_refused_show_in_status_until_they_leave_again() {
    let mut w = world("239.192.0.0/16");
    let (conn, session) = listener(&mut w, "192.0.2.50:999");
    w.engine.group_errno = 101;
    w.wait(2 * SECOND);
    let cast = only_cast(&w);
    assert!(cast.trouble.as_deref().is_some_and(|why| why.contains("unreachable")), "{cast:?}");
    assert!(!cast.is_sending);
    w.wait(10 * SECOND);
    w.engine.group_errno = 0;
    w.wait(2 * SECOND);
    assert!(only_cast(&w).is_sending);
    let notices = w.notices.iter().filter_map(|event| match event {
        ServiceEvent::Cast(notice) => Some(notice),
        _ => None,
    });
    let notices: Vec<_> = notices.collect();
    assert!(
        matches!(
            notices[..],
            [CastNotice::Began { .. }, CastNotice::Stopped { .. }, CastNotice::Resumed { .. }]
        ),
        "once for each change: {notices:?}"
    );
    assert_eq!(ask(&mut w, conn, "TEARDOWN", &session).status, 200);
}

#[test]
fn cast_whose_stream_fails_is_begun_again_for_its_listeners() {
    let mut w = world("239.192.0.0/16");
    let (conn, session) = listener(&mut w, "192.0.2.50:999");
    let stream = *w.engine.streams.keys().next().unwrap();
    let reason = millrace_offload::command::FailReason::Unreachable(100);
    w.engine_event(
        0,
        millrace_offload::command::Event::Stream(millrace_offload::command::StreamEvent::Failed {
            stream,
            reason,
        }),
    );
    w.settle();
    assert!(only_cast(&w).trouble.is_some());
    w.wait(5 * SECOND);
    assert!(only_cast(&w).is_sending, "{:?}", w.service.casts());
    assert_eq!((count(&w, "open cast"), count(&w, "play")), (2, 2));
    assert_eq!(ask(&mut w, conn, "TEARDOWN", &session).status, 200);
    w.assert_empty();
}

#[test]
fn limits_of_title_and_streams_count_listeners_and_cast() {
    let groups = groups("239.192.0.0/16", None);
    let mut w = World::with(|config| {
        config.service.multicast = Some(groups);
        config.service.max_streams_per_title = Some(2);
        config.service.max_streams = 1;
    });
    listener(&mut w, "192.0.2.50:999");
    listener(&mut w, "192.0.2.51:999");
    let conn = w.connect_from("192.0.2.52:999");
    let third = setup(&mut w, conn, "live/news", RANGE);
    assert!(third.status == 453 && third.reason.contains("--max-streams-per-title"), "{third:?}");
    let other = setup(&mut w, conn, "live/sport", RANGE);
    assert!(other.status == 453 && other.reason.contains("--max-streams)"), "{other:?}");
}

#[test]
fn listener_asks_for_parameters_and_keeps_its_transport() {
    let mut w = world("239.192.0.0/16");
    let (conn, session) = listener(&mut w, "192.0.2.50:999");
    let asked = format!(
        "GET_PARAMETER rtsp://192.0.2.1/live/news RTSP/1.0\nCSeq: 7\nSession: {session}\nContent-Type: text/parameters\nContent-Length: 19\n\nrange\nstream_state"
    );
    w.push(conn, asked.replace('\n', "\r\n").as_bytes());
    let answer = w.answers.get_mut(&conn).unwrap().pop_front().unwrap();
    assert_eq!(answer.body, "range: npt=now-\r\nstream_state: playing\r\n");
    let while_playing = format!(
        "SETUP rtsp://192.0.2.1/live/news/track1 RTSP/1.0\nCSeq: 8\nSession: {session}\nTransport: {RANGE}"
    );
    assert_eq!(w.ask(conn, &while_playing).status, 455);
    assert_eq!(ask(&mut w, conn, "PAUSE", &session).status, 200);
    assert_eq!(w.ask(conn, &while_playing).session(), session);
    let to_unicast = while_playing.replace(RANGE, "RTP/AVP/TCP;interleaved=0-1");
    assert_eq!(w.ask(conn, &to_unicast).status, 461);
    let other_title = while_playing.replace("live/news", "live/sport");
    assert_eq!(w.ask(conn, &other_title).status, 459);
}
