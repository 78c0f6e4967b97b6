//! Memory of the layer's own frames: those that wait for the device, and those that wait for a neighbour.

use std::collections::VecDeque;

use crate::limits::WAITING_FRAMES;

/// A buffer of the pool. Its holder gives it back by [`Frames::push`] or [`Frames::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameSlot(u16);

/// A pool of buffers, and the queue of those that go.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Box<[u8]>,
    size: usize,
    lengths: Box<[u32]>,
    free: Vec<FrameSlot>,
    queue: VecDeque<FrameSlot>,
    /// Buffers taken for frames that wait for a neighbour.
    waiting: usize,
}

impl Frames {
    /// `count` buffers (below 2^16) of `size` bytes.
    pub(super) fn new(count: usize, size: usize) -> Self {
        Self {
            bytes: vec![0; count * size].into(),
            size,
            lengths: vec![0; count].into(),
            free: (0..count as u16).rev().map(FrameSlot).collect(),
            queue: VecDeque::with_capacity(count),
            waiting: 0,
        }
    }

    /// Whether nothing waits for the device.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    fn buffer(&mut self, slot: FrameSlot) -> &mut [u8] {
        &mut self.bytes[usize::from(slot.0) * self.size..][..self.size]
    }

    /// Queues a frame that `write` writes; it returns the length. False if there is no room.
    pub(super) fn push_with(&mut self, write: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let Some(slot) = self.free.pop() else { return false };
        self.fill(slot, write);
        self.queue.push_back(slot);
        true
    }

    /// A buffer for a frame that waits for a neighbour.
    pub(super) fn take_waiting(&mut self) -> Option<FrameSlot> {
        if self.waiting >= WAITING_FRAMES {
            return None;
        }
        let slot = self.free.pop()?;
        self.waiting += 1;
        Some(slot)
    }

    /// Writes the frame of `slot`.
    pub(super) fn fill(&mut self, slot: FrameSlot, write: impl FnOnce(&mut [u8]) -> usize) {
        let bytes = write(self.buffer(slot));
        self.lengths[usize::from(slot.0)] = bytes as u32;
    }

    /// A frame that has waited goes: `change` completes it.
    pub(super) fn go(&mut self, slot: FrameSlot, change: impl FnOnce(&mut [u8])) {
        change(self.buffer(slot));
        self.waiting -= 1;
        self.queue.push_back(slot);
    }

    /// A frame that has waited is dropped.
    pub(super) fn release(&mut self, slot: FrameSlot) {
        self.waiting -= 1;
        self.free.push(slot);
    }

    /// The next frame for the device.
    pub(super) fn front(&self) -> Option<&[u8]> {
        let slot = usize::from(self.queue.front()?.0);
        Some(&self.bytes[slot * self.size..][..self.lengths[slot] as usize])
    }

    /// The device has it.
    pub(super) fn pop(&mut self) {
        if let Some(slot) = self.queue.pop_front() {
            self.free.push(slot);
        }
    }

    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}
