//! How busy an engine's core is, and how busy it would be with more to send.

use millrace_core::time::Instant;

use crate::limits::control::{LOAD_CALM_PERMILLE, LOAD_LOOKS, MAX_MARGIN_PERMILLE};
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
    /// Of these, more than [`millrace_core::limits::OVERDUE_NS`] behind their time.
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

/// The last second of one engine.
#[derive(Debug, Default)]
pub struct EngineLoad {
    last: Option<(Instant, EngineFigures)>,
    /// The looks of the last second, oldest overwritten first.
    looks: [EngineFigures; LOAD_LOOKS],
    next: usize,
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
        }
    }

    /// The last `looks` looks together: the newest first that there were.
    pub(super) fn latest(&self, looks: usize) -> EngineFigures {
        let newest = (0..looks.min(LOAD_LOOKS).min(self.next))
            .map(|back| &self.looks[(self.next - 1 - back) % LOAD_LOOKS]);
        newest.fold(EngineFigures::default(), |sum, look| EngineFigures {
            busy_ns: sum.busy_ns + look.busy_ns,
            cpu_ns: sum.cpu_ns + look.cpu_ns,
            waited_ns: sum.waited_ns + look.waited_ns,
            seen_ns: sum.seen_ns + look.seen_ns,
            packets: sum.packets + look.packets,
            overdue: sum.overdue + look.overdue,
        })
    }

    /// Busy share of the last second, in thousandths.
    pub fn busy_permille(&self) -> u64 {
        permille(self.latest(LOAD_LOOKS))
    }

    /// Packets sent a second.
    pub fn packets_per_s(&self) -> u64 {
        rate(self.latest(LOAD_LOOKS))
    }

    /// Busy time of one packet more, in nanoseconds.
    pub fn packet_cost_ns(&self) -> u64 {
        let total = self.latest(LOAD_LOOKS);
        if total.packets < MIN_PACKETS_FOR_COST {
            return FIRST_PACKET_COST_NS;
        }
        let measured_ns = total.counted_ns().div_ceil(total.packets);
        if permille(total) < LOAD_CALM_PERMILLE { measured_ns.min(FIRST_PACKET_COST_NS) } else { measured_ns }
    }

    /// Returns how busy the core would be, in thousandths, if all of `packets_per_s` were sent: the
    /// current load, a margin for rates that vary, and the cost of the packets that are not yet, or
    /// not now, sent.
    pub fn expected_permille(&self, packets_per_s: u64) -> u64 {
        let unsent = packets_per_s.saturating_sub(self.packets_per_s());
        let unsent_permille = (unsent * self.packet_cost_ns()).div_ceil(1_000_000);
        self.busy_permille() + self.margin_permille() + unsent_permille
    }

    /// The standard deviation of the busy shares of the last looks: with many viewers whose rates vary, the peaks lie there.
    fn margin_permille(&self) -> u64 {
        let seen = self.next.min(LOAD_LOOKS);
        if seen < 2 {
            return 0;
        }
        let shares = self.looks[..seen].iter().map(|look| permille(*look));
        let mean = shares.clone().sum::<u64>() / seen as u64;
        let variance = shares.map(|share| share.abs_diff(mean).pow(2)).sum::<u64>() / seen as u64;
        variance.isqrt().min(MAX_MARGIN_PERMILLE)
    }
}

/// Busy share of an interval, in thousandths.
fn permille(of: EngineFigures) -> u64 {
    share(of.counted_ns(), of.seen_ns)
}

/// Packets a second of an interval.
pub(super) fn rate(of: EngineFigures) -> u64 {
    let per_s = (u128::from(of.packets) * 1_000_000_000).checked_div(u128::from(of.seen_ns));
    per_s.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}
