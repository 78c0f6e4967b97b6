//! Renditions, in virtual time and without a protocol: a stream switches to another at an access
//! point that both have, whatever else is requested meanwhile, and its numbers show nothing of it.

use crate::rtsp_support::{FOREIGN_TICKS, PACKETS_PER_S, RENDITIONS, SECOND, packets_per_s};
use crate::service_support::*;
use millrace_core::limits::PLAY_DELAY_NS;
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_offload::command::{Event as EngineEvent, RunEnd, StreamEvent};
use millrace_offload::command::{FailReason, LeaseFailure, Numbering, Refusal as Refused, StopReason};
use millrace_server::service::{
    Begins, Cause, EndReason, Exhausted, FecMode, FecRefusal, FecWish, PlayRequest, Played, Refusal,
    RenditionWish, ServiceEvent, Speed, StreamKey, Which,
};
use proptest::prelude::*;

const S: u64 = 90_000;

fn named(name: &str) -> RenditionWish {
    RenditionWish::Named(name.to_owned())
}

fn set(desk: &mut Desk, key: StreamKey, name: &str) -> Result<Begins, Refusal> {
    let wish = RenditionWish::parse(name);
    let change = desk.service.set_rendition(desk.now, key, &wish, None);
    desk.settle();
    change.map(|change| {
        assert!(name == "auto" || change.to.as_str() == name);
        change.begins
    })
}

fn at(seconds: u64) -> Result<Begins, Refusal> {
    Ok(Begins::At(MediaTicks(seconds * S)))
}

fn rendition(desk: &Desk, key: StreamKey) -> String {
    desk.service.stream(key).unwrap().rendition().expect("its title has renditions").to_string()
}

fn position(desk: &Desk, key: StreamKey) -> f64 {
    desk.service.stream(key).unwrap().position(desk.now).unwrap().0 as f64 / S as f64
}

/// From, to, and place of each change, in seconds.
fn changes(desk: &Desk) -> Vec<(String, String, Option<u64>, Cause)> {
    let change = |event: &ServiceEvent| match event {
        ServiceEvent::Rendition { from, to, at, cause, .. } => {
            Some((from.to_string(), to.to_string(), at.map(|at| at.0 / S), *cause))
        }
        _ => None,
    };
    desk.events.iter().filter_map(change).collect()
}

/// One run as its viewer saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    ssrc: u32,
    /// Sequence number and timestamp of its first packet and of the one behind its last.
    sequence: (u16, u16),
    timestamp: (u32, u32),
    /// Media time, in ticks.
    time: (u64, u64),
}

/// All that was sent, in its order.
fn pieces(desk: &Desk) -> Vec<Piece> {
    let sent = desk.engine.sent.iter().chain(&desk.second.sent);
    let piece = |(_, spec, next): &(_, millrace_offload::command::RunSpec, u32)| {
        let ticks = S / packets_per_s(spec.media.packets);
        let time = (u64::from(spec.from) * ticks, u64::from(*next) * ticks);
        let first = match spec.numbering {
            Numbering::Sequence(first) | Numbering::Own(first) => first,
            other => panic!("{other:?}"),
        };
        // The contents of the extents are numbered and stamped as the title that is sent.
        let is_made = packets_per_s(spec.media.packets) != PACKETS_PER_S;
        if matches!(spec.numbering, Numbering::Sequence(_)) {
            assert_eq!(spec.media.timeline.ssrc >> 16 == 0x0720, is_made, "{spec:?}");
        }
        let stamp = |time| spec.media.timeline.timestamp(MediaTicks(time));
        Piece {
            ssrc: spec.media.timeline.ssrc,
            sequence: (first, first.wrapping_add((next - spec.from) as u16)),
            timestamp: (stamp(time.0), stamp(time.1)),
            time,
        }
    };
    sent.map(piece).collect()
}

