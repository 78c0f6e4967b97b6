//! What happened, as one stream of values. Protocols act on some of them, the log writes some ([`ServiceEvent::is_logged`]), counters count; whoever
//! else wants to know reads the same.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;

use super::adapt::Cause;
use super::keys::{ConnKey, StreamKey};
use super::listeners::CastNotice;
use super::matrix::FecMode;
use super::refusal::{ConnRefusal, Refusal};
use super::speed::Speed;
use super::stream::{EndReason, ReportedLoss, Totals};
use crate::admission::AdmissionNotice;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum ServiceEvent {
    /// A viewer has been given a stream.
    Started {
        /// What log lines call it: enough of a session's name to find it, not enough to take it over.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// `udp 5000-5001` or `tcp channels 0-1`.
        transport: String,
        /// The name that the viewer's program gives itself, if it does.
        agent: Option<String>,
        /// The connection of the request.
        conn: Option<ConnKey>,
        /// The engine that sends it.
        engine: usize,
    },
    /// It plays, for the first time or again: its first packet has not left yet.
    Playing(Playing),
    /// A request for a busy stream cannot be carried out now that it stands still.
    PlayRefused {
        /// The stream.
        stream: StreamKey,
        /// Why.
        refusal: Refusal,
    },
    /// It has paused.
    Paused {
        /// The session.
        session: String,
        /// The title.
        title: String,
    },
    /// It goes over to another rendition.
    Rendition {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// The rendition sent before.
        from: RenditionName,
        /// The rendition sent from now on.
        to: RenditionName,
        /// From this place on, where that is known.
        at: Option<MediaTicks>,
        /// Why.
        cause: Cause,
    },
    /// Another rendition cannot be read: the one that is sent goes on.
    RenditionFailed {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// The rendition that should have been sent.
        to: RenditionName,
        /// Why it is not.
        reason: String,
    },
    /// The title has been sent to its end, and BYE with it.
    Finished {
        /// The session.
        session: String,
        /// The title.
        title: String,
    },
    /// The last one of the bytes of a title that were asked for has been taken.
    BytesSent {
        /// The connection that they went into.
        conn: ConnKey,
    },
    /// A viewer has begun to fetch segments of a title.
    FetchBegan {
        /// What log lines call it: the id of its first request.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// The name that the viewer's program gives itself, if it does.
        agent: Option<String>,
    },
    /// It is no longer counted: most viewers have then played their media, and fetch no more.
    FetchEnded {
        /// What log lines call it.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// Why.
        reason: EndReason,
        /// Nanoseconds from its first request to its end.
        lasted_ns: u64,
    },
    /// Bytes of a title have been ordered, and an engine is to send them.
    Ordered {
        /// What log lines call it: the id of the request.
        label: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// The engine.
        engine: usize,
    },
    /// The engine has forgotten a stream of bytes.
    Delivered {
        /// What log lines call it.
        label: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// Why it was over.
        reason: EndReason,
        /// Nanoseconds from its admission to its end.
        lasted_ns: u64,
        /// Totals of the data sent; `None` if the engine was gone before it could report them.
        totals: Option<Totals>,
    },
    /// The stream is over: it can be named no longer. [`ServiceEvent::Closed`] follows, or [`ServiceEvent::Delivered`].
    Ended {
        /// The stream.
        stream: StreamKey,
        /// It was a stream of bytes.
        is_bytes: bool,
        /// The connection that it belonged to, if that was open.
        conn: Option<ConnKey>,
        /// Why.
        reason: EndReason,
    },
    /// The engine has forgotten a stream that was over.
    Closed {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// The viewer.
        peer: SocketAddr,
        /// Why it was over.
        reason: EndReason,
        /// Nanoseconds from set-up to end.
        lasted_ns: u64,
        /// Totals of the data sent in its last place; `None` if the engine was gone before it could
        /// report them.
        totals: Option<Totals>,
        /// The viewer's last report of its loss.
        reported_loss: Option<ReportedLoss>,
        /// Bytes that its connection was given and that it has not acknowledged.
        backlog_bytes: Option<u64>,
    },
    /// A run of media is over, with these data sent of its title.
    Sent {
        /// The title.
        title: String,
        /// Media packets sent.
        packets: u64,
        /// Their bytes.
        bytes: u64,
        /// Packets passed over, because they are damaged or left to the viewer to repair.
        missing: u64,
    },
    /// The FEC sent beside a session's media is settled, or has changed.
    Fec {
        /// The session.
        session: String,
        /// The title.
        title: String,
        /// How much.
        mode: FecMode,
        /// The occasion.
        change: FecChange,
        /// The reason why the viewer did not get the requested FEC.
        trouble: Option<String>,
    },
    /// Something is used up: a stream was not admitted, or may not play.
    NoRoom {
        /// The viewer.
        peer: SocketAddr,
        /// The title.
        title: String,
        /// The resource that is used up.
        refusal: Refusal,
    },
    /// A viewer's request was turned down, with this status of its protocol.
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
    /// A viewer's request was answered.
    Answered {
        /// The connection that it came by.
        conn: ConnKey,
        /// The requested method; empty if it could not be read.
        method: &'static str,
        /// The number that the viewer gave it.
        number: Option<u32>,
        /// The status it got.
        status: u16,
    },
    /// News of a cast that viewers have started.
    Cast(CastNotice),
    /// What admission by measured capacity has to say.
    Admission(AdmissionNotice),
    /// A title could not be opened.
    Broken {
        /// The title.
        title: String,
        /// Why.
        reason: String,
    },
    /// The engine did not report in time where the stream stopped; the request is given up.
    EngineSilent {
        /// The stream.
        stream: StreamKey,
        /// The session.
        session: String,
    },
    /// A sign of life came beside requests.
    Heard {
        /// Whether it is a report, or only a datagram.
        is_report: bool,
        /// Whether it is known whose it is.
        is_known: bool,
    },
    /// An ICMP error about a viewer came from neither that viewer nor this host.
    IcmpHearsay,
    /// A connection was accepted.
    ConnectionOpened {
        /// Its name.
        conn: ConnKey,
        /// Who.
        peer: SocketAddr,
    },
    /// A connection was not accepted.
    ConnectionRefused {
        /// Who.
        address: IpAddr,
        /// Why.
        refusal: ConnRefusal,
    },
    /// The offload engine carries connections from now on.
    OffloadUp {
        /// Where it listens.
        at: Vec<SocketAddr>,
    },
    /// The offload engine has ended; the kernel's TCP carries new connections.
    OffloadLost {
        /// Connections that ended with it.
        connections: usize,
        /// Why.
        why: String,
    },
    /// A connection broke under the engine's writes: it must be closed.
    ConnectionLost {
        /// The connection.
        conn: ConnKey,
    },
    /// No engine writes to a connection any more, and all data that had to be written has been
    /// ([`super::Service::take_back`]).
    ConnectionReturned {
        /// The connection.
        conn: ConnKey,
    },
    /// A peer sends data that the protocol does not know.
    BadMessage {
        /// Who.
        peer: SocketAddr,
        /// Its name.
        protocol: &'static str,
        /// The error.
        what: &'static str,
    },
    /// A connection was closed because nothing, or nothing whole, came from it in time.
    TooSlow {
        /// Who.
        peer: SocketAddr,
        /// The missing part.
        what: &'static str,
    },
    /// A connection was closed because its client did not take the data written to it.
    NotReading,
}

