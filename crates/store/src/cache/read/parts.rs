//! The reads under way: which parts a place's read consists of, who has them, and what is put aside.
//!
//! A part belongs to a place until its last read has ended, or until the place gives it up: then it is *aside* and keeps
//! its memory and its files until the kernel (or the thread that has it) is done with it.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_core::limits::SLOW_READ_NS;
use millrace_core::time::Instant;

use super::super::order::{Order, SpanFile, SpanResult, bit};
use super::span::{Span, Step};
use super::staging::{Memory, Staging};
use super::{Owed, Unanswered};

/// One span of a part.
pub(super) struct Read {
    pub(super) file: SpanFile,
    span: Span,
    /// Where its aligned range lies in the part's memory.
    at: usize,
    /// Bytes that alignment adds in front.
    skip: usize,
    result: Option<Result<(), i32>>,
}

impl Read {
    /// What is to be read next: bytes of the part's memory, and their offset in the file.
    pub(super) fn rest(&self) -> (Range<usize>, u64) {
        let (range, offset) = self.span.rest();
        (self.at + range.start..self.at + range.end, offset)
    }
}

/// The spans of a read that one member answers.
pub(super) struct Part {
    /// The member; none for a title whole on one.
    pub(super) member: Option<u16>,
    pub(super) reads: Vec<Read>,
    memory: Option<Memory>,
    left: usize,
    /// Counts what comes, wherever the part is.
    arrivals: Arc<AtomicU32>,
}

impl Part {
    /// Where read number `index` goes on: memory, its number among those that the kernel knows, offset in the file.
    pub(super) fn rest(&mut self, index: usize) -> (&mut [u8], Option<u16>, u64) {
        let (range, offset) = self.reads[index].rest();
        match &mut self.memory {
            Some(memory) => (&mut memory.buf[range], memory.registered, offset),
            None => (&mut [], None, offset),
        }
    }

    /// The same for the kernel, by address and length: it may be writing to other reads of this part, so nobody may have a slice
    /// that holds them.
    pub(super) fn target(&mut self, index: usize) -> (*mut u8, usize, Option<u16>, u64) {
        let (range, offset) = self.reads[index].rest();
        match &mut self.memory {
            Some(memory) => {
                (memory.buf.base().wrapping_add(range.start), range.len(), memory.registered, offset)
            }
            None => (std::ptr::dangling_mut(), 0, None, offset),
        }
    }

    /// Notes what a call for [`Part::rest`] has brought. `true`: the rest is to be asked for.
    pub(super) fn arrived(&mut self, index: usize, result: i32) -> bool {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        let read = &mut self.reads[index];
        let result = match read.span.arrived(result) {
            Step::Again => return true,
            Step::Done => Ok(()),
            Step::Failed(errno) => Err(errno),
        };
        if read.result.replace(result).is_none() {
            self.left -= 1;
        }
        false
    }

    /// Whether all its reads have ended.
    pub(super) fn has_ended(&self) -> bool {
        self.left == 0
    }

    fn fail(&mut self, errno: i32) {
        self.reads.iter_mut().for_each(|read| read.result = Some(Err(errno)));
        self.left = 0;
    }

    fn result(&self, index: usize) -> SpanResult<'_> {
        let read = &self.reads[index];
        match (read.result, &self.memory) {
            (Some(Ok(())), Some(memory)) => Ok(&memory.buf[read.at + read.skip..read.at + read.span.need]),
            (Some(Err(errno)), _) => Err(errno),
            _ => Err(libc::ETIMEDOUT),
        }
    }

    fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.buf.len())
    }
}

/// A part's number.
pub(super) type PartId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Nobody,
    Place(usize),
    Aside { bytes: usize },
}

struct Slot {
    owner: Owner,
    member: Option<u16>,
    /// When it was begun, as far as is known.
    begun: Option<Instant>,
    /// What had come of it when it was looked at last, and since when it has been no more.
    arrivals: Arc<AtomicU32>,
    arrived: u32,
    arrived_at: Option<Instant>,
    ended: bool,
    /// Its memory in bytes.
    bytes: usize,
    /// The part, unless a thread has it.
    part: Option<Part>,
}

impl Slot {
    fn free() -> Self {
        let (owner, member, begun, ended, bytes, part) = (Owner::Nobody, None, None, true, 0, None);
        let (arrivals, arrived, arrived_at) = (Arc::default(), 0, None);
        Self { owner, member, begun, arrivals, arrived, arrived_at, ended, bytes, part }
    }

