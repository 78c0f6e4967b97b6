//! Connections, and which request goes where.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use millrace_core::ids::ConnId;
use millrace_core::time::{Instant, MediaTicks, NS_PER_S};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command::Command;
use millrace_rights::{Check, Question, Visitor};
use rtsp_types::headers::{
    ALLOW, CONNECTION, CSEQ, PROXY_REQUIRE, PUBLIC, REQUIRE, SESSION, TIMESTAMP, UNSUPPORTED,
};
use rtsp_types::{HeaderName, Method, Version};

use super::config::ServerConfig;
use super::entropy::Entropy;
use super::rights::{AccessStage, LetIn};
use super::state::{Session, SessionState};
use crate::rtsp::reply::{PUBLIC as METHODS, ReplyHead};
use crate::rtsp::{FrameError, Reply, RtspRequest};
use crate::service::{
    ConnKey, ConnRefusal, Library, PlaybackStream, Service, ServiceEvent, StreamKey, StreamPath,
};

/// Actions that the caller must take, in this order.
#[derive(Debug)]
pub enum Output {
    /// Send these bytes: by the engine once the connection has been attached to it, by the control side before.
    Reply {
        /// To whom.
        conn: ConnKey,
        /// One whole reply.
        bytes: Vec<u8>,
    },
    /// Hand a duplicate of the connection's descriptor to this engine, under this name
    /// ([`Command::ConnAdd`]). If that fails, say [`Server::conn_closed`].
    Attach {
        /// The connection.
        conn: ConnKey,
        /// The engine.
        engine: usize,
        /// Its name there.
        id: ConnId,
    },
    /// No engine writes to this connection for a while: keep replies until the next [`Output::Attach`].
    Hold {
        /// The connection.
        conn: ConnKey,
    },
    /// Send this command. The first packet of a [`Command::Play`] must not leave before its reply.
    Command {
        /// To whom.
        engine: usize,
        /// What.
        command: Command,
    },
    /// Close the connection once all data written to it has gone out; then call
    /// [`Server::conn_closed`].
    Close {
        /// The connection.
        conn: ConnKey,
    },
    /// Have this password checked elsewhere ([`millrace_rights::Gate::check`]), then say [`Server::password_checked`].
    Check {
        /// Whose request waits for it.
        conn: ConnKey,
        /// The password.
        check: Check,
    },
    /// Have this asked elsewhere ([`millrace_rights::Advised::ask`]), then say [`Server::password_checked`].
    Ask {
        /// Whose request waits for it.
        conn: ConnKey,
        /// The question.
        question: Question,
    },
    /// This has happened.
    Event(ServiceEvent),
}

/// A session as it is shown to operators.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionInfo {
    /// First characters of its name.
    pub session: String,
    /// The title.
    pub title: String,
    /// The viewer.
    pub peer: SocketAddr,
    /// How packets reach it.
    pub path: StreamPath,
    /// Its state.
    pub state: SessionState,
    /// Media time that is being sent, where it is known.
    pub position: Option<MediaTicks>,
    /// Bits a second that it needs while it plays.
    pub rate: u64,
    /// Nanoseconds since SETUP.
    pub age_ns: u64,
    /// The viewer's last report.
    pub report: Option<ReportBlock>,
}

/// One connection.
pub(super) struct SessionConn {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// A PLAY of this session waits for the engine; nothing else of this connection is looked at meanwhile.
    pub(super) waits_for: Option<StreamKey>,
    /// A request that waits for its title to be opened, or for a password to be checked; nothing else of this connection is looked at
    /// meanwhile.
    pub(super) waiting: Option<Box<RtspRequest>>,
    /// It waits for a password, or for an answer to `question`.
    pub(super) is_checking: bool,
    pub(super) question: Option<Question>,
    /// The admitted visitor.
    pub(super) visitor: Visitor,
    pub(super) opened: Instant,
    /// When the last whole message came; `None` before the first.
    pub(super) last_message: Option<Instant>,
    /// When the message began that has not ended.
    pub(super) begun: Option<Instant>,
    /// It came by TLS.
    pub(super) is_encrypted: bool,
    /// It is the POST of a tunnel and ends with the tunnel.
    pub(super) is_post: bool,
    /// It must be closed; no further request is answered.
    pub(super) closing: bool,
    /// Close once the answer that is being waited for is out.
    pub(super) close_after_reply: bool,
}

