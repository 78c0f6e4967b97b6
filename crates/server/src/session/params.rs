//! GET_PARAMETER and SET_PARAMETER (RFC 2326 sections 10.8 and 10.9).

use millrace_core::scale::Scale;
use millrace_core::time::{Instant, MediaTicks};
use rtsp_types::headers::CONTENT_TYPE;

use super::fec::fec_header;
use super::refusal::refusal_reply;
use super::rendition::{rendition_header, told};
use super::server::RtspFace;
use super::state::ReceivedRequest;
use crate::rtsp::range::npt;
use crate::rtsp::{Reply, RtspRequest, speeds};
use crate::sdp::{GROWING_RANGE, LIVE_RANGE, media_range, range_text};
use crate::service::{ConnKey, FecMode, PlaybackStream, Refusal, RenditionWish, StreamKey};

const TEXT: &str = "text/parameters";

impl RtspFace<'_> {
    /// Without a body it is a keep-alive. Otherwise one parameter a line: `position`, `duration`, `range`,
    /// `media_range`, `stream_state`, `scale`, `speed`, `rendition`, `fec`.
    pub(super) fn get_parameter(&mut self, received: ReceivedRequest<'_>, key: Option<StreamKey>) -> Reply {
        let ReceivedRequest { now, request, .. } = received;
        let Some(names) = parameters(request) else { return not_understood(&["a body that is not text"]) };
        if names.is_empty() {
            return self.with_session(Reply::ok(), key);
        }
        let stream = key.and_then(|key| self.service.stream(key));
        let Some(state) = key.and_then(|key| self.state_of(key)) else {
            return Reply::error(454, "parameters belong to a session; name one");
        };
        let mut body = String::new();
        let mut unknown = Vec::new();
        for name in names {
            let value = match (name.to_ascii_lowercase().as_str(), stream) {
                ("stream_state", _) => Some(state.as_str().to_owned()),
                (name, Some(stream)) => parameter(stream, name, now),
                // A listener has the place and the speed of the cast.
                ("range", None) => Some(LIVE_RANGE.to_owned()),
                ("scale" | "speed", None) => Some(speeds::format_scale(Scale::NORMAL)),
                _ => None,
            };
            match value {
                Some(value) => body.push_str(&format!("{name}: {value}\r\n")),
                None => unknown.push(name),
            }
        }
        let reply = if unknown.is_empty() {
            Reply::ok().header(CONTENT_TYPE, TEXT).body(body)
        } else {
            not_understood(&unknown)
        };
        self.with_session(reply, key)
    }

    /// Handles SET_PARAMETER. Without a body it is a keep-alive. The parameters are `fec`: `on`,
    /// `off`, `xor` or `all`; and `rendition`: a name or `auto`.
    pub(super) fn set_parameter(&mut self, received: ReceivedRequest<'_>, key: Option<StreamKey>) -> Reply {
        let ReceivedRequest { now, conn, request } = received;
        let reply = match parameters(request).as_deref() {
            Some([]) => Reply::ok(),
            Some([name]) if name.eq_ignore_ascii_case("fec") => self.set_fec(now, conn, key, value(request)),
            Some([name]) if name.eq_ignore_ascii_case("rendition") => {
                self.set_rendition(now, conn, key, value(request))
            }
            Some(names) => not_understood(names),
            None => not_understood(&["a body that is not text"]),
        };
        self.with_session(reply, key)
    }

    fn set_fec(&mut self, now: Instant, conn: ConnKey, key: Option<StreamKey>, value: &str) -> Reply {
        let Some(stream) = key.and_then(|key| self.service.stream(key)) else {
            return Reply::error(454, "parameters belong to a session; name one");
        };
        let Some(on) = stream.fec_on() else {
            return not_understood(&["fec: the session was set up without X-Millrace-FEC"]);
        };
        let mode = if value.eq_ignore_ascii_case("on") { Some(on) } else { FecMode::parse(value) };
        let Some(mode) = mode else {
            return not_understood(&["fec: on, off, xor or all"]);
        };
        let key = stream.key();
        let switched = self.service.set_fec(now, key, mode, Some(conn));
        self.drain_service(now);
        if let Err(refusal) = switched {
            return refusal_reply(&refusal);
        }
        let state = self.service.stream(key).and_then(PlaybackStream::fec_grant);
        state.map_or_else(Reply::ok, |state| Reply::ok().header(fec_header(), state))
    }
}

impl RtspFace<'_> {
    fn set_rendition(&mut self, now: Instant, conn: ConnKey, key: Option<StreamKey>, value: &str) -> Reply {
        let Some(key) = key.filter(|key| self.service.stream(*key).is_some()) else {
            return Reply::error(454, "parameters belong to a session; name one");
        };
        let set = self.service.set_rendition(now, key, &RenditionWish::parse(value), Some(conn));
        self.drain_service(now);
        match set {
            Ok(change) => Reply::ok().header(rendition_header(), told(&change)),
            Err(refusal @ (Refusal::NoRenditions | Refusal::NoRendition { .. })) => {
                not_understood(&[&format!("rendition: {refusal}")])
            }
            Err(refusal) => {
                let title = self.service.stream(key).map(|stream| stream.entry().name.clone());
                self.refuse(conn, &title.unwrap_or_default(), &refusal)
            }
        }
    }
}

/// The value of a parameter of a stream.
fn parameter(stream: &PlaybackStream, name: &str, now: Instant) -> Option<String> {
    match name {
        "position" => stream.position(now).map(npt),
        // A live title has none.
        "duration" => (!stream.entry().is_live()).then(|| npt(stream.entry().end())),
        "media_range" => Some(media_range(stream.entry())),
        "range" if stream.entry().is_live() => Some(LIVE_RANGE.to_owned()),
        "range" if stream.entry().is_endless() => Some(GROWING_RANGE.to_owned()),
        "range" => Some(range_text(MediaTicks(0), Some(stream.entry().end()))),
        "scale" => Some(speeds::format_scale(stream.scale())),
        "speed" => Some(speeds::format_speed(stream.speed())),
        "rendition" => stream.rendition().map(|rendition| rendition.to_string()),
        "fec" => Some(stream.fec_mode().to_string()),
        _ => None,
    }
}

/// The names in a body of `text/parameters`; `None` if it is not text.
fn parameters(request: &RtspRequest) -> Option<Vec<&str>> {
    let body = std::str::from_utf8(request.body()).ok()?;
    let names = body.lines().map(|line| line.split(':').next().unwrap_or_default().trim());
    Some(names.filter(|name| !name.is_empty()).collect())
}

/// What stands behind the colon in a body of one line.
fn value(request: &RtspRequest) -> &str {
    let body = std::str::from_utf8(request.body()).unwrap_or_default();
    body.trim().split_once(':').map_or("", |(_, value)| value.trim())
}

/// RFC 2326 section 11.3.3: the body lists the parameters that were not understood.
fn not_understood(names: &[&str]) -> Reply {
    let what: String = names.join(", ").chars().take(100).collect();
    Reply::error(451, what).header(CONTENT_TYPE, TEXT).body(names.join("\r\n") + "\r\n")
}
