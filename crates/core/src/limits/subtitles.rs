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
