//! Places in the window of a live title, and places by the time of day.

use crate::rtsp_support::{SECOND, World};
use millrace_server::service::{ConnKey, Playing, ServiceEvent};

/// A session of a title, set up on a new connection.
fn set_up(w: &mut World, title: &str) -> (ConnKey, String) {
    let conn = w.connect();
    let request = format!(
        "SETUP rtsp://192.0.2.1/{title}/track1 RTSP/1.0\nCSeq: 2\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1"
    );
    let answer = w.ask(conn, &request);
    assert_eq!(answer.status, 200, "{answer:?}");
    (conn, answer.session())
}

fn hold(w: &World, held_s: std::ops::Range<u64>) {
    *w.open_titles.0.lock().unwrap().held.held_s.lock().unwrap() = held_s;
}

/// A session of a live title that holds these seconds.
fn live(held_s: std::ops::Range<u64>) -> (World, ConnKey, String) {
    let mut w = World::new();
    hold(&w, held_s);
    let (conn, id) = set_up(&mut w, "live/held");
    (w, conn, id)
}

#[test]
fn first_play_of_live_title_begins_at_last_access_point() {
    for range in [
        "",
        "Range: npt=0-",
        "Range: npt=0.000-60",
        "Range: npt=now-",
        "Range: npt=now-60",
        "Range: clock=now-",
    ] {
        let (mut w, conn, id) = live(40..101);
        let answer = w.ask_session(conn, "PLAY", &id, range);
        assert_eq!((answer.status, answer.get("range")), (200, "npt=100.000-"), "{range}: {answer:?}");
        assert!(answer.get("rtp-info").contains("seq=40001;rtptime="), "{answer:?}");
        let available = "npt=40.000-101.000, clock=20261128T100040.000Z-20261128T100141.000Z";
        assert_eq!(answer.get("media-range"), available);
    }
}

#[test]
fn places_in_window_of_live_title_are_met_at_access_points() {
    for (range, answered) in [
        ("npt=61.5-", "npt=60.000-"),
        ("npt=61.5-70", "npt=60.000-"),
        ("smpte-25=0:01:01:00-", "npt=60.000-"),
        ("npt=beginning-", "npt=40.000-"),
        ("npt=end-", "npt=100.000-"),
        ("clock=20261128T100101.5Z-", "clock=20261128T100100.000Z-"),
        ("clock=20261128T100101Z-20261128T100103Z", "clock=20261128T100100.000Z-"),
        // Places before the window and behind it.
        ("npt=3-", "npt=40.000-"),
        ("npt=-3-", "npt=40.000-"),
        ("npt=3600-", "npt=100.000-"),
        ("clock=19970101T000000Z-", "clock=20261128T100040.000Z-"),
        ("clock=20500101T000000Z-", "clock=20261128T100140.000Z-"),
    ] {
        let (mut w, conn, id) = live(40..101);
        let answer = w.ask_session(conn, "PLAY", &id, &format!("Range: {range}"));
        assert_eq!((answer.status, answer.get("range")), (200, answered), "{range}: {answer:?}");
    }
    let (mut w, conn, id) = live(40..101);
    let answer = w.ask_session(conn, "PLAY", &id, "Range: npt=x-");
    assert_eq!((answer.status, &answer.get("media-range")[..18]), (457, "npt=40.000-101.000"), "{answer:?}");
}

#[test]
fn seek_to_zero_in_live_title_goes_to_oldest_place() {
    let (mut w, conn, id) = live(40..101);
    w.ask_session(conn, "PLAY", &id, "Range: npt=0-");
    w.wait(SECOND);
    assert_eq!(w.ask_session(conn, "PLAY", &id, "Range: npt=0-").get("range"), "npt=40.000-");
}

