//! Takes over a title of another store, byte for byte and under its id: the same id means the same bytes everywhere. Every packet is compared with
//! its stored sum and CRC before it is written, every file with its BLAKE3; parity is computed on the way.
//!
//! An import that is [kept](TitleImport::keep) leaves its files when it is dropped or its program dies: `tmp/<id>`, with a note
//! `tmp/<id>.import` on each member. The next import of the title verifies the media in it as if they came from the other store, and writes
//! them over themselves; the rest comes from there. A week later the next open of the store removes them.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::sum16;

use super::data::DataWriter;
use super::lock::StoreLock;
use super::open::{open_crcs, open_index, open_meta, open_sums};
use super::publish::{self, INGEST, Naming, UnpublishedTitle};
use super::recording::RecordedMedia;
use super::recover::{TmpEntry, look_at_tmp};
use super::state::{Volume, VolumeInner};
use super::stripe_writer::StripeWriter;
use super::workspace::Workspace;
use super::writer::{add_stripe_files, copy_to_others, placement};
use crate::dirs::{Dirs, IMPORT_EXTENSION, LOCK_FILE, hash, id_of_name, sync_dir, write_new};
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{
    self, CRC_FILE, DATA_FILE, DATA_UNITS_FILE, FileEntry, INDEX_FILE, Manifest, SUMS_FILE,
};
use crate::format::title_info::TitleInfo;
use crate::meta::{CrcFile, MetaFile, PacketCrc};

const PACKET: usize = DEFAULT_PACKET_BYTES;
const DEFAULT_SIZE: u16 = DEFAULT_PACKET_BYTES as u16;

/// A title being taken over: first its files beside the media, then the media. Dropped before it is published, nothing is left of it.
#[derive(Debug)]
pub struct TitleImport {
    volume: Arc<VolumeInner>,
    homes: Vec<Dirs>,
    generation: u64,
    workspace: Workspace,
    /// As a plain file on one member.
    manifest: Manifest,
    media: Option<MediaImport>,
    /// Media that an interrupted import has left, until the first that are not there or are wrong.
    left: Option<RecordedMedia>,
}

#[derive(Debug)]
struct MediaImport {
    /// The title as one file, if there is only one member.
    data: Option<DataWriter>,
    stripes: Option<StripeWriter>,
    meta: MetaFile,
    crcs: CrcFile,
    /// Default-size packets taken until now.
    packets: u32,
}

/// Result of offering media to an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportStep {
    /// Everything was right, and is written.
    Taken,
    /// This packet is not the title's: nothing was taken.
    Wrong {
        /// Its number.
        packet: u32,
    },
}

/// A file of a title on its way into a store.
#[derive(Debug)]
pub struct FileImport {
    id: TitleId,
    entry: FileEntry,
    file: DataWriter,
    disk: Disk,
    path: PathBuf,
}

/// A title that is complete and durable, but not visible.
#[derive(Debug)]
pub struct ImportedTitle(UnpublishedTitle);

impl TitleImport {
    /// Begins with the manifest that [`TitleExport`](super::TitleExport) gave. `None`: the volume has the title.
    ///
    /// # Errors
    /// If the volume cannot take titles, or another process is taking this one over.
    pub fn begin(volume: &Volume, manifest: Manifest) -> Result<Option<Self>, StoreError> {
        let id = manifest.title.id;
        let bad = |what: String| StoreError::BadTitle { id, what };
        manifest.validate().map_err(|e| bad(e.to_string()))?;
        if !manifest.placement.geometry().is_single() || !manifest.has_crcs() || !manifest.has_sums() {
            return Err(bad("its manifest is not that of a published title".to_owned()));
        }
        let volume = Arc::clone(&volume.inner);
        let homes = volume.all_members(INGEST)?;
        let generation = volume.members.generation();
        let is_there = || homes.iter().any(|home| home.title(id).exists());
        if is_there() {
            return Ok(None);
        }
        let workspace = Workspace::adopt_or_create_as(&homes, id, IMPORT_EXTENSION)?;
        // Looked at when no other process can be writing it any more.
        if is_there() {
            return Ok(None);
        }
        let mut manifest = manifest;
        manifest.title.origin.cached = None;
        let mut left = None;
        if workspace.is_adopted() {
            keep_what_is_right(&workspace, &manifest)?;
            // Where a member has no part, there is nothing to go on with.
            left = RecordedMedia::open(&volume, &homes, id).ok();
        }
        Ok(Some(Self { volume, homes, generation, workspace, manifest, media: None, left }))
    }

