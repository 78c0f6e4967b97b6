//! The FEC header of SMPTE ST 2022-1: sixteen bytes between the RTP header of an FEC packet and the parity of the payloads.
//!
//! | byte | holds |
//! | --- | --- |
//! | 0-1 | sequence number of the first packet that is protected |
//! | 2-3 | length recovery: parity of the payload lengths |
//! | 4 | 1 bit: this is the extended header; 7 bits: parity of the payload types |
//! | 5-7 | mask: 0. With Reed-Solomon its first bit is the eighth of byte 4's parity, which the code needs and XOR does not |
//! | 8-11 | parity of the timestamps |
//! | 12 | 1 bit: 0; 1 bit: row; 3 bits: type (0 XOR, 2 Reed-Solomon); 3 bits: which parity |
//! | 13 | offset: sequence numbers from one protected packet to the next (L of a column, 1 of a row) |
//! | 14 | how many packets are protected (D of a column, L of a row) |
//! | 15 | upper bits of the first sequence number: 0 with RTP |
//!
//! The code runs over seven bytes of each packet that is protected ([`protected_fields`]) as it does over the payloads.

use crate::limits::FEC_HEADER_BYTES;

/// Payload type of FEC packets (dynamic; the usual choice with ST 2022-1).
pub const PAYLOAD_TYPE_FEC: u8 = 96;
/// Bytes of each packet's header that are protected.
pub const PROTECTED_FIELDS_BYTES: usize = 7;

/// Which code an FEC packet belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FecKind {
    /// Plain XOR (type 0).
    #[default]
    Xor,
    /// The parities of [`crate::fec::Code`] (type 2).
    ReedSolomon,
}

/// Meaning of an FEC header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FecHeader {
    /// Sequence number of the first packet that is protected.
    pub sn_base: u16,
    /// Parity of the payload lengths.
    pub length_recovery: u16,
    /// Parity of the payload types: 7 bits with XOR, 8 with Reed-Solomon.
    pub payload_type_recovery: u8,
    /// Parity of the timestamps.
    pub timestamp_recovery: u32,
    /// Which code.
    pub kind: FecKind,
    /// Which of its parities, 0..=7.
    pub index: u8,
    /// Whether the packets follow each other (a row) or stand `offset` apart (a column).
    pub row: bool,
    /// Sequence numbers from one protected packet to the next; not 0.
    pub offset: u8,
    /// How many packets are protected; not 0.
    pub count: u8,
}

impl FecHeader {
    /// The 16 header bytes.
    pub fn emit(&self) -> [u8; FEC_HEADER_BYTES] {
        let mut bytes = [0; FEC_HEADER_BYTES];
        let kind = match self.kind {
            FecKind::Xor => 0,
            FecKind::ReedSolomon => 2,
        };
        bytes[0..2].copy_from_slice(&self.sn_base.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.length_recovery.to_be_bytes());
        bytes[4] = 0x80 | self.payload_type_recovery;
        if self.kind == FecKind::ReedSolomon {
            bytes[5] = self.payload_type_recovery & 0x80;
        }
        bytes[8..12].copy_from_slice(&self.timestamp_recovery.to_be_bytes());
        bytes[12] = u8::from(self.row) << 6 | kind << 3 | self.index & 7;
        bytes[13] = self.offset;
        bytes[14] = self.count;
        bytes
    }

    /// Header and parity of an FEC packet's RTP payload; `None` unless it is the extended header, of a known code, and
    /// protects at least one packet.
    pub fn parse(payload: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, parity) = payload.split_first_chunk::<FEC_HEADER_BYTES>()?;
        let kind = match bytes[12] >> 3 & 7 {
            0 => FecKind::Xor,
            2 => FecKind::ReedSolomon,
            _ => return None,
        };
        let is_extended = bytes[4] & 0x80 != 0 && bytes[12] & 0x80 == 0;
        if !is_extended || bytes[13] == 0 || bytes[14] == 0 {
            return None;
        }
        let eighth = if kind == FecKind::ReedSolomon { bytes[5] & 0x80 } else { 0 };
        let header = Self {
            sn_base: u16::from_be_bytes([bytes[0], bytes[1]]),
            length_recovery: u16::from_be_bytes([bytes[2], bytes[3]]),
            payload_type_recovery: bytes[4] & 0x7f | eighth,
            timestamp_recovery: u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            kind,
            index: bytes[12] & 7,
            row: bytes[12] & 0x40 != 0,
            offset: bytes[13],
            count: bytes[14],
        };
        Some((header, parity))
    }

    /// The parity of the [`protected_fields`] that the header carries.
    pub fn recovery(&self) -> [u8; PROTECTED_FIELDS_BYTES] {
        protected_fields(self.length_recovery, self.payload_type_recovery, self.timestamp_recovery)
    }

    /// The same header with this parity of the [`protected_fields`].
    pub fn with_recovery(self, parity: [u8; PROTECTED_FIELDS_BYTES]) -> Self {
        let (length_recovery, payload_type_recovery, timestamp_recovery) = split_fields(parity);
        Self { length_recovery, payload_type_recovery, timestamp_recovery, ..self }
    }
}

/// Returns the protected fields of a packet beside its payload: payload length in bytes, payload
/// type, timestamp, in this order.
pub fn protected_fields(length: u16, payload_type: u8, timestamp: u32) -> [u8; PROTECTED_FIELDS_BYTES] {
    let ([a, b], [c, d, e, f]) = (length.to_be_bytes(), timestamp.to_be_bytes());
    [a, b, payload_type, c, d, e, f]
}

/// Payload length in bytes, payload type and timestamp from [`protected_fields`].
pub fn split_fields([a, b, payload_type, c, d, e, f]: [u8; PROTECTED_FIELDS_BYTES]) -> (u16, u8, u32) {
    (u16::from_be_bytes([a, b]), payload_type, u32::from_be_bytes([c, d, e, f]))
}

#[cfg(test)]
#[path = "fec_tests.rs"]
mod tests;
