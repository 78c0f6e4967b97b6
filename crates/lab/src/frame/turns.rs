//! Contenders that take turns where a turn is longer than a timed batch: a transfer, or a server
//! with its viewers.
//!
//! A round gives each contender one turn, in an order that changes from round to round. Rounds go on
//! until the targets are decided, as in a [`Contest`](super::Contest).

use anyhow::Context;

use super::noise::NoiseMeter;
use super::options::Options;
use super::report::{Promise, TargetState};
use super::rounds::{LEAST_ROUNDS, Rounds};
use super::stats::{Interval, median, median_interval_at};

/// Measurements of contenders that took turns.
///
/// ```
/// use millrace_lab::frame::*;
///
/// let options = Options::new("millrace");
/// let target = |turns: &Turns<f64>| vec![Promise::at_most("cost", turns.ratio(0, 1, |s| *s), 1.5, "of theirs")];
/// let turn = |contender: usize, _round: usize| Ok([1.1, 1.0][contender]);
/// let turns = Turns::take(&options, &mut NoiseMeter::start(), &["ours", "theirs"], turn, target)?;
/// assert_eq!(target(&turns)[0].verdict, TargetState::Met);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Turns<T> {
    /// By contender, in the order of the rounds.
    seen: Vec<Vec<T>>,
    /// Of the intervals.
    confidence: f64,
}

impl<T> Turns<T> {
    /// Calls `turn` with the number of a contender and of a round (from 0), round after round, until
    /// none of `targets` is undecided or the time is up.
    ///
    /// # Errors
    /// When a turn fails, with the contender's name, or when the user stops it.
    pub fn take<N: AsRef<str>>(
        options: &Options,
        noise: &mut NoiseMeter,
        names: &[N],
        mut turn: impl FnMut(usize, usize) -> anyhow::Result<T>,
        targets: impl Fn(&Self) -> Vec<Promise>,
    ) -> anyhow::Result<Self> {
        let mut turns = Self { seen: names.iter().map(|_| Vec::new()).collect(), confidence: 0.0 };
        let mut rounds = Rounds::at_least(options, options.pick(1, LEAST_ROUNDS, LEAST_ROUNDS));
        while rounds.go_on(|confidence| {
            turns.confidence = confidence;
            targets(&turns).iter().all(|target| target.verdict != TargetState::Undecided)
        }) {
            let round = rounds.count() - 1;
            noise.look();
            for step in 0..names.len() {
                options.go_on()?;
                let at = (step + round) % names.len();
                let label = || format!("{}, round {}", names[at].as_ref(), round + 1);
                options.say(&label());
                let seen = turn(at, round);
                // What fails because the user stops it is no failure.
                options.go_on()?;
                turns.seen[at].push(seen.with_context(label)?);
            }
        }
        Ok(turns)
    }

    /// All turns of a contender.
    pub fn of(&self, at: usize) -> &[T] {
        &self.seen[at]
    }

    /// A figure of each of its turns.
    pub fn values(&self, at: usize, figure: impl Fn(&T) -> f64) -> Vec<f64> {
        self.seen[at].iter().map(figure).collect()
    }

    /// The median of a figure, of the turns that have it.
    pub fn median(&self, at: usize, figure: impl Fn(&T) -> f64) -> f64 {
        median(&finite(self.seen[at].iter().map(figure)))
    }

    /// The median with its interval. Turns without a finite figure are left out: too few of the others leave the target
    /// undecided, so that more rounds follow, and it is not measured if there is none.
    pub fn interval(&self, at: usize, figure: impl Fn(&T) -> f64) -> Interval {
        median_interval_at(&finite(self.seen[at].iter().map(figure)), self.confidence)
    }

    /// A figure of one contender over that of another in the same round; the same about rounds without one.
    pub fn ratio(&self, of: usize, over: usize, figure: impl Fn(&T) -> f64) -> Interval {
        let pairs = self.seen[of].iter().zip(&self.seen[over]);
        median_interval_at(&finite(pairs.map(|(of, over)| figure(of) / figure(over))), self.confidence)
    }

    /// The confidence of the intervals.
    pub fn confidence(&self) -> f64 {
        self.confidence
    }

    /// The sum of a count over all turns of all contenders.
    pub fn sum(&self, count: impl Fn(&T) -> u64) -> u64 {
        self.seen.iter().flatten().map(count).sum()
    }
}

fn finite(values: impl Iterator<Item = f64>) -> Vec<f64> {
    values.filter(|value| value.is_finite()).collect()
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
