//! The timer: one for all of the retransmission time-out, the time for reordering and the tail loss probe (RFC 8985 section 8).

use millrace_core::time::Instant;

use crate::cc::validate::Validate;
use crate::cc::{CongestionControl, WindowReduction};
use crate::recover::frto::Frto;
use crate::recover::rack::Surroundings;
use crate::recover::records::{Records, SACKED};
use crate::recover::tlp::Tlp;
use crate::rtt::{Tick, nanoseconds};
use crate::sender::{
    Book, Fired, HAS_ECN, HAS_PROGRESSED, HAS_SACK, IS_FORCED, RecoveryPhase, Sender, Timer, WANTS_CWR,
    WAS_UNVALIDATED,
};

impl Sender {
    /// Returns when [`Sender::fired`] must be called.
    pub fn due(&self) -> Option<Instant> {
        (self.timer != Timer::Off).then_some(self.due)
    }

    /// Chooses the timer. `is_new`: new data was sent or acknowledged; `wait_ticks`: until segments
    /// that may be lost are lost.
    pub(super) fn arm(&mut self, now: Instant, is_new: bool, wait_ticks: u32) {
        //= RFC 6298 section 5
        //# (5.2) When all outstanding data has been acknowledged, turn off the
        //# retransmission timer.
        if self.board.segments == 0 {
            // From now on it holds the time since when nothing is in flight.
            self.timer = Timer::Off;
            self.rto_at = now;
            return;
        }
        //= RFC 8985 section 8
        //# When arming a RACK reordering timer or TLP
        //# PTO timer, the sender SHOULD cancel any other pending timers.
        if wait_ticks > 0 {
            self.timer = Timer::Reordering;
            self.due = now.plus_ns(nanoseconds(wait_ticks)).min(self.rto_at);
            return;
        }
        let is_calm = self.phase == RecoveryPhase::Open
            && self.board.sacked_segments == 0
            && self.board.lost_bytes == 0;
        //= RFC 8985 section 7.2
        //# The sender SHOULD start or
        //# restart a loss probe PTO timer after transmitting new data (that was
        //# not itself a loss probe) or upon receiving an ACK that cumulatively
        //# acknowledges new data unless it is already in fast recovery, RTO
        //# recovery, or segments have been SACKed (i.e., RACK.segs_sacked is not
        //# zero).
        if is_new && is_calm && self.is(HAS_SACK) && !self.tlp.is_out() {
            let wait_ns = Tlp::wait_ns(&self.rtt, self.board.segments);
            self.timer = Timer::Probe;
            self.due = now.plus_ns(wait_ns).min(self.rto_at);
            return;
        }
        if self.timer == Timer::Probe && is_calm {
            return;
        }
        self.timer = Timer::Retransmission;
        self.due = self.rto_at;
    }

    /// Does everything that was due at `now`.
    pub fn fired(&mut self, records: &mut Records, now: Instant) -> Fired {
        if self.timer == Timer::Off || now < self.due {
            return Fired::Nothing;
        }
        let timer = std::mem::replace(&mut self.timer, Timer::Retransmission);
        match timer {
            Timer::Off => Fired::Nothing,
            Timer::Reordering if now < self.rto_at => {
                self.due = self.rto_at;
                self.find_losses_by_time(records, now);
                Fired::Reordering
            }
            Timer::Probe => {
                //= RFC 8985 section 7.3
                //# After attempting to send a loss probe, regardless of whether a loss
                //# probe was sent, the sender MUST re-arm the RTO timer, not the PTO
                //# timer, if the FlightSize is not zero.
                self.rto_at = now.plus_ns(self.rtt.rto_ns());
                self.due = self.rto_at;
                if self.tlp.expire() { Fired::Probe } else { Fired::Nothing }
            }
            Timer::Reordering | Timer::Retransmission => self.time_out(records, now),
        }
    }

    /// The time for reordering has passed.
    fn find_losses_by_time(&mut self, records: &mut Records, now: Instant) {
        let around = Surroundings {
            una: self.una,
            nxt: self.nxt,
            has_dsack: false,
            is_recovering: self.is_recovering(),
        };
        let window = self.rack.reordering_window(&around, &self.board, &self.rtt);
        let losses = self.rack.detect(&mut self.board, records, window, Tick::at(now));
        self.react_to_losses(records, &losses, self.board.sacked_bytes, self.outstanding(), now);
        let is_safe = losses.bytes == 0;
        self.reduce_proportionally(0, is_safe);
        self.arm(now, false, losses.wait_ticks);
    }

    fn time_out(&mut self, records: &mut Records, now: Instant) -> Fired {
        let tick = Tick::at(now);
        records.counts.timeouts += 1;
        self.rtt.backoff = self.rtt.backoff.saturating_add(1);
        let times = self.rtt.backoff;
        //= RFC 2018 section 5
        //= type=exception
        //= reason=Only where the first segment bears the mark, which proves it: all others were retransmitted for nothing each time. A receiver that dropped something further on comes to that point as well.
        //# After a retransmit timeout the data sender SHOULD turn off all of the
        //# SACKed bits, since the timeout might indicate that the data receiver
        //# has reneged.
        if self.board.first(records).is_some_and(|first| first.is(SACKED)) {
            records.counts.reneged += 1;
            self.board.forget_sacked(records);
        }
        let used = self.used_bytes(self.outstanding());
        self.rack.mark_on_timeout(&mut self.board, records, self.una, &self.rtt, tick);
        //= RFC 5681 section 3.1
        //# On the other hand, when a TCP sender detects segment loss using the
        //# retransmission timer and the given segment has already been
        //# retransmitted by way of the retransmission timer at least once, the
        //# value of ssthresh is held constant.
        let is_repeated = self.phase == RecoveryPhase::TimedOut && !self.is(HAS_PROGRESSED);
        let cut = WindowReduction { used, mss: u32::from(self.mss()) };
        self.controller.on_rto(&cut, is_repeated);
        //= RFC 5682 section 3.1
        //# This algorithm
        //# SHOULD NOT be applied if the TCP sender is already in loss recovery
        //# when a retransmission timeout occurs.
        let is_first = matches!(self.phase, RecoveryPhase::Open | RecoveryPhase::Marked);
        let again = is_repeated && self.frto == Frto::Retransmitted;
        self.frto = if self.is(HAS_SACK) && (is_first || again) { Frto::Retransmitted } else { Frto::Off };
        //= RFC 3522 section 3.2
        //# The Eifel detection algorithm MUST NOT be reinitiated after
        //# loss recovery has already started.
        if is_first {
            self.undo.begin();
        } else if !is_repeated {
            self.undo.end();
        }
        self.phase = RecoveryPhase::TimedOut;
        self.book = Book::Open(Validate::new(self.una, tick));
        self.switches.set(WAS_UNVALIDATED | HAS_PROGRESSED, false);
        self.switches.set(IS_FORCED, true);
        self.recovery_point = self.nxt;
        self.duplicates = 0;
        self.tlp.reset();
        self.switches.set(WANTS_CWR, self.is(HAS_ECN));
        if times > 1 {
            self.rack.rest();
        }
        if self.mtu.timed_out(times, tick) {
            records.counts.black_holes += 1;
        }
        self.rto_at = now.plus_ns(self.rtt.rto_ns());
        self.timer = Timer::Retransmission;
        self.due = self.rto_at;
        Fired::TimedOut { times }
    }
}
