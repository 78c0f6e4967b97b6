//! How busy a loop is. TOAD's measure: processor time per gigabit.

use std::sync::Arc;

use millrace_core::counters::Sheet;
use millrace_core::time::Instant;
use millrace_engine::EngineCounters;
use millrace_netio::TxCounters;

use crate::limits::LOAD_PUBLISH_NS;

millrace_core::counters! {
    /// Totals since the loop began; differences of two snapshots give rates.
    pub struct LoadSnapshot {
        /// Time in turns that found work.
        sum busy_ns,
        /// Time in turns that found none, and asleep.
        sum idle_ns,
        /// Turns that found work.
        sum busy_turns,
        /// Sleeps.
        sum sleeps,
        /// Longest turn that found work.
        highest longest_turn_ns,
        /// Media packets taken by the device.
        sum packets,
        /// Payload bytes of them.
        sum bytes,
        /// Streams open now.
        gauge streams,
    }
}

/// The sheets where a loop publishes its activity and others read it.
#[derive(Clone, Debug, Default)]
pub struct LoopSheets {
    /// How busy it is.
    pub load: Arc<Sheet<LoadSnapshot>>,
    /// What its engine has done.
    pub engine: Arc<Sheet<EngineCounters>>,
    /// What its sockets have done.
    pub tx: Arc<Sheet<TxCounters>>,
}

/// Adds up the turns of one loop.
#[derive(Debug)]
pub struct LoadMeter {
    sheets: LoopSheets,
    totals: LoadSnapshot,
    last: Instant,
    published: Instant,
}

impl LoadMeter {
    /// Starts at `now`.
    pub fn new(sheets: LoopSheets, now: Instant) -> Self {
        Self { sheets, totals: LoadSnapshot::default(), last: now, published: now }
    }

    /// Everything since the last call was one turn that ended at `now` and did `work` things.
    pub fn turn(&mut self, now: Instant, work: usize, engine: &EngineCounters, tx: &TxCounters) {
        let ns = now.ns_since(self.last);
        self.last = now;
        if work > 0 {
            self.totals.busy_ns += ns;
            self.totals.busy_turns += 1;
            self.totals.longest_turn_ns = self.totals.longest_turn_ns.max(ns);
        } else {
            self.totals.idle_ns += ns;
        }
        if now.ns_since(self.published) >= LOAD_PUBLISH_NS {
            self.published = now;
            self.publish(engine, tx);
        }
    }

    /// Everything since the last call was a sleep that ended at `now`.
    pub fn slept(&mut self, now: Instant) {
        self.totals.idle_ns += now.ns_since(self.last);
        self.totals.sleeps += 1;
        self.last = now;
    }

    /// Returns the time spent in turns that found work.
    pub fn busy_ns(&self) -> u64 {
        self.totals.busy_ns
    }

    /// Publishes what there is: now and then, and at the end of the loop.
    pub fn publish(&mut self, engine: &EngineCounters, tx: &TxCounters) {
        (self.totals.streams, self.totals.packets, self.totals.bytes) =
            (engine.open, engine.packets, engine.bytes);
        self.sheets.load.publish(&self.totals);
        self.sheets.engine.publish(engine);
        self.sheets.tx.publish(tx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_meter_counts_all_time_as_busy_or_idle() {
        let sheets = LoopSheets::default();
        let mut meter = LoadMeter::new(sheets.clone(), Instant(0));
        let engine =
            |open, packets, bytes| EngineCounters { open, packets, bytes, ..EngineCounters::default() };
        let tx = TxCounters { entries: 5, ..TxCounters::default() };
        meter.turn(Instant(100), 3, &engine(1, 7, 700), &tx);
        meter.turn(Instant(150), 0, &engine(1, 7, 700), &tx);
        meter.slept(Instant(1_000));
        assert_eq!(sheets.load.read(), LoadSnapshot::default(), "not yet published");
        meter.turn(Instant(20_000_000), 1, &engine(2, 8, 800), &tx);
        let s = sheets.load.read();
        assert_eq!((sheets.engine.read(), sheets.tx.read()), (engine(2, 8, 800), tx));
        assert_eq!(s.busy_ns + s.idle_ns, 20_000_000);
        assert_eq!(
            (s.idle_ns, s.busy_turns, s.sleeps, s.streams, s.packets, s.bytes),
            (900, 2, 1, 2, 8, 800)
        );
        assert_eq!(s.longest_turn_ns, 19_999_000);
    }
}
