//! Which status a refusal of the service is, and the log line of a request that was turned down: without it an operator never learns why
//! a player shows nothing.

use millrace_core::limits::control::MAX_QUOTED;
use rtsp_types::headers::{RANGE, RETRY_AFTER, SESSION};

use super::server::{RtspFace, header};
use crate::rtsp::{Reply, RtspRequest, target};
use crate::service::{ConnKey, Exhausted, Refusal, ServiceEvent, StreamKey};

/// Time after which a retry is worthwhile for a resource that is unavailable now: disks that are
/// back are used within seconds.
const RETRY_AFTER_S: &str = "10";

/// The status of each refusal (RFC 2326 section 11).
fn status(refusal: &Refusal) -> u16 {
    match refusal {
        Refusal::Exhausted(what) if !what.is_room_to_play() => 503,
        Refusal::Exhausted(_) | Refusal::Ending | Refusal::Coming(_) | Refusal::Fec(_) => 453,
        Refusal::Unfit(_) | Refusal::NoRenditions | Refusal::NoRendition { .. } => 404,
        Refusal::Gone => 454,
        Refusal::Busy | Refusal::RenditionHeld(_) => 455,
        Refusal::NoReverse => 456,
        Refusal::PortInUse(_) | Refusal::Multicast(_) => 461,
        Refusal::EmptyRange
        | Refusal::OutsideRange
        | Refusal::BeginningReached
        | Refusal::EndReached
        | Refusal::NothingLeft => 457,
        Refusal::Broken => 500,
        // As any unit that is not understood (RFC 2326 section 12.29).
        Refusal::NoClock => 501,
        Refusal::ShuttingDown | Refusal::MembersLost(_) | Refusal::Opening | Refusal::TimedOut => 503,
    }
}

/// Returns whether its log line contains only the refusal: the viewer did nothing wrong, and its
/// request does not matter.
fn is_own_line(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::MembersLost(_) | Refusal::Coming(_) | Refusal::Ending => true,
        Refusal::Exhausted(Exhausted::EngineConnections) => false,
        Refusal::Exhausted(what) => what.is_room_to_play() || *what == Exhausted::AddressSessions,
        _ => false,
    }
}

/// Returns the reply to a request that the service has refused.
pub(super) fn refusal_reply(refusal: &Refusal) -> Reply {
    let status = status(refusal);
    let reply = match refusal {
        Refusal::Busy => Reply::error(status, "a PLAY of this session is still being answered"),
        Refusal::Gone => Reply::error(status, "the session has ended meanwhile"),
        other => Reply::error(status, other),
    };
    match refusal {
        Refusal::MembersLost(_)
        | Refusal::Exhausted(Exhausted::OpenTitles | Exhausted::Openings)
        | Refusal::Opening
        | Refusal::Coming(_)
        | Refusal::TimedOut => reply.header(RETRY_AFTER, RETRY_AFTER_S),
        _ => reply,
    }
}

impl RtspFace<'_> {
    /// Returns the reply to a request that the service has refused to the viewer on this
    /// connection.
    pub(super) fn refuse(&mut self, conn: ConnKey, title: &str, refusal: &Refusal) -> Reply {
        let reply = refusal_reply(refusal);
        if matches!(refusal, Refusal::Exhausted(Exhausted::Full(_))) {
            return reply.logged(); // once a minute for each resource, not for each viewer
        }
        if !is_own_line(refusal) {
            return reply;
        }
        if let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) {
            let reason = refusal.to_string();
            self.tell(ServiceEvent::Refused { peer, title: title.to_owned(), status: reply.code(), reason });
        }
        reply.logged()
    }

    /// Returns the reply to a PLAY that had nothing left to play, which became known only once the
    /// stream had stopped.
    pub(super) fn refuse_play(&mut self, key: StreamKey, refusal: &Refusal) -> Reply {
        let reply = refusal_reply(refusal).logged();
        if let Some(stream) = self.service.stream(key) {
            let (peer, title) = (stream.viewer(), stream.entry().name.clone());
            let reason = format!("PLAY: {}", reply.reason());
            self.tell(ServiceEvent::Refused { peer, title, status: reply.code(), reason });
        }
        let reply = self.with_media_range(reply, key);
        self.with_session(reply, Some(key))
    }

    /// Reports a reply that refuses the request, unless that has been done.
    pub(super) fn log_refusal(&mut self, conn: ConnKey, request: &RtspRequest, reply: &Reply) {
        if reply.code() < 400 || reply.is_logged() {
            return;
        }
        let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) else { return };
        let named = header(request, &SESSION).and_then(|id| self.by_id.get(id.split(';').next()?.trim()));
        let title = match named.and_then(|key| self.service.title_of(*key)) {
            Some(title) => title.to_owned(),
            None => request.request_uri().and_then(target::parse).map(|t| t.title).unwrap_or_default(),
        };
        let method: &str = request.method().into();
        let mut reason = format!("{method}: {}", reply.reason());
        if reply.code() == 457
            && let Some(range) = header(request, &RANGE)
        {
            reason = format!("{reason} (Range: {range})");
        }
        let title = if title.is_empty() { "/".to_owned() } else { printable(&title) };
        self.tell(ServiceEvent::Refused { peer, title, status: reply.code(), reason: printable(&reason) });
    }
}

/// Makes text from a viewer printable, so that it cannot write lines of its own into a log.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(MAX_QUOTED).map(shown).collect()
}
