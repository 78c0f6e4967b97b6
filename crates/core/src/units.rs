//! Sizes, rates and durations as people write them. A number without its unit is refused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A bit rate in bits a second. Written `2Mb/s`, `500kb/s`, `10Gb/s`, `800b/s` (powers of 1000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

/// A length in bytes. Written `512MiB`, `64KiB`, `4GiB`, `1TiB` (powers of 1024), `2MB`, `4GB` (powers of 1000) or `188B`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteLen(pub u64);

/// A duration as people write it: `10ms`, `2.5s`, `250us`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HumanDuration(pub Duration);

/// A number of things, for people: `1 title`, `2 titles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64, pub &'static str);

/// A text that is not a quantity: reports the text given and the forms allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    given: String,
    what: &'static str,
    allowed: &'static str,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: got \"{}\"; write a number and a unit, one of: {}",
            self.what, self.given, self.allowed
        )
    }
}

impl std::error::Error for UnitError {}

fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let number: f64 = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim()))
}

fn parse(
    text: &str,
    what: &'static str,
    allowed: &'static str,
    scale_of: impl Fn(&str) -> Option<f64>,
) -> Result<f64, UnitError> {
    let error = || UnitError { given: text.chars().take(60).collect(), what, allowed };
    let (number, unit) = split(text).ok_or_else(error)?;
    let value = number * scale_of(unit).ok_or_else(error)?;
    if value.is_finite() && (0.0..9.0e18).contains(&value) { Ok(value) } else { Err(error()) }
}

impl FromStr for BitRate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let scale = |unit: &str| {
            let scale = match unit.strip_suffix("b/s").or_else(|| unit.strip_suffix("bit/s"))? {
                "" => 1.0,
                "k" => 1e3,
                "M" => 1e6,
                "G" => 1e9,
                _ => return None,
            };
            Some(scale)
        };
        parse(text, "bit rate", "b/s, kb/s, Mb/s, Gb/s", scale).map(|v| Self(v.round() as u64))
    }
}

impl FromStr for ByteLen {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let scale = |unit: &str| {
            Some(match unit {
                "B" => 1.0,
                "KiB" => 1024.0,
                "MiB" => 1048576.0,
                "GiB" => 1073741824.0,
                "TiB" => 1099511627776.0,
                "kB" => 1e3,
                "MB" => 1e6,
                "GB" => 1e9,
                "TB" => 1e12,
                _ => return None,
            })
        };
        parse(text, "size", "B, KiB, MiB, GiB, TiB, kB, MB, GB, TB", scale).map(|v| Self(v.round() as u64))
    }
}

impl FromStr for HumanDuration {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let scale = |unit: &str| {
            Some(match unit {
                "ns" => 1.0,
                "us" => 1e3,
                "ms" => 1e6,
                "s" => 1e9,
                "m" | "min" => 60e9,
                "h" => 3600e9,
                _ => return None,
            })
        };
        parse(text, "duration", "ns, us, ms, s, m, h", scale)
            .map(|ns| Self(Duration::from_nanos(ns.round() as u64)))
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, value: u64, base: f64, units: &[&str]) -> fmt::Result {
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= base && unit + 1 < units.len() {
        scaled /= base;
        unit += 1;
    }
    let text = format!("{scaled:.2}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    write!(f, "{text}{}", units[unit])
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["b/s", "kb/s", "Mb/s", "Gb/s"])
    }
}

impl fmt::Display for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count, what) = self;
        write!(f, "{count} {what}{}", if *count == 1 { "" } else { "s" })
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        scaled(f, ns, 1000.0, &["ns", "us", "ms", "s"])
    }
}

impl BitRate {
    /// Mean rate of `bytes` over `ns` nanoseconds; zero when `ns` is zero.
    pub fn of(bytes: u64, ns: u64) -> Self {
        if ns == 0 {
            return Self(0);
        }
        Self(u64::try_from(u128::from(bytes) * 8 * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_print_are_inverse() {
        for text in ["2Mb/s", "1.5kb/s", "800b/s", "10Gb/s"] {
            assert_eq!(text.parse::<BitRate>().unwrap().to_string(), text);
        }
        for text in ["512MiB", "188B", "1.5GiB", "64KiB"] {
            assert_eq!(text.parse::<ByteLen>().unwrap().to_string(), text);
        }
        let counted = [0, 1, 2].map(|count| Count(count, "title").to_string());
        assert_eq!(counted, ["0 titles", "1 title", "2 titles"]);
        for text in ["10ms", "2.5s", "250us"] {
            assert_eq!(text.parse::<HumanDuration>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn parse_number_without_unit_returns_error_with_remedy() {
        let error = "512".parse::<ByteLen>().unwrap_err().to_string();
        assert!(error.contains("512") && error.contains("MiB"), "{error}");
        assert!("10".parse::<HumanDuration>().is_err());
        assert!("-1s".parse::<HumanDuration>().is_err());
        assert!("1e400s".parse::<HumanDuration>().is_err());
        assert!("2Mbps".parse::<BitRate>().is_err());
        assert!("".parse::<BitRate>().is_err());
    }

    #[test]
    fn rate_of_bytes_over_time() {
        assert_eq!(BitRate::of(1_000_000, 1_000_000_000), BitRate(8_000_000));
        assert_eq!(BitRate::of(1, 0), BitRate(0));
    }
}
