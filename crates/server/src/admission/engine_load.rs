//! How busy an engine's core is, and how busy it would be with more to send.

use millrace_core::time::Instant;

use crate::limits::control::{
    COST_MEMORY_PERMILLE, COST_SECONDS, FEW_COST_SECONDS, FEW_COSTS_PERMILLE, LOAD_CALM_PERMILLE, LOAD_LOOKS,
    MAX_MARGIN_PERMILLE, OUTLIER_SECONDS,
};
use crate::limits::{ADMISSION_LOOK_NS, FIRST_PACKET_COST_NS, MIN_PACKETS_FOR_COST};

/// Totals of a loop's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFigures {
    /// Time spent in turns that found work.
    pub busy_ns: u64,
    /// Time on a core, as the kernel accounts it: excludes the time in which other threads
    /// interrupted those turns.
    pub cpu_ns: u64,
    /// Time in which the loop was ready to run while other threads held the core, from the same
    /// account.
    pub waited_ns: u64,
    /// Time in turns plus time asleep: the whole time that these figures cover.
    pub seen_ns: u64,
    /// Media packets sent.
    pub packets: u64,
    /// Media packets sent before their time because their connection had room.
    pub ahead: u64,
    /// Media packets sent more than [`millrace_core::limits::OVERDUE_NS`] behind their time.
    pub overdue: u64,
}

impl EngineFigures {
    fn since(&self, before: &Self) -> Self {
        Self {
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
            seen_ns: self.seen_ns.saturating_sub(before.seen_ns),
            packets: self.packets.saturating_sub(before.packets),
            ahead: self.ahead.saturating_sub(before.ahead),
            overdue: self.overdue.saturating_sub(before.overdue),
        }
    }

    /// Working time. It is the lesser of the two figures, because a polling loop is on its core
    /// without work, and a turn continues while other threads hold the core.
    fn worked_ns(&self) -> u64 {
        self.busy_ns.min(self.cpu_ns)
    }

    /// Core time that counts as load: the working time, plus waiting time up to the same amount. An
    /// equal thread on the same core keeps the loop waiting for as long as the loop works. Any
    /// further waiting shows how busy other threads are and does not grow with the number of
    /// viewers.
    fn counted_ns(&self) -> u64 {
        self.worked_ns() + self.waited_ns.min(self.worked_ns())
    }

    /// Core time of one packet, in nanoseconds.
    pub(super) fn packet_cost_ns(&self) -> u64 {
        self.counted_ns().div_ceil(self.packets.max(1))
    }

    /// Packets that were sent because their time had come.
    fn paced(&self) -> u64 {
        self.packets.saturating_sub(self.ahead)
    }

    /// Share of the time in which the loop worked, in thousandths.
    pub(super) fn worked_permille(self) -> u64 {
        share(self.worked_ns(), self.seen_ns)
    }

    /// Share of the time in which the loop worked or waited for its core, in thousandths. At 1000
    /// it never sleeps.
    pub(super) fn wanted_permille(self) -> u64 {
        share(self.busy_ns.max(self.worked_ns() + self.waited_ns), self.seen_ns)
    }
}

/// Part of an interval, in thousandths.
fn share(part_ns: u64, of_ns: u64) -> u64 {
    (part_ns * 1000).checked_div(of_ns).unwrap_or(0).min(1000)
}

/// The last seconds of one engine.
#[derive(Debug, Default)]
pub struct EngineLoad {
    last: Option<(Instant, EngineFigures)>,
    /// The looks of the last second, oldest overwritten first.
    looks: [EngineFigures; LOAD_LOOKS],
    next: usize,
    /// Costs of a packet in the last seconds, in nanoseconds, oldest overwritten first; 0 where the
    /// core had time to spare.
    second_costs: [u64; COST_SECONDS],
}

impl EngineLoad {
    /// The sums at `now`. Looks that come too early are left out.
    pub fn look(&mut self, now: Instant, figures: EngineFigures) {
        let Some((then, before)) = self.last else {
            self.last = Some((now, figures));
            return;
        };
        // A quarter early: a timer's jitter must not make one look out of two.
        if now.ns_since(then) < ADMISSION_LOOK_NS * 3 / 4 {
            return;
        }
        let passed = figures.since(&before);
        // A loop in the middle of a turn has published nothing yet: the kernel's count belongs to
        // the next look.
        if passed.seen_ns > 0 {
            self.last = Some((now, figures));
            self.looks[self.next % LOAD_LOOKS] = passed;
            self.next += 1;
            if self.next.is_multiple_of(LOAD_LOOKS) {
                let second = self.latest(LOAD_LOOKS);
                let is_known = permille(second) >= COST_MEMORY_PERMILLE && second.packets > 0;
                self.second_costs[self.next / LOAD_LOOKS % COST_SECONDS] =
                    if is_known { second.packet_cost_ns() } else { 0 };
            }
        }
    }

