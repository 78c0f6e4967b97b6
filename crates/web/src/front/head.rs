//! The head of a request: whether it is whole, whether it can be read in one way only, and who answers it.
//!
//! A proxy in front and this parser must agree where each request ends, else one viewer's request can be made part of another's (request
//! smuggling). So whatever RFC 9112 lets a recipient be lenient about is refused here: lines that end in a bare LF, folded lines, space before a colon,
//! `Content-Length` in two versions or beside `Transfer-Encoding`.

use millrace_core::limits::web::{MAX_REQUEST_HEAD_BYTES, MAX_TARGET_BYTES};

use crate::limits::MAX_REQUEST_HEADERS;
use crate::request::{Fields, Method, Request};
use crate::route;

/// Beginning of an HTTP/2 connection (RFC 9113 section 3.4).
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Beginning of a connection, parsed.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// It is not whole yet.
    More,
    /// A request for the front, and the length of its head.
    Front(Box<FrontRequest>, usize),
    /// A request for hyper, in HTTP/1.
    Other(OtherRequest),
    /// HTTP/2.
    Http2,
    /// RTSP tunnelled over HTTP; this is one of its two connections.
    Tunnel(Box<Fields>),
    /// Nothing that is answered otherwise than by this status; the connection ends.
    Bad(u16, &'static str),
}

/// A request for the front.
#[derive(Debug)]
pub(crate) struct FrontRequest {
    pub(crate) request: Request,
    /// Whether the viewer can use the connection further.
    pub(crate) keeps: bool,
    /// Whether it must be informed of this (HTTP/1.0).
    pub(crate) is_old: bool,
}

/// A request for hyper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherRequest {
    /// Length of its head.
    pub(crate) length: usize,
    /// Whether the head is the whole request. Otherwise the connection ends with it: only hyper may
    /// determine the length of a body.
    pub(crate) is_whole: bool,
    /// Whether the connection can be used further.
    pub(crate) keeps: bool,
}

/// Parses the bytes received. The first `seen` of them were examined before, without finding an
/// end.
pub(crate) fn parse(bytes: &[u8], seen: usize) -> Parsed {
    // An empty line before a request (RFC 9112 section 2.2): some clients send one behind a body.
    let start = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let head = &bytes[start..];
    if !head.is_empty() && H2_PREFACE.starts_with(&head[..head.len().min(H2_PREFACE.len())]) {
        // Behind an empty line it is none, and what follows cannot be a request either.
        return match (head.len() < H2_PREFACE.len(), start) {
            (true, _) => Parsed::More,
            (false, 0) => Parsed::Http2,
            (false, _) => Parsed::Bad(400, "not a request"),
        };
    }
    match end_of_head(head, seen.saturating_sub(start)) {
        Ok(Some(end)) if end <= MAX_REQUEST_HEAD_BYTES => request(&head[..end], start + end),
        Ok(None) if head.len() < MAX_REQUEST_HEAD_BYTES => Parsed::More,
        Ok(_) => match head.contains(&b'\n') {
            true => Parsed::Bad(431, "the head of the request is too long"),
            false => Parsed::Bad(414, "the address is too long"),
        },
        Err(why) => Parsed::Bad(400, why),
    }
}

/// Where the head ends, with its empty line.
fn end_of_head(head: &[u8], seen: usize) -> Result<Option<usize>, &'static str> {
    let mut at = seen.saturating_sub(3);
    while let Some(found) = head[at..].iter().position(|&b| b == b'\n') {
        let end = at + found + 1;
        if !head[..end].ends_with(b"\r\n") {
            return Err("a line ends in LF without CR");
        }
        if end >= 4 && head[..end].ends_with(b"\r\n\r\n") {
            return Ok(Some(end));
        }
        at = end;
    }
    Ok(None)
}

