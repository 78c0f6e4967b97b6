//! Admission: `admit` checks whether there is room, `play` reserves it, and a long pause releases
//! it. FEC is part of a stream's reservation; granting or switching it requests only the increase.
//!
//! A stream that is not playing holds no part of the operator's limits: it occupies an entry of the
//! table of streams and places of an engine's table, which have room for more streams than may
//! play. When these tables fill up, the streams that have not played for the longest time end
//! first.

use std::net::{IpAddr, SocketAddr};

use millrace_core::address::network_of;
use millrace_core::time::Instant;
use millrace_core::units::BitRate;

use super::config::RateBasis;
use super::counted::{CountedViewer, counted_title};
use super::event::ServiceEvent;
use super::exhausted::Exhausted;
use super::fetchers::Fetch;
use super::keys::{ConnKey, StreamKey};
use super::matrix::FecMode;
use super::measured::demand_of;
use super::ports::TitleEntry;
use super::refusal::{FecRefusal, Refusal};
use super::request::{Sender, StreamPlacement, StreamRequest};
use super::state::Service;
use super::stream::{EndReason, PlaybackStream};
use crate::admission::{Demand, InUse};
use crate::limits::SESSION_TABLE_HIGH_PERCENT;

/// What would be played more.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    /// At this address.
    ip: IpAddr,
    /// The title, its bit rate, and its user.
    who: CountedViewer<'a>,
    sender: Sender,
    /// What this stream has reserved is not counted against it.
    own: Option<StreamKey>,
}

impl Service {
    /// Whether there is room to play this now: asked when a stream is admitted, and when it begins to play with nothing reserved. The
    /// one place that decides it.
    ///
    /// # Errors
    /// The exhausted resource ([`Refusal::resource`]).
    fn room(&self, candidate: &Candidate<'_>) -> Result<(), Refusal> {
        let own = candidate.own.and_then(|key| self.streams.get(&key)).filter(|stream| stream.is_reserved);
        self.room_for_all(candidate, own)?;
        self.room_by_counts(candidate.who, own)?;
        self.room_for_address(candidate, own)?;
        let (engine, load) = match candidate.sender {
            Sender::Engine(engine, load) => {
                (engine.ok_or(Refusal::Exhausted(Exhausted::EngineStreams))?, load)
            }
            Sender::Web => {
                let room = self.admission.link_room(self.reserved_rate(), candidate.who.rate);
                return room.map_err(|full| Exhausted::Full(full).into());
            }
        };
        // A stream with a reservation is counted already.
        if own.is_some() { Ok(()) } else { self.room_as_measured(engine, load, Demand::default()) }
    }

    /// Whether there is room for one more viewer that fetches segments, at this address.
    ///
    /// # Errors
    /// The exhausted resource.
    pub(super) fn room_for_fetcher(
        &self,
        ip: IpAddr,
        who: CountedViewer<'_>,
        sender: Sender,
    ) -> Result<(), Refusal> {
        self.room(&Candidate { ip, who, sender, own: None })
    }

    /// Whether user, title and address may have one more viewer that listens to a cast, which has a stream already.
    ///
    /// # Errors
    /// The exhausted resource.
    pub(super) fn room_for_listener(&self, ip: IpAddr, who: CountedViewer<'_>) -> Result<(), Refusal> {
        self.room_by_counts(who, None)?;
        self.room_for_address(&Candidate { ip, who, sender: Sender::Web, own: None }, None)
    }

    /// The operator's ceilings.
    fn room_for_all(&self, candidate: &Candidate<'_>, own: Option<&PlaybackStream>) -> Result<(), Refusal> {
        let (own_streams, own_rate) = own.map_or((0, 0), |stream| (1, stream.rate));
        if self.reserved_streams() - own_streams >= self.config.max_streams {
            return Err(Refusal::Exhausted(Exhausted::Streams { max: self.config.max_streams }));
        }
        let used = self.reserved_rate() - own_rate;
        match self.config.max_rate {
            Some(max) if used.saturating_add(candidate.who.rate) > max.0 => {
                Err(Refusal::Exhausted(Exhausted::Rate {
                    used: BitRate(used),
                    max,
                    more: BitRate(candidate.who.rate),
                }))
            }
            _ => Ok(()),
        }
    }

