//! Use of each engine: its occupied places, and the demand of its sessions.

use millrace_offload::slot_allocator::SlotAllocator;

use crate::admission::Demand;

/// One engine.
#[derive(Debug)]
pub(super) struct EngineSlots {
    pub(super) places: SlotAllocator,
    /// What all sessions in this engine need while they play, whether they do or not: new ones go where that is least.
    pub(super) admitted: Demand,
    /// Sessions of it that have reserved a stream.
    pub(super) reserved_streams: usize,
    /// Their reservations.
    pub(super) reserved: Demand,
}

impl EngineSlots {
    pub(super) fn new(streams: usize, conns: usize) -> Self {
        Self {
            places: SlotAllocator::new(streams, conns),
            admitted: Demand::default(),
            reserved_streams: 0,
            reserved: Demand::default(),
        }
    }
}
