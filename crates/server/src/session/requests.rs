//! Which request goes where: each gets one reply.

use millrace_core::time::Instant;
use rtsp_types::headers::{
    ALLOW, CONNECTION, CSEQ, PROXY_REQUIRE, PUBLIC, REQUIRE, SESSION, TIMESTAMP, UNSUPPORTED,
};
use rtsp_types::{Method, Version};

use super::rights::{AccessStage, LetIn};
use super::server::{RtspFace, header};
use super::state::{ReceivedRequest, SessionState};
use crate::rtsp::reply::{PUBLIC as METHODS, ReplyHead};
use crate::rtsp::{FrameError, Reply, RtspRequest};
use crate::service::{ConnKey, ServiceEvent, StreamKey};

impl RtspFace<'_> {
    /// Handles data that is not RTSP: one reply, then the connection is closed.
    pub fn handle_bad_message(&mut self, now: Instant, conn: ConnKey, error: &FrameError) {
        let Some(peer) = self.conns.get(&conn).filter(|conn| !conn.closing).map(|conn| conn.peer) else {
            return;
        };
        self.tell(ServiceEvent::BadMessage { peer, protocol: "RTSP", what: error.what });
        let head = ReplyHead { cseq: error.cseq, ..ReplyHead::default() };
        let reply = Reply::error(error.status.into(), error.what).header(CONNECTION, "close");
        self.reply(now, conn, &head, &reply);
        self.close(conn);
    }

    /// One request. It gets exactly one reply, at once or (see [`super::Server::is_waiting`]) after an event of the engine or when its title has
    /// been opened, or the connection is closed.
    pub fn handle_request(&mut self, now: Instant, conn: ConnKey, request: &RtspRequest) {
        let Some(state) = self.conns.get_mut(&conn).filter(|conn| !conn.closing) else { return };
        if state.is_waiting() {
            return self.close(conn); // the caller did not hold it back, and answers must keep their order
        }
        (state.last_message, state.begun) = (Some(now), None);
        self.carry_out(ReceivedRequest { now, conn, request }, AccessStage::New);
    }

    /// Carries out a request for the first time, or again when its needs have been opened or
    /// checked.
    pub(super) fn carry_out(&mut self, received: ReceivedRequest<'_>, stage: AccessStage) {
        let ReceivedRequest { conn, request, .. } = received;
        let head = head(request);
        let reply = match self.check(request, &head).map(|()| self.let_in(received, stage)) {
            Err(reply) | Ok(LetIn::No(reply)) => Some(reply),
            Ok(LetIn::Yes) => self.dispatch(received, &head),
            Ok(LetIn::Later) => return,
        };
        if self.service.is_opening(conn) {
            // The request has changed nothing, and the reply only reports that it waits.
            if let Some(conn) = self.conns.get_mut(&conn) {
                conn.waiting = Some(Box::new(request.clone()));
            }
            return;
        }
        self.service.end_opening(conn);
        match reply {
            Some(reply) => self.answer(received, &reply),
            None => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.close_after_reply = wants_close(request);
                }
            }
        }
    }

    /// Answers a request, and closes the connection if that was asked for.
    pub(super) fn answer(&mut self, received: ReceivedRequest<'_>, reply: &Reply) {
        let ReceivedRequest { now, conn, request } = received;
        self.log_refusal(conn, request, reply);
        self.reply(now, conn, &head(request), reply);
        if wants_close(request) {
            self.close(conn);
        }
    }

    /// Checks a request for errors that do not depend on its method.
    fn check(&self, request: &RtspRequest, head: &ReplyHead) -> Result<(), Reply> {
        if request.version() != Version::V1_0 {
            return Err(Reply::error(505, "this server speaks RTSP/1.0"));
        }
        if head.cseq.is_none() {
            return Err(Reply::error(400, "CSeq is missing or not a number"));
        }
        // RFC 2326 section 12.32: nothing is supported that could be required.
        let required: Vec<_> = [REQUIRE, PROXY_REQUIRE]
            .iter()
            .filter_map(|name| header(request, name))
            .filter(|value| !value.is_empty())
            .collect();
        if !required.is_empty() {
            let options = required.join(", ");
            return Err(Reply::error(551, &options).header(UNSUPPORTED, options.clone()));
        }
        match request.request_uri() {
            // Whatever stands between viewer and server may have done the TLS of rtsps.
            Some(url) if !matches!(url.scheme(), "rtsp" | "rtsps") => {
                Err(Reply::error(400, "the URL must begin with rtsp:// or rtsps://"))
            }
            None if !matches!(
                request.method(),
                Method::Options | Method::GetParameter | Method::SetParameter
            ) =>
            {
                Err(Reply::error(405, "this method needs a URL")
                    .header(ALLOW, "OPTIONS, GET_PARAMETER, SET_PARAMETER"))
            }
            _ => Ok(()),
        }
    }

    /// The reply; `None` if it must wait for the engine.
    fn dispatch(&mut self, received: ReceivedRequest<'_>, head: &ReplyHead) -> Option<Reply> {
        let ReceivedRequest { now, conn, request } = received;
        if *request.method() == Method::Describe {
            return Some(self.describe(received).unwrap_or_else(|refused| refused));
        }
        let Ok(session) = self.session_of(request) else {
            return Some(Reply::error(454, "no such session here, or it has expired"));
        };
        if let Some(key) = session {
            self.heard_request(now, conn, key);
        }
        let reply = match request.method() {
            Method::Options => self.with_session(Reply::ok().header(PUBLIC, METHODS), session),
            Method::Setup => self.setup(received, session).unwrap_or_else(|refused| refused),
            Method::Play if self.is_listener(session) => self.play_listener(received, session),
            Method::Pause if self.is_listener(session) => self.pause_listener(now, session),
            Method::Play => return self.play(received, head, session),
            Method::Pause => self.pause(now, session),
            Method::Teardown => self.teardown(now, session),
            Method::GetParameter => self.get_parameter(received, session),
            Method::SetParameter => self.set_parameter(received, session),
            other => Reply::error(501, format_args!("{} is not implemented", <&str>::from(other)))
                .header(PUBLIC, METHODS),
        };
        Some(reply)
    }

    /// A sign of life. A session whose connection is gone belongs from now on to the one that names it.
    fn heard_request(&mut self, now: Instant, conn: ConnKey, key: StreamKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        session.said_bye = false;
        self.service.note_alive(now, key);
        self.service.adopt(key, conn);
    }

    /// Returns the session that the request names; `Err` if there is none of this name.
    pub(super) fn session_of(&self, request: &RtspRequest) -> Result<Option<StreamKey>, ()> {
        let Some(value) = header(request, &SESSION) else { return Ok(None) };
        let id = value.split(';').next().unwrap_or_default().trim();
        self.by_id.get(id).copied().map(Some).ok_or(())
    }

    pub(super) fn with_session(&self, reply: Reply, session: Option<StreamKey>) -> Reply {
        match session.and_then(|key| self.sessions.get(&key)) {
            Some(session) => reply.header(SESSION, &*session.id),
            None => reply,
        }
    }

    /// Returns a 455 that lists the allowed methods.
    pub(super) fn wrong_state(&self, session: Option<StreamKey>) -> Reply {
        let state = session.and_then(|key| self.state_of(key));
        let now = state.map_or("no session is set up", SessionState::as_str);
        self.with_session(Reply::error(455, now).header(ALLOW, SessionState::allow(state)), session)
    }
}

/// Returns the parts of a request that its reply repeats.
fn head(request: &RtspRequest) -> ReplyHead {
    ReplyHead {
        cseq: header(request, &CSEQ).and_then(|value| value.parse().ok()),
        timestamp: header(request, &TIMESTAMP).filter(|value| value.len() <= 64).map(str::to_owned),
        method: name_of(request.method()),
    }
}

/// Returns the log's name of a method; viewers may send others by any name.
fn name_of(method: &Method) -> &'static str {
    const NAMES: [&str; 9] = [
        "OPTIONS",
        "DESCRIBE",
        "SETUP",
        "PLAY",
        "PAUSE",
        "TEARDOWN",
        "GET_PARAMETER",
        "SET_PARAMETER",
        "ANNOUNCE",
    ];
    let name: &str = method.into();
    NAMES.into_iter().find(|known| *known == name).unwrap_or("another method")
}

/// Returns whether the connection must be closed after the reply.
fn wants_close(request: &RtspRequest) -> bool {
    header(request, &CONNECTION).is_some_and(|value| value.eq_ignore_ascii_case("close"))
}