    /// The latest looks, newest first; fewer shortly after the start.
    fn newest(&self, looks: usize) -> impl Iterator<Item = &EngineFigures> {
        (0..looks.min(self.next).min(LOAD_LOOKS)).map(|back| &self.looks[(self.next - 1 - back) % LOAD_LOOKS])
    }

    /// The sums of the latest `looks` looks.
    pub(super) fn latest(&self, looks: usize) -> EngineFigures {
        self.newest(looks).fold(EngineFigures::default(), |sum, look| EngineFigures {
            busy_ns: sum.busy_ns + look.busy_ns,
            cpu_ns: sum.cpu_ns + look.cpu_ns,
            waited_ns: sum.waited_ns + look.waited_ns,
            seen_ns: sum.seen_ns + look.seen_ns,
            packets: sum.packets + look.packets,
            ahead: sum.ahead + look.ahead,
            overdue: sum.overdue + look.overdue,
        })
    }

    /// Packets sent a second.
    pub fn packets_per_s(&self) -> u64 {
        rate(self.latest(LOAD_LOOKS))
    }

    /// Core time of one packet, in nanoseconds: the mean of the last second, or of the slow seconds
    /// that are remembered if that is more.
    pub fn packet_cost_ns(&self) -> u64 {
        let second = self.latest(LOAD_LOOKS);
        let is_calm = permille(second) < LOAD_CALM_PERMILLE;
        if second.packets == 0 || (is_calm && second.packets < MIN_PACKETS_FOR_COST) {
            return FIRST_PACKET_COST_NS;
        }
        let measured_ns = self.slow_cost_ns(second.packet_cost_ns());
        if is_calm { measured_ns.min(FIRST_PACKET_COST_NS) } else { measured_ns }
    }

    /// The cost of a packet in the slow seconds that are remembered, outliers excepted, at least
    /// `latest_ns`. A core that other programs use too is faster in some seconds than in others. In a
    /// steady flow of requests, those in the fastest seconds would be granted, and the viewers
    /// would be too many for the slow ones.
    fn slow_cost_ns(&self, latest_ns: u64) -> u64 {
        let mut costs = self.second_costs;
        costs.sort_unstable_by(|a, b| b.cmp(a));
        let known = costs.partition_point(|&cost| cost > 0);
        if known < FEW_COST_SECONDS {
            return latest_ns * FEW_COSTS_PERMILLE / 1000;
        }
        latest_ns.max(costs[OUTLIER_SECONDS])
    }

    /// Returns how busy the core would be, in thousandths, if all of `packets_per_s` were sent: the
    /// cost of these packets, or of those that are due now if they are more, and a margin for rates
    /// that vary. Packets sent ahead of their time are not due: they yield to all others. Work that
    /// the packets at this cost do not explain is added: the loop's other work.
    pub fn expected_permille(&self, packets_per_s: u64) -> u64 {
        let second = self.latest(LOAD_LOOKS);
        let cost_ns = self.packet_cost_ns();
        let permille_for = |per_s: u64| (per_s * cost_ns).div_ceil(1_000_000);
        let other_permille = permille(second).saturating_sub(permille_for(rate(second)));
        let due = per_second(second.paced(), second.seen_ns);
        permille_for(packets_per_s.max(due) + self.margin_per_s()) + other_permille
    }

    /// A margin in packets per second: the standard deviation of the paced rate in the looks of
    /// the last second. With many viewers whose rates vary, the peaks lie there.
    fn margin_per_s(&self) -> u64 {
        let rates = || self.newest(LOAD_LOOKS).map(|look| per_second(look.paced(), look.seen_ns));
        let looks = rates().count() as u64;
        if looks < 2 {
            return 0;
        }
        let mean = rates().sum::<u64>() / looks;
        let variance = rates().map(|rate| rate.abs_diff(mean).pow(2)).sum::<u64>() / looks;
        variance.isqrt().min(mean * MAX_MARGIN_PERMILLE / 1000)
    }
}

/// Busy share of an interval, in thousandths.
fn permille(of: EngineFigures) -> u64 {
    share(of.counted_ns(), of.seen_ns)
}

/// Packets a second of an interval.
pub(super) fn rate(of: EngineFigures) -> u64 {
    per_second(of.packets, of.seen_ns)
}

/// The rate at which `count` events fill `ns`, per second; 0 in no time.
pub(super) fn per_second(count: u64, ns: u64) -> u64 {
    let per_s = (u128::from(count) * 1_000_000_000).checked_div(u128::from(ns));
    per_s.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}
