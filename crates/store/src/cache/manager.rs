//! The manager: one thread that owns all policy and all disk input of the cache.
//!
//! ```text
//!   control ──► asks of the engines ──► time ──► what was read ──► what to read ──► grants, bells ──► sleep
//!                                                 what takes too long, probes
//! ```
//!
//! `flights` tracks reads, `member_monitor` the state of the members that were asked, `damage` the
//! parts of titles that are unavailable, `transforms` the last step of transformed titles.

mod damage;
mod flights;
mod member_monitor;
#[cfg(feature = "sim")]
pub(super) mod stepped;
mod transforms;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

use millrace_core::ids::TitleRef;
use millrace_core::limits::SLOW_READ_NS;
use millrace_core::seam::Clock;
use millrace_core::time::Instant;

use self::damage::DamageBook;
use self::flights::Flight;
use self::member_monitor::MemberMonitor;
use self::transforms::Transformer;
use super::builder::Builder;
use super::config::CacheConfig;
use super::error::CacheError;
use super::handle::{Ask, ManagerEnd};
use super::live::Feed;
use super::order::{Order, SpanOrder};
use super::policy::Policy;
use super::read::{self, ExtentReader};
use super::residents::ResidentExtents;
use super::source::OpenTitle;
use super::stats::CacheCounters;
use crate::bell::EventBell;
use crate::disk::ReadFaults;
use crate::limits::cache::{ASKS_PER_TURN, FILLS_PER_TURN, GATHER};
use crate::limits::{EXTENTS_PER_READ, MAX_RUN_EXTENTS};
use crate::members::Members;

/// A command from the control side to the manager thread.
pub(super) enum ManagerCommand {
    Open(Box<OpenTitle>, SyncSender<Option<TitleRef>>),
    OpenLive(Box<(OpenTitle, Feed)>, SyncSender<Result<TitleRef, CacheError>>),
    Close(TitleRef, SyncSender<()>),
    Watch(Arc<Members>),
    Stop,
}

/// The state of the manager thread.
pub(super) struct Manager {
    policy: Policy,
    reader: Box<dyn ExtentReader>,
    builder: Builder,
    transformer: Transformer,
    monitor: MemberMonitor,
    damage: DamageBook,
    flights: Box<[Option<Flight>]>,
    free_places: Vec<usize>,
    handles: Vec<Option<ManagerEnd>>,
    control: Receiver<ManagerCommand>,
    wake: Arc<EventBell>,
    clock: Arc<dyn Clock + Send + Sync>,
    counters: Arc<CacheCounters>,
    /// [`CacheConfig::read_bytes`].
    read_bytes: usize,
    /// [`MemberMonitor::returns`] when extents with holes were last dropped.
    returns: u64,
    /// When the probe under way was begun.
    probe: Option<Instant>,
    stopping: bool,
}

/// Everything that a [`Manager`] is built from.
pub(super) struct ManagerParts {
    pub(super) config: CacheConfig,
    pub(super) residents: Arc<ResidentExtents>,
    pub(super) handles: Vec<ManagerEnd>,
    pub(super) control: Receiver<ManagerCommand>,
    pub(super) wake: Arc<EventBell>,
    pub(super) clock: Arc<dyn Clock + Send + Sync>,
    pub(super) counters: Arc<CacheCounters>,
    pub(super) faults: ReadFaults,
}

impl Manager {
    /// Has to be called on the thread that will run it: an io_uring has one user.
    ///
    /// # Errors
    /// When there is no way of reading.
    pub(super) fn new(parts: ManagerParts) -> Result<Self, CacheError> {
        let ManagerParts { config, wake, faults, .. } = &parts;
        let reader = read::start(config.backend, reader_size(config), wake, faults)?;
        Ok(Self::with_reader(parts, reader))
    }

    fn with_reader(parts: ManagerParts, reader: Box<dyn ExtentReader>) -> Self {
        let ManagerParts { config, residents, handles, control, wake, clock, counters, .. } = parts;
        let reads = config.reads_in_flight;
        let places = reader_size(&config).0 - 1;
        let policy = Policy::new(residents, handles.len(), config.prefetch_ns, reads, Arc::clone(&counters));
        Self {
            policy,
            reader,
            builder: Builder::default(),
            transformer: Transformer::default(),
            monitor: MemberMonitor::new(Arc::clone(&counters)),
            damage: DamageBook::new(config.max_damaged_permille),
            flights: (0..places).map(|_| None).collect(),
            free_places: (0..places).rev().collect(),
            handles: handles.into_iter().map(Some).collect(),
            control,
            wake,
            clock,
            counters,
            read_bytes: config.read_bytes,
            returns: 0,
            probe: None,
            stopping: false,
        }
    }

