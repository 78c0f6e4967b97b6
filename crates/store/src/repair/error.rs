//! Reasons why a repair or a scrub ends early.

use crate::error::StoreError;

/// Why a repair or a scrub ended early. Repairs completed until then are kept.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The store cannot be worked with.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The user wanted to stop.
    #[error("stopped; completed work is kept: start it again to resume")]
    Stopped,
    /// A member did not answer, and nothing could be done without it.
    #[error("member {0} has not answered in time: its disk hangs")]
    Silent(u16),
}
