//! Whether viewers need what making titles takes away from them.

use millrace_core::time::Instant;

use crate::limits::trick::{MAKER_BUSY_PERMILLE, MAKER_CALM_NS, MAKER_PRESSURE_NS};

/// Totals of the server's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkTotals {
    /// Of each engine: nanoseconds busy and idle.
    pub engines: Vec<(u64, u64)>,
    /// Grants of the cache that came too late.
    pub late_grants: u64,
}

/// Looks at the figures every now and then.
#[derive(Debug, Default)]
pub struct Pressure {
    before: Option<(Instant, WorkTotals)>,
    /// Nothing is made until then.
    until: Option<Instant>,
}

impl Pressure {
    /// Whether making should rest now: an engine was busy in the time since the last look, or the cache late, or that is only just over.
    /// `figures` are asked for when there is something to be compared.
    pub fn look(&mut self, now: Instant, figures: impl FnOnce() -> WorkTotals) -> bool {
        let is_due = self.before.as_ref().is_none_or(|(at, _)| now.ns_since(*at) >= MAKER_PRESSURE_NS);
        if is_due {
            let figures = figures();
            if let Some((_, before)) = self.before.replace((now, figures.clone()))
                && is_pressed(&before, &figures)
            {
                self.until = Some(now.plus_ns(MAKER_CALM_NS));
            }
        }
        self.until.is_some_and(|until| now < until)
    }
}

fn is_pressed(before: &WorkTotals, now: &WorkTotals) -> bool {
    let is_busy = |((busy_before, idle_before), (busy, idle)): (&(u64, u64), &(u64, u64))| {
        let (busy, idle) = (busy.saturating_sub(*busy_before), idle.saturating_sub(*idle_before));
        let all = u128::from(busy) + u128::from(idle);
        all > 0 && u128::from(busy) * 1000 >= all * u128::from(MAKER_BUSY_PERMILLE)
    };
    before.late_grants < now.late_grants || before.engines.iter().zip(&now.engines).any(is_busy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn pressure_look_is_true_while_engine_busy_or_cache_late() {
        let mut pressure = Pressure::default();
        let mut look = |ms: u64, first: (u64, u64), second: (u64, u64), late_grants| {
            let engines = vec![(first.0 * MS, first.1 * MS), (second.0 * MS, second.1 * MS)];
            pressure.look(Instant(ms * MS), || WorkTotals { engines, late_grants })
        };
        assert!(!look(0, (900, 100), (0, 0), 5), "what was before is no news");
        assert!(!look(1000, (1500, 500), (0, 1000), 5), "60 %");
        assert!(look(2000, (1500, 1500), (700, 1300), 5), "70 %");
        assert!(look(3900, (1500, 3400), (700, 3200), 5), "only just over");
        assert!(!look(4000, (1500, 3500), (700, 3300), 5));
        assert!(!look(4100, (1600, 3500), (800, 3300), 6), "too soon for another look");
        assert!(look(4300, (1600, 3700), (800, 3500), 6), "late");
        assert!(!look(6300, (1600, 5700), (800, 5500), 6));
        assert!(!look(8300, (1600, 5700), (800, 5500), 6), "no turn has been told");
    }
}
