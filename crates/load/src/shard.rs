//! One thread of a load: an epoll, its viewers, their timers, and the persons in front of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use millrace_client::clock::SystemClock;
use millrace_client::error::ClientError;
use millrace_client::lateness::histogram_us;
use millrace_client::net::{Batch, FIRST_PORT, Inlet};
use millrace_client::procfs::{run_delay_ns, socket_drops};
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::limits::{
    EVENTS_PER_TURN, LAST_NS, NO_WAIT_NS, OWN_STALL_NS, SHARD_WAIT_NS, STARTS_PER_TURN, TALLY_NS,
};
use crate::outcome::ViewerOutcome;
use crate::person::{Deed, Person};
use crate::plan::LoadPlan;
use crate::rng::Rng;
use crate::series::ThreadCounts;
use crate::sums::{FinishedSession, Sums, add_histogram};
use crate::target::Seat;
use crate::viewer::{LoadViewer, Token, ViewerCommand, ViewerContext, ViewerStage};
use crate::viewers::open_viewer;

/// Numbers that the calling thread reads while a shard runs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) started: AtomicU64,
    pub(super) playing: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) packets: AtomicU64,
    pub(super) payload_bytes: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// Next step when a viewer is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Nothing,
    /// The same person, another title.
    Zap,
    /// Another person.
    Replace,
}

/// A viewer and the thread's knowledge of it.
struct Watched {
    seat: Seat,
    session: u32,
    viewer: Box<dyn LoadViewer>,
    person: Person,
    /// As it was after the last call.
    stage: ViewerStage,
    /// Earliest entry of this viewer in the timers.
    scheduled: Instant,
    began: Instant,
    after: After,
    /// Wall clock of the wish that led to the next session, or to this one.
    wished_ns: Option<u64>,
    zapped_ns: Option<u64>,
}

/// Input of a session that is about to begin.
struct Beginning {
    seat: Seat,
    session: u32,
    person: Person,
    zapped_ns: Option<u64>,
}

pub(super) struct Shard<'a> {
    number: usize,
    plan: &'a LoadPlan,
    tally: &'a Tally,
    clock: SystemClock,
    epoll: OwnedFd,
    /// Viewers of this thread; `None` once they are done.
    viewers: Vec<Option<Watched>>,
    /// Numbers of the viewers still to begin, last first.
    to_start: Vec<u32>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    shared_rtcp: Vec<Inlet>,
    next_port: u16,
    /// Of the interval.
    lateness: Histogram<u64>,
    /// Payload at the end of the ramp, and when that was.
    at_ramp_end: Option<(Instant, u64)>,
    ramp_is_over: bool,
    is_leaving: bool,
    tally_at: Instant,
    /// The interval that ends next, from 1.
    interval: u64,
    /// Since when nothing can have waited unseen, and the wall clock of the turn.
    looked_since: Instant,
    turn_unix_ns: u64,
    /// Sums of viewers that are done.
    done: ThreadCounts,
    sums: Sums,
}

fn error(what: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
    move |errno| ClientError::Socket { what, source: errno.into() }
}

/// Lends the thread's fields for one call.
macro_rules! lend {
    ($shard:ident, $now:expr, $slot:expr) => {{
        let unix_ns = $shard.clock.unix_ns();
        let before_turn_ns = $now.ns_since($shard.looked_since);
        ViewerContext {
            plan: $shard.plan,
            lateness: &mut $shard.lateness,
            own_lateness: &mut $shard.sums.times.own_lateness,
            read_delay: &mut $shard.sums.times.read_delay,
            next_port: &mut $shard.next_port,
            shared_rtcp: &$shard.shared_rtcp,
            unix_ns,
            own_delay_ns: before_turn_ns + unix_ns.saturating_sub($shard.turn_unix_ns),
            epoll: &$shard.epoll,
            slot: $slot,
        }
    }};
}

