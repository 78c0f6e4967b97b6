//! HTTP.

// Memory.

/// Default memory for responses, as a multiple of the cache: besides the media, it holds some
/// lists, pictures and generated segments.
pub const MEMORY_PER_CACHE: u64 = 2;
/// Least memory for responses: with less, the server cannot generate a segment of 4K video.
pub const MIN_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

// Uploads.

/// Lowest rate that may be chosen: at less an upload would be slower than `LEAST_UPLOAD_RATE` asks of its client.
pub const MIN_UPLOAD_RATE: u64 = 1_000_000;
/// Bytes of an upload after which it is looked how much is free on the disks: what viewers' files need stays free.
pub const UPLOAD_LOOK_BYTES: u64 = 64 << 20;

// The web side in the server.

/// Default port for HTTP: this one, or the first free one of the next.
pub const DEFAULT_HTTP_PORT: u16 = 8080;
/// Number of ports that are tried.
pub const HTTP_PORTS: u16 = 10;
/// Indexes of titles that are kept for playlists: those that were asked for last. An hour of film has some 50 KB.
pub const MAX_WEB_INDEXES: usize = 64;

// Events, reported to listeners.

/// Longest answer that a command reads of a server: 50,000 titles of 1 KiB.
pub const MAX_API_BYTES: u64 = 64 * 1024 * 1024;
