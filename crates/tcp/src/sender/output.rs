//! The data that may be sent, and the data that was.

use millrace_core::time::Instant;

use crate::cc::CongestionControl;
use crate::cc::validate::shrink;
use crate::limits::{DEVICE_COPIES, UNVALIDATED_NS};
use crate::mtu::{Opportunity, Wish};
use crate::pace::Rate;
use crate::recover::records::{MTU_PROBE, Record, Records};
use crate::rtt::{Tick, nanoseconds, stamp};
use crate::sender::{
    Book, Full, IS_FORCED, IS_PACED, Permit, RecoveryPhase, Sender, Timer, WANTS_CWR, WAS_FULL,
};
use crate::seq::Seq;

impl Sender {
    /// Returns the data that may be sent now. `limit`: the end of the available data that the
    /// receiver's window takes; `is_clipped`: there is more than it takes.
    pub fn next(&mut self, records: &mut Records, now: Instant, limit: Seq, is_clipped: bool) -> Permit {
        let available = limit.since(self.nxt).max(0) as u32;
        if self.board.segments == 0 && available > 0 {
            self.shrink_after_rest(now);
        }
        let has_room = self.board.has_room(records);
        if self.tlp.is_wanted()
            && let Some(probe) = self.next_probe(records, if has_room { available } else { 0 }, is_clipped)
        {
            return probe;
        }
        if available == 0 && self.frto.sends_new() {
            self.frto.cannot_send();
        }
        let is_alone = self.in_flight() == 0;
        let room = self.room();
        if self.board.lost_bytes > 0 && !self.frto.sends_new() {
            return self.next_lost(records, now, room, is_alone);
        }
        if available == 0 || !has_room {
            return Permit::Nothing;
        }
        let mss = u32::from(self.mss());
        let room = self.frto.segments().map_or(room, |segments| segments * mss);
        if room < mss.min(available) && (!is_alone || self.frto.sends_new()) {
            if self.phase == RecoveryPhase::Open || self.phase == RecoveryPhase::TimedOut {
                self.window_is_full();
            }
            return Permit::Nothing;
        }
        if let Some(until) = self.pace.wait(now) {
            return Permit::Wait(until);
        }
        if let Book::Open(validate) = &mut self.book {
            validate.before_send(&mut self.controller, mss, Tick::at(now));
        }
        let chance = Opportunity {
            available,
            room,
            cwnd: self.controller.cwnd(),
            is_quiet: self.phase == RecoveryPhase::Open
                && self.board.sacked_segments == 0
                && self.duplicates == 0,
            now: Tick::at(now),
        };
        match self.mtu.wants(&chance) {
            Wish::Probe(len) => return Permit::MtuProbe { len },
            Wish::Room => {
                self.window_is_full();
                return Permit::Nothing;
            }
            Wish::Nothing => {}
        }
        Permit::New { bytes: room.max(mss).min(available) }
    }

    /// A tail loss probe. A part of a segment that the window clips is none: it would be a silly window
    /// (RFC 9293 section 3.8.6.2.1), and its payload would have to be read for its checksum.
    fn next_probe(&mut self, records: &Records, available: u32, is_clipped: bool) -> Option<Permit> {
        let mss = self.mss();
        //= RFC 8985 section 7.3
        //# If both conditions are met, then the sender SHOULD transmit a
        //# previously unsent data segment, if one exists and the receive window
        //# allows, and increment the FlightSize accordingly.
        if available > 0 && (available >= u32::from(mss) || !is_clipped) {
            let len = available.min(u32::from(mss)) as u16;
            return Some(Permit::Probe { seq: self.nxt, len, is_new: true });
        }
        //= RFC 8985 section 7.3
        //# If such an unsent segment is not available, then the sender SHOULD
        //# retransmit the highest-sequence segment sent so far and set
        //# TLP.is_retrans to true.
        match self.board.last(records) {
            Some(last) if last.is_flying() && last.len <= mss && last.in_device < DEVICE_COPIES => {
                Some(Permit::Probe { seq: last.seq, len: last.len, is_new: false })
            }
            _ => {
                self.tlp.reset();
                None
            }
        }
    }

    /// A retransmission.
    fn next_lost(&mut self, records: &mut Records, now: Instant, room: u32, is_alone: bool) -> Permit {
        let mss = self.mss();
        let Some((block, at)) = self.board.find_lost(records) else { return Permit::Nothing };
        let Some(mut record) = records.block(block).map(|block| block.records[at]) else {
            return Permit::Nothing;
        };
        if record.len > mss {
            // It goes in pieces, and whoever sends them knows where they end: the record is cut there when the first has gone.
            if !self.board.may_split(records, block) {
                return Permit::Nothing;
            }
            record.len = mss;
        }
        if record.in_device == DEVICE_COPIES {
            return Permit::Nothing;
        }
        //= RFC 8985 section 9.3
        //# A segment marked
        //# as lost by RACK-TLP MUST NOT be retransmitted until congestion
        //# control deems this appropriate.
        if room < u32::from(record.len) && !is_alone && !self.is(IS_FORCED) {
            if self.phase == RecoveryPhase::TimedOut {
                self.window_is_full();
            }
            return Permit::Nothing;
        }
        match self.pace.wait(now) {
            Some(until) if !self.is(IS_FORCED) => Permit::Wait(until),
            _ => Permit::Retransmit { seq: record.seq, len: record.len },
        }
    }

