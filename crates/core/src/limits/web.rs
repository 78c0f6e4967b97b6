//! HTTP.

use std::time::Duration;

use crate::limits::volume::BUFFER_BYTES;
use crate::limits::{MAX_AHEAD_MS, TS_PACKET_BYTES};
use crate::time::MEDIA_HZ;

/// Longest data in front of the bytes of a title that an engine sends: the head of a response, and
/// a PAT and a PMT of 1,024 bytes each, filled up to whole TS packets. It waits in the connection's
/// own room, which has this much for replies.
pub const MAX_ORDER_HEAD_BYTES: usize = 8 * 1024;
/// A connection that is sent bytes of a title and takes none for this long is broken off. A browser that has enough stops reading for as long as
/// its viewer pauses, and asks again from where it was when it needs more; each such connection holds a viewer's place meanwhile.
pub const MAX_BYTES_STALL_NS: u64 = 120_000_000_000;

// Connections.

/// Longest head of a request: browsers with many cookies stay below 8 KiB, and other servers' limits are 8 to 16 KiB.
pub const MAX_REQUEST_HEAD_BYTES: usize = 16 * 1024;
/// Longest target of a request (RFC 9112 section 3 asks for 8,000 octets at least).
pub const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Files that are read for requests at once: playlists and tables are kept, so these are first visits.
pub const WEB_READS_AT_ONCE: usize = 4;
/// Streams of an HTTP/2 connection at once: browsers use 6 to 20.
pub const MAX_H2_STREAMS: u32 = 64;
/// Of these, streams answered at once until the client has taken the first bytes of any. The others
/// wait one round trip for it. A client that keeps its windows shut holds this many responses, not
/// [`MAX_H2_STREAMS`].
pub const UNPROVEN_H2_STREAMS: usize = 8;

// Memory.

/// Upper bound of the default: 80 viewers who each take another segment slowly, with 6 s at 8 Mb/s.
pub const DEFAULT_MEMORY_BYTES: u64 = 512 * 1024 * 1024;
/// Memory is short once one part of this many is held. Clients then get no more than their share.
pub const MEMORY_SHORT_PART: usize = 2;
/// The cache of generated segments holds at most one part of this many.
pub const MEMORY_SEGMENTS_PART: usize = 4;
/// The caches of pictures and of lists hold at most one part of this many each, but always the most
/// recent entry.
pub const MEMORY_KEPT_PART: usize = 32;

// Media.

/// Media that goes out at once when a title is asked for as a file, in milliseconds: ffplay looks at 5 s before it shows anything, VLC wants
/// 1 to 3 s in its buffer.
pub const FAST_START_MS: u32 = 6_000;

// HTTP Live Streaming.

/// Length that segments come near to: what Apple's authoring specification asks for.
pub const HLS_TARGET_TICKS: u64 = 6 * MEDIA_HZ;
/// Packets of PAT and PMTs in front of a segment: both sections as long as they can be (1,024 bytes) take 12.
pub const MAX_TABLE_PACKETS: usize = 20;

// Segments that are made (CMAF).

/// Segments that are made at once: half of [`WEB_READS_AT_ONCE`], so that playlists do not wait for them.
pub const SEGMENTS_MADE_AT_ONCE: usize = 2;
/// A time stamp this far from where its packet is among the clock references counts from another origin, or is damaged: decoders hold pictures for 10 s
/// at most.
pub const MAX_STAMP_DISTANCE_TICKS: u64 = 10 * MEDIA_HZ;

// Uploads.

/// Default limit of an upload: a disc of 4K video has at most 100 GB.
pub const DEFAULT_UPLOAD_BYTES: u64 = 100 << 30;
/// Default limit in bits a second of all uploads together: less than half the write rate of one
/// hard disk, so that it reads for viewers meanwhile; a film of two hours at 8 Mb/s takes two and a
/// half minutes.
pub const DEFAULT_UPLOAD_RATE: u64 = 400_000_000;
/// Bytes of an upload that have come and are not in the title yet: beyond these nothing is read from its connection. A read of ingest is at most half of it.
pub const UPLOAD_BUFFER_BYTES: usize = 1 << 20;
/// How long an upload whose client has gone can be gone on with: a connection that was lost comes back within minutes.
pub const UPLOAD_KEPT: Duration = Duration::from_secs(600);

// Events, reported to all listeners.

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
    assert!(UPLOAD_BUFFER_BYTES < BUFFER_BYTES * 4 && UPLOAD_BUFFER_BYTES < u32::MAX as usize);
    assert!(FAST_START_MS <= MAX_AHEAD_MS as u32);
};
