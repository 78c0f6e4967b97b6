//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::subtitles::LONGEST_CUE_TICKS;
use millrace_core::limits::web::{
    DEFAULT_MEMORY_BYTES, DEFAULT_UPLOAD_BYTES, DEFAULT_UPLOAD_RATE, UPLOAD_KEPT,
};
use millrace_core::time::MEDIA_HZ;

/// Longest text of a QR code: addresses of titles are shorter, and a code of more is too fine to be
/// read from a screen.
pub const MAX_QR_TEXT_BYTES: usize = 1024;

// TV players.

/// Numbers of channels in lineups: three digits, which a viewer types on a remote control, for 32 live titles at most.
pub(crate) const GUIDE_NUMBERS: u32 = 900;
/// The first of them.
pub(crate) const FIRST_GUIDE_NUMBER: u32 = 100;
/// Tuners that the server claims to have: clients open no more streams at once, and one for each live title is enough.
pub(crate) const TUNERS: u32 = 32;

// Questions to a program of the operator's (webhook).

/// Longest head of an answer; the rest of it is not read.
pub const MAX_ADVICE_HEAD_BYTES: usize = 16 * 1024;
/// How far behind a segment's bytes the rest of its last page is looked for: the rows of a page follow its header within some fields, each of 20 ms.
pub const SUBTITLE_TAIL_TICKS: u64 = MEDIA_HZ / 2;
/// The text on the pages of segments is cached, up to this total...
pub const SUBTITLES_CACHE_BYTES: usize = 8 << 20;
/// ...in which every segment counts at least this much: 4,096 segments, seven hours. Segments of 6
/// s with five languages have some 2 KB.
pub const LEAST_SUBTITLES_BYTES: usize = 2 << 10;
/// Titles whose subtitles are known: those that are watched by HLS.
pub const MAX_SUBTITLED_TITLES: usize = 256;

const _: () = assert!(SUBTITLE_TAIL_TICKS < LONGEST_CUE_TICKS);
/// Bytes of text in the cache of parsed text tracks.
pub const SUBTITLE_TEXTS_BYTES: usize = 32 << 20;
/// Concurrent uploads of subtitles: memory holds the bytes of each, 64 MiB in all.
pub const MAX_SUBTITLE_UPLOADS: usize = 4;

// Connections.

/// Characters of a network that an error quotes: more than the longest address with its prefix has.
pub(crate) const MAX_QUOTED_NETWORK: usize = 80;

/// HTTP connections at once: ten thousand that are idle, and room for those that ask. One that is idle holds a descriptor and less than 2 KiB.
pub const MAX_WEB_CONNECTIONS: usize = 12 * 1024;
/// HTTP connections from one address by default, as for RTSP: a NAT box hides a whole hotel floor. A proxy in front needs fewer than it has viewers.
pub const MAX_WEB_CONNECTIONS_PER_ADDRESS: usize = 1024;
/// Requests of one client that are worked for at a time. A response takes some 50 us of the thread
/// that all share, so another client waits less than a millisecond for them.
pub const CLIENT_TURNS: usize = 8;
/// After this time a request that waits, for a disk or a webhook, no longer counts among them: a
/// reading takes some milliseconds.
pub const TURN_TIME: Duration = Duration::from_millis(20);
/// Most header lines of a request: browsers send about 20.
pub const MAX_REQUEST_HEADERS: usize = 64;
/// Bytes read from a connection at once: the head of almost every request.
pub const WEB_READ_BYTES: usize = 4096;
/// Bytes that a viewer may have sent ahead of the replies to its requests: a hundred heads of
/// players. A viewer that has sent more is closed after the reply that is due.
pub const MAX_PIPELINED_BYTES: usize = 64 * 1024;
/// Time from the first byte of a head to its last: players send it in one piece.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection without a request for this long is closed: players ask for a segment every few
/// seconds, and browsers close theirs after one or two minutes.
pub const WEB_IDLE_TIME: Duration = Duration::from_secs(75);
/// A connection that takes nothing of a reply that is ready for this long is closed. Titles' bytes have `MAX_BYTES_STALL_NS`.
pub const WEB_WRITE_STALL: Duration = Duration::from_secs(30);
/// Number of checks within [`WEB_WRITE_STALL`] whether a viewer has taken any part of a response.
pub const STALL_LOOKS: u32 = 6;
/// Memory that an HTTP/2 stream counts for in `DEFAULT_MEMORY_BYTES` besides its head and its
/// response: the task that answers it and h2's own state.
pub const H2_STREAM_BYTES: usize = 16 * 1024;
/// Response bytes that HTTP/2 buffers for each stream before it sends them.
pub const H2_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Streams of an HTTP/2 connection that were reset before they were answered (rapid reset): more close the connection.
pub const MAX_H2_RESETS: usize = 20;
/// An HTTP/2 connection is asked this often whether it still is, and has as long to answer.
pub const H2_PING: Duration = Duration::from_secs(30);
/// Interval between checks of an HTTP/2 connection for new requests: [`WEB_IDLE_TIME`] is accurate
/// to this.
pub const H2_LOOK: Duration = Duration::from_secs(15);
/// Bytes of a title that a connection inside the program hands on at once: some 30 ms of 8 Mb/s, and one allocation each.
pub const INSIDE_READ_BYTES: usize = 32 * 1024;
/// Time that requests in progress have when the handle is dropped: users wait no longer for a
/// program to end.
pub const WEB_DROP_TIME: Duration = Duration::from_secs(1);

