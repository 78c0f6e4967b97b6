//! Slow readers, unreachable viewers, broken disks: each stays with the stream it concerns.

use std::cell::Cell;
use std::rc::Rc;

use millrace_core::dest::Dest;
use millrace_core::ids::{ConnId, MulticastId, TitleRef};
use millrace_core::limits::{BYE_DELAY_NS, MAX_TCP_BEHIND_NS, RETRY_NS};
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Payload, SendOutcome, Transmit, TransmitBatch};
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::{self, RtcpPacket};
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::{MAX_UNREACHABLE_NS, TCP_PARK_NS};
use millrace_engine::{FailReason, LeaseFailure, Numbering, RunCut, StopReason, StreamEvent};

use crate::world::{MS, PlaySpec, S, World, assert_rate_bound, stop_of, tcp, udp};
use millrace_testkit::film::Film;

fn is_tcp(transmit: &Transmit<'_>) -> bool {
    transmit.dest.conn().is_some()
}

fn film() -> Film {
    Film::constant(0, 30_000, 8_000_000) // 39 s
}

/// Everybody but the first stream got everything, on time.
fn assert_others_unaffected(world: &World, others: u32) {
    for index in 1..=others {
        let stream = crate::world::id(index);
        let sent = world.sent_of(stream);
        assert!(sent.iter().all(|sent| sent.at == sent.departure), "{stream:?}");
        assert_eq!(world.position(stream), 30_000);
        let told = world.events_of(stream);
        assert!(matches!(
            told[..],
            [StreamEvent::Drained { .. }, StreamEvent::Left { .. }, StreamEvent::RunEnded { .. }]
        ));
    }
}

#[test]
fn missing_packets_are_skipped_and_counted_per_run() {
    // Single ones, runs, a whole extent, the first and the last of the title.
    let missing = |packet: u32| {
        packet == 0 || packet % 97 == 5 || packet % 1000 < 33 || packet / 196 == 7 || packet > 2_990
    };
    let mut film = Film::constant(0, 3_000, 8_000_000);
    film.missing = missing;
    for (from, sequence) in [(0, sequence_of(0)), (7, 9), (1_372, sequence_of(1_372))] {
        let mut world = World::small();
        let stream = world.open(&film, 0, udp(0));
        let at = world.now.plus_ns(50 * MS);
        let spec = PlaySpec { from, until: 3_000, at, sequence, scale_permille: 1000 };
        world.play(stream, spec).unwrap();
        world.run_out();
        let there = (from..3_000).filter(|&packet| !missing(packet)).count() as u64;
        assert_eq!(world.datagrams, there);
        assert_eq!(world.engine.counters().skipped, u64::from(3_000 - from) - there);
        assert_eq!(world.late_max_ns, 0, "what is there leaves at its time");
        let end = world.ends_of(stream)[0];
        assert_eq!(end.next_sequence, sequence.wrapping_add((3_000 - from) as u16));
        assert_eq!((u64::from(end.packets), end.missing), (there, 3_000 - from - there as u32));
        assert_eq!(world.disk.leases(), 0);
        // Each run counts its own.
        let at = world.now.plus_ns(50 * MS);
        let spec =
            PlaySpec { from: 2_000, until: 2_100, at, sequence: sequence_of(2_000), scale_permille: 1000 };
        world.play(stream, spec).unwrap();
        world.run_out();
        let own = (2_000..2_100).filter(|&packet| missing(packet)).count();
        assert_eq!(world.ends_of(stream)[1].missing as usize, own);
    }
}

#[test]
fn slow_reader_that_stops_fails_at_max_tcp_behind() {
    let mut world = World::new(millrace_engine::EngineConfig { streams: 8, ..Default::default() }, 64);
    let slow = world.open(&film(), 0, tcp(0));
    let others = [udp(1), tcp(2), udp(3)];
    for (dest, index) in others.into_iter().zip(1..) {
        world.open(&film(), index, dest);
    }
    let stops = world.now.plus_ns(3 * S);
    world.device = Box::new(move |now, transmit| {
        let full = transmit.dest == tcp(0) && now > stops;
        if full { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent }
    });
    world.writable = Box::new(|_, _| None);
    for index in 0..4 {
        world.play_from(crate::world::id(index), 0);
    }
    world.run_out();
    let failed = StreamEvent::Failed { stream: slow, reason: FailReason::SlowReader };
    let &(at, _) = world.events.iter().find(|(_, event)| *event == failed).expect("it is dropped");
    let next = world.position(slow);
    let behind = at.0 - world.departure(slow, next).0;
    assert_eq!(behind, MAX_TCP_BEHIND_NS);
    let told = world.events_of(slow);
    assert_eq!((told[0], told[2]), (StreamEvent::Left { stream: slow }, failed), "parked long before");
    assert_eq!((told.len(), world.engine.counters().parked), (3, 1));
    let end = world.ends_of(slow)[0];
    assert_eq!(end.reason, StopReason::Failed(FailReason::SlowReader));
    assert_eq!((end.next_packet, end.packets, end.next_due), (next, next, world.departure(slow, next)));
    assert_eq!(world.disk.leases(), 0);
    assert_eq!(world.engine.counters().failed, 1);
    assert_others_unaffected(&world, 3);
}

