//! Reading the spans of an extent (media, parity, records, range sums; of one file or of a file on each member of a volume)
//! into staging memory: many at once, in any order.
//!
//! Two backends with one interface: io_uring ([`uring`]) and a few threads that call `pread`
//! ([`threads`]). Their shared state of the reads in progress is in [`parts`]: the spans that one
//! member answers are one *part* ([`part`]). Each part has memory of its own, so that an unanswered
//! read can be put aside until the kernel is done with it while the place is used for other reads.
//! Orders of consecutive extents are begun together: each member then has one part for all of them.

mod part;
mod parts;
#[cfg(feature = "sim")]
pub(super) mod simulated;
mod span;
mod staging;
mod threads;
mod uring;

#[cfg(test)]
pub(super) use threads::MAX_OF_MEMBER;

use std::sync::Arc;
use std::time::Duration;

use millrace_core::time::Instant;

use super::config::ReadBackend;
use super::error::CacheError;
use super::order::{Order, SpanResult};
use crate::bell::EventBell;
use crate::disk::ReadFaults;
use crate::member_set::MemberSet;

/// The unanswered reads at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unanswered {
    /// Members with missing data.
    pub(super) members: MemberSet,
    /// Members whose reads have been under way for [`SLOW_READ_NS`](millrace_core::limits::SLOW_READ_NS) or longer.
    pub(super) late: MemberSet,
    /// Members whose reads have not even begun: no member is to blame yet.
    pub(super) queued: MemberSet,
    /// Staging memory of the missing data, in bytes.
    pub(super) bytes: usize,
    /// When part of the missing data was last seen to arrive, or its read to begin. None: no read
    /// has begun.
    pub(super) news: Option<Instant>,
}

/// A read that was given up and that a member still owes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) member: u16,
    /// No other has this number until this one has ended.
    pub(super) number: usize,
}

/// Reads orders into staging memory. A read is begun in a *place*, which is free again when the place has been named by
/// [`ExtentReader::next_done`], or has been given up.
pub(super) trait ExtentReader: Send {
    /// "io_uring" or "threads".
    fn name(&self) -> &'static str;

    /// Begins reads in places that are free, together: spans that are [joined](super::order::SpanOrder::joined) are one read.
    fn begin_run(&mut self, now: Instant, batch: &[(usize, &Order)]);

    /// Begins one.
    fn begin(&mut self, now: Instant, place: usize, order: &Order) {
        self.begin_run(now, &[(place, order)]);
    }

    /// Collects completions. If there are none, sleeps until one arrives, until
    /// [`EventBell::ring`], or until `limit` has passed. With a limit of zero it never sleeps.
    fn wait(&mut self, now: Instant, limit: Option<Duration>);

    /// A place whose read has ended.
    fn next_done(&mut self) -> Option<usize>;

    /// Whether [`ExtentReader::next_done`] or [`ExtentReader::next_late`] has something without
    /// [`ExtentReader::wait`].
    fn has_done(&self) -> bool;

    /// Returns the results of the last read in a place, one for each span of its order; nothing
    /// while it is in flight.
    fn results(&self, place: usize) -> Vec<SpanResult<'_>>;

    /// Releases the memory and files of the last read in a free place when its results are no
    /// longer needed.
    fn forget(&mut self, place: usize) {
        let _ = place;
    }

    /// Returns the data still missing at a place.
    fn unanswered(&mut self, now: Instant, place: usize) -> Unanswered;

    /// Whoever looks at the reads under way did not run for `ns` before `now`: that time is not counted against them.
    fn forgive(&mut self, now: Instant, ns: u64);

    /// Stops waiting for the missing data at a place: its memory is put aside until the kernel is
    /// done with it, its results are `ETIMEDOUT`, the place is done and [`ExtentReader::next_done`] does
    /// not return it. Returns the reads put aside.
    fn give_up(&mut self, place: usize) -> Vec<Owed>;

    /// Returns a read that was given up and has ended after all.
    fn next_late(&mut self) -> Option<Owed>;

    /// Memory that is put aside, in bytes.
    fn aside_bytes(&self) -> usize;

    /// When a simulated disk answers next.
    #[cfg(feature = "sim")]
    fn next_answer(&self) -> Option<Instant> {
        None
    }
}

/// Starts the requested backend, or the best available, with `places` places, sized for the `usual`
/// number of simultaneous reads.
///
/// # Errors
/// If the requested backend is not available here, or no memory or threads are left.
pub(super) fn start(
    backend: ReadBackend,
    (places, usual): (usize, usize),
    wake: &Arc<EventBell>,
    faults: &ReadFaults,
) -> Result<Box<dyn ExtentReader>, CacheError> {
    let uring = || uring::Uring::new((places, usual), Arc::clone(wake), faults.clone());
    let threads = || {
        threads::Threads::new((places, usual), Arc::clone(wake), faults.clone())
            .map_err(CacheError::Resources)
    };
    match backend {
        ReadBackend::Uring => Ok(Box::new(uring().map_err(CacheError::Uring)?)),
        ReadBackend::Threads => Ok(Box::new(threads()?)),
        ReadBackend::Auto => match uring() {
            Ok(uring) => Ok(Box::new(uring)),
            Err(_) => Ok(Box::new(threads()?)),
        },
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
