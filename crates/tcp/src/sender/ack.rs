//! The processing of an acknowledgment.

use millrace_core::time::Instant;

use crate::cc::validate::Validate;
use crate::cc::{CongestionControl, Growth, WindowReduction};
use crate::recover::frto::{Frto, FrtoAck, TimeoutVerdict};
use crate::recover::marks::Losses;
use crate::recover::prr::{AckProgress, Prr};
use crate::recover::rack::{DUP_THRESHOLD, Delivery, Surroundings};
use crate::recover::records::Records;
use crate::recover::tlp::ProbeAck;
use crate::recover::undo::Evidence;
use crate::rtt::{Tick, stamp, ticks};
use crate::sender::{
    AckIn, Acked, Book, HAS_ECN, HAS_PROGRESSED, HAS_SACK, IS_FORCED, IS_PACED, RecoveryPhase, Sender,
    WANTS_CWR, WAS_FULL, WAS_UNVALIDATED,
};
use crate::seq::Seq;

/// Information about an acknowledgment on the way through.
struct Pass {
    una_before: Seq,
    has_advanced: bool,
    /// It came while the effects of a time-out were being repaired.
    was_timed_out: bool,
    /// Segments acknowledged cumulatively.
    segments: u32,
    /// FlightSize before it.
    outstanding: u32,
    dsack: Option<(Seq, Seq)>,
    delivery: Delivery,
}

impl Sender {
    /// Takes an acknowledgment.
    pub fn acked(&mut self, records: &mut Records, now: Instant, ack: &AckIn<'_>) -> Acked {
        let mut acked = Acked::default();
        // A peer that acknowledges data that was never sent gains nothing by it.
        if ack.ack.after(self.nxt) {
            records.counts.beyond += 1;
            acked.is_beyond = true;
            return acked;
        }
        let mut pass = self.take(records, ack);
        let was_recovering = self.is_recovering();
        acked.bytes = self.una.since(pass.una_before) as u32;
        acked.sacked_bytes = pass.delivery.sacked_bytes;
        acked.is_dsack = pass.dsack.is_some();
        acked.is_duplicate = self.count_duplicate(ack, &mut pass);
        self.measure(ack, &pass);
        if let Some(len) = pass.delivery.mtu_probe {
            self.mtu.arrived(len, Tick::at(now));
        }
        self.check_undo(records, ack, &pass, now, &mut acked);
        self.check_probe(ack, &pass);
        self.check_progress(&pass, now);
        let losses = self.find_losses(records, &pass, was_recovering, now);
        acked.lost_bytes = losses.bytes;
        let newly_sacked = pass.delivery.sacked_bytes;
        let sacked_before = self.board.sacked_bytes - newly_sacked.min(self.board.sacked_bytes);
        self.react_to_losses(records, &losses, sacked_before, pass.outstanding, now);
        self.check_mark(records, ack, pass.outstanding, now, &mut acked);
        self.reduce_proportionally(pass.delivery.bytes, pass.has_advanced && losses.bytes == 0);
        self.grow(ack, &pass, acked.bytes);
        //= RFC 6298 section 5
        //# (5.3) When an ACK is received that acknowledges new data, restart the
        //# retransmission timer so that it will expire after RTO seconds
        //# (for the current value of RTO).
        if pass.has_advanced {
            self.rto_at = now.plus_ns(self.rtt.rto_ns());
        }
        self.arm(now, pass.has_advanced, losses.wait_ticks);
        acked
    }

    /// Cumulative and selective acknowledgments go to the scoreboard (RFC 8985 section 6.2 steps 1 to 3).
    fn take(&mut self, records: &mut Records, ack: &AckIn<'_>) -> Pass {
        let echo = ack.stamps.map(|stamps| stamps.echo);
        let mut delivery = Delivery::new(ack.arrived, echo, self.rtt.min());
        let una_before = self.una;
        let (outstanding, segments) = (self.outstanding(), self.board.segments);
        let has_advanced = ack.ack.after(self.una);
        let rack = &mut self.rack;
        if has_advanced {
            self.board.advance(records, ack.ack, |record| delivery.acknowledged(rack, record));
            self.una = ack.ack;
        }
        let mut dsack = None;
        if self.is(HAS_SACK) && !ack.sacks.blocks().is_empty() {
            dsack = self.take_sacks(records, ack, una_before, &mut delivery);
        }
        delivery.finish(&mut self.rack);
        let segments = segments - self.board.segments;
        let was_timed_out = self.phase == RecoveryPhase::TimedOut;
        Pass { una_before, has_advanced, was_timed_out, segments, outstanding, dsack, delivery }
    }

