//! Derives the names of a title from its source file: the requested name in URLs, and the display
//! name.
//!
//! Both are the file name without extension. A name that only numbers a part (`01`, `S01E02`, `Part
//! 1`) is always preceded by the names of its folders, so that it does not depend on the order in
//! which titles are added. For other names, the folder is added only if another title has the name.

use std::path::{Component, Path};

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_TITLE_NAME_BYTES;
use millrace_media::kinds::is_known_extension;

use crate::limits::MAX_DISPLAY_NAME_BYTES;

/// Words that number the parts of something, as file and folder names have them.
const PART_WORDS: &[&str] = &[
    "s",
    "e",
    "ep",
    "eps",
    "episode",
    "season",
    "series",
    "part",
    "pt",
    "cd",
    "disc",
    "disk",
    "dvd",
    "bd",
    "vts",
    "chapter",
    "ch",
    "track",
    "title",
    "vol",
    "volume",
    "folge",
    "staffel",
    "teil",
    "saison",
    "temporada",
    "capitulo",
    "episodio",
    "stagione",
    "sezon",
    "odcinek",
    "сезон",
    "серия",
    "часть",
    "第",
    "集",
    "话",
    "話",
    "季",
    "回",
    "部",
    "期",
    "video_ts",
    "bdmv",
    "stream",
];

/// Between a folder's name and what follows it in a display name.
const BETWEEN: &str = " - ";

/// The names of a file's title.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileNames {
    /// Wish for the name in URLs.
    pub name: String,
    /// Display name.
    pub title: String,
    /// Name of the folder that distinguishes it from another title with the same name; `None` if
    /// there is none, or the name already contains it.
    pub folder: Option<String>,
}

/// The names of the title made from the file at `path`. Folders above `root` have no part in it.
pub fn names_of_file(path: &Path, root: Option<&Path>) -> FileNames {
    let stem = stem(path);
    let below = root.and_then(|root| path.strip_prefix(root).ok()).unwrap_or(path);
    let folders = folders(below);
    if !is_part_name(&stem) || folders.is_empty() {
        return FileNames { title: title_text(&stem), folder: join(&folders, BETWEEN), name: stem };
    }
    let with = |between: &str| join(&folders, between).map(|folder| format!("{folder}{between}{stem}"));
    let (name, title) = (with(" ").unwrap_or_default(), with(BETWEEN).unwrap_or_default());
    FileNames { name, title: title_text(&title), folder: None }
}

/// Puts a folder's name before a display name.
pub(crate) fn with_folder(folder: &str, title: &str) -> String {
    title_text(&format!("{folder}{BETWEEN}{title}"))
}

/// The folders of a file, from the nearest one whose name does not only number a part down to the
/// file.
fn folders(path: &Path) -> Vec<String> {
    let above = path.parent().into_iter().flat_map(Path::components).filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_string_lossy().into_owned()),
        _ => None,
    });
    let above: Vec<String> = above.collect();
    let first = above.iter().rposition(|folder| !is_part_name(folder)).unwrap_or(0);
    above[first..].to_vec()
}

fn join(folders: &[String], between: &str) -> Option<String> {
    (!folders.is_empty()).then(|| folders.join(between))
}

