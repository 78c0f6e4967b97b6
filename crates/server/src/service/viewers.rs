//! Sessions of viewers that fetch segments. A playlist begins one, and the addresses in it carry
//! it: viewers behind one address, without a name for their program, are distinguished by it.
//!
//! ```text
//!   playlist ─► a session of this title and user? ─► goes on
//!               └ none, unknown, expired ─► is there room? ─► a new one, with a reservation
//!   segment ─► in a session ─► sent, whatever the load
//!              └ in none ─► counted by address and program (`fetch`)
//! ```
//!
//! A session is a [`Fetcher`] with a name: its reservation, its end and how it is shown are those
//! of any viewer that fetches segments. It reserves the rate of the title for as long as it lasts,
//! so that a change to a better rendition needs no further room and cannot be refused.

use millrace_core::ids::ViewerSession;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::{Instant, MediaTicks};

use super::counted::{CountedViewer, Player};
use super::exhausted::Exhausted;
use super::fetchers::{Fetch, session_identity};
use super::measured::demand_of;
use super::refusal::Refusal;
use super::request::Sender;
use super::state::Service;
use crate::admission::Demand;
use crate::limits::control::PENDING_SESSIONS_PER_ADDRESS;

impl Service {
    /// Admits a viewer that asks for a playlist: goes on with the session that the request carries,
    /// or begins one under the name `fresh`, with a reservation. `by_engine`: engines will send its
    /// segments.
    ///
    /// # Errors
    /// The resource that is used up.
    pub fn admit_viewer(
        &mut self,
        now: Instant,
        fetch: &Fetch<'_>,
        by_engine: bool,
        fresh: ViewerSession,
    ) -> Result<ViewerSession, Refusal> {
        if self.shutting_down {
            return Err(Refusal::ShuttingDown);
        }
        self.end_fetchers(now);
        let &Fetch { viewer, title, quota, segment, .. } = fetch;
        if let Some(number) = self.fetchers.in_session(segment.session, title, quota) {
            self.fetchers.change(number, |fetcher| fetcher.ask_playlist(now));
            return Ok(segment.session.unwrap_or(fresh));
        }
        if self.fetchers.has_session(fresh) {
            return Err(Refusal::Busy);
        }
        let max = PENDING_SESSIONS_PER_ADDRESS;
        if self.fetchers.pending(viewer.ip()) >= max {
            return Err(self.told(viewer, title, Exhausted::AddressBeginnings { max }.into()));
        }
        let rate = self.counted_rate(fetch.mean_rate, fetch.peak_rate);
        let player = Player::new(viewer.ip(), fetch.agent);
        let who = CountedViewer { title, quota, rate, player: Some(player) };
        let engine = if by_engine { self.engine_for_viewer(title, rate) } else { None };
        let sender = match engine {
            Some((engine, load)) => Sender::Engine(Some(engine), load),
            None if by_engine => return Err(self.told(viewer, title, Exhausted::EngineStreams.into())),
            None => Sender::Web,
        };
        let room = self.room_for_fetcher(viewer.ip(), who, sender);
        room.map_err(|refusal| self.told(viewer, title, refusal))?;
        let identity = session_identity(fresh, title, quota);
        let (number, fetcher) = self.begin_fetcher(now, fetch, player, identity);
        let mut fetcher = fetcher.with_session(fresh);
        fetcher.go_on(engine, rate, MediaTicks(0));
        self.take_fetched(&fetcher);
        self.fetchers.insert(number, fetcher);
        Ok(fresh)
    }

    /// Whether there is such a session.
    pub fn has_session(&self, session: ViewerSession) -> bool {
        self.fetchers.has_session(session)
    }

    /// The engine that has the least to send, and the demand of a viewer of the title.
    fn engine_for_viewer(&mut self, title: &str, rate: u64) -> Option<(usize, Demand)> {
        let load = match self.titles.library.find(title) {
            Some(entry) => demand_of(&entry, rate),
            // The reservation takes the packets of the first segment, when that is known.
            None => {
                Demand { packets_per_s: rate.div_ceil(DEFAULT_PACKET_BYTES as u64 * 8), bits_per_s: rate }
            }
        };
        let mut engines = self.engines_by_load().into_iter();
        engines.find(|engine| self.slots.stream_room(*engine) > 0).map(|engine| (engine, load))
    }

    /// A viewer fetches a segment in its session. Its reservation stays as large as it is, and goes
    /// over to the engine that sends the segment, and to the address that it is sent to.
    pub(super) fn go_on_in_session(
        &mut self,
        now: Instant,
        number: u64,
        fetch: &Fetch<'_>,
        engine: Option<(usize, Demand)>,
    ) {
        let Some(mut fetcher) = self.fetchers.remove(number) else { return };
        let rate = fetcher.rate;
        let engine = engine.map(|(engine, load)| (engine, at_rate(load, rate)));
        // Sound beside pictures changes nothing: it is sent beside them all the time.
        let is_beside = fetch.is_sound && fetcher.has_pictures();
        let (at, engine) =
            if is_beside { (fetcher.at, fetcher.engine()) } else { (fetch.segment.at, engine) };
        let is_moved = fetcher.viewer.ip() != fetch.viewer.ip() || fetcher.engine() != engine;
        if is_moved {
            self.give_back_fetched(&fetcher);
        }
        if !is_beside && fetcher.title != fetch.title {
            fetch.title.clone_into(&mut fetcher.title);
        }
        fetcher.take(now, fetch);
        fetcher.go_on(engine, rate, at);
        if is_moved {
            self.take_fetched(&fetcher);
        }
        self.fetchers.insert(number, fetcher);
    }
}

/// The same packets at another bit rate.
fn at_rate(load: Demand, rate: u64) -> Demand {
    let packet_bits = load.bits_per_s.checked_div(load.packets_per_s).unwrap_or(0).max(1);
    match load.bits_per_s {
        0 => load,
        _ => Demand { packets_per_s: rate.div_ceil(packet_bits), bits_per_s: rate },
    }
}
