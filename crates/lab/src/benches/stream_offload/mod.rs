//! Paced streams over TCP, and the division of the work: the four cases of the stream engine
//! paper's section 5 (Stream Engine 2003).
//!
//! | row | application | TCP |
//! | --- | --- | --- |
//! | a thread each | sleeps, reads a block, sends it | the kernel's; the engine's: an engine that does not work with the stream engine |
//! | this program's stream engine | its core loop over its cache, on the host | the kernel's, which the others are compared with; the engine's: one that works with it |
//! | the same in the offload engine | its core loop turns the engine | the engine's: one that implements it |
//!
//! The paper had a process for each stream and states that a thread has the same overhead; sockets
//! of the offload engine stay in the engine's program, so here both have threads.

mod library;
mod senders;

use std::time::Duration;

use millrace_core::units::BitRate;

use self::senders::{Case, SenderLoads, carry};
use crate::benches::toe::rig::ToeRig;
use crate::capacity::Scratch;
use crate::frame::stats::{CONFIDENCE, Spread, median, ratio_interval};
use crate::frame::{Axis, Bench, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row};
use crate::streams::{Blocks, TitleFolder};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "stream-offload",
    shows: "paced streams by TCP on this kernel's sockets and the offload engine's, by a thread each and by this program's stream engine, on the host and in the offload engine: load of the host, and of all",
    not_for: "how many viewers a server carries: the hosts are joined by a veth pair and share processors with the viewers",
    options: &["runs", "streams", "rate", "tun", "quick", "scratch"],
    targets: &[
        "stream-offload-each",
        "stream-offload-works-with",
        "stream-offload-viewers",
        "stream-offload-host",
    ],
    needs: &[
        Need::Root,
        Need::Program("ethtool", "apt-get install ethtool"),
        Need::Program("ip", "apt-get install iproute2"),
    ],
    run,
};

/// Media of a viewer.
const RATE: BitRate = BitRate(8_000_000);
/// From one block to the next.
const INTERVAL: Duration = Duration::from_millis(20);
/// Threads with sockets of the engine have a queue pair each, and an engine has 64 at most.
const STREAMS: usize = 48;
const MTU: u32 = 1500;
/// Part of the bytes that are due that has to arrive.
const DELIVERED: f64 = 0.98;
/// The paper: 25 % more than a process each, and 60 % more with a stream engine on the host. Its last
/// figure, a quarter of the host's load with the stream engine in the offload engine, is no target:
/// nothing is left to the host here, so its load is none.
const EACH: f64 = 1.25;
const WORKS_WITH: f64 = 1.6;

fn run(options: &Options) -> anyhow::Result<Report> {
    let mut report = Report::new("stream-offload");
    let mut noise = NoiseMeter::start();
    let rounds = options.runs.unwrap_or(options.pick(1, 6, 9));
    let length = Duration::from_millis(options.pick(200, 2000, 5000));
    let count = options.streams.unwrap_or(options.pick(4, STREAMS, STREAMS)).clamp(1, STREAMS) as u32;
    let rate = options.rates.first().copied().unwrap_or(RATE);
    let blocks = Blocks::of(rate, INTERVAL)?;
    let dir = Scratch::new(options, "stream-offload")?;
    let media = TitleFolder::make(&dir.0, blocks, length.as_secs() + 20, 1)?;
    let mut rig = ToeRig::lay(MTU)?;
    let mut seen: Vec<Vec<SenderLoads>> = Case::ALL.map(|_| Vec::new()).into();
    for round in 0..rounds {
        noise.look();
        for at in 0..Case::ALL.len() {
            options.go_on()?;
            let at = (at + round) % Case::ALL.len();
            options.say(&format!("{}, round {}", Case::ALL[at].name(), round + 1));
            seen[at].push(carry(&mut rig, options, Case::ALL[at], &media, count, length)?);
        }
    }
    for (case, seen) in Case::ALL.into_iter().zip(&seen) {
        let name = format!("{count} streams of {rate}: {}", case.name());
        noise.repeated(&name, &seen.iter().map(|seen| seen.host).collect::<Vec<_>>());
        report.rows.push(row(name, seen));
    }
    judge(&seen, &mut report);
    report.plots.push(plot(&seen));
    report.noise = Some(noise.finish());
    Ok(report)
}

