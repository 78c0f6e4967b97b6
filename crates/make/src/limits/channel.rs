//! Bounds of channels: of the splice of several titles, and of playlists.

use millrace_media::ts_packet::SYSTEM_HZ;

/// Bytes of a title read until its program, clock and first time stamps are known: two seconds of 16 Mb/s. Tables, key pictures and
/// audio come several times a second in usable streams.
pub const MAX_SPLICE_HEAD_BYTES: usize = 4 << 20;
/// Bytes of a title before the first attempt to read its head; doubled for each later attempt.
pub const FIRST_SPLICE_HEAD_BYTES: usize = 128 << 10;
/// Audio that has not begun this long after the title's first clock reference is not waited for.
pub const SPLICE_HEAD_TICKS: u64 = SYSTEM_HZ;
/// Audio that begins this long (90 kHz) before the first picture is kept: encoders begin audio a few frames earlier, and muxers
/// put several frames into a PES packet.
pub const MAX_AUDIO_LEAD_TICKS: i64 = 45_000;
/// Longest step between two clock references of a title. References come every 100 ms (ISO/IEC 13818-1 section 2.7.2); a longer step
/// is a jump, which the splice closes.
pub const MAX_CLOCK_STEP_TICKS: u64 = SYSTEM_HZ;
/// Time stamps (90 kHz) farther than this from the clock are damaged and do not move the end of a title. Decoders hold a second of
/// pictures (section 2.4.2.6), still pictures up to a minute; muxers with a long delay stay below ten seconds.
pub const MAX_STAMP_DISTANCE_TICKS: i64 = 10 * 90_000;
/// Longest frame or audio packet (90 kHz) that the end of a title is prolonged by.
pub const MAX_FRAME_TICKS: u64 = 90_000;
/// Clock references written while nothing else is sent between two titles: well within the 100 ms of section 2.7.2.
pub const SPLICE_CLOCK_TICKS: u64 = SYSTEM_HZ / 25;
/// Interval of the splice's tables. 500 ms is the limit of TR 101 290, 1.3 and 1.5; receivers wait for them when they join.
pub const SPLICE_TABLE_TICKS: u64 = SYSTEM_HZ / 5;
/// Bytes between two clock references: 100 ms of 300 Mb/s. A stream with more has lost its clock.
pub const MAX_RUN_BYTES: usize = 4 << 20;
/// Streams of each kind that a splice carries: the PIDs of a kind are a block of this many.
pub const MAX_STREAMS_OF_KIND: usize = 32;
/// Bytes of a playlist: ten thousand entries with long addresses.
pub const MAX_PLAYLIST_BYTES: usize = 1 << 20;
/// Longest length in seconds that a playlist can give an entry: a week.
pub const MAX_PLAYLIST_LENGTH_S: f64 = 604_800.0;
/// Entries of a playlist: a week of films of ten minutes.
pub const MAX_PLAYLIST_ITEMS: usize = 1024;
/// Bytes of a title read from a file at once.
pub const SPLICE_READ_BYTES: usize = 256 << 10;
