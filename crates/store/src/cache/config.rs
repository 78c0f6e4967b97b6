//! The settings of a cache.

use millrace_core::limits::{DEFAULT_MAX_DAMAGED_PERMILLE, MAX_READS_IN_FLIGHT, MEMBER_READ_BYTES};

use crate::limits::PREFETCH_NS;

/// How extents are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadBackend {
    /// io_uring where it is allowed, else threads.
    #[default]
    Auto,
    /// io_uring; starting fails where it is not allowed.
    Uring,
    /// A few threads.
    Threads,
}

/// Settings of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Media time that is read ahead of each playhead; 0: only requested extents are read.
    pub prefetch_ns: u64,
    /// Reads in flight, 1 to [`MAX_READS_IN_FLIGHT`].
    pub reads_in_flight: usize,
    /// Bytes that each member of a title is asked for at a time, on average, as far as extents that follow one another are wanted:
    /// at most [`MAX_RUN_EXTENTS`](crate::limits::MAX_RUN_EXTENTS) are read together. 0: each is read by itself.
    pub read_bytes: usize,
    /// How to read.
    pub backend: ReadBackend,
    /// Packets of a thousand that may be damaged beyond repair in
    /// [`DAMAGE_WINDOW_EXTENTS`](crate::limits::DAMAGE_WINDOW_EXTENTS) extents of a title: this
    /// many are left out of leased extents. Beyond this limit, streams that want the extent get an
    /// error; with 0, always.
    pub max_damaged_permille: u32,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            prefetch_ns: PREFETCH_NS,
            reads_in_flight: MAX_READS_IN_FLIGHT,
            read_bytes: MEMBER_READ_BYTES,
            backend: ReadBackend::Auto,
            max_damaged_permille: DEFAULT_MAX_DAMAGED_PERMILLE,
        }
    }
}
