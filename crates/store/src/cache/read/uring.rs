//! Reading with io_uring: no thread, no copy, one system call to begin and await all reads.
//!
//! Lifetimes: the kernel writes into a part's memory from the submission until the completion has
//! been taken. During this time the part has not ended: no caller gets a slice of its memory that
//! the kernel may write to, and the part keeps that memory and its files, even if its place has
//! given it up. Dropping the reader waits for the completions before it frees anything, or does not
//! free it.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use millrace_core::time::Instant;

use super::super::order::{MAX_SPANS, Order, SpanResult};
use super::part::{Arrived, ReadPart};
use super::parts::{PartId, ReadParts};
use super::staging::Staging;
use super::{ExtentReader, Owed, Unanswered};
use crate::bell::EventBell;
use crate::disk::{ReadFault, ReadFaults};
use crate::limits::MAX_MEMBERS;
use crate::limits::cache::{
    ENTRIES_PER_READ, RING_HELD_WAIT, RING_LAST_WAIT, RING_LAST_WAITS, RING_REFUSED_WAIT,
};

/// `user_data` of the poll on the manager's eventfd; reads have `MAX_SPANS * part + number`.
const WAKE: u64 = u64::MAX;

/// A read that a test, or an operator who tries it out, wants to be late.
struct DelayedRead {
    id: PartId,
    index: usize,
    /// For this long; none: until the fault changes.
    ns: Option<u64>,
    /// Unknown until its turn has come.
    until: Option<Instant>,
}

/// The ring and the staging memory it reads into.
pub(super) struct Uring {
    ring: IoUring,
    parts: ReadParts,
    /// Submission entries that wait for room in the ring.
    unsent: VecDeque<squeue::Entry>,
    /// Parts that the kernel may not have heard of: they wait for the next call, or for room in the ring.
    fresh: Vec<PartId>,
    /// Reads whose completion has not come.
    in_flight: usize,
    wake: Arc<EventBell>,
    wake_watched: bool,
    faults: ReadFaults,
    held: Vec<DelayedRead>,
    /// When the members' arms are free ([`ReadFault::Arm`]).
    arms: [Instant; MAX_MEMBERS],
    /// Results that come from no kernel.
    made_up: VecDeque<(u64, i32)>,
}

