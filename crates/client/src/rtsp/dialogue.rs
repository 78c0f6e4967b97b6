//! The player's half of an RTSP session as a state machine: no sockets, no clock.
//!
//! Call order: a command ([`Dialogue::start`] first) queues a request; [`Dialogue::take_output`]
//! gives the bytes to write; [`Dialogue::handle_message`] takes the items that [`super::framing`]
//! found; [`Dialogue::poll_event`] reports events; [`Dialogue::handle_timeout`] is due at
//! [`Dialogue::poll_at`]. One request is in flight at a time.
//!
//! ```text
//!  start()        OPTIONS       DESCRIBE            setup()         play()            pause()
//!   Idle ───────────► Asking ───────────► Described ───────► Ready ─────────► Playing ◄───────► Paused
//!                                             ▲  461: TransportRefused │                 play()
//!                                             └────────────────────────┘
//!                     from Ready, Playing, Paused, Failed: teardown() ──► Down
//!                     from anywhere: refusal, silence, a closed connection ──► Failed
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use millrace_core::rendition::RenditionName;
use millrace_core::scale::Scale;
use millrace_core::text::excerpt;
use millrace_core::time::{Instant, NS_PER_S};
use rtsp_types::{Message, Method, Request, Response, headers};

use super::headers::{NptRange, PlaybackPace, RtpInfo, SessionHeader, parse_rtp_info};
use super::transport::{TransportReply, TransportRequest};
use crate::error::{RtspFailure, advice_for};
use crate::fec::{FecChoice, FecGrant};
use crate::sdp::{self, Description};
use crate::url::{RtspUrl, resolve_control};

/// Header that requests FEC and reports the grant.
const FEC_HEADER: &str = "X-Millrace-FEC";

/// The settings that a dialogue needs; shared by many.
#[derive(Clone, Debug)]
pub struct DialogueConfig {
    /// `User-Agent`.
    pub user_agent: Arc<str>,
    /// How long a reply may take.
    pub reply_timeout_ns: u64,
    /// Which streams of a description are taken.
    pub take: sdp::Take,
    /// What FEC is asked for, where media comes by UDP.
    pub fec: FecChoice,
}

/// Phase of the RTSP session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialoguePhase {
    /// Nothing sent.
    Idle,
    /// OPTIONS or DESCRIBE is on its way.
    Asking,
    /// The title is known, no session yet.
    Described,
    /// A session without media flowing.
    Ready,
    /// Media flows.
    Playing,
    /// Media stopped by PAUSE.
    Paused,
    /// TEARDOWN is answered.
    Down,
    /// Over by a failure.
    Failed,
}

/// What PLAY was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlayReply {
    /// The range that will really be sent.
    pub range: Option<NptRange>,
    /// The entry of `RTP-Info` for our stream.
    pub rtp_info: Option<RtpInfo>,
    /// How fast the title will really be shown; `None`: the server does not give it.
    pub scale: Option<Scale>,
}

impl PlayReply {
    /// Returns the same, with normal speed as the default.
    pub fn scale(&self) -> Scale {
        self.scale.unwrap_or(Scale::NORMAL)
    }
}

/// Header that reports the result of a request for another rendition.
const RENDITION_HEADER: &str = "X-Millrace-Rendition";

/// Events of the RTSP dialogue, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialogueEvent {
    /// DESCRIBE was answered; now call [`Dialogue::setup`].
    Described(Description),
    /// SETUP got 461: the server does not do this transport. Another may be tried with [`Dialogue::setup`].
    TransportRefused,
    /// SETUP was answered; now call [`Dialogue::play`].
    Ready(TransportReply),
    /// PLAY was answered: media begins with this.
    Playing(PlayReply),
    /// PAUSE was answered.
    Paused,
    /// The request for another rendition was answered: with what will happen, or with the status and the reason why it will not.
    Rendition(Result<String, (u16, String)>),
    /// TEARDOWN was answered.
    Down,
    /// The dialogue is over.
    Failed(RtspFailure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Options,
    Describe,
    Setup(TransportRequest),
    Play(Option<NptRange>, PlaybackPace),
    Pause,
    Rendition(RenditionName),
    KeepAlive,
    Teardown,
}

