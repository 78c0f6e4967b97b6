//! Runs the streams of an HTTP/2 connection, and resets a stream whose client reads it too slowly,
//! even if the rest of its connection is active.

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::sleep;

use super::progress::ResponseProgress;
use super::watch::Activity;
use crate::totals::Totals;

tokio::task_local! {
    /// The progress of the current stream.
    static PROGRESS: Arc<ResponseProgress>;
}

/// Spawns a task for each stream.
#[derive(Clone)]
pub(super) struct StreamExecutor {
    pub(super) activity: Arc<Activity>,
    pub(super) totals: Arc<Totals>,
    /// The shortest time without progress after which a stream is reset.
    pub(super) stall: Duration,
}

impl StreamExecutor {
    /// Returns the progress of the current stream.
    pub(super) fn progress() -> Arc<ResponseProgress> {
        // All streams run inside this scope, so the fallback is never used.
        PROGRESS.try_with(Arc::clone).unwrap_or_else(|_| ResponseProgress::new(None))
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self { activity, totals, stall } = self.clone();
        let progress = ResponseProgress::new(Some(Arc::clone(&activity)));
        tokio::spawn(PROGRESS.scope(Arc::clone(&progress), async move {
            tokio::select! {
                biased;
                _ = stream => return,
                () = progress.stalled(stall) => {}
            }
            // Dropping the future resets the stream.
            totals.add(|c| c.streams_too_slow += 1);
            sleep(stall).await;
            if !progress.is_all_written() {
                // The reset cannot be written either: the client reads nothing from the connection.
                activity.break_off();
            }
        }));
    }
}
