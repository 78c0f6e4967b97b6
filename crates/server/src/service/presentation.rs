//! Presentation time stamps of a title, and the media times that players mean by them.

use std::sync::Arc;

use millrace_core::time::MediaTicks;

/// Values of a PTS: 33 bits at 90 kHz.
const PTS_MODULUS: i64 = 1 << 33;

/// From here on presentation time stamps count from another origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeBase {
    /// Where it begins.
    pub time: MediaTicks,
    /// The PTS that players assign to this moment.
    pub first_pts: u64,
}

/// Known facts about a title's presentation time stamps; empty for titles stored by an older
/// version.
#[derive(Clone, Debug, Default)]
pub struct Presentation {
    /// When the last picture has been shown.
    pub(super) end: Option<MediaTicks>,
    /// In ascending order, the first at time 0.
    bases: Arc<[TimeBase]>,
}

impl Presentation {
    /// `bases` in ascending order.
    pub fn new(end: Option<MediaTicks>, bases: Vec<TimeBase>) -> Self {
        Self { end, bases: bases.into() }
    }

    /// The media time that a player means by PTS `asked`, of several the first of these that lies in the title: counted from
    /// the base that it is playing, as ffplay does; from the first, as all do that start again; from the base that has such
    /// a PTS. If none does, counted from the base that it is playing. `None` if nothing is known.
    pub(super) fn time_of(&self, asked: i64, playing: impl FnOnce() -> MediaTicks, end: i64) -> Option<i64> {
        let here = match self.bases.len() {
            0 => return None,
            1 => 0,
            _ => {
                let playing = playing();
                self.bases.partition_point(|base| base.time <= playing).saturating_sub(1)
            }
        };
        let from = |base: usize| counted_from(self.bases[base], asked, end);
        let starts = |base: usize| self.bases.get(base).map_or(end, |base| base.time.0.cast_signed());
        let is_in_title = |time: &i64| (0..end).contains(time);
        let in_own =
            |base: usize| Some(from(base)).filter(|time| (starts(base)..starts(base + 1)).contains(time));
        Some(from(here))
            .filter(is_in_title)
            .or_else(|| Some(from(0)).filter(is_in_title))
            .or_else(|| (0..self.bases.len()).find_map(in_own))
            .or_else(|| Some(from(here)))
    }
}

/// Media time of a PTS counted from `base`. PTS wrap every 26.5 hours, and players unwrap them in either direction: of the
/// times that are meant it is the one in the title or nearest to it.
fn counted_from(base: TimeBase, asked: i64, end: i64) -> i64 {
    let time = asked - base.first_pts.cast_signed() + base.time.0.cast_signed();
    if end >= PTS_MODULUS {
        return time; // longer than a turn: nothing can be told
    }
    let time = time.rem_euclid(PTS_MODULUS);
    if time > end + (PTS_MODULUS - end) / 2 { time - PTS_MODULUS } else { time }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 90_000;

    fn base(time_s: i64, first_pts: i64) -> TimeBase {
        TimeBase {
            time: MediaTicks((time_s * S).cast_unsigned()),
            first_pts: first_pts.rem_euclid(PTS_MODULUS).cast_unsigned(),
        }
    }

    /// In a title of an hour with these bases, for a viewer that plays at `playing_s`.
    fn asked(bases: &[TimeBase], playing_s: u64, ticks: i64) -> Option<i64> {
        let presentation = Presentation::new(None, bases.to_vec());
        presentation.time_of(ticks, || MediaTicks(playing_s * 90_000), 3600 * S)
    }

    #[test]
    fn asked_with_single_base_subtracts_it() {
        for first in [0, 126_000, 1800 * S, 5000 * S] {
            for place in [0, 1, 600 * S, 3600 * S - 1, -S, 4000 * S] {
                assert_eq!(asked(&[base(0, first)], 0, first + place), Some(place), "{first} {place}");
            }
        }
        assert_eq!(asked(&[], 0, 5), None);
    }

    #[test]
    fn stamps_that_wrap_are_meant_either_way() {
        // FFmpeg counts up from -26 s where the wrap is near, and on beyond 2^33 where it is not.
        let soon = [base(0, -26 * S)];
        assert_eq!(asked(&soon, 0, -6 * S), Some(20 * S));
        assert_eq!(asked(&soon, 0, PTS_MODULUS - 6 * S), Some(20 * S));
        assert_eq!(asked(&soon, 0, 100 * S), Some(126 * S));
        let later = [base(0, -600 * S)];
        assert_eq!(asked(&later, 0, PTS_MODULUS + 60 * S), Some(660 * S));
        assert_eq!(asked(&later, 0, 60 * S), Some(660 * S));
    }

    #[test]
    fn asked_in_joined_recordings_uses_part_being_played() {
        let bases = [base(0, 5000 * S), base(1000, 60 * S), base(2000, 9000 * S)];
        // In the first, and from the beginning: by the first.
        assert_eq!(asked(&bases, 0, 5010 * S), Some(10 * S));
        assert_eq!(
            asked(&bases, 0, 7500 * S),
            Some(2500 * S),
            "-ss counts from the start, whatever comes between"
        );
        // ffplay in the second: forward, and back across the join.
        assert_eq!(asked(&bases, 1500, 570 * S), Some(1510 * S));
        assert_eq!(asked(&bases, 1005, 55 * S), Some(995 * S));
        // Not in the title by the part that plays, nor by the first: the part that has such a stamp.
        assert_eq!(asked(&bases, 0, 9100 * S), Some(2100 * S));
        assert_eq!(asked(&bases, 0, 30_000 * S), Some(25_000 * S), "nowhere: as it plays, and clamped later");
    }

    #[test]
    fn counted_from_beyond_pts_wrap_is_not_folded() {
        let end = PTS_MODULUS + 100 * S;
        assert_eq!(counted_from(base(0, 10 * S), PTS_MODULUS + 30 * S, end), PTS_MODULUS + 20 * S);
    }
}