// Memory.

/// A client's share is one part of this many: four clients can hold the rest, while all others
/// still get responses that are small or cached.
pub const MEMORY_CLIENT_PART: usize = 8;
/// Replies up to this length are not counted: errors and the server's health. Each connection and
/// each stream can hold only one.
pub const SMALL_REPLY_BYTES: usize = 1024;
/// Texts from this length on are compressed for clients that accept it: below it, the headers
/// around them are longer than the savings.
pub const LEAST_GZIP_BYTES: usize = 1024;

// Media.

/// Seconds after which a viewer that was refused may ask again: places get free when others end, and segments are asked for every 6 s.
pub const RETRY_AFTER_S: u32 = 5;

// HTTP Live Streaming.

/// No segment is ended before this by choice: each costs a request.
pub const HLS_LEAST_TICKS: u64 = 2 * MEDIA_HZ;
/// Longest segment that the playlist of a recording announces: six seconds and the distance to a key picture, unless these are further apart.
pub const RECORDED_TARGET_S: u64 = 10;
/// Bytes in front of a segment among which its tables are looked for: a PAT every 100 ms, at 10 Mb/s.
pub const TABLES_LOOK_BYTES: usize = 128 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Bytes from a title's first access point among which its streams are looked at: the first second of 4 Mb/s, with every stream in it.
pub const DESCRIBE_BYTES: usize = 512 * 1024;
/// Segments of a title whose first pictures are examined, spread over the title: those at its
/// beginning alone would miss features that begin after a film's opening titles, or after the place
/// where a recording was joined.
pub const ACCESS_LOOKS: usize = 16;
/// Bytes examined of each: parameter sets, captions and the beginning of the picture lie within 20
/// ms of 20 Mb/s.
pub const ACCESS_LOOK_BYTES: usize = 64 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Titles whose cuts are kept: those that are watched by HLS. An hour has 600 segments of 64 bytes.
pub const MAX_LOOKED_AT: usize = 256;
/// Different tables of a title that are kept once: counters of PAT and PMT count to 16 each, often in step.
pub const MAX_TABLES_KEPT: usize = 256;

// Segments that are made (CMAF).

/// Bytes of a title between two cuts that form a segment: 6 s at 85 Mb/s, which is more than a
/// Blu-ray has. Memory holds twice as much while a segment is made.
pub const MAX_MADE_SEGMENT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a title that are read at once for a segment: 250 ms of 8 Mb/s.
pub const MADE_READ_BYTES: usize = 256 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// How far before and behind a segment's bytes its sound is looked for: decoders hold pictures and sound for 1 s at most but for some films of high
/// rate (ISO/IEC 13818-1 section 2.4.2.6), and muxers keep the same times within 2 s of each other.
pub const MADE_LOOK_TICKS: u64 = 4 * MEDIA_HZ;
/// First step of this search: most muxers keep them within half a second.
pub const MADE_FIRST_LOOK_TICKS: u64 = MEDIA_HZ / 2;
/// And in bytes: 4 s of 32 Mb/s.
pub const MADE_LOOK_BYTES: usize = 16 * 1024 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Bytes at the end of a title among which the last picture and the last sound are looked for: 1 s of 8 Mb/s.
pub const MADE_TAIL_BYTES: usize = 1024 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Bytes from a title's first access point among which all of its sounds begin: 8 s of 8 Mb/s. One that begins later is left out.
pub const MAX_TRACK_LOOK_BYTES: usize = 8 * 1024 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// Pictures and sounds of a title: discs have at most 32 sounds.
pub const MAX_CMAF_TRACKS: usize = 33;
/// Parts of a title between jumps of its time stamps or changes of its streams. The server reads
/// each at its beginning and end before the first playlist. A recording of a day whose audio
/// changes every ten minutes has 144.
pub const MAX_CMAF_PARTS: usize = 256;
/// Titles whose tracks and times are kept: those that are watched in this form. An hour has 600 segments of 80 bytes.
pub const MAX_PLANS: usize = 64;
/// Parameter sets of a picture: H.264 allows 32 SPS, encoders write one and a few PPS.
pub const MAX_PARAMETER_SETS: usize = 16;
/// Longest frame of sound: ADTS has 13 bits for it, E-AC-3 needs 4,096 bytes.
pub const MAX_SOUND_FRAME_BYTES: usize = 8 * 1024;
/// Bits a second of each channel that whoever fetches a sound alone counts at least: AAC's usual rate. Films begin with silence, which takes next to nothing.
pub const LEAST_SOUND_RATE: u64 = 64_000;
/// Bytes a second that a viewer must take of a reply that is in memory: slower than that no title plays.
pub const LEAST_REPLY_RATE: u64 = 16 * 1024;

