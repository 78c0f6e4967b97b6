//! Other speeds, in virtual time and without a protocol: fast forward, rewind and slow motion by
//! titles made from the title, faster delivery, the effects on FEC and on room, and titles without
//! made ones, or without any that can be opened.

use crate::rtsp_support::SECOND;
use crate::service_support::*;
use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_offload::command::{Event as EngineEvent, FailReason, LeaseFailure, Numbering, StreamEvent};
use millrace_server::limits::trick::UNREAD_NS;
use millrace_server::service::{
    EndReason, Exhausted, FecMode, FecWish, PlayRequest, Played, Playing, Refusal, ServiceEvent, Speed,
    StreamKey, Which,
};

const BASE: u32 = 1_000_000;
/// Ticks that a packet of every made-up title lasts.
const PACKET: u32 = 225;

fn last(desk: &Desk) -> &Playing {
    let playing = desk.events.iter().rev().find_map(|event| match event {
        ServiceEvent::Playing(playing) => Some(playing),
        _ => None,
    });
    playing.expect("it has played")
}

fn seconds(time: MediaTicks) -> f64 {
    time.0 as f64 / 90_000.0
}

/// Returns speed in hundredths, from, until, sequence number and timestamp of the last
/// announcement.
fn told(desk: &Desk) -> (i16, f64, f64, u16, u32) {
    let playing = last(desk);
    let from = playing.from.map(seconds).expect("its times can be read");
    let timestamp = playing.timestamp.expect("its times can be read");
    (playing.scale.hundredths(), from, seconds(playing.until), playing.sequence, timestamp)
}

/// Asserts that the engine's only run has the announced numbers and the announced SSRC.
fn assert_as_told(desk: &Desk) {
    let mut runs =
        desk.engine.streams.values().filter(|stream| !stream.quiet).filter_map(|stream| stream.playing);
    let run = runs.next().expect("something plays");
    let (media, from) = (run.spec.media, run.spec.from);
    assert_eq!(run.sequence(from), last(desk).sequence);
    let first = MediaTicks(u64::from(from) * u64::from(PACKET));
    assert_eq!(Some(media.timeline.timestamp(first)), last(desk).timestamp);
    assert_eq!(media.timeline.ssrc, 0x1234_abcd);
}

fn position(desk: &Desk, key: StreamKey) -> f64 {
    seconds(desk.service.stream(key).expect("it has not ended").position(desk.now).expect("it is known"))
}

fn is_playing(desk: &Desk, key: StreamKey) -> bool {
    desk.service.stream(key).expect("it has not ended").is_playing()
}

fn scale_of(desk: &Desk, key: StreamKey) -> i16 {
    desk.service.stream(key).expect("it has not ended").scale().hundredths()
}

#[test]
fn forward_faster_backwards_and_back_to_normal() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(10 * SECOND);
    // 4001 packets are out, and it goes on where these end, with the next number and timestamp.
    assert_eq!(desk.play_at(key, 400, None), Ok(Played::Waits));
    assert_eq!(told(&desk), (400, 8.0, 60.0, 4_002, BASE + 4_001 * PACKET));
    assert_as_told(&desk);
    desk.wait(5 * SECOND);
    assert_eq!(position(&desk, key), 28.0);
    // Nothing new was asked.
    assert_eq!(desk.play(key, None), Ok(Played::GoesOn));
    assert_eq!(desk.play_at(key, 400, from_here(None)), Ok(Played::GoesOn));
    assert_eq!(desk.play_at(key, -400, None), Ok(Played::Waits));
    assert_eq!(told(&desk), (-400, 36.0, 0.0, 6_003, BASE + 6_002 * PACKET));
    assert_as_told(&desk);
    desk.wait(5 * SECOND);
    assert_eq!(position(&desk, key), 16.0);
    assert_eq!(desk.play_at(key, 100, None), Ok(Played::Waits));
    assert_eq!(told(&desk), (100, 14.0, 60.0, 8_004, BASE + 8_003 * PACKET));
    assert_as_told(&desk);
    // A jump at normal speed keeps the timeline that it has by now.
    desk.wait(SECOND);
    assert_eq!(desk.play(key, span(40, None)), Ok(Played::Waits));
    assert_eq!(told(&desk), (100, 40.0, 60.0, 8_405, BASE + 8_404 * PACKET));
    assert_as_told(&desk);
    assert_eq!(desk.counters.trick_plays, 2);
    let runs =
        ["play 0..24000", "play 800..6000", "play 2400..6000", "play 5600..24000", "play 16000..24000"];
    let commands = desk.take_commands();
    let plays: Vec<_> = commands.iter().filter(|command| command.starts_with("play")).collect();
    assert_eq!(plays, runs.iter().collect::<Vec<_>>());
    desk.close(key);
    assert_eq!(desk.ends(), [EndReason::TornDown]);
    desk.assert_empty();
}