fn middle(seen: &[SenderLoads], value: impl Fn(&SenderLoads) -> f64) -> f64 {
    median(&seen.iter().map(value).collect::<Vec<f64>>())
}

fn row(name: String, seen: &[SenderLoads]) -> Row {
    let spread = Spread::of(&seen.iter().map(|seen| seen.host).collect::<Vec<_>>());
    Row::new(name)
        .with("host", spread.p50, "% a Gb/s")
        .with("p10", spread.p10, "")
        .with("p90", spread.p90, "")
        .with("engine", middle(seen, |seen| seen.engine), "")
        .with("interface", middle(seen, |seen| seen.interface), "")
        .with("total", middle(seen, |seen| seen.total), "% a Gb/s")
        .with("waits", middle(seen, |seen| seen.waits_per_s), "1/s")
        .with("delivered", middle(seen, |seen| seen.delivered) * 100.0, "%")
        .with("viewers of a processor, all counted", middle(seen, SenderLoads::viewers), "")
}

fn judge(seen: &[Vec<SenderLoads>], report: &mut Report) {
    let of = |case: Case| Case::ALL.iter().position(|one| *one == case).map_or(&[][..], |at| &seen[at]);
    let is_kept = |case| middle(of(case), |seen| seen.delivered) >= DELIVERED;
    let loads = |case, load: fn(&SenderLoads) -> f64| -> Vec<f64> {
        if is_kept(case) { of(case).iter().map(load).collect() } else { Vec::new() }
    };
    let ratio = |of: &[f64], over: &[f64]| ratio_interval(of, over, CONFIDENCE);
    let host = |case| loads(case, |seen| seen.host);
    let each = ratio(&host(Case::EachKernel), &host(Case::EachEngine));
    let works_with = ratio(&host(Case::StreamEngine), &host(Case::OnSockets));
    for (name, ratio, paper) in [
        ("a thread each: engine's sockets over the kernel's", each, 25.0),
        ("this program's stream engine: engine's sockets over the kernel's", works_with, 60.0),
    ] {
        report.rows.push(
            Row::new(format!("throughput of a host's processor, {name}"))
                .with("more", (ratio.mid - 1.0) * 100.0, "%")
                .with("paper", paper, "%"),
        );
    }
    // The best that this kernel does.
    let best = |load: fn(&SenderLoads) -> f64| {
        let kernels = [Case::EachKernel, Case::StreamEngine].map(|case| loads(case, load)).into_iter();
        let measured = kernels.filter(|loads| !loads.is_empty());
        measured.min_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or_default()
    };
    let best_host = best(|seen| seen.host);
    let inside = ratio(&host(Case::Inside), &best_host);
    report.promises.extend([
        Promise::at_least("stream-offload-each", each, EACH, "of the kernel's"),
        Promise::at_least("stream-offload-works-with", works_with, WORKS_WITH, "of the kernel's"),
        // As a server sends.
        Promise::at_least(
            "stream-offload-viewers",
            ratio(&best(|seen| seen.total), &loads(Case::Inside, |seen| seen.total)),
            1.0,
            "of the kernel's",
        ),
        Promise::at_most(
            "stream-offload-host",
            inside.max(ratio(&host(Case::OnSockets), &best_host)),
            1.0,
            "of the kernel's time a byte",
        ),
    ]);
}

fn plot(seen: &[Vec<SenderLoads>]) -> Plot {
    let axis = Axis::new("load", "% of a processor a Gb/s");
    let title = "paced streams by TCP: the host's load, and all of it";
    let mut plot = Plot::new(PlotKind::Bars, title, Axis::default(), axis);
    let bars = |value: &dyn Fn(&SenderLoads) -> f64| -> Vec<Point> {
        Case::ALL.iter().zip(seen).map(|(case, seen)| Point::bar(case.name(), middle(seen, value))).collect()
    };
    plot = plot.with("host", bars(&|seen| seen.host));
    plot = plot.with("total", bars(&|seen| seen.total));
    plot
}
