//! How sessions and connections end: TEARDOWN, time, shutdown.

use std::net::IpAddr;

use millrace_core::ids::TitleRef;
use millrace_core::limits::ENGINE_ANSWER_TIMEOUT_NS;
use millrace_core::time::Instant;
use millrace_offload::command::Command;
use rtsp_types::headers::{CONNECTION, SESSION};

use super::notice::Notice;
use super::server::{ConnKey, Server, SessionKey, Usage, bucket};
use super::state::{EndReason, Media, Path};
use crate::rtsp::Reply;
use crate::rtsp::reply::ReplyHead;

/// A stream that its engine has been told to forget: its place and its title are held until it says so.
pub(super) struct Closing {
    pub(super) title: TitleRef,
    /// What to tell then; `None` if the session goes on with another stream.
    pub(super) ended: Option<Notice>,
}

impl Server {
    pub(super) fn teardown(&mut self, now: Instant, key: Option<SessionKey>) -> Reply {
        let Some(key) = key else { return Reply::error(454, "name the session to tear down") };
        self.end_session(now, key, EndReason::TornDown);
        Reply::ok()
    }

    /// The session is over: its name is forgotten now, its stream when the engine has let go.
    pub(super) fn end_session(&mut self, now: Instant, key: SessionKey, reason: EndReason) {
        self.retire_stream(now, key, Some(reason));
        self.release_reservation(key);
        let Some(session) = self.sessions.remove(&key) else { return };
        match reason {
            EndReason::TornDown => self.counters.sessions_torn_down += 1,
            EndReason::Expired => self.counters.sessions_expired += 1,
            EndReason::Replaced => self.counters.sessions_replaced += 1,
            EndReason::TablesFull => self.counters.sessions_ended_early += 1,
            EndReason::Failed(_) | EndReason::Refused(_) => self.counters.sessions_failed += 1,
            EndReason::Disconnected | EndReason::Shutdown => self.counters.sessions_disconnected += 1,
        }
        self.idle.remove(&(session.idle_since, key));
        self.by_id.remove(&session.id);
        self.slots[session.engine].rate -= session.rate;
        self.release_usage(bucket(session.peer.ip()), |usage| &mut usage.sessions);
        if let Some(conn) = session.owner.and_then(|owner| self.conns.get_mut(&owner)) {
            conn.sessions.retain(|other| *other != key);
        }
        if let Some(pending) = session.pending {
            let reply = Reply::error(454, "the session has ended meanwhile");
            self.answer_pending(now, pending.conn, &pending.head, &reply);
        }
    }

    /// Tells the engine to forget the session's stream and those of its FEC.
    pub(super) fn retire_stream(&mut self, now: Instant, key: SessionKey, reason: Option<EndReason>) {
        self.retire_companions(key);
        let Some(session) = self.sessions.get(&key) else { return };
        let (engine, stream, ip) = (session.engine, session.stream, session.peer.ip());
        let ended = reason.map(|reason| Notice::Ended {
            session: session.short_id(),
            title: session.entry.name.clone(),
            peer: session.peer,
            reason,
            lasted_ns: now.ns_since(session.started),
            totals: None,
        });
        let closing = Closing { title: session.title, ended };
        if let Path::Udp { rtp_port, rtcp_port } = session.path {
            self.forget_port(key, ip, rtp_port);
            self.forget_port(key, ip, rtcp_port);
        }
        self.by_stream.remove(&(engine, stream));
        self.closing.insert((engine, stream), closing);
        self.command(engine, Command::Close { stream });
    }

