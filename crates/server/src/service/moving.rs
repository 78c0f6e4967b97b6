//! Streams that go over to another engine. Only where nothing is under way: a stream that stands still, or between two runs. Its title,
//! packets, numbers and ports stay the same; what is new is its place.
//!
//! A stream in a connection stays with the engine that writes there: that may hold the rest of a frame.

use millrace_core::time::Instant;

use super::Service;
use super::stream::{Media, Path, Plan, Start, Stream, StreamKey};
use crate::admission::Demand;

impl Stream {
    /// Whether another engine could send it.
    fn can_move(&self) -> bool {
        matches!(self.path, Path::Udp { .. }) && self.ending.is_none()
    }
}

impl Service {
    /// The engines, the one with the least load first: by what their cores are seen to do, and by what all sessions will need, or by that
    /// alone where nothing is measured.
    pub(super) fn engines_by_load(&self) -> Vec<usize> {
        let mut engines: Vec<_> = (0..self.slots.len()).collect();
        engines.sort_by_cached_key(|&engine| {
            let slots = &self.slots[engine];
            let load = self.admission.load(engine, slots.admitted);
            (load, slots.admitted.bits_per_s, slots.streams_taken())
        });
        engines
    }

    /// The engine with the least load that is seen to carry this stream beside `more` and is not its own.
    fn another_engine(&self, stream: &Stream, more: &[Demand]) -> Option<usize> {
        let has_room = |engine: &usize| {
            let places = 1 + stream.fec_mode().tracks().len();
            *engine != stream.engine
                && self.slots[*engine].stream_room() >= places
                && self.room_as_measured(*engine, stream.demand(), more[*engine]).is_ok()
        };
        self.engines_by_load().into_iter().find(has_room)
    }

    /// A stream that is about to play leaves an engine that is not seen to carry it, if another one is.
    pub(super) fn leave_full_engine(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get(&key).filter(|stream| stream.can_move() && stream.stands_still())
        else {
            return;
        };
        let nothing = vec![Demand::default(); self.slots.len()];
        if self.room_as_measured(stream.engine, stream.demand(), Demand::default()).is_err()
            && let Some(engine) = self.another_engine(stream, &nothing)
        {
            self.move_to(now, key, engine);
        }
    }

    /// Has the newest streams of an engine that no longer serves all go on from others, as far as these are seen to carry them, until so
    /// many packets a second are gone. Returns how many are.
    pub(super) fn move_newest(&mut self, engine: usize, packets_per_s: u64) -> u64 {
        let mut more = vec![Demand::default(); self.slots.len()];
        let mut gone = 0;
        let newest: Vec<_> = self.newest(engine).into_iter().map(|stream| stream.key).collect();
        for key in newest {
            let Some(stream) = self.streams.get(&key).filter(|_| gone < packets_per_s) else { break };
            let Media::Running(run) = stream.media else { continue };
            if !stream.can_move() || stream.is_busy() {
                continue;
            }
            let Some(other) = self.another_engine(stream, &more) else { continue };
            let demand = stream.demand();
            more[other] += demand;
            gone += demand.packets_per_s;
            if let Some(stream) = self.streams.get_mut(&key) {
                stream.moves_to = Some(other);
            }
            self.pause_run(key, run);
        }
        gone
    }

    /// The stream stands still: if that was for another engine to go on with it, that does.
    pub(super) fn finish_move(&mut self, now: Instant, key: StreamKey) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let Some(engine) = stream.moves_to.take() else { return };
        if !matches!(stream.media, Media::Paused { .. }) {
            return; // it came to its end meanwhile
        }
        let waits = stream.is_busy() || stream.goes_on();
        self.move_to(now, key, engine);
        if !waits {
            let plan = Plan { start: Start::Resume, stop: None, told_by: None };
            // It plays on where it stopped, so something is left.
            let _ = self.start(now, key, plan);
        }
    }

    /// Gives a stream that stands still a place in another engine. If there is none it stays.
    fn move_to(&mut self, now: Instant, key: StreamKey, engine: usize) {
        let Some(entry) = self.streams.get(&key).map(|stream| stream.entry.clone()) else { return };
        let Ok(title) = self.library.open(&entry) else { return };
        let Some(place) = self.place_for(engine, title) else { return };
        self.retire_stream(now, key, None);
        let was_reserved = self.streams.get(&key).is_some_and(|stream| stream.is_reserved);
        self.release_reservation(key);
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let demand = stream.demand();
        self.slots[stream.engine].admitted -= demand;
        self.slots[engine].admitted += demand;
        (stream.engine, stream.place, stream.title) = (engine, place, title);
        if was_reserved {
            self.take_reservation(key);
        }
        self.open_stream(key);
        self.change_companions(key);
    }
}
