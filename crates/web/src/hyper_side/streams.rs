//! Runs the streams of an HTTP/2 connection, and resets those of which the viewer takes too little, whatever else its connection does.

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use tokio::time::sleep;

use super::progress::Progress;
use super::watch::Activity;
use crate::totals::Totals;

tokio::task_local! {
    /// Of the stream that is run.
    static PROGRESS: Arc<Progress>;
}

/// Runs each stream as a task.
#[derive(Clone)]
pub(super) struct Streams {
    pub(super) activity: Arc<Activity>,
    pub(super) totals: Arc<Totals>,
    /// The shortest time in which the viewer may take nothing.
    pub(super) stall: Duration,
}

impl Streams {
    /// The progress of the stream that is run now.
    pub(super) fn progress() -> Arc<Progress> {
        // Streams are run here and nowhere else.
        PROGRESS.try_with(Arc::clone).unwrap_or_else(|_| Progress::new(None))
    }
}

impl<F> Executor<F> for Streams
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let Self { activity, totals, stall } = self.clone();
        let progress = Progress::new(Some(Arc::clone(&activity)));
        tokio::spawn(PROGRESS.scope(Arc::clone(&progress), async move {
            tokio::select! {
                biased;
                _ = stream => return,
                () = progress.stalled(stall) => {}
            }
            // Dropped, it is reset.
            totals.add(|c| c.streams_too_slow += 1);
            sleep(stall).await;
            if !progress.is_all_written() {
                // The reset cannot be written either: the viewer takes nothing of the connection.
                activity.break_off();
            }
        }));
    }
}
