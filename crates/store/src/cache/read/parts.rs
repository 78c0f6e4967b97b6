//! The reads in progress: the parts of each place's read, their holders, and the parts put aside.
//!
//! A part belongs to the places whose orders were begun together. It is theirs until its last read has ended, or until the last of
//! them gives it up: then it is *aside* and keeps its memory and its files until the kernel (or the thread that has it) is
//! done with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millrace_core::limits::SLOW_READ_NS;
use millrace_core::time::Instant;

use super::super::order::{Order, SpanResult};
use super::part::{PartPlan, ReadPart, Share};
use super::staging::{Staging, StagingBuffer};
use super::{Owed, Unanswered};
use crate::member_set::MemberSet;

/// A part's number.
pub(super) type PartId = usize;

struct PartSlot {
    /// The places whose orders it serves and that have not given it up.
    owners: Vec<usize>,
    /// No place waits for it any more.
    aside: bool,
    member: Option<u16>,
    /// When it was begun, as far as is known.
    begun: Option<Instant>,
    /// The arrivals at the last check, and since when their number has not increased.
    arrivals: Arc<AtomicU32>,
    arrived: u32,
    arrived_at: Option<Instant>,
    ended: bool,
    /// Its memory in bytes.
    bytes: usize,
    /// The part, unless a thread has it.
    part: Option<ReadPart>,
}

impl PartSlot {
    fn free() -> Self {
        let (owners, aside, member, begun, ended) = (Vec::new(), false, None, None, true);
        let (bytes, part, arrivals, arrived, arrived_at) = (0, None, Arc::default(), 0, None);
        Self { owners, aside, member, begun, arrivals, arrived, arrived_at, ended, bytes, part }
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
pub(super) struct ReadParts {
    slots: Vec<PartSlot>,
    free: Vec<PartId>,
    seats: Box<[Seat]>,
    staging: Staging,
    done: VecDeque<usize>,
    late: VecDeque<Owed>,
    aside_bytes: usize,
}

impl ReadParts {
    pub(super) fn new(places: usize, staging: Staging) -> Self {
        let seats = (0..places).map(|_| Seat::default()).collect();
        let (done, late) = (VecDeque::with_capacity(places), VecDeque::new());
        Self { slots: Vec::new(), free: Vec::new(), seats, staging, done, late, aside_bytes: 0 }
    }

    /// Divides orders into parts, which may each serve several orders. Returns the parts to read.
    /// Parts that get no memory have failed.
    pub(super) fn begin(&mut self, batch: &[(usize, &Order)]) -> Vec<PartId> {
        let mut shares: Vec<Share> = Vec::new();
        for &(place, order) in batch {
            assert!(self.seats[place].left == 0, "a read is begun only in a free place");
            self.clear(place);
            self.seats[place].spans.resize(order.spans.len(), (0, 0));
            for span in order.spans.iter().enumerate() {
                let share = Share::of((place, order), span);
                if !shares.contains(&share) {
                    shares.push(share);
                }
            }
        }
        let mut begun = Vec::with_capacity(shares.len());
        for (number, &share) in shares.iter().enumerate() {
            let (id, member) = (self.free_slot(), share.member);
            let plan = PartPlan::new(batch, share);
            for (index, &(place, span)) in plan.spans.iter().enumerate() {
                let seat = &mut self.seats[place];
                seat.spans[span] = (id, index);
                if seat.parts.last() != Some(&id) {
                    seat.parts.push(id);
                }
            }
            let owners = plan.places();
            let (part, ended) = match self.staging.take(plan.bytes(), number == 0) {
                Ok(memory) => (ReadPart::new(share, plan, Ok(memory)), false),
                Err(error) => (ReadPart::new(share, plan, Err(error.raw_os_error())), true),
            };
            if !ended {
                owners.iter().for_each(|&place| self.seats[place].left += 1);
                begun.push(id);
            }
            let (bytes, arrivals) = (part.bytes(), part.arrivals());
            self.slots[id] =
                PartSlot { owners, member, ended, bytes, arrivals, part: Some(part), ..PartSlot::free() };
        }
        let is_over = |&&(place, _): &&(usize, &Order)| self.seats[place].left == 0;
        self.done.extend(batch.iter().filter(is_over).map(|&(place, _)| place));
        begun
    }

    fn free_slot(&mut self) -> PartId {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(PartSlot::free());
            self.slots.len() - 1
        })
    }

    /// Releases the results of the last order at a free place, and the files it was read from.
    pub(super) fn clear(&mut self, place: usize) {
        let mut seat = std::mem::take(&mut self.seats[place]);
        for id in seat.parts.drain(..) {
            let slot = &mut self.slots[id];
            slot.owners.retain(|&owner| owner != place);
            if slot.owners.is_empty() {
                self.release(id);
            }
        }
        seat.spans.clear();
        self.seats[place] = seat;
    }

