//! Queued runs: the run that follows without a break, and the cut between the two.

use millrace_core::ids::StreamId;
use millrace_core::seam::Want;
use millrace_core::time::Instant;

use super::Engine;
use super::commands::check;
use crate::stream::{ExtentProgress, Input, NEVER, Transition, flag, pending, spare_of};
use crate::types::{Refusal, RunCut, RunEnd, RunSpec, StopReason};

impl Engine {
    /// Command: the run that follows when the one that lasts has come to the cut, at the moment at which its next packet would
    /// have been due. A run that was queued before ends here: it is replaced.
    ///
    /// Its first extent is asked for when the run that lasts enters its last one. If that cannot be read, the queued run ends and
    /// the other one goes on to where it was going before.
    pub fn queue(&mut self, now: Instant, id: StreamId, cut: RunCut, spec: RunSpec) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        let (stream, cold) = (self.stream(index), &self.cold[index as usize]);
        if let Transition::Refuse(refusal) = stream.state.next(Input::Queue) {
            return Err(refusal);
        }
        check(&spec)?;
        let spec = spec.begin_at_first_sent();
        let until = match cut {
            RunCut::At(packet) => packet,
            RunCut::End => cold.run_until,
        };
        if spec.from == spec.until || until > cold.run_until {
            return Err(Refusal::OutOfRange);
        }
        if until < stream.next {
            return Err(Refusal::CutPassed);
        }
        if !self.ends[index as usize].has_room(1 + usize::from(cold.queued.is_some())) {
            return Err(Refusal::Busy);
        }
        self.step(index, Input::Queue)?;
        self.drop_queued(index, StopReason::Replaced);
        self.cold_mut(index).queued = Some(spec);
        self.end_at(index, until);
        let stream = self.stream(index);
        let (extent, place, is_done) = (stream.extent, stream.place(), stream.next == until);
        if self.follows(index, extent).is_none() {
            // The extent there is behind the cut.
            self.release(index, ((extent + 1) % 2) as usize);
        }
        if is_done {
            self.cut_over(index, now);
        } else {
            self.want_ahead(index, extent, place);
        }
        Ok(())
    }

    /// Drops the queued run: its end is reported, and the run that lasts goes on to its original
    /// end.
    pub(super) fn drop_queued(&mut self, index: u32, reason: StopReason) {
        let cold = self.cold_mut(index);
        let Some(spec) = cold.queued.take() else { return };
        let (slot, until, next_sequence) =
            (cold.queued_slot.take(), cold.run_until, cold.first_sequence(&spec));
        self.end_at(index, until);
        if let Some(slot) = slot {
            self.release(index, usize::from(slot));
        }
        self.ends[index as usize].push(RunEnd {
            run: spec.run,
            reason,
            next_packet: spec.from,
            next_sequence,
            bursts: 0,
            packets: 0,
            bytes: 0,
            missing: 0,
            next_due: NEVER,
        });
        self.tell(index, pending::RUN_ENDED);
    }

    /// The run that lasts has come to the cut: the queued one takes over, with its first extent if that is there.
    pub(super) fn cut_over(&mut self, index: u32, now: Instant) {
        let (mut start, _) = self.next_due(index);
        if self.stream(index).has(flag::AHEAD) {
            // The lead that it has is the lead that it keeps.
            start = start.max(now);
        }
        let Some(spec) = self.cold_mut(index).queued.take() else { return };
        // From Playing to Playing.
        let _ = self.step(index, Input::Cut);
        self.end_run(index, StopReason::Finished);
        let slot = self.cold_mut(index).queued_slot.take().map(usize::from);
        (0..2).filter(|&other| Some(other) != slot).for_each(|other| self.release(index, other));
        self.begin_run(index, start, &spec);
        self.cold_mut(index).is_continued = true;
        let stream = self.stream_mut(index);
        stream.due = NEVER;
        let extent = stream.extent;
        match slot {
            Some(slot) => self.move_slot(index, slot, (extent % 2) as usize),
            None => self.want(index, extent, start),
        }
        if self.stream(index).slots[(extent % 2) as usize] == ExtentProgress::Held {
            self.extent_is_here(index, now);
        }
        self.arm(index, now);
    }

    /// Moves the content of slot `from`, waited for or held, to slot `to`, which is idle if it is
    /// another one.
    pub(super) fn move_slot(&mut self, index: u32, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.batch.rows[index as usize].leases.swap(0, 1);
        self.cold_mut(index).wanted_by.swap(0, 1);
        let stream = self.stream_mut(index);
        stream.slots.swap(0, 1);
        if stream.has(flag::RETRIED << from) {
            stream.flags ^= flag::RETRIED << from | flag::RETRIED << to;
        }
    }

    /// The want of the queued run, if there is one to be handed out.
    pub(super) fn queued_want(&mut self, index: u32) -> Option<Want> {
        let (stream, cold) = (&mut self.streams[index as usize], &self.cold[index as usize]);
        let (spec, slot) = (cold.queued.as_ref()?, usize::from(cold.queued_slot?));
        if stream.slots[slot] != ExtentProgress::Wanted {
            return None;
        }
        stream.slots[slot] = ExtentProgress::Asked;
        stream.flags |= flag::PLAYHEAD;
        self.counters.wants += 1;
        let extent = spec.first_extent();
        Some(Want {
            stream: stream.id(index),
            run: spec.run,
            title: spec.media.title,
            extent,
            place: spec.first_place() as u16,
            by: cold.wanted_by[slot],
            spare: spare_of(&spec.media, spec.from, spec.step.map_or(spec.until, |_| 0), extent),
        })
    }
}
