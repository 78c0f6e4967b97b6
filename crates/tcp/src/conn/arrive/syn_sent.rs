//! SYN-SENT (RFC 9293 section 3.10.7.3).

use super::closed::reset_for_ack;
use super::{ArrivalStep, Connection, ConnectionState, ControlFlow, DONE, Env, NEXT, SegmentArrival};
use crate::conn::stamps::ms;
use crate::conn::{Agreed, Marks, Reason};
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn arrive_syn_sent(
        &mut self,
        env: &mut Env<'_>,
        segment: &Segment<'_>,
        arrival: SegmentArrival,
    ) -> ArrivalStep {
        self.check_before_syn(env, segment)?;
        let has_ack = segment.flags.has(Flags::ACK);
        // Fourth, check the SYN bit.
        if !segment.flags.has(Flags::SYN) {
            //= RFC 9293 section 3.10.7.3
            //# Fifth, if neither of the SYN or RST bits is set, then drop the
            //# segment and return.
            return DONE;
        }
        self.heard_ms = ms(env.now);
        let agreed = env.config.agree(self.marks.has(Marks::IS_V4), segment, self.iss(), self.ts_offset);
        let agreed = Agreed { has_ecn: agreed.has_ecn && self.marks.has(Marks::ASKED_ECN), ..agreed };
        //= RFC 9293 section 3.10.7.3
        //# If the SYN bit is on and the security/compartment is
        //# acceptable, then RCV.NXT is set to SEG.SEQ+1, IRS is set to
        //# SEG.SEQ.
        self.take_agreed(env, &agreed);
        if !has_ack {
            //= RFC 9293 section 3.10.7.3
            //# Otherwise, enter SYN-RECEIVED, form a SYN,ACK segment
            //#
            //# <SEQ=ISS><ACK=RCV.NXT><CTL=SYN,ACK>
            //= RFC 9293 section 3.5
            //# A TCP implementation MUST support simultaneous open attempts (MUST-
            //# 10).
            self.state = ConnectionState::SynReceived;
            self.set_window(segment);
            self.marks.insert(Marks::SYN_NOW);
            self.marks.insert(Marks::SYN_REPEATED);
            return DONE;
        }
        //= RFC 9293 section 3.10.7.3
        //# If SND.UNA > ISS (our SYN has been ACKed), change the
        //# connection state to ESTABLISHED, form an ACK segment
        //#
        //# <SEQ=SND.NXT><ACK=RCV.NXT><CTL=ACK>
        let sent = self.progress;
        self.establish(env, Some(arrival.at.ns_since(sent)));
        self.set_window(segment);
        self.after_establishing();
        self.want_ack();
        //= RFC 9293 section 3.10.7.3
        //# If there are other controls or text
        //# in the segment, then continue processing at the sixth step
        //# under Section 3.10.7.4 where the URG bit is checked; otherwise,
        //# return.
        let behind_syn =
            Segment { seq: segment.seq + 1, flags: segment.flags.without(Flags::SYN), ..*segment };
        self.check_urgent(&behind_syn)?;
        self.take_text(env, &behind_syn, arrival)
    }

    /// The first two steps.
    fn check_before_syn(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) -> ArrivalStep {
        let has_ack = segment.flags.has(Flags::ACK);
        let is_reset = segment.flags.has(Flags::RST);
        // First, check the ACK bit.
        if has_ack && (segment.ack.up_to(self.iss()) || segment.ack.after(self.snd_nxt())) {
            //= RFC 9293 section 3.10.7.3
            //# If SEG.ACK =< ISS or SEG.ACK > SND.NXT, send a reset (unless
            //# the RST bit is set, if so drop the segment and return)
            env.counters.bad_acks += 1;
            return ControlFlow::Break((!is_reset).then(|| reset_for_ack(segment)));
        }
        // Second, check the RST bit.
        if is_reset {
            //= RFC 9293 section 3.10.7.3
            //# If the ACK was acceptable, then signal to the user "error:
            //# connection reset", drop the segment, enter CLOSED state,
            //# delete TCB, and return.  Otherwise (no ACK), drop the
            //# segment and return.
            if has_ack {
                env.counters.resets_in += 1;
                self.shut(env, Reason::Refused);
            }
            return DONE;
        }
        NEXT
    }

    /// A CLOSE that came before ESTABLISHED takes effect.
    pub(super) fn after_establishing(&mut self) {
        if self.marks.has(Marks::FIN_QUEUED) {
            self.state = ConnectionState::FinWait1;
        }
    }
}
