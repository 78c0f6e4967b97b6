//! Runs that follow others without a break. The device of the world checks every packet across the cut: its title, its sequence
//! number, its timestamp, its SSRC.

use millrace_core::ids::StreamId;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::{FailReason, LeaseFailure, Numbering, Refusal, RunCut, StopReason, StreamEvent};

use crate::world::{MS, S, World, stop_of, udp};
use millrace_testkit::film::Film;

/// 8 Mb/s, six extents and a bit.
fn film() -> Film {
    Film::constant(0, 1_200, 8_000_000)
}

/// 4 Mb/s, another SSRC and timestamps of its own, the last packet short.
fn other() -> Film {
    Film::constant(9, 900, 4_000_000).ending_with(188)
}

/// Returns a viewer of `film` after 300 ms.
fn viewer() -> (World, StreamId) {
    let mut world = World::small();
    let stream = world.open(&film(), 0, udp(0));
    world.play_from(stream, 0);
    world.run_for(350 * MS);
    (world, stream)
}

/// Nothing was late or lost, each run ended once, and the one BYE came behind the last.
fn assert_seamless(world: &World, stream: StreamId, runs: &[(StopReason, u32, u32)]) {
    assert!(world.late_max_ns <= 12_000, "a tick is 11 us: {}", world.late_max_ns);
    let ends = world.ends_of(stream);
    let told: Vec<_> = ends.iter().map(|end| (end.reason, end.next_packet, end.packets)).collect();
    assert_eq!(told, runs);
    let left = world.events_of(stream).iter().filter(|e| matches!(e, StreamEvent::Left { .. })).count();
    assert_eq!((left, world.disk.leases()), (1, 0), "the playhead moved and left at the end");
    assert_eq!(world.reports.iter().filter(|r| r.packets.len() == 3).count(), 1, "one BYE");
    // Each run began when the packet behind the one before would have been due.
    for (pair, &(_, run, at)) in ends.windows(2).zip(&world.began[1..]) {
        assert_eq!((pair[1].run, pair[0].next_due), (run, at));
    }
}

#[test]
fn another_title_follows_at_the_end() {
    for numbering in [Numbering::Title, Numbering::Sequence(40_000), Numbering::Viewer] {
        let (mut world, stream) = viewer();
        world.queue(stream, RunCut::End, &other(), (0, 900), numbering).unwrap();
        world.run_out();
        let finished = StopReason::Finished;
        assert_seamless(&world, stream, &[(finished, 1_200, 1_200), (finished, 900, 900)]);
        assert_eq!(world.datagrams, 2_100);
        let next = world.ends_of(stream)[1].next_sequence;
        match numbering {
            Numbering::Title | Numbering::Bytes { .. } => assert_eq!(next, sequence_of(900)),
            Numbering::Sequence(first) | Numbering::Own(first) => assert_eq!(next, first + 900),
            Numbering::Viewer => assert_eq!(next, sequence_of(2_100), "2100 packets in one row of numbers"),
        }
    }
}

/// Before a packet in the middle of an extent, at its border, in the same title and in another one, near and far.
#[test]
fn cut_at_packet_switches_runs_seamlessly() {
    for (cut, from) in [(700, 100), (588, 196), (784, 784), (300, 0), (1_200, 899), (400, 400)] {
        for next in [other(), film()] {
            let (mut world, stream) = viewer();
            let until = next.packets;
            world.queue(stream, RunCut::At(cut), &next, (from, until), Numbering::Viewer).unwrap();
            world.run_out();
            let sent = until - from;
            let finished = StopReason::Finished;
            assert_seamless(&world, stream, &[(finished, cut, cut), (finished, until, sent)]);
            assert_eq!(world.datagrams, u64::from(cut + sent));
        }
    }
}

/// Right behind an extent's border there is little time to read: late packets are made up for.
#[test]
fn cut_just_after_extent_border_catches_up_lateness() {
    let (mut world, stream) = viewer();
    world.queue(stream, RunCut::At(589), &other(), (150, 900), Numbering::Viewer).unwrap();
    world.run_out();
    assert_eq!(world.datagrams, 589 + 750);
    assert!((500_000..2 * MS).contains(&world.late_max_ns), "{}", world.late_max_ns);
    let last = world.sent.last().unwrap();
    assert!(last.at.0.abs_diff(last.departure.0) <= 12_000, "on time again");
}

#[test]
fn queued_run_requests_first_extent_shortly_before_cut() {
    let (mut world, stream) = viewer();
    world.queue(stream, RunCut::At(900), &other(), (200, 900), Numbering::Title).unwrap();
    world.run_out();
    let at = world.disk.wants.iter().position(|(_, want)| want.title == other().title).unwrap();
    let (asked, want) = world.disk.wants[at];
    assert_eq!(want.extent, 1);
    // As the run enters its last extent, packets 784 to 899: 116 packets of 1.3 ms before.
    let before_ns = world.began[1].2.0 - asked.0;
    assert!((140 * MS..160 * MS).contains(&before_ns), "{before_ns}");
    assert!(want.by <= world.began[1].2 && world.began[1].2.0 - want.by.0 < 2 * MS);
    assert!(
        world.disk.wants[at..].iter().all(|(_, want)| want.title == other().title),
        "nothing behind the cut"
    );
}