#[test]
fn blocked_outcome_resumes_at_first_datagram_not_taken() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    let calls = Rc::new(Cell::new(0u32));
    let seen = Rc::clone(&calls);
    world.device = Box::new(move |_, transmit| {
        seen.set(seen.get() + 1);
        match (transmit.payload, seen.get() % 9) {
            (Payload::Rtcp(_), _) => SendOutcome::Sent,
            (_, 3) => SendOutcome::Blocked { taken: 2 },
            (_, 4) => SendOutcome::Blocked { taken: 0 },
            (_, 5) => SendOutcome::Blocked { taken: 1 },
            (_, 6) => SendOutcome::Blocked { taken: 999 },
            _ => SendOutcome::Sent,
        }
    });
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!(world.datagrams, 30_000, "each once, in order: the device checks");
    assert_rate_bound(&world.sent_of(stream));
    let counters = world.engine.counters();
    assert_eq!(counters.packets, 30_000);
    assert!(counters.blocked > 100, "{}", counters.blocked);
    assert!(world.late_max_ns < 50 * MS, "{}", world.late_max_ns);
    let retried = world.sent.windows(2).filter(|w| w[1].at.0 - w[0].at.0 == RETRY_NS).count();
    assert!(retried > 0);
}

#[test]
fn blocked_behind_the_last_datagram_is_as_good_as_sent() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    world.device = Box::new(|_, transmit| match transmit.payload {
        Payload::Rtcp(_) => SendOutcome::Sent,
        _ => SendOutcome::Blocked { taken: transmit.datagrams() as u16 },
    });
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!((world.datagrams, world.late_max_ns, world.engine.counters().blocked), (30_000, 0, 0));
}

#[test]
fn parked_stream_after_writable_catches_up_within_rate_bound() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    let (from, to) = (world.now.plus_ns(3 * S), world.now.plus_ns(8 * S));
    world.device = Box::new(move |now, transmit| {
        let full = is_tcp(transmit) && now > from && now < to;
        if full { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent }
    });
    world.writable = Box::new(move |_, _| Some(to));
    world.play_from(stream, 0);
    // The device takes a little of a burst that has begun; from then on the stream waits for 200 ms
    // and keeps its leases.
    world.run_until(from.plus_ns(TCP_PARK_NS));
    assert!(world.disk.leases() > 0);
    world.run_until(from.plus_ns(TCP_PARK_NS + 100 * MS));
    let (parked, wants) = (world.engine.counters().parked, world.disk.wants.len());
    assert_eq!((parked, world.disk.leases(), world.events_of(stream).len()), (1, 0, 1), "told: Left");
    world.run_until(Instant(to.0 - 1));
    assert_eq!((world.disk.leases(), world.disk.wants.len()), (0, wants), "nothing is read for it meanwhile");
    world.run_out();
    assert_eq!(world.datagrams, 30_000);
    let sent = world.sent_of(stream);
    assert_rate_bound(&sent);
    assert_eq!(sent.last().unwrap().at, sent.last().unwrap().departure);
    let first = sent.iter().find(|sent| sent.at >= to).unwrap();
    assert_eq!(first.at, to.plus_ns(2 * MS), "as soon as its extent has been read again");
    let counters = world.engine.counters();
    assert_eq!((counters.failed, counters.parked, counters.starved), (0, 1, 0));
}

