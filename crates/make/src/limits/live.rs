//! Bounds of the intake of live sources.

use std::time::Duration;

use millrace_core::time::NS_PER_S;
use millrace_media::ts_packet::SYSTEM_HZ;

/// How far the clock of a source may be from our arrival times before it counts as another clock. Networks and encoders delay
/// packets by less; a splice, a restart or a loop of a file moves the clock by more.
pub const MAX_CLOCK_OFFSET_TICKS: u64 = SYSTEM_HZ;
/// Without a clock reference for this long, packets get their arrival times. References must come every 100 ms (ISO/IEC 13818-1 section 2.7.2).
pub const CLOCK_STALE_TICKS: u64 = SYSTEM_HZ;
/// Fastest correction of a source's clock, in parts per million of the time passed: above every oscillator (30 ppm are allowed,
/// section 2.4.2.1), and far below the limit that a receiver notices.
pub const MAX_DRIFT_PPM: i128 = 500;
/// Arrival times are averaged over this long before they count: the jitter of a second must not move the clock.
pub const CLOCK_MEAN_TICKS: i128 = 4 * SYSTEM_HZ as i128;
/// The mean offset is made up over this long.
pub const CLOCK_FOLLOW_TICKS: i128 = 60 * SYSTEM_HZ as i128;
/// RTP packets held until a missing one comes: 100 ms of 8 Mb/s.
pub const REORDER_PACKETS: usize = 64;
/// A missing RTP packet is waited for this long. Networks that reorder packets deliver them within milliseconds.
pub const REORDER_NS: u64 = 50_000_000;
/// Sequence numbers that differ by more than this belong to a sender that was restarted (RFC 3550 appendix A.1 takes 100 and 3000).
pub const MAX_SEQUENCE_JUMP: i16 = 1000;
/// After this much silence any sequence number is accepted as a restart.
pub const SEQUENCE_SILENT_NS: u64 = NS_PER_S;
/// TS packets held until it is known whether a decoder can start at a picture. The first picture of an access unit comes within 16 KiB,
/// with packets of other PIDs between.
pub const MAX_HELD_TS_PACKETS: usize = 256;
/// A packet that is not full is filled with null packets after this long: slow audio must not wait for seconds.
pub const FLUSH_AFTER_NS: u64 = 100_000_000;
/// Bytes of a connection without one TS packet that are no damage but another format.
pub const OTHER_FORMAT_BYTES: u64 = 64 << 10;
/// Buffer in which TS packets are found in a connection's bytes.
pub const STREAM_BUFFER_BYTES: usize = 64 << 10;
/// Access points closer than this are not marked: each costs up to eight TS packets for tables and padding.
pub const MIN_ACCESS_GAP_TICKS: u64 = SYSTEM_HZ / 4;
/// A source that takes over begins at an access point, if one comes within this time: encoders send key pictures every few seconds, and
/// some streams have none that can be found.
pub const MAX_ACCESS_WAIT_NS: u64 = 5 * NS_PER_S;
/// Silence after which a stream goes on with a marked discontinuity: a packet or more of every PID is missing.
pub const DISCONTINUITY_AFTER_NS: u64 = NS_PER_S;
/// A source that ffmpeg fetches and that sends nothing for this long is ended and fetched again. Segments of HLS last up to 10 s, and
/// the next one is looked for as soon as half of it has passed.
pub const PULL_SILENCE: Duration = Duration::from_secs(15);
/// How much of such a source is read to learn its streams: cameras send a key picture every few seconds.
pub const PULL_ANALYSIS: Duration = Duration::from_secs(4);
/// Bytes read from ffmpeg at once: a quarter of a second of 500 kb/s, so that a slow source does not come in jumps.
pub const PULL_READ_BYTES: usize = 16 << 10;
/// Processor time of such an ffmpeg, more than a century: it runs for as long as its source.
pub const PULL_PROCESSOR: Duration = Duration::from_secs(1 << 32);
