//! Commands: the requests of the control side to a stream.

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::MAX_SCALE_PERMILLE;
use millrace_core::time::Instant;

use super::Engine;
use super::ahead::check_ahead;
use crate::limits::START_READ_NS;
use crate::stream::{Cold, HotStream, Input, Transition, flag, pending};
use crate::types::{FailReason, Numbering, Refusal, RunSpec, Start, StopReason, StreamSpec};

impl Engine {
    /// Command: a new viewer. Nothing is sent before `play`.
    pub fn open(&mut self, _now: Instant, spec: StreamSpec) -> Result<(), Refusal> {
        let index = spec.id.index;
        let stream = self.streams.get_mut(index as usize).ok_or(Refusal::TableFull)?;
        if let Transition::Refuse(refusal) = stream.state.next(Input::Open) {
            return Err(refusal);
        }
        *stream = HotStream::opened(&spec);
        self.cold[index as usize] = Cold { once: spec.once, ..Cold::new() };
        self.held.reset(index);
        self.batch.rows[index as usize].dest = spec.dest;
        if let Some(conn) = spec.dest.conn() {
            self.conns.insert(conn, index);
        }
        self.counters.open += 1;
        self.step(index, Input::Open).map(|_| ())
    }

    /// Command: a run that begins at `start`, or as soon as its first extent has been read. A run that lasts ends here and now. The
    /// extent of `from` is wanted at once. A moment that has passed counts as now, but for a quiet stream: that keeps the
    /// schedule of another one.
    ///
    /// `from == until` is a run without packets: it goes to its end, and to BYE, when its time
    /// comes. A viewer that paused behind the last packet and goes on gets such a run.
    pub fn play(
        &mut self,
        now: Instant,
        id: StreamId,
        start: impl Into<Start>,
        spec: RunSpec,
    ) -> Result<(), Refusal> {
        let Start { at, ahead_ms } = start.into();
        self.abandon_batch(now);
        let index = self.find(id)?;
        let stream = self.stream(index);
        if let Transition::Refuse(refusal) = stream.state.next(Input::Play) {
            return Err(refusal);
        }
        check(&spec)?;
        check_ahead(ahead_ms)?;
        let spec = spec.begin_at_first_sent();
        let has_queued = self.cold[index as usize].queued.is_some();
        if !self.ends[index as usize].has_room(usize::from(stream.is_running) + usize::from(has_queued)) {
            return Err(Refusal::Busy);
        }
        let at = if stream.has(flag::FOLLOWS) { at } else { at.max(now) };
        self.end_run(index, StopReason::Replaced);
        self.stop_sending(index);
        self.begin_run(index, at, &spec);
        self.begin_ahead(index, ahead_ms);
        let stream = self.stream_mut(index);
        // Packets of another run that have just left may still lie in the player's buffer.
        stream.last = stream.last.of_earlier_run();
        if spec.from < spec.until {
            let extent = stream.extent;
            // A run that begins at once has missed nothing yet: viewers who are played to come first for a moment.
            self.want(index, extent, at.max(now.plus_ns(START_READ_NS)));
        } else {
            (stream.due, stream.may_lead) = (at, false);
        }
        self.arm(index, now);
        self.step(index, Input::Play).map(|_| ())
    }

    /// The stream's run is this one from here on.
    pub(super) fn begin_run(&mut self, index: u32, at: Instant, spec: &RunSpec) {
        let (stream, cold) = (&mut self.streams[index as usize], &mut self.cold[index as usize]);
        let (timeline, sequence_base) = cold.begin(spec, stream);
        stream.run = spec.run;
        stream.is_running = true;
        stream.bursts = 0;
        // An extent of the smallest packets has some 1,200.
        stream.per_extent = spec.media.layout.packets_per_extent() as u16;
        stream.seek(spec.from);
        stream.flags &= !(flag::ANCHORED | flag::BLOCKED | flag::AHEAD | flag::STEPS);
        stream.flags |= if spec.step.is_some() { flag::STEPS } else { 0 };
        if stream.has(flag::PARKED) {
            stream.flags ^= flag::PARKED | flag::RESUMED;
        }
        // The playhead moves.
        stream.events &= !pending::LEFT;
        stream.number(timeline, sequence_base, &cold.media);
        stream.pace.at = at;
        stream.pace.scale_permille = spec.scale_permille.into();
        self.end_at(index, spec.until);
    }

