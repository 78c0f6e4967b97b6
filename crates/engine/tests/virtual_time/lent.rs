//! Devices that read lent data after they have taken it, and report later that they are done.

use std::collections::{HashSet, VecDeque};

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{MAX_HELD_PER_ENGINE, MAX_TCP_BEHIND_NS};
use millrace_core::seam::{Dest, SendOutcome};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::MAX_HELD_PER_STREAM;
use millrace_engine::{EngineConfig, FailReason, StopReason, StreamEvent};
use proptest::prelude::*;

use crate::world::{MS, PlaySpec, S, World, assert_rate_bound, id, stop_of, tcp, udp};
use millrace_testkit::film::Film;

const PER_EXTENT: u64 = 196;
/// Most packets that a stream may send before the device is done with any.
const MOST: u64 = MAX_HELD_PER_STREAM as u64 * PER_EXTENT;
const PACKETS: u32 = 8_000;

/// 8 Mb/s: an extent is 258 ms.
fn film() -> Film {
    Film::constant(0, PACKETS, 8_000_000)
}

/// Creates viewers of the title whose device is done with nothing by itself, without reports: only
/// the media wakes the engine.
fn world(viewers: u32, dest: fn(u32) -> Dest) -> World {
    let mut world = World::new(EngineConfig { streams: viewers as usize, ..EngineConfig::default() }, 40);
    (world.lends, world.quiet) = (true, true);
    for index in 0..viewers {
        let stream = world.open(&film(), index, dest(index));
        world.play_from(stream, 0);
    }
    world
}

/// Runs for `ns` with a device that is done with the packets it took `lag_ns` ago; returns the
/// largest number of leases.
fn run_with_lag(world: &mut World, ns: u64, lag_ns: u64) -> u32 {
    let end = world.now.plus_ns(ns);
    let (mut taken, mut most) = (VecDeque::<(Instant, StreamId, u64)>::new(), 0);
    while world.now < end {
        world.run_for(10 * MS);
        taken.extend(world.taken.iter().map(|(&stream, &packets)| (world.now, stream, packets)));
        while let Some(&(at, stream, packets)) = taken.front()
            && world.now.ns_since(at) >= lag_ns
        {
            taken.pop_front();
            world.done(stream, packets);
        }
        most = most.max(world.disk.leases());
    }
    most
}

fn closed(world: &World, stream: StreamId) -> usize {
    world.events_of(stream).iter().filter(|event| matches!(event, StreamEvent::Closed { .. })).count()
}

#[test]
fn leases_are_held_until_device_is_done() {
    let mut world = world(1, udp);
    let most = run_with_lag(&mut world, 12 * S, S);
    // Four extents in this second, one of them being sent, and for a moment the one behind.
    assert!((5..=7).contains(&most), "{most}");
    assert_eq!((world.datagrams, world.late_max_ns), (u64::from(PACKETS), 0));
    assert_eq!(world.engine.counters().waits_for_device, 0);
    assert_eq!((world.in_flight.len(), world.disk.leases()), (0, 0));
}

#[test]
fn stream_at_held_limit_waits_until_device_is_done() {
    let mut world = world(1, udp);
    world.run_for(20 * S);
    world.assert_held();
    assert_eq!((world.datagrams, world.engine.counters().waits_for_device), (MOST, 1));
    assert_eq!(world.disk.leases() as usize, MAX_HELD_PER_STREAM + 1, "and the one that comes next");
    assert_eq!(world.engine.poll_at(), None, "nothing to look for until it is told");
    world.done(id(0), PER_EXTENT - 1);
    world.turn();
    assert_eq!(world.datagrams, MOST, "the first is not done yet");
    world.done(id(0), PER_EXTENT);
    world.turn();
    assert!(world.datagrams > MOST);
    run_with_lag(&mut world, 60 * S, 0);
    assert_eq!((world.datagrams, world.disk.leases()), (u64::from(PACKETS), 0));
    assert_rate_bound(&world.sent_of(id(0)));
    let end = world.ends_of(id(0))[0];
    assert_eq!(stop_of(&end), (StopReason::Finished, PACKETS, sequence_of(PACKETS)));
}

#[test]
fn handle_done_beyond_taken_packets_releases_nothing_early() {
    let mut world = world(1, udp);
    world.run_for(S);
    let taken = world.taken[&id(0)];
    world.engine.handle_done(world.now, id(0), u64::MAX);
    world.in_flight.clear();
    world.run_for(S);
    assert!(world.taken[&id(0)] > taken + 2 * PER_EXTENT);
    world.assert_held();
}

