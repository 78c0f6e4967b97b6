//! Connections, and which request goes where.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::time::{Instant, MediaTicks, NS_PER_S};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command::Command;
use rtsp_types::headers::{
    ALLOW, CONNECTION, CSEQ, PROXY_REQUIRE, PUBLIC, REQUIRE, SESSION, TIMESTAMP, UNSUPPORTED,
};
use rtsp_types::{HeaderName, Method, Version};

use super::config::ServerConfig;
use super::counters::Counters;
use super::end::Closing;
use super::entropy::Entropy;
use super::notice::Notice;
use super::state::{Path, Session, State};
use crate::rtsp::reply::{PUBLIC as METHODS, ReplyHead};
use crate::rtsp::{FrameError, Reply, Request};
use crate::service::Library;
use crate::service::slots::EngineSlots;

/// A connection, for as long as the server runs: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnKey(pub u64);

/// A session, for as long as the server runs: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// What is to be done, in this order.
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
    /// Send this command. The first packet of a [`Command::Play`] must not leave before its reply.
    Command {
        /// To whom.
        engine: usize,
        /// What.
        command: Command,
    },
    /// Close the connection once what was written to it has gone out; then say [`Server::conn_closed`].
    Close {
        /// The connection.
        conn: ConnKey,
    },
    /// Tell the operator.
    Notice(Notice),
}

/// Why a connection is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnRefusal {
    /// Too many in all.
    #[error("all connections are in use; raise the number of connections")]
    Full,
    /// Too many of one address.
    #[error("too many connections from this address; raise the number of connections per address")]
    Address,
    /// The server stops.
    #[error("the server is shutting down")]
    ShuttingDown,
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
    pub path: Path,
    /// Its state.
    pub state: State,
    /// Media time that is being sent, where it is known.
    pub position: Option<MediaTicks>,
    /// Nanoseconds since SETUP.
    pub age_ns: u64,
    /// What the viewer reported last.
    pub report: Option<ReportBlock>,
}

/// One connection.
pub(super) struct Conn {
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// Sessions made on it that are still there.
    pub(super) sessions: Vec<SessionKey>,
    /// The engine that writes to it, and its name there.
    pub(super) attached: Option<(usize, ConnId)>,
    /// A PLAY of this session waits for the engine; nothing else of this connection is looked at meanwhile.
    pub(super) waits_for: Option<SessionKey>,
    pub(super) opened: Instant,
    /// When the last whole message came; `None` before the first.
    pub(super) last_message: Option<Instant>,
    /// When the message began that has not ended.
    pub(super) begun: Option<Instant>,
    /// It is to be closed; nothing more is answered.
    pub(super) closing: bool,
    /// Close once the answer that is being waited for is out.
    pub(super) close_after_reply: bool,
}

/// What one address holds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) connections: usize,
    pub(super) sessions: usize,
    /// Sessions that have reserved a stream.
    pub(super) streams: usize,
    /// Bits a second that they have reserved.
    pub(super) rate: u64,
}

/// All connections and sessions.
pub struct Server {
    pub(super) config: ServerConfig,
    pub(super) library: Box<dyn Library>,
    pub(super) entropy: Box<dyn Entropy>,
    pub(super) conns: HashMap<ConnKey, Conn>,
    pub(super) sessions: HashMap<SessionKey, Session>,
    /// Sessions that have reserved nothing, by the time since which they do not play.
    pub(super) idle: BTreeSet<(Instant, SessionKey)>,
    pub(super) by_id: HashMap<Box<str>, SessionKey>,
    /// Both UDP ports of each session.
    pub(super) by_udp: HashMap<(IpAddr, u16), Vec<SessionKey>>,
    pub(super) by_stream: HashMap<(usize, StreamId), SessionKey>,
    /// Streams that the engines have been told to forget.
    pub(super) closing: HashMap<(usize, StreamId), Closing>,
    pub(super) usage: HashMap<IpAddr, Usage>,
    pub(super) slots: Vec<EngineSlots>,
    pub(super) outputs: VecDeque<Output>,
    pub(super) counters: Counters,
    pub(super) shutting_down: bool,
    next_key: u64,
}

