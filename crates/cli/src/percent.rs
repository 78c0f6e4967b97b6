//! Shares on the command line.

use std::fmt;
use std::str::FromStr;

/// A share from 0 to 100 per cent, written with its sign.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(pub f64);

impl Percent {
    /// The same in thousandths.
    pub fn permille(self) -> u32 {
        (self.0 * 10.0).round() as u32
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let number = number.filter(|number| (0.0..=100.0).contains(number));
        number.map(Self).ok_or_else(|| {
            format!("got \"{text}\"; write a number from 0 to 100 and the sign %, for example 10% or 0.1%")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_have_their_sign() {
        for (text, permille, shown) in [
            ("10%", 100, "10%"),
            (" 0.5 % ", 5, "0.5%"),
            ("0%", 0, "0%"),
            ("100%", 1000, "100%"),
            ("0.01%", 0, "0.01%"),
        ] {
            let percent: Percent = text.parse().unwrap();
            assert_eq!((percent.permille(), &*percent.to_string()), (permille, shown));
        }
        for text in ["10", "-1%", "101%", "%", "NaN%", "x%"] {
            let error = text.parse::<Percent>().unwrap_err();
            assert!(error.contains("from 0 to 100") && error.contains("0.1%"), "{error}");
        }
    }
}
