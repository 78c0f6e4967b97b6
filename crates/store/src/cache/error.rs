//! Reasons why the cache cannot do something.

use std::io;

use millrace_core::limits::{MAX_LIVE_EXTENTS, MAX_OPEN_TITLES, MAX_READS_IN_FLIGHT, MIN_LIVE_EXTENTS};

use crate::limits::MAX_FEEDERS;

/// The cache cannot do this.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A setting is out of range.
    #[error("cache: {0} reads in flight; allowed are 1 to {MAX_READS_IN_FLIGHT}")]
    ReadsInFlight(usize),
    /// The arena has no extents.
    #[error(
        "cache: its memory holds no extent of {} bytes; give it more",
        millrace_core::limits::EXTENT_BYTES
    )]
    NoMemory,
    /// io_uring was requested and is not available.
    #[error("cache: io_uring: {0}; allow it (kernel.io_uring_disabled, seccomp) or read with threads")]
    Uring(#[source] io::Error),
    /// Threads, memory or descriptors were refused.
    #[error("cache: cannot start: {0}; raise the limits of this process")]
    Resources(#[source] io::Error),
    /// Viewers are at as many places of titles as the memory carries.
    #[error("cache: its viewers are at {used} places of titles and its memory carries {max}; give it more")]
    NoRoom {
        /// Places at which viewers are.
        used: u64,
        /// Places that the memory carries.
        max: u64,
    },
    /// The table of titles is full.
    #[error("cache: {MAX_OPEN_TITLES} titles are open; close one first")]
    TooManyTitles,
    /// A live title cannot hold this many extents.
    #[error("cache: a live title holds {MIN_LIVE_EXTENTS} to {MAX_LIVE_EXTENTS} extents, not {0}")]
    LiveExtents(usize),
    /// Live titles may have half of the memory.
    #[error(
        "cache: a live title of {most} extents, and {left} are left for live titles; give it more memory or hold less"
    )]
    NoRoomForLive {
        /// Extents of the title.
        most: usize,
        /// Extents that are left.
        left: usize,
    },
    /// The table of feeders is full.
    #[error("cache: {MAX_FEEDERS} live titles are open; close one first")]
    TooManyFeeders,
    /// A live title has one feeder.
    #[error("cache: this live title is open and has its feeder; close it first")]
    HasFeeder,
    /// The manager thread is gone.
    #[error("cache: its manager thread has ended; restart the server")]
    Stopped,
}
