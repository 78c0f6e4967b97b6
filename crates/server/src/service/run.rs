//! Runs: the media that an engine sends of a stream without a break, and where a stream stands
//! between them.

use millrace_core::ids::RunSerial;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};

use super::adapt::Cause;
use super::keys::ConnKey;
use super::ports::TitleEntry;
use super::speed::Speed;

/// Packets under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActiveRun {
    /// The engine's name for it.
    pub(super) serial: RunSerial,
    /// Its first packet, in the entry that is sent, and the sequence number of this packet.
    pub(super) from: u32,
    pub(super) sequence: u16,
    /// Where in the title its first packet is, where that is known.
    pub(super) from_time: Option<MediaTicks>,
    /// When it leaves.
    pub(super) at: Instant,
    /// When it is due, if it follows a run that has been sent ahead; else 0.
    pub(super) due: Instant,
    /// Where it ends.
    pub(super) stop: Stop,
    /// How fast its packets leave.
    pub(super) speed: Speed,
    /// Media that it may have sent ahead of schedule, in milliseconds.
    pub(super) ahead_ms: u16,
}

impl ActiveRun {
    /// When this place in the title is due, behind its beginning.
    pub(super) fn due_at(&self, time: MediaTicks) -> Instant {
        let shown = time.since(self.from_time.unwrap_or(time));
        let ns = u128::from(shown.to_ns()) * 1_000 / u128::from(self.speed.permille().max(1));
        self.at.max(self.due).plus_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// The end of the span that is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Packet of the sent entry before which sending ends.
    pub(super) packet: u32,
    /// The place in the title, which is announced.
    pub(super) time: MediaTicks,
}

/// Where the stream stands in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryState {
    /// Never played.
    Fresh,
    /// The engine sends.
    Running(ActiveRun),
    /// The engine has been ordered to pause and has not answered yet.
    Pausing(ActiveRun),
    /// The engine has stopped before this packet of the entry that it sent.
    Paused { next_packet: u32, next_sequence: u16, stop: Stop },
    /// BYE has been sent.
    Ended { next_sequence: u16, stop: Stop },
}

impl DeliveryState {
    /// The same place in the same title in packets of another size: what stood still goes on with the packet that holds
    /// the next byte.
    pub(super) fn in_size_of(self, from: &TitleEntry, to: &TitleEntry) -> Self {
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

/// A run, as far as it is known before the stream stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedRun {
    pub(super) start: Start,
    /// The place in the title where it ends; `None`: the previous end, or the end of the title.
    pub(super) stop: Option<MediaTicks>,
    /// How fast the title is shown: the entry to send at this speed is open.
    pub(super) scale: Scale,
    /// How fast it is delivered.
    pub(super) speed: Speed,
    /// The connection that announces it to the viewer, before the first packet.
    pub(super) told_by: Option<ConnKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A jump to the access point of this place in the title.
    At(MediaTicks),
    /// A jump to where a viewer of a live title joins.
    Now,
    /// With the packet before which the stream stopped.
    Resume,
    /// At the place in the title where the stream stopped, in something else that shows it.
    Here,
}

/// The outcome of a play request.
pub(super) enum Decision {
    GoesOn,
    Do(PlannedRun),
}

impl Start {
    /// Whether it does not go on where the stream stopped.
    pub(super) fn is_jump(self) -> bool {
        matches!(self, Self::At(_) | Self::Now)
    }
}

/// A plan that must wait for the engine to say where the stream stopped.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingPlan {
    pub(super) plan: PlannedRun,
    pub(super) since: Instant,
}

/// A run that the engine has been ordered to switch to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// The engine's name for it.
    pub(super) run: RunSerial,
    /// Its first packet, in the entry that it sends.
    pub(super) from: u32,
    /// The place of this packet in the title.
    pub(super) time: MediaTicks,
    /// Where it ends.
    pub(super) stop: Stop,
    /// Its purpose.
    pub(super) next: QueuedChange,
}

/// How a queued run differs from the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuedChange {
    /// What its viewer can repair.
    Fec,
    /// Its place among the renditions of the title.
    Rendition(usize, Cause),
}
