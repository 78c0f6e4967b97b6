//! HTTP.

use std::time::Duration;

use super::TS_PACKET_BYTES;
use crate::time::MEDIA_HZ;

/// What may go before the bytes of a title that an engine sends: the head of a response, and a PAT and a PMT of 1,024 bytes each with what makes
/// whole TS packets of them. It waits in the connection's own room, which has so much for replies.
pub const MAX_ORDER_HEAD_BYTES: usize = 8 * 1024;
/// A connection that is sent bytes of a title and takes none for this long is broken off. A browser that has enough stops reading for as long as
/// its viewer pauses, and asks again from where it was when it needs more; each such connection holds a viewer's place meanwhile.
pub const MAX_BYTES_STALL_NS: u64 = 120_000_000_000;

// Connections.

/// HTTP connections at once: ten thousand that are idle, and room for those that ask. One that is idle holds a descriptor and less than 2 KiB.
pub const MAX_WEB_CONNECTIONS: usize = 12 * 1024;
/// HTTP connections from one address by default, as for RTSP: a NAT box hides a whole hotel floor. A proxy in front needs fewer than it has viewers.
pub const MAX_WEB_CONNECTIONS_PER_ADDRESS: usize = 1024;
/// Longest head of a request: browsers with many cookies stay below 8 KiB, and other servers' limits are 8 to 16 KiB.
pub const MAX_REQUEST_HEAD_BYTES: usize = 16 * 1024;
/// Longest target of a request (RFC 9112 section 3 asks for 8,000 octets at least).
pub const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Most header lines of a request: browsers send about 20.
pub const MAX_REQUEST_HEADERS: usize = 64;
/// Bytes read from a connection at once: the head of almost every request.
pub const WEB_READ_BYTES: usize = 4096;
/// What a viewer may have sent ahead of the replies to its requests: a hundred heads of players. One that has sent more is closed behind the reply
/// that is due.
pub const MAX_PIPELINED_BYTES: usize = 64 * 1024;
/// Time from the first byte of a head to its last: players send it in one piece.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// A connection from which no request comes for this long is closed: players ask for a segment every few seconds, and browsers close theirs
/// after one or two minutes.
pub const WEB_IDLE_TIME: Duration = Duration::from_secs(75);
/// A connection that takes nothing of a reply that is ready for this long is closed. Titles' bytes have [`MAX_BYTES_STALL_NS`].
pub const WEB_WRITE_STALL: Duration = Duration::from_secs(30);
/// Number of checks within [`WEB_WRITE_STALL`] whether a viewer has taken any part of a response.
pub const STALL_LOOKS: u32 = 6;
/// Files that are read for requests at once: playlists and tables are kept, so these are first visits.
pub const WEB_READS_AT_ONCE: usize = 4;
/// Streams of an HTTP/2 connection at once: browsers use 6 to 20.
pub const MAX_H2_STREAMS: u32 = 64;
/// Of these, streams answered at once until the client has taken the first bytes of any. The others
/// wait one round trip for it. A client that keeps its windows shut holds this many responses, not
/// [`MAX_H2_STREAMS`].
pub const UNPROVEN_H2_STREAMS: usize = 8;
/// Memory that an HTTP/2 stream counts for in [`DEFAULT_MEMORY_BYTES`] besides its head and its
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
/// How long requests that are being answered have when the handle is dropped: nobody waits longer for a program that ends.
pub const WEB_DROP_TIME: Duration = Duration::from_secs(1);

// Memory.

/// Default memory for responses, as a multiple of the cache: besides the media, it holds some
/// lists, pictures and generated segments.
pub const MEMORY_PER_CACHE: u64 = 2;
/// Least memory for responses: with less, the server cannot generate a segment of 4K video.
pub const MIN_MEMORY_BYTES: u64 = 64 * 1024 * 1024;
/// Upper bound of the default: 80 viewers who each take another segment slowly, with 6 s at 8 Mb/s.
pub const DEFAULT_MEMORY_BYTES: u64 = 512 * 1024 * 1024;
/// Memory is short once one part of this many is held. Clients then get no more than their share.
pub const MEMORY_SHORT_PART: usize = 2;
/// A client's share is one part of this many: four clients can hold the rest, while all others
/// still get responses that are small or cached.
pub const MEMORY_CLIENT_PART: usize = 8;
/// The cache of generated segments holds at most one part of this many.
pub const MEMORY_SEGMENTS_PART: usize = 4;
/// The caches of pictures and of lists hold at most one part of this many each, but always the most
/// recent entry.
pub const MEMORY_KEPT_PART: usize = 32;
/// Replies up to this length are not counted: errors and the server's health. Each connection and
/// each stream can hold only one.
pub const SMALL_REPLY_BYTES: usize = 1024;
/// Texts from this length on are compressed for clients that accept it: below it, the headers
/// around them are longer than the savings.
pub const LEAST_GZIP_BYTES: usize = 1024;

