//! Which places of an engine's tables are taken.

use millrace_core::ids::{ConnId, StreamId};

/// Places of one engine.
pub(super) struct Slots {
    streams: Places,
    /// How often each place has been used: what is said late of an earlier use finds nobody.
    generations: Vec<u32>,
    conns: Places,
}

/// Free numbers below a bound: memory grows with use, not with the bound.
struct Places {
    free: Vec<u32>,
    next: u32,
    bound: u32,
}

impl Places {
    fn new(bound: usize) -> Self {
        Self { free: Vec::new(), next: 0, bound: u32::try_from(bound).unwrap_or(u32::MAX) }
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let fresh = (self.next < self.bound).then_some(self.next)?;
            self.next += 1;
            Some(fresh)
        })
    }

    fn taken(&self) -> usize {
        self.next as usize - self.free.len()
    }
}

impl Slots {
    pub(super) fn new(streams: usize, conns: usize) -> Self {
        Self { streams: Places::new(streams), generations: Vec::new(), conns: Places::new(conns) }
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
        self.streams.free.push(stream.index);
    }

    pub(super) fn take_conn(&mut self) -> Option<ConnId> {
        self.conns.take().map(ConnId)
    }

    pub(super) fn give_back_conn(&mut self, conn: ConnId) {
        self.conns.free.push(conn.0);
    }

    pub(super) fn streams_taken(&self) -> usize {
        self.streams.taken()
    }
}
