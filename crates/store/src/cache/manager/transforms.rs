//! The last step of a fill: an extent that has been read, verified and assembled is transformed if
//! its title is a transformed one.
//!
//! ```text
//!   take_read ──► finish_read ── nothing to change ─────────────────────────────► end_read
//!                      ├── quick ──── changed here ─────────────────────────────►   ▲
//!                      └── slow ──► jobs ──► thread: changed there ──► done, bell ──┘
//! ```
//!
//! A slow transformation, a module, runs on a thread of its own, one extent after the other: titles without one never wait for it, and those
//! with one wait for each other alone. The extent's memory goes there and comes back; its place among the reads stays taken meanwhile, so
//! there are no more jobs than places.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use millrace_core::pool::ExtentContent;
use millrace_core::time::Instant;
use rtrb::{Consumer, Producer, RingBuffer};

use super::Manager;
use super::flights::Flight;
use crate::bell::EventBell;
use crate::limits::cache::FILLS_PER_TURN;

/// An extent to transform, or one already transformed.
struct TransformJob {
    place: usize,
    flight: Flight,
    content: ExtentContent,
}

/// The thread.
struct Worker {
    jobs: Option<Sender<TransformJob>>,
    done: Consumer<TransformJob>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it: at most `places` jobs are under way.
    fn start(places: usize, wake: Arc<EventBell>) -> io::Result<Self> {
        let (jobs, todo) = channel();
        let (done_in, done) = RingBuffer::new(places);
        let work = move || work(&todo, done_in, &wake);
        let thread = std::thread::Builder::new().name("mr-transform".into()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }
}

fn work(todo: &Receiver<TransformJob>, mut done: Producer<TransformJob>, wake: &EventBell) {
    let mut scratch = Vec::new();
    while let Ok(mut job) = todo.recv() {
        job.flight.transform(&job.content, &mut scratch);
        // There is a place for each job; without a manager no thread waits for the result.
        let _ = done.push(job);
        wake.ring();
    }
}

impl Drop for Worker {
    /// The job in progress takes no longer than a block may take; the thread drops the waiting
    /// jobs.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended too.
            let _ = thread.join();
        }
    }
}

/// The manager's state for transformations.
#[derive(Default)]
pub(super) struct Transformer {
    /// Started when it is needed first.
    worker: Option<Worker>,
    scratch: Vec<u8>,
}

impl Transformer {
    /// Whether something has come back.
    pub(super) fn has_done(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| !worker.done.is_empty())
    }
}

impl Manager {
    /// An extent has been built: changes it if its title is a transformed one, and lends it.
    pub(super) fn finish_read(
        &mut self,
        now: Instant,
        place: usize,
        mut flight: Flight,
        content: ExtentContent,
    ) {
        if !flight.has_slow_transform() {
            flight.transform(&content, &mut self.transformer.scratch);
            return self.end_read(now, place, flight, content);
        }
        if self.transformer.worker.is_none() {
            self.transformer.worker = Worker::start(self.flights.len(), Arc::clone(&self.wake)).ok();
        }
        let job = TransformJob { place, flight, content };
        let jobs = self.transformer.worker.as_ref().and_then(|worker| worker.jobs.as_ref());
        let refused = match jobs {
            Some(jobs) => jobs.send(job).err().map(|refused| refused.0),
            None => Some(job),
        };
        // Where the system has no thread, it is done here.
        if let Some(TransformJob { place, mut flight, content }) = refused {
            flight.transform(&content, &mut self.transformer.scratch);
            self.end_read(now, place, flight, content);
        }
    }

    /// Collects the extents that the thread has transformed. Returns their number.
    pub(super) fn take_transformed(&mut self, now: Instant) -> usize {
        for taken in 0..FILLS_PER_TURN {
            let done = self.transformer.worker.as_mut().and_then(|worker| worker.done.pop().ok());
            let Some(TransformJob { place, flight, content }) = done else { return taken };
            self.end_read(now, place, flight, content);
        }
        FILLS_PER_TURN
    }
}
