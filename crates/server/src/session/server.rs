//! The state of the RTSP side: its connections, its sessions, and its outputs.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::ids::{MulticastId, ViewerSession};
use millrace_core::time::{Instant, MediaTicks, NS_PER_S};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_rights::{Check, Gate, Question, Visitor};
use rtsp_types::HeaderName;

use super::config::ServerConfig;
use super::entropy::Entropy;
use super::state::{Session, SessionState};
use crate::rtsp::reply::ReplyHead;
use crate::rtsp::{Reply, RtspRequest};
use crate::service::{
    self, ConnKey, ConnRefusal, GroupAddress, Listener, PlaybackStream, Service, ServiceEvent, StreamKey,
    StreamPath,
};

/// Actions that the caller must take, in this order.
#[derive(Debug)]
pub enum Output {
    /// One of the service. The first packet of a [`Command::Play`] must not leave before its reply.
    ///
    /// [`Command::Play`]: millrace_offload::command::Command::Play
    Service(service::Output),
    /// Send these bytes: by the engine once the connection has been attached to it, by the control side before.
    Reply {
        /// To whom.
        conn: ConnKey,
        /// One whole reply.
        bytes: Vec<u8>,
    },
    /// Close the connection once all data written to it has gone out; then call
    /// [`RtspFace::conn_closed`].
    Close {
        /// The connection.
        conn: ConnKey,
    },
    /// Have this password checked elsewhere ([`millrace_rights::Gate::check`]), then say [`RtspFace::password_checked`].
    Check {
        /// Whose request waits for it.
        conn: ConnKey,
        /// The password.
        check: Check,
    },
    /// Have this asked elsewhere ([`millrace_rights::Advised::ask`]), then say [`RtspFace::password_checked`].
    Ask {
        /// Whose request waits for it.
        conn: ConnKey,
        /// The question.
        question: Question,
    },
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
    pub(super) fn is_waiting(&self) -> bool {
        self.waits_for.is_some() || self.waiting.is_some()
    }
}

/// All connections and sessions of RTSP. The service is its caller's: what needs both is done by an
/// [`RtspFace`].
pub struct Server {
    config: ServerConfig,
    entropy: Box<dyn Entropy>,
    conns: HashMap<ConnKey, SessionConn>,
    sessions: HashMap<StreamKey, Session>,
    by_id: HashMap<Box<str>, StreamKey>,
    outputs: VecDeque<Output>,
}

/// The server with the service that it speaks for, for one call.
pub struct RtspFace<'a> {
    pub(super) service: &'a mut Service,
    pub(super) config: &'a ServerConfig,
    pub(super) entropy: &'a mut dyn Entropy,
    pub(super) conns: &'a mut HashMap<ConnKey, SessionConn>,
    pub(super) sessions: &'a mut HashMap<StreamKey, Session>,
    pub(super) by_id: &'a mut HashMap<Box<str>, StreamKey>,
    pub(super) outputs: &'a mut VecDeque<Output>,
}

impl Server {
    /// No connections, no sessions.
    pub fn new(config: ServerConfig, entropy: Box<dyn Entropy>) -> Self {
        Self {
            config,
            entropy,
            conns: HashMap::new(),
            sessions: HashMap::new(),
            by_id: HashMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// An unpredictable name for a viewer's session; `None` when the system gives none.
    pub fn new_viewer_session(&mut self) -> Option<ViewerSession> {
        let bytes = self.entropy.bytes16()?;
        Some(ViewerSession(bytes.iter().take(8).fold(0, |name, byte| name << 8 | u64::from(*byte))))
    }

    /// Joins the server with the service, always the same one.
    pub fn face<'a>(&'a mut self, service: &'a mut Service) -> RtspFace<'a> {
        let Self { config, entropy, conns, sessions, by_id, outputs } = self;
        RtspFace { service, config, entropy: entropy.as_mut(), conns, sessions, by_id, outputs }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the gate that decides on viewing access.
    pub fn gate(&self) -> Option<&Arc<Gate>> {
        self.config.gate.as_ref()
    }

    /// The wall clock has been set: Unix time minus monotonic time from now on.
    pub fn set_wall_offset_ns(&mut self, wall_offset_ns: u64) {
        self.config.wall_offset_ns = wall_offset_ns;
    }

    /// All sessions, for show.
    pub fn sessions(&self, service: &Service, now: Instant) -> Vec<SessionInfo> {
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
        let listener = |listener: &Listener| {
            let GroupAddress { group, port } = service.listens_to(listener.key())?.0;
            Some(SessionInfo {
                session: listener.label().to_owned(),
                title: listener.title().to_owned(),
                peer: listener.viewer(),
                path: StreamPath::Multicast { group, port, rtcp_port: Some(port + 1), via: MulticastId(0) },
                state: if listener.is_playing() { SessionState::Playing } else { SessionState::Ready },
                position: None,
                rate: listener.rate(),
                age_ns: now.ns_since(listener.started()),
                report: None,
            })
        };
        let streams = service.streams().into_iter().filter_map(info);
        streams.chain(service.listeners().into_iter().filter_map(listener)).collect()
    }

    /// Whether this connection speaks RTSP.
    pub fn has_conn(&self, conn: ConnKey) -> bool {
        self.conns.contains_key(&conn)
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

    /// Properties that both halves of a tunnel must share: the viewer's address, and whether the
    /// connection uses TLS.
    pub fn tunnel_end(&self, conn: ConnKey) -> Option<(IpAddr, bool)> {
        self.conns.get(&conn).map(|conn| (conn.peer.ip(), conn.is_encrypted))
    }

    /// Whether the connection has received a message yet.
    pub fn has_spoken(&self, conn: ConnKey) -> bool {
        self.conns.get(&conn).is_some_and(|conn| conn.last_message.is_some())
    }

    /// Marks the connection as the POST of a tunnel; it ends with the tunnel.
    pub fn tunnel_joined(&mut self, conn: ConnKey) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            (conn.is_post, conn.begun) = (true, None);
        }
    }
}

impl RtspFace<'_> {
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
        self.drain_service(now);
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
        self.outputs.push_back(Output::Service(service::Output::Event(event)));
    }

    /// Takes over the service's outputs in their order and acts on them. Called after each call to
    /// the service that may have changed something.
    pub fn drain_service(&mut self, now: Instant) {
        while let Some(output) = self.service.poll_output() {
            if let service::Output::Event(event) = &output {
                self.act_on(now, event);
            }
            self.outputs.push_back(Output::Service(output));
        }
    }
}

/// `X-Millrace-Transform`, in replies: the transformation of the media that is sent.
pub(super) fn transform_header() -> HeaderName {
    HeaderName::from_static_str("X-Millrace-Transform").expect("the name is ASCII")
}

/// `Media-Range` (RFC 7826 section 18.30), in replies: what of the title can be played now.
pub(super) fn media_range_header() -> HeaderName {
    HeaderName::from_static_str("Media-Range").expect("the name is ASCII")
}

/// A header's value.
pub(super) fn header<'a>(request: &'a RtspRequest, name: &HeaderName) -> Option<&'a str> {
    request.header(name).map(|value| value.as_str())
}

/// IPv4 as IPv4, also when it came in through an IPv6 socket.
pub fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, addr.port()),
        IpAddr::V6(_) => addr,
    }
}
