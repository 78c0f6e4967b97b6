//! Contenders that take turns in short slots, so that whatever the machine does meets them all alike.
//!
//! A round gives every contender one slot, in an order of its own; every batch in a slot is timed.
//! A contender is compared with the base within a round (p50 over p50), and the answer is the
//! median of this ratio over the rounds with its 95 % interval. Rounds go on until the interval
//! lies on one side of each goal's bound, or time is up. A first round warms up and is thrown away. Before it, every contender runs a few batches whose results are compared: a
//! contender that is fast because it does something else fails the benchmark.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use millrace_core::random::SplitMix;

use super::noise::{Noise, NoiseMeter};
use super::options::Options;
use super::plot::{Axis, Plot, PlotKind, Point};
use super::report::Row;
use super::rounds::{LEAST_ROUNDS, Rounds};
use super::stats::{Interval, TargetBound, percentile_of_sorted, ratio_interval};
use super::ticks::{TickClock, clock};

/// How a contest is run.
#[derive(Clone, Debug)]
pub struct ContestOptions {
    /// Measured rounds; the fewest of a contest with goals.
    pub rounds: usize,
    /// Length of a slot.
    pub slot_ms: u64,
    /// Decides the order within each round.
    pub seed: u64,
    /// Batches of the comparison of results.
    pub check_batches: u64,
    /// Whether the thread stays on one processor, the last that it may use.
    pub is_pinned: bool,
    /// Receives the progress, and may stop the contest.
    pub options: Options,
}

impl ContestOptions {
    /// Six rounds of 0.3 s a contender; of 0.2 s for a quick look; next to nothing if tiny. Goals that
    /// are not decided then get more. `--runs` sets the rounds.
    pub fn from_options(options: &Options) -> Self {
        let (rounds, slot_ms) = options.pick((3, 5), (LEAST_ROUNDS, 200), (LEAST_ROUNDS, 300));
        Self {
            rounds: options.runs.unwrap_or(rounds).max(1),
            slot_ms,
            seed: 1,
            check_batches: 16,
            is_pinned: true,
            options: options.clone(),
        }
    }
}

/// The work of a contender in a slot.
type Work<'a> = Box<dyn FnMut(&mut ContenderSlot) -> anyhow::Result<()> + 'a>;

/// Contenders for one thing.
pub struct Contest<'a> {
    name: String,
    contenders: Vec<(String, Work<'a>)>,
    goals: Vec<ContestGoal>,
    base: usize,
}

/// A target about the ratio of two contenders.
#[derive(Clone, Debug)]
struct ContestGoal {
    of: String,
    over: String,
    bound: TargetBound,
}

/// A contender's turn: `while slot.goes_on() { prepare; slot.batch(items, || work); }`.
#[derive(Debug)]
pub struct ContenderSlot {
    clock: &'static TickClock,
    end: End,
    began: bool,
    /// Nanoseconds per item of each batch.
    samples: Vec<f64>,
    items: u64,
    hash: Option<u64>,
}

#[derive(Debug)]
enum End {
    /// When the clock is there.
    At(u64),
    /// After this number of further batches.
    After(u64),
}

impl ContenderSlot {
    fn new(end: End, samples: Vec<f64>) -> Self {
        Self { clock: clock(), end, began: false, samples, items: 0, hash: None }
    }

