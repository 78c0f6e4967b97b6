//! The cache's decisions without their execution: a state machine on a clock that is passed in.
//!
//! ```text
//!   want, leave ──►  playheads ──►  plan (what to read, most urgent first)  ──► next_read ──► (I/O, fill)
//!                                                                                               │
//!   poll_grant  ◄──  waiters   ◄──  extent table (what lies where; who goes when there is no room) ◄── finish
//! ```

mod closing;
mod growing;
mod live;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::sync::Arc;

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::pool::{ExtentContent, Fill, Lease};
use millrace_core::seam::Want;
use millrace_core::time::Instant;

use super::extent_table::{Brings, ExtentTable};
use super::handle::{Grant, ReadFailure};
use super::live::Feed;
use super::plan::{ExtentKey, NextRead, ReadPlan, Waiter};
use super::playheads::{NextUse, Ns, PlayheadPosition, Playheads, StreamKey};
use super::residents::ResidentExtents;
use super::source::OpenTitle;
use super::stats::CacheCounters;
use super::streams::{ExtentNeed, Head, StreamTable};
use super::titles::TitleTable;
use crate::limits::cache::{
    AHEAD_RETRY_NS, FAILED_FOR_NS, FAILED_REMEMBERED, LOOK_AHEAD_TICK_NS, SWEEP_NS, URGENT_NS,
};
use crate::limits::{
    CACHE_SPACE_RETRY_NS, DAMAGED_KEPT_NS, EXTENTS_PER_READ, MAX_PREFETCH_EXTENTS, MAX_RUN_EXTENTS,
    PINNED_PERMILLE_PER_POSITION, RUN_AHEAD_NS,
};

/// A read to be done: from the title's files into the fill.
pub(super) struct ReadOrder {
    /// What.
    pub(super) key: ExtentKey,
    /// From where.
    pub(super) title: Arc<OpenTitle>,
    /// Whereto.
    pub(super) fill: Fill,
    /// Packets of one codeword that may be missing: the most that all waiters can do without.
    pub(super) spare: u8,
}

/// The cache's state machine.
pub(super) struct Policy {
    /// Extents of the arena.
    extents: usize,
    prefetch_ns: Ns,
    max_reads: usize,
    /// Extents that may be in flight when a read is begun; a run may go beyond it.
    max_extents: usize,
    /// Maximum number of reads ahead in flight; the other reads are reserved for waiting streams.
    max_reads_ahead: usize,
    /// Extents read ahead of one playhead.
    max_ahead: u32,
    /// Extents in flight.
    reading: usize,
    /// Those of them that are read together with the one before them: no reads of their own.
    joined: HashSet<ExtentKey>,
    titles: TitleTable,
    /// Of these, those that are being written.
    live: Vec<(TitleRef, Feed)>,
    /// Streams that wait for recordings to grow. Some may not wait any more.
    at_edge: Vec<(ExtentKey, Waiter)>,
    /// Titles to close when no connection may need them again.
    closing: Vec<TitleRef>,
    streams: StreamTable,
    plan: ReadPlan,
    extent_table: ExtentTable,
    /// When the next extent comes within sight of a playhead.
    timers: BinaryHeap<Reverse<(Ns, StreamKey, u32)>>,
    grants: VecDeque<(u16, Grant)>,
    failed: VecDeque<(ExtentKey, Ns)>,
    /// Extents that were read and are damaged, and until when that result is trusted.
    damaged: VecDeque<(ExtentKey, Ns)>,
    next_sweep: Ns,
    /// Reads ahead were put off for want of room.
    ahead_put_off: bool,
    /// A stream waits for an extent that found no memory at the last attempt.
    no_room: bool,
    /// Playheads of all titles.
    heads: usize,
    /// Extents at which they are.
    positions: usize,
    counters: Arc<CacheCounters>,
}

fn ns(at: Instant) -> Ns {
    Ns::try_from(at.0).unwrap_or(Ns::MAX)
}

