//! SETUP (RFC 2326 section 10.4): settles the way the packets will take, and asks the service for a stream on it.

use std::net::{IpAddr, SocketAddr};

use millrace_core::source::SourceId;
use millrace_core::time::Instant;
use rtsp_types::Url;
use rtsp_types::headers::{SESSION, TRANSPORT, USER_AGENT};

use super::fec::{fec_header, off_because, wish};
use super::listen::wants_cast;
use super::refusal::refusal_reply;
use super::rendition;
use super::server::{RtspFace, SessionConn, transform_header};
use super::state::{ReceivedRequest, Session, SessionState, short};
use crate::rtsp::target::RequestTarget;
use crate::rtsp::transport::{self, Lower, MediaForm, Offer, Spec};
use crate::rtsp::{Reply, target};
use crate::service::{self, ConnKey, PlaybackStream, StreamKey, StreamPath, TitleEntry, Which};

/// A way that suits both sides.
#[derive(Clone, Copy)]
struct ChosenTransport {
    spec: Spec,
    path: StreamPath,
}

impl RtspFace<'_> {
    pub(super) fn setup(
        &mut self,
        received: ReceivedRequest<'_>,
        session: Option<StreamKey>,
    ) -> Result<Reply, Reply> {
        let ReceivedRequest { now, conn, request } = received;
        let url = request.request_uri().ok_or_else(|| Reply::status(400))?;
        if target::parse(url).is_some_and(|target| target.title.is_empty()) {
            return Err(Reply::error(459, "set up one title, not the folder of all"));
        }
        let is_busy = |key| self.service.stream(key).is_some_and(PlaybackStream::is_busy);
        let plays = |key| self.state_of(key) == Some(SessionState::Playing);
        if session.is_some_and(|key| plays(key) || is_busy(key)) {
            return Err(self.wrong_state(session));
        }
        let (_, entry) = self.named(now, conn, url)?;
        let transform_of = |key| self.service.stream(key).and_then(|stream| stream.entry().transform.clone());
        let is_other = |key| {
            self.service.title_of(key) != Some(entry.name.as_str()) || transform_of(key) != entry.transform
        };
        if session.is_some_and(is_other) {
            return Err(Reply::error(459, "a session plays one title; set up another session for this one"));
        }
        self.refuse_if_lost(conn, &entry)?;
        let offers = request.header(&TRANSPORT).map(|value| transport::parse(value.as_str()));
        let offers = offers.ok_or_else(|| Reply::error(400, "Transport is missing"))?;
        // RFC 2326 section 12.39: the first that is acceptable. No Session header: GStreamer would go on using it.
        let listens = self.is_listener(session);
        let unicast = |offer: &Offer| !listens && self.way(conn, session, &entry, offer).is_some();
        let first = offers.iter().position(|offer| wants_cast(offer) || unicast(offer));
        let mut no_cast = None;
        if let Some(offer) = first.and_then(|first| offers.get(first)).filter(|offer| wants_cast(offer)) {
            match self.setup_listener(received, session, entry.clone(), offer) {
                Err(refusal) if refusal.code() == 461 => no_cast = Some(refusal),
                done => return done,
            }
        }
        if listens {
            return Err(
                no_cast.unwrap_or_else(|| Reply::error(461, "a session stays multicast; set up another one"))
            );
        }
        let ways = || offers.iter().filter_map(|offer| self.way(conn, session, &entry, offer));
        let is_free =
            |way: &ChosenTransport| self.service.port_in_use(now, session, Some(conn), way.path).is_none();
        // If all of them need ports of other viewers, admission refuses the first one and names the
        // port.
        let way = ways().find(is_free).or_else(|| ways().next());
        let way = way.ok_or_else(|| no_cast.unwrap_or_else(|| Reply::error(461, self.possible(conn))))?;
        let entry = if way.spec.media == MediaForm::Raw { entry.raw() } else { Some(entry) };
        let entry = entry.ok_or_else(|| Reply::status(500))?; // way() has seen it
        let (key, fec) = self.admit(received, session, entry, way)?;
        let reply = self.setup_reply(key, way, self.called_address(conn, url));
        Ok(if let Some(fec) = fec { reply.header(fec_header(), fec) } else { reply })
    }

    /// Returns the title that a URL names, as a whole or by its one track; or the reply to a
    /// request for it.
    pub(super) fn named(
        &mut self,
        now: Instant,
        conn: ConnKey,
        url: &Url,
    ) -> Result<(RequestTarget, TitleEntry), Reply> {
        let no_title = || Reply::error(404, "no such title");
        let target = target::parse(url).filter(|target| target.track.is_none_or(|track| track == 1));
        let target = target.ok_or_else(no_title)?;
        self.service.prepare(now, conn, &target.title).map_err(|refusal| refusal_reply(&refusal))?;
        let entry = self.service.find(&target.title).filter(|entry| !entry.is_made);
        let entry = entry.ok_or_else(no_title)?;
        let Some(name) = target::query(url, target::TRANSFORM) else { return Ok((target, entry)) };
        let entry = self.service.transformed(&entry, &name);
        Ok((target, entry.ok_or_else(|| Reply::error(404, "no transformation of that name"))?))
    }

    /// Refuses a title that has lost too much to be played.
    pub(super) fn refuse_if_lost(&mut self, conn: ConnKey, entry: &TitleEntry) -> Result<(), Reply> {
        let checked = self.service.check_members(entry);
        checked.map_err(|refusal| self.refuse(conn, &entry.name, &refusal))
    }

    /// Returns the transports that a connection can ask for.
    fn possible(&self, conn: ConnKey) -> &'static str {
        match self.conns.get(&conn) {
            Some(conn) if conn.is_encrypted => {
                "RTP/AVP/TCP interleaved: by UDP the media would not be encrypted as this connection is"
            }
            _ if self.service.bound_to(conn).is_some() => {
                "RTP/AVP/TCP interleaved: no UDP comes from the address of this connection"
            }
            _ => {
                "RTP/AVP, MP2T/RTP/UDP, MP2T/UDP or RAW/RAW/UDP by UDP unicast, or RTP/AVP/TCP or MP2T/TCP interleaved"
            }
        }
    }

    /// How an offer can be met; `None` if it cannot.
    fn way(
        &self,
        key: ConnKey,
        session: Option<StreamKey>,
        entry: &TitleEntry,
        offer: &Offer,
    ) -> Option<ChosenTransport> {
        if offer.multicast || !offer.mode_is_play {
            return None;
        }
        let conn = self.conns.get(&key)?;
        // Packets by UDP are the kernel's: they would come from another address than the one that the viewer has called.
        let is_interleaved_only = conn.is_encrypted || self.service.bound_to(key).is_some();
        if offer.spec.lower == Lower::Udp && is_interleaved_only {
            return None;
        }
        if offer.spec.media == MediaForm::Raw {
            entry.raw()?;
        }
        let path = match offer.spec.lower {
            Lower::Udp => {
                self.ports(conn.peer.ip())?;
                let (port, rtcp) = offer.client_port?;
                let rtcp_port = match offer.spec.media {
                    // If only one port is given, RTCP uses the next one (RFC 3550 section 11).
                    MediaForm::Rtp => Some(rtcp.filter(|&port| port != 0).or_else(|| port.checked_add(1))?),
                    // No RTCP belongs to raw media, whatever the second port is for.
                    MediaForm::Raw => None,
                };
                let to = SocketAddr::new(conn.peer.ip(), port);
                StreamPath::udp(to, rtcp_port).with_source(self.source_for(conn))
            }
            Lower::Interleaved => {
                let (rtp_channel, rtcp_channel) = self.channels(key, session, offer.interleaved)?;
                StreamPath::Interleaved { conn: key, rtp_channel, rtcp_channel }
            }
        };
        Some(ChosenTransport { spec: offer.spec, path })
    }

    /// Returns the requested channels if they are free on this connection, else the first free even
    /// pair: the reply names them.
    fn channels(
        &self,
        key: ConnKey,
        session: Option<StreamKey>,
        asked: Option<(u8, Option<u8>)>,
    ) -> Option<(u8, u8)> {
        let mut taken = [false; 256];
        let others = self.service.streams_of(key).iter().filter(|other| Some(**other) != session);
        for other in others.filter_map(|other| self.service.stream(*other)) {
            if let StreamPath::Interleaved { conn, rtp_channel, rtcp_channel } = other.path()
                && conn == key
            {
                taken[usize::from(rtp_channel)] = true;
                taken[usize::from(rtcp_channel)] = true;
            }
        }
        let free =
            |(rtp, rtcp): &(u8, u8)| rtp != rtcp && !taken[usize::from(*rtp)] && !taken[usize::from(*rtcp)];
        asked
            .and_then(|(rtp, rtcp)| Some((rtp, rtcp.or_else(|| rtp.checked_add(1))?)))
            .filter(free)
            .or_else(|| (0..=254).step_by(2).map(|rtp| (rtp, rtp + 1)).find(free))
    }

    /// The source of datagrams to the viewer on this connection: the address that the viewer
    /// connected to. Routers, firewalls and players drop datagrams from other addresses.
    fn source_for(&self, conn: &SessionConn) -> SourceId {
        let called = conn.local.ip();
        if called.is_unspecified() || (self.config.route_source)(conn.peer).is_none_or(|ip| ip == called) {
            return SourceId::BY_ROUTE;
        }
        self.config.sources.row_of(called)
    }

    /// The server's own UDP ports as a viewer at `ip` sees them.
    fn ports(&self, ip: IpAddr) -> Option<(u16, u16)> {
        if ip.is_ipv4() { self.config.ports_v4 } else { self.config.ports_v6 }
    }

    /// Admits the session, new or with another transport, and returns the reply's FEC part.
    fn admit(
        &mut self,
        ReceivedRequest { now, conn, request }: ReceivedRequest<'_>,
        session: Option<StreamKey>,
        entry: TitleEntry,
        way: ChosenTransport,
    ) -> Result<(StreamKey, Option<String>), Reply> {
        let Some((viewer, visitor)) = self.conns.get(&conn).map(|conn| (conn.peer, &conn.visitor)) else {
            return Err(Reply::status(500));
        };
        let quota = self.config.gate.as_ref().and_then(|gate| gate.quota(visitor));
        let (which, id) = match session {
            Some(key) => (Which::Moved(key), None),
            None => {
                let id = self
                    .new_session_id()
                    .ok_or_else(|| Reply::error(503, "the system gives no random numbers"))?;
                let agent =
                    request.header(&USER_AGENT).map(|value| value.as_str().chars().take(80).collect());
                (Which::New { label: short(&id), agent }, Some(id))
            }
        };
        let title = entry.name.clone();
        let (fec, rendition) = (wish(request), rendition::wish(request));
        let asked = service::StreamRequest {
            which,
            viewer,
            conn: Some(conn),
            entry,
            path: way.path,
            fec,
            rendition,
            quota,
            segment: None,
        };
        let admitted = self.service.admit(now, asked).map_err(|refusal| {
            self.drain_service(now);
            self.refuse(conn, &title, &refusal)
        })?;
        let key = admitted.stream;
        if let Some(id) = id {
            let url = request.request_uri().map(|url| target::plain(url).to_string()).unwrap_or_default();
            self.by_id.insert(id.clone(), key);
            self.sessions.insert(key, Session::new(id, url));
        }
        self.drain_service(now);
        let fec = match admitted.fec {
            None => None,
            Some(Ok(())) => self.service.stream(key).and_then(PlaybackStream::fec_grant),
            Some(Err(refusal)) => Some(off_because(&refusal)),
        };
        Ok((key, fec))
    }

    /// 128 unpredictable bits, in hexadecimal.
    pub(super) fn new_session_id(&mut self) -> Option<Box<str>> {
        let id: String = self.entropy.bytes16()?.iter().map(|byte| format!("{byte:02x}")).collect();
        (!self.by_id.contains_key(id.as_str())).then(|| id.into_boxed_str())
    }

    /// The local address of the connection, if the viewer's URL has the same one. Behind NAT it
    /// differs, and reports that players send to the local address would be lost.
    fn called_address(&self, conn: ConnKey, url: &Url) -> Option<IpAddr> {
        let local = self.conns.get(&conn)?.local.ip();
        let host = url.host_str()?.trim_matches(['[', ']']).parse::<IpAddr>().ok()?;
        (host == local).then_some(local)
    }

    fn setup_reply(&self, key: StreamKey, way: ChosenTransport, source: Option<IpAddr>) -> Reply {
        let (Some(session), Some(stream)) = (self.sessions.get(&key), self.service.stream(key)) else {
            return Reply::status(500);
        };
        let ssrc = stream.ssrc();
        let spec = way.spec.as_str();
        let transport = match way.path {
            StreamPath::Udp { port, rtcp_port, .. } => {
                let (media, rtcp) = self.ports(stream.viewer().ip()).unwrap_or_default();
                let source = source.map(|ip| format!(";source={ip}")).unwrap_or_default();
                let unicast = format!("{spec};unicast;client_port={port}");
                match rtcp_port {
                    Some(rtcp_port) => format!(
                        "{unicast}-{rtcp_port};server_port={media}-{rtcp};ssrc={ssrc:08X}{source};mode=\"PLAY\""
                    ),
                    None => format!("{unicast};server_port={media}{source};mode=\"PLAY\""),
                }
            }
            // Nothing else is offered.
            StreamPath::Bytes { .. } | StreamPath::Multicast { .. } => return Reply::status(500),
            StreamPath::Interleaved { rtp_channel, rtcp_channel, .. } => {
                let channels = format!("{spec};unicast;interleaved={rtp_channel}-{rtcp_channel}");
                match way.spec.media {
                    MediaForm::Rtp => format!("{channels};ssrc={ssrc:08X};mode=\"PLAY\""),
                    MediaForm::Raw => format!("{channels};mode=\"PLAY\""),
                }
            }
        };
        let reply = Reply::ok()
            .header(SESSION, format!("{};timeout={}", session.id, self.config.session_timeout_s()))
            .header(TRANSPORT, transport);
        match &stream.entry().transform {
            Some(of) => reply.header(transform_header(), of.name.to_string()),
            None => reply,
        }
    }
}
