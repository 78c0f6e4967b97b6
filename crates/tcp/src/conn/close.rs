//! CLOSE and ABORT (RFC 9293 sections 3.10.4 and 3.10.5).

use super::{Connection, ConnectionState, Env, Happened, Marks, NEVER, Reason};
use crate::wire::{Flags, Head};

impl Connection {
    /// CLOSE: nothing more will be queued. Returns false if it was called already.
    pub(crate) fn close(&mut self, env: &mut Env<'_>) -> bool {
        match self.state {
            ConnectionState::SynSent => {
                //= RFC 9293 section 3.10.4
                //# Delete the TCB and return "error: closing" responses to any queued
                //# SENDs, or RECEIVEs.
                self.shut(env, Reason::Aborted);
                true
            }
            ConnectionState::SynReceived => {
                //= RFC 9293 section 3.10.4
                //= type=exception
                //= reason=the FIN always waits for ESTABLISHED: its SYN is not acknowledged, and the outcome for both sides is the same
                //# If no SENDs have been issued and there is no pending data to send,
                //# then form a FIN segment and send it, and enter FIN-WAIT-1 state;
                //# otherwise, queue for processing after entering ESTABLISHED state.
                let is_first = !self.marks.has(Marks::FIN_QUEUED);
                self.queue_fin();
                is_first
            }
            ConnectionState::Established => {
                self.queue_fin();
                //= RFC 9293 section 3.10.4
                //# Queue this until all preceding SENDs have been segmentized, then
                //# form a FIN segment and send it.  In any case, enter FIN-WAIT-1
                //# state.
                self.state = ConnectionState::FinWait1;
                true
            }
            ConnectionState::CloseWait => {
                //= RFC 9293 section 3.10.4
                //# Queue this request until all preceding SENDs have been
                //# segmentized; then send a FIN segment, enter LAST-ACK state.
                let is_first = !self.marks.has(Marks::FIN_QUEUED);
                self.queue_fin();
                is_first
            }
            //= RFC 9293 section 3.10.4
            //# Respond with "error: connection closing".
            _ => false,
        }
    }

    fn queue_fin(&mut self) {
        self.marks.insert(Marks::FIN_QUEUED);
    }

    /// ABORT: the reset to send, where one is due.
    pub(crate) fn abort(&mut self, env: &mut Env<'_>, reason: Reason) -> Option<Head> {
        //= RFC 9293 section 3.10.5
        //# Send a reset segment:
        //#
        //# <SEQ=SND.NXT><CTL=RST>
        let reset = matches!(
            self.state,
            ConnectionState::SynReceived
                | ConnectionState::Established
                | ConnectionState::FinWait1
                | ConnectionState::FinWait2
                | ConnectionState::CloseWait
        )
        .then(|| self.reset());
        //= RFC 9293 section 3.10.5
        //# All queued SENDs and RECEIVEs should be given "connection reset"
        //# notification; all segments queued for transmission (except for the
        //# RST formed above) or retransmission should be flushed.  Delete the
        //# TCB, enter CLOSED state, and return.
        self.shut(env, reason);
        reset
    }

    /// A reset in the middle of a connection. It carries an ACK too, as every segment of a synchronised connection does.
    fn reset(&self) -> Head {
        Head {
            seq: self.snd_nxt(),
            ack: self.rcv_nxt(),
            flags: Flags::RST.with(Flags::ACK),
            ..Head::default()
        }
    }

    /// The last state that has a use for the pools is over.
    pub(super) fn enter_time_wait(&mut self, env: &mut Env<'_>) {
        (self.state, self.timer) = (ConnectionState::TimeWait, NEVER);
        self.happened.insert(Happened::CLOSED);
        self.release_all(env);
    }
}