impl Policy {
    /// Creates an empty cache for `handles` engines.
    pub(super) fn new(
        residents: Arc<ResidentExtents>,
        handles: usize,
        prefetch_ns: u64,
        reads_in_flight: usize,
        counters: Arc<CacheCounters>,
    ) -> Self {
        let extents = residents.arena().extents();
        // Reads in flight hold extents that cannot be lent: never more than half of a tiny arena.
        let max_reads = reads_in_flight.min(extents as usize / 2).max(1);
        let max_extents = (EXTENTS_PER_READ * reads_in_flight).min(extents as usize / 2).max(1);
        counters.extents.set(extents as usize);
        counters.positions_max.set(positions_of(extents as usize, max_extents));
        let policy = Self {
            extents: extents as usize,
            prefetch_ns: Ns::try_from(prefetch_ns).unwrap_or(Ns::MAX / 4).min(Ns::MAX / 4),
            max_reads,
            max_extents,
            max_reads_ahead: (max_reads - max_reads / 4).max(1),
            max_ahead: (extents / 4).clamp(1, MAX_PREFETCH_EXTENTS),
            reading: 0,
            joined: HashSet::new(),
            titles: TitleTable::default(),
            live: Vec::new(),
            at_edge: Vec::new(),
            closing: Vec::new(),
            streams: StreamTable::new(handles),
            plan: ReadPlan::new(extents as usize),
            extent_table: ExtentTable::new(residents),
            timers: BinaryHeap::new(),
            grants: VecDeque::new(),
            failed: VecDeque::new(),
            damaged: VecDeque::new(),
            next_sweep: 0,
            ahead_put_off: false,
            no_room: false,
            heads: 0,
            positions: 0,
            counters,
        };
        policy.publish();
        policy
    }

    /// Whether a title is open.
    pub(super) fn is_open(&self, title: TitleRef) -> bool {
        self.titles.get(title).is_some()
    }

    /// An open title.
    pub(super) fn title(&self, title: TitleRef) -> Option<&OpenTitle> {
        self.titles.get(title).map(|title| &*title.open)
    }

    /// Handles the recovery of a member: extents with holes because of it are read again for the
    /// next request.
    pub(super) fn drop_holes(&mut self) {
        self.extent_table.drop_holes();
    }

    /// Forgets damage found some time ago, because it may have been repaired.
    fn drop_damaged(&mut self, now: Ns) {
        while let Some(&(key, until)) = self.damaged.front()
            && until <= now
        {
            self.extent_table.drop_damaged(key);
            self.damaged.pop_front();
        }
    }

    /// A stream wants an extent.
    pub(super) fn want(&mut self, now: Instant, handle: u16, want: &Want) {
        if let Some(at) = self.live_at(want.title) {
            return self.want_live(now, handle, want, at);
        }
        if self.is_behind_edge(want) {
            return self.want_at_edge(now, handle, want);
        }
        let key = ExtentKey { title: want.title, extent: want.extent };
        let stream = match self.arrive(now, handle, want) {
            Ok(stream) => stream,
            Err(failure) => {
                let refusal = grant(want.stream, want.run, key, Err(failure));
                return self.grants.push_back((handle, refusal));
            }
        };
        let (now, by) = (ns(now), ns(want.by));
        let need = ExtentNeed { run: want.run, by, spare: want.spare, place: want.place };
        if self.streams.rewant(stream, key, need) {
            self.plan.hasten(key, by, want.spare);
        } else if let Some(lease) = self.extent_table.lend(key, want.spare) {
            self.counters.hits.add(1);
            self.note_late(now, by);
            self.grants.push_back((handle, grant(want.stream, want.run, key, Ok(lease))));
            self.step_head(stream, key);
        } else {
            self.wait(stream, key, need);
        }
        self.look_ahead(now, stream, true);
    }

    /// A stream has leased an extent without asking.
    pub(super) fn took(&mut self, now: Instant, handle: u16, want: &Want) {
        let Ok(stream) = self.arrive(now, handle, want) else { return };
        let key = ExtentKey { title: want.title, extent: want.extent };
        self.counters.hits.add(1);
        self.extent_table.note_use(key);
        self.step_head(stream, key);
        self.look_ahead(ns(now), stream, true);
    }

