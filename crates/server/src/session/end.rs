//! How sessions and connections end: TEARDOWN, time, shutdown.

use millrace_core::time::Instant;
use rtsp_types::headers::CONNECTION;

use super::server::RtspFace;
use crate::rtsp::Reply;
use crate::rtsp::reply::ReplyHead;
use crate::service::{ConnKey, EndReason, Refusal, ServiceEvent, StreamKey};

impl RtspFace<'_> {
    pub(super) fn teardown(&mut self, now: Instant, key: Option<StreamKey>) -> Reply {
        let Some(key) = key else { return Reply::error(454, "name the session to tear down") };
        self.end_session(now, key, EndReason::TornDown);
        Reply::ok()
    }

    /// The session is over, and its stream.
    pub(super) fn end_session(&mut self, now: Instant, key: StreamKey, reason: EndReason) {
        self.service.close(now, key, reason);
        self.drain_service(now);
    }

    /// The connection is closed, by whomever. Its interleaved sessions end; those by UDP live on until their time-out
    /// (RFC 2326 section 1.1: a session is not tied to a connection).
    pub fn conn_closed(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.closing = true; // whatever is still answered below goes nowhere
        let said_bye = |key: &StreamKey| self.sessions.get(key).is_some_and(|session| session.said_bye);
        let over: Vec<_> = self.service.streams_of(key).iter().copied().filter(said_bye).collect();
        for session in over {
            self.service.close(now, session, EndReason::Disconnected);
        }
        self.service.conn_closed(now, key);
        self.drain_service(now);
        self.conns.remove(&key);
    }

    /// Looks for overdue sessions and connections. Call it about once a second.
    pub fn tick(&mut self, now: Instant) {
        self.service.tick(now);
        self.drain_service(now);
        self.refuse_overdue(now);
        let limit = self.config.session_timeout_s() * 1_000_000_000 + self.config.session_slack_ns;
        // Players that have paused over TCP send nothing, so their connection stands for them; those that have never
        // played have no such excuse.
        let must_speak = |key: &StreamKey| {
            let stream = self.service.stream(*key);
            stream.is_none_or(|stream| stream.path().conn().is_none() || stream.is_fresh())
        };
        let is_silent =
            |key: &StreamKey| self.service.last_heard(*key).is_some_and(|heard| now.ns_since(heard) > limit);
        let silent = self.sessions.keys().copied().filter(is_silent);
        let mut expired: Vec<_> = silent.filter(must_speak).collect();
        // The oldest first, whatever the order of the table: two runs with the same input end alike.
        expired.sort_unstable();
        for key in expired {
            self.end_session(now, key, EndReason::Expired);
        }
        self.close_slow_connections(now, limit);
    }

    fn close_slow_connections(&mut self, now: Instant, idle_limit_ns: u64) {
        let header_limit_ns = self.config.header_timeout_ns;
        let mut slow: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| !conn.closing && conn.waiting.is_none() && !conn.is_post)
            .filter_map(|(&key, conn)| {
                let what = match (conn.begun, conn.last_message) {
                    (Some(begun), _) if now.ns_since(begun) > header_limit_ns => {
                        "a message was begun and not finished"
                    }
                    (_, None) if now.ns_since(conn.opened) > header_limit_ns => "nothing came",
                    (_, Some(last))
                        if self.service.streams_of(key).is_empty() && now.ns_since(last) > idle_limit_ns =>
                    {
                        return Some((key, conn.peer, None)); // idle without a session: nothing to tell
                    }
                    _ => return None,
                };
                Some((key, conn.peer, Some((what, conn.begun.is_some()))))
            })
            .collect();
        slow.sort_unstable_by_key(|(key, ..)| *key);
        for (key, peer, what) in slow {
            if let Some((what, begun)) = what {
                self.tell(ServiceEvent::TooSlow { peer, what });
                if begun {
                    let reply = Reply::error(408, what).header(CONNECTION, "close");
                    self.reply(now, key, &ReplyHead::default(), &reply);
                }
            }
            self.close(key);
        }
    }

    /// Ends all sessions, closes all connections, accepts no more. [`Service::place_count`] reports
    /// when the engines have let go.
    ///
    /// [`Service::place_count`]: crate::service::Service::place_count
    pub fn shut_down(&mut self, now: Instant) {
        self.service.shut_down(now);
        self.drain_service(now);
        let mut conns: Vec<_> = self.conns.keys().copied().collect();
        conns.sort_unstable();
        for key in conns {
            self.refuse_waiting(now, key, &Refusal::ShuttingDown);
            self.close(key);
        }
    }
}
