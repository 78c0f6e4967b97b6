//! Runs that begin with some media sent ahead of their pace. The world's departures are those without a lead.

use millrace_core::limits::{MAX_AHEAD_MS, MAX_TCP_BEHIND_NS};
use millrace_core::seam::{Dest, SendOutcome};
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::LATE_NS;
use millrace_engine::{FailReason, Numbering, Refusal, RunCut, StopReason, StreamEvent};

use crate::world::{MS, PlaySpec, S, World, assert_bursts_fit_a_buffer, id, stop_of, tcp, udp};
use millrace_testkit::film::Film;

const AHEAD_NS: u64 = 2 * S;
const PACKETS: u32 = 10_000;

/// 8 Mb/s, 13 s.
fn film() -> Film {
    Film::constant(0, PACKETS, 8_000_000)
}

/// A viewer whose run begins with 2 s, in 50 ms.
fn viewer(dest: Dest) -> World {
    let mut world = World::small();
    world.ahead_ms = (AHEAD_NS / MS) as u16;
    let stream = world.open(&film(), 0, dest);
    world.play_from(stream, 0);
    world
}

/// Asserts that no lateness of any kind is counted.
fn assert_no_lateness(world: &World) {
    let counters = world.engine.counters();
    let blamed = (counters.late, counters.overdue, counters.catch_ups, counters.starved);
    assert_eq!((blamed, counters.late_max_ns, world.late_max_ns), ((0, 0, 0, 0), 0, 0));
}

#[test]
fn lead_is_sent_at_start_of_run_and_kept() {
    for (dest, most) in [(udp(0), 8), (tcp(0), 31)] {
        let mut world = viewer(dest);
        world.run_out();
        let sent = world.sent_of(id(0));
        let start = sent[0].at;
        assert_eq!((u64::from(PACKETS), start), (world.datagrams, world.began[0].2));
        assert!(sent.iter().all(|sent| sent.count <= most), "bursts are as long as any");
        let (first, later): (Vec<_>, Vec<_>) =
            sent.into_iter().partition(|sent| sent.departure.ns_since(start) < AHEAD_NS + 100 * MS);
        // 1,600 packets at no more than 100,000 a second, and extents that take 2 ms each.
        let took_ns = first.last().unwrap().at.ns_since(start);
        assert!((13 * MS..150 * MS).contains(&took_ns), "{took_ns}");
        assert!(
            later.iter().all(|sent| sent.departure.0 - sent.at.0 == AHEAD_NS),
            "then the pace, and the lead"
        );
        if dest == udp(0) {
            assert_bursts_fit_a_buffer(&first);
        }
        assert_no_lateness(&world);
        assert_eq!(stop_of(&world.ends_of(id(0))[0]), (StopReason::Finished, PACKETS, sequence_of(PACKETS)));
    }
}

#[test]
fn lead_of_other_streams_delays_no_burst() {
    let mut world = World::small();
    let other = world.open(&Film::constant(1, 3_000, 8_000_000), 7, udp(7));
    world.play_from(other, 0);
    world.ahead_ms = (AHEAD_NS / MS) as u16;
    for index in 0..4 {
        let stream = world.open(&film(), index, if index % 2 == 0 { udp(index) } else { tcp(index) });
        world.play_from(stream, 0);
    }
    world.run_for(500 * MS);
    let on_time = world.sent_of(other);
    assert!(on_time.iter().all(|sent| sent.at == sent.departure) && on_time.len() > 40);
    for sent in &world.sent {
        let at_once = world.sent.iter().filter(|other| (other.at, other.stream) == (sent.at, sent.stream));
        let packets: u32 = at_once.map(|sent| sent.count).sum();
        assert!(packets <= 31, "{packets} of {:?} in one turn: more than a burst", sent.stream);
    }
    world.run_out();
    assert_eq!(world.datagrams, 4 * u64::from(PACKETS) + 3_000);
}

