//! The results of a transformation: counted by the code that fills extents, read by the code that
//! shows counters and writes the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use millrace_core::ids::TitleId;
use millrace_core::time::Instant;

use super::block::{Applied, TransformError};
use crate::limits::transform::{MAX_TRANSFORM_WARNED, TRANSFORM_WARN_EVERY_NS};

millrace_core::counters! {
    /// The activity of a transformation.
    pub struct TransformCounters {
        /// Blocks (extents of packets) that it has changed.
        sum transformed_blocks,
        /// Blocks that it has failed at: they were sent as they are stored.
        sum failed_blocks,
        /// TS packets that could not be changed as they should and were made null packets.
        sum left_out_packets,
    }
}

/// A block that stayed as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The title.
    pub title: TitleId,
    /// The block's first TS packet, counted from the title's start.
    pub first_ts: u64,
    /// Why.
    pub error: TransformError,
}

/// The activity of a transformation, for all titles.
#[derive(Debug, Default)]
pub struct TransformActivity {
    blocks: AtomicU64,
    failed: AtomicU64,
    left_out: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// Failures that have not been taken yet: the last one of each title.
    failures: VecDeque<Failure>,
    /// When a failure of a title was taken last.
    taken: VecDeque<(TitleId, Instant)>,
}

impl TransformActivity {
    pub(super) fn count(&self, applied: Applied) {
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.left_out.fetch_add(applied.left_out.into(), Ordering::Relaxed);
    }

    pub(super) fn failed(&self, title: TitleId, first_ts: u64, error: TransformError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.failures.retain(|failure| failure.title != title);
        push_bounded(&mut last.failures, Failure { title, first_ts, error });
    }

    /// Returns a failure to log: the last one of a title that has had no failure taken for a
    /// minute.
    pub fn take_failure(&self, now: Instant) -> Option<Failure> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Last { failures, taken } = &mut *last;
        let is_recent = |at: &Instant| now.ns_since(*at) < TRANSFORM_WARN_EVERY_NS;
        taken.retain(|(_, at)| is_recent(at));
        let due =
            failures.iter().position(|failure| taken.iter().all(|(title, _)| *title != failure.title))?;
        let failure = failures.remove(due)?;
        push_bounded(taken, (failure.title, now));
        Some(failure)
    }

    /// Returns the current counts.
    pub fn counters(&self) -> TransformCounters {
        TransformCounters {
            transformed_blocks: self.blocks.load(Ordering::Relaxed),
            failed_blocks: self.failed.load(Ordering::Relaxed),
            left_out_packets: self.left_out.load(Ordering::Relaxed),
        }
    }
}

fn push_bounded<T>(list: &mut VecDeque<T>, entry: T) {
    if list.len() >= MAX_TRANSFORM_WARNED {
        list.pop_front();
    }
    list.push_back(entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_failure_reports_title_once_a_minute_with_last_failure() {
        let report = TransformActivity::default();
        let fail = |title: u8, first_ts| {
            report.failed(TitleId([title; 16]), first_ts, TransformError::OutOfFuel(7));
        };
        let take =
            |now| report.take_failure(Instant(now)).map(|failure| (failure.title.0[0], failure.first_ts));
        (1..100).for_each(|at| fail(1, at));
        fail(2, 5);
        assert_eq!([take(0), take(0), take(0)], [Some((1, 99)), Some((2, 5)), None]);
        fail(1, 100);
        assert_eq!(take(TRANSFORM_WARN_EVERY_NS - 1), None);
        assert_eq!([take(TRANSFORM_WARN_EVERY_NS), take(TRANSFORM_WARN_EVERY_NS)], [Some((1, 100)), None]);
        assert_eq!(report.counters().failed_blocks, 101);
    }

    #[test]
    fn take_failure_backlog_is_bounded() {
        let report = TransformActivity::default();
        for title in 0..=255 {
            report.failed(TitleId([title; 16]), 0, TransformError::OutOfFuel(7));
        }
        let mut taken = 0;
        while report.take_failure(Instant(0)).is_some() {
            taken += 1;
        }
        assert_eq!(taken, MAX_TRANSFORM_WARNED);
    }
}
