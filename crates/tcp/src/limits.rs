//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

/// Neighbours in one set of the table: a search compares no more than these. 8 keys are two cache lines.
pub const NEIGHBOUR_WAYS: usize = 8;
/// Neighbours that a table has room for at least; gateways have places of their own.
pub const MIN_NEIGHBOURS: u32 = 8;
/// Most neighbours of a table: the largest subnet that anybody runs without routers is a /20.
pub const MAX_NEIGHBOURS: u32 = 8192;
/// How long a neighbour counts as reachable after that was confirmed, in nanoseconds (RFC 4861 section 10, REACHABLE_TIME).
pub const REACHABLE_NS: u64 = 30_000_000_000;
/// How long a neighbour that may have gone is sent to before it is probed, in nanoseconds (RFC 4861 section 10, DELAY_FIRST_PROBE_TIME):
/// TCP confirms most of them in that time.
pub const DELAY_PROBE_NS: u64 = 5_000_000_000;
/// Time between two solicitations for one neighbour, in nanoseconds (RFC 4861 section 10, RETRANS_TIMER).
pub const SOLICIT_RETRY_NS: u64 = 1_000_000_000;
/// Solicitations without an answer after which resolution has failed, and as many unicast probes (RFC 4861 section 10,
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
pub const SOLICIT_TRIES: u8 = 3;
/// Probes of the known address after another one has been claimed for a neighbour. One: where the
/// claim is true (a gateway failed over) no host answers, and each probe prolongs the outage by a
/// second.
pub const CONTRADICTED_TRIES: u8 = 1;
/// How long nothing is solicited for a neighbour whose resolution has failed, in nanoseconds: as long as that took.
pub const UNREACHABLE_NS: u64 = 3_000_000_000;
/// A neighbour that nothing was sent to for this long may make room for another one, in nanoseconds: longer than a connection that still
/// moves data is silent (two retransmission time-outs at their longest).
pub const NEIGHBOUR_IDLE_NS: u64 = 120_000_000_000;
/// Solicitations a second for neighbours that are not known yet, so that segments to unused
/// addresses (a SYN flood with sources of the own subnet) do not become a broadcast storm.
pub const SOLICITS_PER_SECOND: u32 = 200;
/// Echo replies a second: many times the rate that people and monitoring send, and less than a
/// thousandth of the rate of a core.
pub const ECHO_REPLIES_PER_SECOND: u32 = 1000;
/// Time between two defences of an address that another host uses too, in nanoseconds (RFC 5227 section 1.1, DEFEND_INTERVAL).
pub const DEFEND_NS: u64 = 10_000_000_000;
/// Announcements of each address at the start (RFC 5227 section 1.1, ANNOUNCE_NUM).
pub const ANNOUNCEMENTS: u8 = 2;
/// Time between them, in nanoseconds (RFC 5227 section 1.1, ANNOUNCE_INTERVAL).
pub const ANNOUNCE_NS: u64 = 2_000_000_000;
/// Frames of the layer's own that wait for the device: answers to a burst of requests, one for each address of a /25. Further ones are
/// dropped, and asked for again. 190 KB with an MTU of 1500.
pub const OWN_FRAMES: usize = 128;
/// Of these, frames that wait for a neighbour's address, the latest of each. Half, so that unknown neighbours cannot keep answers from being sent.
pub const WAITING_FRAMES: usize = OWN_FRAMES / 2;
/// IPv6 extension headers of a packet: one of each kind that may be there, twice over.
pub const MAX_EXTENSION_HEADERS: usize = 8;
/// Their length together, in bytes. No packet needs more (RFC 9098), and every byte of them is
/// read.
pub const MAX_EXTENSION_BYTES: usize = 256;
/// Smallest MTU: the size that every IPv4 link must carry (RFC 791 section 3.2).
pub const MIN_MTU: u16 = 68;
/// Smallest MTU of a link with IPv6 (RFC 8200 section 5).
pub const MIN_MTU_V6: u16 = 1280;

// --- headers, tables, receiver ---

