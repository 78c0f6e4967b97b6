//! SETUP (RFC 2326 section 10.4): checks that there is room, and settles the way the packets will take.

use std::net::IpAddr;

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::time::Instant;
use millrace_offload::command::{Command, CompactDest};
use rtsp_types::Url;
use rtsp_types::headers::{RETRY_AFTER, SESSION, TRANSPORT, USER_AGENT};

use super::admission::Room;
use super::fec::{Granted, fec_header};
use super::notice::Notice;
use super::server::{ConnKey, Output, Server, SessionKey, bucket};
use super::state::{EndReason, Media, Path, Session, State};
use crate::rtsp::target::Target;
use crate::rtsp::transport::{self, Offer, Spec};
use crate::rtsp::{Reply, Request, target};
use crate::service::{Entry, OpenError};

/// When it is worth asking again for what cannot be had now: disks that are back are used within seconds.
const RETRY_AFTER_S: &str = "10";

/// A way that suits both sides.
#[derive(Clone, Copy)]
struct ChosenTransport {
    spec: Spec,
    path: Path,
}

impl Server {
    pub(super) fn setup(
        &mut self,
        now: Instant,
        conn: ConnKey,
        session: Option<SessionKey>,
        request: &Request,
    ) -> Reply {
        let Some(url) = request.request_uri() else { return Reply::status(400) };
        if target::parse(url).is_some_and(|target| target.title.is_empty()) {
            return Reply::error(459, "set up one title, not the folder of all");
        }
        if let Some(session) = session.and_then(|key| self.sessions.get(&key))
            && (session.state() == State::Playing || session.pending.is_some())
        {
            return self.wrong_state(Some(session.key));
        }
        let Some((_, entry)) = self.named(url) else { return Reply::error(404, "no such title") };
        if session.is_some_and(|key| self.sessions[&key].entry.name != entry.name) {
            return Reply::error(459, "a session plays one title; set up another session for this one");
        }
        if let Some(refusal) = self.refusal_if_lost(conn, &entry) {
            return refusal;
        }
        let Some(offers) = request.header(&TRANSPORT).map(|value| transport::parse(value.as_str())) else {
            return Reply::error(400, "Transport is missing");
        };
        // RFC 2326 section 12.39: the first that is acceptable. No Session header: GStreamer would go on using it.
        let Some(way) = offers.iter().find_map(|offer| self.way(conn, session, offer)) else {
            return Reply::error(461, "RTP/AVP by UDP unicast or RTP/AVP/TCP interleaved");
        };
        let granted = self.grant(request, entry.fec, way.path);
        // Parity protects packets of the default size.
        let entry = match granted {
            Granted::Possible { .. } => entry,
            Granted::Silent | Granted::Refused(_) => self.sized(entry, conn, way.path),
        };
        match self.admit(now, conn, session, &entry, way, granted, request) {
            Ok((key, fec)) => {
                let reply = self.setup_reply(key, way);
                if let Some(fec) = fec { reply.header(fec_header(), fec) } else { reply }
            }
            Err(reply) => reply,
        }
    }

    /// The title that a URL names, as a whole or by its one track.
    pub(super) fn named(&mut self, url: &Url) -> Option<(Target, Entry)> {
        let target = target::parse(url).filter(|target| target.track.is_none_or(|track| track == 1))?;
        let entry = self.library.find(&target.title)?;
        Some((target, entry))
    }

    /// The answer to a request for a title of which too much is lost; `None` if it can be played.
    pub(super) fn refusal_if_lost(&mut self, conn: ConnKey, entry: &Entry) -> Option<Reply> {
        let lost = self.library.lost(entry)?;
        Some(self.turned_away(conn, entry, 503, lost).header(RETRY_AFTER, RETRY_AFTER_S))
    }

    /// How an offer can be met; `None` if it cannot.
    fn way(&self, key: ConnKey, session: Option<SessionKey>, offer: &Offer) -> Option<ChosenTransport> {
        if offer.multicast || !offer.mode_is_play {
            return None;
        }
        let conn = self.conns.get(&key)?;
        let path = match offer.spec {
            Spec::Udp { .. } => {
                self.ports(conn.peer.ip())?;
                let (rtp_port, rtcp) = offer.client_port?;
                // One port: RTCP on the next one (RFC 3550 section 11).
                let rtcp_port = rtcp.filter(|&port| port != 0).or_else(|| rtp_port.checked_add(1))?;
                Path::Udp { rtp_port, rtcp_port }
            }
            Spec::Tcp => {
                let (rtp_channel, rtcp_channel) = self.channels(key, session, offer.interleaved)?;
                Path::Tcp { conn: key, rtp_channel, rtcp_channel }
            }
            Spec::Unknown => return None,
        };
        Some(ChosenTransport { spec: offer.spec, path })
    }

