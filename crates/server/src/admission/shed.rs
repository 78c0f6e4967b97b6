//! Which part of its promised rate an engine must give up to be in time again.
//!
//! Being late alone is no reason: after a momentary gap an engine catches up by itself, and sends
//! more than usual meanwhile. It has promised too much if it is late, its core is full, and it
//! still sends less than its viewers play. Its send rate is then the rate that the core carries.
//! Viewers are ended until the rest can catch up within [`RECOVERY_NS`], at most down to four fifths
//! of this rate, because viewers that are behind take no more than 5/4 of their rate
//! ([`millrace_core::limits::CATCH_UP_RATIO`]). A core that is a few percent too slow for its
//! viewers loses a few percent of them.
//!
//! Only the engine's own work makes its core full. A loop that works for a hundredth of the time
//! and waits for the core otherwise is late however few viewers it has, and sends everything it has
//! promised whenever it runs.

use millrace_core::limits::{CATCH_UP_RATIO, OVERDUE_NS};
use millrace_core::time::Instant;

use super::engine_load::{EngineLoad, per_second, rate};
use crate::limits::control::{
    BEHIND_PERMILLE, BUSY_WORK_PERMILLE, CALM_NS, FULL_PERMILLE, MIN_WORK_PERMILLE, RECOVERY_NS, SHED_LOOKS,
    SHED_STEP_NS, SHED_STEP_SHARE, SLOW_CATCH_UP_PERMILLE, SLOW_NS, SUSTAINED_NS,
};

/// The controller of one engine.
#[derive(Debug, Default)]
pub struct Shedder {
    /// Late with a full core since.
    behind_since: Option<Instant>,
    /// Packets that should have been sent since then, or shortly before, and were not.
    backlog: u64,
    looked: Instant,
    /// When the engine was last late because of its own work.
    behind_last: Option<Instant>,
    /// When the last step was made.
    stepped: Option<Instant>,
    /// When the first stream of this overload was ended, and how many have been.
    began: Option<Instant>,
    ended: u64,
    is_over: bool,
}

impl Shedder {
    /// Returns the packets per second to shed now; `promised` is the demand of the viewers that
    /// currently play.
    pub(super) fn look(&mut self, now: Instant, load: &EngineLoad, promised: u64) -> u64 {
        self.forget(now);
        let passed_ns = now.ns_since(std::mem::replace(&mut self.looked, now));
        let latest = load.latest(SHED_LOOKS);
        let overdue_permille = (latest.overdue * 1000).checked_div(latest.packets).unwrap_or(0);
        let worked_permille = latest.worked_permille();
        let is_full = latest.wanted_permille() >= FULL_PERMILLE && worked_permille >= MIN_WORK_PERMILLE;
        if overdue_permille < BEHIND_PERMILLE {
            self.behind_since = None;
            self.is_over = self.began.is_some();
            return 0;
        }
        if is_full || worked_permille >= BUSY_WORK_PERMILLE {
            self.behind_last = Some(now);
        }
        if !is_full {
            // Late for another reason: other threads hold the core, extents arrive late, or a clock
            // has jumped. Fewer viewers would not help.
            self.behind_since = None;
            return 0;
        }
        let carried = rate(latest);
        self.count_backlog(promised, carried, passed_ns);
        let since = *self.behind_since.get_or_insert(now);
        let lasted_ns = now.ns_since(since);
        let is_short = carried < promised && lasted_ns >= SUSTAINED_NS;
        let is_slow = carried * 1000 < promised * SLOW_CATCH_UP_PERMILLE && lasted_ns >= SLOW_NS;
        let is_time = self.stepped.is_none_or(|last| now.ns_since(last) >= SHED_STEP_NS);
        if !(is_short || is_slow) || !is_time {
            return 0;
        }
        let (num, den) = CATCH_UP_RATIO;
        let to_catch_up = per_second(self.backlog, RECOVERY_NS);
        let kept = carried.saturating_sub(to_catch_up).max(carried * den / num);
        let excess = promised.saturating_sub(kept).min(promised / SHED_STEP_SHARE);
        if excess > 0 {
            self.stepped = Some(now);
            // Ended streams take their share of the backlog with them.
            self.backlog -= (u128::from(self.backlog) * u128::from(excess) / u128::from(promised)) as u64;
        }
        excess
    }

    /// The packets that the engine is behind, after `passed_ns` more at these rates.
    fn count_backlog(&mut self, promised: u64, carried: u64, passed_ns: u64) {
        let of = |per_s: u64, ns: u64| (u128::from(per_s) * u128::from(ns) / 1_000_000_000) as u64;
        if self.behind_since.is_none() {
            // Packets are overdue from here on.
            self.backlog = of(promised, OVERDUE_NS);
        }
        self.backlog = (self.backlog + of(promised, passed_ns)).saturating_sub(of(carried, passed_ns));
    }

    /// Records that `streams` streams were ended.
    pub(super) fn ended(&mut self, now: Instant, streams: u64) {
        self.began.get_or_insert(now);
        self.ended += streams;
    }

    /// Returns whether new viewers should be refused.
    pub(super) fn is_behind(&self) -> bool {
        self.behind_last.is_some()
    }

    /// Returns whether no stream has been ended yet in this overload.
    pub(super) fn is_first(&self) -> bool {
        self.began.is_none()
    }

    /// The overload that has just passed began then.
    pub(super) fn recovered(&mut self) -> Option<Instant> {
        if std::mem::take(&mut self.is_over) { self.began.take() } else { None }
    }

    /// Streams that were ended in it.
    pub(super) fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    fn forget(&mut self, now: Instant) {
        if self.behind_last.is_some_and(|last| now.ns_since(last) >= CALM_NS) {
            self.behind_last = None;
        }
    }
}
