//! Fifth, check the ACK field.

use super::closed::reset_for_ack;
use super::{ArrivalStep, Connection, ConnectionState, ControlFlow, DONE, Env, NEXT, SegmentArrival};
use crate::conn::stamps::ms;
use crate::conn::{Happened, Marks, Reason};
use crate::limits::{USER_TIMEOUT_MAX_NS, USER_TIMEOUT_MIN_NS};
use crate::sender::AckIn;
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn check_ack(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> ArrivalStep {
        if !segment.flags.has(Flags::ACK) {
            //= RFC 9293 section 3.10.7.4
            //# if the ACK bit is off, drop the segment and return
            return DONE;
        }
        self.marks.remove(Marks::MOVED);
        if self.state == ConnectionState::SynReceived {
            self.acknowledge_syn(env, segment, arrival)?;
        }
        self.accept_probe(env, segment);
        //= RFC 9293 section 3.10.7.4
        //# TCP stacks that implement RFC
        //# 5961 MUST add an input check that the ACK value is
        //# acceptable only if it is in the range of ((SND.UNA -
        //# MAX.SND.WND) =< SEG.ACK =< SND.NXT).  All incoming segments
        //# whose ACK value doesn't satisfy the above condition MUST be
        //# discarded and an ACK sent back.
        if !self.is_ack_in_range(segment.ack) {
            env.counters.bad_acks += 1;
            self.challenge(env);
            return DONE;
        }
        self.heard_ms = ms(env.now);
        self.marks.remove(Marks::KEEP_ALIVE_NOW);
        if !self.marks.has(Marks::PERSISTS) {
            self.tries = 0;
        }
        self.take_user_timeout(env, segment);
        self.acknowledge(env, segment, arrival);
        self.advance_state(env)
    }

    pub(super) fn is_ack_in_range(&self, ack: crate::seq::Seq) -> bool {
        !ack.before(self.snd_una() - self.max_snd_wnd) && !ack.after(self.snd_nxt())
    }

    /// SYN-RECEIVED becomes ESTABLISHED.
    fn acknowledge_syn(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> ArrivalStep {
        if segment.ack.up_to(self.iss()) || segment.ack.after(self.snd_nxt()) {
            //= RFC 9293 section 3.10.7.4
            //# If the segment acknowledgment is not acceptable, form a
            //# reset segment
            //#
            //# <SEQ=SEG.ACK><CTL=RST>
            env.counters.bad_acks += 1;
            return ControlFlow::Break(Some(reset_for_ack(segment)));
        }
        //= RFC 9293 section 3.10.7.4
        //# If SND.UNA < SEG.ACK =< SND.NXT, then enter ESTABLISHED
        //# state and continue processing with the variables below
        //# set to:
        let sent = self.progress;
        self.establish(env, Some(arrival.at.ns_since(sent)));
        self.set_window(segment);
        self.after_establishing();
        NEXT
    }

    /// The peer has taken the byte that a window probe carried: from now on it counts as sent.
    fn accept_probe(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) {
        let probe = self.snd_nxt();
        if self.marks.has(Marks::PROBED) && segment.ack == probe + 1 && self.sender_has(env, probe) {
            self.marks.remove(Marks::PROBED);
            if probe == self.queue.end() {
                self.fin_sent();
            }
        }
    }

    /// Whether the sender took note of the one byte at SND.NXT.
    fn sender_has(&mut self, env: &mut Env<'_>, probe: crate::seq::Seq) -> bool {
        self.sender.sent(env.records, env.now, probe, 1, false).is_ok()
    }

    /// Does the work common to all synchronised states.
    pub(crate) fn acknowledge(&mut self, env: &mut Env<'_>, segment: &Segment<'_>, arrival: SegmentArrival) {
        let (old_window, old_una) = (self.snd_wnd, self.snd_una());
        let ack = AckIn {
            ack: segment.ack,
            window: self.window_of(segment),
            sacks: &segment.options.sacks,
            stamps: self.stamps_in(segment),
            is_ece: segment.flags.has(Flags::ECE) && self.marks.has(Marks::HAS_ECN),
            arrived: arrival.at,
            has_data: segment.seq_len() > 0,
        };
        //= RFC 9293 section 3.10.7.4
        //# If SND.UNA < SEG.ACK =< SND.NXT, then set SND.UNA <-
        //# SEG.ACK.  Any segments on the retransmission queue that
        //# are thereby entirely acknowledged are removed.
        let acked = self.sender.acked(env.records, env.now, &ack);
        if acked.bytes > 0 {
            env.store.acked(&mut self.queue, self.sender.una());
            //= RFC 9293 section 3.10.7.4
            //# Users
            //# should receive positive acknowledgments for buffers that
            //# have been SENT and fully acknowledged
            self.happened.insert(Happened::ACKED);
            self.progress = env.now;
            self.marks.insert(Marks::MOVED);
            self.undelivered = None;
            self.marks.remove(Marks::STARVED);
            if self.marks.take(Marks::UNPINNED) {
                env.store.keep(&self.queue);
            }
        }
        //= RFC 9293 section 3.10.7.4
        //# If SND.UNA =< SEG.ACK =< SND.NXT, the send window should
        //# be updated.  If (SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ
        //# and SND.WL2 =< SEG.ACK)), set SND.WND <- SEG.WND, set
        //# SND.WL1 <- SEG.SEQ, and set SND.WL2 <- SEG.ACK.
        //
        // SND.WND counts from SND.UNA. A retransmission bears an old sequence number, but where it
        // acknowledges more than any segment before, it was sent after all of them: if the window
        // were kept as it was, it would grow by the bytes acknowledged, and data would be sent
        // beyond it.
        let is_newer = segment.ack.after(old_una)
            || self.snd_wl1.before(segment.seq)
            || self.snd_wl1 == segment.seq && self.snd_wl2.up_to(segment.ack);
        if !segment.ack.before(self.snd_una()) && is_newer {
            self.set_window(segment);
        }
        if acked.bytes > 0 || self.snd_wnd > old_window {
            self.stop_persisting();
        }
    }

    /// Handles the acknowledgment of our FIN.
    fn advance_state(&mut self, env: &mut Env<'_>) -> ArrivalStep {
        if !self.is_fin_acked() {
            return NEXT;
        }
        match self.state {
            //= RFC 9293 section 3.10.7.4
            //# In addition to the processing for the ESTABLISHED state,
            //# if the FIN segment is now acknowledged, then enter FIN-
            //# WAIT-2 and continue processing in that state.
            ConnectionState::FinWait1 => self.state = ConnectionState::FinWait2,
            //= RFC 9293 section 3.10.7.4
            //# In addition to the processing for the ESTABLISHED state,
            //# if the ACK acknowledges our FIN, then enter the TIME-WAIT
            //# state; otherwise, ignore the segment.
            ConnectionState::Closing => self.enter_time_wait(env),
            //= RFC 9293 section 3.10.7.4
            //# If our FIN is now
            //# acknowledged, delete the TCB, enter the CLOSED state, and
            //# return.
            ConnectionState::LastAck => {
                self.shut(env, Reason::Finished);
                return DONE;
            }
            _ => {}
        }
        NEXT
    }

    /// The user time-out that the peer asks for.
    fn take_user_timeout(&mut self, env: &Env<'_>, segment: &Segment<'_>) {
        let Some(asked) = segment.options.user_timeout.filter(|_| env.config.takes_user_timeout) else {
            return;
        };
        // RFC 5482 section 3: the highest bit selects minutes.
        let unit_s: u64 = if asked & 0x8000 != 0 { 60 } else { 1 };
        let asked_ns = u64::from(asked & 0x7fff) * unit_s * 1_000_000_000;
        //= RFC 5482 section 3.1
        //# USER_TIMEOUT = min(U_LIMIT, max(ADV_UTO, REMOTE_UTO, L_LIMIT))
        let ns = asked_ns.max(env.config.user_timeout_ns).clamp(USER_TIMEOUT_MIN_NS, USER_TIMEOUT_MAX_NS);
        self.user_timeout_s = (ns / 1_000_000_000) as u16;
    }
}