    /// Processes SACK blocks; returns the range that is reported to have come twice.
    fn take_sacks(
        &mut self,
        records: &mut Records,
        ack: &AckIn<'_>,
        una_before: Seq,
        delivery: &mut Delivery,
    ) -> Option<(Seq, Seq)> {
        let given = ack.sacks.blocks();
        let (left, right) = *given.first()?;
        //= RFC 2883 section 4
        //# (1) A D-SACK block is only used to report a duplicate contiguous
        //# sequence of data received by the receiver in the most recent packet.
        let is_inside = given.get(1).is_some_and(|second| second.0.up_to(left) && right.up_to(second.1));
        let is_dsack = left.before(right) && (right.up_to(ack.ack) || is_inside);
        // Data further back than any window cannot have been sent since (RFC 2883 leaves this to
        // the sender).
        let is_recent = una_before.since(left) < (1 << 30) && right.up_to(self.nxt);
        let dsack = (is_dsack && is_recent).then_some((left, right));
        records.counts.dsacks += u64::from(dsack.is_some());

        let mut blocks = [(Seq(0), Seq(0)); crate::wire::MAX_SACKS];
        let mut count = 0;
        for &(left, right) in &given[usize::from(is_dsack)..] {
            // Old blocks and blocks of data that was never sent prove nothing about the data in
            // flight.
            if !left.before(right) || right.up_to(self.una) || right.after(self.nxt) || left.before(self.una)
            {
                records.counts.ignored_sacks += u64::from(right.after(self.una));
                continue;
            }
            blocks[count] = (left, right);
            count += 1;
        }
        // In ascending order, as reordering is found out by it.
        let blocks = &mut blocks[..count];
        let una = self.una;
        blocks.sort_unstable_by_key(|block| block.0.since(una));
        let rack = &mut self.rack;
        for &mut (left, right) in blocks {
            self.board.sack(records, left, right, |record| delivery.sacked(rack, record));
        }
        dsack
    }

    /// Whether it is a duplicate; without SACK they are counted.
    fn count_duplicate(&mut self, ack: &AckIn<'_>, pass: &mut Pass) -> bool {
        //= RFC 5681 section 2
        //# DUPLICATE ACKNOWLEDGMENT: An acknowledgment is considered a
        //# "duplicate" in the following algorithms when (a) the receiver of
        //# the ACK has outstanding data, (b) the incoming acknowledgment
        //# carries no data, (c) the SYN and FIN bits are both off, (d) the
        //# acknowledgment number is equal to the greatest acknowledgment
        //# received on the given connection (TCP.UNA from [RFC793]) and (e)
        //# the advertised window in the incoming acknowledgment equals the
        //# advertised window in the last incoming acknowledgment.
        let window = (ack.window ^ (ack.window >> 16)) as u16;
        let is_duplicate =
            self.board.segments > 0 && !ack.has_data && ack.ack == pass.una_before && window == self.window;
        if !ack.ack.before(pass.una_before) {
            self.window = window;
        }
        if self.is(HAS_SACK) {
            return is_duplicate;
        }
        if pass.has_advanced && self.phase == RecoveryPhase::Fast {
            // Data acknowledged now was counted as gone when its duplicate came, except for the
            // hole.
            let known = pass.segments.saturating_sub(1).min(u32::from(self.duplicates));
            self.duplicates -= known as u8;
        } else if pass.has_advanced {
            self.duplicates = 0;
        } else if is_duplicate && u32::from(self.duplicates) < self.board.segments {
            self.duplicates = self.duplicates.saturating_add(1);
            pass.delivery.bytes += u32::from(self.mss());
        }
        is_duplicate
    }

