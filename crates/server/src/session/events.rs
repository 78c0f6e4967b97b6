//! Handles the service's events: replies that have waited for it, sessions and connections that are
//! over.

use millrace_core::time::{Instant, MediaTicks};
use rtsp_types::headers::{RANGE, RTP_INFO, SESSION};

use super::fec::{fec_header, off_because};
use super::server::{RtspFace, media_range_header, transform_header};
use super::state::PendingPlay;
use crate::rtsp::Reply;
use crate::sdp::{LIVE_RANGE, clock_range_text, media_range, range_text};
use crate::service::{ConnKey, EndReason, Playing, ServiceEvent, StreamKey, TitleEntry};

impl RtspFace<'_> {
    pub(super) fn act_on(&mut self, now: Instant, event: &ServiceEvent) {
        match event {
            ServiceEvent::Playing(playing) => self.begun(now, playing),
            ServiceEvent::PlayRefused { stream, refusal } => {
                let Some(pending) = self.take_pending(*stream) else { return };
                let reply = self.refuse_play(*stream, refusal);
                self.answer_pending(now, &pending, &reply);
            }
            ServiceEvent::EngineSilent { stream, .. } => {
                let Some(pending) = self.take_pending(*stream) else { return };
                let reply = Reply::error(503, "the engine does not answer");
                let reply = self.with_session(reply, Some(*stream));
                self.answer_pending(now, &pending, &reply);
            }
            ServiceEvent::Ended { stream, conn, reason, .. } => {
                self.session_over(now, *stream, *conn, *reason)
            }
            ServiceEvent::ConnectionLost { conn } => self.close(*conn),
            _ => {}
        }
    }

    fn take_pending(&mut self, key: StreamKey) -> Option<PendingPlay> {
        self.sessions.get_mut(&key)?.pending.take()
    }

    /// Answers the PLAY that has led to this, if one has: before the packets are let out.
    fn begun(&mut self, now: Instant, playing: &Playing) {
        let Some(pending) = self.take_pending(playing.stream) else { return };
        let (Some(session), Some(stream)) =
            (self.sessions.get(&playing.stream), self.service.stream(playing.stream))
        else {
            return;
        };
        let timeout_s = self.config.session_timeout_s();
        let mut reply = Reply::ok().header(SESSION, format!("{};timeout={timeout_s}", session.id));
        if let Some(range) = range_of(stream.entry(), playing, &pending) {
            reply = reply.header(RANGE, range);
        }
        if stream.entry().is_endless() {
            reply = reply.header(media_range_header(), media_range(stream.entry()));
        }
        // Exact or absent: a wrong rtptime makes GStreamer show nothing.
        if let Some(rtptime) = playing.timestamp
            && !stream.entry().layout.is_raw()
        {
            let sequence = playing.sequence;
            reply = reply.header(RTP_INFO, format!("url={};seq={sequence};rtptime={rtptime}", session.url));
        }
        if let Some(why) = &playing.without_fec {
            reply = reply.header(fec_header(), off_because(why));
        }
        if let Some(name) = &playing.transform {
            reply = reply.header(transform_header(), name.to_string());
        }
        let reply = pending.asks.answer(reply, playing.scale, playing.speed);
        self.answer_pending(now, &pending, &reply);
    }

    /// A session is over with its stream.
    fn session_over(&mut self, now: Instant, key: StreamKey, conn: Option<ConnKey>, reason: EndReason) {
        let Some(session) = self.sessions.remove(&key) else { return };
        self.by_id.remove(&session.id);
        if let Some(pending) = session.pending {
            let reply = Reply::error(454, "the session has ended meanwhile");
            self.answer_pending(now, &pending, &reply);
        }
        // Without BYE a player waits for ever; it notices when its connection closes, so close it
        // if nothing else uses it.
        if matches!(reason, EndReason::Failed(_) | EndReason::Disconnected)
            && let Some(conn) = conn
            && self.service.streams_of(conn).is_empty()
        {
            self.close(conn);
        }
    }

    /// Sends the reply that a connection has been waiting for, and lets it go on, or closes it if it was asked to.
    fn answer_pending(&mut self, now: Instant, pending: &PendingPlay, reply: &Reply) {
        self.reply(now, pending.conn, &pending.head, reply);
        let Some(conn) = self.conns.get_mut(&pending.conn) else { return };
        conn.waits_for = None;
        if conn.close_after_reply {
            self.close(pending.conn);
        }
    }
}

/// The `Range` of a reply to PLAY, in the unit that was asked in; `None` if the place is not known.
fn range_of(entry: &TitleEntry, playing: &Playing, pending: &PendingPlay) -> Option<String> {
    let Some(from) = playing.from else { return entry.is_live().then(|| LIVE_RANGE.to_owned()) };
    // RFC 7826 section 18.46: backwards "the Range header MUST indicate a decreasing range".
    let until = match playing.scale.is_reverse() {
        _ if is_to_open_end(entry, playing) => None,
        true => Some(playing.until.min(from)),
        // At a higher speed the title shows more in that time.
        false if playing.until >= entry.end() => {
            Some(MediaTicks(playing.until.0 + playing.scale.speeded(pending.asks.late_end).0))
        }
        false => Some(playing.until.max(from)),
    };
    let by_clock = pending.by_clock.then(|| clock_range_text(entry, from, until)).flatten();
    Some(by_clock.unwrap_or_else(|| range_text(from, until)))
}

/// Whether it is played to the end of a live title, or of a recording that is still being made.
fn is_to_open_end(entry: &TitleEntry, playing: &Playing) -> bool {
    entry.is_endless() && playing.until >= entry.end()
}
