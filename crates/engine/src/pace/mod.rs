//! When packets leave, and how many of them at once.
//!
//! **Departure times.** Packet `p` of a run that began with packet `from` at the moment `at` departs at
//! `at + (time(p) - time(from)) * 1000 / scale_permille`, in integer nanoseconds and always from the same anchor, never
//! from the packet before: rounding does not add up, so there is no drift, after hours neither. `at` is the moment that the
//! command names or, if that comes later and the viewer has no FEC, when the first extent of the run has been read.
//!
//! **Bursts.** A burst begins at the departure time of its first packet and takes along all packets
//! that depart within the next `burst_ns`: no packet leaves late, none earlier than `burst_ns`. Why
//! bursts: a datagram alone costs 900 ns of kernel path, one of eight in a GSO send 400 ns. Why
//! this short: packets sent ahead lie in the player's socket buffer, 92 packets by default, beside
//! those that the player has not fetched yet; no player lost anything up to a quantum of 100 ms at
//! 4 Mb/s, and 10 ms are an order of magnitude below. A slow stream has less than one packet in 10
//! ms, so it gathers up to [`MIN_BURST_PACKETS`] within
//! [`MAX_BURST_NS`](millrace_core::limits::MAX_BURST_NS), less its permitted lead. `smooth` sends
//! single packets, for receivers without buffers and for measuring.
//!
//! **Shared wake-ups.** A loop that wakes for each burst of a thousand streams wakes thousands of
//! times a second. So it sleeps until a burst departs, and then takes along the bursts that depart
//! within [`SHARED_WAKE_NS`](crate::limits::SHARED_WAKE_NS) from then, each unchanged: after this
//! it has nothing to do for at least as long, 125 wake-ups a second. Packets put off on purpose
//! (catching up, the least gap between packets, a socket that is full) do not lead, and as long as
//! there are any the loop sleeps to the exact time of the next. Reports of RTCP wait for the
//! wake-up of a burst.
//!
//! In a TCP connection bursts are [`TCP_BURST_RATIO`] times as long ([`BurstRules::in_connection`]): nothing is lost there by being
//! early, and small writes are what such a viewer costs. The first bursts of a run grow up to that, as TCP's own window does.
//!
//! **Catching up.** After a burst that left at `T`, the next leaves at its departure time, but not
//! before `T + media time of the burst * 4 / 5`. On time the first is later and nothing changes;
//! behind time the second rules and the stream runs at no more than 5/4 of its own rate
//! ([`CATCH_UP_RATIO`]), counted from any burst to any later one. The burst itself never grows. So
//! a hole is made up without a flood that the player's buffer or the next switch drops. `T` is when
//! the burst was due if the loop was woken less than [`WAKE_CREDIT_NS`] late: a machine that wakes
//! us late every time must not slow the title down. So 5/4 holds for any window that is longer by
//! this credit. However many bursts leave at one moment, they are never more than
//! [`MAX_BURST_PACKETS`] together ([`LastBurst::room`]).

use millrace_core::limits::{CATCH_UP_RATIO, MAX_BURST_PACKETS, MIN_BURST_PACKETS, TCP_BURST_RATIO};
use millrace_core::time::{Instant, MediaTicks};

use crate::limits::{MIN_PACKET_GAP_NS, WAKE_CREDIT_NS, WAKE_CREDIT_PACKETS};

/// One run's line from media time to departure time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPacing {
    /// When the anchor departs.
    pub at: Instant,
    /// Media time of the anchor.
    pub anchor: MediaTicks,
    /// Speed in thousandths of real time; not 0.
    pub scale_permille: u32,
}

/// Nanoseconds of real time in which `ticks` of media pass, rounded down.
fn ns_of(ticks: u64, scale_permille: u32) -> u64 {
    if scale_permille == 1000 {
        return MediaTicks(ticks).to_ns();
    }
    // 10^9 / 90_000 * 1000 = 10^8 / 9.
    let ns = u128::from(ticks) * 100_000_000 / (9 * u128::from(scale_permille));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The fewest ticks of media that take at least `ns`: the inverse of [`ns_of`].
fn ticks_reaching(ns: u64, scale_permille: u32) -> u64 {
    if scale_permille == 1000 && ns < u64::MAX / 9 {
        return (9 * ns).div_ceil(100_000);
    }
    let ticks = (9 * u128::from(ns) * u128::from(scale_permille)).div_ceil(100_000_000);
    u64::try_from(ticks).unwrap_or(u64::MAX)
}

impl RunPacing {
    /// When a packet of media time `time` departs. Media before the anchor departs with it.
    pub fn departure(&self, time: MediaTicks) -> Instant {
        self.at.plus_ns(ns_of(time.since(self.anchor).0, self.scale_permille))
    }

    /// The earliest media time that departs at `moment` or later; the anchor's if that is in the past.
    pub fn media_at(&self, moment: Instant) -> MediaTicks {
        let ticks = ticks_reaching(moment.ns_since(self.at), self.scale_permille);
        MediaTicks(self.anchor.0.saturating_add(ticks))
    }
}

/// How long bursts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BurstRules {
    /// Media time in a burst, in nanoseconds of departure time.
    pub burst_ns: u64,
    /// Media time in a burst whose [`MIN_BURST_PACKETS`] packets would exceed `burst_ns`.
    pub gather_ns: u64,
    /// Single packets.
    pub smooth: bool,
}

