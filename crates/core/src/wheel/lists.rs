//! Many queues of timers in one pool of memory that never grows: blocks of four cache lines, 31 timers each.
//!
//! A linked list through the timers themselves would cost a cache miss a timer, one after the
//! other: the next one is known only when the one before has been fetched. Here this happens once
//! in 31 timers; the timers in between are fetched ahead.

/// Timers in a block: with the links to its neighbours it is 256 bytes.
const PER_BLOCK: u32 = 31;
/// No block.
const NONE: u32 = u32::MAX;

/// One timer in a queue.
#[derive(Clone, Copy)]
pub(super) struct TimerEntry {
    pub(super) owner: u32,
    /// The part of its time that the wheel needs.
    pub(super) offset: u32,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TimerBlock {
    entries: [TimerEntry; PER_BLOCK as usize],
    next: u32,
    prev: u32,
}

const _: () = assert!(size_of::<TimerBlock>() == 256);

/// Where in the pool an entry is: its block and its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerPosition(u32);

impl TimerPosition {
    /// In no queue.
    pub(super) const NOWHERE: Self = Self(u32::MAX);

    fn new(block: u32, at: u32) -> Self {
        Self(block * 32 + at)
    }

    fn block(self) -> u32 {
        self.0 / 32
    }

    fn at(self) -> usize {
        (self.0 % 32) as usize
    }
}

/// One queue. All blocks but the first and the last are full.
#[derive(Clone, Copy)]
struct Queue {
    /// When the queue needs attention, not later than its earliest timer; meaningless while it is empty.
    attention: u64,
    /// First block, or [`NONE`].
    head: u32,
    tail: u32,
    /// First entry of the first block.
    front: u32,
    /// Behind the last entry of the last block.
    end: u32,
}

/// A fixed number of queues.
pub(super) struct Queues {
    queues: Box<[Queue]>,
    blocks: Box<[TimerBlock]>,
    free: u32,
}

/// Returns the blocks for this many queues and timers: a queue has at most two blocks that are not
/// full, and no more blocks than timers.
const fn blocks(queues: usize, timers: usize) -> usize {
    let broken = if 2 * queues < timers { 2 * queues } else { timers };
    timers.div_ceil(PER_BLOCK as usize) + broken
}

impl Queues {
    /// Bytes of them.
    pub(super) const fn bytes(queues: usize, timers: usize) -> usize {
        queues * size_of::<Queue>() + blocks(queues, timers) * size_of::<TimerBlock>()
    }

    /// `queues` empty queues with room for `timers` timers in all.
    pub(super) fn new(queues: usize, timers: usize) -> Self {
        let count = blocks(queues, timers);
        assert!(count < (u32::MAX / 32) as usize, "{timers} timers are too many");
        let nobody = TimerEntry { owner: 0, offset: 0 };
        let block = |at: usize| {
            let next = if at + 1 == count { NONE } else { at as u32 + 1 };
            TimerBlock { entries: [nobody; PER_BLOCK as usize], next, prev: NONE }
        };
        let empty = Queue { attention: u64::MAX, head: NONE, tail: NONE, front: 0, end: 0 };
        Self {
            queues: vec![empty; queues].into(),
            blocks: (0..count).map(block).collect(),
            free: if count == 0 { NONE } else { 0 },
        }
    }

    /// When queue `queue`, which is not empty, needs attention.
    pub(super) fn attention(&self, queue: u32) -> u64 {
        self.queues[queue as usize].attention
    }

    pub(super) fn set_attention(&mut self, queue: u32, at: u64) {
        self.queues[queue as usize].attention = at;
    }

    /// Puts `entry` at the end; returns where it is now.
    pub(super) fn push(&mut self, queue: u32, entry: TimerEntry, attention: u64) -> TimerPosition {
        let Queue { head, tail, end, .. } = self.queues[queue as usize];
        if head == NONE || end == PER_BLOCK {
            let fresh = self.free;
            let block = &mut self.blocks[fresh as usize];
            self.free = block.next;
            (block.next, block.prev) = (NONE, tail);
            block.entries[0] = entry;
            let queue = &mut self.queues[queue as usize];
            (queue.tail, queue.end) = (fresh, 1);
            if head == NONE {
                (queue.head, queue.front, queue.attention) = (fresh, 0, attention);
                self.blocks[fresh as usize].prev = NONE;
            } else {
                queue.attention = queue.attention.min(attention);
                self.blocks[tail as usize].next = fresh;
            }
            return TimerPosition::new(fresh, 0);
        }
        self.blocks[tail as usize].entries[end as usize] = entry;
        let queue = &mut self.queues[queue as usize];
        queue.end += 1;
        queue.attention = queue.attention.min(attention);
        TimerPosition::new(tail, end)
    }

