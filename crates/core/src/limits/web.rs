//! HTTP.

/// What may go before the bytes of a title that an engine sends: the head of a response, and a PAT and a PMT of 1,024 bytes each with what makes
/// whole TS packets of them. It waits in the connection's own room, which has so much for replies.
pub const MAX_ORDER_HEAD_BYTES: usize = 8 * 1024;
/// A connection that is sent bytes of a title and takes none for this long is broken off. A browser that has enough stops reading for as long as
/// its viewer pauses, and asks again from where it was when it needs more; each such connection holds a viewer's place meanwhile.
pub const MAX_BYTES_STALL_NS: u64 = 120_000_000_000;
