//! A cache that makes each value once for all requests that wait for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

/// Values by key, the last one requested in front. A request that arrives while a value is made
/// waits for it.
#[derive(Debug)]
pub(crate) struct Recent<K, V>(Mutex<VecDeque<(K, Arc<OnceCell<V>>)>>);

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq, V> Recent<K, V> {
    pub(crate) fn cell(&self, key: K) -> Arc<OnceCell<V>> {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|(other, _)| *other == key);
        let cell = at.and_then(|at| list.remove(at)).map_or_else(Arc::default, |(_, cell)| cell);
        list.push_front((key, Arc::clone(&cell)));
        cell
    }

    /// Removes the least recently used entries until the sum of `weight` is at most `most`. Entries
    /// that are still being made stay, and so does the most recent finished one.
    pub(crate) fn trim(&self, most: usize, weight: impl Fn(&V) -> usize) {
        let mut sum = 0;
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(_, cell)| match cell.get() {
            // It is no longer being made: it could not be made.
            None => Arc::strong_count(cell) > 1,
            Some(value) => {
                let is_last = sum == 0;
                sum += weight(value);
                sum <= most || is_last
            }
        });
    }

    /// Removes all entries except those that are still being made.
    pub(crate) fn forget_all(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(_, cell)| !cell.initialized() && Arc::strong_count(cell) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recent_trim_removes_oldest_unused_values() {
        let recent = Recent::<u32, usize>::default();
        for key in 0..4 {
            recent.cell(key).set(10).unwrap();
        }
        recent.cell(1);
        let being_made = recent.cell(9);
        recent.cell(8);
        recent.trim(20, |&weight| weight);
        let keys: Vec<_> = recent.0.lock().unwrap().iter().map(|(key, _)| *key).collect();
        // 8 was given up, 9 is being made; 1 and 3 were asked for last.
        assert_eq!(keys, [9, 1, 3]);
        // An entry that exceeds the limit stays while it is the most recent one.
        recent.cell(7).set(100).unwrap();
        recent.trim(20, |&weight| weight);
        let keys = || recent.0.lock().unwrap().iter().map(|(key, _)| *key).collect::<Vec<_>>();
        assert_eq!(keys(), [7, 9]);
        recent.forget_all();
        assert_eq!(keys(), [9]);
        drop(being_made);
    }
}
