//! Nanoseconds for a segment, from due to frame and acknowledged, without a device: only the effect
//! of the number of connections is left. Therefore a connection always sends the same amount when
//! it has its turn; how much less it is for each when it sends more at once, is shown beside it.

use std::hint::black_box;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::benches::tcp_turns::{ACKS_PER_TURN, Ground};
use crate::frame::stats::{Spread, median, ratio_interval};
use crate::frame::ticks::clock;
use crate::frame::{
    Axis, LEAST_ROUNDS, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Rounds, Row,
};

const CONNECTIONS: [u32; 10] = [1, 2, 4, 8, 16, 32, 64, 256, 1000, 10_000];
/// Segments of a connection in one turn: they fit the first window.
const EACH: u32 = 8;
/// The two that are promised, and how far they may be from the best.
const PROMISED: [(u32, &str, f64); 2] = [(64, "tcp-sessions-64", 1.02), (10_000, "tcp-sessions-10000", 1.3)];
/// The paper's unit, and the processor time that it needed beside the transfer, in microseconds.
const UNIT_BYTES: usize = 4096;
const PAPER_BEYOND_US: f64 = 19.0;
const PAPER_TRANSFER_US: f64 = 321.0;
/// Memory in which the unit is not in any cache.
const COLD_BYTES: usize = 64 << 20;

/// The results with this number of connections: of each round, with ACKs behind the output stage
/// and at once.
struct TurnResults {
    connections: u32,
    deferred: Vec<f64>,
    prompt: Vec<f64>,
    ack: Vec<f64>,
    /// With one segment of each connection in a turn.
    single: Vec<f64>,
}

impl TurnResults {
    fn new(connections: u32) -> Self {
        let [deferred, prompt, ack, single] = [const { Vec::new() }; 4];
        Self { connections, deferred, prompt, ack, single }
    }
}

pub(super) fn run(options: &Options, report: &mut Report, noise: &mut NoiseMeter) -> anyhow::Result<()> {
    let mut rounds = Rounds::at_least(options, options.pick(1, LEAST_ROUNDS, LEAST_ROUNDS));
    let turns = options.pick(20, 1500, 6000);
    let most = options.pick(128, u32::MAX, u32::MAX);
    let mut all: Vec<TurnResults> =
        CONNECTIONS.into_iter().filter(|connections| *connections <= most).map(TurnResults::new).collect();
    while rounds.go_on(|confidence| promises(&all, confidence).iter().all(Promise::is_decided)) {
        noise.look();
        options.say(&format!("null device, round {}", rounds.count()));
        for seen in &mut all {
            options.go_on()?;
            // A turn has as many segments whoever sends them.
            let turn = |each: u32| (seen.connections.min(ACKS_PER_TURN / each), each);
            let took = Ground::new(seen.connections, true)?.measure(turns, turn(EACH))?;
            let at_once = Ground::new(seen.connections, false)?.measure(turns, turn(EACH))?;
            let single = Ground::new(seen.connections, true)?.measure(turns, turn(1))?;
            seen.deferred.push(took.segment + took.ack);
            seen.prompt.push(at_once.segment + at_once.ack);
            seen.ack.push(took.ack);
            seen.single.push(single.segment + single.ack);
        }
    }
    rows(&all, report);
    report.promises.extend(promises(&all, rounds.confidence()));
    let middle = all.iter().find(|seen| seen.connections == 64).map_or(f64::NAN, |s| median(&s.deferred));
    beyond(options, middle, report);
    report.plots.push(plot(&all));
    Ok(())
}

/// The best of those medians.
fn best(all: &[TurnResults]) -> Option<&TurnResults> {
    all.iter().min_by(|a, b| median(&a.deferred).total_cmp(&median(&b.deferred)))
}

fn rows(all: &[TurnResults], report: &mut Report) {
    let least = best(all).map_or(f64::NAN, |seen| median(&seen.deferred));
    for seen in all {
        let spread = Spread::of(&seen.deferred);
        report.rows.push(
            Row::new(format!("null device, {} connections", seen.connections))
                .with("a segment and its ACK, rescheduled", median(&seen.deferred), "ns")
                .with("p10", spread.p10, "")
                .with("p90", spread.p90, "")
                .with("of that the ACK", median(&seen.ack), "ns")
                .with("ACKs at once", median(&seen.prompt), "ns")
                .with("over the best", median(&seen.deferred) / least, "")
                .with("one segment of each in a turn", median(&seen.single), "ns"),
        );
    }
}

fn promises(all: &[TurnResults], confidence: f64) -> Vec<Promise> {
    let Some(least) = best(all) else { return Vec::new() };
    let promise = |(connections, name, bound): (u32, &str, f64)| {
        let seen = all.iter().find(|seen| seen.connections == connections)?;
        let ratio = ratio_interval(&seen.deferred, &least.deferred, confidence);
        Some(Promise::at_most(name, ratio, bound, "of the best"))
    };
    PROMISED.into_iter().filter_map(promise).collect()
}

/// "The protocol processing overhead was only 19 us" of 340 for 4 KB, whose transfer took the rest (section 5.1).
fn beyond(options: &Options, segment_ns: f64, report: &mut Report) {
    let from = vec![7_u8; options.pick(1 << 20, COLD_BYTES, COLD_BYTES)];
    let mut to = [0_u8; UNIT_BYTES];
    let mut took = Vec::new();
    for unit in from.chunks_exact(UNIT_BYTES) {
        let begun = clock().now();
        to.copy_from_slice(black_box(unit));
        took.push(clock().ns(begun, clock().now()));
        black_box(&to);
    }
    let (transfer, protocol) = (median(&took), segment_ns * UNIT_BYTES as f64 / DEFAULT_PACKET_BYTES as f64);
    report.rows.push(
        Row::new("4 KB, 64 connections: data transfer, and the time beyond it")
            .with("one copy of cold memory", transfer / 1e3, "us")
            .with("beyond", protocol / 1e3, "us")
            .with("beyond, of the transfer", protocol / transfer, "")
            .with("paper: transfer", PAPER_TRANSFER_US, "us")
            .with("paper: beyond", PAPER_BEYOND_US, "us")
            .with("paper: of the transfer", PAPER_BEYOND_US / PAPER_TRANSFER_US, ""),
    );
}

fn plot(all: &[TurnResults]) -> Plot {
    let x = Axis::log("connections", "");
    let mut plot =
        Plot::new(PlotKind::Lines, "a segment and its ACK, into a null device", x, Axis::new("time", "ns"));
    let line = |values: &dyn Fn(&TurnResults) -> Spread| -> Vec<Point> {
        let point = |seen: &TurnResults| {
            let spread = values(seen);
            Point::xy(f64::from(seen.connections), spread.p50).within(spread.p10, spread.p90)
        };
        all.iter().map(point).collect()
    };
    plot = plot.with("rescheduled", line(&|seen| Spread::of(&seen.deferred)));
    plot = plot.with("at once", line(&|seen| Spread::of(&seen.prompt)));
    plot
}
