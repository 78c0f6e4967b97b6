//! One thread of [`super::many`]: an epoll, its players, their timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hdrhistogram::Histogram;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, NS_PER_S};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use super::Plan;
use super::one::{Lent, One, Path, Stage};
use super::report::Sums;
use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::lateness::histogram_us;
use crate::net::{Batch, FIRST_PORT, Inlet};
use crate::procfs::socket_drops;

/// The loop looks at the cancel flag at least this often.
const MAX_WAIT_NS: u64 = 100_000_000;
/// Events taken in one turn.
const EVENTS: usize = 1024;
/// Players begun in one turn.
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

/// Which of a player's descriptors an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection = 0,
    Rtp = 1,
    Rtcp = 2,
    Shared = 3,
}

impl Kind {
    fn of(data: u64) -> Self {
        match data & 3 {
            0 => Self::Connection,
            1 => Self::Rtp,
            2 => Self::Rtcp,
            _ => Self::Shared,
        }
    }
}

fn token(slot: usize, kind: Kind) -> epoll::EventData {
    epoll::EventData::new_u64((slot as u64) << 2 | kind as u64)
}

/// How often the tally is brought up to date.
const TALLY_NS: u64 = 200_000_000;

pub(super) struct Shard<'a> {
    plan: &'a Plan,
    tally: &'a Tally,
    clock: SystemClock,
    epoll: OwnedFd,
    /// Players of this thread; `None` once they are done.
    ones: Vec<Option<Box<One>>>,
    /// Numbers of the players still to begin, last first.
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
    /// Payload and packets of players that are done.
    done_bytes: u64,
    done_packets: u64,
    sums: Sums,
}

fn error(what: &'static str) -> impl Fn(rustix::io::Errno) -> ClientError {
    move |errno| ClientError::Socket { what, source: errno.into() }
}

