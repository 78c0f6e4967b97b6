//! The window: what of it is announced (RFC 9293 section 3.8.6.2.2, RFC 7323 section 2), and which segments lie in it.

use super::receiver::Receiver;
use crate::limits::MAX_WINDOW_SCALE;
use crate::seq::Seq;

/// A window is announced up to a unit of the scale beyond the limit if it would have to go back otherwise, but no further than this
/// share of it.
const SLACK_SHIFT: u32 = 4;

/// The scale to offer for a window of at most `limit_bytes`.
pub fn scale_for(limit_bytes: u32) -> u8 {
    let with_slack = if limit_bytes > u32::from(u16::MAX) {
        limit_bytes.saturating_add(limit_bytes >> SLACK_SHIFT)
    } else {
        limit_bytes
    };
    (0..MAX_WINDOW_SCALE).find(|scale| with_slack <= u32::from(u16::MAX) << scale).unwrap_or(MAX_WINDOW_SCALE)
}

/// As much of `limit_bytes` as can be announced by a scale, the slack included; at least its unit.
pub(super) fn limit(limit_bytes: u32, scale: u8) -> u32 {
    let scale = scale.min(MAX_WINDOW_SCALE);
    let announced = u32::from(u16::MAX) << scale;
    let most = if scale == 0 { announced } else { announced - (announced >> SLACK_SHIFT) };
    limit_bytes.clamp(1 << scale, most)
}

/// The window field of a SYN.
//= RFC 7323 section 2.2
//# The window field in a segment where the SYN bit is set (i.e., a <SYN>
//# or <SYN,ACK>) MUST NOT be scaled.
pub fn of_syn(limit_bytes: u32) -> u16 {
    u16::try_from(limit_bytes).unwrap_or(u16::MAX)
}

impl Receiver {
    /// The window field of the next segment, which is taken to be sent.
    #[inline]
    pub fn window(&mut self) -> u16 {
        let want = self.wanted_edge();
        //= RFC 9293 section 3.8.6.2.2
        //# A TCP implementation MUST include a SWS avoidance algorithm in the
        //# receiver (MUST-39).
        //= RFC 9293 section 3.8.6.2.2
        //# The suggested SWS avoidance algorithm for the receiver is to keep
        //# RCV.NXT+RCV.WND fixed until the reduction satisfies:
        let edge = if want.since(self.edge) >= self.least_step() { want } else { self.edge };
        //= RFC 9293 section 3.8.6
        //# A TCP receiver SHOULD NOT shrink the window, i.e., move the right
        //# window edge to the left (SHLD-14).
        let open = edge.since(self.next).max(0).cast_unsigned();
        let unit = 1u32 << self.state.scale;
        let up = open.next_multiple_of(unit);
        let slack = (self.state.limit_bytes >> SLACK_SHIFT).cast_signed();
        // Rounded up the edge would go on with each byte that comes in, rounded down it goes back by less than a unit: down only where
        // memory would be announced that is not there.
        let announced = if (self.next + up).since(want) <= slack { up } else { open };
        let field = (announced >> self.state.scale).min(u32::from(u16::MAX));
        self.edge = self.edge.max(self.next + (field << self.state.scale));
        field as u16
    }

    /// Returns RCV.WND: the bytes that may come now.
    #[inline]
    pub fn open_bytes(&self) -> u32 {
        self.edge.since(self.next).max(0).cast_unsigned()
    }

    /// Returns whether the window has grown enough by reading to notify the peer at once: it
    /// doubles, or half the buffer is free again.
    #[inline]
    pub(super) fn has_window_to_tell(&self) -> bool {
        let gain = self.wanted_edge().since(self.edge);
        if gain < self.least_step() || self.state.is_finished {
            return false;
        }
        gain.cast_unsigned() >= self.open_bytes() || gain.cast_unsigned() >= self.state.limit_bytes / 2
    }

    /// Whether a segment from `seq` on of `bytes` in sequence space is acceptable.
    #[inline]
    pub fn is_acceptable(&self, seq: Seq, bytes: u32) -> bool {
        let open = self.open_bytes();
        //= RFC 9293 section 3.10.7.4
        //# There are four cases for the acceptability test for an incoming
        //# segment:
        match (bytes, open) {
            (0, 0) => seq == self.next,
            (0, _) => seq.is_within(self.next, open),
            //= RFC 9293 section 3.10.7.4
            //# If the RCV.WND is zero, no segments will be acceptable, but
            //# special allowance should be made to accept valid ACKs, URGs, and
            //# RSTs.
            (_, 0) => false,
            _ => seq.is_within(self.next, open) || (seq + (bytes - 1)).is_within(self.next, open),
        }
    }

    /// The edge that memory allows; before RCV.NXT when more is unread than the limit, which slack and rounding make possible.
    #[inline]
    fn wanted_edge(&self) -> Seq {
        self.next + self.state.limit_bytes - self.state.unread_bytes
    }

    /// By how much the edge moves at least: min(RCV.BUFF / 2, MSS), and a unit of the scale.
    #[inline]
    fn least_step(&self) -> i32 {
        let step = (self.state.limit_bytes / 2).min(u32::from(self.state.mss));
        step.max(1 << self.state.scale).cast_signed()
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
