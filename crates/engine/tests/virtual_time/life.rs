//! From open to closed: wants and leases, pause and seek, the end of the title.

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{BYE_DELAY_NS, LEASE_AHEAD_NS};
use millrace_core::seam::TransmitBatch;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::LATE_NS;
use millrace_engine::{LeaseFailure, Refusal, StopReason, StreamEvent};

use crate::world::{MS, PlaySpec, S, World, id, stop_of, tcp, udp};
use millrace_testkit::film::Film;

/// 8 Mb/s, six extents and a bit, the last packet short.
fn film() -> Film {
    Film::constant(0, 1_200, 8_000_000).ending_with(188 * 3)
}

fn spec(world: &World, from: u32, until: u32, sequence: u16) -> PlaySpec {
    PlaySpec { from, until, at: world.now.plus_ns(50 * MS), sequence, scale_permille: 1000 }
}

#[test]
fn wants_one_extent_at_once_and_the_next_when_little_is_left() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    let at = world.now.plus_ns(50 * MS);
    world.play_from(stream, 2 * 196 + 10);
    let want = world.engine.poll_want().unwrap();
    assert_eq!((want.stream, want.extent, want.by), (stream, 2, at));
    assert_eq!(world.engine.poll_want(), None);
    world.engine.want_refused(&want);
    world.turn();
    let lent = world.next().unwrap();
    world.run_until(lent);
    world.run_for(S + S / 5);
    for (at, extent) in (1..).zip(3..7) {
        let (asked, want) = world.disk.wants[at];
        let (by, first) = (want.by, world.departure(stream, extent * 196));
        assert_eq!(want.extent, extent);
        // A burst is 10 ms, and it is asked behind one.
        assert!((LEASE_AHEAD_NS..LEASE_AHEAD_NS + 12 * MS).contains(&by.ns_since(asked)), "extent {extent}");
        assert!(by <= first && first.0 - by.0 < 2 * MS);
    }
    assert_eq!(world.disk.wants.len(), 5);
}

/// However the packets of an extent lie in time, and however fast they are played: never later than it may be, and never with the whole
/// extent before it left, unless that is so short.
#[test]
fn next_extent_is_requested_in_time_at_any_rate() {
    let crowded_at_the_end =
        |p: u32| u64::from(p / 196) * 90_000 + u64::from(p % 196).min(20) * 4_000 + u64::from(p % 196) * 50;
    let films = [
        (Film::constant(0, 2_000, 2_000_000), 1000),
        (Film::constant(1, 2_000, 8_000_000), 700),
        (Film::constant(2, 2_000, 100_000_000), 1000),
        (Film::new(3, 2_000, crowded_at_the_end), 2000),
        (Film::new(4, 2_000, |p| u64::from(p / 98) * 45_000), 1000),
    ];
    for (film, scale_permille) in films {
        let mut world = World::small();
        let stream = world.open(&film, 0, udp(0));
        world.play(stream, PlaySpec { scale_permille, ..spec(&world, 0, film.packets, 1) }).unwrap();
        world.run_out();
        for (asked, want) in &world.disk.wants[1..] {
            let departs = |packet| world.departure(stream, packet);
            let (first, last) = (departs((want.extent - 1) * 196), departs(want.extent * 196 - 1));
            let least = LEASE_AHEAD_NS.min(last.ns_since(first));
            assert!(last.ns_since(*asked) >= least, "{:?} extent {}", film.title, want.extent);
            let is_long = last.ns_since(first) > 2 * LEASE_AHEAD_NS;
            assert!(!is_long || *asked > first, "{:?} extent {}", film.title, want.extent);
        }
        // A second's packets at one moment leave within one.
        assert!(world.late_max_ns < LATE_NS && world.disk.wants.len() == 11, "{:?}", film.title);
    }
}

