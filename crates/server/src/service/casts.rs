//! Casts that viewers start: one stream to a group for all viewers of a live title that can receive it there.
//!
//! ```text
//!   listen ─► Listener ─┐                       ┌─ the group of the title: GroupRange, by its name
//!   listen ─► Listener ─┼─► Cast (title, family)┤
//!                       │                       └─ PlaybackStream to Dest::Multicast, while a listener plays
//!   no listener plays ──┴─► it pauses;   the last one leaves ─► it ends
//! ```
//!
//! A cast is admitted once, as a stream that no user has. Its listeners are counted for their users, their addresses and the title, like
//! viewers with streams of their own.

use millrace_core::ids::MulticastId;
use millrace_core::time::Instant;
use millrace_rights::Quota;

use super::config::ServiceConfig;
use super::event::ServiceEvent;
use super::groups::GroupAddress;
use super::keys::{ConnKey, StreamKey, StreamPath};
use super::listeners::{Cast, CastKey, CastNotice, CastStatus, Listener};
use super::matrix::FecWish;
use super::play::{PlayRequest, Played};
use super::ports::TitleEntry;
use super::refusal::{MulticastRefusal, Refusal};
use super::request::{StreamRequest, Which};
use super::run::DeliveryState;
use super::seek::{From, Span};
use super::state::Service;
use super::stream::EndReason;
use crate::limits::cast::CAST_RETRY_NS;

/// A viewer's request to listen to the cast of a title.
#[derive(Debug)]
pub struct ListenRequest {
    /// What log lines call it.
    pub label: String,
    /// The name that the viewer's program gives itself.
    pub agent: Option<String>,
    /// The viewer.
    pub viewer: std::net::SocketAddr,
    /// The connection of the request.
    pub conn: ConnKey,
    /// The title.
    pub entry: TitleEntry,
    /// What its user may have.
    pub quota: Option<Quota>,
}

fn socket_address(to: GroupAddress) -> std::net::SocketAddr {
    std::net::SocketAddr::new(to.group, to.port)
}

impl Service {
    /// The group of a title for viewers of one family. A title keeps it for as long as it is there.
    ///
    /// # Errors
    /// [`MulticastRefusal`].
    pub fn group_of(&mut self, entry: &TitleEntry, is_v4: bool) -> Result<GroupAddress, MulticastRefusal> {
        let groups = self.config.multicast.as_ref().ok_or(MulticastRefusal::Disabled)?;
        if !entry.is_live() {
            return Err(MulticastRefusal::Stored);
        }
        let family = if is_v4 { "IPv4" } else { "IPv6" };
        let range = groups.range(is_v4).ok_or(MulticastRefusal::Family(family))?;
        let key = (entry.id, is_v4);
        if let Some(cast) = self.casts.casts.get(&key) {
            return Ok(cast.to);
        }
        let is_used = |cast: &Cast, key: CastKey, titles: &mut super::catalogue::TitleCatalogue| {
            let is_there = titles.library.find(&cast.title).is_some_and(|entry| entry.id == key.0);
            is_there || cast.stream.is_some()
        };
        let Self { casts, titles, .. } = self;
        let over: Vec<_> = casts
            .casts
            .iter()
            .filter(|(key, cast)| !is_used(cast, **key, titles))
            .map(|(key, _)| *key)
            .collect();
        for key in over {
            if casts.of_cast(key).next().is_none() {
                casts.casts.remove(&key);
            }
        }
        let is_free = |group| casts.casts.values().all(|cast| cast.to.group != group);
        let to = groups.choose(&entry.name, is_v4, is_free);
        let to = to.ok_or(MulticastRefusal::Used { groups: range.count() })?;
        let (title, ssrc) = (entry.name.clone(), entry.timeline.ssrc);
        casts.casts.insert(key, Cast { title, to, ssrc, stream: None, trouble: None, retry_at: Instant(0) });
        Ok(to)
    }

    /// Admits a viewer of the cast of a title; the first one has it admitted. Nothing is sent before it plays.
    ///
    /// # Errors
    /// Why not.
    pub fn listen(&mut self, now: Instant, request: ListenRequest) -> Result<StreamKey, Refusal> {
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        let ListenRequest { label, agent, viewer, conn, entry, quota } = request;
        let to = self.group_of(&entry, viewer.is_ipv4())?;
        self.session_room(now, Some(conn), Some(viewer.ip()))?;
        let cast = (entry.id, viewer.is_ipv4());
        let rate = self.counted_rate(entry.mean_rate, entry.peak_rate);
        let key = StreamKey(self.new_key());
        let listener = Listener {
            key,
            cast,
            label: label.clone().into_boxed_str(),
            title: entry.name,
            viewer,
            quota,
            rate,
            owner: Some(conn),
            started: now,
            last_heard: now,
            is_playing: false,
            is_reserved: false,
            idle_since: now,
        };
        let room = self.room_for_listener(viewer.ip(), listener.counted());
        room.map_err(|refusal| self.told(viewer, &listener.title, refusal))?;
        let engine = self.open_cast(now, cast)?;
        self.usage.add_session(viewer.ip());
        self.conns.add_stream(conn, key);
        let (title, transport) = (listener.title.clone(), self.path_of(to).to_string());
        self.casts.insert(listener);
        let started = ServiceEvent::Started {
            session: label,
            title,
            peer: viewer,
            transport,
            agent,
            conn: Some(conn),
            engine,
        };
        self.tell(started);
        Ok(key)
    }