/// Commands that arrive while a stream is parked: the end of the run reports where the stream
/// stood, and another run begins as usual.
#[test]
fn parked_stream_accepts_pause_play_queue_and_close() {
    for command in 0..5 {
        let mut world = World::small();
        let stream = world.open(&film(), 0, tcp(0));
        let (from, to) = (world.now.plus_ns(S), world.now.plus_ns(3 * S));
        world.device = Box::new(move |now, _| {
            if now > from && now < to { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent }
        });
        world.writable = Box::new(move |_, _| Some(to));
        world.play_from(stream, 0);
        let other = Film::constant(1, 3_000, 8_000_000);
        let cut = |world: &mut World, ahead| {
            let at = RunCut::At(world.position(stream) + ahead);
            world.queue(stream, at, &other, (0, 3_000), Numbering::Viewer).unwrap()
        };
        if command == 4 {
            cut(&mut world, 800);
        }
        world.run_until(Instant(to.0 - S));
        assert_eq!((world.engine.counters().parked, world.disk.leases()), (1, 0), "command {command}");
        let (next, now) = (world.position(stream), world.now);
        let (due, spec) = (
            world.departure(stream, next),
            PlaySpec { from: 500, until: 30_000, at: now, sequence: 9, scale_permille: 1000 },
        );
        match command {
            0 => world.engine.pause(now, stream).unwrap(),
            1 => world.play(stream, spec).unwrap(),
            2 => world.engine.close(now, stream).unwrap(),
            3 => drop(cut(&mut world, 0)),
            _ => {}
        }
        world.run_out();
        let end = world.ends_of(stream)[0];
        assert_eq!(
            (end.next_packet, end.next_due),
            if command == 4 { (800, end.next_due) } else { (next, due) }
        );
        let (reason, datagrams) = match command {
            0 => (StopReason::Paused, next),
            1 => (StopReason::Replaced, next + 29_500),
            2 => (StopReason::Closed, next),
            3 => (StopReason::Finished, next + 3_000),
            _ => (StopReason::Finished, 800 + 3_000),
        };
        assert_eq!((end.reason, world.datagrams), (reason, u64::from(datagrams)), "command {command}");
        assert_eq!((world.disk.leases(), world.engine.counters().failed), (0, 0));
    }
}

#[test]
fn blocked_connection_that_becomes_writable_is_written_at_once() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    world.device = Box::new(|now, transmit| {
        let open = now.0 / MS % 50 < 10;
        if open {
            SendOutcome::Sent
        } else {
            SendOutcome::Blocked { taken: (transmit.datagrams() / 2) as u16 }
        }
    });
    world.writable = Box::new(|now, _| Some(Instant((now.0 / MS / 50 + 1) * 50 * MS)));
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!((world.datagrams, world.engine.counters().parked), (30_000, 0));
    assert!(world.late_max_ns <= 50 * MS, "{}", world.late_max_ns);
    let at_once = world.sent.iter().filter(|sent| sent.at.0 % (50 * MS) == 0).count();
    assert!(at_once > 500, "{at_once}");
}

/// A reader that takes a little less than the title's rate all the time, and so is never blocked for long.
#[test]
fn tcp_reader_slower_than_title_fails_as_slow_reader() {
    let mut world = World::small();
    let long = Film::constant(0, 200_000, 8_000_000);
    let stream = world.open(&long, 0, tcp(0));
    let started = world.now;
    let mut taken_total = 0u64;
    world.device = Box::new(move |now, transmit| {
        let room = ((now.0 - started.0) * 700 / S).saturating_sub(taken_total); // of 760 a second
        let taken = room.min(transmit.datagrams() as u64);
        taken_total += taken;
        let all = taken == transmit.datagrams() as u64;
        if all { SendOutcome::Sent } else { SendOutcome::Blocked { taken: taken as u16 } }
    });
    world.play_from(stream, 0);
    world.run_out();
    let reason = FailReason::SlowReader;
    assert_eq!(world.events_of(stream)[1], StreamEvent::Failed { stream, reason });
    let film_s = world.position(stream) / 760;
    assert!((110..150).contains(&film_s), "10 s behind at 8 % too slow is after 125 s; got {film_s}");
}

#[test]
fn blocked_udp_device_is_retried_without_failure() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    let (from, to) = (world.now.plus_ns(2 * S), world.now.plus_ns(17 * S));
    world.device =
        Box::new(
            move |now, _| {
                if now > from && now < to { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent }
            },
        );
    world.play_from(stream, 0);
    world.run_out();
    assert_eq!((world.datagrams, world.engine.counters().failed), (30_000, 0));
}

