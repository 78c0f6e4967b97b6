//! `sums.mrr`: a header block, then blocks of 2040 prefix sums, each block with its number, its base and its checksum.
//!
//! The data is cut in *grains* of equal length (188 bytes as ingest writes it: one TS packet). Entry `i` of a block is the
//! one's-complement sum of the block's grains `0..=i`, and the block's base that of all data before the block. So any two
//! blocks give the sum of any range between them, and a reader that reads whole blocks, at any place, needs nothing else.

use millrace_core::ids::TitleId;
use millrace_core::wire::checksum::add;

use super::bytes::{Fields, put};
use super::frame::{self, FRAME_BYTES, FileKind};
use super::{FormatError, crc32c};

const RECORD: &str = "range sums header";

/// Length of a block, and of the header block at the start of the file.
pub const SUMS_BLOCK_BYTES: usize = 4096;
/// Prefix sums in a block.
pub const SUMS_PER_BLOCK: usize = 2040;
/// Length of a prefix sum.
const SUM_BYTES: usize = 2;
const ENTRIES_BYTES: usize = SUMS_PER_BLOCK * SUM_BYTES;

/// Offsets in the header block's body.
mod at {
    pub(super) const TITLE: usize = 0; // 16 bytes
    pub(super) const GRAIN_BYTES: usize = 16; // u16
    pub(super) const SUM_BYTES: usize = 18; // u16
    pub(super) const BLOCK_BYTES: usize = 20; // u16
    pub(super) const SUMS_PER_BLOCK: usize = 22; // u16
    pub(super) const RESERVED_1: usize = 24; // 8 zeros
    pub(super) const DATA_BYTES: usize = 32; // u64
    pub(super) const RESERVED_2: usize = 40; // zeros to the end
}

/// Offsets in a block of prefix sums.
mod block_at {
    pub(super) const NUMBER: usize = 4080; // u32
    pub(super) const BASE: usize = 4084; // u16
    pub(super) const RESERVED_1: usize = 4086; // 2 zeros
    pub(super) const CRC: usize = 4088; // u32 over 0..4088
    pub(super) const RESERVED_2: usize = 4092; // 4 zeros
    pub(super) const END: usize = 4096;
}

const _: () = {
    assert!(block_at::NUMBER == ENTRIES_BYTES);
    assert!(block_at::RESERVED_2 + 4 == block_at::END && block_at::END == SUMS_BLOCK_BYTES);
};

/// The header of a range sums file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumsHeader {
    /// The title.
    pub title: TitleId,
    /// Length of a grain: even, so that every grain begins at an even offset.
    pub grain_bytes: u16,
    /// Length of the data file.
    pub data_bytes: u64,
}

impl SumsHeader {
    /// Header for `data_bytes` bytes in grains of `grain_bytes`; `None` if that length is odd or zero, or there would be
    /// more than 2^32 - 1 blocks.
    pub fn new(title: TitleId, grain_bytes: u16, data_bytes: u64) -> Option<Self> {
        let header = Self { title, grain_bytes, data_bytes };
        let fits = grain_bytes > 0
            && grain_bytes.is_multiple_of(2)
            && u32::try_from(header.grains().div_ceil(SUMS_PER_BLOCK as u64)).is_ok();
        fits.then_some(header)
    }

    /// Returns the number of grains; the last one may be short.
    pub fn grains(&self) -> u64 {
        self.data_bytes.div_ceil(u64::from(self.grain_bytes.max(1)))
    }

    /// Blocks behind the header block.
    pub fn blocks(&self) -> u32 {
        self.grains().div_ceil(SUMS_PER_BLOCK as u64) as u32 // new() has seen that it fits
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        (1 + u64::from(self.blocks())) * SUMS_BLOCK_BYTES as u64
    }

    /// The header block.
    pub fn encode(&self) -> Box<[u8; SUMS_BLOCK_BYTES]> {
        let mut block = Box::new([0; SUMS_BLOCK_BYTES]);
        let body = &mut block[FRAME_BYTES..];
        put(body, at::TITLE, &self.title.0);
        put(body, at::GRAIN_BYTES, &self.grain_bytes.to_le_bytes());
        put(body, at::SUM_BYTES, &(SUM_BYTES as u16).to_le_bytes());
        put(body, at::BLOCK_BYTES, &(SUMS_BLOCK_BYTES as u16).to_le_bytes());
        put(body, at::SUMS_PER_BLOCK, &(SUMS_PER_BLOCK as u16).to_le_bytes());
        put(body, at::DATA_BYTES, &self.data_bytes.to_le_bytes());
        let frame = frame::seal(FileKind::Sums, &block[FRAME_BYTES..]);
        block[..FRAME_BYTES].copy_from_slice(&frame);
        block
    }

    /// From the header block.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let body = frame::open(FileKind::Sums, block)?;
        let body = Fields { record: RECORD, bytes: body };
        body.reserved(at::RESERVED_1, 8)?;
        body.reserved(at::RESERVED_2, SUMS_BLOCK_BYTES - FRAME_BYTES - at::RESERVED_2)?;
        if block.len() != SUMS_BLOCK_BYTES {
            return Err(FormatError::value(RECORD, "header length", block.len(), SUMS_BLOCK_BYTES));
        }
        for (offset, field, expected) in [
            (at::SUM_BYTES, "bytes of a sum", SUM_BYTES),
            (at::BLOCK_BYTES, "block bytes", SUMS_BLOCK_BYTES),
            (at::SUMS_PER_BLOCK, "sums in a block", SUMS_PER_BLOCK),
        ] {
            let found = body.u16(offset, field)?;
            if usize::from(found) != expected {
                return Err(FormatError::value(RECORD, field, found, expected));
            }
        }
        let grain_bytes = body.u16(at::GRAIN_BYTES, "grain bytes")?;
        let data_bytes = body.u64(at::DATA_BYTES, "data bytes")?;
        let title = TitleId(body.array(at::TITLE, "title id")?);
        Self::new(title, grain_bytes, data_bytes).ok_or_else(|| {
            let found = format!("{grain_bytes} for {data_bytes} bytes of data");
            FormatError::value(
                RECORD,
                "grain bytes",
                found,
                "an even length of 2 or more, at most 2^32 - 1 blocks",
            )
        })
    }
}

