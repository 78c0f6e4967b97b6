//! When the packets of a derived title leave: slots of 40 ms, each with the clock first and at most as many packets as the parent's
//! peak rate allows.
//!
//! The indexer takes the highest of all windows of 1 s, in whole media packets: 25 slots, and one media packet that begins within and
//! ends without.

use millrace_core::limits::{DEFAULT_TS_PER_PACKET, TS_PACKET_BYTES};
use millrace_core::time::{MEDIA_HZ, MediaTicks};
use millrace_core::units::BitRate;

use crate::limits::trick::{MIN_SLOT_PACKETS, MIN_SLOT_ROOM, TRICK_SLOT_TICKS, TRICK_TABLE_SLOTS};

/// Bounds on the TS packets of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotCapacity {
    /// At most, all packets counted.
    pub(crate) most: u64,
    /// At least; the rest is stuffing.
    pub(super) least: u64,
}

impl SlotCapacity {
    /// Below this peak rate; `None` if nothing can be sent at it.
    pub(crate) fn below(peak: BitRate) -> Option<Self> {
        let packets_a_second = peak.0 / 8 / TS_PACKET_BYTES as u64;
        let slots_a_second = MEDIA_HZ / TRICK_SLOT_TICKS;
        let most = packets_a_second.saturating_sub(DEFAULT_TS_PER_PACKET as u64) / slots_a_second;
        (most >= MIN_SLOT_ROOM).then(|| Self { most, least: MIN_SLOT_PACKETS.min(most / 2) })
    }
}

/// Packets of a slot that are not of pictures: the clock, and in some the two tables.
pub(super) fn overhead(slot: u64) -> u64 {
    if slot.is_multiple_of(TRICK_TABLE_SLOTS) { 3 } else { 1 }
}

/// The first slot that begins at or behind a time; the first of all for times before the title.
pub(super) fn slot_of(ticks: i64) -> u64 {
    u64::try_from(ticks).unwrap_or(0).div_ceil(TRICK_SLOT_TICKS)
}

/// Slots that end within a title of this duration.
pub(super) fn slots_of(duration: MediaTicks) -> u64 {
    duration.0 / TRICK_SLOT_TICKS
}

/// Assigns packets to slots, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotPacer {
    shape: SlotCapacity,
    slot: u64,
    used: u64,
}

impl SlotPacer {
    /// At the beginning of a title.
    pub(super) fn new(shape: SlotCapacity) -> Self {
        Self { shape, slot: 0, used: overhead(0) }
    }

    /// The slot that is being filled.
    pub(super) fn slot(&self) -> u64 {
        self.slot
    }

    /// Goes on to the next slot.
    pub(super) fn next_slot(&mut self) {
        self.slot += 1;
        self.used = overhead(self.slot);
    }

    /// Whether the slot has room for one more packet; takes it.
    pub(super) fn take(&mut self) -> bool {
        let has_room = self.used < self.shape.most;
        self.used += u64::from(has_room);
        has_room
    }

    /// Packets that the slot lacks.
    pub(super) fn lacking(&self) -> u64 {
        self.shape.least.saturating_sub(self.used)
    }

    /// Sends `packets` packets, the first in slot `from` or later; returns the slot of the last.
    pub(super) fn send(&mut self, from: u64, packets: u64) -> u64 {
        if self.slot < from {
            (self.slot, self.used) = (from, overhead(from));
        }
        for _ in 0..packets {
            while !self.take() {
                self.next_slot();
            }
        }
        self.slot
    }
}
