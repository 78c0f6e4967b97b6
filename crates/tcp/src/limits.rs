//! Bounds of the crate's tables and constants of its algorithms, each with its reason.

// --- sender ---

/// Records in one block of the slab: with its header of 16 bytes a block of 256 bytes, four cache lines.
pub const RECORDS_IN_BLOCK: usize = 15;
/// How often frames with the same bytes may be in the device's hands at once: a counter of one byte. A device that holds more
/// copies of a segment than this is not sending.
pub const DEVICE_COPIES: u8 = u8::MAX;
/// Smallest variation that the retransmission time-out allows for, in nanoseconds: receivers delay acknowledgments by 40 to 200 ms.
pub const RTO_MIN_NS: u64 = 200_000_000;
/// Largest retransmission time-out, in nanoseconds (RFC 6298 rule 2.5: at least 60 s).
pub const RTO_MAX_NS: u64 = 60_000_000_000;
/// Retransmission time-out before anything was measured, in nanoseconds (RFC 6298 rule 2.1).
pub const RTO_FIRST_NS: u64 = 1_000_000_000;
/// The same if the SYN timed out (RFC 6298 rule 5.7).
pub const RTO_AFTER_SYN_NS: u64 = 3_000_000_000;
/// The smallest round-trip time is taken over one to two spans of this length, in nanoseconds: long enough to see an empty queue
/// once, short enough to adapt to a longer path.
pub const MIN_RTT_SPAN_NS: u64 = 60_000_000_000;
/// Allowance for a delayed acknowledgment if one segment is in flight, in nanoseconds (RFC 8985 section 7.2: implementation
/// specific); what common receivers delay at most.
pub const MAX_ACK_DELAY_NS: u64 = 200_000_000;
/// Segments of the initial window (RFC 6928 section 2).
pub const INITIAL_SEGMENTS: u32 = 10;
/// Bytes of the initial window, unless two segments are more (RFC 6928 section 2).
pub const INITIAL_BYTES: u32 = 14_600;
/// Largest congestion window, in bytes: what a scaled receive window can be (RFC 7323 section 2.3).
pub const CWND_MAX: u32 = 1 << 30;
/// Segments that may leave at once where departures are paced: the initial window may (RFC 6928 section 2).
pub const BURST_SEGMENTS: u32 = 10;
/// Nothing of the congestion window is kept longer than this without being used, in nanoseconds (RFC 7661 section 4.4: at most
/// five minutes).
pub const UNVALIDATED_NS: u64 = 300_000_000_000;
/// Probes of one size before it counts as too large (RFC 8899 section 5.1.3, MAX_PROBES).
pub const MTU_PROBES: u8 = 3;
/// Time after which a larger size is tried again, in nanoseconds (RFC 4821 section 7.7, RFC 8899 section 5.1.1: 600 s).
pub const MTU_RAISE_NS: u64 = 600_000_000_000;
/// Retransmission time-outs in a row after which the path counts as a black hole for segments of this size (RFC 4821 section 7.7.1).
pub const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// Smallest payload that reports of routers may lower a segment to, in bytes: MTU 552 less headers with full options. Less is an
/// attack that multiplies packets rather than a path (RFC 5927 section 7).
pub const MSS_MIN: u16 = 472;
/// Payload to which a black hole lowers a segment, in bytes: it fits IPv6's least MTU of 1280 with headers and 20 bytes of options.
pub const MSS_BASE: u16 = 1200;
/// The search for a larger segment ends when no more than this is to be gained, in bytes.
pub const MTU_STEP: u16 = 32;
