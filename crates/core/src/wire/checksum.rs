//! The Internet checksum's 16-bit one's-complement sum (RFC 1071): whole, fused with a copy, and composed.
//!
//! All sums here are *uncomplemented* and are values in network byte order: `sum16(&[0x12, 0x34]) == 0x1234`.
//! A piece is summed as if it began at an even offset; a trailing odd byte is padded with zero.
//! Sums are only ever added, never subtracted: subtraction confuses the two representations of zero.

/// Folds a wide sum to 16 bits with end-around carry.
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    let mut sum = sum as u32;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// One's-complement addition of two folded sums: the sum of two pieces of which the first has an even length.
pub fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// Bytes that the main loops take at a time: eight 64-bit words, which the compiler turns into vector adds.
const BLOCK: usize = 64;

fn add_block(lanes: &mut [u64; 8], block: &[u8; BLOCK]) {
    for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(8)) {
        let word = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        *lane += (word & 0xffff_ffff) + (word >> 32);
    }
}

fn finish(lanes: [u64; 8], tail: &[u8]) -> u16 {
    let mut sum: u64 = lanes.iter().sum();
    let mut words = tail.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_ne_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    // Sums of byte-swapped words are byte-swapped sums (RFC 1071 section 2 (B)).
    u16::from_be(fold(sum))
}

/// Uncomplemented one's-complement sum of `bytes` (at most 2^32 of them).
pub fn sum16(bytes: &[u8]) -> u16 {
    let mut lanes = [0; 8];
    let mut blocks = bytes.chunks_exact(BLOCK);
    for block in &mut blocks {
        add_block(&mut lanes, block.try_into().expect("one block"));
    }
    finish(lanes, blocks.remainder())
}

/// Copies `from` to `to` and sums it on the way: each byte is read once (NTT 1996, checksum on the fly).
///
/// # Panics
/// If the lengths differ.
pub fn copy_sum16(to: &mut [u8], from: &[u8]) -> u16 {
    assert_eq!(to.len(), from.len());
    let mut lanes = [0; 8];
    let mut from_blocks = from.chunks_exact(BLOCK);
    let mut to_blocks = to.chunks_exact_mut(BLOCK);
    for (to, from) in (&mut to_blocks).zip(&mut from_blocks) {
        let block: &[u8; BLOCK] = from.try_into().expect("one block");
        to.copy_from_slice(block);
        add_block(&mut lanes, block);
    }
    let tail = from_blocks.remainder();
    to_blocks.into_remainder().copy_from_slice(tail);
    finish(lanes, tail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071's definition, word by word, with nothing in common with the code under test.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for i in (0..bytes.len()).step_by(2) {
            let low = bytes.get(i + 1).copied().unwrap_or(0);
            sum += u32::from(bytes[i]) << 8 | u32::from(low);
            if sum > 0xffff {
                sum -= 0xffff;
            }
        }
        sum as u16
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(sum16(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
    }

    #[test]
    fn zeros_and_ones() {
        assert_eq!(sum16(&[0; 1316]), 0);
        assert_eq!(sum16(&[0xff; 1316]), 0xffff);
        assert_eq!(sum16(&[]), 0);
        assert_eq!(sum16(&[0xff; 1_000_000]), 0xffff);
        assert_eq!(add(0xffff, 0), 0xffff);
        assert_eq!(add(0xffff, 1), 1);
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert_eq!(sum16(&bytes), reference(&bytes));
            let mut copy = vec![0; bytes.len()];
            prop_assert_eq!(copy_sum16(&mut copy, &bytes), reference(&bytes));
            prop_assert_eq!(copy, bytes);
        }

        #[test]
        fn composes_after_an_even_piece(a in proptest::collection::vec(any::<u8>(), 0..300),
                                        b in proptest::collection::vec(any::<u8>(), 0..300)) {
            let even = &a[..a.len() & !1];
            let whole = [even, &b].concat();
            prop_assert_eq!(add(sum16(even), sum16(&b)), sum16(&whole));
        }
    }
}