/// Reads a whole head.
fn request(head: &[u8], length: usize) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_REQUEST_HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(head) {
        Ok(httparse::Status::Complete(end)) if end == head.len() => {}
        Ok(_) => return Parsed::Bad(400, "not a request"),
        Err(httparse::Error::TooManyHeaders) => return Parsed::Bad(431, "too many header lines"),
        Err(httparse::Error::Version) => {
            return Parsed::Bad(505, "HTTP/1.0, HTTP/1.1 and HTTP/2 are understood");
        }
        Err(_) => return Parsed::Bad(400, "not a request"),
    }
    let (Some(method), Some(target), Some(version)) = (parsed.method, parsed.path, parsed.version) else {
        return Parsed::Bad(400, "not a request");
    };
    if target.len() > MAX_TARGET_BYTES {
        return Parsed::Bad(414, "the address is too long");
    }
    let has_cookie = parsed.headers.iter().any(|field| field.name.eq_ignore_ascii_case("x-sessioncookie"));
    if has_cookie && matches!(method, "GET" | "POST") {
        let mut fields = Fields::default();
        parsed.headers.iter().for_each(|field| fields.note(field.name, field.value));
        return Parsed::Tunnel(Box::new(fields));
    }
    let message = match MessageFraming::read(parsed.headers, version == 0) {
        Ok(message) => message,
        Err(why) => return Parsed::Bad(400, why),
    };
    let is_whole = !message.has_body && !message.upgrades && method != "CONNECT";
    let other = Parsed::Other(OtherRequest { length, is_whole, keeps: message.keeps && is_whole });
    let Some((path, query)) = path_of(target) else { return other };
    let is_front = route::find(path).is_some_and(|found| found.route.is_front);
    let method = Method::of(method);
    let is_read_here = matches!(method, Method::Get | Method::Head | Method::Options);
    if !is_front || !is_read_here || message.has_body {
        return other;
    }
    let request =
        Request { method, path: path.to_owned(), query: query.map(str::to_owned), fields: message.fields };
    Parsed::Front(Box::new(FrontRequest { request, keeps: message.keeps, is_old: version == 0 }), length)
}

/// The path of a target in origin form or absolute form (RFC 9112 section 3.2), and its query.
fn path_of(target: &str) -> Option<(&str, Option<&str>)> {
    let path = match target.starts_with('/') {
        true => target,
        false => {
            let (scheme, rest) = target.split_once("://")?;
            if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
                return None;
            }
            &rest[rest.find('/')?..]
        }
    };
    Some(match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    })
}

/// Properties of the message itself, from its header lines.
struct MessageFraming {
    fields: Fields,
    has_body: bool,
    /// Another protocol is offered for what follows.
    upgrades: bool,
    keeps: bool,
}

impl MessageFraming {
    fn read(headers: &[httparse::Header<'_>], is_old: bool) -> Result<Self, &'static str> {
        let mut fields = Fields::default();
        let (mut hosts, mut length, mut is_coded) = (0, None, false);
        let (mut closes, mut keeps, mut upgrades) = (false, false, false);
        for header in headers {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("host") {
                hosts += 1;
                fields.note(header.name, header.value);
            } else if is("transfer-encoding") {
                is_coded = true;
            } else if is("content-length") {
                if length.replace(digits(header.value).ok_or("Content-Length is not a number")?).is_some() {
                    return Err("Content-Length comes twice");
                }
            } else if is("upgrade") {
                upgrades = true;
            } else if is("connection") {
                let has = |option: &[u8]| {
                    header.value.split(|&b| b == b',').any(|o| o.trim_ascii().eq_ignore_ascii_case(option))
                };
                closes |= has(b"close");
                keeps |= has(b"keep-alive");
            } else {
                fields.note(header.name, header.value);
            }
        }
        match () {
            () if is_coded && length.is_some() => Err("both Content-Length and Transfer-Encoding"),
            () if is_coded && is_old => Err("Transfer-Encoding in HTTP/1.0"),
            () if hosts > 1 => Err("Host comes twice"),
            () if hosts == 0 && !is_old => Err("no Host"),
            () => Ok(Self {
                fields,
                has_body: is_coded || length.is_some_and(|length| length > 0),
                upgrades,
                keeps: !closes && (keeps || !is_old),
            }),
        }
    }
}

/// A length in digits (RFC 9110 section 8.6).
fn digits(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
