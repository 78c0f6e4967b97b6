//! Renditions as a player asks for them: in the URL and by SET_PARAMETER, with the contents of the
//! replies, and refusals.

use crate::rtsp_support::{Answer, SECOND, World};
use millrace_core::units::BitRate;
use millrace_server::service::{ConnKey, OpenError, TitlePart};

fn describe(w: &mut World, conn: ConnKey, title: &str) -> Answer {
    w.ask(conn, &format!("DESCRIBE rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: 1"))
}

fn setup(w: &mut World, conn: ConnKey, title: &str) -> Answer {
    w.ask(
        conn,
        &format!(
            "SETUP rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;unicast;client_port=5000-5001"
        ),
    )
}

fn parameter(w: &mut World, conn: ConnKey, id: &str, method: &str, body: &str) -> Answer {
    w.ask_session(conn, method, id, &format!("Content-Length: {}\n\n{body}", body.len() + 4))
}

fn set(w: &mut World, conn: ConnKey, id: &str, name: &str) -> (u16, String) {
    let answer = parameter(w, conn, id, "SET_PARAMETER", &format!("rendition: {name}"));
    (answer.status, answer.get("x-millrace-rendition").to_owned())
}

fn is_sent(w: &mut World, conn: ConnKey, id: &str) -> String {
    parameter(w, conn, id, "GET_PARAMETER", "rendition").body.trim_end().to_owned()
}

#[test]
fn by_url_and_while_it_plays() {
    let mut w = World::new();
    let c = w.connect();
    let text = describe(&mut w, c, "ladder?rendition=720p").body;
    assert!(text.contains("a=control:track1?rendition=720p\r\n"), "{text}");
    assert!(text.contains("a=x-millrace-rendition:480p;mean=1200000;peak=1800000\r\n"), "{text}");
    let answer = setup(&mut w, c, "ladder/track1?rendition=720p");
    assert_eq!(answer.status, 200);
    assert!(answer.get("transport").contains("ssrc=07200001"), "{answer:?}");
    let id = answer.session();
    assert_eq!(is_sent(&mut w, c, &id), "rendition: 720p");
    w.take_log();
    let answer = w.ask_session(c, "PLAY", &id, "Range: npt=0-");
    assert_eq!((answer.status, answer.get("range")), (200, "npt=0.000-67.000"));
    assert!(answer.get("rtp-info").ends_with(";seq=1;rtptime=99"), "{answer:?}");
    w.wait(SECOND);
    w.take_log();
    assert_eq!(set(&mut w, c, &id, "1080P"), (200, "1080p;npt=2.000".into()));
    assert_eq!(w.take_log(), ["queue 800..26800 seq 601 at 600", "reply 200"]);
    assert_eq!(set(&mut w, c, &id, "480p"), (200, "480p;after=change".into()));
    assert_eq!(is_sent(&mut w, c, &id), "rendition: 720p");
    w.wait(2 * SECOND);
    assert_eq!(is_sent(&mut w, c, &id), "rendition: 1080p");
    w.wait(2 * SECOND);
    assert_eq!(
        (is_sent(&mut w, c, &id).as_str(), set(&mut w, c, &id, "480p")),
        ("rendition: 480p", (200, "480p".into()))
    );
    w.ask_session(c, "PAUSE", &id, "");
    assert_eq!(set(&mut w, c, &id, "720p"), (200, "720p;after=play".into()));
    let said: Vec<_> = w.notices.iter().map(ToString::to_string).collect();
    let line = "goes from 1080p to 480p: ladder at 0:00:04.000 as its viewer wishes";
    assert!(said.iter().any(|said| said.ends_with(line)), "{said:?}");
    assert!(said.iter().any(|said| said.ends_with("plays: ladder from 0:00:00.000 as 720p")), "{said:?}");
    w.ask_session(c, "TEARDOWN", &id, "");
    w.assert_empty();
}

