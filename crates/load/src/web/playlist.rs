//! HLS playlists (RFC 8216): the parts that a viewer needs, read with bounds by `m3u8-rs`.

use std::sync::{Arc, Mutex, PoisonError};

use m3u8_rs::Playlist as Parsed;

use super::address::HttpUrl;
use super::exchange::ByteRange;
use crate::limits::{MAX_PLAYLIST_BYTES, MAX_REMEMBERED, MAX_SEGMENT_S};

/// The variant of a master playlist that a viewer takes. The viewer stays with it: how players
/// change between variants is their own matter, and would hide the server's behaviour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VariantChoice {
    /// The one with the highest `BANDWIDTH`, the first of these: the hardest for a server.
    #[default]
    Highest,
    /// The one with the lowest.
    Lowest,
    /// The first in the playlist, which players start with.
    First,
}

/// Bytes to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Where.
    pub url: HttpUrl,
    /// Which of them.
    pub range: ByteRange,
}

/// A media segment of an HLS playlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HlsSegment {
    /// The bytes to fetch.
    pub resource: Resource,
    /// Its length.
    pub media_ns: u64,
    /// Place in [`MediaPlaylist::maps`] of the section that must come before it.
    pub map: Option<usize>,
    /// Whether it is a transport stream that can be looked into: not encrypted, and no section before it.
    pub is_plain_ts: bool,
}

/// A list of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPlaylist {
    /// Number of the first segment.
    pub first_sequence: u64,
    /// No segment is longer.
    pub target_ns: u64,
    /// Whether no segment will be added.
    pub is_whole: bool,
    /// The segments.
    pub segments: Vec<HlsSegment>,
    /// Media initialization sections.
    pub maps: Vec<Resource>,
}

/// A playlist of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Playlist {
    /// The address of the variant that was chosen.
    Master(HttpUrl),
    /// Segments; shared by all who have read the same.
    Media(Arc<MediaPlaylist>),
}

/// Why a playlist cannot be played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaylistFault {
    /// More than [`MAX_PLAYLIST_BYTES`].
    #[error("playlist: too long")]
    TooLong,
    /// Not a playlist.
    #[error("playlist: not an M3U8 playlist")]
    NotPlaylist,
    /// A master playlist without a variant of media.
    #[error("playlist: no variant to play")]
    NoVariant,
    /// A whole playlist without a segment.
    #[error("playlist: no segment to play")]
    NoSegment,
    /// An address in it cannot be asked for.
    #[error("playlist: {0}")]
    Address(&'static str),
    /// A segment's or section's byte range is unknown.
    #[error("playlist: a byte range without a beginning")]
    Range,
}

/// Reads the playlist that came from `base`.
///
/// # Errors
/// Why it cannot be played.
pub fn parse_playlist(
    bytes: &[u8],
    base: &HttpUrl,
    choice: VariantChoice,
) -> Result<Playlist, PlaylistFault> {
    if bytes.len() > MAX_PLAYLIST_BYTES {
        return Err(PlaylistFault::TooLong);
    }
    // A byte order mark must not be there, but is. The last line need not have an end, but the parser wants one.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if !bytes.starts_with(b"#EXTM3U") {
        return Err(PlaylistFault::NotPlaylist);
    }
    let with_end = [bytes, b"\n"].concat();
    match m3u8_rs::parse_playlist_res(&with_end) {
        Ok(Parsed::MasterPlaylist(master)) => choose(&master, base, choice).map(Playlist::Master),
        Ok(Parsed::MediaPlaylist(media)) => {
            media_playlist(&media, base).map(|list| Playlist::Media(Arc::new(list)))
        }
        Err(_) => Err(PlaylistFault::NotPlaylist),
    }
}

/// What playlists that all viewers of a title load were last time, so that each is read once and kept once: a title of
/// two hours has 1,800 segments.
#[derive(Debug, Default)]
pub struct Playlists {
    known: Mutex<Vec<CachedPlaylist>>,
}

#[derive(Debug)]
struct CachedPlaylist {
    bytes: Box<[u8]>,
    base: HttpUrl,
    choice: VariantChoice,
    playlist: Playlist,
}

impl Playlists {
    /// Reads the playlist that came from `base`, unless it has been read before.
    ///
    /// # Errors
    /// Why it cannot be played.
    pub fn read(
        &self,
        bytes: &[u8],
        base: &HttpUrl,
        choice: VariantChoice,
    ) -> Result<Playlist, PlaylistFault> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |one: &CachedPlaylist| *one.bytes == *bytes && one.base == *base && one.choice == choice;
        if let Some(found) = known.iter().find(|one| is_same(one)) {
            return Ok(found.playlist.clone());
        }
        let playlist = parse_playlist(bytes, base, choice)?;
        if known.len() == MAX_REMEMBERED {
            known.remove(0);
        }
        known.push(CachedPlaylist {
            bytes: bytes.into(),
            base: base.clone(),
            choice,
            playlist: playlist.clone(),
        });
        Ok(playlist)
    }
}

