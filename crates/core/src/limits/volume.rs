//! Bounds of volumes on disk: their files, ingest, repair.

use crate::limits::TS_PACKET_BYTES;

// Buffers.

/// Bytes of a data file read at a time: whole TS packets, small enough to stay in cache for hash, sums and look.
pub const CHECK_READ_BYTES: usize = TS_PACKET_BYTES * 1024;

// Ingest.

/// Bytes of the buffer between the source and the parser: a read is at most this long. Half of a small second level
/// cache, so that bytes are still there when they are summed, hashed and copied.
pub const BUFFER_BYTES: usize = 512 << 10;
/// Bytes in which the first packets must lie; a file whose first packet comes later is not taken for MPEG-TS: a header of
/// a recorder is far shorter.
pub const SNIFF_BYTES: usize = 256 << 10;
