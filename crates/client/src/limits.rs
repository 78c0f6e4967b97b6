//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

/// Extra delay that FEC may have at a receiver, in packets, beyond two matrices behind the packets
/// it repairs: a burst of an engine has up to 92, and streams on different ports overtake each
/// other by one.
pub const FEC_REORDER_PACKETS: usize = 128;
/// Most packets that a receiver holds to repair others: four matrices of 30 x 30 plus the packets
/// out of order. Ordinary matrices need a tenth of it.
pub const MAX_FEC_WINDOW_PACKETS: usize = 4096;

// Sockets and connections.

/// Longest datagram that a player takes: the largest packet of a jumbo frame with its header (9024 + 12 bytes) fits.
pub const DATAGRAM_BYTES: usize = 9216;
/// Receive buffer of RTCP sockets: a report every few seconds, so this is plenty for any delay of ours.
pub const REPORTS_BUFFER_BYTES: usize = 64 * 1024;
/// Most bytes of requests and reports that wait for a server that does not read: far more than a viewer ever has to say
/// at once.
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024;
/// Session time-out when the server names none (RFC 2326 section 12.37).
pub const DEFAULT_TIMEOUT_S: u64 = 60;
/// How often the cancel flag is looked at while connecting: people do not notice.
pub const CONNECT_LOOK_NS: u64 = 25_000_000;

// One viewer.

/// How long connecting, and each reply, may take: a server that reads the title from a disk that was asleep needs as long.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// A reception in which no packet came for this long while playing is over: as long as a server waits that catches up.
pub const SILENCE: Duration = Duration::from_secs(10);
/// How long the first packet over UDP is waited for before TCP is tried: a server may need seconds for the first read, a firewall for ever.
pub const UDP_TIMEOUT: Duration = Duration::from_secs(5);
/// Packets within which late ones are put in order: more than two bursts of a busy server.
pub const REORDER_PACKETS: usize = 1024;
/// How long one that is missing is waited for there: more than packets of one network overtake each other by.
pub const REORDER_WAIT: Duration = Duration::from_millis(500);
/// Receive buffer of the RTP socket to ask for: 4 s of 8 Mb/s, should this machine stand still.
pub const RTP_BUFFER_BYTES: usize = 4 << 20;
/// The loop of a single viewer looks at the cancel flag at least this often: people do not notice.
pub const PLAY_WAIT_NS: u64 = 50_000_000;
/// Reads of one socket in one turn, so that a busy one does not hold up the others.
pub const READS_PER_TURN: usize = 16;
/// Bytes of the RTSP connection read at a time: RTP may flow there.
pub const READ_CHUNK: usize = 256 * 1024;
/// Interval between progress reports: as fast as people read.
pub const PROGRESS_NS: u64 = 250_000_000;
/// After BYE, packets that are still on their way are taken for at most this long: twice the longest round trip of
/// ordinary networks.
pub const BYE_LINGER_NS: u64 = 500_000_000;
/// How long TEARDOWN and its reply may take: a server that has not answered by then is gone.
pub const PLAY_FAREWELL_NS: u64 = 2_000_000_000;
/// PLAYs recorded one by one in the report: a script with this many takes hours.
pub const MAX_PLAYS: usize = 10_000;
/// Longest time the output may take for the remaining data: a player behind a pipe may have a
/// buffer of this length.
pub const OUTPUT_TIMEOUT: Duration = Duration::from_secs(30);
/// Most steps of a script: it is written by hand.
pub const MAX_SCRIPT_STEPS: usize = 1000;
/// Bytes of a block of the output: one write.
pub const BLOCK_BYTES: usize = 256 * 1024;
/// Blocks of the output under way: 16 MiB, a quarter of a minute of 8 Mb/s.
pub const BLOCKS: usize = 64;
/// A block is sent on after this time however little it holds, so that a player behind a pipe does not starve.
pub const BLOCK_AGE_NS: u64 = 40_000_000;
/// A full output is tried again after this time: less than a picture.
pub const FULL_RETRY_NS: u64 = 5_000_000;
/// Bytes read from the reference at a time: large enough for any disk.
pub const VERIFY_WINDOW_BYTES: usize = 1 << 20;
/// Searches through the whole file for one run: enough to get past two damaged payloads.
pub const MAX_SEARCHES: usize = 3;
/// A packet that is missing is waited for no longer than nothing comes for this long: two matrices of a slow stream.
pub const FEC_WAIT_NS: u64 = 2_000_000_000;
/// Longest wait for late FEC, in packets: 250 ms at 10 Mb/s.
pub const FEC_LATE_PACKETS: usize = 2 * FEC_REORDER_PACKETS;

// Measurement and verdict.

/// Largest lateness that is distinguished, an hour: a viewer later than this does not play.
pub const MAX_LATENESS_US: u64 = 3_600_000_000;
/// Media time of a run is kept within 35 years, so that no sender can make the arithmetic overflow.
pub const MAX_RUN_TICKS: i64 = 100_000_000_000_000;
/// Room below the baseline of lateness, so that a packet that came a little sooner than all before it costs nothing: the
/// scheduling noise of an ordinary kernel.
pub const LATENESS_MARGIN_NS: i64 = 1_000_000;
/// First packet on an interleaved connection: sooner than this and live555 may lose it.
pub const MIN_FIRST_PACKET_US: i64 = 20_000;
/// Shortest time from the last packet to BYE: if BYE comes sooner, players drop the packets they
/// hold back.
pub const MIN_BYE_US: i64 = 2_400_000;
/// A sender report may overtake a burst of this many packets: the largest has 92.
pub const MAX_REPORT_DIFFERENCE: u64 = 100;
/// Clocks of a sender whose reports are further apart than this are not those of one title: half a picture.
pub const MAX_CLOCK_ERROR_US: u64 = 20_000;
/// How far before the announced end a stream that sends BYE may stop: that end belongs to the last
/// picture, which may be 5 s behind the last packet, plus a second for clocks.
pub const MAX_BYE_EARLY_US: u64 = 6_000_000;
/// The same for titles of a few seconds, where that limit would cover everything: half the title,
/// but at least this.
pub const MIN_BYE_EARLY_US: u64 = 1_000_000;
/// How far before the announced end a stream without BYE may stop: a few pictures.
pub const SILENT_EARLY_US: u64 = 200_000;

// Near video on demand.

/// Packets held in memory; a plan that needs more has a file. Half a minute of 8 Mb/s is 30 MB, half a film several GB.
pub const NVOD_MEMORY_BYTES: usize = 64 << 20;
/// A cast whose announcements stopped this long before the end of the title has ended: ten of them are missing.
pub const NVOD_SILENCE_NS: u64 = 2_000_000_000;
