//! The `Scale` and `Speed` headers (RFC 2326 sections 12.34 and 12.35, RFC 7826 sections 18.46 and
//! 18.50). A value out of range becomes the nearest one in range: "a non-supported value in a
//! request does not generate an error, it only forces the server to choose the closest value".

use millrace_core::scale::Scale;

use crate::service::Speed;

/// Why a header is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpeedsError {
    /// "Scale = 0 would be equal to pause and is not allowed" (RFC 7826 section 2.5.1)
    #[error("Scale is a number other than 0, below 0 for backwards")]
    Scale,
    /// "A speed value of zero is invalid" (RFC 7826 section 18.50)
    #[error("Speed is a number above 0, or the lowest and the highest with - between them")]
    Speed,
}

/// Thousandths of a number without sign and exponent, rounded; `None` if it is none.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && part.is_empty() || !are_digits(whole) || !are_digits(part) {
        return None;
    }
    // A value too large for a number is faster than any speed there is.
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u32>().unwrap_or(u32::MAX) };
    let digit = |place: usize| part.as_bytes().get(place).map_or(0, |byte| u64::from(byte - b'0'));
    let rounded = u64::from(digit(3) >= 5);
    Some(u64::from(whole) * 1_000 + digit(0) * 100 + digit(1) * 10 + digit(2) + rounded)
}

/// Reads the value of `Scale`.
///
/// # Errors
/// [`SpeedsError::Scale`].
pub fn parse_scale(value: &str) -> Result<Scale, SpeedsError> {
    let value = value.trim();
    let (is_reverse, digits) = match value.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, value.strip_prefix('+').unwrap_or(value)),
    };
    let asked = thousandths(digits).filter(|asked| *asked > 0).ok_or(SpeedsError::Scale)?;
    let (slowest, fastest) = (Scale::SLOWEST.unsigned_abs(), Scale::FASTEST.unsigned_abs());
    let hundredths = ((asked + 5) / 10).clamp(slowest.into(), fastest.into()) as i16;
    Scale::from_hundredths(if is_reverse { -hundredths } else { hundredths }).ok_or(SpeedsError::Scale)
}

/// Reads the value of `Speed`: of a range its upper bound, because a server "SHALL deliver at the highest possible speed within the range".
///
/// # Errors
/// [`SpeedsError::Speed`].
pub fn parse_speed(value: &str) -> Result<Speed, SpeedsError> {
    let number = |text: &str| thousandths(text.trim()).filter(|asked| *asked > 0).ok_or(SpeedsError::Speed);
    let Some((lower, upper)) = value.split_once('-') else { return Ok(Speed::nearest(number(value)?)) };
    let lower = number(lower)?;
    let upper = if upper.trim().is_empty() { lower } else { number(upper)? };
    if upper < lower { Err(SpeedsError::Speed) } else { Ok(Speed::nearest(upper)) }
}

/// Returns it in the form of a reply: `4.0`, `-0.5`.
pub fn format_scale(scale: Scale) -> String {
    with_decimals(scale.to_string())
}

/// Returns it in the form of a reply: `2.0`.
pub fn format_speed(speed: Speed) -> String {
    let permille = speed.permille();
    let text = format!("{}.{:03}", permille / 1_000, permille % 1_000);
    with_decimals(text.trim_end_matches('0').trim_end_matches('.').to_owned())
}

/// Some clients take a number without a point for no number.
fn with_decimals(number: String) -> String {
    if number.contains('.') { number } else { number + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_scale_and_speed_accept_formats_of_players() {
        // live555, GStreamer, RFC 2326.
        for (text, hundredths, said) in [
            ("4.000000", 400, "4.0"),
            ("-2.000000", -200, "-2.0"),
            ("-3.5", -350, "-3.5"),
            ("1", 100, "1.0"),
            (" 0.5 ", 50, "0.5"),
            ("+8", 800, "8.0"),
            ("2.", 200, "2.0"),
            (".75", 75, "0.75"),
            ("1.006", 101, "1.01"),
        ] {
            let scale = parse_scale(text).unwrap();
            assert_eq!((scale.hundredths(), format_scale(scale).as_str()), (hundredths, said), "{text}");
        }
        for (text, permille, said) in [
            ("2.5", 2_500, "2.5"),
            ("1.0-2.0", 2_000, "2.0"),
            ("1.0 - 2.125", 2_125, "2.125"),
            ("1.5-", 1_500, "1.5"),
            ("1", 1_000, "1.0"),
            ("2.0000000001", 2_000, "2.0"),
        ] {
            let speed = parse_speed(text).unwrap();
            assert_eq!((speed.permille(), format_speed(speed).as_str()), (permille, said), "{text}");
        }
    }

    #[test]
    fn parse_scale_and_speed_clamp_out_of_range_values() {
        let scale = |text| parse_scale(text).unwrap().hundredths();
        assert_eq!(["100", "-1000000000000", "0.01", "-0.2"].map(scale), [3_200, -3_200, 25, -25]);
        let speed = |text| parse_speed(text).unwrap().permille();
        assert_eq!(["100", "99999999999999999999", "0.01", "0.1-8"].map(speed), [4_000, 4_000, 250, 4_000]);
    }

    #[test]
    fn parse_scale_and_speed_reject_malformed_values() {
        for bad in ["", "0", "-0.0", "0.0001", "fast", "1e1", "--2", "1,5", "2x", "-", ".", "inf", "1.5.5"] {
            assert_eq!(parse_scale(bad), Err(SpeedsError::Scale), "{bad}");
        }
        for bad in ["", "0", "-2", "2-1", "0-1", "1-0", "x-2", "1-2-3", "-", "nan"] {
            assert_eq!(parse_speed(bad), Err(SpeedsError::Speed), "{bad}");
        }
    }
}
