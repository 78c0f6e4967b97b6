//! For tests: a path in virtual time, a receiver at its end, and a sender with a number of bytes to
//! send. Everything follows from a seed.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

use millrace_core::time::Instant;

use super::{AckIn, Fired, Permit, RecoveryPhase, Sender, Setup};
use crate::recover::records::Records;
use crate::rtt::stamp;
use crate::seq::Seq;
use crate::wire::{Sacks, Stamps};

/// Properties of a path.
#[derive(Clone, Debug)]
pub(crate) struct PathProperties {
    pub(crate) rate_bps: u64,
    /// One way.
    pub(crate) delay_ns: u64,
    pub(crate) queue_bytes: u64,
    /// Segments that are lost, acknowledgments that are lost, segments that come twice, segments that are late: of a million.
    pub(crate) loss_ppm: u64,
    pub(crate) ack_loss_ppm: u64,
    pub(crate) twice_ppm: u64,
    pub(crate) late_ppm: u64,
    pub(crate) late_ns: u64,
    /// Transmissions that are lost, counted from 0.
    pub(crate) lost: Vec<u64>,
    /// Nothing passes within this time.
    pub(crate) outage: std::ops::Range<u64>,
    /// Segments with more payload vanish.
    pub(crate) largest: u16,
    /// The queue marks once it holds this number of bytes.
    pub(crate) mark_bytes: u64,
    pub(crate) has_stamps: bool,
    pub(crate) seed: u64,
}

