//! FEC as viewers ask for it, and the resulting commands to the engine. No sockets.

use crate::rtsp_support::{Answer, MS, SECOND, World};
use millrace_core::ids::StreamId;
use millrace_offload::command::{FailReason, LeaseFailure, StreamEvent};
use millrace_server::service::{ConnKey, FecMode, ServiceEvent};
use millrace_server::session::SessionState;

const OFFER: &str = "a=x-millrace-fec:xor,all;xor_port=+2;rs_port=+6;pt=96;L=20;D=4;k=4;m=2;U=20\r\n";
const XOR: &str = "xor;xor_port=5002;pt=96;L=20;D=4;k=4;m=2;U=20";
const ALL: &str = "all;xor_port=5002;rs_port=5006;pt=96;L=20;D=4;k=4;m=2;U=20";
/// Packets of the title.
const PACKETS: u32 = 24_000;

fn setup(world: &mut World, conn: ConnKey, url: &str, transport: &str, more: &str) -> Answer {
    world
        .ask(conn, &format!("SETUP rtsp://192.0.2.1/{url} RTSP/1.0\nCSeq: 1\nTransport: {transport}\n{more}"))
}

const UDP: &str = "RTP/AVP;unicast;client_port=5000-5001";

/// A viewer with FEC; its session.
fn viewer(world: &mut World, mode: &str) -> (ConnKey, String) {
    let conn = world.connect();
    let answer = setup(world, conn, "safe/track1", UDP, &format!("X-Millrace-FEC: {mode}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    (conn, answer.session())
}

fn fec_of(world: &mut World, conn: ConnKey, session: &str) -> String {
    world.ask_session(conn, "GET_PARAMETER", session, "Content-Length: 3\n\nfec").body
}

#[test]
fn fec_offer_appears_only_where_fec_is_available() {
    let mut world = World::new();
    let conn = world.connect();
    let ask = |world: &mut World, url: &str| {
        let answer = world.ask(conn, &format!("DESCRIBE rtsp://192.0.2.1/{url} RTSP/1.0\nCSeq: 1"));
        (answer.get("content-base").to_owned(), answer.body)
    };
    assert!(ask(&mut world, "safe").1.ends_with(&format!("a=control:track1\r\n{OFFER}")));
    assert!(ask(&mut world, "film").1.ends_with("a=control:track1\r\n"));
    // Players leave the query out when they put the track's URL together.
    let (base, sdp) = ask(&mut world, "safe?fec=xor");
    assert_eq!(base, "rtsp://192.0.2.1/safe/");
    assert!(sdp.ends_with(&format!("a=control:track1?fec=xor\r\n{OFFER}")), "{sdp}");
    assert!(ask(&mut world, "safe?fec=maybe").1.ends_with(&format!("a=control:track1\r\n{OFFER}")));

    let mut world = World::with(|config| config.service.fec = false);
    world.connect();
    assert!(ask(&mut world, "safe").1.ends_with("a=control:track1\r\n"));
}

#[test]
fn setup_without_fec_request_opens_no_fec_stream() {
    let mut world = World::new();
    let conn = world.connect();
    let answer = setup(&mut world, conn, "safe/track1", UDP, "");
    assert!(answer.status == 200 && !answer.has("x-millrace-fec"), "{answer:?}");
    assert_eq!(world.take_log(), ["open udp 192.0.2.7 5000 5001", "reply 200"]);
    let session = answer.session();
    assert_eq!(fec_of(&mut world, conn, &session), "fec: off\r\n");
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 7\n\nfec: on");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (451, ""));
}

#[test]
fn header_and_query() {
    for (url, more, granted, opened) in [
        ("safe/track1", "X-Millrace-FEC: xor", XOR, 2),
        ("safe/track1", "x-millrace-fec:  ALL ", ALL, 3),
        ("safe/track1?fec=xor", "", XOR, 2),
        ("safe?a=b&fec=all", "", ALL, 3),
        ("safe?fec=all", "X-Millrace-FEC: xor", XOR, 2),
        ("safe?fec=all", "X-Millrace-FEC: off", "off", 1),
        ("safe", "X-Millrace-FEC: on", "off;reason=\"ask for xor, all or off\"", 1),
        ("film", "X-Millrace-FEC: xor", "off;reason=\"the title is stored without parity\"", 1),
        ("frail", "X-Millrace-FEC: all", "off;reason=\"the title's parity cannot be read now\"", 1),
    ] {
        let mut world = World::new();
        let conn = world.connect();
        let answer = setup(&mut world, conn, url, UDP, more);
        assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, granted), "{url} {more}");
        assert_eq!(world.service.place_count(), opened, "{url} {more}");
        let session = answer.session();
        world.ask_session(conn, "TEARDOWN", &session, "");
        world.assert_empty();
    }
}

