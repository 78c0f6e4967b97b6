//! RACK: a segment sent before another one that has arrived, and long enough ago, is lost (RFC 8985
//! section 6).

use millrace_core::time::Instant;

use crate::recover::board::Board;
use crate::recover::marks::Losses;
use crate::recover::records::{MTU_PROBE, RETRANSMITTED, Record, Records, SACKED};
use crate::rtt::{Rtt, Tick, is_stamp_before, stamp_of};
use crate::seq::Seq;

/// Segments that arrived behind a hole before it counts as a loss at once (RFC 8985 section 5: DupThresh of RFC 6675).
pub(crate) const DUP_THRESHOLD: u32 = 3;
/// Recoveries that a widened reordering window is kept for (RFC 8985 section 6.2 step 4).
const PERSIST: u8 = 16;

/// Whether segment 1 was sent after segment 2 (RFC 8985 section 6.2: RACK_sent_after).
fn is_sent_after(sent_1: Tick, end_1: Seq, sent_2: Tick, end_2: Seq) -> bool {
    sent_1.after(sent_2) || (sent_1 == sent_2 && end_1.after(end_2))
}

/// State of RACK (RFC 8985 section 5.3).
#[derive(Debug)]
pub(crate) struct Rack {
    /// RACK.xmit_ts and RACK.end_seq: when the segment was sent that was sent last of those that have arrived, and where it ends.
    sent: Tick,
    end: Seq,
    /// RACK.rtt in ticks; 0 while nothing has arrived that the data in flight can be compared with.
    rtt: u32,
    /// RACK.fack: up to where anything arrived.
    fack: Seq,
    /// RACK.dsack_round, where `is_in_dsack_round`.
    dsack_round: Seq,
    /// RACK.reo_wnd_mult.
    mult: u8,
    /// RACK.reo_wnd_persist.
    persist: u8,
    is_reordering_seen: bool,
    is_in_dsack_round: bool,
}

/// What decides on the reordering window beside RACK's own state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Surroundings {
    pub(crate) una: Seq,
    pub(crate) nxt: Seq,
    pub(crate) has_dsack: bool,
    pub(crate) is_recovering: bool,
}

impl Rack {
    pub(crate) fn new(first: Seq) -> Self {
        Self {
            sent: Tick(0),
            end: first,
            rtt: 0,
            fack: first,
            dsack_round: first,
            mult: 1,
            persist: PERSIST,
            is_reordering_seen: false,
            is_in_dsack_round: false,
        }
    }

    /// Nothing is in flight: earlier arrivals are compared with nothing any more. (Times of
    /// departure are kept modulo 73 minutes; a connection may rest for longer.)
    pub(crate) fn rest(&mut self) {
        self.rtt = 0;
    }

    /// Step 4: the reordering window in ticks.
    pub(crate) fn reordering_window(&mut self, around: &Surroundings, board: &Board, rtt: &Rtt) -> u32 {
        if self.is_in_dsack_round && self.dsack_round.up_to(around.una) {
            self.is_in_dsack_round = false;
        }
        //= RFC 8985 section 3.3.2
        //# The RACK reordering window SHOULD adaptively increase (using the
        //# algorithm in "Step 4: Update RACK reordering window" below) if
        //# the sender receives a Duplicate Selective Acknowledgment (DSACK)
        //# option [RFC2883].
        if !self.is_in_dsack_round && around.has_dsack {
            self.is_in_dsack_round = true;
            self.dsack_round = around.nxt;
            self.mult = self.mult.saturating_add(1);
            self.persist = PERSIST;
        }
        self.window(around.is_recovering, board, rtt)
    }

    fn window(&self, is_recovering: bool, board: &Board, rtt: &Rtt) -> u32 {
        //= RFC 8985 section 3.3.2
        //# The reordering window SHOULD be set to zero if no reordering has
        //# been observed on the connection so far, and either (a) three
        //# segments have been SACKed since the last recovery or (b) the
        //# sender is already in fast or RTO recovery.
        if !self.is_reordering_seen && (is_recovering || board.sacked_segments >= DUP_THRESHOLD) {
            return 0;
        }
        //= RFC 8985 section 3.3.2
        //# The RACK reordering window MUST be bounded, and this bound SHOULD
        //# be SRTT.
        (u32::from(self.mult).saturating_mul(rtt.min()) / 4).min(rtt.srtt())
    }

    /// A recovery has ended: a widened reordering window is kept for 16 of them.
    pub(crate) fn recovery_ended(&mut self) {
        self.persist = self.persist.saturating_sub(1);
        if self.persist == 0 {
            self.mult = 1;
        }
    }

    /// Step 5: marks lost segments.
    pub(crate) fn detect(&self, board: &mut Board, slab: &mut Records, window: u32, now: Tick) -> Losses {
        if self.rtt == 0 {
            return Losses::default();
        }
        let limit = self.rtt.saturating_add(window);
        let mut wait_ticks = 0;
        let mut losses = board.mark_lost(slab, |record| {
            if !is_sent_after(self.sent, self.end, record.last_sent, record.end()) {
                // Segments sent once stand in the order of their departure, and whatever behind this one was sent again was
                // sent again later still: none of the rest was sent before RACK.segment.
                return if record.is(RETRANSMITTED) { Some(false) } else { None };
            }
            let age = now.since(record.last_sent);
            //= RFC 8985 section 6.2
            //# In turn, that is equivalent to stating that a RACK sender should
            //# declare a segment lost when:
            //#
            //# Segment.xmit_ts + RACK.rtt + RACK.reo_wnd - now <= 0
            if age >= limit {
                return Some(true);
            }
            wait_ticks = wait_ticks.max(limit - age);
            Some(false)
        });
        losses.wait_ticks = wait_ticks;
        losses
    }