/// A cut in the extent that is being sent: the part read of the one behind it is given back.
#[test]
fn cut_in_current_extent_releases_extent_ahead() {
    let (mut world, stream) = viewer();
    world.run_for(180 * MS);
    let position = world.position(stream);
    assert_eq!((world.disk.leases(), position / 196), (2, 1));
    world.queue(stream, RunCut::At(position + 10), &other(), (0, 900), Numbering::Title).unwrap();
    assert_eq!(world.disk.leases(), 1);
    world.run_out();
    let finished = StopReason::Finished;
    assert_seamless(&world, stream, &[(finished, position + 10, position + 10), (finished, 900, 900)]);
}

/// The cut is where the run stands: the next one begins when its next packet would have been due.
#[test]
fn cut_at_current_position_begins_next_run_when_due() {
    let (mut world, stream) = viewer();
    let position = world.position(stream);
    world.queue(stream, RunCut::At(position), &other(), (0, 900), Numbering::Viewer).unwrap();
    world.run_out();
    let finished = StopReason::Finished;
    let ends = world.ends_of(stream);
    assert_eq!((ends[0].reason, ends[0].next_packet, ends[0].packets), (finished, position, position));
    assert_eq!(ends[1].packets, 900);
    assert_eq!(world.began[1].2, ends[0].next_due);
    // It had to be read first; it caught up.
    assert!(world.late_max_ns < 10 * MS, "{}", world.late_max_ns);
}

#[test]
fn queue_with_passed_or_invalid_cut_is_refused_without_effect() {
    let (mut world, stream) = viewer();
    let position = world.position(stream);
    let queue = |world: &mut World, cut, from, until| {
        world.queue(stream, cut, &other(), (from, until), Numbering::Title).map(|_| ())
    };
    assert_eq!(queue(&mut world, RunCut::At(position - 1), 0, 900), Err(Refusal::CutPassed));
    assert_eq!(queue(&mut world, RunCut::At(1_201), 0, 900), Err(Refusal::OutOfRange));
    assert_eq!(queue(&mut world, RunCut::End, 0, 901), Err(Refusal::OutOfRange));
    assert_eq!(
        queue(&mut world, RunCut::End, 5, 5),
        Err(Refusal::OutOfRange),
        "there must be something to go over to"
    );
    world.run_out();
    assert_eq!(queue(&mut world, RunCut::End, 0, 900), Err(Refusal::WrongState));
    assert_seamless(&world, stream, &[(StopReason::Finished, 1_200, 1_200)]);
}

/// The second replaces the first; the packets behind the earlier cut are sent after all.
#[test]
fn queue_twice_replaces_first_queued_run() {
    for first_cut in [300, 1_000] {
        let (mut world, stream) = viewer();
        world.queue(stream, RunCut::At(first_cut), &other(), (0, 900), Numbering::Title).unwrap();
        world.run_for(20 * MS);
        world.queue(stream, RunCut::At(800), &other(), (300, 900), Numbering::Title).unwrap();
        world.run_out();
        let (replaced, finished) = (StopReason::Replaced, StopReason::Finished);
        assert_eq!(world.datagrams, 800 + 600);
        let told: Vec<_> = world.ends_of(stream).iter().map(stop_of).collect();
        let expected = [
            (replaced, 0, sequence_of(0)),
            (finished, 800, sequence_of(800)),
            (finished, 900, sequence_of(900)),
        ];
        assert_eq!(told, expected);
        assert_eq!(world.disk.leases(), 0);
    }
}

/// The same extent is asked for by both, and only the answer to the second is taken.
#[test]
fn handle_lease_of_replaced_queued_run_does_not_affect_successor() {
    for fails in [false, true] {
        let (mut world, stream) = viewer();
        world.queue(stream, RunCut::At(300), &other(), (0, 900), Numbering::Title).unwrap();
        let old = world.engine.poll_want().unwrap();
        world.queue(stream, RunCut::At(300), &other(), (0, 900), Numbering::Title).unwrap();
        let want = world.engine.poll_want().unwrap();
        assert_eq!((want.title, want.extent, want.run), (old.title, old.extent, old.run.next()));
        let held = world.disk.leases();
        if fails {
            world.engine.handle_lease_failed(world.now, stream, old.run, 0, LeaseFailure::NoTitle);
        } else {
            let lease = world.disk.lend(other().title, 0);
            world.engine.handle_lease(world.now, stream, old.run, 0, lease);
            assert_eq!(world.engine.counters().leases_unwanted, 1);
        }
        world.engine.want_refused(&old);
        assert_eq!((world.disk.leases(), world.engine.poll_want()), (held, None));
        world.engine.want_refused(&want);
        world.run_out();
        let told: Vec<_> = world.ends_of(stream).iter().map(|end| end.reason).collect();
        assert_eq!(told, [StopReason::Replaced, StopReason::Finished, StopReason::Finished]);
        assert_eq!(world.datagrams, 300 + 900);
    }
}

