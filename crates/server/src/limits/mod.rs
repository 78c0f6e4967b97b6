//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

pub mod adapt;
pub mod cast;
pub mod control;
pub mod live;
pub mod remote;
pub mod trick;
pub mod web;

use std::time::Duration;

use millrace_core::limits::DISK_CALL_NS;

/// Memory that a server uses besides its cache before the first viewer connects: 37 MiB were
/// measured in a control group (docs/ref/config.md).
pub const SERVER_BASE_BYTES: u64 = 40 << 20;
/// Address space that a server reserves besides its cache and the tables of its engines, an
/// estimate: stacks and arenas of its threads.
pub const SERVER_ADDRESS_BYTES: u64 = 512 << 20;
/// Address space that an engine reserves, an estimate: 8192 connections of 74,576 bytes take 611
/// MB.
pub const ENGINE_ADDRESS_BYTES: u64 = 640 << 20;
/// Additional address space for each stream in an engine's table.
pub const STREAM_ADDRESS_BYTES: u64 = 4 << 10;
/// Bytes read at most from a kernel file that lists limits or mounts.
pub const MAX_MEMORY_TEXT_BYTES: u64 = 1 << 20;
/// Openings of titles under way at once, those that wait for a thread included: further requests
/// must come again. On disks that answer, an opening takes milliseconds, so a whole hotel that is
/// switched on finds room; on disks that hang, this bounds the waiting requests.
pub const MAX_OPENINGS: usize = 256;
/// A request that needs a title waits this long for it to be opened, and must then come again: as
/// long as it takes to detect two disks that hang one after the other, and 2 s for all that answer.
/// Players wait longer.
pub const OPENING_NS: u64 = 2 * DISK_CALL_NS + 2_000_000_000;
/// Default number of viewers at once: at 2 Mb/s the 10 Gb/s of a server's link.
pub const DEFAULT_MAX_STREAMS: usize = 5000;
/// Share of its core, in thousandths, that an engine is expected to need before viewers are turned
/// away. The rest is for seeks and for moments in which the machine does something else.
pub const DEFAULT_MAX_BUSY_PERMILLE: u64 = 960;
/// Below this a burst is a packet or two even of fast streams: nothing is gathered.
pub const MIN_BURST_NS: u64 = 1_000_000;
/// Media that is sent ahead at first to viewers by a connection, in milliseconds; 0: none. See `docs/design/0026-trick-play.md`, "Fast start".
pub const DEFAULT_FAST_START_MS: u16 = 0;
/// How far ahead of the media being sent a run is queued behind it, with other FEC or of another
/// rendition: far enough that the engine knows of it, and its first extent has been read, before
/// its time comes.
pub const QUEUE_AHEAD_NS: u64 = 250_000_000;
/// Most header lines of an RTSP message.
pub const MAX_RTSP_HEADERS: usize = 64;
/// RTSP connections at once, and from one address (5,000 half-open connections of one host must not lock others out).
pub const MAX_RTSP_CONNECTIONS: usize = 8192;
/// RTSP connections from one address by default. A NAT box hides a whole hotel floor.
pub const MAX_CONNECTIONS_PER_ADDRESS: usize = 1024;
/// Sessions on one RTSP connection.
pub const MAX_SESSIONS_PER_CONNECTION: usize = 16;
/// How long a session that has paused keeps its stream and its bit rate: a telephone call. After that the next viewer may have them.
pub const DEFAULT_PAUSE_RESERVATION_NS: u64 = 60_000_000_000;
/// Share of streams and bit rate that one address may have by default, in percent: a NAT box hides a whole hotel, and yet
/// one address must not lock out all others.
pub const DEFAULT_ADDRESS_SHARE_PERCENT: u8 = 50;
/// Log lines per second about clients and their requests: at most 100 MB a day, whatever they do.
pub const MAX_CLIENT_LINES_PER_S: usize = 10;
/// Sessions for each stream that may play: those that are set up or paused wait for their place without keeping others out.
pub const SESSIONS_PER_STREAM: usize = 2;
/// Sessions that may be set up however few may play: a kilobyte each.
pub const MIN_SESSION_TABLE: usize = 256;
/// When a table of sessions or streams is this full, in percent, sessions that do not play end, the longest idle first. With
/// [`SESSIONS_PER_STREAM`] there are always some: those that play fill half of it.
pub const SESSION_TABLE_HIGH_PERCENT: usize = 80;
/// Returns the number of sessions at once where `max_streams` streams may play.
pub const fn session_table_size(max_streams: usize) -> usize {
    let size = max_streams.saturating_mul(SESSIONS_PER_STREAM);
    if size > MIN_SESSION_TABLE { size } else { MIN_SESSION_TABLE }
}
/// Time for a client to finish the message it has begun.
pub const RTSP_HEADER_TIMEOUT_NS: u64 = 10_000_000_000;
/// RTSP session time-out announced by default (RFC 2326 section 12.37 default).
pub const DEFAULT_SESSION_TIMEOUT_NS: u64 = 60_000_000_000;
/// Players show that they are there about every third of the time-out, to the second.
pub const MIN_SESSION_TIMEOUT_NS: u64 = 5_000_000_000;
/// A session without a sign of life for a day has no viewer any more.
pub const MAX_SESSION_TIMEOUT_NS: u64 = 86_400_000_000_000;
/// Bytes of a configuration file: a few dozen settings, and as many comments as anybody writes.
pub const MAX_CONFIG_FILE_BYTES: u64 = 1 << 20;
/// Delay added to the end of a title that is announced to players that may stop at that time.
/// GStreamer counts from the first packet plus its latency, while its demultiplexer holds
/// everything back for another 700 ms, a decoder for some pictures (16 on a machine with many
/// cores) and a sink for its buffer. If packets are still in its jitter buffer when that time is
/// over, it waits forever.
pub const LATE_END_NS: u64 = 2_000_000_000;
/// How often admission checks the engines' work: a core that no longer carries its viewers is
/// detected within a second.
pub const ADMISSION_LOOK_NS: u64 = 100_000_000;
/// Processor time of a packet, until it has been measured: that of a slow core (measured here: 0.7 to 2.5 us). It only counts for viewers
/// that come within the first moments.
pub const FIRST_PACKET_COST_NS: u64 = 4_000;
/// Minimum of packets in the last second for the calculation of their cost: with fewer, the engine
/// spends more on waking up than on sending.
pub const MIN_PACKETS_FOR_COST: u64 = 2_000;
/// No new viewer is admitted while this share of the last second's grants came late, in
/// thousandths: this many viewers see a gap.
pub const DISK_LATE_PERMILLE: u64 = 10;
/// Fewer late grants than this in a second are a hiccup of one disk.
pub const MIN_LATE_GRANTS: u64 = 20;
/// The log reports at most this often that viewers are turned away for want of the same resource.
pub const ADMISSION_NEWS_NS: u64 = 60_000_000_000;
/// Fastest delivery that a viewer can request (`Speed`), in thousandths of real time: it costs the
/// same multiple of the bit rate, for a viewer that may have one title.
pub const MAX_SPEED_PERMILLE: u16 = 4_000;
/// The slowest, as slow as the slowest motion.
pub const MIN_SPEED_PERMILLE: u16 = 250;
/// Longest URL in a request; a longer one is answered with 414. Titles are short; the rest is room
/// for signed URLs.
pub const MAX_RTSP_URL_BYTES: usize = 2048;
/// An announced session time-out is overrun by this much before the session is dropped: a keep-alive sent at the last
/// moment is still on its way.
pub const SESSION_TIMEOUT_SLACK_NS: u64 = 5_000_000_000;
/// A reply that waits for the engine (a seek needs the sequence number at which the stream stopped) waits this long.
/// The engine answers within a turn of its loop; ten thousand times that means that it hangs.
pub const ENGINE_ANSWER_TIMEOUT_NS: u64 = 2_000_000_000;
/// A connection that does not take its replies for this long is closed.
pub const RTSP_WRITE_TIMEOUT_NS: u64 = 10_000_000_000;
/// A title that was damaged is listed again after this time if it still is: a scrub may have taken it from the list.
pub const DAMAGE_RELIST_NS: u64 = 600_000_000_000;
/// When a server ends, it waits this long for an ingest to be given up, which deletes the data it
/// has written; only a disk that hangs takes longer.
pub const LIBRARY_STOP_NS: u64 = 5_000_000_000;
/// Default space for the pictures of all titles: some 2,000 titles.
pub const DEFAULT_PICTURE_SPACE_BYTES: u64 = 1 << 30;
/// Titles whose pictures are asked for before they are made: a screen full of them. The others have their turn anyway.
pub const MAX_PICTURES_WANTED: usize = 64;
/// How often the thread checks for titles without pictures, in addition to notifications.
pub const PICTURES_LOOK_EVERY: Duration = Duration::from_secs(2);
/// When a server ends, it waits this long for the work to be given up.
pub const PICTURES_STOP: Duration = Duration::from_secs(1);

// The file.

/// Longest time that a link can be signed for: ten years. The key can be renewed, single links cannot be taken back.
pub const MAX_LINK_TIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

// Questions to a program of the operator's (webhook).

/// Default time for its answer: a viewer that waits longer for the first picture looks for
/// something else.
pub const DEFAULT_ADVICE_TIME: Duration = Duration::from_secs(2);
/// Shortest such time, and the longest: players give up after some 10 s, and a request holds its connection meanwhile.
pub const MIN_ADVICE_TIME: Duration = Duration::from_millis(50);
/// See [`MIN_ADVICE_TIME`].
pub const MAX_ADVICE_TIME: Duration = Duration::from_secs(30);
/// Default port for HTTPS: this one, or the first free one of the next (`HTTP_PORTS`).
pub const DEFAULT_HTTPS_PORT: u16 = 8443;

// Modules.

/// A module's lines are logged no faster than one in this time.
pub const WASM_LOG_EVERY_NS: u64 = 1_000_000_000;
/// Memory of `millrace transform`: this much is read ahead, and it is enough for a module that
/// takes a while.
pub const EXTRACT_EXTENTS: usize = 32;
