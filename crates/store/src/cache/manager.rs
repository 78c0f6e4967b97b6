//! The manager: one thread that owns all policy and all disk input of the cache.
//!
//! ```text
//!   control ──► asks of the engines ──► time ──► what was read ──► what to read ──► grants, bells ──► sleep
//! ```

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use millrace_core::ids::TitleRef;
use millrace_core::pool::{ExtentArena, Fill};
use millrace_core::seam::Clock;
use millrace_core::time::Instant;

use super::door::{Ask, DoorEnd, ReadFailure};
use super::fill::Builder;
use super::plan::ExtentKey;
use super::policy::{Policy, ReadOrder};
use super::read::{self, Done, Piece, Reader, Request};
use super::source::{Geometry, OpenTitle};
use super::stats::{Counters, Trouble};
use super::{CacheConfig, CacheError};
use crate::bell::EventBell;

/// Asks taken from one engine in a turn.
const ASKS_PER_TURN: usize = 256;
/// Extents built in a turn; each takes some 50 us.
const FILLS_PER_TURN: usize = 8;

/// While nothing is being read, asks are gathered for this long: what they want lies in memory as a rule, and is not needed
/// for tens of milliseconds. Without it a thousand viewers wake this thread seven hundred times a second, on a core that
/// an engine may be using.
const GATHER: Duration = Duration::from_millis(2);

/// From the control side.
pub(super) enum Control {
    Open(Box<OpenTitle>, SyncSender<Option<TitleRef>>),
    Close(TitleRef, SyncSender<()>),
    Stop,
}

/// A read that was begun.
struct Flight {
    key: ExtentKey,
    title: Arc<OpenTitle>,
    geometry: Geometry,
    fill: Fill,
    /// It was read again after its bytes did not match their checksums.
    second_try: bool,
}

/// What the manager thread owns.
pub(super) struct Manager {
    policy: Policy,
    reader: Box<dyn Reader>,
    builder: Builder,
    flights: Box<[Option<Flight>]>,
    free_places: Vec<usize>,
    doors: Vec<Option<DoorEnd>>,
    control: Receiver<Control>,
    wake: Arc<EventBell>,
    clock: Arc<dyn Clock + Send + Sync>,
    counters: Arc<Counters>,
    stopping: bool,
}

/// What the manager is made of.
pub(super) struct Parts {
    pub(super) config: CacheConfig,
    pub(super) arena: Arc<ExtentArena>,
    pub(super) doors: Vec<DoorEnd>,
    pub(super) control: Receiver<Control>,
    pub(super) wake: Arc<EventBell>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) counters: Arc<Counters>,
}

impl Manager {
    /// Has to be called on the thread that will run it: an io_uring has one user.
    ///
    /// # Errors
    /// When there is no way of reading.
    pub(super) fn new(parts: Parts) -> Result<Self, CacheError> {
        let Parts { config, arena, doors, control, wake, clock, counters } = parts;
        let places = config.reads_in_flight;
        let reader = read::start(config.backend, places, &wake)?;
        let policy = Policy::new(arena, doors.len(), config.prefetch_ns, places, Arc::clone(&counters));
        Ok(Self {
            policy,
            reader,
            builder: Builder::default(),
            flights: (0..places).map(|_| None).collect(),
            free_places: (0..places).rev().collect(),
            doors: doors.into_iter().map(Some).collect(),
            control,
            wake,
            clock,
            counters,
            stopping: false,
        })
    }

