//! A script's text: the current position, and errors in it.

use std::fmt;

/// An error, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.what)
    }
}

/// A place in a text.
pub(super) struct Text<'a> {
    all: &'a str,
    at: usize,
}

impl<'a> Text<'a> {
    pub(super) fn new(all: &'a str) -> Self {
        Self { all, at: 0 }
    }

    pub(super) fn line(&self) -> usize {
        1 + self.all[..self.at].matches('\n').count()
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> Fault {
        Fault { line: self.line(), what: what.into() }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.all[self.at..]
    }

    /// Returns the next word, for people.
    fn ahead(&self) -> String {
        match self.rest().split_whitespace().next() {
            Some(word) => format!("'{}'", word.chars().take(30).collect::<String>()),
            None => "the end".into(),
        }
    }

    /// Skips white space and comments.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        loop {
            let rest = self.rest().trim_start();
            self.at = self.all.len() - rest.len();
            if rest.starts_with("//") || rest.starts_with('#') {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if rest.starts_with("/*") {
                self.at += rest.find("*/").ok_or_else(|| self.fault("a comment without an end"))? + 2;
            } else {
                return Ok(());
            }
        }
    }

    pub(super) fn is_at_end(&mut self) -> Result<bool, Fault> {
        self.skip()?;
        Ok(self.rest().is_empty())
    }

    /// Whether `mark` comes next; then it is behind us.
    pub(super) fn take(&mut self, mark: &str) -> bool {
        if self.skip().is_err() || !self.rest().starts_with(mark) {
            return false;
        }
        self.at += mark.len();
        true
    }

    pub(super) fn expect(&mut self, mark: &str) -> Result<(), Fault> {
        if self.take(mark) {
            return Ok(());
        }
        Err(self.fault(format!("'{mark}' is missing before {}", self.ahead())))
    }

    /// All characters from here on that `fits`; maybe none.
    pub(super) fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        if self.skip().is_err() {
            return "";
        }
        let rest = self.rest();
        let (taken, _) = rest.split_at(rest.find(|c| !fits(c)).unwrap_or(rest.len()));
        self.at += taken.len();
        taken
    }

    /// Everything up to `end`, which is behind us then.
    pub(super) fn take_until(&mut self, end: &str) -> Result<&'a str, Fault> {
        let rest = self.rest();
        let length = rest.find(end).ok_or_else(|| self.fault(format!("'{end}' is missing")))?;
        self.at += length + end.len();
        Ok(&rest[..length])
    }

    /// A name, maybe empty.
    pub(super) fn word(&mut self) -> &'a str {
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    pub(super) fn number(&mut self) -> Result<i64, Fault> {
        let is_negative = self.take("-");
        let digits = self.word();
        let number = match digits.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16),
            None => digits.parse(),
        };
        match number {
            Ok(number) => Ok(if is_negative { -number } else { number }),
            Err(_) => Err(self.fault(format!("a number is missing before {}", self.ahead()))),
        }
    }

    /// A number of a field of a header.
    pub(super) fn field<T: TryFrom<i64>>(&mut self) -> Result<T, Fault> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.fault(format!("{number} does not fit its field")))
    }

    /// Seconds with a fraction, in nanoseconds.
    pub(super) fn seconds(&mut self) -> Result<i64, Fault> {
        // Three dots are not of the number.
        self.skip()?;
        let rest = self.rest();
        let until = rest.find("...").unwrap_or(rest.len());
        let end = rest[..until].find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(until);
        let seconds: f64 = rest[..end]
            .parse()
            .map_err(|_| self.fault(format!("a time is missing before {}", self.ahead())))?;
        self.at += end;
        Ok((seconds * 1e9).round() as i64)
    }
}
