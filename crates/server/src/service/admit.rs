//! How a viewer gets a stream, or moves the one it has to another path.

use millrace_core::ids::{RunSerial, StreamId, TitleRef};
use millrace_core::scale::Scale;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::Timeline;
use millrace_offload::command::Command;

use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::fec::Granted;
use super::keys::{ConnKey, StreamKey, StreamPath, ports_of};
use super::listeners::CastNotice;
use super::measured::demand_of;
use super::ports::{NeededPart, OpenError, TitleEntry};
use super::refusal::{FecRefusal, Refusal};
use super::rendition::Renditions;
use super::request::{Admitted, StreamPlacement, StreamRequest, Which};
use super::run::DeliveryState;
use super::speed::Speed;
use super::state::Service;
use super::stream::{EndReason, PlaybackStream};

/// The resources taken for a stream.
struct StreamGrant {
    place: StreamPlacement,
    id: StreamId,
    title: TitleRef,
}

impl Service {
    /// Takes everything that a stream needs before it plays, or nothing.
    ///
    /// # Errors
    /// The resource that is lacking; [`Refusal::Opening`] if it is still lacking.
    pub fn admit(&mut self, now: Instant, mut request: StreamRequest) -> Result<Admitted, Refusal> {
        // Packets by UDP go to the viewer that asks, whatever address was named.
        request.path = request.path.at(request.viewer);
        let (peer, title) = (request.viewer, request.entry.name.clone());
        self.try_admit(now, request).map_err(|refusal| self.told(peer, &title, refusal))
    }

    fn try_admit(&mut self, now: Instant, request: StreamRequest) -> Result<Admitted, Refusal> {
        let own = match request.which {
            Which::Moved(key) => Some(key),
            Which::New { .. } => None,
        };
        if let Some(key) = own {
            let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
            if stream.is_playing() || stream.is_busy() {
                return Err(Refusal::Busy);
            }
        }
        let before = own.and_then(|key| self.streams.get(&key)).map(|stream| stream.renditions.clone());
        let mut renditions = match request.path {
            // Bytes are those of the title that was named.
            StreamPath::Bytes { .. } => Renditions::default(),
            _ => self.choose_rendition(&request.entry, request.rendition.as_ref(), before.as_ref())?,
        };
        let first = self.first_sent(&request.entry, &renditions)?;
        let granted = match self.grant(request.fec, &request.entry, request.path) {
            Granted::Possible { .. } if first.is_made => Granted::Refused(FecRefusal::Rendition),
            granted => granted,
        };
        let entry = match granted {
            // Parity protects packets of the default size; only in that do renditions have access points in common.
            Granted::Possible { .. } => request.entry.clone(),
            Granted::Silent | Granted::Refused(_) if !renditions.is_empty() => request.entry.clone(),
            Granted::Silent | Granted::Refused(_) => self.sized(now, &request)?,
        };
        renditions.is_auto &= !matches!(granted, Granted::Possible { .. });
        let replaced = self.replaced_by(now, own, &request)?;
        // The replaced streams free their reservations only if the new one is admitted.
        let reserved: Vec<_> =
            replaced.iter().copied().filter(|key| self.streams.is_reserved(*key)).collect();
        reserved.iter().for_each(|key| self.release_reservation(*key));
        let tracks = if let Granted::Possible { mode, .. } = &granted { mode.tracks() } else { &[] };
        let taken = self.take_for(now, &request, own, &entry, &mut renditions, tracks);
        let (home, taken) = taken.inspect_err(|_| {
            reserved.iter().for_each(|key| self.take_reservation(*key));
        })?;
        self.replace(now, own, &request, replaced);
        let key = match request.which {
            Which::New { ref label, ref agent } => {
                let (label, agent) = (label.clone(), agent.clone());
                let stream = self.new_stream(now, label, &request, (entry, home, renditions), &taken);
                self.begin(stream, request.conn, agent)
            }
            Which::Moved(key) => {
                self.move_stream(now, key, &request, &entry, &taken);
                if let Some(stream) = self.streams.get_mut(&key) {
                    (stream.renditions, stream.queued) = (renditions, None);
                }
                key
            }
        };
        let fec = self.begin_fec(key, granted);
        self.open_stream(key);
        Ok(Admitted { stream: key, fec })
    }

