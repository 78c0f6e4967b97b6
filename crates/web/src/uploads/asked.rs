//! Properties of the bytes that a request brings, as it states them: `Content-Length`,
//! `Content-Range` (RFC 9110 section 14.5).

use millrace_core::ids::TitleId;
use millrace_store::volume::slug;

use crate::answer::Answer;
use crate::request::Fields;
use crate::route;

/// The bytes that a request brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UploadRange {
    /// The place of the first one.
    pub(crate) from: u64,
    /// Their number, if stated.
    pub(crate) count: Option<u64>,
    /// How long the whole is, if that is known.
    pub(crate) total: Option<u64>,
    /// Whether the whole ends where the body does.
    pub(crate) is_rest: bool,
    /// Name of the file at its source.
    pub(crate) file_name: Option<String>,
    /// The title that it replaces. Its handler knows.
    pub(crate) replaces: Option<TitleId>,
}

impl UploadRange {
    /// Reads it; `length` is the value of `Content-Length`.
    pub(crate) fn read(fields: &Fields, length: Option<u64>) -> Result<Self, Answer> {
        let file_name = fields.content_disposition.as_deref().and_then(file_name);
        let Some(range) = &fields.content_range else {
            return Ok(Self {
                from: 0,
                count: length,
                total: length,
                is_rest: true,
                file_name,
                replaces: None,
            });
        };
        let bad = || Answer::error(400, "Content-Range: write bytes FIRST-LAST/LENGTH");
        let (first, last, total) = content_range(range).ok_or_else(bad)?;
        let count = last - first + 1;
        if length.is_some_and(|length| length != count) {
            return Err(Answer::error(400, "Content-Length and Content-Range do not agree"));
        }
        Ok(Self { from: first, count: Some(count), total, is_rest: false, file_name, replaces: None })
    }

    /// Where the upload must be when the body has come.
    pub(crate) fn end(&self) -> Option<u64> {
        self.count.and_then(|count| self.from.checked_add(count))
    }
}

/// First and last byte and the length of the whole, which need not be known.
fn content_range(value: &str) -> Option<(u64, u64, Option<u64>)> {
    let (unit, rest) = value.split_once(' ')?;
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    let is_range = unit.eq_ignore_ascii_case("bytes")
        && first <= last
        && last < u64::MAX
        && total.is_none_or(|total| last < total);
    is_range.then_some((first, last, total))
}

/// The file name of a Content-Disposition field (RFC 6266): `filename*=UTF-8''...` (RFC 8187), else
/// `filename="..."`. One that is not understood counts as absent, because only the display name
/// depends on it.
fn file_name(field: &str) -> Option<String> {
    let plain = parameter(field, "filename").map(|value| value.replace("\\\"", "\"").replace("\\\\", "\\"));
    let extended = parameter(field, "filename*").and_then(|value| {
        let (charset, rest) = value.split_once('\'')?;
        let (_language, encoded) = rest.split_once('\'')?;
        let decoded = route::decoded(encoded).filter(|_| charset.eq_ignore_ascii_case("utf-8"))?;
        Some(decoded.into_owned())
    });
    extended.or(plain).filter(|name| !name.is_empty())
}

/// The value of a parameter, without its quotation marks.
fn parameter<'a>(field: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = field.split_once(';')?.1;
    loop {
        let (found, behind) = rest.split_once('=')?;
        let (value, after) = match behind.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let end = closing_quote(quoted)?;
                (&quoted[..end], quoted[end + 1..].trim_start())
            }
            None => {
                let end = behind.find(';').unwrap_or(behind.len());
                (behind[..end].trim(), &behind[end..])
            }
        };
        if found.trim().eq_ignore_ascii_case(name) {
            return Some(value);
        }
        rest = after.strip_prefix(';')?;
    }
}

