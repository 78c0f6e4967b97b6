//! Media time of a live source: its program clock, followed in our own time.
//!
//! ```text
//!   PCR ──► anchor + PCR steps ──► corrected by at most 500 ppm ──► media time, never descending
//!                 ▲ more than 1 s from arrival time: anchored at arrival again
//! ```
//!
//! Media time counts from the source's first packet. It goes at the rate of the source's clock, and is kept at the mean arrival
//! time: otherwise a source whose clock is fast would fill the window of a title in days, and viewers would fall out of it.

use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::{PCR_MODULUS, SYSTEM_HZ, SYSTEM_TICKS_PER_MEDIA_TICK};

use crate::limits::live::{
    CLOCK_FOLLOW_TICKS, CLOCK_MEAN_TICKS, CLOCK_STALE_TICKS, MAX_CLOCK_OFFSET_TICKS, MAX_DRIFT_PPM,
};

/// A clock reference, where it was taken to be.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    pcr: u64,
    /// Media time.
    time: u64,
    arrival: u64,
}

/// Times of the packets of a live source. All times are in 27 MHz ticks from its first packet.
#[derive(Debug, Default)]
pub struct LiveClock {
    anchor: Option<Anchor>,
    /// Mean of arrival minus media time.
    offset: i64,
    /// Bytes since the anchor.
    bytes: u64,
    /// Bytes and ticks between the last two references.
    interval: (u64, u64),
    newest: u64,
    hurries: u64,
}

impl LiveClock {
    /// Takes a clock reference. Returns whether the clock has jumped; `is_marked` is the source's own discontinuity indicator.
    pub fn reference(&mut self, pcr: u64, arrival: u64, is_marked: bool) -> bool {
        let Some(last) = self.anchor else {
            self.anchor = Some(Anchor { pcr, time: arrival, arrival });
            self.bytes = 0;
            return false;
        };
        let step = (pcr + PCR_MODULUS - last.pcr) % PCR_MODULUS;
        let time = last.time + step;
        let offset = arrival.cast_signed() - time.cast_signed();
        let elapsed = arrival.saturating_sub(last.arrival);
        let has_jumped = is_marked || step.abs_diff(elapsed) > MAX_CLOCK_OFFSET_TICKS;
        if has_jumped || offset.unsigned_abs() > MAX_CLOCK_OFFSET_TICKS {
            self.hurries += u64::from(!has_jumped && offset < 0);
            self.anchor = Some(Anchor { pcr, time: arrival, arrival });
            (self.offset, self.bytes) = (0, 0);
            return has_jumped;
        }
        let weight = i128::from(step).min(CLOCK_MEAN_TICKS);
        self.offset += (i128::from(offset - self.offset) * weight / CLOCK_MEAN_TICKS) as i64;
        let most = i128::from(step) * MAX_DRIFT_PPM / 1_000_000;
        let correction = i128::from(self.offset) * i128::from(step) / CLOCK_FOLLOW_TICKS;
        let correction = correction.clamp(-most, most) as i64;
        // The correction is smaller than the step that it is added to.
        let time = time.saturating_add_signed(correction);
        self.offset -= correction;
        self.anchor = Some(Anchor { pcr, time, arrival });
        if self.bytes > 0 {
            self.interval = (self.bytes, step);
        }
        self.bytes = 0;
        false
    }

    /// Counts bytes of the stream.
    pub fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Returns the media time of the next packet, interpolated by bytes from the last reference.
    pub fn time(&mut self, arrival: u64) -> MediaTicks {
        let time = match self.anchor {
            Some(anchor) if arrival.saturating_sub(anchor.arrival) <= CLOCK_STALE_TICKS => {
                let (bytes, ticks) = self.interval;
                let behind = u128::from(self.bytes) * u128::from(ticks) / u128::from(bytes.max(1));
                anchor.time + u64::try_from(behind).unwrap_or(ticks).min(ticks)
            }
            _ => arrival,
        };
        self.newest = self.newest.max(time);
        MediaTicks(self.newest / SYSTEM_TICKS_PER_MEDIA_TICK)
    }

    /// Times that the source had become a second faster than time.
    pub fn hurries(&self) -> u64 {
        self.hurries
    }

    /// Returns the lead of media time over arrival time.
    pub fn ahead(&self, arrival: u64) -> u64 {
        self.newest.saturating_sub(arrival)
    }
}

/// Nanoseconds as 27 MHz ticks.
pub fn system_ticks(ns: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(SYSTEM_HZ) / 1_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
