//! The whole path in one thread: files or a feeder, cache, engine, loop, device. The collected data
//! must equal the stored or fed data.

use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, StepClock, WithoutConns, film_bytes};
use millrace_core::ids::{StreamId, TitleId};
use millrace_core::seam::{Clock, PacketTx, SendOutcome, TransmitBatch};
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;
use millrace_engine::{Refusal, StreamEvent};
use millrace_netio::null::CollectTx;
use millrace_offload::bell::EventBell;
use millrace_offload::command::{Command, Event};
use millrace_store::cache::{FeedError, Keep, LiveTitle};

/// Turns the loop until `done` or until a minute has passed.
fn turn_until(
    stage: &mut Stage<WithoutConns<CollectTx>>,
    mut done: impl FnMut(&mut Stage<WithoutConns<CollectTx>>) -> bool,
) {
    let end = StdInstant::now() + Duration::from_secs(60);
    while !done(stage) {
        stage.core.turn();
        assert!(StdInstant::now() < end, "the loop did not get there within a minute");
        std::thread::yield_now();
    }
}

/// Checks that the datagrams sent to a viewer carry the title's media, with sequence numbers from
/// `sequence` on.
fn check(stage: &Stage<WithoutConns<CollectTx>>, index: u32, mut sequence: u16, film: &[u8]) {
    let mut got = Vec::new();
    for datagram in stage.core.tx.0.sent.iter().filter(|d| d.stream.index == index) {
        let Some((header, payload)) = RtpHeader::parse(&datagram.bytes) else { panic!("not RTP") };
        if header.payload_type == 33 {
            assert_eq!((header.sequence, header.ssrc), (sequence, stage.timeline.ssrc));
            sequence = sequence.wrapping_add(1);
            got.extend_from_slice(payload);
        }
    }
    assert!(got == film, "viewer {index}: {} of {} bytes", got.len(), film.len());
}

#[test]
fn viewers_of_same_title_share_reads_and_get_all_bytes() {
    const PACKETS: usize = 700;
    let mut stage = Stage::new(PACKETS, MediaTicks(90_000), WithoutConns(CollectTx::default()));
    for index in 0..3 {
        let open = stage.open(index);
        stage.commands.push(open).unwrap();
        // The last one has sequence numbers of its own.
        let play = stage.play(index, 0, if index == 2 { 500 } else { 1 }, 1000);
        stage.commands.push(play).unwrap();
    }
    let mut drained = 0;
    turn_until(&mut stage, |stage| {
        while let Ok(event) = stage.events.pop() {
            drained += usize::from(matches!(event, Event::Stream(StreamEvent::Drained { .. })));
        }
        drained == 3
    });
    let film = film_bytes(PACKETS);
    for index in 0..3u32 {
        check(&stage, index, if index == 2 { 500 } else { 1 }, &film);
    }
    let stats = stage.cache.stats();
    assert!(stats.bytes_read <= film.len() as u64 + 4 * 8192, "{stats:?}");
}

/// Each time all viewers have sent on what there is before there is more.
#[test]
fn viewers_at_the_edge_of_a_title_that_is_written_get_every_byte_in_order() {
    const PACKETS: usize = 500;
    let mut stage = Stage::new(10, MediaTicks(90_000), WithoutConns(CollectTx::default()));
    let (layout, timeline, bell) = (stage.layout, stage.timeline, Arc::new(EventBell::new().unwrap()));
    let live = LiveTitle { id: TitleId([9; 16]), layout, timeline, extents: 8, keep: Keep::Newest };
    let (title, mut feeder) = stage.cache.open_live(live, bell).unwrap();
    (stage.title, stage.packets) = (title, u32::MAX);
    for index in 0..3 {
        let open = stage.open(index);
        stage.commands.push(open).unwrap();
        let play = stage.play(index, 0, 1, 1000);
        stage.commands.push(play).unwrap();
    }
    let film = film_bytes(PACKETS);
    for packets in film.chunks(60 * 1316) {
        for packet in packets.chunks(1316) {
            let time = MediaTicks(u64::from(feeder.next_packet()) * 90);
            turn_until(&mut stage, |_| match feeder.push(packet, 0, time) {
                Err(FeedError::NoRoom) => false,
                pushed => pushed.is_ok(),
            });
        }
        feeder.publish().unwrap();
        turn_until(&mut stage, |stage| {
            stage.core.engine.counters().packets == 3 * u64::from(feeder.next_packet())
        });
    }
    feeder.finish();
    let mut drained = 0;
    turn_until(&mut stage, |stage| {
        while let Ok(event) = stage.events.pop() {
            drained += usize::from(matches!(event, Event::Stream(StreamEvent::Drained { .. })));
        }
        drained == 3
    });
    (0..3).for_each(|index| check(&stage, index, 1, &film));
    assert_eq!(stage.cache.stats().bytes_read, 0);
}

