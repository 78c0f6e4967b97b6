//! More packet sizes for a title, and range sums and CRCs if it has none: more files over the same data.

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::rendition::RenditionName;
use millrace_core::wire::checksum::{add, sum16};

use super::lock::StoreLock;
use super::manifest_io::{drop_unnamed, find_manifest, lies_on};
use super::media::{MediaReader, read_metas};
use super::members_io::leave_missing_behind;
use super::open;
use super::parity_crcs::ParityCrcs;
use super::state::VolumeInner;
use super::title::TitleFiles;
use super::workspace::Workspace;
use crate::crcs::CrcMaker;
use crate::dirs::{Dirs, copy_new, rename, sync_dir, write_new};
use crate::error::StoreError;
use crate::format::derived::Derived;
use crate::format::manifest::{
    CRC_FILE, FileEntry, MANIFEST_FILE, Manifest, PARITY_CRC_FILE, SUMS_FILE, meta_file,
};
use crate::limits::volume::RESIZE_READ_BYTES;
use crate::members::{MemberState, SlotReport};
use crate::meta::{Finished, MetaWriter};
use crate::sums::{GRAIN_BYTES, Rule, SumsWriter};

const DEFAULT: u64 = DEFAULT_PACKET_BYTES as u64;
/// Name of this action in errors.
const PREPARING: &str = "preparing a title";
const GRAIN: usize = GRAIN_BYTES as usize;

/// A file that was made, with the packet size it is for; `None`: it is for all.
struct PreparedFile {
    size: Option<u16>,
    name: String,
    done: Finished,
}

pub(super) fn prepare(
    volume: &VolumeInner,
    id: TitleId,
    packet_sizes: &[usize],
    tell: &mut dyn FnMut(u64),
) -> Result<Vec<String>, StoreError> {
    let mut sizes = Vec::new();
    for &packet_bytes in packet_sizes {
        WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
        sizes.push(packet_bytes as u16); // a layout's packet size fits 16 bits
    }
    sizes.sort_unstable();
    sizes.dedup();
    let files = open::open_title(&volume.members, id, DEFAULT_PACKET_BYTES, false)?;
    let manifest = find_manifest(&volume.members, id)?.1;
    sizes.retain(|size| !files.info.packet_sizes.contains(size));
    let wants = Wants { sizes, sums: !manifest.has_sums(), crcs: !manifest.has_crcs() };
    if wants.sizes.is_empty() && !wants.sums && !wants.crcs {
        return Ok(Vec::new());
    }
    volume.writable(PREPARING)?;
    if let Some(size) =
        wants.sizes.iter().find(|&&size| files.info.bytes.div_ceil(u64::from(size)) > MAX_TITLE_PACKETS)
    {
        let what = format!("more than {MAX_TITLE_PACKETS} packets of {size} bytes");
        return Err(StoreError::BadTitle { id, what });
    }
    let homes = homes(volume, id, PREPARING)?;
    let workspace = Workspace::create_on(&homes)?;
    let made = make(files, &workspace, &wants, tell)?;
    for (home, path) in homes.iter().zip(workspace.paths()).skip(1) {
        for PreparedFile { name, .. } in &made {
            copy_new(&home.disk, &workspace.path().join(name), &path.join(name))?;
        }
    }
    publish(volume, &homes, &workspace, id, |manifest| Ok(enter(manifest, made)))
}

/// The members that have the title. None of the volume's may be on its way back: it would be filled with the title as it was.
pub(super) fn homes(
    volume: &VolumeInner,
    id: TitleId,
    action: &'static str,
) -> Result<Vec<Dirs>, StoreError> {
    volume.members.refresh();
    let returning = |slot: &SlotReport| slot.absent.is_none() && slot.state == MemberState::Rebuilding;
    if let Some(slot) = volume.members.report().into_iter().find(returning) {
        let why = "is not complete yet".to_owned();
        return Err(StoreError::MemberNeeded { dir: slot.dir, why, action });
    }
    let homes: Vec<Dirs> = volume.usable().into_iter().filter(|dirs| dirs.title(id).is_dir()).collect();
    if homes.is_empty() { Err(StoreError::NoTitle { id }) } else { Ok(homes) }
}

