//! Tail loss probes (RFC 8985 section 7).

use crate::limits::MAX_ACK_DELAY_NS;
use crate::rtt::{Rtt, nanoseconds};
use crate::seq::Seq;

/// Wait for a probe before anything was measured, in nanoseconds (RFC 8985 section 7.2).
const PTO_FIRST_NS: u64 = 1_000_000_000;

/// Where a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeState {
    None,
    /// One may be sent, whatever the windows say.
    Wanted,
    /// New data, in flight.
    New,
    /// A retransmission, in flight (TLP.is_retrans).
    Again,
}

/// State of tail loss probes (RFC 8985 section 5.3).
#[derive(Debug)]
pub(crate) struct Tlp {
    /// TLP.end_seq, where a probe is in flight.
    end: Seq,
    /// Length of a probe that is a retransmission, in bytes.
    len: u16,
    probe: ProbeState,
    /// A round-trip time was measured since the last probe.
    pub(crate) has_sample: bool,
}

/// Information from an acknowledgment about a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeAck {
    pub(crate) ack: Seq,
    /// The bytes reported as arrived twice end here.
    pub(crate) dsack_end: Option<Seq>,
    /// A duplicate acknowledgment without any SACK block.
    pub(crate) is_bare_duplicate: bool,
}

impl Tlp {
    pub(crate) fn new() -> Self {
        Self { end: Seq(0), len: 0, probe: ProbeState::None, has_sample: false }
    }

    /// A recovery begins, or there is nothing to probe for.
    pub(crate) fn reset(&mut self) {
        //= RFC 8985 section 7.1
        //# Reset TLP.is_retrans and TLP.end_seq when initiating a connection,
        //# fast recovery, or RTO recovery.
        self.probe = ProbeState::None;
    }

    /// How long to wait for a probe, in nanoseconds.
    pub(crate) fn wait_ns(rtt: &Rtt, segments: u32) -> u64 {
        if rtt.srtt() == 0 {
            //= RFC 8985 section 7.2
            //# Second, when there is no SRTT estimate available, the PTO SHOULD be 1
            //# second.
            return PTO_FIRST_NS;
        }
        //= RFC 8985 section 7.2
        //# Third, when the FlightSize is one segment, the sender MAY inflate the
        //# PTO by TLP.max_ack_delay to accommodate a potentially delayed
        //# acknowledgment and reduce the risk of spurious retransmissions.
        let delay_ns = if segments == 1 { MAX_ACK_DELAY_NS } else { 0 };
        2 * nanoseconds(rtt.srtt()) + delay_ns
    }

    /// Handles the end of the wait: returns whether a probe must be sent.
    pub(crate) fn expire(&mut self) -> bool {
        //= RFC 8985 section 7.3
        //# When the PTO timer expires, the sender MUST check whether both of the
        //# following conditions are met before sending a loss probe:
        if self.has_sample && !self.is_out() {
            self.probe = ProbeState::Wanted;
        }
        self.is_wanted()
    }

    /// The probe was sent; `nxt` is SND.NXT behind it.
    pub(crate) fn sent(&mut self, nxt: Seq, len: u16, is_retransmission: bool) {
        self.has_sample = false;
        self.probe = if is_retransmission { ProbeState::Again } else { ProbeState::New };
        (self.end, self.len) = (nxt, len);
    }

    /// A probe is in flight.
    pub(crate) fn is_out(&self) -> bool {
        matches!(self.probe, ProbeState::New | ProbeState::Again)
    }

    /// A probe may be sent, whatever the windows say.
    pub(crate) fn is_wanted(&self) -> bool {
        self.probe == ProbeState::Wanted
    }

    /// Bytes in the network that the scoreboard does not know of: a second copy of the last segment.
    pub(crate) fn extra_bytes(&self) -> u32 {
        if self.probe == ProbeState::Again { u32::from(self.len) } else { 0 }
    }

    /// Takes an acknowledgment; true if the probe repaired a loss, which congestion control has to answer.
    pub(crate) fn acked(&mut self, ack: &ProbeAck) -> bool {
        if !self.is_out() || ack.ack.before(self.end) {
            return false;
        }
        if self.probe == ProbeState::New || ack.dsack_end == Some(self.end) {
            self.probe = ProbeState::None;
        } else if ack.ack.after(self.end) {
            //= RFC 8985 section 7.4.2
            //# If the TLP
            //# sender does not receive such an indication, then it MUST assume that
            //# the original data segment, the TLP retransmission, or a corresponding
            //# ACK was lost for congestion control purposes.
            self.probe = ProbeState::None;
            return true;
        } else if ack.is_bare_duplicate {
            self.probe = ProbeState::None;
        }
        false
    }
}

#[cfg(test)]
#[path = "tlp_tests.rs"]
mod tests;
