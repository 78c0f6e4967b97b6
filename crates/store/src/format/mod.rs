//! The bytes of every file in a store: plain encode and decode functions over byte slices, no I/O.
//!
//! Every file but the title itself begins with the same 64-byte [`frame`]. Each record names the offsets of its fields
//! in a module `at` and asserts its size; reads are checked, so that no input makes a decoder panic.

use std::fmt;

mod bytes;
pub(crate) mod derived;
pub mod frame;
pub mod index;
pub(crate) mod json;
pub mod manifest;
pub mod members;
pub mod meta;
pub mod sums;
pub mod superblock;
pub(crate) mod title_info;

/// A file violates its format: which record, which field, and the value found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The record ends before its last field.
    #[error("{record}: {field} at offset {offset} lies beyond the end ({len} bytes): the file is cut short")]
    Short {
        /// The record.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// Where it should be.
        offset: usize,
        /// Bytes there are.
        len: usize,
    },
    /// A field has a value it cannot have.
    #[error("{record}: {field} is {found}; expected {expected}")]
    Value {
        /// The record.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        found: String,
        /// The allowed values.
        expected: String,
    },
    /// A later version of Millrace wrote this, or it needs what this version cannot do.
    #[error(
        "{record}: {field} is {found}; this version of Millrace supports {supported}; use the version that wrote it"
    )]
    Unsupported {
        /// The record.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The supported values.
        supported: &'static str,
    },
    /// A checksum does not match.
    #[error("{record}: {what} checksum is {found:08x}, computed {computed:08x}: the file is damaged")]
    Checksum {
        /// The record.
        record: &'static str,
        /// The part it covers.
        what: &'static str,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
    /// The lists of an index contradict each other.
    #[error("index: {0}")]
    Index(#[from] crate::index::IndexError),
}

impl FormatError {
    /// A field with a value it cannot have.
    pub(crate) fn value(
        record: &'static str,
        field: &'static str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::Value { record, field, found: found.to_string(), expected: expected.to_string() }
    }
}

/// CRC-32C (Castagnoli), as iSCSI uses it (RFC 3720 section 12.1): the checksum of all records and blocks.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// 128 random bits in UUID form (RFC 9562 version 4): names a volume or one of its members.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// From random bytes: version and variant bits are set.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(i, byte)| {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")
        })
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uuid({self})")
    }
}

impl std::str::FromStr for Uuid {
    type Err = FormatError;

    /// 8-4-4-4-12 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, FormatError> {
        let error =
            || FormatError::value("uuid", "text", format!("{text:.60?}"), "8-4-4-4-12 hexadecimal digits");
        let groups: Vec<&str> = text.split('-').collect();
        if groups.iter().map(|g| g.len()).ne([8, 4, 4, 4, 12]) {
            return Err(error());
        }
        let id: millrace_core::ids::TitleId = groups.concat().parse().map_err(|_| error())?;
        Ok(Self(id.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc_of_the_standard_check_string() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        // RFC 3720 appendix B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn uuid_prints_and_parses() {
        let uuid = Uuid::from_random([0xff; 16]);
        assert_eq!(uuid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        for bad in
            ["", "ffffffff", "ffffffff-ffff-4fff-bfff-fffffffffffg", "ffffffffffff-ffff-4fff-bfff-ffff"]
        {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }
}
