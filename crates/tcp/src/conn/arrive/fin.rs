//! Eighth, check the FIN bit: its effect once everything before it is there.

use super::{Connection, ConnectionState, Env};
use crate::conn::Happened;

impl Connection {
    /// RCV.NXT has just passed the FIN.
    pub(super) fn take_fin(&mut self, env: &mut Env<'_>) {
        //= RFC 9293 section 3.10.7.4
        //# If the FIN bit is set, signal the user "connection closing" and
        //# return any pending RECEIVEs with same message, advance RCV.NXT
        //# over the FIN, and send an acknowledgment for the FIN.
        self.happened.insert(Happened::PEER_CLOSED);
        self.want_ack();
        match self.state {
            //= RFC 9293 section 3.10.7.4
            //# Enter the CLOSE-WAIT state.
            ConnectionState::SynReceived | ConnectionState::Established => {
                self.state = ConnectionState::CloseWait
            }
            //= RFC 9293 section 3.10.7.4
            //# If our FIN has been ACKed (perhaps in this segment), then
            //# enter TIME-WAIT, start the time-wait timer, turn off the
            //# other timers; otherwise, enter the CLOSING state.
            ConnectionState::FinWait1 => self.state = ConnectionState::Closing,
            //= RFC 9293 section 3.10.7.4
            //# Enter the TIME-WAIT state.  Start the time-wait timer,
            //# turn off the other timers.
            ConnectionState::FinWait2 => self.enter_time_wait(env),
            _ => {}
        }
    }
}