impl<'a> Shard<'a> {
    /// Thread `number` gets every player whose index is `number` modulo the threads.
    pub(super) fn new(plan: &'a Plan, number: usize, tally: &'a Tally) -> Result<Self, ClientError> {
        let threads = plan.options.threads;
        let to_start = (0..plan.options.sessions).rev().filter(|index| *index as usize % threads == number);
        let mut shard = Self {
            plan,
            tally,
            clock: SystemClock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC).map_err(error("epoll"))?,
            ones: Vec::new(),
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
            let data = token(self.shared_rtcp.len(), Kind::Shared);
            epoll::add(&self.epoll, inlet.socket(), data, epoll::EventFlags::IN).map_err(error("epoll"))?;
            self.shared_rtcp.push(inlet);
        }
        Ok(())
    }

    /// Runs until all players are done.
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
            self.run_timers(now)?;
            self.start_due(now)?;
            self.keep_tally(now);
            let over = now >= self.plan.end || cancel.load(Ordering::Relaxed);
            if over && leaving_since.is_none() {
                leaving_since = Some(now);
                self.leave_all(now)?;
            }
            let is_last = leaving_since.is_some_and(|since| now.ns_since(since) > LAST_NS);
            if is_last || (self.to_start.is_empty() && self.ones.iter().all(Option::is_none)) {
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
        let data = event.data.u64();
        let slot = (data >> 2) as usize;
        match Kind::of(data) {
            Kind::Shared => self.drain_shared(slot),
            Kind::Rtp => self.with(now, slot, |one, lent| {
                one.handle_rtp(lent); // what is left makes the next event
            }),
            Kind::Rtcp => self.with(now, slot, |one, lent| one.handle_rtcp(now, lent)),
            Kind::Connection => self.with(now, slot, |one, lent| one.handle_connection(now, lent)),
        }
    }

    /// Reports of all players; a BYE here cannot be told whose it is.
    fn drain_shared(&mut self, slot: usize) -> Result<(), ClientError> {
        let Some(inlet) = self.shared_rtcp.get_mut(slot) else { return Ok(()) };
        let source = |source| ClientError::Socket { what: "shared RTCP socket", source };
        while inlet.drain(|_| {}).map_err(source)? > 0 {}
        Ok(())
    }

    /// Lets a player do something, then sees to its sockets and its timer, and takes leave of it if it is done.
    fn with(
        &mut self,
        now: Instant,
        slot: usize,
        act: impl FnOnce(&mut One, &mut Lent<'_>),
    ) -> Result<(), ClientError> {
        let Some(one) = self.ones.get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
        let stage_before = one.stage;
        let mut lent = Lent {
            plan: self.plan,
            lateness: &mut self.lateness,
            read_delay: &mut self.read_delay,
            next_port: &mut self.next_port,
            shared_rtcp: &self.shared_rtcp,
            unix_ns: self.clock.unix_ns(),
        };
        act(one, &mut lent);
        one.leave_if_over(now, &mut lent);
        if one.has_new_sockets
            && let Path::Udp(udp) = &one.path
        {
            one.has_new_sockets = false;
            let add = |socket: &UdpSocket, kind| {
                epoll::add(&self.epoll, socket, token(slot, kind), epoll::EventFlags::IN)
            };
            add(udp.rtp.socket(), Kind::Rtp).map_err(error("epoll"))?;
            if let Some(rtcp) = &udp.rtcp {
                add(rtcp.socket(), Kind::Rtcp).map_err(error("epoll"))?;
            }
        }
        let wants_write = one.stage == Stage::Connecting || !one.connection.output.is_empty();
        if wants_write != one.watches_write && one.stage != Stage::Done {
            one.watches_write = wants_write;
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, wants_write);
            epoll::modify(&self.epoll, one.connection.as_fd(), token(slot, Kind::Connection), flags)
                .map_err(error("epoll"))?;
        }
        if let Some(at) = one.poll_at().filter(|at| *at < one.scheduled) {
            one.scheduled = at;
            self.timers.push(Reverse((at, slot)));
        }
        let stage = one.stage;
        if stage_before != stage {
            if stage_before == Stage::Playing {
                self.tally.playing.fetch_sub(1, Ordering::Relaxed);
            }
            if stage == Stage::Playing {
                self.tally.playing.fetch_add(1, Ordering::Relaxed);
            }
        }
        if stage == Stage::Done {
            self.bury(slot);
        }
        Ok(())
    }

    /// A player is done: its numbers go into the sums, its sockets are closed.
    fn bury(&mut self, slot: usize) {
        let Some(one) = self.ones[slot].take() else { return };
        self.done_bytes += one.payload_bytes();
        self.done_packets += one.packets();
        self.tally.failed.fetch_add(u64::from(one.failure.is_some()), Ordering::Relaxed);
        let lost = one.measured.map_or(0, |measured| measured.counts.lost);
        self.tally.lost.fetch_add(lost, Ordering::Relaxed);
        if let Path::Udp(udp) = &one.path {
            self.sums.add_socket(&udp.rtp);
        }
        self.sums.add(self.plan, &one);
    }

    fn run_timers(&mut self, now: Instant) -> Result<(), ClientError> {
        while let Some(Reverse((at, slot))) =
            self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            self.timers.pop();
            let Some(one) = self.ones.get_mut(slot).and_then(Option::as_mut) else { continue };
            if one.scheduled != at {
                continue; // replaced by an earlier one
            }
            one.scheduled = Instant(u64::MAX);
            self.with(now, slot, |one, lent| {
                if one.poll_at().is_some_and(|at| now >= at) {
                    one.handle_timeout(now, lent);
                }
            })?;
        }
        Ok(())
    }

    fn start_due(&mut self, now: Instant) -> Result<(), ClientError> {
        for _ in 0..STARTS_PER_TURN {
            let Some(index) = self.to_start.last().copied().filter(|index| now >= self.plan.start_of(*index))
            else {
                return Ok(());
            };
            self.to_start.pop();
            self.tally.started.fetch_add(1, Ordering::Relaxed);
            match One::new(self.plan, index, now) {
                Ok(one) => {
                    let slot = self.ones.len();
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT;
                    let data = token(slot, Kind::Connection);
                    epoll::add(&self.epoll, one.connection.as_fd(), data, flags).map_err(error("epoll"))?;
                    self.ones.push(Some(Box::new(one)));
                    self.with(now, slot, |_, _| {})?;
                }
                Err(source) => {
                    self.tally.failed.fetch_add(1, Ordering::Relaxed);
                    self.sums.add_failure(format!("connect: {}", source.kind()), 1);
                }
            }
        }
        Ok(())
    }

    /// Payload and packets of all players so far.
    fn totals(&self) -> (u64, u64) {
        let ones = self.ones.iter().flatten();
        let start = (self.done_bytes, self.done_packets);
        ones.fold(start, |(bytes, packets), one| (bytes + one.payload_bytes(), packets + one.packets()))
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

    fn leave_all(&mut self, now: Instant) -> Result<(), ClientError> {
        self.close_together(now);
        let not_begun = std::mem::take(&mut self.to_start).len() as u64;
        if not_begun > 0 {
            self.sums.add_failure("not begun when time was over".to_owned(), not_begun);
        }
        for slot in 0..self.ones.len() {
            // What has arrived by now counts.
            self.with(now, slot, |one, lent| one.drain_rtp(lent))?;
        }
        let udp = self.ones.iter().flatten().filter_map(|one| match &one.path {
            Path::Udp(udp) => Some(&udp.rtp),
            _ => None,
        });
        let inlets: Vec<&Inlet> = udp.collect();
        let dropped = socket_drops(inlets.iter().map(|inlet| inlet.socket()));
        let unknown =
            dropped.iter().zip(&inlets).map(|(all, inlet)| all.saturating_sub(inlet.dropped())).sum();
        self.sums.add_drops(unknown);
        for slot in 0..self.ones.len() {
            self.with(now, slot, |one, lent| one.leave(now, lent))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Sums {
        for slot in 0..self.ones.len() {
            self.bury(slot);
        }
        self.sums.lateness = self.lateness;
        self.sums.read_delay = self.read_delay;
        self.sums.turns = self.turns;
        self.sums
    }
}
