//! What the engines say.

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::time::Instant;
use millrace_offload::command::{Event, FailReason, Refusal, RunEnd, StopReason, StreamEvent};

use super::notice::{Notice, Totals};
use super::server::{Server, SessionKey};
use super::state::{EndReason, Media, Path};

impl Server {
    /// One event. The buffer in [`Event::Recycle`] is dropped here: callers that reuse it take it out first.
    pub fn handle_engine_event(&mut self, now: Instant, engine: usize, event: Event) {
        if engine >= self.slots.len() {
            return;
        }
        match event {
            Event::Stream(event) => self.stream_event(now, engine, event),
            Event::Refused { stream, run, refusal } => self.refused(now, engine, stream, run, refusal),
            Event::ConnGone { conn, .. } => self.engine_lost_conn(now, engine, conn),
            Event::ConnRemoved { conn, .. } => self.slots[engine].give_back_conn(conn),
            Event::Recycle { .. } => {}
        }
    }

    fn stream_event(&mut self, now: Instant, engine: usize, event: StreamEvent) {
        let stream = event.stream();
        if let StreamEvent::Closed { packets, bytes, unreachable, late, .. } = event {
            let totals = Totals { packets, bytes, unreachable, late };
            return self.stream_closed(engine, stream, Some(totals));
        }
        let Some(&key) = self.by_stream.get(&(engine, stream)) else { return };
        if self.is_companion(key, stream) {
            // It is told what to do and when; only that it cannot is news.
            if let StreamEvent::Failed { reason, .. } = event {
                self.companion_failed(now, key, reason.to_string());
            }
            return;
        }
        match event {
            StreamEvent::RunEnded { end, .. } => self.run_ended(now, key, end),
            StreamEvent::Failed { reason, .. } => self.stream_failed(now, key, reason),
            StreamEvent::RunBegan { run, at, .. } => self.run_began(key, run, at),
            StreamEvent::Drained { .. } | StreamEvent::Left { .. } | StreamEvent::Closed { .. } => {}
        }
    }

    fn is_companion(&self, key: SessionKey, stream: StreamId) -> bool {
        self.sessions.get(&key).is_some_and(|session| session.stream != stream)
    }

    /// The run's first packet leaves at `at`: FEC follows that, and the position is counted from there.
    fn run_began(&mut self, key: SessionKey, serial: RunSerial, at: Instant) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Media::Running(run) = &mut session.media
            && run.serial == serial
        {
            run.at = at;
            self.play_companions(key, at);
        }
    }

    /// The stream stands still: paused, or played to the end.
    fn run_ended(&mut self, now: Instant, key: SessionKey, end: RunEnd) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let (Media::Running(run) | Media::Pausing(run)) = session.media else { return };
        if run.serial != end.run {
            if matches!(end.reason, StopReason::Failed(_)) {
                self.switch_missed(key, end.run);
            }
            return;
        }
        if end.reason == StopReason::Finished && self.switched(key, end.next_due) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let (next_packet, next_sequence, stop) = (end.next_packet, end.next_sequence, run.stop);
        match end.reason {
            StopReason::Paused => session.media = Media::Paused { next_packet, next_sequence, stop },
            StopReason::Finished | StopReason::ShutDown => {
                session.media = Media::Ended { next_sequence, stop };
                let (short, title) = (session.short_id(), session.entry.name.clone());
                self.counters.titles_finished += 1;
                self.notice(Notice::Finished { session: short, title });
            }
            // Another run follows, or the end of the stream does.
            StopReason::Replaced | StopReason::Closed | StopReason::Failed(_) => return,
        }
        if let Some(session) = self.sessions.get_mut(&key) {
            session.idle_since = now;
        }
        self.finish_switch(now, key);
        self.go_on(now, key);
    }

    /// Carries out the PLAY that has been waiting for the stream to stand still.
    fn go_on(&mut self, now: Instant, key: SessionKey) {
        let Some(pending) = self.sessions.get_mut(&key).and_then(|session| session.pending.take()) else {
            return;
        };
        let listening = self.conns.contains_key(&pending.conn);
        let to = listening.then_some((pending.conn, &pending.head));
        let reply = self.start(now, key, pending.plan, to);
        if let Some(reply) = reply.filter(|_| listening) {
            self.reply(now, pending.conn, &pending.head, &reply);
        }
        self.stop_waiting(pending.conn);
    }

    fn stream_failed(&mut self, now: Instant, key: SessionKey, reason: FailReason) {
        let Some(session) = self.sessions.get(&key) else { return };
        let owner = session.owner;
        let end = match reason {
            FailReason::ConnectionClosed(_) => EndReason::Disconnected,
            _ => EndReason::Failed(reason),
        };
        self.end_session(now, key, end);
        // Without BYE a player waits for ever; that its connection closes is what it notices, if nothing else uses it.
        if let Some(owner) = owner
            && self.conns.get(&owner).is_some_and(|conn| conn.sessions.is_empty())
        {
            self.close(owner);
        }
    }

    fn stream_closed(&mut self, engine: usize, stream: StreamId, totals: Option<Totals>) {
        let Some(closing) = self.closing.remove(&(engine, stream)) else { return };
        self.library.close(closing.title);
        self.slots[engine].give_back_stream(stream);
        if let Some(mut notice) = closing.ended {
            if let Notice::Ended { totals: known, .. } = &mut notice {
                *known = totals;
            }
            self.notice(notice);
        }
    }

    fn refused(
        &mut self,
        now: Instant,
        engine: usize,
        stream: StreamId,
        run: Option<RunSerial>,
        refusal: Refusal,
    ) {
        if let Some(&key) = self.by_stream.get(&(engine, stream)) {
            if run.is_some_and(|run| self.switch_missed(key, run)) {
                return;
            }
            if self.is_companion(key, stream) {
                return self.companion_failed(now, key, format!("the engine refused it: {refusal}"));
            }
            self.end_session(now, key, EndReason::Refused(refusal));
        } else if refusal == Refusal::UnknownStream {
            // The engine never had it (its Open was refused): there will be no Closed.
            self.stream_closed(engine, stream, Some(Totals::default()));
        }
    }

    /// The engine's thread has ended: what it still had will never be closed by it.
    pub fn engine_gone(&mut self, now: Instant, engine: usize) {
        let sessions: Vec<_> = self
            .sessions
            .values()
            .filter(|session| session.engine == engine)
            .map(|session| session.key)
            .collect();
        for key in sessions {
            self.end_session(now, key, EndReason::Shutdown);
        }
        let streams: Vec<_> = self.closing.keys().filter(|key| key.0 == engine).copied().collect();
        for (engine, stream) in streams {
            self.stream_closed(engine, stream, None);
        }
    }

    /// The connection broke under the engine's writes.
    fn engine_lost_conn(&mut self, now: Instant, engine: usize, conn: ConnId) {
        let found = self.conns.iter().find(|(_, state)| state.attached == Some((engine, conn)));
        let Some((&key, state)) = found else { return };
        for session in state.sessions.clone() {
            let path = self.sessions.get(&session).map(|session| session.path);
            if matches!(path, Some(Path::Tcp { conn, .. }) if conn == key) {
                self.end_session(now, session, EndReason::Disconnected);
            }
        }
        self.close(key);
    }
}
