//! A link: delay, rate, a queue, and everything that can go wrong.

use std::collections::BTreeMap;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;

use super::{MS, Packet, WELL_AT};

/// From this moment on the link takes packets of this size, IP header included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Narrow {
    pub(crate) at_ns: u64,
    pub(crate) mtu: usize,
}

/// The effect of a link on packets; probabilities in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) delay_ns: u64,
    pub(crate) bits_per_s: u64,
    /// Longest queue, in bytes.
    pub(crate) queue_bytes: u64,
    pub(crate) loss: u32,
    /// Chance that a burst of losses begins, and how long it is.
    pub(crate) burst: u32,
    pub(crate) burst_packets: u32,
    pub(crate) reorder: u32,
    pub(crate) duplicate: u32,
    pub(crate) corrupt: u32,
    pub(crate) mark: u32,
    /// Nothing passes from the first of these moments to the second.
    pub(crate) outage_ns: (u64, u64),
    /// Largest packets, in order of time; longer ones vanish. Before the first everything passes.
    pub(crate) mtus: [Option<Narrow>; 2],
    /// The sender receives reports of packets that were too large.
    pub(crate) reports_too_big: bool,
}

impl Plan {
    /// A link from a seed: often harmless, sometimes terrible.
    pub(crate) fn random(random: &mut SplitMix) -> Self {
        let mut chance = |most: u64| match random.below(3) {
            0 => random.below(most) as u32,
            _ => 0,
        };
        let (loss, burst, reorder) = (chance(150_000), chance(10_000), chance(200_000));
        let (duplicate, corrupt, mark) = (chance(100_000), chance(50_000), chance(50_000));
        let mut plan = Self {
            delay_ns: (1 + random.below(80)) * MS,
            bits_per_s: 1_000_000 << random.below(8),
            queue_bytes: 20_000 + random.below(200_000),
            loss,
            burst,
            burst_packets: 2 + random.below(20) as u32,
            reorder,
            duplicate,
            corrupt,
            mark,
            reports_too_big: random.below(2) == 0,
            ..Self::default()
        };
        if random.below(8) == 0 {
            let from = random.below(2_000) * MS;
            plan.outage_ns = (from, from + random.below(10_000) * MS);
        }
        let mut at_ns = 0;
        for change in &mut plan.mtus {
            if random.below(4) == 0 {
                at_ns += random.below(1_500) * MS;
                let mtus = if plan.reports_too_big { &REPORTED_MTUS[..] } else { &SILENT_MTUS[..] };
                let mtu = mtus[random.below(mtus.len() as u64) as usize];
                *change = Some(Narrow { at_ns, mtu });
            }
        }
        plan
    }

    /// Nothing goes wrong.
    pub(crate) fn perfect(delay_ns: u64, bits_per_s: u64) -> Self {
        Self { delay_ns, bits_per_s, queue_bytes: 1 << 30, ..Self::default() }
    }

    /// Largest packet that passes now.
    fn mtu(&self, now: Instant) -> usize {
        let mut past = self.mtus.iter().flatten().filter(|change| change.at_ns <= now.0);
        past.next_back().map_or(usize::MAX, |change| change.mtu)
    }
}

/// Sizes that a sender finds out by itself (`MSS_BASE` with headers fits them all).
const SILENT_MTUS: [usize; 5] = [1280, 1300, 1400, 1492, 1500];
/// Sizes that only a report makes known to it are among these.
const REPORTED_MTUS: [usize; 6] = [576, 600, 1000, 1280, 1400, 1500];

/// Kinds of random events. Each has numbers of its own: a link without one kind does the rest as before.
enum Kind {
    Burst,
    Loss,
    Reorder,
    Mark,
    Duplicate,
    Corrupt,
}
const KINDS: usize = 6;

pub(crate) struct Link {
    plan: Plan,
    randoms: [SplitMix; KINDS],
    under_way: BTreeMap<(Instant, u64), Packet>,
    count: u64,
    free_at: Instant,
    burst_left: u32,
}

/// What became of a packet that was put on a link.
pub(crate) enum Pushed {
    /// It is under way, or it was lost without a word.
    Gone,
    /// It is too large for the link, which passes this much and reports it.
    TooBig(Packet, usize),
}

impl Link {
    pub(crate) fn new(plan: Plan, mut random: SplitMix) -> Self {
        let randoms = [(); KINDS].map(|()| SplitMix(random.next()));
        Self { plan, randoms, under_way: BTreeMap::new(), count: 0, free_at: Instant(0), burst_left: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        self.under_way.keys().next().map(|&(at, _)| at)
    }

    pub(crate) fn pop(&mut self, now: Instant) -> Option<Packet> {
        self.due().filter(|&at| at <= now)?;
        self.under_way.pop_first().map(|(_, packet)| packet)
    }

    pub(crate) fn push(&mut self, now: Instant, mut packet: Packet) -> Pushed {
        let Plan { delay_ns, bits_per_s, queue_bytes, outage_ns, .. } = self.plan;
        let mtu = self.plan.mtu(now);
        if packet.ip_bytes() > mtu {
            return if self.plan.reports_too_big { Pushed::TooBig(packet, mtu) } else { Pushed::Gone };
        }
        let bits = packet.bytes.len() as u64 * 8;
        let waits_ns = self.free_at.ns_since(now);
        let is_well = now >= WELL_AT;
        let is_out = (outage_ns.0..outage_ns.1).contains(&now.0);
        if !is_well && (is_out || waits_ns * bits_per_s / 8_000_000_000 > queue_bytes) {
            return Pushed::Gone;
        }
        self.free_at = now.max(self.free_at).plus_ns(bits * 1_000_000_000 / bits_per_s);
        let mut at = self.free_at.plus_ns(delay_ns);
        if !is_well && !self.spoil(&mut packet, &mut at) {
            return Pushed::Gone;
        }
        self.count += 1;
        self.under_way.insert((at, self.count), packet);
        Pushed::Gone
    }

    fn random(&mut self, kind: Kind) -> &mut SplitMix {
        &mut self.randoms[kind as usize]
    }

    /// False: the packet is lost.
    fn spoil(&mut self, packet: &mut Packet, at: &mut Instant) -> bool {
        let plan = self.plan;
        if self.random(Kind::Burst).hits(plan.burst) {
            self.burst_left = plan.burst_packets;
        }
        if self.random(Kind::Loss).hits(plan.loss) || self.burst_left > 0 {
            self.burst_left = self.burst_left.saturating_sub(1);
            return false;
        }
        if self.random(Kind::Reorder).hits(plan.reorder) {
            *at = at.plus_ns(self.random(Kind::Reorder).below(2 * plan.delay_ns));
        }
        if packet.is_capable && self.random(Kind::Mark).hits(plan.mark) {
            packet.is_marked = true;
        }
        if self.random(Kind::Duplicate).hits(plan.duplicate) {
            self.count += 1;
            let later = at.plus_ns(self.random(Kind::Duplicate).below(plan.delay_ns));
            self.under_way.insert((later, self.count), packet.clone());
        }
        if self.random(Kind::Corrupt).hits(plan.corrupt) {
            let bit = self.random(Kind::Corrupt).below(packet.bytes.len() as u64 * 8);
            packet.bytes[bit as usize / 8] ^= 1 << (bit % 8);
            packet.is_damaged = true;
        }
        true
    }
}
