//! Recordings: titles that are written for as long as a source sends. If their program dies, the next one makes a title of the media.
//!
//! Beside its directory `tmp/<id>`, a recording has a file `tmp/<id>.recording` on each member, which keeps the directory from being swept. It
//! goes when the title is visible. A program that finds it without a living process ([`Volume::interrupted_recordings`]) reads the
//! media again and makes a title of it.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS, TS_PACKET_BYTES};
use serde::{Deserialize, Serialize};

use super::lock::StoreLock;
use super::publish::INGEST;
use super::recover::{TmpEntry, look_at_tmp};
use super::state::{Volume, VolumeInner};
use super::writer::TitleWriter;
use crate::dirs::{
    Dirs, LOCK_FILE, RECORDING_EXTENSION, id_of_name, read_whole, remove_tree, sync_dir, write_new,
};
use crate::error::StoreError;
use crate::format::manifest::{DATA_FILE, DATA_UNITS_FILE};
use crate::limits::volume::MAX_RECORDING_NOTE_BYTES;
use crate::stripes::StripeLayout;

/// Facts needed to make a title of an interrupted recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingNote {
    /// Wished name of the title.
    pub name: String,
    /// Its display name.
    pub title: String,
    /// The recorded source, as a path.
    pub source: PathBuf,
    /// When it began, in seconds since 1970 (UTC).
    pub began_unix_s: u64,
}

/// A recording whose program has died. No other process takes it as long as this lives.
#[derive(Debug)]
pub struct InterruptedRecording {
    id: TitleId,
    note: RecordingNote,
    volume: Arc<VolumeInner>,
    /// The members that have a part of it.
    parts: Vec<Dirs>,
    _lock: File,
}

/// The note of a recording.
fn note_path(dirs: &Dirs, id: TitleId) -> PathBuf {
    dirs.tmp.join(id.to_string()).with_extension(RECORDING_EXTENSION)
}

impl TitleWriter {
    /// Begins a title as [`TitleWriter::begin`] does. Its media is kept when this is dropped, when it has failed, and when the program dies,
    /// unless it is [discarded](Self::discard).
    ///
    /// # Errors
    /// As [`TitleWriter::begin`].
    pub fn begin_recording(
        volume: &Volume,
        packet_sizes: &[u16],
        note: &RecordingNote,
    ) -> Result<Self, StoreError> {
        let mut writer = Self::begin(volume, packet_sizes)?;
        let bytes = serde_json::to_vec(note).map_err(|error| StoreError::BadTitle {
            id: writer.id(),
            what: format!("its note cannot be written: {error}"),
        })?;
        // Where there is a note, all members have their files.
        for (home, path) in writer.homes.iter().zip(writer.workspace.paths()) {
            sync_dir(&home.disk, path)?;
            sync_dir(&home.disk, &home.tmp)?;
        }
        for home in &writer.homes {
            write_new(&home.disk, &note_path(home, writer.id()), &bytes)?;
            sync_dir(&home.disk, &home.tmp)?;
        }
        writer.workspace.keep(RECORDING_EXTENSION);
        writer.let_grow()?;
        Ok(writer)
    }

    /// Removes a recording in which there is nothing.
    pub fn discard(mut self) {
        self.workspace.discard();
    }
}

impl Volume {
    /// The recordings whose programs have died.
    ///
    /// # Errors
    /// If a member cannot be read.
    pub fn interrupted_recordings(&self) -> Result<Vec<InterruptedRecording>, StoreError> {
        self.inner.members.refresh();
        let homes = self.inner.usable();
        let mut found: Vec<InterruptedRecording> = Vec::new();
        for (number, dirs) in homes.iter().enumerate() {
            let lock = StoreLock::take(dirs)?;
            let entries = look_at_tmp(dirs)?;
            for entry in entries {
                let TmpEntry::Recording(path) = entry else { continue };
                let Some(id) = path.file_name().and_then(id_of_name) else { continue };
                if let Some(known) = found.iter_mut().find(|known| known.id == id) {
                    known.parts.push(dirs.clone());
                } else if !homes[..number].iter().any(|other| other.tmp.join(id.to_string()).is_dir()) {
                    found.extend(self.claim(dirs, id, &path)?);
                }
            }
            drop(lock);
        }
        found.retain(|recording| !homes.iter().any(|dirs| dirs.title(recording.id).is_dir()));
        Ok(found)
    }

    /// Locks a recording; `None`: another process was faster. A note that a power cut damaged is replaced by a general one.
    fn claim(
        &self,
        dirs: &Dirs,
        id: TitleId,
        path: &Path,
    ) -> Result<Option<InterruptedRecording>, StoreError> {
        let bytes = read_whole(&note_path(dirs, id), MAX_RECORDING_NOTE_BYTES).unwrap_or_default();
        let note = serde_json::from_slice(&bytes).unwrap_or_else(|_| RecordingNote {
            name: "recording".to_owned(),
            title: "Recording".to_owned(),
            source: PathBuf::from("live:"),
            began_unix_s: 0,
        });
        let lock_path = path.join(LOCK_FILE);
        let file = File::options().create(true).append(true).open(&lock_path);
        let file = file.map_err(StoreError::io("open", &lock_path))?;
        if file.try_lock().is_err() {
            return Ok(None);
        }
        let (volume, parts) = (Arc::clone(&self.inner), vec![dirs.clone()]);
        Ok(Some(InterruptedRecording { id, note, volume, parts, _lock: file }))
    }
}