#[test]
fn extent_ending_with_missing_packets_is_not_held() {
    let mut world = World::small();
    (world.lends, world.quiet) = (true, true);
    let mut film = film();
    film.missing = |packet| u64::from(packet) % PER_EXTENT >= 100;
    let stream = world.open(&film, 0, udp(0));
    world.play_from(stream, 0);
    run_with_lag(&mut world, 5 * S, 0);
    world.engine.pause(world.now, stream).unwrap();
    world.hear();
    world.engine.close(world.now, stream).unwrap();
    world.hear();
    assert_eq!((world.disk.leases(), closed(&world, stream)), (0, 1), "nothing is to be done with any more");
}

#[test]
fn viewer_without_acknowledgments_fails_as_slow_reader() {
    let mut world = world(1, tcp);
    world.run_for(30 * S);
    let failed = StreamEvent::Failed { stream: id(0), reason: FailReason::SlowReader };
    let &(at, _) = world.events.iter().find(|(_, event)| *event == failed).expect("it is dropped");
    assert_eq!(at.0 - world.departure(id(0), MOST as u32).0, MAX_TCP_BEHIND_NS);
    world.assert_held();
    assert_eq!(world.disk.leases() as usize, MAX_HELD_PER_STREAM, "what it has not acknowledged");
    world.engine.close(world.now, id(0)).unwrap();
    world.hear();
    assert_eq!(closed(&world, id(0)), 0, "not as long as its device reads");
    world.engine.conn_gone(world.now, ConnId(0));
    world.hear();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (0, 1));
    world.engine.conn_gone(world.now, ConnId(0));
    world.engine.handle_done(world.now, id(0), MOST);
    world.hear();
    assert_eq!(closed(&world, id(0)), 1);
}

#[test]
fn conn_leaves_keeps_leases_until_device_is_done() {
    let mut world = world(1, tcp);
    world.run_for(S);
    world.engine.conn_leaves(world.now, ConnId(0));
    world.engine.close(world.now, id(0)).unwrap();
    world.hear();
    let taken = world.taken[&id(0)];
    world.assert_held();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (taken.div_ceil(PER_EXTENT) as u32, 0));
    world.done(id(0), taken);
    world.hear();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (0, 1));
}

#[test]
fn held_extents_of_engine_are_limited_in_total() {
    let viewers = 70;
    let mut world = world(viewers, udp);
    world.run_for(10 * S);
    world.assert_held();
    let begun = MAX_HELD_PER_ENGINE as u64 * PER_EXTENT;
    assert_eq!(world.datagrams, begun, "70 viewers with 7 extents each, and 22 with 8");
    assert_eq!(world.engine.poll_at(), None);
    // What one viewer gives back another one sends: this one has paused, and needs none.
    world.engine.pause(world.now, id(0)).unwrap();
    world.done(id(0), PER_EXTENT);
    world.turn();
    world.run_for(S);
    assert_eq!(world.datagrams, begun + PER_EXTENT);
    let next = world.position(id(0));
    world.play_from(id(0), next);
    run_with_lag(&mut world, 120 * S, 100 * MS);
    assert_eq!((world.datagrams, world.disk.leases()), (u64::from(viewers * PACKETS), 0));
    for index in 0..viewers {
        assert_eq!(world.position(id(index)), PACKETS, "nobody is forgotten");
    }
}

#[test]
fn closed_event_waits_until_device_is_done() {
    let mut world = world(1, udp);
    world.run_for(S);
    world.engine.pause(world.now, id(0)).unwrap();
    world.assert_held();
    let taken = world.taken[&id(0)];
    let held = taken.div_ceil(PER_EXTENT) as u32;
    assert_eq!(world.disk.leases(), held, "what was read ahead has gone back");
    world.engine.close(world.now, id(0)).unwrap();
    world.hear();
    world.done(id(0), taken - 1);
    world.hear();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (1, 0));
    world.done(id(0), taken);
    world.hear();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (0, 1));
    // The next one in its place: reports about the one before do not affect it.
    let next = StreamId { index: 0, generation: 2 };
    world.try_open(&film(), next, udp(0)).unwrap();
    world.play_from(next, 0);
    world.run_for(S);
    let leases = world.disk.leases();
    world.engine.handle_done(world.now, id(0), u64::MAX);
    world.assert_held();
    assert_eq!((world.disk.leases(), closed(&world, id(0))), (leases, 1));
    world.done(next, u64::MAX);
    assert!(world.disk.leases() <= 2, "more than was taken is all of it");
}