impl Server {
    /// No connections, no sessions.
    pub fn new(config: ServerConfig, library: Box<dyn Library>, entropy: Box<dyn Entropy>) -> Self {
        let slot = || EngineSlots::new(config.streams_per_engine, config.conns_per_engine);
        let slots = (0..config.engines.max(1)).map(|_| slot()).collect();
        Self {
            config,
            library,
            entropy,
            conns: HashMap::new(),
            sessions: HashMap::new(),
            idle: BTreeSet::new(),
            by_id: HashMap::new(),
            by_udp: HashMap::new(),
            by_stream: HashMap::new(),
            closing: HashMap::new(),
            usage: HashMap::new(),
            slots,
            outputs: VecDeque::new(),
            counters: Counters::default(),
            shutting_down: false,
            next_key: 0,
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Sums since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sums since the start, for callers that count what only they can see.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The wall clock has been set: Unix time minus monotonic time from now on.
    pub fn set_wall_offset_ns(&mut self, wall_offset_ns: u64) {
        self.config.wall_offset_ns = wall_offset_ns;
    }

    /// Sessions that viewers can name.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Streams that the engines still know.
    pub fn stream_count(&self) -> usize {
        self.by_stream.len() + self.closing.len()
    }

    /// Connections.
    pub fn connection_count(&self) -> usize {
        self.conns.len()
    }

    /// All sessions, for show.
    pub fn sessions(&self, now: Instant) -> Vec<SessionInfo> {
        let mut sessions: Vec<_> = self.sessions.values().collect();
        sessions.sort_unstable_by_key(|session| session.key);
        let info = |session: &&Session| SessionInfo {
            session: session.short_id(),
            title: session.entry.name.clone(),
            peer: session.peer,
            path: session.path,
            state: session.state(),
            position: session.position(now),
            age_ns: now.ns_since(session.started),
            report: session.report,
        };
        sessions.iter().map(info).collect()
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
        if self.shutting_down {
            return Err(ConnRefusal::ShuttingDown);
        }
        let used = self.usage.get(&bucket(peer.ip())).map_or(0, |usage| usage.connections);
        let refusal = if self.conns.len() >= self.config.max_connections {
            self.counters.connections_refused += 1;
            ConnRefusal::Full
        } else if used >= self.config.max_connections_per_address {
            self.counters.connections_refused_address += 1;
            ConnRefusal::Address
        } else {
            self.counters.connections_accepted += 1;
            self.usage.entry(bucket(peer.ip())).or_default().connections += 1;
            let key = ConnKey(self.new_key());
            let conn = Conn {
                peer,
                local,
                sessions: Vec::new(),
                attached: None,
                waits_for: None,
                opened: now,
                last_message: None,
                begun: None,
                closing: false,
                close_after_reply: false,
            };
            self.conns.insert(key, conn);
            return Ok(key);
        };
        let reason = match refusal {
            ConnRefusal::Full => "too many connections",
            _ => "too many connections from this address",
        };
        self.notice(Notice::ConnectionRefused { address: peer.ip(), reason });
        Err(refusal)
    }

    /// Whether the connection waits for the engine: hold back what else came from it.
    pub fn is_waiting(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.waits_for.is_some())
    }

    /// Bytes came: whether they end inside a message. Clients get limited time to finish one.
    pub fn conn_progress(&mut self, now: Instant, conn: ConnKey, mid_message: bool) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.begun = if mid_message { Some(conn.begun.unwrap_or(now)) } else { None };
        }
    }

    /// What came is not RTSP: one answer, then the connection is closed.
    pub fn handle_bad_message(&mut self, now: Instant, conn: ConnKey, error: &FrameError) {
        let Some(peer) = self.conns.get(&conn).filter(|conn| !conn.closing).map(|conn| conn.peer) else {
            return;
        };
        self.counters.bad_messages += 1;
        self.notice(Notice::BadMessage { peer, what: error.what });
        let head = ReplyHead { cseq: error.cseq, timestamp: None };
        let reply = Reply::error(error.status.into(), error.what).header(CONNECTION, "close");
        self.reply(now, conn, &head, &reply);
        self.close(conn);
    }

    /// One request. It gets exactly one reply, at once or (see [`Server::is_waiting`]) after an event of the engine, or
    /// the connection is closed.
    pub fn handle_request(&mut self, now: Instant, conn: ConnKey, request: &Request) {
        let Some(state) = self.conns.get_mut(&conn).filter(|conn| !conn.closing) else { return };
        if state.waits_for.is_some() {
            return self.close(conn); // the caller did not hold it back, and answers must keep their order
        }
        (state.last_message, state.begun) = (Some(now), None);
        let wants_close =
            header(request, &CONNECTION).is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let head = ReplyHead {
            cseq: header(request, &CSEQ).and_then(|value| value.parse().ok()),
            timestamp: header(request, &TIMESTAMP).filter(|value| value.len() <= 64).map(str::to_owned),
        };
        let reply = match self.check(request, &head) {
            Err(reply) => Some(reply),
            Ok(()) => self.dispatch(now, conn, &head, request),
        };
        if let Some(reply) = &reply {
            self.log_refusal(conn, request, reply);
        }
        match reply {
            Some(reply) => {
                self.reply(now, conn, &head, &reply);
                if wants_close {
                    self.close(conn);
                }
            }
            None => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.close_after_reply = wants_close;
                }
            }
        }
    }

    /// What is wrong with a request whatever its method.
    fn check(&self, request: &Request, head: &ReplyHead) -> Result<(), Reply> {
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
            Some(url) if url.scheme() != "rtsp" => Err(Reply::error(400, "the URL must begin with rtsp://")),
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
        request: &Request,
    ) -> Option<Reply> {
        if *request.method() == Method::Describe {
            return Some(self.describe(conn, request));
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
            Method::Pause => self.pause(session),
            Method::Teardown => self.teardown(now, session),
            Method::GetParameter => self.get_parameter(now, session, request),
            Method::SetParameter => self.set_parameter(now, session, request),
            other => Reply::error(501, format_args!("{} is not implemented", <&str>::from(other)))
                .header(PUBLIC, METHODS),
        };
        Some(reply)
    }

    /// A sign of life. A session whose connection is gone belongs from now on to the one that names it.
    fn heard_request(&mut self, now: Instant, conn: ConnKey, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        (session.last_heard, session.said_bye) = (now, false);
        if session.owner.is_none()
            && let Some(state) = self.conns.get_mut(&conn)
        {
            session.owner = Some(conn);
            state.sessions.push(key);
        }
    }

    /// The session that the request names; `Err` if there is none of that name.
    fn session_of(&self, request: &Request) -> Result<Option<SessionKey>, ()> {
        let Some(value) = header(request, &SESSION) else { return Ok(None) };
        let id = value.split(';').next().unwrap_or_default().trim();
        self.by_id.get(id).copied().map(Some).ok_or(())
    }

    pub(super) fn with_session(&self, reply: Reply, session: Option<SessionKey>) -> Reply {
        match session.and_then(|key| self.sessions.get(&key)) {
            Some(session) => reply.header(SESSION, &*session.id),
            None => reply,
        }
    }

    /// 455 with what is allowed instead.
    pub(super) fn wrong_state(&self, session: Option<SessionKey>) -> Reply {
        let state = session.and_then(|key| self.sessions.get(&key)).map(|session| session.state());
        let now = state.map_or("no session is set up", State::as_str);
        self.with_session(Reply::error(455, now).header(ALLOW, State::allow(state)), session)
    }

    /// Puts a reply on its way.
    pub(super) fn reply(&mut self, now: Instant, conn: ConnKey, head: &ReplyHead, reply: &Reply) {
        if self.conns.get(&conn).is_none_or(|conn| conn.closing) {
            return;
        }
        self.counters.requests += 1;
        match reply.code() {
            200..=399 => self.counters.replies_ok += 1,
            400..=499 => self.counters.replies_client_error += 1,
            _ => self.counters.replies_server_error += 1,
        }
        let unix_s = now.0.saturating_add(self.config.wall_offset_ns) / NS_PER_S;
        let bytes = reply.to_bytes(head, &self.config.name, unix_s);
        self.outputs.push_back(Output::Reply { conn, bytes });
    }

    /// Asks for the connection to be closed.
    pub(super) fn close(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&key)
            && !conn.closing
        {
            conn.closing = true;
            self.outputs.push_back(Output::Close { conn: key });
        }
    }

    pub(super) fn command(&mut self, engine: usize, command: Command) {
        self.outputs.push_back(Output::Command { engine, command });
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    pub(super) fn new_key(&mut self) -> u64 {
        self.next_key += 1;
        self.next_key
    }
}

/// A header's value.
pub(super) fn header<'a>(request: &'a Request, name: &HeaderName) -> Option<&'a str> {
    request.header(name).map(|value| value.as_str())
}

/// IPv4 as IPv4, also when it came in through an IPv6 socket.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, addr.port()),
        IpAddr::V6(_) => addr,
    }
}

/// What counts as one address: an IPv4 address, or an IPv6 /64, which one host has to itself.
pub(super) fn bucket(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from(u128::from(ip) >> 64 << 64)),
    }
}