/// The media about to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Playing {
    /// The stream.
    pub stream: StreamKey,
    /// The session.
    pub session: String,
    /// The title.
    pub title: String,
    /// How fast, and in which direction, the title is shown.
    pub scale: Scale,
    /// How fast it is delivered.
    pub speed: Speed,
    /// Which rendition is sent at normal speed; `None`: there is one only.
    pub rendition: Option<RenditionName>,
    /// Where in the title the first packet is, where that is known.
    pub from: Option<MediaTicks>,
    /// Where it ends: before `from` if it is shown backwards.
    pub until: MediaTicks,
    /// RTP sequence number of the first packet.
    pub sequence: u16,
    /// Its RTP timestamp, where that is known.
    pub timestamp: Option<u32>,
    /// This is a jump within the title.
    pub seek: bool,
    /// It is one because the place where the viewer paused was not held any more.
    pub has_lost_place: bool,
    /// Why it plays without the FEC that it was promised.
    pub without_fec: Option<String>,
    /// The transformation of the media sent.
    pub transform: Option<Arc<str>>,
}

/// What made FEC news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FecChange {
    /// The stream was admitted.
    Granted,
    /// It was switched.
    Switched,
    /// It could not be read or sent any more.
    Failed,
}

impl ServiceEvent {
    /// Whether it has a line in the log. The others happen with one that has, or too often.
    pub fn is_logged(&self) -> bool {
        if let Self::Delivered { reason, .. } = self {
            return reason.is_failure();
        }
        !matches!(
            self,
            Self::PlayRefused { .. }
                | Self::Ended { .. }
                | Self::BytesSent { .. }
                | Self::Ordered { .. }
                | Self::Sent { .. }
                | Self::NoRoom { .. }
                | Self::Answered { .. }
                | Self::Heard { .. }
                | Self::IcmpHearsay
                | Self::ConnectionOpened { .. }
                | Self::ConnectionLost { .. }
                | Self::ConnectionReturned { .. }
                | Self::NotReading
        )
    }

