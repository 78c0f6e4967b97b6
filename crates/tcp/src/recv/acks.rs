//! When an ACK is due (RFC 9293 section 3.8.6.3, RFC 5681 section 4.2), and its SACK blocks (RFC 2018 section 4, RFC 2883).

use millrace_core::time::Instant;

use super::pages::Pages;
use super::receiver::Receiver;
use super::reports::{ReportId, Reports, SackReport, is_empty};
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

/// A moment in nanoseconds, without the padding that its alignment would cost each connection.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Due(u64);

/// State of the ACKs to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acks {
    /// When the delayed ACK is due; the end of time if none is.
    due: Due,
    /// The sequence number that the last ACK acknowledged.
    pub(super) acked: Seq,
    /// SACK blocks and duplicates.
    report: ReportId,
    /// The longest segment that has been seen, within bounds.
    full_bytes: u16,
    is_now: bool,
}

impl Acks {
    pub(super) const fn new(acked: Seq) -> Self {
        Self {
            due: Due(u64::MAX),
            acked,
            report: ReportId::NONE,
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
            self.due = Due({ self.due.0 }.min(now.plus_ns(DELAYED_ACK_NS).0));
        }
    }

    /// Data that was there already came again.
    pub(super) fn note_duplicate(&mut self, reports: &mut Reports, from: Seq, to: Seq) {
        reports.change(&mut self.report, |report| report.duplicate = (from, to));
    }

    /// The latest segment is in this block of early data, which takes in those that it touches.
    pub(super) fn note_block(&mut self, reports: &mut Reports, block: (Seq, Seq)) {
        reports.change(&mut self.report, |report| report.note_block(block));
    }

    /// The block that the latest segment is in.
    pub(super) fn latest_block(&self, reports: &Reports) -> Option<(Seq, Seq)> {
        reports.get(self.report).map(|report| report.blocks[0]).filter(|block| !is_empty(*block))
    }

    /// Takes note that everything below `next` is acknowledged without blocks.
    pub(super) fn advance(&mut self, reports: &mut Reports, next: Seq) {
        if !self.report.is_none() {
            reports.change(&mut self.report, |report| report.advance(next));
        }
    }

    /// There is nothing to report any more.
    pub(super) fn forget(&mut self, reports: &mut Reports) {
        reports.give(&mut self.report);
    }

    #[inline]
    fn sent(&mut self, reports: &mut Reports, next: Seq) {
        self.due = Due(u64::MAX);
        self.acked = next;
        self.is_now = false;
        if !self.report.is_none() {
            reports.change(&mut self.report, SackReport::told);
        }
    }
}

impl Receiver {
    /// When an ACK is due. Cheap enough to be asked after each segment.
    #[inline]
    pub fn ack_due(&self) -> AckDue {
        if self.acks.is_now || self.has_window_to_tell() {
            AckDue::Now
        } else {
            match self.acks.due.0 {
                u64::MAX => AckDue::Never,
                due => AckDue::At(Instant(due)),
            }
        }
    }

    /// An ACK is to go out in this turn, whatever else: a segment that was not acceptable has to be answered, for instance.
    pub fn ack_now(&mut self) {
        self.acks.want_now();
    }

    /// A segment with the current acknowledgment number, window and SACK blocks has gone out, with data or without.
    #[inline]
    pub fn ack_sent(&mut self, pages: &mut Pages) {
        self.acks.sent(pages.reports(), self.next);
    }

    /// Returns the sequence number that the last ACK acknowledged: Last.ACK.sent of RFC 7323
    /// section 4.3.
    #[inline]
    pub fn last_ack_sent(&self) -> Seq {
        self.acks.acked
    }

    /// The SACK blocks that belong into the next segment with an ACK; none if the peer has not permitted them.
    #[inline]
    pub fn sacks(&self, pages: &Pages) -> Sacks {
        let mut sacks = Sacks::default();
        let Some(report) = pages.report(self.acks.report) else { return sacks };
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
            if !is_empty(report.duplicate) {
                sacks.push(report.duplicate.0, report.duplicate.1);
            }
            //= RFC 2018 section 4
            //# The first SACK block (i.e., the one immediately following the
            //# kind and length fields in the option) MUST specify the contiguous
            //# block of data containing the segment which triggered this ACK,
            //# unless that segment advanced the Acknowledgment Number field in
            //# the header.
            for &(from, to) in report.blocks.iter().filter(|block| !is_empty(**block)) {
                sacks.push(from, to);
            }
        }
        sacks
    }
}

#[cfg(test)]
#[path = "acks_tests.rs"]
mod tests;
