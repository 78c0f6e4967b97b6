//! Which bytes a request wants (RFC 9110 section 14).
//!
//! One range at a time: players ask for nothing else, and lists of ranges have been used to make
//! servers work for nothing. A list is refused with 416, so that the client learns of it, instead
//! of getting a whole title.

use std::ops::Range;

/// What of `len` bytes is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    /// Everything: nothing else was asked for, or in units that are not known here.
    Whole,
    /// These; not empty.
    Part(Range<u64>),
    /// Nothing that there is, or more than one range.
    Nowhere(&'static str),
}

/// Reads the value of `Range` for something of `len` bytes.
pub(crate) fn wanted(value: &str, len: u64) -> RequestedRange {
    let Some((unit, set)) = value.split_once('=') else { return RequestedRange::Whole };
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return RequestedRange::Whole;
    }
    if set.contains(',') {
        return RequestedRange::Nowhere("one range at a time");
    }
    let Some((first, last)) = set.trim().split_once('-') else {
        return RequestedRange::Nowhere("not a range: bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT");
    };
    let range = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => first..last.saturating_add(1).min(len),
        (Some(first), None) if last.is_empty() => first..len,
        (None, Some(count)) if first.is_empty() => len.saturating_sub(count)..len,
        _ => return RequestedRange::Nowhere("not a range: bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT"),
    };
    match range.is_empty() {
        true => RequestedRange::Nowhere("no such bytes"),
        false => RequestedRange::Part(range),
    }
}

/// Digits only; a number too large for anything is the largest.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn range_header_forms_select_part_whole_or_unsatisfiable() {
        for (value, expected) in [
            ("bytes=0-", Some(0..1000)),
            ("bytes=0-0", Some(0..1)),
            ("bytes=500-999", Some(500..1000)),
            ("bytes=500-5000", Some(500..1000)),
            ("bytes=999-", Some(999..1000)),
            ("bytes=-1", Some(999..1000)),
            ("bytes=-5000", Some(0..1000)),
            ("Bytes=7-99999999999999999999999", Some(7..1000)),
            ("bytes= 3-4 ", Some(3..5)),
        ] {
            assert_eq!(wanted(value, 1000), RequestedRange::Part(expected.unwrap()), "{value}");
        }
        for value in ["", "bytes", "seconds=1-2", "npt=0-", "none"] {
            assert_eq!(wanted(value, 1000), RequestedRange::Whole, "{value}");
        }
        for value in [
            "bytes=1000-",
            "bytes=1000-1001",
            "bytes=-0",
            "bytes=5-4",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=1",
            "bytes=+1-2",
            "bytes=0x1-2",
            "bytes=0-0,5-6",
            "bytes=0-,0-",
            "bytes=1-2-3",
            "bytes=--5",
        ] {
            assert!(matches!(wanted(value, 1000), RequestedRange::Nowhere(_)), "{value}");
        }
        assert!(matches!(wanted("bytes=0-", 0), RequestedRange::Nowhere(_)));
    }

    proptest! {
        /// For any request: the range returned lies within the existing bytes, and matches a plain
        /// reading of the two numbers.
        #[test]
        fn range_part_lies_within_existing_bytes(first in 0u64..2000, more in 0u64..2000, len in 0u64..1500) {
            let expected = (first..first + more + 1).start..(first + more + 1).min(len);
            match wanted(&format!("bytes={first}-{}", first + more), len) {
                RequestedRange::Part(part) => prop_assert_eq!(part, expected),
                other => prop_assert!(first >= len && matches!(other, RequestedRange::Nowhere(_))),
            }
        }

        #[test]
        fn anything_at_all(value in "(bytes)?=?[0-9,= -]{0,40}|\\PC{0,40}", len in any::<u64>()) {
            if let RequestedRange::Part(part) = wanted(&value, len) {
                prop_assert!(part.start < part.end && part.end <= len);
            }
        }
    }
}
