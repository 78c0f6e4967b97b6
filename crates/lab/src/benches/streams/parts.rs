//! The engine's own thread in its usual bursts, and titles from disk.

use std::time::Duration;

use millrace_core::units::BitRate;

use super::{CACHE_BYTES, StreamsRun};
use crate::frame::{Promise, Report, Row};
use crate::streams::search::Bound;
use crate::streams::trial::{Attempt, SenderTestbed, Tried};
use crate::streams::{Blocks, SendMethod, Transport};

/// Limit for the engine's thread without smooth viewers, at any number of streams.
const SWITCHES_PER_S: f64 = 125.0;
/// Share of a core that it may take with ten viewers.
const TEN_PERCENT: f64 = 3.0;
const TEN: u32 = 10;
/// A rate at which ten viewers are no toy.
const HIGH_RATE: BitRate = BitRate(8_000_000);

/// Measures how often the engine's thread waits: with ten streams, with half of its capacity, and
/// with all of it.
pub(super) fn thread(run: &StreamsRun<'_>, rate: BitRate, report: &mut Report) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for rate in [HIGH_RATE, rate] {
        let media = run.media(&format!("usual-{}", rate.0), Blocks::single(rate), 1)?;
        let stage = SenderTestbed { is_usual: true, ..run.stage(&media) };
        let mut counts = vec![(TEN.min(run.effort.max), "ten")];
        if rate != HIGH_RATE && !run.options.tiny {
            let (answer, ..) = run.find(&stage, SendMethod::Engine, Transport::Udp, None)?;
            let all = (answer.streams as u32).clamp(1, run.effort.max);
            counts.extend([(all / 2, "half"), (all, "all of the 90 %")]);
        }
        for (count, name) in counts {
            let window = run.effort.window.max(Duration::from_secs(run.options.pick(1, 3, 5)));
            let (kind, transport) = (SendMethod::Engine, Transport::Udp);
            let tried =
                run.try_once(&stage, Attempt { kind, transport, count, window, is_profiled: false })?;
            rows.extend(thread_row(rate, count, name, &tried).map(|row| (row, count, tried)));
        }
    }
    report.promises.extend(promises(rows.iter().map(|(_, count, tried)| (*count, tried))));
    report.rows.extend(rows.into_iter().map(|(row, ..)| row));
    Ok(())
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

fn promises<'a>(rows: impl Iterator<Item = (u32, &'a Tried)> + Clone) -> Vec<Promise> {
    let engine = |tried: &Tried| tried.engine.unwrap_or_default();
    let switches = rows.clone().map(|(_, tried)| engine(tried).voluntary_per_s).reduce(f64::max);
    let ten = rows
        .filter(|(count, _)| *count == TEN)
        .map(|(_, tried)| engine(tried).share * 100.0)
        .reduce(f64::max);
    let switches = switches.map(|n| Promise::at_most("streams-engine-switches", n, SWITCHES_PER_S, "1/s"));
    let ten = ten.map(|share| Promise::at_most("streams-engine-ten", share, TEN_PERCENT, "% of a core"));
    switches.into_iter().chain(ten).collect()
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
        let row = match run.find(&stage, kind, Transport::Udp, None) {
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