/// Numbers, timestamps and media go on from run to run.
fn assert_whole(pieces: &[Piece]) {
    for pair in pieces.windows(2) {
        let ends = (pair[0].ssrc, pair[0].sequence.1, pair[0].timestamp.1, pair[0].time.1);
        assert_eq!(
            ends,
            (pair[1].ssrc, pair[1].sequence.0, pair[1].timestamp.0, pair[1].time.0),
            "{pieces:?}"
        );
    }
}

/// A stream of `ladder` that plays.
fn playing() -> (Desk, StreamKey) {
    let mut desk = Desk::new();
    let key = desk.udp("ladder", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    (desk, key)
}

fn finish(desk: &mut Desk, key: StreamKey) {
    desk.close(key);
    desk.assert_empty();
}

#[test]
fn down_and_up_at_access_points_that_both_have() {
    let (mut desk, key) = playing();
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("1080p", 4_000_000));
    assert_eq!(set(&mut desk, key, "480p"), at(2));
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("1080p", 4_000_000));
    desk.wait(2 * SECOND);
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("480p", 1_200_000));
    assert_eq!((position(&desk, key), desk.titles.open_count()), (3.0, 2));
    // Up is paid for as soon as it is promised.
    assert_eq!(set(&mut desk, key, "720p"), at(4));
    assert_eq!((desk.service.reserved_rate(), desk.titles.open_count()), (3_000_000, 3));
    desk.wait(SECOND);
    assert_eq!(desk.titles.open_count(), 2, "what is not sent any more is closed");
    // Too near: it would not be read in time.
    desk.wait(SECOND * 9 / 5);
    assert_eq!(set(&mut desk, key, "1080p"), at(8));
    desk.wait(3 * SECOND);
    assert_eq!((rendition(&desk, key).as_str(), desk.titles.open_count()), ("1080p", 1));
    // The rendition that is sent already.
    assert_eq!(set(&mut desk, key, "1080p"), Ok(Begins::Now));
    let viewer = Cause::Viewer;
    let text = |from: &str, to: &str, at| (from.to_owned(), to.to_owned(), Some(at), viewer);
    assert_eq!(changes(&desk), [text("1080p", "480p", 2), text("480p", "720p", 4), text("720p", "1080p", 8)]);
    assert_eq!(desk.counters.rendition_changes, 3);
    finish(&mut desk, key);
    let pieces = pieces(&desk);
    assert_eq!(pieces.len(), 4);
    assert_whole(&pieces);
    assert_eq!((pieces[0].sequence.0, pieces[0].ssrc), (1, 0x1234_abcd));
}

/// To the end of the title, which is that of the rendition that is sent then.
#[test]
fn rendition_switch_before_end_plays_to_end_of_title_or_range() {
    for (to, ends) in [(None, 67.0), (Some(33), 33.0)] {
        let mut desk = Desk::new();
        let key = desk.udp("ladder", 5000);
        desk.play(key, span(0, to)).unwrap();
        desk.wait(SECOND);
        assert_eq!(set(&mut desk, key, "480p"), at(2));
        desk.wait(80 * SECOND);
        assert_eq!((position(&desk, key), desk.counters.titles_finished), (ends, 1));
        assert_eq!(rendition(&desk, key), "480p");
        finish(&mut desk, key);
        assert_whole(&pieces(&desk));
        assert_eq!(pieces(&desk).last().unwrap().time.1, ends as u64 * S);
    }
    // Where no access point comes before the end it begins with the next play.
    let mut desk = Desk::new();
    let key = desk.udp("ladder", 5000);
    desk.play(key, span(64, Some(66))).unwrap();
    desk.wait(SECOND);
    assert_eq!(set(&mut desk, key, "480p"), Ok(Begins::WithPlay));
    desk.wait(10 * SECOND);
    assert_eq!((rendition(&desk, key).as_str(), desk.counters.titles_finished), ("1080p", 1));
    desk.play(key, span(10, None)).unwrap();
    assert_eq!(rendition(&desk, key), "480p");
    finish(&mut desk, key);
}

