//! Whether a request's conditions hold (RFC 9110 section 13): data that a viewer already has need
//! not be sent again, and a part of one version must not be joined to a part of another.

use crate::answer::{Answer, Body};
use crate::date;
use crate::request::{Fields, Method, Request};

/// Identifies one version of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// A strong entity tag, with its quotes.
    pub(crate) tag: String,
    /// When it was made, seconds since 1970, where that is known.
    pub(crate) made_unix_s: Option<u64>,
}

/// Result of evaluating the preconditions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreconditionResult {
    /// It is answered.
    Go,
    /// 304: the viewer has this version.
    NotModified,
    /// 412: the viewer wanted another one.
    Failed,
}

/// Judges the conditions in the order of RFC 9110 section 13.2.2.
pub(crate) fn judge(fields: &Fields, method: Method, version: &Version) -> PreconditionResult {
    let made = version.made_unix_s;
    let since = |field: &Option<String>| field.as_deref().and_then(date::to_unix_s).zip(made);
    if let Some(wanted) = &fields.if_match {
        if !has_tag(wanted, &version.tag, false) {
            return PreconditionResult::Failed;
        }
    } else if since(&fields.if_unmodified_since).is_some_and(|(date, made)| made > date) {
        return PreconditionResult::Failed;
    }
    let has_it = match &fields.if_none_match {
        Some(had) => has_tag(had, &version.tag, true),
        None => since(&fields.if_modified_since).is_some_and(|(date, made)| made <= date),
    };
    match (has_it, method) {
        (false, _) => PreconditionResult::Go,
        (true, Method::Get | Method::Head) => PreconditionResult::NotModified,
        (true, _) => PreconditionResult::Failed,
    }
}

/// Returns the whole resource with this tag, unless the viewer has it already. It may change at any
/// time, so clients must revalidate.
pub(crate) fn tagged(request: &Request, tag: String, answer: impl FnOnce() -> Answer) -> Answer {
    let version = Version { tag, made_unix_s: None };
    let answer = match judge(&request.fields, request.method, &version) {
        PreconditionResult::Go => answer(),
        PreconditionResult::NotModified => Answer { status: 304, headers: Vec::new(), body: Body::None },
        PreconditionResult::Failed => Answer::error(412, "there is another version than was asked for"),
    };
    answer.with("ETag", version.tag).with("Cache-Control", "no-cache")
}

/// Whether the range counts: without `If-Range`, or if that names this version (strongly, section 13.1.5).
pub(crate) fn range_counts(fields: &Fields, version: &Version) -> bool {
    match fields.if_range.as_deref() {
        None => true,
        Some(tag) if tag.starts_with('"') => tag == version.tag,
        Some(date) => version.made_unix_s.is_some_and(|made| date::of_unix_s(made) == date),
    }
}

/// Whether a list of entity tags has this one, or is `*`.
pub(crate) fn has_tag(list: &str, tag: &str, may_be_weak: bool) -> bool {
    // No tag of ours has a comma in it, so that a foreign one that has may be cut.
    list.split(',').map(str::trim).any(|item| {
        let item = if may_be_weak { item.strip_prefix("W/").unwrap_or(item) } else { item };
        item == "*" || item == tag
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version() -> Version {
        Version { tag: "\"abc\"".to_owned(), made_unix_s: Some(784_111_777) }
    }

    fn fields(lines: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::default();
        lines.iter().for_each(|(name, value)| fields.note(name, value.as_bytes()));
        fields
    }

    #[test]
    fn conditions_in_their_order() {
        const MADE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
        use PreconditionResult::{Failed, Go, NotModified};
        for (lines, expected) in [
            (&[][..], Go),
            (&[("if-none-match", "\"abc\"")], NotModified),
            (&[("if-none-match", "W/\"abc\"")], NotModified),
            (&[("if-none-match", "\"x\", \"abc\"")], NotModified),
            (&[("if-none-match", "*")], NotModified),
            (&[("if-none-match", "\"x\"")], Go),
            (&[("if-none-match", "abc")], Go),
            (&[("if-modified-since", MADE)], NotModified),
            (&[("if-modified-since", BEFORE)], Go),
            (&[("if-modified-since", "a while ago")], Go),
            // The tag is more precise than the date.
            (&[("if-none-match", "\"x\""), ("if-modified-since", MADE)], Go),
            (&[("if-match", "\"x\"")], Failed),
            (&[("if-match", "W/\"abc\"")], Failed),
            (&[("if-match", "\"abc\"")], Go),
            (&[("if-match", "*")], Go),
            (&[("if-unmodified-since", BEFORE)], Failed),
            (&[("if-unmodified-since", MADE)], Go),
            (&[("if-match", "\"abc\""), ("if-none-match", "\"abc\"")], NotModified),
        ] {
            assert_eq!(judge(&fields(lines), Method::Get, &version()), expected, "{lines:?}");
        }
    }

    #[test]
    fn range_counts_only_if_version_matches_if_range() {
        for (value, counts) in [
            ("\"abc\"", true),
            ("W/\"abc\"", false),
            ("\"abd\"", false),
            ("Sun, 06 Nov 1994 08:49:37 GMT", true),
            ("Sun, 06 Nov 1994 08:49:38 GMT", false),
            ("", false),
        ] {
            assert_eq!(range_counts(&fields(&[("if-range", value)]), &version()), counts, "{value}");
        }
        assert!(range_counts(&fields(&[]), &version()));
    }
}