/// Files that the title lacks.
struct Wants {
    sizes: Vec<u16>,
    sums: bool,
    crcs: bool,
}

/// Makes the files in the workspace in one pass over the data, whose BLAKE3 must be the same as at
/// ingest. 16-bit sums do not detect everything, and the files made here vouch for the data from
/// now on.
fn make(
    files: TitleFiles,
    workspace: &Workspace,
    wants: &Wants,
    tell: &mut dyn FnMut(u64),
) -> Result<Vec<PreparedFile>, StoreError> {
    let mut media = MediaReader::new(files)?;
    let bytes = media.files().info.bytes;
    let mut makers = Makers::create(media.files(), workspace, wants)?;
    let mut buffer = vec![0; RESIZE_READ_BYTES];
    let mut known = MetaWindow::new(media.files());
    let mut hasher = blake3::Hasher::new();
    let mut start = 0;
    while start < bytes {
        let len = (bytes - start).min(buffer.len() as u64) as usize;
        let data = &mut buffer[..len];
        media.read_exact(start, data)?;
        known.read(media.files(), start, data)?;
        hasher.update(data);
        makers.take(&known, start, data)?;
        start += len as u64;
        tell(start);
    }
    let files = media.files();
    if hasher.finalize().to_hex().as_str() != files.info.blake3 {
        let what = "does not have the BLAKE3 that the title had when it was added, so nothing was made from it; run \
                    millrace scrub, then prepare the title again";
        return Err(StoreError::Damaged { path: files.data_path.clone(), what: what.to_owned() });
    }
    makers.finish(files.info.id, bytes)
}

/// The files being made.
struct Makers {
    sums: Option<SumsWriter>,
    crcs: Option<CrcMaker>,
    parity_crcs: Option<ParityCrcs>,
    sizes: Vec<Sizer>,
}

impl Makers {
    fn create(files: &TitleFiles, workspace: &Workspace, wants: &Wants) -> Result<Self, StoreError> {
        let (disk, path) = (workspace.disk(), |name: &str| workspace.path().join(name));
        let sums = wants.sums.then(|| SumsWriter::create(disk, &path(SUMS_FILE), GRAIN_BYTES)).transpose()?;
        let crcs = wants.crcs.then(|| CrcMaker::create(disk, &path(CRC_FILE))).transpose()?;
        let parity_crcs = match files.stripes.filter(|stripes| wants.crcs && stripes.m() > 0) {
            Some(stripes) => ParityCrcs::create(disk, &path(PARITY_CRC_FILE), stripes)?,
            None => None,
        };
        let sizer = |&size: &u16| Ok(Sizer::new(size, MetaWriter::create(disk, &path(&meta_file(size)))?));
        let sizes = wants.sizes.iter().map(sizer).collect::<Result<_, StoreError>>()?;
        Ok(Self { sums, crcs, parity_crcs, sizes })
    }

    /// The title's bytes from `start` on.
    fn take(&mut self, known: &MetaWindow, start: u64, data: &[u8]) -> Result<(), StoreError> {
        self.crcs.as_mut().map_or(Ok(()), |crcs| crcs.take(data))?;
        self.parity_crcs.as_mut().map_or(Ok(()), |crcs| crcs.take(data))?;
        for (grain, byte) in data.chunks(GRAIN).zip((start..).step_by(GRAIN)) {
            let sum = sum16(grain);
            self.sums.as_mut().map_or(Ok(()), |sums| sums.push(sum))?;
            let bytes = byte..byte + grain.len() as u64;
            self.sizes.iter_mut().try_for_each(|size| size.take(known, bytes.clone(), sum))?;
        }
        Ok(())
    }

    fn finish(self, id: TitleId, bytes: u64) -> Result<Vec<PreparedFile>, StoreError> {
        let mut made = Vec::new();
        let mut add =
            |size: Option<u16>, name: String, done: Finished| made.push(PreparedFile { size, name, done });
        if let Some(sums) = self.sums {
            add(None, SUMS_FILE.to_owned(), sums.finish(id, bytes)?);
        }
        if let Some(crcs) = self.crcs {
            add(None, CRC_FILE.to_owned(), crcs.finish(id, bytes)?);
        }
        if let Some(crcs) = self.parity_crcs {
            add(None, PARITY_CRC_FILE.to_owned(), crcs.finish(id)?);
        }
        for writer in self.sizes {
            let size = writer.size;
            add(Some(size), meta_file(size), writer.finish(id, bytes)?);
        }
        Ok(made)
    }
}

