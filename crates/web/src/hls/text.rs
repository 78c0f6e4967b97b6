//! The text of a playlist, and the response with it.

use std::hash::{DefaultHasher, Hash, Hasher};

use hyper::body::Bytes;

use crate::answer::Answer;
use crate::conditions;
use crate::request::Request;
use crate::session;

/// Media type of playlists (RFC 8216 section 4).
pub(crate) const M3U8: &str = "application/vnd.apple.mpegurl";

/// A playlist, ready to be sent; all who are sent it share its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) bytes: Bytes,
    pub(crate) tag: String,
}

impl Text {
    pub(crate) fn new(text: String) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { tag: format!("\"{:016x}\"", hasher.finish()), bytes: text.into() }
    }

    /// A playlist whose addresses end with this link. The tag names the session in it, so that a
    /// reload goes on with it.
    pub(crate) fn with_link(text: String, link: &str) -> Self {
        let Self { bytes, tag } = Self::new(text);
        match session::session_of(Some(link)) {
            Some(session) => Self { bytes, tag: format!("{}-{session}\"", tag.trim_end_matches('"')) },
            None => Self { bytes, tag },
        }
    }

    /// The response with a playlist.
    pub(crate) fn answer(self, request: &Request) -> Answer {
        conditions::tagged(request, self.tag, || Answer::new(200, M3U8, self.bytes))
    }
}