#[test]
fn setup_with_fec_on_unsuitable_transport_reports_fec_off() {
    let mut world = World::new();
    let conn = world.connect();
    for (transport, reason) in [
        ("RTP/AVP/TCP;interleaved=0-1", "FEC is available over UDP only"),
        ("RTP/AVP;unicast;client_port=65530-65531", "its ports would be beyond 65535"),
        ("RTP/AVP;unicast;client_port=4000-4002", "port 4002 is in use by another stream"),
    ] {
        let answer = setup(&mut world, conn, "safe", transport, "X-Millrace-FEC: xor");
        let expected = format!("off;reason=\"{reason}\"");
        assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, &*expected), "{transport}");
    }
    // Another session of this address has its film there.
    let first = setup(&mut world, conn, "film", "RTP/AVP;unicast;client_port=7002-7003", "");
    assert_eq!(first.status, 200);
    let answer =
        setup(&mut world, conn, "safe", "RTP/AVP;unicast;client_port=7000-7001", "X-Millrace-FEC: xor");
    assert_eq!(answer.get("x-millrace-fec"), "off;reason=\"port 7002 is in use by another stream\"");

    let mut world = World::with(|config| config.service.fec = false);
    let conn = world.connect();
    let answer = setup(&mut world, conn, "safe", UDP, "X-Millrace-FEC: xor");
    assert_eq!(answer.get("x-millrace-fec"), "off;reason=\"this server sends no FEC (--fec)\"");
}

#[test]
fn fec_streams_follow_play_pause_seek_and_teardown() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    assert_eq!(
        world.take_log(),
        ["open fec 5002", "open fec 5006", "open udp 192.0.2.7 5000 5001", "reply 200"]
    );
    assert_eq!(world.ask_session(conn, "PLAY", &session, "").status, 200);
    // The FEC of the first row leaves with the second row: 80 packets of 2.5 ms later.
    assert_eq!(
        world.take_log(),
        [
            "reply 200",
            "play 0..24000 seq 1 in 50ms spare 2",
            "play 0..6000 seq 1 in 250ms",
            "play 0..6000 seq 1 in 250ms"
        ]
    );
    world.wait(SECOND);
    world.take_log();

    assert_eq!(world.ask_session(conn, "PAUSE", &session, "").status, 200);
    assert_eq!(world.take_log(), ["pause", "pause", "pause", "reply 200"]);
    // At packet 381 (950 ms after the first): row 4, place 61; the FEC of row 3 has gone out up to column 15, of 4 packets each.
    let next = 381;
    assert_eq!((next / 80, next % 80), (4, 61));
    assert_eq!(world.ask_session(conn, "PLAY", &session, "").status, 200);
    let log = world.take_log();
    let fec = format!("play {}..6000 seq {} in 57ms", 3 * 20 + 16, 3 * 20 + 16 + 1);
    assert_eq!(log[1], format!("play {next}..24000 seq {} in 50ms spare 2", next + 1));
    assert_eq!(log[2..], [&*fec, &*fec]);

    // A seek: the title's own numbers, and FEC from there on.
    let answer = world.ask_session(conn, "PLAY", &session, "Range: npt=10-");
    assert!(answer.get("rtp-info").contains("seq=4001;"), "{answer:?}");
    let log = world.take_log();
    assert_eq!(log[..3], ["pause", "pause", "pause"]);
    assert_eq!(log[4], "play 4000..24000 seq 4001 in 50ms spare 2");
    assert_eq!(log[5..], ["play 1000..6000 seq 1001 in 250ms", "play 1000..6000 seq 1001 in 250ms"]);

    assert_eq!(world.ask_session(conn, "TEARDOWN", &session, "").status, 200);
    assert_eq!(world.take_log(), ["close", "close", "close", "reply 200"]);
    world.assert_empty();
}