impl BurstRules {
    /// Returns the rules for a stream in a TCP connection that has had this many bursts of its run.
    pub fn in_connection(self, bursts: u32) -> Self {
        let ratio = bursts.saturating_add(1).min(TCP_BURST_RATIO);
        Self { burst_ns: self.burst_ns * u64::from(ratio), ..self }
    }

    /// Returns how many packets leave together: `times` are the title times of the packets that
    /// could; the first departs now or did before, or leads. At least 1 if there is one, at most
    /// [`MAX_BURST_PACKETS`].
    pub fn count(&self, pace: &RunPacing, mut times: impl Iterator<Item = MediaTicks>) -> u32 {
        let Some(first) = times.next() else { return 0 };
        if self.smooth {
            return 1;
        }
        let first = pace.departure(first);
        let end = pace.media_at(first.plus_ns(self.burst_ns));
        // Known only when a burst turns out to be a short one: most streams never need the division.
        let mut short_end = None;
        let mut count = 1;
        for time in times.take(MAX_BURST_PACKETS - 1) {
            let belongs = time < end
                || count < MIN_BURST_PACKETS as u32
                    && time < *short_end.get_or_insert_with(|| pace.media_at(first.plus_ns(self.gather_ns)));
            if !belongs {
                break;
            }
            count += 1;
        }
        count
    }
}

/// The bursts that left last, as far as they bind the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBurst {
    left: Instant,
    /// When its first packet departed, by the title.
    departure: Instant,
    /// How much later it left than it was due, as far as that may be forgiven: at most [`WAKE_CREDIT_NS`].
    late_ns: u32,
    packets: u16,
    /// Packets that have left at about that moment: one less every [`MIN_PACKET_GAP_NS`].
    together: u16,
}

impl LastBurst {
    /// No burst: binds nothing.
    pub const NONE: Self =
        Self { left: Instant(0), departure: Instant(u64::MAX), late_ns: 0, packets: 0, together: 0 };

    /// The same for a run with another schedule: only the packets that have just left still count.
    pub fn of_earlier_run(&self) -> Self {
        Self { departure: Instant(u64::MAX), late_ns: 0, ..*self }
    }

    /// The burst behind this one: it left at `left`; by the title it departed at `departure`, it was due at `due`, which is
    /// the same while the stream is on time, later while it is catching up.
    pub fn followed_by(&self, left: Instant, due: Instant, departure: Instant, packets: u32) -> Self {
        Self {
            left,
            departure,
            late_ns: left.ns_since(due).min(WAKE_CREDIT_NS) as u32,
            packets: packets.min(u32::from(u16::MAX)) as u16,
            together: (u64::from(self.together_at(left)) + u64::from(packets)).min(u64::from(u16::MAX))
                as u16,
        }
    }

    /// The same in a TCP connection: no buffer overflows there, so a late wake-up is forgiven however long the burst was.
    pub fn in_connection(self) -> Self {
        Self { together: self.together.min(WAKE_CREDIT_PACKETS as u16), ..self }
    }

    fn together_at(&self, now: Instant) -> u16 {
        let drained = now.ns_since(self.left) / MIN_PACKET_GAP_NS;
        self.together.saturating_sub(drained.min(u64::from(u16::MAX)) as u16)
    }

    /// Most packets that may leave at `now`, so that no more than [`MAX_BURST_PACKETS`] leave at one moment in however many
    /// bursts; at least one.
    pub fn room(&self, now: Instant) -> u32 {
        (MAX_BURST_PACKETS as u32).saturating_sub(u32::from(self.together_at(now))).max(1)
    }

    /// Whether as many packets as allowed have left at about this moment: the next ones have to
    /// wait.
    pub fn is_full(&self, now: Instant) -> bool {
        usize::from(self.together_at(now)) >= MAX_BURST_PACKETS
    }

    /// When the packet behind this burst leaves, given its departure time.
    pub fn next_leaves(&self, departure: Instant) -> Instant {
        let (num, den) = CATCH_UP_RATIO;
        let media_ns = departure.ns_since(self.departure).saturating_mul(den).div_ceil(num);
        let least_ns = media_ns.max(u64::from(self.packets) * MIN_PACKET_GAP_NS);
        // Packets within the credit leave at once, so the credit ends when enough have left.
        let forgiven_ns =
            if u64::from(self.together) <= WAKE_CREDIT_PACKETS { u64::from(self.late_ns) } else { 0 };
        departure.max(Instant(self.left.plus_ns(least_ns).0.saturating_sub(forgiven_ns)))
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