impl<'a> Shard<'a> {
    /// Thread `number` gets every viewer whose index is `number` modulo the threads.
    pub(super) fn new(plan: &'a LoadPlan, number: usize, tally: &'a Tally) -> Result<Self, ClientError> {
        let threads = plan.options.threads;
        let to_start = (0..plan.options.streams).rev().filter(|index| *index as usize % threads == number);
        let mut shard = Self {
            number,
            plan,
            tally,
            clock: SystemClock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(error("epoll"))?,
            viewers: Vec::new(),
            to_start: to_start.collect(),
            timers: BinaryHeap::new(),
            shared_rtcp: Vec::new(),
            // Threads begin far apart, so that they do not try each other's ports first.
            next_port: FIRST_PORT + (number * (60_000 / threads)) as u16,
            lateness: histogram_us(),
            at_ramp_end: None,
            ramp_is_over: false,
            is_leaving: false,
            tally_at: plan.began,
            interval: 1,
            looked_since: plan.began,
            turn_unix_ns: 0,
            done: ThreadCounts::default(),
            sums: Sums::default(),
        };
        if !plan.options.own_rtcp {
            shard.share_rtcp()?;
        }
        Ok(shard)
    }

    fn share_rtcp(&mut self) -> Result<(), ClientError> {
        let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        // A machine without IPv6 has no titles there either.
        let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
        for socket in [v4, v6].into_iter().flatten() {
            let inlet = Inlet::new(socket, Batch::Reports, self.plan.options.receive_buffer_bytes)?;
            let data = Token::Shared(self.shared_rtcp.len()).data();
            epoll::add(&self.epoll, inlet.socket(), data, epoll::EventFlags::IN).map_err(error("epoll"))?;
            self.shared_rtcp.push(inlet);
        }
        Ok(())
    }

