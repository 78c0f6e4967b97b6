//! Nanoseconds for a segment, from due to frame and acknowledged, without a device: only the effect
//! of the number of connections is left. Therefore a connection always sends the same amount when
//! it has its turn; how much less it is for each when it sends more at once, is shown beside it.

use std::hint::black_box;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::benches::tcp_turns::{ACKS_PER_TURN, Ground};
use crate::frame::stats::{Spread, median};
use crate::frame::ticks::clock;
use crate::frame::{Axis, NoiseMeter, Options, Plot, PlotKind, Point, Promise, Report, Row, Turns};

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

/// Nanoseconds for a segment and its ACK with one number of connections.
struct TurnResult {
    /// With ACKs behind the output stage.
    deferred: f64,
    /// The ACK alone.
    ack: f64,
    /// With ACKs at once.
    prompt: f64,
    /// With one segment of each connection in a turn.
    single: f64,
}

pub(super) fn run(options: &Options, report: &mut Report, noise: &mut NoiseMeter) -> anyhow::Result<()> {
    let turns = options.pick(20, 1500, 6000);
    let most = options.pick(128, u32::MAX, u32::MAX);
    let counts: Vec<u32> = CONNECTIONS.into_iter().filter(|connections| *connections <= most).collect();
    let names: Vec<String> = counts.iter().map(|count| format!("null device, {count} connections")).collect();
    let turn = |at: usize, _| -> anyhow::Result<TurnResult> {
        let connections = counts[at];
        // A turn has as many segments whoever sends them.
        let turn = |each: u32| (connections.min(ACKS_PER_TURN / each), each);
        let took = Ground::new(connections, true)?.measure(turns, turn(EACH))?;
        let at_once = Ground::new(connections, false)?.measure(turns, turn(EACH))?;
        let single = Ground::new(connections, true)?.measure(turns, turn(1))?;
        Ok(TurnResult {
            deferred: took.segment + took.ack,
            ack: took.ack,
            prompt: at_once.segment + at_once.ack,
            single: single.segment + single.ack,
        })
    };
    let seen = Turns::take(options, noise, &names, turn, |seen| promises(&counts, seen))?;
    rows(&names, &seen, report);
    report.promises.extend(promises(&counts, &seen));
    let middle = position(&counts, 64).map_or(f64::NAN, |at| seen.median(at, |turn| turn.deferred));
    beyond(options, middle, report);
    report.plots.push(plot(&counts, &seen));
    Ok(())
}

fn position(counts: &[u32], connections: u32) -> Option<usize> {
    counts.iter().position(|count| *count == connections)
}

/// The number of the best median of `contenders`.
fn best(seen: &Turns<TurnResult>, contenders: usize) -> usize {
    let median = |at: &usize| seen.median(*at, |turn| turn.deferred);
    (0..contenders).min_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or(0)
}

fn rows(names: &[String], seen: &Turns<TurnResult>, report: &mut Report) {
    let least = best(seen, names.len());
    for (at, name) in names.iter().enumerate() {
        let spread = Spread::of(&seen.values(at, |turn| turn.deferred));
        report.rows.push(
            Row::new(name.as_str())
                .with("a segment and its ACK, rescheduled", seen.median(at, |turn| turn.deferred), "ns")
                .with("p10", spread.p10, "")
                .with("p90", spread.p90, "")
                .with("of that the ACK", seen.median(at, |turn| turn.ack), "ns")
                .with("ACKs at once", seen.median(at, |turn| turn.prompt), "ns")
                .with("over the best", seen.ratio(at, least, |turn| turn.deferred).mid, "")
                .with("one segment of each in a turn", seen.median(at, |turn| turn.single), "ns"),
        );
    }
}

fn promises(counts: &[u32], seen: &Turns<TurnResult>) -> Vec<Promise> {
    let least = best(seen, counts.len());
    let promise = |(connections, name, bound): (u32, &str, f64)| {
        let ratio = seen.ratio(position(counts, connections)?, least, |turn| turn.deferred);
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

fn plot(counts: &[u32], seen: &Turns<TurnResult>) -> Plot {
    let x = Axis::log("connections", "");
    let plot =
        Plot::new(PlotKind::Lines, "a segment and its ACK, into a null device", x, Axis::new("time", "ns"));
    let line = |figure: fn(&TurnResult) -> f64| -> Vec<Point> {
        let point = |(at, count): (usize, &u32)| {
            let spread = Spread::of(&seen.values(at, figure));
            Point::xy(f64::from(*count), spread.p50).within(spread.p10, spread.p90)
        };
        counts.iter().enumerate().map(point).collect()
    };
    plot.with("rescheduled", line(|turn| turn.deferred)).with("at once", line(|turn| turn.prompt))
}
