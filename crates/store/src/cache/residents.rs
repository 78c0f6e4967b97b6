//! The whole extents in memory, which engines lease without another thread.
//!
//! The manager enters an extent after its fill, and removes it before the next one. An engine looks it up by its number and
//! leases it under the same lock, but only if the lock is free. If the look-up fails, the engine asks the manager.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_core::pool::{ExtentArena, ExtentContent, Lease};

use super::plan::ExtentKey;

/// Entries of a set. There is one set per extent of the arena, so the table is at most a quarter full, and about 4 of 1,000
/// extents find no place in their set.
const WAYS: usize = 4;

type Set = [Option<(u32, ExtentContent)>; WAYS];

/// See the module.
pub(super) struct ResidentExtents {
    arena: Arc<ExtentArena>,
    sets: Box<[Mutex<Set>]>,
}

impl ResidentExtents {
    /// For an arena with nothing in it.
    pub(super) fn new(arena: Arc<ExtentArena>) -> Arc<Self> {
        let sets = (arena.extents().max(1) as usize).next_power_of_two();
        Arc::new(Self { arena, sets: (0..sets).map(|_| Mutex::default()).collect() })
    }

    /// Where the extents lie.
    pub(super) fn arena(&self) -> &Arc<ExtentArena> {
        &self.arena
    }

    fn set(&self, key: ExtentKey) -> &Mutex<Set> {
        let number = u64::from(key.title.0) << 32 | u64::from(key.extent);
        // Multiplicative hashing (Knuth, volume 3, section 6.4): the upper bits depend on all bits of the number.
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.sets[mixed as usize & (self.sets.len() - 1)]
    }

    fn lock(&self, key: ExtentKey) -> MutexGuard<'_, Set> {
        // A panic cannot leave an entry half written.
        self.set(key).lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases an extent, if it is here and its set is not being changed. Never waits.
    pub(super) fn lend(&self, key: ExtentKey) -> Option<Lease> {
        let set = self.set(key).try_lock().ok()?;
        let (slot, content) = set.iter().flatten().find(|(_, content)| is_of(content, key))?;
        self.arena.lend(*slot, *content)
    }

    /// Enters a filled extent, in place of another one with this number. An extent with holes does not suit every viewer, so it
    /// is left out.
    pub(super) fn put(&self, slot: u32, content: ExtentContent) {
        let key = ExtentKey { title: content.title, extent: content.number };
        let mut set = self.lock(key);
        clear(&mut set, key);
        if content.spare == 0 {
            let way = set.iter().position(Option::is_none).unwrap_or(slot as usize % WAYS);
            set[way] = Some((slot, content));
        }
    }

    /// Removes an extent: it can no longer be leased by this way.
    pub(super) fn remove(&self, key: ExtentKey) {
        clear(&mut self.lock(key), key);
    }
}

fn is_of(content: &ExtentContent, key: ExtentKey) -> bool {
    content.title == key.title && content.number == key.extent
}

fn clear(set: &mut Set, key: ExtentKey) {
    set.iter_mut()
        .filter(|entry| entry.is_some_and(|(_, content)| is_of(&content, key)))
        .for_each(|entry| *entry = None);
}

#[cfg(test)]
#[path = "residents_tests.rs"]
mod tests;
