//! Bounds of this crate, each with its reason. Those of a single player are in
//! [`millrace_client::limits`].

use std::time::Duration;

// Many viewers.

/// Receive buffer of each viewer's RTP socket to ask for: half a second of 8 Mb/s, and thousands of them.
pub const LOAD_BUFFER_BYTES: usize = 512 * 1024;
/// A picture stands still when no packet came for this long: what players hold at least.
pub const STALL: Duration = Duration::from_millis(500);
/// Time during which packets gather before they are read: fewer system calls, and far below the
/// lateness measured.
pub const GATHER: Duration = Duration::from_millis(2);
/// Most viewers of one call: their ports are those of one address.
pub const MAX_STREAMS: u32 = 20_000;
/// Most threads of one call: each carries more than a thousand viewers.
pub const MAX_THREADS: usize = 16;
/// Descriptors that are not of viewers: threads, files, libraries have a few dozen.
pub const SPARE_DESCRIPTORS: u64 = 256;
/// Most habits of one text: it is written by hand.
pub const MAX_HABITS: usize = 32;
/// Shortest mean time, so that no viewer does nothing but zap.
pub const MIN_HABIT_WAIT: Duration = Duration::from_millis(100);
/// Largest exponent of Zipf's law: with 5 the second title is drawn 32 times less often than the first.
pub const MAX_EXPONENT: f64 = 5.0;
/// Longest time in which viewers arrive: a day.
pub const MAX_ARRIVALS_S: f64 = 86_400.0;
/// The loop of many viewers looks at the cancel flag at least this often: people do not notice.
pub const SHARD_WAIT_NS: u64 = 100_000_000;
/// Readiness events taken in one turn of the loop of many viewers: one system call per turn at full
/// load.
pub const EVENTS_PER_TURN: usize = 1024;
/// Viewers begun in one turn, so that those who play are not held up.
pub const STARTS_PER_TURN: usize = 32;
/// After the farewell has begun, no thread runs longer than this: two of it and some ([`FAREWELL_NS`]).
pub const LAST_NS: u64 = 8_000_000_000;
/// How often the tally for the display is brought up to date: as fast as people read.
pub const TALLY_NS: u64 = 200_000_000;
/// A step of the loop that takes longer is a stall of ours: it is as long as a burst, which it might be blamed on.
pub const OWN_STALL_NS: u64 = 10_000_000;
/// A wait for events that was shorter found them waiting already: a sleep takes longer to wake from.
pub const NO_WAIT_NS: u64 = 50_000;
/// Bytes read at a time from a connection that carries replies only: a reply fits.
pub const REPLY_CHUNK: usize = 2048;
/// Bytes read at a time from a connection that carries media: a write of the server has up to four times as many.
pub const MEDIA_CHUNK: usize = 32 * 1024;
/// Above this many viewers each has fewer receive buffers, to save memory and the processor's
/// caches.
pub const FEW_VIEWERS: u32 = 2000;
/// Batches taken from one socket where all of it is wanted: a sender that never pauses must not hold up the others.
pub const MAX_DRAINS: usize = 256;
/// A viewer that came so shortly before the end is not expected to play yet: SETUP and PLAY take several round trips.
pub const GRACE_NS: u64 = 2_000_000_000;
/// How long the farewell of all viewers may take: thousands of TEARDOWNs and their replies.
pub const FAREWELL_NS: u64 = 3_000_000_000;
/// Packets that wait at most: a third of a second at 8 Mb/s, and 340 KB of one viewer that seeks. Those before them are counted,
/// but their times are not.
pub const MAX_HELD: usize = 256;
/// An announced end lies at most this far behind the last packet: it is the end of the last picture, and the packets that carry
/// the end of a title may be due later. Nothing is missed that comes after it but a BYE.
pub const NEAR_END_S: u32 = 6;
/// A BYE comes at most this long after the last packet: players drop the packets they hold when it
/// comes, so servers wait (Millrace 2.5 s).
pub const BYE_WAIT_NS: u64 = 5_000_000_000;
/// Most intervals that are kept of a load; those behind are left out. Eleven days of seconds.
pub const MAX_SAMPLES: usize = 1_000_000;
/// Kinds of failures that are distinguished: a report of more would go unread.
pub const MAX_KINDS: usize = 64;
/// Sessions that are named because they fared worst: a screen.
pub const MAX_WORST: usize = 10;
/// Sessions that get a line of their own, some hundred bytes each; those behind are in the sums only.
pub const MAX_STREAM_REPORTS: usize = 200_000;

