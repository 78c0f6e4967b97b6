//! Files of one record per packet (`meta-*.mrp`: sum, flags and time; `*.mrc`: CRC): a header block, then blocks of
//! records, each block with its number and checksum.
//!
//! A reader that reads whole blocks, at any place and by any means, can verify them without the rest of the file.

use std::fmt;
use std::marker::PhantomData;

use millrace_core::ids::TitleId;
use millrace_core::limits::MAX_TITLE_PACKETS;
use millrace_core::packet::{PacketMeta, WireLayout};

use super::bytes::{Fields, put};
use super::frame::{self, FRAME_BYTES, FileKind};
use super::{FormatError, crc32c};

/// Length of a block, and of the header block at the start of the file.
pub const META_BLOCK_BYTES: usize = 4096;
/// Records of metadata in a block.
pub const RECORDS_PER_BLOCK: u32 = PacketMeta::PER_BLOCK;
/// Room for records in a block.
const RECORDS_BYTES: usize = 4080;

/// The entry for each packet in a file of records.
pub trait Record: Copy + Default + PartialEq + fmt::Debug {
    /// The kind of file that holds these records.
    const KIND: FileKind;
    /// Length of a record: `RECORDS_BYTES` is a multiple of it.
    const LENGTH: usize;
    /// Records in a block.
    const PER_BLOCK: u32 = (RECORDS_BYTES / Self::LENGTH) as u32;

    /// Appends the record as it is stored.
    fn append_to(self, out: &mut Vec<u8>);

    /// From [`Record::LENGTH`] bytes as they are stored.
    fn parse(bytes: &[u8]) -> Self;
}

impl Record for PacketMeta {
    const KIND: FileKind = FileKind::Meta;
    const LENGTH: usize = Self::BYTES;

    fn append_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    fn parse(bytes: &[u8]) -> Self {
        bytes.first_chunk().copied().map(Self::from_bytes).unwrap_or_default()
    }
}

/// CRC-32C of the stored bytes of a packet of the default size, of media or parity. It detects
/// errors that a sum of 16 bits cannot: swapped words, and errors that add up to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCrc(pub u32);

impl PacketCrc {
    /// That of these bytes.
    pub fn of(packet: &[u8]) -> Self {
        Self(crc32c(packet))
    }
}

impl Record for PacketCrc {
    const KIND: FileKind = FileKind::Crcs;
    const LENGTH: usize = 4;

    fn append_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn parse(bytes: &[u8]) -> Self {
        bytes.first_chunk().copied().map(u32::from_le_bytes).map(Self).unwrap_or_default()
    }
}

const _: () = {
    assert!(RECORDS_BYTES.is_multiple_of(PacketMeta::LENGTH) && PacketMeta::PER_BLOCK == 510);
    assert!(RECORDS_BYTES.is_multiple_of(PacketCrc::LENGTH) && PacketCrc::PER_BLOCK == 1020);
};

/// Offsets in the header block's body.
mod at {
    pub(super) const TITLE: usize = 0; // 16 bytes
    pub(super) const PACKET_BYTES: usize = 16; // u16
    pub(super) const RECORD_BYTES: usize = 18; // u16
    pub(super) const BLOCK_BYTES: usize = 20; // u16
    pub(super) const RECORDS_PER_BLOCK: usize = 22; // u16
    pub(super) const PACKETS: usize = 24; // u32
    pub(super) const RESERVED_1: usize = 28; // 4 zeros
    pub(super) const DATA_BYTES: usize = 32; // u64
    pub(super) const RESERVED_2: usize = 40; // zeros to the end
}

/// Offsets in a block of records.
mod block_at {
    pub(super) const NUMBER: usize = 4080; // u32
    pub(super) const CRC: usize = 4084; // u32 over 0..4084
    pub(super) const RESERVED: usize = 4088; // 8 zeros
    pub(super) const END: usize = 4096;
}

const _: () = {
    assert!(block_at::NUMBER == RECORDS_BYTES);
    assert!(block_at::RESERVED + 8 == block_at::END && block_at::END == META_BLOCK_BYTES);
};

/// The header of a metadata file.
pub type MetaHeader = RecordsHeader<PacketMeta>;
/// The header of a file of CRCs.
pub type CrcHeader = RecordsHeader<PacketCrc>;

/// The header of a file of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordsHeader<R> {
    /// The title.
    pub title: TitleId,
    /// Payload bytes of a full packet.
    pub packet_bytes: u16,
    /// Records, one per packet.
    pub packets: u32,
    /// Length of the data file.
    pub data_bytes: u64,
    records: PhantomData<R>,
}

impl<R: Record> RecordsHeader<R> {
    /// Header of `data_bytes` bytes cut in packets of `packet_bytes`; `None` if these are more than 2^32 - 1 packets
    /// or the packet size cannot be.
    pub fn new(title: TitleId, packet_bytes: u16, data_bytes: u64) -> Option<Self> {
        WireLayout::new(usize::from(packet_bytes))?;
        let packets = data_bytes.div_ceil(u64::from(packet_bytes));
        let packets = u32::try_from(packets).ok().filter(|&p| u64::from(p) <= MAX_TITLE_PACKETS)?;
        Some(Self { title, packet_bytes, packets, data_bytes, records: PhantomData })
    }