    /// What comes from this port is no longer the session's.
    pub(super) fn forget_port(&mut self, key: SessionKey, ip: IpAddr, port: u16) {
        if let Some(keys) = self.by_udp.get_mut(&(ip, port)) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_udp.remove(&(ip, port));
            }
        }
    }

    /// Sends the reply that a connection has been waiting for, and lets it go on.
    pub(super) fn answer_pending(&mut self, now: Instant, conn: ConnKey, head: &ReplyHead, reply: &Reply) {
        self.reply(now, conn, head, reply);
        self.stop_waiting(conn);
    }

    /// The reply has been written: the connection goes on, or closes if it was asked to.
    pub(super) fn stop_waiting(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.waits_for = None;
        if conn.close_after_reply {
            self.close(key);
        }
    }

    /// The connection is closed, by whomever. Its interleaved sessions end; those by UDP live on until their time-out
    /// (RFC 2326 section 1.1: a session is not tied to a connection).
    pub fn conn_closed(&mut self, now: Instant, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(&key) else { return };
        conn.closing = true; // whatever is still answered below goes nowhere
        let (peer, attached) = (conn.peer, conn.attached);
        let mine: Vec<_> = std::mem::take(&mut conn.sessions);
        for session in mine {
            let Some(state) = self.sessions.get_mut(&session) else { continue };
            state.owner = None;
            if state.said_bye || matches!(state.path, Path::Tcp { conn, .. } if conn == key) {
                self.end_session(now, session, EndReason::Disconnected);
            }
        }
        self.conns.remove(&key);
        self.release_usage(bucket(peer.ip()), |usage| &mut usage.connections);
        if let Some((engine, conn)) = attached {
            self.command(engine, Command::ConnRemove { conn });
        }
    }

    pub(super) fn release_usage(&mut self, bucket: IpAddr, which: impl Fn(&mut Usage) -> &mut usize) {
        if let Some(usage) = self.usage.get_mut(&bucket) {
            *which(usage) = which(usage).saturating_sub(1);
            if usage.connections == 0 && usage.sessions == 0 {
                self.usage.remove(&bucket);
            }
        }
    }

    /// Looks for what is overdue. Call it about once a second.
    pub fn tick(&mut self, now: Instant) {
        self.give_up_waiting(now);
        self.release_long_paused(now);
        let limit = self.config.session_timeout_s() * 1_000_000_000 + self.config.session_slack_ns;
        let expired: Vec<_> = self
            .sessions
            .values()
            // Players that have paused over TCP send nothing, so their connection stands for them; those that have never
            // played have no such excuse.
            .filter(|session| matches!(session.path, Path::Udp { .. }) || session.media == Media::Fresh)
            .filter(|session| now.ns_since(session.last_heard) > limit)
            .map(|session| session.key)
            .collect();
        for key in expired {
            self.end_session(now, key, EndReason::Expired);
        }
        self.close_slow_connections(now, limit);
    }

    /// Answers PLAYs for which the engine did not say in time where the stream stopped.
    fn give_up_waiting(&mut self, now: Instant) {
        let late: Vec<_> = self
            .sessions
            .values()
            .filter(|s| s.pending.as_ref().is_some_and(|p| now.ns_since(p.since) > ENGINE_ANSWER_TIMEOUT_NS))
            .map(|session| session.key)
            .collect();
        for key in late {
            let Some(session) = self.sessions.get_mut(&key) else { continue };
            let Some(pending) = session.pending.take() else { continue };
            let reply = Reply::error(503, "the engine does not answer").header(SESSION, &*session.id);
            let notice = Notice::EngineSilent { session: session.short_id() };
            self.counters.engine_silent += 1;
            self.notice(notice);
            self.answer_pending(now, pending.conn, &pending.head, &reply);
        }
    }

    fn close_slow_connections(&mut self, now: Instant, idle_limit_ns: u64) {
        let header_limit_ns = self.config.header_timeout_ns;
        let slow: Vec<_> = self
            .conns
            .iter()
            .filter(|(_, conn)| !conn.closing)
            .filter_map(|(&key, conn)| {
                let what = match (conn.begun, conn.last_message) {
                    (Some(begun), _) if now.ns_since(begun) > header_limit_ns => {
                        "a message was begun and not finished"
                    }
                    (_, None) if now.ns_since(conn.opened) > header_limit_ns => "nothing came",
                    (_, Some(last)) if conn.sessions.is_empty() && now.ns_since(last) > idle_limit_ns => {
                        return Some((key, conn.peer, None)); // idle without a session: nothing to tell
                    }
                    _ => return None,
                };
                Some((key, conn.peer, Some((what, conn.begun.is_some()))))
            })
            .collect();
        for (key, peer, what) in slow {
            if let Some((what, begun)) = what {
                self.counters.connections_too_slow += 1;
                self.notice(Notice::TooSlow { peer, what });
                if begun {
                    let reply = Reply::error(408, what).header(CONNECTION, "close");
                    self.reply(now, key, &ReplyHead::default(), &reply);
                }
            }
            self.close(key);
        }
    }

    /// The server stops: no more connections and sessions. Returns how many viewers have been sent something, so that
    /// their players wait for more or for BYE: stop their engines first ([`Command::Stop`] says BYE), and call
    /// [`Server::shut_down`] when [`Server::unfinished_count`] is 0.
    pub fn begin_shutdown(&mut self) -> usize {
        self.shutting_down = true;
        self.unfinished_count()
    }

    /// Viewers that have been sent something and not yet BYE.
    pub fn unfinished_count(&self) -> usize {
        let unfinished =
            |media| matches!(media, Media::Running(_) | Media::Pausing(_) | Media::Paused { .. });
        self.sessions.values().filter(|session| unfinished(session.media)).count()
    }

    /// Ends all sessions, closes all connections, accepts no more. [`Server::stream_count`] says when the engines have
    /// let go.
    pub fn shut_down(&mut self, now: Instant) {
        self.shutting_down = true;
        let mut sessions: Vec<_> = self.sessions.keys().copied().collect();
        sessions.sort_unstable();
        for key in sessions {
            self.end_session(now, key, EndReason::Shutdown);
        }
        let mut conns: Vec<_> = self.conns.keys().copied().collect();
        conns.sort_unstable();
        for key in conns {
            self.close(key);
        }
    }
}
