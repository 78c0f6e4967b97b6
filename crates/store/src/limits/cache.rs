//! Limits of the cache and of its reads from the members of a volume.

use std::time::Duration;

use millrace_core::limits::{EXTENT_BYTES, MAX_READS_IN_FLIGHT, SLOW_READ_NS};

use crate::limits::{EXTENTS_PER_READ, MAX_ASIDE_BYTES, MAX_RUN_EXTENTS, PREFETCH_NS};

// The manager.

/// Asks taken from one engine in a turn, so that many engines get theirs; each takes about a microsecond.
pub const ASKS_PER_TURN: usize = 256;
/// Extents built in a turn; each takes some 50 us, so asks wait for less than half a millisecond.
pub const FILLS_PER_TURN: usize = 8;
/// Requests and ended reads are gathered for this long: the data requested is usually in memory,
/// and is not needed for tens of milliseconds. Without this, a thousand viewers who seek wake this
/// thread some five thousand times a second, on a core that an engine may be using. There is no
/// gathering if it would leave a disk without work, or if the control side waits.
pub const GATHER: Duration = Duration::from_millis(2);
/// Time until the manager learns which extents engines have leased. It reads ahead for seconds, so this delay changes
/// nothing, and 20 wake-ups a second replace one for each of thousands of extents.
pub const TELL_NS: u64 = 50_000_000;
/// The manager looks ahead for all streams together, at multiples of this time. With a wake-up for each stream and extent it
/// would be woken thousands of times a second; compared with the seconds of reading ahead the delay is nothing.
pub const LOOK_AHEAD_TICK_NS: i64 = 16_000_000;
/// A read of many members is looked at each time that this has passed: a slow member is known a quarter after it became
/// slow.
pub const READ_LOOK_NS: u64 = SLOW_READ_NS / 4;
/// However much of it comes, now and then: a read of many members that takes this long is given up. Viewers have long
/// gone without.
pub const MAX_READ_NS: u64 = 4 * HUNG_NS;
/// An extent is read so often at most: once for each step of `Effort`, once more for a file that takes no direct reads, and while a
/// member does not answer when its files are opened.
pub const MAX_READ_TRIES: u32 = 8 + (HUNG_NS / READ_LOOK_NS) as u32;
/// The manager itself runs late by this much only if the machine is busy or it had to wait for
/// something else.
pub const STALL_NS: u64 = SLOW_READ_NS / 10;
/// Members that hang get further requests only while at most this much memory waits for their
/// answers: with more outstanding, they have been asked often enough.
pub const MAX_HUNG_BYTES: usize = MAX_ASIDE_BYTES / 4;
/// A probe of a member reads this much of the data it repeats: the amount that passes under a
/// disk's head in the time of a seek.
pub const PROBE_BYTES: u64 = 64 * 1024;
/// The volume's list of members is looked at again after this time; it is brought up to date each second.
pub const MEMBER_LOOK_NS: u64 = 250_000_000;
/// Most spans of an order: data and parity of every member, and copies of six kinds of records; or the units of parity
/// of an extent of a parity track; or each packet of data and parity of an extent by itself, with copies of the records. Parity is
/// at most twice the title. A run of several extents has half as many, for those that fail together are read again one by one.
pub const MAX_SPANS: usize = 1024;
/// A playhead that goes on smoothly may move its clock by this much (rounding, a catch-up after a hole) without the
/// candidates for eviction being looked at again.
pub const SMOOTH_NS: u64 = 100_000_000;
/// Looking at one extent or playhead costs some 50 ns. One candidate per this many of them: 3 us
/// for each eviction, which is nothing beside the read that it makes room for, and a batch small
/// enough not to become stale.
pub const LOOKED_AT_PER_CANDIDATE: usize = 64;
/// With this age for each extent, looking takes at most a few percent of the time.
pub const AGE_PER_EXTENT_NS: i64 = 2_000;
/// Youngest age at which a batch of candidates is replaced although it is not used up: younger ones have hardly changed.
pub const MIN_AGE_NS: i64 = 50_000_000;
/// An extent that could not be read is not read ahead again for this time; this does not delay a
/// stream that asks for it.
pub const FAILED_FOR_NS: i64 = 5_000_000_000;
/// Number of failures remembered for this time; a disk that has more is suspended before.
pub const FAILED_REMEMBERED: usize = 64;
/// An extent that a stream waits for may displace anything when at most this time, or the
/// look-ahead time, is left: some ten reads of a slow disk. Before that it displaces only extents
/// needed later.
pub const URGENT_NS: i64 = 500_000_000;
/// Extents of closed titles that are still leased are checked at this interval: nothing waits for
/// them.
pub const SWEEP_NS: i64 = 100_000_000;
/// Reads ahead that find no memory are retried after this time, a hundredth of the time read ahead.
pub const AHEAD_RETRY_NS: i64 = 20_000_000;
/// At most one trouble with reads is reported in this time, so that a failed disk does not fill the log.
pub const TROUBLE_INTERVAL_NS: u64 = 1_000_000_000;
/// Titles whose damage is kept until it is taken: it is asked for twenty times a second, and found again.
pub const MAX_DAMAGE_KEPT: usize = 64;

