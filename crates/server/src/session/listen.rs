//! Multicast (RFC 2326 section 12.39): SETUP and PLAY of viewers that listen to the cast of a live title.
//!
//! The server alone chooses group and ports: a `destination` of the client would let it send packets to others. A viewer by IPv4 gets a
//! group of IPv4, one by IPv6 a group of IPv6.

use millrace_core::scale::Scale;
use millrace_core::time::Instant;
use rtsp_types::headers::{RANGE, SESSION, USER_AGENT};

use super::play::wish;
use super::refusal::refusal_reply;
use super::server::RtspFace;
use super::state::{ReceivedRequest, Session, SessionState, short};
use crate::rtsp::transport::{Lower, MediaForm, Offer};
use crate::rtsp::{Reply, target};
use crate::sdp::LIVE_RANGE;
use crate::service::{GroupAddress, ListenRequest, Refusal, Speed, StreamKey, TitleEntry};

/// Whether a client asks for multicast in a form that there is.
pub(super) fn wants_cast(offer: &Offer) -> bool {
    let spec = offer.spec;
    offer.multicast && offer.mode_is_play && spec.media == MediaForm::Rtp && spec.lower == Lower::Udp
}

impl RtspFace<'_> {
    /// SETUP of a viewer that listens.
    pub(super) fn setup_listener(
        &mut self,
        received: ReceivedRequest<'_>,
        session: Option<StreamKey>,
        entry: TitleEntry,
        offer: &Offer,
    ) -> Result<Reply, Reply> {
        let ReceivedRequest { now, conn, request } = received;
        let state = self.conns.get(&conn).ok_or_else(|| Reply::status(500))?;
        if state.is_encrypted {
            return Err(Reply::error(
                461,
                "by multicast the media would not be encrypted as this connection is",
            ));
        }
        let key = match session {
            Some(key) if self.service.listener(key).is_some() => key,
            Some(_) => return Err(Reply::error(461, "a session stays unicast; set up another one")),
            None => {
                let (viewer, title) = (state.peer, entry.name.clone());
                let quota = self.config.gate.as_ref().and_then(|gate| gate.quota(&state.visitor));
                let id = self
                    .new_session_id()
                    .ok_or_else(|| Reply::error(503, "the system gives no random numbers"))?;
                let agent =
                    request.header(&USER_AGENT).map(|value| value.as_str().chars().take(80).collect());
                let asked = ListenRequest { label: short(&id), agent, viewer, conn, entry, quota };
                let admitted = self.service.listen(now, asked);
                self.drain_service(now);
                let key = admitted.map_err(|refusal| self.refuse(conn, &title, &refusal))?;
                let url = request.request_uri().map(|url| target::plain(url).to_string()).unwrap_or_default();
                self.by_id.insert(id.clone(), key);
                self.sessions.insert(key, Session::new(id, url));
                key
            }
        };
        let (Some(session), Some((to, ssrc))) = (self.sessions.get(&key), self.service.listens_to(key))
        else {
            return Err(Reply::status(500));
        };
        let GroupAddress { group, port } = to;
        let ttl = self.config.service.multicast.as_ref().map_or(0, |groups| groups.ttl);
        let transport = format!(
            "{};multicast;destination={group};port={port}-{};ttl={ttl};ssrc={ssrc:08X};mode=\"PLAY\"",
            offer.spec.as_str(),
            port + 1
        );
        let timeout = self.config.session_timeout_s();
        Ok(Reply::ok()
            .header(SESSION, format!("{};timeout={timeout}", session.id))
            .header(rtsp_types::headers::TRANSPORT, transport))
    }

    /// PLAY of a viewer that listens. There is no `RTP-Info`: others may have started the cast, and a number that does not fit is worse
    /// than none.
    pub(super) fn play_listener(
        &mut self,
        received: ReceivedRequest<'_>,
        session: Option<StreamKey>,
    ) -> Reply {
        let ReceivedRequest { now, conn, request } = received;
        let Some(key) = session else { return self.wrong_state(None) };
        let asks = match wish(request) {
            Ok((_, asks)) => asks,
            Err(refusal) => return self.with_session(refusal, Some(key)),
        };
        let played = self.service.play_listener(now, key);
        self.drain_service(now);
        match played {
            Ok(()) => {
                let reply = asks.answer(Reply::ok().header(RANGE, LIVE_RANGE), Scale::NORMAL, Speed::NORMAL);
                self.with_session(reply, Some(key))
            }
            Err(Refusal::Gone) => self.with_session(refusal_reply(&Refusal::Gone), Some(key)),
            Err(refusal) => {
                let title = self.service.title_of(key).unwrap_or_default().to_owned();
                let reply = self.refuse(conn, &title, &refusal);
                self.with_session(reply, Some(key))
            }
        }
    }

    /// PAUSE of a viewer that listens: others go on.
    pub(super) fn pause_listener(&mut self, now: Instant, session: Option<StreamKey>) -> Reply {
        if let Some(key) = session {
            self.service.pause_listener(now, key);
        }
        self.drain_service(now);
        self.with_session(Reply::ok(), session)
    }

    /// Whether a session has no stream of its own.
    pub(super) fn is_listener(&self, session: Option<StreamKey>) -> bool {
        session.is_some_and(|key| self.service.listener(key).is_some())
    }

    /// The state of a session, with a stream of its own or not.
    pub(super) fn state_of(&self, key: StreamKey) -> Option<SessionState> {
        let listener = self.service.listener(key).map(|listener| match listener.is_playing() {
            true => SessionState::Playing,
            false => SessionState::Ready,
        });
        self.service.stream(key).map(SessionState::of).or(listener)
    }
}