    /// The title in the largest packets that the way to the viewer carries. Through a connection, where packets cross
    /// every path in pieces anyway, it is the default size.
    fn sized(&mut self, entry: Entry, key: ConnKey, path: Path) -> Entry {
        let (Path::Udp { rtp_port, .. }, Some(conn)) = (path, self.conns.get(&key)) else { return entry };
        if self.config.packet_sizes.is_default_only() {
            return entry;
        }
        let mut dest = conn.peer;
        dest.set_port(rtp_port);
        let size = self.config.packet_sizes.choose(dest, (self.config.path_mtu)(dest));
        self.library.sized(&entry, size).unwrap_or(entry)
    }

    /// The channels asked for if they are free on this connection, else the first free even pair: the reply tells.
    fn channels(
        &self,
        key: ConnKey,
        session: Option<SessionKey>,
        asked: Option<(u8, Option<u8>)>,
    ) -> Option<(u8, u8)> {
        let mut taken = [false; 256];
        for other in self.conns.get(&key)?.sessions.iter().filter(|other| Some(**other) != session) {
            if let Some(Session { path: Path::Tcp { conn, rtp_channel, rtcp_channel }, .. }) =
                self.sessions.get(other)
                && *conn == key
            {
                taken[usize::from(*rtp_channel)] = true;
                taken[usize::from(*rtcp_channel)] = true;
            }
        }
        let free =
            |(rtp, rtcp): &(u8, u8)| rtp != rtcp && !taken[usize::from(*rtp)] && !taken[usize::from(*rtcp)];
        asked
            .and_then(|(rtp, rtcp)| Some((rtp, rtcp.or_else(|| rtp.checked_add(1))?)))
            .filter(free)
            .or_else(|| (0..=254).step_by(2).map(|rtp| (rtp, rtp + 1)).find(free))
    }

    /// The server's own UDP ports as a viewer at `ip` sees them.
    fn ports(&self, ip: IpAddr) -> Option<(u16, u16)> {
        if ip.is_ipv4() { self.config.ports_v4 } else { self.config.ports_v6 }
    }

    /// Takes everything that the session needs before it plays, or nothing. Returns it and what the reply says about FEC.
    #[allow(clippy::too_many_arguments)] // each is a different type: none can take another's place
    fn admit(
        &mut self,
        now: Instant,
        conn: ConnKey,
        session: Option<SessionKey>,
        entry: &Entry,
        way: ChosenTransport,
        granted: Granted,
        request: &Request,
    ) -> Result<(SessionKey, Option<String>), Reply> {
        self.replace_others(now, conn, session, way.path);
        let room = self.room(now, conn, session, entry, way.path)?;
        let id = match session {
            Some(_) => None,
            None => Some(
                self.new_session_id()
                    .ok_or_else(|| Reply::error(503, "the system gives no random numbers"))?,
            ),
        };
        let title = self.open_title(conn, entry)?;
        if let Path::Tcp { .. } = way.path
            && let Err(reply) = self.attach(conn, room.engine)
        {
            self.library.close(title);
            return Err(reply);
        }
        let Some(stream) = self.stream_for(room.engine, title) else {
            return Err(Reply::error(453, "all streams are in use")); // room() has seen one
        };
        let key = match (session, id) {
            (None, Some(id)) => self.begin_session(now, conn, id, entry, title, way, room, stream, request),
            (Some(key), _) => {
                self.move_session(now, key, conn, entry, title, way, room, stream);
                key
            }
            (None, None) => return Err(Reply::status(500)),
        };
        let fec = self.begin_fec(key, granted);
        self.open_stream(key);
        Ok((key, fec))
    }

