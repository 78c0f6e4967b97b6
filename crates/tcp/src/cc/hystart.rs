//! HyStart++ (RFC 9406): slow start ends when the round-trip time grows, before anything is lost.

use crate::rtt::ticks;
use crate::seq::Seq;

/// MIN_RTT_THRESH and MAX_RTT_THRESH, in ticks.
const MIN_RTT_THRESH: u32 = ticks(4_000_000);
const MAX_RTT_THRESH: u32 = ticks(16_000_000);
/// MIN_RTT_DIVISOR.
const MIN_RTT_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE.
const N_RTT_SAMPLE: u8 = 8;
/// CSS_GROWTH_DIVISOR.
pub(crate) const CSS_GROWTH_DIVISOR: u32 = 4;
/// CSS_ROUNDS.
const CSS_ROUNDS: u8 = 5;
/// L, where departures are not spread, in segments.
pub(crate) const UNPACED_SEGMENTS: u32 = 8;

/// State of slow start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HyStart {
    /// windowEnd.
    round_end: Seq,
    last_min: u32,
    current_min: u32,
    /// cssBaselineMinRtt.
    baseline: u32,
    samples: u8,
    /// Rounds of conservative slow start; 0: slow start.
    css_rounds: u8,
}

/// What slow start does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowStartPace {
    /// Grows as ever.
    Slow,
    /// Grows a quarter as fast.
    Conservative,
    /// Is over.
    Over,
}

impl HyStart {
    pub(crate) fn new(nxt: Seq) -> Self {
        Self {
            round_end: nxt,
            last_min: u32::MAX,
            current_min: u32::MAX,
            baseline: u32::MAX,
            samples: 0,
            css_rounds: 0,
        }
    }

    /// An acknowledgment up to `una`, with a measurement in ticks.
    pub(crate) fn acked(&mut self, una: Seq, nxt: Seq, rtt: Option<u32>) -> SlowStartPace {
        if let Some(rtt) = rtt {
            self.current_min = self.current_min.min(rtt);
            self.samples = self.samples.saturating_add(1);
        }
        self.compare();
        if !una.before(self.round_end) {
            (self.last_min, self.current_min, self.samples) = (self.current_min, u32::MAX, 0);
            self.round_end = nxt;
            if self.css_rounds > 0 {
                self.css_rounds += 1;
                if self.css_rounds > CSS_ROUNDS {
                    return SlowStartPace::Over;
                }
            }
        }
        if self.css_rounds > 0 { SlowStartPace::Conservative } else { SlowStartPace::Slow }
    }

    fn compare(&mut self) {
        if self.samples < N_RTT_SAMPLE || self.current_min == u32::MAX {
            return;
        }
        if self.css_rounds > 0 {
            // What looked like a queue has gone: slow start again.
            if self.current_min < self.baseline {
                (self.baseline, self.css_rounds) = (u32::MAX, 0);
            }
            return;
        }
        if self.last_min == u32::MAX {
            return;
        }
        let threshold = (self.last_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        if self.current_min >= self.last_min.saturating_add(threshold) {
            (self.baseline, self.css_rounds) = (self.current_min, 1);
        }
    }
}

#[cfg(test)]
#[path = "hystart_tests.rs"]
mod tests;
