//! Titles that have to be opened first: requests that wait for it, requests that do not, and the
//! outcome. No disks, no sockets: the library answers when the test orders it to.

use crate::rtsp_support::{Answer, SECOND, World};
use millrace_server::limits::{MAX_OPENINGS, OPENING_NS};
use millrace_server::service::{ConnKey, NeededPart, OpenError, ServiceEvent, TitlePart};

const SLOW: &str = "Service Unavailable: the title's disks do not respond";
const UDP: &str = "RTP/AVP;unicast;client_port=5000-5001";

/// A world whose titles all have to be opened.
fn world() -> World {
    let world = World::new();
    world.open_titles.0.lock().unwrap().on_disk = true;
    world
}

fn describe(title: &str, cseq: u32) -> String {
    format!("DESCRIBE rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: {cseq}")
}

fn setup(title: &str, more: &str) -> String {
    format!("SETUP rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: 1\nTransport: {UDP}\n{more}")
}

/// Returns the answers on a connection since the last call.
fn answers(world: &mut World, conn: ConnKey) -> Vec<Answer> {
    world.answers.remove(&conn).map(Vec::from).unwrap_or_default()
}

/// The same as pairs of CSeq and status.
fn statuses(world: &mut World, conn: ConnKey) -> Vec<(String, u16)> {
    answers(world, conn).iter().map(|answer| (answer.get("cseq").to_owned(), answer.status)).collect()
}

fn is_answered(world: &mut World, conn: ConnKey, status: u16) -> bool {
    matches!(answers(world, conn).as_slice(), [answer] if answer.status == status)
}

/// Returns the openings under way, the oldest first.
fn begun(world: &World) -> Vec<NeededPart> {
    world.open_titles.0.lock().unwrap().begun.iter().cloned().collect()
}

fn parts(world: &World) -> Vec<TitlePart> {
    begun(world).iter().map(|need| need.part).collect()
}

const TIMES: TitlePart = TitlePart::Times { packet_bytes: 1316 };
const MEDIA: TitlePart = TitlePart::Media { packet_bytes: 1316, is_raw: false };
const RAW: TitlePart = TitlePart::Media { packet_bytes: 1316, is_raw: true };
const XOR: TitlePart = TitlePart::Parity { track: 1 };
const RS: TitlePart = TitlePart::Parity { track: 2 };

/// Completes all openings under way, and the openings that begin as a result.
fn open_all(world: &mut World) {
    while !begun(world).is_empty() {
        world.opened(Ok(()));
    }
}

#[test]
fn request_for_open_title_does_not_wait_for_other_openings() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    w.tell(b, &describe("other", 1));
    w.opened(Ok(()));
    assert!(is_answered(&mut w, b, 200));
    w.tell(a, &describe("film", 1));
    assert_eq!(begun(&w), [NeededPart::title("film")]);
    // A request for an open title is answered at once, and so is a request without a title.
    assert_eq!(w.ask(b, &describe("other", 2)).status, 200);
    assert_eq!(w.ask(b, "OPTIONS * RTSP/1.0\nCSeq: 3").status, 200);
    let c = w.connect();
    assert_eq!(w.ask(c, "OPTIONS * RTSP/1.0\nCSeq: 1").status, 200);
    w.tell(b, &setup("other", ""));
    w.tell(c, &describe("long", 2));
    assert!(w.server.is_waiting(a) && w.server.is_waiting(b) && w.server.is_waiting(c));
    assert_eq!(
        begun(&w)[1..],
        [NeededPart { title: "other".into(), part: MEDIA }, NeededPart::title("long")]
    );
    w.opened(Ok(()));
    assert!(is_answered(&mut w, a, 200) && !w.server.is_waiting(a) && w.server.is_waiting(b));
    open_all(&mut w);
    let [set_up] = <[Answer; 1]>::try_from(answers(&mut w, b)).unwrap();
    assert_eq!(w.ask_session(b, "PLAY", &set_up.session(), "").status, 200, "what it needs is open");
    assert_eq!(w.ask_session(b, "TEARDOWN", &set_up.session(), "").status, 200);
    w.assert_empty();
}

