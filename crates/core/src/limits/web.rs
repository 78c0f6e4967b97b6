//! HTTP.

/// What may go before the bytes of a title that an engine sends: the head of a response, and a PAT and a PMT of 1,024 bytes each with what makes
/// whole TS packets of them. It waits in the connection's own room, which has so much for replies.
pub const MAX_ORDER_HEAD_BYTES: usize = 8 * 1024;
/// A connection that is sent bytes of a title and takes none for this long is broken off. A browser that has enough stops reading for as long as
/// its viewer pauses, and asks again from where it was when it needs more; each such connection holds a viewer's place meanwhile.
pub const MAX_BYTES_STALL_NS: u64 = 120_000_000_000;
/// What is read of a connection while bytes are sent on it: the beginning of what the viewer asks for next. The rest waits in the kernel.
pub const MAX_ORDER_READ_BYTES: usize = 16 * 1024;
/// Where HTTP is listened for if nothing else is said: this port, or the first free one of the next.
pub const DEFAULT_HTTP_PORT: u16 = 8080;
/// So many are tried.
pub const HTTP_PORTS: u16 = 10;
/// Indexes of titles that are kept for playlists: those that were asked for last. An hour of film has some 50 KB.
pub const MAX_WEB_INDEXES: usize = 64;
