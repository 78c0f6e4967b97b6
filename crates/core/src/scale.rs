//! How fast and in which direction the media of a title is shown: what RTSP calls Scale (RFC 2326 section 12.34).

use std::fmt;
use std::str::FromStr;

use crate::time::MediaTicks;

/// A playing speed in hundredths of the normal one: 400 is fast forward, -400 rewind, 50 slow motion. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scale(i16);

impl Scale {
    /// As the title was made.
    pub const NORMAL: Self = Self(100);
    /// The fastest, either way: few pictures a second are left to show of anything faster.
    pub const FASTEST: i16 = 3_200;
    /// The slowest.
    pub const SLOWEST: i16 = 25;

    /// `None` outside [`SLOWEST`](Self::SLOWEST) to [`FASTEST`](Self::FASTEST), in either direction.
    pub const fn from_hundredths(hundredths: i16) -> Option<Self> {
        let speed = hundredths.unsigned_abs();
        if Self::SLOWEST.unsigned_abs() <= speed && speed <= Self::FASTEST.unsigned_abs() {
            Some(Self(hundredths))
        } else {
            None
        }
    }

    /// In hundredths of the normal speed; negative: backwards.
    pub const fn hundredths(self) -> i16 {
        self.0
    }

    /// Without its direction, in hundredths of the normal speed.
    pub const fn speed_hundredths(self) -> u16 {
        self.0.unsigned_abs()
    }

    /// Whether it goes backwards.
    pub const fn is_reverse(self) -> bool {
        self.0 < 0
    }

    /// Whether it is as the title was made.
    pub const fn is_normal(self) -> bool {
        self.0 == Self::NORMAL.0
    }

    /// The time of a title of this duration that is shown at time `t` of one that shows it at this speed. Linear: from the beginning
    /// forwards, or from the end backwards; never beyond the other end.
    pub fn shown_time(self, t: MediaTicks, duration: MediaTicks) -> MediaTicks {
        let shown = self.speeded(t).min(duration);
        if self.is_reverse() { duration.since(shown) } else { shown }
    }

    /// The time of the title that shows it at which that time is shown: the inverse of [`Scale::shown_time`], rounded down to a tick. Times
    /// behind the end count as the end.
    pub fn own_time(self, shown: MediaTicks, duration: MediaTicks) -> MediaTicks {
        let shown = shown.min(duration);
        self.slowed(if self.is_reverse() { duration.since(shown) } else { shown })
    }

    /// Returns how much of a title is shown in this time, in either direction.
    pub fn speeded(self, time: MediaTicks) -> MediaTicks {
        let shown = u128::from(time.0) * u128::from(self.speed_hundredths()) / 100;
        MediaTicks(u64::try_from(shown).unwrap_or(u64::MAX))
    }

    /// Returns how long it takes to show this much of a title, rounded down to a tick.
    pub fn slowed(self, shown: MediaTicks) -> MediaTicks {
        let time = u128::from(shown.0) * 100 / u128::from(self.speed_hundredths());
        MediaTicks(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_reverse() { "-" } else { "" };
        let (whole, part) = (self.speed_hundredths() / 100, self.speed_hundredths() % 100);
        match part {
            0 => write!(f, "{sign}{whole}"),
            part if part.is_multiple_of(10) => write!(f, "{sign}{whole}.{}", part / 10),
            part => write!(f, "{sign}{whole}.{part:02}"),
        }
    }
}

/// A text that is no [`Scale`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleError {
    given: String,
}

impl fmt::Display for ScaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "speed: got \"{}\"; write a number from 0.25 to 32, or its negative for backwards, with at most two decimals",
            self.given
        )
    }
}

impl std::error::Error for ScaleError {}

impl FromStr for Scale {
    type Err = ScaleError;

    fn from_str(text: &str) -> Result<Self, ScaleError> {
        parse(text).ok_or_else(|| ScaleError { given: text.chars().take(60).collect() })
    }
}

fn parse(text: &str) -> Option<Scale> {
    let (is_reverse, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let part = part.trim_end_matches('0');
    if whole.is_empty() || whole.len() > 3 || part.len() > 2 || !are_digits(whole) || !are_digits(part) {
        return None;
    }
    let part: i16 = format!("{part:0<2}").parse().ok()?;
    let hundredths = whole.parse::<i16>().ok()?.checked_mul(100)?.checked_add(part)?;
    Scale::from_hundredths(if is_reverse { -hundredths } else { hundredths })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_parse_and_display_round_trip() {
        for (text, hundredths) in
            [("4", 400), ("-32", -3_200), ("0.5", 50), ("0.25", 25), ("-1", -100), ("1", 100)]
        {
            let scale: Scale = text.parse().unwrap();
            assert_eq!((scale.hundredths(), scale.to_string().as_str()), (hundredths, text));
        }
        assert_eq!("2.0".parse::<Scale>().unwrap().to_string(), "2");
        assert_eq!("1.250".parse::<Scale>().unwrap().hundredths(), 125);
    }

    #[test]
    fn scale_parse_of_invalid_speed_returns_error() {
        for text in
            ["", "0", "0.2", "33", "-33", "999", "+4", "4x", "1e1", "0.125", "--4", "-", ".5", "32768", "4 "]
        {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
        assert!("five".parse::<Scale>().unwrap_err().to_string().contains("\"five\""));
    }
}
