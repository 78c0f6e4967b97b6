//! Bytes in a connection: a run is a range of a title's bytes, whatever packets they lie in.

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::limits::web::MAX_BYTES_STALL_NS;
use millrace_core::seam::{Dest, SendOutcome};
use millrace_engine::limits::RUSHES_PER_TURN;
use millrace_engine::{
    EngineConfig, FailReason, Numbering, Refusal, RunEnd, RunSpec, Start, StopReason, StreamEvent,
};

use crate::ahead::stall;
use crate::world::{MS, S, World, id, udp};
use millrace_testkit::film::Film;

const PACKETS: u32 = 1_000;
const SIZE: u64 = 1316;
/// Bytes of the last packet.
const LAST: u16 = 376;

fn film() -> Film {
    Film::constant(0, PACKETS, 8_000_000).ending_with(LAST)
}

fn title_bytes() -> u64 {
    u64::from(PACKETS - 1) * SIZE + u64::from(LAST)
}

/// The run of these bytes of the title.
fn run_of(film: &Film, serial: u32, from: u64, to: u64) -> RunSpec {
    RunSpec {
        run: RunSerial(serial),
        media: film.media(u8::MAX),
        from: (from / SIZE) as u32,
        until: to.div_ceil(SIZE) as u32,
        numbering: Numbering::Bytes { head: (from % SIZE) as u16, last: (to % SIZE) as u16 },
        scale_permille: 1000,
        step: None,
    }
}

/// Returns the end of the bytes taken of stream 0: one range without a hole or a repeat.
fn taken(world: &mut World, from: u64) -> u64 {
    let mut next = from;
    for (stream, range) in world.bytes.drain(..) {
        assert_eq!((stream, range.start), (id(0), if range.is_empty() { range.start } else { next }));
        next = next.max(range.end);
    }
    next
}

