//! Which places in an engine's tables are taken: streams and connections. The control side names them, so it keeps the list.

use millrace_core::ids::{ConnId, StreamId};

/// Places of one engine.
#[derive(Debug)]
pub struct SlotAllocator {
    streams: Places,
    /// How often each stream slot has been used: a late record for an earlier use matches no
    /// stream.
    generations: Vec<u32>,
    conns: Places,
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

impl SlotAllocator {
    /// All free.
    pub fn new(streams: usize, conns: usize) -> Self {
        Self { streams: Places::new(streams), generations: Vec::new(), conns: Places::new(conns) }
    }

    /// Places for streams that are free.
    pub fn stream_room(&self) -> usize {
        self.streams.room()
    }

    /// Places for streams that are taken.
    pub fn streams_taken(&self) -> usize {
        self.streams.taken as usize
    }

    /// A place for a stream; `None`: all are taken.
    pub fn take_stream(&mut self) -> Option<StreamId> {
        let index = self.streams.take()?;
        let place = index as usize;
        if place >= self.generations.len() {
            self.generations.resize(place + 1, 0);
        }
        let generation = self.generations[place];
        self.generations[place] = generation.wrapping_add(1);
        Some(StreamId { index, generation })
    }

    /// The engine has let go of it.
    pub fn give_back_stream(&mut self, stream: StreamId) {
        self.streams.give_back(stream.index);
    }

    /// Names for connections that are free.
    pub fn conn_room(&self) -> usize {
        self.conns.room()
    }

    /// A name for a connection; `None`: all are taken.
    pub fn take_conn(&mut self) -> Option<ConnId> {
        self.conns.take().map(ConnId)
    }

    /// The engine knows it no more.
    pub fn give_back_conn(&mut self, conn: ConnId) {
        self.conns.give_back(conn.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_generations_differ() {
        let mut places = SlotAllocator::new(2, 1);
        let (a, b) = (places.take_stream().unwrap(), places.take_stream().unwrap());
        assert_eq!((a.index, b.index, places.take_stream(), places.stream_room()), (0, 1, None, 0));
        places.give_back_stream(a);
        let again = places.take_stream().unwrap();
        assert_eq!((again.index, again.generation), (a.index, a.generation + 1));
        let conn = places.take_conn().unwrap();
        assert_eq!(places.take_conn(), None);
        places.give_back_conn(conn);
        assert_eq!(places.take_conn(), Some(conn));
    }
}