#[test]
fn pause_within_lead_loses_and_repeats_no_packet() {
    for dest in [udp(0), tcp(0)] {
        let mut world = viewer(dest);
        world.run_for(58 * MS);
        world.engine.pause(world.now, id(0)).unwrap();
        world.turn();
        let next = world.position(id(0));
        assert!((100..1_500).contains(&next), "{next}");
        let end = world.ends_of(id(0))[0];
        assert_eq!(stop_of(&end), (StopReason::Paused, next, sequence_of(next)));
        assert_eq!(
            (end.packets, end.next_due),
            (next, world.began[0].2),
            "it might have left at the beginning"
        );
        world.run_for(S);
        world.play_from(id(0), next);
        world.run_out();
        assert_eq!((world.datagrams, world.disk.leases()), (u64::from(PACKETS), 0));
        assert_no_lateness(&world);
        let last = *world.sent.last().unwrap();
        assert_eq!(last.departure.0 - last.at.0, AHEAD_NS, "the run that goes on has its own lead");
    }
}

/// Makes a connection that takes `packets_per_s` packets a second, of 760 that the title has.
fn limit(world: &mut World, packets_per_s: u64) {
    let started = world.now;
    let mut taken_total = 0;
    world.device = Box::new(move |now, transmit| {
        let room = ((now.0 - started.0) * packets_per_s / S).saturating_sub(taken_total);
        let all = transmit.datagrams() as u64;
        let taken = room.min(all);
        taken_total += taken;
        if taken == all { SendOutcome::Sent } else { SendOutcome::Blocked { taken: taken as u16 } }
    });
}

#[test]
fn lead_on_slightly_faster_connection_is_reached_in_time() {
    let mut world = viewer(tcp(0));
    limit(&mut world, 1_140);
    world.run_out();
    assert_eq!((world.datagrams, world.engine.counters().parked), (u64::from(PACKETS), 0));
    let counters = world.engine.counters();
    assert_eq!((counters.catch_ups, counters.overdue), (0, 0));
    // 380 a second more than it needs: 2 s of media after 4 s.
    let start = world.sent[0].at;
    let later = world.sent.iter().filter(|sent| sent.at.ns_since(start) > 5 * S);
    assert!({ later }.all(|sent| sent.departure.0 - sent.at.0 == AHEAD_NS));
}

#[test]
fn slow_reader_with_lead_is_dropped_at_same_lateness() {
    let mut world = viewer(tcp(0));
    limit(&mut world, 150);
    world.run_out();
    let failed = StreamEvent::Failed { stream: id(0), reason: FailReason::SlowReader };
    let &(at, _) = world.events.iter().find(|(_, event)| *event == failed).expect("it is dropped");
    let behind_ns = at.0 - world.departure(id(0), world.position(id(0))).0;
    assert!(behind_ns.abs_diff(MAX_TCP_BEHIND_NS) < 300 * MS, "{behind_ns}");
    assert_eq!(world.engine.counters().catch_ups, 1);
}

#[test]
fn late_is_what_is_behind_the_titles_pace() {
    // A tenth slower than the title: it falls behind little by little, and the lead is given up only then.
    let mut world = viewer(tcp(0));
    limit(&mut world, 690);
    world.run_out();
    let left = world.sent.iter().flat_map(|sent| (0..sent.count).map(|_| sent.at));
    let behind = left.zip(0..).filter(|&(at, packet)| at.ns_since(world.departure(id(0), packet)) > LATE_NS);
    assert_eq!(world.engine.counters().late, behind.count() as u64);
}

/// Makes a connection that takes everything except data offered between these times from now on.
pub(crate) fn stall(world: &mut World, from_ns: u64, until_ns: u64) {
    let (from, until) = (world.now.plus_ns(from_ns), world.now.plus_ns(until_ns));
    world.device = Box::new(move |now, _| match now >= from && now < until {
        true => SendOutcome::Blocked { taken: 0 },
        false => SendOutcome::Sent,
    });
}

#[test]
fn lead_after_stall_is_restored_at_five_quarters_of_rate() {
    let mut world = viewer(tcp(0));
    stall(&mut world, 4 * S, 5 * S);
    world.run_out();
    let counters = world.engine.counters();
    assert_eq!((world.datagrams, counters.catch_ups), (u64::from(PACKETS), 1));
    let lead_ns = |from_ns: u64, until_ns: u64| {
        let start = world.began[0].2;
        let then = world.sent.iter().filter(|sent| (from_ns..until_ns).contains(&sent.at.ns_since(start)));
        then.map(|sent| sent.departure.0 - sent.at.0).collect::<Vec<_>>()
    };
    // A quarter more than its rate, so a second is made up for in four.
    assert!(lead_ns(6 * S, 8 * S).iter().all(|&lead_ns| lead_ns < AHEAD_NS - 100 * MS));
    assert!(lead_ns(10 * S, 60 * S).iter().all(|&lead_ns| lead_ns == AHEAD_NS));
}