// Transport streams.

/// A step of the media's clock by more than this, or back, is a jump (recordings joined together): nothing is late
/// because of it.
pub const MAX_CLOCK_STEP_NS: u64 = 10_000_000_000;
/// Bytes searched for a clock reference. The standard requires ten per second; at 40 Mb/s one comes
/// every 500 KB.
pub const CLOCK_SEARCH_BYTES: u64 = 1 << 20;
/// A step of a program clock by more than this, a second of 27 MHz, is a jump and not a distance: the standard wants ten
/// references in that time.
pub const MAX_PCR_STEP: u64 = 27_000_000;
/// A longer time between two clock references is a jump: the standard wants ten in a second.
pub const MAX_PCR_INTERVAL_NS: u64 = 1_000_000_000;
/// PIDs whose counters are followed: programme tables, clock, video, audio and some more. Further ones are only
/// counted as packets.
pub const MAX_PIDS: usize = 16;

// HTTP.

/// Longest address that a viewer over HTTP asks for: signed addresses of delivery networks stay below 2 KiB.
pub const MAX_HTTP_URL_BYTES: usize = 4096;
/// Longest head of an HTTP response that a viewer reads: what common servers send stays below 1 KiB, their own limits
/// are 8 to 16 KiB.
pub const MAX_HTTP_HEAD_BYTES: usize = 16 * 1024;
/// Most header lines of an HTTP response.
pub const MAX_HTTP_HEADERS: usize = 64;
/// Redirects that a viewer over HTTP follows in a row; browsers follow 20, and more than a few are a loop.
pub const MAX_HTTP_REDIRECTS: u32 = 8;
/// Longest HLS playlist that a viewer reads: a day of two-second segments with addresses of 40 bytes.
pub const MAX_PLAYLIST_BYTES: usize = 4 << 20;
/// Longest line with a chunk's length and extensions: servers send no extensions, and a line that
/// never ends must not fill memory.
pub const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// Hexadecimal digits of a chunk's length: 2^60 bytes are more than any title has.
pub const MAX_CHUNK_DIGITS: usize = 15;
/// Shortest time from one load of a playlist to the next, whatever its target duration: servers
/// must not be flooded.
pub const MIN_RELOAD_NS: u64 = 500_000_000;
/// Master playlists that lead to one another: a media playlist must come then, or it is a loop.
pub const MAX_MASTERS: u32 = 2;
/// Servers whose addresses are remembered: a delivery network names a few.
pub const MAX_HOSTS: usize = 1024;
/// Data that the kernel may hold for a viewer in addition to the buffer that the viewer counts:
/// with more, a viewer that reads only as fast as it plays would have a second buffer of many
/// seconds there. On a path of 20 ms it carries 100 Mb/s.
pub const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// Default read-ahead: the amount that players commonly hold.
pub const DEFAULT_BUFFER: Duration = Duration::from_secs(10);
/// Default minimum of HLS segments read ahead: RFC 8216 starts live titles that many segments from
/// their end.
pub const MIN_SEGMENTS: u64 = 3;
/// Longest segment accepted, in seconds: an hour is a damaged number.
pub const MAX_SEGMENT_S: f64 = 3600.0;
/// Playlists that are remembered: master, media and some versions of a live one.
pub const MAX_REMEMBERED: usize = 8;
/// Bytes read at a time: a quarter of a second of 2 Mb/s.
pub const WEB_READ_BYTES: usize = 64 * 1024;
/// Times that one segment or playlist is asked for when connections break: a server may close an idle one just then.
pub const MAX_WEB_TRIES: u32 = 2;

// The drop probe.

/// How often a reader of the kernel's counts that meets a writer tries again. The program needs less than a microsecond a
/// packet.
pub const SLOT_READ_TRIES: u32 = 64;
