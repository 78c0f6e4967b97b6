//! The name of a rendition of a title: the same media at another bit rate, such as `720p`.

use std::fmt;
use std::str::FromStr;

use crate::limits::MAX_RENDITION_NAME_BYTES;
use crate::scale::Scale;

/// A name of 1 to 16 lowercase letters, digits, `.` and `-` that is no [`Scale`]: both stand at the same place in names of titles.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RenditionName {
    /// With zeros behind it.
    bytes: [u8; MAX_RENDITION_NAME_BYTES],
}

impl RenditionName {
    /// As it was given.
    pub fn as_str(&self) -> &str {
        let text = std::str::from_utf8(&self.bytes).unwrap_or_default();
        text.trim_end_matches('\0')
    }
}

impl fmt::Display for RenditionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RenditionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RenditionName({})", self.as_str())
    }
}

/// A text that is no [`RenditionName`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenditionNameError {
    given: String,
}

impl fmt::Display for RenditionNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rendition: got \"{}\"; write 1 to {MAX_RENDITION_NAME_BYTES} of a-z, 0-9, \".\" and \"-\" that are not a playing speed, for \
             example 720p",
            self.given
        )
    }
}

impl std::error::Error for RenditionNameError {}

impl FromStr for RenditionName {
    type Err = RenditionNameError;

    fn from_str(text: &str) -> Result<Self, RenditionNameError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-');
        let mut bytes = [0; MAX_RENDITION_NAME_BYTES];
        match bytes.get_mut(..text.len()) {
            Some(start)
                if !text.is_empty() && text.bytes().all(allowed) && text.parse::<Scale>().is_err() =>
            {
                start.copy_from_slice(text.as_bytes());
                Ok(Self { bytes })
            }
            _ => Err(RenditionNameError { given: text.chars().take(60).collect() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rendition_name_like_speed_or_with_bad_character_is_rejected() {
        for text in
            ["", "4", "-16", "0.5", "32.00", "720P", "720 p", "a@b", "a/b", "ä", "12345678901234567", "a\0"]
        {
            let error = text.parse::<RenditionName>().unwrap_err().to_string();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
        for text in ["720p", "480", "a", "-", "hd-6.5m", "1234567890123456"] {
            assert_eq!(text.parse::<RenditionName>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn rendition_name_of_any_text_is_rejected_or_unchanged(text in ".{0,20}") {
            if let Ok(name) = text.parse::<RenditionName>() {
                prop_assert_eq!(name.as_str(), text);
            }
        }
    }
}
