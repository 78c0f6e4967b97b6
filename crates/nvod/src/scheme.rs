//! The schemes: which segments each channel carries, in which order.
//!
//! A channel is cut into slots of one length, each with one segment, sent at the playback rate. Its slots are dealt out in turn to
//! *rotations*, and each rotation repeats its own run of segments. With `k` rotations, one of `n` segments sends each every `k * n`
//! slots.
//!
//! A viewer who arrives within a slot begins at the next one, plus `wait - 1` slots. Segment `i`, counted from 0, is shown `wait - 1 + i` slots
//! after that first one. A byte that comes in a slot at the same distance from the slot's beginning as it is shown at is in time,
//! so a period of up to `wait + i` slots is short enough for every arrival. Pagoda schemes are packings under this rule.

use std::fmt;
use std::str::FromStr;

use crate::limits::{MAX_ROTATIONS, MAX_WAIT_SLOTS, SKYSCRAPER_WIDTHS};

/// A way to distribute a title over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Each channel repeats the whole title, at distances of its length by the number of channels.
    Staggered,
    /// Hua and Sheu, SIGCOMM 1997: segments of 1, 2, 2, 5, 5, 12, 12, ... slots, up to this width; a viewer hears two channels at a time.
    Skyscraper {
        /// The longest segment, in slots: one of [`SKYSCRAPER_WIDTHS`].
        width: u16,
    },
    /// Pâris, Carter and Long, MMCN 1999: pairs of channels that together have five times the segments of those before.
    Pagoda,
    /// Pâris, "A fixed-delay broadcasting protocol for video-on-demand", ICCCN 2001: each viewer waits several short slots, so that
    /// periods lose less by rounding.
    FixedDelay,
}

/// All schemes, the skyscraper as wide as it may be.
pub const SCHEMES: [Scheme; 4] = [
    Scheme::Staggered,
    Scheme::Skyscraper { width: SKYSCRAPER_WIDTHS[SKYSCRAPER_WIDTHS.len() - 1] },
    Scheme::Pagoda,
    Scheme::FixedDelay,
];

/// Not the name of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write staggered, skyscraper, skyscraper-2, -5, -12 or -25, pagoda or fixed-delay")]
pub struct SchemeError;

impl FromStr for Scheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        SCHEMES
            .into_iter()
            .chain(SKYSCRAPER_WIDTHS.map(|width| Self::Skyscraper { width }))
            .find(|scheme| scheme.to_string() == text)
            .ok_or(SchemeError)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Staggered => f.pad("staggered"),
            Self::Pagoda => f.pad("pagoda"),
            Self::FixedDelay => f.pad("fixed-delay"),
            widest if SCHEMES.contains(widest) => f.pad("skyscraper"),
            Self::Skyscraper { width } => f.pad(&format!("skyscraper-{width}")),
        }
    }
}

/// A run of segments that some slots of a channel repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rotation {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Rotation {
    fn end(self) -> u32 {
        self.first + self.count
    }
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Channel {
    /// At least one.
    pub(crate) rotations: Vec<Rotation>,
    /// Turns that the rotations are ahead in slot 0.
    pub(crate) shift: u32,
}

impl Channel {
    fn single(first: u32, count: u32) -> Self {
        Self { rotations: vec![Rotation { first, count }], shift: 0 }
    }

    fn end(&self) -> u32 {
        self.rotations.iter().map(|rotation| rotation.end()).max().unwrap_or(0)
    }
}

/// The channels of a scheme, and the slots of [`Scheme`]'s delay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) channels: Vec<Channel>,
    pub(crate) wait: u32,
}

impl Layout {
    pub(crate) fn segments(&self) -> u32 {
        self.channels.iter().map(Channel::end).max().unwrap_or(0)
    }
}

/// Makes the channels. `channels` is 1 to [`crate::limits::MAX_CHANNELS`], `most` the segments that there may be. `Err` has the
/// smallest number of segments that the scheme needs if that is more.
pub(crate) fn lay_out(scheme: Scheme, channels: u8, most: u32) -> Result<Layout, u64> {
    let layout = match scheme {
        Scheme::Staggered => staggered(channels),
        Scheme::Skyscraper { width } => skyscraper(channels, u32::from(width)),
        Scheme::Pagoda => pagoda(channels),
        Scheme::FixedDelay => return fixed_delay(channels, most),
    };
    let segments = layout.segments();
    if segments > most { Err(u64::from(segments)) } else { Ok(layout) }
}

fn staggered(channels: u8) -> Layout {
    let count = u32::from(channels);
    let of = |number| Channel { shift: count - number, ..Channel::single(0, count) };
    Layout { channels: (0..count).map(of).collect(), wait: 1 }
}