    /// Round-trip times (RFC 6298 section 3, RFC 7323 section 4).
    fn measure(&mut self, ack: &AckIn<'_>, pass: &Pass) {
        let arrived = Tick::at(ack.arrived);
        let mss = u32::from(self.mss());
        let delivery = &pass.delivery;
        //= RFC 9293 section 3.8.1
        //# The RTO MUST be computed according to the algorithm in [10],
        //# including Karn's algorithm for taking RTT samples (MUST-18).
        let measured = if delivery.has_retransmitted {
            //= RFC 6298 section 3
            //# The
            //# only case when TCP can safely take RTT samples from retransmitted
            //# segments is when the TCP timestamp option [JBB92] is employed, since
            //# the timestamp option removes the ambiguity regarding which instance
            //# of the data segment triggered the acknowledgment.
            ack.stamps.filter(|stamps| stamps.echo != 0 && pass.has_advanced).map(|stamps| {
                let age = stamp(ack.arrived).wrapping_sub(stamps.echo);
                ticks(u64::from(age.min(1 << 16)) << 20).max(1)
            })
        } else {
            delivery.longest
        };
        let Some(measured) = measured else { return };
        //= RFC 7323 section G
        //# ExpectedSamples = ceiling(FlightSize / (SMSS * 2))
        self.rtt.sample(measured, pass.outstanding.div_ceil(2 * mss));
        self.tlp.has_sample = true;
        if let (Some(shortest), false) = (delivery.shortest, delivery.has_retransmitted) {
            self.rtt.sample_min(shortest, arrived);
        }
    }

    /// Whether a reduction was for nothing.
    fn check_undo(
        &mut self,
        records: &mut Records,
        ack: &AckIn<'_>,
        pass: &Pass,
        now: Instant,
        acked: &mut Acked,
    ) {
        let mss = u32::from(self.mss());
        let evidence = Evidence {
            echo: ack.stamps.map(|stamps| stamps.echo),
            has_advanced: pass.has_advanced && self.is_recovering(),
            acks_all: self.una == self.nxt,
            duplicates: pass.dsack.map(|(left, right)| (right.since(left) as u32).div_ceil(mss)),
        };
        let mut is_undone = self.undo.acked(&evidence);
        let verdict = self.frto.acked(&FrtoAck {
            ack: self.una,
            has_advanced: pass.has_advanced,
            sacked_until: pass.delivery.sacked_until,
            recovery_point: self.recovery_point,
        });
        match verdict {
            TimeoutVerdict::None => {}
            TimeoutVerdict::Genuine(segments) => {
                let cwnd = self.controller.cwnd().min(segments * mss);
                let ssthresh = self.controller.ssthresh();
                self.controller.set(cwnd, ssthresh);
            }
            TimeoutVerdict::Spurious => is_undone = true,
        }
        if !is_undone {
            return;
        }
        acked.is_undone = true;
        acked.is_spurious = self.phase == RecoveryPhase::TimedOut;
        records.counts.undone += 1;
        records.counts.spurious_timeouts += u64::from(acked.is_spurious);
        self.undo.end();
        self.frto = Frto::Off;
        self.board.unmark_lost(records);
        self.controller.on_undo();
        self.rtt.backoff = 0;
        if self.is_recovering() {
            self.phase = RecoveryPhase::Open;
            self.book = Book::Open(Validate::new(self.una, Tick::at(now)));
            self.recovery_point = self.nxt;
            self.rack.recovery_ended();
        }
    }

    /// Evaluates its information about a tail loss probe.
    fn check_probe(&mut self, ack: &AckIn<'_>, pass: &Pass) {
        let has_repaired = self.tlp.acked(&ProbeAck {
            ack: self.una,
            dsack_end: pass.dsack.map(|(_, right)| right),
            is_bare_duplicate: ack.ack == pass.una_before && !ack.has_data && ack.sacks.blocks().is_empty(),
        });
        //= RFC 8985 section 7.4.2
        //# The sender then
        //# SHOULD invoke a congestion control response equivalent to a fast
        //# recovery.
        if has_repaired && self.phase == RecoveryPhase::Open {
            let cut = self.cut(pass.outstanding);
            if self.board.segments > 0 {
                self.begin_reduction(RecoveryPhase::Marked, self.board.sacked_bytes);
            }
            self.undo.end();
            self.controller.on_loss(&cut);
        }
    }

    /// Whether a recovery has ended.
    fn check_progress(&mut self, pass: &Pass, now: Instant) {
        if !pass.has_advanced {
            return;
        }
        self.switches.set(HAS_PROGRESSED, true);
        if self.una.before(self.recovery_point) {
            return;
        }
        let tick = Tick::at(now);
        match self.phase {
            // A round trip after the recovery nothing can prove any more that it was for nothing.
            RecoveryPhase::Open => return self.undo.end(),
            // So that the CWR that went behind it has arrived, and marks from before it do not count again.
            RecoveryPhase::Marked if self.una == self.recovery_point => return,
            RecoveryPhase::Fast | RecoveryPhase::Marked => self.end_reduction(),
            RecoveryPhase::TimedOut => {}
        }
        if self.is_recovering() {
            self.rack.recovery_ended();
        }
        //= RFC 7661 section 4.4.1
        //# After completing the loss recovery phase, the sender MUST
        //# re-initialise the pipeACK variable to the "undefined" value.
        self.book = Book::Open(Validate::new(self.una, tick));
        self.phase = RecoveryPhase::Open;
        self.frto = Frto::Off;
        self.recovery_point = self.nxt;
    }

