//! Playlists in M3U form: one title or file a line.
//!
//! ```text
//!   #EXTM3U
//!   #EXTINF:120,The opening
//!   opening.ts
//!   my-film
//! ```
//!
//! Lines that begin with `#` are comments except `#EXTINF`, whose text behind the comma is the display name of the next entry.

use crate::limits::channel::{MAX_PLAYLIST_BYTES, MAX_PLAYLIST_ITEMS, MAX_PLAYLIST_LENGTH_S};

/// An entry of a playlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaylistItem {
    /// The name or path as it is written, without `file://`.
    pub address: String,
    /// The text of `#EXTINF`.
    pub display_name: Option<String>,
    /// The seconds of `#EXTINF`, if they are a length.
    pub length_s: Option<u64>,
}

/// Why a text is no playlist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaylistError {
    /// It is longer than [`MAX_PLAYLIST_BYTES`].
    #[error("it has {0} bytes, allowed are {MAX_PLAYLIST_BYTES}; split it")]
    TooLong(usize),
    /// It has more entries than [`MAX_PLAYLIST_ITEMS`].
    #[error("it has more than {MAX_PLAYLIST_ITEMS} entries; split it")]
    TooMany,
    /// It is not text.
    #[error("line {0} is not UTF-8 text; save the playlist as UTF-8 (.m3u8)")]
    NoText(usize),
    /// It lists segments.
    #[error("line {0} belongs to an HLS playlist; list titles or files, one a line")]
    Hls(usize),
    /// There is nothing in it.
    #[error("it has no entries; write one title or file a line")]
    Empty,
}

/// Reads a playlist.
///
/// # Errors
/// [`PlaylistError`], with the number of the line.
pub fn parse_playlist(bytes: &[u8]) -> Result<Vec<PlaylistItem>, PlaylistError> {
    if bytes.len() > MAX_PLAYLIST_BYTES {
        return Err(PlaylistError::TooLong(bytes.len()));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (mut items, mut display_name, mut length_s) = (Vec::new(), None, None);
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = std::str::from_utf8(line).map_err(|_| PlaylistError::NoText(number))?.trim();
        if line.starts_with("#EXT-X-") {
            return Err(PlaylistError::Hls(number));
        }
        if let Some(info) = line.strip_prefix("#EXTINF:") {
            let (numbers, name) = info.split_once(',').unwrap_or((info, ""));
            // Attributes follow the number behind a space.
            length_s = numbers.split(' ').next().and_then(parse_length_s);
            display_name = Some(name.trim()).filter(|name| !name.is_empty()).map(str::to_owned);
            continue;
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if items.len() == MAX_PLAYLIST_ITEMS {
            return Err(PlaylistError::TooMany);
        }
        let address = line.strip_prefix("file://").unwrap_or(line).to_owned();
        items.push(PlaylistItem { address, display_name: display_name.take(), length_s: length_s.take() });
    }
    if items.is_empty() { Err(PlaylistError::Empty) } else { Ok(items) }
}

/// A length in seconds, perhaps with a fraction; -1 stands for none.
fn parse_length_s(text: &str) -> Option<u64> {
    let seconds =
        text.trim().parse::<f64>().ok().filter(|seconds| (0.5..=MAX_PLAYLIST_LENGTH_S).contains(seconds));
    seconds.map(|seconds| seconds.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<String> {
        parse_playlist(text.as_bytes()).unwrap().into_iter().map(|item| item.address).collect()
    }

    #[test]
    fn parse_playlist_with_comments_and_line_ends_returns_entries() {
        let text = "\u{feff}#EXTM3U\r\n#EXTINF:-1 tvg-id=\"a\",The opening\r\nopening.ts\r\n\r\n# note\nmy-film\nfile:///films/b c.ts";
        assert_eq!(addresses(text), ["opening.ts", "my-film", "/films/b c.ts"]);
        let items = parse_playlist(text.as_bytes()).unwrap();
        let names: Vec<_> = items.iter().map(|item| item.display_name.as_deref()).collect();
        assert_eq!(names, [Some("The opening"), None, None]);
    }

    #[test]
    fn parse_playlist_with_lengths_returns_those_that_are_possible() {
        for (info, length_s) in [
            ("120,A", Some(120)),
            ("119.6,A", Some(120)),
            ("120 tvg-id=\"a\",A, B", Some(120)),
            ("90", Some(90)),
            ("-1,A", None),
            ("0,A", None),
            ("NaN,A", None),
            ("inf,A", None),
            ("1e300,A", None),
            (",A", None),
        ] {
            let items = parse_playlist(format!("#EXTINF:{info}\na\nb\n").as_bytes()).unwrap();
            let lengths: Vec<_> = items.iter().map(|item| item.length_s).collect();
            assert_eq!(lengths, [length_s, None], "{info}");
        }
    }

    #[test]
    fn parse_playlist_of_something_else_returns_line_of_fault() {
        assert_eq!(parse_playlist(b"#EXTM3U\n\n"), Err(PlaylistError::Empty));
        assert_eq!(parse_playlist(b"a\nb\xff\n"), Err(PlaylistError::NoText(2)));
        assert_eq!(parse_playlist(b"#EXTM3U\n#EXT-X-VERSION:3\n"), Err(PlaylistError::Hls(2)));
        let many = "a\n".repeat(MAX_PLAYLIST_ITEMS + 1);
        assert_eq!(parse_playlist(many.as_bytes()), Err(PlaylistError::TooMany));
        assert!(parse_playlist(&many.as_bytes()[2..]).is_ok());
        let long = vec![b'#'; MAX_PLAYLIST_BYTES + 1];
        assert_eq!(parse_playlist(&long), Err(PlaylistError::TooLong(MAX_PLAYLIST_BYTES + 1)));
    }
}