    /// Command: end the run, here and now. Only this end is reported; nothing at all if it has
    /// ended before. Leases go back: a paused viewer holds no memory.
    pub fn pause(&mut self, now: Instant, id: StreamId) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        if self.step(index, Input::Pause)? {
            self.end_run(index, StopReason::Paused);
            self.stop_sending(index);
        }
        Ok(())
    }

    /// Command: forget the stream, whatever it is doing, without BYE: the viewer asked for it.
    /// Answered by [`crate::StreamEvent::Closed`], after the end of its run, and when the device is
    /// done with the data it was lent.
    pub fn close(&mut self, now: Instant, id: StreamId) -> Result<(), Refusal> {
        self.abandon_batch(now);
        let index = self.find(id)?;
        if self.step(index, Input::Close)? {
            self.end_run(index, StopReason::Closed);
            self.stop_sending(index);
            self.counters.open -= 1;
            self.forget(index);
        }
        Ok(())
    }

    /// What follows the end of a stream's only run ([`StreamSpec::once`]), which has been sent whole: closes the stream; returns
    /// the connection, to be given back. `None`: the stream has more runs, or has gone.
    pub fn retire(&mut self, now: Instant, id: StreamId) -> Option<ConnId> {
        let index = self.find(id).ok().filter(|&index| self.cold[index as usize].once)?;
        let conn = self.batch.rows[index as usize].dest.conn();
        self.close(now, id).ok()?;
        conn
    }

    /// Command: the connection is given back alive. Every stream on it fails; the data that the
    /// device still has to deliver there stays lent ([`Engine::handle_done`]).
    pub fn conn_leaves(&mut self, now: Instant, conn: ConnId) {
        self.abandon_batch(now);
        let mut next = self.conns.first(conn);
        while let Some(index) = next {
            self.fail(index, now, FailReason::ConnectionClosed(0));
            next = self.conns.behind(index);
        }
    }

    /// Command: the connection is gone, for good. Every stream on it fails, and the data sent there
    /// is not read any more.
    pub fn conn_gone(&mut self, now: Instant, conn: ConnId) {
        self.conn_leaves(now, conn);
        let mut next = self.conns.first(conn);
        while let Some(index) = next {
            next = self.conns.behind(index);
            self.give_all_back(now, index);
        }
    }

    /// Command: the server shuts down. Every viewer that has received or awaits media gets its BYE
    /// now; a run that lasts ends with it. Walks the stream table.
    pub fn finish(&mut self, now: Instant) {
        self.abandon_batch(now);
        for index in 0..self.streams.len() as u32 {
            if self.step(index, Input::Finish) == Ok(true) {
                self.note_time_behind(index);
                self.drop_queued(index, StopReason::ShutDown);
                self.stop_sending(index);
                self.say_bye(index, now, now);
            }
        }
    }

    /// Nothing but BYE is left to be sent, at `due`; a quiet stream ends without.
    pub(super) fn say_bye(&mut self, index: u32, now: Instant, due: Instant) {
        if self.stream(index).has(flag::QUIET) {
            return self.bye_sent(index);
        }
        self.stream_mut(index).report_due = due;
        self.cold_mut(index).bye_due = due;
        self.arm(index, now);
    }

    /// The viewer knows that it is over.
    pub(super) fn bye_sent(&mut self, index: u32) {
        if self.step(index, Input::ByeSent) == Ok(true) {
            let stream = self.stream(index);
            let is_whole = stream.next == stream.until;
            self.end_run(index, if is_whole { StopReason::Finished } else { StopReason::ShutDown });
        }
    }

    /// Leases are about to go back, but the run lasts until BYE has been sent: when its next packet would be due is kept.
    pub(super) fn note_time_behind(&mut self, index: u32) {
        if let (_, Some(time)) = self.next_due(index) {
            self.cold_mut(index).time_behind = time;
        }
    }
}

/// Whether a run lies within its title.
pub(super) fn check(spec: &RunSpec) -> Result<(), Refusal> {
    let in_title = spec.from <= spec.until && spec.until <= spec.media.packets;
    let is_good = in_title && has_bytes(spec) && (1..=MAX_SCALE_PERMILLE).contains(&spec.scale_permille);
    if is_good { Ok(()) } else { Err(Refusal::OutOfRange) }
}

/// Whether a range of bytes, if it is one, leaves nothing out, begins in its first packet, ends in its last, and has a byte where it has a packet.
fn has_bytes(spec: &RunSpec) -> bool {
    let Numbering::Bytes { head, last } = spec.numbering else { return true };
    if spec.step.is_some() {
        return false;
    }
    let whole = spec.media.layout.packet_bytes() as u16;
    let last = if last == 0 { whole } else { last };
    head < whole && last <= whole && (spec.until - spec.from != 1 || head < last)
}
