//! How fast packets are delivered.

use crate::limits::{MAX_SPEED_PERMILLE, MIN_SPEED_PERMILLE};

/// How fast packets are delivered, in thousandths of real time: what RTSP calls Speed (RFC 2326 section 12.35).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speed(u16);

impl Speed {
    /// As fast as they are watched.
    pub const NORMAL: Self = Self(1_000);

    /// Returns the nearest available speed.
    pub fn nearest(permille: u64) -> Self {
        let slowest = u64::from(MIN_SPEED_PERMILLE);
        Self(permille.clamp(slowest, u64::from(MAX_SPEED_PERMILLE)) as u16)
    }

    /// In thousandths of real time.
    pub const fn permille(self) -> u16 {
        self.0
    }

    /// Whether it is as fast as they are watched.
    pub const fn is_normal(self) -> bool {
        self.0 == Self::NORMAL.0
    }

    /// Returns by how much this speed increases a rate in bits a second.
    pub(super) fn more_of(self, rate: u64) -> u64 {
        rate.saturating_mul(u64::from(self.0.saturating_sub(1_000))) / 1_000
    }
}

impl Default for Speed {
    fn default() -> Self {
        Self::NORMAL
    }
}

/// Speeds of delivery that are tried, the fastest first, where the one that is wished cannot be admitted.
pub(super) const LOWER_SPEEDS: [Speed; 3] = [Speed(3_000), Speed(2_000), Speed(1_500)];