#[test]
fn rendition_that_is_unavailable_is_refused_with_reason() {
    let mut w = World::with(|config| config.service.max_rate = Some(BitRate(3_500_000)));
    let c = w.connect();
    for (title, reason) in [
        ("ladder?rendition=360p", "the title has no such rendition; there are 1080p, 720p, 480p"),
        ("film?rendition=480p", "the title has no renditions"),
        ("film?rendition=auto", "the title has no renditions"),
        ("ladder@480p", "no such title"),
    ] {
        for answer in [describe(&mut w, c, title), setup(&mut w, c, title)] {
            assert_eq!((answer.status, answer.reason.contains(reason)), (404, true), "{title}: {answer:?}");
        }
    }
    let id = setup(&mut w, c, "ladder?rendition=480p").session();
    w.ask_session(c, "PLAY", &id, "");
    assert_eq!(set(&mut w, c, &id, "1080p"), (453, String::new()));
    assert_eq!(set(&mut w, c, &id, "auto"), (200, "480p".into()));
    let answer = parameter(&mut w, c, &id, "SET_PARAMETER", "rendition: tall");
    assert_eq!(answer.status, 451);
    assert!(answer.body.contains("there are 1080p, 720p, 480p"), "{answer:?}");
    assert_eq!(is_sent(&mut w, c, &id), "rendition: 480p");
    let answer = w.ask(
        c,
        "SET_PARAMETER rtsp://192.0.2.1/ladder RTSP/1.0\nCSeq: 9\nContent-Length: 19\n\nrendition: 480p",
    );
    assert_eq!(answer.status, 454, "it belongs to a session");
    w.ask_session(c, "TEARDOWN", &id, "");
    w.assert_empty();
    let mut w = World::new();
    let c = w.connect();
    let id = setup(&mut w, c, "other").session();
    for method in ["GET_PARAMETER", "SET_PARAMETER"] {
        assert_eq!(parameter(&mut w, c, &id, method, "rendition: 480p").status, 451, "{method}");
    }
    w.ask_session(c, "TEARDOWN", &id, "");
    w.assert_empty();
}

/// A rendition that no viewer has watched for a while has to be opened first: the request waits,
/// and the current one is sent meanwhile.
#[test]
fn rendition_that_is_not_open_is_opened_before_switch() {
    for is_good in [true, false] {
        let mut w = World::new();
        w.open_titles.0.lock().unwrap().on_disk = true;
        let c = w.connect();
        w.tell(
            c,
            "SETUP rtsp://192.0.2.1/ladder RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP;unicast;client_port=5000-5001",
        );
        while w.open_titles.is_opening() {
            w.opened(Ok(()));
        }
        let id = w.answers.get_mut(&c).unwrap().pop_front().unwrap().session();
        w.ask_session(c, "PLAY", &id, "");
        w.wait(SECOND);
        w.tell(c, &format!("SET_PARAMETER rtsp://192.0.2.1/ladder RTSP/1.0\nCSeq: 5\nSession: {id}\nContent-Length: 19\n\nrendition: 480p"));
        assert!(w.open_titles.is_opening() && w.answers[&c].is_empty());
        w.wait(2 * SECOND);
        assert!(matches!(w.opened(Ok(())).part, TitlePart::Times { .. }));
        w.opened(if is_good { Ok(()) } else { Err(OpenError::Broken("damaged".into())) });
        let answer = w.answers.get_mut(&c).unwrap().pop_front().unwrap();
        let told = (answer.status, answer.get("x-millrace-rendition"));
        assert_eq!(told, if is_good { (200, "480p;npt=4.000") } else { (500, "") });
        w.wait(2 * SECOND);
        assert_eq!(is_sent(&mut w, c, &id), format!("rendition: {}", if is_good { "480p" } else { "1080p" }));
        w.ask_session(c, "TEARDOWN", &id, "");
        w.assert_empty();
    }
}
