//! Files that are the same on every member of a title: taken from any member whose copy is right.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::error::RepairError;
use super::set::TitleSet;
use super::work::Work;
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::format::manifest::FileEntry;
use crate::format::{meta, sums};
use crate::limits::REPAIR_READ_BYTES;

/// Blocks of metadata and of range sums; each has its own checksum.
const BLOCK_BYTES: usize = meta::META_BLOCK_BYTES;

/// A right copy that this repair has made, where it was made: name, slot of the member, path.
pub(crate) type Fresh = (String, u16, PathBuf);

/// Whether a file was made as it was ingested; if not, why.
pub(crate) type Made = Result<(), String>;

/// A file that a repair makes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) entry: &'a FileEntry,
    pub(crate) disk: &'a Disk,
    pub(crate) path: &'a Path,
}

impl Target<'_> {
    fn create(self) -> Result<DiskFile, StoreError> {
        let created = self.disk.create_new(self.path);
        created.map_err(|e| StoreError::write("create", self.path, 0, self.entry.bytes, e))
    }

    fn failed(self, at: u64) -> impl Fn(io::Error) -> StoreError {
        move |e| StoreError::write("write", self.path, at, self.entry.bytes, e)
    }

    /// Makes the file durable if it is right, and removes it otherwise.
    fn keep_if(self, is_right: bool, file: DiskFile) -> Result<bool, RepairError> {
        if is_right {
            file.sync_all_or_remove().map_err(self.failed(self.entry.bytes))?;
        } else {
            drop(file);
            self.disk.remove_file(self.path).map_err(StoreError::io("remove", self.path))?;
        }
        Ok(is_right)
    }
}

/// Makes the file, durable, from a `fresh` copy or those of the members, if one of them or all
/// together have it.
pub(crate) fn make(
    set: &TitleSet,
    target: Target<'_>,
    fresh: &[Fresh],
    work: &mut Work<'_>,
) -> Result<Made, RepairError> {
    let copies = copies(set, target.entry, fresh);
    for (slot, path) in &copies {
        if copy(*slot, path, target, work)? {
            return Ok(Ok(()));
        }
    }
    if merge(&copies, target, work)? {
        return Ok(Ok(()));
    }
    Ok(Err(format!("no member has {} as it was ingested", target.entry.name)))
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

/// Copies one file. Returns `false`, and leaves nothing there, if it differs from the ingested file.
fn copy(slot: u16, from: &Path, target: Target<'_>, work: &mut Work<'_>) -> Result<bool, RepairError> {
    let (owned, entry) = (from.to_path_buf(), target.entry);
    if work.ask(slot, move || owned.metadata())?.map_or(true, |meta| meta.len() != entry.bytes) {
        return Ok(false);
    }
    let mut file = target.create()?;
    let read = work.each_piece(slot, from, |work, piece| {
        work.writes(piece.len() as u64)?;
        file.write_all(piece).map_err(|e| target.failed(0)(e).into())
    })?;
    target.keep_if(read.is_ok_and(|(hash, _)| hash.to_hex().as_str() == entry.blake3), file)
}

/// Takes the first copy of each block that has its checksum. Returns `false`, and leaves nothing
/// there, if the result differs from the ingested file, or it is not a file of such blocks.
fn merge(copies: &[(u16, PathBuf)], target: Target<'_>, work: &mut Work<'_>) -> Result<bool, RepairError> {
    let entry = target.entry;
    if copies.len() < 2 || !entry.bytes.is_multiple_of(BLOCK_BYTES as u64) {
        return Ok(false);
    }
    let mut files: Vec<(u16, File)> = Vec::new();
    for (slot, path) in copies {
        let path = path.clone();
        files.extend(work.ask(*slot, move || File::open(path))?.ok().map(|file| (*slot, file)));
    }
    let mut out = target.create()?;
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
            out.write_all(&blocks).map_err(target.failed(0))?;
            blocks.clear();
        }
    }
    out.write_all(&blocks).map_err(target.failed(0))?;
    target.keep_if(hasher.finalize().to_hex().as_str() == entry.blake3, out)
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
