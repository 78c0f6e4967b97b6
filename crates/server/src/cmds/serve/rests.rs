//! Rests between two steps of work that gives way to viewers: none is done while an engine is busy or the cache late, and, while anybody watches, no more than half of
//! the time.

use std::sync::Arc;
use std::time::Duration;

use millrace_core::counters::Sheet;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::load::LoadSnapshot;
use millrace_store::cache::Cache;

use super::maker::figures;
use crate::library::on_use::pressure::Pressure;
use crate::limits::trick::{MAKER_REST, MAKER_TURN_NS};

/// See the module.
pub(super) struct Rests {
    cache: Arc<Cache>,
    /// How busy each engine is.
    loops: Vec<Arc<Sheet<LoadSnapshot>>>,
    pressure: Pressure,
    /// Start of the current work, and the amount of work before it since the last rest.
    began: Instant,
    worked_ns: u64,
}

impl Rests {
    pub(super) fn new(cache: Arc<Cache>, loops: Vec<Arc<Sheet<LoadSnapshot>>>) -> Self {
        Self { cache, loops, pressure: Pressure::default(), began: MonotonicClock.now(), worked_ns: 0 }
    }

    /// Records that the time since the last step was spent waiting, not working.
    pub(super) fn waited(&mut self) {
        self.began = MonotonicClock.now();
    }

    /// Between two steps: rests a little if it has to; whether the next step may be done then.
    pub(super) fn may_go_on(&mut self) -> bool {
        let now = MonotonicClock.now();
        if self.pressure.look(now, || figures(&self.loops, &self.cache)) {
            // A stop wakes it.
            std::thread::park_timeout(MAKER_REST);
            self.worked_ns = 0;
            self.waited();
            return false;
        }
        self.worked_ns += now.ns_since(self.began);
        if self.worked_ns >= MAKER_TURN_NS {
            if self.cache.stats().positions > 0 {
                std::thread::park_timeout(Duration::from_nanos(self.worked_ns).min(MAKER_REST));
            }
            self.worked_ns = 0;
        }
        self.waited();
        true
    }
}
