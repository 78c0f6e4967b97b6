//! After `Engine::new` the engine neither allocates nor frees: counted by a global allocator of this test, over more than
//! a million packets with everything that can happen to a stream.

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Dest, SendOutcome, TransmitBatch};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::{
    Engine, EngineConfig, LeaseFailure, Numbering, RunSpec, Start, StopReason, StreamEvent, StreamSpec,
};

use millrace_testkit::counting::{Counting, calls};
use millrace_testkit::film::Film;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const STREAMS: u32 = 64;
const MS: u64 = 1_000_000;

fn dest(index: u32) -> Dest {
    if index.is_multiple_of(4) {
        return Dest::Interleaved { conn: ConnId(index), rtp_channel: 0, rtcp_channel: 1 };
    }
    if index % 8 == 1 {
        return Dest::Bytes { conn: ConnId(index) };
    }
    Dest::udp(([10, 0, 0, 1], 4000).into(), Some(4001))
}

/// An engine with its title in memory; nothing in here allocates but `new`.
struct Bench {
    engine: Engine,
    film: Film,
    leases: Vec<Lease>,
    generations: [u32; STREAMS as usize],
    run: RunSerial,
    now: Instant,
    turns: u64,
    closed: u64,
}

impl Bench {
    fn new() -> Self {
        let film = Film::constant(0, 196 * 24 + 50, 8_000_000).ending_with(188);
        let arena = ExtentArena::new(Box::new(HeapRegion::new(film.extents() as usize)));
        let leases = (0..film.extents()).map(|extent| film.load(&arena, extent, extent)).collect();
        let engine = Engine::new(EngineConfig { streams: STREAMS as usize, ..EngineConfig::default() });
        let now = Instant(1 << 50);
        Self {
            engine,
            film,
            leases,
            generations: [0; STREAMS as usize],
            run: RunSerial(0),
            now,
            turns: 0,
            closed: 0,
        }
    }

    fn id(&self, index: u32) -> StreamId {
        StreamId { index, generation: self.generations[index as usize] }
    }

    /// Starts a stream again, from wherever it is in its life.
    fn start(&mut self, index: u32) {
        let (id, film) = (self.id(index), &self.film);
        let _ = self
            .engine
            .open(self.now, StreamSpec { id, dest: dest(index), quiet: false, lends: false, once: false });
        let from = index * 61 % 2_000;
        let sequence = if index.is_multiple_of(3) { 9 } else { sequence_of(from) };
        let until = film.packets - index % 5 * 200;
        let at = self.now.plus_ns(20 * MS);
        self.run = self.run.next();
        let spec = RunSpec {
            run: self.run,
            media: film.media(0),
            from,
            until,
            numbering: Numbering::Sequence(sequence),
            scale_permille: 1000,
            step: None,
        };
        let start = Start { at, ahead_ms: index as u16 % 3 * 300 };
        let _ = self.engine.play(self.now, id, start, spec);
    }

    fn turn(&mut self) {
        self.turns += 1;
        let (turn, now) = (self.turns, self.now);
        while let Some(want) = self.engine.poll_want() {
            if turn.is_multiple_of(37) {
                self.engine.want_refused(&want);
                break;
            }
            if turn.is_multiple_of(101) {
                let failure = LeaseFailure::Io(5);
                self.engine.handle_lease_failed(now, want.stream, want.run, want.extent, failure);
                continue;
            }
            let lease = self.leases[want.extent as usize].clone();
            self.engine.handle_lease(now, want.stream, want.run, want.extent, lease);
        }
        let mut outcomes = [SendOutcome::Sent; 64];
        loop {
            let count = self.engine.poll_bursts(now);
            if count == 0 {
                break;
            }
            for (at, outcome) in outcomes[..count].iter_mut().enumerate() {
                let transmit = self.engine.batch().get(at);
                *outcome = match (turn + u64::from(transmit.stream.index)) % 997 {
                    3 => SendOutcome::Blocked { taken: 1 },
                    5 => SendOutcome::Unreachable { errno: 111 },
                    7 if turn.is_multiple_of(50) => SendOutcome::Closed { errno: 32 },
                    _ => SendOutcome::Sent,
                };
            }
            self.engine.handle_sent(now, &outcomes[..count]);
        }
        let index = (turn % u64::from(STREAMS)) as u32;
        match turn % 2_111 {
            11 => drop(self.engine.pause(now, self.id(index))),
            12..=19 => self.start(index),
            21 => drop(self.engine.close(now, self.id(index))),
            23 => self.engine.conn_gone(now, ConnId(index)),
            25 => self.now = now.plus_ns(300 * MS),
            _ => {}
        }
        while let Some(event) = self.engine.poll_event() {
            let index = event.stream().index;
            match event {
                StreamEvent::Closed { .. } => {
                    self.closed += 1;
                    self.generations[index as usize] += 1;
                    self.start(index);
                }
                StreamEvent::Failed { stream, .. } => drop(self.engine.close(now, stream)),
                StreamEvent::Drained { .. } if !turn.is_multiple_of(3) => self.start(index),
                StreamEvent::RunEnded { end, .. } => match end.reason {
                    StopReason::Paused if turn.is_multiple_of(3) => {}
                    StopReason::Paused | StopReason::Finished => self.start(index),
                    _ => {}
                },
                _ => {}
            }
        }
        self.now = self.engine.poll_at().unwrap_or(self.now).max(self.now.plus_ns(MS / 4));
    }
}

#[test]
fn engine_sending_million_packets_never_allocates() {
    let mut bench = Bench::new();
    for index in 0..STREAMS {
        bench.start(index);
    }
    let before = calls();
    while bench.engine.counters().packets < 1_500_000 {
        bench.turn();
    }
    let calls = calls() - before;
    assert!(before > 10, "the allocator counts: {before}");
    assert_eq!(calls, 0, "calls of the allocator");
    let counters = bench.engine.counters();
    for (what, count) in [
        ("closed", bench.closed),
        ("reports", counters.reports),
        ("blocked", counters.blocked),
        ("unreachable", counters.unreachable),
        ("patched", counters.patched),
        ("failed", counters.failed),
        ("failed leases", counters.leases_failed),
        ("catch-ups", counters.catch_ups),
    ] {
        assert!(count > 10, "{what}: {count}; the test does not cover it");
    }
}
