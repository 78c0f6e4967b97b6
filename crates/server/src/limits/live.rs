//! Bounds of live titles.

use std::time::Duration;

use millrace_core::limits::{EXTENT_BYTES, FEEDER_EXTENTS, MIN_LIVE_EXTENTS};
use millrace_core::time::MEDIA_HZ;
use millrace_web::limits::PART_TICKS;

/// Usual window of a live title: half a minute of 8 Mb/s. Viewers that lag by more are ended.
pub const DEFAULT_LIVE_BYTES: u64 = 32 << 20;
/// Extents at the end of the window at which no viewer joins: those in the feeder's hands, the oldest one, which is about to go, and one
/// for the time until the viewer's first request.
pub const LIVE_EXTENTS_APART: usize = FEEDER_EXTENTS + 2;
/// An eighth of the window, the oldest one, is a reserve in which no viewer begins: bit rates vary, and a viewer at the very end is overtaken
/// by the first rise.
pub const LIVE_RESERVE_SHARE: u32 = 8;
/// A viewer of a live title that is less than this behind the last access point is not moved there when it asks for "now".
pub const LIVE_EDGE_TICKS: u64 = 2 * MEDIA_HZ;
/// Live titles at once, half of the feeders that a cache has: the others are left to buffers and titles that are about to end.
pub const MAX_LIVE_TITLES: usize = 32;
/// Longest file of sources that were added while the server ran: as many as there may be titles, with two addresses of 8 KiB each, would
/// be half of it.
pub const MAX_KEPT_LIVE_BYTES: u64 = 1 << 20;
/// Longest name of a live title: it stands in addresses and log lines.
pub const MAX_LIVE_NAME_BYTES: usize = 64;
/// Access points kept of a live title: four a second, which is the most that there are, for four minutes.
pub const MAX_LIVE_POINTS: usize = 1024;
/// The same without any source: it only checks titles that wait for their client.
pub const LIVE_REST_EVERY: Duration = Duration::from_millis(500);
/// Datagrams of any size fetched in one call. The buffers reserve 1 MiB for each source; short datagrams touch few of their pages.
pub const LIVE_BATCH_DATAGRAMS: usize = 16;
/// Batches of one source before the next one has its turn: 300 KB of datagrams of the usual size.
pub const LIVE_BATCHES_PER_TURN: usize = 16;
/// Receive buffer to request for each source: 80 ms of 200 Mb/s, in case that the thread is kept waiting.
pub const LIVE_RECEIVE_BUFFER_BYTES: usize = 2 << 20;
/// Interval at which the receiving thread checks silent sources, and whether it should end.
pub const LIVE_LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longest text of a source in a line of `millrace live`: the errors of two programs have a line of usual length
/// each.
pub const MAX_LIVE_CELL: usize = 400;
/// The thread ends within this time.
pub const LIVE_STOP: Duration = Duration::from_secs(1);
/// A source without a packet for this long is reported as silent. Encoders send some every 100 ms for the clock alone.
pub const LIVE_SILENT_NS: u64 = 3_000_000_000;
/// A first source that has come back is on the air again when it has run for this long: one that comes and goes must not interrupt viewers
/// each time.
pub const FIRST_STEADY_NS: u64 = 10_000_000_000;
/// Datagrams without MPEG-TS, and not one with it, within this time are no damage but another format.
pub const LIVE_OTHER_FORMAT_NS: u64 = 1_000_000_000;
/// A source that was a second of media too fast this many times within [`LIVE_HURRY_NS`] is reported: one burst is not worth a line.
pub const LIVE_HURRIES: u32 = 2;
/// See [`LIVE_HURRIES`]: a source of 110 % is found.
pub const LIVE_HURRY_NS: u64 = 25_000_000_000;
/// Seconds over which bit rates are taken.
pub const LIVE_RATE_SECONDS: usize = 10;
/// Bits a second that admission counts for viewers before the rate of a source is measured: high definition.
pub const LIVE_RATE_UNKNOWN: u64 = 8_000_000;
/// Media that a client may bring ahead of its time: more is not read from its connection yet.
pub const LIVE_AHEAD_NS: u64 = 500_000_000;
/// Bytes read from an HTTP client before a pause: half an extent.
pub const LIVE_BYTES_PER_PAUSE: usize = 128 << 10;
/// The pause, in which the cache provides another extent. Together they allow 1 Gb/s.
pub const LIVE_PAUSE: Duration = Duration::from_millis(1);
/// A live title whose client has lost its connection waits for it this long, viewers with it: encoders connect again within seconds.
pub const LIVE_LINGER_NS: u64 = 30_000_000_000;
/// Smallest step of the host's clock that moves the times of day of a live title: two pictures and a half, and more than a busy machine
/// delays a reading of the clock.
pub const LEAST_CLOCK_STEP_MS: u64 = 100;
/// Shortest segment of a live title: two seconds, less the inaccuracy of packet times. Players of HLS start three segments behind the
/// newest one.
pub const MIN_LIVE_SEGMENT_TICKS: u64 = 2 * MEDIA_HZ - MEDIA_HZ / 10;
/// Most segments kept of a live title: half an hour. Half of them are in its playlist, which then has 27 KB.
pub const MAX_LIVE_SEGMENTS: usize = 900;
/// Shortest part of a segment, but for the last one: 85 % of the longest
/// (draft-pantos-hls-rfc8216bis section 4.4.4.9).
pub const MIN_PART_TICKS: u64 = PART_TICKS * 85 / 100;
/// Most parts of a segment. A source that sends no key picture for a minute has none of its segments in parts.
pub const MAX_SEGMENT_PARTS: usize = 120;
/// Newest segments whose parts are kept. A playlist has those of its last three target durations, which are
/// six segments if the longest is twice as long as the others.
pub const SEGMENTS_WITH_PARTS: usize = 16;
/// Pause before a source that has ended is fetched again: cameras that restart are back within seconds.
pub const MIN_PULL_PAUSE: Duration = Duration::from_secs(1);
/// The pause doubles with each failure up to this: a camera that is switched on again is seen within half a minute, and one that is
/// away for weeks costs a process every half minute.
pub const MAX_PULL_PAUSE: Duration = Duration::from_secs(30);
/// A source that was fetched for this long has not failed to start: the next pause is the shortest one again.
pub const PULL_STEADY: Duration = Duration::from_secs(30);

