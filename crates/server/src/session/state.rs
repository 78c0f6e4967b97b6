//! The life of a session (RFC 2326 appendix A.2).
//!
//! ```text
//!          SETUP                 PLAY
//!   Init ---------> Ready <----------------> Playing
//!     ^               |   PAUSE, end of range   |
//!     +---------------+------ TEARDOWN ---------+
//!                        expiry, failure
//! ```
//!
//! | state | SETUP | PLAY | PAUSE | TEARDOWN |
//! | --- | --- | --- | --- | --- |
//! | Init (no session) | Ready | 455 | 455 | 454 |
//! | Ready | Ready, other transport | Playing | Ready, nothing changes | Init |
//! | Playing | 455 | Playing: a seek, or nothing changes | Ready | Init |

use millrace_core::time::Instant;

use crate::rtsp::reply::ReplyHead;
use crate::service::{ConnKey, Stream};

/// The states of RFC 2326 appendix A.2. Init has no session, so no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Set up, nothing is sent.
    Ready,
    /// Packets are sent.
    Playing,
}

impl State {
    /// That of a session with this stream, as its viewer sees it.
    pub(super) fn of(stream: &Stream) -> Self {
        if stream.is_playing() { Self::Playing } else { Self::Ready }
    }

    /// `Allow` in a 455 (RFC 2326 section 12.4).
    pub(super) fn allow(state: Option<Self>) -> &'static str {
        match state {
            None => "OPTIONS, DESCRIBE, SETUP",
            Some(Self::Ready) => crate::rtsp::reply::PUBLIC,
            Some(Self::Playing) => "OPTIONS, DESCRIBE, PLAY, PAUSE, GET_PARAMETER, SET_PARAMETER, TEARDOWN",
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Playing => "playing",
        }
    }
}

/// A PLAY that has not been answered yet.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Who asked.
    pub(super) conn: ConnKey,
    pub(super) head: ReplyHead,
    /// The request had a `Scale` or `Speed` header, so the reply has it too.
    pub(super) scale: bool,
    pub(super) speed: bool,
}

/// What RTSP adds to a viewer's stream. Both have the same name, and end together.
pub(super) struct Session {
    /// What the viewer calls it.
    pub(super) id: Box<str>,
    /// The URL of SETUP, for `RTP-Info`.
    pub(super) url: String,
    pub(super) pending: Option<Pending>,
    pub(super) last_heard: Instant,
    /// The viewer has sent BYE.
    pub(super) said_bye: bool,
}

impl Session {
    pub(super) fn new(id: Box<str>, url: String, now: Instant) -> Self {
        Self { id, url, pending: None, last_heard: now, said_bye: false }
    }
}

/// For log lines: the name itself is the key to the session.
pub(super) fn short(id: &str) -> String {
    id.chars().take(8).collect()
}