/// One change at a time: a request while one is queued follows at the next access point behind it.
#[test]
fn rendition_switch_while_another_is_queued_follows_it() {
    let (mut desk, key) = playing();
    assert_eq!(set(&mut desk, key, "480p"), at(2));
    assert_eq!(set(&mut desk, key, "720p"), Ok(Begins::Next));
    assert_eq!(desk.service.reserved_rate(), 4_000_000);
    desk.wait(SECOND * 3 / 2);
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("480p", 3_000_000));
    desk.wait(3 * SECOND / 2 + SECOND / 2);
    assert_eq!(rendition(&desk, key), "720p");
    // And back to the current rendition: nothing is left to do behind the queued one but to come
    // back.
    assert_eq!(set(&mut desk, key, "480p"), at(6));
    assert_eq!(set(&mut desk, key, "720p"), Ok(Begins::Next));
    desk.wait(5 * SECOND);
    assert_eq!(rendition(&desk, key), "720p");
    finish(&mut desk, key);
    assert_eq!(pieces(&desk).len(), 5);
    assert_whole(&pieces(&desk));
}

#[test]
fn pause_while_rendition_switch_is_queued_keeps_the_switch() {
    let (mut desk, key) = playing();
    set(&mut desk, key, "480p").unwrap();
    desk.wait(SECOND / 2);
    desk.pause(key);
    assert_eq!((rendition(&desk, key).as_str(), position(&desk, key)), ("1080p", 1.5025));
    desk.wait(SECOND);
    // It goes on with the next packet, and over at the access point.
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    assert_eq!(rendition(&desk, key), "480p");
    desk.pause(key);
    assert_eq!(changes(&desk).len(), 1);
    // While it is paused.
    assert_eq!(set(&mut desk, key, "720p"), Ok(Begins::WithPlay));
    assert_eq!(rendition(&desk, key), "480p");
    desk.play(key, None).unwrap();
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "720p");
    finish(&mut desk, key);
    assert_whole(&pieces(&desk));
}

/// A stream that has paused right before an access point need not wait for the next one.
#[test]
fn pause_at_access_point_lets_rendition_switch_at_once() {
    let (mut desk, key) = playing();
    // 800 packets in 2 s, but for one tick of the clock.
    desk.wait(SECOND - 1);
    desk.pause(key);
    assert_eq!(position(&desk, key), 2.0);
    set(&mut desk, key, "480p").unwrap();
    desk.play(key, None).unwrap();
    assert_eq!(rendition(&desk, key), "480p");
    assert_eq!(changes(&desk).len(), 1);
    desk.wait(SECOND);
    finish(&mut desk, key);
    assert_eq!(pieces(&desk).len(), 2);
    assert_whole(&pieces(&desk));
}

/// Titles for other speeds are made from the title, whichever rendition of it is watched.
#[test]
fn speed_request_in_other_rendition_names_the_title() {
    let (mut desk, key) = playing();
    set(&mut desk, key, "480p").unwrap();
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "480p");
    desk.play_at(key, 800, None).unwrap();
    assert_eq!(desk.titles.0.lock().unwrap().wishes, [("ladder".to_owned(), 800)]);
    finish(&mut desk, key);
}

#[test]
fn seek_and_scale_while_rendition_switch_is_queued_apply_it() {
    let (mut desk, key) = playing();
    set(&mut desk, key, "480p").unwrap();
    assert_eq!(desk.play(key, span(31, None)), Ok(Played::Waits));
    assert_eq!((rendition(&desk, key).as_str(), position(&desk, key)), ("480p", 30.0));
    assert_eq!(desk.service.reserved_rate(), 1_200_000);
    desk.wait(SECOND);
    set(&mut desk, key, "720p").unwrap();
    // Fast forward costs the title's rate, whatever rendition is sent at normal speed.
    desk.play_at(key, 400, None).unwrap();
    assert_eq!(desk.service.reserved_rate(), 4_000_000);
    let held = |refusal: Result<Begins, Refusal>| matches!(refusal, Err(Refusal::RenditionHeld(_)));
    assert!(held(set(&mut desk, key, "1080p")));
    desk.wait(SECOND);
    desk.play(key, from_here(None)).unwrap();
    desk.wait(SECOND);
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("720p", 3_000_000));
    // Timestamps go on from run to run by now, and stay whole over a change.
    set(&mut desk, key, "480p").unwrap();
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "480p");
    finish(&mut desk, key);
    let pieces = pieces(&desk);
    assert_eq!(pieces.len(), 5);
    for pair in pieces.windows(2) {
        assert_eq!((pair[0].sequence.1, pair[0].ssrc), (pair[1].sequence.0, pair[1].ssrc));
    }
    assert_whole(&pieces[3..]);
}

