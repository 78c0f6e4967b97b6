//! A title's files of one record per packet, in 4096-byte blocks that each carry their checksum: metadata (8 bytes), CRCs
//! (4 bytes).

use std::fs::File;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::packet::PacketMeta;

use crate::dirs::{finish_blocks, write_out};
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::format::FormatError;
pub use crate::format::meta::{
    CrcHeader, META_BLOCK_BYTES, MetaError, MetaHeader, PacketCrc, RECORDS_PER_BLOCK, Record, RecordsHeader,
};
use crate::format::meta::{open_block, seal_block};
use crate::format::sums::SUMS_BLOCK_BYTES;
use crate::limits::META_WINDOW_BYTES;

/// Most bytes one read of [`MetaFile::read`] asks for, and what [`MetaWriter`] gathers before it writes.
const WINDOW_BYTES: usize = META_WINDOW_BYTES;
const _: () = assert!(WINDOW_BYTES.is_multiple_of(META_BLOCK_BYTES));

const _: () = assert!(META_BLOCK_BYTES == SUMS_BLOCK_BYTES);

/// Opens a file of blocks of [`META_BLOCK_BYTES`]; the first block is the header. The header, and
/// that the file is as long as it requires, are checked here; the other blocks when they are read.
///
/// # Errors
/// If it cannot be read, or is not what `decode` wants.
pub(crate) fn open_blocks<H>(
    path: &Path,
    decode: impl FnOnce(&[u8]) -> Result<H, FormatError>,
    file_bytes: impl FnOnce(&H) -> u64,
) -> Result<(File, H), StoreError> {
    let file = File::open(path).map_err(StoreError::io("open", path))?;
    let bytes = file.metadata().map_err(StoreError::io("look at", path))?.len();
    let damaged = |what| StoreError::Damaged { path: path.to_path_buf(), what };
    if bytes < META_BLOCK_BYTES as u64 {
        return Err(damaged(format!("is {bytes} bytes long; its header alone has {META_BLOCK_BYTES}")));
    }
    let mut block = [0; META_BLOCK_BYTES];
    file.read_exact_at(&mut block, 0).map_err(StoreError::io("read", path))?;
    let header = decode(&block).map_err(StoreError::format(path))?;
    let promised = file_bytes(&header);
    if bytes != promised {
        return Err(damaged(format!("is {bytes} bytes long; its header promises {promised}")));
    }
    Ok((file, header))
}

/// A title's metadata file, open for reading.
pub type MetaFile = RecordsFile<PacketMeta>;
/// The CRCs of a title's packets of the default size, or of its parity packets, open for reading.
pub type CrcFile = RecordsFile<PacketCrc>;

/// A file of records, open for reading.
#[derive(Debug)]
pub struct RecordsFile<R> {
    file: File,
    path: PathBuf,
    header: RecordsHeader<R>,
}

