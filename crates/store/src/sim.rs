//! Replacements on the thread of a simulation: for threads that are waited for, and for random
//! bytes. Other threads are not affected, so programs that are built with this feature and do not
//! call [`enter`] behave as without it.

use std::cell::RefCell;

use millrace_core::random::SplitMix;

thread_local! {
    static RANDOM: RefCell<Option<SplitMix>> = const { RefCell::new(None) };
}

/// From now on this thread makes blocking calls itself, so that no real time decides whether a disk
/// has answered, and its random bytes follow from `seed`.
pub fn enter(seed: u64) {
    RANDOM.set(Some(SplitMix(seed)));
}

/// Whether this thread runs a simulation.
pub fn is_entered() -> bool {
    RANDOM.with_borrow(Option::is_some)
}

/// Fills `bytes` from the seed; `false`: this thread runs no simulation.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    RANDOM.with_borrow_mut(|random| {
        let Some(random) = random else { return false };
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
        }
        true
    })
}
