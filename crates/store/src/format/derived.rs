//! The relation of a title that is made of another title to its parent: its name, and the mapping
//! of its times to those of the parent.
//!
//! A derived title is a title like any other, but for its name, which no user can give: `PARENT@4`, `PARENT@-16`, `PARENT@0.5` show the
//! parent at another speed, `PARENT@720p` is a rendition of it.

use std::fmt;

use millrace_core::ids::TitleId;
use millrace_core::rendition::{RenditionName, RenditionNameError};
use millrace_core::scale::{Scale, ScaleError};
use millrace_core::time::MediaTicks;
use serde::{Deserialize, Serialize};

use super::json;
use crate::index::{RandomAccessPoint, TitleIndex};
use crate::limits::MAX_DERIVED_SUFFIX_BYTES;
use crate::naming::is_slug;

/// Between the parent's name and the speed or rendition; in no name that users give.
pub(crate) const MARK: char = '@';

/// The origin of a title that is not made of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "DerivedRecord", into = "DerivedRecord")]
pub struct Derived {
    /// The title that it shows.
    pub parent: TitleId,
    /// Its relation to the parent.
    pub kind: DerivedKind,
    /// Made because a viewer requested its speed, and removed when its space is needed. A title
    /// that an operator has requested stays. Never a rendition.
    pub on_use: bool,
}

/// The relation of a derived title to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DerivedKind {
    /// It shows it so fast, and in this direction. Never normal.
    Speed(Scale),
    /// The same media at another bit rate, with the same access points and time line.
    Rendition(RenditionName),
}

impl Derived {
    /// A title that shows `parent` at this speed, made to stay.
    pub fn at_speed(parent: TitleId, scale: Scale) -> Self {
        Self { parent, kind: DerivedKind::Speed(scale), on_use: false }
    }

    /// A rendition of `parent`.
    pub fn as_rendition(parent: TitleId, name: RenditionName) -> Self {
        Self { parent, kind: DerivedKind::Rendition(name), on_use: false }
    }

    /// Returns the speed, if the title was made for one.
    pub fn speed(self) -> Option<Scale> {
        match self.kind {
            DerivedKind::Speed(scale) => Some(scale),
            DerivedKind::Rendition(_) => None,
        }
    }

    /// Returns the name of the rendition, if it is one.
    pub fn rendition(self) -> Option<RenditionName> {
        match self.kind {
            DerivedKind::Speed(_) => None,
            DerivedKind::Rendition(name) => Some(name),
        }
    }

    /// How fast it shows its parent, and in which direction.
    pub fn scale(self) -> Scale {
        self.speed().unwrap_or(Scale::NORMAL)
    }

    /// Duration of the title that shows a parent of `parent_duration` at this speed, rounded down to a tick.
    pub fn duration(self, parent_duration: MediaTicks) -> MediaTicks {
        self.scale().slowed(parent_duration)
    }

    /// The parent's time that is shown at time `t` of this title. Linear: from the parent's beginning forwards, or from its end
    /// (`parent_duration`) backwards; never beyond the other end.
    pub fn parent_time(self, t: MediaTicks, parent_duration: MediaTicks) -> MediaTicks {
        self.scale().shown_time(t, parent_duration)
    }

    /// The time of this title at which the parent's time `parent_time` is shown: the inverse of [`Derived::parent_time`], rounded
    /// down to a tick. Times behind the parent's end count as its end.
    pub fn own_time(self, parent_time: MediaTicks, parent_duration: MediaTicks) -> MediaTicks {
        self.scale().own_time(parent_time, parent_duration)
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

    /// Returns the name of the title whose parent has this name.
    pub fn name(self, parent: &str) -> String {
        format!("{parent}{MARK}{}", self.kind)
    }

    /// Whether `name` has the form of a name of such a title.
    pub(crate) fn may_be_called(self, name: &str) -> bool {
        let Some((parent, kind)) = name.split_once(MARK) else { return false };
        is_slug(parent)
            && kind == self.kind.to_string()
            && self.speed().is_none_or(|scale| !scale.is_normal())
    }
}

const _: () = assert!(MAX_DERIVED_SUFFIX_BYTES >= "@-31.25".len());

/// As it stands behind `MARK`.
impl fmt::Display for DerivedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Speed(scale) => scale.fmt(f),
            Self::Rendition(name) => name.fmt(f),
        }
    }
}