    fn path_of(&self, to: GroupAddress) -> StreamPath {
        let via = self.config.multicast.as_ref().map_or(MulticastId(0), |groups| groups.via(to.group));
        StreamPath::Multicast { group: to.group, port: to.port, rtcp_port: Some(to.port + 1), via }
    }

    /// Has the stream of a cast admitted, unless it is; returns its engine.
    fn open_cast(&mut self, now: Instant, key: CastKey) -> Result<usize, Refusal> {
        let cast = self.casts.casts.get(&key).ok_or(Refusal::Gone)?;
        if let Some(stream) = cast.stream.and_then(|key| self.streams.get(&key)) {
            return Ok(stream.engine);
        }
        let (name, to) = (cast.title.clone(), cast.to);
        let entry = self.titles.library.find(&name).filter(|entry| entry.id == key.0).ok_or(Refusal::Gone)?;
        let request = StreamRequest {
            which: Which::New { label: "cast".to_owned(), agent: None },
            viewer: socket_address(to),
            conn: None,
            entry,
            path: self.path_of(to),
            fec: FecWish::Silent,
            rendition: None,
            quota: None,
            segment: None,
        };
        let stream = self.admit(now, request)?.stream;
        if let Some(cast) = self.casts.casts.get_mut(&key) {
            cast.stream = Some(stream);
        }
        Ok(self.streams.get(&stream).map_or(0, |stream| stream.engine))
    }

