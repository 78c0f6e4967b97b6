//! One word after the other, the carry of each going into the next: what network stacks did before vectors, in two widths.

use super::tail;

/// Bytes of a turn of the loop, as stacks unroll it.
const BLOCK: usize = 32;

/// Returns a sum that folds to the sum of `bytes`, by 32-bit words. The compiler makes it a chain
/// of add-with-carry instructions, like the assembly of 4.4BSD's descendants.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let (mut sum, mut carry) = (0, false);
    for block in blocks {
        for &word in block.as_chunks::<4>().0 {
            (sum, carry) = add_with_carry_32(sum, u32::from_ne_bytes(word), carry);
        }
    }
    u64::from(sum) + u64::from(carry) + tail(rest)
}

/// The same by 64-bit words.
#[inline]
pub(super) fn sum_carry64(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let (mut sum, mut carry) = (0, false);
    for block in blocks {
        for &word in block.as_chunks::<8>().0 {
            (sum, carry) = add_with_carry_64(sum, u64::from_ne_bytes(word), carry);
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    for &word in words {
        (sum, carry) = add_with_carry_64(sum, u64::from_ne_bytes(word), carry);
    }
    // Room for the carry and the rest above.
    (sum & 0xffff_ffff) + (sum >> 32) + u64::from(carry) + tail(rest)
}

#[inline]
fn add_with_carry_32(a: u32, b: u32, carry: bool) -> (u32, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(u32::from(carry));
    (sum, first | second)
}

#[inline]
fn add_with_carry_64(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let (sum, first) = a.overflowing_add(b);
    let (sum, second) = sum.overflowing_add(u64::from(carry));
    (sum, first | second)
}