/// Fewest segments of a live title in its playlist: players begin three before the last one (RFC 8216 section 6.3.3), and one that was late finds
/// where it was.
pub const LISTED_LIVE_SEGMENTS: usize = 6;
/// Longest part of a segment of a live title. A player stays three of them behind the newest one; each costs two
/// requests.
pub const PART_TICKS: u64 = MEDIA_HZ / 2;
/// How far in advance a player may ask for parts that do not exist yet (draft-pantos-hls-rfc8216bis section 6.2.5.2: the
/// Advance Part Limit).
pub const MAX_PARTS_AHEAD: u64 = 3 * MEDIA_HZ / PART_TICKS;
/// Longest time that a request waits for such a part: three target durations of the shortest segments. Then the playlist is as it was.
pub const MAX_LIVE_WAIT: Duration = Duration::from_secs(6);
/// How often a connection that brings live media is looked after while nothing comes: its silence is reported after seconds.
pub const LIVE_LOOK_EVERY: Duration = Duration::from_millis(250);

// Uploads.

/// Uploads at once, with those that wait for their client to go on. Each is a thread, an open title and `UPLOAD_BUFFER_BYTES`; more would share the same
/// rate, and none would be done sooner.
pub const MAX_UPLOADS: usize = 8;
/// Threads of uploads, including those of abandoned uploads that have not ended yet. Ending takes
/// milliseconds unless a disk hangs.
pub const MAX_UPLOAD_THREADS: usize = 2 * MAX_UPLOADS;
/// Failed uploads whose cause is kept for clients that lost their connection: some for each that
/// can be under way. A cause is a sentence of a few hundred bytes.
pub const MAX_UPLOAD_FAILURES: usize = 8 * MAX_UPLOADS;
/// What uploads may bring at once after they brought nothing: 20 ms at the usual rate.
pub const UPLOAD_BURST_BYTES: u64 = 1 << 20;
/// How long a client may keep an upload waiting beyond what its bytes are good for ([`LEAST_UPLOAD_RATE`]): as others that do not take their replies.
pub const UPLOAD_STALL: Duration = Duration::from_secs(30);
/// Bytes a second that an upload must bring, or its connection is closed: slower than that an hour of 1 Mb/s takes eight.
pub const LEAST_UPLOAD_RATE: u64 = 16 * 1024;
/// How long the end of the server waits for uploads to be given up, which takes milliseconds.
pub const UPLOADS_STOP: Duration = Duration::from_secs(1);

// The web side in the server.

/// Sessions that `/api/v1/status` lists, the newest: some 40 KB of JSON, which the page asks for every few seconds.
pub const MAX_SESSIONS_SHOWN: usize = 200;

// Events for listeners.

/// Listeners at once: an operator's pages and `top` on some screens. Each has a queue of [`EVENTS_QUEUED`].
pub const MAX_EVENT_LISTENERS: usize = 32;
/// Events queued for a listener: two seconds at the maximum event rate. A listener that leaves more
/// unread is dropped.
pub const EVENTS_QUEUED: usize = 2 * MAX_EVENTS_PER_S;
/// Events sent per second, besides the figures: more are of no use to a reader; the others are
/// counted.
pub const MAX_EVENTS_PER_S: usize = 100;
/// Interval between figures.
pub const EVENTS_EVERY: Duration = Duration::from_secs(1);
/// Longest body of a request that changes a title: a display name in JSON with each byte escaped.
pub const MAX_CHANGE_BYTES: usize = 8 << 10;
/// Longest time for such a body to arrive: it fits into a few packets.
pub const MAX_CHANGE_TIME: Duration = Duration::from_secs(10);
/// Longest time that a client waits for the outcome of a reload: the file is read within milliseconds, unless its disk does not respond.
pub const RELOAD_WAIT: Duration = Duration::from_secs(10);

/// Limits on connections, on the data they may send, and on the memory held for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebLimits {
    /// At once.
    pub connections: usize,
    /// From one address.
    pub connections_per_address: usize,
    /// Bytes of memory for responses.
    pub memory: usize,
    /// The longest time without progress on a response in memory.
    pub reply_stall: Duration,
    /// Longest upload, in bytes.
    pub upload_bytes: u64,
    /// Bits a second that all uploads together may bring.
    pub upload_rate: u64,
    /// How long the client of an upload is waited for, beyond what its bytes are good for.
    pub upload_stall: Duration,
    /// How long an upload whose client has gone waits for it.
    pub upload_kept: Duration,
}

impl Default for WebLimits {
    fn default() -> Self {
        Self {
            connections: MAX_WEB_CONNECTIONS,
            connections_per_address: MAX_WEB_CONNECTIONS_PER_ADDRESS,
            memory: DEFAULT_MEMORY_BYTES as usize,
            reply_stall: WEB_WRITE_STALL,
            upload_bytes: DEFAULT_UPLOAD_BYTES,
            upload_rate: DEFAULT_UPLOAD_RATE,
            upload_stall: UPLOAD_STALL,
            upload_kept: UPLOAD_KEPT,
        }
    }
}