    /// The share of one address.
    fn room_for_address(
        &self,
        candidate: &Candidate<'_>,
        own: Option<&PlaybackStream>,
    ) -> Result<(), Refusal> {
        let &Candidate { ip, who: CountedViewer { rate, .. }, .. } = candidate;
        let usage = self.usage.of(ip);
        let own = own.filter(|stream| network_of(stream.viewer.ip()) == network_of(ip));
        let streams = usage.streams - own.map_or(0, |_| 1);
        let used = usage.rate - own.map_or(0, |stream| stream.rate);
        // An address that plays nothing may play one title, however small the share.
        if streams == 0 {
            return Ok(());
        }
        match self.config.max_streams_per_address {
            Some(max) if streams >= max => {
                return Err(Refusal::Exhausted(Exhausted::AddressStreamLimit { max }));
            }
            Some(_) => {}
            None => {
                let percent = u64::from(self.config.address_share_percent);
                let max = (self.config.max_streams as u64 * percent / 100).max(1);
                if streams as u64 >= max {
                    return Err(Refusal::Exhausted(Exhausted::AddressStreams { max }));
                }
            }
        }
        let Some(max) = self.config.max_rate else { return Ok(()) };
        let max = self.address_rate(max);
        if used.saturating_add(rate) > max.0 {
            return Err(Refusal::Exhausted(Exhausted::AddressRate {
                used: BitRate(used),
                max,
                more: BitRate(rate),
            }));
        }
        Ok(())
    }

    /// Returns the share of this bit rate that one address may use.
    fn address_rate(&self, max: BitRate) -> BitRate {
        let percent = u128::from(self.config.address_share_percent);
        BitRate((u128::from(max.0) * percent / 100) as u64)
    }

    /// Checks whether there is room for this many more bits a second beside a stream: used when FEC
    /// is granted, switched on or raised, and for faster delivery. The stream's current rate counts
    /// as used, even while it does not play; and unlike a title, neither is guaranteed to an
    /// address.
    ///
    /// # Errors
    /// The exhausted resource.
    pub(super) fn room_for_more(&self, stream: &PlaybackStream, more: u64) -> Result<(), FecRefusal> {
        let own = if stream.is_reserved { Demand::default() } else { stream.demand() };
        let used = self.reserved_rate() + own.bits_per_s;
        if let Some(max) = self.config.max_rate {
            if used.saturating_add(more) > max.0 {
                return Err(FecRefusal::Rate { used: BitRate(used), max, more: BitRate(more) });
            }
            let usage = self.usage.of(stream.viewer.ip());
            let (used, max) = (usage.rate + own.bits_per_s, self.address_rate(max));
            if used.saturating_add(more) > max.0 {
                return Err(FecRefusal::AddressRate { used: BitRate(used), max, more: BitRate(more) });
            }
        }
        self.user_room_for_more(stream, more)?;
        let mut promised = self.slots.reserved(stream.engine);
        promised += own;
        let fec = demand_of(&stream.entry, more);
        self.admission.room(stream.engine, promised, used, fec).map_err(FecRefusal::Full)
    }

