//! A thread of the server that works beside it until it is stopped, and that a disk may hold for as long as it likes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The running thread.
pub(super) struct Worker {
    name: &'static str,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    /// Its other end goes when the thread does.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts it; `run` ends soon after the flag that it receives becomes true and the thread is
    /// unparked.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn start(
        name: &'static str,
        run: impl FnOnce(&Arc<AtomicBool>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (alive, ended) = channel();
        let run = move || {
            let _alive: Sender<()> = alive;
            run(&stopped);
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run)?;
        Ok(Self { name, stop, thread, ended })
    }

    /// Stops the thread; its current work is given up and leaves nothing behind. If a disk holds it
    /// for longer than `limit`, it ends with the process.
    pub(super) fn stop(self, limit: Duration) {
        let name = self.name;
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "the {name} thread is blocked by a disk that does not answer; the server exits without waiting for it"
            );
        } else if self.thread.join().is_err() {
            tracing::error!("the {name} thread panicked");
        }
    }
}