    /// How it reads.
    pub(super) fn backend(&self) -> &'static str {
        self.reader.name()
    }

    /// Runs until it is stopped. Reads in flight end before the reader is dropped.
    pub(super) fn run(mut self) {
        let mut due = self.clock.now();
        while !self.stopping {
            let now = self.clock.now();
            self.forgive(now, due);
            due = match self.turn(now) {
                0 => self.sleep(now),
                _ if self.may_gather() => self.gather(now),
                _ => now,
            };
        }
    }

    /// Whether nothing is lost by doing nothing for [`GATHER`]: everything that has come is dealt with, and the disks have as much to
    /// do as they are given.
    fn may_gather(&self) -> bool {
        !self.reader.has_done() && self.policy.has_free_reads()
    }

    /// Lets work come together, unless the control side has some. Gives when this thread should run again.
    fn gather(&mut self, now: Instant) -> Instant {
        if self.is_reading() {
            // Reads that have begun go to the disks first.
            self.reader.wait(now, Some(Duration::ZERO));
        }
        if let Ok(control) = self.control.recv_timeout(GATHER) {
            self.obey(now, control);
        }
        now.plus_ns(GATHER.as_nanos() as u64)
    }

    /// Whether a read has been begun and not yet taken.
    fn is_reading(&self) -> bool {
        self.free_places.len() < self.flights.len() || self.probe.is_some()
    }

    fn turn(&mut self, now: Instant) -> usize {
        let mut work = self.take_control(now);
        work += self.take_asks(now);
        work += self.policy.take_fed(now) + self.policy.take_grown(now);
        self.policy.handle_time(now);
        while let Some(title) = self.policy.next_closed(now) {
            self.forget_title(title);
            work += 1;
        }
        self.monitor.look(now);
        if self.is_reading() || self.reader.aside_bytes() > 0 || self.reader.has_done() {
            self.reader.wait(now, Some(Duration::ZERO));
            work += self.take_reads(now);
        }
        work += self.take_transformed(now);
        work += self.begin_reads(now);
        work += self.look_after_members(now);
        if self.returns != self.monitor.returns() {
            self.returns = self.monitor.returns();
            self.policy.drop_holes();
        }
        work += self.give_grants();
        self.counters.aside_bytes.set(self.reader.aside_bytes());
        self.policy.publish();
        work
    }

    fn take_control(&mut self, now: Instant) -> usize {
        let mut taken = 0;
        while let Ok(control) = self.control.try_recv() {
            taken += 1;
            self.obey(now, control);
        }
        taken
    }

    fn obey(&mut self, now: Instant, control: ManagerCommand) {
        // Whoever asked and does not wait for the answer any more does not need it.
        match control {
            ManagerCommand::Open(title, reply) => drop(reply.send(self.policy.open_title(*title))),
            ManagerCommand::OpenLive(live, reply) => {
                let (title, feed) = *live;
                let _ = reply.send(self.policy.open_live(now, title, feed));
            }
            ManagerCommand::Close(title, reply) => {
                self.policy.close_title(now, title);
                self.forget_title(title);
                let _ = reply.send(());
            }
            ManagerCommand::Watch(members) => self.monitor.watch(now, members),
            ManagerCommand::Stop => self.stopping = true,
        }
    }

    fn forget_title(&mut self, title: TitleRef) {
        self.monitor.forget_title(title);
        self.damage.forget_title(title);
        // A place keeps the files of its last read until its next: a title that was removed would keep its space.
        self.free_places.iter().for_each(|&place| self.reader.forget(place));
    }

    /// Returns how many extents are wanted: what engines have taken themselves, or left, is no reason to gather more of it at once,
    /// because they tell of it in time ([`TELL_NS`](crate::limits::cache::TELL_NS)).
    fn take_asks(&mut self, now: Instant) -> usize {
        let mut wanted = 0;
        for (number, handle) in self.handles.iter_mut().enumerate() {
            let Some(end) = handle else { continue };
            let number = number as u16;
            if end.is_gone() {
                self.policy.handle_gone(number);
                *handle = None;
                wanted += 1;
                continue;
            }
            for _ in 0..ASKS_PER_TURN {
                match end.take() {
                    Some(Ask::Want(want)) => {
                        self.policy.want(now, number, &want);
                        wanted += 1;
                    }
                    Some(Ask::Took(want)) => self.policy.took(now, number, &want),
                    Some(Ask::Leave(stream)) => self.policy.leave(number, stream),
                    None => break,
                }
            }
        }
        wanted
    }

    fn take_reads(&mut self, now: Instant) -> usize {
        while let Some(owed) = self.reader.next_late() {
            self.monitor.came_late(now, owed);
        }
        for taken in 0..FILLS_PER_TURN {
            let Some(place) = self.reader.next_done() else { return taken };
            if place == self.flights.len() {
                let good = self.reader.results(place).iter().all(Result::is_ok);
                self.probe = None;
                self.monitor.probed(now, good);
            } else if let Some(flight) = self.flights[place].take() {
                self.take_read(now, place, flight);
            }
        }
        FILLS_PER_TURN
    }

    /// Gives up reads that take too long, and probes members that were suspended.
    fn look_after_members(&mut self, now: Instant) -> usize {
        let mut work = self.look_after_reads(now);
        let place = self.flights.len();
        if let Some(begun) = self.probe
            && now.ns_since(begun) >= SLOW_READ_NS
            // Else it has been answered and waits to be taken.
            && !self.reader.unanswered(now, place).members.is_empty()
        {
            self.probe = None;
            self.monitor.given_up(begun, &self.reader.give_up(place));
            self.monitor.probed(now, false);
            work += 1;
        }
        if self.probe.is_none()
            && let Some((title, span)) = self.monitor.next_probe(now)
        {
            self.begin_probe(now, title, span);
            work += 1;
        }
        work
    }

    /// Probes a member: reads the data again that it last returned correctly, from the file that is
    /// there now.
    fn begin_probe(&mut self, now: Instant, title: TitleRef, mut span: SpanOrder) {
        if span.member.is_some_and(|member| self.monitor.is_failing(member))
            && let Some(title) = self.policy.title(title)
        {
            match title.opened_again(span.role, now) {
                Some(file) => span.file = file,
                None => return self.monitor.probed(now, false),
            }
        }
        forget_cached(&span);
        let order = Order { thorough: true, spans: vec![span], ..Order::empty(0, 0) };
        self.reader.begin(now, self.flights.len(), &order);
        self.probe = Some(now);
    }

    /// When there is something to do although nothing has happened.
    fn poll_at(&self, now: Instant) -> Option<Instant> {
        let looks = self.flights.iter().flatten().filter_map(|flight| flight.look_at).min();
        let probe = self.probe.map(|begun| begun.plus_ns(SLOW_READ_NS));
        [self.policy.poll_at(now), looks, probe, self.monitor.poll_at()].into_iter().flatten().min()
    }

    fn give_grants(&mut self) -> usize {
        let mut given = 0;
        while let Some((handle, grant)) = self.policy.poll_grant() {
            given += 1;
            // If the engine is gone, its leases go back here.
            if let Some(end) = &mut self.handles[usize::from(handle)] {
                end.give(grant);
            }
        }
        for end in self.handles.iter_mut().flatten() {
            end.flush();
            end.ring();
        }
        given
    }

    /// Whether an engine, a feeder or the reader has brought something.
    fn has_work(&self) -> bool {
        self.handles.iter().flatten().any(ManagerEnd::has_work)
            || self.policy.has_fed()
            || self.policy.has_grown()
            || self.reader.has_done()
            || self.transformer.has_done()
    }

    /// Sleeps until there is something to do. Gives when this thread should run again at the latest.
    fn sleep(&mut self, now: Instant) -> Instant {
        let due = self.poll_at(now).map(|at| at.max(now));
        let limit = due.map(|at| Duration::from_nanos(at.ns_since(now)));
        self.wake.announce_sleep();
        // The last look: whoever adds work after this sees the announcement and rings.
        if self.has_work() || self.take_control(now) > 0 {
            self.wake.awake();
            return now;
        }
        self.reader.wait(now, limit);
        self.wake.awake();
        // Nothing has come, so time has passed. Not whenever something comes: with everything lent out, each ask would have all of
        // the memory looked at.
        if limit.is_some() && !self.has_work() {
            self.policy.retry_room();
        }
        due.unwrap_or(Instant(u64::MAX))
    }
}

/// Places of a reader, with one for probes, and how many reads are usual at a time.
fn reader_size(config: &CacheConfig) -> (usize, usize) {
    let reads = config.reads_in_flight;
    (EXTENTS_PER_READ * reads + MAX_RUN_EXTENTS + 1, reads + 1)
}

/// Asks the kernel to drop its cached pages of a span. If it does not, the span is read again all
/// the same, from there.
fn forget_cached(span: &SpanOrder) {
    let length = std::num::NonZeroU64::new(span.bytes.end - span.bytes.start);
    let _ = rustix::fs::fadvise(span.file.get(), span.bytes.start, length, rustix::fs::Advice::DontNeed);
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
