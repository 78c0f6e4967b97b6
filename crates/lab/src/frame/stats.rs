//! Percentiles, medians with their interval, spread. Nothing here assumes that values are distributed in any way.

/// Confidence of a verdict.
pub const CONFIDENCE: f64 = 0.95;

/// Percentile `p` (0..=100) of unsorted values by nearest rank; NaN of none. Sorts the values.
pub fn percentile(values: &mut [f64], p: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    percentile_of_sorted(values, p)
}

/// The same of values that are sorted already.
pub fn percentile_of_sorted(values: &[f64], p: f64) -> f64 {
    let rank = (p / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.clamp(1, values.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

/// Median: the mean of the two in the middle when their number is even; NaN of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    median_of_sorted(&sorted)
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        _ => sorted[n / 2 - 1] / 2.0 + sorted[n / 2] / 2.0,
    }
}

/// A median and between which values the true one lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Median of the measurements.
    pub mid: f64,
    /// Upper end.
    pub high: f64,
    /// The confidence: 0.95 or more, or as much as the few values allow.
    pub confidence: f64,
}

/// A count, or a figure that was measured once: there is nothing around it.
impl From<f64> for Interval {
    fn from(value: f64) -> Self {
        Self { low: value, mid: value, high: value, confidence: 1.0 }
    }
}

impl Interval {
    /// Whether the true value keeps `bound`; `None` while the interval lies on both sides, or is
    /// of too few values.
    pub fn keeps(&self, bound: TargetBound) -> Option<bool> {
        if self.confidence < CONFIDENCE {
            return None;
        }
        let (is_kept, is_broken) = match bound {
            TargetBound::AtLeast(least) => (self.low >= least, self.high < least),
            TargetBound::AtMost(most) => (self.high <= most, self.low > most),
        };
        (is_kept || is_broken).then_some(is_kept)
    }

    /// The greater of two, end by end: it keeps an upper bound exactly if both do, and breaks it
    /// exactly if one does.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.combine(other, f64::max)
    }

    /// The lesser of two, end by end: the same for lower bounds.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        self.combine(other, f64::min)
    }

    /// The interval of a figure that is computed from this one and grows, or falls, with it.
    #[must_use]
    pub fn map(self, figure: impl Fn(f64) -> f64) -> Self {
        let (one, other) = (figure(self.low), figure(self.high));
        Self { low: one.min(other), mid: figure(self.mid), high: one.max(other), ..self }
    }

    fn combine(self, other: Self, pick: fn(f64, f64) -> f64) -> Self {
        Self {
            low: pick(self.low, other.low),
            mid: pick(self.mid, other.mid),
            high: pick(self.high, other.high),
            confidence: self.confidence.min(other.confidence),
        }
    }
}

/// The condition of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetBound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

/// Returns the median with its 95 % interval by order statistics: the two innermost ranks that
/// enclose the true median in at least 95 of 100 cases for any distribution. Fewer than six values
/// do not reach this: the interval is then from the smallest to the largest, and `confidence` shows
/// its worth. NaN without values, and when one of them is NaN: a part that is missing is no proof.
pub fn median_interval(values: &[f64]) -> Interval {
    median_interval_at(values, CONFIDENCE)
}

/// The same with another confidence than 95 %.
pub fn median_interval_at(values: &[f64], wanted: f64) -> Interval {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 || sorted.iter().any(|value| value.is_nan()) {
        return Interval { low: f64::NAN, mid: f64::NAN, high: f64::NAN, confidence: 0.0 };
    }
    let (rank, confidence) = ranks(n, wanted);
    Interval { low: sorted[rank], mid: median_of_sorted(&sorted), high: sorted[n - 1 - rank], confidence }
}

/// The ratio within a round, of those who took turns: its median over the rounds.
pub fn ratio_interval(of: &[f64], over: &[f64], confidence: f64) -> Interval {
    let ratios: Vec<f64> = of.iter().zip(over).map(|(of, over)| of / over).collect();
    median_interval_at(&ratios, confidence)
}

/// The largest r such that the median lies between the values of rank r and n - 1 - r (from 0) with at least `wanted`
/// probability, and that probability. The number of values below the median is binomial (n, 1/2).
fn ranks(n: usize, wanted: f64) -> (usize, f64) {
    // ln of the chance that exactly k of n lie below; logarithms, since 2^-n is no f64 for large n.
    let mut ln_chance = -(n as f64) * std::f64::consts::LN_2;
    let mut outside = ln_chance.exp();
    let mut best = (0, 1.0 - 2.0 * outside);
    for rank in 1..n.div_ceil(2) {
        ln_chance += ((n - rank + 1) as f64 / rank as f64).ln();
        outside += ln_chance.exp();
        let confidence = 1.0 - 2.0 * outside;
        if confidence < wanted {
            break;
        }
        best = (rank, confidence);
    }
    best
}

/// The spread of values: p10, p50, p90 by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// A tenth is at most this.
    pub p10: f64,
    /// Half is at most this.
    pub p50: f64,
    /// Nine tenths are at most this.
    pub p90: f64,
}

impl Spread {
    /// Of unsorted values; NaN of none.
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let [p10, p50, p90] = [10.0, 50.0, 90.0].map(|p| percentile_of_sorted(&sorted, p));
        Self { p10, p50, p90 }
    }

    /// p90 over p10: 1.0 when all are the same.
    pub fn ratio(&self) -> f64 {
        self.p90 / self.p10
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
