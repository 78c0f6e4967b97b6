//! One thread of a load: an epoll, its viewers, their timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::Plan;
use super::report::Sums;
use super::target::Seat;
use super::viewer::{Lent, Stage, Token, Viewer};
use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::lateness::histogram_us;
use crate::net::{Batch, FIRST_PORT, Inlet};
use crate::procfs::socket_drops;

/// The loop looks at the cancel flag at least this often.
const MAX_WAIT_NS: u64 = 100_000_000;
/// Events taken in one turn.
const EVENTS: usize = 1024;
/// Viewers begun in one turn.
const STARTS_PER_TURN: usize = 32;
/// After the farewell has begun, no thread runs longer than this.
const LAST_NS: u64 = 8_000_000_000;

/// Numbers that the calling thread reads while a shard runs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) started: AtomicU64,
    pub(super) playing: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) packets: AtomicU64,
    pub(super) lost: AtomicU64,
}

/// How often the tally is brought up to date.
const TALLY_NS: u64 = 200_000_000;

/// A viewer and what the thread knows of it.
struct Watched {
    seat: Seat,
    viewer: Box<dyn Viewer>,
    /// As it was after the last call.
    stage: Stage,
    /// Earliest entry of this viewer in the timers.
    scheduled: Instant,
}

pub(super) struct Shard<'a> {
    plan: &'a Plan,
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
    lateness: Histogram<u64>,
    read_delay: Histogram<u64>,
    turns: Histogram<u64>,
    /// Payload at the end of the ramp, and when that was.
    at_ramp_end: Option<(Instant, u64)>,
    ramp_is_over: bool,
    tally_at: Instant,
    /// Payload and packets of viewers that are done.
    done_bytes: u64,
    done_packets: u64,
    sums: Sums,
}

fn error(what: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
    move |errno| ClientError::Socket { what, source: errno.into() }
}

impl<'a> Shard<'a> {
    /// Thread `number` gets every viewer whose index is `number` modulo the threads.
    pub(super) fn new(plan: &'a Plan, number: usize, tally: &'a Tally) -> Result<Self, ClientError> {
        let threads = plan.options.threads;
        let to_start = (0..plan.options.streams).rev().filter(|index| *index as usize % threads == number);
        let mut shard = Self {
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
            read_delay: histogram_us(),
            turns: histogram_us(),
            at_ramp_end: None,
            ramp_is_over: false,
            tally_at: plan.began,
            done_bytes: 0,
            done_packets: 0,
            sums: Sums::default(),
        };
        if !plan.options.own_rtcp {
            shard.share_rtcp()?;
        }
        Ok(shard)
    }