/// 2 Mb/s: an extent lasts a second. The extents held are the part of the cache that scattered
/// viewers pin.
#[test]
fn leases_of_slow_viewer_are_about_one_on_average() {
    let mut world = World::small();
    let stream = world.open(&Film::constant(0, 1_960, 2_000_000), 0, udp(0));
    world.play_from(stream, 0);
    let (mut held, begun) = (0, world.now);
    while world.position(stream) < 1_900 {
        world.turn();
        let next = world.next().unwrap();
        held += u64::from(world.disk.leases()) * next.ns_since(world.now);
        world.now = next;
    }
    let mean_permille = held * 1000 / world.now.ns_since(begun);
    assert!((950..1_080).contains(&mean_permille), "{mean_permille} leases in a thousand moments");
    world.engine.pause(world.now, stream).unwrap();
    assert_eq!(world.disk.leases(), 0, "a paused viewer holds nothing");
    world.run_for(S);
    assert_eq!(world.disk.leases(), 0, "nor does it come to");
}

#[test]
fn leases_of_stream_are_at_most_two_and_none_at_end() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    let mut held = 0;
    loop {
        world.turn();
        let leases = world.disk.leases();
        held = held.max(leases);
        // Extents behind have gone back: those held are the extent of the next packet and the one
        // behind it.
        let left = film().extents() - world.position(stream) / 196;
        assert!(leases <= left.min(2), "{leases} leases at packet {}", world.position(stream));
        let Some(next) = world.next() else { break };
        world.now = next;
    }
    assert_eq!((held, world.disk.leases()), (2, 0));
    let mut extents: Vec<_> = world.disk.wants.iter().map(|(_, want)| want.extent).collect();
    extents.sort_unstable();
    assert_eq!(extents, [0, 1, 2, 3, 4, 5, 6], "each once");
}

#[test]
fn run_starting_at_last_packet_of_extent_is_on_time() {
    let mut world = World::small();
    let stream = world.open(&Film::constant(0, 1_200, 100_000_000), 0, udp(0));
    world.disk.rule = Box::new(|_| (20 * MS, Ok(())));
    world.play(stream, spec(&world, 195, 391, 195)).unwrap();
    world.run_out();
    assert_eq!((world.late_max_ns, world.datagrams), (0, 196));
}

#[test]
fn want_refused_is_repeated_in_same_order() {
    let mut world = World::small();
    let (a, b) = (world.open(&film(), 0, udp(0)), world.open(&film(), 1, udp(1)));
    world.play_from(a, 0);
    world.play_from(b, 200);
    let first = world.engine.poll_want().unwrap();
    world.engine.want_refused(&first);
    world.engine.want_refused(&first);
    let wants: Vec<_> = std::iter::from_fn(|| world.engine.poll_want()).collect();
    assert_eq!(wants.iter().map(|w| (w.stream, w.extent)).collect::<Vec<_>>(), [(a, 0), (b, 1)]);
    assert_eq!(world.engine.counters().wants, 2);
    wants.iter().rev().for_each(|want| world.engine.want_refused(want));
    let again: Vec<_> = std::iter::from_fn(|| world.engine.poll_want()).collect();
    assert_eq!(again, wants, "in the same order");
    world.engine.close(world.now, a).unwrap();
    world.engine.want_refused(&first);
    assert_eq!(world.engine.poll_want(), None, "nobody wants it any more");
}

#[test]
fn pause_and_resume_continue_exactly() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(433 * MS);
    let next = world.position(stream);
    assert!(next > 200);
    world.engine.pause(world.now, stream).unwrap();
    assert_eq!(world.disk.leases(), 0, "a paused viewer holds no memory");
    assert_eq!(world.engine.poll_at(), None, "and no timer");
    world.run_for(60 * S);
    let events = world.events_of(stream);
    assert!(matches!(events[..], [StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }]), "{events:?}");
    let end = world.ends_of(stream)[0];
    assert_eq!(stop_of(&end), (StopReason::Paused, next, sequence_of(next)));
    assert_eq!((end.run, end.next_due), (world.run_of(stream), world.departure(stream, next)));
    let (bursts, bytes) = (world.sent.len() as u32, u64::from(next) * 1_328);
    assert_eq!((end.bursts, end.packets, end.bytes), (bursts, next, bytes));
    assert_eq!(world.position(stream), next, "silence");
    world.events.clear();
    world.play(stream, spec(&world, next, 1_200, sequence_of(next))).unwrap();
    world.run_out();
    assert_eq!(world.position(stream), 1_200);
    assert!(world.sent.iter().all(|sent| !sent.patched && sent.at == sent.departure));
    assert_eq!(world.engine.counters().late, 0, "a pause is not a hole");
}