impl Ask {
    fn method(self, get_parameter: bool) -> &'static str {
        match self {
            Self::Options => "OPTIONS",
            Self::Describe => "DESCRIBE",
            Self::Setup(_) => "SETUP",
            Self::Play(..) => "PLAY",
            Self::Pause => "PAUSE",
            Self::Rendition(_) => "SET_PARAMETER",
            Self::KeepAlive if get_parameter => "GET_PARAMETER",
            Self::KeepAlive => "OPTIONS",
            Self::Teardown => "TEARDOWN",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct PendingReply {
    ask: Ask,
    method: &'static str,
    cseq: u32,
    deadline: Instant,
}

/// One RTSP session, seen from the player.
#[derive(Debug)]
pub struct Dialogue {
    config: DialogueConfig,
    phase: DialoguePhase,
    url: String,
    aggregate: String,
    control: String,
    session: Option<SessionHeader>,
    get_parameter: bool,
    cseq: u32,
    pending: Option<PendingReply>,
    queue: VecDeque<Ask>,
    last_sent: Instant,
    output: Vec<u8>,
    events: VecDeque<DialogueEvent>,
}

impl Dialogue {
    /// A dialogue about the title at `url`.
    pub fn new(config: DialogueConfig, url: &RtspUrl) -> Self {
        let url = url.to_string();
        Self {
            config,
            phase: DialoguePhase::Idle,
            aggregate: url.clone(),
            control: url.clone(),
            url,
            session: None,
            get_parameter: false,
            cseq: 0,
            pending: None,
            queue: VecDeque::new(),
            last_sent: Instant::default(),
            output: Vec::new(),
            events: VecDeque::new(),
        }
    }

    // ---- commands ----

    /// Begins with OPTIONS and DESCRIBE.
    pub fn start(&mut self, now: Instant) {
        if self.phase == DialoguePhase::Idle {
            self.phase = DialoguePhase::Asking;
            self.ask(now, Ask::Options);
        }
    }

    /// Asks for a transport; `false` unless the title has been described and there is no session yet.
    pub fn setup(&mut self, now: Instant, wanted: TransportRequest) -> bool {
        let allowed = self.phase == DialoguePhase::Described;
        if allowed {
            self.ask(now, Ask::Setup(wanted));
        }
        allowed
    }

    /// Plays `range`, or goes on where PAUSE stopped; `false` unless there is a session.
    pub fn play(&mut self, now: Instant, range: Option<NptRange>) -> bool {
        self.play_at(now, range, PlaybackPace::default())
    }

    /// The same at a speed.
    pub fn play_at(&mut self, now: Instant, range: Option<NptRange>, pace: PlaybackPace) -> bool {
        self.ask_in_session(now, Ask::Play(range, pace))
    }

    /// Pauses; `false` unless there is a session.
    pub fn pause(&mut self, now: Instant) -> bool {
        self.ask_in_session(now, Ask::Pause)
    }

    /// Asks for another rendition, or `auto`; `false` unless there is a session.
    pub fn set_rendition(&mut self, now: Instant, name: RenditionName) -> bool {
        self.ask_in_session(now, Ask::Rendition(name))
    }

    /// Ends the session; requests that wait are dropped. `false` if there is no session or it is ended already.
    pub fn teardown(&mut self, now: Instant) -> bool {
        let ends = |ask: Ask| ask == Ask::Teardown;
        if self.session.is_none()
            || self.phase == DialoguePhase::Down
            || self.pending.is_some_and(|p| ends(p.ask))
        {
            return false;
        }
        // A reply that is slow or never comes must not hold the farewell back.
        self.queue.clear();
        self.pending = None;
        self.ask(now, Ask::Teardown);
        true
    }

    // ---- arrivals ----

    /// Takes one message of the server.
    pub fn handle_message(&mut self, now: Instant, message: Message<Vec<u8>>) {
        match message {
            Message::Response(reply) => self.handle_reply(now, &reply),
            Message::Request(request) => self.answer(&request),
            Message::Data(_) => {}
        }
    }

    /// The bytes of the connection are not RTSP.
    pub fn handle_garbage(&mut self, what: String) {
        let method = self.pending.map_or("connection", |pending| pending.method);
        self.fail(RtspFailure::Malformed { method, what });
    }

    /// The server closed the connection.
    pub fn handle_closed(&mut self) {
        match self.pending {
            // Many servers close right behind, or instead of, their reply to TEARDOWN.
            Some(pending) if pending.ask == Ask::Teardown => self.down(),
            Some(pending) => self.fail(RtspFailure::Closed { method: pending.method }),
            None => self.fail(RtspFailure::Closed { method: "session" }),
        }
    }

    /// To be called at [`Self::poll_at`].
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(pending) = self.pending {
            if now >= pending.deadline {
                if pending.ask == Ask::Teardown {
                    self.down();
                } else {
                    let seconds = self.config.reply_timeout_ns / NS_PER_S;
                    self.fail(RtspFailure::NoReply { method: pending.method, seconds });
                }
            }
        } else if self.keep_alive_at().is_some_and(|at| now >= at) {
            self.ask(now, Ask::KeepAlive);
        }
    }

    /// Replies cannot be read now: their time-out begins again.
    pub fn postpone(&mut self, now: Instant) {
        if let Some(pending) = &mut self.pending {
            pending.deadline = pending.deadline.max(now.plus_ns(self.config.reply_timeout_ns));
        }
    }

    // ---- polls ----

    /// Bytes to write to the connection, appended to `out`.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.output);
    }

