//! Bounds of casts and channels.

use std::time::Duration;

/// Runs read ahead of their time: more than a second, since clock references come every 100 ms at least. A disk that is asleep for
/// longer is late.
pub const PLAYOUT_RUNS: usize = 32;
/// Rest after a round in which nothing could be played; doubled each time.
pub const PLAYOUT_REST: Duration = Duration::from_secs(1);
/// The longest such rest: a disk that comes back is used within this time.
pub const PLAYOUT_LONGEST_REST: Duration = Duration::from_secs(60);
/// Media before its time that a cast begins with: the reading thread gets ahead.
pub const CAST_START_NS: u64 = 100_000_000;
/// Later than this, the schedule is moved: receivers would lose a burst that makes up for a pause, and have run dry anyway.
pub const CAST_LATE_NS: u64 = 200_000_000;
/// The pacing thread looks this often whether it should end.
pub const CAST_STOP_LOOK: Duration = Duration::from_millis(50);
/// Datagrams in one system call, where several are due: 20 ms of 8 Mb/s.
pub const CAST_BATCH_DATAGRAMS: usize = 16;
/// Interval of the progress line.
pub const CAST_PROGRESS_NS: u64 = 500_000_000;
/// Largest differentiated services code point (RFC 2474).
pub const MAX_DSCP: u8 = 63;
/// Multicast outputs of a channel.
pub const MAX_CHANNEL_OUTPUTS: usize = 8;
/// Interval at which new packets of a channel become visible to viewers: two datagrams of 4 Mb/s.
pub const CHANNEL_LOOK_NS: u64 = 5_000_000;
/// Time that the guide of a channel reaches ahead. Players fetch a guide once a day or more often, so they always have half a day of it; the farther
/// ahead, the likelier it is that the playlist is edited.
pub const GUIDE_AHEAD_MS: u64 = 36 * 3_600_000;
/// Programmes of a channel in the guide: 12 hours of items of three minutes. A guide of 32 full channels has 2 MB.
pub const MAX_GUIDE_PROGRAMMES: usize = 256;
/// Lengths of items that a channel remembers: many times the items of a guide, a megabyte.
pub const MAX_KNOWN_LENGTHS: usize = 4096;
/// Shows of a channel: an item each quarter of an hour. For each the guide computes its next time some hundred times.
pub const MAX_CHANNEL_SHOWS: usize = 96;
/// A show begins this much late at most: a disk that was asleep, a clock that was set. After that the viewers of its time have missed it.
pub const SHOW_LATE_MS: u64 = 300_000;
/// Longest time until an item that a show cuts off has ended with a whole picture and whole sound: some PES packets of audio, and slow pictures.
pub const SHOW_CUT_MS: u64 = 1000;
/// Packets that are spliced between two looks whether a show has to begin: 0.3 s of 300 kb/s.
pub const SHOW_LOOK_PACKETS: usize = 64;
/// A guide that was made is given to all clients for this long, so that they cannot have playlists read all the time.
pub const GUIDE_KEPT_NS: u64 = 2_000_000_000;
/// Groups of a range that are used at most: as many as there are numbers in the usual range, 239.192.0.0/16.
pub const MAX_GROUPS: u32 = 1 << 16;
/// Bits a second of all announcements in a scope (RFC 2974 section 3.1).
pub const SAP_BITS_PER_S: u64 = 4000;
/// Shortest interval in seconds between two announcements of a session (RFC 2974 section 3.1).
pub const SAP_LEAST_INTERVAL_S: u64 = 300;
/// Interval at which casts are compared with those that are announced.
pub const SAP_LOOK: Duration = Duration::from_millis(500);
/// The thread that announces casts ends within this time, with the deletions.
pub const SAP_STOP: Duration = Duration::from_secs(2);
/// Pause before a cast that could not be sent is tried again.
pub const CAST_RETRY_NS: u64 = 2_000_000_000;
/// Usual ports of groups: 500 pairs, outside of the range of `--udp-ports` and below the ports that systems choose themselves.
pub const DEFAULT_GROUP_PORTS: (u16, u16) = (20_000, 20_999);
/// Media of all channels of near video on demand that is read and sorted by time at once: a few packets of each channel.
pub const NVOD_STEP_NS: u64 = 50_000_000;
/// Such steps read ahead: a second, as for other casts, and some 16 MB for the most channels of 8 Mb/s.
pub const NVOD_STEPS: usize = 20;
/// Packets of a channel read at once: 84 kB, one request to a disk.
pub const NVOD_BATCH_PACKETS: usize = 64;
/// Packets whose times are read at once when a title is cut into segments: 64 KiB.
pub const NVOD_SCAN_PACKETS: usize = 8192;