    /// Marks the title as a copy for viewers, which may be removed again, of the title with this manifest. It replaces no other title.
    #[must_use]
    pub fn marked_as_copy(mut self, manifest_blake3: &str) -> Self {
        let origin = &mut self.manifest.title.origin;
        (origin.cached, origin.replaces) = (Some(manifest_blake3.to_owned()), None);
        self
    }

    /// The files written until now stay when this is dropped, and when the program dies: the next import of the title goes on with it.
    ///
    /// # Errors
    /// If a disk refuses.
    pub fn keep(&mut self) -> Result<(), StoreError> {
        for (home, path) in self.homes.iter().zip(self.workspace.paths()) {
            sync_dir(&home.disk, path)?;
            let note = path.with_extension(IMPORT_EXTENSION);
            if !note.exists() {
                write_new(&home.disk, &note, b"")?;
            }
            sync_dir(&home.disk, &home.tmp)?;
        }
        self.workspace.keep(IMPORT_EXTENSION);
        Ok(())
    }

    /// Whether an interrupted import has left this file, whole.
    pub fn has_file(&self, name: &str) -> bool {
        name != DATA_FILE && self.workspace.path().join(name).exists()
    }

    /// Takes media that an interrupted import has left: about `most` bytes, if they are right. Returns how many; 0: the rest must come from
    /// elsewhere. To be called before the first [`write_media`](Self::write_media).
    ///
    /// # Errors
    /// As there.
    pub fn take_left(&mut self, most: usize) -> Result<usize, StoreError> {
        let Some(left) = &mut self.left else { return Ok(0) };
        let taken = self.media.as_ref().map_or(0, |media| u64::from(media.packets) * PACKET as u64);
        let rest = self.manifest.title.bytes.saturating_sub(taken);
        let whole = most.next_multiple_of(PACKET);
        let mut bytes = vec![0; usize::try_from(rest).map_or(whole, |rest| rest.min(whole))];
        let mut filled = 0;
        while filled < bytes.len() {
            match left.read(&mut bytes[filled..]) {
                Ok(count) if count > 0 => filled += count,
                _ => break,
            }
        }
        // Behind a part of a packet the rest is requested from its beginning.
        let is_all = filled == bytes.len();
        bytes.truncate(if is_all { filled } else { filled - filled % PACKET });
        if bytes.is_empty() || self.write_media(&bytes)? != ImportStep::Taken {
            self.left = None;
            return Ok(0);
        }
        if !is_all {
            self.left = None;
        }
        Ok(bytes.len())
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Begins a file that is listed in the manifest, other than the media.
    ///
    /// # Errors
    /// If the manifest lists no such file, or it was begun already.
    pub fn begin_file(&self, name: &str) -> Result<FileImport, StoreError> {
        let id = self.manifest.title.id;
        let entry = self.manifest.file(name).filter(|entry| entry.name != DATA_FILE).cloned();
        let entry =
            entry.ok_or_else(|| StoreError::BadTitle { id, what: format!("it has no file {name:.100}") })?;
        let (disk, path) = (self.workspace.disk().clone(), self.workspace.path().join(&entry.name));
        let file = DataWriter::create(&disk, &path)?;
        Ok(FileImport { id, entry, file, disk, path })
    }

    /// Offers the next media: whole packets of the default size, except at the end. All files beside the media must be there.
    ///
    /// # Errors
    /// If those files contradict the manifest, or a disk refuses.
    pub fn write_media(&mut self, media: &[u8]) -> Result<ImportStep, StoreError> {
        if self.media.is_none() {
            self.media = Some(self.begin_media()?);
        }
        self.media.as_mut().map_or(Ok(ImportStep::Taken), |writer| writer.write(media))
    }

    fn begin_media(&self) -> Result<MediaImport, StoreError> {
        let (dir, info) = (self.workspace.path(), &self.manifest.title);
        open_index(&dir.join(INDEX_FILE), info)?;
        open_sums(&dir.join(SUMS_FILE), info)?;
        for &size in &info.packet_sizes {
            open_meta(&dir.join(manifest::meta_file(size)), info, size)?;
        }
        let meta = open_meta(&dir.join(manifest::meta_file(DEFAULT_SIZE)), info, DEFAULT_SIZE)?;
        let crcs = open_crcs(&dir.join(CRC_FILE), info, info.bytes)?;
        let data = match self.homes.len() {
            1 => Some(DataWriter::create_or_overwrite(self.workspace.disk(), &dir.join(DATA_FILE))?),
            _ => None,
        };
        let paths: Vec<&Path> = self.workspace.paths().collect();
        let stripes = StripeWriter::create(&self.volume.members.geometry(), &self.homes, &paths)?;
        Ok(MediaImport { data, stripes, meta, crcs, packets: 0 })
    }

    /// Completes the title and makes it durable, but does not make it visible.
    ///
    /// # Errors
    /// If the media are not those of the manifest, or a disk refuses.
    pub fn complete(mut self) -> Result<ImportedTitle, StoreError> {
        let id = self.manifest.title.id;
        let bad = |what: &str| StoreError::BadTitle { id, what: what.to_owned() };
        let MediaImport { data, stripes, .. } = self.media.take().ok_or_else(|| bad("it has no media"))?;
        let data = data.map(DataWriter::finish).transpose()?;
        let stripes = stripes.map(|stripes| stripes.finish(id)).transpose()?;
        let media = data.or(stripes.as_ref().and_then(|stripes| stripes.media));
        let Manifest { title, files, .. } = self.manifest;
        let is_same = |done: &crate::meta::Finished| {
            (done.bytes, &*done.blake3.to_hex()) == (title.bytes, &*title.blake3)
        };
        if !media.as_ref().is_some_and(is_same) {
            return Err(bad("its media do not have the length and BLAKE3 of its manifest"));
        }
        let (is_plain, mut same) = (data.is_some(), files);
        same.retain(|file| is_plain || file.name != DATA_FILE);
        let own = stripes.map_or_else(Vec::new, |stripes| add_stripe_files(stripes, is_plain, &mut same));
        same.sort_by(|a, b| a.name.cmp(&b.name));
        let beside: Vec<FileEntry> = same.iter().filter(|file| file.name != DATA_FILE).cloned().collect();
        copy_to_others(&self.workspace, &self.homes, &beside)?;
        let placement = placement(&self.volume, own, title.bytes)?;
        // The name and the display name may be taken here; the title replaces the one that it replaced where it was made.
        let replaces = title.origin.replaces;
        let replaces = replaces.filter(|&old| self.homes.iter().any(|home| home.title(old).exists()));
        let naming = Naming { title: title.title.clone(), replaces, ..Naming::default() };
        let manifest = Manifest { title, placement, files: same };
        let Self { volume, homes, generation, workspace, .. } = self;
        Ok(ImportedTitle(UnpublishedTitle { volume, homes, generation, workspace, manifest, naming }))
    }
}

/// Removes everything from the directories of an interrupted import but its media and the files beside them that are right.
fn keep_what_is_right(workspace: &Workspace, manifest: &Manifest) -> Result<(), StoreError> {
    for (number, dir) in workspace.paths().enumerate() {
        for entry in std::fs::read_dir(dir).map_err(StoreError::io("list", dir))? {
            let entry = entry.map_err(StoreError::io("list", dir))?;
            let (name, path) = (entry.file_name(), entry.path());
            let is_media =
                [LOCK_FILE, DATA_FILE, DATA_UNITS_FILE].iter().any(|kept| name == OsStr::new(kept));
            let listed = name.to_str().and_then(|name| manifest.file(name)).filter(|_| number == 0);
            if !is_media && !listed.is_some_and(|entry| is_right(&path, entry)) {
                workspace.disk().remove_file(&path).map_err(StoreError::io("remove", &path))?;
            }
        }
    }
    Ok(())
}

/// Whether a file is the one that the manifest promises. Its program may have died before it was durable.
fn is_right(path: &Path, entry: &FileEntry) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    let is_same = |hasher: blake3::Hasher| {
        hasher.count() == entry.bytes && hasher.finalize().to_hex().as_str() == entry.blake3
    };
    hash(&file).is_ok_and(is_same) && file.sync_all().is_ok()
}