/// Torn down in every state, nothing stays open or reserved.
#[test]
fn close_in_any_switch_state_releases_everything() {
    for state in ["fresh", "queued", "two", "pausing", "paused", "over"] {
        let mut desk = Desk::new();
        let key = desk.udp("ladder", 5000);
        set(&mut desk, key, "720p").unwrap();
        if state != "fresh" {
            desk.play(key, None).unwrap();
            desk.wait(SECOND);
            set(&mut desk, key, "480p").unwrap();
        }
        match state {
            "two" => assert_eq!(set(&mut desk, key, "1080p"), Ok(Begins::Next)),
            "pausing" => {
                desk.engine.silent = true;
                desk.pause(key);
            }
            "paused" => desk.pause(key),
            "over" => desk.wait(2 * SECOND),
            _ => {}
        }
        desk.close(key);
        desk.engine.silent = false;
        desk.settle();
        assert_eq!(desk.ends(), [EndReason::TornDown], "{state}");
        desk.assert_empty();
    }
}

/// The engine switches in the moment in which it is ordered to pause: it stopped at a place in the
/// rendition that it sent last.
#[test]
fn pause_crossing_rendition_switch_stops_in_new_rendition() {
    let (mut desk, key) = playing();
    set(&mut desk, key, "480p").unwrap();
    desk.engine.silent = true;
    desk.wait(SECOND * 3 / 2);
    desk.service.pause(key).unwrap();
    desk.settle();
    desk.engine.silent = false;
    desk.settle();
    assert_eq!((rendition(&desk, key).as_str(), position(&desk, key)), ("480p", 2.0 + 61.0 / 120.0));
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    finish(&mut desk, key);
    assert_eq!(pieces(&desk).len(), 3);
    assert_whole(&pieces(&desk));
}

/// Has the engine report that a queued run will not happen.
fn missed(desk: &mut Desk, answer: impl FnOnce(millrace_core::ids::StreamId, RunEnd) -> EngineEvent) {
    let (&stream, state) = desk.engine.streams.iter_mut().next().unwrap();
    let (_, spec) = state.queued.take().expect("a run is queued");
    let end = RunEnd {
        run: spec.run,
        reason: StopReason::Failed(FailReason::ReadError(LeaseFailure::Io(5))),
        next_packet: spec.from,
        next_sequence: 0,
        bursts: 0,
        packets: 0,
        bytes: 0,
        missing: 0,
        next_due: millrace_core::time::Instant(u64::MAX),
    };
    let event = answer(stream, end);
    desk.service.engine_event(desk.now, 0, event);
    desk.settle();
}

#[test]
fn rendition_cut_that_has_passed_moves_to_next_access_point() {
    let (mut desk, key) = playing();
    set(&mut desk, key, "480p").unwrap();
    missed(&mut desk, |stream, end| EngineEvent::Refused {
        stream,
        run: Some(end.run),
        refusal: Refused::CutPassed,
    });
    assert_eq!(rendition(&desk, key), "1080p");
    desk.wait(2 * SECOND);
    assert_eq!(rendition(&desk, key), "1080p");
    desk.wait(3 * SECOND / 2);
    assert_eq!(rendition(&desk, key), "480p");
    assert_eq!(changes(&desk)[0].2, Some(4));
    finish(&mut desk, key);
    assert_whole(&pieces(&desk));
}

