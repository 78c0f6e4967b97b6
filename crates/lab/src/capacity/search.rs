//! The search for the largest count that passes, independent of the things counted: it takes
//! verdicts and returns the next count to try. First it doubles, then it halves the gap. Verdicts
//! near the limit count only when two of three agree. A failure that decides the result, or the very first one, is tried a second
//! time, however clear it was: a neighbour that takes the processor for a second looks the same.

use std::collections::BTreeMap;

/// The result of one trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialVerdict {
    /// Passed by far.
    ClearPass,
    /// Passed, but noise could have made it fail.
    NarrowPass,
    /// Failed, but noise could have done it.
    NarrowFail,
    /// Failed by far.
    ClearFail,
    /// Says nothing: who measured was at fault.
    Spoiled,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    /// First count.
    pub first: u32,
    /// Never more than this.
    pub max: u32,
    /// Factor from one count to the next while only passes, or only failures, are known.
    pub growth: f64,
    /// The gap between pass and failure is narrow enough at this part of the pass.
    pub precision: f64,
}

/// Next step of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SearchStep {
    /// Try this count. While no failure is known a rough trial will do.
    Try {
        /// The count.
        count: u32,
        /// Whether a short trial will do.
        rough: bool,
    },
    /// It is over.
    Done(SearchResult),
}

/// The result of the search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    /// Largest count that passed, 0 if none did.
    pub passed: u32,
    /// Smallest count above it that failed.
    pub failed: Option<u32>,
    /// Whether the gap between them is as narrow as was asked for.
    pub is_narrow: bool,
    /// Whether the failure above is due to the measuring program, not to the measured one.
    pub is_spoiled: bool,
}

/// Verdicts on one count.
#[derive(Clone, Copy, Debug, Default)]
struct Votes {
    passes: u32,
    fails: u32,
    spoiled: u32,
    trials: u32,
}

/// Votes that decide.
const MAJORITY: u32 = 2;

/// The search.
#[derive(Clone, Debug)]
pub struct Search {
    options: SearchOptions,
    decided: BTreeMap<u32, bool>,
    votes: BTreeMap<u32, Votes>,
    open: Option<u32>,
    trials: u32,
}

impl Search {
    /// A search that knows nothing yet.
    pub fn new(options: SearchOptions) -> Self {
        let first = options.first.clamp(1, options.max.max(1));
        let options = SearchOptions {
            first,
            max: options.max.max(1),
            growth: options.growth.max(1.01),
            precision: options.precision.max(0.0),
        };
        Self { options, decided: BTreeMap::new(), votes: BTreeMap::new(), open: None, trials: 0 }
    }

    /// Returns the number of trials reported to it.
    pub fn trials(&self) -> u32 {
        self.trials
    }

    /// Takes the verdict on a trial, whether it asked for it or not.
    pub fn tell(&mut self, count: u32, verdict: TrialVerdict) {
        self.trials += 1;
        let votes = self.votes.entry(count).or_default();
        let (passes, fails) = match verdict {
            TrialVerdict::ClearPass => (MAJORITY, 0),
            TrialVerdict::ClearFail => (0, MAJORITY),
            TrialVerdict::NarrowPass => (1, 0),
            TrialVerdict::NarrowFail => (0, 1),
            TrialVerdict::Spoiled => (0, 0),
        };
        votes.passes += passes;
        votes.fails += fails;
        votes.spoiled += u32::from(verdict == TrialVerdict::Spoiled);
        votes.trials += 1;
        let decision = if votes.passes >= MAJORITY && votes.passes > votes.fails {
            Some(true)
        } else if votes.fails >= MAJORITY && votes.fails > votes.passes || votes.spoiled >= MAJORITY {
            Some(false)
        } else {
            None
        };
        match decision {
            Some(passed) => {
                self.decided.insert(count, passed);
                self.open = self.open.filter(|open| *open != count);
            }
            None => {
                self.decided.remove(&count);
                self.open = Some(count);
            }
        }
    }

    /// Smallest failure, and the largest pass below it.
    fn bracket(&self) -> (u32, Option<u32>) {
        let failed = self.decided.iter().find(|(_, passed)| !**passed).map(|(count, _)| *count);
        let below = self.decided.range(..failed.unwrap_or(u32::MAX));
        (below.filter(|(_, passed)| **passed).map(|(count, _)| *count).max().unwrap_or(0), failed)
    }

    fn found(&self) -> SearchResult {
        let (passed, failed) = self.bracket();
        let is_narrow = match failed {
            Some(failed) => {
                f64::from(failed - passed) <= (self.options.precision * f64::from(passed)).max(1.0)
            }
            None => passed >= self.options.max,
        };
        let spoiled = |count| self.votes.get(&count).is_some_and(|votes| votes.spoiled >= MAJORITY);
        SearchResult { passed, failed, is_narrow, is_spoiled: failed.is_some_and(spoiled) }
    }

    /// Returns the next step. The answer stays the same until the search gets a verdict.
    pub fn step(&self) -> SearchStep {
        if let Some(count) = self.open {
            return SearchStep::Try { count, rough: false };
        }
        let found = self.found();
        if let Some(count) = found.failed
            && self.votes.get(&count).is_some_and(|votes| votes.trials == 1)
            && (found.is_narrow || self.trials == 1)
        {
            return SearchStep::Try { count, rough: false };
        }
        if found.is_narrow {
            return SearchStep::Done(found);
        }
        let grown = |count: u32| ((f64::from(count) * self.options.growth) as u32).max(count + 1);
        let shrunk = |count: u32| ((f64::from(count) / self.options.growth) as u32).clamp(1, count - 1);
        match (found.passed, found.failed) {
            (0, None) => SearchStep::Try { count: self.options.first, rough: true },
            (passed, None) => SearchStep::Try { count: grown(passed).min(self.options.max), rough: true },
            // If not even one passes, found() reports a narrow gap.
            (0, Some(failed)) => SearchStep::Try { count: shrunk(failed), rough: true },
            (passed, Some(failed)) => SearchStep::Try { count: passed + (failed - passed) / 2, rough: false },
        }
    }

    /// Returns the known result when there is no time for more.
    pub fn stop(&self) -> SearchResult {
        self.found()
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
