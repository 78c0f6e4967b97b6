//! The head of an HTTP/1.x response: the parts that a viewer needs, read with bounds.

use crate::limits::{MAX_HTTP_HEAD_BYTES, MAX_HTTP_HEADERS};

/// How the body that follows a head ends (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// After this many bytes.
    Bytes(u64),
    /// With the last chunk.
    Chunked,
    /// When the server closes the connection.
    UntilClose,
}

/// A response's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// How the body ends.
    pub body: BodyLength,
    /// Whether the connection can carry another request afterwards.
    pub keeps_alive: bool,
    /// `Location`.
    pub location: Option<String>,
    /// First byte and, if known, length of the whole, of `Content-Range`.
    pub content_range: Option<(u64, Option<u64>)>,
    /// Whether the server reports that it takes `Range`.
    pub accepts_ranges: bool,
}

/// Why a response cannot be read. The texts name kinds, so that failures can be counted by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpFault {
    /// More than [`MAX_HTTP_HEAD_BYTES`] or [`MAX_HTTP_HEADERS`].
    #[error("the response head is too long")]
    HeadTooLong,
    /// Not HTTP/1.x.
    #[error("the response is not HTTP/1")]
    NotHttp,
    /// Lengths that contradict each other, or are no numbers.
    #[error("the response head gives no usable length")]
    BadLength,
    /// A transfer coding other than chunked.
    #[error("the response has an unknown transfer coding")]
    BadCoding,
    /// The chunked coding is broken.
    #[error("the chunked body is malformed")]
    BadChunk,
    /// The connection closed before the body was whole.
    #[error("the body was cut short")]
    CutShort,
    /// The connection closed before the head was whole.
    #[error("the connection closed before a response")]
    NoResponse,
}

fn number(text: &str) -> Option<u64> {
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_digits.then(|| text.parse().ok()).flatten()
}

/// `bytes 100-199/1000`, `bytes 100-199/*`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first.trim())?, number(last.trim())?);
    (first <= last).then(|| (first, number(whole.trim())))
}

/// The length that all `Content-Length` values agree on.
fn agreed_length(before: Option<u64>, text: &str) -> Result<Option<u64>, HttpFault> {
    let mut agreed = before;
    for part in text.split(',') {
        let value = number(part.trim()).ok_or(HttpFault::BadLength)?;
        if agreed.is_some_and(|agreed| agreed != value) {
            return Err(HttpFault::BadLength);
        }
        agreed = Some(value);
    }
    Ok(agreed)
}

/// Whether a comma-separated list has `token`.
fn lists(text: &str, token: &str) -> bool {
    text.split(',').any(|part| part.trim().eq_ignore_ascii_case(token))
}