impl SessionConn {
    /// Whether a request of it has not been answered yet.
    fn is_waiting(&self) -> bool {
        self.waits_for.is_some() || self.waiting.is_some()
    }
}

/// All connections and sessions: the service's RTSP face.
pub struct Server {
    pub(super) config: ServerConfig,
    pub(super) service: Service,
    pub(super) entropy: Box<dyn Entropy>,
    pub(super) conns: HashMap<ConnKey, SessionConn>,
    pub(super) sessions: HashMap<StreamKey, Session>,
    pub(super) by_id: HashMap<Box<str>, StreamKey>,
    pub(super) outputs: VecDeque<Output>,
}

impl Server {
    /// No connections, no sessions.
    pub fn new(config: ServerConfig, library: Box<dyn Library>, entropy: Box<dyn Entropy>) -> Self {
        Self {
            service: Service::new(config.service.clone(), library),
            config,
            entropy,
            conns: HashMap::new(),
            sessions: HashMap::new(),
            by_id: HashMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the service that it uses.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Performs an action of the service that no viewer has requested, and acts on its outputs.
    pub fn with_service<R>(&mut self, now: Instant, act: impl FnOnce(&mut Service) -> R) -> R {
        let done = act(&mut self.service);
        self.absorb(now);
        done
    }

    /// The wall clock has been set: Unix time minus monotonic time from now on.
    pub fn set_wall_offset_ns(&mut self, wall_offset_ns: u64) {
        self.config.wall_offset_ns = wall_offset_ns;
    }

    /// All sessions, for show.
    pub fn sessions(&self, now: Instant) -> Vec<SessionInfo> {
        let info = |stream: &PlaybackStream| {
            self.sessions.contains_key(&stream.key()).then(|| SessionInfo {
                session: stream.label().to_owned(),
                title: stream.entry().name.clone(),
                peer: stream.viewer(),
                path: stream.path(),
                state: SessionState::of(stream),
                position: stream.position(now),
                rate: stream.rate(),
                age_ns: now.ns_since(stream.started()),
                report: stream.report(),
            })
        };
        self.service.streams().into_iter().filter_map(info).collect()
    }

    /// A connection has come in.
    ///
    /// # Errors
    /// There are too many; drop it.
    pub fn conn_opened(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> Result<ConnKey, ConnRefusal> {
        let (peer, local) = (canonical(peer), canonical(local));
        let opened = self.service.conn_opened(peer);
        self.absorb(now);
        let key = opened?;
        let conn = SessionConn {
            peer,
            local,
            waits_for: None,
            waiting: None,
            is_checking: false,
            question: None,
            visitor: Visitor::Anybody,
            opened: now,
            last_message: None,
            begun: None,
            is_encrypted: false,
            is_post: false,
            closing: false,
            close_after_reply: false,
        };
        self.conns.insert(key, conn);
        Ok(key)
    }

    /// Only this engine can write to the connection: nothing is sent to its viewer but through it.
    pub fn bind_conn(&mut self, conn: ConnKey, engine: usize) {
        self.service.bind_conn(conn, engine);
    }

    /// Marks a connection as TLS: no media requested on it is sent in the clear beside it.
    pub fn conn_is_encrypted(&mut self, conn: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.is_encrypted = true;
        }
    }

    /// Whether the connection waits for the engine, or for a title to be opened: hold back what else came from it.
    pub fn is_waiting(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(SessionConn::is_waiting)
    }

    /// Bytes came: whether they end inside a message. Clients get limited time to finish one.
    pub fn conn_progress(&mut self, now: Instant, conn: ConnKey, mid_message: bool) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.begun = if mid_message { Some(conn.begun.unwrap_or(now)) } else { None };
        }
    }

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

