//! Pages for data that the application wrote itself: headers, answers, short messages.

use crate::limits::HOST_PAGE_BYTES;

/// Pages of one size; a page belongs to one descriptor.
pub(super) struct HostPages {
    bytes: Box<[u8]>,
    free: Vec<u32>,
    pages: u32,
}

impl HostPages {
    pub(super) fn new(pages: u32) -> Self {
        Self {
            bytes: vec![0; pages as usize * HOST_PAGE_BYTES].into(),
            free: (0..pages).rev().collect(),
            pages,
        }
    }

    pub(super) const fn bytes(pages: u32) -> usize {
        pages as usize * (HOST_PAGE_BYTES + size_of::<u32>())
    }

    pub(super) fn used(&self) -> u32 {
        self.pages - self.free.len() as u32
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// A page that [`HostPages::take`] gave.
    pub(super) fn give_back(&mut self, page: u32) {
        debug_assert!(self.free.len() < self.pages as usize);
        self.free.push(page);
    }

    /// Room for up to `most` bytes from `at` on.
    pub(super) fn room(&mut self, page: u32, at: usize, most: usize) -> &mut [u8] {
        let start = page as usize * HOST_PAGE_BYTES;
        let room = &mut self.bytes[start + at.min(HOST_PAGE_BYTES)..start + HOST_PAGE_BYTES];
        let bytes = room.len().min(most);
        &mut room[..bytes]
    }

    pub(super) fn read(&self, page: u32, at: usize, len: usize) -> &[u8] {
        let start = page as usize * HOST_PAGE_BYTES + at;
        &self.bytes[start..start + len]
    }
}
