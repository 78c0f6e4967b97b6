//! Renditions that the server chooses, in virtual time: the reports about viewers, its reactions,
//! and their frequency.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::units::BitRate;
use millrace_core::wire::rtcp::ReportBlock;
use millrace_server::service::adapt::Trouble;
use millrace_server::service::{
    Cause, Exhausted, NeededPart, OpenError, Refusal, RenditionWish, ServiceEvent, StreamKey,
};

const MS: u64 = 1_000_000;

/// A viewer of `turning` by TCP that plays.
fn by_tcp(desk: &mut Desk) -> StreamKey {
    let conn = desk.conn();
    let request = desk.request("turning", conn, tcp(conn));
    let key = desk.admit(request).unwrap().stream;
    desk.play(key, None).unwrap();
    // Packets and looks at it go on from here at the same second.
    desk.wait(PLAY_DELAY_NS);
    key
}

fn sent(desk: &Desk, key: StreamKey) -> String {
    desk.service.stream(key).unwrap().rendition().unwrap().to_string()
}

/// When each change was made, in seconds of the test, and why.
fn changes(desk: &Desk, times: &[u64]) -> Vec<(u64, String, Cause)> {
    let change = |event: &ServiceEvent| match event {
        ServiceEvent::Rendition { to, cause, .. } => Some((to.to_string(), *cause)),
        _ => None,
    };
    let changes: Vec<_> = desk.events.iter().filter_map(change).collect();
    assert_eq!(changes.len(), times.len());
    times.iter().zip(changes).map(|(at, (to, cause))| (*at, to, cause)).collect()
}

/// Has the engine report this delay for `seconds` seconds; returns the seconds at which the
/// rendition changed.
fn live(desk: &mut Desk, key: StreamKey, seconds: u64, mut behind_ms: impl FnMut(u64) -> u64) -> Vec<u64> {
    let (mut at, mut before) = (Vec::new(), sent(desk, key));
    for second in 0..seconds {
        desk.engine.behind_ns = behind_ms(second) * MS;
        desk.wait(SECOND);
        let now = sent(desk, key);
        if now != before {
            at.push(second + 1);
            before = now;
        }
    }
    at
}

#[test]
fn rendition_of_slow_reader_follows_its_throughput() {
    let mut desk = Desk::new();
    let key = by_tcp(&mut desk);
    desk.engine.backlog_bytes = 0;
    // It takes 3.4 of 4 Mb/s: 720p would do.
    let down = live(&mut desk, key, 16, |second| second.saturating_sub(1) * 150);
    assert_eq!(sent(&desk, key), "720p");
    let all = changes(&desk, &down);
    assert_eq!(all[0].2, Cause::Trouble(Trouble::SlowReader));
    assert!((8..14).contains(&all[0].0), "{all:?}");
    // It takes 0.9 of 3 Mb/s: at once the lowest.
    let down = live(&mut desk, key, 12, |second| 1_000 + second * 700);
    assert_eq!((sent(&desk, key).as_str(), down.len()), ("480p", 1));
    // Now it reads: a step each 20 s and more.
    let up = live(&mut desk, key, 50, |_| 0);
    assert_eq!((sent(&desk, key).as_str(), up.len()), ("1080p", 2));
    assert!(up[0] > 18 && up[1] - up[0] >= 20, "{up:?}");
    assert_eq!((desk.counters.renditions_lowered, desk.counters.renditions_raised), (2, 2));
    assert_eq!(desk.counters.rendition_changes, 4);
    desk.close(key);
}

/// Bytes given to the connection count as well, less the media sent ahead.
#[test]
fn backlog_beyond_media_sent_ahead_lowers_rendition() {
    for (fast_start_ms, kbytes, expected) in [(0, 400, "1080p"), (0, 700, "480p"), (1_000, 700, "1080p")] {
        let mut desk = Desk::with(|config| config.fast_start_ms = fast_start_ms);
        let key = by_tcp(&mut desk);
        desk.engine.backlog_bytes = kbytes * 1_000;
        live(&mut desk, key, 10, |second| second * 20);
        let is_lowered = sent(&desk, key) != "1080p";
        assert_eq!(is_lowered, expected != "1080p", "{fast_start_ms} {kbytes}");
        desk.close(key);
    }
}