    /// One request. It gets exactly one reply, at once or (see [`Server::is_waiting`]) after an event of the engine or when its title has
    /// been opened, or the connection is closed.
    pub fn handle_request(&mut self, now: Instant, conn: ConnKey, request: &RtspRequest) {
        let Some(state) = self.conns.get_mut(&conn).filter(|conn| !conn.closing) else { return };
        if state.is_waiting() {
            return self.close(conn); // the caller did not hold it back, and answers must keep their order
        }
        (state.last_message, state.begun) = (Some(now), None);
        self.carry_out(now, conn, request, AccessStage::New);
    }

    /// Carries out a request for the first time, or again when its needs have been opened or
    /// checked.
    pub(super) fn carry_out(
        &mut self,
        now: Instant,
        conn: ConnKey,
        request: &RtspRequest,
        stage: AccessStage,
    ) {
        let head = head(request);
        let reply = match self.check(request, &head).map(|()| self.let_in(now, conn, request, stage)) {
            Err(reply) | Ok(LetIn::No(reply)) => Some(reply),
            Ok(LetIn::Yes) => self.dispatch(now, conn, &head, request),
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
            Some(reply) => self.answer(now, conn, request, &reply),
            None => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.close_after_reply = wants_close(request);
                }
            }
        }
    }

    /// Answers a request, and closes the connection if that was asked for.
    pub(super) fn answer(&mut self, now: Instant, conn: ConnKey, request: &RtspRequest, reply: &Reply) {
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
    fn dispatch(
        &mut self,
        now: Instant,
        conn: ConnKey,
        head: &ReplyHead,
        request: &RtspRequest,
    ) -> Option<Reply> {
        if *request.method() == Method::Describe {
            return Some(self.describe(now, conn, request));
        }
        let session = match self.session_of(request) {
            Ok(session) => session,
            Err(()) => return Some(Reply::error(454, "no such session here, or it has expired")),
        };
        if let Some(key) = session {
            self.heard_request(now, conn, key);
        }
        let reply = match request.method() {
            Method::Options => self.with_session(Reply::ok().header(PUBLIC, METHODS), session),
            Method::Setup => self.setup(now, conn, session, request),
            Method::Play => return self.play(now, conn, head, session, request),
            Method::Pause => self.pause(now, session),
            Method::Teardown => self.teardown(now, session),
            Method::GetParameter => self.get_parameter(now, session, request),
            Method::SetParameter => self.set_parameter(now, conn, session, request),
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
        let state = session.and_then(|key| self.service.stream(key)).map(SessionState::of);
        let now = state.map_or("no session is set up", SessionState::as_str);
        self.with_session(Reply::error(455, now).header(ALLOW, SessionState::allow(state)), session)
    }

    /// Puts a reply on its way.
    pub(super) fn reply(&mut self, now: Instant, conn: ConnKey, head: &ReplyHead, reply: &Reply) {
        if self.conns.get(&conn).is_none_or(|conn| conn.closing) {
            return;
        }
        let (method, number) = (head.method, head.cseq);
        self.tell(ServiceEvent::Answered { conn, method, number, status: reply.code() });
        let unix_s = now.0.saturating_add(self.config.wall_offset_ns) / NS_PER_S;
        let bytes = reply.to_bytes(head, &self.config.name, unix_s);
        self.outputs.push_back(Output::Reply { conn, bytes });
    }

    /// Asks for the connection to be closed.
    pub(super) fn close(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&key)
            && !conn.closing
        {
            (conn.closing, conn.waiting, conn.is_checking) = (true, None, false);
            self.service.end_opening(key);
            self.outputs.push_back(Output::Close { conn: key });
        }
    }

    pub(super) fn tell(&mut self, event: ServiceEvent) {
        self.outputs.push_back(Output::Event(event));
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

/// `X-Millrace-Transform`, in replies: the transformation of the media that is sent.
pub(super) fn transform_header() -> HeaderName {
    HeaderName::from_static_str("X-Millrace-Transform").expect("the name is ASCII")
}

/// A header's value.
pub(super) fn header<'a>(request: &'a RtspRequest, name: &HeaderName) -> Option<&'a str> {
    request.header(name).map(|value| value.as_str())
}

/// IPv4 as IPv4, also when it came in through an IPv6 socket.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, addr.port()),
        IpAddr::V6(_) => addr,
    }
}
