//! Bounds of serving titles of a library.

use std::time::Duration;

use millrace_core::time::NS_PER_S;

/// Titles that are fetched at once: one alone carries a 10 Gb/s link's worth of ranges, and a second one keeps a short film from waiting for
/// a long one. Each has at most five ranges of 8 MiB in memory.
pub const LIBRARY_FETCHES: usize = 2;
/// Titles that wait to be fetched: an evening's worth, and few enough that a client that requests everything does not keep a node busy for
/// days.
pub const MAX_FETCHES_WAITING: usize = 64;
/// How often a library is listed by default: a new title is there within a minute, and a listing of 10,000 titles takes 60 requests.
pub const LIBRARY_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest such time: for tests and small libraries.
pub const MIN_LIBRARY_INTERVAL: Duration = Duration::from_secs(1);
/// Longest: copies of titles that were withdrawn go within a day.
pub const MAX_LIBRARY_INTERVAL: Duration = Duration::from_secs(86_400);
/// How often the threads look whether the server stops, and whether failed fetches are due.
pub const LIBRARY_LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often is written down when titles were watched last. After a crash their order is that old.
pub const NOTE_WATCHED_NS: u64 = 60 * NS_PER_S;
/// Part of the free space that copies take by default, as its divisor: the other half is for titles that are added.
pub const LIBRARY_SPACE_DIVISOR: u64 = 2;
/// When a server ends, it waits this long for its fetches: requests end within a tenth of a second, a disk may need longer.
pub const LIBRARY_STOP: Duration = Duration::from_secs(2);