fn report(desk: &mut Desk, key: StreamKey, fraction_lost: u8) {
    let block =
        ReportBlock { ssrc: 7, fraction_lost, cumulative_lost: -1, highest_sequence: 65_536, jitter: 0 };
    desk.service.note_report(desk.now, key, block);
}

#[test]
fn rendition_is_lowered_only_by_repeated_loss_reports() {
    let mut desk = Desk::new();
    let key = desk.udp("ladder", 5000);
    desk.play(key, None).unwrap();
    for fraction in [255, 255, 0, 255, 0] {
        report(&mut desk, key, fraction);
        desk.wait(5 * SECOND);
    }
    assert_eq!((sent(&desk, key).as_str(), desk.counters.rendition_changes), ("1080p", 0));
    for _ in 0..4 {
        report(&mut desk, key, 40);
        desk.wait(2 * SECOND);
    }
    desk.wait(2 * SECOND);
    // 40/256 lost: 3.4 Mb/s come through.
    assert_eq!(sent(&desk, key), "720p");
    assert!(desk.commands.iter().all(|command| command != "measure"), "there is nothing to measure by UDP");
    desk.close(key);
}

#[test]
fn rendition_chosen_by_viewer_is_not_adapted() {
    for (adapt, wish, is_lowered) in [
        (true, None, true),
        (true, Some("1080p"), false),
        (true, Some("auto"), true),
        (false, None, false),
        (false, Some("auto"), true),
    ] {
        let mut desk = Desk::with(|config| config.adapt = adapt);
        let conn = desk.conn();
        let mut request = desk.request("turning", conn, tcp(conn));
        request.rendition = wish.map(RenditionWish::parse);
        let key = desk.admit(request).unwrap().stream;
        desk.play(key, None).unwrap();
        live(&mut desk, key, 12, |second| second * 500);
        assert_eq!(sent(&desk, key) != "1080p", is_lowered, "{adapt} {wish:?}");
        // One that is named while it plays holds from then on.
        desk.service.set_rendition(desk.now, key, &RenditionWish::parse("720p"), None).unwrap();
        desk.settle();
        live(&mut desk, key, 25, |second| second * 500);
        assert_eq!(sent(&desk, key), "720p");
        desk.service.set_rendition(desk.now, key, &RenditionWish::Auto, None).unwrap();
        live(&mut desk, key, 15, |second| second * 500);
        assert_eq!(sent(&desk, key), "480p");
        desk.close(key);
    }
}

/// Not while it pauses, or plays at another speed; and earlier reports are ignored then.
#[test]
fn adaptation_is_suspended_while_paused_or_at_other_speed() {
    let mut desk = Desk::new();
    let key = by_tcp(&mut desk);
    live(&mut desk, key, 4, |second| second * 300);
    desk.pause(key);
    live(&mut desk, key, 20, |second| second * 500);
    assert_eq!(desk.counters.rendition_changes, 0);
    desk.engine.behind_ns = 0;
    desk.play_at(key, 400, None).unwrap();
    desk.take_commands();
    live(&mut desk, key, 5, |second| second * 500);
    for _ in 0..5 {
        report(&mut desk, key, 255);
        desk.wait(SECOND);
    }
    assert_eq!(desk.take_commands(), [""; 0], "nothing is measured or queued at another speed");
    // Nor is anything requested that would be sent after it.
    desk.engine.behind_ns = 0;
    desk.play_at(key, 100, None).unwrap();
    live(&mut desk, key, 15, |_| 0);
    assert_eq!((sent(&desk, key).as_str(), desk.counters.rendition_changes), ("1080p", 0));
    desk.close(key);
}