#[test]
fn commands_for_nobody_are_refused_and_close_answers_with_totals() {
    let mut stage = Stage::new(300, MediaTicks(90_000), WithoutConns(CollectTx::default()));
    let nobody = StreamId { index: 7, generation: 3 };
    stage.commands.push(Command::Pause { stream: nobody }).unwrap();
    let open = stage.open(1);
    stage.commands.push(open).unwrap();
    let stream = StreamId { index: 1, generation: 0 };
    let play = stage.play(1, 0, 0, 1000);
    stage.commands.push(play).unwrap();
    let mut seen = Vec::new();
    turn_until(&mut stage, |stage| {
        seen.extend(std::iter::from_fn(|| stage.events.pop().ok()));
        !stage.core.tx.0.sent.is_empty()
    });
    stage.commands.push(Command::Close { stream }).unwrap();
    turn_until(&mut stage, |stage| {
        seen.extend(std::iter::from_fn(|| stage.events.pop().ok()));
        seen.iter().any(|event| matches!(event, Event::Stream(StreamEvent::Closed { .. })))
    });
    let refused = |event: &Event| matches!(event, Event::Refused { stream, run: None, refusal: Refusal::UnknownStream } if *stream == nobody);
    assert!(seen.iter().any(refused), "{seen:?}");
    let total: u64 = seen
        .iter()
        .map(|event| match event {
            Event::Stream(StreamEvent::Closed { packets, .. }) => *packets,
            _ => 0,
        })
        .sum();
    assert!(total > 0);
    assert_eq!(stage.core.engine.counters().open, 0);
}

/// A device that takes a millisecond for each batch.
struct SlowTx {
    clock: StepClock,
    batches: u64,
}

impl PacketTx for SlowTx {
    fn send(&mut self, _: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
        outcomes.fill(SendOutcome::Sent);
        self.clock.advance(1_000_000);
        self.batches += 1;
    }
}

/// Admission lives by this: most wake-ups have one turn that sends, and one that finds nothing.
#[test]
fn busy_ns_counts_only_turns_that_send() {
    let clock = StepClock::start();
    let tx = WithoutConns(SlowTx { clock: clock.clone(), batches: 0 });
    let mut stage = Stage::with_clock(700, MediaTicks(90_000), tx, clock.clone());
    let open = stage.open(0);
    stage.commands.push(open).unwrap();
    let play = stage.play(0, 0, 1, 1000);
    stage.commands.push(play).unwrap();
    let (end, mut is_drained) = (StdInstant::now() + Duration::from_secs(60), false);
    let began = stage.core.load.busy_ns();
    while !is_drained {
        let (_, work) = stage.core.turn();
        if work == 0 {
            clock.advance(500_000);
            stage.core.load.slept(clock.now());
        }
        while let Ok(event) = stage.events.pop() {
            is_drained |= matches!(event, Event::Stream(StreamEvent::Drained { .. }));
        }
        assert!(StdInstant::now() < end, "the loop did not get there within a minute");
    }
    let batches = stage.core.tx.0.batches;
    assert!(batches >= 90, "{batches} in a second");
    assert_eq!(stage.core.load.busy_ns() - began, batches * 1_000_000);
}
