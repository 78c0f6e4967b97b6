//! Eight independent lanes of 64 bits: nothing waits for a carry, and the compiler makes vectors of them.

use super::tail;

/// Bytes that the main loops take at a time: eight 64-bit words.
const BLOCK: usize = 64;

#[inline]
fn add_block(lanes: &mut [u64; 8], block: &[u8; BLOCK]) {
    for (lane, &word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
        let word = u64::from_ne_bytes(word);
        *lane += (word & 0xffff_ffff) + (word >> 32);
    }
}

/// A sum that folds to that of `bytes`, words taken as they lie in memory.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut lanes = [0; 8];
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        add_block(&mut lanes, block);
    }
    lanes.iter().sum::<u64>() + tail(rest)
}

/// The same of bytes that are copied on the way. Both slices have one length.
pub(super) fn copy_sum(to: &mut [u8], from: &[u8]) -> u64 {
    let mut lanes = [0; 8];
    let (from_blocks, from_rest) = from.as_chunks::<BLOCK>();
    let (to_blocks, to_rest) = to.as_chunks_mut::<BLOCK>();
    for (to, from) in to_blocks.iter_mut().zip(from_blocks) {
        *to = *from;
        add_block(&mut lanes, from);
    }
    to_rest.copy_from_slice(from_rest);
    lanes.iter().sum::<u64>() + tail(from_rest)
}
