//! Ranges of memory that others write to: an application's area of words, which it may change at any time. A segment's bytes are read once, into the
//! stage, and its sum is made of what stands there; so whatever is written meanwhile, a frame and its checksum belong together. A retransmission reads
//! them again.
//!
//! Bytes are the application's again when they are acknowledged. For an application that wants its memory back earlier the queue keeps what is left
//! in host pages ([`Store::keep_areas`]).

use millrace_core::shared::Words;

use crate::limits::{HOST_PAGE_BYTES, MAX_AREA_RANGE_BYTES, MAX_PAYLOAD_BYTES};

use super::grid::Piece;
use super::{NONE, Queue, Refused, Source, Store};

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
}

impl Areas {
    /// Reads a piece into the stage from `at` on. One whose area is gone is zeros: nobody sends from there any more.
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
    /// Ranges of area `number` are in this memory from now on; `None`: there is none. No queue may have ranges of it when it changes.
    pub fn set_area(&mut self, number: u16, area: Option<Area>) {
        let Areas { all, stage } = &mut self.areas;
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
    ) -> Result<(), Refused> {
        let area = self.areas.all.get(usize::from(number)).and_then(Option::as_ref).ok_or(Refused::Unfit)?;
        if bytes == 0 || at.checked_add(bytes).is_none_or(|end| end > area.bytes) {
            return Err(Refused::Unfit);
        }
        if let Some(tail) = self.descriptors.get_mut(queue.tail as usize)
            && let Source::Area { area, at: begin } = tail.source
            && (area, begin + tail.bytes) == (number, at)
            && tail.bytes + bytes <= MAX_AREA_RANGE_BYTES
        {
            tail.bytes += bytes;
            queue.end += bytes;
            return Ok(());
        }
        let index = self.take().ok_or(Refused::Full)?;
        self.descriptors[index as usize].source = Source::Area { area: number, at };
        self.append(queue, index, bytes);
        Ok(())
    }

    /// Copies what the queue has of areas into host pages, as far as there are descriptors, and more than `reserve` pages. False: something is left.
    pub fn keep_areas(&mut self, queue: &mut Queue, reserve: u32) -> bool {
        let mut index = queue.head;
        while let Some(descriptor) = self.descriptors.get(index as usize) {
            let next = descriptor.next;
            if let Source::Area { area, at } = descriptor.source
                && !self.keep_range(queue, (index, area, at), reserve)
            {
                return false;
            }
            index = next;
        }
        true
    }

    /// The same with one descriptor, which becomes one for each page.
    fn keep_range(&mut self, queue: &mut Queue, range: (u32, u16, u32), reserve: u32) -> bool {
        let (mut index, area, mut at) = range;
        loop {
            if self.host.free() <= reserve {
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
                self.host.write(page, 0, bytes);
            }
            let descriptor = &mut self.descriptors[index as usize];
            (descriptor.source, descriptor.bytes) = (Source::Host { page, at: 0 }, kept);
            if rest == NONE {
                return true;
            }
            descriptor.next = rest;
            at += kept;
            let behind = &mut self.descriptors[rest as usize];
            (behind.source, behind.bytes, behind.next) = (Source::Area { area, at }, bytes - kept, next);
            if queue.tail == index {
                queue.tail = rest;
            }
            index = rest;
        }
    }

    /// Reads the pieces of areas among these into the stage, one behind the other.
    pub(super) fn stage(&mut self, pieces: &[Piece]) {
        let mut at = 0;
        for piece in pieces {
            let Some(descriptor) = self.descriptors.get(piece.descriptor as usize) else { continue };
            if let Source::Area { area, at: begin } = descriptor.source {
                self.areas.read(area, begin + piece.at, at, piece.bytes as usize);
                at += piece.bytes as usize;
            }
        }
    }
}

#[cfg(test)]
#[path = "area_tests.rs"]
mod tests;
