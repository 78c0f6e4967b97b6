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
//! | Playing | 455 | Playing: a seek, another speed, or nothing changes | Ready | Init |
//!
//! Played backwards to its beginning, a title stands there: Ready.

use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use rtsp_types::headers::{SCALE, SPEED};

use crate::rtsp::reply::ReplyHead;
use crate::rtsp::{Reply, RtspRequest, speeds};
use crate::service::{ConnKey, PlaybackStream, Speed};

/// A request on its connection.
#[derive(Clone, Copy)]
pub(super) struct ReceivedRequest<'r> {
    pub(super) now: Instant,
    pub(super) conn: ConnKey,
    pub(super) request: &'r RtspRequest,
}

/// The states of RFC 2326 appendix A.2. Init has no session, so no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// Set up, nothing is sent.
    Ready,
    /// Packets are sent.
    Playing,
}

impl SessionState {
    /// That of a session with this stream, as its viewer sees it.
    pub(super) fn of(stream: &PlaybackStream) -> Self {
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
pub(super) struct PendingPlay {
    /// Who asked.
    pub(super) conn: ConnKey,
    pub(super) head: ReplyHead,
    pub(super) asks: RequestedSpeeds,
    /// The range was of the time of day, and so is that of the reply.
    pub(super) by_clock: bool,
}

/// Which of two headers a request had: then the reply has them too (RFC 2326 section 12.34: "The
/// response MUST contain the actual scale value chosen by the server"). A value that is not normal
/// is sent in any case, and with `Scale` always `Speed` too: GStreamer uses the first of the two,
/// `Speed` before `Scale`, as the rate for showing the received media, and shows nothing at -4.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedSpeeds {
    pub(super) scale: bool,
    pub(super) speed: bool,
    /// How much later than the actual end the announced end of the title is.
    pub(super) late_end: MediaTicks,
}

impl RequestedSpeeds {
    /// Adds the actual scale and speed to the reply.
    pub(super) fn answer(self, reply: Reply, scale: Scale, speed: Speed) -> Reply {
        let is_scaled = !scale.is_normal();
        let (says_scale, says_speed) =
            (self.scale || is_scaled, self.speed || is_scaled || !speed.is_normal());
        let reply = if says_scale { reply.header(SCALE, speeds::format_scale(scale)) } else { reply };
        if says_speed { reply.header(SPEED, speeds::format_speed(speed)) } else { reply }
    }
}

/// What RTSP adds to a viewer's stream. Both have the same name, and end together.
pub(super) struct Session {
    /// The viewer's name for it.
    pub(super) id: Box<str>,
    /// The URL of SETUP, for `RTP-Info`.
    pub(super) url: String,
    pub(super) pending: Option<PendingPlay>,
    /// The viewer has sent BYE.
    pub(super) said_bye: bool,
}

impl Session {
    pub(super) fn new(id: Box<str>, url: String) -> Self {
        Self { id, url, pending: None, said_bye: false }
    }
}

/// For log lines: the name itself is the key to the session.
pub(super) fn short(id: &str) -> String {
    id.chars().take(8).collect()
}
