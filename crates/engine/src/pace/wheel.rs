//! A timing wheel: one timer for each of a fixed number of owners, all operations O(1), nothing allocated after `new`.
//!
//! ```text
//!             far: 4096 slots of 2^18 ns = 262 us, about 1 s ahead; later timers wait in the last slot
//!   ... | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | | ...
//!            ^ cursor: the far slot being worked off, spread over
//!            +--> near: 256 slots of 2^10 ns = 1 us
//! ```
//!
//! A timer is put into a far slot, moved once to a near slot when the cursor reaches it, and popped from there: two
//! list operations, whatever the number of timers (Varghese and Lauck 1987, scheme 7). A wheel of 262 us slots alone
//! would make packets early or late by as much; a heap costs a logarithm of cache misses. Within a near slot
//! the due times themselves are compared, so a timer never fires early, and [`Wheel::next_due`] is exact to the
//! nanosecond as soon as the timer is in the near wheel.
//!
//! Slots are circular doubly linked lists through the owners' nodes (16 bytes each) with the slot's own node as
//! sentinel; a bit for each slot that is not empty finds the next one without walking.

use millrace_core::time::Instant;

const NEAR_SHIFT: u32 = 10;
const NEAR_SLOTS: usize = 256;
const FAR_SHIFT: u32 = 18;
const FAR_SLOTS: usize = 4096;
/// `next` of a node that is in no list.
const UNLINKED: u32 = u32::MAX;

const _: () = {
    assert!(NEAR_SLOTS << NEAR_SHIFT == 1 << FAR_SHIFT, "the near wheel spans exactly one far slot");
    assert!(size_of::<Node>() == 16);
};

/// A timer, or a slot's sentinel.
#[derive(Clone, Copy)]
struct Node {
    /// When it fires, in nanoseconds. Of a sentinel: when its list needs attention, not later than its earliest timer.
    due: u64,
    next: u32,
    prev: u32,
}

/// Timers of owners `0..owners`.
pub struct Wheel {
    /// The owners' nodes, then the near sentinels, then the far sentinels.
    nodes: Box<[Node]>,
    owners: u32,
    len: u32,
    /// Number since the beginning of time of the far slot that the near wheel spans. Timers of this slot and of
    /// earlier ones are in the near wheel, all others in the far wheel.
    cursor: u64,
    near: Bits<{ NEAR_SLOTS / 64 }>,
    far: Bits<{ FAR_SLOTS / 64 }>,
}

impl Wheel {
    /// A wheel with no timer set.
    pub fn new(owners: usize) -> Self {
        let total = owners + NEAR_SLOTS + FAR_SLOTS;
        let unlinked = Node { due: u64::MAX, next: UNLINKED, prev: UNLINKED };
        let sentinel = |at: usize| Node { due: u64::MAX, next: at as u32, prev: at as u32 };
        let nodes = (0..total).map(|at| if at < owners { unlinked } else { sentinel(at) }).collect();
        Self { nodes, owners: owners as u32, len: 0, cursor: 0, near: Bits::new(), far: Bits::new() }
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
        assert!(owner < self.owners, "timer {owner} of {}", self.owners);
        self.cancel(owner);
        if self.len == 0 {
            // Nothing is placed relative to the cursor: it may jump over a pause of any length.
            self.cursor = now.0 >> FAR_SHIFT;
        }
        self.len += 1;
        self.link(owner, due.0);
    }

    /// Takes `owner`'s timer away, if it is set.
    ///
    /// # Panics
    /// If there is no such owner.
    pub fn cancel(&mut self, owner: u32) {
        assert!(owner < self.owners, "timer {owner} of {}", self.owners);
        if self.nodes[owner as usize].next != UNLINKED {
            self.unlink(owner);
            self.len -= 1;
        }
    }

