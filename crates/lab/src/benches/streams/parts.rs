//! The engine's own thread in its usual bursts, and titles from disk.

use std::time::Duration;

use millrace_core::units::BitRate;

use super::{CACHE_BYTES, StreamsRun};
use crate::frame::{Interval, NoiseMeter, Promise, Report, Row, Turns};
use crate::streams::search::Bound;
use crate::streams::trial::{Attempt, SenderTestbed, Tried};
use crate::streams::{Blocks, SendMethod, Transport};

/// With ten viewers: how often the engine's thread waits, and how busy its core is, relative to the event loop
/// with the same blocks.
const SWITCHES_RATIO: f64 = 0.3;
const TEN_RATIO: f64 = 1.0;
const TEN: u32 = 10;
/// A rate at which ten viewers are no toy.
const HIGH_RATE: BitRate = BitRate(8_000_000);

/// Measures how often the engine's thread waits: with ten streams, beside an event loop, and with half
/// of its capacity, and with all of it.
pub(super) fn thread(
    run: &StreamsRun<'_>,
    rate: BitRate,
    report: &mut Report,
    noise: &mut NoiseMeter,
) -> anyhow::Result<()> {
    let mut worst: Option<[Interval; 2]> = None;
    let window = run.effort.window.max(Duration::from_secs(run.options.pick(1, 3, 5)));
    let transport = Transport::Udp;
    for rate in [HIGH_RATE, rate] {
        let media = run.media(&format!("usual-{}", rate.0), Blocks::single(rate), 1)?;
        let stage = SenderTestbed { is_usual: true, ..run.stage(&media) };
        let attempt = |kind, count| {
            run.try_once(&stage, Attempt { kind, transport, count, window, is_profiled: false })
        };
        let ten = TEN.min(run.effort.max);
        let names = TEN_CONTENDERS.map(|kind| format!("{}, {ten} streams of {rate}", kind.name()));
        let turn = |at: usize, _| attempt(TEN_CONTENDERS[at], ten);
        let seen = Turns::take(run.options, noise, &names, turn, |seen| promises(ratios(seen)))?;
        for (at, name) in names.iter().enumerate() {
            report.rows.push(
                Row::new(format!("usual bursts: {name}"))
                    .with("switches", seen.median(at, switches_per_s), "1/s")
                    .with("of a core", seen.median(at, |tried| tried.busy) * 100.0, "%"),
            );
        }
        let ratios = ratios(&seen);
        worst = Some(worst.map_or(ratios, |[a, b]| [a.max(ratios[0]), b.max(ratios[1])]));
        if rate != HIGH_RATE && !run.options.tiny {
            let (answer, ..) = run.find(&stage, SendMethod::Engine, transport)?;
            let all = (answer.streams as u32).clamp(1, run.effort.max);
            for (count, name) in [(all / 2, "half"), (all, "all of the 90 %")] {
                report.rows.extend(thread_row(rate, count, name, &attempt(SendMethod::Engine, count)?));
            }
        }
    }
    report.promises.extend(worst.map(promises).unwrap_or_default());
    Ok(())
}

/// The engine, and the event loop that it is compared with.
const TEN_CONTENDERS: [SendMethod; 2] = [SendMethod::Engine, SendMethod::Events];

/// How often the thread that sends waits.
fn switches_per_s(tried: &Tried) -> f64 {
    let spent = tried.trial.spent.unwrap_or_default();
    let all = spent.voluntary_switches as f64 / spent.wall_s;
    tried.engine.map_or(all, |engine| engine.voluntary_per_s)
}

fn ratios(seen: &Turns<Tried>) -> [Interval; 2] {
    [seen.ratio(0, 1, switches_per_s), seen.ratio(0, 1, |tried| tried.busy)]
}

fn promises([switches, share]: [Interval; 2]) -> Vec<Promise> {
    vec![
        Promise::at_most("streams-engine-switches", switches, SWITCHES_RATIO, "of an event loop"),
        Promise::at_most("streams-engine-ten", share, TEN_RATIO, "of an event loop"),
    ]
}