#[test]
fn seek_continues_sequence_and_patches_headers() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(300 * MS);
    world.engine.pause(world.now, stream).unwrap();
    world.turn();
    let next_sequence = world.ends_of(stream)[0].next_sequence;
    world.play(stream, spec(&world, 950, 1_200, next_sequence)).unwrap();
    world.run_for(150 * MS);
    assert!(world.position(stream) > 1_000);
    assert!(world.sent.last().unwrap().patched);
    let patched = world.engine.counters().patched;
    assert_eq!(patched, u64::from(world.position(stream) - 950));
    // Pausing names the sequence number of the stream's own timeline; going on keeps to it.
    world.engine.pause(world.now, stream).unwrap();
    world.turn();
    let next = world.position(stream);
    let sequence = next_sequence.wrapping_add((next - 950) as u16);
    assert_eq!(stop_of(&world.ends_of(stream)[1]), (StopReason::Paused, next, sequence));
    world.play(stream, spec(&world, next, 1_200, sequence)).unwrap();
    world.run_out();
    assert_eq!(world.position(stream), 1_200);
    let end = (StopReason::Finished, 1_200, sequence.wrapping_add((1_200 - next) as u16));
    assert_eq!(stop_of(&world.ends_of(stream)[2]), end);
}

#[test]
fn sequence_numbers_wrap() {
    let mut world = World::small();
    let film = Film::constant(0, 70_000, 100_000_000);
    let (shared, own) = (world.open(&film, 0, udp(0)), world.open(&film, 1, udp(1)));
    world.play_from(shared, 64_000);
    world.play(own, spec(&world, 64_000, 70_000, 65_500)).unwrap();
    world.run_out();
    assert_eq!((world.position(shared), world.position(own)), (70_000, 70_000));
}

#[test]
fn pause_before_anything_was_sent() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play(stream, spec(&world, 700, 1_200, 77)).unwrap();
    world.run_for(49 * MS);
    world.engine.pause(world.now, stream).unwrap();
    world.run_for(S);
    let events = world.events_of(stream);
    assert!(matches!(events[..], [StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }]), "{events:?}");
    let end = world.ends_of(stream)[0];
    assert_eq!(stop_of(&end), (StopReason::Paused, 700, 77));
    let at = world.departure(stream, 700);
    assert_eq!((end.bursts, end.packets, end.bytes, end.next_due), (0, 0, 0, at));
    assert!(world.sent.is_empty() && world.reports.is_empty());
    // Again, in the same state: its end comes once.
    world.engine.pause(world.now, stream).unwrap();
    world.turn();
    assert_eq!(world.events_of(stream).len(), 2);
}

#[test]
fn lease_arriving_after_pause_or_seek_is_released() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.disk.rule = Box::new(|_| (30 * MS, Ok(())));
    world.play_from(stream, 0);
    world.run_for(10 * MS);
    world.engine.pause(world.now, stream).unwrap();
    world.play(stream, spec(&world, 600, 1_200, 600)).unwrap();
    world.run_for(25 * MS);
    assert_eq!(world.disk.leases(), 0, "extent 0 is not wanted any more");
    assert_eq!(world.engine.counters().leases_unwanted, 1);
    world.run_out();
    assert_eq!(world.position(stream), 1_200);
    assert_eq!(world.late_max_ns, 0);
    world.engine.close(world.now, stream).unwrap();
    let (run, lease) = (world.run_of(stream), world.disk.lend(film().title, 0));
    world.engine.handle_lease(world.now, stream, run, 0, lease);
    assert_eq!(world.disk.leases(), 0);
}

/// The same extent of the same title, but asked for by a run that is over: neither lease nor failure touches the next run.
#[test]
fn handle_lease_of_previous_run_does_not_affect_new_run() {
    for fails in [false, true] {
        let mut world = World::small();
        let stream = world.open(&film(), 0, udp(0));
        world.play_from(stream, 0);
        let old = world.engine.poll_want().unwrap();
        world.engine.pause(world.now, stream).unwrap();
        world.play_from(stream, 5);
        let want = world.engine.poll_want().unwrap();
        assert_eq!((want.extent, want.run), (old.extent, old.run.next()));
        if fails {
            world.engine.handle_lease_failed(world.now, stream, old.run, 0, LeaseFailure::NoTitle);
        } else {
            let lease = world.disk.lend(film().title, 0);
            world.engine.handle_lease(world.now, stream, old.run, 0, lease);
            assert_eq!(world.engine.counters().leases_unwanted, 1);
        }
        world.engine.want_refused(&old);
        assert_eq!((world.disk.leases(), world.engine.poll_want()), (0, None));
        world.engine.want_refused(&want);
        world.run_out();
        assert_eq!((world.position(stream), world.datagrams), (1_200, 1_195));
        assert_eq!(world.engine.counters().failed, 0);
    }
}

