//! Two engines on two cores beside one: what sharing the arena, and nothing else, costs.
//!
//! Each engine first runs alone on its core, one after the other, then both at once, for the same
//! time; all play the same extents. A device that sends nothing takes their packets, so that they
//! share neither the kernel nor a link.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{EngineWork, Paced, Title};
use crate::frame::stats::{Spread, ratio_interval};
use crate::frame::{Noise, NoiseMeter, Options, Promise, Rounds, Row};

/// Least packets of two engines together, by those of one.
const PAIR_BOUND: f64 = 1.8;
/// The target.
pub(super) const TARGET: &str = "engine-pair-rate";
const ALONE: &str = "one engine alone";
const BOTH: &str = "two engines on two cores";

/// The results.
pub(super) struct Pair {
    pub(super) rows: Vec<Row>,
    pub(super) promise: Promise,
    pub(super) noise: Noise,
}

/// Measures it; `None` on a machine with a single core.
pub(super) fn measure(options: &Options) -> anyhow::Result<Option<Pair>> {
    let Some(cpus) = two_cpus() else { return Ok(None) };
    let streams = options.streams.map_or(Ok(options.pick(100, 1_000, 10_000)), u32::try_from)?;
    let slot = Duration::from_millis(options.pick(5, 200, 300));
    let title = Arc::new(Title::new()?);
    let engine = || Paced::new(streams, EngineWork::default(), Arc::clone(&title));
    let (mut first, mut second) = (engine()?, engine()?);
    let mut noise = NoiseMeter::start();
    let (mut alone, mut both) = (Vec::new(), Vec::new());
    let mut round = || -> anyhow::Result<[f64; 2]> {
        options.go_on()?;
        noise.look();
        let [one_cpu, other_cpu] = cpus;
        let one =
            (run(&mut [(&mut first, one_cpu)], slot)? + run(&mut [(&mut second, other_cpu)], slot)?) / 2.0;
        Ok([one, run(&mut [(&mut first, one_cpu), (&mut second, other_cpu)], slot)?])
    };
    // The first round warms up.
    round()?;
    let mut rounds = Rounds::new(options);
    let promise = |alone: &[f64], both: &[f64], confidence| {
        Promise::at_least(TARGET, ratio_interval(both, alone, confidence), PAIR_BOUND, "x one engine")
    };
    while rounds.go_on(|confidence| promise(&alone, &both, confidence).is_decided()) {
        let [one, two] = round()?;
        alone.push(one);
        both.push(two);
    }
    noise.repeated(ALONE, &alone);
    noise.repeated(BOTH, &both);
    let row = |label: &str, rates: &[f64]| {
        let Spread { p10, p50, p90 } = Spread::of(rates);
        let row = Row::new(format!("{streams} streams: {label}"));
        row.with("p10", p10, "packets/s").with("p50", p50, "packets/s").with("p90", p90, "packets/s")
    };
    let promise = promise(&alone, &both, rounds.confidence());
    let rows = vec![row(ALONE, &alone), row(BOTH, &both).with("ratio", promise.value, "x")];
    Ok(Some(Pair { rows, promise, noise: noise.finish() }))
}

/// Runs each engine on its core for `slot`, all at once; returns the packets a second of all
/// together.
fn run(engines: &mut [(&mut Paced, usize)], slot: Duration) -> anyhow::Result<f64> {
    let start = &Barrier::new(engines.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = engines
            .iter_mut()
            .map(|(paced, cpu)| scope.spawn(move || run_one(paced, *cpu, start, slot)))
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<f64>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).sum()
    })
}

/// Runs one on the calling thread; its packets a second.
fn run_one(paced: &mut Paced, cpu: usize, start: &Barrier, slot: Duration) -> anyhow::Result<f64> {
    let mut one = CpuSet::new();
    one.set(cpu);
    let pinned = sched_setaffinity(None, &one);
    start.wait();
    pinned.with_context(|| format!("pin an engine to core {cpu}"))?;
    let begun = Instant::now();
    let mut packets = 0;
    while begun.elapsed() < slot {
        for _ in 0..TURNS_PER_LOOK {
            packets += paced.turn()?;
        }
    }
    Ok(packets as f64 / begun.elapsed().as_secs_f64())
}

/// Turns between two looks at the clock, each about a full batch.
const TURNS_PER_LOOK: usize = 16;

/// The last two processors that this process may use.
fn two_cpus() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).rev().filter(|cpu| allowed.is_set(*cpu));
    Some([cpus.next()?, cpus.next()?])
}
