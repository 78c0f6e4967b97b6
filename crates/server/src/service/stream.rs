//! One viewer's stream: what it plays, where its packets go, and where it stands in the engine.
//!
//! | from \ what comes | play | pause | the run's end | close, failure |
//! | --- | --- | --- | --- | --- |
//! | `Fresh` | `Running` | nothing | - | over |
//! | `Running` | `Pausing`, then `Running`: a seek | `Pausing` | `Ended` | over |
//! | `Pausing` | waits, then `Running` | nothing | `Paused`, or `Ended` if it was faster | over |
//! | `Paused` | `Running`: goes on, or a jump | nothing | - | over |
//! | `Ended` | `Running` | nothing | - | over |

use std::fmt;
use std::net::SocketAddr;

use millrace_core::dest::Dest;
use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_offload::command;

use super::conns::ConnKey;
use super::fec::Fec;
use super::ports::{AccessPoint, Entry};

/// A stream, for as long as the server runs: never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamKey(pub u64);

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

/// How packets reach the viewer. The engine's is the same, but for the name of the connection.
pub type Path = Dest<ConnKey>;

/// UDP ports of the viewer at which it gets something, each once.
pub(super) fn ports_of(path: Path) -> impl Iterator<Item = u16> {
    let (media, rtcp) = match path {
        Path::Udp { port, rtcp_port, .. } => (Some(port), rtcp_port),
        Path::Multicast { .. } | Path::Interleaved { .. } | Path::Bytes { .. } => (None, None),
    };
    media.into_iter().chain(rtcp.filter(|_| rtcp != media))
}

/// A run, as far as it is known before the stream stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) start: Start,
    /// `None`: the end that was played to so far, or that of the title.
    pub(super) stop: Option<Stop>,
    /// The connection by which the viewer is told of it, before the first packet.
    pub(super) told_by: Option<ConnKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A jump to here.
    Access(AccessPoint),
    /// Where the stream stopped.
    Resume,
}

/// A plan that must wait for the engine to say where the stream stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) plan: Plan,
    pub(super) since: Instant,
}

/// One viewer's stream. Protocols read it; the service alone changes it.
pub struct Stream {
    pub(super) key: StreamKey,
    /// What log lines call it.
    pub(super) label: Box<str>,
    pub(super) entry: Entry,
    /// The title, open for this stream.
    pub(super) title: TitleRef,
    pub(super) viewer: SocketAddr,
    pub(super) path: Path,
    /// The connection it was made on, while that is open.
    pub(super) owner: Option<ConnKey>,
    pub(super) engine: usize,
    /// Its place in the engine.
    pub(super) place: StreamId,
    /// The last run of its places.
    pub(super) last_run: RunSerial,
    /// Bits a second that admission counts for it.
    pub(super) rate: u64,
    /// It holds a stream and `rate` of what the operator allows.
    pub(super) is_reserved: bool,
    /// Since when it has not played, while it does not.
    pub(super) idle_since: Instant,
    pub(super) media: Media,
    pub(super) pending: Option<Pending>,
    /// The engine that goes on with it when it stands still.
    pub(super) moves_to: Option<usize>,
    /// It is to end when its BYE is out.
    pub(super) ending: Option<EndReason>,
    /// What it has got when it asked for FEC.
    pub(super) fec: Option<Fec>,
    pub(super) started: Instant,
    /// What its viewer reported last.
    pub(super) report: Option<ReportBlock>,
    /// What its engine said last.
    pub(super) backlog_bytes: Option<u64>,
}

/// What a viewer says that it has lost. Shown, never acted upon: first reports of common players are nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedLoss {
    /// Packets in all; negative if more came than were sent.
    pub packets: i32,
    /// Share of the packets between its last two reports, in 1/256.
    pub fraction_256: u8,
}

impl Stream {
    /// Its name.
    pub fn key(&self) -> StreamKey {
        self.key
    }

    /// What log lines call it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What it plays.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Who gets it.
    pub fn viewer(&self) -> SocketAddr {
        self.viewer
    }

    /// How packets reach the viewer.
    pub fn path(&self) -> Path {
        self.path
    }

    /// The connection it was made on, while that is open.
    pub fn owner(&self) -> Option<ConnKey> {
        self.owner
    }

    /// When it was admitted.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What its viewer reported last ([`super::Service::note_report`]).
    pub fn report(&self) -> Option<ReportBlock> {
        self.report
    }

    /// What its viewer says that it has lost, if it says anything.
    pub fn reported_loss(&self) -> Option<ReportedLoss> {
        let ReportBlock { cumulative_lost, fraction_lost, .. } = self.report?;
        Some(ReportedLoss { packets: cumulative_lost, fraction_256: fraction_lost })
    }

    /// Bytes that its connection was given and its viewer had not acknowledged when the engine was last asked
    /// ([`super::Service::measure`]). `None`: it was not, or the stream goes through no connection.
    pub fn backlog_bytes(&self) -> Option<u64> {
        self.backlog_bytes
    }

    /// Whether packets are sent, or are about to be.
    pub fn is_playing(&self) -> bool {
        self.goes_on() || matches!(self.media, Media::Running(_))
    }

    /// Whether it has never played.
    pub fn is_fresh(&self) -> bool {
        self.media == Media::Fresh
    }

    /// Whether something that was asked is still being carried out: nothing else can be.
    pub fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether nothing is sent, and nothing is about to be.
    pub(super) fn stands_still(&self) -> bool {
        let still = matches!(self.media, Media::Fresh | Media::Paused { .. } | Media::Ended { .. });
        still && self.pending.is_none() && !self.goes_on()
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

    /// Where the end of the title is.
    pub(super) fn title_end(&self) -> Stop {
        Stop { packet: self.entry.packets, time: self.entry.end() }
    }

    /// The media time that is being sent now, as well as it is known here.
    pub fn position(&self, now: Instant) -> Option<MediaTicks> {
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

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its viewer wants no more.
    TornDown,
    /// Nothing was heard from the viewer for the announced time.
    Expired,
    /// Its connection is gone; for UDP, after the viewer's RTCP said BYE.
    Disconnected,
    /// The viewer has set up another session on the same UDP port.
    Replaced,
    /// It was not playing, and the tables of sessions or streams were nearly full.
    TablesFull,
    /// The machine has become too slow for all that play, and it was among the newest.
    Overloaded,
    /// The engine cannot go on.
    Failed(command::FailReason),
    /// The engine refused a command.
    Refused(command::Refusal),
    /// The server stops.
    Shutdown,
}

impl EndReason {
    /// Whether it is something to look after.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::Failed(_) | Self::Refused(_) | Self::Overloaded)
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TornDown => f.write_str("torn down"),
            Self::Expired => f.write_str("expired: nothing heard from the viewer"),
            Self::Disconnected => f.write_str("disconnected"),
            Self::Replaced => f.write_str("replaced by a new session on the same port"),
            Self::TablesFull => {
                f.write_str("ended early: not playing, and the session tables are nearly full")
            }
            Self::Overloaded => f.write_str("the server is overloaded and ends its newest streams"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
            Self::Refused(refusal) => write!(f, "failed: the engine refused it: {refusal}"),
            Self::Shutdown => f.write_str("server shutting down"),
        }
    }
}