/// Another title on the same stream: its packets, its numbers, and the old title is not wanted any more.
#[test]
fn play_of_other_title_replaces_run() {
    let mut world = World::small();
    let other = Film::constant(9, 500, 4_000_000).ending_with(188);
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(S);
    let asked = world.disk.wants.len();
    let own = spec(&world, 100, 500, sequence_of(100));
    world.play_film(stream, &other, own).unwrap(); // ends the run that lasts
    world.run_out();
    assert_eq!(world.position(stream), 500);
    assert!(world.disk.wants[asked..].iter().all(|(_, want)| want.title == other.title));
    let ends = world.ends_of(stream);
    assert_eq!(ends[0].reason, StopReason::Replaced);
    assert_eq!(ends[0].packets, ends[0].next_packet);
    assert_eq!(stop_of(&ends[1]), (StopReason::Finished, 500, sequence_of(500)));
    assert_eq!((ends.len(), ends[1].packets), (2, 400));
    // Behind the title's end: a packet's time later than the last one.
    let (last, before) = (world.departure(stream, 499), world.departure(stream, 498));
    assert!(ends[1].next_due.0.abs_diff(2 * last.0 - before.0) <= 1, "{:?}", ends[1]);
}

/// Commands in one turn, before any event is polled: every end is reported, and a command without
/// room for its end is refused.
#[test]
fn ends_of_runs_are_never_lost() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    for from in [0, 100, 200] {
        world.play_from(stream, from);
    }
    let more = spec(&world, 300, 1_200, 0);
    assert_eq!(world.play(stream, more), Err(Refusal::Busy));
    world.turn();
    let ended: Vec<_> = world.ends_of(stream).iter().map(|end| (end.run.0, end.next_packet)).collect();
    assert_eq!(ended, [(1, 0), (2, 100)]);
    world.play(stream, more).unwrap();
    world.engine.close(world.now, stream).unwrap();
    world.turn();
    let ended: Vec<_> = world.ends_of(stream).iter().map(|end| (end.run.0, end.reason)).collect();
    assert_eq!(ended[2..], [(3, StopReason::Replaced), (5, StopReason::Closed)]);
    assert!(matches!(world.events_of(stream).last(), Some(StreamEvent::Closed { .. })));
}

#[test]
fn end_of_title_reports_drained_then_bye_after_delay() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_out();
    let last = world.sent.last().unwrap().at;
    let bye = last.plus_ns(BYE_DELAY_NS);
    assert_eq!(world.bye_of(stream), Some(bye));
    let run = world.run_of(stream);
    let drained = (last, StreamEvent::Drained { stream, run });
    let left = (last, StreamEvent::Left { stream });
    let end = world.ends_of(stream)[0];
    assert_eq!(stop_of(&end), (StopReason::Finished, 1_200, sequence_of(1_200)));
    assert_eq!(world.events, [drained, left, (bye, StreamEvent::RunEnded { stream, end })]);
    assert_eq!(world.began, [(stream, run, world.departure(stream, 0))]);
    world.engine.close(world.now, stream).unwrap();
    world.turn();
    let bytes = 1_199 * 1_328 + 12 + 188 * 3;
    let closed = StreamEvent::Closed { stream, packets: 1_200, bytes, unreachable: 0, late: 0 };
    assert_eq!(world.events[3..], [(world.now, closed)], "Left has been told");
    let counters = world.engine.counters();
    assert_eq!((counters.packets, counters.bytes, counters.open, counters.playing), (1_200, bytes, 0, 0));
}