/// For a viewer that is behind, the engine's packets are behind the position: the cut meets them
/// there, and later if the viewer is less behind by then.
#[test]
fn rendition_switch_for_lagging_viewer_cuts_at_sent_position() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let request = desk.request("ladder", conn, tcp(conn));
    let key = desk.admit(request).unwrap().stream;
    desk.play(key, None).unwrap();
    desk.wait(10 * SECOND);
    desk.engine.behind_ns = 3 * SECOND;
    desk.wait(SECOND / 2);
    assert_eq!(position(&desk, key), 10.45);
    let change = desk.service.set_rendition(desk.now, key, &named("480p"), None);
    assert_eq!(change.map(|change| change.begins), at(8));
    desk.settle();
    desk.wait(2 * SECOND);
    assert_eq!((rendition(&desk, key).as_str(), changes(&desk)[0].2), ("480p", Some(12)));
    desk.close(key);
    assert_whole(&pieces(&desk));
}

/// Renditions that were made elsewhere: access points that are a little apart are common ones, others are none.
#[test]
fn access_points_that_are_nearly_equal_are_common_ones() {
    let mut desk = Desk::new();
    let key = desk.udp("foreign", 5000);
    desk.play(key, None).unwrap();
    desk.wait(SECOND);
    assert_eq!(set(&mut desk, key, "720p"), Ok(Begins::At(MediaTicks(2 * S + FOREIGN_TICKS[1]))));
    desk.wait(2 * SECOND);
    assert_eq!(rendition(&desk, key), "720p");
    assert_eq!(set(&mut desk, key, "1080p"), at(4));
    desk.wait(2 * SECOND);
    assert_eq!(rendition(&desk, key), "1080p");
    // Where a pause is, too: not at the one before.
    desk.play(key, span(8, None)).unwrap();
    desk.wait(2 * SECOND - 1);
    desk.pause(key);
    assert_eq!(position(&desk, key), 10.0);
    set(&mut desk, key, "720p").unwrap();
    desk.play(key, None).unwrap();
    assert_eq!(changes(&desk).pop().unwrap().2, Some(10));
    desk.play(key, span(11, None)).unwrap();
    set(&mut desk, key, "1080p").unwrap();
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "1080p");
    // These are a tick too far apart: it begins with a jump.
    assert_eq!(set(&mut desk, key, "480p"), Ok(Begins::WithPlay));
    desk.wait(4 * SECOND);
    assert_eq!(rendition(&desk, key), "1080p");
    desk.play(key, span(20, None)).unwrap();
    assert_eq!(rendition(&desk, key), "480p");
    finish(&mut desk, key);
}

/// Packets that may have been sent already, or will be before the other rendition is there, are not
/// cut: those sent ahead, and those sent faster.
#[test]
fn rendition_cut_lies_beyond_media_sent_ahead_or_faster() {
    for (fast_start_ms, speed, asked_at_ms, begins) in
        [(0, 1_000, 1_500, 2), (1_000, 1_000, 1_500, 4), (0, 2_000, 1_600, 4), (0, 1_000, 1_600, 2)]
    {
        let mut desk = Desk::with(|config| config.fast_start_ms = fast_start_ms);
        let conn = desk.conn();
        let request = desk.request("ladder", conn, tcp(conn));
        let key = desk.admit(request).unwrap().stream;
        let wanted = PlayRequest { speed: Some(Speed::nearest(speed)), ..PlayRequest::default() };
        desk.service.play(desk.now, key, &wanted).unwrap();
        desk.settle();
        desk.wait(PLAY_DELAY_NS + asked_at_ms * 1_000_000 * 1_000 / speed);
        let said = set(&mut desk, key, "480p");
        assert_eq!(said, at(begins), "{fast_start_ms} {speed} {asked_at_ms}");
        finish(&mut desk, key);
    }
}