    /// Bytes that congestion control has room for.
    fn room(&self) -> u32 {
        if let Book::Reducing(prr) = &self.book {
            return prr.quota();
        }
        // In flight is less by what duplicate acknowledgments and SACK blocks report: so new segments go for the first two
        // of them, and the window is not changed for it (limited transmit).
        //= RFC 3042 section 2
        //# The congestion window (cwnd) MUST NOT be changed when these new
        //# segments are transmitted.
        self.controller.cwnd().saturating_sub(self.in_flight())
    }

    /// Nothing was in flight for some time: a window that was not used during this time is not
    /// trusted (RFC 7661 section 4.4.3).
    fn shrink_after_rest(&mut self, now: Instant) {
        let periods = now.ns_since(self.rto_at) / UNVALIDATED_NS;
        if periods == 0 || self.timer != Timer::Off {
            return;
        }
        let mss = u32::from(self.mss());
        for _ in 0..periods.min(32) {
            shrink(&mut self.controller, mss);
        }
        // Periods that were counted are not counted again.
        self.rto_at = now;
    }

    /// More would be sent, were the window larger.
    pub(super) fn window_is_full(&mut self) {
        self.switches.set(WAS_FULL, true);
        self.full_until = self.nxt;
    }

    /// How fast segments may leave.
    fn rate(&self) -> Rate {
        Rate {
            cwnd: self.controller.cwnd(),
            srtt_ns: nanoseconds(self.rtt.srtt()),
            mss: u32::from(self.mss()),
            is_slow_start: self.controller.is_slow_start(),
        }
    }

    /// `len` bytes from `seq` on were handed to the device: SYN is never among them, a FIN counts as one byte. New bytes begin at
    /// [`Sender::nxt`].
    ///
    /// # Errors
    ///
    /// [`Full`] if there is no room to keep it in mind; asked after [`Sender::next`], there is for one segment.
    pub fn sent(
        &mut self,
        records: &mut Records,
        now: Instant,
        seq: Seq,
        len: u16,
        is_retransmission: bool,
    ) -> Result<(), Full> {
        let tick = Tick::at(now);
        let was_idle = self.board.segments == 0;
        if is_retransmission {
            self.sent_again(records, now, seq, len);
            self.rtt.retransmitted = self.rtt.retransmitted.saturating_add(1);
        } else {
            if was_idle {
                self.rack.rest();
                self.controller.on_idle(tick.since(Tick::at(self.rto_at)));
            }
            self.sent_new(records, tick, seq, len)?;
        }
        if self.is(IS_PACED) {
            let rate = self.rate();
            self.pace.sent(now, u32::from(len), &rate);
        }
        if let Book::Reducing(prr) = &mut self.book {
            prr.sent(u32::from(len), is_retransmission);
        }
        //= RFC 6298 section 5
        //# (5.1) Every time a packet containing data is sent (including a
        //# retransmission), if the timer is not running, start it running
        //# so that it will expire after RTO seconds (for the current value
        //# of RTO).
        let is_off = self.timer == Timer::Off || was_idle;
        //= RFC 6298 section 5
        //# An implementation MUST manage the retransmission timer(s) in such a
        //# way that a segment is never retransmitted too early, i.e., less than
        //# one RTO after the previous transmission of that segment.
        if is_off || (is_retransmission && seq.up_to(self.una)) {
            self.rto_at = now.plus_ns(self.rtt.rto_ns());
        }
        // Possible losses are waited for, whatever is sent meanwhile.
        if self.timer != Timer::Reordering {
            self.arm(now, !is_retransmission, 0);
        }
        Ok(())
    }

    fn sent_again(&mut self, records: &mut Records, now: Instant, seq: Seq, len: u16) {
        self.board.sent_again(records, seq, len, Tick::at(now));
        self.undo.sent(stamp(now));
        self.switches.set(IS_FORCED, false);
        if self.tlp.is_wanted() {
            records.counts.probes += 1;
            self.tlp.sent(self.nxt, len, true);
        }
    }

    fn sent_new(&mut self, records: &mut Records, tick: Tick, seq: Seq, len: u16) -> Result<(), Full> {
        let is_mtu_probe = self.mtu.sent(len);
        let flags = if is_mtu_probe { MTU_PROBE } else { 0 };
        let record = Record { seq, len, flags, in_device: 1, first_sent: tick, last_sent: tick };
        self.board.push(records, record)?;
        records.counts.mtu_probes += u64::from(is_mtu_probe);
        self.nxt = seq + u32::from(len);
        //= RFC 3168 section 6.1.2
        //# it SHOULD set the CWR bit only on the first
        //# new data packet that it transmits.
        self.switches.set(WANTS_CWR, false);
        self.frto.sent_new();
        if self.tlp.is_wanted() {
            records.counts.probes += 1;
            self.tlp.sent(self.nxt, len, false);
        }
        Ok(())
    }
}
