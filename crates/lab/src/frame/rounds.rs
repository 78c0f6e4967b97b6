//! How many rounds a comparison takes: few when they agree, more while the bound of a target lies
//! among them, none beyond a time limit.
//!
//! Looking at a 95 % interval after each round and stopping as soon as it decides errs far more
//! often than in one case of 20. Rounds are therefore examined only when their number has doubled,
//! and all looks share the 5 %: the first, at six rounds, takes the 3.1 % that lie outside of the
//! extremes of six, and each further look half of the rest.

use std::time::Duration;

use super::options::Options;
use super::stats::CONFIDENCE;
use super::ticks::clock;

/// The fewest values whose extremes enclose the median with 95 %.
pub const LEAST_ROUNDS: usize = 6;

/// Probability that the median lies outside of the extremes of six values.
const FIRST_ERROR: f64 = 1.0 / 32.0;

/// Decides after each round whether another follows.
///
/// ```
/// use millrace_lab::frame::{Options, Promise, Rounds, TargetState, stats::median_interval_at};
///
/// let mut rounds = Rounds::new(&Options::new("millrace"));
/// let mut ratios = Vec::new();
/// let promise = |ratios: &[f64], confidence| {
///     Promise::at_most("cost", median_interval_at(ratios, confidence), 1.5, "of theirs")
/// };
/// while rounds.go_on(|confidence| promise(&ratios, confidence).is_decided()) {
///     ratios.push(1.1); // one round: each contender once, in an order that changes
/// }
/// assert_eq!(ratios.len(), 6);
/// assert_eq!(promise(&ratios, rounds.confidence()).verdict, TargetState::Met);
/// ```
#[derive(Debug)]
pub struct Rounds {
    /// In ticks of the benchmark clock.
    began: u64,
    plan: RoundPlan,
}

/// [`Rounds`] without a clock.
#[derive(Clone, Debug)]
struct RoundPlan {
    limit: Duration,
    /// Rounds that are run however long they take.
    least: usize,
    /// Whether the user has set the number of rounds.
    is_fixed: bool,
    done: usize,
    next_look: usize,
    looks: i32,
}

impl Rounds {
    /// From six rounds to as many as the limit of time allows; three if tiny; exactly `--runs` if
    /// that is given. A full run without `--limit` has time for twelve: one that is far off leaves six
    /// undecided.
    pub fn new(options: &Options) -> Self {
        Self::at_least(options, options.pick(3, LEAST_ROUNDS, LEAST_ROUNDS))
    }

    /// The same, with another number of rounds at the first look.
    pub fn at_least(options: &Options, least: usize) -> Self {
        let plan = RoundPlan {
            limit: options.limit(),
            least: if options.quick || options.limit_s.is_some() { LEAST_ROUNDS } else { 2 * LEAST_ROUNDS },
            is_fixed: options.tiny || options.runs.is_some(),
            done: 0,
            next_look: options.runs.unwrap_or(least).max(1),
            looks: 0,
        };
        Self { began: clock().now(), plan }
    }

    /// Whether another round follows. `is_decided` is asked when it is time to look, with the
    /// confidence that the intervals must have.
    pub fn go_on(&mut self, is_decided: impl FnOnce(f64) -> bool) -> bool {
        let passed_ns = clock().ns(self.began, clock().now());
        self.plan.go_on(Duration::from_nanos(passed_ns as u64), is_decided)
    }

    /// Rounds begun, including the current one.
    pub fn count(&self) -> usize {
        self.plan.done
    }

    /// The confidence of the last look.
    pub fn confidence(&self) -> f64 {
        confidence(self.plan.looks.max(1) - 1)
    }
}

impl RoundPlan {
    fn go_on(&mut self, passed: Duration, is_decided: impl FnOnce(f64) -> bool) -> bool {
        let is_late = !self.is_fixed && self.done >= self.least && passed >= self.limit;
        if self.done >= self.next_look || is_late {
            let is_decided = is_decided(confidence(self.looks));
            self.looks += 1;
            self.next_look = 2 * self.done;
            if is_decided || is_late || self.is_fixed {
                return false;
            }
        }
        self.done += 1;
        true
    }
}

/// The confidence of the look with this number, from 0.
fn confidence(look: i32) -> f64 {
    match look {
        0 => 1.0 - FIRST_ERROR,
        later => 1.0 - (1.0 - CONFIDENCE - FIRST_ERROR) * 0.5f64.powi(later),
    }
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