    /// Moves the stream's playhead to the extent that it wants.
    fn arrive(&mut self, now: Instant, handle: u16, want: &Want) -> Result<StreamKey, ReadFailure> {
        self.drop_damaged(ns(now));
        let stream = StreamKey { handle, index: want.stream.index };
        self.forget_reader(stream);
        let title = self.titles.get(want.title).ok_or(ReadFailure::NoTitle)?;
        let known = want.extent < title.open.extents();
        let offset = ns(want.by).saturating_sub(title.open.start_ns(want.extent));
        if !known || !self.enter(stream, want) {
            return Err(ReadFailure::OutOfRange);
        }
        let place = PlayheadPosition { extent: want.extent, offset };
        self.move_head(stream, Some(Head { title: want.title, place }));
        Ok(stream)
    }

    /// Notes a stream, in place of the one before it under its key; `false`: the key is beyond the limit.
    fn enter(&mut self, stream: StreamKey, want: &Want) -> bool {
        if self.streams.generation(stream).is_some_and(|generation| generation != want.stream.generation) {
            self.forget(stream);
        }
        self.streams.enter(stream, want.stream.generation, want.spare)
    }

    fn wait(&mut self, stream: StreamKey, key: ExtentKey, need: ExtentNeed) {
        let Some((waiter, displaced)) = self.streams.wait(stream, key, need) else { return };
        if let Some(displaced) = displaced {
            self.counters.displaced.add(1);
            self.plan.unwant(displaced);
        }
        let streams = &self.streams;
        let joined =
            self.plan.demand(key, (need.by, need.spare), waiter, |waiter| streams.is_waiting(key, waiter));
        if joined { &self.counters.joins } else { &self.counters.misses }.add(1);
    }

    /// A stream needs nothing more.
    pub(super) fn leave(&mut self, handle: u16, stream: StreamId) {
        let key = StreamKey { handle, index: stream.index };
        if self.streams.generation(key) == Some(stream.generation) {
            self.forget(key);
        }
    }

    /// An engine is gone, and all its streams with it.
    pub(super) fn handle_gone(&mut self, handle: u16) {
        self.streams.of_handle(handle).into_iter().for_each(|stream| self.forget(stream));
    }

    fn forget(&mut self, stream: StreamKey) {
        self.move_head(stream, None);
        self.forget_reader(stream);
        let (_, waited_for) = self.streams.remove(stream);
        waited_for.for_each(|key| self.plan.unwant(key));
    }

    fn move_head(&mut self, stream: StreamKey, to: Option<Head>) {
        let from = self.streams.set_head(stream, to);
        self.heads = self.heads + usize::from(to.is_some()) - usize::from(from.is_some());
        let stays = |head: &Head| to.is_some_and(|to| to.title == head.title);
        if let Some(left) = from.filter(|head| !stays(head)) {
            self.change_heads(left.title, |heads| heads.remove(stream, left.place));
        }
        if let Some(to) = to {
            let from = from.filter(stays).map(|head| head.place);
            self.change_heads(to.title, |heads| heads.place(stream, from, to.place));
        }
    }

    fn change_heads(&mut self, title: TitleRef, change: impl FnOnce(&mut Playheads)) {
        let Some(title) = self.titles.get_mut(title) else { return };
        let before = title.heads.places();
        change(&mut title.heads);
        self.positions = self.positions + title.heads.places() - before;
    }

    /// The stream has got `key`: if its playhead is there, it goes on to the next extent.
    fn step_head(&mut self, stream: StreamKey, key: ExtentKey) {
        let Some(head) = self.streams.head(stream) else { return };
        if head.title != key.title || head.place.extent != key.extent {
            return;
        }
        let extents = self.titles.get(key.title).map_or(0, |title| title.open.extents());
        let place = PlayheadPosition { extent: key.extent + 1, ..head.place };
        self.move_head(stream, (place.extent < extents).then_some(Head { place, ..head }));
    }