    /// The first entry of a queue that is not empty.
    pub(super) fn first(&self, queue: u32) -> TimerEntry {
        let queue = &self.queues[queue as usize];
        self.blocks[queue.head as usize].entries[queue.front as usize]
    }

    pub(super) fn is_empty(&self, queue: u32) -> bool {
        self.queues[queue as usize].head == NONE
    }

    /// Takes the first entry of a queue that is not empty.
    pub(super) fn pop(&mut self, queue: u32) {
        let q = &mut self.queues[queue as usize];
        q.front += 1;
        let head = q.head;
        if head == q.tail {
            if q.front == q.end {
                q.head = NONE;
                self.release(head);
            }
        } else if q.front == PER_BLOCK {
            let next = self.blocks[head as usize].next;
            (q.head, q.front) = (next, 0);
            self.release(head);
        }
    }

    /// Takes entries from the front until the queue, which is not empty, is so or `owners` is full; how many they were.
    pub(super) fn pop_many(&mut self, queue: u32, owners: &mut [u32]) -> usize {
        for (count, owner) in owners.iter_mut().enumerate() {
            *owner = self.first(queue).owner;
            self.pop(queue);
            if self.is_empty(queue) {
                return count + 1;
            }
        }
        owners.len()
    }

    /// Takes the entry at `place`. The queue's last entry takes its place: its owner, if it is another one.
    pub(super) fn remove(&mut self, queue: u32, place: TimerPosition) -> Option<u32> {
        let q = &mut self.queues[queue as usize];
        if place == TimerPosition::new(q.head, q.front) {
            self.pop(queue);
            return None;
        }
        q.end -= 1;
        let (tail, end) = (q.tail, q.end);
        let last = self.blocks[tail as usize].entries[end as usize];
        let moved = (place != TimerPosition::new(tail, end)).then_some(last.owner);
        if moved.is_some() {
            self.blocks[place.block() as usize].entries[place.at()] = last;
        }
        // Never the only block: the entry that went was not the first of the queue, so one is left.
        if end == 0 {
            let prev = self.blocks[tail as usize].prev;
            let q = &mut self.queues[queue as usize];
            (q.tail, q.end) = (prev, PER_BLOCK);
            self.release(tail);
        }
        moved
    }

    /// Takes entries with an offset of at most `offset` until there is no other or `owners` is
    /// full; returns how many there were. `moved` is called for each entry that takes the place of
    /// one taken.
    pub(super) fn take(
        &mut self,
        queue: u32,
        offset: u32,
        owners: &mut [u32],
        mut moved: impl FnMut(u32, TimerPosition),
    ) -> usize {
        let mut count = 0;
        let Queue { head, front, .. } = self.queues[queue as usize];
        let (mut block, mut at) = (head, front);
        while count < owners.len() {
            let Queue { head, tail, front, end, .. } = self.queues[queue as usize];
            if head == NONE || (block == tail && at >= end) {
                break;
            }
            let (place, entry) =
                (TimerPosition::new(block, at), self.blocks[block as usize].entries[at as usize]);
            let next = self.blocks[block as usize].next;
            if entry.offset <= offset {
                owners[count] = entry.owner;
                count += 1;
                let was_first = (block, at) == (head, front);
                match self.remove(queue, place) {
                    // The entry that is here now comes next.
                    Some(owner) => {
                        moved(owner, place);
                        continue;
                    }
                    None if !was_first => break, // It was the last.
                    None => {}
                }
            }
            at += 1;
            if at == PER_BLOCK && block != tail {
                (block, at) = (next, 0);
            }
        }
        count
    }

    /// The entries of a queue from the first to the last.
    pub(super) fn iter(&self, queue: u32) -> impl Iterator<Item = TimerEntry> + '_ {
        let Queue { head, tail, front, end, .. } = self.queues[queue as usize];
        let (mut block, mut at) = (head, front);
        std::iter::from_fn(move || {
            if block == NONE || (block == tail && at == end) {
                return None;
            }
            let entry = self.blocks[block as usize].entries[at as usize];
            at += 1;
            if at == PER_BLOCK && block != tail {
                (block, at) = (self.blocks[block as usize].next, 0);
            }
            Some(entry)
        })
    }

    fn release(&mut self, block: u32) {
        self.blocks[block as usize].next = self.free;
        self.free = block;
    }
}
