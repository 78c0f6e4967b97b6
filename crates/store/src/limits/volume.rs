//! Bounds of volumes on disk: their files, ingest, repair.

use std::time::Duration;

use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::time::MEDIA_HZ;

use crate::limits::{DISK_WORK_NS, MAX_MEMBERS};

/// Ticks a second of the system clock of transport streams (ISO/IEC 13818-1 section 2.4.2.1).
const SYSTEM_HZ: u64 = MEDIA_HZ * 300;

// Calls that a disk may hold up.

/// A thread that has not begun has not had a processor, so no disk is to blame: the wait for it is
/// this many times longer.
pub const MAX_STARTS: u32 = 7;
/// How long one process waits for another's write to the catalogue; writes take milliseconds.
pub const CATALOGUE_BUSY: Duration = Duration::from_secs(10);
/// How long it waits when it opens the catalogue: a healthy one is never locked against that.
pub const CATALOGUE_BUSY_AT_OPEN: Duration = Duration::from_secs(2);
/// Longest time that a process waits for a lock of the store. Locks are held for milliseconds, or
/// for seconds while a catalogue of thousands of titles is rebuilt or the leftovers of many ingests
/// are removed. A wait for a lock must not make the disk count as hanging.
pub const LOCK_WAIT: Duration = Duration::from_secs(10);

const _: () = assert!(LOCK_WAIT.as_nanos() < DISK_WORK_NS as u128);
/// Interval between attempts to take a lock.
pub const LOCK_LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes read at most from the kernel's table of locks: a line has some 60 bytes.
pub const MAX_LOCKS_BYTES: u64 = 1 << 20;
/// Coarsest step of a file system's modification times. A directory looked at within this time of its last change may
/// change again without another modification time.
pub const MTIME_STEP: Duration = Duration::from_secs(2);
/// A manifest that is replaced does not show in the modification time of `titles`: all are looked at this often.
pub const LIST_AGAIN: Duration = Duration::from_secs(30);
/// Longest list of members: a member's line is a path of at most 4 KiB, which may be written byte by byte as numbers.
pub const MAX_MEMBERS_FILE_BYTES: u64 = 64 * 1024 * MAX_MEMBERS as u64;

// Buffers.

/// One write to the data file: large enough for any disk, aligned in the file because every write has this length.
pub const WRITE_BYTES: usize = 1 << 20;
/// Bytes of a file copied at a time: large enough for any disk.
pub const COPY_BYTES: usize = 1 << 20;
/// Data read at a time: about a megabyte, whole default-size packets.
pub const RESIZE_READ_BYTES: usize = 800 * DEFAULT_PACKET_BYTES;
/// Most grains that `inspect` lists: they are meant for a screen.
pub const MAX_LISTED: u64 = 100_000;

// Repair.

/// How often a caller that waits for a disk checks whether the user wants to stop: people do not notice a tenth of a
/// second.
pub const ASK_SLICE_NS: u64 = 100_000_000;
/// Time that was not used (the disk was slower than the bound) is good for a burst of this length, no longer.
pub const PACE_SLICE_NS: u64 = 100_000_000;
/// Titles may come, go or change while a repair runs; it starts over for those. Users do not
/// deliberately change titles more often than this.
pub const MAX_ROUNDS: usize = 16;

// Ingest.

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
/// Longest name of a codec in a layout.
pub const MAX_CODEC_NAME_BYTES: usize = 24;
/// Programs followed; a multiplex has tens. The others' bytes are kept all the same.
pub const MAX_PROGRAMS: usize = 256;
/// Limit on the boxes and edit list entries read of an MP4 file: a film of ten tracks has about 150 boxes.
pub const MAX_MP4_BOXES: usize = 4096;
/// Most that ffprobe may print: a few KiB for each stream.
pub const MAX_PROBE_BYTES: usize = 4 << 20;
/// Least time between two calls of the caller's function: 20 a second are as smooth as a progress bar gets.
pub const REPORT_EVERY: Duration = Duration::from_millis(50);
