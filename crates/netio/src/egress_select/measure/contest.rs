//! The measuring: all ways in turn in short slots, so that what disturbs one disturbs all; medians, so that what
//! disturbs one slot disturbs none.

use millrace_core::limits::MAX_BATCH_BURSTS;
use millrace_core::seam::{SendOutcome, TransmitBatch};

use super::sample::SamplePackets;
use super::table::CostTable;
use crate::egress_select::plan::{Class, EgressPath};
use crate::limits::{LEAST_ROUNDS, MOST_ROUNDS, SLOT_DATAGRAMS};

/// One way, ready to send.
pub trait Contender {
    /// Which.
    fn way(&self) -> EgressPath;
    /// Sends, and does what belongs to sending.
    fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]);
    /// Waits, not for long, until the datagrams sent are out of the way; not measured.
    fn settle(&mut self);
}

/// How much to spend.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// After this much time no new round is begun, if there have been enough.
    pub budget_ns: u64,
    /// After this much time, enough or not, it is over: the interface is too slow to be measured.
    pub limit_ns: u64,
}

impl Default for Effort {
    /// Some tens of milliseconds on a fast interface, a third of a second on a slow one.
    fn default() -> Self {
        Self { budget_ns: 60_000_000, limit_ns: 400_000_000 }
    }
}

/// Measures every contender with every class of bursts. `cpu_ns` returns the processor time that
/// this thread has had, `now_ns` the present time.
pub fn contest(
    contenders: &mut [&mut dyn Contender],
    sample: &mut SamplePackets,
    effort: Effort,
    cpu_ns: &dyn Fn() -> u64,
    now_ns: &dyn Fn() -> u64,
) -> CostTable {
    let start = now_ns();
    let mut slots: Vec<Vec<f64>> = vec![Vec::new(); contenders.len() * Class::COUNT];
    // The first round warms up and does not count.
    'rounds: for round in 0..=MOST_ROUNDS {
        for class in Class::ALL {
            let spent = now_ns().saturating_sub(start);
            if spent > effort.limit_ns || (spent > effort.budget_ns && round > LEAST_ROUNDS) {
                break 'rounds;
            }
            for (number, contender) in contenders.iter_mut().enumerate() {
                let figure = slot(*contender, sample, class, cpu_ns);
                if let (Some(ns), 1..) = (figure, round) {
                    slots[number * Class::COUNT + class as usize].push(ns);
                }
            }
        }
    }
    let mut table = CostTable::default();
    for (number, contender) in contenders.iter().enumerate() {
        for class in Class::ALL {
            let figures = &mut slots[number * Class::COUNT + class as usize];
            if figures.len() >= LEAST_ROUNDS {
                figures.sort_by(f64::total_cmp);
                table.set(class, contender.way(), figures[figures.len() / 2]);
            }
        }
    }
    table
}

/// Nanoseconds a datagram in one slot. `None` if not everything was taken: then it was not sending that was measured.
fn slot(
    contender: &mut dyn Contender,
    sample: &mut SamplePackets,
    class: Class,
    cpu_ns: &dyn Fn() -> u64,
) -> Option<f64> {
    let datagrams = class.sample();
    let entries = (SLOT_DATAGRAMS / datagrams).max(1);
    let mut outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
    let batch = sample.batch(entries, datagrams);
    let outcomes = &mut outcomes[..batch.len()];
    let before = cpu_ns();
    contender.send(&batch, outcomes);
    let spent = cpu_ns().saturating_sub(before);
    contender.settle();
    let all_sent = outcomes.iter().all(|outcome| *outcome == SendOutcome::Sent);
    all_sent.then(|| spent as f64 / (entries * datagrams) as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::egress_select::plan::EgressPlan;
    use millrace_core::pool::{ExtentArena, HeapRegion};

    /// Costs a given time per burst and per datagram, on a clock that it moves itself.
    struct Priced<'a> {
        way: EgressPath,
        clock: &'a Cell<u64>,
        burst_ns: u64,
        datagram_ns: u64,
        /// In every `disturbed_every`-th slot something else takes a millisecond.
        disturbed_every: u64,
        slots: u64,
        is_full: bool,
    }

    impl Contender for Priced<'_> {
        fn way(&self) -> EgressPath {
            self.way
        }
        fn send(&mut self, batch: &dyn TransmitBatch, outcomes: &mut [SendOutcome]) {
            let datagrams: usize = (0..batch.len()).map(|index| batch.get(index).datagrams()).sum();
            let ns = self.burst_ns * batch.len() as u64 + self.datagram_ns * datagrams as u64;
            self.slots += 1;
            let more = if self.slots.is_multiple_of(self.disturbed_every) { 1_000_000 } else { 0 };
            self.clock.set(self.clock.get() + ns + more);
            outcomes.fill(if self.is_full { SendOutcome::Blocked { taken: 0 } } else { SendOutcome::Sent });
        }
        fn settle(&mut self) {
            self.clock.set(self.clock.get() + 500);
        }
    }

    fn run(ways: &mut [Priced<'_>], clock: &Cell<u64>) -> CostTable {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        let mut sample = SamplePackets::new(&arena, 1, "192.0.2.1:9".parse().unwrap()).unwrap();
        let mut list: Vec<&mut dyn Contender> =
            ways.iter_mut().map(|way| way as &mut dyn Contender).collect();
        contest(&mut list, &mut sample, Effort::default(), &|| clock.get(), &|| clock.get())
    }

    fn priced(way: EgressPath, clock: &Cell<u64>, burst_ns: u64, datagram_ns: u64) -> Priced<'_> {
        Priced { way, clock, burst_ns, datagram_ns, disturbed_every: 5, slots: 0, is_full: false }
    }

    #[test]
    fn medians_find_the_price_in_spite_of_disturbances() {
        let clock = Cell::new(0);
        let mut ways = [
            priced(EgressPath::Kernel, &clock, 900, 250),
            priced(EgressPath::KernelZeroCopy, &clock, 4000, 100),
            priced(EgressPath::Xdp, &clock, 0, 500),
        ];
        let table = run(&mut ways, &clock);
        assert_eq!(table.ns(Class::One, EgressPath::Kernel), Some(1150.0));
        assert_eq!(table.ns(Class::Sixteen, EgressPath::Xdp), Some(500.0));
        use EgressPath::{Kernel, KernelZeroCopy, Xdp};
        assert_eq!(table.plan(), EgressPlan([Xdp, Xdp, Kernel, Kernel, Kernel, KernelZeroCopy]));
    }

    #[test]
    fn contest_with_full_path_yields_no_figure() {
        let clock = Cell::new(0);
        let mut ways = [priced(EgressPath::Kernel, &clock, 900, 250), priced(EgressPath::Xdp, &clock, 0, 1)];
        ways[1].is_full = true;
        let table = run(&mut ways, &clock);
        assert!(table.has(EgressPath::Kernel) && !table.has(EgressPath::Xdp));
        assert_eq!(table.plan(), EgressPlan::default());
    }

    #[test]
    fn contest_with_slow_path_ends_within_time_limit() {
        let clock = Cell::new(0);
        let mut ways = [priced(EgressPath::Kernel, &clock, 10_000_000, 0)];
        let table = run(&mut ways, &clock);
        assert!(clock.get() < 2 * Effort::default().limit_ns, "{}", clock.get());
        assert_eq!(table, CostTable::default(), "too slow to be measured");
    }
}