/// Columns that a range cuts through have no FEC: a receiver would reconstruct packets that it was
/// not meant to get.
#[test]
fn fec_of_range_covers_whole_columns_only() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "xor");
    world.take_log();
    // Packets 0 to 3999 are rows 0 to 49.
    world.ask_session(conn, "PLAY", &session, "Range: npt=0-10");
    assert_eq!(world.take_log()[1..], ["play 0..4000 seq 1 in 50ms spare 1", "play 0..1000 seq 1 in 250ms"]);
    world.wait(20 * SECOND);
    // Packets 3200 to 3269: the last row has its first three units and ten packets of the fourth.
    world.ask_session(conn, "PLAY", &session, "Range: npt=8-8.175");
    assert_eq!(
        world.take_log()[1..],
        ["play 3200..3270 seq 3201 in 50ms spare 1", "play 800..810 seq 801 in 250ms"]
    );
    // The further parities leave five columns earlier: behind the fifth slot there would be some of columns that are cut.
    world.hang_up(conn);
    let (conn, session) = viewer(&mut world, "all");
    world.take_log();
    world.ask_session(conn, "PLAY", &session, "Range: npt=8-8.175");
    assert_eq!(world.take_log()[2..], ["play 800..810 seq 801 in 250ms", "play 800..805 seq 801 in 250ms"]);
}

#[test]
fn switching_while_playing() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    world.ask_session(conn, "PLAY", &session, "");
    world.wait(SECOND);
    world.take_log();
    let set = |world: &mut World, what: &str| {
        let length = what.len() + 5;
        world.ask_session(
            conn,
            "SET_PARAMETER",
            &session,
            &format!("Content-Length: {length}\n\nfec: {what}"),
        )
    };
    let answer = set(&mut world, "off");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, "off"));
    // It plays packet 380; a quarter of a second on, at the end of an extent, it goes over.
    assert_eq!(world.take_log(), ["queue 588..24000 seq 589 at 588", "reply 200"]);
    assert_eq!(world.server.sessions(&world.service, world.now)[0].state, SessionState::Playing);
    assert_eq!(
        (world.service.reserved_rate(), fec_of(&mut world, conn, &session)),
        (4_000_000, "fec: off\r\n".into())
    );
    world.wait(950 * MS);
    assert_eq!(world.take_log(), ["reply 200", "close", "close"], "the reply is that to the question above");

    // `on` means the mode that SETUP granted. Packets sent without a break are protected: the FEC
    // of the row before goes out too.
    let answer = set(&mut world, "ON");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, ALL));
    assert_eq!(world.take_log(), ["queue 980..24000 seq 981 at 980 spare 2", "reply 200"]);
    world.wait(SECOND);
    // Packet 980 is in row 12, at place 20: FEC of row 11 from column 5 on.
    let fec = "play 225..6000 seq 226 in 0ms";
    assert_eq!(world.take_log(), ["open fec 5002", "open fec 5006", fec, fec]);
    assert_eq!(world.service.reserved_rate(), 6_000_000);

    assert_eq!(set(&mut world, "xor").get("x-millrace-fec"), XOR);
    assert_eq!(world.take_log(), ["queue 1372..24000 seq 1373 at 1372 spare 1", "reply 200"]);
    world.wait(SECOND);
    assert_eq!(world.take_log(), ["close"], "the other one plays on");
    assert_eq!(set(&mut world, "maybe").status, 451);
    assert_eq!(fec_of(&mut world, conn, &session), "fec: xor\r\n");
    // While it stands still there is nothing to go on with.
    world.ask_session(conn, "PAUSE", &session, "");
    world.take_log();
    set(&mut world, "off");
    assert_eq!(world.take_log(), ["close", "reply 200"]);
    world.ask_session(conn, "TEARDOWN", &session, "");
    world.assert_empty();
}

/// There is no end of an extent any more to go over at.
#[test]
fn switching_near_the_end_takes_another_run() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    world.ask_session(conn, "PLAY", &session, "Range: npt=59-");
    world.wait(1800 * MS);
    world.take_log();
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: off");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, "off"));
    let log = world.take_log();
    assert_eq!(log.get(..4).unwrap_or(&log), ["pause", "pause", "pause", "reply 200"]);
    assert_eq!(log[4..], ["close", "close", "play 23901..24000 seq 23902 in 0ms"]);
}

