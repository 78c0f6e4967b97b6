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

/// A date in a header field, in seconds since 1970.
pub(crate) fn to_unix_s(text: &str) -> Option<u64> {
    let time = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

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