/// A reason to go down that waits for its time, and a time without trouble, end with the run they
/// were reported for.
#[test]
fn adaptation_after_pause_ignores_earlier_reports() {
    let mut desk = Desk::new();
    let key = by_tcp(&mut desk);
    let set = |desk: &mut Desk, name: &str| {
        desk.service.set_rendition(desk.now, key, &RenditionWish::parse(name), None).unwrap();
        desk.service.set_rendition(desk.now, key, &RenditionWish::Auto, None).unwrap();
        desk.settle();
    };
    set(&mut desk, "720p");
    live(&mut desk, key, 9, |second| second * 700);
    assert_eq!(sent(&desk, key), "720p");
    desk.engine.behind_ns = 0;
    desk.pause(key);
    desk.wait(30 * SECOND);
    desk.play(key, None).unwrap();
    live(&mut desk, key, 15, |_| 0);
    assert_eq!((sent(&desk, key).as_str(), desk.counters.rendition_changes), ("720p", 1));
    desk.pause(key);
    desk.wait(30 * SECOND);
    desk.play(key, None).unwrap();
    let up = live(&mut desk, key, 30, |_| 0);
    assert!(up.len() == 1 && up[0] > 20, "{up:?}");
    desk.close(key);
}

fn told(desk: &Desk, name: &str) -> usize {
    let is_it = |event: &&ServiceEvent| matches!(event, ServiceEvent::Broken { title, .. } if title == name);
    desk.events.iter().filter(is_it).count()
}

/// A rendition that cannot be opened is avoided, and the next one is sent; a viewer that asks for
/// it gets a refusal.
#[test]
fn rendition_that_fails_to_open_is_avoided_for_ten_minutes() {
    let mut desk = Desk::new();
    let key = by_tcp(&mut desk);
    desk.titles.0.lock().unwrap().broken = Some("turning@480p".to_owned());
    let down = live(&mut desk, key, 18, |second| second * 900);
    assert_eq!((sent(&desk, key).as_str(), down.len(), told(&desk, "turning@480p")), ("720p", 1, 1));
    // It still reads too slowly, and so does another viewer.
    let other = by_tcp(&mut desk);
    live(&mut desk, key, 60, |second| 1_000 + second * 700);
    assert_eq!((sent(&desk, key), sent(&desk, other)), ("720p".to_owned(), "720p".to_owned()));
    assert_eq!(told(&desk, "turning@480p"), 1);
    let wish = RenditionWish::Named("480p".to_owned());
    assert_eq!(desk.service.set_rendition(desk.now, key, &wish, None), Err(Refusal::Broken));
    desk.close(other);
    desk.close(key);
    // Ten minutes behind that it is tried again.
    desk.wait(600 * SECOND);
    let key = by_tcp(&mut desk);
    desk.settle();
    let before = told(&desk, "turning@480p");
    live(&mut desk, key, 5, |second| second * 900);
    assert_eq!(told(&desk, "turning@480p"), before + 1);
    desk.close(key);
}

/// The same where the request is answered later, and no viewer's request waits for the answer.
#[test]
fn rendition_that_fails_asynchronous_opening_is_not_retried_soon() {
    let mut desk = Desk::new();
    let (key, other) = (by_tcp(&mut desk), by_tcp(&mut desk));
    desk.titles.0.lock().unwrap().on_disk = true;
    let fails = |need: &NeededPart, failing: &[&str]| failing.contains(&need.title.as_str());
    let mut asked = Vec::new();
    let mut seconds = |desk: &mut Desk, seconds, from: u64, failing: &[&str]| {
        for second in from..from + seconds {
            desk.engine.behind_ns = second * 900 * MS;
            desk.wait(SECOND);
            while desk.titles.is_opening() {
                let need = desk.titles.0.lock().unwrap().begun[0].clone();
                let broken = || Err(OpenError::Broken("meta-1316.mrp: checksum mismatch".into()));
                desk.titles.answer(if fails(&need, failing) { broken() } else { Ok(()) });
                asked.push(need.title);
                assert!(desk.service.take_openings(desk.now).is_empty());
                desk.settle();
            }
        }
        std::mem::take(&mut asked)
    };
    let both = ["turning@480p", "turning@720p"];
    assert_eq!(seconds(&mut desk, 40, 0, &both), both, "each once, for both viewers");
    assert_eq!((told(&desk, both[0]), told(&desk, both[1])), (1, 1));
    assert_eq!((sent(&desk, key).as_str(), sent(&desk, other).as_str()), ("1080p", "1080p"));
    // Ten minutes later they are available again.
    assert_eq!(seconds(&mut desk, 550, 40, &[]), [""; 0]);
    let asked = seconds(&mut desk, 40, 590, &[]);
    assert!(asked.iter().all(|title| title == "turning@480p") && !asked.is_empty(), "{asked:?}");
    assert_eq!((sent(&desk, key).as_str(), sent(&desk, other).as_str()), ("480p", "480p"));
    desk.close(other);
    desk.close(key);
}

