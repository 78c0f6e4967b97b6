//! CUBIC (RFC 9438).

use crate::cc::hystart::{CSS_GROWTH_DIVISOR, HyStart, SlowStartPace, UNPACED_SEGMENTS};
use crate::cc::{CongestionControl, Growth, WindowReduction, Windows};
use crate::rtt::{Tick, nanoseconds};
use crate::seq::Seq;

/// beta_cubic.
const BETA: f32 = 0.7;
/// C in segments per cubed second.
const C: f32 = 0.4;
/// alpha_cubic = 3 (1 - beta) / (1 + beta): the Reno-friendly region then grows as Reno would with
/// beta.
const ALPHA: f32 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// An epoch counts as no longer than this, in ticks (37 minutes): times are kept modulo twice as much, and long before, the window is
/// where the receiver's or the path's limit is.
const EPOCH_MAX: u32 = u32::MAX / 2;

/// State to restore if a reduction is undone.
#[derive(Clone, Copy, Debug)]
struct Saved {
    windows: Windows,
    w_max: u32,
    k_s: f32,
    epoch: Tick,
}

/// Slow start's state until the first reduction, or the state before the last one: never both.
#[derive(Clone, Copy, Debug)]
enum Spare {
    SlowStart(HyStart),
    Saved(Saved),
}

/// State of CUBIC; windows in bytes.
#[derive(Debug)]
pub(crate) struct Cubic {
    windows: Windows,
    /// W_max; 0 before the first reduction.
    w_max: u32,
    /// K in seconds.
    k_s: f32,
    /// t_epoch.
    epoch: Tick,
    /// W_est: the window that Reno would have.
    w_est: u32,
    /// cwnd_prior.
    prior: u32,
    /// Bytes acknowledged towards the next segment of W_est, and of the window.
    est_acked: u32,
    acked: u32,
    has_epoch: bool,
    spare: Spare,
}

impl Cubic {
    pub(crate) fn new(windows: Windows, first: Seq) -> Self {
        Self {
            windows,
            w_max: 0,
            k_s: 0.0,
            epoch: Tick(0),
            w_est: 0,
            prior: 0,
            est_acked: 0,
            acked: 0,
            has_epoch: false,
            spare: Spare::SlowStart(HyStart::new(first)),
        }
    }

    fn slow_start(&mut self, growth: &Growth) {
        let mut pace = SlowStartPace::Slow;
        let mut limit = growth.mss;
        if !growth.is_recovering {
            if let Spare::SlowStart(hystart) = &mut self.spare {
                pace = hystart.acked(growth.una, growth.nxt, growth.rtt);
                limit = if growth.is_paced { u32::MAX } else { UNPACED_SEGMENTS * growth.mss };
            } else {
                limit = 2 * growth.mss;
            }
        }
        if !growth.is_used {
            return;
        }
        match pace {
            SlowStartPace::Slow => {
                self.windows.slow_start(growth.bytes, limit);
            }
            SlowStartPace::Conservative => {
                self.windows.slow_start(growth.bytes.min(limit) / CSS_GROWTH_DIVISOR, limit);
            }
            SlowStartPace::Over => self.windows.ssthresh = self.windows.cwnd,
        }
    }

    /// Congestion avoidance begins.
    fn begin_epoch(&mut self, now: Tick, mss: u32) {
        self.has_epoch = true;
        self.epoch = now;
        self.w_est = self.windows.cwnd;
        (self.acked, self.est_acked) = (0, 0);
        //= RFC 8312 section 4.8
        //# In this special case, CUBIC switches to congestion
        //# avoidance and increases its congestion window size using Eq. 1, where
        //# t is the elapsed time since the beginning of the current congestion
        //# avoidance, K is set to 0, and W_max is set to the congestion window
        //# size at the beginning of the current congestion avoidance.
        if self.windows.cwnd >= self.w_max {
            (self.w_max, self.k_s) = (self.windows.cwnd, 0.0);
            self.prior = self.windows.cwnd;
        } else {
            // RFC 9438 section 4.2: K = cubic root((W_max - cwnd_epoch) / C).
            let gap = (self.w_max - self.windows.cwnd) as f32 / mss as f32;
            self.k_s = (gap / C).cbrt();
        }
    }

    /// W_cubic in bytes, `t_s` seconds after the epoch began (RFC 9438 figure 1).
    fn w_cubic(&self, t_s: f32, mss: u32) -> f32 {
        let off = t_s - self.k_s;
        C * off * off * off * mss as f32 + self.w_max as f32
    }

    /// The Reno-friendly window (RFC 9438 section 4.3, figure 4), in whole segments.
    fn grow_estimate(&mut self, growth: &Growth) {
        let alpha = if self.w_est >= self.prior { 1.0 } else { ALPHA };
        let needed = ((self.windows.cwnd as f32 / alpha) as u32).max(1);
        self.est_acked = self.est_acked.saturating_add(growth.bytes);
        if self.est_acked >= needed {
            let segments = self.est_acked / needed;
            self.est_acked %= needed;
            self.w_est = self.w_est.saturating_add(segments.saturating_mul(growth.mss));
        }
    }

