//! Bounds of this crate, each with its reason. Relations between them are asserted.
//!
//! A bound that an operator may change is the default of a setting. What several crates need is in
//! [`millrace_core::limits`].

use std::time::Duration;

/// Longest address that a viewer over HTTP asks for: signed addresses of delivery networks stay below 2 KiB.
pub const MAX_HTTP_URL_BYTES: usize = 4096;
/// Longest head of an HTTP response that a viewer reads: what common servers send stays below 1 KiB, their own limits
/// are 8 to 16 KiB.
pub const MAX_HTTP_HEAD_BYTES: usize = 16 * 1024;
/// Most header lines of an HTTP response.
pub const MAX_HTTP_HEADERS: usize = 64;
/// Redirects that a viewer over HTTP follows in a row; browsers follow 20, and more than a few are a loop.
pub const MAX_HTTP_REDIRECTS: u32 = 8;
/// Longest HLS playlist that a viewer reads: a day of two-second segments with addresses of 40 bytes.
pub const MAX_PLAYLIST_BYTES: usize = 4 << 20;
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
/// A step of the media's clock by more than this, or back, is a jump (recordings joined together): nothing is late
/// because of it.
pub const MAX_CLOCK_STEP_NS: u64 = 10_000_000_000;
/// Bytes searched for a clock reference. The standard requires ten per second; at 40 Mb/s one comes
/// every 500 KB.
pub const CLOCK_SEARCH_BYTES: u64 = 1 << 20;
/// A step of a program clock by more than this, a second of 27 MHz, is a jump and not a distance: the standard wants ten
/// references in that time.
pub const MAX_PCR_STEP: u64 = 27_000_000;
/// A longer time between two clock references is a jump: the standard wants ten in a second.
pub const MAX_PCR_INTERVAL_NS: u64 = 1_000_000_000;
/// PIDs whose counters are followed: programme tables, clock, video, audio and some more. Further ones are only
/// counted as packets.
pub const MAX_PIDS: usize = 16;

// Many viewers.

