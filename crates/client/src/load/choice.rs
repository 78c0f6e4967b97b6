//! Who watches what, and when viewers come.

use std::time::Duration;

/// Who watches what.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TitleChoice {
    /// The first viewer the first title, the second the second, and so round.
    #[default]
    InTurn,
    /// Every title is as likely as any other.
    Uniform,
    /// The n-th title of the list is drawn n^s times less often than the first.
    Zipf(f64),
}

/// When viewers come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// At once.
    AllAtOnce,
    /// Evenly over this time.
    Ramp(Duration),
    /// At random, so many a second in the mean.
    Poisson {
        /// Viewers a second.
        per_s: f64,
    },
}