#[test]
fn scale_in_first_play_is_applied() {
    for (speed, at, expected) in [
        (400, Some(20), (400, 16.0, 60.0, 1_601, BASE)),
        (-100, Some(20), (-100, 20.0, 0.0, 16_001, BASE)),
        (50, Some(20), (50, 20.0, 60.0, 16_001, BASE)),
    ] {
        let mut desk = Desk::new();
        let key = desk.udp("film", 5000);
        let span = at.and_then(|at| span(at, None));
        assert_eq!(desk.play_at(key, speed, span), Ok(Played::Begun));
        assert_eq!(told(&desk), expected, "{speed}");
        assert_as_told(&desk);
        desk.close(key);
        desk.assert_empty();
    }
}

#[test]
fn seeks_and_ends_of_ranges_at_other_speeds() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    desk.play_at(key, 400, span(40, None)).unwrap();
    assert_eq!((told(&desk).1, told(&desk).2), (40.0, 60.0));
    desk.wait(SECOND);
    desk.play_at(key, 400, span(20, Some(30))).unwrap();
    assert_eq!((told(&desk).1, told(&desk).2), (16.0, 30.0));
    // To the end of the range, which BYE announces.
    desk.wait(8 * SECOND);
    assert_eq!(
        (position(&desk, key), is_playing(&desk, key), desk.counters.titles_finished),
        (30.0, false, 1)
    );
    // Backwards, the range descends, or is meant so.
    for (from, to) in [(50, Some(30)), (30, Some(50))] {
        desk.play_at(key, -400, span(from, to)).unwrap();
        assert_eq!((told(&desk).1, told(&desk).2), (52.0, 30.0));
        desk.wait(8 * SECOND);
        assert_eq!((position(&desk, key), is_playing(&desk, key)), (30.0, false));
    }
    assert_eq!(desk.counters.titles_finished, 1, "there is no BYE behind what goes backwards");
    // From there, and no farther than before if the request has no range.
    desk.play_at(key, 400, from_here(Some(50))).unwrap();
    desk.wait(SECOND);
    desk.play_at(key, 50, None).unwrap();
    assert_eq!((told(&desk).0, told(&desk).2), (50, 50.0));
    desk.play_at(key, -100, None).unwrap();
    assert_eq!((told(&desk).0, told(&desk).2), (-100, 0.0));
    // Spans that are no range in this direction.
    assert_eq!(desk.play_at(key, -100, span(0, None)), Err(Refusal::BeginningReached));
    assert_eq!(desk.play_at(key, -100, span(20, Some(20))), Err(Refusal::EmptyRange));
    assert_eq!(desk.play_at(key, 400, span(30, Some(20))), Err(Refusal::EmptyRange));
    assert_eq!(scale_of(&desk, key), -100);
    assert!(is_playing(&desk, key));
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn pause_at_other_scale_resumes_with_next_packet() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play_at(key, 400, None).unwrap();
    desk.wait(2 * SECOND);
    desk.pause(key);
    // 801 packets, a quarter of the title's time each.
    assert_eq!(position(&desk, key), 8.01);
    desk.wait(300 * SECOND);
    // At the same speed with the next packet.
    assert_eq!(desk.play_at(key, 400, None), Ok(Played::Begun));
    assert_eq!(told(&desk), (400, 8.01, 60.0, 802, BASE + 801 * PACKET));
    desk.wait(SECOND);
    desk.pause(key);
    assert_eq!(position(&desk, key), 12.02);
    // Without a speed in the request, at normal speed.
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(told(&desk), (100, 12.0, 60.0, 1_203, BASE + 1_202 * PACKET));
    assert_as_told(&desk);
    desk.close(key);
    desk.assert_empty();
}