impl Uring {
    /// Creates a ring with `places` places and capacity for the `usual` number of simultaneous
    /// reads. Only the calling thread may use it.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or an old one (before 5.11), or does not allow it, or memory is refused.
    pub(super) fn new(
        (places, usual): (usize, usize),
        wake: Arc<EventBell>,
        faults: ReadFaults,
    ) -> io::Result<Self> {
        let entries = (ENTRIES_PER_READ * usual + 1).next_power_of_two() as u32;
        // One issuer and completions only when asked for: no interrupts of this thread (Linux 6.1).
        let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = modern.or_else(|_| IoUring::new(entries))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring older than Linux 5.11"));
        }
        // Reads of file systems that cannot begin one without waiting are given to threads of the kernel, by itself at most four
        // for each processor: as many reads of one disk that hangs would hold up those of all others. An old kernel (before
        // 5.15) keeps its own number.
        let _ = ring.submitter().register_iowq_max_workers(&mut [entries, 0]);
        let mut staging = Staging::new(usual)?;
        register(&ring, &mut staging);
        let parts = ReadParts::new(places, staging);
        let (unsent, fresh, made_up, held) = (VecDeque::new(), Vec::new(), VecDeque::new(), Vec::new());
        let (in_flight, wake_watched) = (0, false);
        let arms = [Instant(0); MAX_MEMBERS];
        Ok(Self { ring, parts, unsent, fresh, in_flight, wake, wake_watched, faults, held, arms, made_up })
    }

    /// Requests the missing bytes of one read, unless an injected fault makes it fail or be late.
    fn ask(&mut self, id: PartId, index: usize) {
        if self.faults.is_settable() {
            let Some(part) = self.parts.part_mut(id) else { return };
            let fault = fault_of(&self.faults, part, index);
            let hold = match fault {
                ReadFault::Eio => return self.made_up.push_back((number(id, index), -libc::EIO)),
                ReadFault::Hang => Some(None),
                ReadFault::SlowNs(ns) => Some(Some(ns)),
                ReadFault::Arm { .. } if part.reads[index].is_units => {
                    Some(Some(fault.delay_ns(part.target(index).1)))
                }
                _ => None,
            };
            if let Some(ns) = hold {
                return self.held.push(DelayedRead { id, index, ns, until: None });
            }
        }
        self.push(id, index);
    }

    fn push(&mut self, id: PartId, index: usize) {
        let Some(part) = self.parts.part_mut(id) else { return };
        let file = &part.reads[index].file;
        let (fd, may_wait) = (Fd(file.get().as_raw_fd()), file.may_wait());
        let (at, len, registered, offset) = part.target(index);
        let len = len as u32;
        // Registered memory: the kernel need not look up and pin its pages for each read. Measured: a fifth less
        // processor time for direct reads.
        let read = match registered {
            Some(buffer) => opcode::ReadFixed::new(fd, at, len, buffer).offset(offset).build(),
            None => opcode::Read::new(fd, at, len).offset(offset).build(),
        };
        // This thread must not wait: then one of the kernel's begins the read.
        let flags = if may_wait { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.unsent.push_back(read.flags(flags).user_data(number(id, index)));
    }

    /// Releases reads that have been held back long enough.
    fn let_go(&mut self, now: Instant) {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|read| {
            let Some(part) = self.parts.part_mut(read.id) else { return false };
            let (fault, member) = (fault_of(&self.faults, part, read.index), part.member.unwrap_or(0));
            let until =
                *read.until.get_or_insert_with(|| match (fault, self.arms.get_mut(usize::from(member))) {
                    (ReadFault::Arm { .. }, Some(arm)) => {
                        *arm = (*arm).max(now).plus_ns(read.ns.unwrap_or(0));
                        *arm
                    }
                    _ => now.plus_ns(read.ns.unwrap_or(0)),
                });
            let stays = match (fault, read.ns) {
                (ReadFault::Hang, None) => true,
                (ReadFault::SlowNs(_) | ReadFault::Arm { .. }, Some(_)) => now < until,
                _ => false,
            };
            if !stays {
                self.push(read.id, read.index);
            }
            stays
        });
        self.held.append(&mut held);
    }

    /// Gives the ring what waits for it.
    fn send(&mut self) {
        if !self.wake_watched {
            let poll = opcode::PollAdd::new(Fd(self.wake.fd().as_raw_fd()), libc::POLLIN as u32);
            self.unsent.push_back(poll.build().user_data(WAKE));
            self.wake_watched = true;
        }
        let mut queue = self.ring.submission();
        while let Some(entry) = self.unsent.pop_front() {
            let reads = usize::from(entry.get_user_data() != WAKE);
            // SAFETY: a read's memory and file stay until its completion is taken (see the head of this file): the
            // range is inside the part's memory, everybody is kept out of it until the part has ended, and the part
            // keeps the file open. The poll's descriptor lives as long as `self.wake`.
            if unsafe { queue.push(&entry) }.is_err() {
                return self.unsent.push_front(entry);
            }
            self.in_flight += reads;
        }
    }

    /// Records that the parts given to the ring are in progress from now on.
    fn note_begun(&mut self, now: Instant) {
        let (parts, unsent) = (&mut self.parts, &self.unsent);
        self.fresh.retain(|&id| {
            let is_of = |entry: &squeue::Entry| entry.get_user_data() / MAX_SPANS as u64 == id as u64;
            let waits = unsent.iter().any(is_of);
            if !waits {
                parts.note_begun(id, now);
            }
            waits
        });
    }

    /// Lets the kernel begin the submitted reads and waits for a completion; `false`: it refused.
    fn enter(&mut self, limit: Option<Duration>) -> bool {
        let entered = match limit {
            None => self.ring.submitter().submit_and_wait(1),
            Some(limit) => {
                let limit = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit))
            }
        };
        // Nothing came in time, a signal came, or completions have to be taken first: all as it should be.
        let harmless = [libc::ETIME, libc::EINTR, libc::EBUSY];
        entered.map_or_else(
            |error| error.raw_os_error().is_some_and(|errno| harmless.contains(&errno)),
            |_| true,
        )
    }

    /// Takes all completions that are there.
    fn reap(&mut self) {
        while let Some((id, result)) = self.next_completion() {
            if id == WAKE {
                self.wake_watched = false;
                self.wake.clear();
            } else {
                self.in_flight -= 1;
                self.arrived(id, result);
            }
        }
        for _ in 0..self.made_up.len() {
            let Some((id, result)) = self.made_up.pop_front() else { return };
            self.arrived(id, result);
        }
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }

    fn arrived(&mut self, number: u64, mut result: i32) {
        let (id, index) = (number as usize / MAX_SPANS, number as usize % MAX_SPANS);
        let Some(part) = self.parts.part_mut(id) else { return };
        if self.faults.is_settable()
            && let Ok(bytes) = usize::try_from(result)
        {
            let member = part.member.unwrap_or(0);
            let (at, len, _, offset) = part.target(index);
            // SAFETY: the range is inside the part's memory (see `ReadPart::target`), at most as long
            // as requested there, and the kernel has just reported that it is done with it.
            let into = unsafe { std::slice::from_raw_parts_mut(at, bytes.min(len)) };
            result = match self.faults.after_read(member, offset, into) {
                Ok(bytes) => bytes as i32,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
        }
        match part.arrived(index, result) {
            Arrived::Again => self.ask(id, index),
            Arrived::Split(reads) => reads.for_each(|index| self.ask(id, index)),
            Arrived::Ended if part.has_ended() => self.parts.ended(id),
            Arrived::Ended => {}
        }
    }
}

