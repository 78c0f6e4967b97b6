//! Evaluation of the figures: rows, ratios, the steps of the paper's argument, pictures and
//! targets.

use std::collections::BTreeSet;

use super::{Cell, Standing};
use crate::frame::stats::{median, ratio_interval};
use crate::frame::{Axis, Interval, NoiseMeter, Plot, PlotKind, Point, Promise, Report, Row};
use crate::streams::search::Bound;
use crate::streams::{SendMethod, Transport};

/// The engine against a process per stream, datagrams at the shortest interval.
const UDP_BOUND: f64 = 4.0;
const UDP_INTERVAL_MS: u64 = 20;
/// The engine against the best event loop, datagrams at every interval.
const EVENT_LOOP_BOUND: f64 = 1.0;
/// The engine against a process per stream in connections: 1360 streams instead of 720 (section 4.2), "almost doubled".
const TCP_BOUND: f64 = 1.9;
/// The paper's figures for the steps of its argument: sendfile measured (15 to 20 %), an event loop
/// estimated (9 % for `schedule`), and both measured.
const PAPER: [f64; 3] = [1.175, 1.09, 1360.0 / 720.0];

/// Adds everything that is derived from the rows.
pub(super) fn all(standings: &[Standing], report: &mut Report, noise: &mut NoiseMeter) {
    for standing in standings {
        noise.repeated(&standing.label(), &standing.streams);
    }
    report.rows.extend(steps(standings));
    report.plots.extend(plots(standings));
    report.promises.extend(promises(standings));
}

fn cells(standings: &[Standing]) -> BTreeSet<Cell> {
    standings.iter().map(|standing| standing.cell).collect()
}

fn of(standings: &[Standing], cell: Cell, kind: SendMethod) -> Option<&Standing> {
    standings.iter().find(|standing| standing.cell == cell && standing.kind == kind)
}

/// What one carries in relation to another, within a round.
fn ratio(one: &Standing, other: &Standing) -> Interval {
    ratio_interval(&one.streams, &other.streams, one.confidence)
}

fn ratio_of(standings: &[Standing], cell: Cell, kind: SendMethod, base: SendMethod) -> Option<Interval> {
    let ratio = ratio(of(standings, cell, kind)?, of(standings, cell, base)?);
    ratio.mid.is_finite().then_some(ratio)
}

/// Numbers of the standings of a cell that targets compare: a process per stream, the best event loop by datagrams, the engine.
pub(super) fn compared(standings: &[Standing], cell: Cell) -> Vec<usize> {
    let best = best_loop(standings, cell).filter(|_| cell.transport == Transport::Udp).map(|s| s.kind);
    let is_compared = |standing: &Standing| {
        let kinds = [Some(SendMethod::Process), best, Some(SendMethod::Engine)];
        standing.cell == cell && kinds.contains(&Some(standing.kind))
    };
    (0..standings.len()).filter(|at| is_compared(&standings[*at])).collect()
}

/// The event loop that carries the most, of those that took part in rounds if there are any.
fn best_loop(standings: &[Standing], cell: Cell) -> Option<&Standing> {
    let loops = standings.iter().filter(|s| s.cell == cell && s.kind.is_event_loop());
    let rank = |s: &Standing| (s.confidence > 0.0, median(&s.streams));
    loops.max_by(|a, b| rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1)))
}

/// The lines of one sender.
pub(super) fn rows(standing: &Standing, standings: &[Standing]) -> Vec<Row> {
    let label = standing.label();
    let streams = &standing.streams;
    let (low, high) =
        (streams.iter().copied().fold(f64::INFINITY, f64::min), streams.iter().copied().fold(0.0, f64::max));
    let base = ratio_of(standings, standing.cell, standing.kind, SendMethod::Process)
        .map_or(f64::NAN, |ratio| ratio.mid);
    let mut carried = Row::new(label.as_str())
        .with("streams", median(streams).round(), "")
        .with("min", low.round(), "")
        .with("max", high.round(), "")
        .with("to process", base, "");
    let mut rows = Vec::new();
    if let Some(at) = &standing.at {
        let (f, spent) = (&at.trial.figures, at.trial.spent.unwrap_or_default());
        let per_s = |count: u64| count as f64 / spent.wall_s.max(1e-3);
        carried = carried
            .with("tried", f64::from(f.viewers), "")
            .with("busy", at.busy * 100.0, "%")
            .with("lateness p50", f.p50_ms, "ms")
            .with("p99", f.p99_ms, "ms")
            .with("viewers' core", at.viewers_busy * 100.0, "%")
            .with("stolen", f.stolen_ratio * 100.0, "%");
        rows.push(
            Row::new(label.as_str())
                .with("voluntary switches", per_s(spent.voluntary_switches), "1/s")
                .with("involuntary", per_s(spent.involuntary_switches), "1/s")
                .with("system calls", at.trial.syscalls_per_s.unwrap_or(f64::NAN), "1/s")
                .with("soft interrupts", spent.softirq_s / spent.wall_s.max(1e-3) * 100.0, "%")
                .with("processes", spent.processes as f64, "")
                .with("memory", spent.memory_bytes as f64 / 1e6, "MB")
                .with("of it a stream", spent.memory_bytes as f64 / 1e3 / f64::from(f.viewers.max(1)), "kB"),
        );
    }
    rows.insert(0, carried);
    match standing.bound {
        Bound::Core => {}
        Bound::Delivery => {
            rows.push(Row::new(format!("{label}: more are not served, though the core has time")))
        }
        Bound::Extrapolated => {
            rows.push(Row::new(format!("{label}: so many were not tried: a line through what was")));
        }
    }
    rows
}

