//! Bounds of the pass that makes a title, and of the programs that convert its source.

use std::time::Duration;

use millrace_core::time::{MEDIA_HZ, NS_PER_S};
use millrace_media::ts_packet::SYSTEM_HZ;

/// Most bytes of an access unit that are searched for its first picture; the data before it
/// (parameter sets, supplemental information) takes a few hundred.
pub const MAX_LOOK_BYTES: usize = 16 * 1024;
/// Table places remembered; at the usual 10 a second, 400 s.
pub const MAX_TABLES: usize = 4096;
/// Access points closer than this are thinned out: viewers do not seek more finely, and a title of
/// intra pictures only would have an index of megabytes.
pub const MIN_GAP_TICKS: u64 = SYSTEM_HZ / 10;
/// The same for sound alone, where every PES packet is an access point.
pub const MIN_GAP_AUDIO_TICKS: u64 = SYSTEM_HZ / 2;
/// The same for audio while there are no pictures: two seconds are the length of a usual group of
/// pictures.
pub const MIN_GAP_AWAY_TICKS: u64 = 2 * SYSTEM_HZ;
/// Pictures count as absent once the time stamps of audio are this far past the last picture.
pub const PICTURES_AWAY_TICKS: u64 = 2 * MEDIA_HZ;
/// Access points with audio alone that are held until the next picture: 36 hours of them.
pub const MAX_AUDIO_POINTS: usize = 1 << 16;
/// Free space is looked at no more often than each time that this much was written, however little there is: a look costs
/// a system call.
pub const MIN_LOOK_BYTES: u64 = 256 << 10;
/// The media of a recording is made durable this often: that much may be lost when the power is cut.
pub const RECORDING_FLUSH_NS: u64 = NS_PER_S;
/// Viewers of a recording learn how long it is at least this often: players that follow an HLS
/// playlist want news within 1.5 times its target duration of 10 s (RFC 8216 section 6.2.2).
pub const RECORDING_NEWS_NS: u64 = 5 * NS_PER_S;
/// How often a silent program's reader looks whether it should stop: people do not notice.
pub const CHILD_LOOK_EVERY: Duration = Duration::from_millis(50);
/// The same while it ends, which takes milliseconds.
pub const LOOK_FOR_END_EVERY: Duration = Duration::from_millis(5);
/// Bytes kept of ffmpeg's messages: the last lines explain why it ended.
pub const MAX_SAID_BYTES: usize = 4096;
/// Most bytes between two anchors. Anchors must come every 100 ms (section 2.7.2); at that rate this is 2.7 Gb/s. What
/// lies between two anchors waits in memory for its time, so there must be a bound; beyond it time coasts.
pub const MAX_BYTES_BETWEEN_ANCHORS: u64 = 32 << 20;
/// Longest time between two clock references in converted streams (ISO/IEC 13818-1 section 2.7.2).
pub const MAX_PCR_INTERVAL_TICKS: u64 = SYSTEM_HZ / 10;
/// Longest beginning of audio that is kept although an edit list leaves it out: audio begins with a
/// frame or two that players leave out, because decoding needs them. If the list leaves out more,
/// that audio is removed.
pub const MAX_PRIMING: Duration = Duration::from_millis(100);
/// Bytes of ffmpeg's output that are held until the next clock value, which determines when they
/// are sent: more than the largest picture has. Beyond this, they are passed on without further
/// clock references in between.
pub const MAX_HELD_FOR_CLOCK_BYTES: usize = 8 << 20;
/// Anchors remembered until the choice is made: 25 a second of 30 programs for 20 s.
pub const MAX_EARLY_ANCHORS: usize = 16_384;
/// A picture whose kind is still unknown after this many bytes of all PIDs is none to start at: the largest pictures have
/// as much.
pub const MAX_UNDECIDED_BYTES: u64 = 1 << 20;
/// Sound streams carried; a title has one for each language.
pub const MAX_AUDIO_STREAMS: usize = 16;
/// Highest sample rate that the AAC of players takes.
pub const MAX_AUDIO_HZ: u32 = 48_000;
/// Channels that ffmpeg's AAC encoder takes.
pub const MAX_AUDIO_CHANNELS: u32 = 8;
/// Bit rate of the AAC generated for browsers, in kb/s: two channels need no more, and an hour
/// takes 60 MB.
pub const WEB_AUDIO_KBITS: u32 = 128;
/// Highest picture rate of transcoded video: screens show no more, and containers may claim any
/// number.
pub const MAX_TRANSCODED_HZ: u32 = 120;
/// Time stamps are ahead of the clock by the decoder's buffer: 1 s at most but for still pictures (ISO/IEC 13818-1 section
/// 2.4.2.6). One that is further away is damaged, or is of another base.
pub const MAX_DISTANCE_TICKS: u64 = 10 * SYSTEM_HZ;
/// Bases remembered. A recording with more jumps than this is damaged all over; its later bases are
/// not distinguished.
pub const MAX_BASES: usize = 4096;
/// Streams of all layouts of a title: four days in which the pictures and two audio streams change
/// every five minutes take 3,456. Further layouts are not recorded, and their streams are played as
/// the last recorded layout announced them.
pub const MAX_LAYOUT_STREAMS: usize = 4096;
/// Limit on the boxes and edit list entries read of an MP4 file: a film of ten tracks has about 150 boxes.
pub const MAX_MP4_BOXES: usize = 4096;
/// Most that ffprobe may print: a few KiB for each stream.
pub const MAX_PROBE_BYTES: usize = 4 << 20;
/// Least time between two calls of the caller's function: 20 a second are as smooth as a progress bar gets.
pub const REPORT_EVERY: Duration = Duration::from_millis(50);
/// Directory entries that are searched for subtitle files beside a source file.
pub const MAX_SIDECAR_DIR_ENTRIES: usize = 100_000;
/// Seconds of media that ffmpeg reads to find the time at which the clock of a source begins: all
/// its streams begin within this time.
pub const START_LOOK_S: &str = "1";
/// Longest output of ffmpeg about the first packets: a line of 80 bytes for each, some hundred
/// packets of each of 16 streams.
pub const MAX_START_BYTES: usize = 1 << 20;
/// Chapters of a title: films have some dozens, audiobooks some hundreds.
pub const MAX_CHAPTERS: usize = 500;
