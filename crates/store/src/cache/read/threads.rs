//! Reading with a few threads: where io_uring is not allowed or not there.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Done, Piece, Reader, Request, Span, Staged, Staging, Step};
use crate::bell::EventBell;

/// Threads: enough to keep a disk's queue filled, few enough not to matter to a small machine.
const MAX_THREADS: usize = 8;

/// A request on its way to a thread and back; the staging memory goes with it.
struct Job {
    place: usize,
    request: Request,
    staging: Staging,
    result: Result<(), (Piece, i32)>,
}

#[derive(Default)]
struct Queues {
    todo: VecDeque<Job>,
    done: VecDeque<Job>,
    stop: bool,
}

struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
    wake: Arc<EventBell>,
}

impl Shared {
    /// A poisoned lock is taken all the same: its holder only pushes and pops.
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Staging memory and last request of a place, while no thread has them.
struct Home {
    staging: Staging,
    request: Option<Request>,
}

/// The pool.
pub(super) struct Threads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    places: Box<[Option<Home>]>,
}

impl Threads {
    /// A pool that can have so many reads under way.
    ///
    /// # Errors
    /// When memory or threads are refused.
    pub(super) fn new(places: usize, wake: Arc<EventBell>) -> io::Result<Self> {
        let home = |_| Staging::new().map(|staging| Some(Home { staging, request: None }));
        let places = (0..places).map(home).collect::<io::Result<_>>()?;
        let shared = Arc::new(Shared { queues: Mutex::default(), work: Condvar::new(), wake });
        let mut pool = Self { shared, threads: Vec::new(), places };
        for number in 0..pool.places.len().min(MAX_THREADS) {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("mr-read-{number}"));
            pool.threads.push(thread.spawn(move || serve(&shared))?);
        }
        Ok(pool)
    }
}

impl Reader for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn begin(&mut self, place: usize, request: Request) {
        let Some(home) = self.places[place].take() else {
            unreachable!("a read is begun only in a free place");
        };
        let job = Job { place, request, staging: home.staging, result: Ok(()) };
        self.shared.lock().todo.push_back(job);
        self.shared.work.notify_one();
    }

    fn wait(&mut self, limit: Option<Duration>) {
        if limit != Some(Duration::ZERO) {
            self.shared.wake.sleep(limit);
        }
    }

    fn next_done(&mut self) -> Option<Done> {
        let job = self.shared.lock().done.pop_front()?;
        let bytes = job.request.spans.each_ref().map(|span| span.got as u64);
        self.places[job.place] = Some(Home { staging: job.staging, request: Some(job.request) });
        Some(Done { place: job.place, bytes, result: job.result })
    }

    fn has_done(&self) -> bool {
        !self.shared.lock().done.is_empty()
    }

    fn staged(&self, place: usize) -> Staged<'_> {
        match &self.places[place] {
            Some(Home { staging, request: Some(request) }) => staging.staged(request),
            _ => Staged::default(),
        }
    }
}

impl Drop for Threads {
    /// Lets the reads under way end.
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended too.
            let _ = thread.join();
        }
    }
}

fn serve(shared: &Shared) {
    while let Some(mut job) = next_job(shared) {
        for piece in job.request.pieces() {
            let number = piece as usize;
            let mut span = job.request.spans[number].clone();
            let result = read_span(&mut span, job.request.file(piece), job.staging.of(piece));
            job.request.spans[number] = span;
            if let Err(errno) = result {
                job.result = Err((piece, errno));
                break;
            }
        }
        shared.lock().done.push_back(job);
        shared.wake.ring();
    }
}

fn next_job(shared: &Shared) -> Option<Job> {
    let mut queues = shared.lock();
    loop {
        if queues.stop {
            return None;
        }
        match queues.todo.pop_front() {
            Some(job) => return Some(job),
            None => queues = shared.work.wait(queues).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }
}

fn read_span(span: &mut Span, file: &std::fs::File, into: &mut [u8]) -> Result<(), i32> {
    loop {
        let (range, offset) = span.rest();
        let result = match file.read_at(&mut into[range], offset) {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        match span.arrived(result) {
            Step::Done => return Ok(()),
            Step::Again => {}
            Step::Failed(errno) => return Err(errno),
        }
    }
}
