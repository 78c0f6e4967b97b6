//! The sum by AVX2 and AVX-512.
//!
//! A 64-bit lane holds two 32-bit words. Adding whole lanes modulo 2^64 gives `low + high * 2^32`, where `low` and `high` are
//! the true sums of the two halves; adding the upper halves beside it gives `high`; so `low` is the first less the second
//! shifted, exactly, since neither reaches 2^64 below 2^32 words. That is three instructions a vector instead of four.
#![allow(
    unsafe_code,
    reason = "vector loads take raw pointers, and vector code may run only where the processor has it"
)]

use core::arch::x86_64::*;

use super::{portable, tail};

#[inline]
pub(super) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[inline]
pub(super) fn has_avx512() -> bool {
    std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw")
}

/// A sum that folds to that of `bytes`; portable code where there is no AVX2.
#[inline]
pub(super) fn sum_avx2(bytes: &[u8]) -> u64 {
    if !has_avx2() {
        return portable::sum(bytes);
    }
    // SAFETY: the processor has AVX2, just asked.
    unsafe { avx2(bytes) }
}

/// A sum that folds to that of `bytes`; portable code where there is no AVX-512.
#[inline]
pub(super) fn sum_avx512(bytes: &[u8]) -> u64 {
    if !has_avx512() {
        return portable::sum(bytes);
    }
    // SAFETY: the processor has AVX-512 F and BW, just asked.
    unsafe { avx512(bytes) }
}

/// Sum of the low and of the high halves from the sum of lanes and that of their high halves.
fn halves(whole: u64, high: u64) -> u64 {
    whole.wrapping_sub(high << 32) + high
}

#[target_feature(enable = "avx2")]
fn avx2(bytes: &[u8]) -> u64 {
    let (mut whole, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    let (vectors, rest) = bytes.as_chunks::<32>();
    let (blocks, singles) = vectors.as_chunks::<4>();
    for block in blocks {
        for at in 0..4 {
            let lanes = load_256(&block[at]);
            whole[at] = _mm256_add_epi64(whole[at], lanes);
            high[at] = _mm256_add_epi64(high[at], _mm256_srli_epi64::<32>(lanes));
        }
    }
    for single in singles {
        let lanes = load_256(single);
        whole[0] = _mm256_add_epi64(whole[0], lanes);
        high[0] = _mm256_add_epi64(high[0], _mm256_srli_epi64::<32>(lanes));
    }
    // All modulo 2^64, as the derivation above wants it.
    let whole = _mm256_add_epi64(_mm256_add_epi64(whole[0], whole[1]), _mm256_add_epi64(whole[2], whole[3]));
    let high = _mm256_add_epi64(_mm256_add_epi64(high[0], high[1]), _mm256_add_epi64(high[2], high[3]));
    halves(across_256(whole), across_256(high)) + tail(rest)
}

#[target_feature(enable = "avx2")]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 readable bytes; the instruction takes any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Sum of the four lanes modulo 2^64.
#[target_feature(enable = "avx2")]
fn across_256(lanes: __m256i) -> u64 {
    let two = _mm_add_epi64(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let one = _mm_add_epi64(two, _mm_unpackhi_epi64(two, two));
    _mm_cvtsi128_si64(one) as u64
}

#[target_feature(enable = "avx512f,avx512bw")]
fn avx512(bytes: &[u8]) -> u64 {
    let (mut whole, mut high) = ([_mm512_setzero_si512(); 4], [_mm512_setzero_si512(); 4]);
    let (vectors, rest) = bytes.as_chunks::<64>();
    let (blocks, singles) = vectors.as_chunks::<4>();
    for block in blocks {
        for at in 0..4 {
            let lanes = load_512(&block[at]);
            whole[at] = _mm512_add_epi64(whole[at], lanes);
            high[at] = _mm512_add_epi64(high[at], _mm512_srli_epi64::<32>(lanes));
        }
    }
    for single in singles {
        let lanes = load_512(single);
        whole[0] = _mm512_add_epi64(whole[0], lanes);
        high[0] = _mm512_add_epi64(high[0], _mm512_srli_epi64::<32>(lanes));
    }
    // Bytes that are not there are zero, an odd one at the end included.
    let lanes = load_512_part(rest);
    whole[1] = _mm512_add_epi64(whole[1], lanes);
    high[1] = _mm512_add_epi64(high[1], _mm512_srli_epi64::<32>(lanes));
    let whole = _mm512_add_epi64(_mm512_add_epi64(whole[0], whole[1]), _mm512_add_epi64(whole[2], whole[3]));
    let high = _mm512_add_epi64(_mm512_add_epi64(high[0], high[1]), _mm512_add_epi64(high[2], high[3]));
    halves(_mm512_reduce_add_epi64(whole) as u64, _mm512_reduce_add_epi64(high) as u64)
}

#[target_feature(enable = "avx512f")]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 readable bytes; the instruction takes any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Fewer than 64 bytes, zeros behind them.
#[target_feature(enable = "avx512f,avx512bw")]
fn load_512_part(bytes: &[u8]) -> __m512i {
    let mask = (1 << bytes.len()) - 1;
    // SAFETY: the mask has a bit for each byte of the slice and no other, and bytes without a bit are not read.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}
