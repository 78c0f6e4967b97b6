//! Seventh, process the segment text; eighth, check the FIN bit. The receiver takes both in, in order or early.

use super::{ArrivalStep, Connection, Env, NEXT, SegmentArrival};
use crate::conn::{Happened, Marks};
use crate::recv::{self, Offered, SegmentRefusal};
use crate::wire::header::is_same_sum;
use crate::wire::{Flags, Segment};

use millrace_core::wire::checksum::sum16;

/// Result of summing a payload.
pub(super) enum Sum {
    /// It is right.
    Right,
    /// It is wrong: the segment never came.
    Wrong,
    /// It is right, and the payload was taken in already.
    Taken(Offered),
}

impl Connection {
    /// No part of a segment may be trusted before its payload was summed. Data in order, which is
    /// nearly everything, is summed while it is copied to where it will be read (NTT 1996 section
    /// 4.1 item 3); everything else first.
    pub(super) fn check_sum(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> Sum {
        let Some(expected) = arrival.expected_sum.filter(|_| !segment.payload.is_empty()) else {
            return Sum::Right;
        };
        if !self.is_plain(env, segment) {
            return if is_same_sum(sum16(segment.payload), expected) { Sum::Right } else { Sum::Wrong };
        }
        let data = recv::ReceivedSegment {
            seq: segment.seq,
            payload: segment.payload,
            is_fin: false,
            is_marked: self.is_marked(arrival),
            expected_sum: Some(expected),
        };
        match self.receiver.offer(env.pages, env.now, &data) {
            Offered::Refused(SegmentRefusal::WrongSum) => Sum::Wrong,
            offered => Sum::Taken(offered),
        }
    }

    /// Whether every step before the seventh will let the segment pass.
    fn is_plain(&self, env: &Env<'_>, segment: &Segment<'_>) -> bool {
        let flags = segment.flags.without(Flags::PSH);
        flags == Flags::ACK
            && segment.seq == self.rcv_nxt()
            && self.rcv_wnd() > 0
            && self.may_receive()
            && self.is_ack_in_range(segment.ack)
            && self.is_current(segment.options.stamps, env.now)
    }

    fn is_marked(&self, arrival: SegmentArrival) -> bool {
        arrival.is_marked && self.marks.has(Marks::HAS_ECN)
    }

    pub(super) fn take_text(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> ArrivalStep {
        let is_fin = segment.flags.has(Flags::FIN);
        if segment.payload.is_empty() && !is_fin {
            return NEXT;
        }
        //= RFC 9293 section 3.10.7.4
        //# This should not occur since a FIN has been received from the
        //# remote side.  Ignore the segment text.
        if !self.may_receive() {
            return NEXT;
        }
        if self.marks.has(Marks::ORPHAN) && !segment.payload.is_empty() {
            return self.refuse_text(env);
        }
        let data = recv::ReceivedSegment {
            seq: segment.seq,
            payload: segment.payload,
            is_fin,
            is_marked: self.is_marked(arrival),
            expected_sum: None,
        };
        let offered = self.receiver.offer(env.pages, env.now, &data);
        self.took_text(env, segment, arrival, offered)
    }

    /// After the receiver has taken data in.
    pub(super) fn took_text(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
        offered: Offered,
    ) -> ArrivalStep {
        if self.marks.has(Marks::HAS_ECN) && !segment.payload.is_empty() {
            //= RFC 3168 section 6.1.3
            //# When TCP receives a CE data packet at the destination end-system, the
            //# TCP data receiver sets the ECN-Echo flag in the TCP header of the
            //# subsequent ACK packet.
            if segment.flags.has(Flags::CWR) {
                self.marks.remove(Marks::ECHO_CE);
            }
            if arrival.is_marked {
                self.marks.insert(Marks::ECHO_CE);
            }
        }
        match offered {
            Offered::Ready { bytes } => {
                if bytes > 0 {
                    self.happened.insert(Happened::READABLE);
                    self.marks.insert(Marks::MOVED);
                }
                if self.marks.has(Marks::ORPHAN) && bytes > 0 {
                    return self.refuse_text(env);
                }
                if self.receiver.is_finished() {
                    self.take_fin(env);
                }
            }
            Offered::Refused(SegmentRefusal::NoRoom | SegmentRefusal::OutOfWindow) => {
                env.counters.refused += 1
            }
            _ => {}
        }
        NEXT
    }

    /// Data for an application that has let go of the connection.
    fn refuse_text(&mut self, env: &mut Env<'_>) -> ArrivalStep {
        //= RFC 9293 section 3.6.1
        //# If such a host issues a CLOSE call while
        //# received data is still pending in the TCP connection, or if new data
        //# is received after CLOSE is called, its TCP implementation SHOULD send
        //# a RST to show that data was lost (SHLD-3).
        let reset = self.abort(env, crate::conn::Reason::Aborted);
        ArrivalStep::Break(reset)
    }
}
