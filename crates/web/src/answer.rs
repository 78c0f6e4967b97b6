//! A response before its protocol is known.

use std::sync::{Mutex, PoisonError};

use hyper::body::Bytes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::events::Listener;
use crate::site::{DeliveredAmount, OrderedMedia};

/// The name of the program in requests and responses.
pub(crate) const SERVER: &str = concat!("millrace/", env!("CARGO_PKG_VERSION"));

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Header fields but `Content-Length`, `Date`, `Server` and what concerns the connection. None of the values has a control character.
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

/// Its body.
#[derive(Debug)]
pub(crate) enum Body {
    /// It has none, as 204 and 304.
    None,
    /// Would have this many bytes (HEAD).
    Length(u64),
    /// These.
    Bytes(Bytes),
    /// Bytes that stay in memory whether or not they are sent, such as cached bytes.
    Kept(Bytes),
    /// A segment that was made from a title; its viewer is counted by the bytes that it receives.
    Segment(Bytes, Sending),
    /// Bytes of a title.
    Media(OrderedMedia),
    /// Events, for as long as a client reads them.
    Events(Listener),
}

/// Body of an error response.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Error")]
pub(crate) struct Failure {
    error: ErrorDetails,
}

/// The error.
#[derive(Serialize, JsonSchema)]
#[schemars(inline)]
struct ErrorDetails {
    /// One sentence.
    message: String,
    /// The response's status.
    status: u16,
}

impl Failure {
    pub(crate) fn new(status: u16, what: &str) -> Self {
        Self { error: ErrorDetails { message: what.to_owned(), status } }
    }
}

impl Answer {
    pub(crate) fn new(status: u16, content_type: &str, bytes: impl Into<Bytes>) -> Self {
        let headers = vec![("Content-Type", content_type.to_owned())];
        Self { status, headers, body: Body::Bytes(bytes.into()) }
    }

    /// A response with bytes that stay in memory in any case.
    pub(crate) fn kept(content_type: &str, bytes: Bytes) -> Self {
        Self { body: Body::Kept(bytes), ..Self::new(200, content_type, Bytes::new()) }
    }

    /// Returns a response for an error or an unavailable resource: JSON with one sentence that
    /// states the cause.
    pub(crate) fn error(status: u16, what: &str) -> Self {
        let failure = Failure::new(status, what);
        // Text and a number can always be written.
        let body = serde_json::to_string(&failure).unwrap_or_default() + "\n";
        Self::new(status, "application/json", body).with("Cache-Control", "no-store")
    }

    /// Returns the response with a value as JSON.
    pub(crate) fn json<T: Serialize>(value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(mut text) => {
                text.push(b'\n');
                Self::new(200, "application/json", text).with("Cache-Control", "no-cache")
            }
            Err(_) => Self::error(500, "the answer cannot be written as JSON"),
        }
    }

    /// A response without content, header fields or body.
    pub(crate) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Body::None }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The same for HEAD: the header alone.
    pub(crate) fn without_body(mut self) -> Self {
        match (self.body.length(), &self.body) {
            (Some(length), _) => self.body = Body::Length(length),
            (None, Body::Media(_)) => self.body = Body::None,
            (None, _) => {}
        }
        self
    }
}

impl Body {
    /// Returns the value of `Content-Length`; `None`: the field is absent.
    pub(crate) fn length(&self) -> Option<u64> {
        match self {
            Self::None | Self::Events(_) => None,
            Self::Length(length) => Some(*length),
            Self::Bytes(bytes) | Self::Kept(bytes) | Self::Segment(bytes, _) => Some(bytes.len() as u64),
            Self::Media(media) => media.length(),
        }
    }
}

/// A segment being sent. When this is dropped, it reports the amount taken to the part that counts
/// its viewer.
#[derive(Debug)]
pub(crate) struct Sending {
    taken: Mutex<DeliveredAmount>,
    over: Option<oneshot::Sender<DeliveredAmount>>,
}

impl Sending {
    pub(crate) fn new(over: oneshot::Sender<DeliveredAmount>) -> Self {
        Self { taken: Mutex::default(), over: Some(over) }
    }

    /// Records that `bytes` more bytes were taken, and whether these were the last.
    pub(crate) fn takes(&self, bytes: u64, is_whole: bool) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = DeliveredAmount { bytes: taken.bytes + bytes, is_whole };
    }

    /// Goes with a response, if that has something of the segment.
    pub(crate) fn with(self, mut answer: Answer) -> Answer {
        answer.body = match (answer.status, std::mem::replace(&mut answer.body, Body::None)) {
            (200 | 206, Body::Bytes(bytes)) => Body::Segment(bytes, self),
            (_, body) => {
                // Its viewer has the segment already, or has requested no part that it contains.
                self.takes(0, true);
                body
            }
        };
        answer
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let taken = *self.taken.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(over) = self.over.take() {
            // The receiver may be gone.
            let _ = over.send(taken);
        }
    }
}