#[test]
fn unreachable_viewer_loses_packets_without_affecting_others() {
    let mut world = World::new(millrace_engine::EngineConfig { streams: 8, ..Default::default() }, 64);
    let lost = world.open(&film(), 0, udp(0));
    for index in 1..=3 {
        world.open(&film(), index, udp(index));
    }
    let (from, to) = (world.now.plus_ns(2 * S), world.now.plus_ns(12 * S));
    world.device = Box::new(move |now, transmit| {
        let gone = transmit.dest == udp(0) && now > from && now < to;
        if gone { SendOutcome::Unreachable { errno: 113 } } else { SendOutcome::Sent }
    });
    for index in 0..=3 {
        world.play_from(crate::world::id(index), 0);
    }
    world.run_out();
    assert_others_unaffected(&world, 3);
    assert_eq!(world.position(lost), 30_000, "the film goes on, on time");
    assert!(world.sent_of(lost).iter().all(|sent| sent.at == sent.departure));
    world.engine.close(world.now, lost).unwrap();
    world.turn();
    let Some(&StreamEvent::Closed { packets, unreachable, .. }) = world.events_of(lost).last() else {
        panic!()
    };
    assert_eq!(packets + unreachable, 30_000);
    assert!((7_500..7_700).contains(&unreachable), "10 s of film: {unreachable}");
    assert_eq!(world.engine.counters().unreachable, unreachable);
}

#[test]
fn unreachable_viewer_fails_after_max_unreachable() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    let from = world.now.plus_ns(2 * S);
    let blinks = from.plus_ns(5 * S);
    world.device = Box::new(move |now, _| {
        let gone = now > from && !(now > blinks && now < blinks.plus_ns(20 * MS));
        if gone { SendOutcome::Unreachable { errno: 111 } } else { SendOutcome::Sent }
    });
    world.play_from(stream, 0);
    world.run_out();
    let (at, event) = world.events[1];
    assert_eq!(event, StreamEvent::Failed { stream, reason: FailReason::Unreachable(111) });
    let silent = at.0 - blinks.0;
    assert!(
        (MAX_UNREACHABLE_NS..MAX_UNREACHABLE_NS + 50 * MS).contains(&silent),
        "from the last that got through"
    );
}

/// Its interface is down for longer than any single viewer is waited for.
#[test]
fn refused_group_never_fails_and_tells_why() {
    let mut world = World::small();
    let group = Dest::Multicast {
        group: [239, 192, 0, 1].into(),
        port: 20_000,
        rtcp_port: Some(20_001),
        via: MulticastId(0),
    };
    let stream = world.open(&Film::constant(0, 60_000, 8_000_000), 0, group);
    let (from, to) = (world.now.plus_ns(2 * S), world.now.plus_ns(2 * S + MAX_UNREACHABLE_NS + 10 * S));
    world.device = Box::new(move |now, _| match now > from && now < to {
        true => SendOutcome::Unreachable { errno: 100 },
        false => SendOutcome::Sent,
    });
    world.play_from(stream, 0);
    assert_eq!(
        (world.engine.group_errno(stream), world.engine.group_errno(crate::world::id(1))),
        (Some(0), None)
    );
    world.run_until(from.plus_ns(MAX_UNREACHABLE_NS + 5 * S));
    assert_eq!(world.engine.group_errno(stream), Some(100));
    world.run_out();
    assert_eq!((world.engine.group_errno(stream), world.engine.counters().failed), (Some(0), 0));
}

#[test]
fn closed_outcome_fails_stream_with_errno() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, tcp(0));
    let from = world.now.plus_ns(S);
    world.device = Box::new(
        move |now, _| {
            if now > from { SendOutcome::Closed { errno: 104 } } else { SendOutcome::Sent }
        },
    );
    world.play_from(stream, 0);
    world.run_out();
    let failed = StreamEvent::Failed { stream, reason: FailReason::ConnectionClosed(104) };
    assert_eq!(world.events_of(stream)[1..], [failed, StreamEvent::Left { stream }]);
    assert_eq!(world.next(), None);
}

#[test]
fn conn_gone_fails_streams_of_that_connection_only() {
    let mut world = World::small();
    for (index, dest) in [tcp(5), udp(1), tcp(5), tcp(6)].into_iter().enumerate() {
        world.open(&film(), index as u32, dest);
    }
    for index in [0, 1, 3] {
        world.play_from(crate::world::id(index), 0);
    }
    world.run_for(S);
    world.engine.conn_gone(world.now, ConnId(5));
    world.turn();
    let failed = |index| {
        let stream = crate::world::id(index);
        StreamEvent::Failed { stream, reason: FailReason::ConnectionClosed(0) }
    };
    assert_eq!(world.events_of(crate::world::id(0))[1], failed(0));
    assert_eq!(world.events_of(crate::world::id(2)), [failed(2)], "it had no playhead");
    world.run_out();
    assert_eq!([1, 3].map(|i| world.position(crate::world::id(i))), [30_000, 30_000]);
}

