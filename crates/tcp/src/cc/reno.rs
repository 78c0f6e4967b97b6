//! Reno (RFC 5681), counting bytes (RFC 3465).

use crate::cc::{CongestionControl, Growth, WindowReduction, Windows};

/// State of Reno.
#[derive(Debug)]
pub(crate) struct Reno {
    windows: Windows,
    /// The windows before the last reduction.
    saved: Windows,
    /// bytes_acked of RFC 3465.
    acked: u32,
}

impl Reno {
    pub(crate) fn new(windows: Windows) -> Self {
        Self { windows, saved: windows, acked: 0 }
    }
}

impl CongestionControl for Reno {
    fn cwnd(&self) -> u32 {
        self.windows.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.windows.ssthresh
    }

    fn on_ack(&mut self, growth: &Growth) {
        if !growth.is_used {
            return;
        }
        if self.is_slow_start() {
            //= RFC 3465 section 2.3
            //# In this situation, a
            //# TCP MUST use L=1*SMSS as specified in RFC 2581 since ACKs for large
            let limit = if growth.is_recovering { growth.mss } else { 2 * growth.mss };
            self.windows.slow_start(growth.bytes, limit);
            return;
        }
        //= RFC 5681 section 3.1
        //# MUST NOT increment cwnd by more than SMSS bytes
        self.acked = self.acked.saturating_add(growth.bytes);
        if self.acked >= self.windows.cwnd {
            self.acked = (self.acked - self.windows.cwnd).min(self.windows.cwnd);
            self.windows.grow(growth.mss);
        }
    }

    fn on_loss(&mut self, cut: &WindowReduction) {
        self.saved = self.windows;
        //= RFC 5681 section 3.1
        //# ssthresh = max (FlightSize / 2, 2*SMSS)
        self.windows.ssthresh = (cut.used / 2).max(2 * cut.mss);
        self.windows.cwnd = self.windows.ssthresh;
        self.acked = 0;
    }

    fn on_rto(&mut self, cut: &WindowReduction, is_repeated: bool) {
        if !is_repeated {
            self.on_loss(cut);
        }
        //= RFC 5681 section 3.1
        //# Furthermore, upon a timeout (as specified in [RFC2988]) cwnd MUST be
        //# set to no more than the loss window, LW, which equals 1 full-sized
        //# segment (regardless of the value of IW).
        self.windows.cwnd = cut.mss;
        self.acked = 0;
    }

    fn on_undo(&mut self) {
        self.windows.cwnd = self.windows.cwnd.max(self.saved.cwnd);
        self.windows.ssthresh = self.windows.ssthresh.max(self.saved.ssthresh);
    }

    fn on_idle(&mut self, _idle: u32) {}

    fn set(&mut self, cwnd: u32, ssthresh: u32) {
        self.windows = Windows { cwnd, ssthresh };
    }
}
