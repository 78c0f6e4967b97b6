//! Files that are the same on every member of a title: taken from any member whose copy is right.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::error::RepairError;
use super::set::TitleSet;
use super::work::Work;
use crate::disk::Disk;
use crate::error::StoreError;
use crate::format::manifest::FileEntry;
use crate::format::{meta, sums};
use crate::limits::REPAIR_READ_BYTES;

/// Blocks of metadata and of range sums; each has its own checksum.
const BLOCK_BYTES: usize = meta::META_BLOCK_BYTES;

/// A right copy that this repair has made, where it was made: name, slot of the member, path.
pub(crate) type Fresh = (String, u16, PathBuf);

/// Creates the file at `to`, durable, from a `fresh` copy or those of the members, if one of them
/// or all together have it. Otherwise returns the reason.
pub(crate) fn make(
    set: &TitleSet,
    entry: &FileEntry,
    fresh: &[Fresh],
    disk: &Disk,
    to: &Path,
    work: &mut Work<'_>,
) -> Result<Result<(), String>, RepairError> {
    let copies = copies(set, entry, fresh);
    for (slot, path) in &copies {
        if copy(*slot, path, entry, disk, to, work)? {
            return Ok(Ok(()));
        }
    }
    if merge(&copies, entry, disk, to, work)? {
        return Ok(Ok(()));
    }
    Ok(Err(format!("no member has {} as it was ingested", entry.name)))
}

/// Where the copies of a file are, those first that are known to be right.
fn copies(set: &TitleSet, entry: &FileEntry, fresh: &[Fresh]) -> Vec<(u16, PathBuf)> {
    let made = fresh.iter().filter(|(name, ..)| *name == entry.name);
    let made = made.map(|(_, slot, path)| (*slot, path.clone()));
    let positions = 0..set.homes.len();
    made.chain(positions.filter_map(|p| Some((set.slot(p), set.dir(p)?.join(&entry.name))))).collect()
}

/// The first copy that is right, for callers that only read it.
pub(crate) fn find(
    set: &TitleSet,
    entry: &FileEntry,
    fresh: &[Fresh],
    work: &mut Work<'_>,
) -> Result<Option<(u16, PathBuf)>, RepairError> {
    for (slot, path) in copies(set, entry, fresh) {
        if work.wrong_with(slot, &path, entry.bytes, &entry.blake3)?.is_none() {
            return Ok(Some((slot, path)));
        }
    }
    Ok(None)
}

/// Copies one file. Returns `false`, and leaves nothing at `to`, if it differs from the ingested
/// file.
fn copy(
    slot: u16,
    from: &Path,
    entry: &FileEntry,
    disk: &Disk,
    to: &Path,
    work: &mut Work<'_>,
) -> Result<bool, RepairError> {
    let owned = from.to_path_buf();
    if work.ask(slot, move || owned.metadata())?.map_or(true, |meta| meta.len() != entry.bytes) {
        return Ok(false);
    }
    let failed = |at, e| StoreError::write("write", to, at, entry.bytes, e);
    let mut file = disk.create_new(to).map_err(|e| StoreError::write("create", to, 0, entry.bytes, e))?;
    let read = work.each_piece(slot, from, |work, piece| {
        work.writes(piece.len() as u64)?;
        file.write_all(piece).map_err(|e| failed(0, e).into())
    })?;
    if read.is_ok_and(|(hash, _)| hash.to_hex().as_str() == entry.blake3) {
        file.sync_all_or_remove().map_err(|e| failed(entry.bytes, e))?;
        return Ok(true);
    }
    drop(file);
    disk.remove_file(to).map_err(StoreError::io("remove", to))?;
    Ok(false)
}

/// Takes the first copy of each block that has its checksum. Returns `false`, and leaves nothing at
/// `to`, if the result differs from the ingested file, or it is not a file of such blocks.
fn merge(
    copies: &[(u16, PathBuf)],
    entry: &FileEntry,
    disk: &Disk,
    to: &Path,
    work: &mut Work<'_>,
) -> Result<bool, RepairError> {
    if copies.len() < 2 || !entry.bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(false);
    }
    let mut files: Vec<(u16, File)> = Vec::new();
    for (slot, path) in copies {
        let path = path.clone();
        files.extend(work.ask(*slot, move || File::open(path))?.ok().map(|file| (*slot, file)));
    }
    let failed = |at, e| StoreError::write("write", to, at, entry.bytes, e);
    let mut out = disk.create_new(to).map_err(|e| StoreError::write("create", to, 0, entry.bytes, e))?;
    let mut hasher = blake3::Hasher::new();
    let mut blocks = Vec::with_capacity(REPAIR_READ_BYTES);
    for number in 0..(entry.bytes / BLOCK_BYTES as u64) as u32 {
        let mut block = [0; BLOCK_BYTES];
        let mut found = false;
        for (slot, file) in &files {
            let read = work.read(*slot, file, &mut block, u64::from(number) * BLOCK_BYTES as u64)?;
            found = read.is_ok() && is_whole(&block, number);
            if found {
                break;
            }
        }
        if !found {
            break;
        }
        hasher.update(&block);
        blocks.extend_from_slice(&block);
        if blocks.len() >= REPAIR_READ_BYTES {
            work.writes(blocks.len() as u64)?;
            out.write_all(&blocks).map_err(|e| failed(0, e))?;
            blocks.clear();
        }
    }
    out.write_all(&blocks).map_err(|e| failed(0, e))?;
    if hasher.finalize().to_hex().as_str() == entry.blake3 {
        out.sync_all_or_remove().map_err(|e| failed(entry.bytes, e))?;
        return Ok(true);
    }
    drop(out);
    disk.remove_file(to).map_err(StoreError::io("remove", to))?;
    Ok(false)
}

/// Returns whether a block has its checksum; the first block is the header.
fn is_whole(block: &[u8; BLOCK_BYTES], number: u32) -> bool {
    match number.checked_sub(1) {
        None => {
            meta::MetaHeader::decode(block).is_ok()
                || meta::CrcHeader::decode(block).is_ok()
                || sums::SumsHeader::decode(block).is_ok()
        }
        Some(number) => {
            meta::open_block(block, number).is_ok() || sums::SumsBlock::open(block, number).is_ok()
        }
    }
}