fn end_of(world: &World, run: u32) -> RunEnd {
    let ends = world.events.iter().filter_map(|(_, event)| match event {
        StreamEvent::RunEnded { end, .. } if end.run == RunSerial(run) => Some(*end),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert_eq!(ends.len(), 1, "{ends:?}");
    ends[0]
}

/// Within a packet, from border to border, across extents, to the short end.
fn ranges() -> Vec<(u64, u64)> {
    let (extent, end) = (196 * SIZE, title_bytes());
    vec![
        (0, end),
        (0, 1),
        (7, 9),
        (SIZE - 1, SIZE + 1),
        (SIZE, 2 * SIZE),
        (extent - 5, extent + 5),
        (extent + 1, 3 * extent - 1),
        (end - 1, end),
        (end - u64::from(LAST), end),
        (end - u64::from(LAST) - 3, end - 4),
    ]
}

#[test]
fn byte_range_run_sends_exact_range_without_rtcp() {
    let (mut world, film) = (World::small(), film());
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    for (serial, (from, to)) in (1..).zip(ranges()) {
        let spec = run_of(&film, serial, from, to);
        world.engine.play(world.now, stream, world.now, spec).unwrap();
        world.run_for(20 * S);
        assert_eq!(taken(&mut world, from), to);
        let end = end_of(&world, serial);
        assert_eq!(
            (end.reason, end.bytes, end.packets),
            (StopReason::Finished, to - from, spec.until - spec.from)
        );
    }
    assert!(world.reports.is_empty(), "nobody listens");
}

#[test]
fn byte_range_run_on_slow_connection_keeps_bytes_contiguous() {
    let film = film();
    for (from, to) in ranges() {
        let mut world = World::small();
        let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
        let mut tries = 0u32;
        world.device = Box::new(move |_, transmit| {
            tries += 1;
            let all = transmit.datagrams() as u16;
            match tries % 5 {
                0 => SendOutcome::Blocked { taken: 0 },
                1 => SendOutcome::Blocked { taken: all / 2 },
                2 => SendOutcome::Blocked { taken: all.saturating_sub(1) },
                _ => SendOutcome::Sent,
            }
        });
        // Long enough to be parked now and then.
        let mut waits = 0;
        world.writable = Box::new(move |now, _| {
            waits += 1;
            Some(now.plus_ns(if waits % 9 == 0 { 700 * MS } else { MS }))
        });
        world.engine.play(world.now, stream, world.now, run_of(&film, 1, from, to)).unwrap();
        world.run_for(60 * S);
        assert_eq!(taken(&mut world, from), to, "{from}..{to}");
        assert_eq!(end_of(&world, 1).bytes, to - from);
    }
}

/// Bytes that may be sent ahead go in writes as long as can be, at once as far as they may, and at the title's pace behind that. Others go in bursts as frames do.
#[test]
fn bytes_go_in_long_writes() {
    let film = film();
    for (ahead_ms, took, writes) in [
        (2_000, 2 * MS..20 * MS, 6..=6),
        (1, 750 * MS..1_400 * MS, 6..=7),
        (0, 1_200 * MS..1_400 * MS, 15..=40),
    ] {
        let mut world = World::small();
        let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
        let start = Start { at: world.now, ahead_ms };
        world.engine.play(world.now, stream, start, run_of(&film, 1, 0, title_bytes())).unwrap();
        let began = world.now;
        while world.bytes.last().is_none_or(|(_, range)| range.end < title_bytes()) {
            world.run_for(MS);
            assert!(world.now.ns_since(began) < 3 * S, "it does not end");
        }
        // 1.3 s of media.
        assert!(took.contains(&world.now.ns_since(began)), "{ahead_ms}: {} ns", world.now.ns_since(began));
        assert!(
            writes.contains(&world.bytes.len()),
            "{ahead_ms}: {} writes for six extents",
            world.bytes.len()
        );
        assert_eq!(taken(&mut world, 0), title_bytes());
    }
    // With a lead shorter than the title: that at once, and then the pace.
    let mut world = World::small();
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let start = Start { at: world.now, ahead_ms: 500 };
    world.engine.play(world.now, stream, start, run_of(&film, 1, 0, title_bytes())).unwrap();
    world.run_for(100 * MS);
    let led = taken(&mut world, 0);
    // 0.5 s of 8 Mb/s, the media due meanwhile, and a burst.
    assert!((500_000..900_000).contains(&led), "{led}");
}

/// A viewer who stops reading for a while receives the missed bytes and its lead in long writes, without a timer for each.
#[test]
fn bytes_regain_their_lead_at_once_when_the_viewer_reads_again() {
    let (mut world, film) = (World::small(), film());
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let start = Start { at: world.now, ahead_ms: 300 };
    stall(&mut world, 50 * MS, 700 * MS);
    let again = world.now.plus_ns(700 * MS);
    world.writable = Box::new(move |now, _| Some(now.max(again)));
    world.engine.play(world.now, stream, start, run_of(&film, 1, 0, title_bytes())).unwrap();
    world.run_for(650 * MS);
    let before = world.bytes.len();
    world.run_for(100 * MS);
    assert!(world.bytes.len() - before <= 5, "{} writes", world.bytes.len() - before);
    let at = taken(&mut world, 0);
    // 0.75 s have passed, 0.3 s are the lead.
    assert!(at >= 1_000_000, "{at} bytes of 1,000,000 a second");
    world.run_for(S);
    assert_eq!(taken(&mut world, at), title_bytes());
}

/// An extent of a slow title lasts long: no client is sent all of it at once.
#[test]
fn bytes_of_a_slow_title_keep_to_its_pace() {
    let (mut world, film) = (World::small(), Film::constant(0, PACKETS, 500_000).ending_with(LAST));
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let start = Start { at: world.now, ahead_ms: 1 };
    world.engine.play(world.now, stream, start, run_of(&film, 1, 0, title_bytes())).unwrap();
    world.run_for(5 * S);
    let at = taken(&mut world, 0);
    // At most half a second early, and never late.
    assert!((312_500 - 2 * SIZE..350_000).contains(&at), "{at} bytes after 5 s of 62,500 a second");
}

/// A stream that sends ahead asks for two extents at a time: one round to the cache serves for
/// both.
#[test]
fn byte_range_run_with_lead_requests_two_extents_at_once() {
    let (mut world, film) = (World::small(), film());
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let start = Start { at: world.now, ahead_ms: 2_000 };
    world.engine.play(world.now, stream, start, run_of(&film, 1, 0, title_bytes())).unwrap();
    world.run_for(100 * MS);
    let asked: Vec<_> =
        world.disk.wants.iter().map(|(at, want)| (want.extent, at.ns_since(world.disk.wants[0].0))).collect();
    assert_eq!(asked.iter().map(|(extent, _)| *extent).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    // The first alone, as its length is not known yet; each round takes 2 ms.
    assert_eq!(asked.iter().map(|(_, at)| at / MS).collect::<Vec<_>>(), [0, 2, 2, 4, 4, 6]);
    assert_eq!(taken(&mut world, 0), title_bytes());
    // Reads are put in the order of their times: those of the two differ as their media do.
    let by: Vec<_> = world.disk.wants.iter().map(|(_, want)| want.by).collect();
    assert!(
        by.windows(2).skip(1).all(|pair| (240 * MS..280 * MS).contains(&pair[1].ns_since(pair[0]))),
        "{by:?}"
    );
}

/// However many are sent ahead: the others are on time, a moment has its bound, and each gets its turn.
#[test]
fn those_who_are_sent_ahead_share_and_are_in_nobodys_way() {
    let mut world = World::new(EngineConfig { streams: 16, ..EngineConfig::default() }, 64);
    let other = world.open(&Film::constant(1, 3_000, 8_000_000), 15, udp(15));
    world.play_from(other, 0);
    let film = film();
    let rushing: Vec<_> =
        (0..12).map(|index| world.open(&film, index, Dest::Bytes { conn: ConnId(index) })).collect();
    // A turn takes a while.
    world.run_for(200 * MS);
    for (stream, serial) in rushing.iter().zip(1..) {
        let start = Start { at: world.now, ahead_ms: 2_000 };
        world.engine.play(world.now, *stream, start, run_of(&film, serial, 0, title_bytes())).unwrap();
    }
    let mut most = 0;
    for _ in 0..40 {
        let before = world.bytes.len();
        world.turn();
        let now: Vec<_> = world.bytes[before..].to_vec();
        assert!(now.len() <= RUSHES_PER_TURN, "{} at one moment", now.len());
        most = most.max(now.len());
        let got = |stream: &StreamId| {
            world
                .bytes
                .iter()
                .filter(|(other, _)| other == stream)
                .map(|(_, range)| range.end - range.start)
                .sum::<u64>()
        };
        let (least, greatest) =
            (rushing.iter().map(got).min().unwrap(), rushing.iter().map(got).max().unwrap());
        assert!(greatest - least <= 2 * 196 * SIZE, "{least} to {greatest}");
        world.now = world.now.plus_ns(MS);
    }
    assert_eq!(most, RUSHES_PER_TURN);
    world.run_for(200 * MS);
    for stream in rushing {
        let all: u64 = world
            .bytes
            .iter()
            .filter(|(other, _)| *other == stream)
            .map(|(_, range)| range.end - range.start)
            .sum();
        assert_eq!(all, title_bytes(), "{stream:?}");
    }
    world.run_out();
    let sent = world.sent_of(other);
    assert!(sent.iter().all(|sent| sent.at.ns_since(sent.departure) < MS), "at most until the next turn");
}

/// A browser whose viewer pauses: it takes nothing for as long as that lasts, and then the rest.
#[test]
fn stalled_bytes_reader_fails_only_after_max_bytes_stall() {
    for (stop_s, is_whole) in [(MAX_BYTES_STALL_NS / S - 1, true), (MAX_BYTES_STALL_NS / S + 1, false)] {
        let (mut world, film) = (World::small(), film());
        let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
        let (stops, goes_on) = (world.now.plus_ns(300 * MS), world.now.plus_ns(300 * MS + stop_s * S));
        world.device = Box::new(move |now, _| {
            if now < stops || now >= goes_on { SendOutcome::Sent } else { SendOutcome::Blocked { taken: 0 } }
        });
        world.writable = Box::new(move |now, _| Some(now.max(goes_on)));
        world.engine.play(world.now, stream, world.now, run_of(&film, 1, 0, title_bytes())).unwrap();
        world.run_for(400 * S);
        let end = end_of(&world, 1);
        let reason = if is_whole { StopReason::Finished } else { StopReason::Failed(FailReason::SlowReader) };
        assert_eq!(end.reason, reason, "after {stop_s} s");
        assert_eq!(taken(&mut world, 0) == title_bytes(), is_whole);
        assert_eq!(world.disk.leases(), 0, "it pins nothing");
    }
}

#[test]
fn missing_packets_in_byte_range_keep_byte_positions() {
    let (mut world, mut film) = (World::small(), film());
    film.missing = |packet| matches!(packet, 0 | 5 | 6 | 195 | 196 | 999);
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let end = title_bytes();
    world.engine.play(world.now, stream, world.now, run_of(&film, 1, 3, end - 3)).unwrap();
    world.run_for(20 * S);
    assert_eq!(taken(&mut world, 3), end - 3);
    assert_eq!((world.engine.counters().skipped, end_of(&world, 1).packets), (0, PACKETS));
}

#[test]
fn pause_of_byte_range_ends_at_packet_and_rest_can_follow() {
    let (mut world, film) = (World::small(), film());
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let (from, to) = (5000, title_bytes() - 9);
    world.engine.play(world.now, stream, world.now, run_of(&film, 1, from, to)).unwrap();
    world.run_for(300 * MS);
    world.engine.pause(world.now, stream).unwrap();
    world.run_for(S);
    let end = end_of(&world, 1);
    let at = taken(&mut world, from);
    assert_eq!((end.bytes, u64::from(end.next_packet) * SIZE), (at - from, at));
    world.engine.play(world.now, stream, world.now, run_of(&film, 2, at, to)).unwrap();
    world.run_for(20 * S);
    assert_eq!(taken(&mut world, at), to);
}

#[test]
fn ranges_that_are_none_are_refused() {
    let (mut world, film) = (World::small(), film());
    let stream = world.open(&film, 0, Dest::Bytes { conn: ConnId(3) });
    let spec = |from, until, head, last| RunSpec {
        from,
        until,
        numbering: Numbering::Bytes { head, last },
        ..run_of(&film, 1, 0, 1)
    };
    let mut play = |spec| world.engine.play(world.now, stream, world.now, spec);
    for (from, until, head, last) in
        [(0, 1, 9, 9), (0, 1, 9, 8), (0, 2, 1316, 1), (0, 2, 0, 1317), (2, 1, 0, 0)]
    {
        let refused = play(spec(from, until, head, last));
        assert_eq!(refused, Err(Refusal::OutOfRange), "{from}..{until}, {head}, {last}");
    }
    assert_eq!(play(spec(0, 1, 8, 9)), Ok(()));
}

/// A viewer without RTCP is a viewer: only what belongs to another stream keeps a schedule that was missed.
#[test]
fn play_with_late_start_moves_schedule_unless_quiet() {
    for (quiet, moved_ns) in [(false, 30 * MS), (true, 0)] {
        let (mut world, film) = (World::small(), film());
        world.quiet = quiet;
        let Dest::Udp { ip, scope_id, port, source, .. } = udp(0) else { unreachable!() };
        let stream = world.open(&film, 0, Dest::Udp { ip, scope_id, port, rtcp_port: None, source });
        world.disk.rule = Box::new(|_| (30 * MS, Ok(())));
        world.play_from(stream, 0);
        world.now = world.now.plus_ns(50 * MS);
        let due = world.now;
        world.run_for(20 * S);
        let (_, _, at) = world.began[0];
        assert_eq!(at.ns_since(due), moved_ns, "quiet: {quiet}");
        assert!(world.reports.is_empty());
        assert_eq!(world.position(stream), PACKETS);
    }
}
