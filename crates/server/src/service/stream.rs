//! One viewer's stream: the title it plays, the destination of its packets, and its state in the
//! engine.
//!
//! | from \ event | play | pause | the run's end | close, failure |
//! | --- | --- | --- | --- | --- |
//! | `Fresh` | `Running` | nothing | - | over |
//! | `Running` | `Pausing`, then `Running`: a seek | `Pausing` | `Ended` | over |
//! | `Pausing` | waits, then `Running` | nothing | `Paused`, or `Ended` if it was faster | over |
//! | `Paused` | `Running`: goes on, or a jump | nothing | - | over |
//! | `Ended` | `Running` | nothing | - | over |
//!
//! A run backwards has no end but the title's beginning: there it is paused before its BYE.

use std::fmt;
use std::net::SocketAddr;

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::ReportBlock;
use millrace_core::wire::rtp::Timeline;
use millrace_offload::command;
use millrace_rights::Quota;

use super::keys::{ConnKey, StreamKey, StreamPath};
use super::parity::Fec;
use super::ports::TitleEntry;
use super::rendition::Renditions;
use super::run::{DeliveryState, PendingPlan, PlannedRun, Queued, Start};
use super::shown::SubstituteTitle;
use super::speed::Speed;
use crate::limits::control::{REPORTER_SILENT_NS, VIEWER_SILENT_NS};

impl PlannedRun {
    /// To go on with the packet before which the stream stopped.
    pub(super) fn resume(stream: &PlaybackStream) -> Self {
        let (scale, speed) = (stream.scale, stream.speed);
        Self { start: Start::Resume, stop: None, scale, speed, told_by: None }
    }
}

/// One viewer's stream. Protocols read it; the service alone changes it.
pub struct PlaybackStream {
    pub(super) key: StreamKey,
    /// What log lines call it.
    pub(super) label: Box<str>,
    pub(super) entry: TitleEntry,
    /// The title, open for this stream.
    pub(super) title: TitleRef,
    pub(super) viewer: SocketAddr,
    /// What its user may have.
    pub(super) quota: Option<Quota>,
    /// The viewer that fetches it as one segment of many: that holds room, and this does not.
    pub(super) fetcher: Option<u64>,
    pub(super) path: StreamPath,
    /// The connection it was made on, while that is open.
    pub(super) owner: Option<ConnKey>,
    pub(super) engine: usize,
    /// Its place in the engine.
    pub(super) place: StreamId,
    /// The last run of its places.
    pub(super) last_run: RunSerial,
    /// Bits a second that admission counts for it.
    pub(super) rate: u64,
    /// It holds one stream and `rate` of the operator's limits.
    pub(super) is_reserved: bool,
    /// Since when it has not played, while it does not.
    pub(super) idle_since: Instant,
    /// The last sign of life from its viewer.
    pub(super) last_heard: Instant,
    pub(super) media: DeliveryState,
    /// At which speed its last run showed the title.
    pub(super) scale: Scale,
    /// How fast that was delivered.
    pub(super) speed: Speed,
    /// The RTP timeline of this run.
    pub(super) timeline: Timeline,
    /// The timeline of the entry it was admitted with: its SSRC is the stream's.
    pub(super) home: Timeline,
    /// It has shown its title at another speed: from then on its timestamps go on from run to run.
    pub(super) has_own_timeline: bool,
    /// The titles made from its title that are open for it.
    pub(super) made: Vec<SubstituteTitle>,
    /// The renditions of its title, with the one that is sent and the one that is wanted.
    pub(super) renditions: Renditions,
    /// The run that the engine has been ordered to switch to.
    pub(super) queued: Option<Queued>,
    /// Bits a second of its rate for faster delivery than the normal one.
    pub(super) speed_rate: u64,
    pub(super) pending: Option<PendingPlan>,
    /// The engine that goes on with it when it stands still.
    pub(super) moves_to: Option<usize>,
    /// It is to end when its BYE is out.
    pub(super) ending: Option<EndReason>,
    /// Its FEC, if it asked for FEC.
    pub(super) fec: Option<Fec>,
    pub(super) started: Instant,
    /// What its viewer reported last.
    pub(super) report: Option<ReportBlock>,
    /// The last value that its engine reported.
    pub(super) backlog_bytes: Option<u64>,
    /// When the engine last reported for how long the next packet had been due, and this time.
    pub(super) behind: Option<(Instant, u64)>,
}

/// The loss that a viewer reports. No single report is acted upon: first reports of common players
/// are nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedLoss {
    /// Packets in all; negative if more came than were sent.
    pub packets: i32,
    /// Share of the packets between its last two reports, in 1/256.
    pub fraction_256: u8,
}

impl PlaybackStream {
    /// Its name.
    pub fn key(&self) -> StreamKey {
        self.key
    }

    /// What log lines call it.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The entry that it plays.
    pub fn entry(&self) -> &TitleEntry {
        &self.entry
    }