impl<R: Record> RecordsFile<R> {
    /// Opens a file of records: its header and its length are checked, its blocks when they are read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let (file, header) = open_blocks(path, RecordsHeader::decode, RecordsHeader::file_bytes)?;
        Ok(Self { file, path: path.to_path_buf(), header })
    }

    /// Records, one per packet.
    pub fn packets(&self) -> u32 {
        self.header.packets
    }

    /// Payload bytes of a full packet.
    pub fn packet_bytes(&self) -> u16 {
        self.header.packet_bytes
    }

    /// Returns the file's header.
    pub fn header(&self) -> &RecordsHeader<R> {
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

    /// Reads records `first..first + out.len()`; the checksum of every block touched is verified.
    pub fn read(&self, first: u32, out: &mut [R]) -> Result<(), StoreError> {
        let error = |error| StoreError::Meta { path: self.path.clone(), error };
        let end = u64::from(first) + out.len() as u64;
        if end > u64::from(self.header.packets) {
            let count = out.len().min(u32::MAX as usize) as u32;
            return Err(error(MetaError::OutOfRange { first, count, from: 0, to: self.header.packets }));
        }
        let mut buffer = Vec::new();
        let (mut next, mut rest) = (first, out);
        while !rest.is_empty() {
            let in_first_block = R::PER_BLOCK - next % R::PER_BLOCK;
            let room =
                in_first_block as usize + (WINDOW_BYTES / META_BLOCK_BYTES - 1) * R::PER_BLOCK as usize;
            let (now, later) = rest.split_at_mut(room.min(rest.len()));
            let range = Self::block_range(next, now.len() as u32);
            buffer.resize((range.end - range.start) as usize, 0);
            self.file.read_exact_at(&mut buffer, range.start).map_err(StoreError::io("read", &self.path))?;
            Self::decode(&buffer, Self::block_of(next), next, now).map_err(error)?;
            next += now.len() as u32;
            rest = later;
        }
        Ok(())
    }

    /// Bytes of the file that hold records `first..first + count`: whole blocks. Empty if `count` is 0.
    pub fn block_range(first: u32, count: u32) -> Range<u64> {
        let block = META_BLOCK_BYTES as u64;
        let start = (1 + u64::from(Self::block_of(first))) * block;
        if count == 0 {
            return start..start;
        }
        let last = (u64::from(first) + u64::from(count) - 1) / u64::from(R::PER_BLOCK);
        start..(2 + last) * block
    }

    /// Number of the block that holds record `first`: `first_block` of [`MetaFile::decode`] for a read of
    /// [`MetaFile::block_range`].
    pub fn block_of(first: u32) -> u32 {
        first / R::PER_BLOCK
    }

    /// Copies records `first..first + out.len()` out of whole blocks, which are numbered from
    /// `first_block`. Checksum and number of each block touched are verified; nothing is allocated.
    pub fn decode(blocks: &[u8], first_block: u32, first: u32, out: &mut [R]) -> Result<(), MetaError> {
        let (blocks, _) = blocks.as_chunks::<META_BLOCK_BYTES>();
        let per_block = u64::from(R::PER_BLOCK);
        let from = u64::from(first_block) * per_block;
        let to = from + blocks.len() as u64 * per_block;
        let end = u64::from(first) + out.len() as u64;
        if u64::from(first) < from || end > to {
            let clamp = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let count = clamp(out.len() as u64);
            return Err(MetaError::OutOfRange { first, count, from: clamp(from), to: clamp(to) });
        }
        let (mut next, mut rest) = (u64::from(first), out);
        while !rest.is_empty() {
            let number = next / per_block;
            let records = open_block(&blocks[(number - u64::from(first_block)) as usize], number as u32)?;
            let place = (next % per_block) as usize;
            let (now, later) = rest.split_at_mut(rest.len().min(R::PER_BLOCK as usize - place));
            for (out, record) in now.iter_mut().zip(records[place * R::LENGTH..].chunks_exact(R::LENGTH)) {
                *out = R::parse(record);
            }
            next += now.len() as u64;
            rest = later;
        }
        Ok(())
    }
}

/// Verified blocks in a row: their records, one by one, without a copy.
#[derive(Clone, Copy, Debug)]
pub struct MetaBlocks<'a> {
    blocks: &'a [[u8; META_BLOCK_BYTES]],
    first_block: u32,
}

impl<'a> MetaBlocks<'a> {
    /// Verifies whole blocks, which are numbered from `first_block`. Nothing is allocated.
    ///
    /// # Errors
    /// If one of them is damaged.
    pub fn open(bytes: &'a [u8], first_block: u32) -> Result<Self, MetaError> {
        let (blocks, _) = bytes.as_chunks::<META_BLOCK_BYTES>();
        for (block, number) in blocks.iter().zip(first_block..) {
            open_block(block, number)?;
        }
        Ok(Self { blocks, first_block })
    }