impl InterruptedRecording {
    /// The title that it will become.
    pub fn note(&self) -> &RecordingNote {
        &self.note
    }

    /// The media that was written, whole TS packets.
    ///
    /// # Errors
    /// If a member is missing, or has been replaced since and so has no part of it.
    pub fn media(&self) -> Result<RecordedMedia, StoreError> {
        RecordedMedia::open(&self.volume, &self.volume.all_members(INGEST)?, self.id)
    }

    /// Removes it: it is a title now, or there was nothing in it.
    ///
    /// # Errors
    /// If a disk refuses.
    pub fn remove(self) -> Result<(), StoreError> {
        // Without a note the rest is swept.
        self.parts.iter().try_for_each(|dirs| remove_note(dirs, self.id))?;
        self.parts.iter().try_for_each(|dirs| remove_tree(&dirs.disk, &dirs.tmp.join(self.id.to_string())))
    }
}

fn remove_note(dirs: &Dirs, id: TitleId) -> Result<(), StoreError> {
    let path = note_path(dirs, id);
    match dirs.disk.remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io("remove", &path)(error)),
        _ => sync_dir(&dirs.disk, &dirs.tmp),
    }
}

/// The files that hold the media of a title being written: one plain file, or one with the data units of each member.
#[derive(Debug)]
pub(crate) struct UnitFiles {
    /// By position.
    files: Vec<Arc<File>>,
    /// `None`: the media is one plain file.
    layout: Option<StripeLayout>,
}

impl UnitFiles {
    /// Opens those in the workspace of this title. How long it will be is not known: the layout has room for the longest.
    pub(super) fn open(volume: &VolumeInner, homes: &[Dirs], id: TitleId) -> Result<Self, StoreError> {
        let layout = match homes.len() {
            1 => None,
            _ => {
                StripeLayout::new(&volume.members.geometry(), MAX_TITLE_PACKETS * DEFAULT_PACKET_BYTES as u64)
            }
        };
        let name = if layout.is_some() { DATA_UNITS_FILE } else { DATA_FILE };
        let open = |dirs: &Dirs| {
            let path = dirs.tmp.join(id.to_string()).join(name);
            File::open(&path).map(Arc::new).map_err(StoreError::io("open", &path))
        };
        Ok(Self { files: homes.iter().map(open).collect::<Result<_, _>>()?, layout })
    }

    /// The file at a position.
    pub(crate) fn file(&self, position: usize) -> &Arc<File> {
        &self.files[position]
    }

    /// Where bytes of the media lie: positions of files, each with a range in its file.
    pub(crate) fn pieces(&self, bytes: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            (at < bytes.end).then(|| {
                let (position, offset, run) = self.locate(at, bytes.end);
                at += run;
                (position, offset..offset + run)
            })
        })
    }

    /// The file in which the byte at `place` is, its offset there, and how many up to `end` follow it in a row.
    fn locate(&self, place: u64, end: u64) -> (usize, u64, u64) {
        let left = end - place;
        let Some(layout) = &self.layout else { return (0, place, left) };
        let stripe = (place / layout.stripe_bytes()) as u32;
        let in_stripe = place % layout.stripe_bytes();
        let unit_bytes = layout.unit_bytes() as u64;
        let (unit, within) = ((in_stripe / unit_bytes) as usize, in_stripe % unit_bytes);
        let position = layout.position_of(stripe, unit);
        (position, layout.offset_of(stripe, unit) + within, left.min(unit_bytes - within))
    }

    /// Place of the first missing byte: bytes written behind it, on other members, belong to nothing.
    fn find_end(&self) -> io::Result<u64> {
        let lengths: Vec<u64> =
            self.files.iter().map(|file| file.metadata().map(|data| data.len())).collect::<Result<_, _>>()?;
        let end = match &self.layout {
            None => lengths.first().copied().unwrap_or(0),
            Some(layout) => {
                let unit_bytes = layout.unit_bytes() as u64;
                let units =
                    (0..layout.stripes()).flat_map(|stripe| (0..layout.k()).map(move |unit| (stripe, unit)));
                let mut end = 0;
                for (stripe, unit) in units {
                    let there = lengths[layout.position_of(stripe, unit)]
                        .saturating_sub(layout.offset_of(stripe, unit))
                        .min(unit_bytes);
                    end += there;
                    if there < unit_bytes {
                        break;
                    }
                }
                end
            }
        };
        Ok(end - end % TS_PACKET_BYTES as u64)
    }
}

/// The media of an interrupted recording, from its first byte to the last one of a whole TS packet. After a power cut there may be zeros
/// behind the flushed bytes.
#[derive(Debug)]
pub struct RecordedMedia {
    units: UnitFiles,
    place: u64,
    end: u64,
}

impl RecordedMedia {
    /// Opens the media in the workspace of this title, which nothing writes.
    pub(super) fn open(volume: &VolumeInner, homes: &[Dirs], id: TitleId) -> Result<Self, StoreError> {
        let units = UnitFiles::open(volume, homes, id)?;
        let end = units.find_end().map_err(StoreError::io("look at", &volume.dir))?;
        Ok(Self { units, place: 0, end })
    }
}

impl Read for RecordedMedia {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.place == self.end {
            return Ok(0);
        }
        let (position, offset, run) = self.units.locate(self.place, self.end);
        let length = out.len().min(usize::try_from(run).unwrap_or(usize::MAX));
        let count = self.units.file(position).read_at(&mut out[..length], offset)?;
        self.place += count as u64;
        Ok(count)
    }
}
