//! The progress of one response: how much of it has been written, and whether its client reads it.
//! Other activity on the connection does not count, because a client can keep the window of one
//! HTTP/2 stream closed while it sends other requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::time::sleep;

use super::watch::Activity;
use crate::limits::{LEAST_REPLY_RATE, STALL_LOOKS};

/// Shared by the body of the response, its pieces, and the task that resets it.
#[derive(Debug)]
pub(super) struct ResponseProgress {
    state: Mutex<ProgressState>,
    /// The activity of the connection, if it carries several responses.
    activity: Option<Arc<Activity>>,
}

#[derive(Debug, Default)]
struct ProgressState {
    /// The minimum progress of the client; `None` until the response begins.
    pace: Option<MinimumPace>,
    /// Pieces that the connection has taken and not yet written.
    unwritten: usize,
    /// Pieces that were written.
    written: u64,
    /// The body waits for an engine or for the next event.
    is_dry: bool,
    /// Wakes the body once all pieces are written.
    waker: Option<Waker>,
}

/// The minimum progress of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MinimumPace {
    /// The longest time without progress.
    pub(super) stall: Duration,
    /// Length of a response in memory, which must be read at [`LEAST_REPLY_RATE`] or faster.
    pub(super) length: Option<u64>,
}

/// A piece of a response. It counts as written when the last reference to it is dropped.
struct TrackedBytes {
    bytes: Bytes,
    progress: Arc<ResponseProgress>,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for TrackedBytes {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.progress.lock();
            state.unwritten -= 1;
            state.written += 1;
            state.waker.take()
        };
        if let Some(activity) = &self.progress.activity {
            activity.took();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl ResponseProgress {
    pub(super) fn new(activity: Option<Arc<Activity>>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), activity })
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the clock: the response begins.
    pub(super) fn begins(&self, pace: MinimumPace) {
        self.lock().pace = Some(pace);
    }

    /// Wraps bytes that are handed to the connection.
    pub(super) fn piece(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        {
            let mut state = self.lock();
            state.unwritten += 1;
            state.is_dry = false;
        }
        Bytes::from_owner(TrackedBytes { bytes, progress: Arc::clone(self) })
    }

    /// Records that the body waits for its next bytes.
    pub(super) fn runs_dry(&self) {
        self.lock().is_dry = true;
    }

    pub(super) fn is_all_written(&self) -> bool {
        self.lock().unwritten == 0
    }

    /// Waits until all pieces are written.
    pub(super) fn poll_written(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.unwritten == 0 {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns once the client has made no progress for too long, or too little. `stall` is the
    /// shortest such time; checks are a fraction of it apart.
    pub(super) async fn stalled(&self, stall: Duration) {
        let look_every = stall / STALL_LOOKS;
        let mut look = ProgressSnapshot::default();
        loop {
            sleep(look_every).await;
            if self.is_stalled(&mut look, look_every) {
                return;
            }
        }
    }

    fn is_stalled(&self, look: &mut ProgressSnapshot, after: Duration) -> bool {
        let state = self.lock();
        let Some(pace) = state.pace else { return false };
        let has_moved = state.written != look.written || state.is_dry && state.unwritten == 0;
        look.written = state.written;
        look.quiet = if has_moved { Duration::ZERO } else { look.quiet + after };
        look.all += after;
        let is_too_slow = pace
            .length
            .is_some_and(|length| look.all >= pace.stall + Duration::from_secs(length / LEAST_REPLY_RATE));
        look.quiet >= pace.stall || is_too_slow
    }
}

/// Progress of a response at the last check.
#[derive(Debug, Default)]
struct ProgressSnapshot {
    written: u64,
    /// How long no piece was written.
    quiet: Duration,
    /// Age of the response.
    all: Duration,
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    const LOOK: Duration = Duration::from_secs(5);

    /// Checks progress until it stalls, for at most a day; returns the seconds until then.
    fn stalls_after(
        progress: &ResponseProgress,
        look: &mut ProgressSnapshot,
        mut each: impl FnMut(),
    ) -> Option<u64> {
        (1..24 * 3600 / LOOK.as_secs()).find_map(|looks| {
            each();
            progress.is_stalled(look, LOOK).then_some(looks * LOOK.as_secs())
        })
    }

    fn pace(length: Option<u64>) -> MinimumPace {
        MinimumPace { stall: Duration::from_secs(30), length }
    }

    #[test]
    fn stalled_without_bytes_taken_after_its_time() {
        let progress = ResponseProgress::new(None);
        assert_eq!(
            stalls_after(&progress, &mut ProgressSnapshot::default(), || ()),
            None,
            "there is no response yet"
        );
        progress.begins(pace(None));
        assert_eq!(stalls_after(&progress, &mut ProgressSnapshot::default(), || ()), Some(30));
        // One piece that is never written, and pieces that are.
        let mut piece = progress.piece(Bytes::from_static(b"abc"));
        assert_eq!(stalls_after(&progress, &mut ProgressSnapshot::default(), || ()), Some(30));
        let each = || piece = progress.piece(Bytes::from_static(b"abc"));
        assert_eq!(stalls_after(&progress, &mut ProgressSnapshot::default(), each), None);
        // A body that waits for its source does not count against the client.
        drop(piece);
        progress.runs_dry();
        assert_eq!(stalls_after(&progress, &mut ProgressSnapshot::default(), || ()), None);
    }

    #[test]
    fn stalled_by_a_drip_of_what_is_in_memory() {
        let progress = ResponseProgress::new(None);
        progress.begins(pace(Some(10 * LEAST_REPLY_RATE)));
        let each = || drop(progress.piece(Bytes::from_static(b"abc")));
        assert_eq!(stalls_after(&progress, &mut ProgressSnapshot::default(), each), Some(40));
    }

    #[test]
    fn poll_written_is_woken_by_the_last_part_of_a_piece() {
        let progress = ResponseProgress::new(None);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(progress.poll_written(&mut cx).is_ready());
        let piece = progress.piece(Bytes::from_static(b"abc"));
        let part = piece.slice(1..2);
        drop(piece);
        assert!(progress.poll_written(&mut cx).is_pending() && !progress.is_all_written());
        drop(part);
        assert!(progress.lock().waker.is_none(), "it was woken");
        assert!(progress.poll_written(&mut cx).is_ready() && progress.is_all_written());
    }
}