fn choose(
    master: &m3u8_rs::MasterPlaylist,
    base: &HttpUrl,
    choice: VariantChoice,
) -> Result<HttpUrl, PlaylistFault> {
    let mut playable =
        master.variants.iter().filter(|variant| !variant.is_i_frame && !variant.uri.is_empty());
    let chosen = match choice {
        VariantChoice::First => playable.next(),
        VariantChoice::Lowest => playable.min_by_key(|variant| variant.bandwidth),
        // The first of equals, like the others.
        VariantChoice::Highest => playable.min_by_key(|variant| std::cmp::Reverse(variant.bandwidth)),
    };
    let chosen = chosen.ok_or(PlaylistFault::NoVariant)?;
    base.join(chosen.uri.trim()).map_err(PlaylistFault::Address)
}

fn seconds_ns(seconds: f64) -> u64 {
    // NaN becomes 0.
    (seconds.clamp(0.0, MAX_SEGMENT_S) * 1e9) as u64
}

/// Resolves byte ranges: one without an offset goes on where the one before it, of the same resource, ended (RFC 8216
/// section 4.3.2.2).
#[derive(Default)]
struct Ranges {
    last: Option<(HttpUrl, u64)>,
}

impl Ranges {
    fn resolve(
        &mut self,
        url: &HttpUrl,
        range: Option<&m3u8_rs::ByteRange>,
        default_start: Option<u64>,
    ) -> Result<ByteRange, PlaylistFault> {
        let Some(range) = range else {
            self.last = None;
            return Ok(ByteRange::Whole);
        };
        let follows = self.last.as_ref().filter(|(before, _)| before == url).map(|(_, end)| *end);
        let start = range.offset.or(follows).or(default_start).ok_or(PlaylistFault::Range)?;
        let end = start.checked_add(range.length).filter(|_| range.length > 0).ok_or(PlaylistFault::Range)?;
        self.last = Some((url.clone(), end));
        Ok(ByteRange::Part { start, len: range.length })
    }
}

/// The end of encryption: m3u8-rs takes such a tag as an unknown one, unless it has an IV.
fn is_key_none(tag: &m3u8_rs::ExtTag) -> bool {
    tag.tag == "X-KEY" && tag.rest.as_deref().is_some_and(|rest| rest.trim() == "METHOD=NONE")
}

fn media_playlist(media: &m3u8_rs::MediaPlaylist, base: &HttpUrl) -> Result<MediaPlaylist, PlaylistFault> {
    let mut maps: Vec<Resource> = Vec::new();
    let mut segments = Vec::with_capacity(media.segments.len());
    let (mut ranges, mut is_encrypted, mut map) = (Ranges::default(), false, None);
    for segment in &media.segments {
        // A key and a section hold for all segments that follow.
        if let Some(key) = &segment.key {
            is_encrypted = key.method != m3u8_rs::KeyMethod::None;
        } else if segment.unknown_tags.iter().any(is_key_none) {
            is_encrypted = false;
        }
        if let Some(section) = &segment.map {
            let url = base.join(section.uri.trim()).map_err(PlaylistFault::Address)?;
            let range = Ranges::default().resolve(&url, section.byte_range.as_ref(), Some(0))?;
            maps.push(Resource { url, range });
            map = Some(maps.len() - 1);
        }
        let url = base.join(segment.uri.trim()).map_err(PlaylistFault::Address)?;
        let range = ranges.resolve(&url, segment.byte_range.as_ref(), None)?;
        segments.push(HlsSegment {
            resource: Resource { url, range },
            media_ns: seconds_ns(f64::from(segment.duration)),
            map,
            is_plain_ts: !is_encrypted && map.is_none(),
        });
    }
    let longest_ns = segments.iter().map(|segment| segment.media_ns).max().unwrap_or(0);
    Ok(MediaPlaylist {
        first_sequence: media.media_sequence,
        // The tag is mandatory; where it is missing, the longest segment gives the value that it
        // should have.
        target_ns: seconds_ns(media.target_duration as f64).max(longest_ns),
        is_whole: media.end_list,
        segments,
        maps,
    })
}

#[cfg(test)]
#[path = "playlist_tests.rs"]
mod tests;