    /// One that has not played.
    fn new_stream(
        &mut self,
        now: Instant,
        label: String,
        request: &StreamRequest,
        (entry, home, renditions): (TitleEntry, Timeline, Renditions),
        taken: &StreamGrant,
    ) -> PlaybackStream {
        PlaybackStream {
            key: StreamKey(self.new_key()),
            label: label.into_boxed_str(),
            timeline: home,
            home,
            entry,
            title: taken.title,
            viewer: request.viewer,
            quota: request.quota.clone(),
            fetcher: taken.place.fetcher,
            path: request.path,
            owner: None,
            engine: taken.place.engine,
            place: taken.id,
            last_run: RunSerial(0),
            rate: taken.place.rate,
            is_reserved: false,
            idle_since: now,
            last_heard: now,
            media: DeliveryState::Fresh,
            scale: Scale::NORMAL,
            speed: Speed::NORMAL,
            has_own_timeline: false,
            made: Vec::new(),
            renditions,
            queued: None,
            speed_rate: 0,
            pending: None,
            moves_to: None,
            ending: None,
            fec: None,
            started: now,
            report: None,
            backlog_bytes: None,
            behind: None,
        }
    }

    /// The title in the largest packets that the way to the viewer carries. Through a connection, where packets cross
    /// every path in pieces anyway, it is the default size.
    fn sized(&mut self, now: Instant, request: &StreamRequest) -> Result<TitleEntry, Refusal> {
        let Some(dest) = request.path.address(false) else { return Ok(request.entry.clone()) };
        if self.config.packet_sizes.is_default_only() || request.entry.layout.is_raw() {
            return Ok(request.entry.clone());
        }
        let size = self.config.packet_sizes.choose(dest, (self.config.path_mtu)(dest));
        if size != request.entry.layout.packet_bytes() {
            self.need(now, request.conn, [NeededPart::times(&request.entry, size)])?;
        }
        Ok(self.titles.library.sized(&request.entry, size).unwrap_or_else(|| request.entry.clone()))
    }

    /// Takes everything that a stream needs while it plays; returns it with the RTP timeline of the
    /// first packets.
    fn take_for(
        &mut self,
        now: Instant,
        request: &StreamRequest,
        own: Option<StreamKey>,
        entry: &TitleEntry,
        renditions: &mut Renditions,
        tracks: &[u8],
    ) -> Result<(Timeline, StreamGrant), Refusal> {
        let (first, place) = self.place_first(now, request, own, entry, renditions)?;
        let home = if first.is_made { first.timeline } else { entry.timeline };
        let parity = tracks.iter().map(|&track| NeededPart::parity(entry, track));
        self.need(now, request.conn, [NeededPart::media(entry)].into_iter().chain(parity))?;
        Ok((home, self.take(request, entry, place)?))
    }

    /// The streams that end when this one is admitted, because a viewer cannot use two titles on
    /// one UDP port. A set-top box that was switched off and on again, or that changes the channel
    /// without ending its stream, requests the same ports.
    ///
    /// # Errors
    /// If one of its ports belongs to a stream whose viewer is still there: many viewers may share
    /// an address.
    fn replaced_by(
        &self,
        now: Instant,
        own: Option<StreamKey>,
        request: &StreamRequest,
    ) -> Result<Vec<StreamKey>, Refusal> {
        if let Some(port) = self.port_in_use(now, own, request.conn, request.path) {
            return Err(Refusal::PortInUse(port));
        }
        Ok(self.streams.with_media_port_of(request.path, own))
    }

    /// The first UDP port of `path` on which another viewer receives a stream. Streams of the same
    /// connection and of viewers that are gone do not count.
    pub fn port_in_use(
        &self,
        now: Instant,
        own: Option<StreamKey>,
        conn: Option<ConnKey>,
        path: StreamPath,
    ) -> Option<u16> {
        self.streams.port_in_use(now, own, conn, path)
    }

    /// Ends the streams whose ports an admitted stream takes over.
    fn replace(
        &mut self,
        now: Instant,
        own: Option<StreamKey>,
        request: &StreamRequest,
        replaced: Vec<StreamKey>,
    ) {
        let StreamPath::Udp { ip, .. } = request.path else { return };
        self.clear_fec_ports(now, own, ip, ports_of(request.path));
        for key in replaced {
            self.close(now, key, EndReason::Replaced);
        }
    }

    /// One more viewer of the title, which is open, and a place in the engine.
    fn take(
        &mut self,
        request: &StreamRequest,
        entry: &TitleEntry,
        place: StreamPlacement,
    ) -> Result<StreamGrant, Refusal> {
        let title = self.open_title(entry)?;
        if let Some(conn) = request.path.conn()
            && let Err(refusal) = self.attach(conn, place.engine)
        {
            self.titles.library.close(title);
            return Err(refusal);
        }
        let id = self.place_for(place.engine, title).ok_or(Refusal::Exhausted(Exhausted::EngineStreams))?; // place() has seen one
        Ok(StreamGrant { place, id, title })
    }