    /// Takes one timer that is due at `now` and returns its owner; earlier ones first, to within 1 us.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let owner = loop {
            match self.near.first() {
                Some(slot) => break self.due_in_near(slot, now.0)?,
                None => self.advance(now.0)?,
            }
        };
        self.unlink(owner);
        self.len -= 1;
        Some(owner)
    }

    /// When [`Wheel::pop_due`] has something to do next. Never later than the earliest timer, exactly then for a timer
    /// within the next second unless an earlier one was cancelled; later than `now` if `pop_due(now)` has just returned
    /// `None`.
    pub fn next_due(&self) -> Option<Instant> {
        let sentinel = match self.near.first() {
            Some(slot) => self.near_sentinel(slot),
            None => self.far_sentinel(self.next_far()?),
        };
        Some(Instant(self.nodes[sentinel as usize].due))
    }

    fn near_sentinel(&self, slot: usize) -> u32 {
        self.owners + slot as u32
    }

    fn far_sentinel(&self, number: u64) -> u32 {
        self.owners + NEAR_SLOTS as u32 + (number % FAR_SLOTS as u64) as u32
    }

    /// Number of the next far slot that is not empty.
    fn next_far(&self) -> Option<u64> {
        let here = (self.cursor % FAR_SLOTS as u64) as usize;
        let slot = self.far.first_from((here + 1) % FAR_SLOTS)?;
        Some(self.cursor + ((slot + FAR_SLOTS - here) % FAR_SLOTS) as u64)
    }

    /// The first timer of this near slot that is due; `None` after a look at each, with the sentinel put right.
    fn due_in_near(&mut self, slot: usize, now: u64) -> Option<u32> {
        let sentinel = self.near_sentinel(slot);
        let slot_start = (self.cursor << FAR_SHIFT) + ((slot as u64) << NEAR_SHIFT);
        let slot_end = slot_start + (1 << NEAR_SHIFT);
        let first = self.nodes[sentinel as usize].next;
        if now >= slot_end {
            return Some(first);
        }
        // Slot 0 also holds timers that were overdue when they were set, so a look is needed before it starts, too.
        if now < slot_start && slot != 0 {
            return None;
        }
        let mut earliest = u64::MAX;
        let mut at = first;
        while at != sentinel {
            let node = self.nodes[at as usize];
            if node.due <= now {
                return Some(at);
            }
            earliest = earliest.min(node.due);
            at = node.next;
        }
        self.nodes[sentinel as usize].due = earliest;
        None
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
        let sentinel = self.far_sentinel(number) as usize;
        let mut at = self.nodes[sentinel].next;
        self.nodes[sentinel] = Node { due: u64::MAX, next: sentinel as u32, prev: sentinel as u32 };
        self.far.clear((number % FAR_SLOTS as u64) as usize);
        while at as usize != sentinel {
            let Node { due, next, .. } = self.nodes[at as usize];
            self.link(at, due);
            at = next;
        }
    }

    /// Puts `owner` at the end of the list where a timer for `due` belongs.
    fn link(&mut self, owner: u32, due: u64) {
        let number = due >> FAR_SHIFT;
        let (sentinel, attention) = if number <= self.cursor {
            let slot = if number == self.cursor { (due >> NEAR_SHIFT) as usize % NEAR_SLOTS } else { 0 };
            self.near.set(slot);
            (self.near_sentinel(slot), due)
        } else {
            // A timer that waits in the last slot needs attention when that slot comes, to be moved on.
            let number = number.min(self.cursor + (FAR_SLOTS - 1) as u64);
            self.far.set((number % FAR_SLOTS as u64) as usize);
            (self.far_sentinel(number), due.min(((number + 1) << FAR_SHIFT) - 1))
        };
        let Node { due: earliest, prev: last, .. } = self.nodes[sentinel as usize];
        // An empty list's bound is left over from its last timer.
        let earliest = if last == sentinel { attention } else { earliest.min(attention) };
        self.nodes[last as usize].next = owner;
        self.nodes[sentinel as usize].due = earliest;
        self.nodes[sentinel as usize].prev = owner;
        self.nodes[owner as usize] = Node { due, next: sentinel, prev: last };
    }

    fn unlink(&mut self, owner: u32) {
        let Node { next, prev, .. } = self.nodes[owner as usize];
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        self.nodes[owner as usize].next = UNLINKED;
        if next == prev {
            // The same neighbour on both sides: it was alone in its circle with the sentinel.
            let slot = (next - self.owners) as usize;
            match slot.checked_sub(NEAR_SLOTS) {
                None => self.near.clear(slot),
                Some(slot) => self.far.clear(slot),
            }
        }
    }
}

/// A set of `64 * N` bits with a summary word, so that the next one is two steps away.
struct Bits<const N: usize> {
    summary: u64,
    words: [u64; N],
}

impl<const N: usize> Bits<N> {
    const FITS: () = assert!(N >= 1 && N <= 64, "one summary word");

    fn new() -> Self {
        let () = Self::FITS;
        Self { summary: 0, words: [0; N] }
    }

    fn set(&mut self, bit: usize) {
        self.words[bit / 64] |= 1 << (bit % 64);
        self.summary |= 1 << (bit / 64);
    }

    fn clear(&mut self, bit: usize) {
        self.words[bit / 64] &= !(1 << (bit % 64));
        if self.words[bit / 64] == 0 {
            self.summary &= !(1 << (bit / 64));
        }
    }

    /// The lowest bit that is set.
    fn first(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        let word = self.summary.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// The first bit that is set from `start` on, round the end.
    fn first_from(&self, start: usize) -> Option<usize> {
        let (word, bit) = (start / 64, start % 64);
        let rest = self.words[word] & (u64::MAX << bit);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let later = if word == 63 { 0 } else { self.summary & (u64::MAX << (word + 1)) };
        if later == 0 {
            return self.first();
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
#[path = "wheel_tests.rs"]
mod tests;
