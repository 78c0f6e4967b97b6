//! Congestion control: how large the window is. When it is cut is decided by recovery; how far it may be trusted by `validate`.

use crate::limits::{CWND_MAX, INITIAL_BYTES, INITIAL_SEGMENTS};
use crate::rtt::Tick;
use crate::seq::Seq;

mod cubic;
mod hystart;
mod reno;
pub(crate) mod validate;

pub(crate) use cubic::Cubic;
pub(crate) use reno::Reno;

//= RFC 9293 section 3.8.2
//# A TCP endpoint MUST implement the basic congestion control algorithms
//# slow start, congestion avoidance, and exponential backoff of RTO to
//# avoid creating congestion collapse conditions (MUST-19).
/// Which algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// CUBIC (RFC 9438) with HyStart++ (RFC 9406).
    #[default]
    Cubic,
    /// Reno (RFC 5681) with appropriate byte counting (RFC 3465).
    Reno,
}

/// An acknowledgment that may let the window grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub(crate) now: Tick,
    /// Bytes acknowledged cumulatively by it: bytes rather than acknowledgments count, so that a receiver that divides its
    /// acknowledgments gains nothing (RFC 3465).
    pub(crate) bytes: u32,
    pub(crate) mss: u32,
    /// SRTT in ticks; 0 if there is none.
    pub(crate) srtt: u32,
    /// Round-trip time measured by it, in ticks.
    pub(crate) rtt: Option<u32>,
    pub(crate) una: Seq,
    pub(crate) nxt: Seq,
    /// Repairs the effects of a retransmission time-out.
    pub(crate) is_recovering: bool,
    pub(crate) is_paced: bool,
    /// The window was made use of (RFC 7661 section 4.4): otherwise it does not grow.
    pub(crate) is_used: bool,
}

/// A reduction of the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowReduction {
    /// How much of the window was really used, in bytes.
    pub(crate) used: u32,
    pub(crate) mss: u32,
}

/// An algorithm of congestion control. Windows are in bytes.
pub(crate) trait CongestionControl {
    /// The congestion window.
    fn cwnd(&self) -> u32;
    /// The slow-start threshold.
    fn ssthresh(&self) -> u32;
    /// New data was acknowledged outside of fast recovery.
    fn on_ack(&mut self, growth: &Growth);
    /// Handles a loss that was found: sets the threshold, and the window to it. The previous values
    /// are kept for [`CongestionControl::on_undo`].
    fn on_loss(&mut self, cut: &WindowReduction);
    /// The network marked a segment instead of dropping it.
    fn on_ecn(&mut self, cut: &WindowReduction) {
        //= RFC 3168 section 6.1.2
        //# The indication
        //# of congestion should be treated just as a congestion loss in non-
        //# ECN-Capable TCP.
        self.on_loss(cut);
    }
    /// Handles a retransmission time-out. `is_repeated`: for data that a time-out has sent again
    /// already.
    fn on_rto(&mut self, cut: &WindowReduction, is_repeated: bool);
    /// The last reduction was for nothing.
    fn on_undo(&mut self);
    /// Handles `idle` ticks with nothing in flight.
    fn on_idle(&mut self, idle: u32);
    /// Sets the window for a reason of its own (F-RTO, validation).
    fn set(&mut self, cwnd: u32, ssthresh: u32);

    /// Whether the window grows exponentially.
    fn is_slow_start(&self) -> bool {
        self.cwnd() < self.ssthresh()
    }
}

/// State that every algorithm has: windows in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) cwnd: u32,
    pub(crate) ssthresh: u32,
}

impl Windows {
    pub(crate) fn new(mss: u32, was_syn_repeated: bool) -> Self {
        //= RFC 5681 section 3.1
        //# The initial value of ssthresh SHOULD be set arbitrarily high (e.g.,
        //# to the size of the largest possible advertised window), but ssthresh
        //# MUST be reduced in response to congestion.
        Self { cwnd: if was_syn_repeated { mss } else { initial(mss) }, ssthresh: u32::MAX }
    }

    pub(crate) fn grow(&mut self, bytes: u32) {
        self.cwnd = self.cwnd.saturating_add(bytes).min(CWND_MAX);
    }

    /// Slow start, not beyond the threshold; returns the bytes that were left over.
    pub(crate) fn slow_start(&mut self, bytes: u32, limit: u32) -> u32 {
        //= RFC 5681 section 3.1
        //= type=exception
        //= reason=RFC 3465 counts bytes up to a limit instead, RFC 9406 raises the limit for a sender that spreads its departures.
        //# During slow start, a TCP increments cwnd by at most SMSS bytes for
        //# each ACK received that cumulatively acknowledges new data.
        let step = bytes.min(limit).min(self.ssthresh.saturating_sub(self.cwnd));
        self.grow(step);
        bytes - step
    }
}

/// The initial window in bytes.
pub(crate) fn initial(mss: u32) -> u32 {
    //= RFC 6928 section 2
    //# min (10*MSS, max (2*MSS, 14600))
    (INITIAL_SEGMENTS * mss).min((2 * mss).max(INITIAL_BYTES))
}

/// One of the algorithms, in place.
#[derive(Debug)]
pub(crate) enum Controller {
    /// Reno.
    Reno(Reno),
    /// CUBIC.
    Cubic(Cubic),
}

const _: () = assert!(size_of::<Controller>() <= 64);

impl Controller {
    pub(crate) fn new(algorithm: Algorithm, mss: u32, was_syn_repeated: bool, first: Seq) -> Self {
        let windows = Windows::new(mss, was_syn_repeated);
        match algorithm {
            Algorithm::Reno => Self::Reno(Reno::new(windows)),
            Algorithm::Cubic => Self::Cubic(Cubic::new(windows, first)),
        }
    }
}

/// Calls the algorithm's own function.
macro_rules! forward {
    ($self:ident, $call:ident ( $($argument:ident),* )) => {
        match $self {
            Self::Reno(reno) => reno.$call($($argument),*),
            Self::Cubic(cubic) => cubic.$call($($argument),*),
        }
    };
}

impl CongestionControl for Controller {
    fn cwnd(&self) -> u32 {
        forward!(self, cwnd())
    }

    fn ssthresh(&self) -> u32 {
        forward!(self, ssthresh())
    }

    fn on_ack(&mut self, growth: &Growth) {
        forward!(self, on_ack(growth));
    }

    fn on_loss(&mut self, cut: &WindowReduction) {
        forward!(self, on_loss(cut));
    }

    fn on_ecn(&mut self, cut: &WindowReduction) {
        forward!(self, on_ecn(cut));
    }

    fn on_rto(&mut self, cut: &WindowReduction, is_repeated: bool) {
        forward!(self, on_rto(cut, is_repeated));
    }

    fn on_undo(&mut self) {
        forward!(self, on_undo());
    }

    fn on_idle(&mut self, idle: u32) {
        forward!(self, on_idle(idle));
    }

    fn set(&mut self, cwnd: u32, ssthresh: u32) {
        forward!(self, set(cwnd, ssthresh));
    }
}

#[cfg(test)]
#[path = "cc_tests.rs"]
pub(crate) mod tests;
