//! A timing wheel: one timer for each of a fixed number of owners, all operations O(1), nothing allocated after `new`.
//!
//! ```text
//!             far: 4096 slots of 2^18 ns = 262 us, about 1 s ahead; later timers wait in the last slot
//!   ... | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | ...
//!            ^ cursor: the far slot being worked off, spread over
//!            +--> near: 1024 slots of 2^8 ns = 256 ns
//! ```
//!
//! A timer is put into a far slot, moved once to a near slot when the cursor reaches it, and popped from there: two
//! queue operations, whatever the number of timers (Varghese and Lauck 1987, scheme 7). A wheel of 262 us slots alone
//! would make packets early or late by as much; a heap costs a logarithm of cache misses. Within a near slot
//! the due times themselves are compared, so a timer never fires early, and [`Wheel::next_due`] is exact to the
//! nanosecond as soon as the timer is in the near wheel.
//!
//! | file | holds |
//! | --- | --- |
//! | `lists` | the slots' queues, in blocks: with 100,000 timers the memory is what costs |
//! | `bits` | a bit for each slot that is not empty, to find the next one without walking |

mod bits;
mod lists;

use crate::prefetch::prefetch;
use crate::time::Instant;

use self::bits::Bits;
use self::lists::{Queues, TimerEntry, TimerPosition};

const NEAR_SHIFT: u32 = 8;
const NEAR_SLOTS: usize = 1024;
const FAR_SHIFT: u32 = 18;
const FAR_SLOTS: usize = 4096;
/// Offset of an entry of a far slot whose timer is due beyond that slot.
const BEYOND: u32 = u32::MAX;

const _: () = {
    assert!(NEAR_SLOTS << NEAR_SHIFT == 1 << FAR_SHIFT, "the near wheel spans exactly one far slot");
    assert!(size_of::<Timer>() == 16);
};

/// The record of an owner's timer: where to find it when it is moved or cancelled.
#[derive(Clone, Copy)]
struct Timer {
    /// When it fires, in nanoseconds.
    due: u64,
    place: TimerPosition,
    queue: u32,
}

/// Timers of owners `0..owners`.
pub struct Wheel {
    timers: Box<[Timer]>,
    len: u32,
    /// Number since the beginning of time of the far slot that the near wheel spans. Timers of this slot and of
    /// earlier ones are in the near wheel, all others in the far wheel.
    cursor: u64,
    /// Those of the near slots, then those of the far slots. An entry's offset is the time since the far slot began (0 if
    /// it was due before); in the far wheel it may be [`BEYOND`].
    queues: Queues,
    near: Bits<{ NEAR_SLOTS / 64 }>,
    far: Bits<{ FAR_SLOTS / 64 }>,
}

impl Wheel {
    /// A wheel with no timer set.
    pub fn new(owners: usize) -> Self {
        let unset = Timer { due: u64::MAX, place: TimerPosition::NOWHERE, queue: 0 };
        Self {
            timers: vec![unset; owners].into(),
            len: 0,
            cursor: 0,
            queues: Queues::new(NEAR_SLOTS + FAR_SLOTS, owners),
            near: Bits::new(),
            far: Bits::new(),
        }
    }

    /// Returns the bytes of a wheel for this many owners.
    pub const fn bytes(owners: usize) -> usize {
        owners * size_of::<Timer>() + Queues::bytes(NEAR_SLOTS + FAR_SLOTS, owners)
    }

    /// Timers that are set.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets `owner`'s timer, or moves it.
    ///
    /// # Panics
    /// If there is no such owner.
    pub fn set(&mut self, owner: u32, due: Instant, now: Instant) {
        assert!((owner as usize) < self.timers.len(), "timer {owner} of {}", self.timers.len());
        self.cancel(owner);
        if self.len == 0 {
            // Nothing is placed relative to the cursor: it may jump over a pause of any length.
            self.cursor = now.0 >> FAR_SHIFT;
        }
        self.len += 1;
        self.link(owner, due.0);
    }

    /// When `owner`'s timer fires, if it is set.
    ///
    /// # Panics
    /// If there is no such owner.
    #[inline]
    pub fn due(&self, owner: u32) -> Option<Instant> {
        let timer = &self.timers[owner as usize];
        (timer.place != TimerPosition::NOWHERE).then_some(Instant(timer.due))
    }

    /// Asks for the memory that [`Wheel::due`], [`Wheel::set`] and [`Wheel::cancel`] read first.
    #[inline]
    pub fn prefetch(&self, owner: u32) {
        if let Some(timer) = self.timers.get(owner as usize) {
            prefetch(timer);
        }
    }

    /// Takes `owner`'s timer away, if it is set.
    ///
    /// # Panics
    /// If there is no such owner.
    pub fn cancel(&mut self, owner: u32) {
        let Timer { place, queue, .. } = self.timers[owner as usize];
        if place == TimerPosition::NOWHERE {
            return;
        }
        if let Some(moved) = self.queues.remove(queue, place) {
            self.timers[moved as usize].place = place;
        }
        self.timers[owner as usize].place = TimerPosition::NOWHERE;
        self.len -= 1;
        if self.queues.is_empty(queue) {
            match (queue as usize).checked_sub(NEAR_SLOTS) {
                None => self.near.clear(queue as usize),
                Some(slot) => self.far.clear(slot),
            }
        }
    }

