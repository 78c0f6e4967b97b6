//! Takes over a title of another store, byte for byte and under its id: the same id means the same bytes everywhere. Every packet is compared with
//! its stored sum and CRC before it is written, every file with its BLAKE3; parity is computed on the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millrace_core::ids::TitleId;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::sum16;

use super::data::DataWriter;
use super::open::{open_crcs, open_index, open_meta, open_sums};
use super::publish::{self, INGEST, Naming, UnpublishedTitle};
use super::state::{Volume, VolumeInner};
use super::stripe_writer::StripeWriter;
use super::workspace::Workspace;
use super::writer::{add_stripe_files, copy_to_others, placement};
use crate::dirs::Dirs;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::{self, CRC_FILE, DATA_FILE, FileEntry, INDEX_FILE, Manifest, SUMS_FILE};
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
        let workspace = Workspace::create_as(&homes, id)?;
        // Looked at when no other process can be writing it any more.
        if homes.iter().any(|home| home.title(id).exists()) {
            return Ok(None);
        }
        Ok(Some(Self { volume, homes, generation, workspace, manifest, media: None }))
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
            1 => Some(DataWriter::create(self.workspace.disk(), &dir.join(DATA_FILE))?),
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
