//! Connections that come, carry a stream for a moment and are gone, beside the streams that stay.

use anyhow::anyhow;
use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::seam::Dest;
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::{Engine, StreamSpec};

use super::{Title, run_of};

/// Connections attached, and gone, in a second.
pub(super) const PER_SECOND: u64 = 10_000;
const EVERY_NS: u64 = 1_000_000_000 / PER_SECOND;
/// Places in the engine's table for their streams. Half are in use: each connection stays for a fifth of a second.
pub(super) const PLACES: u32 = 4096;

/// See the module.
pub(super) struct Churn {
    /// Index of the first of their streams.
    first: u32,
    generations: Vec<u32>,
    /// Connections that have come.
    came: u32,
    next: Instant,
}

impl Churn {
    pub(super) fn new(first: u32, now: Instant) -> Self {
        Self { first, generations: vec![0; PLACES as usize], came: 0, next: now }
    }

    fn id(&self, place: u32) -> StreamId {
        StreamId { index: self.first + place, generation: self.generations[place as usize] }
    }

    /// Whether a stream belongs to a connection of these.
    pub(super) fn has(&self, stream: StreamId) -> bool {
        stream.index >= self.first
    }

    /// Connections that have come.
    #[cfg(test)]
    pub(super) fn came(&self) -> u32 {
        self.came
    }

    /// Whether a connection is to come.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next <= now
    }

    /// All connections that are to come by now; one goes for each that comes. Returns how many came.
    pub(super) fn turn(&mut self, engine: &mut Engine, title: &Title, now: Instant) -> anyhow::Result<u32> {
        let before = self.came;
        while self.is_due(now) {
            self.next = self.next.plus_ns(EVERY_NS);
            let (place, leaves) = (self.came % PLACES, (self.came + PLACES / 2) % PLACES);
            engine.conn_gone(now, ConnId(leaves));
            self.generations[place as usize] += 1;
            let id = self.id(place);
            let dest = Dest::Interleaved { conn: ConnId(place), rtp_channel: 0, rtcp_channel: 1 };
            let spec = StreamSpec { id, dest, quiet: false, lends: false, once: false };
            engine.open(now, spec).map_err(|e| anyhow!("open on connection {place}: {e:?}"))?;
            let run = run_of(title, RunSerial(0), place, sequence_of(place));
            engine.play(now, id, now, run).map_err(|e| anyhow!("play on connection {place}: {e:?}"))?;
            self.came += 1;
        }
        Ok(self.came - before)
    }
}
