//! Kernels of x86-64: 64 bytes at a time with a bit matrix for each coefficient (GFNI), 32 with tables of half bytes (AVX2).
//!
//! A block of all outputs stays in registers while the sources go by, so each source is read once and each output written
//! once. Two sources are added at a time: three operands are one instruction of AVX-512.
#![allow(
    unsafe_code,
    reason = "vector loads take raw pointers, and vector code may run only where the processor has it"
)]

use core::arch::x86_64::*;

use super::field::NIBBLES;
use super::kernel::{MAX_OUTPUTS, Pass};
use super::scalar;

#[inline]
pub(super) fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[inline]
pub(super) fn has_gfni() -> bool {
    std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("gfni")
}

/// How far ahead of the block that is computed its sources are asked for. A processor follows fewer streams by itself than a row
/// has units: without this, encoding 8 + 2 from memory takes half as long again. Half and twice the distance are slower.
const AHEAD_BYTES: usize = 1024;
/// Sources that are longer in all are asked for ahead; shorter ones fit the first-level cache, where asking only costs.
const NEAR_BYTES: usize = 32 * 1024;

#[inline]
fn is_far(pass: &Pass<'_, '_, '_>) -> bool {
    pass.sources.len() * (pass.range.end - pass.range.start) > NEAR_BYTES
}

