//! What is to be sent now: plain descriptors over the engine's own leases and scratch memory.

use millrace_core::seam::{Transmit, TransmitBatch};

/// The engine's batch; see [`crate::Engine::batch`].
pub(crate) struct Batch {}

impl TransmitBatch for Batch {
    fn len(&self) -> usize {
        0
    }
    fn get(&self, index: usize) -> Transmit<'_> {
        panic!("entry {index} of 0")
    }
}
