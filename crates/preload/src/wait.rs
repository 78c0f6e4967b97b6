//! Waiting for engine and kernel at once. No thread waits with the lock held.

use std::cell::RefCell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{epoll_event, pollfd};
use millrace_core::limits::toe::MAX_SLEEP_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;
use millrace_offload::clock::MonotonicClock;
use rustix::event::{EventfdFlags, eventfd};

use crate::errno::{CallResult, Errno};
use crate::process::{self, Process};
use crate::real::{self, Mask};
use crate::table::{self, DescriptorKind};

/// When a call gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// At once.
    Now,
    /// Then; `None`: never.
    Then(Option<Instant>),
}

impl Until {
    pub(crate) fn within(limit: Option<Duration>) -> Self {
        if limit == Some(Duration::ZERO) {
            return Self::Now;
        }
        let ns = |limit: Duration| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Self::Then(limit.map(|limit| Instant(MonotonicClock.now().0.saturating_add(ns(limit)))))
    }

    /// How long to sleep now; `None`: the time is over. The bound is there so that a ring that was lost does no lasting damage.
    fn left(self) -> Option<Duration> {
        match self {
            Self::Now => None,
            Self::Then(None) => Some(Duration::from_nanos(MAX_SLEEP_NS)),
            Self::Then(Some(deadline)) => {
                let ns = deadline.ns_since(MonotonicClock.now());
                (ns > 0).then(|| Duration::from_nanos(ns.min(MAX_SLEEP_NS)))
            }
        }
    }

    /// Returns the time left of a limit when the call ends.
    pub(crate) fn rest(self) -> Duration {
        match self {
            Self::Then(Some(deadline)) => Duration::from_nanos(deadline.ns_since(MonotonicClock.now())),
            _ => Duration::ZERO,
        }
    }
}

/// The sockets that a thread waits for. Another thread that learns of an event there wakes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Any,
    Socket(u32),
    Set(u32),
}

/// A thread that waits.
pub(crate) struct Waiter {
    pub(crate) interest: Interest,
    pub(crate) bell: Arc<OwnedFd>,
}