/// Keeps a derived title that was made on use.
pub(super) fn keep(volume: &VolumeInner, id: TitleId) -> Result<(), StoreError> {
    change(volume, id, "keeping a title", |manifest| {
        manifest.title.derived = manifest.title.derived.map(|derived| Derived { on_use: false, ..derived });
        Ok(Vec::new())
    })
}

/// Gives a title its name among its future renditions. Creates no files; only the manifest changes.
pub(super) fn name_rendition(
    volume: &VolumeInner,
    id: TitleId,
    name: RenditionName,
) -> Result<(), StoreError> {
    change(volume, id, "naming a rendition", |manifest| match manifest.title.rendition {
        Some(is) if is != name => {
            Err(StoreError::BadTitle { id, what: format!("is called {is} among its renditions") })
        }
        _ => {
            manifest.title.rendition = Some(name);
            Ok(Vec::new())
        }
    })
}

/// Changes only a title's manifest.
pub(super) fn change(
    volume: &VolumeInner,
    id: TitleId,
    action: &'static str,
    change: impl FnOnce(&mut Manifest) -> Result<Vec<String>, StoreError>,
) -> Result<(), StoreError> {
    volume.writable(action)?;
    let homes = homes(volume, id, action)?;
    let workspace = Workspace::create_on(&homes)?;
    publish(volume, &homes, &workspace, id, change).map(drop)
}

/// Puts the files that were made into the manifest, but for those that it has by now; returns their names.
fn enter(manifest: &mut Manifest, made: Vec<PreparedFile>) -> Vec<String> {
    let new: Vec<PreparedFile> =
        made.into_iter().filter(|made| manifest.file(&made.name).is_none()).collect();
    for made in &new {
        let blake3 = made.done.blake3.to_hex().to_string();
        manifest.files.push(FileEntry { name: made.name.clone(), bytes: made.done.bytes, blake3 });
        manifest.title.packet_sizes.extend(made.size);
    }
    manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
    manifest.title.packet_sizes.sort_unstable();
    new.into_iter().map(|made| made.name).collect()
}

/// The manifest is replaced after the new files are in place, on all members. A crash between the renames leaves files that
/// no manifest names: fsck shows them, and the next try replaces them. Once the new manifest is in place on one member, the
/// next open puts it in place on the others. `change` returns the names of the new files.
pub(super) fn publish(
    volume: &VolumeInner,
    homes: &[Dirs],
    workspace: &Workspace,
    id: TitleId,
    change: impl FnOnce(&mut Manifest) -> Result<Vec<String>, StoreError>,
) -> Result<Vec<String>, StoreError> {
    let (lock, usable) = StoreLock::take_all(&volume.members, &|slot| volume.dirs(slot))?;
    // Read again: another process may have removed the title or added a size meanwhile.
    let (_, before) = find_manifest(&volume.members, id)?;
    let has_title = usable.iter().filter(|dirs| dirs.title(id).is_dir()).map(|dirs| &dirs.root);
    if !has_title.eq(homes.iter().map(|home| &home.root)) {
        let what = "the members of the volume have changed meanwhile; do it again".to_owned();
        return Err(StoreError::BadTitle { id, what });
    }
    let mut manifest = before.clone();
    let new = change(&mut manifest)?;
    // New files may stand in for damaged ones of the same content.
    if manifest == before && new.is_empty() {
        return Ok(Vec::new());
    }
    manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
    leave_missing_behind(&volume.members, &volume.disk, &lock, lies_on(&volume.members, id))?;
    replace(homes, workspace, id, &new, &manifest)?;
    homes.iter().try_for_each(|home| drop_unnamed(&home.disk, &home.title(id), &manifest))?;
    // The catalogue sees the manifest's new inode at its next refresh, should this fail.
    let _ = volume.with_catalogue(move |catalogue| catalogue.put(&manifest));
    Ok(new)
}