    /// Plans the reads of the extents that the playhead will reach within the look-ahead time: all
    /// of them again (`again`), or only those that came within sight since the last call.
    fn look_ahead(&mut self, now: Ns, stream: StreamKey, anew: bool) {
        let Some(head) = self.streams.head(stream).filter(|_| self.prefetch_ns > 0) else { return };
        let Some(title) = self.titles.get(head.title) else { return };
        let title = Arc::clone(&title.open);
        let at = |extent| head.place.offset.saturating_add(title.start_ns(extent));
        // A stream that is late goes on from now; it does not run ahead to where it should be.
        let late = now.saturating_sub(at(head.place.extent)).max(0);
        let end = head.place.extent.saturating_add(self.max_ahead).min(title.extents());
        let mut extent = head.place.extent;
        if !anew {
            extent = extent.max(self.streams.ahead_end(stream));
        }
        let (mut timer, spare) = (None, self.streams.spare(stream));
        while extent < end {
            let need = at(extent).saturating_add(late);
            let in_sight = need.saturating_sub(self.prefetch_ns);
            if in_sight > now {
                timer = Some(in_sight);
                break;
            }
            self.read_ahead(ExtentKey { title: head.title, extent }, need, spare);
            extent += 1;
        }
        let id = self.streams.set_ahead_end(stream, extent);
        if let (Some(at), Some(id)) = (timer, id) {
            self.timers.push(Reverse((at, stream, id)));
        }
    }

    fn read_ahead(&mut self, key: ExtentKey, need: Ns, spare: u8) {
        if !self.extent_table.holds(key, spare) && !self.failed.iter().any(|&(failed, _)| failed == key) {
            self.plan.ahead(key, need, spare);
        }
    }

    /// Time has passed.
    pub(super) fn handle_time(&mut self, now: Instant) {
        let now = ns(now);
        self.drop_damaged(now);
        while let Some(&Reverse((at, stream, id))) = self.timers.peek() {
            let valid = self.streams.is_timer(stream, id);
            if valid && at > now {
                break;
            }
            self.timers.pop();
            if valid {
                self.look_ahead(now, stream, false);
            }
        }
        if self.timers.len() > 64 + 4 * self.heads {
            let streams = &self.streams;
            self.timers.retain(|Reverse((_, stream, id))| streams.is_timer(*stream, *id));
        }
        while self.failed.front().is_some_and(|&(_, until)| until <= now) {
            self.failed.pop_front();
        }
        if self.extent_table.orphans() > 0 && now >= self.next_sweep {
            self.extent_table.sweep();
            self.next_sweep = now.saturating_add(SWEEP_NS);
        }
    }

    /// When [`Policy::handle_time`] and [`Policy::next_read`] have something to do although nothing has happened.
    pub(super) fn poll_at(&self, now: Instant) -> Option<Instant> {
        let now = ns(now);
        let together =
            |at: Ns| at.saturating_add(LOOK_AHEAD_TICK_NS - 1) / LOOK_AHEAD_TICK_NS * LOOK_AHEAD_TICK_NS;
        let timer = self.timers.peek().map(|Reverse((at, ..))| together(*at));
        let room = self.no_room || self.live.iter().any(|(_, feed)| feed.is_short);
        let room = room.then(|| now.saturating_add(CACHE_SPACE_RETRY_NS as Ns));
        let ahead = self.ahead_put_off.then(|| now.saturating_add(AHEAD_RETRY_NS));
        let sweep = (self.extent_table.orphans() > 0).then_some(self.next_sweep);
        let closing = (!self.closing.is_empty()).then(|| now.saturating_add(SWEEP_NS));
        let next = [timer, room, ahead, sweep, closing].into_iter().flatten().min()?;
        Some(Instant(u64::try_from(next).unwrap_or(0)))
    }

    /// Time has passed, though the clock may not say so: look again for room even if there was none a moment ago.
    pub(super) fn retry_room(&mut self) {
        self.extent_table.retry();
    }

    /// Returns whether more reads may be in flight, ahead or not. If so, any read not begun waits
    /// for memory or is not urgent.
    pub(super) fn has_free_reads(&self) -> bool {
        let reads = self.reading - self.joined.len();
        reads < self.max_reads_ahead && self.reading <= self.max_extents * 3 / 4
    }

