//! The result of a session, and the counts of one that goes on.

use millrace_client::net::Inlet;

use crate::meter::ViewerMeasurements;
use crate::web::WebFigures;

/// Current counts, for progress and time series. Read a few times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Live {
    /// Packets received, duplicates not counted; where media does not come in packets, TS packets / 7 or 0.
    pub(super) packets: u64,
    /// Media bytes received.
    pub(super) payload_bytes: u64,
    /// Packets missing.
    pub(super) lost: u64,
}

/// Result of one viewer's session.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewerOutcome {
    /// Why it failed, in words without numbers that vary: failures are counted by these words.
    pub(super) failure: Option<String>,
    /// From the start to the moment when the server agreed to play.
    pub(super) setup_us: Option<u64>,
    /// The measurements, if it began to play.
    pub(super) measured: Option<ViewerMeasurements>,
    /// The results of a player that buffers (HTTP and HLS).
    pub(super) web: Option<WebFigures>,
    /// Datagrams from another address than the server's.
    pub(super) foreign: u64,
    /// The probe's counts, if the socket counted as well; and packets that came past the probe.
    pub(super) probed: Option<Live>,
    pub(super) unprobed: u64,
    /// Facts about its receiving socket, if it has one for media.
    pub(super) socket: Option<SocketCounts>,
}

/// Final facts about a UDP socket for media.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketCounts {
    pub(super) has_kernel_stamps: bool,
    pub(super) buffer_bytes: u64,
    pub(super) dropped: u64,
    pub(super) truncated: u64,
}

impl SocketCounts {
    pub(super) fn of(inlet: &Inlet) -> Self {
        Self {
            has_kernel_stamps: inlet.has_kernel_stamps(),
            buffer_bytes: inlet.buffer_bytes() as u64,
            dropped: inlet.dropped(),
            truncated: inlet.truncated(),
        }
    }
}
