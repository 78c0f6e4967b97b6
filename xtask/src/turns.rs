//! Runs several items at a time, because they wait for most of their time; items that must be alone
//! come last, one by one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `one` for every item: those that may have company in their order, `at_once` at a time, then the others. `beside`
/// runs on a thread of its own as long as there is company.
pub(crate) fn take_turns<'a, T: Sync>(
    items: &'a [T],
    at_once: usize,
    alone: impl Fn(&T) -> bool,
    one: impl Fn(&'a T) + Sync,
    beside: impl FnOnce() + Send,
) {
    let (last, together): (Vec<&'a T>, Vec<&'a T>) = items.iter().partition(|item| alone(item));
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(beside);
        for _ in 0..at_once.min(together.len()) {
            scope.spawn(|| {
                while let Some(item) = together.get(next.fetch_add(1, Ordering::Relaxed)) {
                    one(item);
                }
            });
        }
    });
    last.into_iter().for_each(one);
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn take_turns_runs_allowed_number_at_once_and_each_once() {
        let (barrier, seen) = (Barrier::new(3), Mutex::new(Vec::new()));
        // No thread passes the barrier unless three are there.
        take_turns(
            &[1, 2, 3, 4, 5, 6],
            3,
            |_| false,
            |&n| {
                barrier.wait();
                seen.lock().unwrap().push(n);
            },
            || (),
        );
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn those_that_are_alone_come_last_and_one_by_one() {
        let (inside, seen) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        // Begins with another that has company, and keeps those that must be alone waiting.
        let start = Barrier::new(2);
        take_turns(
            &[-1, 2, -3, 4],
            4,
            |&n| n < 0,
            |&n| {
                if n == 2 {
                    start.wait();
                }
                let others = inside.fetch_add(1, Ordering::SeqCst);
                assert!(n > 0 || others == 0, "{n} has company");
                seen.lock().unwrap().push(n);
                inside.fetch_sub(1, Ordering::SeqCst);
            },
            || {
                start.wait();
                seen.lock().unwrap().push(0);
            },
        );
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen[3..], [-1, -3]);
        take_turns(&[], 4, |_: &u8| false, |_| panic!("there is nothing"), || ());
    }
}
