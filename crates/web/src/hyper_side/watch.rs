//! Whether an HTTP/2 connection is still used. That it answers pings says only that a program is there: it may want nothing any more, or take nothing
//! of what it wanted, because it keeps the windows of its streams shut.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use millrace_core::limits::web::{H2_LOOK, MAX_BYTES_STALL_NS, WEB_IDLE_TIME};

/// What a connection does.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests that have come.
    begun: AtomicU64,
    /// Of these, answered whole or given up.
    ended: AtomicU64,
    /// Pieces of responses that the viewer had room for, and of what it brought.
    taken: AtomicU64,
}

/// A request under way; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Activity>);

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is used.
    Used,
    /// For too long no request has come.
    Idle,
    /// For too long nothing of its responses was taken.
    Stuck,
}

/// Looks at a connection from time to time.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: (u64, u64, u64),
    quiet: Duration,
}

impl Activity {
    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> UnderWay {
        self.begun.fetch_add(1, Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Something has come of a request's body.
    pub(super) fn beat(&self) {
        self.taken.fetch_add(1, Relaxed);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Relaxed);
    }
}

impl Watch {
    /// How it stands, [`H2_LOOK`] after the last look.
    pub(super) fn look(&mut self, activity: &Activity) -> State {
        let (begun, ended) = (activity.begun.load(Relaxed), activity.ended.load(Relaxed));
        let now = (begun, ended, activity.taken.load(Relaxed));
        self.quiet = if now == self.seen { self.quiet + H2_LOOK } else { Duration::ZERO };
        self.seen = now;
        match begun == ended {
            true if self.quiet >= WEB_IDLE_TIME => State::Idle,
            false if self.quiet >= Duration::from_nanos(MAX_BYTES_STALL_NS) => State::Stuck,
            _ => State::Used,
        }
    }
}

/// A response's body. It is asked for its next piece when the viewer has room for some of it.
pub(super) struct Watched<B> {
    body: B,
    request: UnderWay,
}

impl<B> Watched<B> {
    pub(super) fn new(body: B, request: UnderWay) -> Self {
        Self { body, request }
    }
}

impl<B: Body + Unpin> Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_ready() {
            self.request.0.taken.fetch_add(1, Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until it is no longer used; how long that took.
    fn quiet(watch: &mut Watch, activity: &Activity) -> (State, Duration) {
        let mut time = Duration::ZERO;
        loop {
            match watch.look(activity) {
                State::Used => time += H2_LOOK,
                state => return (state, time),
            }
        }
    }

    #[test]
    fn a_connection_without_requests_is_idle_and_one_that_takes_nothing_is_stuck() {
        let activity = Arc::new(Activity::default());
        let mut watch = Watch::default();
        let within = |time: Duration, bound: Duration| time >= bound - H2_LOOK && time <= bound + H2_LOOK;
        let (state, time) = quiet(&mut watch, &activity);
        assert!(state == State::Idle && within(time, WEB_IDLE_TIME), "{state:?} {time:?}");
        let request = activity.begin();
        assert_eq!(watch.look(&activity), State::Used);
        let (state, time) = quiet(&mut watch, &activity);
        let stall = Duration::from_nanos(MAX_BYTES_STALL_NS);
        assert!(state == State::Stuck && within(time, stall), "{state:?} {time:?}");
        // Whoever takes a piece now and then is not.
        for _ in 0..50 {
            activity.taken.fetch_add(1, Relaxed);
            assert_eq!((watch.look(&activity), watch.look(&activity)), (State::Used, State::Used));
        }
        drop(request);
        assert_eq!(watch.look(&activity), State::Used);
        assert_eq!(quiet(&mut watch, &activity).0, State::Idle);
    }
}
