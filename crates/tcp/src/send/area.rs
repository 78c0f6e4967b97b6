//! Ranges of memory that others write to: an application's area of words, which it may change at any time. A segment's bytes are read once, into the
//! stage, and its sum is made of what stands there; so whatever is written meanwhile, a frame and its checksum belong together. A retransmission reads
//! them again.
//!
//! Bytes are the application's again when they are acknowledged. For an application that wants its
//! memory back earlier, the queue keeps the remaining bytes in host pages ([`Store::keep_areas`]).

use millrace_core::shared::Words;

use crate::limits::{HOST_PAGE_BYTES, MAX_AREA_RANGE_BYTES, MAX_PAYLOAD_BYTES};

use crate::shares::Shares;

use super::grid::PayloadPiece;
use super::{DescriptorSource, NONE, Queue, QueueRefusal, Store};

/// The group that the descriptors of an area are counted for.
pub(super) fn group(area: u16) -> u8 {
    u8::try_from(area).map_or(u8::MAX, |area| area.saturating_add(1))
}

/// Memory that ranges can be sent from.
#[derive(Clone)]
pub struct Area {
    /// The memory.
    pub words: Words,
    /// Its first byte there.
    pub first: usize,
    /// How many bytes.
    pub bytes: u32,
}

/// All areas, and the bytes of the segment that is being sent.
#[derive(Default)]
pub(super) struct Areas {
    all: Vec<Option<Area>>,
    stage: Box<[u8]>,
    /// Of the descriptors.
    pub(super) shares: Shares,
}

impl Areas {
    /// Reads a piece into the stage from `at` on. A piece whose area is gone is zeros: no
    /// connection sends from there any more.
    fn read(&mut self, area: u16, from: u32, at: usize, bytes: usize) {
        let Some(to) = self.stage.get_mut(at..at + bytes) else { return };
        let of = self.all.get(usize::from(area)).and_then(Option::as_ref);
        let is_read = of.is_some_and(|area| area.words.read(area.first + from as usize, to));
        if !is_read {
            to.fill(0);
        }
    }

    pub(super) fn staged(&self, at: usize, bytes: usize) -> Option<&[u8]> {
        self.stage.get(at..at + bytes)
    }
}

impl Store {
    /// Divides the descriptors among areas, except for `reserve` of them and one for each page that
    /// data kept from areas may take.
    pub(crate) fn share_out(&mut self, groups: u8, reserve: u32) {
        let all = self.descriptors.len() as u32;
        let divided = all.saturating_sub(self.most_kept() + reserve).max(all / 4);
        self.areas.shares = Shares::new(divided, groups);
    }

    /// Whether more may be kept of areas.
    pub fn may_keep(&self) -> bool {
        self.host.used() < self.most_kept()
    }

    /// Returns the most pages that data kept from areas may take: a quarter of those that there is
    /// a descriptor for.
    fn most_kept(&self) -> u32 {
        (self.host.used() + self.host.free()).min(self.descriptors.len() as u32) / 4
    }

    /// Ranges of area `number` are in this memory from now on; `None`: there is none. No queue may have ranges of it when it changes.
    pub fn set_area(&mut self, number: u16, area: Option<Area>) {
        let Areas { all, stage, .. } = &mut self.areas;
        if stage.is_empty() && area.is_some() {
            *stage = vec![0; MAX_PAYLOAD_BYTES].into();
        }
        if all.len() <= usize::from(number) {
            all.resize(usize::from(number) + 1, None);
        }
        all[usize::from(number)] = area;
    }

    /// Queues `bytes` bytes of area `number` from `at` on.
    ///
    /// # Errors
    /// Why not.
    pub fn append_area(
        &mut self,
        queue: &mut Queue,
        number: u16,
        at: u32,
        bytes: u32,
    ) -> Result<(), QueueRefusal> {
        let area =
            self.areas.all.get(usize::from(number)).and_then(Option::as_ref).ok_or(QueueRefusal::Unfit)?;
        if bytes == 0 || at.checked_add(bytes).is_none_or(|end| end > area.bytes) {
            return Err(QueueRefusal::Unfit);
        }
        if let Some(tail) = self.descriptors.get_mut(queue.tail as usize)
            && let DescriptorSource::Area { area, at: begin } = tail.source
            && (area, begin + tail.bytes) == (number, at)
            && tail.bytes + bytes <= MAX_AREA_RANGE_BYTES
        {
            tail.bytes += bytes;
            queue.end += bytes;
            return Ok(());
        }
        if !self.areas.shares.has_room(group(number)) {
            return Err(QueueRefusal::Full);
        }
        let index = self.take().ok_or(QueueRefusal::Full)?;
        self.areas.shares.take(group(number));
        self.descriptors[index as usize].source = DescriptorSource::Area { area: number, at };
        self.append(queue, index, bytes);
        Ok(())
    }

    /// Copies the queue's data in areas into host pages, as far as there are descriptors and three
    /// quarters of the pages are free. Returns false if some of it is left.
    pub fn keep_areas(&mut self, queue: &mut Queue) -> bool {
        let mut index = queue.head;
        while let Some(descriptor) = self.descriptors.get(index as usize) {
            let next = descriptor.next;
            if let DescriptorSource::Area { area, at } = descriptor.source
                && !self.keep_range(queue, (index, area, at))
            {
                return false;
            }
            index = next;
        }
        true
    }

    /// The same with one descriptor, which becomes one for each page.
    fn keep_range(&mut self, queue: &mut Queue, range: (u32, u16, u32)) -> bool {
        let (mut index, area, mut at) = range;
        loop {
            if !self.may_keep() {
                return false;
            }
            let Some(page) = self.host.take() else { return false };
            let (bytes, next) =
                (self.descriptors[index as usize].bytes, self.descriptors[index as usize].next);
            let kept = bytes.min(HOST_PAGE_BYTES as u32);
            let rest = if bytes > kept { self.take() } else { Some(NONE) };
            let Some(rest) = rest else {
                self.host.give_back(page);
                return false;
            };
            self.areas.read(area, at, 0, kept as usize);
            if let Some(bytes) = self.areas.staged(0, kept as usize) {
                self.host.room(page, 0, bytes.len()).copy_from_slice(bytes);
            }
            let descriptor = &mut self.descriptors[index as usize];
            (descriptor.source, descriptor.bytes) = (DescriptorSource::Host { page, at: 0 }, kept);
            if rest == NONE {
                self.areas.shares.give(group(area));
                return true;
            }
            descriptor.next = rest;
            at += kept;
            let behind = &mut self.descriptors[rest as usize];
            (behind.source, behind.bytes, behind.next) =
                (DescriptorSource::Area { area, at }, bytes - kept, next);
            if queue.tail == index {
                queue.tail = rest;
            }
            index = rest;
        }
    }

    /// Reads the pieces of areas among these into the stage, one behind the other.
    pub(super) fn stage(&mut self, pieces: &[PayloadPiece]) {
        let mut at = 0;
        for piece in pieces {
            let Some(descriptor) = self.descriptors.get(piece.descriptor as usize) else { continue };
            if let DescriptorSource::Area { area, at: begin } = descriptor.source {
                self.areas.read(area, begin + piece.at, at, piece.bytes as usize);
                at += piece.bytes as usize;
            }
        }
    }
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