#[test]
fn requests_for_one_title_share_an_opening_and_are_answered_in_their_order() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    w.tell(b, &describe("film", 8));
    w.tell(a, &describe("film", 9));
    assert_eq!(begun(&w), [NeededPart::title("film")]);
    w.opened(Ok(()));
    assert_eq!(statuses(&mut w, a), [("9".to_owned(), 200)]);
    assert_eq!(statuses(&mut w, b), [("8".to_owned(), 200)]);
    // In their order: of two that want the same port the earlier one gets it.
    w.tell(b, &setup("film", ""));
    w.tell(a, &setup("film", ""));
    assert_eq!(parts(&w), [MEDIA]);
    w.opened(Ok(()));
    let first = answers(&mut w, b).pop().unwrap().session();
    assert_eq!(answers(&mut w, a).pop().unwrap().status, 461, "in use");
    assert_eq!(w.ask_session(b, "PLAY", &first, "").status, 200);
    assert_eq!(w.ask_session(b, "TEARDOWN", &first, "").status, 200);
    w.assert_empty();
}

#[test]
fn pipelined_requests_behind_waiting_one_keep_their_order() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    let pipelined = [describe("film", 1), "OPTIONS * RTSP/1.0\nCSeq: 2".to_owned(), describe("other", 3)];
    let bytes: String = pipelined.iter().map(|text| text.replace('\n', "\r\n") + "\r\n\r\n").collect();
    w.push(a, bytes.as_bytes());
    w.tell(b, &describe("other", 7));
    assert_eq!((answers(&mut w, a).len(), w.requests[&a]), (0, 1), "the others are held back");
    assert_eq!(w.opened(Ok(())), NeededPart::title("film"));
    assert_eq!(statuses(&mut w, a), [("1".to_owned(), 200), ("2".to_owned(), 200)]);
    assert!(w.server.is_waiting(a));
    w.opened(Ok(()));
    assert_eq!(statuses(&mut w, a), [("3".to_owned(), 200)]);
    assert_eq!(statuses(&mut w, b), [("7".to_owned(), 200)]);
    assert_eq!((w.requests[&a], w.replies[&a]), (3, 3));
}

#[test]
fn opening_timeout_refuses_request_and_allows_retry() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    w.tell(a, &describe("film", 1));
    w.tell(b, &(describe("film", 1) + "\nConnection: close"));
    w.wait(OPENING_NS - SECOND);
    assert!(w.server.is_waiting(a) && answers(&mut w, a).is_empty());
    // Another one comes late, and has its own time.
    let late = w.connect();
    w.tell(late, &describe("film", 1));
    w.wait(SECOND);
    let [refused] = <[Answer; 1]>::try_from(answers(&mut w, a)).unwrap();
    assert_eq!((refused.status, refused.reason.as_str(), refused.get("retry-after")), (503, SLOW, "10"));
    assert!(is_answered(&mut w, b, 503) && w.closed.contains(&b), "as it has asked to be");
    assert!(w.server.is_waiting(late) && !w.closed.contains(&a));
    let refused = |event: &&ServiceEvent| matches!(event, ServiceEvent::Refused { status: 503, .. });
    assert_eq!(w.notices.iter().filter(refused).count(), 2);
    assert_eq!(w.ask(a, "OPTIONS * RTSP/1.0\nCSeq: 2").status, 200);
    // The same request again joins the opening, and its time starts over.
    w.tell(a, &describe("film", 3));
    assert_eq!(begun(&w).len(), 1);
    w.wait(OPENING_NS - SECOND);
    assert!(is_answered(&mut w, late, 503) && answers(&mut w, a).is_empty());
    w.opened(Ok(()));
    assert_eq!(statuses(&mut w, a), [("3".to_owned(), 200)]);
    assert!(answers(&mut w, late).is_empty() && answers(&mut w, b).is_empty(), "one answer to one request");
    assert_eq!(w.ask(late, &describe("film", 4)).status, 200);
}

