//! The kernel of 64-bit ARM: tables of half bytes, 16 bytes at a time. Every such processor has the instructions.
#![allow(unsafe_code, reason = "vector loads and stores take raw pointers")]

use core::arch::aarch64::*;

use super::field::NIBBLES;
use super::kernel::Pass;
use super::scalar;

#[inline]
pub(super) fn has_neon() -> bool {
    std::arch::is_aarch64_feature_detected!("neon")
}

/// By NEON; scalar where there is none.
pub(super) fn run(mut pass: Pass<'_, '_, '_>) {
    let (range, whole) = (pass.range.clone(), pass.range.len() / 16 * 16);
    if !has_neon() {
        return scalar::run(pass);
    }
    for at in (range.start..range.start + whole).step_by(16) {
        // SAFETY: the processor has NEON, just asked; slices of 16 bytes are checked where they are taken.
        unsafe { block(&mut pass, at) };
    }
    pass.range.start += whole;
    scalar::run(pass);
}

#[target_feature(enable = "neon")]
fn block(pass: &mut Pass<'_, '_, '_>, at: usize) {
    let half = vdupq_n_u8(15);
    let first = usize::from(pass.first_is_xor);
    let mut sums = [vdupq_n_u8(0); super::kernel::MAX_OUTPUTS];
    if pass.adds {
        for (sum, output) in sums.iter_mut().zip(pass.outputs.iter()) {
            *sum = load(&output[at..at + 16]);
        }
    }
    for (column, source) in pass.columns.iter().zip(pass.sources) {
        let source = load(&source[at..at + 16]);
        let (low, high) = (vandq_u8(source, half), vshrq_n_u8::<4>(source));
        if pass.first_is_xor {
            sums[0] = veorq_u8(sums[0], source);
        }
        for o in first..pass.outputs.len() {
            let (of_low, of_high) = NIBBLES[usize::from(column.coefficients[o])].split_at(16);
            let product = veorq_u8(vqtbl1q_u8(load(of_low), low), vqtbl1q_u8(load(of_high), high));
            sums[o] = veorq_u8(sums[o], product);
        }
    }
    for (sum, output) in sums.iter().zip(pass.outputs.iter_mut()) {
        let output = &mut output[at..at + 16];
        // SAFETY: 16 writable bytes.
        unsafe { vst1q_u8(output.as_mut_ptr(), *sum) };
    }
}

/// The first 16 bytes of a slice that has them.
#[target_feature(enable = "neon")]
#[inline]
fn load(bytes: &[u8]) -> uint8x16_t {
    let bytes = &bytes[..16];
    // SAFETY: 16 readable bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}