    /// The next read to begin, if there is one, if there is room for it, and if not too many are in flight.
    pub(super) fn next_read(&mut self, now: Instant) -> Option<ReadOrder> {
        let now = ns(now);
        self.ahead_put_off = false;
        let reads = self.reading - self.joined.len();
        if reads >= self.max_reads || self.reading >= self.max_extents {
            return None;
        }
        let demand = self.plan.first_demand();
        // The remaining reads are reserved for waiting streams.
        let may_look_ahead = self.has_free_reads();
        let ahead = self.first_needed_ahead(now).filter(|_| may_look_ahead);
        let ahead_is_sooner = match (demand, ahead) {
            (Some(demand), Some(ahead)) => ahead.by < demand.by,
            (_, ahead) => ahead.is_some(),
        };
        let ahead_first =
            ahead.filter(|_| ahead_is_sooner).and_then(|next| self.begin(now, next, self.brings(now, &next)));
        if ahead_first.is_some() {
            return ahead_first;
        }
        let Some(next) = demand else {
            self.no_room = false;
            self.ahead_put_off = ahead.is_some();
            return None;
        };
        let order = self.begin(now, next, self.brings(now, &next));
        self.no_room = order.is_none();
        if self.no_room && self.brings(now, &next) == Brings::Demand && self.plan.note_wait(next.key) {
            self.counters.waits_for_space.add(1);
        }
        order
    }

    /// The read of the extent behind one that is about to be read, to be begun together with it: if it is in the plan, or if a
    /// playhead will come to it soon enough and there is room that is needed later.
    pub(super) fn next_of_run(&mut self, now: Instant, before: &ReadOrder) -> Option<ReadOrder> {
        let now = ns(now);
        let key = ExtentKey { extent: before.key.extent.checked_add(1)?, ..before.key };
        let is_full = self.reading >= self.max_extents + MAX_RUN_EXTENTS;
        if key.extent >= before.title.extents() || is_full {
            return None;
        }
        let is_planned = self.plan.has(key);
        if !is_planned {
            let start_ns = before.title.start_ns(key.extent);
            let next_use = self.titles.get_mut(key.title)?.heads.next_use(key.extent, start_ns);
            let NextUse::At(by) = next_use else { return None };
            let in_sight = now.saturating_add(self.prefetch_ns).saturating_add(RUN_AHEAD_NS as Ns);
            if self.prefetch_ns == 0 || by > in_sight {
                return None;
            }
            self.read_ahead(key, by, before.spare);
        }
        let next = self.plan.unread(key)?;
        // It is read early because that costs little now, so it may displace only extents needed
        // later than it.
        let brings = if next.demand { self.brings(now, &next) } else { Brings::Ahead(next.by) };
        let order = self.begin(now, next, brings);
        if order.is_some() {
            self.joined.insert(key);
        } else if !is_planned {
            self.plan.finish(key);
        }
        order
    }

    /// Returns the most urgent read ahead that a playhead still needs; drops those no longer
    /// needed.
    fn first_needed_ahead(&mut self, now: Ns) -> Option<NextRead> {
        loop {
            let next = self.plan.first_ahead()?;
            let until = now.saturating_add(self.prefetch_ns);
            let needed = self.titles.get(next.key.title).is_some_and(|title| {
                title.heads.reached_by(next.key.extent, title.open.start_ns(next.key.extent), until)
            });
            if needed {
                return Some(next);
            }
            self.plan.finish(next.key);
        }
    }

    fn brings(&self, now: Ns, next: &NextRead) -> Brings {
        let time_left = next.by.saturating_sub(now);
        match next.demand {
            true if time_left <= self.prefetch_ns.max(URGENT_NS) => Brings::Demand,
            false if time_left > self.prefetch_ns / 2 => Brings::FarAhead,
            _ => Brings::Ahead(next.by),
        }
    }

    fn begin(&mut self, now: Ns, next: NextRead, brings: Brings) -> Option<ReadOrder> {
        let title = Arc::clone(&self.titles.get(next.key.title)?.open);
        let fill = self.extent_table.take(now, brings, &mut self.titles)?;
        self.plan.begin(next.key);
        self.reading += 1;
        self.counters.reads.add(1);
        if !next.demand {
            self.counters.reads_ahead.add(1);
        }
        Some(ReadOrder { key: next.key, title, fill, spare: next.spare })
    }

