//! Staging memory: pages that files are read into before an extent is built from them.
//!
//! A read of a title on one member uses one *home* buffer. There are as many home buffers as reads
//! are usual at once, and they are registered with io_uring in advance. Additional memory for a
//! read of many members is kept in power-of-two sizes.

use std::io;

use super::super::aligned::AlignedBuf;
use super::super::crcs::CRCS_STAGING_BYTES;
use super::super::source::{DATA_STAGING_BYTES, META_STAGING_BYTES, SUMS_STAGING_BYTES};
use crate::limits::cache::{SMALLEST_STAGING_BYTES, STAGING_KEPT_BYTES, STAGING_SIZES};

/// The memory for an extent of a title on one member.
pub(super) const HOME_BYTES: usize =
    DATA_STAGING_BYTES + META_STAGING_BYTES + SUMS_STAGING_BYTES + CRCS_STAGING_BYTES;

/// Memory for one part of a read.
pub(super) struct StagingBuffer {
    pub(super) buf: AlignedBuf,
    /// Its number among the buffers that io_uring knows.
    pub(super) registered: Option<u16>,
    home: bool,
}

/// The memory not in use.
pub(super) struct Staging {
    homes: Vec<StagingBuffer>,
    spare: [Vec<StagingBuffer>; STAGING_SIZES],
    spare_bytes: usize,
}

impl Staging {
    /// Allocates `homes` home buffers.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(super) fn new(homes: usize) -> io::Result<Self> {
        let home = |_| Ok(StagingBuffer { buf: AlignedBuf::new(HOME_BYTES)?, registered: None, home: true });
        let homes = (0..homes).map(home).collect::<io::Result<_>>()?;
        Ok(Self { homes, spare: Default::default(), spare_bytes: 0 })
    }

    /// The home buffers, to make them known to the kernel.
    pub(super) fn homes(&mut self) -> &mut [StagingBuffer] {
        &mut self.homes
    }

    /// Takes at least `bytes` bytes; from the home buffers, if `home` is set and one is left.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(super) fn take(&mut self, bytes: usize, home: bool) -> io::Result<StagingBuffer> {
        if home
            && bytes <= HOME_BYTES
            && let Some(memory) = self.homes.pop()
        {
            return Ok(memory);
        }
        let size = size_of(bytes);
        if let Some(memory) = self.spare.get_mut(size).and_then(Vec::pop) {
            self.spare_bytes -= memory.buf.len();
            return Ok(memory);
        }
        let buf = AlignedBuf::new(bytes.max(SMALLEST_STAGING_BYTES << size.min(STAGING_SIZES)))?;
        Ok(StagingBuffer { buf, registered: None, home: false })
    }

    /// Takes memory back.
    pub(super) fn give(&mut self, memory: StagingBuffer) {
        let bytes = memory.buf.len();
        if memory.home {
            self.homes.push(memory);
        } else if let Some(spare) = self.spare.get_mut(size_of(bytes))
            && self.spare_bytes + bytes <= STAGING_KEPT_BYTES
        {
            self.spare_bytes += bytes;
            spare.push(memory);
        }
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.homes.len(), self.spare_bytes)
    }
}

/// Returns the smallest size class that holds `bytes` bytes. Memory of class [`STAGING_SIZES`] or
/// more is not kept.
fn size_of(bytes: usize) -> usize {
    bytes.div_ceil(SMALLEST_STAGING_BYTES).next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_no_more_is_kept_than_agreed() {
        let mut staging = Staging::new(2).unwrap();
        let homes: Vec<_> = (0..3).map(|_| staging.take(HOME_BYTES, true).unwrap()).collect();
        assert!(homes.iter().all(|memory| memory.buf.len() >= HOME_BYTES));
        assert_eq!(homes.iter().filter(|memory| memory.home).count(), 2);
        homes.into_iter().for_each(|memory| staging.give(memory));
        assert_eq!(staging.kept().0, 2);
        for bytes in
            [1, SMALLEST_STAGING_BYTES, SMALLEST_STAGING_BYTES + 1, 1 << 20, 2 << 20, (2 << 20) + 1, 9 << 20]
        {
            let memory = staging.take(bytes, false).unwrap();
            let (len, at) = (memory.buf.len(), memory.buf.as_ptr());
            assert!(len >= bytes && len <= (4 * bytes).max(SMALLEST_STAGING_BYTES));
            staging.give(memory);
            let again = staging.take(bytes, false).unwrap();
            assert!(again.buf.as_ptr() == at || bytes > 2 << 20);
            staging.give(again);
        }
        let many: Vec<_> =
            (0..STAGING_KEPT_BYTES >> 19).map(|_| staging.take(1 << 20, false).unwrap()).collect();
        many.into_iter().for_each(|memory| staging.give(memory));
        assert!((STAGING_KEPT_BYTES / 2..=STAGING_KEPT_BYTES).contains(&staging.kept().1));
    }
}
