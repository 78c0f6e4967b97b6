//! Arrivals: extents that were asked for, and what became of the batch.

use millrace_core::dest::Dest;
use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::limits::{BYE_DELAY_NS, LEASE_AHEAD_NS, OVERDUE_NS};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::seam::SendOutcome;
use millrace_core::time::Instant;

use super::ahead::owed;
use super::{Engine, time_behind, time_of};
use crate::batch::{BatchEntry, Burst, EntryContent};
use crate::frame::{bytes_of, fits, is_endless, is_part, times};
use crate::limits::{FIRST_REPORT_NS, LATE_NS, MAX_UNREACHABLE_NS, RTCP_INTERVAL_NS};
use crate::stream::{ExtentProgress, Input, NEVER, flag, pending};
use crate::types::{FailReason, LeaseFailure, StopReason};

impl Engine {
    /// Arrival: an extent, lent. Dropped, and so given back, if the run is over or no longer wants it.
    pub fn handle_lease(&mut self, now: Instant, id: StreamId, run: RunSerial, extent: u32, lease: Lease) {
        self.counters.leases += 1;
        let Some((index, slot)) = self.waiting(id, run, extent) else {
            self.counters.leases_unwanted += 1;
            return;
        };
        let ahead = self.follows(index, self.stream(index).extent);
        let (stream, cold) = (&mut self.streams[index as usize], &self.cold[index as usize]);
        let is_queued = run != stream.run;
        let (media, place) = match cold.queued.as_ref().filter(|_| is_queued) {
            Some(spec) => (&spec.media, spec.first_place()),
            None if extent == stream.extent => (&cold.media, stream.place()),
            None => (&cold.media, ahead.map_or(0, |(_, place)| place)),
        };
        if !fits(media, (extent, place), &lease) {
            return self.cannot_read(index, now, is_queued, LeaseFailure::OutOfRange);
        }
        self.batch.rows[index as usize].leases[slot] = Some(lease);
        stream.slots[slot] = ExtentProgress::Held;
        if !is_queued && stream.extent == extent {
            self.extent_is_here(index, now);
            self.arm(index, now);
        }
    }

    /// The extent of the packet `next` is held: it is known when that leaves.
    pub(super) fn extent_is_here(&mut self, index: u32, now: Instant) {
        let stream = &mut self.streams[index as usize];
        let begins = !stream.has(flag::ANCHORED) && self.cold[index as usize].gap_behind.is_none();
        let extent = stream.extent;
        if begins && !stream.has(flag::FOLLOWS) && !self.cold[index as usize].is_continued {
            // The run begins with its first packet: there is nothing to catch up before that has been read. FEC keeps the
            // schedule of its media: if it were moved, it would come late from now on.
            stream.pace.at = stream.pace.at.max(now);
        }
        self.schedule(index, now);
        let stream = &mut self.streams[index as usize];
        let is_endless = is_endless(&self.cold[index as usize].media);
        if is_endless || self.batch.lease(index, extent).is_some_and(Lease::grows) {
            // Media written late is late for good: the viewer's buffer makes up for it once, not
            // each time.
            stream.pace.at = stream.pace.at.plus_ns(now.ns_since(stream.due));
            stream.due = stream.due.max(now);
        }
        if stream.has(flag::RESUMED) {
            stream.flags &= !flag::RESUMED;
            stream.due = stream.due.max(now);
        }
        self.note_ask_at(index);
        let stream = self.stream(index);
        let is_starved = stream.due < now && !stream.has(flag::AHEAD);
        self.counters.starved += u64::from(is_starved);
        if begins {
            self.tell(index, pending::RUN_BEGAN);
        }
        if begins || self.stream(index).rushes() {
            // A run may begin with the last packet of its extent: the next extent must not wait
            // until this packet is sent.
            let place = self.stream(index).place();
            self.want_ahead(index, extent, place);
        }
    }