fn replace(
    homes: &[Dirs],
    workspace: &Workspace,
    id: TitleId,
    new: &[String],
    manifest: &Manifest,
) -> Result<(), StoreError> {
    let bytes = manifest.encode();
    for (home, path) in homes.iter().zip(workspace.paths()) {
        write_new(&home.disk, &path.join(MANIFEST_FILE), &bytes)?;
        if homes.len() > 1 {
            // The next open looks for it there.
            sync_dir(&home.disk, path)?;
            sync_dir(&home.disk, &home.tmp)?;
        }
    }
    for (home, path) in homes.iter().zip(workspace.paths()) {
        for name in new {
            rename(&home.disk, &path.join(name), &home.title(id).join(name))?;
        }
        sync_dir(&home.disk, &home.title(id))?;
    }
    for (home, path) in homes.iter().zip(workspace.paths()) {
        rename(&home.disk, &path.join(MANIFEST_FILE), &home.manifest(id))?;
    }
    homes.iter().try_for_each(|home| sync_dir(&home.disk, &home.title(id)))
}

/// Gathers the grains of one packet size's packets.
struct Sizer {
    size: u16,
    writer: MetaWriter,
    /// First byte of the incomplete packet, the number of bytes it has, and their sum.
    start: u64,
    filled: u64,
    sum: u16,
    /// Its record but for the sum: made when its first byte comes by, and its flags grow with it.
    meta: PacketMeta,
}

impl Sizer {
    fn new(size: u16, writer: MetaWriter) -> Self {
        Self { size, writer, start: 0, filled: 0, sum: 0, meta: PacketMeta::default() }
    }

    /// The next grain, of these bytes of the title.
    fn take(&mut self, known: &MetaWindow, bytes: std::ops::Range<u64>, sum: u16) -> Result<(), StoreError> {
        if self.filled == 0 {
            self.start = bytes.start;
            let time = known.rule.time(bytes.start, |packet| known.get(packet))?;
            self.meta = PacketMeta::new(0, 0, time);
        }
        let flags = known.rule.flags(&bytes, |packet| known.get(packet))?;
        self.meta = PacketMeta::new(0, self.meta.flags() | flags, self.meta.time());
        self.sum = add(self.sum, sum);
        self.filled += bytes.end - bytes.start;
        if self.filled >= u64::from(self.size) { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), StoreError> {
        let meta = PacketMeta::new(self.sum, self.meta.flags(), self.meta.time());
        (self.filled, self.sum) = (0, 0);
        self.writer.push(meta)
    }

    fn finish(mut self, id: TitleId, data_bytes: u64) -> Result<Finished, StoreError> {
        if self.filled > 0 {
            self.close()?;
        }
        self.writer.finish(id, self.size, data_bytes)
    }
}

/// The default-size metadata of a stretch of data, from a default packet's start on.
struct MetaWindow {
    id: TitleId,
    rule: Rule,
    first: u32,
    /// Those of the stretch, and the next one if there is one.
    metas: Vec<PacketMeta>,
}

impl MetaWindow {
    fn new(files: &TitleFiles) -> Self {
        let rule = Rule { data_bytes: files.info.bytes, duration: files.info.duration };
        Self { id: files.info.id, rule, first: 0, metas: Vec::new() }
    }

    /// Reads it and holds the data against the stored sums: damaged data must not be given new, matching sums.
    fn read(&mut self, files: &TitleFiles, start: u64, data: &[u8]) -> Result<(), StoreError> {
        let packets = self.rule.packets(&(start..start + data.len() as u64));
        self.first = packets.start;
        self.metas.resize((packets.end - packets.start) as usize, PacketMeta::default());
        read_metas(files, self.first, &mut self.metas)?;
        for (i, (packet, meta)) in data.chunks(DEFAULT_PACKET_BYTES).zip(&self.metas).enumerate() {
            if sum16(packet) != meta.sum() {
                let what = format!("packet {} does not match its stored sum", start / DEFAULT + i as u64);
                return Err(StoreError::Damaged { path: files.data_path.clone(), what });
            }
        }
        Ok(())
    }

    fn get(&self, packet: u32) -> Result<PacketMeta, StoreError> {
        let record = packet.checked_sub(self.first).and_then(|place| self.metas.get(place as usize));
        record.copied().ok_or_else(|| StoreError::BadTitle {
            id: self.id,
            what: format!("packet {packet} is not among those that were read"),
        })
    }
}
