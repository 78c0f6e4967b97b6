//! Use of each engine: its occupied places, and the demand of its sessions.

use millrace_core::ids::{ConnId, StreamId};
use millrace_offload::slot_allocator::SlotAllocator;

use crate::admission::Demand;

/// One engine.
#[derive(Debug)]
struct EngineSlots {
    places: SlotAllocator,
    /// What all sessions in this engine need while they play, whether they do or not: new ones go where that is least.
    admitted: Demand,
    /// Sessions of it that have reserved a stream.
    reserved_streams: usize,
    /// Their reservations.
    reserved: Demand,
}

/// All engines.
#[derive(Debug)]
pub(super) struct SlotTable(Vec<EngineSlots>);

impl SlotTable {
    pub(super) fn new(engines: usize, streams: usize, conns: usize) -> Self {
        let engine = || EngineSlots {
            places: SlotAllocator::new(streams, conns),
            admitted: Demand::default(),
            reserved_streams: 0,
            reserved: Demand::default(),
        };
        Self((0..engines.max(1)).map(|_| engine()).collect())
    }

    /// How many engines there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn stream_room(&self, engine: usize) -> usize {
        self.0[engine].places.stream_room()
    }

    pub(super) fn streams_taken(&self, engine: usize) -> usize {
        self.0[engine].places.streams_taken()
    }

    pub(super) fn take_stream(&mut self, engine: usize) -> Option<StreamId> {
        self.0[engine].places.take_stream()
    }

    pub(super) fn give_back_stream(&mut self, engine: usize, place: StreamId) {
        self.0[engine].places.give_back_stream(place);
    }

    pub(super) fn conn_room(&self, engine: usize) -> usize {
        self.0[engine].places.conn_room()
    }

    pub(super) fn take_conn(&mut self, engine: usize) -> Option<ConnId> {
        self.0[engine].places.take_conn()
    }

    pub(super) fn give_back_conn(&mut self, engine: usize, conn: ConnId) {
        self.0[engine].places.give_back_conn(conn);
    }

    /// Demand of all sessions in this engine while they play.
    pub(super) fn admitted(&self, engine: usize) -> Demand {
        self.0[engine].admitted
    }

    /// A session has come into this engine.
    pub(super) fn admit(&mut self, engine: usize, demand: Demand) {
        self.0[engine].admitted += demand;
    }

    /// It has left.
    pub(super) fn dismiss(&mut self, engine: usize, demand: Demand) {
        self.0[engine].admitted -= demand;
    }

    /// Reservations in this engine.
    pub(super) fn reserved(&self, engine: usize) -> Demand {
        self.0[engine].reserved
    }

    /// A session in this engine reserves a stream.
    pub(super) fn reserve_stream(&mut self, engine: usize, demand: Demand) {
        self.0[engine].reserved_streams += 1;
        self.reserve(engine, demand);
    }

    /// It gives that back.
    pub(super) fn release_stream(&mut self, engine: usize, demand: Demand) {
        self.0[engine].reserved_streams -= 1;
        self.release(engine, demand);
    }

    /// Reserves this much beside all streams, for a viewer that fetches segments.
    pub(super) fn reserve(&mut self, engine: usize, demand: Demand) {
        self.0[engine].reserved += demand;
    }

    /// Gives that back.
    pub(super) fn release(&mut self, engine: usize, demand: Demand) {
        self.0[engine].reserved -= demand;
    }

    /// The demand of a session changes, and so does its reservation if it has one.
    pub(super) fn change_demand(&mut self, engine: usize, before: Demand, demand: Demand, is_reserved: bool) {
        self.dismiss(engine, before);
        self.admit(engine, demand);
        if is_reserved {
            self.release(engine, before);
            self.reserve(engine, demand);
        }
    }

    /// Reservations of each engine.
    pub(super) fn all_reserved(&self) -> impl Iterator<Item = Demand> {
        self.0.iter().map(|engine| engine.reserved)
    }

    /// Streams that have reserved room, in all engines.
    pub(super) fn reserved_streams(&self) -> usize {
        self.0.iter().map(|engine| engine.reserved_streams).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(packets_per_s: u64) -> Demand {
        Demand { packets_per_s, bits_per_s: 10 * packets_per_s }
    }

    #[test]
    fn changed_demand_counts_in_reservation_of_reserved_sessions_only() {
        let mut slots = SlotTable::new(2, 4, 4);
        slots.admit(1, demand(3));
        slots.reserve_stream(1, demand(3));
        slots.admit(1, demand(2));
        slots.change_demand(1, demand(3), demand(5), true);
        slots.change_demand(1, demand(2), demand(7), false);
        assert_eq!((slots.admitted(1), slots.reserved(1)), (demand(12), demand(5)));
        assert_eq!((slots.admitted(0), slots.reserved(0)), (demand(0), demand(0)));
        assert_eq!(slots.reserved_streams(), 1, "of whatever engine");
        slots.release_stream(1, demand(5));
        assert_eq!((slots.reserved_streams(), slots.reserved(1)), (0, demand(0)));
    }

    #[test]
    fn reservation_beside_streams_counts_no_stream() {
        let mut slots = SlotTable::new(1, 4, 4);
        slots.reserve_stream(0, demand(1));
        slots.reserve(0, demand(2));
        assert_eq!((slots.reserved_streams(), slots.reserved(0)), (1, demand(3)));
        assert_eq!(slots.all_reserved().collect::<Vec<_>>(), [demand(3)]);
    }

    #[test]
    fn slots_have_one_engine_at_least() {
        let mut slots = SlotTable::new(0, 1, 1);
        let place = slots.take_stream(0).expect("a place");
        assert_eq!((slots.len(), slots.stream_room(0), slots.take_stream(0)), (1, 0, None));
        slots.give_back_stream(0, place);
        assert_eq!(slots.stream_room(0), 1);
    }
}
