//! What needs the time: events wait until the clock reference behind them gives them theirs.
//!
//! Time is that of the clock references of one PID, the reference: between two of them it goes on evenly with the bytes
//! (ISO/IEC 13818-1 section 2.4.2.2), so it is known when the second has come. Clocks of other programmes are compared with it at their own
//! references and taken to run alongside from there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::check::{Check, Finding, FindingKind};
use crate::clock::{Clock, ClockStep, at_rate, pcr_difference, stamp_difference, system_ns};
use crate::limits::{
    CLOCK_SILENT_TICKS, MAX_BUFFERED_TICKS, MAX_FINDINGS_PER_CHECK, MAX_PENDING_EVENTS, PCR_INTERVAL_TICKS,
    PSI_INTERVAL_TICKS, PTS_INTERVAL_TICKS, RECENT_PTS,
};
use crate::model::Model;
use crate::pes::Stamps;
use crate::section::ElementaryKind;

/// Something that happened at a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimedEvent {
    Found {
        pid: Option<u16>,
        what: FindingKind,
    },
    /// The beginning, or data is missing before this point: earlier events do not show when the
    /// next is due.
    Gap,
    Pat,
    Pmt {
        program: u16,
    },
    /// A programme is there from now on, or no more.
    Program {
        program: u16,
        pid: u16,
        is_there: bool,
    },
    Pcr {
        pid: u16,
        value: u64,
        elapsed: i64,
        is_new_clock: bool,
    },
    /// A PES packet with time stamps begins.
    Unit {
        pid: u16,
        clock: u16,
        kind: ElementaryKind,
        stamps: Stamps,
    },
    /// Payload for the decoder model.
    Payload {
        pid: u16,
        clock: u16,
        bytes: u8,
        begins: Option<Stamps>,
    },
}

#[derive(Debug)]
struct PendingEvent {
    packet: u64,
    byte: u64,
    event: TimedEvent,
}

/// All that was found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) counts: Vec<u64>,
    pub(crate) kept: Vec<Finding>,
}

impl Findings {
    fn add(&mut self, finding: Finding) {
        let index = finding.what.check() as usize;
        self.counts[index] += 1;
        if self.counts[index] <= MAX_FINDINGS_PER_CHECK as u64 {
            self.kept.push(finding);
        }
    }
}

/// The value of a clock at a time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    value: u64,
    time: i64,
    elapsed: i64,
    /// Data are missing since.
    is_stale: bool,
}

/// The time stamps of one PID.
#[derive(Debug, Default)]
pub(crate) struct Stamped {
    clock: u16,
    last_dts: Option<u64>,
    /// The last PTS in the order of presentation, and those that another may still come before.
    presented: Option<u64>,
    waiting: Vec<u64>,
    recent: VecDeque<u64>,
    pub(crate) first: Option<Stamps>,
    pub(crate) last: Option<Stamps>,
    pub(crate) longest_ticks: i64,
}

/// Where and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPosition {
    pub(crate) packet: u64,
    pub(crate) byte: u64,
    pub(crate) time: Option<i64>,
}

#[derive(Debug, Default)]
pub(crate) struct Timed {
    queue: VecDeque<PendingEvent>,
    /// PID of the clock that time is taken from.
    reference: Option<u16>,
    /// The last packet with a known time.
    anchor: Option<(u64, i64)>,
    rate: Option<(i64, i64)>,
    /// First reference of a clock that has had only one.
    only: Option<u64>,
    /// First packet behind a gap that no reference has followed yet.
    gap_at: Option<u64>,
    /// The current time is a guess: no reference has come for a long time.
    is_guess: bool,
    readings: HashMap<u16, Reading>,
    pat_seen: Option<i64>,
    /// PID of each programme's PMT and when it was there.
    programs: BTreeMap<u16, (u16, Option<i64>)>,
    pub(crate) stamped: BTreeMap<u16, Stamped>,
    pub(crate) model: Option<Model>,
    pub(crate) findings: Findings,
}

impl Timed {
    pub(crate) fn new(with_model: bool) -> Self {
        Self {
            model: with_model.then(Model::default),
            findings: Findings { counts: vec![0; Check::ALL.len()], kept: Vec::new() },
            ..Self::default()
        }
    }

