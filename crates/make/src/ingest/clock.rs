//! From clock references in the stream to a smooth media time for every byte.
//!
//! An *anchor* gives the source's clock, in 27 MHz ticks, at one byte. Between two anchors bytes
//! pass at a constant rate (ISO/IEC 13818-1 section 2.4.2.2), so media time is linear over the
//! bytes there. The result is a list of *points*, (byte, media time), the first at byte 0 and time
//! 0, with linear time between them.
//!
//! A clock is a *jump* and is taken out of the timeline if
//! * the discontinuity indicator announces a new time base, or
//! * it runs back, or
//! * it advances more than 1 s further than the bytes in between explain at the rate of the last
//!   second, unless no packet is missing there (continuity counters, no damage) and it is at most
//!   10 s: then nothing was sent for a while, because the picture stood still (screen recordings,
//!   slides). A clock that `ffmpeg` has just written for us is trusted at any length.
//!
//! Time *coasts* over a jump, before the first anchor and behind the last one: bytes take the time they would at the
//! mean rate of the last second (at the start: the first second), but not longer than the longest interval of anchors
//! in that second (another anchor would have come), unless that were faster than the fastest 10 ms of the whole title.
//!
//! If anchors stop while the time stamps of audio or video continue (audio that is longer than the
//! video which carries the clock), the elapsed time is estimated from the stamps:
//! [`MediaClock::estimate`]. If the estimate is ahead of the next anchor by at most 1 s, the time
//! stands still until the anchors have caught up.
//!
//! All arithmetic is on integers: the time between two anchors is exactly the difference of their clocks.

use std::collections::VecDeque;

pub(crate) use crate::limits::ingest::MAX_BYTES_BETWEEN_ANCHORS;

use millrace_media::ts_packet::{PCR_MODULUS, SYSTEM_HZ, SYSTEM_TICKS_PER_MEDIA_TICK};

/// A clock this far ahead of the time that the bytes explain is a jump...
const JUMP_TICKS: u64 = SYSTEM_HZ;
/// ...but up to here only if packets are missing.
const STANDSTILL_TICKS: u64 = 10 * SYSTEM_HZ;
/// The rate that coasting goes by is that of this much time.
const WINDOW_TICKS: u64 = SYSTEM_HZ;
/// Intervals are gathered to pieces of at least this much time: shorter ones say more about jitter than about rate.
const PIECE_TICKS: u64 = SYSTEM_HZ / 100;
/// A constant rate varies less than 1 %, measured over at least 100 ms, where 0.5 ms of clock
/// jitter account for half of the 1 %.
const CONSTANT_PIECE_TICKS: u64 = SYSTEM_HZ / 10;
const CONSTANT_PERCENT: u128 = 1;

/// A moment of the source's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    /// Offset of its TS packet's first byte in the data.
    pub byte: u64,
    /// 27 MHz ticks, below [`PCR_MODULUS`].
    pub ticks: u64,
    /// A new time base was announced since the last anchor.
    pub new_base: bool,
    /// Packets are missing since the last anchor.
    pub broken: bool,
}

/// A moment of media time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    /// Offset in the data.
    pub byte: u64,
    /// 27 MHz ticks from byte 0.
    pub ticks: u64,
    /// The source's clock jumped here.
    pub jump: bool,
}

impl Point {
    /// Media time of `byte` on the line from `self` to `to`; clamped to its ends.
    pub(crate) fn time_at(&self, to: &Point, byte: u64) -> u64 {
        let (bytes, ticks) = (to.byte - self.byte, to.ticks - self.ticks);
        let into = byte.saturating_sub(self.byte).min(bytes);
        if bytes == 0 {
            return self.ticks;
        }
        match into.checked_mul(ticks) {
            Some(product) => self.ticks + product / bytes,
            None => self.ticks + (u128::from(into) * u128::from(ticks) / u128::from(bytes)) as u64,
        }
    }
}

/// Bytes between two anchors, and the time they took.
#[derive(Clone, Copy, Debug, Default)]
struct ClockInterval {
    bytes: u64,
    ticks: u64,
    /// Longest interval of anchors in it.
    longest: u64,
}

impl ClockInterval {
    fn add(&mut self, bytes: u64, ticks: u64) {
        self.bytes += bytes;
        self.ticks += ticks;
        self.longest = self.longest.max(ticks);
    }

    /// Whether its rate is higher than that of `other`.
    fn is_faster(&self, other: &Self) -> bool {
        u128::from(self.bytes) * u128::from(other.ticks) > u128::from(other.bytes) * u128::from(self.ticks)
    }