#[cfg(test)]
impl Uring {
    /// Returns the memory not in use: the home buffers, and the bytes of other memory.
    pub(super) fn kept(&self) -> (usize, usize) {
        self.parts.staging().kept()
    }
}

/// Returns the injected fault for the missing bytes of one read of a part.
fn fault_of(faults: &ReadFaults, part: &mut ReadPart, index: usize) -> ReadFault {
    let (_, len, _, offset) = part.target(index);
    faults.of(part.member.unwrap_or(0)).on(&(offset..offset.saturating_add(len as u64)))
}

fn number(id: PartId, index: usize) -> u64 {
    (id * MAX_SPANS + index) as u64
}

/// Registers the home buffers with the kernel. The kernel refuses if the process may not lock that
/// much memory; reads work without registration.
fn register(ring: &IoUring, staging: &mut Staging) {
    let homes = staging.homes();
    let iovec =
        |buffer: &mut [u8]| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let buffers: Vec<_> = homes.iter_mut().map(|home| iovec(&mut home.buf)).collect();
    // SAFETY: the buffers are mapped memory of their own that stays where it is as long as `staging` and the parts it lends
    // them to, and the kernel holds on to the registered pages even beyond that.
    if unsafe { ring.submitter().register_buffers(&buffers) }.is_ok() {
        (0..).zip(homes).for_each(|(number, home)| home.registered = Some(number));
    }
}

impl ExtentReader for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn begin_run(&mut self, _now: Instant, batch: &[(usize, &Order)]) {
        for id in self.parts.begin(batch) {
            self.fresh.push(id);
            let reads = self.parts.part_mut(id).map_or(0, |part| part.reads.len());
            (0..reads).for_each(|index| self.ask(id, index));
        }
    }

    fn wait(&mut self, now: Instant, limit: Option<Duration>) {
        let mut limit = limit;
        if !self.held.is_empty() {
            self.let_go(now);
            let next = self.held.iter().filter_map(|read| read.until).min();
            let next = next.map_or(RING_HELD_WAIT, |until| {
                Duration::from_nanos(until.ns_since(now)).min(RING_HELD_WAIT)
            });
            limit = Some(limit.unwrap_or(next).min(next));
        }
        if !self.made_up.is_empty() || self.parts.has_done() {
            limit = Some(Duration::ZERO);
        }
        let idle = self.in_flight == 0 && self.unsent.is_empty();
        if idle && limit == Some(Duration::ZERO) {
            self.note_begun(now);
            return self.reap();
        }
        self.send();
        self.note_begun(now);
        if !self.enter(limit) && limit != Some(Duration::ZERO) {
            self.wake.sleep(Some(RING_REFUSED_WAIT));
        }
        self.reap();
    }

    fn next_done(&mut self) -> Option<usize> {
        self.parts.next_done()
    }

    fn has_done(&self) -> bool {
        self.parts.has_done()
    }

    fn results(&self, place: usize) -> Vec<SpanResult<'_>> {
        self.parts.results(place)
    }

    fn forget(&mut self, place: usize) {
        self.parts.clear(place);
    }

    fn unanswered(&mut self, now: Instant, place: usize) -> Unanswered {
        let fresh = &self.fresh;
        self.parts.unanswered(now, place, |id| fresh.contains(&id))
    }

    fn forgive(&mut self, now: Instant, ns: u64) {
        self.parts.forgive(now, ns);
    }

    fn give_up(&mut self, place: usize) -> Vec<Owed> {
        let aside = self.parts.give_up(place, |_| None);
        aside.into_iter().filter_map(|id| self.parts.owed(id)).collect()
    }

    fn next_late(&mut self) -> Option<Owed> {
        self.parts.next_late()
    }

    fn aside_bytes(&self) -> usize {
        self.parts.aside_bytes()
    }
}

impl Drop for Uring {
    /// Waits for the reads in flight: the kernel writes into memory that is freed here.
    fn drop(&mut self) {
        let mut waits = 0;
        while self.in_flight > 0 && waits < RING_LAST_WAITS {
            let before = self.in_flight;
            if !self.enter(Some(RING_LAST_WAIT)) {
                std::thread::sleep(RING_REFUSED_WAIT);
            }
            self.reap();
            waits += usize::from(self.in_flight == before);
        }
        if self.in_flight > 0 {
            // The kernel does not say that it is done: rather lose the memory than let it be written to when freed.
            for memory in self.parts.take_memory() {
                let _lost = std::mem::ManuallyDrop::new(memory);
            }
        }
    }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