    /// Takes one timer that is due at `now` and returns its owner; earlier ones first, to within 256 ns.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let mut owner = [0];
        (self.pop_due_into(now, &mut owner) == 1).then_some(owner[0])
    }

    /// Takes as many timers as `owners` has room for of those due at `now`; how many they were. Earlier ones come first,
    /// to within 256 ns.
    pub fn pop_due_into(&mut self, now: Instant, owners: &mut [u32]) -> usize {
        let mut count = 0;
        while count < owners.len() && self.len > 0 {
            let taken = match self.near.first() {
                Some(slot) => self.take_near(slot as u32, now.0, &mut owners[count..]),
                None if self.advance(now.0).is_some() => continue,
                None => break,
            };
            if taken == 0 {
                break;
            }
            count += taken;
        }
        count
    }

    /// When [`Wheel::pop_due`] has something to do next. Never later than the earliest timer, exactly then for a timer
    /// within the next second unless an earlier one was cancelled; later than `now` if `pop_due(now)` has just returned
    /// `None`.
    pub fn next_due(&self) -> Option<Instant> {
        let queue = match self.near.first() {
            Some(slot) => slot as u32,
            None => far_queue(self.next_far()?),
        };
        Some(Instant(self.queues.attention(queue)))
    }

    /// Number of the next far slot that is not empty.
    fn next_far(&self) -> Option<u64> {
        let here = (self.cursor % FAR_SLOTS as u64) as usize;
        let slot = self.far.first_from((here + 1) % FAR_SLOTS)?;
        Some(self.cursor + ((slot + FAR_SLOTS - here) % FAR_SLOTS) as u64)
    }

    /// Takes timers of this near slot that are due; 0 after a look at each, with the queue's bound put right.
    fn take_near(&mut self, slot: u32, now: u64, owners: &mut [u32]) -> usize {
        let far_start = self.cursor << FAR_SHIFT;
        // A timer at the very start may have been due at any time before.
        let elapsed = u32::try_from(now.saturating_sub(far_start)).unwrap_or(u32::MAX);
        let taken = if elapsed >= (slot + 1) << NEAR_SHIFT {
            self.queues.pop_many(slot, owners)
        } else if elapsed >= slot << NEAR_SHIFT {
            let Self { queues, timers, .. } = self;
            queues.take(slot, elapsed, owners, |moved, place| timers[moved as usize].place = place)
        } else {
            return 0;
        };
        for &owner in &owners[..taken] {
            self.timers[owner as usize].place = TimerPosition::NOWHERE;
        }
        self.len -= taken as u32;
        match self.queues.is_empty(slot) {
            true => self.near.clear(slot as usize),
            false if taken == 0 => {
                let earliest = self.queues.iter(slot).map(|entry| entry.offset).min().unwrap_or(0);
                self.queues.set_attention(slot, far_start + u64::from(earliest));
            }
            false => {}
        }
        taken
    }

    /// With the near wheel empty: goes on to the next far slot that has begun and spreads it, or to `now` and `None`.
    fn advance(&mut self, now: u64) -> Option<()> {
        let target = now >> FAR_SHIFT;
        match self.next_far().filter(|&number| number <= target) {
            Some(number) => {
                self.cursor = number;
                self.spread(number);
                Some(())
            }
            None => {
                self.cursor = self.cursor.max(target);
                None
            }
        }
    }

    /// Moves the timers of far slot `number`, where the cursor is now, to where they belong.
    fn spread(&mut self, number: u64) {
        let queue = far_queue(number);
        // Timers put back for a later time go to other slots, since the cursor stands at this one.
        loop {
            let TimerEntry { owner, offset } = self.queues.first(queue);
            self.queues.pop(queue);
            match offset {
                BEYOND => self.link(owner, self.timers[owner as usize].due),
                offset => self.link_near(owner, (number << FAR_SHIFT) + u64::from(offset), offset),
            }
            if self.queues.is_empty(queue) {
                break;
            }
        }
        self.far.clear((number % FAR_SLOTS as u64) as usize);
    }

    /// Puts `owner` at the end of the queue where a timer for `due` belongs.
    fn link(&mut self, owner: u32, due: u64) {
        let number = due >> FAR_SHIFT;
        if number <= self.cursor {
            return self.link_near(owner, due, due.saturating_sub(self.cursor << FAR_SHIFT) as u32);
        }
        // A timer that waits in the last slot needs attention when that slot comes, to be moved on.
        let slot = number.min(self.cursor + (FAR_SLOTS - 1) as u64);
        let (offset, attention) = match number == slot {
            true => ((due - (number << FAR_SHIFT)) as u32, due),
            false => (BEYOND, ((slot + 1) << FAR_SHIFT) - 1),
        };
        self.far.set((slot % FAR_SLOTS as u64) as usize);
        let queue = far_queue(slot);
        let place = self.queues.push(queue, TimerEntry { owner, offset }, attention);
        self.timers[owner as usize] = Timer { due, place, queue };
    }

    /// The same for a timer due in the far slot that the near wheel spans, `offset` after its start, or before it.
    fn link_near(&mut self, owner: u32, due: u64, offset: u32) {
        let queue = offset >> NEAR_SHIFT;
        self.near.set(queue as usize);
        let place = self.queues.push(queue, TimerEntry { owner, offset }, due);
        self.timers[owner as usize] = Timer { due, place, queue };
    }
}

/// Queue of far slot `number`.
fn far_queue(number: u64) -> u32 {
    (NEAR_SLOTS as u64 + number % FAR_SLOTS as u64) as u32
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
