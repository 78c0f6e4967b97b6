//! The life of a session (RFC 2326 appendix A.2), and where its stream stands in the engine.
//!
//! ```text
//!          SETUP                 PLAY
//!   Init ---------> Ready <----------------> Playing
//!     ^               |   PAUSE, end of range   |
//!     +---------------+------ TEARDOWN ---------+
//!                        expiry, failure
//! ```
//!
//! | state | SETUP | PLAY | PAUSE | TEARDOWN |
//! | --- | --- | --- | --- | --- |
//! | Init (no session) | Ready | 455 | 455 | 454 |
//! | Ready | Ready, other transport | Playing | Ready, nothing changes | Init |
//! | Playing | 455 | Playing: a seek, or nothing changes | Ready | Init |

use std::net::SocketAddr;

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command;

use super::fec::Fec;
use super::{ConnKey, SessionKey};
use crate::rtsp::reply::ReplyHead;
use crate::service::{AccessPoint, Entry};

/// The states of RFC 2326 appendix A.2. Init has no session, so no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Set up, nothing is sent.
    Ready,
    /// Packets are sent.
    Playing,
}

impl State {
    /// `Allow` in a 455 (RFC 2326 section 12.4).
    pub(super) fn allow(state: Option<Self>) -> &'static str {
        match state {
            None => "OPTIONS, DESCRIBE, SETUP",
            Some(Self::Ready) => crate::rtsp::reply::PUBLIC,
            Some(Self::Playing) => "OPTIONS, DESCRIBE, PLAY, PAUSE, GET_PARAMETER, SET_PARAMETER, TEARDOWN",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Playing => "playing",
        }
    }
}

/// Packets under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// What the engine calls it.
    pub(super) serial: RunSerial,
    /// Media time of the first packet, where it is known.
    pub(super) from_time: Option<MediaTicks>,
    /// When it leaves.
    pub(super) at: Instant,
    /// Where it ends.
    pub(super) stop: Stop,
}

/// The end of what is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Packet before which sending ends.
    pub(super) packet: u32,
    /// The time that is announced.
    pub(super) time: MediaTicks,
}

/// Where the stream stands in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// Never played.
    Fresh,
    /// The engine sends.
    Running(Run),
    /// The engine has been told to pause and has not answered yet.
    Pausing(Run),
    /// The engine has stopped before this packet.
    Paused { next_packet: u32, next_sequence: u16, stop: Stop },
    /// BYE has been sent.
    Ended { next_sequence: u16, stop: Stop },
}

impl Media {
    pub(super) fn state(&self) -> State {
        if matches!(self, Self::Running(_)) { State::Playing } else { State::Ready }
    }

    /// The same place in the same title in packets of another size: what stood still goes on with the packet that holds
    /// the next byte.
    pub(super) fn in_size_of(self, from: &Entry, to: &Entry) -> Self {
        let (old, new) = (from.layout.packet_bytes() as u64, to.layout.packet_bytes() as u64);
        let packet = |packet: u32| (u64::from(packet) * old / new).min(u64::from(to.packets)) as u32;
        let end = |stop: Stop| {
            let packet = (u64::from(stop.packet) * old).div_ceil(new).min(u64::from(to.packets));
            Stop { packet: packet as u32, ..stop }
        };
        match self {
            _ if old == new => self,
            Self::Paused { next_packet, next_sequence, stop } => {
                Self::Paused { next_packet: packet(next_packet), next_sequence, stop: end(stop) }
            }
            Self::Ended { next_sequence, stop } => Self::Ended { next_sequence, stop: end(stop) },
            // A stream that runs is not moved.
            Self::Fresh | Self::Running(_) | Self::Pausing(_) => self,
        }
    }
}

/// How packets reach the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// By UDP, to the address of the RTSP connection.
    Udp {
        /// Client's RTP port.
        rtp_port: u16,
        /// Client's RTCP port.
        rtcp_port: u16,
    },
    /// Inside an RTSP connection.
    Tcp {
        /// The connection.
        conn: ConnKey,
        /// Channel of RTP.
        rtp_channel: u8,
        /// Channel of RTCP.
        rtcp_channel: u8,
    },
}

/// What a PLAY asks for, once its headers have been understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) start: Start,
    /// `None`: the end that was played to so far, or that of the title.
    pub(super) stop: Option<Stop>,
    /// The request had a `Scale` or `Speed` header, so the reply has it too.
    pub(super) scale: bool,
    pub(super) speed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A jump to here.
    Access(AccessPoint),
    /// Where the stream stopped.
    Resume,
}

/// A PLAY whose answer must wait for the engine to say where the stream stopped.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Who asked.
    pub(super) conn: ConnKey,
    pub(super) head: ReplyHead,
    pub(super) plan: Plan,
    pub(super) since: Instant,
}