    /// Time of the last clock reference: not later than now, and as a rule less than 100 ms ago.
    pub(crate) fn now(&self) -> i64 {
        self.anchor.map_or(0, |(_, time)| time)
    }

    /// Time of a packet at the rate of the last intervals.
    pub(crate) fn estimate(&self, packet: u64) -> Option<i64> {
        let (from, time) = self.anchor?;
        Some(time + at_rate(self.rate?, packet as i64 - from as i64))
    }

    pub(crate) fn push(&mut self, packet: u64, byte: u64, event: TimedEvent) {
        if self.queue.len() >= MAX_PENDING_EVENTS {
            self.settle(packet);
        }
        if matches!(event, TimedEvent::Gap) && packet > 0 {
            self.gap_at = Some(packet);
        }
        self.queue.push_back(PendingEvent { packet, byte, event });
    }

    /// Gives all that waits a time at the rate of before: no clock reference comes for them.
    pub(crate) fn settle(&mut self, packet: u64) {
        self.settle_by(packet, |_, estimate| estimate);
    }

    fn settle_by(&mut self, packet: u64, time: fn(i64, i64) -> i64) {
        let since = self.now();
        while let Some(pending) = self.queue.pop_front() {
            let at = self.estimate(pending.packet).map(|estimate| time(since, estimate));
            self.is_guess = at.is_some_and(|at| at - since > CLOCK_SILENT_TICKS);
            self.handle(&pending, at);
        }
        if let Some(estimate) = self.estimate(packet) {
            let at = time(since, estimate);
            self.is_guess = at - since > CLOCK_SILENT_TICKS;
            self.anchor = Some((packet, at));
        }
        self.gap_at = None;
    }

    /// A clock reference has come, at `packet`.
    pub(crate) fn tick(&mut self, pid: u16, packet: u64, clock: &Clock, step: ClockStep) {
        let reference = *self.reference.get_or_insert(pid);
        if pid != reference && !self.takes_over(pid, clock) {
            return;
        }
        let Some((_, time)) = self.anchor else {
            match self.only {
                Some(first) if !step.is_new_clock => {
                    self.rate = clock.rate();
                    let rate = (step.ticks, packet.saturating_sub(first) as i64);
                    // The first packet is time 0.
                    self.advance((first, at_rate(rate, first as i64)), packet, at_rate(rate, packet as i64));
                }
                _ => self.only = Some(packet),
            }
            return;
        };
        let by_rate = self.estimate(packet).unwrap_or(time);
        let by_clock = match self.readings.get(&pid) {
            _ if step.is_first => by_rate,
            Some(reading) => reading.time + clock.elapsed - reading.elapsed,
            None => self.estimate(clock.first_packet).unwrap_or(time) + clock.elapsed,
        };
        self.rate = clock.rate().or(self.rate);
        let anchor = self.anchor.unwrap_or((packet, time));
        self.advance(anchor, packet, by_clock.max(time));
    }

    /// Returns whether time is taken from this clock from now on, because the previous one has
    /// fallen silent.
    fn takes_over(&mut self, pid: u16, clock: &Clock) -> bool {
        let since = self.readings.get(&pid).map_or(0, |reading| reading.elapsed);
        if clock.elapsed - since <= CLOCK_SILENT_TICKS {
            return false;
        }
        if self.anchor.is_none() {
            self.only = None;
        }
        self.reference = Some(pid);
        true
    }

    /// Everything up to `packet` gets its time, which is `time` there.
    fn advance(&mut self, (from, since): (u64, i64), packet: u64, time: i64) {
        let evenly = (time - since, packet.saturating_sub(from) as i64);
        self.anchor = Some((packet, time));
        if std::mem::take(&mut self.is_guess) {
            // When tables were there last is a guess too.
            self.pat_seen = None;
            self.programs.values_mut().for_each(|(_, seen)| *seen = None);
        }
        let gap = self.gap_at.take().zip(self.rate);
        while self.queue.front().is_some_and(|pending| pending.packet <= packet) {
            let Some(pending) = self.queue.pop_front() else { break };
            let behind = |to: u64| pending.packet as i64 - to as i64;
            let at = match gap {
                // The amount of missing data is unknown: both sides follow the rate.
                Some((gap, rate)) if pending.packet < gap => (since + at_rate(rate, behind(from))).min(time),
                Some((_, rate)) => (time + at_rate(rate, behind(packet))).max(since),
                None => since + at_rate(evenly, behind(from)),
            };
            self.handle(&pending, Some(at));
        }
    }