#[test]
fn bye_waits_for_a_blocked_connection_but_not_for_ever() {
    for (blocked_s, ends) in [(4, true), (60, false)] {
        let mut world = World::small();
        let stream = world.open(&film(), 0, tcp(0));
        let until = Rc::new(Cell::new(None));
        world.device = Box::new(move |now, transmit| {
            let Payload::Rtcp(bytes) = transmit.payload else { return SendOutcome::Sent };
            if !rtcp::parse(bytes).any(|packet| matches!(packet, RtcpPacket::Bye { .. })) {
                return SendOutcome::Sent;
            }
            let end = until.get().unwrap_or(now.plus_ns(blocked_s * S));
            until.set(Some(end));
            if now < end { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent }
        });
        world.play_from(stream, 29_000);
        world.run_out();
        let &(at, last) = world.events.last().unwrap();
        let due = world.sent.last().unwrap().at.plus_ns(BYE_DELAY_NS);
        if ends {
            assert!(matches!(last, StreamEvent::RunEnded { .. }), "{last:?}");
            let end = (StopReason::Finished, 30_000, sequence_of(30_000));
            assert_eq!(stop_of(&world.ends_of(stream)[0]), end);
            assert_eq!(world.bye_of(stream), Some(due.plus_ns(4 * S)));
        } else {
            assert_eq!(last, StreamEvent::Failed { stream, reason: FailReason::SlowReader });
            assert_eq!(at.0 - due.0, MAX_TCP_BEHIND_NS);
        }
    }
}

#[test]
fn lease_failure_is_retried_once() {
    for failure in [LeaseFailure::Io(5), LeaseFailure::Checksum] {
        let mut world = World::small();
        let stream = world.open(&film(), 0, udp(0));
        let mut tried = std::collections::HashSet::new();
        world.disk.rule = Box::new(move |want| {
            // Extents of both slots, some right behind each other.
            let first = matches!(want.extent, 0 | 3 | 4 | 5 | 7) && tried.insert(want.extent);
            (MS, if first { Err(failure) } else { Ok(()) })
        });
        world.play_from(stream, 0);
        world.run_out();
        assert_eq!(world.datagrams, 30_000);
        assert_eq!(world.engine.counters().leases_failed, 5);
    }
}

#[test]
fn lease_failure_after_retry_fails_stream() {
    for (failure, tries) in [
        (LeaseFailure::Io(5), 2),
        (LeaseFailure::Checksum, 2),
        (LeaseFailure::NoTitle, 1),
        (LeaseFailure::OutOfRange, 1),
    ] {
        let mut world = World::small();
        let stream = world.open(&film(), 0, udp(0));
        world.disk.rule = Box::new(move |want| (MS, if want.extent == 3 { Err(failure) } else { Ok(()) }));
        world.play_from(stream, 0);
        world.run_out();
        let reason = FailReason::ReadError(failure);
        assert_eq!(world.events_of(stream)[1], StreamEvent::Failed { stream, reason });
        let asked = world.disk.wants.iter().filter(|(_, want)| want.extent == 3).count();
        assert_eq!(asked, tries, "{failure}");
        assert_eq!(world.disk.leases(), 0);
    }
}

#[test]
fn lease_failure_for_unrequested_extent_is_ignored() {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(S);
    for extent in [0, 2, 3, 4, 5, 99, u32::MAX] {
        let (now, run) = (world.now, world.run_of(stream));
        world.engine.handle_lease_failed(now, stream, run, extent, LeaseFailure::NoTitle);
        world.engine.handle_lease_failed(now, stream, run.next(), extent, LeaseFailure::NoTitle);
    }
    let (nobody, run) = (crate::world::id(7), world.run_of(stream));
    world.engine.handle_lease_failed(world.now, nobody, run, 0, LeaseFailure::NoTitle);
    world.run_out();
    assert_eq!((world.datagrams, world.engine.counters().leases_failed), (30_000, 0));
}

