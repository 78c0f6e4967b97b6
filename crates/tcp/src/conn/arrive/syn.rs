//! Fourth, check the SYN bit.

use super::{ArrivalStep, Connection, ConnectionState, DONE, Env, NEXT};
use crate::conn::{Marks, Reason};
use crate::wire::{Flags, Segment};

impl Connection {
    pub(super) fn check_syn(&mut self, env: &mut Env<'_>, segment: &Segment<'_>) -> ArrivalStep {
        if !segment.flags.has(Flags::SYN) {
            return NEXT;
        }
        if self.state == ConnectionState::SynReceived && self.marks.has(Marks::PASSIVE) {
            //= RFC 9293 section 3.10.7.4
            //# If the connection was initiated with a passive OPEN, then
            //# return this connection to the LISTEN state and return.
            //# Otherwise, handle per the directions for synchronized states
            //# below.
            self.shut(env, Reason::Forgotten);
            return DONE;
        }
        //= RFC 9293 section 3.10.7.4
        //# RFC 5961 recommends that in
        //# these synchronized states, if the SYN bit is set,
        //# irrespective of the sequence number, TCP endpoints MUST send
        //# a "challenge ACK" to the remote peer:
        self.challenge(env);
        //= RFC 9293 section 3.10.7.4
        //# After sending the acknowledgment, TCP implementations MUST
        //# drop the unacceptable segment and stop processing further.
        DONE
    }
}