    /// The RTP source announced to its viewer.
    pub fn ssrc(&self) -> u32 {
        self.home.ssrc
    }

    /// Who gets it.
    pub fn viewer(&self) -> SocketAddr {
        self.viewer
    }

    /// How packets reach the viewer.
    pub fn path(&self) -> StreamPath {
        self.path
    }

    /// The connection it was made on, while that is open.
    pub fn owner(&self) -> Option<ConnKey> {
        self.owner
    }

    /// Bits a second that it needs while it plays.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// The last sign of life from its viewer ([`super::Service::note_alive`]).
    pub fn last_heard(&self) -> Instant {
        self.last_heard
    }

    /// Whether the viewer seems to be gone, so that another may use its UDP ports: its connection
    /// is closed, or it is silent. A viewer that has sent reports sends them every few seconds; the
    /// requests of one that has not may be far apart.
    pub(super) fn is_abandoned(&self, now: Instant) -> bool {
        let limit = if self.report.is_some() { REPORTER_SILENT_NS } else { VIEWER_SILENT_NS };
        self.owner.is_none() || now.ns_since(self.last_heard) > limit
    }

    /// When it was admitted.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// What its viewer reported last ([`super::Service::note_report`]).
    pub fn report(&self) -> Option<ReportBlock> {
        self.report
    }

    /// The loss that its viewer reports, if it sends reports.
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
        self.goes_on() || matches!(self.media, DeliveryState::Running(_))
    }

    /// Whether it has never played.
    pub fn is_fresh(&self) -> bool {
        self.media == DeliveryState::Fresh
    }

    /// Whether something that was asked is still being carried out: nothing else can be.
    pub fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether nothing is sent, and nothing is about to be.
    pub(super) fn stands_still(&self) -> bool {
        let still = matches!(
            self.media,
            DeliveryState::Fresh | DeliveryState::Paused { .. } | DeliveryState::Ended { .. }
        );
        still && self.pending.is_none() && !self.goes_on()
    }

    /// At which speed the title is shown, or was last.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    /// How fast it is delivered, or was last.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Whether its runs show the title as it is, when it is due: FEC goes with no others.
    pub(super) fn is_plain(&self) -> bool {
        self.scale.is_normal() && self.speed.is_normal()
    }

    /// What its runs send.
    pub(super) fn run_media(&self) -> command::RunMedia {
        self.media_at(self.scale, self.renditions.sent)
    }

    /// A name for one more run.
    pub(super) fn next_run(&mut self) -> RunSerial {
        self.last_run = self.last_run.next();
        self.last_run
    }

    /// The place in the title that is being sent now, as well as it is known here.
    pub fn position(&self, now: Instant) -> Option<MediaTicks> {
        let shown = self.shown();
        match self.media {
            DeliveryState::Fresh => Some(MediaTicks(0)),
            DeliveryState::Running(run) | DeliveryState::Pausing(run) => {
                let ns =
                    u128::from(now.ns_since(run.at.max(run.due))) * u128::from(run.speed.permille()) / 1_000;
                let seen = MediaTicks::from_ns(u64::try_from(ns).unwrap_or(u64::MAX));
                run.from_time.map(|from| shown.after(from, seen, run.stop))
            }
            // Behind the last packet there is the end that was announced.
            DeliveryState::Paused { next_packet, stop, .. } if next_packet >= stop.packet => Some(stop.time),
            DeliveryState::Paused { next_packet, .. } => {
                shown.sent.access.time_of(next_packet).map(|time| shown.shown_time(time))
            }
            DeliveryState::Ended { stop, .. } => Some(stop.time.min(self.entry.end())),
        }
    }

    /// The RTP timestamp that the next packet has if it follows the last one as if nothing had come between; `None` if nothing has been sent,
    /// or nothing is known.
    pub(super) fn next_timestamp(&self) -> Option<u32> {
        let sent = self.shown().sent;
        let packet = match self.media {
            DeliveryState::Paused { next_packet, .. } => next_packet,
            DeliveryState::Ended { stop, .. } => stop.packet,
            DeliveryState::Fresh | DeliveryState::Running(_) | DeliveryState::Pausing(_) => return None,
        };
        let behind = if packet < sent.packets { sent.access.time_of(packet) } else { Some(sent.duration) };
        behind.map(|time| self.timeline.timestamp(time))
    }
}

/// An engine's totals of a stream at its end.
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

/// Why a stream is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Its viewer wants no more.
    TornDown,
    /// All bytes that were asked for have been sent.
    Sent,
    /// The viewer has played the segments that it fetched, and has fetched no more.
    NoMoreFetched,
    /// Nothing was heard from the viewer for the announced time.
    Expired,
    /// Its connection is gone; for UDP, after the viewer's RTCP BYE.
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
            Self::Sent => f.write_str("all sent"),
            Self::NoMoreFetched => f.write_str("no more segments fetched"),
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