/// Where a quoted string ends; a backslash quotes the character behind it (RFC 9110 section 5.6.4).
fn closing_quote(quoted: &str) -> Option<usize> {
    let mut is_escaped = false;
    quoted.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Checks the name requested for a title: it must be usable as written, so that the uploader knows
/// where the title will be.
pub(crate) fn check_name(name: &str) -> Result<(), Answer> {
    // The store names a title by the slug of the requested name, and has its own rules for slugs.
    if slug(name) == name {
        return Ok(());
    }
    let what = "the name cannot be that of a title: a title's name has a-z, 0-9, -, _ and ., begins and ends with a letter or digit, and has no two dashes in a row";
    let stem = name.strip_suffix(".ts").unwrap_or(name);
    Err(Answer::error(400, &format!("{what}; choose another, for example {}", slug(stem))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(range: Option<&str>, length: Option<u64>) -> Result<UploadRange, u16> {
        let fields = Fields { content_range: range.map(str::to_owned), ..Fields::default() };
        UploadRange::read(&fields, length).map_err(|answer| answer.status)
    }

    #[test]
    fn content_range_parse_accepts_valid_and_rejects_invalid() {
        let whole = |total| UploadRange {
            from: 0,
            count: total,
            total,
            is_rest: true,
            file_name: None,
            replaces: None,
        };
        assert_eq!(read(None, Some(9)), Ok(whole(Some(9))));
        assert_eq!(read(None, None), Ok(whole(None)));
        let part = |from, count, total| UploadRange {
            from,
            count: Some(count),
            total,
            is_rest: false,
            file_name: None,
            replaces: None,
        };
        assert_eq!(read(Some("bytes 0-8/9"), Some(9)), Ok(part(0, 9, Some(9))));
        assert_eq!(read(Some("bytes 5-8/9"), Some(4)), Ok(part(5, 4, Some(9))));
        assert_eq!(read(Some("Bytes 5-8/*"), None), Ok(part(5, 4, None)));
        for range in [
            "",
            "bytes",
            "bytes 5-8",
            "bytes 8-5/9",
            "bytes 5-9/9",
            "bytes */9",
            "bytes -8/9",
            "bytes 5-/9",
            "bytes +5-8/9",
            "items 5-8/9",
            "bytes 5-8/9, 9-9/9",
            "bytes 5-18446744073709551615/*",
            "bytes 5-8/99999999999999999999",
            "bytes=5-8/9",
        ] {
            assert_eq!(read(Some(range), None), Err(400), "{range}");
        }
        assert_eq!(read(Some("bytes 5-8/9"), Some(5)), Err(400));
    }

    #[test]
    fn file_name_of_content_disposition() {
        for (field, expected) in [
            ("attachment; filename=film.mkv", Some("film.mkv")),
            ("attachment; filename=\"Ein Film; Teil 1.mkv\"", Some("Ein Film; Teil 1.mkv")),
            ("attachment; filename=\"a \\\"b\\\".ts\"; x=1", Some("a \"b\".ts")),
            ("attachment; filename=\"x.ts\"; filename*=UTF-8''D%C3%B6rte%201.ts", Some("D\u{f6}rte 1.ts")),
            ("attachment; FileName*=utf-8'de'%E5%B1%B1.mp4", Some("\u{5c71}.mp4")),
            ("attachment; filename=\"x.ts\"; filename*=UTF-8''%ff", Some("x.ts")),
            ("attachment; filename*=latin1''a.ts", None),
            ("attachment; filename=\"open", None),
            ("attachment; filename=", None),
            ("attachment", None),
            ("", None),
        ] {
            assert_eq!(file_name(field).as_deref(), expected, "{field}");
        }
    }

    #[test]
    fn check_name_accepts_only_canonical_names() {
        for name in ["film", "a.b-c_1", "film.2"] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in [
            "Film",
            "film@540p",
            ".film",
            "",
            "-x",
            "x-",
            "_x",
            "x.",
            "a--b",
            "a b",
            "0123456789abcdef0123456789abcdef",
        ] {
            assert_eq!(check_name(name).unwrap_err().status, 400, "{name}");
        }
    }

    proptest! {
        #[test]
        fn content_range_of_any_text_is_valid_or_refused(text in "(bytes )?[0-9*/ -]{0,24}", length in proptest::option::of(0u64..50)) {
            if let Ok(asked) = read(Some(&text), length) {
                let end = asked.end().unwrap();
                prop_assert!(end > asked.from && asked.total.is_none_or(|total| end <= total), "{asked:?}");
                prop_assert!(length.is_none_or(|length| asked.count == Some(length)));
            }
        }
    }
}