    /// Blocks of records behind the header block.
    pub fn blocks(&self) -> u32 {
        self.packets.div_ceil(R::PER_BLOCK)
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        (1 + u64::from(self.blocks())) * META_BLOCK_BYTES as u64
    }

    /// The header block.
    pub fn encode(&self) -> Box<[u8; META_BLOCK_BYTES]> {
        let mut block = Box::new([0; META_BLOCK_BYTES]);
        let body = &mut block[FRAME_BYTES..];
        put(body, at::TITLE, &self.title.0);
        put(body, at::PACKET_BYTES, &self.packet_bytes.to_le_bytes());
        put(body, at::RECORD_BYTES, &(R::LENGTH as u16).to_le_bytes());
        put(body, at::BLOCK_BYTES, &(META_BLOCK_BYTES as u16).to_le_bytes());
        put(body, at::RECORDS_PER_BLOCK, &(R::PER_BLOCK as u16).to_le_bytes());
        put(body, at::PACKETS, &self.packets.to_le_bytes());
        put(body, at::DATA_BYTES, &self.data_bytes.to_le_bytes());
        let frame = frame::seal(R::KIND, body);
        put(&mut block[..], 0, &frame);
        block
    }

    /// From the header block: the first 4096 bytes of the file.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        let record = R::KIND.name();
        let body = Fields { record, bytes: frame::open(R::KIND, block)? };
        if block.len() != META_BLOCK_BYTES {
            return Err(FormatError::value(record, "header block length", block.len(), META_BLOCK_BYTES));
        }
        let exactly = |at, field, expected: usize| {
            let found = body.u16(at, field)?;
            let same = usize::from(found) == expected;
            if same { Ok(()) } else { Err(FormatError::value(record, field, found, expected)) }
        };
        exactly(at::RECORD_BYTES, "record length", R::LENGTH)?;
        exactly(at::BLOCK_BYTES, "block length", META_BLOCK_BYTES)?;
        exactly(at::RECORDS_PER_BLOCK, "records in a block", R::PER_BLOCK as usize)?;
        body.reserved(at::RESERVED_1, 4)?;
        body.reserved(at::RESERVED_2, body.bytes.len() - at::RESERVED_2)?;
        let title = TitleId(body.array(at::TITLE, "title id")?);
        let packet_bytes = body.u16(at::PACKET_BYTES, "packet bytes")?;
        let packets = body.u32(at::PACKETS, "packets")?;
        let data_bytes = body.u64(at::DATA_BYTES, "data bytes")?;
        match Self::new(title, packet_bytes, data_bytes) {
            None => {
                Err(FormatError::value(record, "packet bytes", packet_bytes, "a multiple of 188 up to 9024"))
            }
            Some(header) if header.packets != packets => {
                Err(FormatError::value(record, "packets", packets, header.packets))
            }
            Some(header) => Ok(header),
        }
    }
}

/// A block of metadata is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The block's checksum does not match its bytes.
    #[error("metadata block {block}: checksum is {found:08x}, computed {computed:08x}: the file is damaged")]
    Checksum {
        /// Block number, 0 = first after the header.
        block: u32,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// Another block lies here, or the bytes behind its checksum are not zero.
    #[error("metadata block {block}: carries number {found} or a wrong end: the file is damaged")]
    WrongBlock {
        /// The number it should carry.
        block: u32,
        /// The number it carries.
        found: u32,
    },
    /// The given blocks or the file do not hold the requested records.
    #[error("metadata of packets {first}+{count}: only packets {from}..{to} are there")]
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

/// Completes a block whose records are in place: number, checksum, zeros.
pub fn seal_block(block: &mut [u8; META_BLOCK_BYTES], number: u32) {
    put(block, block_at::NUMBER, &number.to_le_bytes());
    let crc = crc32c(&block[..block_at::CRC]);
    put(block, block_at::CRC, &crc.to_le_bytes());
    put(block, block_at::RESERVED, &[0; 8]);
}

/// The records of block `number`: its checksum, number and end are verified.
pub fn open_block(block: &[u8; META_BLOCK_BYTES], number: u32) -> Result<&[u8], MetaError> {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    let (found, computed) = (word(block_at::CRC), crc32c(&block[..block_at::CRC]));
    if found != computed {
        return Err(MetaError::Checksum { block: number, found, computed });
    }
    if word(block_at::NUMBER) != number || block[block_at::RESERVED..] != [0; 8] {
        return Err(MetaError::WrongBlock { block: number, found: word(block_at::NUMBER) });
    }
    Ok(&block[..RECORDS_BYTES])
}

#[cfg(test)]
#[path = "meta_tests.rs"]
mod tests;