    pub(crate) fn found(&mut self, place: StreamPosition, pid: Option<u16>, what: FindingKind) {
        let time_ns = place.time.map(system_ns);
        self.findings.add(Finding { what, pid, packet: place.packet, byte: place.byte, time_ns });
    }

    fn handle(&mut self, pending: &PendingEvent, time: Option<i64>) {
        let place = StreamPosition { packet: pending.packet, byte: pending.byte, time };
        match pending.event {
            TimedEvent::Found { pid, what } => self.found(place, pid, what),
            TimedEvent::Gap => self.gap(time),
            TimedEvent::Pat => {
                self.pat_gap(place);
                self.pat_seen = time;
            }
            TimedEvent::Pmt { program } => {
                self.pmt_gap(place, program);
                if let Some((_, seen)) = self.programs.get_mut(&program) {
                    *seen = time;
                }
            }
            TimedEvent::Program { program, pid, is_there: true } => {
                self.programs.insert(program, (pid, time));
            }
            TimedEvent::Program { program, .. } => {
                self.programs.remove(&program);
            }
            TimedEvent::Pcr { pid, value, elapsed, is_new_clock } => {
                if let Some(time) = time {
                    self.readings.insert(pid, Reading { value, time, elapsed, is_stale: false });
                }
                if is_new_clock {
                    self.stamped
                        .values_mut()
                        .filter(|stamped| stamped.clock == pid)
                        .for_each(Stamped::forget);
                    self.model.iter_mut().for_each(|model| model.forget(|unit_clock| unit_clock == pid));
                }
            }
            TimedEvent::Unit { pid, clock, kind, stamps } => self.unit(place, pid, clock, kind, stamps),
            TimedEvent::Payload { pid, clock, bytes, begins } => {
                let Some(time) = time else { return };
                let ahead = |stamps: Stamps| {
                    Some(pcr_difference(stamps.dts * 300, self.clock_at(clock, time)?.max(0) as u64))
                };
                let due = begins.map(|stamps| ahead(stamps).map(|ahead| time + ahead));
                let Some(model) = &mut self.model else { return };
                let found = model.payload(pid, clock, time, u32::from(bytes), due);
                found.into_iter().flatten().for_each(|what| self.found(place, Some(pid), what));
            }
        }
    }

    fn gap(&mut self, time: Option<i64>) {
        self.readings.values_mut().for_each(|reading| reading.is_stale = true);
        self.pat_seen = time;
        self.programs.values_mut().for_each(|(_, seen)| *seen = time);
        self.stamped.values_mut().for_each(Stamped::forget);
        self.model.iter_mut().for_each(|model| model.forget(|_| true));
    }

    fn pat_gap(&mut self, place: StreamPosition) {
        if let (Some(seen), Some(time)) = (self.pat_seen, place.time)
            && time - seen > PSI_INTERVAL_TICKS
            && !self.is_guess
        {
            self.found(place, Some(0), FindingKind::PatMissing { ticks: time - seen });
        }
    }

    fn pmt_gap(&mut self, place: StreamPosition, program: u16) {
        if let (Some((pid, Some(seen))), Some(time)) = (self.programs.get(&program).copied(), place.time)
            && time - seen > PSI_INTERVAL_TICKS
            && !self.is_guess
        {
            self.found(place, Some(pid), FindingKind::PmtMissing { program, ticks: time - seen });
        }
    }

    /// Returns the value of a programme's clock; `None` if it has been silent, or data has been
    /// missing since.
    fn clock_at(&self, clock: u16, time: i64) -> Option<i64> {
        let reading = self.readings.get(&clock).filter(|reading| !reading.is_stale)?;
        (time - reading.time <= CLOCK_SILENT_TICKS).then_some(reading.value as i64 + (time - reading.time))
    }

