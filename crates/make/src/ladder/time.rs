//! The time line that all rungs share: when each picture and each frame of sound is decoded and shown, and in which slot it is sent.
//!
//! All times are ticks of 90 kHz from the first packet.

use millrace_core::time::MEDIA_HZ;

use crate::limits::ladder::{RUNG_DELAY_SLOTS, SOUND_HZ, SOUND_LEAD_TICKS};
use crate::limits::trick::TRICK_SLOT_TICKS;

/// Samples in a frame of AAC.
pub(super) const FRAME_SAMPLES: u64 = 1024;
/// Duration of a frame.
pub(super) const FRAME_TICKS: u64 = FRAME_SAMPLES * MEDIA_HZ / SOUND_HZ;
/// The encoder puts one frame before the sound.
const FRAMES_BEFORE: u64 = 1;
/// From sending to decoding.
const DELAY: u64 = RUNG_DELAY_SLOTS * TRICK_SLOT_TICKS;

const _: () = assert!(DELAY > SOUND_LEAD_TICKS + FRAME_TICKS * FRAMES_BEFORE);
const _: () = assert!((FRAME_SAMPLES * MEDIA_HZ).is_multiple_of(SOUND_HZ));

/// Pictures at an even rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    /// Number of pictures in `seconds` seconds.
    pub(super) pictures: u64,
    pub(super) seconds: u64,
    /// Pictures from one access point to the next.
    pub(super) group: u64,
}

impl Times {
    /// Returns the duration of `pictures` pictures, rounded down.
    pub(super) fn ticks(&self, pictures: u64) -> u64 {
        let ticks = u128::from(pictures) * u128::from(self.seconds) * u128::from(MEDIA_HZ);
        u64::try_from(ticks / u128::from(self.pictures)).unwrap_or(u64::MAX)
    }

    /// Returns the number of pictures in `ticks`, to the nearest.
    pub(super) fn count(&self, ticks: i64) -> i64 {
        let (pictures, per) = (i128::from(self.pictures), i128::from(self.seconds) * i128::from(MEDIA_HZ));
        let twice = 2 * i128::from(ticks) * pictures + per;
        i64::try_from(twice.div_euclid(2 * per)).unwrap_or(i64::MAX)
    }

    /// When the picture is decoded that is sent as this one.
    pub(super) fn decoded(&self, sent: u64) -> u64 {
        DELAY + self.ticks(sent)
    }

    /// When the picture is shown that is shown as this one, if pictures are shown at most `reorder` behind the one that is decoded.
    pub(super) fn shown(&self, shown: u64, reorder: u64) -> u64 {
        DELAY + self.ticks(shown + reorder)
    }

    /// When a frame of sound is heard.
    pub(super) fn heard(&self, frame: u64, reorder: u64) -> u64 {
        (self.shown(0, reorder) + frame * FRAME_TICKS).saturating_sub(FRAMES_BEFORE * FRAME_TICKS)
    }

    /// The slot in which it is sent.
    pub(super) fn slot_of_frame(&self, frame: u64, reorder: u64) -> u64 {
        self.heard(frame, reorder).saturating_sub(SOUND_LEAD_TICKS) / TRICK_SLOT_TICKS
    }

    /// The first slot of a group.
    pub(super) fn first_slot(&self, group: u64) -> u64 {
        self.ticks(group.saturating_mul(self.group)) / TRICK_SLOT_TICKS
    }

    /// Returns the slot behind the last of a film of `pictures` pictures: the last one has been
    /// shown by then.
    pub(super) fn end_slot(&self, pictures: u64, reorder: u64) -> u64 {
        self.shown(pictures, reorder).div_ceil(TRICK_SLOT_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_long_title_at_ntsc_rate_do_not_drift() {
        let times = Times { pictures: 30_000, seconds: 1001, group: 60 };
        // 30 hours: more than time stamps count to.
        for picture in [0, 1, 59, 60, 3_240_000] {
            let ticks = times.ticks(picture);
            assert_eq!(ticks, picture * 3003);
            assert_eq!(times.count(ticks as i64), picture as i64);
            assert_eq!(times.count(ticks as i64 - 1400), picture as i64, "stamps are rounded");
        }
        assert_eq!((times.first_slot(1), times.first_slot(2)), (50, 100));
        assert_eq!(times.first_slot(20), 1001);
    }
}
