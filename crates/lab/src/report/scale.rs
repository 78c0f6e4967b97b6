//! Where values lie on an axis, and the round numbers beside it.

/// An axis from its first tick to its last; values in between have a place from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) ticks: Vec<f64>,
    is_log: bool,
}

impl Scale {
    /// Holds all `values` (those that an axis of this kind can show), with about `wanted` ticks.
    pub(super) fn of(
        values: impl Iterator<Item = f64>,
        is_log: bool,
        from_zero: bool,
        wanted: usize,
    ) -> Self {
        let shown = values.filter(|v| v.is_finite() && v.abs() < 1e300 && (!is_log || *v > 1e-300));
        let range = shown.fold(None, |range: Option<(f64, f64)>, v| {
            Some(range.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        });
        let (low, high) = range.unwrap_or(if is_log { (1.0, 10.0) } else { (0.0, 1.0) });
        let ticks = if is_log {
            log_ticks(low, high)
        } else {
            let (low, high) = if from_zero { (low.min(0.0), high.max(0.0)) } else { (low, high) };
            linear_ticks(low, high, wanted)
        };
        Self { ticks, is_log }
    }

    /// Whether the axis can show the value.
    pub(super) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.is_log || value > 0.0)
    }

    /// Returns the place of a value, 0 at the first tick and 1 at the last; values outside are put
    /// at the end.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (first, last) = (self.first(), self.ticks.last().copied().unwrap_or(1.0));
        let place = if self.is_log {
            (value.max(first).ln() - first.ln()) / (last.ln() - first.ln())
        } else {
            (value - first) / (last - first)
        };
        if place.is_finite() { place.clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Where bars begin.
    pub(super) fn first(&self) -> f64 {
        self.ticks.first().copied().unwrap_or(0.0)
    }

    /// Ticks with their text. A logarithmic axis over many powers of ten writes only the powers.
    pub(super) fn labels(&self) -> Vec<(f64, String)> {
        let step = self.ticks.windows(2).map(|w| w[1] - w[0]).fold(f64::INFINITY, f64::min);
        let text = |v: f64| tick_text(v, if self.is_log { v } else { step });
        self.ticks.iter().map(|&v| (v, text(v))).collect()
    }
}

/// Multiples of 1, 2 or 5 times a power of ten around `low..=high`.
fn linear_ticks(low: f64, high: f64, wanted: usize) -> Vec<f64> {
    // All the same: make room around it.
    let (low, high) = if high - low > low.abs().max(high.abs()) * 1e-9 {
        (low, high)
    } else {
        let room = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        (low - if low == 0.0 { 0.0 } else { room }, high + room)
    };
    let rough = (high - low) / wanted.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
    let count = ((last - first) as usize).clamp(1, 100);
    (0..=count).map(|i| round_to(step * (first + i as f64), step)).collect()
}

/// Powers of ten around `low..=high`, and twos and fives in between when there are few.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let last = last.max(first + 1);
    let all: Vec<f64> = if last - first > 3 {
        let every = (last - first + 7) / 8;
        (first..=last + every - 1).step_by(every as usize).map(power).collect()
    } else {
        (first..=last).flat_map(|p| [1.0, 2.0, 5.0].map(|m| power_times(m, p))).collect()
    };
    // From the last tick that is not above the values to the first that is not below them.
    let begin = all.iter().rposition(|t| *t <= low * 1.000_001).unwrap_or(0);
    let end = all.iter().position(|t| *t >= high * 0.999_999).unwrap_or(all.len() - 1);
    let (begin, end) = if begin < end { (begin, end) } else { (begin.saturating_sub(1), begin + 1) };
    all[begin..=end.min(all.len() - 1)].to_vec()
}

fn power(p: i32) -> f64 {
    power_times(1.0, p)
}

/// m * 10^p, as near as the decimal text would be.
fn power_times(m: f64, p: i32) -> f64 {
    format!("{m}e{p}").parse().unwrap_or(m)
}

/// Without the dust of floating point: 0.1 + 0.2 is 0.3.
fn round_to(value: f64, step: f64) -> f64 {
    format!("{value:.digits$}", digits = decimals(step)).parse().unwrap_or(value)
}

/// Digits behind the point that multiples of `step` need.
fn decimals(step: f64) -> usize {
    (-(step.abs() * 1.000_001).log10().floor()).clamp(0.0, 300.0) as usize
}

/// 0, 20, 0.05, 15k, 2M: as short as is exact.
fn tick_text(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let (scale, suffix) = match value.abs() {
        v if v >= 1e15 => return format!("{value:e}"),
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e4 => (1e3, "k"),
        v if v < 1e-4 => return format!("{value:e}"),
        _ => (1.0, ""),
    };
    let digits = decimals(step / scale).min(12);
    format!("{:.digits$}{suffix}", value / scale)
}

#[cfg(test)]
#[path = "scale_tests.rs"]
mod tests;