#[derive(Clone, Debug)]
enum Op {
    Play {
        stream: u32,
        from: u32,
    },
    Pause(u32),
    Close(u32),
    ConnGone(u32),
    Run(u64),
    /// This part of the packets it has taken, in 256ths, of this stream's generation or the one
    /// before.
    Done {
        stream: u32,
        part: u64,
        is_late: bool,
    },
    /// This many packets of a burst are taken, of four.
    Device(u16),
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0u32..4;
    prop_oneof![
        4 => (stream.clone(), 0u32..4_000).prop_map(|(stream, from)| Op::Play { stream, from }),
        2 => stream.clone().prop_map(Op::Pause),
        2 => stream.clone().prop_map(Op::Close),
        1 => (0u32..2).prop_map(Op::ConnGone),
        6 => (1u64..2_000).prop_map(Op::Run),
        8 => (stream, 0u64..=256, any::<bool>()).prop_map(|(stream, part, is_late)| {
            Op::Done { stream, part, is_late: is_late && part < 128 }
        }),
        1 => (1u16..5).prop_map(Op::Device),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_time: 30_000, ..ProptestConfig::default() })]

    #[test]
    fn leases_cover_data_in_flight_and_return_to_zero(ops in proptest::collection::vec(op(), 1..60)) {
        let mut world = World::new(EngineConfig { streams: 4, ..EngineConfig::default() }, 80);
        world.lends = true;
        let part = std::rc::Rc::new(std::cell::Cell::new(4u16));
        let taken = std::rc::Rc::clone(&part);
        world.device = Box::new(move |_, transmit| match transmit.datagrams() as u16 * taken.get() / 4 {
            count if usize::from(count) == transmit.datagrams() => SendOutcome::Sent,
            count => SendOutcome::Blocked { taken: count },
        });
        let mut generations = [0u32; 4];
        let mut closes = HashSet::new();
        let name = |generations: &[u32; 4], index: u32| StreamId { index, generation: generations[index as usize] };
        for op in ops {
            match op {
                Op::Play { stream, from } => {
                    let next = StreamId { index: stream, generation: generations[stream as usize] + 1 };
                    let dest = if stream < 2 { tcp(stream) } else { udp(stream) };
                    if world.try_open(&film(), next, dest).is_ok() {
                        generations[stream as usize] += 1;
                    }
                    let at = world.now;
                    let spec = PlaySpec { from, until: PACKETS, at, sequence: sequence_of(from), scale_permille: 1000 };
                    let _ = world.play(name(&generations, stream), spec);
                }
                Op::Pause(stream) => drop(world.engine.pause(world.now, name(&generations, stream))),
                Op::Close(stream) => {
                    let stream = name(&generations, stream);
                    if world.engine.close(world.now, stream).is_ok() {
                        closes.insert(stream);
                    }
                }
                Op::ConnGone(conn) => {
                    world.in_flight.retain(|(stream, ..)| stream.index != conn);
                    world.engine.conn_gone(world.now, ConnId(conn));
                }
                Op::Run(ms) => world.run_for(ms * MS),
                Op::Done { stream, part, is_late } => {
                    let mut stream = name(&generations, stream);
                    stream.generation = stream.generation.wrapping_sub(u32::from(is_late));
                    let packets = world.taken.get(&stream).map_or(0, |taken| taken * part / 256);
                    world.done(stream, packets);
                }
                Op::Device(count) => part.set(count),
            }
            world.hear();
            world.assert_held();
        }
        for (index, generation) in (0..).zip(generations) {
            let stream = StreamId { index, generation };
            if world.engine.close(world.now, stream).is_ok() {
                closes.insert(stream);
            }
            world.assert_held();
            world.done(stream, world.taken.get(&stream).copied().unwrap_or(0));
        }
        world.run_out();
        prop_assert_eq!(world.disk.leases(), 0);
        prop_assert_eq!(world.engine.counters().open, 0);
        for &stream in &closes {
            prop_assert_eq!(closed(&world, stream), 1, "{:?}", stream);
        }
    }
}
