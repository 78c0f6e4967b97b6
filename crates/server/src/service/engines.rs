//! Events of the engines.

use std::net::SocketAddr;

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::time::Instant;
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command::{self, Command, FailReason, RunEnd, StopReason, StreamEvent};

use super::event::ServiceEvent;
use super::keys::{StreamKey, StreamPath};
use super::queued::Missed;
use super::run::{DeliveryState, QueuedChange};
use super::state::Service;
use super::stream::{EndReason, Totals};
use super::streams::Closing;

impl Service {
    /// One event. The buffer in [`command::Event::Recycle`] is dropped here: callers that reuse it take it out first.
    pub fn engine_event(&mut self, now: Instant, engine: usize, event: command::Event) {
        if engine >= self.slots.len() {
            return;
        }
        match event {
            command::Event::Stream(event) => self.stream_event(now, engine, event),
            command::Event::Refused { stream, run, refusal } => {
                self.refused(now, engine, stream, run, refusal);
            }
            command::Event::Backlog { stream, backlog_bytes, behind_ns } => {
                self.note_backlog(now, engine, stream, backlog_bytes, behind_ns);
            }
            command::Event::GroupState { stream, errno } => {
                if let Some(key) = self.streams.key_at(engine, stream) {
                    self.note_group_state(key, errno);
                }
            }
            command::Event::ConnGone { conn, .. } => self.engine_lost_conn(now, engine, conn),
            command::Event::ConnRemoved { conn, .. } => self.slots.give_back_conn(engine, conn),
            command::Event::ConnReturned { conn, socket } => {
                self.conn_returned(now, engine, conn, socket.is_some());
            }
            command::Event::Recycle { .. } => {}
        }
    }

    fn stream_event(&mut self, now: Instant, engine: usize, event: StreamEvent) {
        let place = event.stream();
        if let StreamEvent::RunEnded { end, .. } = event {
            self.tell_sent(engine, place, &end);
        }
        if let StreamEvent::Closed { packets, bytes, unreachable, late, .. } = event {
            let totals = Totals { packets, bytes, unreachable, late };
            return self.place_closed(engine, place, Some(totals));
        }
        let Some(key) = self.streams.key_at(engine, place) else { return };
        if self.is_companion(key, place) {
            // It follows commands; only its failure is news.
            if let StreamEvent::Failed { reason, .. } = event {
                self.companion_failed(now, key, reason.to_string());
            }
            return;
        }
        match event {
            StreamEvent::RunEnded { end, .. } => self.run_ended(now, key, end),
            StreamEvent::Failed { reason, .. } => {
                self.note_unread(now, key, reason);
                let end = match reason {
                    FailReason::ConnectionClosed(_) => EndReason::Disconnected,
                    _ => EndReason::Failed(reason),
                };
                self.close(now, key, end);
            }
            StreamEvent::RunBegan { run, at, .. } => self.run_began(key, run, at),
            StreamEvent::Drained { run, .. } => self.run_drained(key, run),
            StreamEvent::Left { .. } | StreamEvent::Closed { .. } => {}
        }
    }