/// A stream that gets another path stands in its title, where it was.
#[test]
fn another_path_begins_at_normal_speed() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let request = desk.request("film", conn, udp(5000));
    let key = desk.admit(request).unwrap().stream;
    desk.play_at(key, 400, None).unwrap();
    desk.wait(2 * SECOND);
    desk.pause(key);
    assert_eq!(position(&desk, key), 8.01);
    let mut moved = desk.request("film", conn, udp(6000));
    moved.which = Which::Moved(key);
    desk.admit(moved).unwrap();
    assert_eq!((position(&desk, key), scale_of(&desk, key), desk.titles.open_count()), (8.0, 100, 1));
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(told(&desk), (100, 8.0, 60.0, 802, BASE + 8 * 90_000));
    assert_as_told(&desk);
    // It shares the title's headers again, as a viewer that has seen no other speed does.
    let run = desk.engine.streams.values().find_map(|stream| stream.playing).expect("it plays");
    assert_eq!(run.spec.numbering, Numbering::Sequence(802));
    desk.close(key);
    desk.assert_empty();
}

/// The title stops at its beginning: its viewer gets no announcement of an end, and may go on.
#[test]
fn rewind_comes_to_the_beginning_and_stands_there() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play_at(key, -400, span(16, None)).unwrap();
    assert_eq!(told(&desk), (-400, 20.0, 0.0, 4_001, BASE));
    desk.wait(5 * SECOND + SECOND / 2);
    assert_eq!((position(&desk, key), is_playing(&desk, key)), (0.0, false));
    assert_eq!(desk.counters.titles_finished, 0);
    assert_eq!(desk.events.iter().filter(|event| matches!(event, ServiceEvent::Paused { .. })).count(), 1);
    desk.wait(60 * SECOND);
    for speed in [-400, -100] {
        assert_eq!(desk.play_at(key, speed, None), Err(Refusal::BeginningReached));
        assert_eq!(desk.play_at(key, speed, from_here(None)), Err(Refusal::BeginningReached));
    }
    assert_eq!(desk.play(key, None), Ok(Played::Begun));
    assert_eq!(told(&desk), (100, 0.0, 60.0, 6_001, BASE + 2_000 * PACKET));
    assert_as_told(&desk);
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn fast_forward_ends_with_the_title() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    desk.play_at(key, 400, span(40, None)).unwrap();
    desk.wait(9 * SECOND);
    assert_eq!(
        (position(&desk, key), is_playing(&desk, key), desk.counters.titles_finished),
        (60.0, false, 1)
    );
    assert_eq!(desk.play_at(key, 400, from_here(None)), Err(Refusal::EndReached));
    // Backwards from there; without a word it begins again.
    assert_eq!(desk.play_at(key, -400, None), Ok(Played::Begun));
    assert_eq!((told(&desk).1, told(&desk).2), (60.0, 0.0));
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn scale_that_is_unavailable_gets_nearest_or_refusal() {
    let mut desk = Desk::new();
    // There is nothing that goes backwards: it plays on as it did.
    let key = desk.udp("other", 5000);
    assert_eq!(desk.play_at(key, -400, span(10, None)), Err(Refusal::NoReverse));
    desk.play(key, None).unwrap();
    assert_eq!(desk.play_at(key, -100, None), Err(Refusal::NoReverse));
    assert!(is_playing(&desk, key));
    desk.play_at(key, 3_200, None).unwrap();
    assert_eq!(scale_of(&desk, key), 400);
    desk.close(key);
    // There is nothing at all.
    let key = desk.udp("blind", 5000);
    desk.play_at(key, 800, None).unwrap();
    assert_eq!(scale_of(&desk, key), 100);
    assert_eq!(desk.play_at(key, 800, None), Ok(Played::GoesOn));
    desk.close(key);
    // The existing title cannot be opened: the operator is informed, and the viewer gets the next
    // one.
    let key = desk.udp("film", 5000);
    desk.play_at(key, 3_200, None).unwrap();
    assert_eq!(scale_of(&desk, key), 1_600);
    assert!(
        desk.events
            .iter()
            .any(|event| matches!(event, ServiceEvent::Broken { title, .. } if title == "film@3200"))
    );
    desk.close(key);
    desk.assert_empty();
}

