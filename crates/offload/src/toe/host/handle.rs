//! The handle to a thread's queue pair, and calls that wait for its engine.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millrace_core::limits::toe::MAX_SLEEP_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_tcp::ports::PortSet;

use super::home::Home;
use super::state::{self, HostState};
use crate::bell::EventBell;
use crate::clock::MonotonicClock;

/// A thread's queue pair. Sockets are made with it and stay on its thread; when it and all of them are dropped, another thread can have the pair.
#[derive(Clone)]
pub struct Host(pub(super) Rc<HostCell>);

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

pub(super) struct HostCell {
    /// Taken out only when this goes.
    pub(super) state: RefCell<Option<HostState>>,
    pub(super) bell: Arc<EventBell>,
    pub(super) home: Arc<Home>,
    /// A caller waits, or may wait, for the bell's descriptor: a call that sleeps announces the
    /// sleep again when it is over.
    is_armed: Cell<bool>,
    /// An empty list, to take those that are woken with.
    spare: Cell<Vec<Waker>>,
}

impl Drop for HostCell {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.home.take_back(state);
        }
    }
}

/// When a call gives up.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// At once.
    Now,
    /// Then; `None`: never.
    Then(Option<Instant>),
}

impl Until {
    pub(super) fn within(limit: Option<Duration>) -> Self {
        let ns = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self::Then(limit.map(|limit| Instant(MonotonicClock.now().0.saturating_add(ns(limit)))))
    }
}

impl Host {
    pub(in crate::toe) fn new(state: HostState, home: Arc<Home>) -> Self {
        let bell = Arc::clone(state.bell());
        let (is_armed, spare) = (Cell::new(false), Cell::default());
        Self(Rc::new(HostCell { state: RefCell::new(Some(state)), bell, home, is_armed, spare }))
    }

    /// Readable when something may have happened to a socket of this host, after [`Host::arm`].
    pub fn readiness(&self) -> BorrowedFd<'_> {
        self.0.bell.fd()
    }

    /// Makes [`Host::readiness`] quiet until the next event; must be called before each wait for
    /// it. True: something has happened already: try the sockets, and do not wait. Tasks that wait
    /// for one of the sockets concerned are woken ([`super::stream::TcpStream::poll_readable`] and
    /// the like).
    pub fn arm(&self) -> bool {
        self.0.bell.clear();
        self.0.bell.announce_sleep();
        self.0.is_armed.set(true);
        self.with(|state| {
            state.give_back_all();
            if state.is_stopped() {
                state.wake_all();
            }
            state.take_news()
        })
    }

    /// Addresses of the engine, with the lengths of their subnets' prefixes.
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.0.home.addresses
    }

    /// The TCP ports that the engine has of these addresses, which are the kernel's; `None`: the addresses are the engine's own.
    pub fn ports(&self) -> Option<&PortSet> {
        self.0.home.ports.as_ref()
    }

    /// Ends the wait for the descriptor.
    #[cfg(feature = "tokio")]
    pub(super) fn disarm(&self) {
        self.0.is_armed.set(false);
        self.0.bell.awake();
    }

    /// Whether the engine has ended: nothing is sent or received any more.
    pub fn is_stopped(&self) -> bool {
        self.with(|state| state.is_stopped())
    }

    /// Puts raw words into the request ring, to test how the engine handles them. False: it is
    /// full, or a buffer is lent ([`TcpStream::read_lent`]); none is lent afterwards.
    #[doc(hidden)]
    pub fn inject(&self, record: &[u64; 7]) -> bool {
        let is_put = self.with(|state| state.inject(record));
        self.0.home.bell.ring();
        is_put
    }

    /// Keeps the receive buffers that are read, for tests of what that does to others.
    #[doc(hidden)]
    pub fn keep_buffers(&self) {
        self.with(HostState::keep_buffers);
    }

    /// Calls `call` with the state, which has taken in all events. Rings the engine for the
    /// requests of `call`, and wakes the tasks that had an event.
    pub(super) fn with<T>(&self, call: impl FnOnce(&mut HostState) -> T) -> T {
        let mut borrowed = self.0.state.borrow_mut();
        let state = borrowed.as_mut().expect("it is there until the cell is dropped");
        state.hear();
        let result = call(state);
        if state.take_asked() {
            self.0.home.bell.ring();
        }
        state.wake_for_chunks();
        let mut woken = state.take_woken(self.0.spare.take());
        drop(borrowed);
        woken.drain(..).for_each(Waker::wake);
        self.0.spare.set(woken);
        result
    }

    /// Gives back buffers before a wait. Unlike [`with`](Self::with) it takes in no event: the caller would sleep on it.
    pub(super) fn give_back(&self) {
        if let Some(state) = self.0.state.borrow_mut().as_mut() {
            state.give_back_all();
            if state.take_asked() {
                self.0.home.bell.ring();
            }
        }
    }

    /// Calls `attempt` until it has a result, sleeping in between.
    pub(super) fn wait_for<T>(
        &self,
        until: Until,
        mut attempt: impl FnMut(&mut HostState) -> io::Result<Option<T>>,
    ) -> io::Result<T> {
        loop {
            let (outcome, is_over) = self.with(|state| {
                let outcome = attempt(state);
                (outcome, state.is_stopped() && !state.has_events())
            });
            if let Some(result) = outcome? {
                return Ok(result);
            }
            if is_over {
                return Err(state::stopped());
            }
            match until {
                // Only this shows a caller that never waits that the engine's process is gone.
                Until::Now if self.0.bell.look_for_hang_up() => return Err(state::stopped()),
                Until::Now => return Err(io::ErrorKind::WouldBlock.into()),
                Until::Then(Some(deadline)) if MonotonicClock.now() >= deadline => {
                    let text = "the time-out of the call is over: nothing has happened";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                Until::Then(deadline) => self.sleep(deadline),
            }
        }
    }

    fn sleep(&self, deadline: Option<Instant>) {
        self.give_back();
        let bell = &self.0.bell;
        bell.announce_sleep();
        let state = self.0.state.borrow();
        if state.as_ref().is_none_or(|state| state.has_events() || state.is_stopped()) {
            bell.awake();
        } else {
            bell.sleep(Some(Duration::from_nanos(sleep_ns(deadline, MonotonicClock.now()))));
        }
        if self.0.is_armed.get() {
            // Events in the ring are taken in next; a caller that waits for the descriptor is
            // notified of the rest.
            bell.announce_sleep();
        }
    }
}