/// [`Derived`] in a manifest: one of the two is there.
#[derive(Serialize, Deserialize)]
struct DerivedRecord {
    #[serde(with = "json::title_id")]
    parent: TitleId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scale: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rendition: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    on_use: bool,
}

impl From<Derived> for DerivedRecord {
    fn from(derived: Derived) -> Self {
        let Derived { parent, kind, on_use } = derived;
        let text = Some(kind.to_string());
        match kind {
            DerivedKind::Speed(_) => Self { parent, scale: text, rendition: None, on_use },
            DerivedKind::Rendition(_) => Self { parent, scale: None, rendition: text, on_use },
        }
    }
}

impl TryFrom<DerivedRecord> for Derived {
    type Error = String;

    fn try_from(stored: DerivedRecord) -> Result<Self, String> {
        let DerivedRecord { parent, scale, rendition, on_use } = stored;
        let kind = match (scale, rendition) {
            (Some(scale), None) => DerivedKind::Speed(scale.parse().map_err(|e: ScaleError| e.to_string())?),
            (None, Some(name)) => {
                DerivedKind::Rendition(name.parse().map_err(|e: RenditionNameError| e.to_string())?)
            }
            _ => return Err("derived: one of scale and rendition must be there".to_owned()),
        };
        if on_use && matches!(kind, DerivedKind::Rendition(_)) {
            return Err("derived: no rendition is made on use".to_owned());
        }
        Ok(Self { parent, kind, on_use })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::index::ClockPiece;

    fn of(scale: &str) -> Derived {
        Derived::at_speed(TitleId([1; 16]), scale.parse().unwrap())
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
    fn derived_manifest_has_either_scale_or_rendition() {
        let body = |kind: &str| format!("{{\"parent\":\"{}\"{kind}}}", "01".repeat(16));
        let read =
            |kind: &str| serde_json::from_str::<Derived>(&body(kind)).map_err(|error| error.to_string());
        for (kind, name) in [
            (r#","scale":"-16""#, "film@-16"),
            (r#","scale":"4","on_use":true"#, "film@4"),
            (r#","rendition":"720p""#, "film@720p"),
        ] {
            let derived = read(kind).unwrap();
            assert_eq!(serde_json::to_string(&derived).unwrap(), body(kind));
            assert_eq!(derived.name("film"), name);
            assert!(derived.may_be_called(name));
        }
        assert_eq!(read(r#","rendition":"720p""#).unwrap().scale(), Scale::NORMAL);
        for wrong in [
            "",
            r#","scale":"4","rendition":"720p""#,
            r#","scale":"99""#,
            r#","rendition":"4""#,
            r#","rendition":"720p","on_use":true"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
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
            let derived = Derived::at_speed(TitleId([1; 16]), scale);
            let whole = MediaTicks(duration);
            let shown = MediaTicks((duration as f64 * part) as u64);
            let own = derived.own_time(shown, whole);
            prop_assert!(own <= derived.duration(whole));
            // One of its own ticks is this many of the parent's.
            let step = u64::from(scale.speed_hundredths()).div_ceil(100) + 1;
            prop_assert!(derived.parent_time(own, whole).0.abs_diff(shown.0) <= step);
            let own = MediaTicks((derived.duration(whole).0 as f64 * part) as u64);
            let back = derived.own_time(derived.parent_time(own, whole), whole);
            prop_assert!(back.0.abs_diff(own.0) <= 100u64.div_ceil(u64::from(scale.speed_hundredths())) + 1);
        }
    }
}
