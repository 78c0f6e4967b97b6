//! Which places in the engines are taken: streams, connections, bit rate.

use millrace_core::ids::{ConnId, StreamId};

use crate::admission::Demand;

/// Places of one engine.
#[derive(Debug)]
pub(super) struct EngineSlots {
    streams: Places,
    /// How often each stream place has been used: a late record for an earlier use finds nobody.
    generations: Vec<u32>,
    conns: Places,
    /// What all sessions in this engine need while they play, whether they do or not: new ones go where that is least.
    pub(super) admitted: Demand,
    /// Sessions of it that have reserved a stream.
    pub(super) reserved_streams: usize,
    /// What they have reserved.
    pub(super) reserved: Demand,
}

/// Free numbers below a bound, the lowest never used first: memory grows with use, not with the bound.
#[derive(Debug)]
struct Places {
    free: Vec<u32>,
    next: u32,
    bound: u32,
    taken: u32,
}

impl Places {
    fn new(bound: usize) -> Self {
        Self { free: Vec::new(), next: 0, bound: u32::try_from(bound).unwrap_or(u32::MAX), taken: 0 }
    }

    fn take(&mut self) -> Option<u32> {
        let place = self.free.pop().or_else(|| {
            let fresh = (self.next < self.bound).then_some(self.next)?;
            self.next += 1;
            Some(fresh)
        })?;
        self.taken += 1;
        Some(place)
    }

    fn give_back(&mut self, place: u32) {
        self.taken -= 1;
        self.free.push(place);
    }

    fn room(&self) -> usize {
        (self.bound - self.taken) as usize
    }
}

impl EngineSlots {
    pub(super) fn new(streams: usize, conns: usize) -> Self {
        Self {
            streams: Places::new(streams),
            generations: Vec::new(),
            conns: Places::new(conns),
            admitted: Demand::default(),
            reserved_streams: 0,
            reserved: Demand::default(),
        }
    }

    pub(super) fn has_stream_room(&self) -> bool {
        self.streams.room() > 0
    }

    pub(super) fn stream_room(&self) -> usize {
        self.streams.room()
    }

    pub(super) fn take_stream(&mut self) -> Option<StreamId> {
        let index = self.streams.take()?;
        let place = index as usize;
        if place >= self.generations.len() {
            self.generations.resize(place + 1, 0);
        }
        let generation = self.generations[place];
        self.generations[place] = generation.wrapping_add(1);
        Some(StreamId { index, generation })
    }

    pub(super) fn give_back_stream(&mut self, stream: StreamId) {
        self.streams.give_back(stream.index);
    }

    pub(super) fn take_conn(&mut self) -> Option<ConnId> {
        self.conns.take().map(ConnId)
    }

    pub(super) fn has_conn_room(&self) -> bool {
        self.conns.room() > 0
    }

    pub(super) fn give_back_conn(&mut self, conn: ConnId) {
        self.conns.give_back(conn.0);
    }

    pub(super) fn streams_taken(&self) -> usize {
        self.streams.taken as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_generations_differ() {
        let mut slots = EngineSlots::new(2, 1);
        let (a, b) = (slots.take_stream().unwrap(), slots.take_stream().unwrap());
        assert_eq!((a.index, b.index, slots.take_stream(), slots.has_stream_room()), (0, 1, None, false));
        slots.give_back_stream(a);
        let again = slots.take_stream().unwrap();
        assert_eq!((again.index, again.generation), (a.index, a.generation + 1));
        let conn = slots.take_conn().unwrap();
        assert_eq!(slots.take_conn(), None);
        slots.give_back_conn(conn);
        assert_eq!(slots.take_conn(), Some(conn));
    }
}