    /// Sets the window to the threshold (RFC 6937 section 3.1; less where it was not validated: RFC
    /// 7661 section 4.4.1).
    fn end_reduction(&mut self) {
        //= RFC 5681 section 4.3
        //# cwnd MUST be set to no more than
        //# ssthresh and congestion avoidance MUST be used to further increase
        let mut cwnd = self.controller.ssthresh();
        if let (true, Book::Reducing(prr)) = (self.is(WAS_UNVALIDATED), &self.book) {
            //= RFC 7661 section 4.4.1
            //# cwnd = (Max(pipeACK,LossFlightSize) - R)/2.
            cwnd = cwnd.saturating_sub(prr.retransmitted / 2);
        }
        let cwnd = cwnd.max(u32::from(self.mss()));
        if cwnd != self.controller.cwnd() {
            self.controller.set(cwnd, cwnd);
        }
        self.switches.set(WAS_UNVALIDATED, false);
    }

    /// RFC 8985 section 6.2 steps 4 and 5; without SACK three duplicates (RFC 5681 section 3.2).
    fn find_losses(
        &mut self,
        records: &mut Records,
        pass: &Pass,
        was_recovering: bool,
        now: Instant,
    ) -> Losses {
        if !self.is(HAS_SACK) {
            //= RFC 5681 section 3.2
            //# The lost segment starting at SND.UNA MUST be retransmitted and
            let is_third =
                !self.is_recovering() && u32::from(self.duplicates) == DUP_THRESHOLD && !pass.has_advanced;
            let is_partial = self.phase == RecoveryPhase::Fast && pass.has_advanced && was_recovering;
            if !is_third && !is_partial {
                return Losses::default();
            }
            self.switches.set(IS_FORCED, is_partial || self.is(IS_FORCED));
            let mut is_first = true;
            return self.board.mark_lost(records, |_| std::mem::take(&mut is_first).then_some(true));
        }
        let around = Surroundings {
            una: self.una,
            nxt: self.nxt,
            has_dsack: pass.dsack.is_some(),
            is_recovering: self.is_recovering(),
        };
        let window = self.rack.reordering_window(&around, &self.board, &self.rtt);
        self.rack.detect(&mut self.board, records, window, Tick::at(now))
    }

    /// Returns how much of the window was used: a reduction starts from this.
    pub(super) fn used_bytes(&self, outstanding: u32) -> u32 {
        //= RFC 5681 section 3.1
        //# Implementation Note: An easy mistake to make is to simply use cwnd,
        //# rather than FlightSize, which in some implementations may
        //# incidentally increase well beyond rwnd.
        let pipe_ack = match &self.book {
            Book::Open(validate) => validate.pipe_ack().unwrap_or(0),
            Book::Reducing(_) => 0,
        };
        let used = outstanding.max(pipe_ack);
        used.min(self.controller.cwnd())
    }

    fn cut(&self, outstanding: u32) -> WindowReduction {
        WindowReduction { used: self.used_bytes(outstanding), mss: u32::from(self.mss()) }
    }

    /// Fast recovery begins where something is lost and none runs. `sacked` and `outstanding`: bytes before the acknowledgment.
    pub(super) fn react_to_losses(
        &mut self,
        records: &mut Records,
        losses: &Losses,
        sacked: u32,
        outstanding: u32,
        now: Instant,
    ) {
        if losses.bytes == 0 {
            return;
        }
        //= RFC 4821 section 7.6.2
        //# In this case alone, the
        //# loss SHOULD NOT be interpreted as congestion signal.
        if losses.mtu_probe_bytes == losses.bytes && self.phase == RecoveryPhase::Open {
            let round_trips = self.controller.cwnd() / u32::from(self.mss());
            self.mtu.probe_lost(self.rtt.srtt().saturating_mul(round_trips), Tick::at(now));
            return;
        }
        if self.is_recovering() {
            return;
        }
        records.counts.recoveries += 1;
        let is_marked = self.phase == RecoveryPhase::Marked;
        let cut = self.cut(outstanding);
        self.begin_reduction(RecoveryPhase::Fast, sacked);
        self.undo.begin();
        self.tlp.reset();
        // The window was reduced already for the network's marks in the same window of data.
        if !is_marked {
            self.controller.on_loss(&cut);
        }
    }

