//! A doorbell that costs nothing while the other side is awake, and one eventfd write when it sleeps: between the loops
//! and the cache, and between the control side and the loops.
//!
//! The two sides may be two processes. Then the flag lies in memory that both have mapped, and in place of the eventfd each has an end of a pair of
//! sockets, one for the bells of both directions. An eventfd would not do: both sides would have the same one, and either could make the other
//! block in it. The end of a process is heard too.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_core::seam::Doorbell;
use millrace_core::sleep::SleepFlag;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::limits::MAX_WATCHED;

/// Wakes a loop that sleeps in [`EventBell::sleep`], or a reactor that watches [`EventBell::fd`].
pub struct EventBell {
    fd: Arc<OwnedFd>,
    flag: SleepFlag,
    /// The descriptor is an end of a pair of sockets, and the other side has the other one.
    is_socket: bool,
    is_hung_up: AtomicBool,
}

impl EventBell {
    /// A bell whose owner is awake.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            fd: Arc::new(fd),
            flag: SleepFlag::default(),
            is_socket: false,
            is_hung_up: AtomicBool::new(false),
        })
    }

    /// This side of a bell between two processes, whichever side it is: an end of a pair of stream sockets, and the flag of who sleeps.
    pub fn over_socket(fd: Arc<OwnedFd>, flag: SleepFlag) -> Self {
        Self { fd, flag, is_socket: true, is_hung_up: AtomicBool::new(false) }
    }

    /// Returns whether the other process is known to be gone: the bell no longer rings.
    pub fn is_hung_up(&self) -> bool {
        self.is_hung_up.load(Ordering::Relaxed)
    }

    /// Looks whether the other process is gone. It takes no ring back.
    pub fn look_for_hang_up(&self) -> bool {
        if self.is_socket && !self.is_hung_up() {
            self.hear(recv(&self.fd, &mut [0u8], RecvFlags::DONTWAIT | RecvFlags::PEEK));
        }
        self.is_hung_up()
    }

    /// Evaluates the result of a read from the socket.
    fn hear(&self, got: rustix::io::Result<(usize, usize)>) {
        use rustix::io::Errno;
        let is_over = match got {
            Ok((bytes, _)) => bytes == 0,
            Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS),
        };
        if is_over {
            self.is_hung_up.store(true, Ordering::Relaxed);
        }
    }

    /// Readable when the bell has been rung.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Announces that the owner is about to sleep. The owner must look once more for work after
    /// this call and before it sleeps: a thread that adds work later will see the announcement and
    /// ring.
    pub fn announce_sleep(&self) {
        self.flag.announce();
    }

    /// The owner found work after all, or woke by its own timer.
    pub fn awake(&self) {
        self.flag.awake();
    }

    /// Sleeps until rung or until `limit` has passed; the caller has announced it.
    pub fn sleep(&self, limit: Option<Duration>) {
        self.sleep_beside([None; 1], limit);
    }

    /// The same, but also until another descriptor is readable.
    pub fn sleep_beside<const N: usize>(&self, others: [Option<BorrowedFd<'_>>; N], limit: Option<Duration>) {
        if self.wait(PollFlags::IN, others, limit) {
            self.clear();
        }
        self.awake();
    }

    /// Sleeps until `limit` has passed or one of these descriptors is readable. The sleep is not
    /// announced, so no thread rings: a thread with work for the owner leaves it there.
    pub fn rest<const N: usize>(&self, others: [Option<BorrowedFd<'_>>; N], limit: Duration) {
        self.wait(PollFlags::empty(), others, Some(limit));
    }

    /// Waits for `own` of the bell, or until another is readable; whether it was the bell.
    fn wait<const N: usize>(
        &self,
        own: PollFlags,
        others: [Option<BorrowedFd<'_>>; N],
        limit: Option<Duration>,
    ) -> bool {
        const { assert!(N <= MAX_WATCHED) };
        let timeout =
            limit.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        let mut fds = [(); MAX_WATCHED + 1].map(|()| PollFd::from_borrowed_fd(self.fd(), own));
        let mut count = 1;
        for other in others.into_iter().flatten() {
            fds[count] = PollFd::from_borrowed_fd(other, PollFlags::IN);
            count += 1;
        }
        // An interrupted poll is an early wake-up: the loop looks for work and comes back.
        poll(&mut fds[..count], timeout.as_ref()).is_ok_and(|n| n > 0) && !fds[0].revents().is_empty()
    }

    /// Takes back a ring, so that [`EventBell::fd`] is quiet again.
    pub fn clear(&self) {
        if self.is_socket {
            return self.hear(recv(&self.fd, &mut [0u8; 64], RecvFlags::DONTWAIT));
        }
        let mut count = [0; 8];
        // Nothing to read (EAGAIN) means that the bell was not rung, which is fine.
        let _ = rustix::io::read(&self.fd, &mut count);
    }
}

impl EventBell {
    /// There is work; the ringing thread has published it before.
    pub fn ring(&self) {
        if !self.flag.must_wake() {
            return;
        }
        // A full counter or socket (EAGAIN) is already readable: the owner wakes all the same.
        // Without an owner there is no thread to wake.
        let _ = if self.is_socket {
            send(&self.fd, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        } else {
            rustix::io::write(&self.fd, &1u64.to_ne_bytes())
        };
    }
}

impl Doorbell for EventBell {
    fn ring(&self) {
        EventBell::ring(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_core::shared::Words;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::sync::atomic::AtomicU64;

    /// Two sides that share nothing but words and a pair of sockets: of each side the bell that wakes it, and the one that it rings.
    fn apart() -> [[EventBell; 2]; 2] {
        let words = Words::new(2);
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (a, b) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        let flag = |at| SleepFlag::new(&words, at).unwrap();
        [(a, [0, 1]), (b, [1, 0])].map(|(fd, at)| {
            let fd = Arc::new(fd);
            at.map(|at| EventBell::over_socket(Arc::clone(&fd), flag(at)))
        })
    }

    #[test]
    fn bells_of_two_processes_ring_both_ways_and_a_side_that_is_gone_is_noticed() {
        let [[ours, to_them], [theirs, to_us]] = apart();
        for (own, other) in [(&ours, &to_us), (&theirs, &to_them)] {
            other.ring(); // awake: nothing goes by the socket
            own.announce_sleep();
            other.ring();
            other.ring();
            assert!(!own.look_for_hang_up(), "a look takes nothing");
            own.sleep(None); // would hang for ever if the ring were lost
            let mut byte = [0u8];
            assert!(
                recv(&own.fd, &mut byte, RecvFlags::DONTWAIT).is_err(),
                "one ring, and it was taken back"
            );
        }
        ours.announce_sleep();
        assert!(!ours.look_for_hang_up());
        drop((theirs, to_us));
        ours.sleep(None); // would hang for ever if nobody heard of it
        assert!(ours.is_hung_up() && to_them.look_for_hang_up());
        theirs_are_gone(&to_them);
    }

    /// A ring of a side that is gone: no signal, no error.
    fn theirs_are_gone(bell: &EventBell) {
        bell.announce_sleep();
        bell.ring();
    }

    #[test]
    fn ring_on_unread_socket_does_not_block() {
        let [[_ours, to_them], [theirs, _to_us]] = apart();
        // Whatever the other side makes of its end: ours does not wait.
        for _ in 0..100_000 {
            theirs.announce_sleep();
            to_them.ring();
        }
        theirs.sleep(None);
    }

    #[test]
    fn ring_before_sleep_is_not_lost() {
        let bell = EventBell::new().unwrap();
        bell.announce_sleep();
        bell.ring();
        bell.sleep(None); // would hang for ever if the ring were lost
        bell.ring(); // awake: no descriptor traffic
        let mut count = [0; 8];
        assert!(rustix::io::read(&bell.fd, &mut count).is_err());
    }

    #[test]
    fn sleep_ends_when_another_descriptor_is_readable() {
        let (bell, other) = (EventBell::new().unwrap(), EventBell::new().unwrap());
        other.announce_sleep();
        other.ring();
        let silent = EventBell::new().unwrap();
        for others in
            [[Some(other.fd()), None], [None, Some(other.fd())], [Some(silent.fd()), Some(other.fd())]]
        {
            bell.announce_sleep();
            bell.sleep_beside(others, None); // would hang for ever; and it is not ours to be cleared
        }
        bell.announce_sleep();
        bell.ring();
        bell.sleep_beside([Some(other.fd()), None], None);
        assert!(rustix::io::read(&bell.fd, &mut [0; 8]).is_err(), "cleared");
    }

    #[test]
    fn rest_ignores_own_ring_and_ends_by_limit_or_other_bell() {
        let (bell, other) = (EventBell::new().unwrap(), EventBell::new().unwrap());
        bell.announce_sleep();
        bell.ring();
        let began = std::time::Instant::now();
        bell.rest([None; 2], Duration::from_millis(20));
        assert!(began.elapsed() >= Duration::from_millis(20), "the bell that has been rung is not heard");
        bell.sleep(None); // would hang for ever if the rest had taken the ring
        bell.ring();
        let mut count = [0; 8];
        assert!(rustix::io::read(&bell.fd, &mut count).is_err(), "a rest is not announced");
        other.announce_sleep();
        other.ring();
        bell.rest([None, Some(other.fd())], Duration::from_secs(3600)); // would hang for an hour
    }

    #[test]
    fn sleep_ends_by_its_limit() {
        let bell = EventBell::new().unwrap();
        bell.announce_sleep();
        bell.sleep(Some(Duration::from_millis(1)));
        assert!(!bell.flag.is_asleep());
    }

    /// One side adds work and rings, the other sleeps whenever it sees none: every piece of work must be seen.
    #[test]
    fn event_bell_between_two_threads_loses_no_wakeup() {
        const WORK: u64 = 20_000;
        let bell = Arc::new(EventBell::new().unwrap());
        let work = Arc::new(AtomicU64::new(0));
        let (ringer, counter) = (Arc::clone(&bell), Arc::clone(&work));
        let thread = std::thread::spawn(move || {
            for i in 0..WORK {
                counter.fetch_add(1, Ordering::Release);
                ringer.ring();
                if i % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        while work.load(Ordering::Acquire) < WORK {
            let seen = work.load(Ordering::Acquire);
            bell.announce_sleep();
            if work.load(Ordering::Acquire) == seen && seen < WORK {
                bell.sleep(None);
            } else {
                bell.awake();
            }
        }
        thread.join().unwrap();
    }
}