/// How long a call sleeps that has time until then.
fn sleep_ns(deadline: Option<Instant>, now: Instant) -> u64 {
    deadline.map_or(MAX_SLEEP_NS, |deadline| deadline.ns_since(now).min(MAX_SLEEP_NS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toe::PairSettings;
    use crate::toe::pair::{EngineEnd, pair};
    use crate::toe::record::HostEvent;

    /// A host, and the end of an engine that does nothing.
    fn host() -> (EngineEnd, Host) {
        let settings = PairSettings { sockets: 4, ..PairSettings::default() };
        let (engine, host) = pair(&settings).unwrap();
        let bell = Arc::new(EventBell::new().unwrap());
        let state = HostState::new(0, host, Arc::clone(&bell), &settings);
        let (link, _) = std::os::unix::net::UnixStream::pair().unwrap();
        (engine, Host::new(state, Arc::new(Home::elsewhere(bell, Vec::new(), link.into()))))
    }

    #[test]
    fn wait_for_returns_timed_out_at_limit() {
        const LIMIT: Duration = Duration::from_millis(20);
        /// No machine is so late.
        const FAR_TOO_LONG_NS: u64 = 10_000_000_000;
        let (_engine, host) = host();
        let begun = MonotonicClock.now();
        let error =
            host.wait_for(Until::within(Some(LIMIT)), |_| match MonotonicClock.now().ns_since(begun) {
                FAR_TOO_LONG_NS.. => Err(io::Error::other("it goes on and on")),
                _ => Ok(None::<()>),
            });
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(MonotonicClock.now().ns_since(begun) >= LIMIT.as_nanos() as u64);
        let error = host.wait_for(Until::Now, |_| Ok(None::<()>));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn until_within_sets_deadline_and_sleep_ns_stops_at_it() {
        let (limit, limit_ns) = (Duration::from_millis(7), 7_000_000);
        let before = MonotonicClock.now();
        let Until::Then(Some(deadline)) = Until::within(Some(limit)) else { panic!("no moment") };
        let after = MonotonicClock.now();
        assert!((before.plus_ns(limit_ns).0..=after.plus_ns(limit_ns).0).contains(&deadline.0));
        assert!(matches!(Until::within(None), Until::Then(None)));
        assert!(matches!(Until::within(Some(Duration::MAX)), Until::Then(Some(Instant(u64::MAX)))));
        let now = Instant(5_000);
        assert_eq!(sleep_ns(Some(Instant(5_300)), now), 300);
        assert_eq!(sleep_ns(Some(Instant(4_000)), now), 0);
        for far in [None, Some(Instant(u64::MAX))] {
            assert_eq!(sleep_ns(far, now), MAX_SLEEP_NS);
        }
    }

    /// An event that comes between a look and the wait that follows is not slept on.
    #[test]
    fn sleep_with_pending_event_returns_at_once() {
        let (mut engine, host) = host();
        assert!(!host.arm(), "nothing has come");
        assert!(engine.events.push(&HostEvent::Room { socket: 1 }.encode()));
        let begun = MonotonicClock.now();
        host.sleep(None);
        assert!(MonotonicClock.now().ns_since(begun) < MAX_SLEEP_NS / 2, "it has slept on it");
        assert!(host.arm(), "and it is still there to be taken in");
        assert!(!host.arm());
    }
}
