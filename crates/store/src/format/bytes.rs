//! Checked little-endian reads and fixed-place writes.

use super::FormatError;

/// A record's bytes, read by offset and field name.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub(crate) record: &'static str,
    pub(crate) bytes: &'a [u8],
}

impl<'a> Fields<'a> {
    /// `N` bytes at `offset`.
    pub(crate) fn array<const N: usize>(
        &self,
        offset: usize,
        field: &'static str,
    ) -> Result<[u8; N], FormatError> {
        let short = FormatError::Short { record: self.record, field, offset, len: self.bytes.len() };
        let end = offset.checked_add(N).ok_or_else(|| short.clone())?;
        let bytes = self.bytes.get(offset..end).ok_or(short)?;
        Ok(bytes.try_into().expect("a slice of N bytes"))
    }

    pub(crate) fn u8(&self, offset: usize, field: &'static str) -> Result<u8, FormatError> {
        self.array::<1>(offset, field).map(|[byte]| byte)
    }

    pub(crate) fn u16(&self, offset: usize, field: &'static str) -> Result<u16, FormatError> {
        self.array(offset, field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&self, offset: usize, field: &'static str) -> Result<u32, FormatError> {
        self.array(offset, field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, offset: usize, field: &'static str) -> Result<u64, FormatError> {
        self.array(offset, field).map(u64::from_le_bytes)
    }

    /// `len` bytes at `offset`.
    pub(crate) fn slice(
        &self,
        offset: usize,
        len: usize,
        field: &'static str,
    ) -> Result<&'a [u8], FormatError> {
        let end = offset.saturating_add(len);
        self.bytes.get(offset..end).ok_or(FormatError::Short {
            record: self.record,
            field,
            offset,
            len: self.bytes.len(),
        })
    }

    /// Reserved bytes: must be zero, so that a later version can give them a meaning.
    pub(crate) fn reserved(&self, offset: usize, len: usize) -> Result<(), FormatError> {
        let bytes = self.slice(offset, len, "reserved bytes")?;
        match bytes.iter().position(|&b| b != 0) {
            None => Ok(()),
            Some(i) => Err(FormatError::value(
                self.record,
                "reserved byte",
                format!("{:#04x} at offset {}", bytes[i], offset + i),
                "0",
            )),
        }
    }
}

/// Writes `value` at `offset` of a record being made.
///
/// # Panics
/// If it does not fit: the record's size and offsets are constants of this crate.
pub(crate) fn put(record: &mut [u8], offset: usize, value: &[u8]) {
    record[offset..offset + value.len()].copy_from_slice(value);
}