/// Most media that a recording gets at once: 65 ms of 8 Mb/s.
pub const RECORD_PIECE_BYTES: usize = 64 << 10;
/// Media is handed to a recording after this time, however little it is.
pub const RECORD_PIECE_NS: u64 = 250_000_000;
/// Pieces that wait for the disks: 8 MiB of a recording, eight seconds of 8 Mb/s. A disk that hangs for longer costs media.
pub const RECORD_PIECES: usize = 128;
/// A recording that is stopped ends before the next key picture, or at least after this time.
pub const RECORD_TAIL_NS: u64 = 3_000_000_000;
/// A recording of limited length begins with the first key picture; a source that has none by then is not waited for.
pub const RECORD_BEGIN_WAIT: Duration = Duration::from_secs(60);
/// Interval at which a recording whose source is silent checks whether it should end.
pub const RECORD_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Media that is recorded between two looks at the free space of the disks.
pub const RECORD_SPACE_LOOK_BYTES: u64 = 256 << 10;
/// The list of titles is made again whenever a recording has become this much longer: pages load it then.
pub const RELIST_TICKS: u64 = 10 * MEDIA_HZ;
/// A recording ends when a disk has less room than this beyond its reserve: a writer holds a mebibyte, and index and sums come at the end.
pub const RECORD_ROOM_BYTES: u64 = 2 << 20;
/// Longest time that the server waits at its end until recordings are titles. Others are finished at the next start.
pub const RECORDING_STOP: Duration = Duration::from_secs(5);
/// Interval at which it looks whether they are.
pub const RECORDING_STOP_LOOK: Duration = Duration::from_millis(5);

const _: () = assert!(DEFAULT_LIVE_BYTES >= (MIN_LIVE_EXTENTS * EXTENT_BYTES) as u64);
const _: () = assert!(MIN_LIVE_EXTENTS > LIVE_EXTENTS_APART);
/// Longest planned recording: the one of the day before has ended when a daily one begins again.
pub const LONGEST_PLAN: Duration = Duration::from_secs(24 * 3600);
/// Interval at which plans are looked at.
pub const RECORD_PLAN_LOOK: Duration = Duration::from_millis(500);