/// Lifetime of a TIME_WAIT record, 2 MSL. RFC 9293 section 3.4.2 takes an MSL of 2 minutes "arbitrarily"; Linux takes 30 s, and no path
/// keeps a packet that long.
pub const TIME_WAIT_MS: u32 = 60_000;
/// Length of one slot of SYN cookies; the slot before it is accepted too. A handshake is over
/// within the three round trips, at most, that a peer retransmits its ACK, or it starts again.
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
/// Connections that can have SACK blocks or duplicates to report at once, at least; as many as there are pages of early data if those are
/// more. A duplicate needs no page. 32 bytes each.
pub const MIN_REPORTS: u32 = 1024;
/// Pages of early data (behind a hole) of one connection: 256 KB in pages of 2 KB, the product of
/// 100 Mb/s and 20 ms. Each segment that arrives out of order may have to walk past all of them.
pub const MAX_EARLY_PAGES: u16 = 128;
/// How long an ACK is put off. RFC 9293 section 3.8.6.3 allows less than 500 ms; 40 ms is what Linux takes, and stays well below
/// the shortest retransmission time-out in use (200 ms).
pub const DELAYED_ACK_NS: u64 = 40_000_000;
/// Length of a full segment until a longer one has been seen: the default MSS of IPv4 (RFC 9293 section 3.7.1).
pub const LEAST_FULL_SEGMENT_BYTES: u16 = 536;
/// Window scale at most (RFC 7323 section 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

// --- sender ---

/// Records in one block of the slab: with its header of 16 bytes a block of 256 bytes, four cache lines.
pub const RECORDS_IN_BLOCK: usize = 15;
/// How often frames with the same bytes may be in the device's hands at once: a counter of one byte. A device that holds more
/// copies of a segment than this is not sending.
pub const DEVICE_COPIES: u8 = u8::MAX;
/// Smallest variation that the retransmission time-out allows for, in nanoseconds: receivers delay acknowledgments by 40 to 200 ms.
pub const RTO_MIN_NS: u64 = 200_000_000;
/// Largest retransmission time-out, also of a SYN and of a window probe, in nanoseconds (RFC 6298 rule 2.5: at least 60 s).
pub const RTO_MAX_NS: u64 = 60_000_000_000;
/// Retransmission time-out before anything was measured, also of a SYN or SYN,ACK, in nanoseconds (RFC 6298 rule 2.1).
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
/// Largest congestion window, in bytes: the maximum of a scaled receive window (RFC 7323 section
/// 2.3).
pub const CWND_MAX: u32 = 1 << 30;
/// Segments that may leave at once where departures are paced: the initial window may (RFC 6928 section 2).
pub const BURST_SEGMENTS: u32 = 10;
/// Nothing of the congestion window is kept longer than this without being used, in nanoseconds (RFC 7661 section 4.4: at most
/// five minutes).
pub const UNVALIDATED_NS: u64 = 300_000_000_000;
/// Probes of one size before it counts as too large (RFC 8899 section 5.1.3, MAX_PROBES).
pub const MTU_PROBES: u8 = 3;
/// Least pause before the first probe for a larger size, and after one that was lost, in nanoseconds: longer than any round trip that is still of use.
pub const MTU_PROBE_PAUSE_NS: u64 = 1_000_000_000;
/// Time after which a larger size is tried again, in nanoseconds (RFC 4821 section 7.7, RFC 8899 section 5.1.1: 600 s).
pub const MTU_RAISE_NS: u64 = 600_000_000_000;
/// Retransmission time-outs in a row after which the path counts as a black hole for segments of this size (RFC 4821 section 7.7.1).
pub const BLACK_HOLE_TIMEOUTS: u8 = 2;
/// Retransmission time-outs in a row after which not even [`MSS_BASE`] counts as passing.
pub const MIN_SIZE_TIMEOUTS: u8 = 4;
/// Packet size at the start of the search for larger ones, in bytes: almost every path takes it
/// (Ethernet). A device that takes less starts with its own maximum.
pub const SEARCH_FROM_MTU: u16 = 1500;
/// Smallest payload that reports of routers may lower a segment to, in bytes: MTU 552 less headers with full options. Less is an
/// attack that multiplies packets rather than a path (RFC 5927 section 7).
pub const MSS_MIN: u16 = 472;
/// Least MTU of an IPv6 link, in bytes (RFC 8200 section 5): no report of a smaller one is true.
pub const IPV6_MTU_MIN: u32 = 1280;
/// Packet sizes to try in turn where a router reports that a packet is too big but not which size
/// it takes, in bytes (RFC 1191 section 7.1).
pub const MTU_PLATEAUS: [u32; 11] = [65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];
/// Payload to which a black hole lowers a segment, in bytes: it fits IPv6's least MTU of 1280 with headers and 20 bytes of options.
pub const MSS_BASE: u16 = 1200;
/// The search for a larger segment ends when no more than this can be gained, in bytes.
pub const MTU_STEP: u16 = 32;

// --- connections, send queue, stages ---

