//! `repair`: what is missing or wrong on a member is made anew from the others, title by title.
//!
//! Everything that is made is written below the member's `tmp`, held against the BLAKE3 that the manifest promises, made
//! durable and then renamed into place: a file of a title is never changed where it lies, and bytes that are not those
//! that were ingested never come into a title. What cannot be had from what is left is reported and nothing is touched.
//!
//! | file | does |
//! | --- | --- |
//! | `grid` | rows in memory: what is right, and what the code gives back |
//! | `pace` | how fast: the bound on bytes a second, and the wish to stop |
//! | `report` | what was found and what became of it |

mod grid;
mod pace;
mod report;

pub use pace::Timekeeper;
pub use report::{Fate, Found, Progress, Report, Verdict};

use crate::error::StoreError;

/// How a repair is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Bytes a second that may be read and written, all members together; 0: as fast as the disks can.
    pub rate_bytes_per_s: u64,
}

/// Why a repair or a scrub ended early. What was mended until then stays mended.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The store cannot be worked with.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The user wanted to stop.
    #[error("stopped; what is done stays done: start it again to go on")]
    Stopped,
}