#[test]
fn lead_after_early_stall_is_abandoned() {
    let mut world = viewer(tcp(0));
    stall(&mut world, 55 * MS, 2 * S);
    world.run_out();
    assert_eq!((world.datagrams, world.engine.counters().catch_ups), (u64::from(PACKETS), 1));
    let last = *world.sent.last().unwrap();
    assert_eq!(last.departure, last.at, "it has come back to what is owed, and no further");
}

#[test]
fn slow_reader_stalled_within_lead_is_dropped_by_due_media() {
    let mut world = viewer(tcp(0));
    stall(&mut world, 55 * MS, 100 * S);
    world.writable = Box::new(|_, _| None);
    world.run_out();
    let failed = StreamEvent::Failed { stream: id(0), reason: FailReason::SlowReader };
    let &(at, _) = world.events.iter().find(|(_, event)| *event == failed).expect("it is dropped");
    let behind_ns = at.0 - world.departure(id(0), world.position(id(0))).0;
    assert!(behind_ns.abs_diff(MAX_TCP_BEHIND_NS) < 300 * MS, "{behind_ns}");
    assert_eq!(world.engine.counters().parked, 1, "it is tried once more, at the end");
}

#[test]
fn run_without_lead_after_run_with_lead_keeps_its_pace() {
    let mut world = viewer(udp(0));
    world.run_for(30 * MS);
    world.engine.pause(world.now, id(0)).unwrap();
    world.turn();
    let next = world.position(id(0));
    assert!(next < 1_500, "{next}");
    world.run_for(S);
    world.ahead_ms = 0;
    let before = world.sent.len();
    world.play_from(id(0), next);
    world.run_out();
    assert_eq!(world.datagrams, u64::from(PACKETS));
    assert!(world.sent[before..].iter().all(|sent| sent.at == sent.departure));
}

#[test]
fn lead_during_slow_reads_waits_for_extents() {
    let mut world = viewer(udp(0));
    world.disk.rule = Box::new(|want| (if want.extent < 15 { 150 * MS } else { 2 * MS }, Ok(())));
    world.run_for(150 * MS + 50 * MS);
    assert_eq!(
        (world.position(id(0)), world.disk.wants.len()),
        (196, 2),
        "one extent, and it waits for the next"
    );
    world.run_out();
    assert_eq!(world.datagrams, u64::from(PACKETS));
    assert_no_lateness(&world);
    let last = *world.sent.last().unwrap();
    assert_eq!(last.departure.0 - last.at.0, AHEAD_NS, "all of the lead, once it could be read");
}

#[test]
fn queued_run_after_lead_begins_at_once_without_lateness() {
    let mut world = World::small();
    world.ahead_ms = (AHEAD_NS / MS) as u16;
    let short = Film::constant(3, 700, 8_000_000);
    let stream = world.open(&short, 0, udp(0));
    world.play_from(stream, 0);
    world.queue(stream, RunCut::End, &film(), (0, 3_000), Numbering::Viewer).unwrap();
    world.run_out();
    let ends = world.ends_of(stream);
    let finished = StopReason::Finished;
    assert_eq!(
        ends.iter().map(|end| (end.reason, end.packets)).collect::<Vec<_>>(),
        [(finished, 700), (finished, 3_000)]
    );
    let took_ns = world.began[1].2.ns_since(world.began[0].2);
    assert!((6 * MS..50 * MS).contains(&took_ns), "{took_ns}");
    let counters = world.engine.counters();
    assert_eq!((counters.late, counters.catch_ups, world.late_max_ns), (0, 0, 0));
}

#[test]
fn too_much_is_refused() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    let at = world.now;
    let spec = PlaySpec { from: 0, until: PACKETS, at, sequence: 0, scale_permille: 1000 };
    world.ahead_ms = MAX_AHEAD_MS + 1;
    assert_eq!(world.play(stream, spec), Err(Refusal::OutOfRange));
    world.ahead_ms = MAX_AHEAD_MS;
    assert_eq!(world.play(stream, spec), Ok(()));
}
