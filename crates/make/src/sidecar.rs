//! Files of subtitles beside a film: `film.srt`, `film.de.srt`, `film.en.forced.srt`, `film.pt-BR.sdh.vtt`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use millrace_core::limits::subtitles::MAX_SUBTITLE_SOURCE_BYTES;
use millrace_media::limits::MAX_SUBTITLE_TRACKS;
use millrace_media::subtitles::{SubtitleError, SubtitleLabel, clean_name};

use crate::limits::ingest::MAX_SIDECAR_DIR_ENTRIES;

/// Endings of such files.
const EXTENSIONS: [&str; 4] = ["srt", "vtt", "ass", "ssa"];

/// A file of subtitles that belongs to a film.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// Where it is.
    pub path: PathBuf,
    /// Language and kind from the file name.
    pub label: SubtitleLabel,
    /// The remaining words of the file name, for display.
    pub name: Option<String>,
}

impl Sidecar {
    /// Parses the name of a subtitle file of the film whose name without extension is `stem`;
    /// `None` if it is no such file.
    pub fn of(path: &Path, stem: &str) -> Option<Self> {
        Self::with_words(path, subtitle_stem(path)?.strip_prefix(stem)?)
    }

    /// Like [`Sidecar::of`] for a film of any name: parses the end of the file name. `None` if it
    /// does not name a language.
    pub fn of_any(path: &Path) -> Option<Self> {
        let stem = path.file_stem().and_then(OsStr::to_str)?;
        // The earliest dot behind which all words are understood.
        let dots = stem.match_indices('.').map(|(at, _)| Self::with_words(path, &stem[at..]));
        dots.flatten().find(|sidecar| sidecar.name.is_none() && sidecar.label.language().is_some())
    }

    fn with_words(path: &Path, words: &str) -> Option<Self> {
        let words = if words.is_empty() { "" } else { words.strip_prefix('.')? };
        let mut label = SubtitleLabel::unknown();
        let mut names = Vec::new();
        for word in words.split('.').filter(|word| !word.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "forced" => label.is_forced = true,
                "sdh" | "cc" => label.is_sdh = true,
                // Behind a language it means hearing impaired, alone Hindi.
                "hi" if label.language().is_some() => label.is_sdh = true,
                _ => match SubtitleLabel::new(word).filter(|_| label.language().is_none()) {
                    Some(of_language) => label.set_language(of_language),
                    None => names.push(word),
                },
            }
        }
        Some(Self { path: path.to_path_buf(), label, name: clean_name(&names.join(" ")) })
    }
}

/// Whether a file is called as subtitles are.
pub fn is_subtitle_name(path: &Path) -> bool {
    subtitle_stem(path).is_some()
}

fn subtitle_stem(path: &Path) -> Option<&str> {
    let extension = path.extension().and_then(OsStr::to_str)?.to_ascii_lowercase();
    EXTENSIONS.contains(&extension.as_str()).then(|| path.file_stem().and_then(OsStr::to_str)).flatten()
}

/// The subtitles beside a film, in order of their names. A directory that cannot be read has none.
///
/// A symbolic link counts only if it leads to a file in the same directory. Otherwise any user with
/// write access to the directory could make the server read every file that it has access to.
pub fn sidecars_of(film: &Path) -> Vec<Sidecar> {
    let (Some(dir), Some(stem)) = (film.parent(), film.file_stem().and_then(OsStr::to_str)) else {
        return Vec::new();
    };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let (mut found, mut longer) = (Vec::new(), Vec::new());
    for entry in entries.flatten().take(MAX_SIDECAR_DIR_ENTRIES) {
        let path = dir.join(entry.file_name());
        match Sidecar::of(&path, stem) {
            Some(sidecar) => found.push(sidecar),
            // film.2.srt belongs to film.2.mkv alone.
            None => longer.extend(
                path.file_stem()
                    .and_then(OsStr::to_str)
                    .filter(|other| other.starts_with(stem) && other.len() > stem.len())
                    .map(str::to_owned),
            ),
        }
    }
    found.retain(|sidecar| {
        let is_of_another = |other: &String| Sidecar::of(&sidecar.path, other).is_some();
        !longer.iter().any(is_of_another) && leads_to_a_file_here(&sidecar.path, dir)
    });
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found.truncate(MAX_SUBTITLE_TRACKS);
    found
}

fn leads_to_a_file_here(path: &Path, dir: &Path) -> bool {
    let (Ok(about), Ok(dir)) = (path.symlink_metadata(), dir.canonicalize()) else { return false };
    match about.is_symlink() {
        true => path.canonicalize().is_ok_and(|target| target.is_file() && target.parent() == Some(&dir)),
        false => about.is_file(),
    }
}

/// Reads a file of subtitles, if it is not too long.
///
/// # Errors
/// The outer error is an I/O error; the inner one reports that the file is too long.
pub fn read_file(path: &Path) -> std::io::Result<Result<Vec<u8>, SubtitleError>> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(std::io::Error::other("is not a regular file"));
    }
    let most = MAX_SUBTITLE_SOURCE_BYTES;
    if about.len() > most as u64 {
        return Ok(Err(SubtitleError::SourceTooLong { bytes: about.len(), most }));
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Ok(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn sidecar_names_say_language_kind_and_name() {
        let of = |name: &str| {
            Sidecar::of(Path::new(name), "film").map(|sidecar| (sidecar.label.to_string(), sidecar.name))
        };
        for (name, label, named) in [
            ("film.srt", "und", None),
            ("film.de.srt", "de", None),
            ("film.en.forced.srt", "en.forced", None),
            ("film.pt-BR.sdh.vtt", "pt-BR.sdh", None),
            ("film.en.hi.ass", "en.sdh", None),
            ("film.hi.SRT", "hi", None),
            ("film.en.Director comments.srt", "en", Some("Director comments")),
        ] {
            assert_eq!(of(name), Some((label.to_owned(), named.map(str::to_owned))), "{name}");
        }
        for other in ["film2.srt", "film.mkv", "film.sub", "other.de.srt", "film.de.txt"] {
            assert_eq!(of(other), None, "{other}");
        }
        let any = |name: &str| Sidecar::of_any(Path::new(name)).map(|sidecar| sidecar.label.to_string());
        assert_eq!(any("My.Film.2019.de.forced.srt").as_deref(), Some("de.forced"));
        assert_eq!(any("film.srt"), None);
    }

    #[test]
    fn sidecars_of_a_film_are_its_own_and_lead_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["film.mkv", "film.2.mkv", "film.de.srt", "film.2.en.srt", "film.2.srt", "other.srt"] {
            fs::write(path(name), "x").unwrap();
        }
        fs::write(outside.path().join("secret.srt"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret.srt"), path("film.fr.srt")).unwrap();
        std::os::unix::fs::symlink("film.de.srt", path("film.it.srt")).unwrap();
        let names = |film: &str| {
            let found = sidecars_of(&path(film)).into_iter();
            found.map(|s| s.path.file_name().unwrap().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("film.mkv"), ["film.de.srt", "film.it.srt"]);
        assert_eq!(names("film.2.mkv"), ["film.2.en.srt", "film.2.srt"]);
    }
}
