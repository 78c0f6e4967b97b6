//! Validation of the congestion window (RFC 7661): an unused window does not grow, and is not
//! trusted for long.

use crate::cc::{CongestionControl, Controller, initial};
use crate::limits::UNVALIDATED_NS;
use crate::rtt::{Tick, ticks};
use crate::seq::Seq;

/// Least length of the pipeACK sampling period, in ticks (RFC 7661 section 4.2: 1 second).
const PERIOD_MIN: u32 = ticks(1_000_000_000);

/// pipeACK, and since when the window is not validated.
#[derive(Debug)]
pub(crate) struct Validate {
    /// Where the sample that runs began: acknowledged up to here, then.
    sample_from: Seq,
    sample_began: Tick,
    /// Largest sample of the half period that runs, and of the one before.
    samples: [u32; 2],
    half_began: Tick,
    unvalidated_since: Tick,
    has_sample: bool,
    is_unvalidated: bool,
}

impl Validate {
    pub(crate) fn new(first: Seq, now: Tick) -> Self {
        Self {
            sample_from: first,
            sample_began: now,
            samples: [0; 2],
            half_began: now,
            unvalidated_since: now,
            has_sample: false,
            is_unvalidated: false,
        }
    }

    /// pipeACK in bytes; None: undefined.
    pub(crate) fn pipe_ack(&self) -> Option<u32> {
        self.has_sample.then(|| self.samples[0].max(self.samples[1]))
    }

    /// Whether the window is in the non-validated phase.
    pub(crate) fn is_unvalidated(&self) -> bool {
        self.is_unvalidated
    }

    /// New data was acknowledged up to `una`, outside of recovery.
    pub(crate) fn acked(&mut self, una_before: Seq, una: Seq, cwnd: u32, srtt: u32, now: Tick) {
        let elapsed = now.since(self.sample_began);
        if srtt == 0 || elapsed < srtt {
            return;
        }
        // After a pause the sample is over since long: what this acknowledges belongs to the next.
        let is_stale = elapsed > srtt.saturating_mul(2);
        let until = if is_stale { una_before } else { una };
        let half = srtt.saturating_mul(3).max(PERIOD_MIN) / 2;
        let halves = now.since(self.half_began) / half.max(1);
        if halves > 0 {
            //= RFC 7661 section 4.2
            //# The value of the pipeACK variable MUST NOT
            //# exceed the maximum (highest value) within the pipeACK Sampling
            //# Period.
            self.samples = [0, if halves == 1 { self.samples[0] } else { 0 }];
            self.half_began = now;
        }
        self.samples[0] = self.samples[0].max(until.since(self.sample_from).max(0) as u32);
        (self.sample_from, self.sample_began, self.has_sample) = (until, now, true);
        //= RFC 7661 section 4.4
        //# A TCP sender implementing this specification MUST enter the non-
        //# validated phase when the pipeACK is less than (1/2)*cwnd.
        let is_unvalidated = self.pipe_ack().is_some_and(|pipe| pipe < cwnd / 2);
        if is_unvalidated && !self.is_unvalidated {
            self.unvalidated_since = now;
        }
        self.is_unvalidated = is_unvalidated;
    }

    /// New data is about to be sent: a window that was not used for too long shrinks.
    pub(crate) fn before_send(&mut self, control: &mut Controller, mss: u32, now: Tick) {
        if !self.is_unvalidated || now.since(self.unvalidated_since) < ticks(UNVALIDATED_NS) {
            return;
        }
        shrink(control, mss);
        self.unvalidated_since = now;
    }
}

/// A window that was not validated for five minutes shrinks.
pub(crate) fn shrink(control: &mut Controller, mss: u32) {
    let (cwnd, ssthresh) = (control.cwnd(), control.ssthresh());
    //= RFC 7661 section 4.4.3
    //# ssthresh = max(ssthresh, 3*cwnd/4).
    let ssthresh = ssthresh.max(cwnd / 4 * 3);
    //= RFC 7661 section 4.4.3
    //# cwnd = max((1/2)*cwnd, IW).
    control.set(cwnd.min((cwnd / 2).max(initial(mss))), ssthresh);
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