/// Receive buffer of each viewer's RTP socket to ask for: half a second of 8 Mb/s, and thousands of them.
pub const LOAD_BUFFER_BYTES: usize = 512 * 1024;
/// A picture stands still when no packet came for this long: what players hold at least.
pub const STALL: Duration = Duration::from_millis(500);
/// Time during which packets gather before they are read: fewer system calls, and far below the
/// lateness measured.
pub const GATHER: Duration = Duration::from_millis(2);
/// Most viewers of one call: their ports are those of one address.
pub const MAX_STREAMS: u32 = 20_000;
/// Most threads of one call: each carries more than a thousand viewers.
pub const MAX_THREADS: usize = 16;
/// Descriptors that are not of viewers: threads, files, libraries have a few dozen.
pub const SPARE_DESCRIPTORS: u64 = 256;
/// Most habits of one text: it is written by hand.
pub const MAX_HABITS: usize = 32;
/// Shortest mean time, so that no viewer does nothing but zap.
pub const MIN_HABIT_WAIT: Duration = Duration::from_millis(100);
/// Largest exponent of Zipf's law: with 5 the second title is drawn 32 times less often than the first.
pub const MAX_EXPONENT: f64 = 5.0;
/// Longest time in which viewers arrive: a day.
pub const MAX_ARRIVALS_S: f64 = 86_400.0;
/// The loop of many viewers looks at the cancel flag at least this often: people do not notice.
pub const SHARD_WAIT_NS: u64 = 100_000_000;
/// Readiness events taken in one turn of the loop of many viewers: one system call per turn at full
/// load.
pub const EVENTS_PER_TURN: usize = 1024;
/// Viewers begun in one turn, so that those who play are not held up.
pub const STARTS_PER_TURN: usize = 32;
/// After the farewell has begun, no thread runs longer than this: two of it and some ([`FAREWELL_NS`]).
pub const LAST_NS: u64 = 8_000_000_000;
/// How often the tally for the display is brought up to date: as fast as people read.
pub const TALLY_NS: u64 = 200_000_000;
/// A step of the loop that takes longer is a stall of ours: it is as long as a burst, which it might be blamed on.
pub const OWN_STALL_NS: u64 = 10_000_000;
/// A wait for events that was shorter found them waiting already: a sleep takes longer to wake from.
pub const NO_WAIT_NS: u64 = 50_000;
/// Bytes read at a time from a connection that carries replies only: a reply fits.
pub const REPLY_CHUNK: usize = 2048;
/// Bytes read at a time from a connection that carries media: a write of the server has up to four times as many.
pub const MEDIA_CHUNK: usize = 32 * 1024;
/// Above this many viewers each has fewer receive buffers, to save memory and the processor's
/// caches.
pub const FEW_VIEWERS: u32 = 2000;
/// Batches taken from one socket where all of it is wanted: a sender that never pauses must not hold up the others.
pub const MAX_DRAINS: usize = 256;
/// A viewer that came so shortly before the end is not expected to play yet: SETUP and PLAY take several round trips.
pub const GRACE_NS: u64 = 2_000_000_000;
/// How long the farewell of all viewers may take: thousands of TEARDOWNs and their replies.
pub const FAREWELL_NS: u64 = 3_000_000_000;
/// A packet that is missing is waited for no longer than nothing comes for this long: two matrices of a slow stream.
pub const FEC_WAIT_NS: u64 = 2_000_000_000;
/// Packets that wait at most: a third of a second at 8 Mb/s, and 340 KB of one viewer that seeks. Those before them are counted,
/// but their times are not.
pub const MAX_HELD: usize = 256;
/// An announced end lies at most this far behind the last packet: it is the end of the last picture, and the packets that carry
/// the end of a title may be due later. Nothing is missed that comes after it but a BYE.
pub const NEAR_END_S: u32 = 6;
/// A BYE comes at most this long after the last packet: players drop the packets they hold when it
/// comes, so servers wait (Millrace 2.5 s).
pub const BYE_WAIT_NS: u64 = 5_000_000_000;
/// Most intervals that are kept of a load; those behind are left out. Eleven days of seconds.
pub const MAX_SAMPLES: usize = 1_000_000;
/// Kinds of failures that are distinguished: a report of more would go unread.
pub const MAX_KINDS: usize = 64;
/// Sessions that are named because they fared worst: a screen.
pub const MAX_WORST: usize = 10;
/// Sessions that get a line of their own, some hundred bytes each; those behind are in the sums only.
pub const MAX_STREAM_REPORTS: usize = 200_000;

// HTTP.

/// Longest line with a chunk's length and extensions: servers send no extensions, and a line that
/// never ends must not fill memory.
pub const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// Hexadecimal digits of a chunk's length: 2^60 bytes are more than any title has.
pub const MAX_CHUNK_DIGITS: usize = 15;
/// Shortest time from one load of a playlist to the next, whatever its target duration: servers
/// must not be flooded.
pub const MIN_RELOAD_NS: u64 = 500_000_000;
/// Master playlists that lead to one another: a media playlist must come then, or it is a loop.
pub const MAX_MASTERS: u32 = 2;
/// Servers whose addresses are remembered: a delivery network names a few.
pub const MAX_HOSTS: usize = 1024;
/// Data that the kernel may hold for a viewer in addition to the buffer that the viewer counts:
/// with more, a viewer that reads only as fast as it plays would have a second buffer of many
/// seconds there. On a path of 20 ms it carries 100 Mb/s.
pub const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;
/// Default read-ahead: the amount that players commonly hold.
pub const DEFAULT_BUFFER: Duration = Duration::from_secs(10);
/// Default minimum of HLS segments read ahead: RFC 8216 starts live titles that many segments from
/// their end.
pub const MIN_SEGMENTS: u64 = 3;
/// Longest segment accepted, in seconds: an hour is a damaged number.
pub const MAX_SEGMENT_S: f64 = 3600.0;
/// Playlists that are remembered: master, media and some versions of a live one.
pub const MAX_REMEMBERED: usize = 8;
/// Bytes read at a time: a quarter of a second of 2 Mb/s.
pub const WEB_READ_BYTES: usize = 64 * 1024;
/// Times that one segment or playlist is asked for when connections break: a server may close an idle one just then.
pub const MAX_WEB_TRIES: u32 = 2;
