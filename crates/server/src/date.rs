//! Dates in texts: the fixed-length form of RFC 1123, which the `Date` header has (RFC 2326 section 12.18), and one for names.

/// Unix seconds as `Sat, 21 Nov 2026 22:09:00 GMT`.
pub fn rfc1123(unix_s: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"]; // 1 January 1970 was a Thursday
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, s) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month - 1],
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

/// Unix seconds as `2026-11-21 22:09 UTC`, for names.
pub fn utc_minute(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / 86_400);
    let (hour, minute) = (unix_s / 3600 % 24, unix_s / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// Milliseconds since 1970 as `20261121T220900.500Z`, the absolute time of RTSP (RFC 2326 section 3.7).
pub fn clock_ms(unix_ms: u64) -> String {
    // A year has four digits: this is the end of 9999.
    let unix_ms = unix_ms.min(253_402_300_799_999);
    let (unix_s, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (year, month, day) = civil(unix_s / 86_400);
    let (hour, minute, second) = (unix_s / 3600 % 24, unix_s / 60 % 60, unix_s % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{ms:03}Z")
}

/// Days from 1970 to a date of the years 0 to 9999; `None` if there is no such date.
pub fn days_to(year: u64, month: u64, day: u64) -> Option<i64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(is_leap),
        _ => return None,
    };
    if year > 9999 || !(1..=length).contains(&day) {
        return None;
    }
    // Counted as in `civil`, but from an era earlier: January of year 0 belongs to the year before.
    let (years, months) = if month > 2 { (year + 400, month - 3) } else { (year + 399, month + 9) };
    let leap_days = years / 4 - years / 100 + years / 400;
    let days = 365 * years + leap_days + (153 * months + 2) / 5 + day - 1;
    Some(days.cast_signed() - 146_097 - 719_468)
}

/// Days since 1970 to year, month 1..=12, day 1..=31 of the Gregorian calendar, by counting from 1 March of year 0:
/// there the leap day is the last of its year, and month lengths repeat every 153 days.
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468; // from 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153; // months from March
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(rfc1123(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(rfc1123(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT"); // the example of RFC 1123 dates in HTTP
        assert_eq!(rfc1123(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(rfc1123(1_795_298_940), "Sat, 21 Nov 2026 22:09:00 GMT");
        assert_eq!(utc_minute(1_795_298_940), "2026-11-21 22:09 UTC");
        assert_eq!(clock_ms(1_795_298_940_500), "20261121T220900.500Z");
        assert_eq!(rfc1123(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT"); // 2100 has no 29 February
    }

    #[test]
    fn days_to_dates_are_those_that_dates_are_made_of() {
        for days in 0..60_000 {
            let (year, month, day) = civil(days);
            assert_eq!(days_to(year, month as u64, day), Some(days.cast_signed()), "{year}-{month}-{day}");
        }
        assert_eq!(days_to(1969, 12, 31), Some(-1));
        assert_eq!(days_to(0, 3, 1), Some(-719_468));
        for (year, month, day) in [(2026, 2, 29), (2100, 2, 29), (2026, 13, 1), (2026, 0, 1), (2026, 4, 31)] {
            assert_eq!(days_to(year, month, day), None, "{year}-{month}-{day}");
        }
        assert_eq!((days_to(2026, 1, 0), days_to(10_000, 1, 1)), (None, None));
    }
}
