//! The search for the number of streams that take a given share of a core: busy time grows with
//! their number almost in a line, so a few trials and a line between the two nearest will do. It
//! takes the results of trials and returns the next count to try.

/// The result of a trial with this number of streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamTrial {
    /// Streams.
    pub count: u32,
    /// Share of the core that was not idle.
    pub busy: f64,
    /// Whether every stream got the data due.
    pub is_kept: bool,
}

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// The share of the core.
    pub target: f64,
    /// First count.
    pub first: u32,
    /// Never more.
    pub max: u32,
    /// The gap between less and more than the target is narrow enough at this part of the less.
    pub precision: f64,
    /// Trials, at most.
    pub trials: usize,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadStep {
    /// Try this number.
    Try(u32),
    /// It is over.
    Done(SearchAnswer),
}

/// Result of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SearchAnswer {
    /// Streams at the target.
    pub streams: f64,
    /// The most that was tried below it; 0: none.
    pub low: u32,
    /// The fewest above it.
    pub high: Option<u32>,
    /// What limits the number.
    pub bound: Bound,
}

/// Why there are not more streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The core is at the target.
    Core,
    /// Some stream did not get the data due, though the core had time.
    Delivery,
    /// This number was never tried: it is extrapolated along a line through the results.
    Extrapolated,
}

/// A busy share from here on shows nothing: the core is full.
const FULL: f64 = 0.985;
/// As near to the target, a line is as good as a trial.
const NEAR: f64 = 0.02;
/// Trials below this share say too little of what many more streams would take.
const LEAST_SHARE: f64 = 0.02;

/// From one count to the next while the core has time for all.
const MOST_GROWTH: u32 = 6;
/// The same while it is full, which does not show by how much.
const SHRINK: f64 = 0.3;

/// The search.
#[derive(Clone, Debug)]
pub struct LoadSearch {
    options: LoadOptions,
    seen: Vec<StreamTrial>,
}

impl LoadSearch {
    /// Knows nothing yet.
    pub fn new(options: LoadOptions) -> Self {
        let max = options.max.max(1);
        Self { options: LoadOptions { max, first: options.first.clamp(1, max), ..options }, seen: Vec::new() }
    }

    /// Takes the result of a trial.
    pub fn tell(&mut self, seen: StreamTrial) {
        self.seen.push(seen);
    }

    fn is_below(&self, seen: &StreamTrial) -> bool {
        seen.is_kept && seen.busy <= self.options.target
    }

    /// Returns the most below the target, and the fewest above it or not kept. If results
    /// contradict each other, the one above counts.
    fn bracket(&self) -> (Option<StreamTrial>, Option<StreamTrial>) {
        let above = |seen: &&StreamTrial| !self.is_below(seen);
        let high = self.seen.iter().filter(above).min_by_key(|seen| seen.count).copied();
        let is_low =
            |seen: &&StreamTrial| self.is_below(seen) && high.is_none_or(|high| seen.count < high.count);
        (self.seen.iter().filter(is_low).max_by_key(|seen| seen.count).copied(), high)
    }

    /// Returns the next step. The answer stays the same until it gets a result.
    pub fn step(&self) -> LoadStep {
        let LoadOptions { target, first, max, precision, trials } = self.options;
        let (low, high) = self.bracket();
        let is_over = self.seen.len() >= trials || self.near().is_some();
        let next = match (low, high) {
            (None, None) => first,
            _ if is_over => return LoadStep::Done(self.answer()),
            (Some(low), None) if low.count >= max => return LoadStep::Done(self.answer()),
            (Some(low), None) => {
                // A little more than the line gives, so that the target lies between.
                let guess = f64::from(low.count) * (target / low.busy.max(LEAST_SHARE)) * 1.03;
                (guess as u32).clamp(low.count + 1, low.count.saturating_mul(MOST_GROWTH)).min(max)
            }
            (None, Some(high)) if high.count == 1 => return LoadStep::Done(self.answer()),
            (None, Some(high)) => {
                let share = if high.is_kept && high.busy < FULL { target / high.busy * 0.97 } else { SHRINK };
                ((f64::from(high.count) * share) as u32).clamp(1, high.count - 1)
            }
            (Some(low), Some(high)) => {
                let gap = high.count - low.count;
                if f64::from(gap) <= (precision * f64::from(low.count)).max(1.0) {
                    return LoadStep::Done(self.answer());
                }
                let guess = match line(low, high, target) {
                    // The core is not the limit: nothing shows where between them the limit is.
                    _ if high.busy <= target => f64::from(low.count + gap / 2),
                    Some(guess) if high.busy < FULL && high.is_kept => guess,
                    _ => f64::from(low.count) * target / low.busy.max(LEAST_SHARE),
                };
                let margin = (gap / 8).max(1);
                (guess as u32).clamp(low.count + margin, high.count - margin)
            }
        };
        LoadStep::Try(next)
    }

    /// Returns the trial that was near enough to the target to be the answer. Where a lower count
    /// was not kept, a near result with a higher count is chance.
    fn near(&self) -> Option<StreamTrial> {
        let (_, high) = self.bracket();
        let distance = |seen: &StreamTrial| (seen.busy - self.options.target).abs();
        let is_near = |seen: &&StreamTrial| seen.is_kept && distance(seen) <= NEAR;
        let near =
            self.seen.iter().filter(is_near).filter(|seen| high.is_none_or(|high| seen.count <= high.count));
        near.min_by(|a, b| distance(a).total_cmp(&distance(b))).copied()
    }

    fn answer(&self) -> SearchAnswer {
        let target = self.options.target;
        let (low, high) = self.bracket();
        let (low_count, high_count) = (low.map_or(0, |low| low.count), high.map(|high| high.count));
        let of = |streams, bound| SearchAnswer { streams, low: low_count, high: high_count, bound };
        if let Some(near) = self.near() {
            return of(f64::from(near.count) * target / near.busy, Bound::Core);
        }
        match (low, high) {
            (None, _) => of(0.0, Bound::Delivery),
            (Some(low), None) => {
                of(f64::from(low.count) * target / low.busy.max(LEAST_SHARE), Bound::Extrapolated)
            }
            (Some(low), Some(high)) if !high.is_kept && high.busy <= target => {
                of(f64::from(low.count), Bound::Delivery)
            }
            (Some(low), Some(high)) => {
                let streams = line(low, high, target).unwrap_or(f64::from(low.count));
                of(streams.clamp(f64::from(low.count), f64::from(high.count)), Bound::Core)
            }
        }
    }
}

/// Where the line through two trials meets the target.
fn line(low: StreamTrial, high: StreamTrial, target: f64) -> Option<f64> {
    let rise = high.busy - low.busy;
    let share = (target - low.busy) / rise;
    (rise > 1e-6).then(|| f64::from(low.count) + share * f64::from(high.count - low.count))
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