/// A viewer that reaches the unreadable part of a made title is ended; later ones get the nearest
/// other speed, until it may have been repaired.
#[test]
fn trick_title_that_failed_to_read_is_avoided_for_a_while() {
    let mut desk = Desk::new();
    let fails = |desk: &mut Desk, key: StreamKey, reason| {
        let (&stream, _) = desk.engine.streams.iter().next().unwrap();
        let failed = StreamEvent::Failed { stream, reason };
        desk.service.engine_event(desk.now, 0, EngineEvent::Stream(failed));
        desk.settle();
        assert!(desk.service.stream(key).is_none());
        assert_eq!(desk.ends().pop(), Some(EndReason::Failed(reason)));
    };
    let told = |desk: &Desk| {
        desk.events
            .iter()
            .filter(|event| matches!(event, ServiceEvent::Broken { title, .. } if title == "film@400"))
            .count()
    };
    let plays = |desk: &mut Desk, asked| {
        let key = desk.udp("film", 5000);
        desk.play_at(key, asked, span(30, None)).unwrap();
        (key, scale_of(desk, key))
    };
    let unreadable = FailReason::ReadError(LeaseFailure::Checksum);
    // For the title itself there is no alternative, and a viewer that does not read proves nothing
    // about the stored data.
    let (key, _) = plays(&mut desk, 100);
    fails(&mut desk, key, unreadable);
    let (key, _) = plays(&mut desk, 400);
    fails(&mut desk, key, FailReason::SlowReader);
    let (key, scale) = plays(&mut desk, 400);
    assert_eq!((scale, told(&desk)), (400, 0));
    fails(&mut desk, key, unreadable);
    let (key, scale) = plays(&mut desk, 400);
    assert_eq!((scale, told(&desk)), (1_600, 1));
    assert!(desk.titles.0.lock().unwrap().wishes.is_empty(), "it is there");
    // Others are as they were, of other titles too.
    for speed in [-400, 50, 1_600] {
        desk.play_at(key, speed, span(30, None)).unwrap();
        assert_eq!(scale_of(&desk, key), speed);
    }
    desk.close(key);
    desk.wait(UNREAD_NS - SECOND);
    let (key, scale) = plays(&mut desk, 400);
    assert_eq!(scale, 1_600);
    desk.close(key);
    desk.wait(SECOND);
    let (key, scale) = plays(&mut desk, 400);
    assert_eq!(scale, 400);
    desk.close(key);
    desk.assert_empty();
}

/// A speed is requested to be made only if it is one of the usual ones, and nearer to the viewer's
/// speed than the existing ones.
#[test]
fn scale_that_is_missing_is_requested_at_usual_speed() {
    let mut desk = Desk::new();
    let key = desk.udp("film", 5000);
    let mut wishes = |asked| {
        desk.play_at(key, asked, span(30, None)).unwrap();
        let wishes = std::mem::take(&mut desk.titles.0.lock().unwrap().wishes);
        wishes
            .into_iter()
            .map(|(title, speed)| {
                assert_eq!(title, "film");
                speed
            })
            .collect::<Vec<_>>()
    };
    for (asked, wished) in [
        (800, Some(800)),
        (780, Some(800)),
        (400, None),
        (1_200, None),
        (150, Some(200)),
        (110, None),
        (75, Some(75)),
        (30, Some(25)),
        (-250, Some(-200)),
        (-3_200, Some(-3_200)),
        (-100, None),
        // It is there and cannot be opened.
        (3_200, None),
    ] {
        assert_eq!(wishes(asked), Vec::from_iter(wished), "{asked}");
    }
    desk.close(key);
    let key = desk.udp("other", 5000);
    assert_eq!(desk.play_at(key, -500, None), Err(Refusal::NoReverse));
    assert_eq!(desk.titles.0.lock().unwrap().wishes, [("other".to_owned(), -400)]);
    desk.close(key);
    desk.assert_empty();
}