    fn unit(&mut self, place: StreamPosition, pid: u16, clock: u16, kind: ElementaryKind, stamps: Stamps) {
        let stamped = self.stamped.entry(pid).or_default();
        stamped.clock = clock;
        stamped.first.get_or_insert(stamps);
        stamped.last = Some(stamps);
        if !matches!(kind, ElementaryKind::Video | ElementaryKind::Audio) {
            return;
        }
        let mut faults = stamped.take(stamps, kind);
        if let Some(now) = place.time.and_then(|time| self.clock_at(clock, time)) {
            let ahead = pcr_difference(stamps.dts * 300, now.max(0) as u64);
            if ahead < 0 {
                faults.push(FindingKind::DecodedEarly { ms: -ahead / 27_000 });
            } else if ahead > MAX_BUFFERED_TICKS {
                faults.push(FindingKind::DecodedLate { ms: ahead / 27_000 });
            }
        }
        faults.into_iter().for_each(|what| self.found(place, Some(pid), what));
    }

    /// When a clock had run for `elapsed` ticks.
    pub(crate) fn time_of(&self, clock: u16, elapsed: i64) -> Option<i64> {
        self.readings.get(&clock).map(|reading| reading.time - (reading.elapsed - elapsed))
    }

    /// Ends the input after `packet`: returns its time, and reports everything overdue.
    ///
    /// After the last clock reference, time is only estimated: at most the permitted interval
    /// between two, unless the estimate is far beyond it.
    pub(crate) fn finish(&mut self, packet: u64, byte: u64) -> Option<i64> {
        self.settle_by(packet, end_time);
        let time = self.anchor.map(|(_, time)| time);
        let place = StreamPosition { packet, byte, time };
        for (pid, mut stamped) in std::mem::take(&mut self.stamped) {
            let mut faults = Vec::new();
            stamped.present(|_| true, &mut faults);
            faults.into_iter().for_each(|what| self.found(place, Some(pid), what));
            self.stamped.insert(pid, stamped);
        }
        self.pat_gap(place);
        let programs: Vec<_> = self.programs.keys().copied().collect();
        programs.into_iter().for_each(|program| self.pmt_gap(place, program));
        time
    }
}

fn end_time(since: i64, estimate: i64) -> i64 {
    if estimate > since + CLOCK_SILENT_TICKS { estimate } else { estimate.min(since + PCR_INTERVAL_TICKS) }
}

impl Stamped {
    /// The next input has another clock, or data is missing before it.
    fn forget(&mut self) {
        (self.last_dts, self.presented) = (None, None);
        self.waiting.clear();
        self.recent.clear();
    }

    fn take(&mut self, stamps: Stamps, kind: ElementaryKind) -> Vec<FindingKind> {
        let mut faults = Vec::new();
        let ms = |ticks: i64| ticks / 90;
        if let Some(last) = self.last_dts.replace(stamps.dts) {
            let step = stamp_difference(stamps.dts, last);
            if step <= 0 {
                faults.push(FindingKind::DtsBack { ms: ms(-step) });
                self.forget();
                self.last_dts = Some(stamps.dts);
            }
        }
        let ahead = stamp_difference(stamps.pts, stamps.dts);
        if ahead < 0 {
            faults.push(FindingKind::PtsBeforeDts { ms: ms(-ahead) });
        } else if ahead * 300 > MAX_BUFFERED_TICKS {
            faults.push(FindingKind::PtsFar { ms: ms(ahead) });
        }
        if kind == ElementaryKind::Video {
            if self.recent.contains(&stamps.pts) {
                faults.push(FindingKind::PtsTwice);
            }
            if self.recent.len() >= RECENT_PTS {
                self.recent.pop_front();
            }
            self.recent.push_back(stamps.pts);
        }
        self.waiting.push(stamps.pts);
        self.present(|pts| stamp_difference(pts, stamps.dts) <= 0, &mut faults);
        faults
    }

    /// Takes the PTS that `is_due` reports as final, with no other to come before them: units
    /// decoded later are shown later.
    fn present(&mut self, is_due: impl Fn(u64) -> bool, faults: &mut Vec<FindingKind>) {
        let Some(&first) = self.waiting.first() else { return };
        self.waiting.sort_by_key(|pts| stamp_difference(*pts, first));
        while let Some(&pts) = self.waiting.first()
            && (is_due(pts) || self.waiting.len() > RECENT_PTS)
        {
            self.waiting.remove(0);
            let step = self.presented.map_or(0, |before| stamp_difference(pts, before));
            self.presented = Some(pts);
            self.longest_ticks = self.longest_ticks.max(step);
            if step > PTS_INTERVAL_TICKS {
                faults.push(FindingKind::PtsApart { ms: step / 90 });
            }
        }
    }
}
