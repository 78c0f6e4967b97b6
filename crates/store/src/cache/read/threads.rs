//! Reading with a few threads: where io_uring is not allowed or not there.
//!
//! A thread takes one part of a read at a time. One that a disk does not answer is counted as stuck as soon as its read is
//! given up, and another takes its place, up to a bound; when it comes back it ends. No member keeps more than half of the
//! threads, so that a disk that hangs does not hold up the others for the time it takes to notice; nor do titles whole on one
//! member that are read block by block around what could not be read.

use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(in crate::cache) use crate::limits::cache::MAX_OF_MEMBER;
use crate::limits::cache::{MAX_READ_THREADS, MAX_STUCK_THREADS, THREADS_LAST_WAIT};
use millrace_core::time::Instant;

use super::super::order::{Order, SpanResult};
use super::part::{Arrived, ReadPart};
use super::parts::{PartId, ReadParts};
use super::staging::Staging;
use super::{ExtentReader, Owed, Unanswered};
use crate::bell::EventBell;
use crate::disk::{ReadFault, ReadFaults};

/// A part on its way to a thread and back.
struct PartJob {
    id: PartId,
    part: ReadPart,
}

#[derive(Default)]
struct Queues {
    todo: VecDeque<PartJob>,
    done: VecDeque<PartJob>,
    /// Of the parts that threads have: their members, and whether they are blocks.
    busy: Vec<(Option<u16>, bool)>,
    threads: usize,
    /// Of these, those whose part was given up.
    stuck: usize,
    wanted: usize,
    stop: bool,
}

struct ReaderPoolState {
    queues: Mutex<Queues>,
    work: Condvar,
    gone: Condvar,
    wake: Arc<EventBell>,
    faults: ReadFaults,
}

impl ReaderPoolState {
    /// A poisoned lock is taken all the same: its holder only pushes and pops.
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The pool.
pub(super) struct Threads {
    shared: Arc<ReaderPoolState>,
    parts: ReadParts,
}

impl Threads {
    /// Creates a pool with `places` places, and with threads and memory for the `usual` number of
    /// simultaneous reads.
    ///
    /// # Errors
    /// When memory or threads are refused.
    pub(super) fn new(
        (places, usual): (usize, usize),
        wake: Arc<EventBell>,
        faults: ReadFaults,
    ) -> io::Result<Self> {
        let wanted = usual.min(MAX_READ_THREADS);
        let queues = Mutex::new(Queues { wanted, ..Queues::default() });
        let shared =
            Arc::new(ReaderPoolState { queues, work: Condvar::new(), gone: Condvar::new(), wake, faults });
        let pool = Self { shared, parts: ReadParts::new(places, Staging::new(usual)?) };
        for number in 0..wanted {
            pool.spawn(number)?;
        }
        Ok(pool)
    }

    fn spawn(&self, number: usize) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(format!("mr-read-{number}"));
        self.shared.lock().threads += 1;
        let spawned = thread.spawn(move || serve(&shared));
        if spawned.is_err() {
            self.shared.lock().threads -= 1;
        }
        spawned.map(drop)
    }

    /// Collects the reads that the threads have finished.
    fn collect(&mut self) {
        let ended = std::mem::take(&mut self.shared.lock().done);
        for PartJob { id, part } in ended {
            if self.parts.bring_back(id, part) {
                self.shared.lock().stuck -= 1;
                // There is a thread too many now.
                self.shared.work.notify_all();
            }
        }
    }
}

impl ExtentReader for Threads {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn begin_run(&mut self, _now: Instant, batch: &[(usize, &Order)]) {
        for id in self.parts.begin(batch) {
            let Some(part) = self.parts.lend(id) else { continue };
            self.shared.lock().todo.push_back(PartJob { id, part });
            self.shared.work.notify_one();
        }
    }

    fn wait(&mut self, _now: Instant, limit: Option<Duration>) {
        if limit != Some(Duration::ZERO) && !self.has_done() {
            self.shared.wake.sleep(limit);
        }
        self.collect();
    }

    fn next_done(&mut self) -> Option<usize> {
        self.collect();
        self.parts.next_done()
    }

    fn has_done(&self) -> bool {
        self.parts.has_done() || !self.shared.lock().done.is_empty()
    }