// Media.

/// Media that goes out at once when a title is asked for as a file, in milliseconds: ffplay looks at 5 s before it shows anything, VLC wants
/// 1 to 3 s in its buffer.
pub const FAST_START_MS: u32 = 6_000;
/// Seconds after which a viewer that was refused may ask again: places get free when others end, and segments are asked for every 6 s.
pub const RETRY_AFTER_S: u32 = 5;

// HTTP Live Streaming.

/// Length that segments come near to: what Apple's authoring specification asks for.
pub const HLS_TARGET_TICKS: u64 = 6 * MEDIA_HZ;
/// No segment is ended before this by choice: each costs a request.
pub const HLS_LEAST_TICKS: u64 = 2 * MEDIA_HZ;
/// Packets of PAT and PMTs in front of a segment: both sections as long as they can be (1,024 bytes) take 12.
pub const MAX_TABLE_PACKETS: usize = 20;
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
/// Longest part of a unit of supplemental enhancement information that is examined: captions have
/// at most 31 times three bytes, and an encoder's own text before them some hundred.
pub const MAX_SEI_BYTES: usize = 4096;
/// Longest part of a sequence parameter set that is looked at: those of real encoders are below 100 bytes, scaling lists make some of 700.
pub const MAX_SPS_BYTES: usize = 1024;
/// No picture is wider or higher: the highest levels of H.264 and H.265 end at 16,888.
pub const MAX_PICTURE_SIDE: u32 = 1 << 15;
/// Thousandths of pictures a second above which a rate is none of pictures: cameras for slow motion have 240.
pub const MAX_PICTURE_RATE: u32 = 240_000;
/// Titles whose cuts are kept: those that are watched by HLS. An hour has 600 segments of 64 bytes.
pub const MAX_LOOKED_AT: usize = 256;
/// Different tables of a title that are kept once: counters of PAT and PMT count to 16 each, often in step.
pub const MAX_TABLES_KEPT: usize = 256;

// Segments that are made (CMAF).

/// Bytes of a title between two cuts of which a segment is made: 6 s at 85 Mb/s, which is more than a Blu-ray has. Twice as much is in memory while one is made.
pub const MAX_MADE_SEGMENT_BYTES: usize = 64 * 1024 * 1024;
/// Segments that are made at once: half of [`WEB_READS_AT_ONCE`], so that playlists do not wait for them.
pub const SEGMENTS_MADE_AT_ONCE: usize = 2;
/// Bytes of a title that are read at once for a segment: 250 ms of 8 Mb/s.
pub const MADE_READ_BYTES: usize = 256 * 1024 / TS_PACKET_BYTES * TS_PACKET_BYTES;
/// How far before and behind a segment's bytes its sound is looked for: decoders hold pictures and sound for 1 s at most but for some films of high
/// rate (ISO/IEC 13818-1 section 2.4.2.6), and muxers keep the same times within 2 s of each other.
pub const MADE_LOOK_TICKS: u64 = 4 * MEDIA_HZ;
/// First step of that: most muxers keep them within half a second.
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
/// Longest program config element of AAC without its comment: it has 385 bits when every count is
/// at its maximum, and one byte for the comment's length.
pub const MAX_PCE_BYTES: usize = 50;
/// Bits a second of each channel that whoever fetches a sound alone counts at least: AAC's usual rate. Films begin with silence, which takes next to nothing.
pub const LEAST_SOUND_RATE: u64 = 64_000;
/// A time stamp this far from where its packet is among the clock references counts from another origin, or is damaged: decoders hold pictures for 10 s
/// at most.
pub const MAX_STAMP_DISTANCE_TICKS: u64 = 10 * MEDIA_HZ;
/// Bytes a second that a viewer must take of a reply that is in memory: slower than that no title plays.
pub const LEAST_REPLY_RATE: u64 = 16 * 1024;

// Uploads.

