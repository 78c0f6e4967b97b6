//! The engine of the other RTSP tests answers as the real one does: both carry out the same commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rtsp_support::{FakeEngine, MS, PACKETS_PER_S, SECOND};
use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{SendOutcome, TransmitBatch};
use millrace_core::time::Instant;
use millrace_engine::{Engine, EngineConfig, StreamSpec};
use millrace_offload::command::{Command, Dest, Event, Numbering, RunCut, RunSpec, StopReason, StreamEvent};
use millrace_testkit::film::Film;

const STREAMS: usize = 4;
/// 15 s: runs end, and play on from there.
const PACKETS: u32 = 6000;

/// The real engine with a disk that answers at once and a network that takes everything.
struct Real {
    engine: Engine,
    film: Film,
    arena: Arc<ExtentArena>,
    now: Instant,
    events: Vec<Event>,
}

impl Real {
    fn new(now: Instant) -> Self {
        let film = Film::new(1, PACKETS, |packet| u64::from(packet) * 90_000 / PACKETS_PER_S);
        let arena = ExtentArena::new(Box::new(HeapRegion::new(film.extents() as usize)));
        for extent in 0..film.extents() {
            drop(film.load(&arena, extent, extent));
        }
        // The fake one counts packets one by one.
        let engine = Engine::new(EngineConfig { streams: STREAMS, smooth: true, ..EngineConfig::default() });
        Self { engine, film, arena, now, events: Vec::new() }
    }

    fn lend(&self, extent: u32) -> Lease {
        self.arena.lend(extent, self.film.content(extent)).expect("loaded")
    }

    /// Reads the wanted extents.
    fn serve(&mut self) {
        while let Some(want) = self.engine.poll_want() {
            let lease = self.lend(want.extent);
            self.engine.handle_lease(self.now, want.stream, want.run, want.extent, lease);
        }
    }

    /// Everything there is to do up to `end`.
    fn advance(&mut self, end: Instant) {
        loop {
            self.serve();
            self.hear();
            if self.engine.poll_bursts(self.now) > 0 {
                let outcomes = vec![SendOutcome::Sent; self.engine.batch().len()];
                self.engine.handle_sent(self.now, &outcomes);
                self.hear();
                continue;
            }
            match self.engine.poll_at() {
                Some(next) if next <= end => self.now = self.now.max(next),
                _ => break,
            }
        }
        self.now = end;
        self.hear();
    }

    fn hear(&mut self) {
        self.events.extend(std::iter::from_fn(|| self.engine.poll_event()).map(Event::Stream));
    }

    fn take(&mut self, command: &Command) {
        let now = self.now;
        let (stream, run, result) = match *command {
            Command::Open { stream: id, dest, quiet, once } => {
                (id, None, self.engine.open(now, StreamSpec { id, dest, quiet, lends: false, once }))
            }
            Command::Play { stream, at, run, .. } => {
                (stream, Some(run.run), self.engine.play(now, stream, at, run))
            }
            Command::Queue { stream, cut, run } => {
                (stream, Some(run.run), self.engine.queue(now, stream, cut, run))
            }
            Command::Pause { stream } => (stream, None, self.engine.pause(now, stream)),
            Command::Close { stream } => (stream, None, self.engine.close(now, stream)),
            _ => unreachable!("the script has no other"),
        };
        self.events.extend(result.err().map(|refusal| Event::Refused { stream, run, refusal }));
        self.serve();
        self.hear();
    }
}

/// Returns the events that the session layer acts upon, by stream. Totals are only logged; the fake
/// engine makes them up.
fn acted_upon(events: impl IntoIterator<Item = Event>) -> BTreeMap<(u32, u32), Vec<String>> {
    let mut by_stream: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for event in events {
        let (stream, text) = match event {
            Event::Stream(StreamEvent::Drained { .. } | StreamEvent::Left { .. }) => continue,
            Event::Stream(StreamEvent::Closed { stream, .. }) => (stream, "closed".to_owned()),
            Event::Stream(event) => (event.stream(), format!("{event:?}")),
            Event::Refused { stream, run, refusal } => (stream, format!("refused: {run:?} {refusal:?}")),
            other => panic!("{other:?}"),
        };
        by_stream.entry((stream.index, stream.generation)).or_default().push(text);
    }
    by_stream
}

fn open(stream: StreamId, quiet: bool) -> Command {
    let dest = Dest::udp(([192, 0, 2, 7], 5000).into(), Some(5001));
    Command::Open { stream, dest, quiet, once: false }
}

/// The same command once more: a command is not `Clone`, because some own memory.
fn again(command: &Command) -> Command {
    match *command {
        Command::Open { stream, dest, quiet, once } => Command::Open { stream, dest, quiet, once },
        Command::Play { stream, at, ahead_ms, run } => Command::Play { stream, at, ahead_ms, run },
        Command::Queue { stream, cut, run } => Command::Queue { stream, cut, run },
        Command::Pause { stream } => Command::Pause { stream },
        Command::Close { stream } => Command::Close { stream },
        _ => unreachable!("the script has no other"),
    }
}