/// The run that was queued cannot be: the engine has passed the cut, or could not read it.
#[test]
fn fec_switch_after_missed_cut_starts_new_run() {
    use millrace_offload::command::{Event, Refusal};
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    world.ask_session(conn, "PLAY", &session, "");
    world.wait(SECOND);
    world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: off");
    world.take_log();
    let (&stream, queued) = world
        .engine
        .streams
        .iter_mut()
        .find_map(|(id, stream)| Some((id, stream.queued.take()?.1)))
        .expect("a run is queued");
    let refused = Event::Refused { stream, run: Some(queued.run), refusal: Refusal::CutPassed };
    world.engine_event(0, refused);
    world.settle();
    let log = world.take_log();
    assert_eq!(log[..3], ["pause", "pause", "pause"]);
    assert_eq!(log[3..], ["close", "close", "play 381..24000 seq 382 in 0ms"]);
    assert_eq!(world.service.streams().len(), 1);
}

/// Less FEC needs no stream, more is refused where there is none, and no viewer is ended.
#[test]
fn switching_on_a_full_engine() {
    let mut world = World::with(|config| config.service.streams_per_engine = 2);
    let (conn, session) = viewer(&mut world, "xor");
    world.ask_session(conn, "PLAY", &session, "");
    world.take_log();
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: all");
    assert_eq!(answer.status, 453, "{}", answer.reason);
    assert_eq!(
        (world.take_log(), fec_of(&mut world, conn, &session)),
        (vec!["reply 453".into()], "fec: xor\r\n".into())
    );
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: off");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, "off"));
    assert_eq!(world.server.sessions(&world.service, world.now)[0].state, SessionState::Playing);
    world.ask_session(conn, "TEARDOWN", &session, "");
    world.assert_empty();
}

/// FEC follows its media: media that starts late, because reading took long, does not come behind it.
#[test]
fn fec_starts_with_its_media() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    world.engine.read_ns = 400 * MS;
    assert_eq!(world.ask_session(conn, "PLAY", &session, "").status, 200);
    let log = world.take_log();
    assert_eq!(log.last().unwrap(), "play 0..24000 seq 1 in 50ms spare 2", "{log:?}");
    world.wait(500 * MS);
    // It began at 400 ms, so the FEC of its first row is due at 600 ms.
    assert_eq!(world.take_log(), ["play 0..6000 seq 1 in 100ms", "play 0..6000 seq 1 in 100ms"]);
    // A run that is paused before it has begun starts nothing.
    world.ask_session(conn, "PLAY", &session, "Range: npt=10-");
    world.ask_session(conn, "PAUSE", &session, "");
    world.take_log();
    world.wait(SECOND);
    assert_eq!(world.take_log(), [""; 0]);
}

/// The engine has not answered yet when the viewer wants something else.
#[test]
fn requests_that_cross_a_switch() {
    for (method, more, goes_on) in
        [("PAUSE", "", false), ("PLAY", "Range: npt=10-", true), ("TEARDOWN", "", false)]
    {
        let mut world = World::new();
        let (conn, session) = viewer(&mut world, "all");
        world.ask_session(conn, "PLAY", &session, "");
        world.wait(SECOND);
        world.engine.silent = true;
        world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: off");
        assert_eq!(world.server.sessions(&world.service, world.now)[0].state, SessionState::Playing);
        world.tell(
            conn,
            &format!("{method} rtsp://192.0.2.1/safe/ RTSP/1.0\nCSeq: 9\nSession: {session}\n{more}"),
        );
        world.take_log();
        world.engine.silent = false;
        world.settle();
        let log = world.take_log();
        let plays: Vec<_> = log.iter().filter(|line| line.starts_with("play")).collect();
        let expected: &[&str] = if goes_on { &["play 4000..24000 seq 4001 in 0ms"] } else { &[] };
        assert_eq!(plays, expected, "{method}");
        assert_eq!(world.answers.get_mut(&conn).unwrap().pop_back().unwrap().status, 200, "{method}");
        if method != "TEARDOWN" {
            world.ask_session(conn, "TEARDOWN", &session, "");
        }
        world.assert_empty();
    }
}

/// A server with this limit on its total rate to all addresses.
fn with_rate(rate: &str) -> World {
    World::with(|config| {
        config.service.max_rate = Some(rate.parse().unwrap());
        config.service.address_share_percent = 100;
    })
}

