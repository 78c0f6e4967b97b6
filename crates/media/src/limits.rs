//! Bounds of the parsers of transport streams, pictures, audio headers and subtitles.

use millrace_core::limits::subtitles::MAX_SUBTITLE_TRACK_BYTES;

/// Cues of a track: a long film has 3,000; karaoke timed by syllables has ten times as many.
pub const MAX_CUES: usize = 40_000;
/// Longest text of a cue. Two lines of 42 letters fill a screen; with four bytes per letter and
/// some markup, they fit many times.
pub const MAX_CUE_BYTES: usize = 4 << 10;
/// Subtitle tracks of a title: a large disc with every language, with and without descriptions of
/// sounds. Each track is an entry in the title's manifest.
pub const MAX_SUBTITLE_TRACKS: usize = 64;
/// Longest language tag in bytes: RFC 5646 section 4.4.1 asks for room for 35 characters.
pub const MAX_LANGUAGE_BYTES: usize = 35;
/// Longest display name of a track in bytes; a longer one is cut.
pub const MAX_SUBTITLE_NAME_BYTES: usize = 80;

const _: () = assert!(MAX_CUE_BYTES < MAX_SUBTITLE_TRACK_BYTES);

// Transport streams.

/// Programs followed; a multiplex has tens. The others' bytes are kept all the same.
pub const MAX_PROGRAMS: usize = 256;

// Video and audio headers.

/// Most that is kept of a unit of video: parameter sets take a few hundred bytes, slice headers fewer.
pub const MAX_UNIT_HEAD_BYTES: usize = 1024;
/// Sequence parameter sets of an H.264 stream (ITU-T H.264 section 7.4.2.1.1).
pub const MAX_SPS: u32 = 32;
/// Picture parameter sets of an H.264 stream (section 7.4.2.2).
pub const MAX_PPS: u32 = 256;
/// Bytes of a slice that are looked through for its header: those of I slices take twenty.
pub const MAX_HEADER_BYTES: usize = 96;
/// Longest part of a unit of supplemental enhancement information that is examined: captions have
/// at most 31 times three bytes, and an encoder's own text before them some hundred.
pub const MAX_SEI_BYTES: usize = 4096;
/// Longest part of a sequence parameter set that is looked at: those of real encoders are below 100 bytes, scaling lists make some of 700.
pub const MAX_SPS_BYTES: usize = 1024;
/// No picture is wider or higher: the highest levels of H.264 and H.265 end at 16,888.
pub const MAX_PICTURE_SIDE: u32 = 1 << 15;
/// Thousandths of pictures a second above which a rate is none of pictures: cameras for slow motion have 240.
pub const MAX_PICTURE_RATE: u32 = 240_000;
/// Longest program config element of AAC without its comment: it has 385 bits when every count is
/// at its maximum, and one byte for the comment's length.
pub const MAX_PCE_BYTES: usize = 50;
