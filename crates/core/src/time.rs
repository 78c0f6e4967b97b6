//! Two kinds of time, never mixed: the machine's monotonic clock in nanoseconds and the title's clock at 90 kHz.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Ticks a second of the RTP clock of MPEG-2 transport streams (RFC 2250 section 2).
pub const MEDIA_HZ: u64 = 90_000;
/// Nanoseconds a second.
pub const NS_PER_S: u64 = 1_000_000_000;

/// A moment on the monotonic clock, in nanoseconds. Only [`crate::seam::Clock`] makes one from the real clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The moment `ns` nanoseconds later; stays at the end of time rather than wrap.
    #[inline]
    pub fn plus_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to here; 0 if `earlier` is later.
    #[inline]
    pub fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        self.plus_ns(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        Duration::from_nanos(self.ns_since(rhs))
    }
}

/// A length or a position of media time in 90 kHz ticks, from the title's first packet.
///
/// A title's timeline is smooth and never runs back: wraps and discontinuities of its PCR are taken out at ingest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MediaTicks(pub u64);

impl MediaTicks {
    /// From nanoseconds, rounded down. Exact up to 58 years of media.
    pub fn from_ns(ns: u64) -> Self {
        Self((u128::from(ns) * u128::from(MEDIA_HZ) / u128::from(NS_PER_S)) as u64)
    }

    /// In nanoseconds, rounded down; exact integer arithmetic, so that departure times do not drift.
    pub fn to_ns(self) -> u64 {
        // 10^9 / 90_000 = 100_000 / 9: stays within u64 for 5,000 years of media.
        self.0.saturating_mul(100_000) / 9
    }

    /// From seconds as a player writes them (`npt=12.5`); `None` if negative or not finite.
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        (0.0..1e9).contains(&secs).then(|| Self((secs * MEDIA_HZ as f64).round() as u64))
    }

    /// In seconds, for people and for `npt=`.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / MEDIA_HZ as f64
    }

    /// Distance from `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for MediaTicks {
    /// `h:mm:ss.mmm`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0 / 90;
        let (s, ms) = (ms / 1000, ms % 1000);
        write!(f, "{}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_ticks_convert_both_ways() {
        assert_eq!(MediaTicks(90_000).to_ns(), NS_PER_S);
        assert_eq!(MediaTicks(1).to_ns(), 11_111);
        assert_eq!(MediaTicks::from_ns(NS_PER_S), MediaTicks(90_000));
        assert_eq!(MediaTicks::from_secs_f64(1.5), Some(MediaTicks(135_000)));
        assert_eq!(MediaTicks::from_secs_f64(-1.0), None);
        assert_eq!(MediaTicks::from_secs_f64(f64::NAN), None);
        assert_eq!(MediaTicks(90_000 * 3661 + 45_000).to_string(), "1:01:01.500");
    }

    #[test]
    fn media_ticks_of_one_day_convert_without_drift() {
        let day = MediaTicks(90_000 * 86_400);
        assert_eq!(day.to_ns(), 86_400 * NS_PER_S);
    }

    #[test]
    fn instants_saturate() {
        assert_eq!(Instant(5).ns_since(Instant(9)), 0);
        assert_eq!(Instant(u64::MAX).plus_ns(1), Instant(u64::MAX));
    }
}
