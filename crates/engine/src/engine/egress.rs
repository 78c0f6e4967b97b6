//! Egress: the extents that the engine wants, the data it sends, the events it reports, and the
//! time of its next call.

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::limits::{MAX_BATCH_BURSTS, MAX_HOLE_NS, RETRY_NS};
use millrace_core::pool::Lease;
use millrace_core::prefetch::{prefetch, prefetch_all};
use millrace_core::seam::{TransmitBatch, Want};
use millrace_core::time::{Instant, MediaTicks};

use super::ahead::measure_ahead;
use super::rush::count_bytes;
use super::{Engine, time_of};
use crate::batch::Burst;
use crate::frame::{holes, packets_per_write, times};
use crate::limits::SHARED_WAKE_NS;
use crate::rtcp::sender_report;
use crate::stream::{ExtentProgress, Input, NEVER, StreamState, flag, pending, spare_of};
use crate::types::{FailReason, StreamEvent};

impl Engine {
    /// Egress: the next extent to ask the cache for.
    pub fn poll_want(&mut self) -> Option<Want> {
        loop {
            let index = self.wants.front()?;
            let stream = self.stream(index);
            let (here, place) = (stream.extent, stream.place());
            let slots = [here, here + 1].map(|extent| (extent % 2) as usize);
            let found = match slots.map(|slot| stream.slots[slot] == ExtentProgress::Wanted) {
                [true, _] => Some((slots[0], (here, place))),
                [_, true] => self.follows(index, here).map(|ahead| (slots[1], ahead)),
                _ => None,
            };
            let Some((slot, (extent, place))) = found else {
                if let Some(want) = self.queued_want(index) {
                    return Some(want);
                }
                self.wants.pop_front();
                continue;
            };
            let stream = self.stream_mut(index);
            stream.slots[slot] = ExtentProgress::Asked;
            stream.flags |= flag::PLAYHEAD;
            self.counters.wants += 1;
            let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
            // Codewords with packets left out are not repaired.
            let until = if stream.has(flag::STEPS) { 0 } else { stream.until };
            return Some(Want {
                stream: stream.id(index),
                run: stream.run,
                title: cold.media.title,
                extent,
                place: place as u16,
                by: cold.wanted_by[slot],
                spare: spare_of(&cold.media, cold.run_from, until, extent),
            });
        }
    }

    /// Egress: gives back a want that the cache had no room for, so that [`Engine::poll_want`] offers it again. Stop
    /// polling wants for this turn then, or the same one comes at once.
    pub fn want_refused(&mut self, want: &Want) {
        let Some((index, slot)) = self.slot_for(want.stream, want.run, want.extent) else { return };
        let stream = self.stream_mut(index);
        if stream.slots[slot] == ExtentProgress::Asked {
            stream.slots[slot] = ExtentProgress::Wanted;
            self.counters.wants -= 1;
            self.wants.push_front(index);
        }
    }

    /// Place of a stream, and the slot that an extent of its run, or of the queued one, has, if that may need it now.
    pub(super) fn slot_for(&self, id: StreamId, run: RunSerial, extent: u32) -> Option<(u32, usize)> {
        let index = self.find(id).ok()?;
        let stream = self.stream(index);
        if stream.run == run {
            return Some((index, self.slot_of(index, extent)?));
        }
        let cold = &self.cold[index as usize];
        cold.queued.as_ref().filter(|spec| spec.run == run && spec.first_extent() == extent)?;
        Some((index, usize::from(cold.queued_slot?)))
    }

    /// Egress: fills the batch with the packets due at `now`, and those that may leave with them
    /// ([`crate::EngineConfig::shares_wakes`]), each stream at most once; 0 = nothing. Send it,
    /// call [`Engine::handle_sent`], and call again until it returns 0.
    pub fn poll_bursts(&mut self, now: Instant) -> usize {
        self.abandon_batch(now);
        self.batch.taken = now;
        let horizon = self.turn_to(now);
        let mut due = [0; MAX_BATCH_BURSTS];
        while let room @ 1.. = self.batch.room() {
            let count = self.wheel.pop_due_into(horizon, &mut due[..room]);
            if count == 0 {
                break;
            }
            self.fetch(&due[..count]);
            for &index in &due[..count] {
                self.fire(index, now, horizon);
            }
        }
        self.rush(now);
        self.batch.len()
    }

    /// Returns the time up to which the wheel is turned. A wake-up takes along the bursts that
    /// depart within its length from its *begin*, however long sending them takes: counted from
    /// each send, a busy loop would run ahead of time by this length, and an idle one would not.
    fn turn_to(&mut self, now: Instant) -> Instant {
        if now >= self.horizon {
            self.lead_ns = if self.shares_wakes { self.rules.burst_ns.min(SHARED_WAKE_NS) } else { 0 };
            let is_wake = self.wheel.next_due().is_some_and(|due| due <= now);
            self.horizon = if is_wake { now.plus_ns(self.lead_ns) } else { now };
        }
        if self.is_exact(now) {
            // Packets that must not lead stand later by the lead.
            self.horizon = now.plus_ns(self.lead_ns);
        }
        self.horizon
    }

