//! The one pass over a title's bytes at ingest: copied, summed, hashed while hot in cache, written in large pieces.

use std::collections::VecDeque;
use std::path::Path;

pub(crate) use crate::limits::volume::WRITE_BYTES;
use millrace_core::limits::DEFAULT_PACKET_BYTES;
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum;

use super::growing::{Grown, seal_last};
use crate::disk::{Disk, DiskFile};
use crate::error::StoreError;
use crate::index::TIME_STEP_PACKETS;
use crate::meta::{Finished, MetaWriter};
use crate::sums::SumsWriter;

/// Bytes copied, then summed, then hashed: half of a small L2 cache, and enough for BLAKE3's widest vectors (16 KiB).
const STEP_BYTES: usize = 128 << 10;

/// Bytes summed, then copied: a fraction of a first-level cache, and whole packets of the default size.
pub(crate) const SUM_STEP_BYTES: usize = 9 * DEFAULT_PACKET_BYTES;
const GRAIN_BYTES: usize = crate::sums::GRAIN_BYTES as usize;

const _: () = assert!(SUM_STEP_BYTES.is_multiple_of(GRAIN_BYTES));
const _: () = assert!(WRITE_BYTES.is_multiple_of(STEP_BYTES) && STEP_BYTES.is_multiple_of(2));

/// The data file being written.
#[derive(Debug)]
pub(crate) struct DataWriter {
    file: DiskFile,
    buffer: Box<[u8]>,
    /// Bytes in the buffer, and how many of these are hashed.
    filled: usize,
    hashed: usize,
    /// Bytes in the file.
    written: u64,
    hasher: blake3::Hasher,
}

/// Creates a file, or opens the one that an interrupted import has left, to write the same bytes over it.
pub(super) fn create_or_overwrite(disk: &Disk, path: &Path) -> Result<DiskFile, StoreError> {
    let file = if path.exists() { disk.open_or_create(path) } else { disk.create_new(path) };
    file.map_err(|e| StoreError::write("create", path, 0, 0, e))
}

/// Cuts off bytes behind the end, which an interrupted import may have left.
pub(super) fn cut_off(file: &DiskFile, bytes: u64) -> Result<(), StoreError> {
    let length = file.file().metadata().map_err(StoreError::io("look at", file.path()))?.len();
    if length <= bytes {
        return Ok(());
    }
    file.set_len(bytes).map_err(|e| StoreError::write("shorten", file.path(), bytes, 0, e))
}

impl DataWriter {
    /// Creates the file, which must not exist.
    pub(crate) fn create(disk: &Disk, path: &Path) -> Result<Self, StoreError> {
        let file = disk.create_new(path).map_err(|e| StoreError::write("create", path, 0, 0, e))?;
        Ok(Self::of(file))
    }

    /// Writes over the file that an interrupted import has left, if there is one.
    pub(super) fn create_or_overwrite(disk: &Disk, path: &Path) -> Result<Self, StoreError> {
        create_or_overwrite(disk, path).map(Self::of)
    }

    fn of(file: DiskFile) -> Self {
        let buffer = vec![0; WRITE_BYTES].into_boxed_slice();
        Self { file, buffer, filled: 0, hashed: 0, written: 0, hasher: blake3::Hasher::new() }
    }

    /// Returns the number of bytes taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.written + self.filled as u64
    }

    /// Takes the next bytes.
    pub(crate) fn append(&mut self, mut ts: &[u8]) -> Result<(), StoreError> {
        while !ts.is_empty() {
            let room = STEP_BYTES - self.filled % STEP_BYTES;
            let (now, later) = ts.split_at(room.min(ts.len()));
            self.buffer[self.filled..self.filled + now.len()].copy_from_slice(now);
            self.filled += now.len();
            if self.filled.is_multiple_of(STEP_BYTES) {
                self.hash();
            }
            if self.filled == WRITE_BYTES {
                self.write()?;
            }
            ts = later;
        }
        Ok(())
    }

    fn hash(&mut self) {
        self.hasher.update(&self.buffer[self.hashed..self.filled]);
        self.hashed = self.filled;
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let bytes = &self.buffer[..self.filled];
        self.file
            .write_all(bytes)
            .map_err(|e| StoreError::write("write", self.file.path(), self.written, bytes.len() as u64, e))?;
        self.written += bytes.len() as u64;
        (self.filled, self.hashed) = (0, 0);
        Ok(())
    }

    /// Makes the bytes durable that have come until now; returns how many they are.
    pub(crate) fn flush(&mut self) -> Result<u64, StoreError> {
        self.hash();
        self.write()?;
        self.sync()?;
        Ok(self.written)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.file
            .sync_all()
            .map_err(|e| StoreError::write("make durable", self.file.path(), self.written, 0, e))
    }

    /// Writes the rest and makes all of it durable.
    pub(crate) fn finish(mut self) -> Result<Finished, StoreError> {
        self.hash();
        self.write()?;
        cut_off(&self.file, self.written)?;
        self.sync()?;
        Ok(Finished { bytes: self.written, blake3: self.hasher.finalize() })
    }
}

