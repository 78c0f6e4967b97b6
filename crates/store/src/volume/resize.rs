//! Another packet size for a title: another meta-data file over the same data.

use std::os::unix::fs::FileExt;

use millrace_core::ids::TitleId;
use millrace_core::limits::{DEFAULT_PACKET_BYTES, MAX_TITLE_PACKETS};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

use super::dirs::{rename, sync_dir, write_new};
use super::lock::StoreLock;
use super::manifest_io::read_manifest;
use super::workspace::Workspace;
use super::{Inner, TitleFiles, open};
use crate::error::StoreError;
use crate::format::manifest::{FileEntry, MANIFEST_FILE, meta_file};
use crate::index::ClockPiece;
use crate::meta::{Finished, MetaWriter};

const DEFAULT: u64 = DEFAULT_PACKET_BYTES as u64;
/// Data read at a time: about this much, a whole number of packets of both sizes.
const READ_BYTES: usize = 1 << 20;

pub(super) fn add_packet_size(volume: &Inner, id: TitleId, packet_bytes: usize) -> Result<(), StoreError> {
    WireLayout::new(packet_bytes).ok_or(StoreError::BadPacketSize { packet_bytes })?;
    let size = packet_bytes as u16; // a layout's packet size fits 16 bits
    let files = open::open_title(&volume.dirs, id, DEFAULT_PACKET_BYTES)?;
    if files.info.packet_sizes.contains(&size) {
        return Ok(());
    }
    if files.info.bytes.div_ceil(packet_bytes as u64) > MAX_TITLE_PACKETS {
        let what = format!("more than {MAX_TITLE_PACKETS} packets of {packet_bytes} bytes");
        return Err(StoreError::BadTitle { id, what });
    }
    let workspace = Workspace::create(&volume.dirs)?;
    let mut writer = MetaWriter::create(workspace.path().join(meta_file(size)))?;
    fill(&files, packet_bytes, &mut writer)?;
    let done = writer.finish(id, size, files.info.bytes)?;
    publish(volume, &workspace, id, size, done)
}

/// The manifest is replaced after the new file is in place. A crash between the two renames leaves a file that no
/// manifest names: fsck shows it, and the next try replaces it.
fn publish(
    volume: &Inner,
    workspace: &Workspace,
    id: TitleId,
    size: u16,
    done: Finished,
) -> Result<(), StoreError> {
    let dirs = &volume.dirs;
    let _lock = StoreLock::take(dirs)?;
    // Read again: another process may have removed the title or added a size meanwhile.
    let mut manifest = read_manifest(dirs, id)?;
    if manifest.title.packet_sizes.contains(&size) {
        return Ok(());
    }
    let name = meta_file(size);
    let blake3 = done.blake3.to_hex().to_string();
    manifest.files.push(FileEntry { name: name.clone(), bytes: done.bytes, blake3 });
    manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
    manifest.title.packet_sizes.push(size);
    manifest.title.packet_sizes.sort_unstable();
    manifest.validate().map_err(|e| StoreError::BadTitle { id, what: e.to_string() })?;
    let new_manifest = workspace.path().join(MANIFEST_FILE);
    write_new(&new_manifest, &manifest.encode())?;
    let title = dirs.title(id);
    rename(&workspace.path().join(&name), &title.join(&name))?;
    sync_dir(&title)?;
    rename(&new_manifest, &dirs.manifest(id))?;
    sync_dir(&title)?;
    // The catalogue sees the manifest's new inode at its next refresh, should this fail.
    let _ = volume.catalogue().put(&manifest.title);
    Ok(())
}

/// Writes the records of every packet of the new size.
fn fill(files: &TitleFiles, packet_bytes: usize, writer: &mut MetaWriter) -> Result<(), StoreError> {
    // Both sizes are multiples of 188, so this step is one of both and well below READ_BYTES.
    let step = DEFAULT_PACKET_BYTES * packet_bytes / 188;
    let mut buffer = vec![0; (READ_BYTES / step).max(1) * step];
    let mut start = 0;
    while start < files.info.bytes {
        let len = (files.info.bytes - start).min(buffer.len() as u64) as usize;
        let data = &mut buffer[..len];
        files.data.read_exact_at(data, start).map_err(StoreError::io("read", &files.data_path))?;
        let known = Known::read(files, start, data)?;
        for (i, packet) in data.chunks(packet_bytes).enumerate() {
            let byte = start + (i * packet_bytes) as u64;
            let flags = known.flags(byte, byte + packet.len() as u64);
            writer.push(PacketMeta::new(sum16(packet), flags, known.time(byte)))?;
        }
        start += len as u64;
    }
    Ok(())
}

/// The default-size meta-data of a stretch of data, from a default packet's start on.
struct Known {
    first: u64,
    metas: Vec<PacketMeta>,
    /// Where the record behind the last one would be: the next packet, or the end of the title.
    end: ClockPiece,
}

impl Known {
    /// Reads it and holds the data against the stored sums: damaged data must not be given new, matching sums.
    fn read(files: &TitleFiles, start: u64, data: &[u8]) -> Result<Self, StoreError> {
        let first = start / DEFAULT;
        let count = data.len().div_ceil(DEFAULT_PACKET_BYTES);
        let more = u64::from(files.packets()) > first + count as u64;
        let mut metas = vec![PacketMeta::default(); count + usize::from(more)];
        files.meta.read(first as u32, &mut metas)?;
        let end = match more {
            true => ClockPiece { byte: (first + count as u64) * DEFAULT, time: metas[count].time() },
            false => ClockPiece { byte: files.info.bytes, time: files.info.duration },
        };
        metas.truncate(count);
        for (i, (packet, meta)) in data.chunks(DEFAULT_PACKET_BYTES).zip(&metas).enumerate() {
            if sum16(packet) != meta.sum() {
                let what = format!("packet {} does not match its stored sum", first + i as u64);
                return Err(StoreError::Damaged { path: files.data_path.clone(), what });
            }
        }
        Ok(Self { first, metas, end })
    }

    /// Default-size packet that holds `byte`, as a place in `metas`.
    fn place(&self, byte: u64) -> usize {
        (byte / DEFAULT - self.first) as usize
    }

    /// All flags of the default-size packets that `from..to` touches.
    fn flags(&self, from: u64, to: u64) -> u8 {
        let metas = &self.metas[self.place(from)..=self.place(to - 1)];
        metas.iter().fold(0, |flags, meta| flags | meta.flags())
    }

    /// On the line between the two default-size packets around `byte`.
    fn time(&self, byte: u64) -> MediaTicks {
        let place = self.place(byte);
        let here = ClockPiece { byte: (self.first + place as u64) * DEFAULT, time: self.metas[place].time() };
        let next = match self.metas.get(place + 1) {
            Some(meta) => ClockPiece { byte: here.byte + DEFAULT, time: meta.time() },
            None => self.end,
        };
        here.time_of(&next, byte)
    }
}