    /// Asks the engine how much of a stream its viewer has not received
    /// ([`super::PlaybackStream::backlog_bytes`]): it answers within a turn of its loop. Nothing is asked
    /// for streams that go through no connection, but for casts, whose packets may be refused.
    pub fn measure(&mut self, key: StreamKey) {
        let is_asked =
            |path: StreamPath| path.conn().is_some() || matches!(path, StreamPath::Multicast { .. });
        let Some(stream) = self.streams.get(&key).filter(|stream| is_asked(stream.path)) else { return };
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Measure { stream: place });
    }

    /// Records a viewer's report on a stream.
    pub fn note_report(&mut self, now: Instant, key: StreamKey, report: ReportBlock) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.report = Some(report);
            stream.hear_report(now, report.fraction_lost);
        }
    }

    /// Of a stream, or of one that is about to be forgotten.
    fn note_backlog(&mut self, now: Instant, engine: usize, place: StreamId, bytes: u64, behind_ns: u64) {
        if let Some(stream) = self.streams.at_place_mut(engine, place) {
            stream.backlog_bytes = Some(bytes);
            stream.hear_backlog(now, bytes, behind_ns);
        } else if let Some(Closing { ended: Some(ServiceEvent::Closed { backlog_bytes, .. }), .. }) =
            self.streams.closing_mut(engine, place)
        {
            *backlog_bytes = Some(bytes);
        }
    }

    /// Reports the data that a run has sent for its title, also when its stream is over.
    fn tell_sent(&mut self, engine: usize, place: StreamId, end: &RunEnd) {
        if end.packets == 0 && end.missing == 0 {
            return;
        }
        let title = match self.streams.at_place(engine, place) {
            Some(stream) => (stream.place == place).then(|| stream.entry.name.clone()),
            None => self.streams.closing(engine, place).and_then(|closing| closing.name.clone()),
        };
        let Some(title) = title else { return };
        let (packets, missing) = (end.packets.into(), end.missing.into());
        self.tell(ServiceEvent::Sent { title, packets, bytes: end.bytes, missing });
    }

    fn is_companion(&self, key: StreamKey, place: StreamId) -> bool {
        self.streams.get(&key).is_some_and(|stream| stream.place != place)
    }

    /// The run's first packet leaves at `at`: FEC follows that, and the position is counted from there.
    fn run_began(&mut self, key: StreamKey, serial: RunSerial, at: Instant) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if let DeliveryState::Running(run) = &mut stream.media
            && run.serial == serial
        {
            run.at = at;
            self.play_companions(key, at);
        }
    }

    /// The last packet is out. A run backwards has come to where the title begins, not to its end: the stream pauses before BYE is sent.
    fn run_drained(&mut self, key: StreamKey, serial: RunSerial) {
        let Some(stream) = self.streams.get(&key) else { return };
        if let DeliveryState::Running(run) = stream.media
            && run.serial == serial
            && stream.scale.is_reverse()
            && stream.ending.is_none()
        {
            // It is there.
            let _ = self.pause(key);
        }
    }

    /// The stream stands still: paused, or played to the end.
    fn run_ended(&mut self, now: Instant, key: StreamKey, end: RunEnd) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let (DeliveryState::Running(run) | DeliveryState::Pausing(run)) = stream.media else { return };
        if run.serial != end.run {
            if let StopReason::Failed(reason) = end.reason {
                self.queued_missed(now, key, end.run, Missed::Failed(reason));
            }
            return;
        }
        if let Some(reason) = stream.ending {
            return self.close(now, key, reason);
        }
        if end.reason == StopReason::Finished && self.taken_over(now, key, &end) {
            return;
        }
        let Some(stream) = self.streams.get_mut(&key) else { return };
        // The queued run ends with it; its purpose is requested again, or left until the stream
        // plays.
        stream.queued.take_if(|queued| queued.next != QueuedChange::Fec);
        let (next_packet, next_sequence, stop) = (end.next_packet, end.next_sequence, run.stop);
        match end.reason {
            StopReason::Paused => stream.media = DeliveryState::Paused { next_packet, next_sequence, stop },
            StopReason::Finished | StopReason::ShutDown => {
                stream.media = DeliveryState::Ended { next_sequence, stop };
                if let StreamPath::Bytes { conn } = stream.path {
                    if end.reason == StopReason::Finished {
                        self.tell(ServiceEvent::BytesSent { conn });
                        return self.close_sent(now, key);
                    }
                    return self.close(now, key, EndReason::Shutdown);
                }
                let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
                self.tell(ServiceEvent::Finished { session, title });
            }
            // Another run follows, or the end of the stream does.
            StopReason::Replaced | StopReason::Closed | StopReason::Failed(_) => return,
        }
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.idle_since = now;
        }
        self.finish_move(now, key);
        self.finish_switch(now, key);
        self.go_on(now, key);
    }

    /// Carries out the request that has been waiting for the stream to stand still, and for its
    /// connection to have an engine.
    pub(super) fn go_on(&mut self, now: Instant, key: StreamKey) {
        if self.streams.get(&key).is_some_and(|stream| self.is_being_moved(stream.path)) {
            return;
        }
        let pending = self.streams.get_mut(&key).and_then(|stream| stream.pending.take());
        if let Some(pending) = pending
            && let Err(refusal) = self.start(now, key, pending.plan)
        {
            self.tell(ServiceEvent::PlayRefused { stream: key, refusal });
        }
    }

    fn refused(
        &mut self,
        now: Instant,
        engine: usize,
        place: StreamId,
        run: Option<RunSerial>,
        refusal: command::Refusal,
    ) {
        if let Some(key) = self.streams.key_at(engine, place) {
            let missed =
                if refusal == command::Refusal::CutPassed { Missed::Passed } else { Missed::Refused };
            if run.is_some_and(|run| self.queued_missed(now, key, run, missed)) {
                return;
            }
            if self.is_companion(key, place) {
                return self.companion_failed(now, key, format!("the engine refused it: {refusal}"));
            }
            self.close(now, key, EndReason::Refused(refusal));
        } else if refusal == command::Refusal::UnknownStream {
            // The engine never had it (its Open was refused): there will be no Closed.
            self.place_closed(engine, place, Some(Totals::default()));
        }
    }

    /// Handles an ICMP report that this address cannot be reached. The engines that send there are
    /// notified, if any does.
    pub fn unreachable(&mut self, dest: SocketAddr, errno: i32) {
        let streams = self.at_port(dest.ip(), dest.port()).iter().filter_map(|key| self.streams.get(key));
        let mut engines: Vec<_> = streams.map(|stream| stream.engine).collect();
        engines.sort_unstable();
        engines.dedup();
        for engine in engines {
            self.command(engine, Command::Unreachable { dest, errno });
        }
    }

    /// Handles the end of the engine's thread, which will never close its remaining streams.
    pub fn engine_gone(&mut self, now: Instant, engine: usize) {
        let streams: Vec<_> = self.streams.of_engine(engine).map(|stream| stream.key).collect();
        for key in streams {
            self.close(now, key, EndReason::Shutdown);
        }
        for place in self.streams.closing_in(engine) {
            self.place_closed(engine, place, None);
        }
        self.lose_conns_of(now, engine);
    }
}