#[test]
fn paused_viewer_of_live_title_goes_on_where_it_paused_or_at_oldest_place() {
    let (mut w, conn, id) = live(40..101);
    w.ask_session(conn, "PLAY", &id, "Range: npt=60-");
    w.wait(2 * SECOND);
    assert_eq!(w.ask_session(conn, "PAUSE", &id, "").status, 200);
    hold(&w, 61..122);
    w.take_log();
    let answer = w.ask_session(conn, "PLAY", &id, "");
    let from = answer.get("range").strip_prefix("npt=").and_then(|range| range.strip_suffix('-')).unwrap();
    let from_s: f64 = from.parse().unwrap();
    // It waits 50 ms behind the reply.
    assert!((61.5..62.0).contains(&from_s), "{answer:?}");
    let packet = (from_s * 400.0).round() as u32;
    assert!(w.take_log().iter().any(|line| line.starts_with(&format!("play {packet}.."))), "{packet}");
    assert!(answer.get("rtp-info").contains(&format!("seq={};", packet + 1)), "{answer:?}");
    assert_eq!(w.counters().pauses_outlasted, 0);

    w.wait(SECOND);
    w.ask_session(conn, "PAUSE", &id, "");
    hold(&w, 80..140);
    let answer = w.ask_session(conn, "PLAY", &id, "");
    assert_eq!((answer.status, answer.get("range")), (200, "npt=80.000-"));
    assert_eq!(w.counters().pauses_outlasted, 1);
    let has_lost_place =
        |event: &&ServiceEvent| matches!(event, ServiceEvent::Playing(Playing { has_lost_place: true, .. }));
    let lines: Vec<_> = w.notices.iter().filter(has_lost_place).map(ToString::to_string).collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].ends_with("the oldest place that is left: it paused for longer than the title is kept"));
}

#[test]
fn now_during_playback_moves_viewer_that_is_behind_alone() {
    let (mut w, conn, id) = live(40..101);
    w.ask_session(conn, "PLAY", &id, "");
    w.wait(SECOND);
    hold(&w, 42..103);
    // At most as far behind as a viewer that joins.
    let answer = w.ask_session(conn, "PLAY", &id, "Range: npt=now-");
    assert_eq!((answer.status, answer.has("range")), (200, false), "it goes on");
    w.ask_session(conn, "PLAY", &id, "Range: npt=50-");
    w.wait(SECOND);
    assert_eq!(w.ask_session(conn, "PLAY", &id, "Range: npt=now-").get("range"), "npt=102.000-");
    // After a pause, now is not where it paused.
    w.ask_session(conn, "PAUSE", &id, "");
    hold(&w, 52..113);
    assert_eq!(w.ask_session(conn, "PLAY", &id, "Range: npt=now-").get("range"), "npt=112.000-");
}

/// ffplay's keys name time stamps; the title's begin at 5000 s.
#[test]
fn ffmpeg_names_places_of_live_titles_by_time_stamps() {
    let (mut w, conn, id) = live(40..101);
    let agent = "User-Agent: Lavf60.16.100\n";
    let mut play = |range: &str| w.ask_session(conn, "PLAY", &id, &format!("{agent}Range: {range}"));
    assert_eq!(play("npt=0.000-").get("range"), "npt=100.000-", "it knows no stamp yet");
    assert_eq!(play("npt=5061.000-").get("range"), "npt=60.000-");
    assert_eq!(play("npt=61.000-").get("range"), "npt=40.000-");
    assert_eq!(play("clock=20261128T100101Z-").get("range"), "clock=20261128T100100.000Z-");
}