#[test]
fn until_ends_the_run_before_the_film_does() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play(stream, spec(&world, 100, 392, 100)).unwrap();
    world.run_out();
    assert_eq!(world.position(stream), 392);
    let extents: Vec<_> = world.disk.wants.iter().map(|(_, want)| want.extent).collect();
    assert_eq!(extents, [0, 1], "392 = 2 x 196: the third extent is not wanted");
    let end = world.ends_of(stream)[0];
    assert_eq!(stop_of(&end), (StopReason::Finished, 392, 392));
    let before = world.departure(stream, 391);
    let is_next = end.next_due > before && end.next_due.ns_since(before) < 2 * MS;
    assert!(is_next, "behind an extent's end: {end:?}");
}

#[test]
fn play_while_draining_takes_bye_back() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 1_100);
    world.run_for(2 * S);
    let run = world.run_of(stream);
    assert!(world.events_of(stream).contains(&StreamEvent::Drained { stream, run }));
    world.play_from(stream, 1_000);
    world.run_for(10 * MS);
    assert_eq!(stop_of(&world.ends_of(stream)[0]), (StopReason::Replaced, 1_200, sequence_of(1_200)));
    world.events.clear();
    world.run_out();
    let last = world.sent.last().unwrap().at;
    assert_eq!(world.bye_of(stream), Some(last.plus_ns(BYE_DELAY_NS)), "one BYE, after the second run");
    let events = world.events_of(stream);
    assert!(matches!(
        events[..],
        [StreamEvent::Drained { .. }, StreamEvent::Left { .. }, StreamEvent::RunEnded { .. }]
    ));
}

#[test]
fn play_goes_on_after_the_end_too() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 1_100);
    world.run_out();
    world.play_from(stream, 1_150);
    world.run_out();
    assert_eq!(world.datagrams, 150);
    let ends = world.ends_of(stream);
    assert!(ends.len() == 2 && ends.iter().all(|end| end.reason == StopReason::Finished));
}

#[test]
fn pause_behind_the_last_packet_and_go_on() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 1_100);
    world.run_for(S);
    world.engine.pause(world.now, stream).unwrap();
    world.run_for(100 * S);
    let end = (StopReason::Paused, 1_200, sequence_of(1_200));
    assert_eq!(world.ends_of(stream).iter().map(stop_of).collect::<Vec<_>>(), [end]);
    assert_eq!(world.bye_of(stream), None, "a viewer on pause gets no BYE");
    let at = world.now.plus_ns(50 * MS);
    world.play(stream, spec(&world, 1_200, 1_200, 1_200)).unwrap();
    world.run_out();
    assert_eq!(world.bye_of(stream), Some(at.plus_ns(BYE_DELAY_NS)));
    assert_eq!(world.datagrams, 100);
}

#[test]
fn left_event_is_dropped_after_immediate_play() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(200 * MS);
    // Pause and play in one turn, before any event is polled: the cache must not hear of a playhead that is gone.
    world.engine.pause(world.now, stream).unwrap();
    world.play_from(stream, 600);
    world.run_for(200 * MS);
    let events = world.events_of(stream);
    assert!(matches!(events[..], [StreamEvent::RunEnded { .. }]), "{events:?}");
    world.engine.close(world.now, stream).unwrap();
    world.turn();
    let events = world.events_of(stream);
    let [_, StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }, StreamEvent::Closed { .. }] = events[..]
    else {
        panic!("{events:?}")
    };
}

#[test]
fn drained_is_not_told_behind_a_pause() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 1_199);
    world.run_for(49 * MS);
    world.now = world.now.plus_ns(MS);
    assert_eq!(world.engine.poll_bursts(world.now), 1);
    world.send();
    world.engine.pause(world.now, stream).unwrap();
    world.turn();
    let events = world.events_of(stream);
    assert!(matches!(events[..], [StreamEvent::RunEnded { .. }, StreamEvent::Left { .. }]), "{events:?}");
    assert_eq!(stop_of(&world.ends_of(stream)[0]), (StopReason::Paused, 1_200, sequence_of(1_200)));
}

