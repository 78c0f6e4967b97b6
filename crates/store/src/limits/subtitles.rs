//! Subtitles that become text.

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
/// Directory entries that are searched for subtitle files beside a source file.
pub const MAX_SIDECAR_DIR_ENTRIES: usize = 100_000;
/// Seconds of media that ffmpeg reads to find the time at which the clock of a source begins: all
/// its streams begin within this time.
pub const START_LOOK_S: &str = "1";
/// Longest output of ffmpeg about the first packets: a line of 80 bytes for each, some hundred
/// packets of each of 16 streams.
pub const MAX_START_BYTES: usize = 1 << 20;

const _: () = assert!(MAX_CUE_BYTES < MAX_SUBTITLE_TRACK_BYTES);