/// No title opened for other speeds stays open, whatever the stream is doing.
#[test]
fn close_in_any_scale_state_releases_everything() {
    for state in ["running", "pausing", "changing", "paused", "beginning", "ended", "back"] {
        let mut desk = Desk::new();
        let key = desk.udp("film", 5000);
        desk.play_at(key, 400, span(8, None)).unwrap();
        desk.wait(SECOND);
        match state {
            "pausing" => {
                desk.engine.silent = true;
                desk.pause(key);
            }
            "changing" => {
                desk.engine.silent = true;
                assert_eq!(desk.play_at(key, -400, None), Ok(Played::Waits));
                assert_eq!(desk.titles.open_count(), 3);
            }
            "paused" => desk.pause(key),
            "beginning" => {
                desk.play_at(key, -400, None).unwrap();
                desk.wait(10 * SECOND);
                assert_eq!(position(&desk, key), 0.0);
            }
            "ended" => desk.wait(60 * SECOND),
            "back" => {
                desk.play(key, span(8, None)).unwrap();
                assert_eq!(desk.titles.open_count(), 1, "what is not sent any more is closed");
            }
            _ => {}
        }
        desk.close(key);
        desk.engine.silent = false;
        desk.settle();
        assert_eq!(desk.ends(), [EndReason::TornDown], "{state}");
        desk.assert_empty();
    }
}

#[test]
fn numbers_and_timestamps_wrap() {
    let mut desk = Desk::new();
    let key = desk.udp("turning", 5000);
    desk.play(key, span(163, None)).unwrap();
    let base = 0u32.wrapping_sub(164 * 90_000);
    assert_eq!(told(&desk), (100, 162.0, 1000.0, 64_801, base.wrapping_add(64_800 * PACKET)));
    desk.wait(SECOND);
    desk.play_at(key, 400, None).unwrap();
    assert_eq!((told(&desk).3, told(&desk).4), (65_202, base.wrapping_add(65_201 * PACKET)));
    desk.wait(SECOND);
    desk.play_at(key, -400, None).unwrap();
    assert_eq!((told(&desk).3, told(&desk).4), (67, base.wrapping_add(65_602 * PACKET)));
    assert!(told(&desk).4 < 2 * 90_000, "it has wrapped");
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn fec_goes_with_normal_speed() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let mut request = desk.request("safe", conn, udp(5000));
    request.fec = FecWish::Mode(FecMode::Xor);
    let key = desk.admit(request).unwrap().stream;
    desk.play(key, None).unwrap();
    desk.wait(2 * SECOND);
    let companions = |desk: &Desk| {
        let quiet = desk.engine.streams.values().filter(|stream| stream.quiet);
        quiet.filter(|stream| stream.playing.is_some()).count()
    };
    assert_eq!((companions(&desk), last(&desk).without_fec.clone()), (1, None));
    desk.play_at(key, 400, None).unwrap();
    desk.wait(SECOND);
    assert_eq!(companions(&desk), 0);
    assert!(last(&desk).without_fec.as_ref().is_some_and(|why| why.contains("normal speed")));
    assert_as_told(&desk);
    let spare = |desk: &Desk| {
        let mut media = desk.engine.streams.values().filter(|stream| !stream.quiet);
        media.find_map(|stream| stream.playing).expect("it plays").spec.media.spare
    };
    assert_eq!(spare(&desk), 0, "nothing may be left to FEC that is not sent");
    // It is switched meanwhile, and the current media goes on.
    desk.take_commands();
    desk.service.set_fec(desk.now, key, FecMode::All, None).unwrap();
    desk.settle();
    assert_eq!((desk.take_commands(), companions(&desk)), (vec!["open fec".to_owned()], 0));
    // Back at normal speed media is numbered as its parity names it.
    desk.play_at(key, 100, span(30, None)).unwrap();
    desk.wait(2 * SECOND);
    assert_eq!((companions(&desk), spare(&desk)), (2, 2));
    assert_eq!(told(&desk), (100, 30.0, 60.0, 12_001, BASE + 12_000 * PACKET));
    desk.close(key);
    desk.assert_empty();
}