#[test]
fn opening_timeout_spans_all_parts_of_request() {
    let mut w = world();
    let a = w.connect();
    w.tell(a, &setup("film", ""));
    w.wait(OPENING_NS - SECOND);
    assert_eq!(w.opened(Ok(())).part, TIMES);
    assert_eq!(parts(&w), [MEDIA]);
    w.wait(SECOND);
    assert!(is_answered(&mut w, a, 503));
    w.opened(Ok(()));
    assert!(answers(&mut w, a).is_empty());
    w.assert_empty();
}

#[test]
fn opening_result_for_closed_connection_is_ignored() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    w.tell(a, &setup("film", ""));
    w.tell(b, &describe("film", 1));
    w.hang_up(a);
    assert!(!w.service.is_opening(a) && w.service.is_opening(b));
    w.opened(Ok(()));
    assert!(begun(&w).is_empty(), "nothing more is opened for it");
    assert!(is_answered(&mut w, b, 200) && answers(&mut w, a).is_empty());
    assert_eq!(w.service.connection_count(), 1);
    // A client that disconnects while the last part is opened leaves no session.
    let c = w.connect();
    w.tell(c, &setup("film", ""));
    w.hang_up(c);
    w.opened(Ok(()));
    w.wait(OPENING_NS);
    assert!(answers(&mut w, c).is_empty());
    w.assert_empty();
}

#[test]
fn max_openings_reached_refuses_new_titles_but_shares_pending_ones() {
    let mut w = world();
    let asking: Vec<_> = (0..MAX_OPENINGS)
        .map(|n| {
            let conn = w.connect();
            w.tell(conn, &describe(&format!("title-{n}"), 1));
            conn
        })
        .collect();
    let last = w.connect();
    let refused = w.ask(last, &describe("film", 1));
    assert_eq!((refused.status, refused.get("retry-after")), (503, "10"));
    assert_eq!(refused.reason, "Service Unavailable: too many titles are being opened now");
    w.tell(last, &describe("title-3", 2));
    assert!(w.server.is_waiting(last));
    // An opening that no request waits for any more keeps its place, because it keeps a thread
    // busy.
    w.hang_up(asking[0]);
    let other = w.connect();
    assert_eq!(w.ask(other, &describe("film", 1)).status, 503);
    w.opened(Ok(()));
    w.tell(other, &describe("film", 2));
    assert_eq!(begun(&w).last(), Some(&NeededPart::title("film")));
    open_all(&mut w);
    assert!(is_answered(&mut w, other, 200) && is_answered(&mut w, last, 404));
    assert!(asking[1..].iter().all(|conn| w.answers[conn].len() == 1));
}

#[test]
fn media_and_parity_of_a_setup_are_opened_together() {
    let mut w = world();
    let a = w.connect();
    w.tell(a, &setup("safe/track1", "X-Millrace-FEC: all"));
    assert_eq!(w.opened(Ok(())).part, TIMES);
    assert_eq!(parts(&w), [MEDIA, XOR, RS]);
    w.opened(Ok(()));
    w.opened(Ok(()));
    assert!(answers(&mut w, a).is_empty() && w.service.streams().is_empty());
    w.opened(Ok(()));
    let [set_up] = <[Answer; 1]>::try_from(answers(&mut w, a)).unwrap();
    assert!(set_up.status == 200 && set_up.get("x-millrace-fec").starts_with("all;"), "{set_up:?}");
    // Plain datagrams are another layout of the same title, opened by itself.
    let b = w.connect_from("192.0.2.8:1");
    w.tell(
        b,
        "SETUP rtsp://192.0.2.1/safe RTSP/1.0\nCSeq: 1\nTransport: RAW/RAW/UDP;unicast;client_port=7000-7001",
    );
    assert_eq!(parts(&w), [RAW]);
    w.opened(Ok(()));
    let [raw] = <[Answer; 1]>::try_from(answers(&mut w, b)).unwrap();
    assert_eq!(raw.status, 200, "{raw:?}");
    for (conn, session) in [(a, set_up.session()), (b, raw.session())] {
        assert_eq!(w.ask_session(conn, "PLAY", &session, "").status, 200);
        assert_eq!(w.ask_session(conn, "TEARDOWN", &session, "").status, 200);
    }
    w.assert_empty();
}

