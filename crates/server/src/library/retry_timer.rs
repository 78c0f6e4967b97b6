//! When work that failed for a cause that may pass is tried again.

use std::ops::Add;
use std::time::Duration;

use crate::limits::control::{RETRY_AT_FIRST, RETRY_AT_MOST};

/// Time of the next attempt, by the clock of the caller. The wait doubles with each failure, up to a
/// maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryTimer<T> {
    due: T,
    wait: Duration,
}

impl<T: Copy + Ord + Add<Duration, Output = T>> RetryTimer<T> {
    /// Schedules the attempt after a failure; `before` is the timer of the failure before it, if
    /// nothing has succeeded since.
    pub(crate) fn after_failure(before: Option<Self>, now: T) -> Self {
        let wait = before.map_or(RETRY_AT_FIRST, |before| (before.wait * 2).min(RETRY_AT_MOST));
        Self { due: now + wait, wait }
    }

    /// The time of the attempt.
    pub(crate) fn due(&self) -> T {
        self.due
    }

    pub(crate) fn is_due(&self, now: T) -> bool {
        self.due <= now
    }

    /// Lets the next attempt be made at once. If it fails, the wait after it is longer all the same.
    pub(crate) fn expire(&mut self, now: T) {
        self.due = self.due.min(now);
    }
}

#[cfg(test)]
mod tests {
    use millrace_core::time::Instant;

    use super::*;

    #[test]
    fn timer_of_repeated_failures_doubles_up_to_maximum() {
        let mut now = Instant(7);
        let mut timer = RetryTimer::after_failure(None, now);
        let mut waits = Vec::new();
        for _ in 0..9 {
            assert!(!timer.is_due(now + (timer.wait - Duration::from_nanos(1))));
            assert!(timer.is_due(now + timer.wait));
            waits.push(timer.wait.as_secs());
            now = now + timer.wait;
            timer = RetryTimer::after_failure(Some(timer), now);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
    }

    #[test]
    fn expired_timer_is_due_and_keeps_growing() {
        let now = Instant(7);
        let mut timer = RetryTimer::after_failure(None, now);
        timer.expire(now);
        assert!(timer.is_due(now));
        assert_eq!(RetryTimer::after_failure(Some(timer), now).wait, RETRY_AT_FIRST * 2);
    }
}