    fn release(&mut self, id: PartId) {
        let slot = &mut self.slots[id];
        (slot.aside, slot.ended) = (false, true);
        if let Some(memory) = slot.part.take().and_then(ReadPart::into_memory) {
            self.staging.give(memory);
        }
        self.free.push(id);
    }

    /// A part that is here.
    pub(super) fn part_mut(&mut self, id: PartId) -> Option<&mut ReadPart> {
        self.slots.get_mut(id)?.part.as_mut()
    }

    /// Lends a part to a thread; [`ReadParts::bring_back`] has to follow.
    pub(super) fn lend(&mut self, id: PartId) -> Option<ReadPart> {
        self.slots.get_mut(id)?.part.take()
    }

    /// A thread has ended a part. `true`: it was aside.
    pub(super) fn bring_back(&mut self, id: PartId, part: ReadPart) -> bool {
        let aside = self.slots[id].aside;
        self.slots[id].part = Some(part);
        self.ended(id);
        aside
    }

    /// All reads of a part have ended.
    pub(super) fn ended(&mut self, id: PartId) {
        let slot = &mut self.slots[id];
        slot.ended = true;
        for &place in &slot.owners {
            let seat = &mut self.seats[place];
            seat.left -= 1;
            if seat.left == 0 {
                self.done.push_back(place);
            }
        }
        if slot.aside {
            self.aside_bytes -= slot.bytes;
            self.late.extend(slot.member.map(|member| Owed { member, number: id }));
            self.release(id);
        }
    }

    /// A part is being read from now on, if that was not known.
    pub(super) fn note_begun(&mut self, id: PartId, now: Instant) {
        let slot = &mut self.slots[id];
        if !slot.ended {
            slot.begun.get_or_insert(now);
        }
    }

    /// Excludes the `ns` before `now` from the times of the parts being read, because they were not
    /// checked during that time.
    pub(super) fn forgive(&mut self, now: Instant, ns: u64) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.ended) {
            for at in [&mut slot.begun, &mut slot.arrived_at].into_iter().flatten() {
                *at = at.plus_ns(ns).min(now);
            }
        }
    }

    /// Returns the data still missing at a place; `queued` returns whether a part waits for its
    /// turn. Any other part counts as begun now if no better time is known.
    pub(super) fn unanswered(
        &mut self,
        now: Instant,
        place: usize,
        mut queued: impl FnMut(PartId) -> bool,
    ) -> Unanswered {
        let mut missing = Unanswered::default();
        for &id in &self.seats[place].parts {
            let slot = &mut self.slots[id];
            let member: MemberSet = slot.member.into_iter().collect();
            if slot.ended {
                continue;
            }
            missing.bytes += slot.bytes;
            missing.members |= member;
            if slot.begun.is_none() && queued(id) {
                missing.queued |= member;
            } else {
                let begun = *slot.begun.get_or_insert(now);
                if now.ns_since(begun) >= SLOW_READ_NS {
                    missing.late |= member;
                }
                missing.news = missing.news.max(slot.news(now));
            }
        }
        missing
    }

    /// Gives up the missing data at a place. Parts that others also wait for continue for them; of
    /// the rest, those that `taken_back` returns unread have failed, and those being read are put
    /// aside. If nothing is missing any more, the place is not reported a second time.
    pub(super) fn give_up(
        &mut self,
        place: usize,
        mut taken_back: impl FnMut(PartId) -> Option<ReadPart>,
    ) -> Vec<PartId> {
        let mut aside = Vec::new();
        // The last data may have arrived since the last check: the place is taken at once, and may
        // be in use again when its turn comes.
        self.done.retain(|&done| done != place);
        let mut seat = std::mem::take(&mut self.seats[place]);
        seat.left = 0;
        seat.parts.retain(|&id| {
            let slot = &mut self.slots[id];
            if slot.ended {
                return true;
            }
            if slot.owners.len() > 1 {
                slot.owners.retain(|&owner| owner != place);
                return false;
            }
            if let Some(mut part) = taken_back(id) {
                part.fail(libc::ETIMEDOUT);
                (slot.part, slot.ended) = (Some(part), true);
                return true;
            }
            slot.owners.clear();
            slot.aside = true;
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
            PartSlot { owners, part: Some(part), .. } if owners.contains(&place) => part.result(index),
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
    pub(super) fn take_memory(&mut self) -> impl Iterator<Item = StagingBuffer> + '_ {
        self.slots.iter_mut().filter_map(|slot| slot.part.take()?.into_memory())
    }

    #[cfg(test)]
    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }
}