    /// Returns whether it has a line in the log of single requests: the events that come with every
    /// one of them.
    pub fn is_traced(&self) -> bool {
        matches!(
            self,
            Self::ConnectionOpened { .. }
                | Self::Answered { .. }
                | Self::Ordered { .. }
                | Self::Delivered { .. }
        )
    }

    /// By what its line is found among those of the same request: `conn-7`, `http-3.1`, or a session's name, which stands with its connection where
    /// it starts.
    pub fn id(&self) -> Option<String> {
        match self {
            Self::ConnectionOpened { conn, .. } | Self::Answered { conn, .. } => Some(conn.to_string()),
            Self::Ordered { label, .. } | Self::Delivered { label, .. } => Some(label.clone()),
            Self::Started { session, .. }
            | Self::Playing(Playing { session, .. })
            | Self::Paused { session, .. }
            | Self::Rendition { session, .. }
            | Self::RenditionFailed { session, .. }
            | Self::Finished { session, .. }
            | Self::Closed { session, .. }
            | Self::FetchBegan { session, .. }
            | Self::FetchEnded { session, .. }
            | Self::Fec { session, .. }
            | Self::EngineSilent { session, .. } => Some(session.clone()),
            _ => None,
        }
    }

    /// Whether something of the server failed: what clients cause in crowds must not hide it in the log.
    pub fn is_failure(&self) -> bool {
        match self {
            Self::Closed { reason, .. }
            | Self::Delivered { reason, .. }
            | Self::FetchEnded { reason, .. } => reason.is_failure(),
            Self::Fec { trouble, .. } => trouble.is_some(),
            Self::Cast(notice) => notice.is_failure(),
            Self::Broken { .. }
            | Self::EngineSilent { .. }
            | Self::RenditionFailed { .. }
            | Self::OffloadLost { .. }
            | Self::Admission(_) => true,
            _ => false,
        }
    }

    /// Whether the operator should look after it.
    pub fn is_warning(&self) -> bool {
        let by_clients = matches!(
            self,
            Self::Refused { .. }
                | Self::ConnectionRefused { .. }
                | Self::BadMessage { .. }
                | Self::TooSlow { .. }
        );
        by_clients || self.is_failure()
    }
}

