//! Text for HTML and for people.

use std::fmt::Write;

/// Text as it may stand between tags and in attributes. Characters that XML does not allow become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A figure for a cell: a dash when there is none.
pub(super) fn figure(value: f64) -> String {
    if value.is_finite() { group(&crate::frame::number(value)) } else { "–".into() }
}

/// Thousands apart from five digits on: 12345.6 becomes 12,345.6.
fn group(number: &str) -> String {
    let (sign, rest) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (whole, behind) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
    if whole.len() < 5 || !whole.bytes().all(|b| b.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut out = String::from(sign);
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + behind
}

/// Name and unit of a column or axis.
pub(super) fn with_unit(name: &str, unit: &str) -> String {
    match (name, unit) {
        (name, "") => name.to_owned(),
        ("", unit) => unit.to_owned(),
        (name, unit) => format!("{name}, {unit}"),
    }
}

/// `2026-07-04 12:34 UTC` of seconds since 1970.
pub fn utc_date(unix_s: u64) -> String {
    let (days, second) = ((unix_s / 86_400) as i64, unix_s % 86_400);
    // Years that begin in March: the leap day is then the last one. 719,468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(out, "{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3_600, second % 3_600 / 60);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_replaces_html_special_characters() {
        assert_eq!(
            escape("<script>a('b' && \"c\")</script>"),
            "&lt;script&gt;a(&#39;b&#39; &amp;&amp; &quot;c&quot;)&lt;/script&gt;"
        );
        assert_eq!(escape("a\u{0}b\u{1b}[1mé\n"), "a\u{fffd}b\u{fffd}[1mé\n");
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(figure(1234.0), "1234");
        assert_eq!(figure(12345.6), "12,345.6");
        assert_eq!(figure(-1234567.0), "-1,234,567");
        assert_eq!(figure(0.5), "0.500");
        assert_eq!(figure(f64::NAN), "–");
        assert_eq!(figure(f64::INFINITY), "–");
    }

    #[test]
    fn dates() {
        assert_eq!(utc_date(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc_date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc_date(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(utc_date(1_767_225_600), "2026-01-01 00:00 UTC");
    }
}
