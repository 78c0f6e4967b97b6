//! Bounds of ladders: the renditions of one title, made so that a viewer can go from one to another.

use crate::time::MEDIA_HZ;

/// Largest difference in access points and clocks of renditions made by others: the time between
/// two values of the clock is estimated, and a viewer's clock follows the values it sees by less
/// than this in a second (ISO/IEC 13818-1 section 2.4.2.1: 30 ppm).
pub const FIT_CLOCK_TICKS: u64 = MEDIA_HZ / 500;
