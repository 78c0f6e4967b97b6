//! Reading with io_uring: no thread, no copy, one system call for everything that is to be begun and awaited.
//!
//! Lifetimes: the kernel writes into a place's staging memory from `begin` until the completion has been taken. In
//! that time `Flight::left > 0` and nobody is given a slice of it; the request (and with it the open files) stays; and
//! dropping the reader waits for every completion before it frees anything.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::{Done, PIECES, Piece, Reader, Request, Staged, Staging, Step};
use crate::bell::EventBell;

/// `user_data` of the poll on the manager's eventfd; reads have `3 * place + piece`.
const WAKE: u64 = u64::MAX;
/// After the kernel has refused to take or wait for anything (out of memory), it is asked again after this time.
const REFUSED: Duration = Duration::from_millis(5);
/// So often, until it is given up.
const MAX_REFUSALS: usize = 1000;

struct Flight {
    staging: Staging,
    request: Option<Request>,
    /// Pieces not in yet.
    left: u8,
    result: Result<(), (Piece, i32)>,
}

/// The ring and the staging memory it reads into.
pub(super) struct Uring {
    ring: IoUring,
    flights: Box<[Flight]>,
    done: VecDeque<Done>,
    /// Submission entries that wait for room in the ring; with a ring of the right size there are none.
    unsent: VecDeque<squeue::Entry>,
    /// Reads whose completion has not come.
    in_flight: usize,
    wake: Arc<EventBell>,
    wake_watched: bool,
    /// The staging memory is registered: the kernel need not look up and pin its pages for each read. Measured: a
    /// fifth less processor time for direct reads.
    registered: bool,
}

impl Uring {
    /// A ring that can have so many reads in flight. Has to be used by the thread that calls this.
    ///
    /// # Errors
    /// When the kernel has no io_uring, or an old one (before 5.11), or does not allow it, or memory is refused.
    pub(super) fn new(places: usize, wake: Arc<EventBell>) -> io::Result<Self> {
        let entries = (PIECES.len() * places + 1).next_power_of_two() as u32;
        // One issuer and completions only when asked for: no interrupts of this thread (Linux 6.1).
        let modern = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries);
        let ring = modern.or_else(|_| IoUring::new(entries))?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring older than Linux 5.11"));
        }
        let flight = |_| {
            let staging = Staging::new()?;
            Ok(Flight { staging, request: None, left: 0, result: Ok(()) })
        };
        let mut flights = (0..places).map(flight).collect::<io::Result<Box<[Flight]>>>()?;
        let buffers = flights
            .iter_mut()
            .flat_map(|Flight { staging, .. }| [&mut staging.data, &mut staging.meta, &mut staging.sums]);
        let buffers: Vec<_> = buffers.map(|buffer| iovec(buffer)).collect();
        // SAFETY: the buffers are mapped memory of their own; they stay where they are as long as `flights` lives,
        // and the kernel holds on to the registered pages even beyond that.
        let registered = unsafe { ring.submitter().register_buffers(&buffers) };
        // Refused where a process may not lock so much memory: the reads work all the same.
        let registered = registered.is_ok();
        let (done, unsent) = (VecDeque::with_capacity(places), VecDeque::new());
        Ok(Self { ring, flights, done, unsent, in_flight: 0, wake, wake_watched: false, registered })
    }

    /// Asks for what is missing of one piece.
    fn ask(&mut self, place: usize, piece: Piece) {
        let flight = &mut self.flights[place];
        let Some(request) = &flight.request else { return };
        let (range, offset) = request.spans[piece as usize].rest();
        let fd = Fd(request.file(piece).as_raw_fd());
        let into = &mut flight.staging.of(piece)[range];
        let (number, len) = (PIECES.len() * place + piece as usize, into.len() as u32);
        let read = match self.registered {
            true => opcode::ReadFixed::new(fd, into.as_mut_ptr(), len, number as u16).offset(offset).build(),
            false => opcode::Read::new(fd, into.as_mut_ptr(), len).offset(offset).build(),
        };
        self.unsent.push_back(read.user_data(number as u64));
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
            // range is inside the place's staging memory, `left > 0` keeps everybody out of it, and `request` keeps
            // the file open. The poll's descriptor lives as long as `self.wake`.
            if unsafe { queue.push(&entry) }.is_err() {
                return self.unsent.push_front(entry);
            }
            self.in_flight += reads;
        }
    }

    /// Lets the kernel begin what was sent and waits for a completion; `false`: it refused.
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
                let (place, piece) = (id as usize / PIECES.len(), PIECES[id as usize % PIECES.len()]);
                self.arrived(place, piece, result);
            }
        }
    }

    fn next_completion(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }

    fn arrived(&mut self, place: usize, piece: Piece, result: i32) {
        let flight = &mut self.flights[place];
        let Some(request) = &mut flight.request else { return };
        match request.spans[piece as usize].arrived(result) {
            Step::Again => return self.ask(place, piece),
            Step::Failed(errno) if flight.result.is_ok() => flight.result = Err((piece, errno)),
            Step::Failed(_) | Step::Done => {}
        }
        flight.left -= 1;
        if flight.left == 0 {
            let bytes = request.spans.each_ref().map(|span| span.got as u64);
            self.done.push_back(Done { place, bytes, result: flight.result });
        }
    }
}