/// Asks for `bytes` of each source, [`AHEAD_BYTES`] beyond `at`.
#[inline(always)]
fn ask_ahead(sources: &[&[u8]], at: usize, bytes: usize) {
    for source in sources {
        for line in (0..bytes).step_by(64) {
            let address = source.as_ptr().wrapping_add(at + AHEAD_BYTES + line);
            // SAFETY: a prefetch never faults, wherever the address is.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
    }
}

/// Calls `$kernel::<outputs, vectors a block, first output is XOR>`.
macro_rules! with_outputs {
    ($kernel:ident, $pass:expr, $($outputs:literal => $vectors:literal),+) => {
        match ($pass.outputs.len(), $pass.first_is_xor) {
            $(
                // SAFETY: the caller has just checked that the processor has the features needed,
                // and the lengths.
                ($outputs, true) => unsafe { $kernel::<$outputs, $vectors, true>($pass) },
                // SAFETY: the same.
                ($outputs, false) => unsafe { $kernel::<$outputs, $vectors, false>($pass) },
            )+
            _ => scalar::run($pass),
        }
    };
}

/// Whether the range lies within every source and output, which the vector loads and stores rely on.
fn fits(pass: &Pass<'_, '_, '_>) -> bool {
    let end = pass.range.end;
    pass.sources.len() == pass.columns.len()
        && pass.sources.iter().all(|source| source.len() >= end)
        && pass.outputs.iter().all(|output| output.len() >= end)
}

/// By GFNI; scalar where there is none.
pub(super) fn run_gfni(pass: Pass<'_, '_, '_>) {
    if !has_gfni() || !fits(&pass) {
        return scalar::run(pass);
    }
    with_outputs!(gfni, pass, 1 => 4, 2 => 4, 3 => 4, 4 => 4, 5 => 2, 6 => 2, 7 => 2, 8 => 2);
}

/// By AVX2; scalar where there is none.
pub(super) fn run_avx2(pass: Pass<'_, '_, '_>) {
    if !has_avx2() || !fits(&pass) {
        return scalar::run(pass);
    }
    with_outputs!(avx2, pass, 1 => 2, 2 => 2, 3 => 2, 4 => 1, 5 => 1, 6 => 1, 7 => 1, 8 => 1);
}

fn pointers<const M: usize>(pass: &mut Pass<'_, '_, '_>) -> [*mut u8; M] {
    let mut pointers = [std::ptr::null_mut(); M];
    for (pointer, output) in pointers.iter_mut().zip(pass.outputs.iter_mut()) {
        *pointer = output.as_mut_ptr();
    }
    pointers
}

/// # Safety
/// `fits(&pass)` and `M` outputs.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
unsafe fn gfni<const M: usize, const W: usize, const XOR: bool>(mut pass: Pass<'_, '_, '_>) {
    let (outputs, mut at, end) = (pointers::<M>(&mut pass), pass.range.start, pass.range.end);
    // Shorter blocks, so that prefetches and uses take turns.
    while is_far(&pass) && at + 128 <= end {
        ask_ahead(pass.sources, at, 128);
        // SAFETY: 128 bytes from `at` on are within the range, so within all sources and outputs.
        unsafe { gfni_block::<M, 2, XOR>(&pass, &outputs, at, !0) };
        at += 128;
    }
    while at + 64 * W <= end {
        // SAFETY: 64 W bytes from `at` on are within the range, so within all sources and outputs.
        unsafe { gfni_block::<M, W, XOR>(&pass, &outputs, at, !0) };
        at += 64 * W;
    }
    while at < end {
        let mask = if end - at >= 64 { !0 } else { (1 << (end - at)) - 1 };
        // SAFETY: the mask has a bit for each byte that is left, so bytes beyond the range are not touched.
        unsafe { gfni_block::<M, 1, XOR>(&pass, &outputs, at, mask) };
        at += 64;
    }
}

/// # Safety
/// The bytes from `at` on that the mask has bits for, in each of `W` vectors, are within all sources and outputs.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
unsafe fn gfni_block<const M: usize, const W: usize, const XOR: bool>(
    pass: &Pass<'_, '_, '_>,
    outputs: &[*mut u8; M],
    at: usize,
    mask: u64,
) {
    let mut sums = [[_mm512_setzero_si512(); W]; M];
    if pass.adds {
        for (sums, output) in sums.iter_mut().zip(outputs) {
            // SAFETY: as the caller promises.
            *sums = unsafe { load_512::<W>(output.add(at), mask) };
        }
    }
    let (columns, sources) = (pass.columns.chunks(2), pass.sources.chunks(2));
    for (columns, sources) in columns.zip(sources) {
        // SAFETY: as the caller promises.
        let first = unsafe { load_512::<W>(sources[0].as_ptr().add(at), mask) };
        let [left, right] = columns else {
            for (o, sums) in sums.iter_mut().enumerate() {
                let matrix = _mm512_set1_epi64(columns[0].affine[o] as i64);
                for (sum, source) in sums.iter_mut().zip(first) {
                    *sum = _mm512_xor_si512(*sum, times::<XOR>(o, source, matrix));
                }
            }
            break;
        };
        // SAFETY: as the caller promises.
        let second = unsafe { load_512::<W>(sources[1].as_ptr().add(at), mask) };
        for (o, sums) in sums.iter_mut().enumerate() {
            let (a, b) =
                (_mm512_set1_epi64(left.affine[o] as i64), _mm512_set1_epi64(right.affine[o] as i64));
            for ((sum, first), second) in sums.iter_mut().zip(first).zip(second) {
                let (a, b) = (times::<XOR>(o, first, a), times::<XOR>(o, second, b));
                *sum = _mm512_ternarylogic_epi64::<0x96>(*sum, a, b);
            }
        }
    }
    for (sums, output) in sums.iter().zip(outputs) {
        for (w, sum) in sums.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { _mm512_mask_storeu_epi8(output.add(at + 64 * w).cast(), mask, *sum) };
        }
    }
}

/// The product for output `o`; the first output's is the source itself if it is a plain XOR.
#[target_feature(enable = "avx512f,avx512bw,gfni")]
#[inline]
fn times<const XOR: bool>(o: usize, source: __m512i, matrix: __m512i) -> __m512i {
    if XOR && o == 0 { source } else { _mm512_gf2p8affine_epi64_epi8::<0>(source, matrix) }
}

