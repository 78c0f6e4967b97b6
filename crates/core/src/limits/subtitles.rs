//! Subtitles that become text.

use crate::time::MEDIA_HZ;

/// Subtitle pages of a title: a channel with many languages has six or seven.
pub const MAX_SUBTITLE_PAGES: usize = 16;
/// A page that was sent last so long ago is no longer shown. Subtitles are read in 7 s at most; one that stays longer is sent again, and one whose end was lost
/// must end. It also bounds how far from a segment its cues are looked for.
pub const LONGEST_CUE_TICKS: u64 = 30 * MEDIA_HZ;
/// How far behind a segment's bytes the rest of its last page is looked for: the rows of a page follow its header within some fields, each of 20 ms.
pub const SUBTITLE_TAIL_TICKS: u64 = MEDIA_HZ / 2;
/// What the pages of segments show is kept, with this much text in all...
pub const SUBTITLES_CACHE_BYTES: usize = 8 << 20;
/// ...of which every segment counts so much at least: 4,096 segments, seven hours. Those of 6 s with five languages have some 2 KB.
pub const LEAST_SUBTITLES_BYTES: usize = 2 << 10;
/// Titles whose subtitles are known: those that are watched by HLS.
pub const MAX_SUBTITLED_TITLES: usize = 256;

const _: () = assert!(SUBTITLE_TAIL_TICKS < LONGEST_CUE_TICKS);

/// Longest subtitle file that is read. The text of a film takes 200 KB; a fansub with typesetting
/// and embedded fonts takes some MB.
pub const MAX_SUBTITLE_SOURCE_BYTES: usize = 16 << 20;
/// Longest WebVTT of a track: the server cuts every playlist and segment of it from memory.
pub const MAX_SUBTITLE_TRACK_BYTES: usize = 4 << 20;
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
/// Bytes of text in the cache of parsed text tracks.
pub const SUBTITLE_TEXTS_BYTES: usize = 32 << 20;
/// Concurrent uploads of subtitles: memory holds the bytes of each, 64 MiB in all.
pub const MAX_SUBTITLE_UPLOADS: usize = 4;
/// Directory entries that are searched for subtitle files beside a source file.
pub const MAX_SIDECAR_DIR_ENTRIES: usize = 100_000;
/// Seconds of media that ffmpeg reads to find the time at which the clock of a source begins: all
/// its streams begin within this time.
pub const START_LOOK_S: &str = "1";
/// Longest output of ffmpeg about the first packets: a line of 80 bytes for each, some hundred
/// packets of each of 16 streams.
pub const MAX_START_BYTES: usize = 1 << 20;

const _: () = assert!(MAX_CUE_BYTES < MAX_SUBTITLE_TRACK_BYTES);
