//! Times of day as an operator writes them: every day, on days of the week, or on a date.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::{Date, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// A time of day, and the days that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DayTime {
    at: Time,
    days: Days,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Days {
    Every,
    Week(Vec<Weekday>),
    Once(Date),
}

/// Why texts are no time of day.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DayTimeError {
    /// The time of day.
    #[error("at \"{0}\": write a time of day, for example 20:15 or 20:15:30")]
    At(String),
    /// A day of the week.
    #[error("days \"{0}\": write mon, tue, wed, thu, fri, sat or sun")]
    Day(String),
    /// The date.
    #[error("date \"{0}\": write year, month and day, for example 2026-12-24")]
    Date(String),
    /// Both.
    #[error("write days or a date, not both")]
    DaysAndDate,
    /// The time zone.
    #[error("zone \"{0}\" is not known here; write one such as Europe/Berlin, and install tzdata")]
    Zone(String),
}

impl DayTime {
    /// `at` as `HH:MM` or `HH:MM:SS`, `days` as `mon` or `monday`, `date` as `2026-12-24`.
    ///
    /// # Errors
    /// [`DayTimeError`].
    pub fn new(at: String, days: Vec<String>, date: Option<String>) -> Result<Self, DayTimeError> {
        // Without a colon `2015` would be one, too.
        let time = at.contains(':').then(|| at.parse().ok()).flatten();
        let at = time.ok_or(DayTimeError::At(at))?;
        let days = match date {
            Some(_) if !days.is_empty() => return Err(DayTimeError::DaysAndDate),
            Some(date) => Days::Once(date.parse().map_err(|_| DayTimeError::Date(date))?),
            None if days.is_empty() => Days::Every,
            None => {
                let days = days.into_iter().map(|day| weekday(&day).ok_or(DayTimeError::Day(day)));
                Days::Week(days.collect::<Result<_, _>>()?)
            }
        };
        Ok(Self { at, days })
    }

    /// The first such time after `unix_ms` (milliseconds since 1970, UTC), in the same unit. A time that is left out when clocks go
    /// forward is that much later; of one that comes twice, the first counts.
    pub fn next_after(&self, unix_ms: u64, zone: &TimeZone) -> Option<u64> {
        let now = zoned(unix_ms, zone)?;
        u64::try_from(self.next(&now)?.timestamp().as_millisecond()).ok()
    }

    fn next(&self, now: &Zoned) -> Option<Zoned> {
        let start = |date: Date| date.to_datetime(self.at).to_zoned(now.time_zone().clone()).ok();
        if let Days::Once(date) = self.days {
            return start(date).filter(|start| start > now);
        }
        // Today's may be over, and a week later is the same day of the week.
        (0..=7_i64).find_map(|days| {
            let date = now.date().checked_add(days.days()).ok().filter(|date| self.is_on(*date))?;
            start(date).filter(|start| start > now)
        })
    }

    fn is_on(&self, date: Date) -> bool {
        match &self.days {
            Days::Every => true,
            Days::Week(days) => days.contains(&date.weekday()),
            Days::Once(once) => *once == date,
        }
    }

    /// Whether both are the same time on some day.
    pub fn meets(&self, other: &Self) -> bool {
        let is_same_day = match (&self.days, &other.days) {
            (Days::Every, _) | (_, Days::Every) => true,
            (Days::Week(days), Days::Week(others)) => days.iter().any(|day| others.contains(day)),
            (Days::Once(date), _) => other.is_on(*date),
            (_, Days::Once(date)) => self.is_on(*date),
        };
        self.at == other.at && is_same_day
    }
}

/// The zone of this name; without one, that of the machine.
///
/// # Errors
/// [`DayTimeError::Zone`].
pub fn time_zone(name: Option<String>) -> Result<TimeZone, DayTimeError> {
    match name {
        None => Ok(TimeZone::system()),
        Some(name) => TimeZone::get(&name).map_err(|_| DayTimeError::Zone(name)),
    }
}

/// Milliseconds since 1970 (UTC).
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 (UTC) as a local time.
pub fn zoned(unix_ms: u64, zone: &TimeZone) -> Option<Zoned> {
    let at = Timestamp::from_millisecond(i64::try_from(unix_ms).ok()?).ok()?;
    Some(at.to_zoned(zone.clone()))
}

/// `mon` or `monday`, in capitals or not.
fn weekday(text: &str) -> Option<Weekday> {
    const NAMES: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let text = text.to_ascii_lowercase();
    let place = NAMES.iter().position(|name| *name == text || name[..3] == text)?;
    Weekday::from_monday_zero_offset(i8::try_from(place).ok()?).ok()
}