    pub(super) fn open_title(&mut self, entry: &TitleEntry) -> Result<TitleRef, Refusal> {
        let error = match self.titles.library.open(entry) {
            Ok(title) => return Ok(title),
            Err(OpenError::MembersLost(lost)) => return Err(Refusal::MembersLost(lost)),
            Err(OpenError::Unfit(why)) => return Err(Refusal::Unfit(why)),
            Err(OpenError::Coming(how_far)) => return Err(Refusal::Coming(how_far)),
            Err(error) => error,
        };
        self.tell(ServiceEvent::Broken { title: entry.name.clone(), reason: error.to_string() });
        Err(match error {
            OpenError::Full => Refusal::Exhausted(Exhausted::OpenTitles),
            OpenError::TimedOut(_) => Refusal::TimedOut,
            OpenError::MembersLost(_) | OpenError::Unfit(_) | OpenError::Coming(_) | OpenError::Broken(_) => {
                Refusal::Broken
            }
        })
    }

    /// A place in the engine for a title that has just been opened; if there is none, the title is closed again.
    pub(super) fn place_for(&mut self, engine: usize, title: TitleRef) -> Option<StreamId> {
        let place = self.slots.take_stream(engine);
        if place.is_none() {
            self.titles.library.close(title);
        }
        place
    }

    fn begin(&mut self, stream: PlaybackStream, conn: Option<ConnKey>, agent: Option<String>) -> StreamKey {
        let (key, peer) = (stream.key, stream.viewer);
        let transport = stream.path.to_string();
        let (session, title) = (stream.label.to_string(), stream.entry.name.clone());
        let engine = stream.engine;
        self.tell(match stream.path {
            StreamPath::Bytes { .. } => ServiceEvent::Ordered { label: session, title, peer, engine },
            StreamPath::Multicast { .. } => ServiceEvent::Cast(CastNotice::Began { title, to: peer, engine }),
            _ => ServiceEvent::Started { session, title, peer, transport, agent, conn, engine },
        });
        self.slots.admit(stream.engine, stream.demand());
        self.usage.add_session(peer.ip());
        if let Some(number) = stream.fetcher {
            self.fetchers.begin_segment(number);
        }
        self.streams.insert(stream);
        self.own(key, conn);
        key
    }

    /// Moves a stream: it keeps its name and its progress; its place in the engine is rebuilt.
    fn move_stream(
        &mut self,
        now: Instant,
        key: StreamKey,
        request: &StreamRequest,
        entry: &TitleEntry,
        taken: &StreamGrant,
    ) {
        // Its position is known as long as the media it shows is open.
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.go_back_to_title();
        }
        self.retire_stream(now, key, None);
        let was_reserved = self.streams.is_reserved(key);
        self.release_reservation(key);
        self.own(key, request.conn);
        self.streams.forget_unfinished_pause(now, key);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        // Streams are counted where they were made: the count must go back to the same address.
        self.usage.move_session(stream.viewer.ip(), request.viewer.ip());
        self.slots.dismiss(stream.engine, stream.demand());
        self.slots.admit(taken.place.engine, demand_of(entry, taken.place.rate));
        stream.media = stream.media.in_size_of(&stream.entry, entry);
        (stream.entry, stream.title, stream.path) = (entry.clone(), taken.title, request.path);
        stream.home = entry.timeline;
        (stream.engine, stream.place, stream.rate) = (taken.place.engine, taken.id, taken.place.rate);
        (stream.viewer, stream.fec, stream.speed_rate) = (request.viewer, None, 0);
        stream.quota.clone_from(&request.quota);
        (stream.report, stream.backlog_bytes, stream.behind) = (None, None, None);
        // One that had paused only just now keeps its reservation; place() has seen that it fits.
        if was_reserved {
            self.take_reservation(key);
        }
    }

    /// Tells the engine about the stream, and makes it findable.
    pub(super) fn open_stream(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.get(&key) else { return };
        let (engine, place, path, ip) = (stream.engine, stream.place, stream.path, stream.viewer.ip());
        let named = |conn| self.attachment(conn).map(|(_, id)| id);
        let Some(dest) = path.with_conn(named) else { return };
        self.streams.add_place(key, engine, place);
        for port in ports_of(path) {
            self.streams.add_port(key, ip, port);
        }
        let once = matches!(path, StreamPath::Bytes { .. });
        self.command(engine, Command::Open { stream: place, dest, quiet: false, once });
    }
}
