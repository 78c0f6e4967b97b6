//! The data of one connection in pages, in order of sequence numbers: first the data ready to be
//! read, then the early data, behind holes.
//!
//! Of bytes that come twice the first are kept, whatever the second contain: acknowledged data is
//! never replaced, and no peer can change kept data by sending it again. Small segments that follow
//! one another share a page. Early data is bounded in pages, by connection and by the cluster, so a
//! flood of single bytes with holes between them costs no more than this bound.

use millrace_core::wire::checksum::{add, copy_sum16};

use super::pages::{PageId, Pages};
use crate::limits::MAX_EARLY_PAGES;
use crate::seq::Seq;
use crate::wire::header::is_same_sum;

/// The cluster of data that came in order.
pub const READY: usize = 0;
/// The cluster of data that came early. What of it becomes ready stays there until it is read.
pub const EARLY: usize = 1;

/// The pages of a connection: a list by sequence number, nowhere overlapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: PageId,
    /// The last page that is ready to be read.
    ready_tail: PageId,
    tail: PageId,
    /// Pages of the cluster [`EARLY`].
    early_pages: u16,
    /// Whose pages they are.
    pub(super) group: u8,
}

/// What became of data that was put in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Inserted {
    /// Bytes that were new and are kept.
    pub(super) bytes: u32,
    /// There was no page for all of them.
    pub(super) is_cut: bool,
    /// The first data that was there already.
    pub(super) duplicate: Option<(Seq, Seq)>,
}