    /// When something came of it last, or it was begun; as far as has been seen.
    fn news(&mut self, now: Instant) -> Option<Instant> {
        let arrived = self.arrivals.load(Ordering::Relaxed);
        if self.arrived != arrived {
            (self.arrived, self.arrived_at) = (arrived, Some(now));
        }
        self.arrived_at.max(self.begun)
    }
}

#[derive(Default)]
struct Seat {
    parts: Vec<PartId>,
    /// For each span of the order: its part, and its number there.
    spans: Vec<(PartId, usize)>,
    left: usize,
}

/// All reads under way.
pub(super) struct Parts {
    slots: Vec<Slot>,
    free: Vec<PartId>,
    seats: Box<[Seat]>,
    staging: Staging,
    done: VecDeque<usize>,
    late: VecDeque<Owed>,
    aside_bytes: usize,
}

impl Parts {
    pub(super) fn new(places: usize, staging: Staging) -> Self {
        let seats = (0..places).map(|_| Seat::default()).collect();
        let (done, late) = (VecDeque::with_capacity(places), VecDeque::new());
        Self { slots: Vec::new(), free: Vec::new(), seats, staging, done, late, aside_bytes: 0 }
    }

    /// Divides an order into parts; gives those that are to be read. What no memory can be had for has failed.
    pub(super) fn begin(&mut self, place: usize, order: &Order) -> Vec<PartId> {
        assert!(self.seats[place].left == 0, "a read is begun only in a free place");
        self.clear(place);
        let mut members: Vec<Option<u16>> = Vec::new();
        for span in &order.spans {
            if !members.contains(&span.member) {
                members.push(span.member);
            }
        }
        let mut seat = std::mem::take(&mut self.seats[place]);
        seat.spans.resize(order.spans.len(), (0, 0));
        let mut begun = Vec::with_capacity(members.len());
        for (number, &member) in members.iter().enumerate() {
            let id = self.free_slot();
            let (part, error) =
                self.part(order, member, number == 0, |span, index| seat.spans[span] = (id, index));
            let bytes = part.bytes();
            let arrivals = Arc::clone(&part.arrivals);
            let (owner, ended) = (Owner::Place(place), error.is_some());
            self.slots[id] = Slot { owner, member, ended, bytes, arrivals, part: Some(part), ..Slot::free() };
            seat.parts.push(id);
            match error {
                Some(_) => {}
                None => {
                    seat.left += 1;
                    begun.push(id);
                }
            }
        }
        if seat.left == 0 {
            self.done.push_back(place);
        }
        self.seats[place] = seat;
        begun
    }

    /// The part of an order that `member` answers.
    fn part(
        &mut self,
        order: &Order,
        member: Option<u16>,
        home: bool,
        mut note: impl FnMut(usize, usize),
    ) -> (Part, Option<io::Error>) {
        let (mut reads, mut at) = (Vec::new(), 0);
        for (number, order) in order.spans.iter().enumerate().filter(|(_, span)| span.member == member) {
            let span = Span::covering(&order.bytes);
            let skip = (order.bytes.start - span.offset) as usize;
            note(number, reads.len());
            reads.push(Read { file: order.file.clone(), at, skip, result: None, span });
            at += reads.last().map_or(0, |read| read.span.ask);
        }
        let left = reads.len();
        match self.staging.take(at, home) {
            Ok(memory) => {
                (Part { member, reads, memory: Some(memory), left, arrivals: Arc::default() }, None)
            }
            Err(error) => {
                let mut part = Part { member, reads, memory: None, left, arrivals: Arc::default() };
                part.fail(error.raw_os_error().unwrap_or(libc::ENOMEM));
                (part, Some(error))
            }
        }
    }

