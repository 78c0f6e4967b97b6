//! Commands: what the control side wants of a stream.

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::{MAX_SCALE_PERMILLE, START_READ_NS};
use millrace_core::seam::Dest;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;

use super::Engine;
use crate::stream::{Cold, Input, NEVER, Next, State, Stream, flag, pending};
use crate::types::{FailReason, PlaySpec, Refusal, StreamSpec};

impl Engine {
    /// Command: a new viewer. Nothing is sent before `play`.
    pub fn open(&mut self, _now: Instant, spec: StreamSpec) -> Result<(), Refusal> {
        let index = spec.id.index;
        let stream = self.streams.get_mut(index as usize).ok_or(Refusal::TableFull)?;
        if let Next::Refuse(refusal) = stream.state.next(Input::Open) {
            return Err(refusal);
        }
        *stream = Stream::opened(&spec);
        self.cold[index as usize] = Cold::new();
        self.batch.rows[index as usize].dest = spec.dest;
        self.counters.open += 1;
        self.step(index, Input::Open).map(|_| ())
    }

    /// Command: play from a packet to a packet, for the first time, after a pause, or after the end. The extent of
    /// `from` is wanted at once.
    ///
    /// `from == until` is a run without packets: it goes to its end, and to BYE, when its time comes. That is what a
    /// viewer gets who paused behind the last packet and goes on.
    pub fn play(&mut self, now: Instant, id: StreamId, spec: PlaySpec) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        let stream = self.stream_mut(index);
        if let Next::Refuse(refusal) = stream.state.next(Input::Play) {
            return Err(refusal);
        }
        let in_title = spec.from <= spec.until && spec.until <= stream.total_packets;
        if !in_title || !(1..=MAX_SCALE_PERMILLE).contains(&spec.scale_permille) {
            return Err(Refusal::OutOfRange);
        }
        let at = spec.at.max(now);
        stream.seek(spec.from);
        stream.until = spec.until;
        stream.sequence_base = spec.sequence.wrapping_sub(sequence_of(spec.from));
        stream.flags &= !(flag::ANCHORED | flag::PATCHED);
        if stream.sequence_base != 0 {
            stream.flags |= flag::PATCHED;
        }
        stream.pace.at = at;
        stream.pace.scale_permille = spec.scale_permille;
        // What has just left of another run may still lie in the player's buffer.
        stream.last = stream.last.of_earlier_run();
        stream.report_due = NEVER;
        // What has not been told yet and is no longer true is not told any more.
        stream.events &= !(pending::DRAINED | pending::ENDED | pending::LEFT);
        stream.due = if spec.from == spec.until { at } else { NEVER };
        self.cold_mut(index).run_from = spec.from;
        if spec.from < spec.until {
            let extent = self.stream(index).extent;
            // A run that begins at once has missed nothing yet: viewers who are played to come first for a moment.
            self.want(index, extent, at.max(now.plus_ns(START_READ_NS)));
        }
        self.arm(index, now);
        self.step(index, Input::Play).map(|_| ())
    }

    /// Command: stop sending, here and now. Answered by [`crate::StreamEvent::Paused`]; by nothing if the stream has ended
    /// or failed meanwhile, which has been told. Leases go back: a paused viewer holds no memory.
    pub fn pause(&mut self, now: Instant, id: StreamId) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        if self.step(index, Input::Pause)? {
            self.stop_sending(index);
            let stream = self.stream_mut(index);
            stream.events &= !pending::DRAINED;
            let (next, sequence) = (stream.next, stream.sequence(stream.next));
            let cold = self.cold_mut(index);
            (cold.paused_packet, cold.paused_sequence) = (next, sequence);
            self.tell(index, pending::PAUSED);
        }
        Ok(())
    }

    /// Command: forget the stream, whatever it is doing, without BYE: the viewer asked for it. Answered by
    /// [`crate::StreamEvent::Closed`].
    pub fn close(&mut self, now: Instant, id: StreamId) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        if self.step(index, Input::Close)? {
            self.stop_sending(index);
            self.counters.open -= 1;
            self.tell(index, pending::CLOSED);
        }
        Ok(())
    }

    /// Command: the connection is gone, for good. Every stream on it fails. Walks the stream table.
    pub fn conn_gone(&mut self, now: Instant, conn: ConnId) {
        self.abandon_batch(now);
        for index in 0..self.streams.len() as u32 {
            let on_it =
                matches!(self.batch.rows[index as usize].dest, Dest::Tcp { conn: c, .. } if c == conn);
            if on_it && self.stream(index).state != State::Free {
                self.fail(index, now, FailReason::ConnectionClosed(0));
            }
        }
    }

    /// Command: the server shuts down. Every viewer that has been sent something, or waits to be, gets its BYE now and then
    /// [`crate::StreamEvent::Ended`]. Walks the stream table.
    pub fn finish(&mut self, now: Instant) {
        self.abandon_batch(now);
        for index in 0..self.streams.len() as u32 {
            if self.step(index, Input::Finish) == Ok(true) {
                self.stop_sending(index);
                self.say_bye(index, now, now);
            }
        }
    }

    /// Nothing but BYE is left to be sent, at `due`; a quiet stream ends without.
    pub(super) fn say_bye(&mut self, index: u32, now: Instant, due: Instant) {
        if self.stream(index).has(flag::QUIET) {
            if self.step(index, Input::ByeSent) == Ok(true) {
                self.tell(index, pending::ENDED);
            }
            return;
        }
        self.stream_mut(index).report_due = due;
        self.cold_mut(index).bye_due = due;
        self.arm(index, now);
    }
}
