//! How streams end, and what ends by time.

use millrace_core::ids::StreamId;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{Command, Numbering, RunSpec};

use super::event::ServiceEvent;
use super::keys::{StreamKey, StreamPath, ports_of};
use super::listeners::{CastNotice, Listener};
use super::run::{ActiveRun, DeliveryState};
use super::speed::Speed;
use super::state::Service;
use super::stream::{EndReason, PlaybackStream, Totals};
use super::streams::Closing;
use crate::limits::ENGINE_ANSWER_TIMEOUT_NS;

impl Service {
    /// Ends the stream: its name is forgotten now, its place when the engine has let go. If the
    /// service was about to end it, that reason is reported: a player that gets BYE may come first
    /// with its TEARDOWN.
    pub fn close(&mut self, now: Instant, key: StreamKey, reason: EndReason) {
        if self.end_listener(now, key, reason) {
            return;
        }
        let reason = self.streams.get(&key).and_then(|stream| stream.ending).unwrap_or(reason);
        self.retire_stream(now, key, Some(reason));
        self.forget_stream(now, key, reason);
    }

    /// All bytes of a stream have been sent: its engine closes it by itself, and gives the connection back
    /// ([`Command::Open`]).
    pub(super) fn close_sent(&mut self, now: Instant, key: StreamKey) {
        self.begin_closing(now, key, Some(EndReason::Sent));
        self.forget_stream(now, key, EndReason::Sent);
    }

    fn forget_stream(&mut self, now: Instant, key: StreamKey, reason: EndReason) {
        self.release_reservation(key);
        let Some(stream) = self.streams.remove(key) else { return };
        self.slots.dismiss(stream.engine, stream.demand());
        self.usage.remove_session(stream.viewer.ip());
        self.disown(key, stream.owner);
        let is_bytes = matches!(stream.path, StreamPath::Bytes { .. });
        if let Some(number) = stream.fetcher {
            self.fetchers.end_segment(now, number, false, reason == EndReason::Sent);
        }
        match stream.path {
            StreamPath::Multicast { .. } => self.cast_ended(now, key, reason),
            _ => self.tell(ServiceEvent::Ended { stream: key, is_bytes, conn: stream.owner, reason }),
        }
        // It may have been the last one that the others of its connection waited for.
        self.finish_conn_move(now, stream.path);
    }

    /// Tells the engine to forget the stream's place and those of its FEC.
    pub(super) fn retire_stream(&mut self, now: Instant, key: StreamKey, reason: Option<EndReason>) {
        let Some((engine, place)) = self.begin_closing(now, key, reason) else { return };
        self.command(engine, Command::Close { stream: place });
    }