    /// Whether some stream needs its time exactly.
    fn is_exact(&self, now: Instant) -> bool {
        self.exact_until.plus_ns(self.lead_ns) > now
    }

    /// Asks for the memory that these streams' bursts will need, so that the processor waits for all of it at once instead of
    /// for one stream after the other. With more streams than the cache holds this is worth a factor.
    fn fetch(&self, due: &[u32]) {
        for &index in due {
            prefetch_all(self.stream(index));
            prefetch_all(&self.batch.rows[index as usize]);
        }
        for &index in due {
            let stream = self.stream(index);
            if let Some(lease) = self.batch.lease(index, stream.extent) {
                prefetch(&lease.metas(stream.place(), 1)[0]);
            }
        }
    }

    /// The batch that the last [`Engine::poll_bursts`] filled; empty after [`Engine::handle_sent`].
    pub fn batch(&self) -> &(impl TransmitBatch + use<>) {
        &self.batch
    }

    /// Egress: the next event. Each is reported once: call it only with room for the event at hand.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        loop {
            let index = self.told.front()?;
            let stream = self.stream_mut(index);
            let event = stream.events & stream.events.wrapping_neg();
            stream.events ^= event;
            if stream.events == 0 {
                self.told.pop_front();
            }
            if event == pending::RUN_ENDED {
                let Some(end) = self.next_end(index) else { continue };
                return Some(end);
            }
            if event != 0 {
                return Some(self.event(index, event));
            }
        }
    }

    /// Egress: when [`Engine::poll_bursts`] has something to do next; never too late, sometimes too
    /// early (about once a second for events farther off), and later than `now` if
    /// `poll_bursts(now)` has just returned 0. `None` as long as there is nothing to wait for but
    /// arrivals.
    pub fn poll_at(&self) -> Option<Instant> {
        let rush = self.rush.poll_at(self.batch.taken);
        if rush.is_some() {
            return rush;
        }
        let next = self.wheel.next_due()?;
        let is_exact = self.is_exact(self.batch.taken);
        Some(if is_exact { Instant(next.0.saturating_sub(self.lead_ns)) } else { next })
    }

    /// The oldest end of a run; if there are more, their turn comes right after.
    fn next_end(&mut self, index: u32) -> Option<StreamEvent> {
        let ends = &mut self.ends[index as usize];
        let end = ends.pop()?;
        let has_more = !ends.is_empty();
        let stream = self.stream(index).id(index);
        if has_more {
            self.tell(index, pending::RUN_ENDED);
        }
        Some(StreamEvent::RunEnded { stream, end })
    }

    fn event(&mut self, index: u32, event: u8) -> StreamEvent {
        let (cold, stream) = (&self.cold[index as usize], &self.streams[index as usize]);
        let id = stream.id(index);
        match event {
            pending::RUN_BEGAN => StreamEvent::RunBegan { stream: id, run: stream.run, at: stream.pace.at },
            pending::DRAINED => StreamEvent::Drained { stream: id, run: stream.run },
            pending::FAILED => StreamEvent::Failed { stream: id, reason: cold.reason },
            pending::LEFT => {
                self.stream_mut(index).flags &= !flag::PLAYHEAD;
                StreamEvent::Left { stream: id }
            }
            _ => {
                let (packets, bytes) = (stream.packets, stream.bytes);
                let (unreachable, late) = (cold.unreachable, cold.late);
                // Free from here on; the table knows no other way from Closing.
                let _ = self.step(index, Input::ClosedTold);
                StreamEvent::Closed { stream: id, packets, bytes, unreachable, late }
            }
        }
    }

    /// A stream's timer has fired: media first, a report in the next batch of the same turn if both are due.
    fn fire(&mut self, index: u32, now: Instant, horizon: Instant) {
        let stream = self.stream(index);
        match stream.state {
            StreamState::Playing if stream.due <= now && !stream.rushes() => self.burst(index, now),
            StreamState::Playing if stream.may_lead && stream.due <= horizon => self.lead(index, now),
            StreamState::Playing | StreamState::Draining if stream.report_due <= now => {
                self.report(index, now)
            }
            _ => {
                let next = stream.wakes(self.lead_ns);
                let is_later = stream.rushes() || next.is_none_or(|next| next > horizon);
                debug_assert!(is_later, "the timer would fire again and again");
                self.arm(index, now);
            }
        }
    }

    /// A stream's burst leaves before its time, unless it has just sent as much as may leave at one moment.
    fn lead(&mut self, index: u32, now: Instant) {
        let stream = &mut self.streams[index as usize];
        if !stream.last.is_full(now) {
            return self.burst(index, now);
        }
        stream.may_lead = false;
        self.exact_until = self.exact_until.max(stream.due);
        self.arm(index, now);
    }

    pub(super) fn burst(&mut self, index: u32, now: Instant) {
        let stream = &mut self.streams[index as usize];
        if stream.next == stream.until {
            return self.drained(index, now);
        }
        let (extent, place) = (stream.extent, stream.place());
        let Some(lease) = self.batch.lease(index, extent) else { return self.without_extent(index, now) };
        let left = (lease.content().packets - place).min(stream.until - stream.next);
        // Bytes that are missing are replaced, not passed over.
        let (missing, left) = if stream.has(flag::BYTES) { (0, left) } else { holes(lease, place, left) };
        if missing > 0 {
            return self.skip(now, index, Burst { extent, place, count: missing });
        }
        if stream.has(flag::LENDS) && !self.held.begin(index, (extent % 2) as usize, stream.packets) {
            return self.wait_for_device(index, now);
        }
        let hole_ns = now.ns_since(stream.due);
        if hole_ns > MAX_HOLE_NS {
            stream.pace.at = stream.pace.at.plus_ns(hole_ns - MAX_HOLE_NS);
        }
        let is_bytes = stream.has(flag::BYTES);
        // A viewer with media in hand waits for nothing less; without a lead a run keeps to its
        // time as frames do.
        let is_long = is_bytes && self.cold[index as usize].ahead > MediaTicks(0);
        let (rules, most) = match self.batch.rows[index as usize].dest.conn() {
            None => (self.rules, left),
            Some(_) => {
                let layout = lease.content().layout;
                // Of bytes a device that copies them takes an extent at once.
                let is_whole = is_long && !stream.has(flag::LENDS);
                let most = if is_whole { left } else { left.min(packets_per_write(layout)) };
                (self.rules.in_connection(stream.bursts), most)
            }
        };
        let time = time_of(lease, place);
        let pace = if stream.has(flag::AHEAD) {
            measure_ahead(stream, &self.cold[index as usize], now, time, rules.burst_ns)
        } else {
            stream.pace
        };
        let departure = pace.departure(time);
        let behind = now.ns_since(departure) > rules.burst_ns;
        if behind != stream.has(flag::CATCHING_UP) {
            stream.flags ^= flag::CATCHING_UP;
            self.counters.catch_ups += u64::from(behind);
        }
        let count = if is_long {
            count_bytes(stream, lease, (place, most), now)
        } else {
            rules.count(&pace, times(lease, place, most.min(stream.last.room(now))))
        };
        let burst = Burst { extent, place, count };
        if is_bytes {
            let is_edge = stream.bursts == 0 || stream.next + count == stream.until;
            let (head, tail) = if is_edge { self.trims(index, burst) } else { (0, 0) };
            let id = self.stream(index).id(index);
            return self.batch.push_bytes(id, departure, burst, head, tail);
        }
        self.batch.push_media(stream.id(index), &self.streams[index as usize], departure, burst);
    }

    /// Bytes of a burst's first and last packet that are not the run's: only where that begins and ends.
    fn trims(&self, index: u32, burst: Burst) -> (u16, u16) {
        let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
        let (head, last) = cold.trim;
        let begins = stream.next == cold.run_from;
        let ends = last != 0 && stream.next + burst.count == cold.run_until;
        let tail = |lease: &Lease| {
            let content = lease.content();
            let is_last = burst.place + burst.count == content.packets;
            let whole =
                if is_last { content.last_packet_bytes } else { content.layout.packet_bytes() as u16 };
            whole.saturating_sub(last)
        };
        let lease = self.batch.lease(index, burst.extent).filter(|_| ends);
        (if begins { head } else { 0 }, lease.map_or(0, tail))
    }

    /// A timer has fired of a stream that waits for an extent, or, if it is parked, for its connection: that has had its time.
    #[cold]
    fn without_extent(&mut self, index: u32, now: Instant) {
        if self.stream(index).has(flag::PARKED) {
            return self.give_up(index, FailReason::SlowReader);
        }
        self.stream_mut(index).due = NEVER;
        self.arm(index, now);
    }

    fn report(&mut self, index: u32, now: Instant) {
        let stream = &mut self.streams[index as usize];
        if stream.state == StreamState::Playing && !stream.has(flag::ANCHORED) {
            // Between a cut and the first extent behind it there is no media time to be named.
            stream.report_due = now.plus_ns(RETRY_NS);
            return self.arm(index, now);
        }
        let report = sender_report(stream, now, self.wall_offset_ns);
        let bye = stream.state == StreamState::Draining;
        self.batch.push_report(stream.id(index), stream.report_due, &report, &self.cname, bye);
    }
}
