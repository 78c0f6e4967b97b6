//! The paper's test of perturbation (section IV): how fast a host's processor copies memory while the engine's is idle, looks for work, carries a
//! connection, or copies too.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::rig::{Places, Side, ToeRig, become_};
use super::tables::{ENGINE, LARGE, POLLING};
use super::work::{TransferDirection, WALK_BYTES, Walk};
use crate::frame::stats::{Spread, median};
use crate::frame::{NoiseMeter, Options, Report, Row};

/// The paper's measurement: 642 MB/s, and 637 with the other processor copying.
const PAPER_PERCENT: f64 = 0.8;

/// The load on the engine's processor meanwhile.
const CASES: [&str; 4] = [
    "the engine sleeps",
    "the engine looks for work and finds none",
    "the engine sends, with its application and its peer on its processor",
    "memory is copied on the engine's processor too",
];

pub(super) fn run(
    options: &Options,
    tun: bool,
    rig: &mut ToeRig,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let bytes = options.pick(1 << 20, WALK_BYTES, WALK_BYTES);
    let length = Duration::from_millis(options.pick(10, 250, 500));
    let rounds = options.runs.unwrap_or(options.pick(1, 5, 9));
    let mut walk = Walk::new(bytes, LARGE);
    let mut rates: [Vec<f64>; CASES.len()] = Default::default();
    for round in 0..rounds {
        noise.look();
        options.go_on()?;
        options.say(&format!("perturbation, round {}", round + 1));
        for at in 0..CASES.len() {
            let case = (at + round) % CASES.len();
            rates[case].push(one(case, rig, tun, &mut walk, (bytes, length))?);
        }
    }
    let base = median(&rates[0]);
    for (name, rates) in CASES.iter().zip(&rates) {
        let label = format!("copies of {} MB on the host's processor while {name}", bytes >> 20);
        let spread = Spread::of(rates);
        noise.repeated(&label, rates);
        report.rows.push(
            Row::new(label)
                .with("rate", median(rates), "MB/s")
                .with("p10", spread.p10, "")
                .with("p90", spread.p90, "")
                .with("slower by", (1.0 - median(rates) / base) * 100.0, "%")
                .with("paper", PAPER_PERCENT, "%"),
        );
    }
    Ok(())
}

/// MB/s of the host's copies in one case.
fn one(
    case: usize,
    rig: &mut ToeRig,
    tun: bool,
    walk: &mut Walk,
    (bytes, length): (usize, Duration),
) -> anyhow::Result<f64> {
    let Places { app, engine, .. } = Places::apart();
    let stop = AtomicBool::new(false);
    match case {
        0 | 1 => {
            let contender = if case == 0 { ENGINE } else { POLLING };
            let _engine = contender.start(rig, tun, (LARGE, 0), engine)?;
            copies_on(app, bytes, length, &stop)
        }
        2 => {
            let (tell, told) = mpsc::channel();
            let tell = std::sync::Mutex::new(tell);
            let beside = |_: [(Side, Option<u32>); 3]| {
                let rate = copies_on(app, bytes, length, &stop);
                let tell = tell.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                // Who asked is still there: it waits for this.
                let _ = tell.send(rate);
            };
            let places = Places { app: engine, engine, napi: engine, peer: engine, peer_napi: engine };
            ENGINE.slot_at(
                rig,
                tun,
                places,
                (TransferDirection::Send, LARGE, length),
                walk,
                Some(&beside),
            )?;
            told.recv().context("nobody copied")?
        }
        _ => std::thread::scope(|scope| {
            let other = scope.spawn(|| copies_on(engine, bytes, length * 20, &stop));
            let rate = copies_on(app, bytes, length, &stop);
            stop.store(true, Ordering::Relaxed);
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            rate
        }),
    }
}

/// Copies on processor `cpu` for `length`, or until `stop` is set; returns MB/s.
fn copies_on(cpu: usize, bytes: usize, length: Duration, stop: &AtomicBool) -> anyhow::Result<f64> {
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| -> anyhow::Result<f64> {
            become_("bench-copy", cpu)?;
            let (from, mut to) = (vec![1_u8; bytes], vec![2_u8; bytes]);
            let (begun, mut done) = (Instant::now(), 0);
            while done == 0 || begun.elapsed() < length && !stop.load(Ordering::Relaxed) {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
                done += bytes;
            }
            Ok(done as f64 / 1e6 / begun.elapsed().as_secs_f64())
        });
        copying.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