    /// Runs until all viewers are done.
    pub(super) fn run(mut self, cancel: &AtomicBool) -> Result<Sums, ClientError> {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut leaving_since = None;
        let waited_before_ns = run_delay_ns();
        loop {
            let before = self.clock.now();
            let wait_ns = self.wait_ns(before);
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait_ns.cast_signed() };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(error("epoll")(errno)),
            }
            let now = self.begin_turn(before, wait_ns, events.is_empty());
            let is_busy = !events.is_empty();
            for event in events.drain(..) {
                self.handle_event(now, event)?;
            }
            self.run_timers(now);
            self.start_due(now);
            self.keep_tally(now);
            let over = now >= self.plan.end || cancel.load(Ordering::Relaxed);
            if over && leaving_since.is_none() {
                leaving_since = Some(now);
                self.leave_all(now);
            }
            let is_last = leaving_since.is_some_and(|since| now.ns_since(since) > LAST_NS);
            if is_last || (self.to_start.is_empty() && self.viewers.iter().all(Option::is_none)) {
                self.close_together(now);
                self.sums.counts.waited_us = (run_delay_ns() - waited_before_ns) / 1000;
                return Ok(self.finish());
            }
            self.end_turn(now, is_busy);
        }
    }

    /// Notes since when nothing can have waited unseen.
    fn begin_turn(&mut self, before: Instant, wait_ns: u64, nothing_came: bool) -> Instant {
        let now = self.clock.now();
        if now.ns_since(before) > NO_WAIT_NS {
            // It slept: data read now has only just come.
            self.looked_since = now;
        }
        if nothing_came {
            self.note_stall(now.ns_since(before).saturating_sub(wait_ns));
        }
        self.turn_unix_ns = self.clock.unix_ns();
        now
    }

    fn note_stall(&mut self, took_ns: u64) {
        if took_ns > OWN_STALL_NS && !self.is_leaving {
            self.sums.counts.own_stalls += 1;
            self.sums.counts.own_stalled_us += took_ns / 1000;
        }
    }

    fn end_turn(&mut self, began: Instant, is_busy: bool) {
        let after = self.clock.now();
        self.sums.times.turns.saturating_record(after.ns_since(began) / 1000);
        let mut asleep_ns = 0;
        if is_busy && !self.is_leaving {
            // Let packets gather: fewer wake-ups, longer trains. The kernel has stamped the packets
            // that come meanwhile.
            let gather = self.plan.options.gather.saturating_sub(after - began);
            std::thread::sleep(gather);
            asleep_ns = gather.as_nanos() as u64;
        }
        // Data read in the next turn may have waited since this one began.
        self.looked_since = began;
        self.note_stall(self.clock.now().ns_since(began).saturating_sub(asleep_ns));
    }

    fn interval_end(&self) -> Instant {
        self.plan.began.plus_ns(self.plan.interval_ns.saturating_mul(self.interval))
    }

    fn wait_ns(&self, now: Instant) -> u64 {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let start = self.to_start.last().map(|index| self.plan.start_of(*index));
        let end = (!self.is_leaving).then_some(self.plan.end.min(self.interval_end()));
        let next = [timer, start, end].into_iter().flatten().min().unwrap_or(Instant(u64::MAX));
        next.ns_since(now).min(SHARD_WAIT_NS).min(NS_PER_S - 1)
    }

    fn handle_event(&mut self, now: Instant, event: epoll::Event) -> Result<(), ClientError> {
        match Token::of(event.data.u64()) {
            Token::Shared(number) => self.drain_shared(number)?,
            Token::Viewer { slot, kind } => {
                self.with(now, slot, |viewer, lent| viewer.handle_ready(now, kind, lent));
            }
        }
        Ok(())
    }

    /// Takes the reports of all viewers; the viewer that a BYE here concerns is unknown.
    fn drain_shared(&mut self, slot: usize) -> Result<(), ClientError> {
        let Some(inlet) = self.shared_rtcp.get_mut(slot) else { return Ok(()) };
        let source = |source| ClientError::Socket { what: "shared RTCP socket", source };
        while inlet.drain(|_| {}).map_err(source)? > 0 {}
        Ok(())
    }

    /// Lets a viewer do something, then sees to its timer, and takes leave of it if it is done.
    fn with(
        &mut self,
        now: Instant,
        slot: usize,
        act: impl FnOnce(&mut dyn LoadViewer, &mut ViewerContext<'_>),
    ) {
        let Some(watched) = self.viewers.get_mut(slot).and_then(Option::as_mut) else { return };
        act(&mut *watched.viewer, &mut lend!(self, now, slot));
        let status = watched.viewer.status();
        let stage_before = std::mem::replace(&mut watched.stage, status.stage);
        if stage_before != status.stage {
            if stage_before == ViewerStage::Playing {
                self.tally.playing.fetch_sub(1, Ordering::Relaxed);
                watched.person.stop();
            }
            if status.stage == ViewerStage::Playing {
                self.tally.playing.fetch_add(1, Ordering::Relaxed);
                watched.person.begin(now, &self.plan.options.behaviour);
            }
        }
        let at = status.poll_at.into_iter().chain(watched.person.poll_at()).min();
        if let Some(at) = at.filter(|at| *at < watched.scheduled) {
            watched.scheduled = at;
            self.timers.push(Reverse((at, slot)));
        }
        if status.stage == ViewerStage::Done {
            self.bury(now, slot);
        }
    }

    /// A viewer is done: its numbers go into the sums, its sockets are closed, and another may come.
    fn bury(&mut self, now: Instant, slot: usize) {
        let Some(mut watched) = self.viewers[slot].take() else { return };
        let live = watched.viewer.live();
        let outcome = watched.viewer.end(&mut lend!(self, now, slot));
        drop(watched.viewer);
        self.done.payload_bytes += live.payload_bytes;
        self.done.packets += live.packets;
        self.done.lost += live.lost;
        self.tally.failed.fetch_add(u64::from(outcome.failure.is_some()), Ordering::Relaxed);
        self.done.failed += u64::from(outcome.failure.is_some());
        let first_ns = outcome.measured.and_then(|measured| measured.first_arrival_ns);
        let zap_us =
            watched.zapped_ns.zip(first_ns).map(|(wished, first)| first.saturating_sub(wished) / 1000);
        let (seat, session, began) = (watched.seat, watched.session, watched.began);
        self.sums.add(self.plan, FinishedSession { seat, session, began, zap_us, outcome });
        if self.is_leaving {
            return;
        }
        let mut person = watched.person;
        let next = |title| Seat { title, ..seat };
        let beginning = match watched.after {
            After::Nothing => return,
            After::Zap => {
                let seat = next(self.plan.titles.next(seat.title, &mut person.rng));
                Beginning { seat, session: session + 1, person, zapped_ns: watched.wished_ns }
            }
            After::Replace => {
                self.sums.counts.replaced += 1;
                let seat = next(self.plan.titles.next(seat.title, &mut person.rng));
                let person = Person::new(&self.plan.options.behaviour, person.rng);
                Beginning { seat, session: session + 1, person, zapped_ns: None }
            }
        };
        self.begin(now, slot, beginning);
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(Reverse((at, slot))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            let Some(watched) = self.viewers.get_mut(slot).and_then(Option::as_mut) else { continue };
            if watched.scheduled != at {
                continue; // replaced by an earlier one
            }
            watched.scheduled = Instant(u64::MAX);
            let deed = watched.person.decide(now, &self.plan.options.behaviour);
            self.with(now, slot, |viewer, lent| {
                if viewer.status().poll_at.is_some_and(|at| now >= at) {
                    viewer.handle_timeout(now, lent);
                }
            });
            if let Some(deed) = deed {
                self.act(now, slot, deed);
            }
        }
    }

    /// A person has decided.
    fn act(&mut self, now: Instant, slot: usize, deed: Deed) {
        let Some(watched) = self.viewers.get_mut(slot).and_then(Option::as_mut) else { return };
        if self.is_leaving || watched.stage != ViewerStage::Playing {
            return;
        }
        let counts = &mut self.sums.counts;
        match deed {
            Deed::Command(command) => {
                let mut is_done = false;
                self.with(now, slot, |viewer, lent| is_done = viewer.command(now, command, lent));
                let counts = &mut self.sums.counts;
                match command {
                    _ if !is_done => counts.deeds_skipped += 1,
                    ViewerCommand::Pause => counts.pauses += 1,
                    ViewerCommand::Seek(_) => counts.seeks += 1,
                    ViewerCommand::Scale(_) => counts.tricks += 1,
                    ViewerCommand::Rendition(_) => counts.switches += 1,
                    ViewerCommand::Resume => {}
                }
                return;
            }
            Deed::Zap => {
                counts.zaps += 1;
                watched.after = After::Zap;
                watched.wished_ns = Some(self.clock.unix_ns());
            }
            Deed::Leave { is_replaced } => {
                counts.leaves += 1;
                watched.after = if is_replaced { After::Replace } else { After::Nothing };
            }
        }
        self.with(now, slot, |viewer, lent| viewer.drain(now, lent));
        self.with(now, slot, |viewer, lent| viewer.leave(now, lent));
    }

    fn start_due(&mut self, now: Instant) {
        for _ in 0..STARTS_PER_TURN {
            let Some(index) = self.to_start.last().copied().filter(|index| now >= self.plan.start_of(*index))
            else {
                return;
            };
            self.to_start.pop();
            self.tally.started.fetch_add(1, Ordering::Relaxed);
            self.done.started += 1;
            let mut rng = Rng::new(self.plan.options.seed, u64::from(index));
            let title = self.plan.titles.first(index, &mut rng);
            let person = Person::new(&self.plan.options.behaviour, rng);
            let slot = self.viewers.len();
            self.viewers.push(None);
            let seat = Seat { index, title };
            self.begin(now, slot, Beginning { seat, session: 0, person, zapped_ns: None });
        }
    }

    /// A session begins in an empty slot.
    fn begin(&mut self, now: Instant, slot: usize, beginning: Beginning) {
        let Beginning { seat, session, person, zapped_ns } = beginning;
        match open_viewer(self.plan, seat, now, &mut lend!(self, now, slot)) {
            Ok(viewer) => {
                self.viewers[slot] = Some(Watched {
                    seat,
                    session,
                    viewer,
                    person,
                    stage: ViewerStage::Starting,
                    scheduled: Instant(u64::MAX),
                    began: now,
                    after: After::Nothing,
                    wished_ns: None,
                    zapped_ns,
                });
                self.with(now, slot, |_, _| {});
            }
            Err(reason) => {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                self.done.failed += 1;
                let outcome = ViewerOutcome { failure: Some(reason), ..ViewerOutcome::default() };
                self.sums
                    .add(self.plan, FinishedSession { seat, session, began: now, zap_us: None, outcome });
            }
        }
    }

    /// Returns the current sums of all viewers.
    fn totals(&self) -> ThreadCounts {
        let mut part = ThreadCounts { own_stalls: self.sums.counts.own_stalls, ..self.done };
        for watched in self.viewers.iter().flatten() {
            let live = watched.viewer.live();
            part.packets += live.packets;
            part.payload_bytes += live.payload_bytes;
            part.lost += live.lost;
            part.playing += u64::from(watched.stage == ViewerStage::Playing);
        }
        part
    }

    /// Brings tally and time series up to date, and notes where the time begins in which all play.
    fn keep_tally(&mut self, now: Instant) {
        let ramp_ends = !self.ramp_is_over && now >= self.plan.ramp_end;
        let interval_ends = !self.is_leaving && now >= self.interval_end();
        if now < self.tally_at && !ramp_ends && !interval_ends {
            return;
        }
        self.tally_at = now.plus_ns(TALLY_NS);
        let part = self.totals();
        self.tally.packets.store(part.packets, Ordering::Relaxed);
        self.tally.payload_bytes.store(part.payload_bytes, Ordering::Relaxed);
        self.tally.lost.store(part.lost, Ordering::Relaxed);
        if ramp_ends {
            self.ramp_is_over = true;
            self.at_ramp_end = Some((now, part.payload_bytes));
        }
        while !self.is_leaving && now >= self.interval_end() {
            if let Some(probe) = self.plan.probe.as_ref().filter(|probe| self.number == 0 && !probe.passes())
            {
                probe.take_lateness(&mut self.lateness);
            }
            self.plan.series.add(self.interval, &part, &self.lateness);
            self.take_lateness();
            self.interval += 1;
        }
    }

    /// The lateness of the interval goes into the whole.
    fn take_lateness(&mut self) {
        add_histogram(&mut self.sums.times.lateness, &self.lateness);
        self.lateness.reset();
    }

    /// The time in which all play is over.
    fn close_together(&mut self, now: Instant) {
        if let Some((since, bytes_before)) = self.at_ramp_end.take() {
            self.sums.together_ns = now.ns_since(since);
            self.sums.counts.together_bytes = self.totals().payload_bytes - bytes_before;
        }
    }

    fn leave_all(&mut self, now: Instant) {
        self.close_together(now);
        self.is_leaving = true;
        let not_begun = std::mem::take(&mut self.to_start).len() as u64;
        if not_begun > 0 {
            self.sums.add_failure("not begun when time was over".to_owned(), not_begun);
        }
        for slot in 0..self.viewers.len() {
            // Data that has arrived by now counts.
            self.with(now, slot, |viewer, lent| viewer.drain(now, lent));
        }
        let inlets: Vec<&Inlet> =
            self.viewers.iter().flatten().filter_map(|watched| watched.viewer.media_inlet()).collect();
        let dropped = socket_drops(inlets.iter().map(|inlet| inlet.socket()));
        let unknown: u64 =
            dropped.iter().zip(&inlets).map(|(all, inlet)| all.saturating_sub(inlet.dropped())).sum();
        self.sums.counts.socket_drops += unknown;
        for slot in 0..self.viewers.len() {
            self.with(now, slot, |viewer, lent| viewer.leave(now, lent));
        }
    }

    fn finish(mut self) -> Sums {
        self.is_leaving = true;
        let now = self.clock.now();
        for slot in 0..self.viewers.len() {
            self.bury(now, slot);
        }
        self.take_lateness();
        self.plan.series.leave(self.interval, &self.totals());
        self.sums
    }
}