// Simulated disks.

/// A read takes at least this long: a request to a fast disk.
pub const SIM_READ_LEAST_NS: u64 = 100_000;
/// And up to this much longer: a seek and a turn of a slow one.
pub const SIM_READ_SPREAD_NS: u64 = 12_000_000;

// Members of a volume.

/// Points at which a member is suspended. They are forgotten at one point in [`POINT_NS`].
pub const SUSPEND_POINTS: u64 = 12;
/// An error of a read: the third within a few seconds suspends. One bad sector does not.
pub const ERROR_POINTS: u64 = 4;
/// An extent with bytes of a member that do not have their stored sum: the sixth within a few seconds suspends.
pub const WRONG_POINTS: u64 = 2;
/// Time in which one point is forgotten: errors that come further apart are single bad sectors.
pub const POINT_NS: u64 = 1_000_000_000;
/// Good probes in a row that bring a member back: one alone may be luck.
pub const GOOD_PROBES: u32 = 3;
/// From one good probe to the next: a member that is well is back within a second.
pub const PROBE_GAP_NS: u64 = 250_000_000;
/// From suspension to the first probe, and after a bad one; doubled each time, so that a disk that is gone costs nothing.
pub const FIRST_PROBE_NS: u64 = 1_000_000_000;
/// Longest time between probes: a disk that was plugged in again is used within a minute.
pub const MAX_PROBE_NS: u64 = 60_000_000_000;
/// A member that was healthy for this long after it came back begins again with [`FIRST_PROBE_NS`].
pub const PAROLE_NS: u64 = 60_000_000_000;
/// A member that has not answered a read for this long hangs: until it answers, it is asked last.
/// This is the time that is read ahead: a later answer helps no viewer.
pub const HUNG_NS: u64 = 8 * SLOW_READ_NS;
/// Number of codes whose plans are kept: a volume's titles have one, and a few more after its
/// geometry was changed.
pub const CODES_KEPT: usize = 8;
/// A file that could not be opened is tried again after this time, or as soon as its member is another or was repaired: a
/// disk that refuses takes its time to do so, and all viewers wait for the thread that asks it.
pub const FILE_RETRY_NS: u64 = 5_000_000_000;
/// Files of a member that lacked the expected contents are opened or tried again if the last time
/// was longer ago than this: other files may lie there by now. The volume also reports this, but
/// later.
pub const REOPEN_NS: u64 = 1_000_000_000;
/// Parity units with a smaller gap than this are read as one span: the amount that a disk reads in
/// the time of a seek.
pub const GAP_BYTES: u64 = 64 * 1024;

// Reads.

/// An interrupted or postponed read is tried so often before it counts as failed: signals do not come so fast.
pub const MAX_INTERRUPTIONS: u32 = 100;
/// Smallest buffer that is kept besides the home buffers: smaller reads take one of this size.
pub const SMALLEST_STAGING_BYTES: usize = 32 * 1024;
/// Sizes of buffers that are kept, each twice the one before: up to 2 MiB, which the largest run of extents needs.
pub const STAGING_SIZES: usize = 7;
/// Memory kept for the next read besides the home buffers: the needs of the extents in flight that
/// are read together; buffer sizes are up to twice that.
pub const STAGING_KEPT_BYTES: usize = 2 * EXTENTS_PER_READ * MAX_READS_IN_FLIGHT * EXTENT_BYTES;
/// Threads: enough to keep a disk's queue filled, few enough not to matter to a small machine.
pub const MAX_READ_THREADS: usize = 8;
/// Threads that may be stuck in the kernel and have been replaced: as many as reads may be in flight. Beyond that the
/// pool grows smaller.
pub const MAX_STUCK_THREADS: usize = 32;
/// Reads of one member that are under way at once, or of blocks: one that hangs must not take all threads.
pub const MAX_OF_MEMBER: usize = MAX_READ_THREADS / 2;
/// When the pool is dropped, it waits for the reads in progress no longer than this: they keep the
/// memory they write to.
pub const THREADS_LAST_WAIT: Duration = Duration::from_secs(2);
/// Entries of the ring for each read. Those of many members may need more: they wait for room.
pub const ENTRIES_PER_READ: usize = 3;
/// After the kernel has refused to take or wait for anything (out of memory), it is asked again after this time.
pub const RING_REFUSED_WAIT: Duration = Duration::from_millis(5);
/// When the reader by io_uring is dropped, it waits so often for a read in flight to end: 2 s, after which its memory is
/// left to the kernel.
pub const RING_LAST_WAITS: usize = 20;
/// How long it waits each time.
pub const RING_LAST_WAIT: Duration = Duration::from_millis(100);
/// Reads that are held back on order (by tests and `--inject`) are looked at again after this time.
pub const RING_HELD_WAIT: Duration = Duration::from_millis(5);

const _: () = {
    assert!(HUNG_NS <= PREFETCH_NS);
    assert!(FIRST_PROBE_NS <= MAX_PROBE_NS);
    assert!(SMALLEST_STAGING_BYTES << (STAGING_SIZES - 1) >= MAX_RUN_EXTENTS * EXTENT_BYTES);
};