#[test]
fn rendition_that_cannot_be_read_is_not_switched_to() {
    let (mut desk, key) = playing();
    desk.wait(SECOND);
    set(&mut desk, key, "480p").unwrap();
    desk.wait(3 * SECOND);
    set(&mut desk, key, "1080p").unwrap();
    assert_eq!(desk.service.reserved_rate(), 4_000_000);
    missed(&mut desk, |stream, end| EngineEvent::Stream(StreamEvent::RunEnded { stream, end }));
    assert_eq!((rendition(&desk, key).as_str(), desk.service.reserved_rate()), ("480p", 1_200_000));
    assert_eq!((desk.counters.rendition_failed, desk.counters.rendition_changes), (1, 1));
    // It can be asked for again.
    set(&mut desk, key, "1080p").unwrap();
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "1080p");
    finish(&mut desk, key);
}

#[test]
fn up_needs_room_and_down_gives_it_back() {
    let mut desk = Desk::with(|config| config.max_rate = Some(BitRate(5_500_000)));
    let key = desk.udp("ladder", 5000);
    set(&mut desk, key, "480p").unwrap();
    desk.play(key, None).unwrap();
    assert_eq!(desk.service.reserved_rate(), 1_200_000);
    let other = desk.udp("film", 6000);
    desk.play(other, None).unwrap();
    desk.wait(SECOND);
    // 5.2 of 5.5 Mb/s are taken.
    assert!(matches!(set(&mut desk, key, "720p"), Err(Refusal::Exhausted(Exhausted::Rate { .. }))));
    assert_eq!((desk.counters.refused_full, desk.service.reserved_rate()), (1, 5_200_000));
    desk.wait(3 * SECOND);
    assert_eq!(rendition(&desk, key), "480p");
    desk.close(other);
    let other = desk.udp("other", 6000);
    assert!(set(&mut desk, key, "1080p").is_ok());
    desk.wait(3 * SECOND);
    // Now the other one finds too little, until this one goes down.
    desk.play(other, None).unwrap_err();
    set(&mut desk, key, "480p").unwrap();
    desk.play(other, None).unwrap_err();
    desk.wait(3 * SECOND);
    desk.play(other, None).unwrap();
    desk.close(other);
    finish(&mut desk, key);
}

#[test]
fn stream_with_requested_rendition_starts_with_it() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let mut request = desk.request("ladder", conn, udp(5000));
    request.rendition = Some(named("720p"));
    let key = desk.admit(request).unwrap().stream;
    assert_eq!(
        (rendition(&desk, key).as_str(), desk.service.stream(key).unwrap().ssrc()),
        ("720p", 0x0720_0001)
    );
    desk.play(key, None).unwrap();
    assert_eq!(desk.service.reserved_rate(), 3_000_000);
    let shared = desk.engine.streams.values().next().unwrap().playing.unwrap().spec;
    assert_eq!((shared.numbering, shared.media.timeline.timestamp_base), (Numbering::Sequence(1), 99));
    desk.wait(SECOND);
    set(&mut desk, key, "1080p").unwrap();
    desk.wait(2 * SECOND);
    // Another path: the session's rendition is kept.
    desk.pause(key);
    set(&mut desk, key, "480p").unwrap();
    let mut moved = desk.request("ladder", conn, udp(6000));
    moved.which = Which::Moved(key);
    desk.admit(moved).unwrap();
    assert_eq!(position(&desk, key), 3.0025);
    desk.play(key, None).unwrap();
    desk.wait(2 * SECOND);
    assert_eq!(rendition(&desk, key), "480p");
    finish(&mut desk, key);
    assert_whole(&pieces(&desk)[..2]);
    let unknown = |desk: &mut Desk, title: &str, name: &str| {
        let mut request = desk.request(title, conn, udp(5000));
        request.rendition = Some(named(name));
        desk.admit(request).map(|_| ())
    };
    let there = "1080p, 720p, 480p".to_owned();
    assert_eq!(unknown(&mut desk, "ladder", "360p"), Err(Refusal::NoRendition { there }));
    assert_eq!(unknown(&mut desk, "film", "720p"), Err(Refusal::NoRenditions));
    desk.assert_empty();
}

