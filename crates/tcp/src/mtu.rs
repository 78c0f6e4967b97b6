//! How large a segment may be: probing with segments of data (RFC 4821, RFC 8899), reports of routers (RFC 1191, RFC 8201), and paths
//! that swallow large segments without a word.
//!
//! Sizes are payloads in bytes; headers are the connection's affair.

use crate::limits::{
    BLACK_HOLE_TIMEOUTS, MIN_SIZE_TIMEOUTS, MSS_BASE, MSS_MIN, MTU_PROBE_PAUSE_NS, MTU_PROBES, MTU_RAISE_NS,
    MTU_STEP,
};
use crate::rtt::{Tick, ticks};

/// [`MTU_PROBE_PAUSE_NS`] in ticks.
const AFTER_LOSS: u32 = ticks(MTU_PROBE_PAUSE_NS);

/// State of the search.
#[derive(Debug)]
pub(crate) struct Mtu {
    /// Size that is known to pass: eff_pmtu and search_low.
    mss: u16,
    /// Size that may pass: search_high.
    high: u16,
    /// What neither the device nor the peer lets be exceeded.
    limit: u16,
    /// Size of the probe that is asked for or in flight; 0: none.
    probe: u16,
    is_out: bool,
    /// `high` is from a router's report, or passed before: it is tried before anything in between.
    is_told: bool,
    /// Probes of the size of `high` that were lost.
    lost: u8,
    /// Nothing is probed before this moment.
    pause_until: Tick,
}

/// The connection's state as far as it matters to a probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opportunity {
    /// Bytes that wait to be sent, and that the receiver takes.
    pub(crate) available: u32,
    /// Bytes that the congestion window has room for.
    pub(crate) room: u32,
    pub(crate) cwnd: u32,
    /// Nothing is lost, or suspected to be.
    pub(crate) is_quiet: bool,
    pub(crate) now: Tick,
}

/// Present request of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    /// That no new data goes until the window has room for a probe: where each acknowledgment makes room for a segment or two, it never
    /// would have.
    Room,
    /// A probe of this size.
    Probe(u16),
}

impl Mtu {
    /// `from`: when the first probe may go.
    pub(crate) fn new(mss: u16, limit: u16, from: Tick) -> Self {
        let limit = limit.max(mss);
        Self { mss, high: limit, limit, probe: 0, is_out: false, is_told: false, lost: 0, pause_until: from }
    }

    pub(crate) fn mss(&self) -> u16 {
        self.mss
    }

    pub(crate) fn limit(&self) -> u16 {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: u16) {
        (self.limit, self.high) = (limit.max(self.mss), limit.max(self.mss));
    }

    /// Decides whether to probe now, and at which size. Cheap where there is nothing to find.
    pub(crate) fn wants(&mut self, chance: &Opportunity) -> Wish {
        let is_paused = chance.now.since(self.pause_until) as i32 <= 0;
        if self.mss >= self.limit || self.is_out || is_paused {
            return Wish::Nothing;
        }
        if self.high - self.mss < MTU_STEP {
            // The search had ended, and its pause is over.
            //= RFC 4821 section 7.3
            //# When the timer expires, search_high should be
            //# reset to its initial value (described above) so that probing can
            //# resume.
            (self.high, self.lost, self.is_told) = (self.limit, 0, false);
        }
        // The largest first: links have few sizes, and this is the most common answer; halves afterwards.
        let is_first = self.high == self.limit || self.is_told;
        let size = if is_first { self.high } else { self.mss + (self.high - self.mss).div_ceil(2) };
        //= RFC 4821 section 7.4
        //# Before sending a probe, the flow MUST meet at least the following
        //# conditions:
        let bytes = u32::from(size);
        let behind = 3 * u32::from(self.mss);
        let is_able = chance.is_quiet && chance.available >= bytes + behind && chance.cwnd >= bytes + behind;
        if !is_able {
            return Wish::Nothing;
        }
        if chance.room < bytes {
            return Wish::Room;
        }
        self.probe = size;
        Wish::Probe(size)
    }

    /// Whether a new segment of `len` bytes is the probe that was asked for.
    pub(crate) fn sent(&mut self, len: u16) -> bool {
        let is_probe = self.probe != 0 && len == self.probe && !self.is_out;
        self.is_out |= is_probe;
        is_probe
    }

