//! Runs that send only a part of their title: a block of packets, then on to the next stride.
//!
//! ```text
//!   title   |████████|...............|████████|...............|████████|      block 8, stride 24
//!   sent    |████████|████████|████████|      numbers, timestamps and departures go on without a gap
//! ```
//!
//! The end of a block is to the hot path the end of a run ([`crate::stream::HotStream::until`]); what follows
//! is done here. The anchor of the pace and the base of the timestamps are moved by the media that is left
//! out, in ticks, so nothing is rounded and nothing drifts. How much that is is known when the next block's
//! extent is there: until then the run has no anchor, as one that begins.

use millrace_core::pool::Lease;
use millrace_core::time::{Instant, MediaTicks};

use super::{Engine, time_behind, time_of};
use crate::stream::{ExtentProgress, NEVER, flag};

impl Engine {
    /// Returns the next extent behind `extent` with packets that the run sends, and the place of
    /// the first such packet there.
    #[inline]
    pub(super) fn follows(&self, index: u32, extent: u32) -> Option<(u32, u32)> {
        let stream = self.stream(index);
        if stream.has(flag::STEPS) {
            return self.block_behind(index, extent);
        }
        stream.reaches(extent + 1).then_some((extent + 1, 0))
    }

    #[cold]
    fn block_behind(&self, index: u32, extent: u32) -> Option<(u32, u32)> {
        let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
        let per_extent = u32::from(stream.per_extent);
        let packet = cold.step?.first_from((extent + 1).saturating_mul(per_extent));
        (packet < cold.step_until).then_some((packet / per_extent, packet % per_extent))
    }

    /// The slot of `extent`, if it is one of the two that the run may need now.
    pub(super) fn slot_of(&self, index: u32, extent: u32) -> Option<usize> {
        let stream = self.stream(index);
        if extent == stream.extent || !stream.has(flag::STEPS) {
            return stream.slot_of(extent);
        }
        let (ahead, _) = self.follows(index, stream.extent)?;
        (extent == ahead).then_some((stream.extent as usize + 1) % 2)
    }

    /// The run ends before packet `until`, which is not behind it.
    pub(super) fn end_at(&mut self, index: u32, until: u32) {
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        cold.step_until = until;
        stream.until = cold.step.map_or(until, |step| step.block_end(stream.next).min(until));
    }

    /// About when the run has sent all of its extent, `lease`.
    #[cold]
    pub(super) fn leaves_extent_at(&self, index: u32, lease: &Lease) -> Instant {
        let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
        let Some(step) = cold.step else { return stream.pace.at };
        let behind = self
            .follows(index, stream.extent)
            .map_or(cold.step_until, |(extent, place)| stream.first_of(extent) + place);
        let left = step.count_before(behind).saturating_sub(step.count_before(stream.next));
        let last = lease.content().packets - 1;
        let ticks = time_of(lease, last).since(time_of(lease, 0)).0;
        let here = time_of(lease, stream.place().min(last)).0;
        let media = left.saturating_mul(ticks) / u64::from(last.max(1));
        self.owed(index).departure(MediaTicks(here.saturating_add(media)))
    }

    /// A block is sent: the run goes on with the next one. `false`: there is none.
    #[cold]
    pub(super) fn step_on(&mut self, index: u32, now: Instant) -> bool {
        let behind = self.time_behind_block(index);
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        let (limit, Some(step)) = (cold.step_until, cold.step) else { return false };
        if stream.next >= limit {
            return false;
        }
        let per_extent = u32::from(stream.per_extent);
        let (left, target) = ((stream.next - 1) / per_extent, step.first_from(stream.next).min(limit));
        let skipped = target - stream.next;
        stream.number(stream.timeline, stream.sequence_base.wrapping_sub(skipped as u16), &cold.media);
        cold.gap_behind = Some(behind);
        stream.flags &= !flag::ANCHORED;
        stream.seek(target);
        if target == limit {
            stream.until = limit;
            return false;
        }
        stream.until = step.block_end(target).min(limit);
        stream.due = NEVER;
        if stream.extent != left {
            self.enter_extent(index, left, behind);
        }
        // Of an extent that grows there may be too little yet.
        self.want_more(index);
        let stream = self.stream(index);
        let (extent, place) = (stream.extent, stream.place());
        if stream.slots[(extent % 2) as usize] == ExtentProgress::Held {
            self.schedule(index, now);
            self.note_ask_at(index);
            self.want_ahead(index, extent, place);
        }
        true
    }

    /// Takes the run from extent `left` to the one that followed: the extent that has been asked
    /// for lies in the other slot.
    fn enter_extent(&mut self, index: u32, left: u32, behind: MediaTicks) {
        self.release(index, (left % 2) as usize);
        let stream = self.stream(index);
        let (extent, ahead) = (stream.extent, ((left + 1) % 2) as usize);
        if stream.slots[ahead] == ExtentProgress::Idle {
            let by = stream.pace.departure(behind);
            self.want(index, extent, by);
        } else {
            self.move_slot(index, ahead, (extent % 2) as usize);
        }
    }

    /// Media time behind the last packet of a block that has just been sent; of one that ends with its extent, or with what there is of it,
    /// as if that packet were as long as the one before.
    fn time_behind_block(&self, index: u32) -> MediaTicks {
        let stream = self.stream(index);
        let place = stream.place();
        match self.batch.lease(index, stream.extent).filter(|_| place > 0) {
            Some(lease) if place < lease.content().packets => time_of(lease, place),
            Some(lease) => time_behind(lease),
            None => self.cold[index as usize].time_behind,
        }
    }
}
