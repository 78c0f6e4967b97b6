//! Streams in real time while connections come and go: the cost of a connection, and its effect on
//! all other streams.
//!
//! Two engines with the same streams take turns on one core, each with a clock of its own that stands still while it is not its turn;
//! to one of them connections come and go. Streams are slow ones, so that a core carries all of them with time to spare: an engine that
//! is not late by itself shows whose fault it is when it becomes late.

use std::sync::Arc;

use super::churn::PER_SECOND;
use super::{EngineWork, PROMISED_STREAMS, Paced, Title};
use crate::frame::stats::{Spread, percentile};
use crate::frame::ticks::clock;
use crate::frame::{Noise, NoiseMeter, Options, Pinned, Promise, Row};

/// 19 packets a second: what 100,000 streams take together is half of what one core schedules.
const RATE_BITS: u64 = 200_000;
/// Upper limit for packets that are more than a millisecond late because of connections, in percent
/// of all packets: the effect of a clock that is read between turns.
const LATE_BOUND_PERCENT: f64 = 0.1;
const ALONE: &str = "in real time, nobody comes";
/// The number is [`PER_SECOND`].
const VISITED: &str = "in real time, 10,000 connections come and go each second";

/// The results.
pub(super) struct Visits {
    pub(super) rows: Vec<Row>,
    pub(super) promises: Vec<Promise>,
    pub(super) noise: Noise,
}

/// Measures it.
pub(super) fn measure(options: &Options) -> anyhow::Result<Visits> {
    let streams =
        options.streams.map_or(Ok(options.pick(100, PROMISED_STREAMS, PROMISED_STREAMS)), u32::try_from)?;
    let (rounds, slot_ms) = options.pick((2, 5), (5, 500), (10, 1_000));
    let title = Arc::new(Title::of_rate(RATE_BITS)?);
    let engine =
        |churns| Paced::new(streams, EngineWork { churns, ..EngineWork::default() }, Arc::clone(&title));
    let mut sides = [Side::new(ALONE, engine(false)?), Side::new(VISITED, engine(true)?)];
    let (_pinned, mut noise) = (Pinned::to_last(), NoiseMeter::start());
    for round in 0..=options.runs.unwrap_or(rounds).max(1) {
        options.go_on()?;
        noise.look();
        // The one that begins is not always the same.
        sides.iter_mut().try_for_each(|side| side.play(slot_ms))?;
        if round == 0 {
            // Everybody wants its first extent at once.
            sides.iter_mut().for_each(Side::forget);
        }
        sides.reverse();
    }
    sides.sort_by_key(|side| side.name == VISITED);
    sides.iter().for_each(|side| noise.repeated(side.name, &side.busy));
    let [alone, visited] = &sides;
    let promises = if streams == PROMISED_STREAMS && !options.tiny {
        judge(alone.counts(), visited.counts())
    } else {
        Vec::new()
    };
    let mut rows: Vec<Row> = sides.iter().map(|side| side.row(streams)).collect();
    rows.push(visited.cost(streams, alone));
    Ok(Visits { rows, promises, noise: noise.finish() })
}

/// An engine and its results.
struct Side {
    name: &'static str,
    paced: Paced,
    /// Counters when counting began.
    before: VisitCounts,
    /// Share of each slot in turns that found work.
    busy: Vec<f64>,
    /// Nanoseconds of an attach and a departure.
    visits: Vec<f64>,
    played_s: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct VisitCounts {
    packets: u64,
    /// By more than a millisecond.
    late: u64,
    overdue: u64,
    /// Streams that fell behind by more than a burst.
    catch_ups: u64,
    starved: u64,
    failed: u64,
}

impl VisitCounts {
    fn of(paced: &Paced) -> Self {
        let c = paced.engine.counters();
        let (packets, late, overdue) = (c.packets, c.late, c.overdue);
        Self { packets, late, overdue, catch_ups: c.catch_ups, starved: c.starved, failed: paced.failed }
    }

    fn since(self, before: Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            late: self.late - before.late,
            overdue: self.overdue - before.overdue,
            catch_ups: self.catch_ups - before.catch_ups,
            starved: self.starved - before.starved,
            failed: self.failed - before.failed,
        }
    }

    fn late_percent(&self) -> f64 {
        self.late as f64 / self.packets.max(1) as f64 * 100.0
    }
}

impl Side {
    fn new(name: &'static str, paced: Paced) -> Self {
        let before = VisitCounts::default();
        Self { name, paced, before, busy: Vec::new(), visits: Vec::new(), played_s: 0.0 }
    }

