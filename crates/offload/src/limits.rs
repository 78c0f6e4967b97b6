//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

use millrace_core::limits::MAX_BURST_PACKETS;

// The loop.

/// Batches of sends that one turn makes before it looks at commands and leases again: 1024 bursts, some milliseconds at
/// most.
pub const BATCHES_PER_TURN: usize = 16;
/// How long a stopped loop waits for its streams to be closed: longer than the control side gives
/// them to send BYE.
pub const LINGER_NS: u64 = 2_000_000_000;
/// Shortest sleep of an adaptive loop, for when streams share no wake-ups (single packets, a viewer
/// that catches up): hundreds of viewers leave a few microseconds between two departures, and a
/// loop that waits for each costs a third more processor time for a punctuality that has no use.
pub const GATHER_NS: u64 = 200_000;
/// Longest sleep: commands and leases ring a bell, so this only bounds the damage of a lost one.
pub const MAX_SLEEP_NS: u64 = 100_000_000;
/// Shortest sleep of a loop that always sleeps. Departures are gathered for this long into one batch of sends: a tenth of
/// a burst, so that thousands of streams cost a thousand wake-ups a second and not one each.
pub const MIN_SLEEP_NS: u64 = 1_000_000;
/// How often the busy share, which lengthens bursts, is measured. Many bursts of every stream lie
/// between two measurements.
pub const BURST_LOOK_NS: u64 = 50_000_000;
/// How often a loop publishes its load: ten times for each look of admission, and nothing beside a loop's work.
pub const LOAD_PUBLISH_NS: u64 = 10_000_000;
/// Commands one turn of the loop takes before it looks at the timers again.
pub const COMMANDS_PER_TURN: usize = 64;
/// Leases one turn of the loop takes.
pub const LEASES_PER_TURN: usize = 128;
/// Sockets of a queue pair at most: a place in its tables and a word of its memory each.
pub const MAX_PAIR_SOCKETS: u32 = 1 << 16;
/// Bytes that a pair's buffers of one kind are at most: offsets in records have 32 bits.
pub const MAX_AREA_BYTES: u64 = 1 << 31;
/// Shortest buffer of a pair: below a segment each segment would need more than one event.
pub const MIN_BUFFER_BYTES: u32 = 2048;
/// Longest buffer of a pair: eight of the largest chunks of TOAD (2004, table II).
pub const MAX_BUFFER_BYTES: u32 = 1 << 20;
/// Requests taken from one pair before another has its turn: the default capacity of a pair's ring,
/// so that a host is never waited for twice.
pub const REQUESTS_PER_TURN: u32 = 256;
/// Frames taken from the device in one turn: 256 full segments are 3 ms of 1 Gb/s, and as many ACKs as can be noted in a turn with room to spare.
pub const FRAMES_PER_TURN: usize = 256;
/// Listeners of a host that did not choose: an address for each protocol and interface that a server has.
pub const LISTENERS: u8 = 16;
/// How long a connection waits for the host that it was offered before it goes to another one that waits at the same address: longer than a host
/// needs to wake up on a busy machine, and no longer than a caller hardly notices.
pub const OFFER_NS: u64 = 100_000_000;
/// Default backlog of a listener: the value of the standard library.
pub const DEFAULT_BACKLOG: u32 = 128;
/// Bytes that a connection may have given and not acknowledged before its writer sleeps: four thresholds, so that there is something to send while
/// it is being woken.
pub const SEND_SHARE_BYTES: u32 = 512 << 10;
/// Bytes that have to be acknowledged before a sleeping writer is woken (TOAD 2004 section III.C: "for instance, the host requests an event once
/// 128KB of buffers is freed").
pub const WAKE_BYTES: u32 = 128 << 10;
/// Connections that found no page or descriptor and that try again in one turn: those of a host that has its share do so in vain.
pub const RETRIED_PER_TURN: usize = 64;
/// Ranges of leased extents that a host may have given and that are not acknowledged: one for each of a thousand viewers' next second, and so
/// many extents of a cache at most are in use by one host.
pub const EXTENTS_UNDER_WAY: u32 = 1024;
/// Bytes of a connection that the engine keeps ready to be sent: what fills 1 Gb/s at 2 ms, and is copied early enough on any shorter path.
pub const SEND_AHEAD_BYTES: u32 = 256 << 10;
/// Bytes of a connection that a loop may have given and that are not acknowledged: the limit of
/// Linux for a socket's send buffer (net.ipv4.tcp_wmem). The data not sent yet is bounded as for
/// connections of the kernel.
pub const PENDING_SHARE_BYTES: u32 = 4 << 20;
/// Descriptors that must be free before a loop is notified that a connection takes data again: a
/// burst of frames, each with its head.
pub const LOW_DESCRIPTORS: u32 = 2 * MAX_BURST_PACKETS as u32;
/// How long received bytes wait for their buffer to be filled: a tenth of the round trips that TCP notices at all, and ten full segments of 1 Gb/s.
pub const HAND_OVER_NS: u64 = 100_000;
/// Bytes of packets that wait for the file of a capture: a burst of 30 ms at 1 Gb/s, should the disk take that long.
pub const CAPTURE_RING_BYTES: usize = 4 << 20;
/// Default number of bytes kept of each captured packet: whole packets, as in tcpdump.
pub const CAPTURE_SNAP_BYTES: u32 = 262_144;
/// Default limit of the length of a capture's file: 10 s of 1 Gb/s, and no disk is filled by
/// accident.
pub const CAPTURE_FILE_BYTES: u64 = 1 << 30;
/// Bytes written to a capture's file at once.
pub const CAPTURE_BATCH_BYTES: usize = 256 << 10;
/// Room kept at the end of a capture's file for the block that records how it ended.
pub const CAPTURE_END_BYTES: u64 = 512;
/// How often a capture's thread looks for packets, since no bell wakes it: the ring takes 400 MB/s
/// meanwhile.
pub const CAPTURE_LOOK_EVERY: Duration = Duration::from_millis(10);
/// Programs at once that have connected to an engine's socket and are no hosts yet: each is answered as soon as it is read.
pub const MAX_CALLERS: usize = 16;
/// Longest message between an engine and a program that connects: a page, several times the size of
/// the longest one.
pub const MAX_HANDSHAKE_BYTES: usize = 4096;
/// Longest text that explains why a program gets no queue pair: a few sentences.
pub const MAX_REFUSAL_BYTES: usize = 1024;
/// How long a program that has connected may say nothing, and how long it may wait for a queue pair that its last host is just leaving.
pub const HANDSHAKE_NS: u64 = 2_000_000_000;
/// Connections in one answer about an engine's status: what fits a message of [`MAX_HANDSHAKE_BYTES`], and takes the engine a few microseconds.
pub const SURVEY_CONNECTIONS: usize = 16;
/// Connections and listeners that a program takes from an engine's status at most: more than any engine has, so that one that lies comes to an end.
pub const MAX_SHOWN_CONNECTIONS: usize = 1 << 20;
/// Places of its tables that an engine looks at for one such answer, used or not: a cache miss each.
pub const SURVEY_PLACES: u32 = 128;
/// How long an engine continues to send the data that a departed host had given to connections that
/// it had closed: as long as Linux keeps a connection without a socket (net.ipv4.tcp_fin_timeout).
/// No other host can have the pair meanwhile.
pub const HOST_LINGER_NS: u64 = 60_000_000_000;
/// Sockets of a host that is gone that are closed in one turn: a reset each.
pub const CLOSED_PER_TURN: usize = 64;
/// Packets that wait until the kernel has found the way to where they go: the first ones to as many hosts. Others are dropped, and sent again by TCP.
pub const WAITING_PACKETS: usize = 64;
/// Strangers for whose answers the kernel is asked for a way at once: callers who have not shown that they are at their addresses. As many neighbours that
/// are not there are no flood for the kernel's table of them (net.ipv4.neigh.default.gc_thresh3, 1024).
pub const STRANGERS: usize = 256;
/// How long such a stranger has its place: a handshake that takes longer repeats its segments.
pub const STRANGER_NS: u64 = 1_000_000_000;
/// Packets among those that wait for a way that only answer strangers.
pub const WAITING_ANSWERS: usize = WAITING_PACKETS / 2;
/// Hosts whose station, the one that their last segment came from, is remembered, so that the
/// answer goes back there: sixteen times the number of a turn's frames, so that hardly any is
/// forgotten before its answer leaves. 100 KB.
pub const STATIONS: usize = 16 * FRAMES_PER_TURN;
/// Of these as many share a place in the table: with a turn's frames one in ten thousand is forgotten too early.
pub const STATIONS_OF_A_SET: usize = 4;
/// How long such a packet waits: TCP has sent its bytes again by then (the initial retransmission time-out of RFC 6298).
pub const WAITING_NS: u64 = 1_000_000_000;
/// How often it is looked for the way meanwhile: a question to the kernel takes some 0.1 ms, and one on the wire as long again.
pub const WAY_LOOK_NS: u64 = 1_000_000;
/// Heap blocks from this size on are mapped apart and unmapped when they are freed: 128 page faults
/// each, which only buffers of whole jobs (uploads, password checks, made segments) cause.
pub const HEAP_LARGE_BYTES: i32 = 512 << 10;
