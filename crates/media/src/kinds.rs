//! Classifies files as media by their names and first bytes. When a file is added, its content
//! decides.
//!
//! `add`, the folders of `serve` and the documentation (`docs/guide/ingest.md`) share one list; a
//! test compares them.

use std::path::Path;

/// Extensions of video and audio files.
pub const FILM_EXTENSIONS: &[&str] = &[
    // Transport streams and recordings.
    "ts", "m2ts", "mts", "m2t", "trp", "tp", "mpegts", "rec", "ssif", "wtv", // Containers.
    "mp4", "m4v", "mov", "qt", "3gp", "3g2", "f4v", "mj2", "mkv", "mk3d", "webm", "avi", "divx", "flv",
    "wmv", "asf", "ogv", "ogm", "mxf", "gxf", "nut", "rm", "rmvb", "dv", "ivf",
    // MPEG program and elementary streams.
    "mpg", "mpeg", "mpe", "vob", "dat", "evo", "mod", "tod", "m1v", "m2v", "mpv", "h264", "264", "avc",
    "h265", "265", "hevc", // Sound.
    "mp3", "mp2", "mpa", "m4a", "m4b", "mka", "aac", "ac3", "eac3", "ec3", "dts", "dtshd", "thd", "mlp",
    "flac", "ogg", "oga", "opus", "wav", "w64", "wma", "aiff", "aif", "caf", "au", "ape", "wv", "tta", "amr",
];

/// Extensions of other files that lie beside films, and of incomplete files. They are skipped
/// silently.
const OTHER_EXTENSIONS: &[&str] = &[
    // Pictures.
    "jpg",
    "jpeg",
    "png",
    "gif",
    "bmp",
    "webp",
    "tif",
    "tiff",
    "svg",
    "ico",
    "heic",
    "avif",
    "psd",
    "tbn",
    "raw",
    "cr2",
    "nef",
    // Text and descriptions.
    "txt",
    "nfo",
    "md",
    "pdf",
    "html",
    "htm",
    "xml",
    "json",
    "csv",
    "log",
    "url",
    "doc",
    "docx",
    "odt",
    "rtf",
    "epub",
    "ini",
    "cfg",
    "conf",
    "yaml",
    "yml",
    "toml",
    "sfv",
    "md5",
    "sha1",
    "sha256",
    "torrent",
    "nzb",
    "ds_store",
    "db",
    "lnk",
    // Subtitles and playlists.
    "srt",
    "ass",
    "ssa",
    "sub",
    "idx",
    "vtt",
    "sup",
    "smi",
    "ttml",
    "dfxp",
    "stl",
    "m3u",
    "m3u8",
    "pls",
    "cue",
    "xspf",
    "mpls",
    "mpd",
    "edl",
    "chp",
    "ifo",
    "bup",
    "clpi",
    "bdmv",
    "bdjo",
    "jar",
    "otf",
    "ttf",
    // Archives, programs, sources.
    "zip",
    "rar",
    "7z",
    "tar",
    "gz",
    "xz",
    "bz2",
    "zst",
    "par2",
    "iso",
    "img",
    "bin",
    "exe",
    "dll",
    "so",
    "deb",
    "rpm",
    "apk",
    "sh",
    "py",
    "js",
    "c",
    "h",
    "rs",
    "go",
    "java",
    "o",
    "a",
    "css",
    "sqlite",
    "sqlite3",
    "bak",
    "old",
    "swp",
    // Not complete yet.
    "part",
    "partial",
    "crdownload",
    "!qb",
    "!ut",
    "tmp",
    "temp",
    "download",
    "opdownload",
    "aria2",
    "filepart",
    "incomplete",
    "unfinished",
    "new",
    "lock",
];