/// The paper's argument step by step, as ratios to a process per stream.
fn steps(standings: &[Standing]) -> Vec<Row> {
    let row = |label: String, [copies, switches, both]: [f64; 3]| {
        Row::new(format!("steps: {label}"))
            .with("fewer copies (sendfile)", copies, "")
            .with("fewer switches (events)", switches, "")
            .with("both (engine)", both, "")
    };
    let mut rows = Vec::new();
    for cell in cells(standings) {
        let ratios = [SendMethod::Sendfile, SendMethod::Events, SendMethod::Engine];
        let ratios = ratios.map(|kind| {
            ratio_of(standings, cell, kind, SendMethod::Process).map_or(f64::NAN, |ratio| ratio.mid)
        });
        if ratios.iter().any(|ratio| ratio.is_finite()) {
            rows.push(row(cell.label(), ratios));
        }
    }
    if !rows.is_empty() {
        rows.push(row("the paper, 500 kb/s (the second is its estimate)".to_owned(), PAPER));
    }
    rows
}

pub(super) fn promises(standings: &[Standing]) -> Vec<Promise> {
    let cells = cells(standings);
    let by = |transport: Transport| cells.iter().copied().filter(move |cell| cell.transport == transport);
    let least = |ratios: Vec<Interval>| ratios.into_iter().reduce(Interval::min);
    let to_process = |cell: Cell| ratio_of(standings, cell, SendMethod::Engine, SendMethod::Process);
    let to_loop =
        |cell: Cell| Some(ratio(of(standings, cell, SendMethod::Engine)?, best_loop(standings, cell)?));
    let short = by(Transport::Udp).filter(|cell| cell.interval_ms == UDP_INTERVAL_MS);
    let all = [
        ("streams-udp-ratio", least(short.filter_map(to_process).collect()), UDP_BOUND),
        (
            "streams-event-loop-ratio",
            least(by(Transport::Udp).filter_map(to_loop).collect()),
            EVENT_LOOP_BOUND,
        ),
        ("streams-tcp-ratio", least(by(Transport::Tcp).filter_map(to_process).collect()), TCP_BOUND),
    ];
    let promise =
        |(id, least, bound): (&str, Option<Interval>, f64)| Some(Promise::at_least(id, least?, bound, ""));
    all.into_iter().filter_map(promise).collect()
}

fn plots(standings: &[Standing]) -> Vec<Plot> {
    let mut plots = Vec::new();
    let tables: BTreeSet<(Transport, u64)> =
        standings.iter().map(|s| (s.cell.transport, s.cell.rate.0)).collect();
    for (transport, rate) in tables {
        let mine: Vec<&Standing> =
            standings.iter().filter(|s| (s.cell.transport, s.cell.rate.0) == (transport, rate)).collect();
        let Some(first) = mine.first() else { continue };
        let name =
            format!("{} at {}", if transport == Transport::Udp { "UDP" } else { "TCP" }, first.cell.rate);
        let bars = |title: &str, y: Axis, value: &dyn Fn(&Standing) -> Option<f64>| {
            let plot = Plot::new(PlotKind::Bars, format!("{name}: {title}"), Axis::default(), y);
            SendMethod::ALL.into_iter().fold(plot, |plot, kind| {
                let points = mine
                    .iter()
                    .filter(|s| s.kind == kind)
                    .filter_map(|s| Some(Point::bar(format!("{} ms", s.cell.interval_ms), value(s)?)));
                let points: Vec<Point> = points.collect();
                if points.is_empty() { plot } else { plot.with(kind.name(), points) }
            })
        };
        plots
            .push(bars("streams at 90 % of a core", Axis::new("streams", ""), &|s| Some(median(&s.streams))));
        let switches = |s: &Standing| {
            let spent = s.at.as_ref()?.trial.spent?;
            Some((spent.voluntary_switches + spent.involuntary_switches) as f64 / spent.wall_s.max(1e-3))
        };
        plots.push(bars("context switches there", Axis::new("switches", "1/s"), &switches));
        let shortest = mine.iter().map(|s| s.cell.interval_ms).min().unwrap_or_default();
        let (x, y) = (Axis::log("streams", ""), Axis::new("busy", "%"));
        let title = format!("{name}, every {shortest} ms: what streams take of a core");
        let plot = mine.iter().filter(|s| s.cell.interval_ms == shortest).fold(
            Plot::new(PlotKind::Lines, title, x, y),
            |plot, s| {
                let mut seen = s.seen.clone();
                seen.sort_by(|a, b| a.0.total_cmp(&b.0));
                let points = seen.into_iter().map(|(streams, busy)| Point::xy(streams, busy * 100.0));
                plot.with(s.kind.name(), points.collect())
            },
        );
        plots.push(plot);
    }
    plots
}