impl Volume {
    /// Titles of other stores whose import by a dead process has left a part.
    ///
    /// # Errors
    /// If a member cannot be read.
    pub fn interrupted_imports(&self) -> Result<Vec<TitleId>, StoreError> {
        let mut found = Vec::new();
        for dirs in self.inner.usable() {
            let _lock = StoreLock::take(&dirs)?;
            for entry in look_at_tmp(&dirs)? {
                let TmpEntry::Import(path) = entry else { continue };
                found.extend(path.file_name().and_then(id_of_name).filter(|id| !found.contains(id)));
            }
        }
        Ok(found)
    }

    /// Bytes on all members of the part that an interrupted import has left.
    pub fn interrupted_import_bytes(&self, id: TitleId) -> u64 {
        let of = |dirs: Dirs| {
            let files = std::fs::read_dir(dirs.tmp.join(id.to_string())).into_iter().flatten().flatten();
            files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum::<u64>()
        };
        self.inner.usable().into_iter().map(of).sum()
    }

    /// Removes the part that an interrupted import has left. Nothing happens if a process works on it.
    ///
    /// # Errors
    /// If a member is missing, or refuses.
    pub fn remove_interrupted_import(&self, id: TitleId) -> Result<(), StoreError> {
        let homes = self.inner.all_members(INGEST)?;
        let has_note = |home: &Dirs| home.tmp.join(id.to_string()).with_extension(IMPORT_EXTENSION).exists();
        if !homes.iter().any(has_note) || homes.iter().any(|home| home.title(id).exists()) {
            return Ok(());
        }
        match Workspace::adopt_or_create_as(&homes, id, IMPORT_EXTENSION) {
            Ok(_) | Err(StoreError::TitleInProgress { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl ImportedTitle {
    /// Its identity.
    pub fn id(&self) -> TitleId {
        self.0.manifest.title.id
    }

    /// Makes titles visible in one step: one title, or one and then those that are derived from it. Names that are taken get a number.
    ///
    /// # Errors
    /// As [`TitleWriter::commit_ladder`](super::TitleWriter::commit_ladder).
    pub fn publish(titles: Vec<Self>) -> Result<Vec<TitleInfo>, StoreError> {
        publish::publish(titles.into_iter().map(|title| title.0).collect())
    }
}

impl FileImport {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// If there are more than the manifest promises, or the disk refuses.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.file.bytes() + bytes.len() as u64 > self.entry.bytes {
            let what = format!("its {} is longer than its manifest promises", self.entry.name);
            return Err(StoreError::BadTitle { id: self.id, what });
        }
        self.file.append(bytes)
    }

    /// Completes the file and makes it durable. Returns whether it is the one that the manifest promises; if not, it is removed, and may be begun again.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(self) -> Result<bool, StoreError> {
        let done = self.file.finish()?;
        let is_same = (done.bytes, &*done.blake3.to_hex()) == (self.entry.bytes, &*self.entry.blake3);
        if !is_same {
            self.disk.remove_file(&self.path).map_err(StoreError::io("remove", &self.path))?;
        }
        Ok(is_same)
    }
}

impl MediaImport {
    fn write(&mut self, media: &[u8]) -> Result<ImportStep, StoreError> {
        let count = media.len().div_ceil(PACKET);
        let left = (self.meta.packets() - self.packets) as usize;
        if count > left {
            return Ok(ImportStep::Wrong { packet: self.meta.packets() });
        }
        let mut metas = vec![PacketMeta::default(); count];
        self.meta.read(self.packets, &mut metas)?;
        let mut crcs = vec![PacketCrc::default(); count];
        self.crcs.read(self.packets, &mut crcs)?;
        let records = metas.iter().zip(&crcs);
        let is_right = |(packet, (meta, crc)): (&[u8], (&PacketMeta, &PacketCrc))| {
            sum16(packet) == meta.sum() && PacketCrc::of(packet) == *crc
        };
        if let Some(wrong) = media.chunks(PACKET).zip(records).position(|pair| !is_right(pair)) {
            return Ok(ImportStep::Wrong { packet: self.packets + wrong as u32 });
        }
        if let Some(data) = &mut self.data {
            data.append(media)?;
        }
        if let Some(stripes) = &mut self.stripes {
            for (packet, meta) in (u64::from(self.packets)..).zip(&metas) {
                stripes.push_time(packet, meta.time());
            }
            stripes.append(media)?;
            stripes.settle()?;
        }
        self.packets += count as u32;
        Ok(ImportStep::Taken)
    }
}