    /// Ends a read: leases the extent to all its waiters. A stream that began to wait during the
    /// read and can do with fewer holes than it had keeps waiting: the extent is read again for it.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        key: ExtentKey,
        fill: Fill,
        outcome: Result<ExtentContent, ReadFailure>,
    ) {
        let now = ns(now);
        self.reading -= 1;
        self.joined.remove(&key);
        let waiters = self.plan.finish(key);
        let outcome = match (outcome, self.titles.get(key.title)) {
            (Ok(content), Some(title)) => {
                let start_ns = title.open.start_ns(key.extent);
                // A parity track with holes is whole again when its members are ([`Policy::drop_holes`]).
                if content.is_damaged() && title.open.kind().holes_are_damage() {
                    self.damaged.push_back((key, now.saturating_add(DAMAGED_KEPT_NS as Ns)));
                }
                self.extent_table.put(fill, content, start_ns);
                Ok(())
            }
            (outcome, _) => {
                self.extent_table.give_back(fill);
                Err(outcome.err().unwrap_or(ReadFailure::NoTitle))
            }
        };
        if outcome.is_err() {
            if self.failed.len() == FAILED_REMEMBERED {
                self.failed.pop_front();
            }
            self.failed.push_back((key, now.saturating_add(FAILED_FOR_NS)));
        }
        for waiter in waiters {
            let Some(ExtentNeed { by, spare, .. }) = self.streams.needs(key, &waiter) else { continue };
            if outcome.is_ok() && !self.extent_table.holds(key, spare) {
                self.plan.demand(key, (by, spare), waiter, |_| true);
            } else {
                self.answer(now, key, &waiter, outcome);
            }
        }
    }

    /// Answers a waiter, if it still waits.
    fn answer(&mut self, now: Ns, key: ExtentKey, waiter: &Waiter, outcome: Result<(), ReadFailure>) {
        let Some(ExtentNeed { run, by, spare, .. }) = self.streams.answered(key, waiter) else { return };
        let live = self.live_at(key.title);
        let lease = outcome.and_then(|()| {
            let lease = match live {
                Some(at) => self.live[at].1.lend(key),
                None => self.extent_table.lend(key, spare),
            };
            // Refused only if 2^32 of them are out: then this one is, as far as we can say, busy.
            lease.ok_or(ReadFailure::Io(libc::EBUSY))
        });
        let granted = lease.is_ok();
        self.grants.push_back((waiter.handle, grant(waiter.stream, run, key, lease)));
        // If a stream waits for data not written yet, its lateness is not the fault of this cache.
        if granted && live.is_none() {
            self.note_late(now, by);
            self.step_head(StreamKey { handle: waiter.handle, index: waiter.stream.index }, key);
        }
    }

    fn note_late(&mut self, now: Ns, by: Ns) {
        if now > by {
            self.counters.late_grants.add(1);
        }
    }

    /// The next answer, and the engine it is for.
    pub(super) fn poll_grant(&mut self) -> Option<(u16, Grant)> {
        self.grants.pop_front()
    }

    /// Shows the gauges to everybody.
    pub(super) fn publish(&self) {
        let counters = &self.counters;
        counters.free.set(self.extent_table.free());
        counters.resident.set(self.extent_table.held());
        counters.queued.set(self.plan.queued());
        counters.reading.set(self.reading);
        counters.evictions.set(self.extent_table.evictions());
        counters.playheads.set(self.heads);
        counters.positions.set(self.positions);
        counters.titles.set(self.titles.len());
    }
}

/// Positions in titles that `extents` extents support while `in_flight` of them may be in flight
/// for other positions.
fn positions_of(extents: usize, in_flight: usize) -> usize {
    (extents - in_flight.min(extents)) * 1000 / PINNED_PERMILLE_PER_POSITION
}

fn grant(stream: StreamId, run: RunSerial, key: ExtentKey, lease: Result<Lease, ReadFailure>) -> Grant {
    Grant { stream, run, title: key.title, extent: key.extent, lease }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
