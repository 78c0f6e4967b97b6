//! The whole way in one thread: files, cache, engine, loop, device; what is collected is what was stored.

mod support;

use std::time::{Duration, Instant as StdInstant};

use millrace_core::ids::StreamId;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;
use millrace_engine::{Refusal, StreamEvent};
use millrace_netio::null::CollectTx;
use millrace_offload::command::{Command, Event};
use support::{Stage, WithoutConns, film_bytes};

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

#[test]
fn three_viewers_get_every_byte_in_order_from_one_read() {
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
        let mut got = Vec::new();
        let sent = &stage.core.tx.0.sent;
        let mut sequence: u16 = if index == 2 { 500 } else { 1 };
        for datagram in sent.iter().filter(|d| d.stream.index == index) {
            let Some((header, payload)) = RtpHeader::parse(&datagram.bytes) else { panic!("not RTP") };
            if header.payload_type == 33 {
                assert_eq!((header.sequence, header.ssrc), (sequence, stage.timeline.ssrc));
                sequence = sequence.wrapping_add(1);
                got.extend_from_slice(payload);
            }
        }
        assert!(got == film, "viewer {index}: {} of {} bytes", got.len(), film.len());
    }
    let stats = stage.cache.stats();
    assert!(stats.bytes_read <= film.len() as u64 + 4 * 8192, "{stats:?}");
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
