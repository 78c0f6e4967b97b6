//! The actions of a link on the packets passed to it.

use std::fmt;

/// Packets of one direction, or a part of them. At every moment `received + duplicated` is the sum of `forwarded`, `lost`,
/// `queue_drops`, `overflow` and `waiting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounts {
    /// Packets that came in.
    pub received: u64,
    /// Packets that went out, the second ones of `duplicated` included.
    pub forwarded: u64,
    /// Packets that disappeared as the description wanted: random and burst loss.
    pub lost: u64,
    /// Packets that went out twice.
    pub duplicated: u64,
    /// Packets in which bits were flipped; one that went out twice counts once.
    pub corrupted: u64,
    /// ECN-capable packets that were marked; one that went out twice counts once.
    pub marked: u64,
    /// Packets that were overtaken by at least one other.
    pub reordered: u64,
    /// Packets that found the queue of the rate limit full.
    pub queue_drops: u64,
    /// Packets dropped because the emulator holds no more than `crate::limits::MAX_LINK_PACKETS` nor more than `MAX_LINK_BYTES`: no part of the description.
    pub overflow: u64,
    /// Packets inside now.
    pub waiting: u64,
    /// Bytes that came in, network headers included.
    pub received_bytes: u64,
    /// Bytes that went out.
    pub forwarded_bytes: u64,
}

impl LinkCounts {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            received: self.received + other.received,
            forwarded: self.forwarded + other.forwarded,
            lost: self.lost + other.lost,
            duplicated: self.duplicated + other.duplicated,
            corrupted: self.corrupted + other.corrupted,
            marked: self.marked + other.marked,
            reordered: self.reordered + other.reordered,
            queue_drops: self.queue_drops + other.queue_drops,
            overflow: self.overflow + other.overflow,
            waiting: self.waiting + other.waiting,
            received_bytes: self.received_bytes + other.received_bytes,
            forwarded_bytes: self.forwarded_bytes + other.forwarded_bytes,
        }
    }

    /// Whether every packet is accounted for. Holds at every moment; tests ask.
    pub fn is_conserved(&self) -> bool {
        self.received + self.duplicated
            == self.forwarded + self.lost + self.queue_drops + self.overflow + self.waiting
    }
}

impl fmt::Display for LinkCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in, {} out", self.received, self.forwarded)?;
        let parts = [
            (self.lost, "lost"),
            (self.queue_drops, "dropped at a full queue"),
            (self.duplicated, "doubled"),
            (self.corrupted, "damaged"),
            (self.marked, "marked"),
            (self.reordered, "overtaken"),
            (self.overflow, "dropped for want of memory"),
            (self.waiting, "on their way"),
        ];
        for (count, what) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, ", {count} {what}")?;
        }
        Ok(())
    }
}

/// What happened in one direction of a running link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// All packets.
    pub all: LinkCounts,
    /// Of these the RTP packets, as [`crate::classify()`] knows them.
    pub rtp: LinkCounts,
    /// Packets that the kernel dropped before the emulator could read them: it was too slow. No part of the description.
    pub missed: u64,
    /// Packets counted as forwarded that the kernel refused to take.
    pub refused: u64,
}

impl LinkStats {
    /// Packets that got lost although the description did not ask for it. Anything but 0 spoils a measurement.
    pub fn unplanned(&self) -> u64 {
        self.all.overflow + self.missed + self.refused
    }
}

impl fmt::Display for LinkStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; RTP: {}", self.all, self.rtp)?;
        if self.missed + self.refused > 0 {
            write!(f, "; NOT ASKED FOR: {} missed, {} refused by the kernel", self.missed, self.refused)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_what_happened_and_nothing_else() {
        let counts =
            LinkCounts { received: 9, forwarded: 8, lost: 2, duplicated: 1, ..LinkCounts::default() };
        assert!(counts.is_conserved());
        assert_eq!(counts.to_string(), "9 in, 8 out, 2 lost, 1 doubled");
        let stats = LinkStats { all: counts, missed: 3, ..LinkStats::default() };
        assert_eq!(stats.unplanned(), 3);
        assert!(stats.to_string().contains("NOT ASKED FOR: 3 missed"), "{stats}");
    }
}