fn speed(permille: u64) -> PlayRequest {
    PlayRequest { speed: Some(Speed::nearest(permille)), ..PlayRequest::default() }
}

#[test]
fn faster_delivery_is_paid_for() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(14_000_000)));
    let key = desk.udp("film", 5000);
    let play = |desk: &mut Desk, wanted: &PlayRequest| {
        let played = desk.service.play(desk.now, key, wanted);
        desk.settle();
        (played.unwrap(), last(desk).speed.permille(), desk.service.reserved_rate())
    };
    assert_eq!(play(&mut desk, &speed(2_000)), (Played::Begun, 2_000, 8_000_000));
    desk.wait(5 * SECOND);
    assert_eq!(position(&desk, key), 10.0);
    let other = desk.udp("film", 6000);
    // A speed that there is no room for is lowered, and the reply gives the lower one.
    assert_eq!(play(&mut desk, &speed(4_000)), (Played::Waits, 3_000, 12_000_000));
    // Another one that wants to play finds too little left.
    assert!(matches!(desk.play(other, None), Err(Refusal::Exhausted(Exhausted::Rate { .. }))));
    desk.pause(key);
    // A pause keeps the reservation for a while, and then releases all of it.
    assert_eq!(desk.service.reserved_rate(), 12_000_000);
    desk.wait(61 * SECOND);
    assert_eq!(desk.service.reserved_rate(), 0);
    desk.play(other, None).unwrap();
    assert_eq!(play(&mut desk, &speed(4_000)), (Played::Begun, 2_000, 12_000_000));
    // Slower costs what normal speed does; so does normal speed.
    assert_eq!(play(&mut desk, &speed(500)), (Played::Waits, 500, 8_000_000));
    assert_eq!(play(&mut desk, &speed(1_000)), (Played::Waits, 1_000, 8_000_000));
    desk.close(key);
    desk.close(other);
    desk.assert_empty();
}

/// A viewer by a connection gets some media at once, if there is room, and not again when it goes on after a pause.
#[test]
fn fast_start_applies_to_play_and_seek_if_capacity_allows() {
    let mut desk = Desk::with(|config| {
        config.fast_start_ms = 1_500;
        config.max_rate = Some(BitRate(10_000_000));
    });
    let conn = desk.conn();
    let key = desk.try_tcp(conn).unwrap();
    let led = |desk: &mut Desk, wanted: &PlayRequest| {
        let played = desk.service.play(desk.now, key, wanted);
        assert!(played.is_ok(), "{played:?}");
        desk.settle();
        desk.led.take()
    };
    assert_eq!(led(&mut desk, &PlayRequest::default()), Some(1_500));
    desk.wait(PLAY_DELAY_NS + SECOND);
    desk.pause(key);
    assert_eq!(led(&mut desk, &PlayRequest::default()), Some(0));
    let jump = PlayRequest { span: span(30, None), ..PlayRequest::default() };
    assert_eq!(led(&mut desk, &jump), Some(1_500));
    // There is no room for as much again as it costs.
    let other = desk.udp("film", 6000);
    desk.play(other, None).unwrap();
    assert_eq!(led(&mut desk, &jump), Some(0));
    desk.close(key);
    desk.close(other);
    desk.service.conn_closed(desk.now, conn);
    desk.settle();
    desk.assert_empty();
}
