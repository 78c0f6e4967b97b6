//! The heap gives large blocks back.
//!
//! glibc maps large blocks apart and unmaps them when they are freed, but raises its limit for "large" with each of them, up
//! to 32 MiB (mallopt(3), `M_MMAP_THRESHOLD`). Afterwards the working memory of a password check (19 MiB) or of an upload
//! stays in the heap of the thread that used it. `millrace bench hostile --quick` counted 140 MB more than with viewers alone,
//! and 45 to 59 MB where the limit stays.
#![allow(unsafe_code)]

use crate::limits::HEAP_LARGE_BYTES;

/// Keeps the limit for large blocks where it is from now on; to be called before threads start.
pub fn give_large_blocks_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt has no precondition; it changes settings of the allocator under the allocator's own lock.
        let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_LARGE_BYTES) };
        debug_assert_eq!(is_set, 1, "glibc refuses only limits above 32 MiB");
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn large_blocks_are_mapped_apart_after_larger_ones_were_freed() {
        give_large_blocks_back();
        drop(black_box(Vec::<u8>::with_capacity(30 << 20)));
        // Larger than anything that other tests leave free in a heap. Blocks that are mapped apart begin behind a header of 16 bytes.
        let blocks = [(); 2].map(|()| black_box(Vec::<u8>::with_capacity(24 << 20)));
        assert_eq!(blocks.map(|block| block.as_ptr().addr() % 4096), [16; 2]);
    }
}
