//! A link: delay, rate, a queue, and everything that can go wrong.

use std::collections::BTreeMap;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;

use super::{MS, Packet, WELL_AT};

/// What a link does to packets; probabilities in parts of a million.
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
    /// Largest segment with its header, in bytes; longer ones vanish.
    pub(crate) mtu: usize,
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
        Self {
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
            mtu: 1480,
        }
    }

    /// Nothing goes wrong.
    pub(crate) fn perfect(delay_ns: u64, bits_per_s: u64) -> Self {
        Self { delay_ns, bits_per_s, queue_bytes: 1 << 30, mtu: 1 << 16, ..Self::default() }
    }
}

pub(crate) struct Link {
    plan: Plan,
    random: SplitMix,
    under_way: BTreeMap<(Instant, u64), Packet>,
    count: u64,
    free_at: Instant,
    burst_left: u32,
}

impl Link {
    pub(crate) fn new(plan: Plan, random: SplitMix) -> Self {
        Self { plan, random, under_way: BTreeMap::new(), count: 0, free_at: Instant(0), burst_left: 0 }
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

    pub(crate) fn push(&mut self, now: Instant, mut packet: Packet) {
        let Plan { delay_ns, bits_per_s, queue_bytes, .. } = self.plan;
        if packet.bytes.len() > self.plan.mtu {
            return;
        }
        let bits = packet.bytes.len() as u64 * 8;
        let waits_ns = self.free_at.ns_since(now);
        let is_well = now >= WELL_AT;
        if !is_well && waits_ns * bits_per_s / 8_000_000_000 > queue_bytes {
            return;
        }
        self.free_at = now.max(self.free_at).plus_ns(bits * 1_000_000_000 / bits_per_s);
        let mut at = self.free_at.plus_ns(delay_ns);
        if !is_well && !self.spoil(&mut packet, &mut at) {
            return;
        }
        self.count += 1;
        self.under_way.insert((at, self.count), packet);
    }

    /// False: the packet is lost.
    fn spoil(&mut self, packet: &mut Packet, at: &mut Instant) -> bool {
        let plan = self.plan;
        if self.random.hits(plan.burst) {
            self.burst_left = plan.burst_packets;
        }
        if self.burst_left > 0 || self.random.hits(plan.loss) {
            self.burst_left = self.burst_left.saturating_sub(1);
            return false;
        }
        if self.random.hits(plan.reorder) {
            *at = at.plus_ns(self.random.below(2 * plan.delay_ns));
        }
        if packet.is_capable && self.random.hits(plan.mark) {
            packet.is_marked = true;
        }
        if self.random.hits(plan.duplicate) {
            self.count += 1;
            let later = at.plus_ns(self.random.below(plan.delay_ns));
            self.under_way.insert((later, self.count), packet.clone());
        }
        if self.random.hits(plan.corrupt) {
            let bit = self.random.below(packet.bytes.len() as u64 * 8);
            packet.bytes[bit as usize / 8] ^= 1 << (bit % 8);
        }
        true
    }
}
