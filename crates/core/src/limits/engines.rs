//! Bounds of the engines and of the loops that run them.

// Ends of runs.

/// Runs of a stream that last or whose ends have not been told. More than two need several commands between two turns of
/// the loop.
pub const MAX_UNTOLD_ENDS: usize = 3;

// The loop.

/// Batches of sends that one turn makes before it looks at commands and leases again: 1024 bursts, some milliseconds at
/// most.
pub const BATCHES_PER_TURN: usize = 16;
/// Bursts of bytes that have no time of their own which one turn sends: four extents, a megabyte, in about a millisecond. What is due meanwhile
/// waits for so long.
pub const RUSHES_PER_TURN: usize = 4;
/// How long a loop that was told to stop waits for its streams to be closed: longer than the control side gives them to
/// say BYE.
pub const LINGER_NS: u64 = 2_000_000_000;
/// Shortest sleep of an adaptive loop, for when streams share no wake-ups (single packets, somebody who catches up): hundreds of viewers leave a few
/// microseconds between two departures, and a loop that waits for each costs a third more processor time for a punctuality
/// that nobody has a use for.
pub const GATHER_NS: u64 = 200_000;
/// Longest sleep: commands and leases ring a bell, so this only bounds the damage of a lost one.
pub const MAX_SLEEP_NS: u64 = 100_000_000;
/// Shortest sleep of a loop that always sleeps. Departures are gathered for this long into one batch of sends: a tenth of
/// a burst, so that thousands of streams cost a thousand wake-ups a second and not one each.
pub const MIN_SLEEP_NS: u64 = 1_000_000;
/// How often the busy share is looked at, by which bursts grow longer. Many bursts of every stream lie between two looks.
pub const BURST_LOOK_NS: u64 = 50_000_000;
/// How often a loop publishes its load: ten times for each look of admission, and nothing beside a loop's work.
pub const LOAD_PUBLISH_NS: u64 = 10_000_000;
/// Descriptors beside its bell that a thread's sleep watches: full connections, a device of our own TCP, what comes in by UDP.
pub const MAX_WATCHED: usize = 3;
