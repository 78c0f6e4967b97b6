//! What happened, as values: the control thread decides what becomes a log line, and how often.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use millrace_core::time::MediaTicks;

use super::EndReason;
use crate::service::FecMode;

/// One thing worth telling an operator.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// A viewer has set up a session.
    Started {
        /// First characters of the session's name: enough to find it, not enough to take it over.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// `udp 5000-5001` or `tcp channels 0-1`.
        transport: String,
        /// `User-Agent`, if it said one.
        agent: Option<String>,
    },
    /// It plays, for the first time or again.
    Playing {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// From where.
        from: MediaTicks,
        /// This is a jump within the title.
        seek: bool,
    },
    /// It has paused.
    Paused {
        /// The session.
        session: String,
        /// The title.
        title: String,
    },
    /// The title has been sent to its end, and BYE with it.
    Finished {
        /// The session.
        session: String,
        /// The title.
        title: String,
    },
    /// The session is over, and the engine has forgotten its stream.
    Ended {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// Why.
        reason: EndReason,
        /// Nanoseconds from set-up to end.
        lasted_ns: u64,
        /// What was sent in the session's last stream; `None` if the engine was gone before it could tell.
        totals: Option<Totals>,
    },
    /// What is sent beside a session's media is settled, or has changed.
    Fec {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// How much.
        mode: FecMode,
        /// What did not let the viewer have what it asked for.
        trouble: Option<String>,
    },
    /// A viewer was turned away although it did nothing wrong.
    Refused {
        /// The viewer.
        peer: SocketAddr,
        /// The title.
        title: String,
        /// The status it got.
        status: u16,
        /// Why.
        reason: String,
    },
    /// A title could not be opened.
    Broken {
        /// The title.
        title: String,
        /// Why.
        reason: String,
    },
    /// The engine did not answer in time.
    EngineSilent {
        /// The session.
        session: String,
    },
    /// A connection was not accepted.
    ConnectionRefused {
        /// Who.
        address: IpAddr,
        /// Why.
        reason: &'static str,
    },
    /// Somebody sends what is not RTSP.
    BadMessage {
        /// Who.
        peer: SocketAddr,
        /// What was wrong.
        what: &'static str,
    },
    /// A connection was closed because nothing, or nothing whole, came from it in time.
    TooSlow {
        /// Who.
        peer: SocketAddr,
        /// What was missing.
        what: &'static str,
    },
}

/// What an engine says about a stream at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Media packets sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that the viewer's address refused.
    pub unreachable: u64,
    /// Packets that left after their time.
    pub late: u64,
}

impl Notice {
    /// Whether something of the server failed: what clients cause in crowds must not hide it in the log.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Ended { reason, .. } => reason.is_failure(),
            Self::Fec { trouble, .. } => trouble.is_some(),
            Self::Broken { .. } | Self::EngineSilent { .. } => true,
            _ => false,
        }
    }

    /// Whether the operator should look after it.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Ended { reason, .. } => reason.is_failure(),
            Self::Fec { trouble, .. } => trouble.is_some(),
            Self::Started { .. } | Self::Playing { .. } | Self::Paused { .. } | Self::Finished { .. } => {
                false
            }
            _ => true,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { session, title, peer, transport, agent } => {
                write!(f, "session {session} started: {title} for {peer} by {transport}")?;
                agent.as_ref().map_or(Ok(()), |agent| write!(f, " ({agent})"))
            }
            Self::Playing { session, title, from, seek: true } => {
                write!(f, "session {session} seeks: {title} from {from}")
            }
            Self::Playing { session, title, from, seek: false } => {
                write!(f, "session {session} plays: {title} from {from}")
            }
            Self::Paused { session, title } => write!(f, "session {session} pauses: {title}"),
            Self::Fec { session, title, mode, trouble } => {
                write!(f, "session {session} has FEC {mode}: {title}")?;
                trouble.as_ref().map_or(Ok(()), |trouble| write!(f, ", {trouble}"))
            }
            Self::Finished { session, title } => write!(f, "session {session} played to the end: {title}"),
            Self::Ended { session, title, peer, reason, lasted_ns, totals } => {
                let (s, tenths) = (lasted_ns / 1_000_000_000, lasted_ns / 100_000_000 % 10);
                write!(f, "session {session} ended: {title} for {peer}, {reason}, after {s}.{tenths} s")?;
                let Some(Totals { packets, bytes, unreachable, late }) = totals else { return Ok(()) };
                write!(f, ", {packets} packets, {bytes} bytes, {unreachable} refused, {late} late")
            }
            Self::Refused { peer, title, status, reason } => {
                write!(f, "refused {title} to {peer} with {status}: {reason}")
            }
            Self::Broken { title, reason } => write!(f, "title {title} cannot be played: {reason}"),
            Self::EngineSilent { session } => {
                write!(f, "session {session}: the engine did not answer in time; its core may be stuck")
            }
            Self::ConnectionRefused { address, reason } => {
                write!(f, "connection from {address} refused: {reason}")
            }
            Self::BadMessage { peer, what } => {
                write!(f, "{peer} sent what is not RTSP: {what}; connection closed")
            }
            Self::TooSlow { peer, what } => write!(f, "connection of {peer} closed: {what}"),
        }
    }
}