    fn results(&self, place: usize) -> Vec<SpanResult<'_>> {
        self.parts.results(place)
    }

    fn forget(&mut self, place: usize) {
        self.parts.clear(place);
    }

    fn unanswered(&mut self, now: Instant, place: usize) -> Unanswered {
        self.collect();
        let queues = self.shared.lock();
        self.parts.unanswered(now, place, |id| queues.todo.iter().any(|job| job.id == id))
    }

    fn forgive(&mut self, now: Instant, ns: u64) {
        self.parts.forgive(now, ns);
    }

    fn give_up(&mut self, place: usize) -> Vec<Owed> {
        self.collect();
        let mut queues = self.shared.lock();
        let aside = self.parts.give_up(place, |id| {
            let at = queues.todo.iter().position(|job| job.id == id)?;
            queues.todo.remove(at).map(|job| job.part)
        });
        queues.stuck += aside.len();
        let missing = (queues.wanted + queues.stuck.min(MAX_STUCK_THREADS)).saturating_sub(queues.threads);
        let first = queues.threads;
        drop(queues);
        for number in first..first + missing {
            // Refused: those that are left have more to do.
            let _ = self.spawn(number);
        }
        aside.into_iter().filter_map(|id| self.parts.owed(id)).collect()
    }

    fn next_late(&mut self) -> Option<Owed> {
        self.collect();
        self.parts.next_late()
    }

    fn aside_bytes(&self) -> usize {
        self.parts.aside_bytes()
    }
}

impl Drop for Threads {
    /// Lets the reads in progress end, except those that are stuck: they keep the memory and files
    /// they use.
    fn drop(&mut self) {
        let mut queues = self.shared.lock();
        queues.stop = true;
        queues.todo.clear();
        self.shared.work.notify_all();
        let more = |queues: &mut Queues| queues.threads > queues.stuck;
        let waited = self.shared.gone.wait_timeout_while(queues, THREADS_LAST_WAIT, more);
        let (mut queues, _) = waited.unwrap_or_else(|poisoned| poisoned.into_inner());
        queues.done.clear();
    }
}

fn serve(shared: &ReaderPoolState) {
    while let Some(PartJob { id, mut part }) = next_job(shared) {
        let mut index = 0;
        // Those that fail may become more.
        while index < part.reads.len() {
            read(&mut part, index, &shared.faults);
            index += 1;
        }
        let mut queues = shared.lock();
        let busy = queues.busy.iter().position(|&busy| busy == (part.member, part.is_block));
        busy.map(|at| queues.busy.swap_remove(at));
        match queues.stop {
            true => drop(part),
            false => queues.done.push_back(PartJob { id, part }),
        }
        // A member's next part may have waited for this one.
        let more = !queues.todo.is_empty();
        drop(queues);
        if more {
            shared.work.notify_one();
        }
        shared.wake.ring();
    }
    shared.lock().threads -= 1;
    shared.gone.notify_all();
}

fn next_job(shared: &ReaderPoolState) -> Option<PartJob> {
    let mut queues = shared.lock();
    loop {
        if queues.stop || queues.threads > queues.wanted + queues.stuck {
            return None;
        }
        let Queues { todo, busy, .. } = &mut *queues;
        let free = |part: &ReadPart| {
            let kind = (part.member, part.is_block);
            kind == (None, false) || busy.iter().filter(|&&other| other == kind).count() < MAX_OF_MEMBER
        };
        let next = todo.iter().position(|job| free(&job.part));
        match next.and_then(|at| todo.remove(at)) {
            Some(job) => {
                busy.push((job.part.member, job.part.is_block));
                return Some(job);
            }
            None => queues = shared.work.wait(queues).unwrap_or_else(|poisoned| poisoned.into_inner()),
        }
    }
}

fn read(part: &mut ReadPart, index: usize, faults: &ReadFaults) {
    let (member, is_units) = (part.member.unwrap_or(0), part.reads[index].is_units);
    loop {
        let file = part.reads[index].file.clone();
        let (into, _, offset) = part.rest(index);
        let is_free = !is_units && matches!(faults.of(member), ReadFault::Arm { .. });
        let read = if is_free {
            file.get().read_at(into, offset)
        } else {
            faults.read_at(member, file.get(), into, offset)
        };
        let result = match read {
            Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        if part.arrived(index, result) != Arrived::Again {
            return;
        }
    }
}