/// A run that begins while the one before was catching up owes nothing to it.
#[test]
fn run_after_catching_up_begins_on_time() {
    let mut world = World::small();
    let stream = world.open(&Film::constant(0, 30_000, 8_000_000), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(2 * S);
    world.hole(4 * S);
    world.run_for(S);
    world.engine.pause(world.now, stream).unwrap();
    world.late_max_ns = 0;
    world.play_from(stream, 15_000);
    world.run_for(S);
    assert_eq!(world.late_max_ns, 0);
    assert!(world.position(stream) > 15_700);
}

/// Packets are late or not one by one: a late burst may end with some that are in time.
#[test]
fn late_counter_counts_packets_not_bursts() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    for _ in 0..20 {
        world.run_for(33 * MS);
        world.hole(15 * MS);
    }
    world.run_out();
    let (mut packet, mut late) = (0, 0);
    for sent in world.sent_of(stream) {
        for _ in 0..sent.count {
            late += u64::from(sent.at.ns_since(world.departure(stream, packet)) > LATE_NS);
            packet += 1;
        }
    }
    assert!(late > 20 && late < 1_150, "{late} of {packet}");
    assert_eq!(world.engine.counters().late, late);
    world.engine.close(world.now, stream).unwrap();
    world.turn();
    let told = world.events_of(stream);
    assert!(matches!(told.last(), Some(StreamEvent::Closed { late: l, .. }) if *l == late), "{told:?}");
}

#[test]
fn stream_index_is_reusable_after_closed_event() {
    let mut world = World::small();
    let stream = world.open(&film(), 3, udp(3));
    world.play_from(stream, 0);
    world.run_for(100 * MS);
    world.engine.close(world.now, stream).unwrap();
    let next = StreamId { index: 3, generation: 2 };
    assert_eq!(world.try_open(&film(), next, udp(3)), Err(Refusal::WrongState));
    world.turn();
    world.try_open(&film(), next, udp(3)).unwrap();
    // The old name matches no stream.
    let (run, late) = (world.run_of(stream), world.disk.lend(film().title, 0));
    world.engine.handle_lease(world.now, stream, run, 0, late);
    assert_eq!(world.engine.pause(world.now, stream), Err(Refusal::UnknownStream));
    assert_eq!(world.engine.close(world.now, stream), Err(Refusal::UnknownStream));
    world.play_from(next, 0);
    world.run_out();
    assert_eq!(world.position(next), 1_200);
    assert_eq!(world.try_open(&film(), id(8), udp(8)), Err(Refusal::TableFull));
}

#[test]
fn play_checks_its_numbers_and_changes_nothing_when_they_are_wrong() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    let good = spec(&world, 0, 1_200, 0);
    for bad in [
        PlaySpec { from: 1_201, until: 1_201, ..good },
        PlaySpec { from: 0, until: 1_201, ..good },
        PlaySpec { from: 9, until: 8, ..good },
        PlaySpec { scale_permille: 0, ..good },
        PlaySpec { scale_permille: 16_001, ..good },
    ] {
        assert_eq!(world.play(stream, bad), Err(Refusal::OutOfRange), "{bad:?}");
    }
    assert_eq!(world.engine.poll_want(), None);
    assert_eq!(world.play(id(1), good), Err(Refusal::UnknownStream));
    assert_eq!(world.play(id(99), good), Err(Refusal::UnknownStream));
    world.play(stream, good).unwrap();
    world.run_out();
    assert_eq!(world.datagrams, 1_200);
}

#[test]
fn pause_between_poll_bursts_and_handle_sent_cancels_batch() {
    let mut world = World::small();
    let (a, b) = (world.open(&film(), 0, udp(0)), world.open(&film(), 1, udp(1)));
    world.play_from(a, 0);
    world.play_from(b, 0);
    world.run_for(49 * MS);
    world.now = world.now.plus_ns(MS);
    assert_eq!(world.engine.poll_bursts(world.now), 2);
    world.engine.pause(world.now, a).unwrap();
    assert!(world.engine.batch().is_empty());
    world.engine.handle_sent(world.now, &[]);
    assert_eq!(world.engine.poll_bursts(world.now), 1, "b's burst is due again");
    assert_eq!(world.engine.poll_bursts(world.now), 1, "and again, if nobody answers");
    world.send();
    world.run_out();
    assert_eq!((world.position(a), world.position(b)), (0, 1_200));
    assert_eq!(stop_of(&world.ends_of(a)[0]), (StopReason::Paused, 0, sequence_of(0)));
}

