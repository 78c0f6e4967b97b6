//! The date of responses, and dates in header fields.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now, for the `Date` of a response.
pub(crate) fn now() -> String {
    httpdate::fmt_http_date(SystemTime::now())
}

/// Seconds since 1970 as a header field has them; years beyond 9999 cannot be written.
pub(crate) fn of_unix_s(seconds: u64) -> String {
    const LAST_SECOND: u64 = 253_402_300_799;
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND)))
}

/// Milliseconds since 1970 as ISO 8601 has them, in UTC.
pub(crate) fn iso_ms(unix_ms: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // All parts have fixed places: `Tue, 29 Feb 2000 23:59:59 GMT`.
    let text = of_unix_s(unix_ms / 1000);
    let (day, month, year, time) = (&text[5..7], &text[8..11], &text[12..16], &text[17..25]);
    let month = MONTHS.iter().position(|name| *name == month).map_or(0, |at| at + 1);
    format!("{year}-{month:02}-{day}T{time}.{:03}Z", unix_ms % 1000)
}

/// A date in a header field, in seconds since 1970.
pub(crate) fn to_unix_s(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iso_ms_of_moments_is_their_date() {
        assert_eq!(iso_ms(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(iso_ms(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(iso_ms(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(iso_ms(4_107_542_400_001), "2100-03-01T00:00:00.001Z");
    }

    #[test]
    fn dates_go_both_ways() {
        let text = of_unix_s(784_111_777);
        assert_eq!(text, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(to_unix_s(&text), Some(784_111_777));
        assert_eq!(to_unix_s("Sunday, 06-Nov-94 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(to_unix_s("yesterday"), None);
        assert!(of_unix_s(u64::MAX).ends_with("9999 23:59:59 GMT"));
        assert!(to_unix_s(&now()).is_some());
    }
}