    /// Marks the stream as closing; it keeps its place until the engine has released it.
    fn begin_closing(
        &mut self,
        now: Instant,
        key: StreamKey,
        reason: Option<EndReason>,
    ) -> Option<(usize, StreamId)> {
        self.retire_companions(key);
        self.release_tracks(key);
        let stream = self.streams.get(&key)?;
        let (engine, place, ip) = (stream.engine, stream.place, stream.viewer.ip());
        let ended = reason.map(|reason| ended(stream, now, reason));
        let made = stream.made.iter().map(|made| made.title).collect();
        let closing = Closing { title: stream.title, made, name: Some(stream.entry.name.clone()), ended };
        for port in ports_of(stream.path) {
            self.streams.forget_port(key, ip, port);
        }
        self.streams.begin_closing(engine, place, closing);
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.made.clear();
        }
        Some((engine, place))
    }

    /// The engine has let go of a place.
    pub(super) fn place_closed(&mut self, engine: usize, place: StreamId, sent: Option<Totals>) {
        let Some(closing) = self.streams.end_closing(engine, place) else { return };
        self.titles.library.close(closing.title);
        closing.made.into_iter().for_each(|title| self.titles.library.close(title));
        self.slots.give_back_stream(engine, place);
        if let Some(mut event) = closing.ended {
            if let ServiceEvent::Closed { totals, .. }
            | ServiceEvent::Delivered { totals, .. }
            | ServiceEvent::Cast(CastNotice::Ended { totals, .. }) = &mut event
            {
                *totals = sent;
            }
            self.tell(event);
        }
    }

    /// Ends the newest `count` streams of an engine that play: each viewer is sent BYE, and its
    /// stream ends with it. Returns how many there were. Their reservations are given back at once.
    pub fn end_newest(&mut self, now: Instant, engine: usize, count: usize) -> usize {
        let newest = self.streams.newest(engine);
        let newest: Vec<_> = newest.into_iter().take(count).map(|stream| stream.key).collect();
        for &key in &newest {
            self.end_with_bye(now, key, EndReason::Overloaded);
        }
        newest.len()
    }

    /// A run without packets has nothing but its BYE. The stream ends when that is out.
    fn end_with_bye(&mut self, now: Instant, key: StreamKey, reason: EndReason) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if let StreamPath::Bytes { .. } = stream.path {
            let fetcher = stream.fetcher;
            // There is no BYE among bytes: that they end early has to be seen.
            self.close(now, key, reason);
            // Who fetches them would come for the next at once, and keep its place.
            return fetcher.into_iter().for_each(|number| self.end_fetcher(now, number, reason));
        }
        let DeliveryState::Running(ActiveRun { stop, .. }) = stream.media else { return };
        let run = RunSpec {
            run: stream.next_run(),
            media: stream.run_media(),
            from: stop.packet,
            until: stop.packet,
            numbering: Numbering::Title,
            scale_permille: 1000,
            step: None,
        };
        let run_now = ActiveRun {
            serial: run.run,
            from: run.from,
            sequence: sequence_of(run.from),
            from_time: Some(stop.time),
            at: now,
            due: Instant(0),
            stop,
            speed: Speed::NORMAL,
            ahead_ms: 0,
        };
        stream.media = DeliveryState::Running(run_now);
        (stream.ending, stream.queued) = (Some(reason), None);
        let (engine, place) = (stream.engine, stream.place);
        self.command(engine, Command::Play { stream: place, at: now, ahead_ms: 0, run });
        self.pause_companions(key);
        self.release_reservation(key);
    }

    /// Checks for overdue work. Call it about once a second.
    pub fn tick(&mut self, now: Instant) {
        let mut late: Vec<_> = self
            .streams
            .values()
            .filter(|s| s.pending.as_ref().is_some_and(|p| now.ns_since(p.since) > ENGINE_ANSWER_TIMEOUT_NS))
            .map(|stream| stream.key)
            .collect();
        late.sort_unstable();
        for key in late {
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            stream.pending = None;
            let session = stream.label.to_string();
            self.tell(ServiceEvent::EngineSilent { stream: key, session });
        }
        self.release_long_paused(now);
        self.end_fetchers(now);
        self.tick_casts(now);
        self.adapt_all(now);
    }

    /// Begins the shutdown: no more connections and streams. Returns how many viewers have been
    /// sent something, so that their players wait for more or for BYE: stop their engines first
    /// ([`Command::Stop`] sends BYE), and call [`Service::shut_down`] when
    /// [`Service::unfinished_count`] is 0.
    pub fn begin_shutdown(&mut self) -> usize {
        self.shutting_down = true;
        self.unfinished_count()
    }

    /// Viewers that have been sent something and not yet BYE.
    pub fn unfinished_count(&self) -> usize {
        self.streams.unfinished_count()
    }

    /// Ends all streams, accepts no more. [`Service::place_count`] shows when the engines have let
    /// go.
    pub fn shut_down(&mut self, now: Instant) {
        self.shutting_down = true;
        self.end_all_fetchers(now);
        let listeners = self.listeners().into_iter().map(Listener::key);
        let streams = self.streams.in_order().into_iter().map(|stream| stream.key);
        // A cast ends with its last listener.
        for key in listeners.chain(streams).collect::<Vec<_>>() {
            self.close(now, key, EndReason::Shutdown);
        }
    }
}

/// Returns the event for the time when the engine has forgotten the stream.
fn ended(stream: &PlaybackStream, now: Instant, reason: EndReason) -> ServiceEvent {
    let (label, title) = (stream.label.to_string(), stream.entry.name.clone());
    let (peer, lasted_ns) = (stream.viewer, now.ns_since(stream.started));
    if let StreamPath::Bytes { .. } = stream.path {
        return ServiceEvent::Delivered { label, title, peer, reason, lasted_ns, totals: None };
    }
    if let StreamPath::Multicast { .. } = stream.path {
        let ended = CastNotice::Ended { title, to: peer, reason, lasted_ns, totals: None };
        return ServiceEvent::Cast(ended);
    }
    ServiceEvent::Closed {
        session: label,
        title,
        peer,
        reason,
        lasted_ns,
        totals: None,
        reported_loss: stream.reported_loss(),
        backlog_bytes: stream.backlog_bytes,
    }
}