    fn avoid_congestion(&mut self, growth: &Growth) {
        if !self.has_epoch {
            self.begin_epoch(growth.now, growth.mss);
        }
        if growth.now.since(self.epoch) > EPOCH_MAX {
            self.epoch = Tick(growth.now.0.wrapping_sub(EPOCH_MAX));
        }
        let t_s = nanoseconds(growth.now.since(self.epoch)) as f32 * 1e-9;
        let rtt_s = nanoseconds(growth.srtt) as f32 * 1e-9;
        self.grow_estimate(growth);
        let cwnd = self.windows.cwnd as f32;
        if self.w_cubic(t_s, growth.mss) < self.w_est as f32 {
            let more = self.w_est.saturating_sub(self.windows.cwnd);
            // Never more than a segment for each segment acknowledged, wherever the estimate comes from.
            self.windows.grow(more.min(growth.bytes));
            return;
        }
        // RFC 9438 section 4.2: at most half as much again a round trip.
        let target = self.w_cubic(t_s + rtt_s, growth.mss).clamp(cwnd, 1.5 * cwnd);
        // cwnd grows by (target - cwnd) / cwnd for each segment acknowledged: counted in bytes until it is a whole segment,
        // as fractions of large windows would be lost.
        let gain = target - cwnd;
        if gain < 1.0 {
            return;
        }
        let needed = ((cwnd * growth.mss as f32 / gain) as u32).max(growth.mss);
        self.acked = self.acked.saturating_add(growth.bytes);
        if self.acked >= needed {
            let segments = self.acked / needed;
            self.acked %= needed;
            self.windows.grow(segments.saturating_mul(growth.mss));
        }
    }
}

impl CongestionControl for Cubic {
    fn cwnd(&self) -> u32 {
        self.windows.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.windows.ssthresh
    }

    fn on_ack(&mut self, growth: &Growth) {
        if self.is_slow_start() {
            self.slow_start(growth);
        } else if growth.is_used {
            self.avoid_congestion(growth);
        }
    }

    fn on_loss(&mut self, cut: &WindowReduction) {
        let Windows { cwnd, .. } = self.windows;
        self.spare = Spare::Saved(Saved {
            windows: self.windows,
            w_max: self.w_max,
            k_s: self.k_s,
            epoch: self.epoch,
        });
        self.prior = cwnd.min(cut.used.max(cut.mss));
        //= RFC 8312 section 4.6
        //# With fast convergence, when a congestion event occurs, before the
        //# window reduction of the congestion window, a flow remembers the last
        //# value of W_max before it updates W_max for the current congestion
        //# event.
        self.w_max = if self.prior < self.w_max {
            (self.prior as f32 * (1.0 + BETA) / 2.0) as u32
        } else {
            self.prior
        };
        //= RFC 8312 section 4.5
        //# Parameter beta_cubic SHOULD be set to
        //# 0.7.
        self.windows.ssthresh = ((self.prior as f32 * BETA) as u32).max(2 * cut.mss);
        self.windows.cwnd = self.windows.ssthresh;
        self.has_epoch = false;
    }

    fn on_rto(&mut self, cut: &WindowReduction, is_repeated: bool) {
        if !is_repeated {
            self.on_loss(cut);
        }
        //= RFC 8312 section 4.7
        //# In case of timeout, CUBIC follows Standard TCP to reduce cwnd
        //# [RFC5681], but sets ssthresh using beta_cubic (same as in
        //# Section 4.5) that is different from Standard TCP [RFC5681].
        self.windows.cwnd = cut.mss;
        //= RFC 8312 section 4.7
        //# During the first congestion avoidance after a timeout, CUBIC
        //# increases its congestion window size using Eq. 1, where t is the
        //# elapsed time since the beginning of the current congestion avoidance,
        //# K is set to 0, and W_max is set to the congestion window size at the
        //# beginning of the current congestion avoidance.
        (self.w_max, self.has_epoch) = (0, false);
    }

    fn on_undo(&mut self) {
        let Spare::Saved(saved) = self.spare else { return };
        let Saved { windows, w_max, k_s, epoch } = saved;
        self.windows.cwnd = self.windows.cwnd.max(windows.cwnd);
        self.windows.ssthresh = self.windows.ssthresh.max(windows.ssthresh);
        (self.w_max, self.k_s, self.epoch) = (w_max, k_s, epoch);
        self.prior = self.windows.cwnd;
        self.w_est = self.windows.cwnd;
        // Where there was an epoch, it goes on; a slow start begins one when it ends.
        self.has_epoch = w_max > 0 && !self.is_slow_start();
    }

    fn on_idle(&mut self, idle: u32) {
        // RFC 9438 section 5.8: time without anything to send is no time of the epoch.
        if self.has_epoch {
            self.epoch = Tick(self.epoch.0.wrapping_add(idle));
        }
    }

    fn set(&mut self, cwnd: u32, ssthresh: u32) {
        self.windows = Windows { cwnd, ssthresh };
        self.has_epoch = false;
    }
}

#[cfg(test)]
#[path = "cubic_tests.rs"]
mod tests;