/// Uploads at once, with those that wait for their client to go on. Each is a thread, an open title and [`UPLOAD_BUFFER_BYTES`]; more would share the same
/// rate, and none would be done sooner.
pub const MAX_UPLOADS: usize = 8;
/// Threads of uploads, including those of abandoned uploads that have not ended yet. Ending takes
/// milliseconds unless a disk hangs.
pub const MAX_UPLOAD_THREADS: usize = 2 * MAX_UPLOADS;
/// Longest upload unless the operator says otherwise: a disc of 4K video has at most 100 GB.
pub const DEFAULT_UPLOAD_BYTES: u64 = 100 << 30;
/// Bits a second that all uploads together may bring unless the operator says otherwise: less than half of what one hard disk writes, so that it reads for
/// viewers meanwhile; a film of two hours at 8 Mb/s takes two and a half minutes.
pub const DEFAULT_UPLOAD_RATE: u64 = 400_000_000;
/// Lowest rate that may be chosen: at less an upload would be slower than [`LEAST_UPLOAD_RATE`] asks of its client.
pub const MIN_UPLOAD_RATE: u64 = 1_000_000;
/// Bytes of an upload that have come and are not in the title yet: beyond these nothing is read from its connection. A read of ingest is at most half of it.
pub const UPLOAD_BUFFER_BYTES: usize = 1 << 20;
/// What uploads may bring at once after they brought nothing: 20 ms at the usual rate.
pub const UPLOAD_BURST_BYTES: u64 = 1 << 20;
/// How long a client may keep an upload waiting beyond what its bytes are good for ([`LEAST_UPLOAD_RATE`]): as others that do not take their replies.
pub const UPLOAD_STALL: Duration = Duration::from_secs(30);
/// Bytes a second that an upload must bring, or its connection is closed: slower than that an hour of 1 Mb/s takes eight.
pub const LEAST_UPLOAD_RATE: u64 = 16 * 1024;
/// How long an upload whose client has gone can be gone on with: a connection that was lost comes back within minutes.
pub const UPLOAD_KEPT: Duration = Duration::from_secs(600);
/// Bytes of an upload after which it is looked how much is free on the disks: what viewers' files need stays free.
pub const UPLOAD_LOOK_BYTES: u64 = 64 << 20;
/// How long the end of the server waits for uploads to be given up, which takes milliseconds.
pub const UPLOADS_STOP: Duration = Duration::from_secs(1);

// The web side in the server.

/// What is read of a connection while bytes are sent on it: the beginning of what the viewer asks for next. The rest waits in the kernel.
pub const MAX_ORDER_READ_BYTES: usize = 16 * 1024;
/// That much of it at once: most requests are no longer.
pub const ORDER_READ_BYTES: usize = 2 * 1024;
/// Where HTTP is listened for if nothing else is said: this port, or the first free one of the next.
pub const DEFAULT_HTTP_PORT: u16 = 8080;
/// So many are tried.
pub const HTTP_PORTS: u16 = 10;
/// Indexes of titles that are kept for playlists: those that were asked for last. An hour of film has some 50 KB.
pub const MAX_WEB_INDEXES: usize = 64;
/// Sessions that `/api/v1/status` lists, the newest: some 40 KB of JSON, which the page asks for every few seconds.
pub const MAX_SESSIONS_SHOWN: usize = 200;

// What happens, told to whoever listens.

/// Listeners at once: an operator's pages and `top` on some screens. Each has a queue of [`EVENTS_QUEUED`].
pub const MAX_EVENT_LISTENERS: usize = 32;
/// Events that wait for a listener: two seconds of as many as are told. One that leaves more unread is dropped.
pub const EVENTS_QUEUED: usize = 2 * MAX_EVENTS_PER_S;
/// Events told in a second, beside the figures: more nobody reads; the others are counted.
pub const MAX_EVENTS_PER_S: usize = 100;
/// How often figures are told.
pub const EVENTS_EVERY: Duration = Duration::from_secs(1);
/// Longest answer that a command reads of a server: 50,000 titles of 1 KiB.
pub const MAX_API_BYTES: u64 = 64 * 1024 * 1024;

const _: () = {
    // The head of a response is below 2 KiB.
    assert!(MAX_TABLE_PACKETS * TS_PACKET_BYTES + 2048 <= MAX_ORDER_HEAD_BYTES);
    assert!(MAX_TARGET_BYTES < MAX_REQUEST_HEAD_BYTES);
    assert!(SEGMENTS_MADE_AT_ONCE < WEB_READS_AT_ONCE);
    // Full caches alone must not make memory short.
    assert!(
        MEMORY_SHORT_PART * (MEMORY_KEPT_PART + 2 * MEMORY_SEGMENTS_PART)
            < MEMORY_KEPT_PART * MEMORY_SEGMENTS_PART
    );
    assert!(UNPROVEN_H2_STREAMS < MAX_H2_STREAMS as usize);
    assert!(UPLOAD_BUFFER_BYTES < super::volume::BUFFER_BYTES * 4 && UPLOAD_BUFFER_BYTES < u32::MAX as usize);
    assert!(FAST_START_MS <= super::MAX_AHEAD_MS as u32);
};

/// Longest body of a request that changes a title: a display name in JSON with each byte escaped.
pub const MAX_CHANGE_BYTES: usize = 8 << 10;
/// Longest time for such a body to arrive: it fits into a few packets.
pub const MAX_CHANGE_TIME: Duration = Duration::from_secs(10);