/// Reads the head at the front of `bytes` and returns it with its length; `None` if it is not
/// complete yet. Interim responses (status 1xx) are returned like any other, with an empty body.
///
/// # Errors
/// What makes it unreadable; the connection is of no use then.
pub fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, HttpFault> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HTTP_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let len = match response.parse(&bytes[..bytes.len().min(MAX_HTTP_HEAD_BYTES)]) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < MAX_HTTP_HEAD_BYTES => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err(HttpFault::HeadTooLong);
        }
        Err(_) => return Err(HttpFault::NotHttp),
    };
    let status = response.code.unwrap_or(0);
    let mut head = Head {
        status,
        body: BodyLength::UntilClose,
        keeps_alive: response.version == Some(1),
        location: None,
        content_range: None,
        accepts_ranges: status == 206,
    };
    let (mut length, mut coding) = (None, None);
    for header in response.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let text = String::from_utf8_lossy(header.value);
        if is("content-length") {
            length = agreed_length(length, &text)?;
        } else if is("transfer-encoding") {
            // One coding is enough for a title: gzip on the way would be a fault of the server's.
            coding = Some(coding.is_none() && text.trim().eq_ignore_ascii_case("chunked"));
        } else if is("connection") {
            head.keeps_alive = !lists(&text, "close") && (head.keeps_alive || lists(&text, "keep-alive"));
        } else if is("location") {
            head.location = Some(text.trim().to_owned());
        } else if is("content-range") {
            head.content_range = content_range(&text);
        } else if is("accept-ranges") {
            head.accepts_ranges |= lists(&text, "bytes");
        }
    }
    head.body = match (coding, length) {
        _ if matches!(status, 100..=199 | 204 | 304) => BodyLength::Bytes(0),
        (Some(true), _) => BodyLength::Chunked,
        (Some(false), _) => return Err(HttpFault::BadCoding),
        (None, Some(length)) => BodyLength::Bytes(length),
        (None, None) => BodyLength::UntilClose,
    };
    head.keeps_alive &= head.body != BodyLength::UntilClose;
    Ok(Some((head, len)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<Head>, HttpFault> {
        let whole = format!("{text}\r\n\r\nbody");
        let found = parse_head(whole.as_bytes())?;
        Ok(found.map(|(head, len)| {
            assert_eq!(len, whole.len() - 4);
            head
        }))
    }

    #[test]
    fn parse_head_determines_body_length_and_keep_alive() {
        for (text, body, keeps_alive) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 7", BodyLength::Bytes(7), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\ncontent-length: 7", BodyLength::Bytes(7), true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked", BodyLength::Chunked, true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 7", BodyLength::Chunked, true),
            ("HTTP/1.1 200 OK", BodyLength::UntilClose, false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 7", BodyLength::Bytes(7), false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 7\r\nConnection: keep-alive", BodyLength::Bytes(7), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: x, Close", BodyLength::Bytes(7), false),
            ("HTTP/1.1 204 No Content", BodyLength::Bytes(0), true),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 7", BodyLength::Bytes(0), true),
            ("HTTP/1.1 100 Continue", BodyLength::Bytes(0), true),
        ] {
            let head = head(text).unwrap().unwrap();
            assert_eq!((head.body, head.keeps_alive), (body, keeps_alive), "{text}");
        }
    }

    #[test]
    fn other_headers_are_found() {
        let text = "HTTP/1.1 206 Partial\r\nContent-Range: bytes 100-199/1000\r\nContent-Length: 100";
        let found = head(text).unwrap().unwrap();
        assert_eq!((found.content_range, found.accepts_ranges), (Some((100, Some(1000))), true));
        let text = "HTTP/1.1 302 Found\r\nLOCATION:  /x \r\nAccept-Ranges: bytes\r\nContent-Length: 0";
        let found = head(text).unwrap().unwrap();
        assert_eq!((found.location.as_deref(), found.accepts_ranges), (Some("/x"), true));
        assert_eq!(content_range("bytes 5-5/*"), Some((5, None)));
        for bad in ["bytes 5-4/9", "items 1-2/3", "bytes */9", "bytes 1-2", "bytes +1-2/3"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn heads_that_cannot_be_used_say_why() {
        for (text, fault) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8", HttpFault::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: -7", HttpFault::BadLength),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999", HttpFault::BadLength),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked", HttpFault::BadCoding),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
                HttpFault::BadCoding,
            ),
            ("RTSP/1.0 200 OK", HttpFault::NotHttp),
            ("HTTP/2 200 OK", HttpFault::NotHttp),
        ] {
            assert_eq!(head(text), Err(fault), "{text}");
        }
        let many: String = (0..=MAX_HTTP_HEADERS).map(|n| format!("\r\nX{n}: y")).collect();
        assert_eq!(head(&format!("HTTP/1.1 200 OK{many}")), Err(HttpFault::HeadTooLong));
        let long = format!("HTTP/1.1 200 OK\r\nX: {}", "y".repeat(MAX_HTTP_HEAD_BYTES));
        assert_eq!(parse_head(long.as_bytes()), Err(HttpFault::HeadTooLong));
    }

    #[test]
    fn parse_head_succeeds_only_with_last_byte() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n";
        for cut in 0..text.len() {
            assert_eq!(parse_head(&text[..cut]), Ok(None), "{cut}");
        }
        assert!(parse_head(text).unwrap().is_some());
    }
}
