//! The paper's Table 1: every packet of a stream between two probes of its own.
//!
//! The cost of the probes is subtracted. The counter moves in steps (26 cycles on the machine where
//! this was written), so a minimum or a percentile of work of a few cycles is one step or none;
//! averages and totals are right.

use crate::framing::Connection;
use millrace_core::random::SplitMix;

use super::contenders::{Probed, Room, Task, procedures, versions};
use super::stream::PacketStream;
use crate::frame::stats::percentile_of_sorted;
use crate::frame::ticks::TickProbe;
use crate::frame::{Options, Row};

/// Packets of one contender in a row: long enough to warm up its code, short enough that all meet the same machine.
const TURN: usize = 1024;
/// Packets at the beginning of a turn that do not count: another contender's code and branches are in the caches.
const WARM_UP: usize = 32;

/// One line of the table.
pub(super) struct DistributionLine {
    name: &'static str,
    maximum: f64,
    minimum: f64,
    median: f64,
    average: f64,
    deviation: f64,
    /// All of the stream.
    total: f64,
    /// Percentiles 0.5 and 99.5, then 2.5 and 97.5.
    bounds: [f64; 4],
}

/// All lines of one size and state.
pub(super) fn measure(
    stream: &PacketStream<'_>,
    stream_bytes: usize,
    connection: &Connection,
    options: &Options,
) -> anyhow::Result<Vec<DistributionLine>> {
    let packets = (stream_bytes / stream.packet_bytes).max(1);
    let tasks: Vec<(&'static str, Task)> = versions().into_iter().chain(procedures()).collect();
    let probe = TickProbe::calibrated();
    let mut out: Vec<Room> = vec![[0; 128]; 64];
    let mut ticks: Vec<Vec<f32>> = tasks.iter().map(|_| Vec::with_capacity(packets)).collect();
    let mut random = SplitMix(1);
    options.say(&format!("single packets, {}", stream.label()));
    while ticks[0].len() < packets {
        options.go_on()?;
        let now = TURN.min(packets - ticks[0].len());
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        for at in order {
            let task = tasks[at].1;
            let prepared = task.prepare(connection, stream, stream.take(WARM_UP));
            let mut unused = Vec::with_capacity(WARM_UP);
            task.run(connection, &prepared, &mut Probed { probe, out: &mut out, ticks: &mut unused });
            let prepared = task.prepare(connection, stream, stream.take(now));
            task.run(connection, &prepared, &mut Probed { probe, out: &mut out, ticks: &mut ticks[at] });
        }
    }
    Ok(tasks.into_iter().zip(ticks).map(|((name, _), ticks)| DistributionLine::of(name, ticks)).collect())
}

impl DistributionLine {
    fn of(name: &'static str, ticks: Vec<f32>) -> Self {
        let mut sorted: Vec<f64> = ticks.into_iter().map(f64::from).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let packets = sorted.len();
        let total: f64 = sorted.iter().sum();
        let average = total / packets as f64;
        let deviation = (sorted.iter().map(|t| (t - average).powi(2)).sum::<f64>() / packets as f64).sqrt();
        // The counter's step can make a short piece of work look shorter than nothing.
        let at_least_nothing = |ticks: f64| ticks.max(0.0);
        Self {
            name,
            maximum: percentile_of_sorted(&sorted, 100.0),
            minimum: at_least_nothing(percentile_of_sorted(&sorted, 0.0)),
            median: at_least_nothing(percentile_of_sorted(&sorted, 50.0)),
            average,
            deviation,
            total,
            bounds: [0.5, 99.5, 2.5, 97.5].map(|p| at_least_nothing(percentile_of_sorted(&sorted, p))),
        }
    }

    /// The line as the paper prints it.
    pub(super) fn row(&self, stream: &PacketStream<'_>, ticks_per_ns: f64) -> Row {
        let [low_99, high_99, low_95, high_95] = self.bounds;
        Row::new(format!("table 1, {}: {}", stream.label(), self.name))
            .with("maximum", self.maximum.round(), "cycles")
            .with("minimum", self.minimum.round(), "cycles")
            .with("median", self.median.round(), "cycles")
            .with("average", self.average, "cycles")
            .with("average", self.average / ticks_per_ns / 1000.0, "µs")
            .with("standard deviation", self.deviation, "cycles")
            .with("total", self.total.round(), "cycles")
            .with("99 % from", low_99.round(), "cycles")
            .with("99 % to", high_99.round(), "cycles")
            .with("95 % from", low_95.round(), "cycles")
            .with("95 % to", high_95.round(), "cycles")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_packet_ticks_has_expected_statistics() {
        let mut ticks = vec![10.0; 996];
        ticks.extend([-2.0, 30.0, 1000.0, 30.0]);
        let line = DistributionLine::of("x", ticks);
        assert_eq!((line.maximum, line.minimum, line.median), (1000.0, 0.0, 10.0));
        assert_eq!(line.total, 9960.0 + 1058.0);
        assert_eq!(line.average, line.total / 1000.0);
        assert_eq!(line.bounds, [10.0; 4]);
        assert!((31.0..32.0).contains(&line.deviation), "{}", line.deviation);
    }
}
