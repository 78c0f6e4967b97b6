//! Bounds of this crate, each with its reason.

// --- headers, tables, receiver ---

/// Lifetime of a TIME_WAIT record, 2 MSL. RFC 9293 section 3.4.2 takes an MSL of 2 minutes "arbitrarily"; Linux takes 30 s, and no path
/// keeps a packet that long.
pub const TIME_WAIT_MS: u32 = 60_000;

/// How long one slot of SYN cookies lasts; the slot before it is taken too. A handshake is over in three round trips at the most that
/// a peer retransmits its ACK, or it begins anew.
pub const COOKIE_SLOT_NS: u64 = 64_000_000_000;

/// Counters of source ports. RFC 6056 section 3.3.4: ten improve on one already; more of them make ports less predictable. 2 KB.
pub const PORT_COUNTERS: usize = 1024;

/// Shortest page of received data: the record of a page (16 bytes) is then 3 % of it.
pub const MIN_PAGE_BYTES: u32 = 512;

/// Longest page: offset and length are 16-bit numbers, and a power of two.
pub const MAX_PAGE_BYTES: u32 = 32_768;

/// How many pages in use are skipped before a cluster counts as full: at seven pages in eight in use, a free one is missed by chance
/// once in 10^14.
pub const MAX_PAGE_SKIPS: u32 = 256;

/// Pages of early data (behind a hole) of one connection: 256 KB in pages of 2 KB, the product of 100 Mb/s and 20 ms. What each
/// segment that arrives out of order may have to walk past.
pub const MAX_EARLY_PAGES: u16 = 128;

/// How long an ACK is put off. RFC 9293 section 3.8.6.3 allows less than 500 ms; 40 ms is what Linux takes, and stays well below
/// the shortest retransmission time-out in use (200 ms).
pub const DELAYED_ACK_NS: u64 = 40_000_000;

/// Length of a full segment until a longer one has been seen: the default MSS of IPv4 (RFC 9293 section 3.7.1).
pub const LEAST_FULL_SEGMENT_BYTES: u16 = 536;

/// Window scale at most (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;