    /// Which engine takes a stream of this title, if there is room for it to play now.
    pub(super) fn place(
        &mut self,
        now: Instant,
        request: &StreamRequest,
        own: Option<StreamKey>,
        entry: &TitleEntry,
    ) -> Result<StreamPlacement, Refusal> {
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        if own.is_none() {
            let fetch = Fetch::of(request, entry);
            let is_admitted = fetch.is_some_and(|fetch| self.fetchers.of_session(&fetch).is_some());
            let address = (!is_admitted).then(|| request.viewer.ip());
            self.session_room(now, request.conn, address)?;
        }
        let rate = self.counted_rate(entry.mean_rate, entry.peak_rate);
        let load = demand_of(entry, rate);
        if let Some(conn) = request.path.conn().filter(|_| own.is_none()) {
            self.conn_leaves_full_engine(now, conn, load);
        }
        let writer = request.path.conn().and_then(|conn| {
            let attached = self.attachment(conn).map(|(engine, _)| engine);
            attached.or_else(|| self.bound_to(conn))
        });
        let engine = match writer {
            // All RTP of one connection comes from the engine that writes to it.
            Some(engine) => Some(engine).filter(|engine| self.slots.stream_room(*engine) > 0),
            None => self.engines_by_load().into_iter().find(|engine| self.slots.stream_room(*engine) > 0),
        };
        let sender = Sender::Engine(engine, load);
        let fetcher = match Fetch::of(request, entry) {
            Some(fetch) => Some(self.count_fetch(now, &fetch, sender)?),
            None => {
                let title = counted_title(entry, request.path);
                let who = CountedViewer { title, quota: request.quota.as_ref(), rate, player: None };
                self.room(&Candidate { ip: request.viewer.ip(), who, sender, own })?;
                None
            }
        };
        Ok(StreamPlacement {
            engine: engine.ok_or(Refusal::Exhausted(Exhausted::EngineStreams))?,
            rate,
            fetcher,
        })
    }

    /// Which bit rate of a title counts.
    pub(super) fn counted_rate(&self, mean: BitRate, peak: BitRate) -> u64 {
        match self.config.rate_basis {
            RateBasis::Mean => mean.0,
            RateBasis::Peak => peak.0,
        }
    }

    /// Whether connection and address may have one more stream, and the table has room for it.
    /// A segment of a session is not refused for those of others at its address, so it names none.
    pub(super) fn session_room(
        &mut self,
        now: Instant,
        conn: Option<ConnKey>,
        address: Option<IpAddr>,
    ) -> Result<(), Refusal> {
        if let Some(conn) = conn {
            if !self.conns.contains(conn) {
                return Err(Refusal::Gone);
            }
            if self.streams_of(conn).len() >= self.config.max_sessions_per_connection {
                return Err(Refusal::Exhausted(Exhausted::ConnectionSessions));
            }
        }
        let sessions = address.map_or(0, |address| self.usage.of(address).sessions);
        if sessions >= self.config.max_sessions_per_address {
            return Err(Refusal::Exhausted(Exhausted::AddressSessions));
        }
        while self.tables_nearly_full()
            && let Some(longest_idle) = self.streams.longest_idle()
        {
            self.close(now, longest_idle, EndReason::TablesFull);
        }
        let max = self.config.max_sessions;
        if self.streams.len() + self.casts.len() >= max {
            return Err(Refusal::Exhausted(Exhausted::Sessions { max }));
        }
        Ok(())
    }

    fn tables_nearly_full(&self) -> bool {
        let nearly_full = |used: usize, size: usize| used * 100 >= size * SESSION_TABLE_HIGH_PERCENT;
        nearly_full(self.streams.len() + self.casts.len(), self.config.max_sessions)
            || nearly_full(self.streams.open_places(), self.slots.len() * self.config.streams_per_engine)
    }

    /// Tells everybody if something is used up.
    pub(super) fn told(&mut self, peer: SocketAddr, title: &str, refusal: Refusal) -> Refusal {
        if let Refusal::Exhausted(Exhausted::Full(full)) = refusal {
            self.note_full(full);
        }
        if refusal.resource().is_some() {
            self.tell(ServiceEvent::NoRoom { peer, title: title.to_owned(), refusal: refusal.clone() });
        }
        refusal
    }

