//! Moves streams to another engine, but only while nothing is in progress: when a stream is
//! stopped, or between two runs. The title, packets, numbers and ports stay the same; only the
//! place is new.
//!
//! One engine writes to a connection: the streams that go through it move together, and it goes with them. One whose socket is an engine's own
//! ([`Service::bind_conn`]) stays there, with its streams.
//!
//! ```text
//!            the first engine                                      the other one
//!   Pause ─►  all runs of the connection end
//!   Close,    what is left of a frame goes out      Open ─►        places for its streams
//!   ConnReturn ─►                                   (replies and plays wait)
//!             ─► ConnReturned
//!                                                   ConnAdd, replies, Play ─►
//! ```

use millrace_core::ids::{StreamId, TitleRef};
use millrace_core::time::Instant;

use super::keys::{ConnKey, StreamKey, StreamPath};
use super::run::{DeliveryState, PlannedRun};
use super::shown::SubstituteTitle;
use super::state::Service;
use super::stream::PlaybackStream;
use crate::admission::Demand;

/// Where a stream is to move: one more opening of its title, and a place in the other engine.
struct NewPlace {
    key: StreamKey,
    title: TitleRef,
    /// One more opening of each title made from it.
    made: Vec<SubstituteTitle>,
    place: StreamId,
}

impl PlaybackStream {
    /// Nothing is sent of it, whatever is about to be.
    fn has_stopped(&self) -> bool {
        !matches!(self.media, DeliveryState::Running(_) | DeliveryState::Pausing(_))
    }
}

impl Service {
    /// Returns the engines, least loaded first: by the measured load of their cores and the demand
    /// of all sessions, or by the demand alone where nothing is measured.
    pub(super) fn engines_by_load(&self) -> Vec<usize> {
        let mut engines: Vec<_> = (0..self.slots.len()).collect();
        engines.sort_by_cached_key(|&engine| {
            let admitted = self.slots.admitted(engine);
            let load = self.admission.load(engine, admitted);
            (load, admitted.bits_per_s, self.slots.streams_taken(engine))
        });
        engines
    }

    /// The streams that can only move together with this one, itself among them; `None`: it has to stay where it is.
    fn party(&self, stream: &PlaybackStream) -> Option<Vec<&PlaybackStream>> {
        let keys = match (stream.path, stream.path.conn()) {
            (StreamPath::Multicast { .. } | StreamPath::Bytes { .. }, _) => return None,
            (_, Some(conn)) if self.bound_to(conn).is_some() => return None,
            (_, Some(conn)) => self.streams_through(conn),
            (_, None) => vec![stream.key],
        };
        let party: Vec<_> = keys.iter().filter_map(|key| self.streams.get(key)).collect();
        let can_move = |stream: &&PlaybackStream| stream.ending.is_none() && !stream.is_busy();
        (party.iter().all(can_move) && !self.is_being_moved(stream.path)).then_some(party)
    }

    /// The engine with the least load that is seen to carry these streams beside `more`, and is not the one that they are in.
    fn another_engine(&self, from: usize, party: &[&PlaybackStream], more: &[Demand]) -> Option<usize> {
        let places = party.iter().map(|stream| 1 + stream.fec_mode().tracks().len()).sum();
        let demand: Demand = party.iter().map(|stream| stream.demand()).sum();
        let needs_conn = party.iter().any(|stream| stream.path.conn().is_some());
        let has_room = |engine: &usize| {
            *engine != from
                && self.slots.stream_room(*engine) >= places
                && (!needs_conn || self.slots.conn_room(*engine) > 0)
                && self.room_as_measured(*engine, demand, more[*engine]).is_ok()
        };
        self.engines_by_load().into_iter().find(has_room)
    }

    /// A stream that is about to play leaves an engine that is not seen to carry it, if another one is.
    pub(super) fn leave_full_engine(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get(&key) else { return };
        if self.room_as_measured(stream.engine, stream.demand(), Demand::default()).is_ok() {
            return;
        }
        let Some(party) = self.party(stream) else { return };
        let nothing = vec![Demand::default(); self.slots.len()];
        if party.iter().all(|stream| stream.stands_still())
            && let Some(engine) = self.another_engine(stream.engine, &party, &nothing)
        {
            let (conn, party) = (stream.path.conn(), party.iter().map(|stream| stream.key).collect());
            self.move_to(now, engine, conn, party);
        }
    }

    /// Has the newest streams of an engine that no longer serves all go on from others, as far as these are seen to carry them, until so
    /// many packets a second are gone. Returns how many are.
    pub(super) fn move_newest(&mut self, engine: usize, packets_per_s: u64) -> u64 {
        let mut more = vec![Demand::default(); self.slots.len()];
        let mut gone = 0;
        let newest: Vec<_> = self.streams.newest(engine).into_iter().map(|stream| stream.key).collect();
        for key in newest {
            let Some(stream) = self.streams.get(&key).filter(|_| gone < packets_per_s) else { break };
            let Some(party) = self.party(stream) else { continue };
            let Some(other) = self.another_engine(engine, &party, &more) else { continue };
            more[other] += party.iter().map(|stream| stream.demand()).sum::<Demand>();
            let running = party.iter().filter_map(|stream| match stream.media {
                DeliveryState::Running(run) => Some((stream.key, run, stream.demand().packets_per_s)),
                _ => None,
            });
            let running: Vec<_> = running.collect();
            if let Some(conn) = stream.path.conn() {
                self.conns.set_move(conn, Some(other));
            }
            for (key, run, packets_per_s) in running {
                gone += packets_per_s;
                if let Some(stream) = self.streams.get_mut(&key) {
                    stream.moves_to = Some(other);
                }
                self.pause_run(key, run);
            }
        }
        gone
    }