#[test]
fn fec_holds_a_stream_to_its_rendition() {
    let mut desk = Desk::new();
    let conn = desk.conn();
    let mut request = desk.request("ladder", conn, udp(5000));
    request.entry.fec = desk.service.find("safe").unwrap().fec;
    request.fec = FecWish::Mode(FecMode::Xor);
    request.rendition = Some(named("480p"));
    let admitted = desk.admit(request).unwrap();
    assert_eq!(admitted.fec, Some(Err(FecRefusal::Rendition)));
    desk.close(admitted.stream);
    let mut request = desk.request("ladder", conn, udp(5000));
    request.entry.fec = desk.service.find("safe").unwrap().fec;
    request.fec = FecWish::Mode(FecMode::Xor);
    let key = desk.admit(request).unwrap().stream;
    assert!(!desk.service.stream(key).unwrap().is_rendition_auto());
    desk.play(key, None).unwrap();
    assert!(matches!(set(&mut desk, key, "480p"), Err(Refusal::RenditionHeld(_))));
    let other = desk.udp("film", 6000);
    assert_eq!(set(&mut desk, other, "480p"), Err(Refusal::NoRenditions));
    desk.close(other);
    finish(&mut desk, key);
}

#[test]
fn sequence_numbers_and_timestamps_wrap() {
    let mut desk = Desk::new();
    let key = desk.udp("turning", 5000);
    // Both wrap at 164 s.
    desk.play(key, span(162, None)).unwrap();
    desk.wait(SECOND);
    for name in ["480p", "720p", "1080p", "480p"] {
        set(&mut desk, key, name).unwrap();
        desk.wait(2 * SECOND);
        assert_eq!(rendition(&desk, key), name);
    }
    finish(&mut desk, key);
    let pieces = pieces(&desk);
    assert_whole(&pieces);
    assert!(pieces[0].sequence.0 > 60_000 && pieces[4].sequence.0 < 2_000, "{pieces:?}");
    assert!(pieces[0].timestamp.0 > pieces[1].timestamp.0, "{pieces:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the requests and their order: numbers go on, media goes on where nothing jumps, and
    /// in the end the requested rendition is sent, and counts at its own rate.
    #[test]
    fn renditions_under_any_requests_keep_sequence_continuous(ops in proptest::collection::vec((0u8..9, 0usize..3, 1u64..25), 1..40)) {
        let mut desk = Desk::new();
        let key = desk.udp("turning", 5000);
        desk.play(key, span(150, None)).unwrap();
        let (mut wanted, mut jumps) = (0, 0);
        for (op, which, tenths) in ops {
            match op {
                0..4 => {
                    set(&mut desk, key, RENDITIONS[which].0).unwrap();
                    wanted = which;
                }
                4 => desk.pause(key),
                5 => {
                    jumps += usize::from(desk.play(key, span(100 + tenths * 10, None)).is_ok());
                }
                6 => desk.engine.silent ^= true,
                _ => {
                    let _ = desk.play(key, None);
                }
            }
            desk.wait(tenths * SECOND / 10);
        }
        desk.engine.silent = false;
        desk.settle();
        desk.wait(SECOND);
        let _ = desk.play(key, None);
        desk.wait(6 * SECOND);
        prop_assert_eq!(rendition(&desk, key), RENDITIONS[wanted].0);
        let rates = [4_000_000, 3_000_000, 1_200_000];
        prop_assert_eq!(desk.service.reserved_rate(), rates[wanted]);
        let open = if wanted == 0 { 1 } else { 2 };
        prop_assert_eq!(desk.titles.open_count(), open);
        desk.close(key);
        desk.assert_empty();
        let pieces = pieces(&desk);
        let whole = |pair: &[Piece]| pair[0].time.1 == pair[1].time.0 && pair[0].timestamp.1 == pair[1].timestamp.0;
        for pair in pieces.windows(2) {
            prop_assert_eq!((pair[0].ssrc, pair[0].sequence.1), (pair[1].ssrc, pair[1].sequence.0));
        }
        prop_assert!(pieces.windows(2).filter(|pair| !whole(pair)).count() <= jumps);
    }
}