    /// The record of a packet.
    ///
    /// # Errors
    /// If it is not in these blocks.
    pub fn get(&self, packet: u32) -> Result<PacketMeta, MetaError> {
        let record = (packet / RECORDS_PER_BLOCK).checked_sub(self.first_block).and_then(|block| {
            let records = self.blocks.get(block as usize)?.as_chunks::<{ PacketMeta::BYTES }>().0;
            records.get((packet % RECORDS_PER_BLOCK) as usize)
        });
        record.map(|record| PacketMeta::from_bytes(*record)).ok_or_else(|| {
            let from = self.first_block.saturating_mul(RECORDS_PER_BLOCK);
            let held = (self.blocks.len() as u32).saturating_mul(RECORDS_PER_BLOCK);
            MetaError::OutOfRange { first: packet, count: 1, from, to: from.saturating_add(held) }
        })
    }
}

/// Writes a metadata file.
pub(crate) type MetaWriter = RecordsWriter<PacketMeta>;
/// Writes a file of CRCs.
pub(crate) type CrcWriter = RecordsWriter<PacketCrc>;

/// Writes a file of records record by record, in large writes; the header comes last.
#[derive(Debug)]
pub(crate) struct RecordsWriter<R> {
    file: DiskFile,
    /// Whole blocks and the one being filled.
    buffer: Vec<u8>,
    records: u64,
    written: u64,
    kind: PhantomData<R>,
}

impl<R: Record> RecordsWriter<R> {
    /// Creates the file, which must not exist.
    pub(crate) fn create(disk: &Disk, path: &Path) -> Result<Self, StoreError> {
        let file = disk.create_new(path).map_err(|e| StoreError::write("create", path, 0, 0, e))?;
        // The header's place; a file cut off before the end has no valid header.
        let buffer = vec![0; META_BLOCK_BYTES];
        Ok(Self { file, buffer, records: 0, written: 0, kind: PhantomData })
    }

    /// Returns the number of records up to now.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Appends a record.
    pub(crate) fn push(&mut self, record: R) -> Result<(), StoreError> {
        record.append_to(&mut self.buffer);
        self.records += 1;
        if self.records.is_multiple_of(u64::from(R::PER_BLOCK)) {
            self.seal_last_block();
            if self.buffer.len() >= WINDOW_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn seal_last_block(&mut self) {
        let number = (self.records - 1) / u64::from(R::PER_BLOCK);
        self.buffer.resize(self.buffer.len().next_multiple_of(META_BLOCK_BYTES), 0);
        let block = self.buffer.last_chunk_mut().expect("a whole block was just completed");
        seal_block(block, number as u32);
    }

    fn write(&mut self) -> Result<(), StoreError> {
        write_out(&mut self.file, &mut self.buffer, &mut self.written)
    }

    /// Writes the blocks that are full, so that readers find them; returns how many there are, and the records behind them.
    pub(crate) fn write_full_blocks(&mut self) -> Result<(u32, &[u8]), StoreError> {
        let last = self.buffer.split_off(self.buffer.len() / META_BLOCK_BYTES * META_BLOCK_BYTES);
        self.write()?;
        self.buffer.extend_from_slice(&last);
        Ok(((self.records / u64::from(R::PER_BLOCK)) as u32, &self.buffer))
    }

    /// Completes the file with the header of `title`'s `data_bytes` and makes it durable; returns its length and BLAKE3.
    pub(crate) fn finish(
        mut self,
        title: TitleId,
        packet_bytes: u16,
        data_bytes: u64,
    ) -> Result<Finished, StoreError> {
        let header = RecordsHeader::<R>::new(title, packet_bytes, data_bytes)
            .ok_or(StoreError::BadPacketSize { packet_bytes: usize::from(packet_bytes) })?;
        if u64::from(header.packets) != self.records {
            let what = format!(
                "{} records for packets of {packet_bytes} bytes, but {data_bytes} bytes make {} packets",
                self.records, header.packets
            );
            return Err(StoreError::BadTitle { id: title, what });
        }
        if !self.records.is_multiple_of(u64::from(R::PER_BLOCK)) {
            self.seal_last_block();
        }
        self.write()?;
        finish_blocks(self.file, &header.encode()[..], self.written)
    }
}

/// A file that is complete and durable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    /// Its length.
    pub(crate) bytes: u64,
    /// BLAKE3 of the whole of it.
    pub(crate) blake3: blake3::Hash,
}

#[cfg(test)]
#[path = "meta_tests.rs"]
mod tests;
