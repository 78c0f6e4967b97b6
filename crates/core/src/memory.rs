//! Scales default budgets: a program with little memory uses only a share of each.
//!
//! The share is set once at startup, before any memory is allocated by it, and is only read
//! afterwards.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits::MEMORY_FOR_DEFAULTS;

/// The whole of a budget, in thousandths.
const ALL: u32 = 1000;

static SHARE_PERMILLE: AtomicU32 = AtomicU32::new(ALL);

/// Returns the share of the default budgets, in thousandths, for a program with this much memory.
pub fn share_of(memory_bytes: u64) -> u32 {
    let permille = u128::from(memory_bytes) * u128::from(ALL) / u128::from(MEMORY_FOR_DEFAULTS);
    // At most `ALL`, so it fits.
    permille.min(u128::from(ALL)) as u32
}

/// Sets the share that [`scaled`] applies.
pub fn set_share(permille: u32) {
    SHARE_PERMILLE.store(permille.min(ALL), Ordering::Relaxed);
}

/// Returns the part of a default budget that this program may use.
pub fn scaled(default_bytes: usize) -> usize {
    by_share(default_bytes as u64, SHARE_PERMILLE.load(Ordering::Relaxed)) as usize
}

/// Returns `permille` thousandths of a budget.
pub fn by_share(default_bytes: u64, permille: u32) -> u64 {
    // Divides first if the product would overflow. The error is negligible, because budgets are far
    // larger than a thousand bytes.
    match default_bytes.checked_mul(u64::from(permille)) {
        Some(product) => product / u64::from(ALL),
        None => default_bytes / u64::from(ALL) * u64::from(permille),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_of_small_memory_scales_budgets_and_of_large_memory_does_not() {
        assert_eq!([0, 1 << 28, 1 << 30, u64::MAX].map(share_of), [0, 250, 1000, 1000]);
        assert_eq!(by_share(256 << 20, 250), 64 << 20);
        assert_eq!(by_share(u64::MAX, 1000), u64::MAX / 1000 * 1000);
        assert_eq!(scaled(12_345), 12_345, "all of it unless it is set");
    }
}