    fn free_slot(&mut self) -> PartId {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::free());
            self.slots.len() - 1
        })
    }

    fn clear(&mut self, place: usize) {
        let mut seat = std::mem::take(&mut self.seats[place]);
        for id in seat.parts.drain(..) {
            self.release(id);
        }
        seat.spans.clear();
        self.seats[place] = seat;
    }

    fn release(&mut self, id: PartId) {
        let slot = &mut self.slots[id];
        slot.owner = Owner::Nobody;
        if let Some(memory) = slot.part.take().and_then(|part| part.memory) {
            self.staging.give(memory);
        }
        self.free.push(id);
    }

    /// A part that is here.
    pub(super) fn part_mut(&mut self, id: PartId) -> Option<&mut Part> {
        self.slots.get_mut(id)?.part.as_mut()
    }

    /// Lends a part to a thread; [`Parts::bring_back`] has to follow.
    pub(super) fn lend(&mut self, id: PartId) -> Option<Part> {
        self.slots.get_mut(id)?.part.take()
    }

    /// A thread has ended a part. `true`: it was aside.
    pub(super) fn bring_back(&mut self, id: PartId, part: Part) -> bool {
        let aside = matches!(self.slots[id].owner, Owner::Aside { .. });
        self.slots[id].part = Some(part);
        self.ended(id);
        aside
    }

    /// All reads of a part have ended.
    pub(super) fn ended(&mut self, id: PartId) {
        let slot = &mut self.slots[id];
        slot.ended = true;
        match slot.owner {
            Owner::Nobody => {}
            Owner::Place(place) => {
                let seat = &mut self.seats[place];
                seat.left -= 1;
                if seat.left == 0 {
                    self.done.push_back(place);
                }
            }
            Owner::Aside { bytes } => {
                self.aside_bytes -= bytes;
                self.late.extend(slot.member.map(|member| Owed { member, number: id }));
                self.release(id);
            }
        }
    }

    /// A part is being read from now on, if that was not known.
    pub(super) fn note_begun(&mut self, id: PartId, now: Instant) {
        let slot = &mut self.slots[id];
        if !slot.ended {
            slot.begun.get_or_insert(now);
        }
    }

    /// Nobody has looked at the parts that are being read for `ns` before `now`: that time is not counted.
    pub(super) fn forgive(&mut self, now: Instant, ns: u64) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.ended) {
            for at in [&mut slot.begun, &mut slot.arrived_at].into_iter().flatten() {
                *at = at.plus_ns(ns).min(now);
            }
        }
    }

    /// What is still missing at a place; `queued` says of a part that it waits for its turn. What does not is taken to
    /// have been begun now, if nothing better is known.
    pub(super) fn unanswered(
        &mut self,
        now: Instant,
        place: usize,
        mut queued: impl FnMut(PartId) -> bool,
    ) -> Unanswered {
        let mut missing = Unanswered::default();
        for &id in &self.seats[place].parts {
            let slot = &mut self.slots[id];
            let member = slot.member.map_or(0, bit);
            if slot.ended {
                continue;
            }
            missing.bytes += slot.bytes;
            missing.members |= member;
            if slot.begun.is_none() && queued(id) {
                missing.queued |= member;
            } else {
                let begun = *slot.begun.get_or_insert(now);
                missing.late |= if now.ns_since(begun) >= SLOW_READ_NS { member } else { 0 };
                missing.news = missing.news.max(slot.news(now));
            }
        }
        missing
    }

    /// Gives up what is missing at a place: what `taken_back` gives back unread has failed, the rest is put aside.
    pub(super) fn give_up(
        &mut self,
        place: usize,
        mut taken_back: impl FnMut(PartId) -> Option<Part>,
    ) -> Vec<PartId> {
        let mut aside = Vec::new();
        let mut seat = std::mem::take(&mut self.seats[place]);
        seat.left = 0;
        seat.parts.retain(|&id| {
            let slot = &mut self.slots[id];
            if slot.ended {
                return true;
            }
            if let Some(mut part) = taken_back(id) {
                part.fail(libc::ETIMEDOUT);
                (slot.part, slot.ended) = (Some(part), true);
                return true;
            }
            slot.owner = Owner::Aside { bytes: slot.bytes };
            self.aside_bytes += slot.bytes;
            aside.push(id);
            false
        });
        self.seats[place] = seat;
        aside
    }

    /// One result for each span of the last order at a place, if it is not in flight.
    pub(super) fn results(&self, place: usize) -> Vec<SpanResult<'_>> {
        let seat = &self.seats[place];
        if seat.left > 0 {
            return Vec::new();
        }
        let result = |&(id, index): &(PartId, usize)| match &self.slots[id] {
            Slot { owner: Owner::Place(owner), part: Some(part), .. } if *owner == place => {
                part.result(index)
            }
            _ => Err(libc::ETIMEDOUT),
        };
        seat.spans.iter().map(result).collect()
    }

    /// A part that was put aside, if it is a member's.
    pub(super) fn owed(&self, id: PartId) -> Option<Owed> {
        self.slots[id].member.map(|member| Owed { member, number: id })
    }

    pub(super) fn next_done(&mut self) -> Option<usize> {
        self.done.pop_front()
    }

    pub(super) fn next_late(&mut self) -> Option<Owed> {
        self.late.pop_front()
    }

    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty() || !self.late.is_empty()
    }

    pub(super) fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// All memory of parts that are here, to keep it from being freed while the kernel may write to it.
    pub(super) fn take_memory(&mut self) -> impl Iterator<Item = Memory> + '_ {
        self.slots.iter_mut().filter_map(|slot| slot.part.as_mut()?.memory.take())
    }

    #[cfg(test)]
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }
}
