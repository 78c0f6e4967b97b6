//! Round-trip times and the retransmission time-out (RFC 6298).

use millrace_core::time::Instant;

use crate::limits::{MIN_RTT_SPAN_NS, RTO_AFTER_SYN_NS, RTO_FIRST_NS, RTO_MAX_NS, RTO_MIN_NS};

/// Nanoseconds of a tick, as a power of two.
const TICK_BITS: u32 = 10;

/// A moment in units of 2^10 ns, modulo 2^32 (73 minutes): this fits into the record of a segment
/// in flight.
///
/// RFC 8985 section 4 wants a quarter of the least round-trip time or finer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick(pub(crate) u32);

impl Tick {
    pub(crate) fn at(now: Instant) -> Self {
        Self((now.0 >> TICK_BITS) as u32)
    }

    /// How long after `earlier`, in ticks.
    pub(crate) fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Whether it is later than `other`; both within 36 minutes.
    pub(crate) fn after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0) as i32 > 0
    }
}

/// Nanoseconds in ticks.
pub(crate) const fn ticks(ns: u64) -> u32 {
    (ns >> TICK_BITS) as u32
}

/// Ticks in nanoseconds.
pub(crate) const fn nanoseconds(ticks: u32) -> u64 {
    (ticks as u64) << TICK_BITS
}

/// The time stamp clock (RFC 7323 section 5.4 wants 1 ms to 1 s a tick): 2^20 ns a tick, so that a segment's time of departure, which
/// is kept in 2^10 ns, gives its time stamp exactly.
pub fn stamp(now: Instant) -> u32 {
    (now.0 >> 20) as u32
}

/// The time stamp that was sent at `sent`, at most 73 minutes ago.
pub(crate) fn stamp_of(sent: Tick, now: Instant) -> u32 {
    let age = u64::from(Tick::at(now).since(sent));
    ((now.0 >> TICK_BITS).saturating_sub(age) >> (20 - TICK_BITS)) as u32
}

/// Whether time stamp `a` is before `b` (RFC 7323 section 5.2: modulo 2^32).
pub(crate) fn is_stamp_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The estimate of the round-trip time, in ticks.
#[derive(Debug)]
pub(crate) struct Rtt {
    /// SRTT in eighths; 0 until something was measured.
    srtt_8: u32,
    /// RTTVAR in quarters.
    var_4: u32,
    /// Least round-trip time of the span that runs and of the one before.
    min_now: u32,
    min_before: u32,
    span_began: Tick,
    /// How often the time-out was doubled.
    pub(crate) backoff: u8,
    was_syn_repeated: bool,
    /// Segments sent again, for whoever looks. Here, because anywhere else it would take eight bytes of each connection.
    pub(crate) retransmitted: u16,
}

impl Rtt {
    pub(crate) fn new(was_syn_repeated: bool, now: Instant) -> Self {
        Self {
            srtt_8: 0,
            var_4: 0,
            min_now: u32::MAX,
            min_before: u32::MAX,
            span_began: Tick::at(now),
            backoff: 0,
            was_syn_repeated,
            retransmitted: 0,
        }
    }

    /// SRTT in ticks; 0 until something was measured.
    pub(crate) fn srtt(&self) -> u32 {
        self.srtt_8 / 8
    }

    /// RTTVAR in nanoseconds.
    pub(crate) fn deviation_ns(&self) -> u64 {
        nanoseconds(self.var_4) / 4
    }

    /// Takes a measurement. `expected`: how many of them a window's worth of data yields.
    pub(crate) fn sample(&mut self, measured: u32, expected: u32) {
        let limit = ticks(RTO_MAX_NS);
        let measured = measured.clamp(1, limit);
        self.backoff = 0;
        //= RFC 6298 section 2
        //# When the first RTT measurement R is made, the host MUST set
        if self.srtt_8 == 0 {
            self.srtt_8 = measured * 8;
            self.var_4 = measured * 2;
            return;
        }
        //= RFC 7323 section G
        //# This modification
        //# will ensure that a similar amount of time is taken into account for
        //# the RTO estimation, regardless of how many samples are taken per
        //# window:
        let expected = expected.max(1) as i32;
        //= RFC 6298 section 2
        //# The value of SRTT used in the update to RTTVAR is its value
        //# before updating SRTT itself using the second assignment.  That
        //# is, updating RTTVAR and SRTT MUST be computed in the above
        //# order.
        let off = measured as i32 - self.srtt() as i32;
        let var_off = off.abs() - (self.var_4 / 4) as i32;
        self.var_4 = self.var_4.saturating_add_signed(var_off / expected);
        self.srtt_8 = self.srtt_8.saturating_add_signed(off / expected).max(8);
    }

    /// Takes a measurement for the least round-trip time: also of segments whose acknowledgment was not delayed on purpose.
    pub(crate) fn sample_min(&mut self, measured: u32, now: Tick) {
        //= RFC 8985 section 6.2
        //# The sender SHOULD
        //# track a windowed min-filtered estimate of recent RTT measurements
        //# that can adapt when migrating to significantly longer paths rather
        //# than tracking a simple global minimum of all RTT measurements.
        if now.since(self.span_began) > ticks(MIN_RTT_SPAN_NS) {
            self.min_before = std::mem::replace(&mut self.min_now, u32::MAX);
            self.span_began = now;
        }
        self.min_now = self.min_now.min(measured.max(1));
    }

    /// Least round-trip time in ticks; 0 until something was measured.
    pub(crate) fn min(&self) -> u32 {
        let min = self.min_now.min(self.min_before);
        if min == u32::MAX { 0 } else { min }
    }

    /// The time-out in nanoseconds, doubled as often as it ran out.
    pub(crate) fn rto_ns(&self) -> u64 {
        //= RFC 6298 section 2
        //= type=exception
        //= reason=The lower bound is on the variation, not on the whole: 200 ms, which delayed acknowledgments take at most. A tail loss probe precedes it, and a spurious time-out is found out and taken back.
        //# Whenever RTO is computed, if it is less than 1 second, then the
        //# RTO SHOULD be rounded up to 1 second.
        let base = if self.srtt_8 > 0 {
            //= RFC 6298 section 2
            //# After the computation, a host MUST update
            //# RTO <- SRTT + max (G, K*RTTVAR)
            nanoseconds(self.srtt()) + nanoseconds(self.var_4).max(RTO_MIN_NS)
        } else if self.was_syn_repeated {
            //= RFC 6298 section 5
            //# If the timer expires awaiting the ACK of a SYN segment and the
            //# TCP implementation is using an RTO less than 3 seconds, the RTO
            //# MUST be re-initialized to 3 seconds when data transmission
            //# begins (i.e., after the three-way handshake completes).
            RTO_AFTER_SYN_NS
        } else {
            //= RFC 6298 section 2
            //# Until a round-trip time (RTT) measurement has been made for a
            //# segment sent between the sender and receiver, the sender SHOULD
            //# set RTO <- 1 second, though the "backing off" on repeated
            //# retransmission discussed in (5.5) still applies.
            RTO_FIRST_NS
        };
        //= RFC 6298 section 5
        //# The host MUST set RTO <- RTO * 2 ("back off the timer").
        (base << self.backoff.min(16)).min(RTO_MAX_NS)
    }
}

#[cfg(test)]
#[path = "rtt_tests.rs"]
mod tests;