    fn share_rtcp(&mut self) -> Result<(), ClientError> {
        let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
        // A machine without IPv6 has no films there either.
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
        let mut events = Vec::with_capacity(EVENTS);
        let mut leaving_since = None;
        loop {
            let before = self.clock.now();
            let wait_ns = self.wait_ns(before, leaving_since.is_some());
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait_ns.cast_signed() };
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(error("epoll")(errno)),
            }
            let now = self.clock.now();
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
                return Ok(self.finish());
            }
            let after = self.clock.now();
            self.turns.saturating_record(after.ns_since(now) / 1000);
            if is_busy && leaving_since.is_none() {
                // Let packets gather: fewer wake-ups, longer trains. The kernel has stamped what comes meanwhile.
                let gather = self.plan.options.gather;
                std::thread::sleep(gather.saturating_sub(after - now));
            }
        }
    }

    fn wait_ns(&self, now: Instant, leaving: bool) -> u64 {
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let start = self.to_start.last().map(|index| self.plan.start_of(*index));
        let end = (!leaving).then_some(self.plan.end);
        let next = [timer, start, end].into_iter().flatten().min().unwrap_or(Instant(u64::MAX));
        next.ns_since(now).min(MAX_WAIT_NS).min(NS_PER_S - 1)
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

    /// Reports of all viewers; a BYE here cannot be told whose it is.
    fn drain_shared(&mut self, slot: usize) -> Result<(), ClientError> {
        let Some(inlet) = self.shared_rtcp.get_mut(slot) else { return Ok(()) };
        let source = |source| ClientError::Socket { what: "shared RTCP socket", source };
        while inlet.drain(|_| {}).map_err(source)? > 0 {}
        Ok(())
    }

    /// Lets a viewer do something, then sees to its timer, and takes leave of it if it is done.
    fn with(&mut self, now: Instant, slot: usize, act: impl FnOnce(&mut dyn Viewer, &mut Lent<'_>)) {
        let Some(watched) = self.viewers.get_mut(slot).and_then(Option::as_mut) else { return };
        let mut lent = Lent {
            plan: self.plan,
            lateness: &mut self.lateness,
            read_delay: &mut self.read_delay,
            next_port: &mut self.next_port,
            shared_rtcp: &self.shared_rtcp,
            unix_ns: self.clock.unix_ns(),
            epoll: &self.epoll,
            slot,
        };
        act(&mut *watched.viewer, &mut lent);
        let status = watched.viewer.status();
        if let Some(at) = status.poll_at.filter(|at| *at < watched.scheduled) {
            watched.scheduled = at;
            self.timers.push(Reverse((at, slot)));
        }
        let stage_before = std::mem::replace(&mut watched.stage, status.stage);
        if stage_before != status.stage {
            if stage_before == Stage::Playing {
                self.tally.playing.fetch_sub(1, Ordering::Relaxed);
            }
            if status.stage == Stage::Playing {
                self.tally.playing.fetch_add(1, Ordering::Relaxed);
            }
        }
        if status.stage == Stage::Done {
            self.bury(slot);
        }
    }

    /// A viewer is done: its numbers go into the sums, its sockets are closed.
    fn bury(&mut self, slot: usize) {
        let Some(mut watched) = self.viewers[slot].take() else { return };
        let mut lent = Lent {
            plan: self.plan,
            lateness: &mut self.lateness,
            read_delay: &mut self.read_delay,
            next_port: &mut self.next_port,
            shared_rtcp: &self.shared_rtcp,
            unix_ns: self.clock.unix_ns(),
            epoll: &self.epoll,
            slot,
        };
        let live = watched.viewer.live();
        let outcome = watched.viewer.end(&mut lent);
        self.done_bytes += live.payload_bytes;
        self.done_packets += live.packets;
        self.tally.failed.fetch_add(u64::from(outcome.failure.is_some()), Ordering::Relaxed);
        self.tally.lost.fetch_add(live.lost, Ordering::Relaxed);
        self.sums.add(self.plan, watched.seat, &outcome);
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
            self.with(now, slot, |viewer, lent| {
                if viewer.status().poll_at.is_some_and(|at| now >= at) {
                    viewer.handle_timeout(now, lent);
                }
            });
        }
    }

    fn start_due(&mut self, now: Instant) {
        for _ in 0..STARTS_PER_TURN {
            let Some(index) = self.to_start.last().copied().filter(|index| now >= self.plan.start_of(*index))
            else {
                return;
            };
            self.to_start.pop();
            self.tally.started.fetch_add(1, Ordering::Relaxed);
            let title = index as usize % self.plan.targets.len();
            self.start(now, Seat { index, title });
        }
    }

    fn start(&mut self, now: Instant, seat: Seat) {
        let slot = self.viewers.len();
        let mut lent = Lent {
            plan: self.plan,
            lateness: &mut self.lateness,
            read_delay: &mut self.read_delay,
            next_port: &mut self.next_port,
            shared_rtcp: &self.shared_rtcp,
            unix_ns: self.clock.unix_ns(),
            epoll: &self.epoll,
            slot,
        };
        match self.plan.targets[seat.title].viewer(self.plan, seat, now, &mut lent) {
            Ok(viewer) => {
                let (stage, scheduled) = (Stage::Starting, Instant(u64::MAX));
                self.viewers.push(Some(Watched { seat, viewer, stage, scheduled }));
                self.with(now, slot, |_, _| {});
            }
            Err(reason) => {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                self.sums.add_failure(reason, 1);
            }
        }
    }

    /// Payload and packets of all viewers so far.
    fn totals(&self) -> (u64, u64) {
        let viewers = self.viewers.iter().flatten().map(|watched| watched.viewer.live());
        let start = (self.done_bytes, self.done_packets);
        viewers.fold(start, |(bytes, packets), live| (bytes + live.payload_bytes, packets + live.packets))
    }

    /// Brings the tally up to date, and notes where the time begins in which all play.
    fn keep_tally(&mut self, now: Instant) {
        let ramp_ends = !self.ramp_is_over && now >= self.plan.ramp_end;
        if now < self.tally_at && !ramp_ends {
            return;
        }
        self.tally_at = now.plus_ns(TALLY_NS);
        let (bytes, packets) = self.totals();
        self.tally.packets.store(packets, Ordering::Relaxed);
        if ramp_ends {
            self.ramp_is_over = true;
            self.at_ramp_end = Some((now, bytes));
        }
    }

    /// The time in which all play is over.
    fn close_together(&mut self, now: Instant) {
        if let Some((since, bytes_before)) = self.at_ramp_end.take() {
            self.sums.together_ns = now.ns_since(since);
            self.sums.together_bytes = self.totals().0 - bytes_before;
        }
    }

    fn leave_all(&mut self, now: Instant) {
        self.close_together(now);
        let not_begun = std::mem::take(&mut self.to_start).len() as u64;
        if not_begun > 0 {
            self.sums.add_failure("not begun when time was over".to_owned(), not_begun);
        }
        for slot in 0..self.viewers.len() {
            // What has arrived by now counts.
            self.with(now, slot, |viewer, lent| viewer.drain(now, lent));
        }
        let inlets: Vec<&Inlet> =
            self.viewers.iter().flatten().filter_map(|watched| watched.viewer.media_inlet()).collect();
        let dropped = socket_drops(inlets.iter().map(|inlet| inlet.socket()));
        let unknown =
            dropped.iter().zip(&inlets).map(|(all, inlet)| all.saturating_sub(inlet.dropped())).sum();
        self.sums.add_drops(unknown);
        for slot in 0..self.viewers.len() {
            self.with(now, slot, |viewer, lent| viewer.leave(now, lent));
        }
    }

    fn finish(mut self) -> Sums {
        for slot in 0..self.viewers.len() {
            self.bury(slot);
        }
        self.sums.lateness = self.lateness;
        self.sums.read_delay = self.read_delay;
        self.sums.turns = self.turns;
        self.sums
    }
}
