//! Replies: the status, the headers that every reply carries, and the bytes.

use rtsp_types::headers::{CSEQ, DATE, SERVER, TIMESTAMP, WWW_AUTHENTICATE};
use rtsp_types::{HeaderName, Response, StatusCode, Version};

use crate::date::rfc1123;

/// Methods this server carries out (RFC 2326 section 10.1); players choose their keep-alive from it.
pub const PUBLIC: &str = "OPTIONS, DESCRIBE, SETUP, PLAY, PAUSE, GET_PARAMETER, SET_PARAMETER, TEARDOWN";

/// What of a request comes back in its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyHead {
    /// `CSeq`; `None` where the request had none that could be read.
    pub cseq: Option<u32>,
    /// `Timestamp` (RFC 2326 section 12.38: the server must echo it).
    pub timestamp: Option<String>,
    /// The requested method, for the log; empty if it could not be read.
    pub method: &'static str,
}

/// A reply in the making.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    /// Replaces the standard phrase: it describes the error, and shows up in players' logs.
    reason: Option<String>,
    headers: Vec<(HeaderName, String)>,
    /// Values of `WWW-Authenticate`.
    challenges: Vec<String>,
    body: Vec<u8>,
    /// It has its log line already.
    is_logged: bool,
}

impl Reply {
    /// 200 OK.
    pub fn ok() -> Self {
        Self::status(200)
    }

    /// A status with its standard phrase.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            reason: None,
            headers: Vec::new(),
            challenges: Vec::new(),
            body: Vec::new(),
            is_logged: false,
        }
    }

    /// Returns a status with the standard phrase and the error.
    pub fn error(status: u16, what: impl std::fmt::Display) -> Self {
        let phrase = phrase(status);
        let what: String = what.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { reason: Some(format!("{phrase}: {what}")), ..Self::status(status) }
    }

    /// Its status code.
    pub fn code(&self) -> u16 {
        self.status
    }

    /// Returns the text of its status line after the code.
    pub fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_else(|| phrase(self.status))
    }

    /// Marks it as one that has its log line.
    #[must_use]
    pub fn logged(self) -> Self {
        Self { is_logged: true, ..self }
    }

    /// Whether it has its log line.
    pub fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Asks for credentials by each of these, in this order.
    #[must_use]
    pub fn challenges(mut self, challenges: impl IntoIterator<Item = String>) -> Self {
        self.challenges.extend(challenges);
        self
    }

    /// Sets the body; `Content-Length` follows from it.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// The bytes to send. `server` is the `Server` header, `unix_s` the time for `Date`.
    pub fn to_bytes(&self, head: &ReplyHead, server: &str, unix_s: u64) -> Vec<u8> {
        let mut builder =
            Response::builder(Version::V1_0, StatusCode::from(self.status)).reason_phrase(self.reason());
        if let Some(cseq) = head.cseq {
            builder = builder.header(CSEQ, cseq.to_string());
        }
        if let Some(timestamp) = &head.timestamp {
            builder = builder.header(TIMESTAMP, timestamp.as_str());
        }
        builder = builder.header(SERVER, server).header(DATE, rfc1123(unix_s));
        for (name, value) in &self.headers {
            builder = builder.header(name.clone(), value.as_str());
        }
        let mut bytes = Vec::with_capacity(512 + self.body.len());
        builder.build(self.body.as_slice()).write(&mut bytes).expect("a Vec takes every byte");
        // A line each: players that read one of them only would take a list for one challenge.
        let lines: String = self.challenges.iter().map(|c| format!("{WWW_AUTHENTICATE}: {c}\r\n")).collect();
        if let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
            bytes.splice(end + 2..end + 2, lines.into_bytes());
        }
        bytes
    }
}

/// The phrases of RFC 2326 section 7.1.1 for the statuses that this server uses.
pub fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Time-out",
        413 => "Request Entity Too Large",
        414 => "Request-URI Too Large",
        415 => "Unsupported Media Type",
        451 => "Parameter Not Understood",
        453 => "Not Enough Bandwidth",
        454 => "Session Not Found",
        455 => "Method Not Valid in This State",
        456 => "Header Field Not Valid for Resource",
        457 => "Invalid Range",
        459 => "Aggregate operation not allowed",
        461 => "Unsupported transport",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "RTSP Version not supported",
        551 => "Option not supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtsp_types::Message;

    #[test]
    fn reply_to_bytes_includes_cseq_server_and_date() {
        let head = ReplyHead { cseq: Some(3), timestamp: Some("1.25".into()), method: "PLAY" };
        let bytes = Reply::ok().body("abc").to_bytes(&head, "millrace/1", 0);
        let text = String::from_utf8(bytes.clone()).unwrap();
        assert!(text.starts_with("RTSP/1.0 200 OK\r\n"), "{text}");
        for line in
            ["CSeq: 3", "Server: millrace/1", "Date: Thu, 01 Jan 1970 00:00:00 GMT", "Timestamp: 1.25"]
        {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line} in {text}");
        }
        assert!(text.contains("Content-Length: 3\r\n") && text.ends_with("\r\n\r\nabc"));
        assert!(
            matches!(Message::<Vec<u8>>::parse(&bytes), Ok((Message::Response(_), n)) if n == bytes.len())
        );
    }

    #[test]
    fn reply_with_several_challenges_has_one_line_each() {
        let reply = Reply::status(401).challenges(["Digest a".to_owned(), "Basic b".to_owned()]);
        let text = String::from_utf8(reply.to_bytes(&ReplyHead::default(), "s", 0)).unwrap();
        let start =
            "RTSP/1.0 401 Unauthorized\r\nWWW-Authenticate: Digest a\r\nWWW-Authenticate: Basic b\r\n";
        assert!(text.starts_with(start) && text.ends_with("\r\n\r\n"), "{text}");
    }

    #[test]
    fn reply_error_with_line_break_keeps_status_on_one_line() {
        let bytes = Reply::error(457, "80 is\r\nbeyond 60").to_bytes(&ReplyHead::default(), "s", 0);
        assert!(bytes.starts_with(b"RTSP/1.0 457 Invalid Range: 80 is  beyond 60\r\n"));
    }
}
