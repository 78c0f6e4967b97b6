//! Several engines in threads, seeking, leaving and coming back in a cache that is much too small, while titles are
//! opened and closed: every want is answered, every byte is right, and in the end everything has been given back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Instant as RealInstant;

use crate::cache_common::sample::{SampleFiles, noise};
use crate::cache_common::{BACKENDS, Engine, RunningClock, World};
use millrace_core::ids::{RunSerial, StreamId, TitleId, TitleRef};
use millrace_core::pool::Lease;
use millrace_core::seam::{Clock, Want};
use millrace_core::time::Instant;
use millrace_store::cache::{ReadBackend, ReadFailure};

const ENGINES: usize = 3;
const STREAMS: u32 = 30;
const WANTS: usize = 2000;

/// Random numbers, the same for the same seed.
struct Dice {
    bytes: Vec<u8>,
    next: usize,
}

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        let at = self.next % (self.bytes.len() - 4);
        self.next += 4;
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap()) % sides
    }
}

/// One stream as its engine sees it.
#[derive(Default)]
struct Viewer {
    generation: u32,
    place: u32,
    waits_for: Option<(TitleRef, u32)>,
    holds: Option<Lease>,
}

struct Films<'a> {
    samples: [&'a SampleFiles; 2],
    /// Open all the time; opened and closed all the time.
    titles: [AtomicU32; 2],
}

fn drive(
    engine: &mut Engine,
    films: &Films,
    clock: &RunningClock,
    seed: u64,
) -> HashMap<&'static str, usize> {
    let mut dice = Dice { bytes: noise(seed, 1 << 16), next: 0 };
    let mut viewers: Vec<Viewer> = (0..STREAMS).map(|_| Viewer::default()).collect();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let mut wants = 0;
    loop {
        let rings = engine.bell.rings();
        while let Some(grant) = engine.handle.poll() {
            let viewer = &mut viewers[grant.stream.index as usize];
            if grant.stream.generation != viewer.generation {
                *seen.entry("late").or_default() += 1;
                continue;
            }
            assert_eq!(viewer.waits_for.take(), Some((grant.title, grant.extent)));
            match grant.lease {
                Ok(lease) => {
                    let film = usize::from(lease.content().layout != films.samples[0].layout);
                    films.samples[film].check(&lease, grant.extent);
                    *seen.entry("granted").or_default() += 1;
                    viewer.holds = Some(lease);
                }
                Err(failure) => {
                    assert_eq!(failure, ReadFailure::NoTitle);
                    *seen.entry("closed").or_default() += 1;
                }
            }
        }
        if wants >= WANTS {
            if viewers.iter().all(|viewer| viewer.waits_for.is_none()) {
                return seen;
            }
            viewers.iter_mut().for_each(|viewer| viewer.holds = None);
            engine.bell.wait_beyond(rings);
            continue;
        }
        let index = dice.roll(STREAMS);
        let viewer = &mut viewers[index as usize];
        viewer.holds = None;
        let stream = StreamId { index, generation: viewer.generation };
        let timeout = if viewer.waits_for.is_some() { 1000 } else { 20 };
        if dice.roll(timeout) == 0 && engine.handle.leave(Instant(0), stream) {
            viewer.generation += 1;
            viewer.waits_for = None;
            continue;
        }
        if viewer.waits_for.is_some() {
            if viewers.iter().all(|viewer| viewer.waits_for.is_some()) {
                engine.bell.wait_beyond(rings);
            }
            continue;
        }
        let film = usize::from(index.is_multiple_of(3));
        let title = TitleRef(films.titles[film].load(Ordering::SeqCst));
        let extents = films.samples[film].extents();
        viewer.place = if dice.roll(8) == 0 { dice.roll(extents) } else { (viewer.place + 1) % extents };
        let by = clock.now().plus_ns(u64::from(dice.roll(50_000_000)));
        if engine.handle.want(&Want {
            stream,
            run: RunSerial(0),
            title,
            extent: viewer.place,
            place: 0,
            by,
            spare: 0,
        }) {
            viewer.waits_for = Some((title, viewer.place));
            wants += 1;
        }
    }
}

fn stress(backend: ReadBackend) {
    let samples = [SampleFiles::of_extents(40), SampleFiles::new(188 * 20, 5_000_000)];
    let clock = Arc::new(RunningClock(RealInstant::now()));
    let Some(mut world) = World::new(backend, 24, 200_000_000, ENGINES, clock.clone()) else { return };
    // A new identity each time, so that a title can be opened before its predecessor is closed.
    let open = |film: usize, times: usize| {
        let mut source = samples[film].open();
        source.rename(TitleId([times as u8; 16]));
        world.cache.open_source(Box::new(source)).unwrap()
    };
    let titles = [AtomicU32::new(open(0, 0).0), AtomicU32::new(open(1, 0).0)];
    let films = Films { samples: samples.each_ref(), titles };
    let running = AtomicUsize::new(ENGINES);
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let engines = std::mem::take(&mut world.engines);
    let engines: Vec<_> = std::thread::scope(|scope| {
        let start = |(number, mut engine): (usize, Engine)| {
            let (films, clock, running) = (&films, &clock, &running);
            scope.spawn(move || {
                let seen = drive(&mut engine, films, clock, 7 + number as u64);
                running.fetch_sub(1, Ordering::SeqCst);
                (engine, seen)
            })
        };
        let threads: Vec<_> = engines.into_iter().enumerate().map(start).collect();
        let mut rounds = 0;
        while running.load(Ordering::SeqCst) > 0 {
            rounds += 1;
            let old = films.titles[1].swap(open(1, rounds).0, Ordering::SeqCst);
            world.cache.close_title(TitleRef(old));
            let reads = world.cache.stats().reads;
            while running.load(Ordering::SeqCst) > 0 && world.cache.stats().reads < reads + 50 {
                std::thread::yield_now();
            }
        }
        seen.insert("title closed", rounds);
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined
            .map(|(engine, more)| {
                more.into_iter().for_each(|(what, times)| *seen.entry(what).or_default() += times);
                engine
            })
            .collect()
    });
    drop(engines);
    let stats = world.wait_stats("all leases are back", |stats| stats.leased == 0 && stats.playheads == 0);
    println!("{backend:?}: {seen:?}; {stats:?}");
    assert_eq!((stats.checksum_errors, stats.read_errors, stats.displaced), (0, 0, 0));
    assert!(seen["granted"] > ENGINES * WANTS / 2, "{seen:?}");
    assert!(stats.evictions > 100 && stats.hits > 0 && stats.joins > 0, "{stats:?}");
    assert!(stats.free + stats.resident <= 24);
    world.cache.shutdown();
}

#[test]
fn engines_in_threads_get_what_they_want() {
    BACKENDS.into_iter().for_each(stress);
}