#[test]
fn opening_failure_returns_error_status_and_is_retried() {
    let broken = || Err(OpenError::Broken("meta-1316.mrp: checksum mismatch".into()));
    let mut w = world();
    let a = w.connect();
    // Without its times a title can be described.
    w.tell(a, &describe("film", 1));
    w.opened(broken());
    assert!(is_answered(&mut w, a, 200));
    for (error, status) in [
        (broken(), 500),
        (Err(OpenError::TimedOut("/disk1: disk not responding".into())), 503),
        (Err(OpenError::Full), 503),
        (Err(OpenError::MembersLost("2 members lost".into())), 503),
    ] {
        w.tell(a, &setup("film", ""));
        assert_eq!(w.opened(broken()).part, TIMES, "tried again");
        assert_eq!(w.opened(error.clone()).part, MEDIA);
        assert!(is_answered(&mut w, a, status), "{error:?}");
        let told = |event: &ServiceEvent| matches!(event, ServiceEvent::Broken { .. });
        assert_eq!(
            w.notices.drain(..).any(|event| told(&event)),
            !matches!(error, Err(OpenError::MembersLost(_)))
        );
    }
    // Parity that cannot be opened costs the FEC, not the title.
    w.tell(a, &setup("safe", "X-Millrace-FEC: xor"));
    w.opened(Ok(()));
    w.opened(Ok(()));
    assert_eq!(w.opened(broken()).part, XOR);
    let [set_up] = <[Answer; 1]>::try_from(answers(&mut w, a)).unwrap();
    assert_eq!(set_up.get("x-millrace-fec"), "off;reason=\"the title's parity cannot be read now\"");
    assert_eq!(w.ask_session(a, "TEARDOWN", &set_up.session(), "").status, 200);
    w.assert_empty();
}

#[test]
fn setup_without_capacity_is_refused_before_opening_media() {
    let mut w = World::with(|config| config.service.max_streams = 1);
    let a = w.connect();
    let id = w.setup_udp(a);
    w.ask_session(a, "PLAY", &id, "");
    w.open_titles.0.lock().unwrap().on_disk = true;
    let b = w.connect_from("198.51.100.1:1");
    w.tell(b, &setup("film", ""));
    assert_eq!(w.opened(Ok(())).part, TIMES);
    assert!(is_answered(&mut w, b, 453) && begun(&w).is_empty());
    // Room that goes while the title is opened is missed then.
    assert_eq!(w.ask_session(a, "TEARDOWN", &id, "").status, 200);
    w.tell(b, &setup("film", ""));
    assert_eq!(parts(&w), [MEDIA]);
    w.open_titles.0.lock().unwrap().on_disk = false;
    let id = w.setup_udp(a);
    w.ask_session(a, "PLAY", &id, "");
    w.open_titles.0.lock().unwrap().on_disk = true;
    w.opened(Ok(()));
    assert!(is_answered(&mut w, b, 453));
    assert_eq!(w.ask_session(a, "TEARDOWN", &id, "").status, 200);
    w.assert_empty();
}

/// A viewer with FEC of the first parity, who plays.
fn viewer(w: &mut World) -> (ConnKey, String) {
    let conn = w.connect();
    w.tell(conn, &setup("safe", "X-Millrace-FEC: xor"));
    open_all(w);
    let session = answers(w, conn).pop().unwrap().session();
    assert_eq!(w.ask_session(conn, "PLAY", &session, "").status, 200);
    w.wait(SECOND);
    (conn, session)
}