    /// The stream stands still: if that was for another engine to go on with it, that does.
    pub(super) fn finish_move(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get(&key) else { return };
        if stream.path.conn().is_some() {
            return self.finish_conn_move(now, stream.path);
        }
        let Some(engine) = stream.moves_to else { return };
        if matches!(stream.media, DeliveryState::Paused { .. }) {
            self.move_to(now, engine, None, vec![key]);
        }
        self.go_on_moved(now, key);
    }

    /// One stream of this connection stands still, or is no more: if that was for another engine to write there, and it was the last, that
    /// engine does.
    pub(super) fn finish_conn_move(&mut self, now: Instant, path: StreamPath) {
        let Some(conn) = path.conn() else { return };
        let Some(engine) = self.conns.moves_to(conn) else { return };
        let party = self.streams_through(conn);
        if !party.iter().filter_map(|key| self.streams.get(key)).all(PlaybackStream::has_stopped) {
            return;
        }
        self.conns.set_move(conn, None);
        if !self.move_to(now, engine, Some(conn), party.clone()) {
            // They go on from where they are.
            for key in party {
                self.go_on_moved(now, key);
                self.go_on(now, key);
            }
        }
    }

    /// A stream that has stopped to be moved goes on, wherever it is now, unless something else is to become of it.
    pub(super) fn go_on_moved(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let was_moved = stream.moves_to.take().is_some();
        let waits = stream.is_busy() || stream.goes_on();
        if was_moved && !waits && matches!(stream.media, DeliveryState::Paused { .. }) {
            let plan = PlannedRun::resume(stream);
            // It plays on where it stopped, so something is left.
            let _ = self.start(now, key, plan);
        }
    }

    /// Gives streams that stand still, all that go through `conn` or one that goes through none, places in another engine. `false`: it has
    /// not enough, and they stay.
    fn move_to(&mut self, now: Instant, engine: usize, conn: Option<ConnKey>, party: Vec<StreamKey>) -> bool {
        let Some(places) = self.new_places(engine, &party) else { return false };
        let id = conn.map(|_| self.slots.take_conn(engine));
        if id == Some(None) {
            self.give_up_places(engine, places);
            return false;
        }
        for place in places {
            self.take_place(now, engine, place);
        }
        if let (Some(conn), Some(Some(id))) = (conn, id) {
            self.hand_over(conn, engine, id);
        }
        for key in party {
            self.open_stream(key);
            self.change_companions(key);
        }
        true
    }

    /// A place in this engine for each of these streams, or for none.
    fn new_places(&mut self, engine: usize, party: &[StreamKey]) -> Option<Vec<NewPlace>> {
        let mut places = Vec::with_capacity(party.len());
        for &key in party {
            let Some(place) = self.new_place(engine, key) else {
                self.give_up_places(engine, places);
                return None;
            };
            places.push(place);
        }
        Some(places)
    }

    fn new_place(&mut self, engine: usize, key: StreamKey) -> Option<NewPlace> {
        let entry = self.streams.get(&key)?.entry.clone();
        let made = self.open_made_again(key)?;
        let title = self.titles.library.open(&entry).ok();
        let Some((title, place)) = title.and_then(|title| Some((title, self.place_for(engine, title)?)))
        else {
            self.titles.close_made(made);
            return None;
        };
        Some(NewPlace { key, title, made, place })
    }

    fn give_up_places(&mut self, engine: usize, places: Vec<NewPlace>) {
        for NewPlace { title, made, place, .. } in places {
            self.titles.library.close(title);
            self.titles.close_made(made);
            self.slots.give_back_stream(engine, place);
        }
    }

    /// The stream leaves its place for this one, and is counted there.
    fn take_place(&mut self, now: Instant, engine: usize, new: NewPlace) {
        let NewPlace { key, title, made, place } = new;
        self.retire_stream(now, key, None);
        let was_reserved = self.streams.is_reserved(key);
        self.release_reservation(key);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let demand = stream.demand();
        self.slots.dismiss(stream.engine, demand);
        self.slots.admit(engine, demand);
        (stream.engine, stream.place) = (engine, place);
        (stream.title, stream.made) = (title, made);
        if was_reserved {
            self.take_reservation(key);
        }
    }

    /// One more stream is to go through this connection, whose engine is not seen to carry it: the connection goes to one that is, if
    /// nothing is under way on it.
    pub(super) fn conn_leaves_full_engine(&mut self, now: Instant, conn: ConnKey, load: Demand) {
        let Some((from, _)) = self.attachment(conn) else { return };
        let stays = self.conns.is_between_engines(conn) || self.bound_to(conn).is_some();
        if stays || self.room_as_measured(from, load, Demand::default()).is_ok() {
            return;
        }
        let party = self.streams_through(conn);
        let party: Vec<_> = party.iter().filter_map(|key| self.streams.get(key)).collect();
        let more = vec![load; self.slots.len()];
        let may_move = |stream: &&PlaybackStream| stream.stands_still() && self.party(stream).is_some();
        if party.iter().all(may_move)
            && let Some(engine) = self.another_engine(from, &party, &more)
        {
            let party = party.iter().map(|stream| stream.key).collect();
            self.move_to(now, engine, Some(conn), party);
        }
    }
}