#[test]
fn admission_counts_it() {
    // 4 Mb/s of film; XOR adds a quarter, all parities a half.
    let mut world = with_rate("5500kb/s");
    let (conn, session) = viewer(&mut world, "xor");
    assert_eq!(world.service.reserved_rate(), 0, "it does not play yet");
    assert_eq!(world.ask_session(conn, "PLAY", &session, "").status, 200);
    assert_eq!(world.service.reserved_rate(), 5_000_000);
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: all");
    assert_eq!(answer.status, 453);
    assert_eq!(
        (world.service.reserved_rate(), fec_of(&mut world, conn, &session)),
        (5_000_000, "fec: xor\r\n".into())
    );
    world.ask_session(conn, "TEARDOWN", &session, "");
    // The film itself is not refused.
    let answer = setup(&mut world, conn, "safe", UDP, "X-Millrace-FEC: all");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.get("x-millrace-fec"),
        "off;reason=\"4Mb/s of 5.5Mb/s in use, 2Mb/s more for FEC (--max-rate)\""
    );
    let session = answer.session();
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: xor");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, XOR));
    assert_eq!(world.ask_session(conn, "PLAY", &session, "").status, 200);
    assert_eq!(world.service.reserved_rate(), 5_000_000);
    assert_eq!(world.ask_session(conn, "PAUSE", &session, "").status, 200);
    // SETUP again without asking: the FEC is gone and its rate is given back.
    let answer =
        world.ask_session(conn, "SETUP", &session, "Transport: RTP/AVP;unicast;client_port=6000-6001");
    assert_eq!(answer.status, 459, "the title in the URL is another one");
    let again =
        format!("SETUP rtsp://192.0.2.1/safe RTSP/1.0\nCSeq: 3\nSession: {session}\nTransport: {UDP}");
    assert_eq!(world.ask(conn, &again).status, 200);
    assert_eq!(world.service.reserved_rate(), 4_000_000);
    world.ask_session(conn, "TEARDOWN", &session, "");
    world.assert_empty();

    // Two places: the second stream is FEC, a third there is none for.
    let mut world = World::with(|config| config.service.streams_per_engine = 2);
    let conn = world.connect();
    let answer = setup(&mut world, conn, "safe", UDP, "X-Millrace-FEC: all");
    assert_eq!(answer.get("x-millrace-fec"), "off;reason=\"the engine has no free stream (--max-streams)\"");
    assert_eq!(world.service.place_count(), 1);
}

/// SETUP found room for film and FEC, PLAY finds room for the film alone.
#[test]
fn play_without_capacity_for_fec_sends_title_alone() {
    let mut world = with_rate("9500kb/s");
    let (conn, session) = viewer(&mut world, "all");
    let other = world.connect_from("198.51.100.1:1");
    let film = world.setup_tcp(other);
    assert_eq!(world.ask_session(other, "PLAY", &film, "").status, 200);
    world.take_log();
    let play = world.ask_session(conn, "PLAY", &session, "");
    let log = world.take_log();
    assert_eq!(log, ["close", "close", "reply 200", "play 0..24000 seq 1 in 0ms"]);
    let reason = "off;reason=\"4Mb/s of 9.5Mb/s in use, 6Mb/s more asked (--max-rate)\"";
    assert_eq!((play.status, play.get("x-millrace-fec")), (200, reason));
    assert_eq!(fec_of(&mut world, conn, &session), "fec: off\r\n");
    assert_eq!(world.service.reserved_rate(), 8_000_000);
    // It is reported once.
    assert!(!world.ask_session(conn, "PLAY", &session, "Range: npt=10-").has("x-millrace-fec"));
    world.hang_up(other);
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 8\n\nfec: all");
    assert_eq!((answer.status, answer.get("x-millrace-fec")), (200, ALL), "there is room again");
    world.ask_session(conn, "TEARDOWN", &session, "");
    world.assert_empty();
}

#[test]
fn fec_ends_when_new_viewer_takes_its_ports() {
    let mut world = World::new();
    let (first, session) = viewer(&mut world, "all");
    world.ask_session(first, "PLAY", &session, "");
    world.wait(SECOND);
    let second = world.connect();
    let answer = setup(&mut world, second, "film", "RTP/AVP;unicast;client_port=5006-5007", "");
    assert_eq!(answer.status, 461, "the viewer there is alive");
    assert_eq!(fec_of(&mut world, first, &session), "fec: all\r\n");
    world.hang_up(first);
    let answer = setup(&mut world, second, "film", "RTP/AVP;unicast;client_port=5006-5007", "");
    assert_eq!(answer.status, 200);
    world.settle();
    assert_eq!(fec_of(&mut world, second, &session), "fec: off\r\n");
    assert_eq!(world.server.sessions(&world.service, world.now)[0].state, SessionState::Playing);
    let told = world.notices.iter().any(|notice| {
        matches!(notice, ServiceEvent::Fec { mode: FecMode::Off, trouble: Some(why), .. } if why.contains("port 5006"))
    });
    assert!(told, "{:?}", world.notices);
    // A box that was switched off and on again asks for the same ports, with FEC.
    world.hang_up(second);
    let third = world.connect();
    let answer =
        setup(&mut world, third, "safe", "RTP/AVP;unicast;client_port=5006-5007", "X-Millrace-FEC: xor");
    assert_eq!(answer.get("x-millrace-fec"), "xor;xor_port=5008;pt=96;L=20;D=4;k=4;m=2;U=20");
}

