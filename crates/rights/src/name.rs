//! Names of users, and patterns that titles fit.

use crate::limits::{MAX_PATTERN_BYTES, MAX_USER_NAME_BYTES};

/// An error in a name or a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Of a user, or of a group.
    #[error(
        "a name has 1 to {MAX_USER_NAME_BYTES} characters of a-z, A-Z, 0-9 and -_.+@, and does not begin with @"
    )]
    Name,
    /// Of titles.
    #[error(
        "a pattern has 1 to {MAX_PATTERN_BYTES} characters of titles' names (a-z, A-Z, 0-9 and -_.@), * and ?, behind live/ for live titles"
    )]
    Pattern,
}

/// Checks the name of a user or of a group: one that stands in a header, in a URL and on a command line as it is.
///
/// # Errors
/// [`NameError::Name`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+' | b'@');
    let is_name = !name.is_empty()
        && name.len() <= MAX_USER_NAME_BYTES
        && !name.starts_with('@')
        && name.bytes().all(is_allowed);
    if is_name { Ok(()) } else { Err(NameError::Name) }
}

/// Begins the names of live titles.
const LIVE: &str = "live/";

/// Checks a pattern of titles, in which `*` stands for any characters and `?` for one.
///
/// # Errors
/// [`NameError::Pattern`].
pub fn check_pattern(pattern: &str) -> Result<(), NameError> {
    let is_allowed =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@' | b'*' | b'?');
    let pattern = pattern.strip_prefix(LIVE).unwrap_or(pattern);
    let is_pattern = !pattern.is_empty()
        && pattern.len() <= MAX_PATTERN_BYTES
        && !pattern.starts_with('@')
        && pattern.bytes().all(is_allowed);
    if is_pattern { Ok(()) } else { Err(NameError::Pattern) }
}

/// Whether a title fits a pattern. A title that was made of another (`film@540p`) fits what that one fits.
pub fn fits(pattern: &str, title: &str) -> bool {
    matches(pattern.as_bytes(), title.as_bytes()) || matches(pattern.as_bytes(), base(title).as_bytes())
}

/// The title that a title was made of, or itself.
pub fn base(title: &str) -> &str {
    title.split('@').next().unwrap_or(title)
}

/// In time of at most the product of both lengths: only the last `*` is ever tried again.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut again = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((behind, from)) = again else { return false };
                again = Some((behind, from + 1));
                (p, t) = (behind, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_marks() {
        for (pattern, title, does) in [
            ("*", "film", true),
            ("*", "", true),
            ("film", "film", true),
            ("film", "film2", false),
            ("film", "fil", false),
            ("fil?", "film", true),
            ("fil?", "fil", false),
            ("kids-*", "kids-", true),
            ("kids-*", "kid", false),
            ("*-kids", "a-kids-b-kids", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("film", "film@540p", true),
            ("film@540p", "film@540p", true),
            ("film@540p", "film", false),
            ("film@540p", "film@720p", false),
            ("film", "filmx@540p", false),
        ] {
            assert_eq!(fits(pattern, title), does, "{pattern} {title}");
        }
        // Many stars take no time that matters.
        assert!(!fits(&"*a".repeat(100), &("a".repeat(199) + "b")));
    }

    #[test]
    fn names_go_through_headers_and_urls() {
        for name in ["anna", "a.b+c@example.org", "7"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in ["", "@anna", "a:b", "a b", "a\"b", "a/b", "\u{e4}", &"a".repeat(65)] {
            assert_eq!(check_name(name), Err(NameError::Name), "{name}");
        }
        for pattern in ["", "@kids", "a/b", "a b", "live/", "live/a/b"] {
            assert_eq!(check_pattern(pattern), Err(NameError::Pattern), "{pattern}");
        }
        assert_eq!(check_pattern("kids-*@?"), Ok(()));
        assert_eq!(check_pattern("live/*"), Ok(()));
    }
}