fn wish_all(session: &str) -> String {
    format!("SET_PARAMETER * RTSP/1.0\nCSeq: 6\nSession: {session}\nContent-Length: 8\n\nfec: all")
}

#[test]
fn more_fec_waits_for_its_parity_while_the_title_plays_on() {
    let mut w = world();
    let (conn, session) = viewer(&mut w);
    w.take_log();
    w.tell(conn, &wish_all(&session));
    assert_eq!(parts(&w), [RS]);
    w.wait(2 * SECOND);
    assert!(w.take_log().is_empty() && w.service.streams()[0].is_playing());
    let open = w.open_titles.open_count();
    w.opened(Ok(()));
    assert!(is_answered(&mut w, conn, 200));
    assert_eq!(w.open_titles.open_count(), open + 1, "kept open until the engine has gone over");
    w.wait(5 * SECOND);
    assert!(w.take_log().iter().any(|line| line == "open fec 5006"));
    assert_eq!(w.open_titles.open_count(), open + 1);
    assert_eq!(w.ask_session(conn, "TEARDOWN", &session, "").status, 200);
    w.assert_empty();
}

#[test]
fn session_ended_during_opening_keeps_nothing_open() {
    let mut w = world();
    let (conn, session) = viewer(&mut w);
    let other = w.connect();
    w.tell(conn, &wish_all(&session));
    assert_eq!(w.ask_session(other, "TEARDOWN", &session, "").status, 200, "another connection goes on");
    w.opened(Ok(()));
    assert!(is_answered(&mut w, conn, 454));
    w.assert_empty();
    // And one that ends between the answer and the switch.
    let (conn, session) = viewer(&mut w);
    w.tell(conn, &wish_all(&session));
    open_all(&mut w);
    assert!(is_answered(&mut w, conn, 200));
    assert_eq!(w.ask_session(conn, "TEARDOWN", &session, "").status, 200);
    w.assert_empty();
}

#[test]
fn times_that_could_not_be_read_are_opened_again_before_the_next_play() {
    let mut w = world();
    let conn = w.connect();
    w.tell(conn, &setup("worn", ""));
    open_all(&mut w);
    let session = answers(&mut w, conn).pop().unwrap().session();
    // Only parts that are not open are requested.
    assert_eq!(w.ask_session(conn, "PLAY", &session, "").status, 200);
    w.open_titles.forget(&NeededPart::title("worn"));
    w.tell(
        conn,
        &format!("PLAY rtsp://192.0.2.1/worn RTSP/1.0\nCSeq: 7\nSession: {session}\nRange: npt=10-"),
    );
    assert_eq!(begun(&w), [NeededPart::title("worn")]);
    assert!(w.server.is_waiting(conn) && w.service.streams()[0].is_playing());
    w.opened(Err(OpenError::Broken("meta-1316.mrp: is missing".into())));
    let [played] = <[Answer; 1]>::try_from(answers(&mut w, conn)).unwrap();
    assert!(played.status == 200 && played.get("range").starts_with("npt=10"), "by the index: {played:?}");
    assert_eq!(w.ask_session(conn, "TEARDOWN", &session, "").status, 200);
    w.assert_empty();
}

#[test]
fn shutdown_answers_who_waits() {
    let mut w = world();
    let (a, b) = (w.connect(), w.connect());
    w.tell(a, &setup("film", ""));
    w.service.begin_shutdown();
    let refused = w.ask(b, &describe("other", 1));
    assert_eq!((refused.status, begun(&w).len()), (503, 1), "nothing more is begun");
    w.server.face(&mut w.service).shut_down(w.now);
    w.settle();
    assert!(is_answered(&mut w, a, 503) && w.closed.contains(&a) && w.closed.contains(&b));
    w.opened(Ok(()));
    assert!(answers(&mut w, a).is_empty() && begun(&w).is_empty());
    w.assert_empty();
}