/// Parity that cannot be read costs only the FEC, and the media sent is complete from then on.
#[test]
fn failed_parity_leaves_the_film() {
    let mut world = World::new();
    let (conn, session) = viewer(&mut world, "all");
    world.ask_session(conn, "PLAY", &session, "");
    world.wait(SECOND);
    let companions: Vec<StreamId> =
        world.engine.streams.iter().filter(|(_, stream)| stream.quiet).map(|(id, _)| *id).collect();
    assert_eq!(companions.len(), 2);
    world.take_log();
    for stream in companions {
        world.engine.tell(StreamEvent::Failed { stream, reason: FailReason::ReadError(LeaseFailure::Io(5)) });
    }
    world.settle();
    let log = world.take_log();
    assert_eq!(log.last().unwrap(), "play 381..24000 seq 382 in 0ms", "{log:?}");
    assert!(!log.iter().any(|line| line.starts_with("open")), "{log:?}");
    assert_eq!((world.service.streams().len(), world.counters().fec_failed), (1, 1));
    assert_eq!(fec_of(&mut world, conn, &session), "fec: off\r\n");
    assert_eq!(world.service.reserved_rate(), 4_000_000);
}

/// Packets from a viewer's FEC ports open a path through its NAT, and are a sign of life.
#[test]
fn punches_from_fec_ports_keep_it_alive() {
    use millrace_server::session::UdpPort;
    let mut world = World::new();
    let _ = viewer(&mut world, "all");
    for _ in 0..10 {
        world.wait(30 * SECOND);
        world.server.face(&mut world.service).handle_datagram(
            world.now,
            UdpPort::Rtp,
            "192.0.2.7:5006".parse().unwrap(),
            b"punch",
        );
    }
    assert_eq!((world.service.streams().len(), world.counters().punches), (1, 10));
    world.wait(70 * SECOND);
    assert_eq!(world.service.streams().len(), 0);
    world.assert_empty();
}

#[test]
fn packets_are_of_the_default_size() {
    let mut world = World::with(|config| {
        config.service.packet_sizes = "8k".parse().unwrap();
        config.service.path_mtu = |_| Some(9000);
    });
    let (conn, session) = viewer(&mut world, "off");
    assert!(world.take_log()[0].starts_with("open udp"));
    world.ask_session(conn, "PLAY", &session, "");
    let run = world.engine.streams.values().next().unwrap().playing.unwrap();
    assert_eq!(run.spec.media.packets, PACKETS);
    let answer = world.ask_session(conn, "SET_PARAMETER", &session, "Content-Length: 7\n\nfec: on");
    assert_eq!(answer.get("x-millrace-fec"), XOR, "on is xor after off");
}

#[test]
fn title_with_too_many_lost_members_returns_503() {
    let mut world = World::new();
    let conn = world.connect();
    let answer = world.ask(conn, "DESCRIBE rtsp://192.0.2.1/torn RTSP/1.0\nCSeq: 1");
    assert_eq!((answer.status, answer.get("retry-after")), (503, "10"));
    let answer = setup(&mut world, conn, "torn", UDP, "");
    assert_eq!((answer.status, answer.get("retry-after")), (503, "10"));
    assert_eq!(answer.reason, "Service Unavailable: 2 members lost (b, c), 1 may be");
    let told = |notice: &ServiceEvent| matches!(notice, ServiceEvent::Refused { title, reason, .. } if title == "torn" && reason.contains("b, c"));
    assert!(world.notices.iter().any(told), "{:?}", world.notices);
    assert_eq!(setup(&mut world, conn, "film", UDP, "").status, 200, "other titles go on");
}
