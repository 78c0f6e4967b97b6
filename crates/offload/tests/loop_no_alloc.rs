//! Once it runs, the loop neither allocates nor frees: counted on its thread, with a real cache beside it.

#[allow(dead_code)] // the other test program uses the rest of it
mod support;

use std::time::{Duration, Instant as StdInstant};

use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::sequence_of;
use millrace_netio::null::NullTx;
use millrace_testkit::counting::{Counting, calls};
use support::{Stage, WithoutConns};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn loop_turns_while_streaming_never_allocate() {
    const STREAMS: u32 = 200;
    const PACKETS: u32 = 6_000;
    let mut stage = Stage::new(PACKETS as usize, MediaTicks(8 * 90_000), WithoutConns(NullTx::default()));
    for index in 0..STREAMS {
        let open = stage.open(index);
        stage.commands.push(open).unwrap();
        let from = index % 100;
        let play = stage.play(index, from, if index % 3 == 0 { 9 } else { sequence_of(from) }, 8_000);
        stage.commands.push(play).unwrap();
    }
    stage.core.turn();
    let goal = u64::from(STREAMS * (PACKETS - 100));
    let end = StdInstant::now() + Duration::from_secs(60);
    let before = calls();
    while stage.core.engine.counters().packets < goal {
        stage.core.turn();
        // Events of streams are plain values: dropping one frees nothing.
        while stage.events.pop().is_ok() {}
        if StdInstant::now() > end {
            break;
        }
    }
    let calls = calls() - before;
    let sent = stage.core.engine.counters().packets;
    assert!(sent >= goal, "only {sent} of {goal} packets within a minute");
    assert_eq!(calls, 0, "{calls} calls of the allocator for {sent} packets");
}
