//! Media playlists (RFC 8216 section 4.3.3).
//!
//! The caller specifies whether the end is known, and the numbers of the first items: a source
//! whose beginning and end move can be written with it as well.

use std::fmt::Write;

use millrace_core::time::{MEDIA_HZ, MediaTicks};

use super::segments::MediaSegment;
use crate::date;

/// Contents of a media playlist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaylistContents<'a> {
    /// The segments of the playlist. In fragmented MP4, segments without samples have length 0 and
    /// are left out.
    pub(crate) segments: &'a [MediaSegment],
    /// Number of the first of them since the beginning.
    pub(crate) first: u64,
    /// Discontinuities before the first of them.
    pub(crate) discontinuities: u64,
    /// No segment is or will be longer than this, in whole seconds.
    pub(crate) target_s: u64,
    /// Whether no segment will be added.
    pub(crate) is_whole: bool,
    /// Wall-clock time of the title's beginning, in milliseconds since 1970; `None`: unknown.
    pub(crate) began_unix_ms: Option<u64>,
    /// Whether each begins where a decoder can start.
    pub(crate) are_independent: bool,
    /// Init segments: the number of the first segment that each holds for, and its address. None for transport streams.
    pub(crate) maps: &'a [(u64, String)],
    /// Whether each has one picture only (section 4.3.3.6).
    pub(crate) are_pictures: bool,
}

/// The least target duration that these segments allow: the longest, rounded to the nearest second (section 4.3.3.1).
pub(crate) fn target_s(segments: &[MediaSegment]) -> u64 {
    let rounded = segments.iter().map(|segment| (segment.duration.0 + MEDIA_HZ / 2) / MEDIA_HZ);
    rounded.max().unwrap_or(0).max(1)
}

/// The text. `address` gives that of the segment of a number.
pub(crate) fn write(source: &PlaylistContents<'_>, address: impl Fn(u64) -> String) -> String {
    let mut text = String::with_capacity(256 + source.segments.len() * 64);
    // Writing into a string does not fail.
    // `EXT-X-MAP` needs version 6 (section 7), pictures alone need 4; Apple's authoring specification asks for 7 with fragmented MP4.
    let version = if source.maps.is_empty() { 3 } else { 7 };
    let _ = writeln!(text, "#EXTM3U\n#EXT-X-VERSION:{version}");
    if source.are_independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    if source.first == 0 {
        // Of one that grows nothing is ever taken away, and it may be left by its players.
        let kind = if source.is_whole { "VOD" } else { "EVENT" };
        let _ = writeln!(text, "#EXT-X-PLAYLIST-TYPE:{kind}");
    }
    if source.are_pictures {
        text.push_str("#EXT-X-I-FRAMES-ONLY\n");
    }
    let _ =
        write!(text, "#EXT-X-TARGETDURATION:{}\n#EXT-X-MEDIA-SEQUENCE:{}\n", source.target_s, source.first);
    if source.discontinuities > 0 {
        let _ = writeln!(text, "#EXT-X-DISCONTINUITY-SEQUENCE:{}", source.discontinuities);
    }
    let mut map = None;
    for (number, segment) in (source.first..).zip(source.segments) {
        // Also written if the track has no samples here, so that all tracks of a title count the
        // same discontinuities.
        if segment.is_discontinuous && number > source.first {
            text.push_str("#EXT-X-DISCONTINUITY\n");
        }
        if !source.maps.is_empty() && segment.duration.0 == 0 {
            continue;
        }
        let now = source.maps.iter().rev().find(|(first, _)| *first <= number);
        if let Some((_, address)) = now.filter(|_| now != map) {
            let _ = writeln!(text, "#EXT-X-MAP:URI=\"{address}\"");
        }
        map = now;
        // Players count on from there; after a jump they may not.
        if let Some(began) = source.began_unix_ms
            && (number == source.first || segment.is_discontinuous)
        {
            let at = began + segment.at.0 * 1_000 / MEDIA_HZ;
            let _ = writeln!(text, "#EXT-X-PROGRAM-DATE-TIME:{}", date::iso_ms(at));
        }
        let _ = writeln!(text, "#EXTINF:{},\n{}", seconds(segment.duration), address(number));
    }
    if source.is_whole {
        text.push_str("#EXT-X-ENDLIST\n");
    }
    text
}

/// Seconds with six digits behind the point, rounded.
fn seconds(time: MediaTicks) -> String {
    let us = (u128::from(time.0) * 1_000_000 + u128::from(MEDIA_HZ) / 2) / u128::from(MEDIA_HZ);
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}
