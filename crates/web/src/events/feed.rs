//! Publishes events to listeners, each with a short queue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::news::SiteEvent;
use crate::limits::{EVENTS_QUEUED, MAX_EVENT_LISTENERS, MAX_EVENTS_PER_S};

/// Sent to a listener that was too slow; browsers and `top` reconnect by themselves.
const TOO_SLOW: &[u8] = b": closed: you do not read as fast as things happen; connect again\n\n";

/// Publishes events, from any thread.
#[derive(Clone, Debug, Default)]
pub struct Feed(Arc<FeedShared>);

#[derive(Debug, Default)]
struct FeedShared {
    open: Mutex<FeedListeners>,
    /// Number of listeners: nothing is locked while there are none.
    listeners: AtomicUsize,
}

#[derive(Debug, Default)]
struct FeedListeners {
    listeners: Vec<To>,
    is_ticking: bool,
    /// Events sent in this second, and the number left out.
    told: usize,
    left_out: u64,
}

/// The near end of a listener's queue.
#[derive(Debug)]
struct To {
    frames: mpsc::Sender<Bytes>,
    is_too_slow: Arc<AtomicBool>,
}

/// The far end.
#[derive(Debug)]
pub(crate) struct Listener {
    frames: mpsc::Receiver<Bytes>,
    is_too_slow: Arc<AtomicBool>,
}

impl Feed {
    /// Tells all listeners; `news` is called only if there are any.
    pub fn tell(&self, news: impl FnOnce() -> SiteEvent) {
        if self.0.listeners.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut open = self.open();
        if open.told >= MAX_EVENTS_PER_S {
            open.left_out += 1;
            return;
        }
        open.told += 1;
        self.send(&mut open, &news().frame());
    }

    fn open(&self) -> MutexGuard<'_, FeedListeners> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, open: &mut FeedListeners, frame: &Bytes) {
        open.listeners.retain(|to| match to.frames.try_send(frame.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                to.is_too_slow.store(true, Ordering::Relaxed);
                false
            }
        });
        self.0.listeners.store(open.listeners.len(), Ordering::Relaxed);
    }

    /// Adds a listener, and returns it with whether the caller must start the ticker; `None`: there
    /// are too many.
    pub(crate) fn listen(&self) -> Option<(Listener, bool)> {
        let mut open = self.open();
        open.listeners.retain(|to| !to.frames.is_closed());
        if open.listeners.len() >= MAX_EVENT_LISTENERS {
            return None;
        }
        let (to, frames) = mpsc::channel(EVENTS_QUEUED);
        let is_too_slow = Arc::new(AtomicBool::new(false));
        open.listeners.push(To { frames: to, is_too_slow: Arc::clone(&is_too_slow) });
        self.0.listeners.store(open.listeners.len(), Ordering::Relaxed);
        let begins = !std::mem::replace(&mut open.is_ticking, true);
        Some((Listener { frames, is_too_slow }, begins))
    }

    /// Ends a second and sends its frames, with the number of events left out in it; `None`: there
    /// are no listeners, and no more ticks are needed.
    pub(crate) fn tick(&self, frames: impl FnOnce(u64) -> Vec<Bytes>) -> Option<()> {
        let mut open = self.open();
        open.told = 0;
        let left_out = std::mem::take(&mut open.left_out);
        for frame in frames(left_out) {
            self.send(&mut open, &frame);
        }
        open.is_ticking = !open.listeners.is_empty();
        open.is_ticking.then_some(())
    }

    /// Ends all responses.
    pub(crate) fn close(&self) {
        let mut open = self.open();
        (open.listeners, open.is_ticking) = (Vec::new(), false);
        self.0.listeners.store(0, Ordering::Relaxed);
    }
}

impl Listener {
    /// The next piece of the response; `None`: it has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.frames.poll_recv(cx).map(|frame| {
            let is_told = || self.is_too_slow.swap(false, Ordering::Relaxed);
            frame.or_else(|| is_told().then(|| Bytes::from_static(TOO_SLOW)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn news(number: u64) -> SiteEvent {
        SiteEvent::TitleRemoved { title: number.to_string(), id: String::new() }
    }

    /// What waits in a listener's queue; whether its response has ended behind that.
    fn read(listener: &mut Listener) -> (Vec<String>, bool) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut frames = Vec::new();
        loop {
            match listener.poll(&mut cx) {
                Poll::Ready(Some(frame)) => frames.push(String::from_utf8(frame.to_vec()).unwrap()),
                Poll::Ready(None) => return (frames, true),
                Poll::Pending => return (frames, false),
            }
        }
    }

    #[test]
    fn feed_without_listeners_builds_no_event() {
        let feed = Feed::default();
        feed.tell(|| panic!("nobody listens"));
        let (listener, begins) = feed.listen().unwrap();
        assert!(begins && !feed.listen().unwrap().1, "one ticks for all");
        drop(listener);
        // It is noticed at the next event that it has gone.
        assert_eq!(feed.tick(|_| vec![Bytes::from_static(b"x")]), None);
        feed.tell(|| panic!("nobody listens"));
        assert!(feed.listen().unwrap().1, "the next one has to tick again");
    }

    #[test]
    fn slow_listener_is_dropped_without_affecting_others() {
        let feed = Feed::default();
        let (mut slow, _) = feed.listen().unwrap();
        let (mut quick, _) = feed.listen().unwrap();
        let mut count = 0;
        for number in 0..3 * EVENTS_QUEUED as u64 {
            feed.tell(|| news(number));
            if number % MAX_EVENTS_PER_S as u64 == 0 {
                feed.tick(|_| Vec::new()).unwrap();
            }
            count += read(&mut quick).0.len();
        }
        let (frames, has_ended) = read(&mut slow);
        assert_eq!((frames.len(), has_ended), (EVENTS_QUEUED + 1, true));
        assert!(frames[0].starts_with("event: title_removed\ndata: {"), "{}", frames[0]);
        assert_eq!(frames.last().map(String::as_bytes), Some(TOO_SLOW));
        assert_eq!((count, read(&mut quick)), (3 * EVENTS_QUEUED, (Vec::new(), false)));
    }

    #[test]
    fn feed_limits_events_per_second_and_counts_rest() {
        let feed = Feed::default();
        let (mut listener, _) = feed.listen().unwrap();
        for number in 0..MAX_EVENTS_PER_S as u64 + 7 {
            feed.tell(|| news(number));
        }
        assert_eq!(read(&mut listener).0.len(), MAX_EVENTS_PER_S);
        let mut left_out = 0;
        feed.tick(|count| {
            left_out = count;
            Vec::new()
        });
        assert_eq!(left_out, 7);
        feed.tell(|| news(1));
        assert_eq!(read(&mut listener).0.len(), 1);
    }

    #[test]
    fn places_are_given_back() {
        let feed = Feed::default();
        let mut all: Vec<_> = (0..MAX_EVENT_LISTENERS).map(|_| feed.listen().unwrap().0).collect();
        assert!(feed.listen().is_none());
        all.pop();
        assert!(feed.listen().is_some());
        feed.close();
        assert_eq!(read(&mut all[0]), (Vec::new(), true), "the server ends: nobody was too slow");
    }
}