#[test]
fn places_of_recording_are_met_by_time_of_day() {
    let mut w = World::new();
    let (conn, id) = set_up(&mut w, "recorded");
    for (range, answered) in [
        ("clock=20261128T100020.5Z-", "clock=20261128T100020.000Z-20261128T100100.000Z"),
        ("clock=20261128T100000Z-20261128T100010Z", "clock=20261128T100000.000Z-20261128T100010.000Z"),
        ("clock=beginning-20261128T100010Z", "clock=20261128T100000.000Z-20261128T100010.000Z"),
        ("clock=20261128T100059Z-20270101T000000Z", "clock=20261128T100058.000Z-20261128T100100.000Z"),
        ("npt=20.5-", "npt=20.000-60.000"),
    ] {
        let answer = w.ask_session(conn, "PLAY", &id, &format!("User-Agent: Lavf60\nRange: {range}"));
        assert_eq!((answer.status, answer.get("range")), (200, answered), "{range}: {answer:?}");
        assert!(!answer.has("media-range"), "a title that is complete stays as it is");
    }
    for range in [
        "clock=20261128T095959.999Z-",
        "clock=20261128T100100Z-",
        "clock=20261128T100020Z-20261128T100010Z",
        "clock=20261128T100020Z-20261128T100020Z",
        "clock=20261128T100020Z-20251128T100020Z",
        "clock=yesterday-",
    ] {
        let answer = w.ask_session(conn, "PLAY", &id, &format!("Range: {range}"));
        assert_eq!(answer.status, 457, "{range}: {answer:?}");
        let available = "npt=0.000-60.000, clock=20261128T100000.000Z-20261128T100100.000Z";
        assert_eq!(answer.get("media-range"), available, "{range}");
    }
    let about = "GET_PARAMETER rtsp://192.0.2.1/recorded RTSP/1.0\nCSeq: 7\nContent-Type: text/parameters\nContent-Length: 11";
    let answer = w.ask(conn, &format!("{about}\nSession: {id}\n\nmedia_range"));
    let available = "media_range: npt=0.000-60.000, clock=20261128T100000.000Z-20261128T100100.000Z\r\n";
    assert_eq!(answer.body, available);
    // The title's time of day is not known.
    let (conn, id) = set_up(&mut w, "film");
    let answer = w.ask_session(conn, "PLAY", &id, "Range: clock=20261128T100020Z-");
    assert_eq!((answer.status, answer.has("media-range")), (501, false), "{answer:?}");
}

#[test]
fn recording_played_backwards_by_time_of_day_descends() {
    let mut w = World::new();
    let (conn, id) = set_up(&mut w, "recorded");
    for (range, answered) in [
        ("20261128T100044Z-20261128T100020Z", "20261128T100044.000Z-20261128T100020.000Z"),
        ("20261128T100020Z-20261128T100044Z", "20261128T100044.000Z-20261128T100020.000Z"),
        ("20261128T100044Z-", "20261128T100044.000Z-20261128T100000.000Z"),
    ] {
        let answer = w.ask_session(conn, "PLAY", &id, &format!("Scale: -4\nRange: clock={range}"));
        assert_eq!((answer.status, answer.get("range")), (200, &*format!("clock={answered}")), "{answer:?}");
    }
}

#[test]
fn descriptions_have_range_by_time_of_day_for_players_that_understand_it() {
    let mut w = World::new();
    hold(&w, 40..101);
    let conn = w.connect();
    for (title, npt, clock) in [
        ("live/held", "now-", "20261128T100040.000Z-"),
        ("recorded", "0-60.000", "20261128T100000.000Z-20261128T100100.000Z"),
    ] {
        let mut ranges = |agent: &str| {
            let request = format!("DESCRIBE rtsp://192.0.2.1/{title} RTSP/1.0\nCSeq: 2\nUser-Agent: {agent}");
            let body = w.ask(conn, &request).body;
            let ranges = body.lines().filter_map(|line| line.strip_prefix("a=range:"));
            ranges.map(str::to_owned).collect::<Vec<_>>()
        };
        // GStreamer uses the first line, FFmpeg the last.
        let npt = format!("npt={npt}");
        assert_eq!(ranges("Lavf60"), [npt.clone(), format!("clock={clock}"), npt.clone()], "{title}");
        assert_eq!(ranges("LibVLC/3.0.20 (LIVE555 Streaming Media v2016.11.28)"), [npt], "{title}");
    }
}
