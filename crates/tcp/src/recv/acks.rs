//! When an ACK is due (RFC 9293 section 3.8.6.3, RFC 5681 section 4.2), and its SACK blocks (RFC 2018 section 4, RFC 2883).

use millrace_core::time::Instant;

use super::receiver::Receiver;
use crate::limits::{DELAYED_ACK_NS, LEAST_FULL_SEGMENT_BYTES};
use crate::seq::Seq;
use crate::wire::Sacks;

/// When an ACK has to be sent, if no other segment takes it along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckDue {
    /// There is nothing to acknowledge.
    Never,
    /// At the latest then.
    At(Instant),
    /// In this turn.
    Now,
}

/// SACK blocks that are remembered: as many as fit beside time stamps.
pub(super) const REMEMBERED: usize = 3;

/// What is known of ACKs to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acks {
    /// When the delayed ACK is due; the end of time if none is.
    due: Instant,
    /// What the last ACK acknowledged.
    pub(super) acked: Seq,
    /// A duplicate that has not been reported; empty if there is none.
    duplicate: (Seq, Seq),
    /// Blocks of early data, the latest first; empty ones are none.
    blocks: [(Seq, Seq); REMEMBERED],
    /// The longest segment that has been seen, within bounds.
    full_bytes: u16,
    is_now: bool,
}

impl Acks {
    pub(super) const fn new(acked: Seq) -> Self {
        Self {
            due: Instant(u64::MAX),
            acked,
            duplicate: (Seq(0), Seq(0)),
            blocks: [(Seq(0), Seq(0)); REMEMBERED],
            full_bytes: LEAST_FULL_SEGMENT_BYTES,
            is_now: false,
        }
    }

    pub(super) fn want_now(&mut self) {
        self.is_now = true;
    }

    /// Data came in order, up to `next`.
    #[inline]
    pub(super) fn took(&mut self, now: Instant, next: Seq, segment_bytes: usize, mss: u16) {
        self.full_bytes = self.full_bytes.max(segment_bytes.min(usize::from(mss)) as u16);
        //= RFC 9293 section 3.8.6.3
        //# An ACK SHOULD be generated for at
        //# least every second full-sized segment or 2*RMSS bytes of new data
        let since = next.since(self.acked);
        if since >= 2 * i32::from(self.full_bytes.min(mss)) {
            self.is_now = true;
        } else if since > 0 {
            //= RFC 9293 section 3.8.6.3
            //# A TCP endpoint SHOULD implement a delayed ACK (SHLD-18), but an ACK
            //# should not be excessively delayed; in particular, the delay MUST be
            //# less than 0.5 seconds (MUST-40).
            self.due = self.due.min(now.plus_ns(DELAYED_ACK_NS));
        }
    }

    /// Data that was there already came again.
    pub(super) fn note_duplicate(&mut self, from: Seq, to: Seq) {
        self.duplicate = (from, to);
    }

    /// The latest segment is in this block of early data, which takes in those that it touches.
    pub(super) fn note_block(&mut self, block: (Seq, Seq)) {
        let before = self.blocks;
        let others = before
            .into_iter()
            .filter(|&(from, to)| !is_empty((from, to)) && (to.before(block.0) || from.after(block.1)));
        self.blocks = [(Seq(0), Seq(0)); REMEMBERED];
        for (at, other) in self.blocks.iter_mut().zip(std::iter::once(block).chain(others)) {
            *at = other;
        }
    }

    /// The block that the latest segment is in.
    pub(super) fn latest_block(&self) -> Option<(Seq, Seq)> {
        Some(self.blocks[0]).filter(|block| !is_empty(*block))
    }

    /// What is below `next` is acknowledged without blocks.
    pub(super) fn advance(&mut self, next: Seq) {
        let before = self.blocks;
        self.blocks = [(Seq(0), Seq(0)); REMEMBERED];
        let left = before.into_iter().filter(|block| !is_empty(*block) && block.1.after(next));
        for (at, block) in self.blocks.iter_mut().zip(left) {
            *at = block;
        }
    }

    fn sent(&mut self, next: Seq) {
        self.due = Instant(u64::MAX);
        self.acked = next;
        self.duplicate = (Seq(0), Seq(0));
        self.is_now = false;
    }
}

fn is_empty((from, to): (Seq, Seq)) -> bool {
    from == to
}

impl Receiver {
    /// When an ACK is due. Cheap enough to be asked after each segment.
    #[inline]
    pub fn ack_due(&self) -> AckDue {
        if self.acks.is_now || self.has_window_to_tell() {
            AckDue::Now
        } else if self.acks.due == Instant(u64::MAX) {
            AckDue::Never
        } else {
            AckDue::At(self.acks.due)
        }
    }

    /// An ACK is to go out in this turn, whatever else: a segment that was not acceptable has to be answered, for instance.
    pub fn ack_now(&mut self) {
        self.acks.want_now();
    }

    /// A segment with the current acknowledgment number, window and SACK blocks has gone out, with data or without.
    #[inline]
    pub fn ack_sent(&mut self) {
        self.acks.sent(self.next);
    }

    /// What the last ACK acknowledged: Last.ACK.sent of RFC 7323 section 4.3.
    #[inline]
    pub fn last_ack_sent(&self) -> Seq {
        self.acks.acked
    }

    /// The SACK blocks that belong into the next segment with an ACK; none if the peer has not permitted them.
    #[inline]
    pub fn sacks(&self) -> Sacks {
        let mut sacks = Sacks::default();
        //= RFC 2018 section 4
        //# If the data receiver has not received a
        //# SACK-Permitted option for a given connection, it MUST NOT send SACK
        //# options on that connection.
        if self.state.is_sack_permitted {
            //= RFC 2883 section 4
            //# The left edge of the D-SACK block specifies the first sequence
            //# number of the duplicate contiguous sequence, and the right edge
            //# of the D-SACK block specifies the sequence number immediately
            //# following the last sequence in the duplicate contiguous sequence.
            if !is_empty(self.acks.duplicate) {
                sacks.push(self.acks.duplicate.0, self.acks.duplicate.1);
            }
            //= RFC 2018 section 4
            //# The first SACK block (i.e., the one immediately following the
            //# kind and length fields in the option) MUST specify the contiguous
            //# block of data containing the segment which triggered this ACK,
            //# unless that segment advanced the Acknowledgment Number field in
            //# the header.
            for &(from, to) in self.acks.blocks.iter().filter(|block| !is_empty(**block)) {
                sacks.push(from, to);
            }
        }
        sacks
    }
}

#[cfg(test)]
#[path = "acks_tests.rs"]
mod tests;
