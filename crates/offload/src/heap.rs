//! The heap gives large blocks back.
//!
//! glibc maps large blocks apart and unmaps them when they are freed, but raises its limit for "large" with each of them, up
//! to 32 MiB (mallopt(3), `M_MMAP_THRESHOLD`). Afterwards the working memory of a password check (19 MiB) or of an upload
//! stays in the heap of the thread that used it: 80 MB more after an hour of hostile clients.
#![allow(unsafe_code)]

use crate::limits::HEAP_LARGE_BYTES;

/// Keeps the limit for large blocks where it is from now on; to be called before threads start.
pub fn give_large_blocks_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt has no precondition; it changes settings of the allocator under the allocator's own lock.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_LARGE_BYTES) } == 1;
    #[cfg(target_env = "gnu")]
    debug_assert!(is_set, "glibc refuses only limits above 32 MiB");
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Page offsets of blocks of 4 MiB. A block that was mapped apart begins behind its header of 16 bytes.
    fn offsets() -> Vec<usize> {
        let blocks: Vec<Vec<u8>> = (0..4).map(|_| black_box(Vec::with_capacity(4 << 20))).collect();
        blocks.iter().map(|block| block.as_ptr().addr() % 4096).collect()
    }

    #[test]
    fn large_blocks_are_mapped_apart_after_larger_ones_were_freed() {
        give_large_blocks_back();
        drop(black_box(Vec::<u8>::with_capacity(20 << 20)));
        // Without the setting, the heap now grows by 4 MiB for each block.
        assert_eq!(offsets(), [16; 4]);
    }
}
