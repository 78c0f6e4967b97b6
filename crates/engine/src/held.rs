//! Extents that a device still reads after it has taken their packets: each is held until the
//! device has reported that it is done with the last packet that it took from it.
//!
//! The unit is the packets that the device has taken of a stream in its whole life, so one number
//! is enough: "done with the first n".
//!
//! ```text
//!   taken    ....|████████████|████████████|██████              the extent that is being sent has a place already
//!                  behind 196   behind 392   begun 392
//!   done(250) ───────────────────▲   gives the first back
//! ```

use millrace_core::limits::MAX_HELD_PER_ENGINE;
use millrace_core::pool::Lease;

use crate::limits::MAX_HELD_PER_STREAM;
use crate::queue::IndexQueue;

/// No place.
const NONE: u32 = u32::MAX;

/// A place for one extent.
struct HeldExtentSlot {
    lease: Option<Lease>,
    /// Packets taken of the stream when the last of this extent was.
    behind: u64,
    /// The place behind it, of the same stream or of those that are free.
    next: u32,
}

/// The extents held for one stream.
#[derive(Clone, Copy)]
struct StreamHoldings {
    /// Places with extents, the oldest first.
    first: u32,
    last: u32,
    /// The place of the extent that is being sent, which is still among the stream's own.
    open: u32,
    /// Packets taken before the first one of this extent.
    begun: u64,
    /// Packets that the device is done with.
    done: u64,
    /// Places in all.
    len: u8,
    /// The slot of the extent that is being sent.
    slot: u8,
    /// There was no place: it waits.
    waits: bool,
}

impl StreamHoldings {
    const EMPTY: Self =
        Self { first: NONE, last: NONE, open: NONE, begun: 0, done: 0, len: 0, slot: 0, waits: false };
}

/// See the module.
pub(crate) struct HeldLeases {
    places: Box<[HeldExtentSlot]>,
    /// The first that is free, and how many are.
    free: u32,
    free_places: u32,
    rows: Box<[StreamHoldings]>,
    /// Streams that wait for a place of any stream.
    waiting: IndexQueue,
}

impl HeldLeases {
    /// Creates the table for this many streams.
    pub(crate) fn new(streams: usize) -> Self {
        let last = MAX_HELD_PER_ENGINE as u32 - 1;
        let place = |index| HeldExtentSlot {
            lease: None,
            behind: 0,
            next: if index == last { NONE } else { index + 1 },
        };
        Self {
            places: (0..=last).map(place).collect(),
            free: 0,
            free_places: last + 1,
            rows: vec![StreamHoldings::EMPTY; streams].into(),
            waiting: IndexQueue::new(streams),
        }
    }

    /// Begins the life of a stream that has nothing held.
    pub(crate) fn reset(&mut self, index: u32) {
        debug_assert!(self.is_empty(index));
        self.rows[index as usize] = StreamHoldings::EMPTY;
    }

    /// Whether nothing is held of a stream.
    pub(crate) fn is_empty(&self, index: u32) -> bool {
        self.rows[index as usize].len == 0
    }

    /// Packets of the extent in `slot` are about to be sent, behind `taken` others. `false`: there is no place for it, and the stream
    /// waits.
    pub(crate) fn begin(&mut self, index: u32, slot: usize, taken: u64) -> bool {
        let row = &mut self.rows[index as usize];
        if row.open != NONE {
            return true;
        }
        let is_own = usize::from(row.len) >= MAX_HELD_PER_STREAM;
        row.waits = is_own || self.free == NONE;
        if row.waits {
            if !is_own {
                self.waiting.push_back(index);
            }
            return false;
        }
        let open = self.free;
        self.free = self.places[open as usize].next;
        self.free_places -= 1;
        (row.open, row.slot, row.begun, row.len) = (open, slot as u8, taken, row.len + 1);
        true
    }

    /// The stream needs the extent in `slot` no longer, after `taken` packets of all: it is held if the device is not done with it.
    pub(crate) fn keep(&mut self, index: u32, slot: usize, lease: Option<Lease>, taken: u64) {
        let row = &mut self.rows[index as usize];
        if row.open == NONE || usize::from(row.slot) != slot {
            return;
        }
        let open = std::mem::replace(&mut row.open, NONE);
        let Some(lease) = lease.filter(|_| taken > row.begun && taken > row.done) else {
            return self.free_place(index, open);
        };
        if let Some(last) = self.places.get_mut(row.last as usize)
            && last.lease.as_ref().is_some_and(|other| other.extent() == lease.extent())
        {
            // More of an extent that grows, or of one that is sent again.
            last.behind = taken;
            return self.free_place(index, open);
        }
        match self.places.get_mut(row.last as usize) {
            Some(last) => last.next = open,
            None => row.first = open,
        }
        row.last = open;
        self.places[open as usize] = HeldExtentSlot { lease: Some(lease), behind: taken, next: NONE };
    }

    /// The device is done with the first `packets` packets of the stream.
    pub(crate) fn done(&mut self, index: u32, packets: u64) {
        let row = &mut self.rows[index as usize];
        row.done = row.done.max(packets);
        let done = row.done;
        loop {
            let row = &mut self.rows[index as usize];
            let first = row.first;
            let Some(place) = self.places.get_mut(first as usize).filter(|place| place.behind <= done) else {
                return;
            };
            place.lease = None;
            row.first = place.next;
            if row.first == NONE {
                row.last = NONE;
            }
            self.free_place(index, first);
        }
    }

    /// The stream waits for nothing any more.
    pub(crate) fn stop_waiting(&mut self, index: u32) {
        self.rows[index as usize].waits = false;
    }

    /// Whether the stream has waited and need not any more.
    pub(crate) fn take_waiting(&mut self, index: u32) -> bool {
        let row = &mut self.rows[index as usize];
        let has_place = usize::from(row.len) < MAX_HELD_PER_STREAM && self.free != NONE;
        has_place && std::mem::take(&mut row.waits)
    }

    /// Returns the number of free places for extents.
    pub(crate) fn free_places(&self) -> u32 {
        self.free_places
    }

    /// A stream that waited for a place of any stream, if there is one. It takes that only when it sends.
    pub(crate) fn poll_waiting(&mut self) -> Option<u32> {
        while self.free != NONE {
            let index = self.waiting.front()?;
            self.waiting.pop_front();
            if self.take_waiting(index) {
                return Some(index);
            }
        }
        None
    }

    fn free_place(&mut self, index: u32, place: u32) {
        self.places[place as usize].next = self.free;
        self.free = place;
        self.free_places += 1;
        self.rows[index as usize].len -= 1;
    }
}
