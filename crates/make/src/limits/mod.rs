//! Bounds of what makes titles, each with its reason.

pub mod channel;
pub mod ingest;
pub mod ladder;
pub mod live;
pub mod pictures;
pub mod trick;

use millrace_store::limits::DISK_RESERVE_BYTES;

/// Threads in which ffmpeg encodes a picture that must be transcoded: each has pictures of its own, so on a machine of 128 cores
/// `FFMPEG_MEMORY_BYTES` would not do for an ordinary film.
pub const FFMPEG_ENCODER_THREADS: usize = 16;
/// What ffmpeg may write for a file of any size by default: hours of a still picture or of a quiet tone are a file of a few MB, and a
/// transport stream of 75 kb/s for its clock alone, 340 MB in ten hours.
pub const FFMPEG_OUTPUT_BYTES: u64 = 256 << 20;
/// And this many times the length of the file in addition: copied, a title grows by a tenth;
/// transcoded from the best codecs to H.264 by ten.
pub const FFMPEG_OUTPUT_RATIO: u64 = 64;
/// Processor time that ffmpeg may use for a file of any size by default, all its threads together.
pub const FFMPEG_PROCESSOR_NS: u64 = 20 * 60 * 1_000_000_000;
/// And this much for each MiB of the file in addition: 4 s of a title of 2 Mb/s, transcoded at a
/// thirtieth of its speed.
pub const FFMPEG_PROCESSOR_NS_PER_MIB: u64 = 2 * 60 * 1_000_000_000;
/// ffmpeg is stopped when it has written nothing for this long: a disk that was asleep wakes in half a minute, and the index of a
/// long title is read in less than one.
pub const FFMPEG_SILENCE_NS: u64 = 5 * 60 * 1_000_000_000;
/// Free space is checked each time ffmpeg has written this much, more often when there is little.
pub const DISK_LOOK_BYTES: u64 = 16 << 20;
/// Longest time, in 90 kHz ticks, from a title's last packet to the announced end of its last picture. Decoders hold a second
/// of pictures (ISO/IEC 13818-1 section 2.4.2.6); time stamps that claim more than 5 s are damaged, and players would wait.
pub const MAX_END_AFTER_LAST_PACKET_TICKS: u64 = 5 * 90_000;

const _: () = assert!(DISK_LOOK_BYTES * 4 <= DISK_RESERVE_BYTES);
