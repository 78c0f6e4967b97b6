//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

use millrace_core::limits::{EXTENT_BYTES, MAX_CONN_PENDING_BYTES, MIN_LIVE_EXTENTS};

/// Memory of the cache that an engine starts with: enough for the tens of places at which the viewers of a small server are.
pub const DEFAULT_STREAM_CACHE_BYTES: u64 = 64 << 20;
/// Streams that an engine's table starts with: a caller with a thread for each has no more.
pub const DEFAULT_CALLS_PER_ENGINE: usize = 4096;
/// UDP ports to search for a free pair: the ports that the system never assigns by itself are too
/// few, and any pair will do.
pub const DEFAULT_CALL_PORTS: (u16, u16) = (20_000, 32_000);
/// Descriptors that have something, taken in one call of the events' thread: its array stays small, and what does not fit comes next.
pub const READY_PER_CALL: usize = 64;
/// How soon commands that had no room in a loop's ring are tried again: some turns of the loop.
pub const COMMAND_RETRY: Duration = Duration::from_millis(5);
/// How long runs may take to end when their engine is shut down: many turns of a loop that is busy.
/// A run that has not ended then gets no number of blocks.
pub const SHUT_DOWN_WAIT: Duration = Duration::from_secs(1);
/// How long a connection may take to accept its data before it is handed back: a player that reads
/// at all has taken it long before.
pub const HAND_BACK: Duration = Duration::from_secs(10);
/// Most bytes that a run sends before its media: they wait for the connection in one piece.
pub const MAX_FIRST_BYTES: usize = MAX_CONN_PENDING_BYTES / 2;
/// Datagrams from players that are thrown away in one turn of the events' thread: it has others to look after.
pub const DROPPED_PER_TURN: usize = 64;
/// Time between two looks at how busy an engine is: many bursts of each stream, and a caller that starts them one by one still meets the figure.
pub const BUSY_LOOK_NS: u64 = 500_000_000;
/// Measured busy share, in thousandths, at which an engine refuses further calls. The rest is for
/// seeks and for bursts that coincide.
pub const DEFAULT_MAX_BUSY_PERMILLE: u64 = 900;
/// Shortest window of a circular buffer: less than this a player's start-up would be behind before it begins.
pub const MIN_BUFFER_BYTES: u64 = (MIN_LIVE_EXTENTS * EXTENT_BYTES) as u64;
/// Longest line or request head that the examples read: a player's fits many times.
pub const MAX_EXAMPLE_LINE_BYTES: usize = 8192;
