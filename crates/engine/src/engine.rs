//! The engine: its four families of methods.

use millrace_core::ids::{ConnId, StreamId, TitleRef};
use millrace_core::pool::Lease;
use millrace_core::seam::{SendOutcome, TransmitBatch, Want};
use millrace_core::time::Instant;

use crate::batch::Batch;
use crate::types::{EngineConfig, EngineCounters, LeaseFailure, PlaySpec, Refusal, StreamEvent, StreamSpec};

/// Paces streams; see the crate's documentation.
pub struct Engine {
    config: EngineConfig,
    batch: Batch,
    counters: EngineCounters,
}

impl Engine {
    /// Allocates everything.
    pub fn new(config: EngineConfig) -> Self {
        Self { config, batch: Batch {}, counters: EngineCounters::default() }
    }

    /// Command: a new viewer; nothing is sent yet.
    pub fn open(&mut self, _now: Instant, _spec: StreamSpec) -> Result<(), Refusal> {
        Err(Refusal::TableFull)
    }

    /// Command: play, or go on.
    pub fn play(&mut self, _now: Instant, _id: StreamId, _spec: PlaySpec) -> Result<(), Refusal> {
        Err(Refusal::UnknownStream)
    }

    /// Command: stop sending.
    pub fn pause(&mut self, _now: Instant, _id: StreamId) -> Result<(), Refusal> {
        Err(Refusal::UnknownStream)
    }

    /// Command: forget the stream.
    pub fn close(&mut self, _now: Instant, _id: StreamId) -> Result<(), Refusal> {
        Err(Refusal::UnknownStream)
    }

    /// Command: the connection is gone; all its streams fail.
    pub fn conn_gone(&mut self, _now: Instant, _conn: ConnId) {}

    /// Arrival: an extent, lent.
    pub fn handle_lease(
        &mut self,
        _now: Instant,
        _id: StreamId,
        _title: TitleRef,
        _extent: u32,
        _lease: Lease,
    ) {
    }

    /// Arrival: an extent that could not be lent.
    pub fn handle_lease_failed(
        &mut self,
        _now: Instant,
        _id: StreamId,
        _extent: u32,
        _failure: LeaseFailure,
    ) {
    }

    /// Arrival: what became of the batch, one outcome for each entry, in order.
    pub fn handle_sent(&mut self, _now: Instant, _outcomes: &[SendOutcome]) {}

    /// Egress: the next extent it wants.
    pub fn poll_want(&mut self) -> Option<Want> {
        None
    }

    /// Egress: gives back a want that the cache had no room for; `poll_want` offers it again. Stop polling this turn.
    pub fn want_refused(&mut self, _want: &Want) {}

    /// Egress: fills the batch with what is due; 0 = nothing.
    pub fn poll_bursts(&mut self, _now: Instant) -> usize {
        0
    }

    /// The batch that the last `poll_bursts` filled.
    pub fn batch(&self) -> &impl TransmitBatch {
        &self.batch
    }

    /// Egress: the next event. Call it only with room for the event at hand.
    pub fn poll_event(&mut self) -> Option<StreamEvent> {
        None
    }

    /// When `poll_bursts` next has something to do.
    pub fn poll_at(&self) -> Option<Instant> {
        None
    }

    /// Size of the stream table.
    pub fn streams(&self) -> usize {
        self.config.streams
    }

    /// What has been done so far.
    pub fn counters(&self) -> &EngineCounters {
        &self.counters
    }
}