/// The name of a file as text, without the extension of a film.
pub(crate) fn stem(path: &Path) -> String {
    let has_extension =
        path.extension().and_then(|extension| extension.to_str()).is_some_and(is_known_extension);
    let name = if has_extension { path.file_stem() } else { path.file_name() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Whether a name only numbers a part of something. Numbers that could be the name of a film (`1917`, `300`) do not.
fn is_part_name(name: &str) -> bool {
    let lower = name.to_lowercase();
    if matches!(lower.as_str(), "video_ts" | "bdmv" | "stream" | "certificate") {
        return true;
    }
    let is_word = |word: &&str| !word.is_empty();
    let words: Vec<&str> = lower.split(|c: char| !c.is_alphabetic()).filter(is_word).collect();
    let numbers: Vec<&str> = lower.split(|c: char| !c.is_numeric()).filter(is_word).collect();
    if words.is_empty() {
        return numbers.len() > 1
            || numbers.first().is_some_and(|number| number.len() < 3 || number.starts_with('0'));
    }
    !numbers.is_empty() && words.iter().all(|word| PART_WORDS.contains(word))
}

/// Text as a display name: one line without control characters and marks that turn the direction of what follows, of bounded length.
pub fn title_text(text: &str) -> String {
    let turns = |c: &char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let plain: String =
        text.chars().filter(|c| !turns(c)).map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut title = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut end = title.len().min(MAX_DISPLAY_NAME_BYTES);
    while !title.is_char_boundary(end) {
        end -= 1;
    }
    title.truncate(end);
    title.trim_end().to_owned()
}

/// Whether the `title` tag of a container is a better display name than its file name: it is a
/// title, not a remnant of an encoder or a website, and it contains all part numbers of the file
/// name.
pub fn is_good_tag(tag: &str, file: &str) -> bool {
    let tag = title_text(tag);
    let lower = tag.to_lowercase();
    let is_long_enough = tag.chars().filter(|c| c.is_alphanumeric()).count() >= 2;
    let is_junk = JUNK.iter().any(|junk| lower.contains(junk))
        || GENERIC.contains(&lower.trim_matches(['.', '-', ' ']));
    let is_file_name = Path::new(&tag).extension().and_then(|e| e.to_str()).is_some_and(is_known_extension)
        || lower.contains(['/', '\\'])
        || (!lower.contains(' ') && lower.matches(['.', '_']).count() > 2);
    let words = |text: &str| -> Vec<String> {
        let lower = text.to_lowercase();
        lower
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let of_tag = words(&tag);
    let is_missing =
        |word: &String| is_number_of_part(word) && !of_tag.iter().any(|other| is_same_number(other, word));
    is_long_enough && !is_junk && !is_file_name && !words(file).iter().any(is_missing)
}

/// Text that encoders, websites and rippers leave in titles.
const JUNK: &[&str] = &[
    "http:",
    "https:",
    "www.",
    ".com",
    ".org",
    ".net",
    "encoded by",
    "encoder",
    "converted",
    "created with",
    "created by",
    "lavf",
    "lavc",
    "handbrake",
    "x264",
    "x265",
    "h.264",
    "h264",
    "mediahandler",
    "ripped",
    "makemkv",
    "rarbg",
    "yify",
    "bluray",
    "blu-ray",
    "webrip",
    "web-dl",
    "hdtv",
    "1080p",
    "720p",
    "2160p",
    "uploaded",
    "torrent",
];

/// Titles that name nothing.
const GENERIC: &[&str] = &[
    "untitled",
    "title",
    "video",
    "movie",
    "film",
    "clip",
    "sequence 01",
    "track 1",
    "media",
    "unknown",
    "no title",
    "none",
    "null",
    "default",
    "test",
    "new project",
    "project",
    "main",
    "dvd",
    "dvdvideo",
    "output",
    "render",
    "export",
];

/// Whether a word of a file name numbers a part: `7`, `02`, `s01e02`, `e5`. Years and picture sizes
/// do not.
fn is_number_of_part(word: &str) -> bool {
    let letters: String = word.chars().filter(|c| !c.is_ascii_digit()).collect();
    let digits = word.chars().filter(char::is_ascii_digit).count();
    digits > 0
        && (letters.is_empty() && digits < 4 || matches!(letters.as_str(), "se" | "e" | "ep" | "s" | "x"))
}

/// Whether two words end in the same number: `02`, `2` and `s01e02` do.
fn is_same_number(a: &str, b: &str) -> bool {
    let number = |word: &str| {
        let digits = word.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.trim_start_matches('0').to_owned()
    };
    a == b || number(a) == number(b) && !number(a).is_empty()
}

/// Returns whether `name` can be a title's name: `a-z 0-9 - _ .`, at most [`MAX_TITLE_NAME_BYTES`],
/// no leading dot (a hidden file elsewhere), and not like an id, to avoid confusion.
pub fn is_slug(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.len() <= MAX_TITLE_NAME_BYTES
        && !name.starts_with('.')
        && name.bytes().all(allowed)
        && name.parse::<TitleId>().is_err()
}

#[cfg(test)]
#[path = "naming_tests.rs"]
mod tests;
