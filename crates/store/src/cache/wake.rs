//! Wakes the manager: free while it is awake, one eventfd write when it sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

/// One sleeper, any number of ringers.
pub(super) struct Wake {
    fd: OwnedFd,
    asleep: AtomicBool,
}

impl Wake {
    /// A wake-up whose sleeper is awake.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(super) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd, asleep: AtomicBool::new(false) })
    }

    /// Readable after a ring that found the sleeper asleep.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// There is work; whoever rings has published it before.
    pub(super) fn ring(&self) {
        // Pairs with the fence in `announce`: either we see `asleep`, or the sleeper's last look sees our work.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // A full counter (EAGAIN) is readable already: the sleeper wakes all the same.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// The sleeper says that it is about to sleep. It must look for work once more after this and before it sleeps.
    pub(super) fn announce(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake, for whatever reason.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Takes back a ring, so that [`Wake::fd`] is quiet again.
    pub(super) fn clear(&self) {
        let mut count = [0; 8];
        // Nothing to read (EAGAIN) means that nobody rang: just as well.
        let _ = rustix::io::read(&self.fd, &mut count);
    }

    /// Sleeps until rung or until `limit` has passed. An interrupted sleep is an early wake-up.
    pub(super) fn sleep(&self, limit: Option<Duration>) {
        let timeout =
            limit.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        if poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0) {
            self.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_ring_between_announcement_and_sleep_is_not_lost() {
        let wake = Wake::new().unwrap();
        wake.announce();
        wake.ring();
        wake.sleep(None); // would hang for ever if the ring were lost
        wake.ring(); // awake: no descriptor traffic
        let mut count = [0; 8];
        assert!(rustix::io::read(&wake.fd, &mut count).is_err());
    }

    #[test]
    fn every_piece_of_work_is_seen_by_a_sleeper_that_sleeps_whenever_it_can() {
        const WORK: u64 = 20_000;
        let wake = Arc::new(Wake::new().unwrap());
        let work = Arc::new(AtomicU64::new(0));
        let (ringer, counter) = (Arc::clone(&wake), Arc::clone(&work));
        let thread = std::thread::spawn(move || {
            for i in 0..WORK {
                counter.fetch_add(1, Ordering::Release);
                ringer.ring();
                if i % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut seen = 0;
        while seen < WORK {
            wake.announce();
            if work.load(Ordering::Acquire) == seen {
                wake.sleep(None);
            }
            wake.awake();
            seen = work.load(Ordering::Acquire);
        }
        thread.join().unwrap();
    }
}