    /// Works out the packet, in the extent that the stream is in and holds, where it asks for the
    /// next extent: the first that departs no more than [`LEASE_AHEAD_NS`] before the last, or one
    /// before it.
    pub(super) fn note_ask_at(&mut self, index: u32) {
        let (stream, cold) = (&mut self.streams[index as usize], &self.cold[index as usize]);
        let Some(lease) = self.batch.lease(index, stream.extent) else { return };
        if is_part(&cold.media, lease) {
            // The rest of this one comes first.
            stream.ask_at = stream.per_extent;
            return;
        }
        if stream.has(flag::STEPS) || stream.rushes() {
            // There may be little to send of it, or it is sent at once: there is no time to lose.
            stream.ask_at = 0;
            return;
        }
        let last = lease.content().packets - 1;
        let (begin, end) = (time_of(lease, 0), time_of(lease, last));
        let moment = stream.pace.departure(end).0.saturating_sub(LEASE_AHEAD_NS);
        let media = stream.pace.media_at(Instant(moment));
        // At a constant rate this is the place: nothing else of the extent need be looked at.
        let share = media.since(begin).0.saturating_mul(u64::from(last)) / end.since(begin).0.max(1);
        let place = share.min(u64::from(last)) as u32;
        let place = if time_of(lease, place) <= media {
            place
        } else {
            lease.metas(0, place).partition_point(|&bytes| PacketMeta::from_bytes(bytes).time() < media)
                as u32
        };
        stream.ask_at = place as u16;
    }

    /// Wants the extent behind `extent`, which is held, or the one that follows there by a queued
    /// run, unless nothing follows or it has been asked for. `place`: of the packet that is next.
    /// The cache knows where the playhead is going and reads ahead by itself, so an extent is asked
    /// for only when it is nearly needed: until then others may have its memory. The cache does not
    /// know the first extent of a queued run, so it is asked for at once.
    pub(super) fn want_ahead(&mut self, index: u32, extent: u32, place: u32) {
        let stream = self.stream(index);
        let ahead = extent + 1;
        let slot = (ahead % 2) as usize;
        if stream.slots[slot] != ExtentProgress::Idle {
            return;
        }
        let is_cut = self.follows(index, extent).is_none();
        let is_early = if is_cut {
            self.cold[index as usize].queued.is_none()
        } else {
            place < u32::from(stream.ask_at)
        };
        if is_early {
            return;
        }
        let Some(lease) = self.batch.lease(index, extent) else { return };
        // The first packet ahead departs a packet's time later than the last one here: a little early is safe.
        let left = stream.until.saturating_sub(stream.first_of(extent)).min(lease.content().packets);
        let by = if stream.has(flag::STEPS) {
            self.leaves_extent_at(index, lease)
        } else {
            self.owed(index).departure(time_of(lease, left.saturating_sub(1)))
        };
        if is_cut {
            self.cold_mut(index).queued_slot = Some(slot as u8);
        }
        self.want(index, ahead, by);
    }

    /// Handles an extent that will not come. A queued run does not take place then; a run that
    /// lasts fails.
    fn cannot_read(&mut self, index: u32, now: Instant, is_queued: bool, failure: LeaseFailure) {
        let reason = FailReason::ReadError(failure);
        if is_queued {
            self.drop_queued(index, StopReason::Failed(reason));
        } else {
            self.fail(index, now, reason);
        }
    }

    /// Arrival: an extent that could not be lent. A failed read is tried once more; then, and at once in the other cases,
    /// the stream fails, or a queued run does not take place.
    pub fn handle_lease_failed(
        &mut self,
        now: Instant,
        id: StreamId,
        run: RunSerial,
        extent: u32,
        failure: LeaseFailure,
    ) {
        let Some((index, slot)) = self.waiting(id, run, extent) else { return };
        self.counters.leases_failed += 1;
        if failure == LeaseFailure::Ended && run == self.stream(index).run {
            return self.title_is_over(now, index, (extent, slot));
        }
        let again = matches!(failure, LeaseFailure::Io(_) | LeaseFailure::Checksum);
        let stream = self.stream_mut(index);
        if again && !stream.has(flag::RETRIED << slot) {
            stream.flags |= flag::RETRIED << slot;
            stream.slots[slot] = ExtentProgress::Wanted;
            self.wants.push_back(index);
        } else {
            let is_queued = run != stream.run;
            self.cannot_read(index, now, is_queued, failure);
        }
    }

    /// The title ends before `extent`, or, if that is the one that the stream is in, before its next packet.
    #[cold]
    fn title_is_over(&mut self, now: Instant, index: u32, (extent, slot): (u32, usize)) {
        self.release(index, slot);
        let stream = self.stream(index);
        let until = stream.next.max(stream.first_of(extent));
        self.cold_mut(index).run_until = until;
        self.end_at(index, until);
        if self.stream(index).next == until {
            self.abandon_batch(now);
            self.drained(index, now);
            self.arm(index, now);
        }
    }