impl fmt::Display for Playing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, title, from, seek, has_lost_place, scale, rendition, .. } = self;
        let plays = if *seek { "seeks" } else { "plays" };
        write!(f, "session {session} {plays}: {title} from {}", from.unwrap_or_default())?;
        if *has_lost_place {
            f.write_str(", the oldest place that is left: it paused for longer than the title is kept")?;
        }
        match rendition {
            _ if !scale.is_normal() => write!(f, " at speed {scale}"),
            Some(rendition) => write!(f, " as {rendition}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ServiceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { session, title, peer, transport, agent, conn, engine } => {
                write!(f, "session {session} started: {title} for {peer} by {transport}")?;
                agent.as_ref().map_or(Ok(()), |agent| write!(f, " ({agent})"))?;
                conn.map_or(Ok(()), |conn| write!(f, ", asked for by {conn}"))?;
                write!(f, ", engine {engine}")
            }
            Self::Playing(playing) => playing.fmt(f),
            Self::Rendition { session, title, from, to, at, cause } => {
                write!(f, "session {session} goes from {from} to {to}: {title} ")?;
                at.map_or(Ok(()), |at| write!(f, "at {at} "))?;
                cause.fmt(f)
            }
            Self::RenditionFailed { session, title, to, reason } => {
                write!(f, "session {session} stays as it is: {title} as {to} cannot be sent, {reason}")
            }
            Self::Paused { session, title } => write!(f, "session {session} pauses: {title}"),
            Self::Fec { session, title, mode, trouble, .. } => {
                write!(f, "session {session} has FEC {mode}: {title}")?;
                trouble.as_ref().map_or(Ok(()), |trouble| write!(f, ", {trouble}"))
            }
            Self::Finished { session, title } => write!(f, "session {session} played to the end: {title}"),
            Self::Closed {
                session,
                title,
                peer,
                reason,
                lasted_ns,
                totals,
                reported_loss,
                backlog_bytes,
            } => {
                let (s, tenths) = (lasted_ns / 1_000_000_000, lasted_ns / 100_000_000 % 10);
                write!(f, "session {session} ended: {title} for {peer}, {reason}, after {s}.{tenths} s")?;
                let Some(Totals { packets, bytes, unreachable, late }) = totals else { return Ok(()) };
                write!(f, ", {packets} packets, {bytes} bytes, {unreachable} refused, {late} late")?;
                reported_loss.map_or(Ok(()), |loss| write!(f, ", {} reported lost", loss.packets))?;
                backlog_bytes.map_or(Ok(()), |bytes| write!(f, ", {bytes} bytes not acknowledged"))
            }
            Self::FetchBegan { .. } | Self::FetchEnded { .. } => show_fetcher(f, self),
            Self::Refused { peer, title, status, reason } => {
                write!(f, "refused {title} to {peer} with {status}: {reason}")
            }
            Self::Admission(news) => news.fmt(f),
            Self::Cast(notice) => notice.fmt(f),
            Self::Broken { title, reason } => write!(f, "title {title} cannot be played: {reason}"),
            Self::EngineSilent { session, .. } => {
                write!(f, "session {session}: the engine did not answer in time; its core may be stuck")
            }
            Self::ConnectionRefused { address, refusal } => {
                write!(f, "connection from {address} refused: {}", refusal.reason())
            }
            Self::BadMessage { peer, protocol, what } => {
                write!(f, "{peer} sent what is not {protocol}: {what}; connection closed")
            }
            Self::TooSlow { peer, what } => write!(f, "connection of {peer} closed: {what}"),
            Self::OffloadUp { at } => show_offload(f, at),
            Self::OffloadLost { connections, why } => show_offload_lost(f, *connections, why),
            traced if traced.is_traced() => show_request(f, traced),
            silent => write!(f, "{silent:?}"),
        }
    }
}

/// Formats the events that come with every request.
fn show_request(f: &mut fmt::Formatter<'_>, event: &ServiceEvent) -> fmt::Result {
    match event {
        ServiceEvent::ConnectionOpened { conn, peer } => write!(f, "{conn} opened by {peer}"),
        ServiceEvent::Answered { conn, method, number, status } => {
            write!(f, "{conn}: {method} ")?;
            number.map_or(Ok(()), |number| write!(f, "{number} "))?;
            write!(f, "answered with {status}")
        }
        ServiceEvent::Ordered { label, title, peer, engine } => {
            write!(f, "{label}: {title} for {peer}, engine {engine}")
        }
        ServiceEvent::Delivered { label, title, peer, reason, lasted_ns, .. } => {
            let ms = lasted_ns / 1_000_000;
            write!(f, "{label}: {title} for {peer}, {reason}, after {ms} ms")
        }
        silent => write!(f, "{silent:?}"),
    }
}

/// A viewer that fetches segments.
fn show_fetcher(f: &mut fmt::Formatter<'_>, event: &ServiceEvent) -> fmt::Result {
    match event {
        ServiceEvent::FetchBegan { session, title, peer, agent } => {
            write!(f, "session {session} started: {title} for {peer} by segments")?;
            agent.as_ref().map_or(Ok(()), |agent| write!(f, " ({agent})"))
        }
        ServiceEvent::FetchEnded { session, title, peer, reason, lasted_ns } => {
            let (s, tenths) = (lasted_ns / 1_000_000_000, lasted_ns / 100_000_000 % 10);
            write!(f, "session {session} ended: {title} for {peer}, {reason}, after {s}.{tenths} s")
        }
        silent => write!(f, "{silent:?}"),
    }
}

fn show_offload(f: &mut fmt::Formatter<'_>, at: &[SocketAddr]) -> fmt::Result {
    let at: Vec<_> = at.iter().map(ToString::to_string).collect();
    write!(f, "the offload engine carries connections to {}", at.join(", "))
}

fn show_offload_lost(f: &mut fmt::Formatter<'_>, connections: usize, why: &str) -> fmt::Result {
    let plural = if connections == 1 { "" } else { "s" };
    write!(
        f,
        "the offload engine has ended: {why}. {connections} connection{plural} ended with it; new ones "
    )?;
    f.write_str("are carried by the kernel's TCP, and the engine is started again when it can be")
}
