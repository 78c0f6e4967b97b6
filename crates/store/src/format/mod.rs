//! The bytes of every file in a store. Encode and decode functions over plain byte slices; nothing here does I/O.

pub(crate) mod json;

/// A file does not hold what its format promises: which record, which field, what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The record ends before its last field.
    #[error("{record}: {field} at offset {offset} lies beyond the end ({len} bytes)")]
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
        /// What was found.
        found: String,
        /// What is allowed.
        expected: String,
    },
    /// A later version of Millrace wrote this, or it needs what this version cannot do.
    #[error("{record}: {field} is {found}; this version of Millrace supports {supported}; use a newer one")]
    Unsupported {
        /// The record.
        record: &'static str,
        /// The field.
        field: &'static str,
        /// What was found.
        found: u64,
        /// What is supported.
        supported: &'static str,
    },
    /// A checksum does not match.
    #[error("{record}: {what} checksum is {found:08x}, computed {computed:08x}: the file is damaged")]
    Checksum {
        /// The record.
        record: &'static str,
        /// What it covers.
        what: &'static str,
        /// As stored.
        found: u32,
        /// As computed.
        computed: u32,
    },
}
