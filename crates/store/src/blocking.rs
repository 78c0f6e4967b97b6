//! System calls on a member's directory, made by threads that may be given up.
//!
//! A disk whose cable is half out, or a file server that is gone, can block a caller for ever: open, stat and readdir have no
//! time limit of their own. So a caller that others wait for sends a thread and waits for it a bounded time. A thread that
//! does not come back is left where it is; until it does, no other is sent to that directory.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_core::limits::{DISK_CALL_NS, SLOW_READ_NS};

use crate::error::StoreError;
use crate::limits::volume::MAX_STARTS;
use crate::limits::{DISK_WORK_NS, MAX_DISK_CALLS};

/// How long a caller waits for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Media has to go out meanwhile: as long as for a read. A timeout proves nothing about the
    /// disk yet.
    Brief,
    /// A viewer waits for an answer.
    Call,
    /// Only an operator waits, and the disk may have been asleep.
    Work,
}

impl Timeout {
    fn limit(self) -> Duration {
        Duration::from_nanos(match self {
            Self::Brief => SLOW_READ_NS,
            Self::Call => DISK_CALL_NS,
            Self::Work => DISK_WORK_NS,
        })
    }
}

/// A disk has not answered in time, or has not yet answered earlier calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("disk not responding: a system call has not returned; check the disk, its cable or its file server")]
pub struct TimedOut;

type BlockingJob = Box<dyn FnOnce() + Send>;

/// A caller still waits for it.
const AWAITED: u8 = 0;
/// It has come back.
const BACK: u8 = 1;
/// Its caller could wait only briefly, and does not wait any more.
const LEFT: u8 = 2;
/// It was given up.
const GIVEN_UP: u8 = 3;

#[derive(Default)]
struct DirectoryCalls {
    /// A thread that has come back and waits for the next blocking call.
    idle: Mutex<Option<Sender<BlockingJob>>>,
    /// BlockingCalls that have not come back.
    out: AtomicUsize,
    /// Of these, those that no caller waits for any more.
    late: AtomicUsize,
    /// Of these, those that were given up after more than a brief timeout.
    hung: AtomicUsize,
}

/// Sends threads to one directory. Clones share its known state.
#[derive(Clone, Default)]
pub struct BlockingCalls {
    shared: Arc<DirectoryCalls>,
}

impl fmt::Debug for BlockingCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingCalls").field("hangs", &self.hangs()).finish_non_exhaustive()
    }
}

/// The blocking calls on each directory.
#[derive(Debug, Default)]
pub struct BlockingCallsByDir(Mutex<BTreeMap<PathBuf, BlockingCalls>>);

impl BlockingCallsByDir {
    /// Those to a directory: always the same, as long as it is called the same.
    pub fn at(&self, dir: &Path) -> BlockingCalls {
        let mut dirs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blocking) = dirs.get(dir) {
            return blocking.clone();
        }
        dirs.entry(dir.to_path_buf()).or_default().clone()
    }
}

/// A blocking call under way.
pub struct PendingCall<T> {
    shared: Arc<DirectoryCalls>,
    fate: Arc<AtomicU8>,
    /// Whether a thread has begun it.
    has_begun: Arc<AtomicBool>,
    result: Receiver<T>,
}

impl BlockingCalls {
    /// Whether a blocking call was given up and has not come back since.
    pub fn hangs(&self) -> bool {
        self.shared.hung.load(Ordering::Acquire) > 0
    }

    /// Has `work` done by another thread and waits for its result.
    ///
    /// # Errors
    /// If that takes too long. What `work` brings later is dropped by the thread that did it.
    pub fn send<T: Send + 'static>(
        &self,
        timeout: Timeout,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, TimedOut> {
        self.begin(timeout, work)?.wait(timeout)
    }