impl Default for PathProperties {
    fn default() -> Self {
        Self {
            rate_bps: 100_000_000,
            delay_ns: 10_000_000,
            queue_bytes: 250_000,
            loss_ppm: 0,
            ack_loss_ppm: 0,
            twice_ppm: 0,
            late_ppm: 0,
            late_ns: 0,
            lost: Vec::new(),
            outage: 0..0,
            largest: u16::MAX,
            mark_bytes: u64::MAX,
            has_stamps: true,
            seed: 1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PathEvent {
    Data {
        from: u64,
        len: u16,
        stamp: u32,
        is_marked: bool,
        has_cwr: bool,
    },
    Ack {
        ack: u64,
        sacks: Vec<(u64, u64)>,
        echo: u32,
        is_ece: bool,
    },
    /// The receiver's delayed acknowledgment, unless another was sent since.
    Delayed(u64),
    DeviceDone {
        from: u64,
        len: u16,
    },
    Wake,
}

/// A receiver that answers as RFC 5681, 2018, 2883 and 7323 say.
#[derive(Debug, Default)]
struct Receiver {
    next: u64,
    /// Out of order; most recent first.
    ranges: Vec<(u64, u64)>,
    unanswered: u32,
    answers: u64,
    answered: u64,
    echo: u32,
    is_ece: bool,
}

impl Receiver {
    /// Takes a segment; returns the report of a duplicate, and whether to answer at once.
    fn take(&mut self, from: u64, to: u64, stamp: u32) -> (Option<(u64, u64)>, bool) {
        if from <= self.answered {
            self.echo = stamp;
        }
        let is_known = |&(left, right): &(u64, u64)| left <= from && to <= right;
        if to <= self.next || self.ranges.iter().any(is_known) {
            return (Some((from, to)), true);
        }
        let had_holes = !self.ranges.is_empty();
        let mut range = (from, to);
        self.ranges.retain(|&(left, right)| {
            let is_apart = right < range.0 || range.1 < left;
            if !is_apart {
                range = (range.0.min(left), range.1.max(right));
            }
            is_apart
        });
        if range.0 <= self.next {
            self.next = self.next.max(range.1);
        } else {
            self.ranges.insert(0, range);
        }
        self.unanswered += 1;
        (None, had_holes || !self.ranges.is_empty() || self.unanswered >= 2)
    }
}

/// Sender, path and receiver.
pub(crate) struct SimulatedLink {
    pub(crate) sender: Sender,
    pub(crate) records: Records,
    pub(crate) now: Instant,
    pub(crate) transmissions: u64,
    path: PathProperties,
    first: Seq,
    total: u64,
    window: u64,
    receiver: Receiver,
    events: BinaryHeap<Reverse<(u64, u64, PathEvent)>>,
    order: u64,
    /// When the bottleneck is free: senders may share it.
    free_at: Rc<Cell<u64>>,
    /// New segments wait until this number of them may go (large segments that a device cuts).
    train: u32,
    random: u64,
    waits_until: u64,
    verify_every: u64,
    /// Copies of each segment that the device has.
    in_device: BTreeMap<u64, u32>,
}

impl SimulatedLink {
    pub(crate) fn new(setup: &Setup, path: PathProperties, total: u64, window: u64) -> Self {
        let now = Instant(1_000_000_000);
        Self {
            sender: Sender::new(setup, now),
            records: Records::new(4096),
            now,
            transmissions: 0,
            first: setup.first,
            total,
            window,
            receiver: Receiver::default(),
            events: BinaryHeap::new(),
            order: 0,
            free_at: Rc::default(),
            train: 1,
            random: path.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            waits_until: 0,
            verify_every: if total > 1 << 20 { 64 } else { 1 },
            path,
            in_device: BTreeMap::new(),
        }
    }

    fn chance(&mut self, ppm: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ppm > 0 && (self.random >> 20) % 1_000_000 < ppm
    }

    fn at(&mut self, time: u64, event: PathEvent) {
        self.order += 1;
        self.events.push(Reverse((time, self.order, event)));
    }

    fn offset(&self, seq: Seq) -> u64 {
        // Within 2 GiB of the receiver's position.
        let near = self.first + self.receiver.next as u32;
        (self.receiver.next as i64 + i64::from(seq.since(near))) as u64
    }

    fn seq(&self, offset: u64) -> Seq {
        self.first + offset as u32
    }

    fn transmit(&mut self, seq: Seq, len: u16, is_again: bool) {
        let has_cwr = !is_again && self.sender.wants_cwr();
        self.sender.sent(&mut self.records, self.now, seq, len, is_again).expect("room for a record");
        let from = self.offset(seq);
        *self.in_device.entry(from).or_default() += 1;
        let number = self.transmissions;
        self.transmissions += 1;
        let bytes = u64::from(len) + 66;
        let start = self.free_at.get().max(self.now.0);
        let queued = (start - self.now.0) * self.path.rate_bps / 8_000_000_000;
        let takes = bytes * 8_000_000_000 / self.path.rate_bps;
        self.at(self.now.0 + takes, PathEvent::DeviceDone { from, len });
        let is_lost = self.chance(self.path.loss_ppm)
            || self.path.lost.contains(&number)
            || self.path.outage.contains(&self.now.0)
            || len > self.path.largest;
        if is_lost || queued + bytes > self.path.queue_bytes {
            return;
        }
        self.free_at.set(start + takes);
        let mut arrives = start + takes + self.path.delay_ns;
        if self.chance(self.path.late_ppm) {
            arrives += self.path.late_ns;
        }
        let is_marked = queued > self.path.mark_bytes;
        let data = PathEvent::Data { from, len, stamp: stamp(self.now), is_marked, has_cwr };
        if self.chance(self.path.twice_ppm) {
            self.at(arrives + 1000, data.clone());
        }
        self.at(arrives, data);
    }

    fn pump(&mut self) {
        loop {
            let una = self.offset(self.sender.una());
            let window = una + self.window;
            let limit = self.seq(self.total.min(window));
            let nxt = self.sender.nxt();
            match self.sender.next(&mut self.records, self.now, limit, window < self.total) {
                Permit::Retransmit { seq, len } => self.transmit(seq, len, true),
                Permit::Probe { seq, len, is_new } => self.transmit(seq, len, !is_new),
                Permit::New { bytes }
                    if bytes < self.train * u32::from(self.sender.mss()) && self.sender.in_flight() > 0 =>
                {
                    if self.sender.phase == RecoveryPhase::Open {
                        self.sender.window_is_full();
                    }
                    return;
                }
                Permit::New { bytes } => {
                    let len = bytes.min(u32::from(self.sender.mss())) as u16;
                    self.transmit(nxt, len, false);
                }
                Permit::MtuProbe { len } => self.transmit(nxt, len, false),
                Permit::Wait(until) => {
                    if self.waits_until <= self.now.0 || until.0 < self.waits_until {
                        self.waits_until = until.0;
                        self.at(until.0, PathEvent::Wake);
                    }
                    return;
                }
                Permit::Nothing => return,
            }
        }
    }

    fn answer(&mut self, dsack: Option<(u64, u64)>) {
        let receiver = &mut self.receiver;
        receiver.unanswered = 0;
        receiver.answers += 1;
        receiver.answered = receiver.next;
        let most = if self.path.has_stamps { 3 } else { 4 };
        let sacks = dsack.into_iter().chain(receiver.ranges.iter().copied()).take(most).collect();
        let ack = PathEvent::Ack { ack: receiver.next, sacks, echo: receiver.echo, is_ece: receiver.is_ece };
        let is_lost = self.chance(self.path.ack_loss_ppm) || self.path.outage.contains(&self.now.0);
        if !is_lost {
            self.at(self.now.0 + self.path.delay_ns, ack);
        }
    }

    fn handle(&mut self, event: PathEvent) {
        match event {
            PathEvent::Data { from, len, stamp, is_marked, has_cwr } => {
                let receiver = &mut self.receiver;
                receiver.is_ece = (receiver.is_ece && !has_cwr) || is_marked;
                let (dsack, is_at_once) = receiver.take(from, from + u64::from(len), stamp);
                if is_at_once {
                    self.answer(dsack);
                } else {
                    let answers = receiver.answers;
                    self.at(self.now.0 + 40_000_000, PathEvent::Delayed(answers));
                }
            }
            PathEvent::Delayed(answers) => {
                if answers == self.receiver.answers && self.receiver.unanswered > 0 {
                    self.answer(None);
                }
            }
            PathEvent::Ack { ack, sacks, echo, is_ece } => {
                let mut blocks = Sacks::default();
                for (left, right) in sacks {
                    blocks.push(self.seq(left), self.seq(right));
                }
                let ack = AckIn {
                    ack: self.seq(ack),
                    window: self.window as u32,
                    sacks: &blocks,
                    stamps: self.path.has_stamps.then_some(Stamps { value: 0, echo }),
                    is_ece,
                    arrived: self.now,
                    has_data: false,
                };
                let acked = self.sender.acked(&mut self.records, self.now, &ack);
                assert!(!acked.is_beyond);
            }
            PathEvent::DeviceDone { from, len } => {
                let seq = self.seq(from);
                self.sender.device_done(&mut self.records, seq, len);
                if let Some(copies) = self.in_device.get_mut(&from) {
                    *copies -= 1;
                    if *copies == 0 {
                        self.in_device.remove(&from);
                    }
                }
            }
            PathEvent::Wake => {}
        }
    }

    /// What always holds.
    fn verify(&self) {
        self.sender.board.verify(&self.records);
        let una = self.offset(self.sender.una());
        assert!(una <= self.receiver.next, "acknowledged before it arrived");
        let free = self.offset(self.sender.free_until(&self.records));
        assert!(free <= una, "free before it is acknowledged");
        if let Some((&from, _)) = self.in_device.first_key_value() {
            assert!(free <= from, "free while the device has it");
        }
        assert!(self.sender.in_flight() <= self.sender.outstanding() + u32::from(self.sender.mss()));
        assert!(self.sender.cwnd() >= u32::from(self.sender.mss()) || self.sender.mss() > 1200);
        assert!(self.sender.board.segments == 0 || self.sender.due().is_some(), "nothing would wake it");
    }

    /// Creates another sender, `later_ns` later, at the same bottleneck. Its segments go in trains
    /// of `train`.
    pub(crate) fn beside(&self, setup: &Setup, train: u32, later_ns: u64) -> Self {
        let other = Self::new(setup, self.path.clone(), self.total, self.window);
        let mut other = Self { free_at: Rc::clone(&self.free_at), train, ..other };
        other.now = other.now.plus_ns(later_ns);
        other.at(other.now.0, PathEvent::Wake);
        other
    }

    /// When something happens next.
    fn next(&self) -> u64 {
        let event = self.events.peek().map(|Reverse((time, ..))| *time);
        let time = event.into_iter().chain(self.sender.due().map(|due| due.0)).min();
        time.unwrap_or_else(|| panic!("stuck: {:?} {:?}", self.path, self.sender))
    }

    /// It happens.
    fn step(&mut self, time: u64) {
        self.now = Instant(time.max(self.now.0));
        let is_event = self.events.peek().is_some_and(|Reverse((at, ..))| *at == time);
        if is_event && let Some(Reverse((_, _, event))) = self.events.pop() {
            self.handle(event);
        } else {
            let _: Fired = self.sender.fired(&mut self.records, self.now);
        }
        self.pump();
    }

    /// Runs until all is acknowledged, at most until `until_ns`; returns the bytes that were.
    pub(crate) fn run(&mut self, until_ns: u64) -> u64 {
        self.pump();
        let mut steps = 0_u64;
        while self.offset(self.sender.una()) < self.total {
            let time = self.next();
            if time > until_ns {
                self.now = Instant(until_ns);
                break;
            }
            self.step(time);
            steps += 1;
            if steps.is_multiple_of(self.verify_every) {
                self.verify();
            }
        }
        self.verify();
        self.offset(self.sender.una())
    }

    /// Two that share a bottleneck run until `until_ns`; the bytes that were acknowledged.
    pub(crate) fn run_both(pair: &mut [Self; 2], until_ns: u64) -> [u64; 2] {
        pair.iter_mut().filter(|link| link.transmissions == 0 && link.events.is_empty()).for_each(Self::pump);
        loop {
            let times = pair.each_ref().map(Self::next);
            let which = usize::from(times[1] < times[0]);
            if times[which] > until_ns {
                pair.iter().for_each(Self::verify);
                return pair.each_ref().map(|link| link.offset(link.sender.una()));
            }
            pair[which].step(times[which]);
        }
    }
}
