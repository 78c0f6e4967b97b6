//! From contests to tables, pictures and promises.

use std::collections::BTreeMap;

use super::stage::Temperature;
use crate::frame::stats::{median, median_interval};
use crate::frame::{Axis, ContestResult, Interval, Noise, Plot, PlotKind, Point, Promise, Report, Row};

/// Share of the best loop's rate that the choice must reach.
const CHOICE_BOUND: f64 = 0.9;
/// How many times the rate of sendmmsg staging has to reach with single datagrams.
const STAGING_BOUND: f64 = 1.8;

/// The kind of a contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackendKind {
    /// The loop around sendmmsg of single datagrams.
    Sendmmsg,
    /// Another plain loop.
    Loop,
    /// A loop that no server could use: not among the loops whose rate must be reached.
    Floor,
    /// A device of ours.
    Ours,
    /// The AF_XDP device that stages.
    Staging,
    /// The choice between ours.
    Choice,
}

impl BackendKind {
    fn is_loop(self) -> bool {
        matches!(self, Self::Sendmmsg | Self::Loop)
    }
}

/// A contender's name and kind.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) text: String,
    pub(super) kind: BackendKind,
}

/// The results up to this point.
pub(super) struct BackendResults {
    names: Vec<Name>,
    bursts: Vec<usize>,
    results: BTreeMap<(Temperature, usize), ContestResult>,
    /// Datagrams that were sent and did not come.
    pub(super) missing: u64,
    /// Datagrams that came with a wrong checksum.
    pub(super) checksum_errors: u64,
    /// Notes that accompany the figures.
    pub(super) notes: Vec<String>,
}

impl BackendResults {
    pub(super) fn new(names: Vec<Name>, bursts: &[usize]) -> Self {
        let (results, notes) = (BTreeMap::new(), Vec::new());
        Self { names, bursts: bursts.to_vec(), results, missing: 0, checksum_errors: 0, notes }
    }

    /// Adds a contest whose contenders are those of [`Self::new`], in order.
    pub(super) fn add(&mut self, temperature: Temperature, burst: usize, result: ContestResult) {
        self.results.insert((temperature, burst), result);
    }

    pub(super) fn report(self) -> Report {
        let mut report = Report::new("backends");
        for temperature in Temperature::ALL {
            report.rows.extend(self.table(temperature, "p50", |c| c.p50));
        }
        for temperature in Temperature::ALL {
            report.rows.extend(self.table(temperature, "p10", |c| c.p10));
        }
        let mut worst: Option<Interval> = None;
        for temperature in Temperature::ALL {
            for &burst in &self.bursts {
                let Some((row, ratio)) = self.choice(temperature, burst) else { continue };
                worst = Some(worst.map_or(ratio, |worst| worst.min(ratio)));
                report.rows.push(row);
            }
        }
        if let Some(worst) = worst {
            report.promises.push(Promise::at_least("backends-choice", worst, CHOICE_BOUND, ""));
        }
        for temperature in Temperature::ALL {
            if let Some(ratio) = self.staging(temperature) {
                let id = format!("backends-staging-{temperature}");
                report.promises.push(Promise::at_least(&id, ratio, STAGING_BOUND, ""));
            }
        }
        let none = |id, value: u64| Promise::at_most(id, value as f64, 0.0, "datagrams");
        report.promises.push(none("backends-missing", self.missing));
        report.promises.push(none("backends-checksum-errors", self.checksum_errors));
        report.plots = Temperature::ALL.map(|temperature| self.plot(temperature)).into();
        report.noise =
            Some(self.results.values().fold(Noise::quiet(), |noise, r| noise.and(r.noise.clone())));
        report.rows.extend(self.notes.iter().map(|note| Row::new(note.as_str())));
        report
    }

    /// A row for each contender: one figure at every length of burst.
    fn table(
        &self,
        temperature: Temperature,
        what: &str,
        figure: fn(&crate::frame::ContenderResult) -> f64,
    ) -> Vec<Row> {
        let row = |(at, name): (usize, &Name)| {
            let label = format!("{temperature}, {what}: {}", name.text);
            self.bursts.iter().fold(Row::new(label), |row, burst| {
                let result = self.results.get(&(temperature, *burst));
                let value = result.and_then(|r| r.contenders.get(at)).map_or(f64::NAN, figure);
                row.with(&format!("bursts of {burst}"), value, "ns/datagram")
            })
        };
        self.names.iter().enumerate().map(row).collect()
    }

    /// p50 of each round.
    fn rounds(&self, temperature: Temperature, burst: usize, at: usize) -> Option<&[f64]> {
        Some(&self.results.get(&(temperature, burst))?.contenders.get(at)?.rounds)
    }

    fn place_of(&self, kind: BackendKind) -> Option<usize> {
        self.names.iter().position(|name| name.kind == kind)
    }

    /// The choice beside the loop that was best with this length of bursts.
    fn choice(&self, temperature: Temperature, burst: usize) -> Option<(Row, Interval)> {
        let choice = self.rounds(temperature, burst, self.place_of(BackendKind::Choice)?)?;
        let loops = self.names.iter().enumerate().filter(|(_, name)| name.kind.is_loop());
        let loops = loops.filter_map(|(at, name)| Some((name, self.rounds(temperature, burst, at)?)));
        let (name, best) = loops.min_by(|a, b| median(a.1).total_cmp(&median(b.1)))?;
        let ratio = rate_ratio(choice, best);
        let row = Row::new(format!("{temperature}, bursts of {burst}: BestTx beside \"{}\"", name.text))
            .with("rate", ratio.mid, "")
            .with("low end", ratio.low, "")
            .with("high end", ratio.high, "");
        Some((row, ratio))
    }

    /// Staging beside sendmmsg, single datagrams.
    fn staging(&self, temperature: Temperature) -> Option<Interval> {
        let staging = self.rounds(temperature, 1, self.place_of(BackendKind::Staging)?)?;
        Some(rate_ratio(staging, self.rounds(temperature, 1, self.place_of(BackendKind::Sendmmsg)?)?))
    }

    fn plot(&self, temperature: Temperature) -> Plot {
        let (x, y) =
            (Axis::log("datagrams in a burst", ""), Axis::log("time per datagram, p10 to p50", "ns"));
        let title = format!("What a datagram costs, media {temperature}");
        let mut plot = Plot::new(PlotKind::Lines, title, x, y);
        for (at, name) in self.names.iter().enumerate() {
            let points = self.bursts.iter().filter_map(|burst| {
                let c = self.results.get(&(temperature, *burst))?.contenders.get(at)?;
                Some(Point::xy(*burst as f64, c.p50).within(c.p10, c.p50))
            });
            plot = plot.with(name.text.as_str(), points.collect());
        }
        plot
    }
}

/// How many times the rate of `other` a contender has: from the times of each round.
fn rate_ratio(contender: &[f64], other: &[f64]) -> Interval {
    let ratios: Vec<f64> = contender.iter().zip(other).map(|(a, b)| b / a).collect();
    median_interval(&ratios)
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