/// Sums `ts`, whole TS packets: each is summed once, whatever the number of packet sizes.
pub(crate) fn sum_grains(
    ts: &[u8],
    sums: &mut SumsWriter,
    sizes: &mut [SizeWriter],
) -> Result<(), StoreError> {
    for grain in ts.chunks(GRAIN_BYTES) {
        let sum = checksum::sum16(grain);
        sums.push(sum)?;
        sizes.iter_mut().for_each(|size| size.take(grain.len(), sum));
    }
    Ok(())
}

/// The packets of one size: their sums come with the data, their flags and times from the ingest; whichever is first
/// waits for the other.
#[derive(Debug)]
pub(crate) struct SizeWriter {
    packet_bytes: usize,
    writer: MetaWriter,
    /// Bytes of the packet that is not whole yet, and their sum.
    filled: usize,
    sum: u16,
    sums: VecDeque<u16>,
    metas: VecDeque<PacketMeta>,
    last_time: MediaTicks,
    /// Media time of packets 0, 256, 512 ...
    times: Vec<MediaTicks>,
}

impl SizeWriter {
    /// Creates the metadata file, which must not exist.
    pub(crate) fn create(disk: &Disk, path: &Path, packet_bytes: u16) -> Result<Self, StoreError> {
        Ok(Self {
            packet_bytes: usize::from(packet_bytes),
            writer: MetaWriter::create(disk, path)?,
            filled: 0,
            sum: 0,
            sums: VecDeque::new(),
            metas: VecDeque::new(),
            last_time: MediaTicks(0),
            times: Vec::new(),
        })
    }

    /// Payload bytes of a full packet.
    pub(crate) fn packet_bytes(&self) -> u16 {
        self.packet_bytes as u16
    }

    /// Media time of packets 0, 256, 512 ...
    pub(crate) fn times(&self) -> &[MediaTicks] {
        &self.times
    }

    /// Returns the media time of the last packet received.
    pub(crate) fn last_time(&self) -> MediaTicks {
        self.last_time
    }

    /// `n` bytes, a grain of range sums or less, with this sum come next. Every packet size is whole grains.
    pub(crate) fn take(&mut self, n: usize, sum: u16) {
        self.sum = checksum::add(self.sum, sum);
        self.filled += n;
        if self.filled == self.packet_bytes {
            self.close_packet();
        }
    }

    fn close_packet(&mut self) {
        self.sums.push_back(self.sum);
        (self.filled, self.sum) = (0, 0);
    }

    /// Flags and media time of the next packet. `false`, and nothing done, if its time runs back or does not fit.
    pub(crate) fn push(&mut self, meta: PacketMeta) -> bool {
        if meta.time() < self.last_time {
            return false;
        }
        self.last_time = meta.time();
        let packet = self.writer.records() + self.metas.len() as u64;
        if packet.is_multiple_of(u64::from(TIME_STEP_PACKETS)) {
            self.times.push(meta.time());
        }
        self.metas.push_back(meta);
        true
    }

    /// Writes the records that have both halves.
    pub(crate) fn settle(&mut self) -> Result<(), StoreError> {
        while !self.sums.is_empty()
            && let Some(meta) = self.metas.pop_front()
            && let Some(sum) = self.sums.pop_front()
        {
            self.writer.push(PacketMeta::new(sum, meta.flags(), meta.time()))?;
        }
        Ok(())
    }

    /// The additions for readers of a growing title; the files have `bytes` bytes of its media.
    pub(crate) fn grown(&mut self, bytes: u64) -> Result<Grown<'_>, StoreError> {
        let records = self.writer.records();
        let (blocks, last) = self.writer.write_full_blocks()?;
        Ok(Grown { bytes, records, blocks, last: seal_last(last, blocks), times: &self.times })
    }

    /// Ends the data: a packet that is not full is the short last one. `Err` has sums and metas that found no partner.
    pub(crate) fn end(mut self) -> Result<Result<(MetaWriter, Vec<MediaTicks>), Unpaired>, StoreError> {
        if self.filled > 0 {
            self.close_packet();
        }
        self.settle()?;
        Ok(if self.sums.is_empty() && self.metas.is_empty() {
            Ok((self.writer, self.times))
        } else {
            Err(Unpaired { packets: self.sums.len(), metas: self.metas.len() })
        })
    }
}

/// Packets without metadata, or metadata without packets, at the end of a title.
#[derive(Debug)]
pub(crate) struct Unpaired {
    pub(crate) packets: usize,
    pub(crate) metas: usize,
}