    /// Reserves room for a stream that is about to play, unless it has it already.
    ///
    /// # Errors
    /// The exhausted resource.
    pub(super) fn reserve(&mut self, now: Instant, key: StreamKey) -> Result<(), Refusal> {
        if self.streams.is_reserved(key) {
            return Ok(());
        }
        self.leave_full_engine(now, key);
        let stream = self.streams.get(&key).ok_or(Refusal::Gone)?;
        if let Some(who) = CountedViewer::of(stream) {
            let (viewer, fec_rate) = (stream.viewer, stream.fec_rate());
            let sent = |load| Sender::Engine(Some(stream.engine), load);
            let candidate = Candidate { ip: viewer.ip(), who, sender: sent(stream.demand()), own: None };
            if let Err(refusal) = self.room(&candidate) {
                let rate = stream.rate - fec_rate;
                let less = (CountedViewer { rate, ..who }, sent(demand_of(&stream.entry, rate)));
                let less = Candidate { who: less.0, sender: less.1, ..candidate };
                let title = stream.entry.name.clone();
                // A title is never refused because of its FEC.
                let without_fec = fec_rate > 0
                    && self.room(&less).is_ok()
                    && self.switch_fec(now, key, FecMode::Off).is_ok();
                if !without_fec {
                    return Err(self.told(viewer, &title, refusal));
                }
                self.fec_left_out(key, refusal.to_string());
            }
        }
        self.take_reservation(key);
        Ok(())
    }

    /// Counts a stream and its bit rate.
    pub(super) fn take_reservation(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.begin_reservation(key) else { return };
        // Who fetches segments has room for all of them.
        let Some(who) = CountedViewer::of(stream) else { return };
        self.slots.reserve_stream(stream.engine, stream.demand());
        self.usage.add_viewer(stream.viewer.ip(), who);
    }

    /// Releases a stream's reservation; from then on it counts as idle.
    pub(super) fn release_reservation(&mut self, key: StreamKey) {
        let Some(stream) = self.streams.end_reservation(key) else { return };
        let Some(who) = CountedViewer::of(stream) else { return };
        self.slots.release_stream(stream.engine, stream.demand());
        self.usage.remove_viewer(stream.viewer.ip(), who);
    }

    /// A stream's bit rate is another from now on.
    pub(super) fn change_rate(&mut self, key: StreamKey, rate: u64) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let (before, demand_before) = (stream.rate, stream.demand());
        stream.rate = rate;
        let demand = stream.demand();
        self.slots.change_demand(stream.engine, demand_before, demand, stream.is_reserved);
        // A segment is counted with its viewer, and its bit rate stays as it is.
        if let Some(who) = CountedViewer::of(stream).filter(|_| stream.is_reserved) {
            self.usage.change_rate(stream.viewer.ip(), before, who);
        }
    }

    /// Takes back what streams have reserved that have not played for as long as a pause may keep it.
    pub(super) fn release_long_paused(&mut self, now: Instant) {
        let limit = self.config.pause_reservation_ns;
        let is_over = |stream: &&PlaybackStream| {
            stream.is_reserved && stream.stands_still() && now.ns_since(stream.idle_since) >= limit
        };
        let over: Vec<_> = self.streams.values().filter(is_over).map(|stream| stream.key).collect();
        for key in over {
            self.release_reservation(key);
        }
    }

    /// Returns how much of each resource viewers use: first of the operator's limits, then of the
    /// measured ones.
    pub fn in_use(&self) -> Vec<InUse> {
        let streams = InUse::new("streams", self.reserved_streams() as u64, self.config.max_streams as u64);
        let rate = self.config.max_rate.map(|max| InUse::new("bits a second", self.reserved_rate(), max.0));
        let measured = self.admission.in_use(self.slots.all_reserved(), self.fetchers.beside());
        [streams].into_iter().chain(rate).chain(measured).collect()
    }

    /// Streams that play, or have paused only just now, and viewers that fetch segments.
    pub fn reserved_streams(&self) -> usize {
        self.slots.reserved_streams() + self.fetchers.len()
    }

    /// Bits a second of these together, as admission counts them.
    pub fn reserved_rate(&self) -> u64 {
        self.slots.all_reserved().map(|demand| demand.bits_per_s).sum::<u64>() + self.fetchers.beside()
    }
}
