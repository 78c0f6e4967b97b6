//! Titles that are made of another title: what it is called, which of its times shows which time of the parent, and what becomes of it
//! when the parent goes.
//!
//! A derived title is a title like any other, but for its name, which no user can give (`PARENT@4`, `PARENT@-16`, `PARENT@0.5`).

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_SCALE_SUFFIX_BYTES;
use millrace_core::scale::Scale;
use millrace_core::time::MediaTicks;
use serde::{Deserialize, Serialize};

use super::{TitleInfo, Volume};
use crate::error::StoreError;
use crate::format::json;
use crate::format::manifest::is_slug;
use crate::index::{RandomAccessPoint, TitleIndex};

/// Between the parent's name and the speed; in no name that users give.
pub(super) const MARK: char = '@';

/// What a title is made of, if not of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Derived {
    /// The title that it shows.
    #[serde(with = "json::title_id")]
    pub parent: TitleId,
    /// How fast, and in which direction. Never normal.
    #[serde(with = "json::scale")]
    pub scale: Scale,
}

impl Derived {
    /// Duration of the title that shows a parent of `parent_duration` at this speed, rounded down to a tick.
    pub fn duration(self, parent_duration: MediaTicks) -> MediaTicks {
        self.scale.slowed(parent_duration)
    }

    /// The parent's time that is shown at time `t` of this title. Linear: from the parent's beginning forwards, or from its end
    /// (`parent_duration`) backwards; never beyond the other end.
    pub fn parent_time(self, t: MediaTicks, parent_duration: MediaTicks) -> MediaTicks {
        self.scale.shown_time(t, parent_duration)
    }

    /// The time of this title at which the parent's time `parent_time` is shown: the inverse of [`Derived::parent_time`], rounded
    /// down to a tick. Times behind the parent's end count as its end.
    pub fn own_time(self, parent_time: MediaTicks, parent_duration: MediaTicks) -> MediaTicks {
        self.scale.own_time(parent_time, parent_duration)
    }

    /// Where sending has to start so that playing starts at the parent's time `parent_time`: the access point at or before it in the
    /// direction of play; packet 0 if there is none. `index` is this title's.
    pub fn start_at(
        self,
        index: &TitleIndex,
        parent_time: MediaTicks,
        parent_duration: MediaTicks,
    ) -> RandomAccessPoint {
        index.access_at_or_before(self.own_time(parent_time, parent_duration))
    }

    /// What the title is called whose parent has this name.
    pub fn name(self, parent: &str) -> String {
        format!("{parent}{MARK}{}", self.scale)
    }

    /// Whether `name` has the form of a name of such a title.
    pub(crate) fn may_be_called(self, name: &str) -> bool {
        let Some((parent, scale)) = name.split_once(MARK) else { return false };
        is_slug(parent) && scale == self.scale.to_string() && !self.scale.is_normal()
    }
}

const _: () = assert!(MAX_SCALE_SUFFIX_BYTES == "@-31.25".len());

impl Volume {
    /// The titles made of `parent`, by speed. A look at names that are in memory, and at one row of the catalogue for each that is
    /// found.
    ///
    /// # Errors
    /// If the catalogue cannot be used.
    pub fn derived_of(&self, parent: TitleId) -> Result<Vec<(Scale, TitleInfo)>, StoreError> {
        self.inner.with_catalogue(move |catalogue| catalogue.derived_of(parent, None))
    }

    /// Removes titles whose parent is gone, which a removal that was cut short has left. Only with all members there: the parent
    /// may lie on those that are not.
    pub(super) fn remove_orphans(&self) -> Result<(), StoreError> {
        let orphans = self.inner.with_catalogue(|catalogue| catalogue.orphans())?;
        if orphans.is_empty() || self.inner.members.report().iter().any(|slot| slot.absent.is_some()) {
            return Ok(());
        }
        for (id, parent) in orphans {
            if !self.inner.usable().iter().any(|dirs| dirs.title(parent).exists()) {
                self.remove_if_there(id)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::ClockPiece;

    fn of(scale: &str) -> Derived {
        Derived { parent: TitleId([1; 16]), scale: scale.parse().unwrap() }
    }

    #[test]
    fn names_have_one_form() {
        assert_eq!(of("-16").name("film"), "film@-16");
        assert!(of("0.5").may_be_called("film@0.5"));
        for (scale, name) in
            [("4", "film@4.0"), ("4", "film@-4"), ("4", "film"), ("4", "@4"), ("1", "film@1")]
        {
            assert!(!of(scale).may_be_called(name), "{name}");
        }
        assert!(!of("4").may_be_called("a@4@4"), "nothing is made of what is made already");
    }

    #[test]
    fn playing_starts_at_or_before_in_either_direction() {
        let point = |second: u64| RandomAccessPoint {
            packet: second as u32,
            time: MediaTicks(second * 90_000),
            byte: second * 1316,
        };
        let index =
            TitleIndex::new((0..15).map(point).collect(), vec![ClockPiece::default()], vec![]).unwrap();
        let parent = MediaTicks(60 * 90_000);
        let second = |scale: &str, s: u64| of(scale).start_at(&index, MediaTicks(s * 90_000), parent).packet;
        assert_eq!((second("4", 0), second("4", 7), second("4", 59)), (0, 1, 14));
        assert_eq!((second("-4", 60), second("-4", 53), second("-4", 1)), (0, 1, 14));
    }

    proptest! {
        #[test]
        fn times_map_there_and_back(
            hundredths in 25i16..=3200,
            reverse: bool,
            duration in 0u64..1 << 40,
            part in 0.0f64..=1.0,
        ) {
            let scale = Scale::from_hundredths(if reverse { -hundredths } else { hundredths }).unwrap();
            let derived = Derived { parent: TitleId([1; 16]), scale };
            let whole = MediaTicks(duration);
            let shown = MediaTicks((duration as f64 * part) as u64);
            let own = derived.own_time(shown, whole);
            prop_assert!(own <= derived.duration(whole));
            // A tick of its own is so many of the parent's.
            let step = u64::from(scale.speed_hundredths()).div_ceil(100) + 1;
            prop_assert!(derived.parent_time(own, whole).0.abs_diff(shown.0) <= step);
            let own = MediaTicks((derived.duration(whole).0 as f64 * part) as u64);
            let back = derived.own_time(derived.parent_time(own, whole), whole);
            prop_assert!(back.0.abs_diff(own.0) <= 100u64.div_ceil(u64::from(scale.speed_hundredths())) + 1);
        }
    }
}