    /// Begins to send the cast, unless it is sent already.
    fn run_cast(&mut self, now: Instant, key: CastKey) -> Result<(), Refusal> {
        self.open_cast(now, key)?;
        let Some(stream) = self.casts.casts.get(&key).and_then(|cast| cast.stream) else {
            return Err(Refusal::Gone);
        };
        // One that has paused goes on where its title is now.
        let here = Span { from: From::Here, to: None, is_clock: false };
        match self.play(now, stream, &PlayRequest { span: Some(here), ..PlayRequest::default() }) {
            // Its last order ends with the engine's next answer.
            Ok(Played::GoesOn | Played::Begun | Played::Waits) | Err(Refusal::Busy) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// The viewer wants the packets from now on: the cast is sent, if it is not sent already.
    ///
    /// # Errors
    /// Why not.
    pub fn play_listener(&mut self, now: Instant, key: StreamKey) -> Result<(), Refusal> {
        let listener = self.casts.listener(key).ok_or(Refusal::Gone)?;
        let (cast, viewer, title) = (listener.cast, listener.viewer, listener.title.clone());
        if !listener.is_reserved {
            let room = self.room_for_listener(viewer.ip(), listener.counted());
            room.map_err(|refusal| self.told(viewer, &title, refusal))?;
        }
        self.run_cast(now, cast)?;
        let Some(listener) = self.casts.listener_mut(key) else { return Err(Refusal::Gone) };
        listener.is_playing = true;
        if !std::mem::replace(&mut listener.is_reserved, true) {
            self.usage.add_viewer(viewer.ip(), listener.counted());
        }
        Ok(())
    }

    /// The viewer wants no packets for a while. The cast pauses with the last one.
    pub fn pause_listener(&mut self, now: Instant, key: StreamKey) {
        let Some(listener) = self.casts.listener_mut(key) else { return };
        if std::mem::replace(&mut listener.is_playing, false) {
            listener.idle_since = now;
            let cast = listener.cast;
            self.rest_cast(cast);
        }
    }

    /// Pauses a cast that no viewer plays.
    fn rest_cast(&mut self, key: CastKey) {
        if self.casts.is_wanted(key) {
            return;
        }
        let Some(cast) = self.casts.casts.get_mut(&key) else { return };
        cast.trouble = None;
        if let Some(stream) = cast.stream {
            // It is there.
            let _ = self.pause(stream);
        }
    }

    /// The viewer listens no more; `false`: it is none of these. The cast ends with the last one.
    pub(super) fn end_listener(&mut self, now: Instant, key: StreamKey, reason: EndReason) -> bool {
        let Some(listener) = self.casts.remove(key) else { return false };
        let peer = listener.viewer;
        if listener.is_reserved {
            self.usage.remove_viewer(peer.ip(), listener.counted());
        }
        self.usage.remove_session(peer.ip());
        self.disown(key, listener.owner);
        let cast = listener.cast;
        self.rest_cast(cast);
        if self.casts.of_cast(cast).next().is_none()
            && let Some(stream) = self.casts.casts.get_mut(&cast).and_then(|cast| cast.stream.take())
        {
            self.close(now, stream, reason);
        }
        self.tell(ServiceEvent::Ended { stream: key, is_bytes: false, conn: listener.owner, reason });
        self.tell(ServiceEvent::Closed {
            session: listener.label.into(),
            title: listener.title,
            peer,
            reason,
            lasted_ns: now.ns_since(listener.started),
            totals: None,
            reported_loss: None,
            backlog_bytes: None,
        });
        true
    }

    /// The stream of a cast is over. If viewers still want it, it is tried again.
    pub(super) fn cast_ended(&mut self, now: Instant, stream: StreamKey, reason: EndReason) {
        let Some((key, cast)) = self.casts.sent_by(stream) else { return };
        (cast.stream, cast.retry_at) = (None, now.plus_ns(CAST_RETRY_NS));
        if self.casts.is_wanted(key) {
            self.note_cast_state(key, Some(reason.to_string()));
        }
    }

    /// An engine reports whether the packets of a cast leave.
    pub(super) fn note_group_state(&mut self, stream: StreamKey, errno: i32) {
        let why = (errno != 0).then(|| std::io::Error::from_raw_os_error(errno).to_string());
        if let Some((key, _)) = self.casts.sent_by(stream)
            && self.casts.is_wanted(key)
        {
            self.note_cast_state(key, why);
        }
    }

    fn note_cast_state(&mut self, key: CastKey, why: Option<String>) {
        let Some(cast) = self.casts.casts.get_mut(&key) else { return };
        if cast.trouble == why {
            return;
        }
        let (title, to) = (cast.title.clone(), socket_address(cast.to));
        let notice = match &why {
            Some(reason) => CastNotice::Stopped { title, to, reason: reason.clone() },
            None => CastNotice::Resumed { title, to },
        };
        cast.trouble = why;
        self.tell(ServiceEvent::Cast(notice));
    }

    /// Asks how the casts do, and begins those again that have stopped. Part of [`Service::tick`].
    pub(super) fn tick_casts(&mut self, now: Instant) {
        let wanted: Vec<_> =
            self.casts.casts.keys().copied().filter(|key| self.casts.is_wanted(*key)).collect();
        for key in wanted {
            let Some(cast) = self.casts.casts.get(&key) else { continue };
            let stream = cast.stream.and_then(|stream| self.streams.get(&stream));
            match stream.map(|stream| stream.media) {
                Some(DeliveryState::Running(_)) => {
                    if let Some(stream) = cast.stream {
                        self.measure(stream);
                    }
                }
                // The title has ended, and its receivers have been sent BYE.
                Some(DeliveryState::Ended { .. }) => {}
                _ if self.shutting_down || now < cast.retry_at => {}
                _ => {
                    let begun = self.run_cast(now, key);
                    if let Some(cast) = self.casts.casts.get_mut(&key) {
                        cast.retry_at = now.plus_ns(CAST_RETRY_NS);
                    }
                    self.note_cast_state(key, begun.err().map(|refusal| refusal.to_string()));
                }
            }
        }
        self.release_paused_listeners(now);
    }

    fn release_paused_listeners(&mut self, now: Instant) {
        let ServiceConfig { pause_reservation_ns, .. } = self.config;
        let is_over = |listener: &&Listener| {
            listener.is_reserved
                && !listener.is_playing
                && now.ns_since(listener.idle_since) >= pause_reservation_ns
        };
        let over: Vec<_> =
            self.casts.in_order().into_iter().filter(is_over).map(|listener| listener.key).collect();
        for key in over {
            let Some(listener) = self.casts.listener_mut(key) else { continue };
            listener.is_reserved = false;
            self.usage.remove_viewer(listener.viewer.ip(), listener.counted());
        }
    }

    /// A viewer of a cast.
    pub fn listener(&self, key: StreamKey) -> Option<&Listener> {
        self.casts.listener(key)
    }

    /// All viewers of casts, the oldest first.
    pub fn listeners(&self) -> Vec<&Listener> {
        self.casts.in_order()
    }

    /// The group that a viewer listens to, and the RTP source of its packets.
    pub fn listens_to(&self, key: StreamKey) -> Option<(GroupAddress, u32)> {
        let cast = self.casts.casts.get(&self.casts.listener(key)?.cast)?;
        Some((cast.to, cast.ssrc))
    }

    /// The only listener at this address to packets of this source, if there is exactly one.
    pub fn only_listener_of(&self, ip: std::net::IpAddr, ssrc: u32) -> Option<StreamKey> {
        self.casts.only_listener(ip, ssrc)
    }

    /// The casts that have viewers.
    pub fn casts(&self) -> Vec<CastStatus> {
        let ttl = self.config.multicast.as_ref().map_or(0, |groups| groups.ttl);
        let status = |(key, cast): (&CastKey, &Cast)| {
            let listeners = self.casts.of_cast(*key).count();
            let stream = cast.stream.and_then(|stream| self.streams.get(&stream));
            (listeners > 0).then(|| CastStatus {
                title: cast.title.clone(),
                to: cast.to,
                ssrc: cast.ssrc,
                ttl,
                listeners,
                is_sending: cast.trouble.is_none() && stream.is_some_and(super::PlaybackStream::is_playing),
                trouble: cast.trouble.clone(),
            })
        };
        self.casts.casts.iter().filter_map(status).collect()
    }
}