    /// A slot in real time.
    fn play(&mut self, slot_ms: u64) -> anyhow::Result<()> {
        let (clock, paced) = (clock(), &mut self.paced);
        let (from, begun, slot_ns) = (paced.now, clock.now(), slot_ms as f64 * 1e6);
        let mut busy_ns = 0.0;
        loop {
            let turn = clock.now();
            let elapsed_ns = clock.ns(begun, turn);
            if elapsed_ns >= slot_ns {
                break;
            }
            paced.now = from.plus_ns(elapsed_ns as u64);
            let mut came = 0;
            if let Some(churn) = paced.churn.as_mut().filter(|churn| churn.is_due(paced.now)) {
                let visit = clock.now();
                came = churn.turn(&mut paced.engine, &paced.title, paced.now)?;
                self.visits.push(clock.ns(visit, clock.now()) / f64::from(came.max(1)));
            }
            if paced.send_due()? > 0 || came > 0 {
                busy_ns += clock.ns(turn, clock.now());
            }
        }
        self.busy.push(busy_ns / slot_ns * 100.0);
        self.played_s += slot_ns / 1e9;
        Ok(())
    }

    /// Counting begins.
    fn forget(&mut self) {
        self.before = VisitCounts::of(&self.paced);
        self.busy.clear();
        self.visits.clear();
        self.played_s = 0.0;
    }

    fn counts(&self) -> VisitCounts {
        VisitCounts::of(&self.paced).since(self.before)
    }

    fn row(&self, streams: u32) -> Row {
        let c = self.counts();
        Row::new(format!("{streams} streams {}", self.name))
            .with("core busy", Spread::of(&self.busy).p50, "%")
            .with("packets", c.packets as f64 / self.played_s, "1/s")
            .with("over 1 ms late", c.late_percent(), "%")
            .with("over 50 ms late", c.overdue as f64, "packets")
            .with("fell behind", c.catch_ups as f64, "streams")
            .with("without their extent", c.starved as f64, "packets")
            .with("failed", c.failed as f64, "streams")
    }

    /// Returns the cost of a connection: to arrive, be played to and leave; and the same with the
    /// packets that it receives.
    fn cost(&self, streams: u32, alone: &Self) -> Row {
        let mut sorted = self.visits.clone();
        let p50 = |side: &Self| Spread::of(&side.busy).p50;
        let all_ns = (p50(self) - p50(alone)) / 100.0 * 1e9 / PER_SECOND as f64;
        Row::new(format!("{streams} streams: a connection that comes and one that goes"))
            .with("p50", percentile(&mut sorted, 50.0), "ns")
            .with("p99", percentile(&mut sorted, 99.0), "ns")
            .with("max", percentile(&mut sorted, 100.0), "ns")
            .with("with its packets and its end, by the core's time", all_ns, "ns")
            .with("measured", self.visits.len() as f64, "")
    }
}

/// Judges the effect of the connections on the others, beyond the results without them.
fn judge(without: VisitCounts, with: VisitCounts) -> Vec<Promise> {
    let late = (with.late_percent() - without.late_percent()).max(0.0);
    let beyond = |count: fn(&VisitCounts) -> u64| count(&with).saturating_sub(count(&without));
    let disturbed = beyond(|c| c.catch_ups) + beyond(|c| c.starved) + beyond(|c| c.failed);
    vec![
        Promise::at_most("engine-visits-late", late, LATE_BOUND_PERCENT, "% of the packets"),
        Promise::at_most("engine-visits-disturbed", disturbed as f64, 0.0, "streams"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::START;
    use super::*;

    #[test]
    fn judge_ignores_lateness_not_caused_by_connections() {
        let without = VisitCounts { packets: 1_000_000, late: 500, catch_ups: 3, ..VisitCounts::default() };
        let holds = |with: VisitCounts| judge(without, with).iter().map(|p| p.holds).collect::<Vec<_>>();
        // Twice the packets, and as large a part of them late.
        assert_eq!(holds(VisitCounts { packets: 2_000_000, late: 1_000, ..without }), [true, true]);
        assert_eq!(holds(VisitCounts { late: 1_400, ..without }), [true, true]);
        assert_eq!(holds(VisitCounts { late: 1_600, ..without }), [false, true]);
        assert_eq!(holds(VisitCounts { catch_ups: 4, ..without }), [true, false]);
        assert_eq!(holds(VisitCounts { starved: 1, ..without }), [true, false]);
        assert_eq!(holds(VisitCounts { failed: 1, ..without }), [true, false]);
    }

    #[test]
    fn connections_come_at_their_rate() {
        let title = Arc::new(Title::of_rate(RATE_BITS).unwrap());
        let kind = EngineWork { churns: true, ..EngineWork::default() };
        let mut side = Side::new(VISITED, Paced::new(50, kind, title).unwrap());
        side.play(100).unwrap();
        let (c, came) = (side.counts(), side.paced.churn.as_ref().unwrap().came());
        // By the engine's clock: the last turn may have been a while before the end.
        let due = side.paced.now.ns_since(START) * PER_SECOND / 1_000_000_000 + 1;
        assert_eq!((u64::from(came), c.failed), (due, 0));
        assert!(c.packets > 0 && !side.visits.is_empty(), "{c:?}");
    }
}
