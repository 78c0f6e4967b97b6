//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use millrace_core::limits::MAX_HELD_PER_ENGINE;

// Ends of runs.

/// Runs of a stream that last or whose ends have not been reported. More than two need several
/// commands between two turns of the loop.
pub const MAX_UNTOLD_ENDS: usize = 3;

// The loop.

/// Bursts of bytes without a time of their own that one turn sends: four extents, a megabyte, in
/// about a millisecond. Packets due meanwhile wait this long.
pub const RUSHES_PER_TURN: usize = 4;
/// When a loop wakes for a burst, those of other streams that depart within this time leave with it: 125 wake-ups a second for any number
/// of streams, as many as a thread that looks after ten viewers may have and still cost under 2 % of a core. Together with the longest burst
/// of a core that is busy, whose bursts lead by little, packets stay within 20 ms.
pub const SHARED_WAKE_NS: u64 = 8_000_000;
/// Media in a burst of bytes in a connection, at the pace of its title: about an extent of 8 Mb/s.
/// A client that fetches bytes holds seconds, so none waits for less, and each write costs. A burst
/// has up to twice as much where this ends its extent.
pub const BYTES_BURST_NS: u64 = 250_000_000;
/// Time in which the first extent of a run that begins at once should be read: viewers that already
/// play come first, and a wait this short goes unnoticed.
pub const START_READ_NS: u64 = 50_000_000;
/// RTCP sender report interval (RFC 3550 section 6.2 recommends a minimum of 5 s; players sync faster with less).
pub const RTCP_INTERVAL_NS: u64 = 5_000_000_000;
/// A TCP viewer that has taken nothing for this long gives its extents back and waits without them:
/// dead clients must not pin the cache. Far above the time that a path with a second of round trip
/// needs from one acknowledgement to the next while it takes anything.
pub const TCP_PARK_NS: u64 = 200_000_000;
/// A packet that leaves this long after its time counts as late. Below it is the scheduling noise of an ordinary kernel.
pub const LATE_NS: u64 = 1_000_000;
/// A loop that is woken up to this late goes on as if it had been on time: the next burst is not put off for it. Two
/// scheduling slices of a busy machine; without it a stream whose every wake-up is late would fall behind for ever,
/// since catching up counts from the burst before.
pub const WAKE_CREDIT_NS: u64 = 20_000_000;
/// The title that may leave on that credit, in packets: with the burst itself no more than `MAX_BURST_PACKETS`.
pub const WAKE_CREDIT_PACKETS: u64 = 40;
/// Packets of one stream leave no closer than this on average, whatever their media times say: about 1 Gb/s of media,
/// so that a title with broken times cannot flood its viewer nor starve the others.
pub const MIN_PACKET_GAP_NS: u64 = 10_000;
/// First RTCP sender report after the first media packet: a player can place the stream on the wall clock from then on.
pub const FIRST_REPORT_NS: u64 = 100_000_000;
/// A destination that refuses everything for this long is given up: longer than a Wi-Fi roam or a switch's spanning
/// tree takes (RSTP 2-6 s, STP up to 30 s).
pub const MAX_UNREACHABLE_NS: u64 = 30_000_000_000;
/// Extents of one stream that its device may still read after it has taken their packets, with the
/// one that is being sent: 2 MiB, the unacknowledged data of a viewer of 16 Mb/s on a path with a
/// second of round trip.
pub const MAX_HELD_PER_STREAM: usize = 8;

const _: () = assert!(MAX_HELD_PER_STREAM <= u8::MAX as usize && MAX_HELD_PER_STREAM < MAX_HELD_PER_ENGINE);