    /// Arrival: what became of the batch, one outcome for each entry, in order. Entries without an outcome count as
    /// blocked.
    pub fn handle_sent(&mut self, now: Instant, outcomes: &[SendOutcome]) {
        for at in 0..self.batch.clear() {
            let entry = self.batch.entry(at);
            let outcome = outcomes.get(at).copied().unwrap_or(SendOutcome::Blocked { taken: 0 });
            match entry.what {
                EntryContent::Media { burst, patched } => {
                    self.media_sent(now, &entry, burst, patched, outcome)
                }
                EntryContent::Bytes { burst, .. } => self.media_sent(now, &entry, burst, false, outcome),
                EntryContent::Report { bye, .. } => self.report_sent(now, &entry, bye, outcome),
            }
            self.arm(entry.stream.index, now);
        }
    }

    /// Place and slot of a stream whose run waits for `extent`.
    fn waiting(&self, id: StreamId, run: RunSerial, extent: u32) -> Option<(u32, usize)> {
        let (index, slot) = self.slot_for(id, run, extent)?;
        // A stream that does not play has only idle slots.
        matches!(self.stream(index).slots[slot], ExtentProgress::Wanted | ExtentProgress::Asked)
            .then_some((index, slot))
    }

    fn media_sent(
        &mut self,
        now: Instant,
        entry: &BatchEntry,
        burst: Burst,
        patched: bool,
        outcome: SendOutcome,
    ) {
        let index = entry.stream.index;
        match outcome {
            SendOutcome::Sent => self.taken(now, entry, burst, patched),
            SendOutcome::Blocked { taken } if u32::from(taken) >= burst.count => {
                self.taken(now, entry, burst, patched);
            }
            SendOutcome::Blocked { taken } => {
                self.counters.blocked += 1;
                if taken > 0 {
                    self.taken(now, entry, Burst { count: u32::from(taken), ..burst }, patched);
                }
                self.blocked(now, index, taken > 0);
            }
            SendOutcome::Unreachable { errno } => self.unreachable(now, entry, burst, errno),
            SendOutcome::Closed { errno } => self.fail(index, now, FailReason::ConnectionClosed(errno)),
        }
    }

    /// The device took these packets.
    fn taken(&mut self, now: Instant, entry: &BatchEntry, burst: Burst, patched: bool) {
        let index = entry.stream.index;
        let left = self.batch.taken;
        let stream = &mut self.streams[index as usize];
        let Some(lease) = self.batch.lease(index, burst.extent) else { return };
        let packets = u64::from(burst.count);
        let bytes = bytes_of(entry.what, lease, burst);
        stream.packets += packets;
        stream.bytes += bytes;
        stream.bursts = stream.bursts.wrapping_add(1);
        stream.flags &= !(flag::UNREACHABLE | flag::BLOCKED);
        self.counters.packets += packets;
        self.counters.ahead += if stream.has(flag::AHEAD) { packets } else { 0 };
        self.counters.bytes += bytes;
        self.counters.bursts += 1;
        self.counters.patched += if patched { packets } else { 0 };
        let behind_ns = left.ns_since(entry.departure);
        if behind_ns > LATE_NS {
            let pace = owed(stream, &self.cold[index as usize]);
            let is_late = |time| left.ns_since(pace.departure(time)) > LATE_NS;
            let late =
                times(lease, burst.place, burst.count).take_while(|&time| is_late(time)).count() as u64;
            self.cold[index as usize].late += late;
            self.counters.late += late;
            if behind_ns > OVERDUE_NS {
                self.counters.overdue += packets;
            }
        }
        self.counters.late_max_ns = self.counters.late_max_ns.max(behind_ns);
        self.gone(now, entry, burst);
    }

    /// These packets are behind the stream, by whatever way: the next ones are prepared.
    fn gone(&mut self, now: Instant, entry: &BatchEntry, burst: Burst) {
        let index = entry.stream.index;
        let stream = &mut self.streams[index as usize];
        stream.last = stream.last.followed_by(self.batch.taken, stream.due, entry.departure, burst.count);
        if self.batch.rows[index as usize].dest.conn().is_some() {
            stream.last = stream.last.in_connection();
        }
        if stream.report_due == NEVER && !stream.has(flag::QUIET) {
            stream.report_due = now.plus_ns(FIRST_REPORT_NS);
        }
        self.go_on(now, index, burst);
    }