/// A full cache is no fault of the title: it is asked for again.
#[test]
fn rendition_refused_by_full_cache_is_requested_again() {
    let mut desk = Desk::new();
    let key = by_tcp(&mut desk);
    desk.titles.0.lock().unwrap().on_disk = true;
    let mut asked = 0;
    live(&mut desk, key, 10, |second| second * 900);
    while desk.titles.is_opening() {
        asked += 1;
        desk.titles.answer(Err(OpenError::Full));
        desk.service.take_openings(desk.now);
        live(&mut desk, key, 1, |_| 10_000 + asked * 900);
        if asked == 5 {
            break;
        }
    }
    assert_eq!((asked, told(&desk, "turning@480p")), (5, 0));
    desk.close(key);
}

/// A higher rendition is not tried without room for it, and nothing is reported.
#[test]
fn up_needs_room() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(6_000_000)));
    let key = by_tcp(&mut desk);
    live(&mut desk, key, 12, |second| second * 900);
    assert_eq!(sent(&desk, key), "480p");
    let other = desk.udp("film", 6000);
    desk.play(other, None).unwrap();
    live(&mut desk, key, 30, |_| 0);
    assert_eq!((sent(&desk, key).as_str(), desk.counters.refused_full), ("480p", 0));
    desk.close(other);
    desk.play(key, span(0, None)).unwrap();
    // It was refused 10 s ago, and is not asked for again each second.
    let up = live(&mut desk, key, 45, |_| 0);
    assert_ne!(sent(&desk, key), "480p");
    assert!(up[0] > 5, "{up:?}");
    desk.close(key);
}

/// A viewer that leaves the choice to the server begins with a rendition that there is room for,
/// and gets more when there is more. A viewer that has chosen is refused, and so are viewers that
/// no rendition fits.
#[test]
fn admission_in_auto_mode_starts_with_rendition_that_fits() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(7_500_000)));
    let other = desk.udp("film", 6000);
    desk.play(other, None).unwrap();
    // 3.5 of 7.5 Mb/s are left.
    let conn = desk.conn();
    let mut named = desk.request("turning", conn, tcp(conn));
    named.rendition = Some(RenditionWish::Named("1080p".to_owned()));
    assert!(matches!(desk.admit(named), Err(Refusal::Exhausted(Exhausted::Rate { .. }))));
    let key = by_tcp(&mut desk);
    assert_eq!((sent(&desk, key).as_str(), desk.service.reserved_rate()), ("720p", 7_000_000));
    assert!(desk.service.stream(key).unwrap().is_rendition_auto());
    let conn = desk.conn();
    let none_fits = desk.request("turning", conn, tcp(conn));
    // The shortage is reported for the rendition that it should have begun with.
    let Err(Refusal::Exhausted(Exhausted::Rate { more, .. })) = desk.admit(none_fits) else {
        panic!("it is refused")
    };
    assert_eq!(more, BitRate(4_000_000));
    desk.close(other);
    live(&mut desk, key, 45, |_| 0);
    assert_eq!(sent(&desk, key), "1080p");
    desk.close(key);
}