    fn begin_reduction(&mut self, phase: RecoveryPhase, sacked: u32) {
        // RFC 9937 section 6: data selectively acknowledged before is not delivered during
        // recovery.
        let was_unvalidated = matches!(&self.book, Book::Open(validate) if validate.is_unvalidated());
        self.switches.set(WAS_UNVALIDATED, was_unvalidated);
        self.book = Book::Reducing(Prr::begin(self.outstanding().saturating_sub(sacked)));
        self.phase = phase;
        self.recovery_point = self.nxt;
        self.switches.set(WANTS_CWR, self.is(HAS_ECN));
    }

    pub(super) fn reduce_proportionally(&mut self, delivered: u32, is_safe: bool) {
        let pipe = self.in_flight();
        let mss = u32::from(self.mss());
        let Book::Reducing(prr) = &mut self.book else { return };
        let progress = AckProgress { delivered, pipe, ssthresh: self.controller.ssthresh(), mss, is_safe };
        prr.acked(&progress);
    }

    /// The network marked a segment instead of dropping it (RFC 3168).
    fn check_mark(
        &mut self,
        records: &mut Records,
        ack: &AckIn<'_>,
        outstanding: u32,
        now: Instant,
        acked: &mut Acked,
    ) {
        //= RFC 3168 section 6.1.2
        //# TCP should not react to congestion indications more than once every
        //# window of data (or more loosely, more than once every round-trip
        //# time).
        if !ack.is_ece || !self.is(HAS_ECN) || self.phase != RecoveryPhase::Open || self.board.segments == 0 {
            return;
        }
        records.counts.ecn += 1;
        acked.is_ecn_reduced = true;
        let is_least = self.controller.cwnd() <= u32::from(self.mss());
        let cut = self.cut(outstanding);
        self.begin_reduction(RecoveryPhase::Marked, self.board.sacked_bytes);
        self.undo.end();
        self.controller.on_ecn(&cut);
        if is_least {
            //= RFC 3168 section 6.1.2
            //# Therefore, the sending TCP MUST reset the
            //# retransmit timer on receiving the ECN-Echo packet when the congestion
            //# window is one.
            self.rto_at = now.plus_ns(self.rtt.rto_ns());
            self.pace.hold(self.rto_at);
        }
    }

    /// The window grows.
    fn grow(&mut self, ack: &AckIn<'_>, pass: &Pass, bytes: u32) {
        if !pass.has_advanced || matches!(self.phase, RecoveryPhase::Fast | RecoveryPhase::Marked) {
            return;
        }
        let now = Tick::at(ack.arrived);
        let cwnd = self.controller.cwnd();
        let is_slow_start = self.controller.is_slow_start();
        let was_full = self.is(WAS_FULL) && pass.una_before.before(self.full_until);
        self.switches.set(WAS_FULL, was_full);
        //= RFC 7661 section 4.4
        //# A sender that is not cwnd-limited MUST NOT increase the cwnd
        //# when ACK packets are received in this phase (i.e., needs to
        //# avoid growing the cwnd when it has not recently sent using the
        //# current size of cwnd).
        let is_used = was_full || (is_slow_start && pass.outstanding >= cwnd / 2);
        let srtt = self.rtt.srtt();
        if let (RecoveryPhase::Open, Book::Open(validate)) = (self.phase, &mut self.book) {
            validate.acked(pass.una_before, self.una, cwnd, srtt, now);
        }
        //= RFC 3168 section 6.1.2
        //# The sending
        //# TCP SHOULD NOT increase the congestion window in response to the
        //# receipt of an ECN-Echo ACK packet.
        if ack.is_ece && self.is(HAS_ECN) {
            return;
        }
        self.controller.on_ack(&Growth {
            now,
            bytes,
            mss: u32::from(self.mss()),
            srtt,
            rtt: pass.delivery.shortest,
            una: self.una,
            nxt: self.nxt,
            is_recovering: pass.was_timed_out,
            is_paced: self.is(IS_PACED),
            is_used,
        });
    }
}