/// A block of range sums is invalid or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumsError {
    /// The block's checksum does not match its bytes.
    #[error(
        "range sums block {block}: checksum is {found:08x}, computed {computed:08x}: the file is damaged"
    )]
    Checksum {
        /// Block number, 0 = first after the header.
        block: u32,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// Another block lies here, or bytes that must be zero are not.
    #[error("range sums block {block}: carries number {found} or a wrong end: the file is damaged")]
    WrongBlock {
        /// The number it should carry.
        block: u32,
        /// The number it carries.
        found: u32,
    },
    /// The given blocks or the file do not hold the requested sum.
    #[error("range sums of grains {from}..{to}: not among the blocks that were read")]
    OutOfRange {
        /// First grain asked for.
        from: u64,
        /// End of the grains asked for.
        to: u64,
    },
    /// The bytes at the edges of a range were not given as [`crate::sums::GrainSplit`] asks for them.
    #[error("range sums: {given} bytes given for an edge of {needed} bytes")]
    Edge {
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
}

/// Completes a block whose prefix sums are in place: number, base, checksum, zeros.
pub fn seal_block(block: &mut [u8; SUMS_BLOCK_BYTES], number: u32, base: u16) {
    put(block, block_at::NUMBER, &number.to_le_bytes());
    put(block, block_at::BASE, &base.to_le_bytes());
    put(block, block_at::RESERVED_1, &[0; 2]);
    let crc = crc32c(&block[..block_at::CRC]);
    put(block, block_at::CRC, &crc.to_le_bytes());
    put(block, block_at::RESERVED_2, &[0; 4]);
}

/// A block whose checksum and number have been verified.
#[derive(Clone, Copy, Debug)]
pub struct SumsBlock<'a>(&'a [u8; SUMS_BLOCK_BYTES]);

impl<'a> SumsBlock<'a> {
    /// Verifies block `number`.
    pub fn open(block: &'a [u8; SUMS_BLOCK_BYTES], number: u32) -> Result<Self, SumsError> {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
        let (found, computed) = (word(block_at::CRC), crc32c(&block[..block_at::CRC]));
        if found != computed {
            return Err(SumsError::Checksum { block: number, found, computed });
        }
        let zeros = block[block_at::RESERVED_1..block_at::CRC].iter().chain(&block[block_at::RESERVED_2..]);
        if word(block_at::NUMBER) != number || zeros.into_iter().any(|&byte| byte != 0) {
            return Err(SumsError::WrongBlock { block: number, found: word(block_at::NUMBER) });
        }
        Ok(Self(block))
    }

    /// A block that [`SumsBlock::open`] has seen.
    pub(crate) fn verified(block: &'a [u8; SUMS_BLOCK_BYTES]) -> Self {
        Self(block)
    }

    /// Sum of all data before the block.
    pub fn base(self) -> u16 {
        u16::from_le_bytes([self.0[block_at::BASE], self.0[block_at::BASE + 1]])
    }

    /// Sum of the block's first `grains` grains, at most [`SUMS_PER_BLOCK`].
    ///
    /// # Panics
    /// If a block does not have `grains` grains.
    pub fn prefix(self, grains: usize) -> u16 {
        match grains.checked_sub(1) {
            None => 0,
            Some(last) => u16::from_le_bytes([self.0[last * SUM_BYTES], self.0[last * SUM_BYTES + 1]]),
        }
    }

    /// Sum of all data before the block's grain number `grains`.
    pub fn before(self, grains: usize) -> u16 {
        add(self.base(), self.prefix(grains))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip_and_what_cannot_be() {
        let header = SumsHeader::new(TitleId([3; 16]), 188, 188 * 2041).unwrap();
        assert_eq!((header.grains(), header.blocks(), header.file_bytes()), (2041, 2, 3 * 4096));
        assert_eq!(SumsHeader::decode(&header.encode()[..]), Ok(header));
        assert_eq!(SumsHeader::new(TitleId([3; 16]), 187, 1000), None);
        assert_eq!(SumsHeader::new(TitleId([3; 16]), 0, 1000), None);
        assert_eq!(SumsHeader::new(TitleId([3; 16]), 2, u64::MAX), None);
        assert_eq!(SumsHeader::new(TitleId([3; 16]), 1316, 0).unwrap().file_bytes(), 4096);
    }

    #[test]
    fn sums_block_open_with_damaged_byte_fails() {
        let mut block = [0; SUMS_BLOCK_BYTES];
        block[..4].copy_from_slice(&[1, 2, 3, 4]);
        seal_block(&mut block, 7, 0xabcd);
        let whole = SumsBlock::open(&block, 7).unwrap();
        assert_eq!((whole.prefix(0), whole.prefix(1), whole.prefix(2)), (0, 0x0201, 0x0403));
        assert_eq!((whole.base(), whole.before(1)), (0xabcd, 0xadce));
        assert!(SumsBlock::open(&block, 8).is_err());
        for at in 0..SUMS_BLOCK_BYTES {
            let mut damaged = block;
            damaged[at] ^= 0x10;
            assert!(SumsBlock::open(&damaged, 7).is_err(), "byte {at}");
        }
    }
}