impl Waiter {
    pub(crate) fn wake(&self) {
        // A full counter is readable already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }
}

/// What wakes a thread, as long as it runs.
struct Own(Arc<OwnedFd>);

impl Drop for Own {
    fn drop(&mut self) {
        // It is closed like any other: not the library's own any more.
        table::set(self.0.as_raw_fd(), DescriptorKind::Kernel);
    }
}

thread_local! {
    static OWN: RefCell<Option<Own>> = const { RefCell::new(None) };
}

fn own_bell() -> CallResult<Arc<OwnedFd>> {
    OWN.with_borrow_mut(|own| {
        if let Some(bell) = own {
            return Ok(Arc::clone(&bell.0));
        }
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        table::set(bell.as_raw_fd(), DescriptorKind::Internal);
        *own = Some(Own(Arc::clone(&bell)));
        Ok(bell)
    })
}

/// In a child: the parent's thread waits at the same open file, and must not lose its rings to this one.
pub(crate) fn forget_bell() {
    OWN.with(|own| {
        // A signal handler may fork while the thread makes it.
        if let Ok(mut own) = own.try_borrow_mut() {
            *own = None;
        }
    });
}

const fn readable(fd: i32) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Sleeps until the engine or another thread rings, one of `fds` has something to say, or the limit is over. The last two of `fds` are for the bells.
/// False: there is nothing to be waited for, try again.
fn sleep(interest: Interest, until: Until, fds: &mut [pollfd], mask: Mask) -> CallResult<bool> {
    let Some(limit) = until.left() else { return Err(Errno::TIMEDOUT) };
    let own = own_bell()?;
    let [.., own_place, engine_place] = fds else { return Err(Errno::INVAL) };
    let Some(engine) = process::with(|process| process.begin_wait(interest, &own))? else { return Ok(false) };
    (*own_place, *engine_place) = (readable(own.as_raw_fd()), readable(engine));
    let result = real::poll_fds(fds, Some(limit), mask);
    let [.., own_place, engine_place] = fds else { return Err(Errno::INVAL) };
    let (is_own, is_engine) = (own_place.revents != 0, engine_place.revents != 0);
    if is_own && result.is_ok() {
        let _ = rustix::io::read(&*own, &mut [0; 8]);
    }
    process::with(|process| process.end_wait(&own, is_engine && result.is_ok()))?;
    result.map(|_| true)
}

/// Calls `attempt` until it has a result. For calls on one socket: they resume after a signal whose
/// handler requests it.
pub(crate) fn wait_for<T>(
    index: u32,
    until: Until,
    mut attempt: impl FnMut(&mut Process) -> CallResult<Option<T>>,
) -> CallResult<T> {
    loop {
        if let Some(result) = process::with(&mut attempt)?? {
            return Ok(result);
        }
        let mut fds = [readable(-1); 2];
        match sleep(Interest::Socket(index), until, &mut fds, Mask::NONE) {
            Ok(_) => {}
            Err(Errno::TIMEDOUT) => return Err(Errno::AGAIN),
            Err(Errno::INTR) if real::handlers_restart() => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// `poll`: sockets of the engine are asked here, the others by the kernel.
pub(crate) fn poll(fds: &mut [pollfd], until: Until, mask: Mask) -> CallResult<usize> {
    let mut kernel: Vec<pollfd> = fds.to_vec();
    for of in &mut kernel {
        if matches!(table::kind(of.fd), DescriptorKind::Socket(_)) {
            // The kernel passes over it.
            of.fd = -1;
        }
    }
    let own = kernel.len();
    kernel.extend([readable(-1); 2]);
    loop {
        let found = process::with(|process| process.ask_all(fds))?;
        let is_over = found > 0 || until.left().is_none();
        let (asked, slept) = if is_over {
            (true, real::poll_fds(&mut kernel[..own], Some(Duration::ZERO), mask).map(|_| true))
        } else {
            let slept = sleep(Interest::Any, until, &mut kernel, mask);
            (slept == Ok(true), slept)
        };
        match slept {
            Err(Errno::TIMEDOUT) => continue,
            Err(errno) if found == 0 => return Err(errno),
            _ => {}
        }
        let mut others = 0;
        for (of, kernels) in fds.iter_mut().zip(&kernel).filter(|(_, kernels)| kernels.fd >= 0) {
            of.revents = if asked { kernels.revents } else { 0 };
            others += usize::from(of.revents != 0);
        }
        if is_over || others > 0 {
            let ours = if found > 0 { found } else { process::with(|process| process.ask_all(fds))? };
            return Ok(ours + others);
        }
    }
}

/// `epoll_wait`: the kernel's part of the set and the engine's.
pub(crate) fn epoll_wait(
    fd: i32,
    index: u32,
    events: &mut [epoll_event],
    until: Until,
    mask: Mask,
) -> CallResult<usize> {
    loop {
        let (ours, kernel_first) = process::with(|process| process.take_events(index, events))?;
        if ours > 0 || until.left().is_none() {
            return Ok(ours + real::take_kernel_events(fd, &mut events[ours..])?);
        }
        if kernel_first {
            let kernels = real::take_kernel_events(fd, events)?;
            if kernels > 0 {
                return Ok(kernels);
            }
        }
        let mut fds = [readable(fd), readable(-1), readable(-1)];
        match sleep(Interest::Set(index), until, &mut fds, mask) {
            Ok(false) | Err(Errno::TIMEDOUT) => {}
            Ok(true) if fds[0].revents != 0 => {
                let kernels = real::take_kernel_events(fd, events)?;
                if kernels > 0 {
                    let (ours, _) =
                        process::with(|process| process.take_events(index, &mut events[kernels..]))?;
                    return Ok(kernels + ours);
                }
            }
            Ok(true) => {}
            Err(errno) => return Err(errno),
        }
    }
}