fn iovec(buffer: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }
}

impl Reader for Uring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn begin(&mut self, place: usize, request: Request) {
        let flight = &mut self.flights[place];
        assert!(flight.left == 0, "a read is begun only in a free place");
        let pieces = request.pieces();
        (flight.request, flight.left, flight.result) = (Some(request), 0, Ok(()));
        for piece in pieces {
            self.flights[place].left += 1;
            self.ask(place, piece);
        }
    }

    fn wait(&mut self, limit: Option<Duration>) {
        let idle = self.in_flight == 0 && self.unsent.is_empty();
        if idle && limit == Some(Duration::ZERO) {
            return;
        }
        self.send();
        if !self.enter(limit) && limit != Some(Duration::ZERO) {
            self.wake.sleep(Some(REFUSED));
        }
        self.reap();
    }

    fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    fn staged(&self, place: usize) -> Staged<'_> {
        match &self.flights[place] {
            Flight { staging, request: Some(request), left: 0, .. } => staging.staged(request),
            _ => Staged::default(),
        }
    }
}

impl Drop for Uring {
    /// Waits for the reads in flight: the kernel writes into memory that is freed here.
    fn drop(&mut self) {
        for _ in 0..MAX_REFUSALS {
            while self.in_flight > 0 && self.enter(None) {
                self.reap();
            }
            if self.in_flight == 0 {
                return;
            }
            std::thread::sleep(REFUSED);
        }
        // The kernel does not say that it is done: rather lose the memory than let it be written to when freed.
        for flight in std::mem::take(&mut self.flights) {
            let _lost = std::mem::ManuallyDrop::new(flight.staging);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SampleTitle, request};
    use super::*;

    /// Dropping the reader right after handing out reads must neither crash nor lose the files under the reads.
    #[test]
    fn dropping_with_reads_in_flight_waits_for_them() {
        let title = SampleTitle::new(4);
        for rounds in 0..20 {
            let wake = Arc::new(EventBell::new().unwrap());
            let Ok(mut uring) = Uring::new(4, wake) else {
                return eprintln!("no io_uring here: nothing to test");
            };
            for place in 0..4 {
                uring.begin(place, request(&title, place as u32));
            }
            if rounds % 2 == 0 {
                uring.wait(Some(Duration::ZERO));
            }
            let (files, in_flight) = (Arc::strong_count(&title.open), uring.in_flight);
            assert!(files > 4, "requests keep the title open");
            assert!(in_flight <= 8);
            drop(uring);
            assert_eq!(Arc::strong_count(&title.open), 1);
        }
    }

    /// Where the memory may not be locked, reads go without registered buffers.
    #[test]
    fn reads_work_without_registered_memory() {
        let title = SampleTitle::new(2);
        let Ok(mut uring) = Uring::new(1, Arc::new(EventBell::new().unwrap())) else { return };
        uring.registered = false;
        for extent in [1, 0] {
            uring.begin(0, request(&title, extent));
            while !uring.has_done() {
                uring.wait(None);
            }
            assert_eq!(uring.next_done().unwrap().result, Ok(()));
            assert!(uring.staged(0).data == title.data(extent));
        }
    }

    #[test]
    #[should_panic(expected = "only in a free place")]
    fn a_place_in_flight_is_not_begun_again() {
        let title = SampleTitle::new(1);
        let Ok(mut uring) = Uring::new(1, Arc::new(EventBell::new().unwrap())) else {
            panic!("no io_uring here: only in a free place");
        };
        uring.begin(0, request(&title, 0));
        uring.begin(0, request(&title, 0));
    }

    #[test]
    fn staging_memory_is_not_shown_while_the_kernel_writes() {
        let title = SampleTitle::new(1);
        let Ok(mut uring) = Uring::new(1, Arc::new(EventBell::new().unwrap())) else { return };
        assert_eq!(uring.staged(0), Staged::default());
        uring.begin(0, request(&title, 0));
        assert_eq!(uring.staged(0), Staged::default());
        while !uring.has_done() {
            uring.wait(None);
        }
        assert_eq!(uring.staged(0).data, title.data(0));
    }
}
