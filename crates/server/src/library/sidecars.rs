//! Files of subtitles that appear or change beside a film whose title is in the store already.
//!
//! Subtitle files that lie beside a film when it is added are added with it
//! (`millrace_make::ingest`). This module watches the folders after that: a file that is new, or
//! newer than the title's track with the same label, takes that track's place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_make::ingest::identify;
use millrace_make::sidecar::{Sidecar, is_subtitle_name, read_file, sidecars_of};
use millrace_media::subtitles::Subtitles;
use millrace_store::volume::{NewSubtitles, SourceIdentity, TitleInfo, Volume};

use super::open_titles::OpenTitles;
use crate::limits::control::{MAX_FOLDER_DEPTH, MAX_LIBRARY_FILES, SETTLE};

/// Subtitle files seen by earlier looks.
#[derive(Default)]
pub struct SidecarWatch {
    /// State of each file at its last look. Each content is tried once, or, while the file has no
    /// film, once for each version of the list of titles (the second value).
    looked_at: HashMap<PathBuf, (SourceIdentity, Option<u64>)>,
}

/// Result for one file: its path, and the title's name or the reason why it was left out.
pub type SidecarOutcome = (PathBuf, Result<String, String>);

impl SidecarWatch {
    /// Looks through the folders and stores new subtitles with their titles.
    pub fn look(
        &mut self,
        volume: &Volume,
        folders: &[PathBuf],
        open: &OpenTitles,
        now: SystemTime,
    ) -> Vec<SidecarOutcome> {
        let version = open.version();
        let mut found = Vec::new();
        folders.iter().for_each(|folder| collect(folder, 0, &mut found));
        let new: Vec<SourceIdentity> = found
            .iter()
            .filter_map(|path| identify(path).ok())
            .filter(|file| self.is_due(file, version, now))
            .collect();
        if new.is_empty() {
            return Vec::new();
        }
        let titles = open.titles();
        let mut films: HashMap<&Path, Vec<&TitleInfo>> = HashMap::new();
        for title in &titles {
            films.entry(title.source.path.parent().unwrap_or(Path::new(""))).or_default().push(title);
        }
        let mut outcomes = Vec::new();
        for file in new {
            let beside = file.path.parent().and_then(|dir| films.get(dir)).map_or(&[][..], Vec::as_slice);
            let of_film = beside.iter().find_map(|title| Some((*title, sidecar_of(title, &file.path)?)));
            // A film that is not in the store yet brings the file along when it is added.
            let without = of_film.is_none().then_some(version);
            self.looked_at.insert(file.path.clone(), (file.clone(), without));
            let Some((title, sidecar)) = of_film else { continue };
            if is_newer(title, &sidecar, &file) {
                outcomes.push((
                    file.path.clone(),
                    keep(volume, title, sidecar, file).map(|()| title.name.clone()),
                ));
            }
        }
        outcomes
    }

    /// Whether a file has come to rest and its present state has not been handled.
    fn is_due(&self, file: &SourceIdentity, version: u64, now: SystemTime) -> bool {
        let now_ns = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let rests = u128::from(file.modified_unix_ns) + SETTLE.as_nanos() <= now_ns;
        let is_known = self
            .looked_at
            .get(&file.path)
            .is_some_and(|(before, without)| before == file && without.is_none_or(|at| at == version));
        rests && !is_known
    }
}

/// The file as a sidecar of the title's film, if it belongs to that film.
fn sidecar_of(title: &TitleInfo, path: &Path) -> Option<Sidecar> {
    let stem = title.source.path.file_stem()?.to_str()?;
    Sidecar::of(path, stem)?;
    // The rules are the same as when the film is added: links, films with a longer name.
    sidecars_of(&title.source.path).into_iter().find(|sidecar| sidecar.path == path)
}

/// Whether the file has content that the title's tracks lack: no track was made from its present
/// state, and no track with its label was added after it.
fn is_newer(title: &TitleInfo, sidecar: &Sidecar, file: &SourceIdentity) -> bool {
    let of_file =
        |source: &Option<SourceIdentity>| source.as_ref().is_some_and(|source| source.path == file.path);
    if let Some(track) = title.subtitles.iter().find(|track| of_file(&track.source)) {
        return track.source.as_ref() != Some(file);
    }
    let of_label = title.subtitles.iter().find(|track| track.label == sidecar.label);
    of_label.is_none_or(|track| track.added_unix_s < file.modified_unix_ns / 1_000_000_000)
}

fn keep(volume: &Volume, title: &TitleInfo, sidecar: Sidecar, file: SourceIdentity) -> Result<(), String> {
    let bytes =
        read_file(&file.path).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let read = Subtitles::read(&bytes, -title.source_start / 90);
    let text = read.and_then(|subtitles| subtitles.to_webvtt()).map_err(|error| error.to_string())?;
    // A file keeps the label that it got when two files had the same one.
    let known =
        title.subtitles.iter().find(|track| track.source.as_ref().is_some_and(|s| s.path == file.path));
    let label = known.map_or(sidecar.label, |track| track.label.clone());
    let new = NewSubtitles { label, name: sidecar.name, text, source: Some(file) };
    volume.put_subtitles(title.id, &new).map(drop).map_err(|error| error.to_string())
}

/// Finds files with names of subtitle files. It skips the same folders as the search for films.
fn collect(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    // The search for films reports a folder that cannot be read.
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if kind.is_dir() {
            if depth < MAX_FOLDER_DEPTH && !path.join("volume.mrv").exists() {
                collect(&path, depth + 1, found);
            }
        } else if is_subtitle_name(&path) && found.len() < MAX_LIBRARY_FILES {
            found.push(path);
        }
    }
}
