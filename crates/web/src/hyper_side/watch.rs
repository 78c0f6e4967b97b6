//! State shared by all streams of an HTTP/2 connection: whether it is in use, whether its client
//! has read anything yet, and whether it has to be closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use millrace_core::limits::web::{MAX_H2_STREAMS, UNPROVEN_H2_STREAMS};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::limits::{H2_LOOK, WEB_IDLE_TIME};

/// Counters of one connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// Requests that have come.
    begun: AtomicU64,
    /// Of these, answered whole or given up.
    ended: AtomicU64,
    /// Pieces of responses written, and of request bodies received.
    taken: AtomicU64,
    /// Permits to answer requests: a few at first, more once the client has made progress.
    places: Arc<Semaphore>,
    /// Notified when the connection has to be closed.
    broken: Notify,
}

/// A request under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Activity>);

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: AtomicU64::default(),
            ended: AtomicU64::default(),
            taken: AtomicU64::default(),
            places: Arc::new(Semaphore::new(UNPROVEN_H2_STREAMS)),
            broken: Notify::new(),
        })
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Records that a piece of a response was written, or a piece of a request body received.
    pub(super) fn took(&self) {
        if self.taken.fetch_add(1, Relaxed) == 0 {
            self.places.add_permits(MAX_H2_STREAMS as usize - UNPROVEN_H2_STREAMS);
        }
    }

    /// Waits for a permit to answer a request.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }

    /// Whether the requests in progress have reached the limit for clients without progress.
    pub(super) fn is_crowded(&self) -> bool {
        self.begun.load(Relaxed) - self.ended.load(Relaxed) >= UNPROVEN_H2_STREAMS as u64
    }

    /// Closes the connection and releases everything that it holds.
    pub(super) fn break_off(&self) {
        self.broken.notify_one();
    }

    pub(super) async fn broken(&self) {
        self.broken.notified().await;
    }

    /// Waits until no request is in progress and none has started or ended for [`WEB_IDLE_TIME`].
    pub(super) async fn idle(&self) {
        let mut watch = ConnectionWatch::default();
        while !watch.is_idle(self) {
            sleep(H2_LOOK).await;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}

/// Checks a connection periodically.
#[derive(Debug, Default)]
struct ConnectionWatch {
    seen: Option<(u64, u64)>,
    quiet: Duration,
}

impl ConnectionWatch {
    /// Returns whether the connection is idle. Called every [`H2_LOOK`].
    fn is_idle(&mut self, activity: &Activity) -> bool {
        let now = (activity.begun.load(Relaxed), activity.ended.load(Relaxed));
        self.quiet = if self.seen == Some(now) { self.quiet + H2_LOOK } else { Duration::ZERO };
        self.seen = Some(now);
        now.0 == now.1 && self.quiet >= WEB_IDLE_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_of_a_connection_without_requests_is_idle_after_its_time() {
        let activity = Activity::new();
        let mut watch = ConnectionWatch::default();
        let mut looks = |most: u32| (1..=most).find(|_| watch.is_idle(&activity));
        let idle = WEB_IDLE_TIME.div_duration_f64(H2_LOOK) as u32;
        assert_eq!(looks(1000), Some(idle + 1));
        let request = activity.begin();
        assert_eq!(looks(1000), None, "a request is under way");
        drop(request);
        assert_eq!(looks(1000), Some(idle + 1));
    }

    #[test]
    fn places_are_few_until_something_is_taken() {
        let activity = Activity::new();
        assert_eq!(activity.places.available_permits(), UNPROVEN_H2_STREAMS);
        activity.took();
        activity.took();
        assert_eq!(activity.places.available_permits(), MAX_H2_STREAMS as usize);
    }
}
