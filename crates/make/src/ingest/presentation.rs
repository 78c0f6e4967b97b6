//! Presentation time stamps: where each of the title's time bases begins, and when its last picture has been shown.
//!
//! Players that count in time stamps (FFmpeg) take the lowest first stamp of sound and picture for the beginning. After a
//! jump of the source's clock, as where two recordings were joined, stamps count from another origin.

use millrace_core::time::MediaTicks;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::SYSTEM_TICKS_PER_MEDIA_TICK;
use millrace_store::index::{ClockPiece, TimeBase};

use crate::limits::MAX_END_AFTER_LAST_PACKET_TICKS;
use crate::limits::ingest::{MAX_BASES, MAX_DISTANCE_TICKS};

use super::clock::MediaClock;

/// A stream within the current base. Stamps are relative to the base's reference, so that they do not wrap.
#[derive(Clone, Copy, Debug)]
struct PresentedStream {
    pid: u16,
    highest: i64,
    /// The second highest: the difference is the duration of the last frame.
    before: Option<i64>,
}

impl PresentedStream {
    fn add(&mut self, stamp: i64) {
        if stamp > self.highest {
            self.before = Some(std::mem::replace(&mut self.highest, stamp));
        } else if stamp < self.highest && self.before.is_none_or(|before| stamp > before) {
            self.before = Some(stamp);
        }
    }

    /// When its last frame ends.
    fn end(&self) -> i64 {
        self.highest + self.before.map_or(0, |before| self.highest - before)
    }
}

/// Follows the stamps of sound and pictures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Presentation {
    /// First byte and lowest first stamp of each base.
    bases: Vec<(u64, u64)>,
    /// Where the current base begins.
    base_start: u64,
    streams: Vec<PresentedStream>,
    /// A stamp of the base as it was stored, and the last one unwrapped from there.
    reference: u64,
    last: i64,
    jumps: u64,
}

impl Presentation {
    /// A PES packet of sound or picture begins on `pid`.
    pub(crate) fn stamp(&mut self, pid: u16, stamp: u64, clock: &MediaClock) {
        let is_near = clock.distance_of(stamp).is_none_or(|far| far.unsigned_abs() <= MAX_DISTANCE_TICKS);
        // The very first stamps count regardless of the clock: players have nothing else either.
        if !is_near && (self.base_start > 0 || self.streams.iter().any(|stream| stream.pid == pid)) {
            return;
        }
        if self.streams.is_empty() {
            (self.reference, self.last) = (stamp, 0);
        }
        let here = self.last + distance(self.reference.wrapping_add_signed(self.last), stamp);
        self.last = here;
        match self.streams.iter_mut().find(|stream| stream.pid == pid) {
            Some(stream) => stream.add(here),
            None => self.first(pid, stamp, here),
        }
    }

    /// The first stamp of a stream in this base.
    fn first(&mut self, pid: u16, stamp: u64, here: i64) {
        self.streams.push(PresentedStream { pid, highest: here, before: None });
        let has_room = self.bases.len() < MAX_BASES;
        match self.bases.last_mut().filter(|(byte, _)| *byte == self.base_start) {
            Some((_, lowest)) if distance(*lowest, stamp) < 0 => *lowest = stamp,
            Some(_) => {}
            None if has_room => self.bases.push((self.base_start, stamp)),
            None => {}
        }
    }

    /// The clock has been given something that was read at `byte`. If it found a jump there, a new base begins.
    pub(crate) fn clock_moved(&mut self, jumps: u64, byte: u64) {
        if jumps > self.jumps {
            self.base_start = byte;
            self.streams.clear();
        }
        self.jumps = jumps;
    }

    /// The bases and the end of the last picture, for data of `bytes` that takes `duration`.
    pub(crate) fn finish(
        self,
        clock: &MediaClock,
        pieces: &[ClockPiece],
        bytes: u64,
        duration: MediaTicks,
    ) -> (Vec<TimeBase>, Option<MediaTicks>) {
        let end = self.end(clock, duration);
        let last = ClockPiece { byte: bytes, time: duration };
        let time_of = |byte: u64| {
            let after = pieces.partition_point(|piece| piece.byte <= byte);
            let piece = after.checked_sub(1).map(|i| pieces[i]).unwrap_or_default();
            piece.time_of(pieces.get(after).unwrap_or(&last), byte)
        };
        let base = |&(byte, first_pts): &(u64, u64)| TimeBase { byte, time: time_of(byte), first_pts };
        let bases: Vec<TimeBase> = self.bases.iter().map(base).collect();
        // Without stamps at its beginning nothing is known of a title.
        if bases.first().is_none_or(|first| first.byte > 0) { (Vec::new(), end) } else { (bases, end) }
    }

    fn end(&self, clock: &MediaClock, duration: MediaTicks) -> Option<MediaTicks> {
        let last = self.streams.iter().map(PresentedStream::end).max()?;
        let stamp = self.reference.wrapping_add_signed(last) % PTS_MODULUS;
        let ticks = clock.ticks_of_stamp(stamp)? / SYSTEM_TICKS_PER_MEDIA_TICK.cast_signed();
        let shown = MediaTicks(u64::try_from(ticks).unwrap_or(0));
        Some(shown.clamp(duration, MediaTicks(duration.0 + MAX_END_AFTER_LAST_PACKET_TICKS)))
    }
}

/// How far `to` is behind `from`: the shorter way round of 33 bits.
fn distance(from: u64, to: u64) -> i64 {
    let ahead = to.wrapping_sub(from) % PTS_MODULUS;
    if ahead < PTS_MODULUS / 2 {
        ahead.cast_signed()
    } else {
        ahead.cast_signed() - PTS_MODULUS.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_go_the_shorter_way_round() {
        assert_eq!((distance(5, 9), distance(9, 5), distance(7, 7)), (4, -4, 0));
        assert_eq!((distance(PTS_MODULUS - 2, 3), distance(3, PTS_MODULUS - 2)), (5, -5));
    }

    #[test]
    fn stream_end_adds_distance_from_previously_shown_frame() {
        // Decoding order I P B B, 3600 ticks a picture.
        let mut stream = PresentedStream { pid: 1, highest: 0, before: None };
        assert_eq!(stream.end(), 0, "nothing is known of a single picture's duration");
        [10_800, 3600, 7200].into_iter().for_each(|stamp| stream.add(stamp));
        assert_eq!(stream.end(), 14_400);
    }
}
