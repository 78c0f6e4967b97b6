//! The Internet checksum's 16-bit one's-complement sum (RFC 1071): whole, fused with a copy, and composed.
//!
//! All sums here are *uncomplemented* and are values in network byte order: `sum16(&[0x12, 0x34]) == 0x1234`.
//! A piece is summed as if it began at an even offset; a trailing odd byte is padded with zero. Sums are only
//! ever added here, never subtracted: subtraction confuses the two representations of zero. (Range sums in
//! the store have to subtract; they say what becomes of zero.)
//!
//! There are several ways to the same number ([`ChecksumAlgorithm`]); [`sum16`] takes the fastest that this
//! processor has.

mod portable;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Folds a wide sum to 16 bits with end-around carry.
#[inline]
pub fn fold(sum: u64) -> u16 {
    // The upper half of a number plus itself with the halves exchanged is the sum of the halves and the carry.
    let sum = (sum.wrapping_add(sum.rotate_left(32)) >> 32) as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// One's-complement addition of two folded sums: the sum of two pieces, the first with an even
/// length.
#[inline]
pub fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// An algorithm for the Internet checksum. All give the same sum, bit for bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChecksumAlgorithm {
    /// 32-bit words with add-with-carry, one after the other: the loop of the stacks that the framing papers measured.
    Scalar,
    /// 64-bit words with add-with-carry, as kernels do it today.
    Carry64,
    /// Independent 64-bit lanes that the compiler turns into whatever vectors every processor of the kind has.
    Portable,
    /// 256-bit vectors.
    Avx2,
    /// 512-bit vectors, the rest by a masked load.
    Avx512,
}

impl ChecksumAlgorithm {
    /// All of them, slowest first.
    pub const ALL: [Self; 5] = [Self::Scalar, Self::Carry64, Self::Portable, Self::Avx2, Self::Avx512];

    /// Whether this processor can do it. Asked once; later answers come from memory.
    #[inline]
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar | Self::Carry64 | Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::has_avx512(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// The fastest that this processor can do.
    #[inline]
    pub fn best() -> Self {
        if Self::Avx512.is_available() {
            Self::Avx512
        } else if Self::Avx2.is_available() {
            Self::Avx2
        } else {
            Self::Portable
        }
    }
}

/// The largest header of IPv4 or TCP.
const HEADER_BYTES: usize = 60;

/// Uncomplemented one's-complement sum of `bytes` (at most 2^32 of them).
#[inline]
pub fn sum16(bytes: &[u8]) -> u16 {
    // A header is summed before vectors would be under way.
    let kind =
        if bytes.len() <= HEADER_BYTES { ChecksumAlgorithm::Carry64 } else { ChecksumAlgorithm::best() };
    sum16_with(kind, bytes)
}

/// The same in a certain way; in the portable one when the processor does not know `kind`.
#[inline]
pub fn sum16_with(kind: ChecksumAlgorithm, bytes: &[u8]) -> u16 {
    let sum = match kind {
        ChecksumAlgorithm::Scalar => scalar::sum(bytes),
        ChecksumAlgorithm::Carry64 => scalar::sum_carry64(bytes),
        #[cfg(target_arch = "x86_64")]
        ChecksumAlgorithm::Avx2 => x86::sum_avx2(bytes),
        #[cfg(target_arch = "x86_64")]
        ChecksumAlgorithm::Avx512 => x86::sum_avx512(bytes),
        _ => portable::sum(bytes),
    };
    // Sums of byte-swapped words are byte-swapped sums (RFC 1071 section 2 (B)).
    u16::from_be(fold(sum))
}

/// Bytes copied before they are summed: fits the first-level cache twice.
const COPY_PIECE_BYTES: usize = 4096;

/// Copies `from` to `to` and sums it on the way: each byte is fetched once (NTT 1996, checksum on the fly).
///
/// # Panics
/// If the lengths differ.
pub fn copy_sum16(to: &mut [u8], from: &[u8]) -> u16 {
    assert_eq!(to.len(), from.len());
    let kind = ChecksumAlgorithm::best();
    if kind == ChecksumAlgorithm::Portable {
        return u16::from_be(fold(portable::copy_sum(to, from)));
    }
    // A plain copy, then a vector sum of the bytes that it has just brought into the cache, is
    // faster than one loop that does both.
    let pieces = to.chunks_mut(COPY_PIECE_BYTES).zip(from.chunks(COPY_PIECE_BYTES));
    pieces.fold(0, |sum, (to, from)| {
        to.copy_from_slice(from);
        add(sum, sum16_with(kind, to))
    })
}

/// Sum of fewer bytes than a block, as 16-bit words in memory order; an odd byte at the end is padded with zero.
#[inline]
fn tail(bytes: &[u8]) -> u64 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let words: u64 = pairs.iter().map(|&pair| u64::from(u16::from_ne_bytes(pair))).sum();
    words + last.first().map_or(0, |&last| u64::from(u16::from_ne_bytes([last, 0])))
}

#[cfg(test)]
#[path = "checksum_tests.rs"]
mod tests;