    /// These packets are not in their extent; the viewer repairs them. They are passed over.
    pub(super) fn skip(&mut self, now: Instant, index: u32, burst: Burst) {
        self.counters.skipped += u64::from(burst.count);
        self.cold_mut(index).missing += burst.count;
        self.go_on(now, index, burst);
        self.arm(index, now);
    }

    fn go_on(&mut self, now: Instant, index: u32, burst: Burst) {
        self.want_ahead(index, burst.extent, burst.place + burst.count);
        let stream = self.stream_mut(index);
        let extent_is_done = stream.advance(burst.count);
        let run_is_done = stream.next == stream.until;
        if extent_is_done {
            let held = self.batch.lease(index, burst.extent);
            let behind = held.map(time_behind).unwrap_or_default();
            let span = held.map_or(behind, |lease| behind.since(time_of(lease, 0)));
            let grows = held.is_some_and(Lease::grows);
            let cold = self.cold_mut(index);
            cold.time_behind = behind;
            let grows = grows || is_endless(&cold.media);
            self.release(index, (burst.extent % 2) as usize);
            self.note_ask_at(index);
            if self.stream(index).rushes() && !run_is_done && !grows {
                self.want_both(index, span);
            }
        } else if !run_is_done {
            self.want_more(index);
        }
        if run_is_done {
            self.drained(index, now);
        } else {
            self.schedule(index, now);
        }
    }

    /// Asks again for an extent that grows, with its next packets, if everything readable in it is
    /// gone.
    pub(super) fn want_more(&mut self, index: u32) {
        let (stream, cold) = (&self.streams[index as usize], &mut self.cold[index as usize]);
        let Some(lease) = self.batch.lease(index, stream.extent) else { return };
        if !is_part(&cold.media, lease) || stream.place() < lease.content().packets {
            return;
        }
        let extent = stream.extent;
        cold.time_behind = time_behind(lease);
        let by = stream.pace.departure(cold.time_behind);
        self.release(index, (extent % 2) as usize);
        self.want(index, extent, by);
    }

    /// The destination refused these packets: lost, as on a bad link, unless it goes on for long.
    fn unreachable(&mut self, now: Instant, entry: &BatchEntry, burst: Burst, errno: i32) {
        let index = entry.stream.index;
        let packets = u64::from(burst.count);
        self.counters.unreachable += packets;
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        cold.unreachable += packets;
        if !stream.has(flag::UNREACHABLE) {
            stream.flags |= flag::UNREACHABLE;
            cold.unreachable_since = now;
        }
        cold.unreachable_errno = errno;
        // A group has no single receiver that could be gone: when the interface is back, all of them wait for it.
        let is_group = matches!(self.batch.rows[index as usize].dest, Dest::Multicast { .. });
        if !is_group && now.ns_since(cold.unreachable_since) >= MAX_UNREACHABLE_NS {
            self.fail(index, now, FailReason::Unreachable(errno));
        } else {
            self.gone(now, entry, burst);
        }
    }

    /// Handles the end of the run's packets: the queued run follows, or BYE when the viewer has
    /// played the media it holds back.
    pub(super) fn drained(&mut self, index: u32, now: Instant) {
        if self.stream(index).has(flag::STEPS) && self.step_on(index, now) {
            return;
        }
        if self.cold[index as usize].queued.is_some() {
            return self.cut_over(index, now);
        }
        if self.step(index, Input::LastPacket) == Ok(true) {
            self.note_time_behind(index);
            self.stop_sending(index);
            self.tell(index, pending::DRAINED);
            self.say_bye(index, now, now.plus_ns(BYE_DELAY_NS));
        }
    }

    fn report_sent(&mut self, now: Instant, entry: &BatchEntry, bye: bool, outcome: SendOutcome) {
        let index = entry.stream.index;
        let sent = outcome == SendOutcome::Sent;
        let (sent, lost) = (u64::from(sent), u64::from(!sent));
        match outcome {
            SendOutcome::Closed { errno } => self.fail(index, now, FailReason::ConnectionClosed(errno)),
            SendOutcome::Blocked { .. } if bye => return self.bye_blocked(now, index),
            // A player need not listen on its RTCP port: a refused report has no meaning for the
            // title.
            _ if bye => {
                self.stream_mut(index).report_due = NEVER;
                self.bye_sent(index);
            }
            _ => self.stream_mut(index).report_due = self.batch.taken.plus_ns(RTCP_INTERVAL_NS),
        }
        self.counters.reports += sent;
        self.counters.reports_lost += lost;
    }
}