#[test]
fn lease_of_other_run_or_extent_is_released() {
    let mut world = World::small();
    let other = Film::constant(1, 30_000, 8_000_000);
    let (a, b) = (world.open(&film(), 0, udp(0)), world.open(&other, 1, udp(1)));
    world.play_from(a, 200);
    world.play_from(b, 200);
    world.turn();
    let (run, other_run) = (world.run_of(a), world.run_of(b));
    for (run, title, extent) in [
        (other_run, other.title, 1),
        (run, film().title, 0),
        (run, film().title, 2),
        (run, film().title, u32::MAX),
    ] {
        let lease = world.disk.lend(title, extent.min(9));
        world.engine.handle_lease(world.now, a, run, extent, lease);
    }
    assert_eq!(
        (world.engine.counters().leases_unwanted, world.disk.leases()),
        (4, 0),
        "extent 2 is not asked for yet"
    );
    // 50 ms to the beginning, and 200 of the 250 ms that are left of the extent.
    world.run_for(270 * MS);
    assert_eq!(world.disk.leases(), 4);
    let lease = world.disk.lend(film().title, 2);
    world.engine.handle_lease(world.now, a, run, 2, lease);
    assert_eq!(world.disk.leases(), 4, "it has that one");
    world.run_out();
    assert_eq!((world.position(a), world.position(b)), (30_000, 30_000));
}

#[test]
fn lease_with_wrong_content_fails_stream_without_panic() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    arena.fill(0).unwrap().publish();
    let film = film();
    let right = film.content(0);
    let wrong = [
        millrace_core::pool::ExtentContent { title: TitleRef(9), ..right },
        millrace_core::pool::ExtentContent { number: 1, ..right },
        millrace_core::pool::ExtentContent { first_packet: 1, ..right },
        millrace_core::pool::ExtentContent { packets: 195, ..right },
        millrace_core::pool::ExtentContent { packets: 0, ..right },
        millrace_core::pool::ExtentContent { last_packet_bytes: 0, ..right },
        millrace_core::pool::ExtentContent { last_packet_bytes: 1317, ..right },
        millrace_core::pool::ExtentContent { layout: WireLayout::new(188).unwrap(), ..right },
    ];
    for content in wrong {
        let mut world = World::small();
        let stream = world.open(&film, 0, udp(0));
        world.play_from(stream, 0);
        assert!(world.engine.poll_want().is_some());
        let lease = arena.lend(0, content).unwrap();
        let run = world.run_of(stream);
        world.engine.handle_lease(world.now, stream, run, 0, lease);
        world.run_out();
        let reason = FailReason::ReadError(LeaseFailure::OutOfRange);
        assert_eq!(world.events_of(stream)[1], StreamEvent::Failed { stream, reason }, "{content:?}");
        assert_eq!(arena.leases(0), 0);
    }
}

#[test]
fn lease_failure_during_pending_batch_cancels_batch() {
    let mut world = World::small();
    for index in 0..2 {
        world.open(&film(), index, udp(index));
        world.play_from(crate::world::id(index), 190);
    }
    world.disk.rule = Box::new(|want| (if want.extent == 1 { S } else { MS }, Ok(())));
    world.run_for(49 * MS);
    world.now = world.now.plus_ns(MS);
    assert_eq!(world.engine.poll_bursts(world.now), 2);
    let stream = crate::world::id(0);
    let run = world.run_of(stream);
    world.engine.handle_lease_failed(world.now, stream, run, 1, LeaseFailure::NoTitle);
    assert!(world.engine.batch().is_empty());
    world.engine.handle_sent(world.now, &[SendOutcome::Sent; 2]);
    world.run_out();
    assert_eq!([0, 1].map(|index| world.position(crate::world::id(index))), [190, 30_000]);
    let reason = FailReason::ReadError(LeaseFailure::NoTitle);
    assert_eq!(world.events_of(stream)[1], StreamEvent::Failed { stream, reason });
}

#[test]
fn entries_without_an_outcome_count_as_blocked() {
    let mut world = World::small();
    for index in 0..3 {
        world.open(&film(), index, tcp(index));
        world.play_from(crate::world::id(index), 29_000);
    }
    world.run_for(49 * MS);
    world.now = world.now.plus_ns(MS);
    assert_eq!(world.engine.poll_bursts(world.now), 3);
    world.engine.handle_sent(world.now, &[]);
    assert_eq!(world.engine.counters().blocked, 3);
    assert_eq!(world.engine.poll_bursts(world.now), 0);
    world.run_out();
    assert_eq!(world.datagrams, 3_000);
}