    /// Marks lost segments when the retransmission time-out has run out.
    pub(crate) fn mark_on_timeout(
        &self,
        board: &mut Board,
        slab: &mut Records,
        una: Seq,
        rtt: &Rtt,
        now: Tick,
    ) -> Losses {
        let window = self.window(true, board, rtt);
        let limit = self.rtt.max(rtt.min()).saturating_add(window);
        //= RFC 8985 section 6.3
        //# Upon RTO timer expiration, RACK marks the first outstanding segment
        //# as lost (since it was sent an RTO ago); for all the other segments,
        //# RACK only marks the segment as lost if the time elapsed since the
        //# segment was transmitted is at least the sum of the recent RTT and the
        //# reordering window.
        board.mark_lost(slab, |record| Some(record.seq.up_to(una) || now.since(record.last_sent) >= limit))
    }
}

/// The arrivals that one acknowledgment reports.
#[derive(Debug)]
pub(crate) struct Delivery {
    arrived: Instant,
    echo: Option<u32>,
    min_rtt: u32,
    /// RACK.segment among the new arrivals: departure, end, round-trip time.
    newest: Option<(Tick, Seq, u32)>,
    /// Bytes that arrived for the first time.
    pub(crate) bytes: u32,
    /// Of them: those that were only selectively acknowledged.
    pub(crate) sacked_bytes: u32,
    /// Segments that were sent more than once are among them, acknowledged cumulatively.
    pub(crate) has_retransmitted: bool,
    /// Round-trip times of segments sent once: of the one sent first and the one sent last.
    pub(crate) longest: Option<u32>,
    pub(crate) shortest: Option<u32>,
    /// End of the last data that was selectively acknowledged.
    pub(crate) sacked_until: Option<Seq>,
    /// The probe for a larger MTU was among it.
    pub(crate) mtu_probe: Option<u16>,
}

impl Delivery {
    pub(crate) fn new(arrived: Instant, echo: Option<u32>, min_rtt: u32) -> Self {
        Self {
            arrived,
            echo,
            min_rtt,
            newest: None,
            bytes: 0,
            sacked_bytes: 0,
            has_retransmitted: false,
            longest: None,
            shortest: None,
            sacked_until: None,
            mtu_probe: None,
        }
    }

    /// A segment is acknowledged cumulatively.
    pub(crate) fn acknowledged(&mut self, rack: &mut Rack, record: &Record) {
        if record.is(SACKED) {
            return;
        }
        self.has_retransmitted |= record.is(RETRANSMITTED);
        self.arrived(rack, record, self.echo);
    }

    /// A segment is selectively acknowledged, which it was not before.
    pub(crate) fn sacked(&mut self, rack: &mut Rack, record: &Record) {
        self.sacked_bytes += u32::from(record.len);
        let end = record.end();
        self.sacked_until = Some(self.sacked_until.map_or(end, |until| until.max(end)));
        // The echo is from the last segment in order (RFC 7323 section 4.3): it proves nothing
        // about this one.
        self.arrived(rack, record, None);
    }

    /// Steps 2 and 3 for one segment. Segments come in ascending order of their ends.
    fn arrived(&mut self, rack: &mut Rack, record: &Record, echo: Option<u32>) {
        self.bytes += u32::from(record.len);
        if record.is(MTU_PROBE) {
            self.mtu_probe = Some(record.len);
        }
        let is_repeated = record.is(RETRANSMITTED);
        let end = record.end();
        if end.after(rack.fack) {
            rack.fack = end;
        } else if end.before(rack.fack) && !is_repeated {
            //= RFC 8985 section 6.2
            //# If a never-retransmitted segment
            //# that's below RACK.fack is (selectively or cumulatively) acknowledged,
            //# it has been delivered out of order.
            rack.is_reordering_seen = true;
        }
        let rtt = Tick::at(self.arrived).since(record.last_sent);
        if is_repeated {
            //= RFC 8985 section 6.2
            //# To avoid spurious inferences, ignore a segment as invalid if any of
            //# its sequence range has been retransmitted before and if either of two
            //# conditions is true:
            let sent = stamp_of(record.last_sent, self.arrived);
            if echo.is_some_and(|echo| is_stamp_before(echo, sent)) || rtt < self.min_rtt {
                return;
            }
        } else {
            self.longest = Some(self.longest.map_or(rtt, |longest| longest.max(rtt)));
            self.shortest = Some(self.shortest.map_or(rtt, |shortest| shortest.min(rtt)));
        }
        let is_newer = |&(sent, end_before, _): &(Tick, Seq, u32)| {
            is_sent_after(record.last_sent, end, sent, end_before)
        };
        if self.newest.as_ref().is_none_or(is_newer) {
            self.newest = Some((record.last_sent, end, rtt));
        }
    }

    /// Passes the arrived segment that was sent last to RACK.
    pub(crate) fn finish(&self, rack: &mut Rack) {
        let Some((sent, end, rtt)) = self.newest else { return };
        if rack.rtt == 0 || is_sent_after(sent, end, rack.sent, rack.end) {
            (rack.sent, rack.end) = (sent, end);
        }
        rack.rtt = rtt.max(1);
    }
}

#[cfg(test)]
#[path = "rack_tests.rs"]
mod tests;