    /// Time that `bytes` take at this rate.
    fn time_of(&self, bytes: u64) -> u64 {
        let ticks = u128::from(bytes) * u128::from(self.ticks) / u128::from(self.bytes.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

/// Rates seen: of the last second, the fastest, and whether all are the same.
#[derive(Clone, Debug, Default)]
struct Rates {
    window: VecDeque<ClockInterval>,
    total: ClockInterval,
    fastest: Option<ClockInterval>,
    gathering: ClockInterval,
    slowest_long: Option<ClockInterval>,
    fastest_long: Option<ClockInterval>,
}

impl Rates {
    fn add(&mut self, bytes: u64, ticks: u64) {
        match self.window.back_mut().filter(|last| last.ticks < PIECE_TICKS) {
            Some(last) => last.add(bytes, ticks),
            None => self.window.push_back(ClockInterval { bytes, ticks, longest: ticks }),
        }
        self.total.add(bytes, ticks);
        while self.window.len() > 1 && self.total.ticks - self.window[0].ticks >= WINDOW_TICKS {
            if let Some(old) = self.window.pop_front() {
                self.total.bytes -= old.bytes;
                self.total.ticks -= old.ticks;
            }
        }
        let last = *self.window.back().expect("a piece was just added to");
        if last.ticks >= PIECE_TICKS && self.fastest.is_none_or(|f| last.is_faster(&f)) {
            self.fastest = Some(last);
        }
        self.gathering.add(bytes, ticks);
        if self.gathering.ticks >= CONSTANT_PIECE_TICKS {
            let piece = std::mem::take(&mut self.gathering);
            if self.fastest_long.is_none_or(|f| piece.is_faster(&f)) {
                self.fastest_long = Some(piece);
            }
            if self.slowest_long.is_none_or(|s| s.is_faster(&piece)) {
                self.slowest_long = Some(piece);
            }
        }
    }

    /// Time that `bytes` take at the rate of the last second; `None` if no rate is known.
    fn explains(&self, bytes: u64) -> Option<u64> {
        (self.total.bytes > 0 && self.total.ticks > 0).then(|| self.total.time_of(bytes))
    }

    fn coast(&self, bytes: u64) -> u64 {
        let Some(at_mean) = self.explains(bytes) else { return 0 };
        let at_fastest = self.fastest.map_or(at_mean, |f| f.time_of(bytes));
        let longest = self.window.iter().map(|p| p.longest).max().unwrap_or(0);
        at_mean.min(longest.max(at_fastest))
    }

    fn is_constant(&self) -> bool {
        let (Some(slow), Some(fast)) = (self.slowest_long, self.fastest_long) else { return false };
        // fast <= slow * 1.01, as products of bytes and ticks.
        u128::from(fast.bytes) * u128::from(slow.ticks) * 100
            <= u128::from(slow.bytes) * u128::from(fast.ticks) * (100 + CONSTANT_PERCENT)
    }
}

/// Turns anchors into points. See the module's text for the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaClock {
    /// The clock was written by ffmpeg for us: forward jumps are real.
    trusted: bool,
    rates: Rates,
    last_anchor: Option<Anchor>,
    /// Media time of `last_anchor` before the time of what precedes the first anchor is added.
    last_ticks: u64,
    /// Last point of the timeline, counted like `last_ticks`. It lies beyond the last anchor if
    /// time coasted or was estimated.
    end: Point,
    /// Whether `end` was estimated from time stamps.
    is_estimated: bool,
    /// Points that wait for the rate of the first second.
    waiting: Vec<Point>,
    /// Media time of the first anchor, once known.
    lead_ticks: Option<u64>,
    jumps: u64,
    first_jump: Option<u64>,
    coasted: u64,
}

impl MediaClock {
    /// A clock without anchors.
    pub(crate) fn new(trusted: bool) -> Self {
        Self { trusted, ..Self::default() }
    }

    /// Whether two anchors with time between them were seen.
    pub(crate) fn has_rate(&self) -> bool {
        self.rates.explains(1).is_some()
    }

    /// Whether the rate is constant (false until a tenth of a second was seen).
    pub(crate) fn is_constant(&self) -> bool {
        self.rates.is_constant()
    }

    /// Jumps taken out.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps
    }

    /// Byte of the first jump.
    pub(crate) fn first_jump(&self) -> Option<u64> {
        self.first_jump
    }

    /// How often no anchor came for [`MAX_BYTES_BETWEEN_ANCHORS`].
    pub(crate) fn coasted(&self) -> u64 {
        self.coasted
    }

    /// Media time of the last point, in 27 MHz ticks.
    pub(crate) fn now_ticks(&self) -> u64 {
        self.end.ticks + self.lead_ticks.unwrap_or(0)
    }

    /// How far a time stamp of 33 bits is ahead of the clock at the last point, in 27 MHz ticks; negative if behind. `None`
    /// before the first anchor.
    pub(crate) fn distance_of(&self, stamp: u64) -> Option<i64> {
        let anchor = self.last_anchor?;
        let ticks = stamp * SYSTEM_TICKS_PER_MEDIA_TICK % PCR_MODULUS;
        let now = anchor.ticks + (self.end.ticks - self.last_ticks) % PCR_MODULUS;
        let ahead = (ticks + 2 * PCR_MODULUS - now) % PCR_MODULUS;
        let is_ahead = ahead < PCR_MODULUS / 2;
        Some(ahead.cast_signed() - if is_ahead { 0 } else { PCR_MODULUS.cast_signed() })
    }

    /// Returns the media time, in 27 MHz ticks, at which the clock has the value of a time stamp of
    /// 33 bits.
    pub(crate) fn ticks_of_stamp(&self, stamp: u64) -> Option<i64> {
        let now = self.now_ticks();
        Some(i64::try_from(now).ok()?.saturating_add(self.distance_of(stamp)?))
    }

    /// Takes an anchor; points that are known now go to `out`, in ascending order of bytes.
    pub(crate) fn anchor(&mut self, anchor: Anchor, out: &mut Vec<Point>) {
        let Some(last) = self.last_anchor else {
            self.last_anchor = Some(anchor);
            self.end = Point { byte: anchor.byte, ..Point::default() };
            self.waiting.push(self.end);
            return;
        };
        let delta = (anchor.ticks + PCR_MODULUS - last.ticks) % PCR_MODULUS;
        // A repeated clock value carries no information, and neither does a value at the same
        // place.
        if anchor.byte <= self.end.byte || delta == 0 && !anchor.new_base {
            return;
        }
        let on_time = self.last_ticks.saturating_add(delta);
        let (bytes, passed) = match self.is_estimated {
            true => (anchor.byte - self.end.byte, on_time.saturating_sub(self.end.ticks)),
            false => (anchor.byte - last.byte, delta),
        };
        let unexplained = passed.saturating_sub(self.rates.explains(bytes).unwrap_or(0));
        let is_new = self.is_jump(&anchor, delta, unexplained);
        let behind = self.end.ticks.saturating_sub(on_time);
        if self.is_estimated && !is_new && (1..=JUMP_TICKS).contains(&behind) {
            (self.last_anchor, self.last_ticks) = (Some(anchor), on_time);
            return;
        }
        let is_jump = is_new || behind > 0;
        if is_jump {
            self.last_ticks = self.end.ticks.saturating_add(self.rates.coast(anchor.byte - self.end.byte));
            self.jumps += 1;
            self.first_jump.get_or_insert(anchor.byte);
        } else {
            // A standstill gives no information about the rate, unless there is nothing else.
            if unexplained <= JUMP_TICKS || !self.has_rate() {
                self.rates.add(bytes, passed);
            }
            self.last_ticks = on_time;
        }
        self.last_anchor = Some(anchor);
        self.is_estimated = false;
        self.go_to(Point { byte: anchor.byte, ticks: self.last_ticks, jump: is_jump }, out);
    }

    fn is_jump(&self, anchor: &Anchor, delta: u64, unexplained: u64) -> bool {
        if anchor.new_base || delta > PCR_MODULUS / 2 {
            return true;
        }
        !self.trusted && unexplained > JUMP_TICKS && (anchor.broken || unexplained > STANDSTILL_TICKS)
    }

    /// The time stamps of a stream show that `since` has elapsed at `byte` since the last anchor.
    pub(crate) fn estimate(&mut self, byte: u64, since: u64, out: &mut Vec<Point>) {
        let ticks = self.last_ticks.saturating_add(since);
        if !self.has_rate() || byte <= self.end.byte || ticks <= self.end.ticks {
            return;
        }
        if self.is_estimated {
            self.rates.add(byte - self.end.byte, ticks - self.end.ticks);
        }
        self.is_estimated = true;
        self.go_to(Point { byte, ticks, jump: false }, out);
    }

    /// `byte` has been reached. If that is too far behind the last anchor, time coasts to there.
    pub(crate) fn reached(&mut self, byte: u64, out: &mut Vec<Point>) {
        if self.has_rate() && byte.saturating_sub(self.end.byte) > MAX_BYTES_BETWEEN_ANCHORS {
            self.coasted += 1;
            self.coast_to(byte, out);
        }
    }

    /// The data ends at `byte`: time coasts to there, and all points go out. The last one is the title's end.
    pub(crate) fn finish(&mut self, byte: u64, out: &mut Vec<Point>) {
        self.coast_to(byte, out);
        self.release(out);
    }

    fn coast_to(&mut self, byte: u64, out: &mut Vec<Point>) {
        if byte > self.end.byte {
            let ticks = self.end.ticks.saturating_add(self.rates.coast(byte - self.end.byte));
            self.go_to(Point { byte, ticks, jump: false }, out);
        }
    }

    fn go_to(&mut self, point: Point, out: &mut Vec<Point>) {
        self.end = point;
        self.waiting.push(point);
        let waited = point.byte - self.waiting[0].byte;
        let enough = point.ticks >= WINDOW_TICKS || waited > MAX_BYTES_BETWEEN_ANCHORS;
        if self.lead_ticks.is_some() || self.has_rate() && enough {
            self.release(out);
        }
    }

    /// Hands out what waits. The first time this decides how long the bytes before the first anchor take.
    fn release(&mut self, out: &mut Vec<Point>) {
        let first_byte = self.waiting.first().map_or(0, |p| p.byte);
        let lead = *self.lead_ticks.get_or_insert_with(|| self.rates.coast(first_byte));
        out.extend(self.waiting.drain(..).map(|p| Point { ticks: p.ticks.saturating_add(lead), ..p }));
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