/// One viewer's session.
pub(super) struct Session {
    pub(super) key: SessionKey,
    /// What the viewer calls it.
    pub(super) id: Box<str>,
    pub(super) entry: Entry,
    /// The title, open for this session.
    pub(super) title: TitleRef,
    /// The RTSP peer at SETUP.
    pub(super) peer: SocketAddr,
    pub(super) path: Path,
    /// The connection it was made on, while that is open.
    pub(super) owner: Option<ConnKey>,
    pub(super) engine: usize,
    pub(super) stream: StreamId,
    /// The last run of its streams.
    pub(super) last_run: RunSerial,
    /// Bits a second that admission counts for it.
    pub(super) rate: u64,
    /// It holds a stream and `rate` of what the operator allows.
    pub(super) is_reserved: bool,
    /// Since when it has not played, while it does not.
    pub(super) idle_since: Instant,
    pub(super) media: Media,
    pub(super) pending: Option<Pending>,
    /// What its SETUP got when it asked for FEC.
    pub(super) fec: Option<Fec>,
    /// The URL of SETUP, for `RTP-Info`.
    pub(super) url: String,
    pub(super) last_heard: Instant,
    pub(super) started: Instant,
    /// The viewer has sent BYE.
    pub(super) said_bye: bool,
    /// What the viewer reported last. Shown, never acted upon: first reports of common players are nonsense.
    pub(super) report: Option<ReportBlock>,
}

impl Session {
    /// For log lines: the name itself is the key to the session.
    pub(super) fn short_id(&self) -> String {
        self.id.chars().take(8).collect()
    }

    /// Whether nothing is sent, and nothing is about to be.
    pub(super) fn stands_still(&self) -> bool {
        let still = matches!(self.media, Media::Fresh | Media::Paused { .. } | Media::Ended { .. });
        still && self.pending.is_none() && !self.goes_on()
    }

    /// Its state, as its viewer sees it.
    pub(super) fn state(&self) -> State {
        if self.goes_on() { State::Playing } else { self.media.state() }
    }

    /// What its runs send.
    pub(super) fn run_media(&self) -> command::Media {
        let Entry { packets, timeline, layout, .. } = self.entry;
        command::Media { title: self.title, packets, timeline, layout, spare: self.spare() }
    }

    /// A name for one more run.
    pub(super) fn next_run(&mut self) -> RunSerial {
        self.last_run = self.last_run.next();
        self.last_run
    }

    /// IPv6 zone of a link-local viewer, 0 otherwise.
    pub(super) fn scope_id(&self) -> u32 {
        match self.peer {
            SocketAddr::V6(peer) => peer.scope_id(),
            SocketAddr::V4(_) => 0,
        }
    }

    /// Where the end of the title is.
    pub(super) fn title_end(&self) -> Stop {
        Stop { packet: self.entry.packets, time: self.entry.end() }
    }

    /// The media time that is being sent now, as well as it is known here.
    pub(super) fn position(&self, now: Instant) -> Option<MediaTicks> {
        match self.media {
            Media::Fresh => Some(MediaTicks(0)),
            Media::Running(run) | Media::Pausing(run) => {
                let played = MediaTicks::from_ns(now.ns_since(run.at));
                run.from_time.map(|from| MediaTicks(from.0 + played.0).min(run.stop.time))
            }
            Media::Paused { next_packet, .. } => self.entry.access.time_of(next_packet),
            Media::Ended { stop, .. } => Some(stop.time),
        }
    }
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// TEARDOWN.
    TornDown,
    /// Nothing was heard from the viewer for the announced time.
    Expired,
    /// Its connection is gone; for UDP, after the viewer's RTCP said BYE.
    Disconnected,
    /// The viewer has set up another session on the same UDP port.
    Replaced,
    /// It was not playing, and the tables of sessions or streams were nearly full.
    TablesFull,
    /// The engine cannot go on.
    Failed(millrace_offload::command::FailReason),
    /// The engine refused a command.
    Refused(millrace_offload::command::Refusal),
    /// The server stops.
    Shutdown,
}

impl EndReason {
    /// Whether it is something to look after.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed(_) | Self::Refused(_))
    }
}

impl std::fmt::Display for EndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TornDown => f.write_str("torn down"),
            Self::Expired => f.write_str("expired: nothing heard from the viewer"),
            Self::Disconnected => f.write_str("disconnected"),
            Self::Replaced => f.write_str("replaced by a new session on the same port"),
            Self::TablesFull => {
                f.write_str("ended early: not playing, and the session tables are nearly full")
            }
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::Refused(refusal) => write!(f, "failed: the engine refused it: {refusal}"),
            Self::Shutdown => f.write_str("server shutting down"),
        }
    }
}
