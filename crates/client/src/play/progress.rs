//! How far a reception is, about four times a second.

use millrace_core::time::{Instant, MediaTicks};
use millrace_core::units::BitRate;

use super::PlayProgress;
use super::media::MediaReceiver;
use crate::limits::PROGRESS_NS;

/// When the next progress is due, and the state at the last one.
pub(super) struct ProgressClock {
    due: Instant,
    from: Instant,
    bytes_before: u64,
}

impl ProgressClock {
    /// The first progress is due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now, from: now, bytes_before: 0 }
    }

    /// Media begins to play: rates count from now on.
    pub(super) fn begin(&mut self, now: Instant, media: &MediaReceiver) {
        *self = Self { due: now.plus_ns(PROGRESS_NS), from: now, bytes_before: media.payload_bytes() };
    }

    /// When the next progress is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Returns the progress if it is due, of a reception that has lasted since `since`.
    pub(super) fn look(
        &mut self,
        now: Instant,
        since: Instant,
        media: &MediaReceiver,
        paused: bool,
    ) -> Option<PlayProgress> {
        if now < self.due {
            return None;
        }
        let (bytes, (from, before)) = (media.payload_bytes(), (self.from, self.bytes_before));
        self.begin(now, media);
        Some(PlayProgress {
            elapsed: now - since,
            packets: media.packets(),
            payload_bytes: bytes,
            lost: media.lost(),
            rate_bits_per_s: BitRate::of(bytes - before, now.ns_since(from)).0,
            media: MediaTicks::from_ns(media.media_ns().max(0).unsigned_abs()),
            paused,
        })
    }
}
