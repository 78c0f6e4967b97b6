//! Threads that open titles, so that the control thread need not wait for disks.
//!
//! ```text
//!   control thread ── jobs ──► openers ── each system call ──► threads of the member (millrace_store::blocking)
//!        ▲                        │
//!        └── bell ◄── results ────┘
//! ```
//!
//! An opener waits for a disk as long as [`Members::ask`](millrace_store::members::Members::ask) does and no longer, so it always comes back.
//! Which openings there are, and how many, the service knows ([`crate::service::Service::take_openings`]).

use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_core::limits::OPENER_THREADS;
use millrace_store::bell::EventBell;

type OpenJob<T> = Box<dyn FnOnce() -> T + Send>;

/// The threads. When dropped, they end after their current work; nothing waits for this.
pub(super) struct Openers<T> {
    jobs: Sender<(OpenJob<T>, OpenJob<T>)>,
    results: Receiver<T>,
    sender: Sender<T>,
    bell: Arc<EventBell>,
}

/// Where results go.
pub(super) struct Results<T> {
    sender: Sender<T>,
    bell: Arc<EventBell>,
}

impl<T> Results<T> {
    /// Adds a result, and wakes the control thread. A result without a receiver is dropped.
    pub(super) fn send(&self, result: T) {
        let _ = self.sender.send(result);
        self.bell.ring();
    }
}

impl<T: Send + 'static> Openers<T> {
    /// Starts them.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub(super) fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel();
        let (sender, results) = channel();
        let todo = Arc::new(Mutex::new(todo));
        let bell = Arc::new(EventBell::new()?);
        for number in 0..OPENER_THREADS {
            let (todo, sender, bell) = (Arc::clone(&todo), sender.clone(), Arc::clone(&bell));
            let serve = move || serve(&todo, &sender, &bell);
            std::thread::Builder::new().name(format!("opener-{number}")).spawn(serve)?;
        }
        Ok(Self { jobs, results, sender, bell })
    }

    /// Has `job` done by the next thread that is free. `failed` makes the result if it panics.
    pub(super) fn begin(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
        failed: impl FnOnce() -> T + Send + 'static,
    ) {
        // The threads listen for as long as there is a sender.
        let _ = self.jobs.send((Box::new(job), Box::new(failed)));
    }

    /// For results that come from other threads.
    pub(super) fn results(&self) -> Results<T> {
        Results { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }

    /// The next result.
    pub(super) fn poll(&self) -> Option<T> {
        self.results.try_recv().ok()
    }

    /// Readable when there may be results.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Makes the descriptor quiet until the next result; results polled after this are not missed.
    pub(super) fn rearm(&self) {
        self.bell.clear();
        self.bell.announce_sleep();
    }
}

fn serve<T>(todo: &Mutex<Receiver<(OpenJob<T>, OpenJob<T>)>>, results: &Sender<T>, bell: &EventBell) {
    loop {
        // One of the threads waits for a job, the others for their turn to.
        let next = todo.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((job, failed)) = next else { return };
        // Nothing of a job is used after it has panicked.
        let result = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| failed());
        if results.send(result).is_err() {
            return;
        }
        bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns the next result, when the bell rings for it; the bell does not ring without one.
    fn next(openers: &Openers<u32>) -> u32 {
        for _ in 0..2 {
            openers.rearm();
            if let Some(result) = openers.poll() {
                return result;
            }
            openers.bell.sleep(Some(Duration::from_secs(10)));
        }
        panic!("no result has come");
    }

    #[test]
    fn openers_with_hanging_or_panicking_job_keep_serving() {
        let openers = Openers::start().unwrap();
        let (release, held) = channel::<()>();
        openers.begin(move || held.recv().map_or(1, |()| 0), || 9);
        for n in 2..20 {
            openers.begin(move || n, || 9);
            assert_eq!(next(&openers), n);
        }
        for _ in 0..2 * OPENER_THREADS {
            openers.begin(|| panic!("a job that panics, for the test"), || 7);
            assert_eq!(next(&openers), 7);
        }
        drop(release);
        assert_eq!(next(&openers), 1);
    }
}
