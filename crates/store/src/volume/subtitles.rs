//! Subtitles that are kept with a title: one file of WebVTT for each track, the same on all members, named in the manifest.
//!
//! Each file name contains a part of the file's hash. A track is therefore replaced like every
//! other file of a manifest: the new file is written first, then the manifest, and the old file is
//! removed last. After a crash, all files of the current manifest are present.

use std::path::Path;

use millrace_core::ids::TitleId;
use millrace_core::limits::subtitles::MAX_SUBTITLE_TRACK_BYTES;
use millrace_media::limits::MAX_SUBTITLE_TRACKS;
use millrace_media::subtitles::SubtitleLabel;

use super::manifest_io::find_manifest;
use super::resize::{homes, publish};
use super::state::Volume;
use super::workspace::Workspace;
use crate::blocking::Timeout;
use crate::dirs::{copy_new, read_whole, unix_s, write_new};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{FileEntry, Manifest, SUBTITLES_PREFIX, SUBTITLES_SUFFIX};
use crate::format::title_info::{SourceIdentity, SubtitleTrack, TitleInfo};

const ACTION: &str = "changing subtitles";

/// A new track to store with a title.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubtitles {
    /// Language and kind.
    pub label: SubtitleLabel,
    /// For people.
    pub name: Option<String>,
    /// WebVTT ([`Subtitles::to_webvtt`](millrace_media::subtitles::Subtitles::to_webvtt)).
    pub text: String,
    /// The file that it was made from, if it was one beside the film.
    pub source: Option<SourceIdentity>,
}

impl NewSubtitles {
    /// Its entries in the manifest.
    fn entries(&self) -> (SubtitleTrack, FileEntry) {
        let Self { label, name, text, source } = self;
        let blake3 = blake3::hash(text.as_bytes()).to_hex().to_string();
        let file = format!("{SUBTITLES_PREFIX}{label}-{}{SUBTITLES_SUFFIX}", &blake3[..16]);
        let entry = FileEntry { name: file.clone(), bytes: text.len() as u64, blake3 };
        let (label, name, source) = (label.clone(), name.clone(), source.clone());
        (SubtitleTrack { label, name, file, source, added_unix_s: unix_s() }, entry)
    }

    /// Writes its file and enters it.
    pub(super) fn write(
        &self,
        disk: &Disk,
        dir: &Path,
        info: &mut TitleInfo,
        files: &mut Vec<FileEntry>,
    ) -> Result<(), StoreError> {
        let (track, entry) = self.entries();
        write_new(disk, &dir.join(&entry.name), self.text.as_bytes())?;
        info.subtitles.push(track);
        info.subtitles.sort_by(|a, b| a.label.cmp(&b.label));
        files.push(entry);
        Ok(())
    }
}

impl Volume {
    /// Keeps subtitles with a title, in place of those that have the same label. Returns whether there were such.
    ///
    /// # Errors
    /// If there is no such title, it is made of another or has too many tracks, or the store cannot be written to.
    pub fn put_subtitles(&self, id: TitleId, new: &NewSubtitles) -> Result<bool, StoreError> {
        let volume = &self.inner;
        volume.writable(ACTION)?;
        let homes = homes(volume, id, ACTION)?;
        let workspace = Workspace::create_on(&homes)?;
        let (track, entry) = new.entries();
        write_new(workspace.disk(), &workspace.path().join(&entry.name), new.text.as_bytes())?;
        for (home, path) in homes.iter().zip(workspace.paths()).skip(1) {
            copy_new(&home.disk, &workspace.path().join(&entry.name), &path.join(&entry.name))?;
        }
        let mut is_replaced = false;
        publish(volume, &homes, &workspace, id, |manifest| {
            if manifest.title.derived.is_some() {
                let what = "is made of another title; subtitles belong to that one".to_owned();
                return Err(StoreError::BadTitle { id, what });
            }
            is_replaced = take(manifest, &track.label).is_some();
            if manifest.title.subtitles.len() >= MAX_SUBTITLE_TRACKS {
                let what = format!("has {MAX_SUBTITLE_TRACKS} tracks of subtitles; remove one first");
                return Err(StoreError::BadTitle { id, what });
            }
            let name = entry.name.clone();
            manifest.title.subtitles.push(track);
            manifest.title.subtitles.sort_by(|a, b| a.label.cmp(&b.label));
            manifest.files.push(entry);
            manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
            // With the same text the file is there already; the new one may be whole where that is damaged.
            Ok(vec![name])
        })?;
        Ok(is_replaced)
    }

    /// Removes subtitles of a title. Returns whether there were such.
    ///
    /// # Errors
    /// If there is no such title, or the store cannot be written to.
    pub fn remove_subtitles(&self, id: TitleId, label: &SubtitleLabel) -> Result<bool, StoreError> {
        let volume = &self.inner;
        volume.writable(ACTION)?;
        let homes = homes(volume, id, ACTION)?;
        let workspace = Workspace::create_on(&homes)?;
        let mut is_removed = false;
        publish(volume, &homes, &workspace, id, |manifest| {
            is_removed = take(manifest, label).is_some();
            Ok(Vec::new())
        })?;
        Ok(is_removed)
    }

    /// The WebVTT of a track, from the first member whose copy is undamaged.
    ///
    /// # Errors
    /// If there is no such track, or no member that is there has a whole copy.
    pub fn read_subtitles(&self, id: TitleId, file: &str) -> Result<String, StoreError> {
        let members = &self.inner.members;
        let (_, manifest) = find_manifest(members, id)?;
        let missing = || StoreError::BadTitle { id, what: format!("has no subtitles {file:.100?}") };
        let is_track = manifest.title.subtitles.iter().any(|track| track.file == file);
        let entry = manifest.file(file).filter(|_| is_track).ok_or_else(missing)?;
        let mut first = None;
        for slot in members.usable() {
            let path = self.inner.dirs(slot).title(id).join(file);
            let from = path.clone();
            let read = members
                .ask(slot, Timeout::Call, move |_| read_whole(&from, MAX_SUBTITLE_TRACK_BYTES as u64 * 2));
            let what = match read.and_then(|read| read) {
                Ok(bytes) if blake3::hash(&bytes).to_hex().as_str() == entry.blake3 => {
                    match String::from_utf8(bytes) {
                        Ok(text) => return Ok(text),
                        Err(_) => "is not UTF-8".to_owned(),
                    }
                }
                Ok(_) => "is not what it was when it came: its BLAKE3 differs".to_owned(),
                Err(error) => {
                    first = first.or(Some(error));
                    continue;
                }
            };
            first = first.or(Some(StoreError::Damaged { path, what }));
        }
        Err(first.unwrap_or_else(missing))
    }
}

/// Takes a track out of a manifest, and its file.
fn take(manifest: &mut Manifest, label: &SubtitleLabel) -> Option<SubtitleTrack> {
    let at = manifest.title.subtitles.iter().position(|track| track.label == *label)?;
    let track = manifest.title.subtitles.remove(at);
    manifest.files.retain(|file| file.name != track.file);
    Some(track)
}
