//! Time stamps (RFC 7323): those sent, the last one received, and protection against wrapped
//! sequence numbers.

use millrace_core::time::Instant;

use super::{Connection, Marks};
use crate::limits::STAMP_VALID_MS;
use crate::rtt;
use crate::seq::Seq;
use crate::wire::{Segment, Stamps};

/// Milliseconds of a moment, wrapping.
pub(super) fn ms(now: Instant) -> u32 {
    (now.0 / 1_000_000) as u32
}

/// Age of a segment by its time stamps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    Current,
    Old,
    Missing,
}

impl Connection {
    /// The option for a segment sent now.
    pub(super) fn stamps_out(&self, now: Instant) -> Option<Stamps> {
        let value = rtt::stamp(now).wrapping_add(self.ts_offset);
        self.marks.has(Marks::HAS_STAMPS).then_some(Stamps { value, echo: self.ts_recent })
    }

    /// The peer's echo in our own clock, the offset taken off.
    pub(super) fn stamps_in(&self, segment: &Segment<'_>) -> Option<Stamps> {
        let stamps = segment.options.stamps.filter(|_| self.marks.has(Marks::HAS_STAMPS))?;
        Some(Stamps { echo: stamps.echo.wrapping_sub(self.ts_offset), ..stamps })
    }

    /// Whether a segment with these time stamps is not old (RFC 7323 section 5.3).
    pub(crate) fn is_current(&self, stamps: Option<Stamps>, now: Instant) -> bool {
        self.age(stamps, now) == Age::Current
    }

    /// R1 of section 5.3, and the rule of section 3.2 for segments without the option.
    pub(super) fn age(&self, stamps: Option<Stamps>, now: Instant) -> Age {
        if !self.marks.has(Marks::HAS_STAMPS) {
            return Age::Current;
        }
        //= RFC 7323 section 3.2
        //# non-<RST> segment is received without a TSopt, a TCP SHOULD silently
        //# drop the segment.
        let Some(stamps) = stamps else { return Age::Missing };
        //= RFC 7323 section 5.5
        //# If
        //# TS.Recent is found to be invalid, then the segment is accepted,
        //# regardless of the failure of the timestamp check, and rule R3 updates
        //# TS.Recent with the TSval from the new segment.
        let is_valid =
            self.marks.has(Marks::HAS_RECENT) && ms(now).wrapping_sub(self.ts_recent_ms) < STAMP_VALID_MS;
        if is_valid && Seq(stamps.value).before(Seq(self.ts_recent)) { Age::Old } else { Age::Current }
    }

    //= RFC 7323 section 5.3
    //# R3)  If an arriving segment satisfies SEG.TSval >= TS.Recent and
    //# SEG.SEQ <= Last.ACK.sent (see Section 4.3), then record its
    //# timestamp in TS.Recent.
    /// TS.Recent becomes that of the segment that the next ACK is for.
    pub(super) fn note_stamp(&mut self, segment: &Segment<'_>, now: Instant) {
        let Some(stamps) = segment.options.stamps.filter(|_| self.marks.has(Marks::HAS_STAMPS)) else {
            return;
        };
        let is_newer = !self.marks.has(Marks::HAS_RECENT) || !Seq(stamps.value).before(Seq(self.ts_recent));
        let is_stale = ms(now).wrapping_sub(self.ts_recent_ms) >= STAMP_VALID_MS;
        if (is_newer || is_stale) && segment.seq.up_to(self.receiver.last_ack_sent()) {
            self.set_recent(stamps.value, now);
        }
    }

    pub(super) fn set_recent(&mut self, value: u32, now: Instant) {
        (self.ts_recent, self.ts_recent_ms) = (value, ms(now));
        self.marks.insert(Marks::HAS_RECENT);
    }
}