/// Magic numbers of files that are not media, as (offset, bytes). A file without a known extension
/// is skipped if it has one.
const OTHER_MARKS: &[(usize, &[u8])] = &[
    (0, b"\xff\xd8\xff"),
    (0, b"\x89PNG"),
    (0, b"GIF8"),
    (0, b"II*\0"),
    (0, b"MM\0*"),
    (8, b"WEBP"),
    (0, b"BM"),
    (0, b"%PDF"),
    (0, b"PK\x03\x04"),
    (0, b"Rar!"),
    (0, b"7z\xbc\xaf"),
    (0, b"\x1f\x8b"),
    (0, b"BZh"),
    (0, b"\xfd7zXZ"),
    (0, b"\x28\xb5\x2f\xfd"),
    (0, b"\x7fELF"),
    (0, b"MZ"),
    (0, b"SQLite format 3"),
    (0, b"\xd0\xcf\x11\xe0"),
];

/// The kind of a file according to its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedKind {
    /// Video or audio.
    Film,
    /// Another type, or an incomplete file.
    Other,
    /// The name does not decide; the content does.
    Unknown,
}

/// Classifies a file by its name alone.
pub fn kind_of_name(path: &Path) -> NamedKind {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    if name.starts_with(b".") || name.ends_with(b"~") {
        return NamedKind::Other;
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match extension.as_deref() {
        Some(extension) if FILM_EXTENSIONS.contains(&extension) => NamedKind::Film,
        Some(extension) if OTHER_EXTENSIONS.contains(&extension) => NamedKind::Other,
        _ => NamedKind::Unknown,
    }
}

/// Whether the extension belongs to media files or to other files beside them. Such an extension is
/// not part of a title's name.
pub fn is_known_extension(extension: &str) -> bool {
    let extension = extension.to_ascii_lowercase();
    [FILM_EXTENSIONS, OTHER_EXTENSIONS].iter().any(|list| list.contains(&extension.as_str()))
}

/// Whether a file of unknown extension may be media, judged by its first bytes: not a picture, an
/// archive or text.
pub fn may_be_film(head: &[u8]) -> bool {
    let is_marked = |&(at, mark): &(usize, &[u8])| head.get(at..at + mark.len()) == Some(mark);
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..);
    let is_plain_text = head.iter().all(is_text) && std::str::from_utf8(prefix(head)).is_ok();
    let is_other = is_plain_text || OTHER_MARKS.iter().any(is_marked);
    !head.is_empty() && !is_other
}

/// Drops up to three trailing bytes that may belong to a truncated character.
fn prefix(head: &[u8]) -> &[u8] {
    let whole = std::str::from_utf8(head).map_or_else(|error| error.valid_up_to(), str::len);
    if head.len() - whole < 4 { &head[..whole] } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_of_name_film_other_and_unknown() {
        for name in FILM_EXTENSIONS {
            assert_eq!(
                kind_of_name(Path::new(&format!("/films/a.{}", name.to_uppercase()))),
                NamedKind::Film
            );
            assert!(!OTHER_EXTENSIONS.contains(name), "{name} is in both lists");
        }
        for name in
            ["a.part", "a.mkv.!qB", "a.mp4.crdownload", "a.srt", "a.nfo", ".hidden.ts", "a.mkv~", "a.JPG"]
        {
            assert_eq!(kind_of_name(Path::new(name)), NamedKind::Other, "{name}");
        }
        for name in ["recording", "a.xyz", "S.W.A.T"] {
            assert_eq!(kind_of_name(Path::new(name)), NamedKind::Unknown, "{name}");
        }
    }

    #[test]
    fn may_be_film_refuses_pictures_archives_and_text() {
        for head in [
            &b""[..],
            b"\xff\xd8\xff\xe0",
            b"PK\x03\x04abc",
            b"a letter\n",
            "письмо".as_bytes(),
            b"\x7fELF\x02",
        ] {
            assert!(!may_be_film(head), "{head:?}");
        }
        for head in [
            &b"\x1aE\xdf\xa3"[..],
            b"\x47\x40\x00\x10",
            b"\0\0\0\x18ftypmp42",
            b"RIFF\0\0\0\0AVI ",
            b"ID3\x03",
        ] {
            assert!(may_be_film(head), "{head:?}");
        }
    }

    #[test]
    fn guide_lists_the_extensions() {
        let guide =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/ingest.md"))
                .unwrap();
        let line = guide
            .lines()
            .find(|line| line.starts_with("`ts`"))
            .expect("the guide lists extensions in one paragraph");
        let listed: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed, FILM_EXTENSIONS);
    }
}