    /// The same without waiting yet.
    ///
    /// # Errors
    /// If an earlier blocking call has not come back, or no thread can be started.
    pub fn begin<T: Send + 'static>(
        &self,
        timeout: Timeout,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<PendingCall<T>, TimedOut> {
        let shared = &self.shared;
        let is_late = timeout == Timeout::Brief && shared.late.load(Ordering::Acquire) > 0;
        if self.hangs() || is_late || shared.out.load(Ordering::Acquire) >= MAX_DISK_CALLS {
            return Err(TimedOut);
        }
        let (sender, result): (SyncSender<T>, _) = sync_channel(1);
        let fate = Arc::new(AtomicU8::new(AWAITED));
        let out = CallGuard { shared: Arc::clone(shared), fate: Arc::clone(&fate) };
        shared.out.fetch_add(1, Ordering::AcqRel);
        let has_begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&has_begun);
        let job = Box::new(move || {
            begins.store(true, Ordering::Release);
            // Counted as back also if `work` panics.
            let out = out;
            let result = work();
            // Before the waiting caller goes on: it might send the next before this thread has a processor again.
            drop(out);
            // If no caller waits any more, it is dropped here.
            let _ = sender.send(result);
        });
        self.start(job)?;
        Ok(PendingCall { shared: Arc::clone(shared), fate, has_begun, result })
    }

    /// Gives the job to the idle thread, or to a new one.
    fn start(&self, job: BlockingJob) -> Result<(), TimedOut> {
        #[cfg(feature = "sim")]
        if crate::sim::is_entered() {
            job();
            return Ok(());
        }
        let idle = self.shared.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let job = match idle {
            Some(idle) => match idle.send(job) {
                Ok(()) => return Ok(()),
                Err(back) => back.0,
            },
            None => job,
        };
        let home = Arc::downgrade(&self.shared);
        let serve = move || {
            let mut job = job;
            loop {
                job();
                let Some(shared) = home.upgrade() else { return };
                let (sender, next) = channel();
                {
                    let mut idle = shared.idle.lock().unwrap_or_else(PoisonError::into_inner);
                    if idle.is_some() {
                        return;
                    }
                    *idle = Some(sender);
                }
                // Not kept alive from here: when no blocking calls for this directory remain, the
                // sender goes.
                drop(shared);
                match next.recv() {
                    Ok(next) => job = next,
                    Err(_) => return,
                }
            }
        };
        std::thread::Builder::new().name("mr-blocking".into()).spawn(serve).map(drop).map_err(|_| TimedOut)
    }
}

impl<T> PendingCall<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// If that takes too long.
    pub fn wait(self, timeout: Timeout) -> Result<T, TimedOut> {
        self.wait_for(timeout, timeout.limit())
    }

    /// Waits for the result without giving up; `None`: it has not come yet.
    ///
    /// # Errors
    /// If it will not come: the thread has panicked.
    pub fn look(&self, timeout: Timeout) -> Result<Option<T>, TimedOut> {
        match self.result.recv_timeout(timeout.limit()) {
            Ok(result) => Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TimedOut),
        }
    }

    /// Takes the result if it is there; for callers that have waited for others begun together with it.
    ///
    /// # Errors
    /// If it is not.
    pub fn take(self, timeout: Timeout) -> Result<T, TimedOut> {
        self.wait_for(timeout, Duration::ZERO)
    }

    fn wait_for(self, timeout: Timeout, limit: Duration) -> Result<T, TimedOut> {
        for wait in 0..=MAX_STARTS {
            // What began only during this wait has not had the whole of it.
            let had_begun = self.has_begun.load(Ordering::Acquire);
            match self.result.recv_timeout(limit) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let is_slow = had_begun || wait == 0 && self.has_begun.load(Ordering::Acquire);
                    if is_slow || limit.is_zero() {
                        break;
                    }
                }
            }
        }
        let hung = timeout != Timeout::Brief;
        self.shared.late.fetch_add(1, Ordering::AcqRel);
        self.shared.hung.fetch_add(usize::from(hung), Ordering::AcqRel);
        let fate = if hung { GIVEN_UP } else { LEFT };
        if self.fate.compare_exchange(AWAITED, fate, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // It has come back in this very moment, and the result is on its way.
            self.shared.late.fetch_sub(1, Ordering::AcqRel);
            self.shared.hung.fetch_sub(usize::from(hung), Ordering::AcqRel);
            return self.result.recv().map_err(|_| TimedOut);
        }
        Err(TimedOut)
    }
}

/// Runs `work` in a directory with no known state yet.
///
/// # Errors
/// [`StoreError::TimedOut`]
pub fn send_to<T: Send + 'static>(
    dir: &Path,
    timeout: Timeout,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Result<T, StoreError> {
    let path = dir.to_path_buf();
    let at = path.clone();
    BlockingCalls::default()
        .send(timeout, move || work(&at))
        .map_err(|TimedOut| StoreError::TimedOut { path })
}

/// Says when a blocking call has come back.
struct CallGuard {
    shared: Arc<DirectoryCalls>,
    fate: Arc<AtomicU8>,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let fate = self.fate.swap(BACK, Ordering::AcqRel);
        let of = |fates: &[u8]| usize::from(fates.contains(&fate));
        self.shared.late.fetch_sub(of(&[LEFT, GIVEN_UP]), Ordering::AcqRel);
        self.shared.hung.fetch_sub(of(&[GIVEN_UP]), Ordering::AcqRel);
        self.shared.out.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[path = "blocking_tests.rs"]
mod tests;
