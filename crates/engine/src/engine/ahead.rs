//! Sending ahead: a run may begin with some media as fast as it goes, and stays that far ahead.
//!
//! ```text
//!   media sent   │              ╱ led: the run's pace, its anchor moved by what may be sent ahead
//!                │           ╱     ╱ owed: the same without; lateness is counted from here
//!                │        ╱     ╱
//!                │      ┊    ╱
//!                │      ┊ ╱      first the line goes straight up: media before the anchor departs with it, and nothing but
//!                └──────┴─────►  MIN_PACKET_GAP_NS holds it back
//!                       at  time
//! ```
//!
//! The flag [`AHEAD`](flag::AHEAD) is set until the run has come from one line to the other. It
//! gives up if it falls behind the pace owed. Bytes never give it up: their viewer reads slowly, and a full connection
//! paces them better than small writes at 5/4 of the pace would. They take up their lead as soon as the connection
//! accepts more.

use millrace_core::limits::MAX_AHEAD_MS;
use millrace_core::time::{Instant, MEDIA_HZ, MediaTicks};

use super::Engine;
use crate::frame::is_endless;
use crate::pace::RunPacing;
use crate::stream::{Cold, HotStream, flag};
use crate::types::Refusal;

/// Checks whether a run may send this much ahead.
pub(super) fn check_ahead(ahead_ms: u16) -> Result<(), Refusal> {
    if ahead_ms <= MAX_AHEAD_MS { Ok(()) } else { Err(Refusal::OutOfRange) }
}

impl Engine {
    /// Makes the run that has just begun send this much ahead.
    pub(super) fn begin_ahead(&mut self, index: u32, ahead_ms: u16) {
        if ahead_ms > 0 {
            self.stream_mut(index).flags |= flag::AHEAD;
        }
        self.cold_mut(index).ahead = MediaTicks(u64::from(ahead_ms) * MEDIA_HZ / 1000);
    }

    /// Returns the pace at which a stream must be served: the pace of its run, without the media
    /// that it still has to send ahead.
    pub(super) fn owed(&self, index: u32) -> RunPacing {
        owed(self.stream(index), &self.cold[index as usize])
    }
}

/// See [`Engine::owed`].
pub(super) fn owed(stream: &HotStream, cold: &Cold) -> RunPacing {
    let ahead = if stream.has(flag::AHEAD) { cold.ahead } else { MediaTicks(0) };
    RunPacing { anchor: stream.pace.anchor.since(ahead), ..stream.pace }
}

/// Returns whether a run that has fallen behind its lead takes it up again. Bytes do, except those of a source that still grows.
pub(super) fn regains_lead(stream: &HotStream, cold: &Cold) -> bool {
    stream.has(flag::BYTES) && cold.ahead > MediaTicks(0) && !is_endless(&cold.media)
}

/// Returns the pace used to measure a burst of a stream that sends ahead, whose first packet has
/// this media time. The lead is there when that packet waited for nothing but its own departure; it
/// is given up when the packet is a burst behind the pace owed.
#[cold]
pub(super) fn measure_ahead(
    stream: &mut HotStream,
    cold: &Cold,
    now: Instant,
    time: MediaTicks,
    burst_ns: u64,
) -> RunPacing {
    let owed = owed(stream, cold);
    let is_lost = !regains_lead(stream, cold) && now.ns_since(owed.departure(time)) > burst_ns;
    if is_lost {
        stream.pace = owed;
    }
    if is_lost || time > stream.pace.anchor && stream.due == stream.pace.departure(time) {
        stream.flags &= !flag::AHEAD;
        return stream.pace;
    }
    // Media sent ahead is not late: a loop that is woken late makes up for nothing.
    stream.due = now;
    owed
}