    /// A probe of `len` bytes has arrived.
    pub(crate) fn arrived(&mut self, len: u16, now: Tick) {
        if len == self.probe {
            self.mss = self.mss.max(len.min(self.high));
        }
        (self.probe, self.is_out, self.lost) = (0, false, 0);
        if self.high - self.mss.min(self.high) < MTU_STEP {
            self.pause_until = Tick(now.0.wrapping_add(ticks(MTU_RAISE_NS)));
        }
    }

    /// The probe was lost, but nothing else. `period`: how long congestion control expects to be without a loss, in ticks.
    pub(crate) fn probe_lost(&mut self, period: u32, now: Tick) {
        if !self.is_out {
            return;
        }
        self.is_out = false;
        self.lost += 1;
        //= RFC 4821 section 7.6.2
        //# Specifically, after a probe failure event and suppressed congestion
        //# control, PLPMTUD MUST NOT probe again until an interval that is
        //# larger than the expected interval between congestion control events.
        let mut pause = AFTER_LOSS.max(period);
        if self.lost >= MTU_PROBES {
            //= RFC 4821 section 7.6.2
            //# In the absence of other indications, set search_high to the probe
            //# size minus one.
            self.high = self.probe.saturating_sub(1).max(self.mss);
            (self.lost, self.is_told) = (0, false);
            if self.high - self.mss < MTU_STEP {
                pause = ticks(MTU_RAISE_NS);
            }
        }
        self.probe = 0;
        self.pause_until = Tick(now.0.wrapping_add(pause));
    }

    /// A router reported that no more than `payload` passes. False if no more was meant to be sent anyway.
    pub(crate) fn too_big(&mut self, payload: u16, now: Tick) -> bool {
        let payload = payload.max(MSS_MIN);
        //= RFC 8899 section 3
        //# A
        //# PTB message MUST NOT be used to increase the PLPMTU [RFC8201] but
        //# could trigger a probe to test for a larger PLPMTU.
        if payload >= self.high {
            return false;
        }
        (self.high, self.lost) = (payload, 0);
        if self.probe > payload {
            // The report is about the probe.
            (self.probe, self.is_out) = (0, false);
        }
        if payload > self.mss {
            // Still more than the size known to pass.
            self.is_told = true;
            self.pause_until = Tick(now.0.wrapping_add(AFTER_LOSS));
            return true;
        }
        //= RFC 1191 section 3
        //# When a host receives a Datagram Too Big message, it MUST reduce its
        //# estimate of the PMTU for the relevant path, based on the value of the
        //# Next-Hop MTU field in the message (see section 4).
        self.mss = payload;
        //= RFC 1191 section 3
        //# An attempt to
        //# detect an increase (by sending a datagram larger than the current
        //# estimate) MUST NOT be done less than 5 minutes after a Datagram Too
        //# Big message has been received for the given destination, or less than
        //# 1 minute after a previous, successful attempted increase.
        self.pause_until = Tick(now.0.wrapping_add(ticks(MTU_RAISE_NS)));
        true
    }

    /// A retransmission time-out, the `times`-th in a row. True if the path counts as a black hole from now on.
    pub(crate) fn timed_out(&mut self, times: u8, now: Tick) -> bool {
        (self.probe, self.is_out) = (0, false);
        let lower = match times {
            ..BLACK_HOLE_TIMEOUTS => return false,
            BLACK_HOLE_TIMEOUTS.. if self.mss > MSS_BASE => MSS_BASE,
            // Nor does that pass: IPv4 has such links.
            MIN_SIZE_TIMEOUTS.. if self.is_fallen() => MSS_MIN,
            _ => return false,
        };
        // RFC 4821 section 7.7: a full-stop time-out; the old size is probed first, in case it was
        // an outage.
        self.high = if self.is_fallen() { self.high } else { self.mss };
        (self.mss, self.lost, self.is_told) = (lower, 0, true);
        self.pause_until = Tick(now.0.wrapping_add(AFTER_LOSS));
        true
    }

    /// A time-out has lowered the size, and nothing has raised it since.
    fn is_fallen(&self) -> bool {
        self.is_told && self.mss == MSS_BASE
    }
}

#[cfg(test)]
#[path = "mtu_tests.rs"]
mod tests;
