//! A title as a file: `/titles/NAME.ts`, whole or one range of it.

use std::fmt::Display;
use std::ops::Range;

use millrace_core::limits::web::FAST_START_MS;
use millrace_store::volume::TitleInfo;

use crate::answer::{Answer, Body};
use crate::conditions::{self, PreconditionResult, Version};
use crate::date;
use crate::range::{self, RequestedRange};
use crate::request::{Method, Request};
use crate::site::{ALL_THAT_COMES, OrderedMedia};

/// Media type of a transport stream (RFC 3555 section 4.2.10).
pub(crate) const MPEG_TS: &str = "video/mp2t";

/// Digits of a title's BLAKE3 in tags and addresses: 128 bits, too many for a collision ever to
/// occur.
const TAG_DIGITS: usize = 32;

/// Returns the tag that distinguishes this content of the title from other content of the same
/// name. A recording is watched before its hash is known, and its addresses stay: it has its id, which no other content has.
pub(crate) fn content_tag(title: &TitleInfo) -> String {
    match title.began_unix_ms {
        Some(_) => title.id.to_string(),
        None => title.blake3.get(..TAG_DIGITS).unwrap_or(&title.blake3).to_owned(),
    }
}

/// Digits of the content's hash in addresses.
const VERSION_DIGITS: usize = 12;

/// Returns the version that distinguishes pieces of this content, made by these rules, from those
/// of other content of the same name. It is part of their addresses, because everything with an
/// address is kept for ever.
pub(crate) fn version_of(title: &TitleInfo, rules: impl Display) -> String {
    let tag = content_tag(title);
    format!("{rules}-{}", tag.get(..VERSION_DIGITS).unwrap_or(&tag))
}

/// Answers GET and HEAD.
pub(crate) fn answer(request: &Request, title: &TitleInfo) -> Answer {
    if title.is_growing() {
        return growing(title);
    }
    let version =
        Version { tag: format!("\"{}\"", content_tag(title)), made_unix_s: Some(title.added_unix_s) };
    let headers = vec![
        ("Content-Type", MPEG_TS.to_owned()),
        // The name may be given to another title: ask whether it is still this one.
        ("Cache-Control", "no-cache".to_owned()),
    ];
    ranged(request, &version, title.bytes, headers, |bytes| {
        let (title, before) = (title.name.clone(), Vec::new());
        Body::Media(OrderedMedia {
            title,
            bytes,
            before,
            ahead_ms: FAST_START_MS,
            quota: None,
            segment: None,
        })
    })
}

/// A recording that is still being made: from its beginning to its end, whenever that will be. There are no ranges of it.
fn growing(title: &TitleInfo) -> Answer {
    let body = Body::Media(OrderedMedia {
        title: title.name.clone(),
        bytes: ALL_THAT_COMES,
        before: Vec::new(),
        ahead_ms: FAST_START_MS,
        quota: None,
        segment: None,
    });
    let headers = vec![
        ("Content-Type", MPEG_TS.to_owned()),
        ("Accept-Ranges", "none".to_owned()),
        ("Cache-Control", "no-store".to_owned()),
    ];
    Answer { status: 200, headers, body }
}

/// The response with something of `length` bytes or a part of it, as the request has it; `body` gives bytes of it.
pub(crate) fn ranged(
    request: &Request,
    version: &Version,
    length: u64,
    mut headers: Vec<(&'static str, String)>,
    body: impl Fn(Range<u64>) -> Body,
) -> Answer {
    headers.push(("Accept-Ranges", "bytes".to_owned()));
    headers.push(("ETag", version.tag.clone()));
    headers.extend(version.made_unix_s.map(|made| ("Last-Modified", date::of_unix_s(made))));
    let answer = |status, body| Answer { status, headers, body };
    match conditions::judge(&request.fields, request.method, version) {
        PreconditionResult::NotModified => return answer(304, Body::None),
        PreconditionResult::Failed => {
            return Answer::error(412, "there is another version than was asked for");
        }
        PreconditionResult::Go => {}
    }
    let asked = request.fields.range.as_deref().filter(|_| {
        // RFC 9110 section 14.2: ranges are for GET.
        request.method == Method::Get && conditions::range_counts(&request.fields, version)
    });
    match asked.map_or(RequestedRange::Whole, |value| range::wanted(value, length)) {
        RequestedRange::Whole => answer(200, body(0..length)),
        RequestedRange::Part(part) => {
            let place = format!("bytes {}-{}/{length}", part.start, part.end - 1);
            answer(206, body(part)).with("Content-Range", place)
        }
        RequestedRange::Nowhere(why) => {
            Answer::error(416, why).with("Content-Range", format!("bytes */{length}"))
        }
    }
}