/// Bytes of a page for data that the application wrote itself: an answer's header or a short
/// message fits one, and it holds the largest segment of an Ethernet.
pub const HOST_PAGE_BYTES: usize = 2048;
/// Bytes of one descriptor of a range of an application's area: short writes that are adjacent
/// share it, and this limits how much acknowledged data of it is stepped over.
pub const MAX_AREA_RANGE_BYTES: u32 = 64 << 10;
/// Longest payload of a segment: what IP's length field allows.
pub const MAX_PAYLOAD_BYTES: usize = 65_535;
/// Time without progress after which a connection's extents go back: two seconds are several
/// retransmissions on any path that is worth serving, and less than it takes a cache under pressure
/// to read its extents again.
pub const UNPIN_AFTER_NS: u64 = 2_000_000_000;
/// Challenge ACKs and answers to segments out of the window that a connection sends a second (RFC 5961 section 7). The RFC suggests ten in five
/// seconds; a peer that lost its window needs one a round trip.
pub const CHALLENGES_PER_SECOND: u8 = 10;
/// Shortest wait for the first window probe: the override time-out of the sender's silly-window
/// avoidance should be 0.1 to 1 s (RFC 9293 section 3.8.6.2.1).
pub const MIN_PERSIST_NS: u64 = 200_000_000;
/// How long a SYN is tried: R2 of a SYN is three minutes at least (RFC 9293 section 3.8.3, MUST-23).
pub const SYN_TIMEOUT_NS: u64 = 180_000_000_000;
/// Tries of a SYN,ACK of a connection that an application has not seen yet: 1 + 2 + 4 + 8 + 16 + 32 s, as Linux does.
pub const SYN_ACK_TRIES: u8 = 5;
/// Time-outs in a row after which an application is notified that nothing gets through: R1 should
/// be 3 retransmissions at least (RFC 9293 section 3.8.3, SHLD-10).
pub const STALL_TIMEOUTS: u8 = 3;
/// How long data may stay unacknowledged: R2 should be 100 s at least (RFC 9293 section 3.8.3, SHLD-11).
pub const USER_TIMEOUT_NS: u64 = 120_000_000_000;
/// Shortest user time-out that a peer may ask for (RFC 5482 section 3.1, L_LIMIT: not below R2).
pub const USER_TIMEOUT_MIN_NS: u64 = 100_000_000_000;
/// Longest that a peer may ask for (RFC 5482 section 3.1, U_LIMIT), so that it cannot hold a connection for weeks.
pub const USER_TIMEOUT_MAX_NS: u64 = 600_000_000_000;
/// Keep-alive interval where one is asked for without saying how long (RFC 9293 section 3.8.4, MUST-28).
pub const KEEP_ALIVE_NS: u64 = 7_200_000_000_000;
/// Wait between unanswered keep-alive probes.
pub const KEEP_ALIVE_RETRY_NS: u64 = 75_000_000_000;
/// Unanswered keep-alive probes after which a connection is dead; one alone proves nothing
/// (MUST-29).
pub const KEEP_ALIVE_PROBES: u8 = 9;
/// Time that an orphaned connection (closed by the application) may stay in FIN-WAIT-2, as Linux does.
pub const FIN_WAIT_2_NS: u64 = 60_000_000_000;
/// Age at which a time stamp remembered from the peer is no longer valid (RFC 7323 section 5.5): 24 days.
pub const STAMP_VALID_MS: u32 = 24 * 86_400 * 1_000;
/// Largest maximum segment size that is announced when none is set, and assumed of a peer that announces none (RFC 9293 section 3.7.1,
/// MUST-15), for IPv4.
pub const DEFAULT_MSS_V4: u16 = 536;
/// The same for IPv6.
pub const DEFAULT_MSS_V6: u16 = 1220;
/// Smallest segment size taken from a peer: a hostile one could make us send a header for each byte.
pub const MIN_MSS: u16 = 88;
/// Longest that the processing of a noted ACK is put off (NTT 1996 section 4.2 "rescheduling"); also never longer than an eighth of the round trip.
pub const ACK_DEFER_NS: u64 = 1_000_000;
/// Segments that one connection sends before another has its turn: as many as leave at once where departures are paced.
pub const TURN_SEGMENTS: usize = 10;
/// Plain ACKs that are queued until their connections have come into the cache: about as many
/// connections, with seven lines each, as fit into the caches nearest to a core.
pub const NEW_ACKS: usize = 16;
/// How many notes ahead what processing one of them reads is asked for: a miss costs as much as processing one to three.
pub const NOTES_AHEAD: usize = 4;
/// ACKs noted in a turn; one more is processed at once. A turn that brings more of them than this is long enough as it is.
pub const MAX_NOTES: usize = 4096;
/// Segments that belong to no connection (resets, SYN,ACKs) waiting for the output stage: as many
/// as a turn of a SYN flood brings at 10 Gb/s within 100 us. Further ones are dropped, and
/// requested again.
pub const MAX_REPLIES: usize = 2048;
/// Listeners of a stack at most: a connection remembers its own in a byte, and each SYN looks at all of them.
pub const MAX_LISTENERS: usize = 255;