/// # Safety
/// The bytes of `W` vectors from `from` on that the mask has bits for may be read.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn load_512<const W: usize>(from: *const u8, mask: u64) -> [__m512i; W] {
    let mut vectors = [_mm512_setzero_si512(); W];
    for (w, vector) in vectors.iter_mut().enumerate() {
        // SAFETY: as the caller promises; masked bytes are not read.
        *vector = unsafe { _mm512_maskz_loadu_epi8(mask, from.add(64 * w).cast()) };
    }
    vectors
}

/// # Safety
/// `fits(&pass)` and `M` outputs.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const M: usize, const W: usize, const XOR: bool>(mut pass: Pass<'_, '_, '_>) {
    let (outputs, mut at, end) = (pointers::<M>(&mut pass), pass.range.start, pass.range.end);
    let is_far = is_far(&pass);
    while at + 32 * W <= end {
        if is_far && (at - pass.range.start).is_multiple_of(64) {
            ask_ahead(pass.sources, at, 64);
        }
        // SAFETY: 32 W bytes from `at` on are within the range, so within all sources and outputs.
        unsafe { avx2_block::<M, W, XOR>(&pass, &outputs, at) };
        at += 32 * W;
    }
    while at + 32 <= end {
        // SAFETY: 32 bytes from `at` on are within the range.
        unsafe { avx2_block::<M, 1, XOR>(&pass, &outputs, at) };
        at += 32;
    }
    pass.range.start = at;
    scalar::run(pass);
}

/// # Safety
/// 32 `W` bytes from `at` on are within all sources and outputs.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn avx2_block<const M: usize, const W: usize, const XOR: bool>(
    pass: &Pass<'_, '_, '_>,
    outputs: &[*mut u8; M],
    at: usize,
) {
    const { assert!(M <= MAX_OUTPUTS) };
    let half = _mm256_set1_epi8(15);
    let mut sums = [[_mm256_setzero_si256(); W]; M];
    if pass.adds {
        for (sums, output) in sums.iter_mut().zip(outputs) {
            // SAFETY: as the caller promises.
            *sums = unsafe { load_256::<W>(output.add(at)) };
        }
    }
    for (column, source) in pass.columns.iter().zip(pass.sources) {
        // SAFETY: as the caller promises.
        let source = unsafe { load_256::<W>(source.as_ptr().add(at)) };
        let (mut low, mut high) = (source, source);
        for w in 0..W {
            low[w] = _mm256_and_si256(source[w], half);
            high[w] = _mm256_and_si256(_mm256_srli_epi64::<4>(source[w]), half);
        }
        if XOR {
            for w in 0..W {
                sums[0][w] = _mm256_xor_si256(sums[0][w], source[w]);
            }
        }
        for o in usize::from(XOR)..M {
            let table = NIBBLES[usize::from(column.coefficients[o])].as_ptr();
            // SAFETY: a table has 32 bytes.
            let tables = unsafe { [_mm_loadu_si128(table.cast()), _mm_loadu_si128(table.add(16).cast())] };
            let [of_low, of_high] =
                [_mm256_broadcastsi128_si256(tables[0]), _mm256_broadcastsi128_si256(tables[1])];
            for w in 0..W {
                let product = _mm256_xor_si256(
                    _mm256_shuffle_epi8(of_low, low[w]),
                    _mm256_shuffle_epi8(of_high, high[w]),
                );
                sums[o][w] = _mm256_xor_si256(sums[o][w], product);
            }
        }
    }
    for (sums, output) in sums.iter().zip(outputs) {
        for (w, sum) in sums.iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { _mm256_storeu_si256(output.add(at + 32 * w).cast(), *sum) };
        }
    }
}

/// # Safety
/// The bytes of `W` vectors from `from` on may be read.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn load_256<const W: usize>(from: *const u8) -> [__m256i; W] {
    let mut vectors = [_mm256_setzero_si256(); W];
    for (w, vector) in vectors.iter_mut().enumerate() {
        // SAFETY: as the caller promises.
        *vector = unsafe { _mm256_loadu_si256(from.add(32 * w).cast()) };
    }
    vectors
}
