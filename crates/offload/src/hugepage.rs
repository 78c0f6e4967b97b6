//! Memory for the extent arena: 2 MiB huge pages if the system has them reserved, transparent ones if it allows, else
//! ordinary pages. All pages are touched at the start, so that no viewer waits for a page fault.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use millrace_core::limits::EXTENT_BYTES;
use millrace_core::pool::Region;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A private anonymous mapping.
pub struct PageRegion {
    base: NonNull<u8>,
    len: usize,
    kind: &'static str,
}

impl PageRegion {
    /// Maps at least `bytes` (rounded up to whole 2 MiB pages), on huge pages when possible.
    ///
    /// # Errors
    /// When the system has not that much memory.
    pub fn new(bytes: u64) -> std::io::Result<Self> {
        let len = usize::try_from(bytes)
            .ok()
            .and_then(|b| b.max(EXTENT_BYTES).checked_next_multiple_of(HUGE_PAGE_BYTES))
            .ok_or_else(|| {
                std::io::Error::other(format!("cache of {bytes} bytes does not fit the address space"))
            })?;
        let huge = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | MapFlags::POPULATE;
        if let Ok(region) = Self::map(len, huge, "2 MiB huge pages") {
            return Ok(region);
        }
        let mut region =
            Self::map(len, MapFlags::PRIVATE | MapFlags::NORESERVE, "ordinary pages").map_err(|e| {
                std::io::Error::new(
                    e.kind(),
                    format!("map {len} bytes for the cache: {e}; choose a smaller --cache"),
                )
            })?;
        // SAFETY: the whole range is our own fresh mapping; the advice changes page sizes, not contents.
        if unsafe { madvise(region.base.as_ptr().cast(), len, Advice::LinuxHugepage) }.is_ok() {
            region.kind = "ordinary pages, transparent huge pages where the kernel likes";
        }
        // SAFETY: as above; populating for writing only makes the pages present (Linux 5.14; older kernels refuse).
        let _ = unsafe { madvise(region.base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
        Ok(region)
    }

    fn map(len: usize, flags: MapFlags, kind: &'static str) -> std::io::Result<Self> {
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        let base = NonNull::new(base.cast()).expect("mmap never returns a null page");
        Ok(Self { base, len, kind })
    }
}

impl Drop for PageRegion {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, unmapped once; the arena that used it is gone with its leases.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(result.is_ok());
    }
}

// SAFETY: plain memory owned by this value; the arena's states govern access.
unsafe impl Send for PageRegion {}
// SAFETY: as above.
unsafe impl Sync for PageRegion {}
// SAFETY: one zero-filled private mapping of `len` bytes, page aligned, alive until drop, shared with nobody.
unsafe impl Region for PageRegion {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
    fn describe(&self) -> &'static str {
        self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::pool::ExtentArena;

    #[test]
    fn a_region_is_zeroed_writable_and_whole_pages() {
        let region = PageRegion::new(1).unwrap();
        assert_eq!((region.len(), region.base().as_ptr() as usize % 4096), (HUGE_PAGE_BYTES, 0));
        let arena = ExtentArena::new(Box::new(region));
        assert_eq!(arena.extents(), 8);
        let mut fill = arena.fill(7).unwrap();
        assert!(fill.bytes_mut().iter().all(|&b| b == 0));
        fill.bytes_mut().fill(1);
    }

    #[test]
    fn too_much_memory_is_an_error_not_a_crash() {
        assert!(PageRegion::new(u64::MAX).is_err());
        assert!(PageRegion::new(1 << 60).is_err());
    }
}
