//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

pub mod cache;
pub mod pictures;
pub mod transform;
pub mod volume;

use millrace_core::limits::{
    DISK_CALL_NS, EXTENT_BYTES, MAX_DAMAGED_TITLES, MAX_DATA_UNITS, MAX_PARITY_UNITS, MAX_READS_IN_FLIGHT,
    MAX_RENDITION_NAME_BYTES, MAX_TITLE_NAME_BYTES, MEMBER_READ_BYTES, OPENER_THREADS, SLOW_READ_NS,
};

// The loop.

/// Descriptors beside its bell that a thread's sleep watches: full connections, a device of our own
/// TCP, incoming UDP.
pub const MAX_WATCHED: usize = 3;
/// Media time the cache reads ahead of each playhead.
pub const PREFETCH_NS: u64 = 2_000_000_000;
/// Longest manifest of a title. A kilobyte is usual; notes and stream lists may grow, a damaged length may not.
pub const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Longest index of a title: 2^32 packets have 128 MiB of time index, and 16 bytes for each PCR of 100 hours.
pub const MAX_INDEX_BYTES: u64 = 512 << 20;
/// Longest display name of a title: a file name has at most 255 bytes, and two folder names may
/// precede it.
pub const MAX_DISPLAY_NAME_BYTES: usize = 512;
/// Copies of a title's source file that its manifest lists. The server compares further copies by
/// their content each time it starts.
pub const MAX_SOURCE_COPIES: usize = 16;
/// Suffix of a derived title's name after its parent's: `@` and a rendition's name, which no speed
/// is longer than.
pub const MAX_DERIVED_SUFFIX_BYTES: usize = 1 + MAX_RENDITION_NAME_BYTES;
/// Extents one stream may be waiting for at once: the one it needs and the next, doubled by a seek while both are
/// under way.
pub const MAX_WANTS_PER_STREAM: usize = 4;
/// Extents the cache reads ahead of one playhead at most, however high the bit rate: 32 MiB, 2 s of 130 Mb/s.
pub const MAX_PREFETCH_EXTENTS: u32 = 128;
/// The share of the cache that a viewer at a position of its own pins, in thousandths of an extent:
/// the extent that it sends from, and for `LEASE_AHEAD_NS` and the time of a read (some 20 ms) the
/// next. With extents of 140 ms, 15 Mb/s, this is half of its time; slower viewers need less, and
/// the rest is the data just read for them.
pub const PINNED_PERMILLE_PER_POSITION: usize = 1_500;
/// When every extent of the cache is leased, reads wait and look again after this time, because the
/// return of a lease is not signalled. A tenth of the shortest time in which a viewer of 20 Mb/s
/// plays an extent.
pub const CACHE_SPACE_RETRY_NS: u64 = 10_000_000;
/// Metadata or range sums of a title that a reader holds at a time: 64 blocks of 4096 bytes. Enough to read at a disk's
/// pace, and 43 MB of media whatever its length: such a file of a title of 1 TB has 6 to 11 GB and is never read whole.
pub const META_WINDOW_BYTES: usize = 256 * 1024;
/// Members of a volume: each read touches all of them, so more only make the reads smaller.
pub const MAX_MEMBERS: usize = 32;
/// Most extents that are read together: with [`MAX_MEMBERS`] members that is `MEMBER_READ_BYTES` of each.
pub const MAX_RUN_EXTENTS: usize = 8;
/// Extents in flight for each read that may be: when extents are read together, more of them are on their way. Beyond it no other read
/// is begun: with `MAX_READS_IN_FLIGHT` that is 16 MiB of the cache and as much to read into.
pub const EXTENTS_PER_READ: usize = 2;
/// An extent that no stream wants yet is read together with the one before it if a playhead comes
/// to it within this time after the time that is read ahead anyway: 8 extents of 2 Mb/s are 8 s. An
/// extent read earlier than this keeps memory from others for too long.
pub const RUN_AHEAD_NS: u64 = 8_000_000_000;
/// Memory of reads that were given up because a disk did not answer, and that the kernel may still write to: all that
/// `MAX_READS_IN_FLIGHT` reads of whole rows with their parity have, twice. Beyond it reads wait for their disk.
pub const MAX_ASIDE_BYTES: usize = MAX_READS_IN_FLIGHT * EXTENT_BYTES * 4;
/// Media over which damage is measured: 64 extents, 16 MiB, a quarter of a minute at 8 Mb/s. A hole
/// of this length spoils an evening, however good the rest of the title is.
pub const DAMAGE_WINDOW_EXTENTS: u32 = 64;
/// Data known to be damaged is read again after this time if it is wanted then: it may have been
/// repaired.
pub const DAMAGED_KEPT_NS: u64 = 5_000_000_000;
/// Titles whose damage was reported and is remembered; beyond this number it may be reported once
/// more.
pub const MAX_DAMAGE_SAID: usize = 4096;
/// Maximum bytes read of the list of damaged titles, with the titles' names, whatever else was
/// written there.
pub const MAX_DAMAGED_LIST_BYTES: u64 = 256 * 1024;
/// Damaged titles that were not taken from the cache yet: it is asked twenty times a second, and finds them again.
pub const MAX_DAMAGE_UNTOLD: usize = 64;
/// Titles that are being written at a time, each by a feeder of its own: the manager of the cache looks at all of them each time it wakes.
pub const MAX_FEEDERS: usize = 64;

const _: () = {
    assert!(SLOW_READ_NS * 4 <= PREFETCH_NS);
    assert!(
        (MAX_DAMAGED_TITLES * (MAX_TITLE_NAME_BYTES + MAX_DERIVED_SUFFIX_BYTES + 40)) as u64
            <= MAX_DAMAGED_LIST_BYTES
    );
    assert!(MAX_DATA_UNITS + MAX_PARITY_UNITS <= 128);
    assert!(MAX_MEMBERS * MEMBER_READ_BYTES <= MAX_RUN_EXTENTS * EXTENT_BYTES);
    assert!(MAX_RUN_EXTENTS * 2 <= MAX_READS_IN_FLIGHT);
};
/// Rows that repair and scrub have in memory at a time, media and parity: some megabytes in one read of each disk, and less than
/// one of its caches. A single row may be up to 1.9 MB.
pub const REPAIR_BATCH_BYTES: usize = 8 << 20;
/// What repair and scrub read of any other file at a time.
pub const REPAIR_READ_BYTES: usize = 1 << 20;
/// The same when a volume is opened and when its titles are listed: a disk that was asleep needs ten seconds to spin up, and
/// another process may have the catalogue for as long.
pub const DISK_WORK_NS: u64 = 12_000_000_000;
/// System calls under way at once in one member's directory. Each has a thread, which may hang; there are fewer threads in a
/// server that would ask, and once one of them was given up no other is sent.
pub const MAX_DISK_CALLS: usize = OPENER_THREADS + 8;

const _: () = assert!(SLOW_READ_NS < DISK_CALL_NS && DISK_CALL_NS < DISK_WORK_NS);
/// Space that a file converted by ffmpeg must leave free on each disk: this much, or one part in
/// [`DISK_RESERVE_PARTS`] of a small disk. The size of ffmpeg's output is unknown beforehand, and a
/// full disk stops more than this one ingest.
pub const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// See [`DISK_RESERVE_BYTES`].
pub const DISK_RESERVE_PARTS: u64 = 20;
