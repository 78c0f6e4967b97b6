//! A viewer as the thread that drives it sees it: a state machine behind one small trait.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use hdrhistogram::Histogram;
use millrace_client::net::Inlet;
use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use rustix::event::epoll;

use crate::limits::OWN_STALL_NS;
use crate::outcome::{Live, ViewerOutcome};
use crate::plan::LoadPlan;

/// Stage of a viewer's session. It only advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ViewerStage {
    /// Until the server has agreed to play: connecting, asking.
    Starting,
    /// Media flows or could flow; paused too.
    Playing,
    /// Sends BYE; packets that still arrive are not counted.
    Leaving,
    /// Over. [`LoadViewer::end`] may be called, and the viewer dropped.
    Done,
}

/// The state that the thread reads after every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) stage: ViewerStage,
    /// When [`LoadViewer::handle_timeout`] is due.
    pub(super) poll_at: Option<Instant>,
}

/// A command to a viewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ViewerCommand {
    /// Stop the picture.
    Pause,
    /// Go on where it stopped.
    Resume,
    /// Go on at this place of the title.
    Seek(SeekTarget),
    /// Go on at this speed.
    Scale(Scale),
    /// Go on in this rendition.
    Rendition(RenditionName),
}

/// Position in a title to seek to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SeekTarget {
    /// At this distance from its beginning.
    At(MediaTicks),
    /// This part of its length, 0 to 1.
    Part(f64),
}

