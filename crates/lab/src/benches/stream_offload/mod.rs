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
use crate::frame::stats::Spread;
use crate::frame::{
    Axis, Bench, Interval, Need, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Turns,
};
use crate::streams::{Blocks, TitleFolder};

/// The benchmark.
pub(super) const BENCH: Bench = Bench {
    name: "stream-offload",
    shows: "paced streams by TCP on this kernel's sockets and the offload engine's, by a thread each and by this program's stream engine, on the host and in the offload engine: load of the host, and of all",
    not_for: "how many viewers a server carries: the hosts are joined by a veth pair and share processors with the viewers",
    options: &["runs", "streams", "rate", "tun", "quick", "scratch"],
    targets: &["stream-offload-each", "stream-offload-works-with", "stream-offload-viewers"],
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
    let length = Duration::from_millis(options.pick(200, 2000, 5000));
    let count = options.streams.unwrap_or(options.pick(4, STREAMS, STREAMS)).clamp(1, STREAMS) as u32;
    let rate = options.rates.first().copied().unwrap_or(RATE);
    let blocks = Blocks::of(rate, INTERVAL)?;
    let dir = Scratch::new(options, "stream-offload")?;
    let media = TitleFolder::make(&dir.0, blocks, length.as_secs() + 20, 1)?;
    let mut rig = ToeRig::lay(MTU)?;
    let names = Case::ALL.map(|case| format!("{count} streams of {rate}: {}", case.name()));
    let turn = |at: usize, _| carry(&mut rig, options, Case::ALL[at], &media, count, length);
    let seen = Turns::take(options, &mut noise, &names, turn, judge)?;
    for (at, name) in names.into_iter().enumerate() {
        noise.repeated(&name, &seen.values(at, |loads| loads.host));
        report.rows.push(row(name, &seen, at));
    }
    report.rows.extend(throughputs(&seen));
    report.promises = judge(&seen);
    report.plots.push(plot(&seen));
    report.noise = Some(noise.finish());
    Ok(report)
}

fn row(name: String, seen: &Turns<SenderLoads>, at: usize) -> Row {
    let middle = |figure: fn(&SenderLoads) -> f64| seen.median(at, figure);
    let spread = Spread::of(&seen.values(at, |loads| loads.host));
    Row::new(name)
        .with("host", spread.p50, "% a Gb/s")
        .with("p10", spread.p10, "")
        .with("p90", spread.p90, "")
        .with("engine", middle(|loads| loads.engine), "")
        .with("interface", middle(|loads| loads.interface), "")
        .with("total", middle(|loads| loads.total), "% a Gb/s")
        .with("waits", middle(|loads| loads.waits_per_s), "1/s")
        .with("delivered", middle(|loads| loads.delivered) * 100.0, "%")
        .with("viewers of a processor, all counted", middle(SenderLoads::viewers), "")
}

fn index(case: Case) -> usize {
    Case::ALL.iter().position(|one| *one == case).unwrap_or_default()
}

fn is_kept(seen: &Turns<SenderLoads>, case: Case) -> bool {
    seen.median(index(case), |loads| loads.delivered) >= DELIVERED
}

/// A load of one case over that of another in the same round; NaN if one of them did not deliver.
fn ratio(seen: &Turns<SenderLoads>, of: Case, over: Case, load: fn(&SenderLoads) -> f64) -> Interval {
    match is_kept(seen, of) && is_kept(seen, over) {
        true => seen.ratio(index(of), index(over), load),
        false => f64::NAN.into(),
    }
}

/// Throughput of a host's processor on the engine's sockets over that on the kernel's: with a thread each, and from this
/// program's stream engine.
fn by_sockets(seen: &Turns<SenderLoads>) -> [Interval; 2] {
    [(Case::EachKernel, Case::EachEngine), (Case::StreamEngine, Case::OnSockets)]
        .map(|(kernel, engine)| ratio(seen, kernel, engine, |loads| loads.host))
}

fn throughputs(seen: &Turns<SenderLoads>) -> [Row; 2] {
    let [each, works_with] = by_sockets(seen);
    [
        ("a thread each: engine's sockets over the kernel's", each, 25.0),
        ("this program's stream engine: engine's sockets over the kernel's", works_with, 60.0),
    ]
    .map(|(name, ratio, paper)| {
        Row::new(format!("throughput of a host's processor, {name}"))
            .with("more", (ratio.mid - 1.0) * 100.0, "%")
            .with("paper", paper, "%")
    })
}

fn judge(seen: &Turns<SenderLoads>) -> Vec<Promise> {
    let [each, works_with] = by_sockets(seen);
    // The best that this kernel does.
    let total = |case: &Case| seen.median(index(*case), |loads| loads.total);
    let kernels = [Case::EachKernel, Case::StreamEngine].into_iter().filter(|case| is_kept(seen, *case));
    let best = kernels.min_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or(Case::StreamEngine);
    // As a server sends.
    let viewers = ratio(seen, best, Case::Inside, |loads| loads.total);
    vec![
        Promise::at_least("stream-offload-each", each, EACH, "of the kernel's"),
        Promise::at_least("stream-offload-works-with", works_with, WORKS_WITH, "of the kernel's"),
        Promise::at_least("stream-offload-viewers", viewers, 1.0, "of the kernel's"),
    ]
}

fn plot(seen: &Turns<SenderLoads>) -> Plot {
    let axis = Axis::new("load", "% of a processor a Gb/s");
    let title = "paced streams by TCP: the host's load, and all of it";
    let mut plot = Plot::new(PlotKind::Bars, title, Axis::default(), axis);
    let bars = |figure: fn(&SenderLoads) -> f64| -> Vec<Point> {
        let bar = |(at, case): (usize, Case)| Point::bar(case.name(), seen.median(at, figure));
        Case::ALL.into_iter().enumerate().map(bar).collect()
    };
    plot = plot.with("host", bars(|loads| loads.host));
    plot = plot.with("total", bars(|loads| loads.total));
    plot
}
