//! Subtitles that become text.

use crate::time::MEDIA_HZ;

/// A page that was last sent this long ago is no longer shown. Subtitles are read in 7 s at most;
/// one that stays longer is sent again, and one whose end was lost must end. It also bounds how far
/// from a segment its cues are looked for.
pub const LONGEST_CUE_TICKS: u64 = 30 * MEDIA_HZ;
/// Longest subtitle file that is read. The text of a film takes 200 KB; a fansub with typesetting
/// and embedded fonts takes some MB.
pub const MAX_SUBTITLE_SOURCE_BYTES: usize = 16 << 20;
/// Longest WebVTT of a track: the server cuts every playlist and segment of it from memory.
pub const MAX_SUBTITLE_TRACK_BYTES: usize = 4 << 20;