fn thread_row(rate: BitRate, count: u32, name: &str, tried: &Tried) -> Option<Row> {
    let engine = tried.engine?;
    let label = format!("the engine's thread, usual bursts, {count} streams of {rate} ({name})");
    Some(
        Row::new(label)
            .with("voluntary switches", engine.voluntary_per_s, "1/s")
            .with("involuntary", engine.involuntary_per_s, "1/s")
            .with("of a core", engine.share * 100.0, "%")
            .with("all on that core", tried.busy * 100.0, "%")
            .with("lateness p99", tried.trial.figures.p99_ms, "ms"),
    )
}

/// Titles from disk (section 3.2: "100 video files are streamed concurrently").
const TITLES: u32 = 100;
/// Sizes of reads: the paper tuned extents and read-ahead of its file system to 128 KB.
const READS_KB: [usize; 4] = [4, 32, 128, 512];
/// The engine's cache holds less than half of the titles.
const FILES_CACHE_BYTES: u64 = 160 << 20;
/// Blocks of a tenth of a second: of several datagrams, and no reads by the millisecond.
const FILES_INTERVAL: Duration = Duration::from_millis(100);

/// 100 titles, none of them in the kernel's cache: each stream reads by itself past that cache,
/// with reads of several sizes; the same through the cache, which is empty when each trial begins;
/// the engine, whose streams share the data that it reads.
pub(super) fn files(run: &StreamsRun<'_>, rate: BitRate, report: &mut Report) -> anyhow::Result<()> {
    let titles = run.options.pick(3, TITLES, TITLES);
    let media = run.media("files", Blocks::of(rate, FILES_INTERVAL)?, titles)?;
    let sizes: &[usize] = run.options.pick(&READS_KB[2..3], &READS_KB[..], &READS_KB[..]);
    let direct = |kind| sizes.iter().map(move |kb| (kind, kb * 1024));
    let mut ways: Vec<(SendMethod, usize)> = direct(SendMethod::Process).collect();
    if !run.options.tiny {
        ways.push((SendMethod::Process, 0));
        ways.push((SendMethod::Sendfile, 0));
    }
    ways.push((SendMethod::Engine, 0));
    for (kind, read_bytes) in ways.into_iter().filter(|(kind, _)| run.only.kind(*kind)) {
        let cache_bytes = if run.options.tiny { CACHE_BYTES } else { FILES_CACHE_BYTES };
        let stage = SenderTestbed { read_bytes, cache_bytes, ..run.stage(&media) };
        let how = match (kind, read_bytes) {
            (SendMethod::Engine, _) => "a cache of its own".to_owned(),
            (_, 0) => "the kernel's cache".to_owned(),
            (_, bytes) => format!("reads of {} KB", bytes / 1024),
        };
        let label = format!(
            "{titles} titles from disk, UDP, {rate}, every {} ms: {}, {how}",
            FILES_INTERVAL.as_millis(),
            kind.name()
        );
        media.forget()?;
        let row = match run.find(&stage, kind, Transport::Udp) {
            Err(error) => {
                run.options.go_on()?;
                Row::new(format!("{label}: does not work here: {error:#}"))
            }
            Ok((answer, at, _)) => {
                let figures = at.as_ref().map(|at| (at.busy, at.trial.figures)).unwrap_or_default();
                Row::new(label)
                    .with("streams", answer.streams.round(), "")
                    .with("rate", answer.streams * rate.0 as f64 / 1e6, "Mb/s")
                    .with("bounded by the disk", f64::from(u8::from(answer.bound == Bound::Delivery)), "")
                    .with("tried", f64::from(figures.1.viewers), "")
                    .with("busy", figures.0 * 100.0, "%")
                    .with("lateness p50", figures.1.p50_ms, "ms")
                    .with("p99", figures.1.p99_ms, "ms")
            }
        };
        report.rows.push(row);
    }
    Ok(())
}