/// One viewer: protocol, sockets and counts, without a clock, a thread or a wait of its own.
///
/// A [shard](super::shard) drives up to some thousand of them from one epoll and one heap of timers. The rules:
///
/// * A viewer opens its sockets itself, non-blocking, and registers each with [`ViewerContext::watch`] under
///   a *kind*, a number of its own choice from 0 to [`MAX_KIND`]. From then on
///   [`LoadViewer::handle_ready`] is called with this kind whenever the descriptor is ready for the
///   events it is watched for: once for each readiness, not once for each packet. It is level
///   triggered, so a viewer may leave bytes for the next call. [`ViewerContext::rewatch`] changes the events
///   watched for.
/// * Descriptors come and go as the viewer likes: dropping one ends its watching, and a new one may take the same kind
///   (a viewer of HLS makes one connection after another). An event of a dropped descriptor may still come in the turn in
///   which it was dropped, so readiness is a hint: a read that would block is not an error. A duplicate of a descriptor
///   (`try_clone`) keeps it watched; do not keep one.
/// * After each call the thread asks for [`LoadViewer::status`] and calls
///   [`LoadViewer::handle_timeout`] at `poll_at`, perhaps a little later. It may also call it when
///   nothing is due.
/// * Every call returns soon: it takes one batch or one read, not all there is.
/// * What fails is a reason in [`ViewerOutcome::failure`] and [`ViewerStage::Done`]. Nothing panics
///   whatever the server sends.
/// * The thread stops calling at [`ViewerStage::Done`], takes [`LoadViewer::end`] and drops the
///   viewer; that closes its sockets. A viewer that never gets there is ended a few seconds after
///   [`LoadViewer::leave`].
/// * Which viewer leaves, zaps to another title or is replaced is the thread's business, not the viewer's: a zap is
///   [`LoadViewer::leave`] and a new viewer.
pub(super) trait LoadViewer {
    /// Handles a descriptor, watched as `kind`, that is ready or broken: reading or writing it
    /// shows which.
    fn handle_ready(&mut self, now: Instant, kind: u8, lent: &mut ViewerContext<'_>);

    /// The time of [`Status::poll_at`] has come.
    fn handle_timeout(&mut self, now: Instant, lent: &mut ViewerContext<'_>);

    /// Does something a person would do. `false` if this kind of viewer cannot, or not now; nothing has changed then.
    fn command(&mut self, now: Instant, command: ViewerCommand, lent: &mut ViewerContext<'_>) -> bool;

    /// Takes the data that has already arrived, within a bound: the time is over and the data still
    /// counts.
    fn drain(&mut self, now: Instant, lent: &mut ViewerContext<'_>);

    /// Ends politely: measuring stops now, BYEs are sent, [`ViewerStage::Done`] follows soon. When
    /// it has not come to playing within some seconds that is a failure, unless the viewer is only
    /// a listener.
    fn leave(&mut self, now: Instant, lent: &mut ViewerContext<'_>);

    /// Where it stands and when it wants to be called.
    fn status(&self) -> Status;

    /// Returns the current counts.
    fn live(&self) -> Live;

    /// The UDP socket that media comes to; its drops are looked up before it is closed.
    fn media_inlet(&self) -> Option<&Inlet> {
        None
    }

    /// Returns the outcome. Called once, last.
    fn end(&mut self, lent: &mut ViewerContext<'_>) -> ViewerOutcome;
}

/// Largest kind of a descriptor.
pub(super) const MAX_KIND: u8 = 254;
/// The kind that the thread keeps for itself.
const SHARED_KIND: u8 = 255;

/// The events that a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Only errors and hang-ups: a viewer that has read enough for now.
    Nothing,
    Read,
    Write,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, matches!(self, Self::Read | Self::ReadWrite));
        flags.set(epoll::EventFlags::OUT, matches!(self, Self::Write | Self::ReadWrite));
        flags
    }
}

/// Whose event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// Of the viewer in this slot.
    Viewer { slot: usize, kind: u8 },
    /// Of the thread's shared socket with this number.
    Shared(usize),
}

impl Token {
    pub(super) fn data(self) -> epoll::EventData {
        let (number, kind) = match self {
            Self::Viewer { slot, kind } => (slot, kind),
            Self::Shared(number) => (number, SHARED_KIND),
        };
        epoll::EventData::new_u64((number as u64) << 8 | u64::from(kind))
    }

    pub(super) fn of(data: u64) -> Self {
        let (number, kind) = ((data >> 8) as usize, data as u8);
        if kind == SHARED_KIND { Self::Shared(number) } else { Self::Viewer { slot: number, kind } }
    }
}

/// Per-call context that a thread lends to a viewer.
pub(super) struct ViewerContext<'a> {
    pub(super) plan: &'a LoadPlan,
    /// Lateness of packets in microseconds: a viewer records every packet here.
    pub(super) lateness: &'a mut Histogram<u64>,
    /// The same, for what [`ViewerContext::lateness_of_read`] keeps apart.
    pub(super) own_lateness: &'a mut Histogram<u64>,
    /// How long datagrams waited in their receive buffers, in microseconds.
    pub(super) read_delay: &'a mut Histogram<u64>,
    /// Where [`millrace_client::net::bind_pair`] goes on.
    pub(super) next_port: &'a mut u16,
    /// Sockets for RTCP that all viewers of a thread share; none if each has its own.
    pub(super) shared_rtcp: &'a [Inlet],
    /// Wall clock: the scale of the kernel's packet stamps.
    pub(super) unix_ns: u64,
    /// How long data read now may have waited because this thread did not look.
    pub(super) own_delay_ns: u64,
    pub(super) epoll: &'a OwnedFd,
    pub(super) slot: usize,
}

impl ViewerContext<'_> {
    /// Returns the histogram for the lateness of data without a kernel stamp, such as data over
    /// TCP: if this thread has not looked for long, the lateness may be our own, and is kept apart.
    pub(super) fn lateness_of_read(&mut self) -> &mut Histogram<u64> {
        if self.own_delay_ns > OWN_STALL_NS { self.own_lateness } else { self.lateness }
    }

    /// Makes a new descriptor known. `kind` is at most [`MAX_KIND`].
    pub(super) fn watch(&self, kind: u8, fd: impl AsFd, interest: Interest) -> io::Result<()> {
        let token = Token::Viewer { slot: self.slot, kind: kind.min(MAX_KIND) };
        Ok(epoll::add(self.epoll, fd, token.data(), interest.flags())?)
    }

    /// Changes the events that a known descriptor is watched for.
    pub(super) fn rewatch(&self, kind: u8, fd: impl AsFd, interest: Interest) -> io::Result<()> {
        let token = Token::Viewer { slot: self.slot, kind: kind.min(MAX_KIND) };
        Ok(epoll::modify(self.epoll, fd, token.data(), interest.flags())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_keep_slot_and_kind() {
        for token in [
            Token::Viewer { slot: 0, kind: 0 },
            Token::Viewer { slot: 19_999, kind: MAX_KIND },
            Token::Shared(0),
            Token::Shared(1),
        ] {
            assert_eq!(Token::of(token.data().u64()), token);
        }
    }
}
