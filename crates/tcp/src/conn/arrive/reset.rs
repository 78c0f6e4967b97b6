//! Second, check the RST bit, as RFC 5961 section 3 requires. The first step dropped everything
//! outside the window.

use super::{ArrivalStep, Connection, ConnectionState, DONE, Env, NEXT};
use crate::conn::{Marks, Reason};
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn check_reset(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) -> ArrivalStep {
        if !segment.flags.has(Flags::RST) {
            return NEXT;
        }
        if segment.seq != self.rcv_nxt() {
            //= RFC 9293 section 3.10.7.4
            //# 3)  If the RST bit is set and the sequence number does not
            //# exactly match the next expected sequence value, yet is
            //# within the current receive window, TCP endpoints MUST send
            //# an acknowledgment (challenge ACK):
            self.challenge(env);
            //= RFC 9293 section 3.10.7.4
            //# After sending the challenge ACK, TCP endpoints MUST drop
            //# the unacceptable segment and stop processing the incoming
            //# packet further.
            return DONE;
        }
        //= RFC 9293 section 3.10.7.4
        //# 2)  If the RST bit is set and the sequence number exactly
        //# matches the next expected sequence number (RCV.NXT), then
        //# TCP endpoints MUST reset the connection in the manner
        //# prescribed below according to the connection state.
        env.counters.resets_in += 1;
        let reason = match self.state {
            //= RFC 9293 section 3.10.7.4
            //# If this connection was initiated with a passive OPEN
            //# (i.e., came from the LISTEN state), then return this
            //# connection to LISTEN state and return.  The user need not
            //# be informed.  If this connection was initiated with an
            //# active OPEN (i.e., came from SYN-SENT state), then the
            //# connection was refused; signal the user "connection
            //# refused".
            ConnectionState::SynReceived if self.marks.has(Marks::PASSIVE) => Reason::Forgotten,
            ConnectionState::SynReceived => Reason::Refused,
            //= RFC 9293 section 3.10.7.4
            //# If the RST bit is set, then enter the CLOSED state, delete
            //# the TCB, and return.
            ConnectionState::Closing | ConnectionState::LastAck | ConnectionState::TimeWait => {
                Reason::Finished
            }
            //= RFC 9293 section 3.10.7.4
            //# If the RST bit is set, then any outstanding RECEIVEs and
            //# SEND should receive "reset" responses.  All segment queues
            //# should be flushed.  Users should also receive an unsolicited
            //# general "connection reset" signal.  Enter the CLOSED state,
            //# delete the TCB, and return.
            _ => Reason::Reset,
        };
        self.shut(env, reason);
        DONE
    }
}
