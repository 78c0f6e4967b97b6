//! Bounds of volumes on disk: their files, repair.

use std::time::Duration;

use millrace_core::limits::DEFAULT_PACKET_BYTES;

use crate::limits::{DISK_WORK_NS, MAX_MEMBERS};

// Calls that a disk may hold up.

/// A thread that has not begun has not had a processor, so no disk is to blame: the wait for it is
/// this many times longer.
pub const MAX_STARTS: u32 = 7;
/// How long one process waits for another's write to the catalogue; writes take milliseconds.
pub const CATALOGUE_BUSY: Duration = Duration::from_secs(10);
/// How long it waits when it opens the catalogue: a healthy one is never locked against that.
pub const CATALOGUE_BUSY_AT_OPEN: Duration = Duration::from_secs(2);
/// Longest time that a process waits for a lock of the store. Locks are held for milliseconds, or
/// for seconds while a catalogue of thousands of titles is rebuilt or the leftovers of many ingests
/// are removed. A wait for a lock must not make the disk count as hanging.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

const _: () = assert!(LOCK_WAIT.as_nanos() < DISK_WORK_NS as u128);
/// Interval between attempts to take a lock.
pub const LOCK_LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes read at most from the kernel's table of locks: a line has some 60 bytes.
pub const MAX_LOCKS_BYTES: u64 = 1 << 20;
/// Coarsest step of a file system's modification times. A directory looked at within this time of its last change may
/// change again without another modification time.
pub const MTIME_STEP: Duration = Duration::from_secs(2);
/// A manifest that is replaced does not show in the modification time of `titles`: all are looked at this often.
pub const LIST_AGAIN: Duration = Duration::from_secs(30);
/// Longest note on a recording: two names, each of at most 4 KiB.
pub const MAX_RECORDING_NOTE_BYTES: u64 = 64 << 10;
/// Longest list of members: a member's line is a path of at most 4 KiB, which may be written byte by byte as numbers.
pub const MAX_MEMBERS_FILE_BYTES: u64 = 64 * 1024 * MAX_MEMBERS as u64;

// Buffers.

/// One write to the data file: large enough for any disk, aligned in the file because every write has this length.
pub const WRITE_BYTES: usize = 1 << 20;
/// Bytes of a file copied at a time: large enough for any disk.
pub const COPY_BYTES: usize = 1 << 20;
/// Data read at a time: about a megabyte, whole default-size packets.
pub const RESIZE_READ_BYTES: usize = 800 * DEFAULT_PACKET_BYTES;
/// Most grains that `inspect` lists: they are meant for a screen.
pub const MAX_LISTED: u64 = 100_000;

// Repair.

/// How often a caller that waits for a disk checks whether the user wants to stop: people do not notice a tenth of a
/// second.
pub const ASK_SLICE_NS: u64 = 100_000_000;
/// Time that was not used (the disk was slower than the bound) is good for a burst of this length, no longer.
pub const PACE_SLICE_NS: u64 = 100_000_000;
/// Titles may come, go or change while a repair runs; it starts over for those. Users do not
/// deliberately change titles more often than this.
pub const MAX_ROUNDS: usize = 16;
/// Longest name of a codec in a layout.
pub const MAX_CODEC_NAME_BYTES: usize = 24;
/// How long encoded data is kept for an `add` that continues after an interruption.
pub const LADDER_KEPT_S: u64 = 7 * 86_400;
/// How long a part of a title is kept that is taken over from another store. A server that fetches it goes on within minutes; after a week
/// nothing will.
pub const IMPORT_KEPT_S: u64 = 7 * 86_400;