    /// Two titles at one UDP port are no use to anybody: a box that was switched off and on again, or changes the channel
    /// without TEARDOWN, asks for the same ports, and its old session ends.
    fn replace_others(&mut self, now: Instant, conn: ConnKey, session: Option<SessionKey>, path: Path) {
        let (Path::Udp { rtp_port: wanted, rtcp_port }, Some(conn)) = (path, self.conns.get(&conn)) else {
            return;
        };
        let ip = conn.peer.ip();
        self.clear_fec_ports(now, session, ip, [wanted, rtcp_port]);
        let Some(others) = self.by_udp.get(&(ip, wanted)) else { return };
        let same_port = |key: &SessionKey| {
            let path = self.sessions.get(key).map(|session| session.path);
            matches!(path, Some(Path::Udp { rtp_port, .. }) if rtp_port == wanted) && Some(*key) != session
        };
        let replaced: Vec<_> = others.iter().copied().filter(same_port).collect();
        for key in replaced {
            self.end_session(now, key, EndReason::Replaced);
        }
    }

    pub(super) fn turned_away(&mut self, conn: ConnKey, entry: &Entry, status: u16, reason: String) -> Reply {
        self.counters.refused_full += u64::from(status == 453);
        let reply = Reply::error(status, &reason).logged();
        if let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) {
            self.notice(Notice::Refused { peer, title: entry.name.clone(), status, reason });
        }
        reply
    }

    /// 128 unpredictable bits, in hexadecimal.
    fn new_session_id(&mut self) -> Option<Box<str>> {
        let id: String = self.entropy.bytes16()?.iter().map(|byte| format!("{byte:02x}")).collect();
        (!self.by_id.contains_key(id.as_str())).then(|| id.into_boxed_str())
    }

    fn open_title(&mut self, conn: ConnKey, entry: &Entry) -> Result<TitleRef, Reply> {
        match self.library.open(entry) {
            Ok(title) => Ok(title),
            Err(OpenError::MembersLost(lost)) => {
                Err(self.turned_away(conn, entry, 503, lost).header(RETRY_AFTER, RETRY_AFTER_S))
            }
            Err(error) => {
                let status = if error == OpenError::Full { 503 } else { 500 };
                self.notice(Notice::Broken { title: entry.name.clone(), reason: error.to_string() });
                let reply = Reply::error(status, "the title cannot be played now");
                Err(if status == 503 { reply.header(RETRY_AFTER, RETRY_AFTER_S) } else { reply })
            }
        }
    }

    /// A place in the engine for a title that has just been opened; if there is none, the title is closed again.
    pub(super) fn stream_for(&mut self, engine: usize, title: TitleRef) -> Option<StreamId> {
        let stream = self.slots[engine].take_stream();
        if stream.is_none() {
            self.library.close(title);
        }
        stream
    }

    /// Lets the engine write to the connection, if it does not already.
    fn attach(&mut self, key: ConnKey, engine: usize) -> Result<(), Reply> {
        let Some(conn) = self.conns.get_mut(&key) else { return Err(Reply::status(500)) };
        if conn.attached.is_none() {
            let Some(id) = self.slots[engine].take_conn() else {
                return Err(Reply::error(453, "all interleaved connections of the engine are in use"));
            };
            conn.attached = Some((engine, id));
            self.outputs.push_back(Output::Attach { conn: key, engine, id });
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // each is a different type: none can take another's place
    fn begin_session(
        &mut self,
        now: Instant,
        conn: ConnKey,
        id: Box<str>,
        entry: &Entry,
        title: TitleRef,
        way: ChosenTransport,
        room: Room,
        stream: StreamId,
        request: &Request,
    ) -> SessionKey {
        let key = SessionKey(self.new_key());
        let peer = self.conns.get_mut(&conn).map(|conn| {
            conn.sessions.push(key);
            conn.peer
        });
        let peer = peer.expect("room() has seen the connection");
        let session = Session {
            key,
            id: id.clone(),
            entry: entry.clone(),
            title,
            peer,
            path: way.path,
            owner: Some(conn),
            engine: room.engine,
            stream,
            last_run: RunSerial(0),
            rate: room.rate,
            is_reserved: false,
            idle_since: now,
            media: Media::Fresh,
            pending: None,
            fec: None,
            url: request.request_uri().map(|url| target::plain(url).to_string()).unwrap_or_default(),
            last_heard: now,
            started: now,
            said_bye: false,
            report: None,
        };
        self.counters.sessions_started += 1;
        let agent = request.header(&USER_AGENT).map(|value| value.as_str().chars().take(80).collect());
        let transport = match way.path {
            Path::Udp { rtp_port, rtcp_port } => format!("udp {rtp_port}-{rtcp_port}"),
            Path::Tcp { rtp_channel, rtcp_channel, .. } => {
                format!("tcp channels {rtp_channel}-{rtcp_channel}")
            }
        };
        let (short, title) = (session.short_id(), entry.name.clone());
        self.notice(Notice::Started { session: short, title, peer, transport, agent });
        self.slots[room.engine].rate += room.rate;
        self.usage.entry(bucket(peer.ip())).or_default().sessions += 1;
        self.by_id.insert(id, key);
        self.idle.insert((now, key));
        self.sessions.insert(key, session);
        key
    }

    /// A second SETUP: the session keeps its name and its place in the title, its stream is rebuilt.
    #[allow(clippy::too_many_arguments)] // each is a different type: none can take another's place
    fn move_session(
        &mut self,
        now: Instant,
        key: SessionKey,
        conn: ConnKey,
        entry: &Entry,
        title: TitleRef,
        way: ChosenTransport,
        room: Room,
        stream: StreamId,
    ) {
        self.retire_stream(now, key, None);
        let was_reserved = self.sessions.get(&key).is_some_and(|session| session.is_reserved);
        self.release_reservation(key);
        let Some(peer) = self.conns.get_mut(&conn).map(|conn| {
            if !conn.sessions.contains(&key) {
                conn.sessions.push(key);
            }
            conn.peer
        }) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&key) else { return };
        if let Some(old) = session.owner.filter(|&old| old != conn)
            && let Some(old) = self.conns.get_mut(&old)
        {
            old.sessions.retain(|other| *other != key);
        }
        // Sessions are counted where they were made: the count must go back to the same address.
        let (from, to) = (bucket(session.peer.ip()), bucket(peer.ip()));
        self.slots[session.engine].rate -= session.rate;
        self.slots[room.engine].rate += room.rate;
        if matches!(session.media, Media::Pausing(_)) {
            session.media = Media::Fresh; // the stream that could have said where it stopped is gone
            session.idle_since = now;
        }
        session.media = session.media.in_size_of(&session.entry, entry);
        (session.entry, session.title, session.path) = (entry.clone(), title, way.path);
        (session.engine, session.stream, session.rate) = (room.engine, stream, room.rate);
        (session.peer, session.owner, session.fec) = (peer, Some(conn), None);
        if from != to {
            self.usage.entry(to).or_default().sessions += 1;
            self.release_usage(from, |usage| &mut usage.sessions);
        }
        // A session that had paused only just now keeps its reservation; room() has seen that it fits.
        if was_reserved {
            self.take_reservation(key);
        }
    }

    /// Tells the engine about the session's stream, and makes it findable.
    pub(super) fn open_stream(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get(&key) else { return };
        let (engine, stream, ip) = (session.engine, session.stream, session.peer.ip());
        let scope_id = session.scope_id();
        let mut ports = Vec::new();
        let dest = match session.path {
            Path::Udp { rtp_port, rtcp_port } => {
                ports.extend([rtp_port, rtcp_port]);
                CompactDest::Udp { ip, scope_id, rtp_port, rtcp_port }
            }
            Path::Tcp { conn, rtp_channel, rtcp_channel } => {
                let Some((_, conn)) = self.conns.get(&conn).and_then(|conn| conn.attached) else { return };
                CompactDest::Tcp { conn, rtp_channel, rtcp_channel }
            }
        };
        let command = Command::Open { stream, dest, quiet: false };
        self.by_stream.insert((engine, stream), key);
        ports.dedup();
        for port in ports {
            self.by_udp.entry((ip, port)).or_default().push(key);
        }
        self.command(engine, command);
    }

    fn setup_reply(&self, key: SessionKey, way: ChosenTransport) -> Reply {
        let Some(session) = self.sessions.get(&key) else { return Reply::status(500) };
        let ssrc = session.entry.timeline.ssrc;
        let spec = way.spec.as_str();
        let transport = match way.path {
            Path::Udp { rtp_port, rtcp_port } => {
                let (rtp, rtcp) = self.ports(session.peer.ip()).unwrap_or_default();
                format!(
                    "{spec};unicast;client_port={rtp_port}-{rtcp_port};server_port={rtp}-{rtcp};ssrc={ssrc:08X};mode=\"PLAY\""
                )
            }
            Path::Tcp { rtp_channel, rtcp_channel, .. } => {
                format!(
                    "{spec};unicast;interleaved={rtp_channel}-{rtcp_channel};ssrc={ssrc:08X};mode=\"PLAY\""
                )
            }
        };
        Reply::ok()
            .header(SESSION, format!("{};timeout={}", session.id, self.config.session_timeout_s()))
            .header(TRANSPORT, transport)
    }
}