    /// Whether there is time for another batch; true at least once in every slot.
    pub fn goes_on(&mut self) -> bool {
        let first = !std::mem::replace(&mut self.began, true);
        match &mut self.end {
            End::At(end) => first || self.clock.now() < *end,
            End::After(0) => false,
            End::After(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Whether results are compared in this slot and [`ContenderSlot::produced`] is of use: a
    /// benchmark whose result costs time to sum up asks first.
    pub fn is_check(&self) -> bool {
        matches!(self.end, End::After(_))
    }

    /// Times one batch of `items`.
    pub fn batch<R>(&mut self, items: u64, work: impl FnOnce() -> R) -> R {
        let from = self.clock.now();
        let result = work();
        self.took(from, items);
        result
    }

    /// Times one batch that returns its number of items; a batch without any is not counted.
    pub fn batch_counted(&mut self, work: impl FnOnce() -> u64) -> u64 {
        let from = self.clock.now();
        let items = work();
        self.took(from, items);
        items
    }

    fn took(&mut self, from: u64, items: u64) {
        let ns = self.clock.ns(from, self.clock.now());
        if items > 0 {
            self.samples.push(ns / items as f64);
            self.items += items;
        }
    }

    /// Records the batch's result, as a number or a hash. Contenders that record anything must
    /// record the same, batch by batch.
    pub fn produced(&mut self, result: u64) {
        if self.is_check() {
            self.hash = Some(SplitMix(self.hash.unwrap_or(0) ^ result).next());
        }
    }
}

/// The result of a contest.
#[derive(Clone, Debug)]
pub struct ContestResult {
    /// In the order in which they were entered.
    pub contenders: Vec<ContenderResult>,
    /// The state of the machine.
    pub noise: Noise,
    /// Name of the base.
    pub base: String,
    /// Name of the contest.
    pub name: String,
    /// Of the intervals.
    pub confidence: f64,
}

/// The result of one contender.
#[derive(Clone, Debug)]
pub struct ContenderResult {
    /// Its name.
    pub name: String,
    /// Timed batches.
    pub batches: usize,
    /// Items in them.
    pub items: u64,
    /// ns per item that a tenth of the batches kept.
    pub p10: f64,
    /// Half of them.
    pub p50: f64,
    /// All but a hundredth.
    pub p99: f64,
    /// p50 of each round.
    pub rounds: Vec<f64>,
    /// p50 over the base's p50 within a round: median over the rounds.
    pub ratio: Interval,
    /// Hash of its recorded results.
    pub hash: Option<u64>,
}

/// Data gathered about one contender while the contest runs.
#[derive(Default)]
struct Gathered {
    samples: Vec<f64>,
    rounds: Vec<f64>,
    items: u64,
    hash: Option<u64>,
}

impl<'a> Contest<'a> {
    /// Creates a contest without contenders.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), contenders: Vec::new(), goals: Vec::new(), base: 0 }
    }

    /// Enters a contender; the first is the base of the ratios.
    pub fn contender(
        &mut self,
        name: impl Into<String>,
        work: impl FnMut(&mut ContenderSlot) -> anyhow::Result<()> + 'a,
    ) -> &mut Self {
        self.contenders.push((name.into(), Box::new(work)));
        self
    }

    /// Makes the contender entered last the base.
    pub fn as_base(&mut self) -> &mut Self {
        self.base = self.contenders.len().saturating_sub(1);
        self
    }

    /// Lets rounds go on until the time of `of` over that of `over` is decided. Goals of contenders
    /// that have not entered are none.
    pub fn goal(&mut self, of: impl Into<String>, over: impl Into<String>, bound: TargetBound) -> &mut Self {
        self.goals.push(ContestGoal { of: of.into(), over: over.into(), bound });
        self
    }

    /// Lets them run.
    ///
    /// # Errors
    /// When contenders that should produce the same do not, when one fails or measures nothing, when there are none, when
    /// the user stops it.
    pub fn run(mut self, how: &ContestOptions) -> anyhow::Result<ContestResult> {
        if self.contenders.is_empty() {
            bail!("contest {}: nobody has entered", self.name);
        }
        let _pinned = how.is_pinned.then(Pinned::to_last);
        let mut gathered: Vec<Gathered> = self.contenders.iter().map(|_| Gathered::default()).collect();
        self.compare_results(how, &mut gathered)?;
        let mut meter = NoiseMeter::start();
        let mut random = SplitMix(how.seed);
        // Round 0 warms up.
        self.round(0, how, &mut gathered, &mut meter, &mut random)?;
        let mut rounds = Rounds::at_least(&how.options, how.rounds);
        while rounds.go_on(|confidence| self.is_decided(&gathered, confidence)) {
            self.round(rounds.count(), how, &mut gathered, &mut meter, &mut random)?;
        }
        Ok(self.result(gathered, meter, rounds.confidence()))
    }

    /// Gives each contender a slot.
    fn round(
        &mut self,
        round: usize,
        how: &ContestOptions,
        gathered: &mut [Gathered],
        meter: &mut NoiseMeter,
        random: &mut SplitMix,
    ) -> anyhow::Result<()> {
        let more = if self.goals.is_empty() { "" } else { " or more" };
        how.options.say(&format!("{}: round {round} of {}{more}", self.name, how.rounds));
        meter.look();
        for at in shuffled(self.contenders.len(), random) {
            how.options.go_on()?;
            self.slot(at, round, how, &mut gathered[at])?;
        }
        Ok(())
    }

    fn is_decided(&self, gathered: &[Gathered], confidence: f64) -> bool {
        let rounds_of = |name: &str| {
            let at = self.contenders.iter().position(|contender| contender.0 == name)?;
            Some(&gathered[at].rounds)
        };
        self.goals.iter().all(|goal| match (rounds_of(&goal.of), rounds_of(&goal.over)) {
            (Some(of), Some(over)) => ratio_interval(of, over, confidence).keeps(goal.bound).is_some(),
            _ => true,
        })
    }

    /// Everybody does the same few batches.
    fn compare_results(&mut self, how: &ContestOptions, gathered: &mut [Gathered]) -> anyhow::Result<()> {
        let mut said: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for ((name, work), gathered) in self.contenders.iter_mut().zip(gathered) {
            let mut slot = ContenderSlot::new(End::After(how.check_batches), Vec::new());
            work(&mut slot).with_context(|| format!("contest {}: {name}", self.name))?;
            gathered.hash = slot.hash;
            if let Some(hash) = slot.hash {
                said.entry(hash).or_default().push(name);
            }
        }
        if said.len() > 1 {
            let sides: Vec<String> =
                said.iter().map(|(hash, names)| format!("{} ({hash:016x})", names.join(", "))).collect();
            bail!("contest {}: the results differ: {}", self.name, sides.join(" against "));
        }
        Ok(())
    }

    fn slot(
        &mut self,
        at: usize,
        round: usize,
        how: &ContestOptions,
        gathered: &mut Gathered,
    ) -> anyhow::Result<()> {
        let (name, work) = &mut self.contenders[at];
        let clock = clock();
        let end = clock.now() + clock.ticks(how.slot_ms as f64 * 1e6);
        let before = gathered.samples.len();
        let mut slot = ContenderSlot::new(End::At(end), std::mem::take(&mut gathered.samples));
        work(&mut slot).with_context(|| format!("contest {}: {name}, round {round}", self.name))?;
        gathered.samples = slot.samples;
        if gathered.samples.len() == before {
            bail!("contest {}: {name} measured nothing in round {round}", self.name);
        }
        if round == 0 {
            gathered.samples.clear();
        } else {
            let mut of_round = gathered.samples[before..].to_vec();
            gathered.rounds.push(super::stats::percentile(&mut of_round, 50.0));
            gathered.items += slot.items;
        }
        Ok(())
    }

    fn result(self, gathered: Vec<Gathered>, mut meter: NoiseMeter, confidence: f64) -> ContestResult {
        let base_rounds = gathered[self.base].rounds.clone();
        let (base, contest) = (self.contenders[self.base].0.clone(), self.name);
        let contenders: Vec<ContenderResult> = self
            .contenders
            .into_iter()
            .zip(gathered)
            .map(|((name, _), mut gathered)| {
                meter.repeated(&format!("{name} in {contest}"), &gathered.rounds);
                let samples = &mut gathered.samples;
                samples.sort_unstable_by(f64::total_cmp);
                let [p10, p50, p99] = [10.0, 50.0, 99.0].map(|p| percentile_of_sorted(samples, p));
                ContenderResult {
                    name,
                    batches: gathered.samples.len(),
                    items: gathered.items,
                    p10,
                    p50,
                    p99,
                    ratio: ratio_interval(&gathered.rounds, &base_rounds, confidence),
                    rounds: gathered.rounds,
                    hash: gathered.hash,
                }
            })
            .collect();
        ContestResult { contenders, noise: meter.finish(), base, name: contest, confidence }
    }
}

impl ContestResult {
    /// Returns the contender called `name`.
    pub fn of(&self, name: &str) -> Option<&ContenderResult> {
        self.contenders.iter().find(|contender| contender.name == name)
    }

    /// Time of `of` over that of `over` within a round: median over the rounds. NaN if one of
    /// them has not entered.
    pub fn ratio(&self, of: &str, over: &str) -> Interval {
        match (self.of(of), self.of(over)) {
            (Some(of), Some(over)) => ratio_interval(&of.rounds, &over.rounds, self.confidence),
            _ => f64::NAN.into(),
        }
    }

    /// A row for each contender, all with the same figures: ns per `item`, the ratio to the base and the ends of its 95 %
    /// interval.
    pub fn rows(&self, item: &str) -> Vec<Row> {
        let unit = format!("ns/{item}");
        let row = |contender: &ContenderResult| {
            Row::new(contender.name.as_str())
                .with("p10", contender.p10, &unit)
                .with("p50", contender.p50, &unit)
                .with("p99", contender.p99, &unit)
                .with("ratio", contender.ratio.mid, "")
                .with("low end", contender.ratio.low, "")
                .with("high end", contender.ratio.high, "")
                .with("batches", contender.batches as f64, "")
        };
        self.contenders.iter().map(row).collect()
    }

    /// p10, p50 and p99 of every contender as a picture.
    pub fn plot(&self, title: &str, item: &str) -> Plot {
        let spread = |c: &ContenderResult| Point::spread(c.name.as_str(), c.p10, c.p50, c.p99);
        let points = self.contenders.iter().map(spread).collect();
        let y = Axis::log(format!("time per {item}"), "ns");
        Plot::new(PlotKind::Spread, title, Axis::new("", ""), y).with("p10, p50, p99 of batches", points)
    }
}

/// Keeps the thread on one processor until dropped.
pub(crate) struct Pinned(Option<rustix::thread::CpuSet>);

impl Pinned {
    pub(crate) fn to_last() -> Self {
        let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Self(None) };
        let mut one = rustix::thread::CpuSet::new();
        if let Some(last) = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)) {
            one.set(last);
        }
        // A machine that does not let us choose is measured where it puts us.
        Self(rustix::thread::sched_setaffinity(None, &one).ok().map(|()| allowed))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(allowed) = &self.0 {
            let _ = rustix::thread::sched_setaffinity(None, allowed);
        }
    }
}

/// 0..n in an order that the state decides; moves the state on.
fn shuffled(n: usize, random: &mut SplitMix) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
#[path = "contest_tests.rs"]
mod tests;
