//! Responses in HTTP/1.1, as the front writes them.

use std::fmt::Write;

use crate::answer::{Answer, SERVER};
use crate::date;

/// For a connection that there is no room for.
pub(super) const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: text/plain\r\nContent-Length: 83\r\n\
Connection: close\r\n\r\ntoo many connections, in all or from this address (--max-connections-per-address)\r\n";

/// What becomes of the connection behind a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It is used further, as HTTP/1.1 has it.
    Keep,
    /// It is used further, which an HTTP/1.0 client must be informed of.
    KeepOld,
    Close,
}

/// The head of a response.
pub(super) fn head(answer: &Answer, then: Then) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {} {}\r\n", answer.status, reason(answer.status));
    let mut line = |name: &str, value: &str| {
        // Values come from this program; a line end in one would be a second response.
        debug_assert!(!value.contains(['\r', '\n', '\0']), "{name}: {value:?}");
        let _ = write!(text, "{name}: {value}\r\n");
    };
    line("Date", &date::now());
    line("Server", SERVER);
    answer.headers.iter().for_each(|(name, value)| line(name, value));
    if let Some(length) = answer.body.length() {
        line("Content-Length", &length.to_string());
    }
    match then {
        Then::Keep => {}
        Then::KeepOld => line("Connection", "keep-alive"),
        Then::Close => line("Connection", "close"),
    }
    text.push_str("\r\n");
    text.into_bytes()
}

fn reason(status: u16) -> &'static str {
    hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown")
}
