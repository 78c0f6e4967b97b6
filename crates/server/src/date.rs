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
        assert_eq!(rfc1123(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT"); // 2100 has no 29 February
    }
}