    /// How it reads.
    pub(super) fn backend(&self) -> &'static str {
        self.reader.name()
    }

    /// Runs until told to stop. Reads in flight end before the reader is dropped.
    pub(super) fn run(mut self) {
        while !self.stopping {
            let now = self.clock.now();
            if self.turn(now) == 0 {
                self.sleep(now);
            } else if !self.is_reading() {
                std::thread::sleep(GATHER);
            }
        }
    }

    /// Whether a read has been begun and not yet taken.
    fn is_reading(&self) -> bool {
        self.free_places.len() < self.flights.len()
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut work = self.take_control(now);
        work += self.take_asks(now);
        self.policy.handle_time(now);
        if self.is_reading() {
            self.reader.wait(Some(Duration::ZERO));
            work += self.take_reads(now);
        }
        work += self.begin_reads(now);
        work += self.give_grants();
        self.policy.publish();
        work
    }

    fn take_control(&mut self, now: Instant) -> usize {
        let mut taken = 0;
        while let Ok(control) = self.control.try_recv() {
            taken += 1;
            // Whoever asked and does not wait for the answer any more does not need it.
            match control {
                Control::Open(title, reply) => drop(reply.send(self.policy.open_title(*title))),
                Control::Close(title, reply) => {
                    self.policy.close_title(now, title);
                    let _ = reply.send(());
                }
                Control::Stop => self.stopping = true,
            }
        }
        taken
    }

    fn take_asks(&mut self, now: Instant) -> usize {
        let mut taken = 0;
        for (number, door) in self.doors.iter_mut().enumerate() {
            let Some(end) = door else { continue };
            let number = number as u16;
            if end.is_gone() {
                self.policy.door_gone(number);
                *door = None;
                taken += 1;
                continue;
            }
            for _ in 0..ASKS_PER_TURN {
                match end.take() {
                    Some(Ask::Want(want)) => self.policy.want(now, number, &want),
                    Some(Ask::Leave(stream)) => self.policy.leave(number, stream),
                    None => break,
                }
                taken += 1;
            }
        }
        taken
    }

    fn take_reads(&mut self, now: Instant) -> usize {
        for taken in 0..FILLS_PER_TURN {
            let Some(done) = self.reader.next_done() else { return taken };
            let [data, meta, sums] = done.bytes;
            self.counters.bytes_read.add(data);
            self.counters.meta_bytes_read.add(meta + sums);
            let Some(flight) = self.flights[done.place].take() else { continue };
            self.take_read(now, &done, flight);
        }
        FILLS_PER_TURN
    }

    /// One read has ended: builds the extent, or reads once more, or gives up.
    fn take_read(&mut self, now: Instant, done: &Done, mut flight: Flight) {
        let outcome = match done.result {
            Err((Piece::Data, libc::EINVAL)) if flight.title.is_direct() => {
                // The file could be opened for direct reads but does not take them.
                flight.title.refuse_direct();
                return self.begin_read(done.place, flight);
            }
            Err((_, errno)) => Err(ReadFailure::Io(errno)),
            Ok(()) => {
                let staged = self.reader.staged(done.place);
                let (extent, title) = (flight.fill.bytes_mut(), (flight.key.title, &*flight.title));
                let built = self.builder.build(title, &flight.geometry, flight.key.extent, staged, extent);
                built.map_err(|_| ReadFailure::Checksum)
            }
        };
        if outcome == Err(ReadFailure::Checksum) && !flight.second_try {
            // Memory or a cable may have been at fault, not the disk: read again, past what the kernel remembers.
            self.counters.retries.add(1);
            flight.second_try = true;
            flight.forget_cached();
            return self.begin_read(done.place, flight);
        }
        if let Err(failure) = outcome {
            self.note_failure(&flight, failure);
        }
        self.free_places.push(done.place);
        self.policy.finish(now, flight.key, flight.fill, outcome);
    }

    fn note_failure(&self, flight: &Flight, failure: ReadFailure) {
        match failure {
            ReadFailure::Checksum => self.counters.checksum_errors.add(1),
            _ => self.counters.read_errors.add(1),
        }
        self.counters.note_trouble(Trouble {
            title: flight.key.title,
            extent: flight.key.extent,
            failure,
            path: flight.title.source().data_path().to_path_buf(),
            bytes: flight.geometry.data.clone(),
            failures: 1,
        });
    }

    fn begin_reads(&mut self, now: Instant) -> usize {
        let mut begun = 0;
        while let Some(place) = self.free_places.pop() {
            let Some(ReadOrder { key, title, fill, .. }) = self.policy.next_read(now) else {
                self.free_places.push(place);
                break;
            };
            begun += 1;
            match title.geometry(key.extent) {
                Some(geometry) => {
                    self.begin_read(place, Flight { key, title, geometry, fill, second_try: false });
                }
                None => {
                    self.free_places.push(place);
                    self.policy.finish(now, key, fill, Err(ReadFailure::OutOfRange));
                }
            }
        }
        begun
    }

    fn begin_read(&mut self, place: usize, flight: Flight) {
        self.reader.begin(place, Request::new(Arc::clone(&flight.title), flight.geometry.clone()));
        self.flights[place] = Some(flight);
    }

    fn give_grants(&mut self) -> usize {
        let mut given = 0;
        while let Some((door, grant)) = self.policy.poll_grant() {
            given += 1;
            // If the engine is gone, its leases go back here.
            if let Some(end) = &mut self.doors[usize::from(door)] {
                end.give(grant);
            }
        }
        for end in self.doors.iter_mut().flatten() {
            end.flush();
            end.ring();
        }
        given
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self, now: Instant) {
        let limit = self.policy.poll_at(now).map(|at| Duration::from_nanos(at.ns_since(now)));
        self.wake.announce_sleep();
        // The last look: whoever adds work after this sees the announcement and rings.
        let busy = self.doors.iter().flatten().any(DoorEnd::has_work) || self.reader.has_done();
        if busy || self.take_control(now) > 0 {
            return self.wake.awake();
        }
        self.reader.wait(limit);
        self.wake.awake();
        if limit.is_some() {
            self.policy.retry_room();
        }
    }
}

impl Flight {
    /// Asks the kernel to forget what it has cached of the flight's bytes. If it does not, they are read again all
    /// the same, from there.
    fn forget_cached(&self) {
        let forget = |file: &std::fs::File, bytes: &std::ops::Range<u64>| {
            let length = std::num::NonZeroU64::new(bytes.end - bytes.start);
            let _ = rustix::fs::fadvise(file, bytes.start, length, rustix::fs::Advice::DontNeed);
        };
        forget(self.title.source().data(), &self.geometry.data);
        forget(self.title.source().meta(), &self.geometry.meta);
        if let Some(sums) = self.title.source().sums() {
            forget(sums, &self.geometry.sums);
        }
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
