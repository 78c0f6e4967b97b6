//! PLAY and PAUSE (RFC 2326 sections 10.5 and 10.6).

use millrace_core::time::{Instant, MediaTicks};
use rtsp_types::headers::{RANGE, SCALE, SPEED, USER_AGENT};

use super::server::{RtspFace, header, media_range_header};
use super::state::{PendingPlay, ReceivedRequest, RequestedSpeeds};
use crate::limits::LATE_END_NS;
use crate::rtsp::range::{self, RangeError};
use crate::rtsp::reply::ReplyHead;
use crate::rtsp::{Reply, RtspRequest, speeds};
use crate::sdp::media_range;
use crate::service::{PlayRequest, Played, Refusal, StreamKey};

/// Whether the client is FFmpeg's library, which adds its start time to every place it asks for.
fn counts_in_stamps(request: &RtspRequest) -> bool {
    header(request, &USER_AGENT).is_some_and(|agent| agent.starts_with("Lavf"))
}

/// Players that end at the RTCP BYE, whatever end was announced. They show the announced end as the
/// title's length, so it is exact for them. It is also exact for players that do not name
/// themselves.
const END_BY_BYE: [&str; 8] = ["Lavf", "LibVLC", "VLC", "LIVE555", "mpv", "Kodi", "gortsplib", "millrace"];

/// How much later than the actual end the announced end of a title is: GStreamer, and any unknown
/// player, may end by its clock.
pub(super) fn late_end(request: &RtspRequest) -> MediaTicks {
    match header(request, &USER_AGENT) {
        Some(agent) if !END_BY_BYE.iter().any(|known| agent.contains(known)) => {
            MediaTicks::from_ns(LATE_END_NS)
        }
        _ => MediaTicks(0),
    }
}

/// Whether a description may have a range by the time of day. openRTSP then asks for its beginning, which of a live title is the oldest place.
pub(super) fn understands_clock(request: &RtspRequest) -> bool {
    !header(request, &USER_AGENT).is_some_and(|agent| agent.contains("LIVE555"))
}

/// Parses the PLAY parameters, and determines which headers its reply must have; fails with the
/// reply to a PLAY that is not understood.
pub(super) fn wish(request: &RtspRequest) -> Result<(PlayRequest, RequestedSpeeds), Reply> {
    let span = header(request, &RANGE).map(range::parse).transpose().map_err(|error| {
        // RFC 2326 section 12.29: a time format that is not understood is answered with 501.
        Reply::error(if error == RangeError::Unit { 501 } else { 457 }, error)
    })?;
    let is_bad = |error| Reply::error(400, error);
    let scale = header(request, &SCALE).map(speeds::parse_scale).transpose().map_err(is_bad)?;
    let speed = header(request, &SPEED).map(speeds::parse_speed).transpose().map_err(is_bad)?;
    let asks =
        RequestedSpeeds { scale: scale.is_some(), speed: speed.is_some(), late_end: late_end(request) };
    Ok((PlayRequest { span, scale, speed, in_stamps: counts_in_stamps(request), told_by: None }, asks))
}

impl RtspFace<'_> {
    /// The reply; `None` if it has been written, or the engine must first say where the stream stopped.
    pub(super) fn play(
        &mut self,
        ReceivedRequest { now, conn, request }: ReceivedRequest<'_>,
        head: &ReplyHead,
        key: Option<StreamKey>,
    ) -> Option<Reply> {
        let Some((key, session)) = key.and_then(|key| Some((key, self.sessions.get_mut(&key)?))) else {
            return Some(self.wrong_state(key));
        };
        if session.pending.is_some() {
            // Another connection is seeking in the same session at this very moment.
            return Some(super::refusal::refusal_reply(&Refusal::Busy));
        }
        let (mut wanted, asks) = match wish(request) {
            Ok(wish) => wish,
            Err(refusal) => {
                let refusal = self.with_media_range(refusal, key);
                return Some(self.with_session(refusal, Some(key)));
            }
        };
        wanted.told_by = Some(conn);
        let by_clock = wanted.span.is_some_and(|span| span.is_clock);
        session.pending = Some(PendingPlay { conn, head: head.clone(), asks, by_clock });
        let played = self.service.play(now, key, &wanted);
        if !matches!(played, Ok(Played::Begun | Played::Waits))
            && let Some(session) = self.sessions.get_mut(&key)
        {
            session.pending = None;
        }
        self.drain_service(now);
        match played {
            Ok(Played::Begun) => None,
            Ok(Played::Waits) => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.waits_for = Some(key);
                }
                None
            }
            Ok(Played::GoesOn) => {
                let as_is = self.service.stream(key).map(|stream| (stream.scale(), stream.speed()));
                let reply =
                    as_is.map_or_else(Reply::ok, |(scale, speed)| asks.answer(Reply::ok(), scale, speed));
                Some(self.with_session(reply, Some(key)))
            }
            Err(refusal @ Refusal::NothingLeft) => Some(self.refuse_play(key, &refusal)),
            Err(refusal) => {
                let title = self.service.stream(key).map(|stream| stream.entry().name.clone());
                let reply = self.refuse(conn, &title.unwrap_or_default(), &refusal);
                let reply = self.with_media_range(reply, key);
                Some(self.with_session(reply, Some(key)))
            }
        }
    }

    /// Adds the valid range to a 457 (RFC 7826 section 13.4).
    pub(super) fn with_media_range(&self, reply: Reply, key: StreamKey) -> Reply {
        match self.service.stream(key) {
            Some(stream) if reply.code() == 457 => {
                reply.header(media_range_header(), media_range(stream.entry()))
            }
            _ => reply,
        }
    }

    pub(super) fn pause(&mut self, now: Instant, key: Option<StreamKey>) -> Reply {
        // A Range would name the moment to pause at (RFC 2326 section 10.6); players mean now.
        let paused = key.ok_or(Refusal::Gone).and_then(|key| self.service.pause(key));
        self.drain_service(now);
        if paused.is_err() { self.wrong_state(key) } else { self.with_session(Reply::ok(), key) }
    }
}
