//! Bounds of ladders: the renditions of one title, made so that a viewer can go from one to another.

use crate::time::MEDIA_HZ;

/// By how much access points and clocks of renditions may differ that others have made: what is between two values of the clock is estimated, and a
/// viewer's clock follows what it sees by less in a second (ISO/IEC 13818-1 section 2.4.2.1: 30 ppm).
pub const FIT_CLOCK_TICKS: u64 = MEDIA_HZ / 500;