    /// What happened next.
    pub fn poll_event(&mut self) -> Option<DialogueEvent> {
        self.events.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_at(&self) -> Option<Instant> {
        self.pending.map(|pending| pending.deadline).or_else(|| self.keep_alive_at())
    }

    // ---- getters ----

    /// Where the session stands.
    pub fn phase(&self) -> DialoguePhase {
        self.phase
    }

    /// The session, once SETUP was answered.
    pub fn session(&self) -> Option<&SessionHeader> {
        self.session.as_ref()
    }

    /// Whether commands wait for a reply.
    pub fn is_busy(&self) -> bool {
        self.pending.is_some() || !self.queue.is_empty()
    }

    // ---- inside ----

    fn keep_alive_at(&self) -> Option<Instant> {
        let alive =
            matches!(self.phase, DialoguePhase::Ready | DialoguePhase::Playing | DialoguePhase::Paused);
        let session = self.session.as_ref().filter(|_| alive)?;
        Some(self.last_sent.plus_ns(session.timeout_ns / 2))
    }

    fn ask_in_session(&mut self, now: Instant, ask: Ask) -> bool {
        let allowed =
            matches!(self.phase, DialoguePhase::Ready | DialoguePhase::Playing | DialoguePhase::Paused);
        if allowed {
            self.ask(now, ask);
        }
        allowed
    }

    fn ask(&mut self, now: Instant, ask: Ask) {
        self.queue.push_back(ask);
        self.send_next(now);
    }

    fn send_next(&mut self, now: Instant) {
        if self.pending.is_some() {
            return;
        }
        let Some(ask) = self.queue.pop_front() else { return };
        self.cseq += 1;
        let method = ask.method(self.get_parameter);
        let url = match ask {
            Ask::Options | Ask::Describe => &self.url,
            Ask::Setup(_) => &self.control,
            Ask::KeepAlive | Ask::Play(..) | Ask::Pause | Ask::Rendition(_) | Ask::Teardown => {
                &self.aggregate
            }
        };
        let mut text = format!("{method} {url} RTSP/1.0\r\nCSeq: {}\r\n", self.cseq);
        if !self.config.user_agent.is_empty() {
            text.push_str(&format!("User-Agent: {}\r\n", self.config.user_agent));
        }
        match ask {
            Ask::Describe => text.push_str("Accept: application/sdp\r\n"),
            Ask::Setup(wanted) => {
                text.push_str(&format!("Transport: {wanted}\r\n"));
                if self.config.fec != FecChoice::Off && matches!(wanted, TransportRequest::Udp { .. }) {
                    text.push_str(&format!("{FEC_HEADER}: {}\r\n", self.config.fec));
                }
            }
            Ask::Play(range, pace) => {
                text.push_str(&range.map_or_else(String::new, |range| format!("Range: {range}\r\n")));
                text.push_str(&pace.to_string());
            }
            _ => {}
        }
        if let Some(session) = &self.session {
            text.push_str(&format!("Session: {}\r\n", session.id));
        }
        if let Ask::Rendition(name) = ask {
            let body = format!("rendition: {name}\r\n");
            text.push_str(&format!(
                "Content-Type: text/parameters\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        } else {
            text.push_str("\r\n");
        }
        self.output.extend_from_slice(text.as_bytes());
        self.last_sent = now;
        let deadline = now.plus_ns(self.config.reply_timeout_ns);
        self.pending = Some(PendingReply { ask, method, cseq: self.cseq, deadline });
    }

    /// Servers may ask too (RFC 2326 section 10): liveness checks get a 200, everything else a 501.
    fn answer(&mut self, request: &Request<Vec<u8>>) {
        let status = match request.method() {
            Method::Options | Method::GetParameter | Method::SetParameter => "200 OK",
            _ => "501 Not Implemented",
        };
        let cseq = request.header(&headers::CSEQ).map_or("0", |value| value.as_str());
        let cseq: u32 = cseq.trim().parse().unwrap_or(0);
        self.output.extend_from_slice(format!("RTSP/1.0 {status}\r\nCSeq: {cseq}\r\n\r\n").as_bytes());
    }

    fn handle_reply(&mut self, now: Instant, reply: &Response<Vec<u8>>) {
        let Some(pending) = self.pending else { return };
        let cseq = reply.header(&headers::CSEQ).and_then(|value| value.as_str().trim().parse::<u32>().ok());
        if cseq.is_some_and(|cseq| cseq != pending.cseq) {
            return; // late reply to a request that was given up
        }
        let status = u16::from(reply.status());
        if (100..200).contains(&status) {
            return; // the final reply is still to come
        }
        self.pending = None;
        if (200..300).contains(&status) {
            self.accept(now, pending, reply);
        } else {
            self.refused(now, pending, status, reply.reason_phrase());
        }
        if self.phase != DialoguePhase::Failed {
            self.send_next(now);
        }
    }

    fn accept(&mut self, now: Instant, pending: PendingReply, reply: &Response<Vec<u8>>) {
        match pending.ask {
            Ask::Options => {
                let public = reply.header(&headers::PUBLIC).map_or("", |value| value.as_str());
                self.get_parameter =
                    public.split(',').any(|method| method.trim().eq_ignore_ascii_case("GET_PARAMETER"));
                self.ask(now, Ask::Describe);
            }
            Ask::Describe => self.described(reply),
            Ask::Setup(wanted) => self.set_up(wanted, reply),
            Ask::Play(..) => {
                self.phase = DialoguePhase::Playing;
                let play = self.play_reply(reply);
                self.events.push_back(DialogueEvent::Playing(play));
            }
            Ask::Pause => {
                self.phase = DialoguePhase::Paused;
                self.events.push_back(DialogueEvent::Paused);
            }
            Ask::Rendition(_) => {
                let told =
                    reply.headers().find(|(name, _)| name.as_str().eq_ignore_ascii_case(RENDITION_HEADER));
                let told = told.map_or("", |(_, value)| value.as_str());
                self.events.push_back(DialogueEvent::Rendition(Ok(excerpt(told, 100))));
            }
            Ask::KeepAlive => {}
            Ask::Teardown => self.down(),
        }
    }

    fn refused(&mut self, now: Instant, pending: PendingReply, status: u16, reason: &str) {
        match (pending.ask, status) {
            // A server without OPTIONS can still be asked for the title.
            (Ask::Options, 400 | 404 | 405 | 500 | 501 | 551) => self.ask(now, Ask::Describe),
            (Ask::Setup(_), 461) => self.events.push_back(DialogueEvent::TransportRefused),
            // What plays goes on.
            (Ask::Rendition(_), 451 | 453 | 455) => {
                self.events.push_back(DialogueEvent::Rendition(Err((status, excerpt(reason, 100)))));
            }
            // The request was understood as a sign of life; only a lost session matters.
            (Ask::KeepAlive, status) if status != 454 => self.get_parameter = false,
            (Ask::Teardown, _) => self.down(),
            _ => {
                let reason = excerpt(reason, 100);
                let advice = advice_for(status);
                self.fail(RtspFailure::Status { method: pending.method, status, reason, advice });
            }
        }
    }

    fn described(&mut self, reply: &Response<Vec<u8>>) {
        let description = match sdp::parse(reply.body(), self.config.take) {
            Ok(description) => description,
            Err(what) => return self.fail(RtspFailure::NoMedia(what)),
        };
        // RFC 2326 section C.1.1: Content-Base, else Content-Location, else the request's URL.
        let base = [&headers::CONTENT_BASE, &headers::CONTENT_LOCATION]
            .iter()
            .filter_map(|name| reply.header(name).map(|value| value.as_str().trim()))
            .find(|base| base.contains("://") && base.bytes().all(|b| (0x21..=0x7e).contains(&b)))
            .unwrap_or(&self.url)
            .to_owned();
        self.aggregate = resolve_control(&base, description.session_control.as_deref());
        self.control = resolve_control(&base, description.control.as_deref());
        self.phase = DialoguePhase::Described;
        self.events.push_back(DialogueEvent::Described(description));
    }

    fn set_up(&mut self, wanted: TransportRequest, reply: &Response<Vec<u8>>) {
        let malformed = |what: String| RtspFailure::Malformed { method: "SETUP", what };
        let session = reply.header(&headers::SESSION).and_then(|value| SessionHeader::parse(value.as_str()));
        let Some(session) = session else {
            return self.fail(malformed("no Session header, or an empty one".to_owned()));
        };
        self.session = Some(session);
        let transport = reply.header(&headers::TRANSPORT).map_or("", |value| value.as_str());
        match TransportReply::parse(transport, wanted) {
            Ok(mut transport) => {
                self.phase = DialoguePhase::Ready;
                let mut headers = reply.headers();
                let grant = headers.find(|(name, _)| name.as_str().eq_ignore_ascii_case(FEC_HEADER));
                transport.fec = grant.map(|(_, value)| FecGrant::parse(value.as_str()));
                self.events.push_back(DialogueEvent::Ready(transport));
            }
            Err(what) => self.fail(malformed(what)),
        }
    }

    fn play_reply(&self, reply: &Response<Vec<u8>>) -> PlayReply {
        let range = reply.header(&headers::RANGE).and_then(|value| NptRange::parse(value.as_str()));
        let mut streams =
            reply.header(&headers::RTP_INFO).map(|value| parse_rtp_info(value.as_str())).unwrap_or_default();
        let ours = streams.iter().position(|stream| stream.url.trim_end_matches('/') == self.control);
        let rtp_info = if streams.is_empty() { None } else { Some(streams.swap_remove(ours.unwrap_or(0))) };
        let scale = reply.header(&headers::SCALE).and_then(|value| value.as_str().trim().parse().ok());
        PlayReply { range, rtp_info, scale }
    }

    fn down(&mut self) {
        self.pending = None;
        self.session = None;
        self.phase = DialoguePhase::Down;
        self.events.push_back(DialogueEvent::Down);
    }

    fn fail(&mut self, failure: RtspFailure) {
        self.pending = None;
        self.queue.clear();
        if !matches!(self.phase, DialoguePhase::Down | DialoguePhase::Failed) {
            self.phase = DialoguePhase::Failed;
            self.events.push_back(DialogueEvent::Failed(failure));
        }
    }
}

#[cfg(test)]
#[path = "dialogue_tests.rs"]
mod tests;