/// Anything that ends the run that lasts ends the queued run too, each with its own event.
#[test]
fn queued_run_ends_together_with_current_run() {
    for command in ["pause", "close", "play", "finish", "conn"] {
        let (mut world, stream) = viewer();
        let queued = world.queue(stream, RunCut::At(400), &other(), (0, 900), Numbering::Title).unwrap();
        world.run_for(10 * MS);
        let (now, run) = (world.now, world.run_of(stream));
        let reason = match command {
            "pause" => world.engine.pause(now, stream).map(|()| StopReason::Paused),
            "close" => world.engine.close(now, stream).map(|()| StopReason::Closed),
            "play" => {
                world.play_from(stream, 600);
                Ok(StopReason::Replaced)
            }
            "finish" => {
                world.engine.finish(now);
                Ok(StopReason::ShutDown)
            }
            _ => {
                // Not by TCP: the connection is another stream's.
                world.engine.conn_gone(now, millrace_core::ids::ConnId(0));
                Ok(StopReason::Finished)
            }
        };
        world.run_out();
        let mut told: Vec<_> = world.ends_of(stream).iter().map(|end| (end.run, end.reason)).collect();
        told.retain(|(of, _)| *of == run || *of == queued);
        told.sort_unstable_by_key(|(of, _)| *of);
        let reason = reason.unwrap();
        assert_eq!(told, [(run, reason), (queued, reason)], "{command}");
        assert_eq!(world.disk.leases(), 0, "{command}");
    }
}

/// A queued title that cannot be read takes nothing away from the one that plays.
#[test]
fn queued_run_with_read_error_leaves_current_run_playing() {
    let (mut world, stream) = viewer();
    world.disk.rule = Box::new(|want| {
        let is_bad = want.title == other().title;
        (MS, if is_bad { Err(LeaseFailure::Io(5)) } else { Ok(()) })
    });
    let queued = world.queue(stream, RunCut::At(500), &other(), (0, 900), Numbering::Title).unwrap();
    world.run_out();
    let failed = StopReason::Failed(FailReason::ReadError(LeaseFailure::Io(5)));
    assert_seamless(&world, stream, &[(failed, 0, 0), (StopReason::Finished, 1_200, 1_200)]);
    assert_eq!(world.ends_of(stream)[0].run, queued);
    let asked = world.disk.wants.iter().filter(|(_, want)| want.run == queued).count();
    assert_eq!(asked, 2, "tried once more");
}

/// The first extent of the queued run comes after the cut: the schedule stays, and the hole is made up.
#[test]
fn queued_run_with_late_first_extent_catches_up() {
    let (mut world, stream) = viewer();
    world.disk.rule =
        Box::new(|want| (if want.title == other().title && want.extent == 0 { S } else { MS }, Ok(())));
    let next = Film::constant(9, 9_000, 4_000_000);
    world.queue(stream, RunCut::At(500), &next, (0, 9_000), Numbering::Viewer).unwrap();
    world.run_out();
    assert_eq!(world.datagrams, 9_500);
    let last = world.sent.last().unwrap();
    assert_eq!(last.at, last.departure, "on time again");
    assert!((500 * MS..S).contains(&world.late_max_ns), "{}", world.late_max_ns);
}

/// Titles one behind the other, as a playlist would have them: one stream, one row of numbers, two leases at most.
#[test]
fn queued_titles_in_sequence_share_numbering_and_two_leases() {
    let (mut world, stream) = viewer();
    let mut packets = 1_200;
    let mut films = vec![other(), film(), other()];
    while let Some(next) = films.pop() {
        let until = next.packets;
        world.queue(stream, RunCut::End, &next, (0, until), Numbering::Viewer).unwrap();
        packets += u64::from(until);
        let begun = world.began.len();
        while world.began.len() == begun {
            assert!(world.disk.leases() <= 2);
            world.turn();
            world.now = world.next().unwrap().max(world.now);
        }
    }
    world.run_out();
    assert_eq!(world.datagrams, packets);
    let ends = world.ends_of(stream);
    assert!(ends.len() == 4 && ends.iter().all(|end| end.reason == StopReason::Finished));
    assert_eq!(ends[3].next_sequence, sequence_of(packets as u32));
    assert!(world.late_max_ns <= 40_000, "{}", world.late_max_ns);
}