fn skyscraper(channels: u8, width: u32) -> Layout {
    let (mut laid, mut first, mut length) = (Vec::new(), 0, 1);
    for number in 1..=u32::from(channels) {
        // The series of the paper: 1, 2, 2, then 2n+1, n, 2n+2, n.
        let next = match number {
            1 => 1,
            2 => 2,
            _ if number % 4 == 0 => 2 * length + 1,
            _ if number % 4 == 2 => 2 * length + 2,
            _ => length,
        };
        length = next.min(width);
        laid.push(Channel::single(first, length));
        first += length;
    }
    Layout { channels: laid, wait: 1 }
}

fn pagoda(channels: u8) -> Layout {
    // Segments are counted from 1 in the paper, whose number `z` is also the longest period that `z` may have.
    let rotations = |runs: &[(u32, u32)]| Channel {
        rotations: runs.iter().map(|&(z, count)| Rotation { first: z - 1, count }).collect(),
        shift: 0,
    };
    let (mut laid, mut z) = (vec![rotations(&[(1, 1)])], 2);
    while laid.len() < usize::from(channels) {
        if usize::from(channels) - laid.len() == 1 {
            laid.push(rotations(&[(z, z)]));
        } else {
            laid.push(rotations(&[(z, z / 2), (2 * z, z)]));
            laid.push(rotations(&[(3 * z / 2, z / 2), (3 * z, z), (4 * z, z)]));
        }
        z *= 5;
    }
    Layout { channels: laid, wait: 1 }
}

/// As many slots of waiting as the number of segments allows.
fn fixed_delay(channels: u8, most: u32) -> Result<Layout, u64> {
    let fits = |layout: &Layout| layout.segments() <= most;
    let shortest = fixed_delay_with(channels, 1);
    if !fits(&shortest) {
        return Err(u64::from(shortest.segments()));
    }
    let mut wait = (most / shortest.segments()).min(MAX_WAIT_SLOTS);
    while wait > 1 {
        let layout = fixed_delay_with(channels, wait);
        if fits(&layout) {
            return Ok(layout);
        }
        let closer = u64::from(wait) * u64::from(most) / u64::from(layout.segments());
        wait = (wait - 1).min(closer as u32);
    }
    Ok(shortest)
}

fn fixed_delay_with(channels: u8, wait: u32) -> Layout {
    let (mut laid, mut first) = (Vec::new(), 0);
    for _ in 0..channels {
        let channel = fullest_channel(first, wait);
        first = channel.end();
        laid.push(channel);
    }
    Layout { channels: laid, wait }
}

/// Tries numbers of rotations; the channel with most segments from `first` on is taken. The best is near the square root of the
/// longest period.
fn fullest_channel(first: u32, wait: u32) -> Channel {
    let root = (wait + first).isqrt();
    let candidates = 1..=(2 * root + 1).min(MAX_ROTATIONS).min(wait + first);
    let filled = |rotations: u32| {
        // Each rotation is as long as its first segment, the most urgent one, allows.
        let mut at = first;
        let turns = (0..rotations).map(|_| {
            let rotation = Rotation { first: at, count: (wait + at) / rotations };
            at = rotation.end();
            rotation
        });
        Channel { rotations: turns.collect(), shift: 0 }
    };
    candidates.map(filled).max_by_key(Channel::end).unwrap_or_else(|| Channel::single(first, 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_SEGMENTS;

    fn segments(scheme: Scheme, channels: std::ops::RangeInclusive<u8>) -> Vec<u32> {
        channels.map(|count| lay_out(scheme, count, MAX_SEGMENTS).unwrap().segments()).collect()
    }

    #[test]
    fn segments_of_schemes_are_those_of_their_papers() {
        assert_eq!(segments(Scheme::Staggered, 1..=4), [1, 2, 3, 4]);
        assert_eq!(segments(Scheme::Pagoda, 1..=8), [1, 3, 9, 19, 49, 99, 249, 499]);
        let sums = segments(Scheme::Skyscraper { width: 52 }, 1..=13);
        assert_eq!(sums, [1, 3, 5, 10, 15, 27, 39, 64, 89, 141, 193, 245, 297]);
        assert_eq!(segments(Scheme::Skyscraper { width: 2 }, 1..=4), [1, 3, 5, 7]);
    }

    #[test]
    fn fixed_delay_without_extra_slots_is_a_pagoda() {
        let counts: Vec<_> = (1..=4).map(|channels| fixed_delay_with(channels, 1).segments()).collect();
        assert_eq!(counts, [1, 3, 8, 20]);
    }

    #[test]
    fn scheme_names_parse_and_print() {
        for name in ["staggered", "skyscraper", "skyscraper-12", "pagoda", "fixed-delay"] {
            assert_eq!(name.parse::<Scheme>().unwrap().to_string(), name);
        }
        assert_eq!("skyscraper-52".parse::<Scheme>(), Err(SchemeError));
        assert_eq!("skyscraper-3".parse::<Scheme>(), Err(SchemeError));
    }
}
