//! How busy a loop is. TOAD's measure: processor time per gigabit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millrace_core::time::Instant;

/// Totals since the loop began; differences of two snapshots give rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadSnapshot {
    /// Time in turns that found work.
    pub busy_ns: u64,
    /// Time in turns that found none, and asleep.
    pub idle_ns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Longest turn that found work.
    pub longest_turn_ns: u64,
    /// Media packets taken by the device.
    pub packets: u64,
    /// Payload bytes of them.
    pub bytes: u64,
    /// Streams open now.
    pub streams: u64,
}

/// Where a loop publishes its load and others read it. Plain stores and loads: each word is right by itself, the words
/// of one snapshot may be one turn apart.
#[derive(Debug, Default)]
pub struct LoadCell {
    words: [AtomicU64; 8],
}

impl LoadCell {
    fn publish(&self, s: &LoadSnapshot) {
        let values =
            [s.busy_ns, s.idle_ns, s.busy_turns, s.sleeps, s.longest_turn_ns, s.packets, s.bytes, s.streams];
        for (word, value) in self.words.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The latest published totals.
    pub fn read(&self) -> LoadSnapshot {
        let [busy_ns, idle_ns, busy_turns, sleeps, longest_turn_ns, packets, bytes, streams] =
            std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        LoadSnapshot { busy_ns, idle_ns, busy_turns, sleeps, longest_turn_ns, packets, bytes, streams }
    }
}

/// Adds up the turns of one loop.
#[derive(Debug)]
pub struct LoadMeter {
    cell: Arc<LoadCell>,
    totals: LoadSnapshot,
    last: Instant,
    published: Instant,
}

/// How often the totals are published.
const PUBLISH_EVERY_NS: u64 = 10_000_000;

impl LoadMeter {
    /// Starts at `now`.
    pub fn new(cell: Arc<LoadCell>, now: Instant) -> Self {
        Self { cell, totals: LoadSnapshot::default(), last: now, published: now }
    }

    /// Everything since the last call was one turn that ended at `now` and did `work` things.
    pub fn turn(&mut self, now: Instant, work: usize, streams: u64, packets: u64, bytes: u64) {
        let ns = now.ns_since(self.last);
        self.last = now;
        if work > 0 {
            self.totals.busy_ns += ns;
            self.totals.busy_turns += 1;
            self.totals.longest_turn_ns = self.totals.longest_turn_ns.max(ns);
        } else {
            self.totals.idle_ns += ns;
        }
        (self.totals.streams, self.totals.packets, self.totals.bytes) = (streams, packets, bytes);
        if now.ns_since(self.published) >= PUBLISH_EVERY_NS {
            self.published = now;
            self.cell.publish(&self.totals);
        }
    }

    /// Everything since the last call was a sleep that ended at `now`.
    pub fn slept(&mut self, now: Instant) {
        self.totals.idle_ns += now.ns_since(self.last);
        self.totals.sleeps += 1;
        self.last = now;
    }

    /// Time in turns that found work, so far.
    pub fn busy_ns(&self) -> u64 {
        self.totals.busy_ns
    }

    /// Publishes what there is: at the end of the loop.
    pub fn finish(&mut self) {
        self.cell.publish(&self.totals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nanosecond_is_busy_or_idle() {
        let cell = Arc::new(LoadCell::default());
        let mut meter = LoadMeter::new(Arc::clone(&cell), Instant(0));
        meter.turn(Instant(100), 3, 1, 7, 700);
        meter.turn(Instant(150), 0, 1, 7, 700);
        meter.slept(Instant(1_000));
        assert_eq!(cell.read(), LoadSnapshot::default(), "not yet published");
        meter.turn(Instant(20_000_000), 1, 2, 8, 800);
        let s = cell.read();
        assert_eq!(s.busy_ns + s.idle_ns, 20_000_000);
        assert_eq!(
            (s.idle_ns, s.busy_turns, s.sleeps, s.streams, s.packets, s.bytes),
            (900, 2, 1, 2, 8, 800)
        );
        assert_eq!(s.longest_turn_ns, 19_999_000);
    }
}