#[test]
fn finish_says_bye_to_everybody_at_once() {
    let mut world = World::small();
    let names: Vec<_> =
        (0..5).map(|i| world.open(&film(), i, if i == 2 { tcp(7) } else { udp(i) })).collect();
    for &stream in &names[..4] {
        world.play_from(stream, if stream == names[3] { 1_100 } else { 0 });
    }
    world.run_for(500 * MS); // the fourth is draining now
    world.engine.pause(world.now, names[1]).unwrap();
    world.turn();
    world.events.clear();
    let now = world.now;
    world.engine.finish(now);
    world.run_out();
    for (&stream, reason) in names.iter().zip([
        Some(StopReason::ShutDown),
        None, // its run had ended before
        Some(StopReason::ShutDown),
        Some(StopReason::Finished),
    ]) {
        assert_eq!(world.bye_of(stream), Some(now));
        assert_eq!(world.ends_of(stream).first().map(|end| end.reason), reason);
    }
    assert!(world.bye_of(names[4]).is_none() && world.events_of(names[4]).is_empty(), "never played");
    assert_eq!((world.disk.leases(), world.engine.counters().playing), (0, 0));
}

/// A stream in each state of its life, made the way it comes to be.
fn in_state(name: &str) -> (World, StreamId) {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    if name != "Ready" {
        world.play_from(stream, 1_100);
        world.run_for(100 * MS);
    }
    match name {
        "Ready" | "Playing" => {}
        "Paused" => world.engine.pause(world.now, stream).unwrap(),
        "Draining" => world.run_for(S),
        "Ended" => world.run_out(),
        "Failed" => world.engine.conn_gone(world.now, ConnId(0)),
        "Closing" => world.engine.close(world.now, stream).unwrap(),
        other => panic!("{other}"),
    }
    (world, stream)
}

/// Every command in every state, on a real engine: the answer, and the events that follow at once.
#[test]
fn commands_in_all_states_return_expected_results_and_events() {
    const OK: Result<(), Refusal> = Ok(());
    const WRONG: Result<(), Refusal> = Err(Refusal::WrongState);
    const UNKNOWN: Result<(), Refusal> = Err(Refusal::UnknownStream);
    let expected = [
        ("Ready", [(WRONG, ""), (OK, ""), (WRONG, ""), (OK, "Closed"), (OK, "Failed")]),
        (
            "Playing",
            [
                (WRONG, ""),
                (OK, "RunEnded"),
                (OK, "RunEnded Left"),
                (OK, "RunEnded Left Closed"),
                (OK, "RunEnded Failed Left"),
            ],
        ),
        ("Paused", [(WRONG, ""), (OK, ""), (OK, ""), (OK, "Closed"), (OK, "Failed")]),
        (
            "Draining",
            [
                (WRONG, ""),
                (OK, "RunEnded"),
                (OK, "RunEnded"),
                (OK, "RunEnded Closed"),
                (OK, "RunEnded Failed"),
            ],
        ),
        ("Ended", [(WRONG, ""), (OK, ""), (OK, ""), (OK, "Closed"), (OK, "Failed")]),
        ("Failed", [(WRONG, ""), (WRONG, ""), (OK, ""), (OK, "Closed"), (OK, "")]),
        ("Closing", [(WRONG, ""), (UNKNOWN, ""), (UNKNOWN, ""), (UNKNOWN, ""), (OK, "")]),
    ];
    for (state, row) in expected {
        for (command, (result, events)) in row.into_iter().enumerate() {
            let (mut world, stream) = in_state(state);
            // The events that led here have been reported, except for a close, which is reported as
            // it frees the place.
            if state != "Closing" {
                while world.engine.poll_event().is_some() {}
            }
            let now = world.now;
            let got = match command {
                0 => world.try_open(&film(), stream, udp(0)),
                1 => world.play(stream, spec(&world, 0, 1_200, 0)),
                2 => world.engine.pause(now, stream),
                3 => world.engine.close(now, stream),
                _ => {
                    world.engine.conn_gone(now, ConnId(0));
                    Ok(())
                }
            };
            assert_eq!(got, result, "command {command} in {state}");
            if state == "Closing" {
                continue;
            }
            let told: Vec<_> = std::iter::from_fn(|| world.engine.poll_event())
                .map(|event| format!("{event:?}").split(' ').next().unwrap().to_owned())
                .collect();
            assert_eq!(told.join(" "), events, "command {command} in {state}");
        }
    }
}