/// Outcome of appending data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Appended {
    Kept,
    WrongSum,
    NoPage,
    /// It does not fit one page, or what follows it is there already.
    NotPlain,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { head: PageId::NONE, ready_tail: PageId::NONE, tail: PageId::NONE, early_pages: 0, group: 0 }
    }

    /// Whether anything came early.
    #[inline]
    pub(super) fn has_early(&self) -> bool {
        self.tail != self.ready_tail
    }

    /// The bytes to be read next, as far as they lie together.
    #[inline]
    pub(super) fn ready<'a>(&self, pages: &'a Pages) -> &'a [u8] {
        if self.ready_tail.is_none() { &[] } else { pages.bytes(self.head) }
    }

    /// Copies data that follows the ready data into one page while it is summed, and keeps it if
    /// the sum is right. `before` is the sum of the `before_bytes` bytes of the payload that come
    /// before it and are there already.
    #[inline]
    pub(super) fn append(
        &mut self,
        pages: &mut Pages,
        seq: Seq,
        data: &[u8],
        before: (u16, usize),
        expected_sum: Option<u16>,
    ) -> Appended {
        if self.has_early() {
            return Appended::NotPlain;
        }
        let has_room = pages.room(self.tail).len() >= data.len();
        if !has_room && (pages.page_bytes(READY) as usize) < data.len() {
            return Appended::NotPlain;
        }
        let taken = if has_room { Some(self.tail) } else { pages.take_for(self.group, READY, seq) };
        let Some(id) = taken else { return Appended::NoPage };
        let Some(room) = pages.room(id).get_mut(..data.len()) else { return Appended::NotPlain };
        if let Some(expected) = expected_sum {
            let sum = copy_sum16(room, data);
            let sum = if before.1.is_multiple_of(2) { sum } else { sum.swap_bytes() };
            if !is_same_sum(add(before.0, sum), expected) {
                if !has_room {
                    pages.release(id);
                }
                return Appended::WrongSum;
            }
        } else {
            room.copy_from_slice(data);
        }
        if let Some(page) = pages.page_mut(id) {
            page.length += data.len() as u16;
        }
        if !has_room {
            self.link(pages, self.tail, id);
        }
        self.ready_tail = id;
        Appended::Kept
    }

    /// Puts data from `seq` on wherever nothing is yet. Its sum has been checked. In `cluster` are the pages taken for it.
    pub(super) fn insert(
        &mut self,
        pages: &mut Pages,
        mut seq: Seq,
        mut data: &[u8],
        cluster: usize,
    ) -> Inserted {
        let mut inserted = Inserted::default();
        let mut previous = self.before(pages, seq);
        while !data.is_empty() {
            // Data that the page before has already.
            if let Some(page) = pages.page(previous) {
                let there = (page.end().since(seq).max(0) as usize).min(data.len());
                inserted.add_duplicate(seq, there);
                seq += there as u32;
                data = &data[there..];
            }
            let next = self.after(pages, previous);
            let gap = pages.page(next).map_or(data.len(), |page| page.seq.since(seq).max(0) as usize);
            let (piece, _) = data.split_at(gap.min(data.len()));
            if piece.is_empty() {
                if data.is_empty() || next.is_none() {
                    break;
                }
                previous = next;
                continue;
            }
            let Some((id, bytes)) = self.put(pages, previous, seq, piece, cluster) else {
                inserted.is_cut = true;
                break;
            };
            inserted.bytes += bytes as u32;
            previous = id;
            seq += bytes as u32;
            data = &data[bytes..];
        }
        inserted
    }

    /// Puts the beginning of `piece` behind the page `previous`: into the free part of this page,
    /// if it ends where the piece begins, otherwise into a new one. Returns the page and the number
    /// of bytes.
    fn put(
        &mut self,
        pages: &mut Pages,
        previous: PageId,
        seq: Seq,
        piece: &[u8],
        cluster: usize,
    ) -> Option<(PageId, usize)> {
        let follows = pages.page(previous).is_some_and(|page| page.end() == seq);
        let id = if follows && !pages.room(previous).is_empty() {
            previous
        } else {
            if cluster == EARLY && self.early_pages >= MAX_EARLY_PAGES {
                return None;
            }
            let id = pages.take_for(self.group, cluster, seq)?;
            self.link(pages, previous, id);
            id
        };
        let room = pages.room(id);
        let bytes = piece.len().min(room.len());
        room[..bytes].copy_from_slice(&piece[..bytes]);
        pages.page_mut(id)?.length += bytes as u16;
        Some((id, bytes))
    }

    /// Makes ready what follows `next` without a hole; the sequence number behind it.
    #[inline]
    pub(super) fn advance(&mut self, pages: &Pages, next: Seq) -> Seq {
        let mut end = pages.page(self.ready_tail).map_or(next, |page| page.end());
        while let Some(page) = pages.page(self.after(pages, self.ready_tail)).filter(|page| page.seq == end) {
            self.ready_tail = self.after(pages, self.ready_tail);
            end = page.end();
        }
        end
    }

    /// Lets go of the first `bytes` bytes that are ready; how many there were.
    pub(super) fn consume(&mut self, pages: &mut Pages, bytes: usize) -> usize {
        let mut left = bytes;
        while left > 0 && !self.ready_tail.is_none() {
            let id = self.head;
            let Some(page) = pages.page_mut(id) else { break };
            let taken = left.min(usize::from(page.length));
            left -= taken;
            page.offset += taken as u16;
            page.length -= taken as u16;
            page.seq += taken as u32;
            if page.length == 0 {
                self.release_head(pages);
            }
        }
        bytes - left
    }

    /// Gives all pages back.
    pub(super) fn clear(&mut self, pages: &mut Pages) {
        while !self.head.is_none() {
            self.release_head(pages);
        }
    }

    /// The early data without a hole around `seq`.
    pub(super) fn run_around(&self, pages: &Pages, seq: Seq) -> Option<(Seq, Seq)> {
        let mut at = self.after(pages, self.ready_tail);
        let mut run: Option<(Seq, Seq)> = None;
        while let Some(page) = pages.page(at) {
            run = match run {
                Some((from, to)) if to == page.seq => Some((from, page.end())),
                Some((from, to)) if from.up_to(seq) && seq.before(to) => break,
                _ => Some((page.seq, page.end())),
            };
            at = page.next;
        }
        run.filter(|(from, to)| from.up_to(seq) && seq.before(*to))
    }

    /// The sequence number behind the last byte that came.
    pub(super) fn end(&self, pages: &Pages) -> Option<Seq> {
        pages.page(self.tail).map(|page| page.end())
    }

    /// The last page that begins at or before `seq`, early or the last ready one. Data mostly comes behind all the rest.
    fn before(&self, pages: &Pages, seq: Seq) -> PageId {
        let begins_before = |id| pages.page(id).is_some_and(|page| page.seq.up_to(seq));
        if begins_before(self.tail) {
            return self.tail;
        }
        let mut at = self.ready_tail;
        while begins_before(self.after(pages, at)) {
            at = self.after(pages, at);
        }
        at
    }

    /// The page behind one; the first behind none.
    #[inline]
    fn after(&self, pages: &Pages, id: PageId) -> PageId {
        if id.is_none() { self.head } else { pages.page(id).map_or(PageId::NONE, |page| page.next) }
    }

    #[inline]
    fn link(&mut self, pages: &mut Pages, previous: PageId, id: PageId) {
        let next = self.after(pages, previous);
        if let Some(page) = pages.page_mut(id) {
            page.next = next;
        }
        match pages.page_mut(previous) {
            Some(page) => page.next = id,
            None => self.head = id,
        }
        if next.is_none() {
            self.tail = id;
        }
        self.early_pages += u16::from(id.cluster() == EARLY);
    }

    fn release_head(&mut self, pages: &mut Pages) {
        let id = self.head;
        self.head = self.after(pages, id);
        if id == self.ready_tail {
            self.ready_tail = PageId::NONE;
        }
        if id == self.tail {
            self.tail = PageId::NONE;
        }
        self.early_pages -= u16::from(id.cluster() == EARLY);
        pages.release(id);
    }
}

impl Inserted {
    fn add_duplicate(&mut self, seq: Seq, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let end = seq + bytes as u32;
        match &mut self.duplicate {
            None => self.duplicate = Some((seq, end)),
            Some((_, to)) if *to == seq => *to = end,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "reassembly_tests.rs"]
mod tests;
