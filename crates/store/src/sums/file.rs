//! A range sums file on disk: read two blocks at a time, written grain by grain.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::wire::checksum::add;

use super::ranges::difference;
use crate::dirs::{finish_blocks, write_out};
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::format::sums::{SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsBlock, SumsError, SumsHeader, seal_block};
use crate::limits::META_WINDOW_BYTES;
use crate::meta::{Finished, open_blocks};

/// A range sums file, open for reading.
#[derive(Debug)]
pub struct SumsFile {
    file: File,
    path: PathBuf,
    header: SumsHeader,
}

impl SumsFile {
    /// Opens a range sums file: its header and its length are checked, its blocks when they are read.
    ///
    /// # Errors
    /// If it cannot be read, or is not one.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (file, header) = open_blocks(path, SumsHeader::decode, SumsHeader::file_bytes)?;
        Ok(Self { file, path: path.to_path_buf(), header })
    }

    /// Returns the header of the file.
    pub fn header(&self) -> &SumsHeader {
        &self.header
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, for readers that do their own I/O.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Sum of grains `from..to`, however far apart: two blocks are read.
    ///
    /// # Errors
    /// If a block cannot be read or is damaged, or the file has no such grains.
    pub fn between(&self, from: u64, to: u64) -> Result<u16, StoreError> {
        if from > to || to > self.header.grains() {
            return Err(self.error(SumsError::OutOfRange { from, to }));
        }
        if from == to {
            return Ok(0);
        }
        let before = self.before(from, from / SUMS_PER_BLOCK as u64)?;
        let through = self.before(to, (to - 1) / SUMS_PER_BLOCK as u64)?;
        Ok(difference(through, before))
    }

    /// Sum of all data before grain `grain`, which block `number` knows.
    fn before(&self, grain: u64, number: u64) -> Result<u16, StoreError> {
        let mut block = [0; SUMS_BLOCK_BYTES];
        self.read_blocks(number as u32, &mut block)?;
        let place = (grain - number * SUMS_PER_BLOCK as u64) as usize;
        Ok(SumsBlock::open(&block, number as u32).map_err(|e| self.error(e))?.before(place))
    }

    /// Sum of any range of the title's bytes; `edges` gives the bytes of a range inside one grain that the file itself
    /// cannot know (from the data file, or from memory).
    ///
    /// # Errors
    /// As [`SumsFile::between`], or when `edges` fails.
    pub fn sum(
        &self,
        range: &Range<u64>,
        edges: impl Fn(&Range<u64>, &mut [u8]) -> Result<(), StoreError>,
    ) -> Result<u16, StoreError> {
        let out_of_range = SumsError::OutOfRange { from: range.start, to: range.end };
        let cut = self.header.cut(range).ok_or_else(|| self.error(out_of_range))?;
        let bytes = |range: &Range<u64>| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            if !bytes.is_empty() {
                edges(range, &mut bytes)?;
            }
            Ok::<_, StoreError>(bytes)
        };
        let (head, tail) = (bytes(&cut.head)?, bytes(&cut.tail)?);
        let grains = self.between(cut.grains.start, cut.grains.end)?;
        cut.sum(&head, grains, &tail).map_err(|e| self.error(e))
    }

    /// Reads whole blocks from number `first` on; they are not verified.
    pub(crate) fn read_blocks(&self, first: u32, out: &mut [u8]) -> Result<(), StoreError> {
        let at = (1 + u64::from(first)) * SUMS_BLOCK_BYTES as u64;
        self.file.read_exact_at(out, at).map_err(StoreError::io("read", &self.path))
    }

    pub(crate) fn error(&self, error: SumsError) -> StoreError {
        StoreError::Sums { path: self.path.clone(), error }
    }

    /// Reads every grain's sum in order, by windows of [`META_WINDOW_BYTES`]: for readers of the
    /// whole file. `with` receives each block's number and its contents, or why it cannot be used.
    pub(crate) fn each_block(&self, mut with: impl FnMut(u32, Result<SumsBlock<'_>, StoreError>)) {
        let mut window = vec![0; META_WINDOW_BYTES];
        let per_window = (META_WINDOW_BYTES / SUMS_BLOCK_BYTES) as u32;
        for first in (0..self.header.blocks()).step_by(per_window as usize) {
            let blocks = (self.header.blocks() - first).min(per_window);
            let window = &mut window[..blocks as usize * SUMS_BLOCK_BYTES];
            if let Err(error) = self.read_blocks(first, window) {
                with(first, Err(error));
                continue;
            }
            for (block, number) in window.as_chunks().0.iter().zip(first..) {
                with(number, SumsBlock::open(block, number).map_err(|e| self.error(e)));
            }
        }
    }
}

/// Writes a range sums file grain by grain, in large writes; the header comes last.
#[derive(Debug)]
pub(crate) struct SumsWriter {
    file: DiskFile,
    /// Whole blocks and the one being filled.
    buffer: Vec<u8>,
    grain_bytes: u16,
    grains: u64,
    /// Sum of all data before the block being filled, and of the data in that block.
    base: u16,
    local: u16,
    written: u64,
}

impl SumsWriter {
    /// Creates the file, which must not exist.
    pub(crate) fn create(disk: &Disk, path: &Path, grain_bytes: u16) -> Result<Self, StoreError> {
        let file = disk.create_new(path).map_err(|e| StoreError::write("create", path, 0, 0, e))?;
        // The header's place; a file cut off before the end has no valid header.
        let buffer = vec![0; SUMS_BLOCK_BYTES];
        Ok(Self { file, buffer, grain_bytes, grains: 0, base: 0, local: 0, written: 0 })
    }

    /// Appends the sum of the next grain.
    pub(crate) fn push(&mut self, sum: u16) -> Result<(), StoreError> {
        self.local = add(self.local, sum);
        self.buffer.extend_from_slice(&self.local.to_le_bytes());
        self.grains += 1;
        if self.grains.is_multiple_of(SUMS_PER_BLOCK as u64) {
            self.seal_last_block();
            if self.buffer.len() >= META_WINDOW_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn seal_last_block(&mut self) {
        let number = (self.grains - 1) / SUMS_PER_BLOCK as u64;
        self.buffer.resize(self.buffer.len().next_multiple_of(SUMS_BLOCK_BYTES), 0);
        let block = self.buffer.last_chunk_mut().expect("a whole block was just completed");
        seal_block(block, number as u32, self.base);
        self.base = add(self.base, self.local);
        self.local = 0;
    }

    fn write(&mut self) -> Result<(), StoreError> {
        write_out(&mut self.file, &mut self.buffer, &mut self.written)
    }

    /// Completes the file with the header of `title`'s `data_bytes` and makes it durable; returns its length and BLAKE3.
    pub(crate) fn finish(mut self, title: TitleId, data_bytes: u64) -> Result<Finished, StoreError> {
        let bad = |what| StoreError::BadTitle { id: title, what };
        let header = SumsHeader::new(title, self.grain_bytes, data_bytes)
            .ok_or_else(|| bad(format!("{data_bytes} bytes are too many for range sums")))?;
        if header.grains() != self.grains {
            let what = format!("{} range sums for {} grains", self.grains, header.grains());
            return Err(bad(what));
        }
        if !self.grains.is_multiple_of(SUMS_PER_BLOCK as u64) {
            self.seal_last_block();
        }
        self.write()?;
        finish_blocks(self.file, &header.encode()[..], self.written)
    }
}