#[test]
fn fake_engine_answers_random_commands_like_real_engine() {
    let mut state = 20_260_101u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let begun = Instant(100 * SECOND);
    let (mut real, mut fake) = (Real::new(begun), FakeEngine::new());
    // By index: the generation that is open, or that was last.
    let mut streams = [(0, false); STREAMS];
    let mut seen = BTreeMap::<&str, usize>::new();
    for step in 0..6000 {
        // Mostly less than a run takes, now and then long enough for BYE; never at the time of a packet.
        let ms = if random(10) == 0 { random(8000) } else { random(400) };
        let now = real.now.plus_ns((ms + 1) * MS + 137_000);
        real.advance(now);
        fake.advance(now);
        let index = random(STREAMS as u64) as usize;
        let (generation, is_open) = &mut streams[index];
        let id = |generation| StreamId { index: index as u32, generation };
        let command = match random(8) {
            0 if !*is_open => {
                (*generation, *is_open) = (*generation + 1, true);
                open(id(*generation), random(4) == 0)
            }
            0 if random(4) == 0 => {
                *is_open = false;
                Command::Close { stream: id(*generation) }
            }
            1..=3 => Command::Pause { stream: id(*generation) },
            _ => {
                let from = random(u64::from(PACKETS)) as u32;
                let until = (from + 1 + random(2000) as u32).min(PACKETS);
                let at = now.plus_ns([0, 50, 200][random(3) as usize] * MS);
                let numbering = match random(4) {
                    0 => Numbering::Title,
                    1 => Numbering::Own(random(65_536) as u16),
                    _ => Numbering::Sequence(random(65_536) as u16),
                };
                let (run, media) = (RunSerial(step), real.film.media(0));
                let run = RunSpec { run, media, from, until, numbering, scale_permille: 1000, step: None };
                let stream = id(*generation);
                match fake.streams.get(&stream).and_then(|state| Some((state.playing?, state.next))) {
                    Some((lasts, next)) if random(3) > 0 => {
                        // Mostly ahead, sometimes passed already.
                        let packet = (next.saturating_sub(20) + random(400) as u32).max(lasts.spec.from);
                        let is_end = random(4) == 0 || packet > lasts.spec.until;
                        let cut = if is_end { RunCut::End } else { RunCut::At(packet) };
                        Command::Queue { stream, cut, run }
                    }
                    _ => Command::Play { stream, at, ahead_ms: 0, run },
                }
            }
        };
        real.take(&command);
        fake.take(now, again(&command));
        let told = acted_upon(real.events.drain(..));
        assert_eq!(told, acted_upon(fake.events.drain(..)), "after step {step}, {command:?}: real, fake");
        for text in told.values().flatten() {
            for kind in [
                "Paused",
                "Finished",
                "Replaced",
                "Closed",
                "closed",
                "WrongState",
                "CutPassed",
                "UnknownStream",
            ] {
                *seen.entry(kind).or_default() += usize::from(text.contains(kind));
            }
        }
    }
    assert!(seen.values().all(|&count| count > 20), "{seen:?}");
}

#[test]
fn fake_engine_ends_empty_run_with_bye_like_real_engine() {
    let (stream, mut now) = (StreamId { index: 0, generation: 1 }, Instant(100 * SECOND));
    let (mut real, mut fake) = (Real::new(now), FakeEngine::new());
    let media = real.film.media(0);
    let ends = |events: &mut dyn Iterator<Item = &Event>| -> Vec<_> {
        let end = |event: &Event| match event {
            Event::Stream(StreamEvent::RunEnded { end, .. }) => {
                Some((end.run.0, end.reason, end.next_packet))
            }
            _ => None,
        };
        events.filter_map(end).collect()
    };
    let play = |serial, from| {
        let run = RunSerial(serial);
        let numbering = Numbering::Title;
        let run = RunSpec { run, media, from, until: PACKETS, numbering, scale_permille: 1000, step: None };
        Command::Play { stream, at: Instant(0), ahead_ms: 0, run }
    };
    for command in [open(stream, false), play(1, 0), play(2, PACKETS)] {
        real.take(&command);
        fake.take(now, again(&command));
        now = now.plus_ns(SECOND + 137_000);
        real.advance(now);
        fake.advance(now);
    }
    let replaced = ends(&mut real.events.iter());
    assert!(
        matches!(replaced[..], [(1, StopReason::Replaced, _)]),
        "BYE waits for what the viewer holds back"
    );
    now = now.plus_ns(2 * SECOND);
    real.advance(now);
    fake.advance(now);
    let told = ends(&mut real.events.iter());
    assert_eq!(told[1..], [(2, StopReason::Finished, PACKETS)]);
    assert_eq!(told, ends(&mut fake.events.iter()));
}
