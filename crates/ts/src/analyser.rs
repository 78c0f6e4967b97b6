//! What happens at each packet.

use std::mem;

use millrace_core::limits::TS_PACKET_BYTES;

use crate::check::FindingKind;
use crate::clock::{Clock, Reference};
use crate::framing::{Framer, InputPiece};
use crate::limits::{CLOCK_SILENT_TICKS, MAX_CLOCKS, PID_INTERVAL_TICKS};
use crate::model::Sizes;
use crate::packet::{Bytes, NULL_PID, PIDS, PacketFields, SYNC, is_same};
use crate::pes::Pes;
use crate::psi::Psi;
use crate::report::AnalysisReport;
use crate::section::{ElementaryKind, PmtEntry, Sections};
use crate::timed::{StreamPosition, Timed, TimedEvent};

/// Checks requested in addition to those always made.
#[derive(Clone, Copy, Debug)]
pub struct AnalyserOptions {
    /// How full the buffers of the decoder model get (T-STD).
    pub buffers: bool,
    /// How long a PID of sound or pictures may be away, in ticks of 27 MHz (TR 101 290 check 1.6).
    pub pid_interval_ticks: i64,
}

impl Default for AnalyserOptions {
    fn default() -> Self {
        Self { buffers: false, pid_interval_ticks: PID_INTERVAL_TICKS }
    }
}

/// To which programme a stream belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) program: u16,
    pub(crate) clock: u16,
    pub(crate) stream: PmtEntry,
}

/// State of a PID.
#[derive(Debug, Default)]
pub(crate) struct Pid {
    pub(crate) packets: u64,
    pub(crate) scrambled: u64,
    /// Of the last packet; `None` if that could not be read.
    counter: Option<u8>,
    was_twice: bool,
    epoch: u32,
    /// The last packet with a payload.
    last: Option<Box<Bytes>>,
    pub(crate) role: Option<Role>,
    pub(crate) is_pmt: bool,
    /// When it was there, to a clock reference.
    pub(crate) seen_at: i64,
    last_packet: u64,
    sections: Sections,
    pub(crate) pes: Option<Box<Pes>>,
    pub(crate) clock: Option<Box<Clock>>,
}

/// How a packet follows the one before of its PID (ISO/IEC 13818-1 section 2.4.3.3).
enum Follows {
    Well,
    /// The same once more.
    Twice,
    /// Another counter, which is announced, or follows data that are known to be missing.
    Anew {
        at_gap: bool,
    },
    Wrong(FindingKind),
}

impl Pid {
    fn lose(&mut self) {
        self.sections.lose();
        self.pes.iter_mut().for_each(|pes| pes.lose());
    }

    fn follows(&mut self, packet: &PacketFields<'_>, bytes: &Bytes, is_gap: bool) -> Follows {
        let (before, was_twice) = (self.counter.replace(packet.counter), mem::take(&mut self.was_twice));
        let is_same = packet.has_payload && self.last.as_ref().is_some_and(|last| is_same(last, bytes));
        if packet.has_payload {
            match &mut self.last {
                Some(last) => **last = *bytes,
                None => self.last = Some(Box::new(*bytes)),
            }
        }
        let Some(before) = before else { return Follows::Anew { at_gap: false } };
        let expected = (before + u8::from(packet.has_payload)) & 0x0f;
        if packet.counter == expected {
            return if is_gap { Follows::Anew { at_gap: false } } else { Follows::Well };
        }
        let is_repeated = packet.has_payload && packet.counter == before;
        if is_repeated && is_same && !was_twice {
            self.was_twice = true;
            Follows::Twice
        } else if packet.discontinuity || is_gap {
            Follows::Anew { at_gap: is_gap }
        } else if is_repeated && !is_same {
            Follows::Wrong(FindingKind::CounterRepeated { counter: before })
        } else {
            Follows::Wrong(FindingKind::Counter { expected, got: packet.counter })
        }
    }
}

/// Analyses one stream. A few hundred KiB for an ordinary one, at most some 16 MiB whatever comes.
#[derive(Debug)]
pub struct Analyser {
    pub(crate) options: AnalyserOptions,
    framer: Framer,
    pub(crate) pids: Vec<Option<Box<Pid>>>,
    pub(crate) timed: Timed,
    pub(crate) psi: Psi,
    /// Changes where packets are missing.
    pub(crate) epoch: u32,
    pub(crate) packets: u64,
    pub(crate) null_packets: u64,
    /// Bytes taken, and where the packet at hand lies.
    pub(crate) bytes: u64,
    pub(crate) at: u64,
    clocks: usize,
    /// The first scrambled packet.
    scrambled: Option<(u16, u64, u64)>,
    /// Counters that do not follow.
    breaks: u64,
    /// Counters that do not follow where data are known to be missing.
    pub(crate) breaks_at_gaps: u64,
}

impl Default for Analyser {
    fn default() -> Self {
        Self::new(AnalyserOptions::default())
    }
}

impl Analyser {
    /// At the beginning of a stream.
    pub fn new(options: AnalyserOptions) -> Self {
        let mut pids = Vec::new();
        pids.resize_with(PIDS, || None);
        let mut timed = Timed::new(options.buffers);
        timed.push(0, 0, TimedEvent::Gap);
        Self {
            options,
            framer: Framer::default(),
            pids,
            timed,
            psi: Psi::default(),
            epoch: 0,
            packets: 0,
            null_packets: 0,
            bytes: 0,
            at: 0,
            clocks: 0,
            scrambled: None,
            breaks: 0,
            breaks_at_gaps: 0,
        }
    }

    /// Takes the next bytes of a stream, as many as there are; where packets begin is found out.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let mut framer = mem::take(&mut self.framer);
        framer.push(bytes, &mut |piece| self.piece(&piece));
        self.framer = framer;
    }

    /// Takes whole packets, as a datagram holds them (RFC 2250 section 2): they begin where it begins. Not to be mixed with [`Self::push`].
    pub fn push_packets(&mut self, bytes: &[u8]) {
        let mut packets = bytes.chunks_exact(TS_PACKET_BYTES);
        for packet in &mut packets {
            let at = self.bytes;
            self.bytes += TS_PACKET_BYTES as u64;
            if let Some(bytes) = packet.first_chunk() {
                let is_right = bytes[0] == SYNC;
                self.piece(&if is_right {
                    InputPiece::Packet { at, bytes }
                } else {
                    InputPiece::BadSync { at, got: bytes[0] }
                });
            }
        }
        let rest = packets.remainder().len() as u64;
        if rest > 0 {
            self.piece(&InputPiece::Skipped { at: self.bytes, bytes: rest });
            self.bytes += rest;
        }
    }

    /// Records that data was lost on the way to the caller, before the next input: no consequence
    /// of the loss is a fault of the stream.
    pub fn lost(&mut self) {
        self.found(None, FindingKind::LostOnTheWay);
        self.gap();
    }

    /// Records that the next input is another place in the stream.
    pub fn jumped(&mut self) {
        self.timed.settle(self.packets);
        self.gap();
        self.pids.iter_mut().flatten().filter_map(|pid| pid.clock.as_mut()).for_each(|clock| clock.forget());
    }

    fn gap(&mut self) {
        self.framer = Framer::at(self.bytes);
        self.epoch = self.epoch.wrapping_add(1);
        self.timed.push(self.packets, self.at, TimedEvent::Gap);
    }

    pub(crate) fn found(&mut self, pid: Option<u16>, what: FindingKind) {
        self.timed.push(self.packets, self.at, TimedEvent::Found { pid, what });
    }

    fn piece(&mut self, piece: &InputPiece<'_>) {
        match *piece {
            InputPiece::Packet { at, bytes } => {
                self.at = at;
                self.packet(bytes);
                self.packets += 1;
            }
            InputPiece::BadSync { at, got } => {
                self.at = at;
                self.found(None, FindingKind::WrongSync { got });
                self.packets += 1;
            }
            InputPiece::Skipped { at, bytes } => {
                self.at = at;
                self.found(None, FindingKind::Skipped { bytes });
                self.epoch = self.epoch.wrapping_add(1);
                self.timed.push(self.packets, at, TimedEvent::Gap);
            }
            InputPiece::Cut { at, bytes } => {
                self.at = at;
                self.found(None, FindingKind::Ends { bytes });
            }
        }
    }

    fn packet(&mut self, bytes: &Bytes) {
        let packet = PacketFields::parse(bytes);
        let number = packet.pid;
        if packet.error {
            self.found(Some(number), FindingKind::Marked);
            // No field of its header is certain: the next packet of this PID may have any counter.
            if let Some(pid) = &mut self.pids[usize::from(number)] {
                pid.counter = None;
                pid.lose();
            }
            return;
        }
        if number == NULL_PID {
            self.null_packets += 1;
            return;
        }
        let mut pid = self.pids[usize::from(number)].take().unwrap_or_default();
        self.look(&mut pid, &packet, bytes);
        self.pids[usize::from(number)] = Some(pid);
    }

    fn look(&mut self, pid: &mut Pid, packet: &PacketFields<'_>, bytes: &Bytes) {
        pid.packets += 1;
        if let Some(what) = packet.fault {
            self.found(Some(packet.pid), FindingKind::BadHeader { what });
        }
        // Data are known to be missing since the last packet of this PID.
        let is_gap = mem::replace(&mut pid.epoch, self.epoch) != self.epoch && pid.packets > 1;
        match pid.follows(packet, bytes, is_gap) {
            Follows::Well => {}
            Follows::Twice => return,
            Follows::Anew { at_gap } => {
                self.breaks_at_gaps += u64::from(at_gap);
                pid.lose();
            }
            Follows::Wrong(what) => {
                self.breaks += 1;
                self.found(Some(packet.pid), what);
                pid.lose();
            }
        }
        self.presence(pid, packet.pid, is_gap);
        if packet.scrambled && packet.has_payload {
            self.scrambled(pid, packet.pid);
        }
        if let Some(value) = packet.pcr {
            self.clock(pid, packet, value);
        }
        if !packet.has_payload || packet.scrambled {
            return;
        }
        match pid.role {
            Some(role) => self.media(pid, packet, role),
            None if pid.is_pmt || matches!(packet.pid, 0 | 1 | 0x10 | 0x11 | 0x12 | 0x14) => {
                let mut sections = mem::take(&mut pid.sections);
                let fault = sections
                    .push(packet.payload, packet.start, &mut |section| self.section(packet.pid, section));
                pid.sections = sections;
                if let Some(what) = fault {
                    self.found(Some(packet.pid), FindingKind::BadSection { what });
                }
            }
            None => {}
        }
    }

    /// TR 101 290 check 1.6.
    fn presence(&mut self, pid: &mut Pid, number: u16, is_gap: bool) {
        let now = self.timed.now();
        if let Some((role, ticks)) = self.away(pid, now)
            && !is_gap
        {
            self.found(Some(number), FindingKind::PidMissing { program: role.program, ticks });
        }
        (pid.seen_at, pid.last_packet) = (now, self.packets);
    }

    /// For how long a PID has not come that should have.
    fn away(&self, pid: &Pid, now: i64) -> Option<(Role, i64)> {
        let role = pid
            .role
            .filter(|role| matches!(role.stream.kind, ElementaryKind::Video | ElementaryKind::Audio))?;
        if now - pid.seen_at <= self.options.pid_interval_ticks {
            return None;
        }
        // Where clock references were missing, the packets tell.
        let by_packets = self.timed.estimate(pid.last_packet).filter(|_| pid.packets > 0);
        let ticks = now - by_packets.map_or(pid.seen_at, |time| time.max(pid.seen_at));
        (ticks > self.options.pid_interval_ticks).then_some((role, ticks))
    }

    fn scrambled(&mut self, pid: &mut Pid, number: u16) {
        pid.scrambled += 1;
        self.scrambled.get_or_insert((number, self.packets, self.at));
        if number == 0 {
            self.found(Some(0), FindingKind::PatScrambled);
        } else if pid.is_pmt {
            self.found(Some(number), FindingKind::PmtScrambled);
        }
    }

    fn clock(&mut self, pid: &mut Pid, packet: &PacketFields<'_>, value: u64) {
        if pid.clock.is_none() {
            self.clocks += 1;
            if self.clocks == MAX_CLOCKS + 1 {
                self.found(None, FindingKind::TooMany { what: "PIDs with clock references" });
            }
            if self.clocks > MAX_CLOCKS {
                return;
            }
        }
        let clock = pid.clock.get_or_insert_default();
        let (number, byte, timed) = (self.packets, self.at, &mut self.timed);
        let announced = packet.discontinuity;
        let reference =
            Reference { packet: number, byte, value, announced, epoch: self.epoch, breaks: self.breaks };
        let step = clock.push(reference, &mut |what| {
            timed.push(number, byte, TimedEvent::Found { pid: Some(packet.pid), what });
        });
        let is_new_clock = step.is_new_clock;
        timed.push(
            number,
            byte,
            TimedEvent::Pcr { pid: packet.pid, value, elapsed: clock.elapsed, is_new_clock },
        );
        timed.tick(packet.pid, number, clock, step);
    }

    fn media(&mut self, pid: &mut Pid, packet: &PacketFields<'_>, role: Role) {
        let PmtEntry { kind, stream_type, .. } = role.stream;
        if kind == ElementaryKind::Other {
            return;
        }
        let pes = pid.pes.get_or_insert_default();
        let (number, byte, timed) = (self.packets, self.at, &mut self.timed);
        let stamps = pes.push(packet.payload, packet.start, number, kind, &mut |what| {
            timed.push(number, byte, TimedEvent::Found { pid: Some(packet.pid), what });
        });
        if let Some(stamps) = stamps {
            timed.push(
                pes.begins,
                byte,
                TimedEvent::Unit { pid: packet.pid, clock: role.clock, kind, stamps },
            );
        }
        if kind == ElementaryKind::Video {
            if packet.start {
                pes.start.begin(packet.random_access);
            }
            let media = pes.media(packet.payload);
            if let Some(what) = pes.start.push(stream_type, media) {
                timed.push(number, byte, TimedEvent::Found { pid: Some(packet.pid), what });
            }
        }
        let Some(model) = &mut timed.model else { return };
        if packet.start && !model.knows(packet.pid) {
            let media = packet.payload.get(pes.media_at..).unwrap_or_default();
            if let Some(sizes) = Sizes::find(stream_type, media) {
                model.resize(packet.pid, sizes);
            }
        }
        if model.knows(packet.pid) {
            let bytes = packet.payload.len() as u8;
            timed.push(
                number,
                byte,
                TimedEvent::Payload { pid: packet.pid, clock: role.clock, bytes, begins: stamps },
            );
        }
    }

    /// Ends the stream and returns the findings.
    pub fn finish(mut self) -> AnalysisReport {
        let mut framer = mem::take(&mut self.framer);
        framer.finish(&mut |piece| self.piece(&piece));
        let mut pids = mem::take(&mut self.pids);
        for (number, pid) in pids.iter_mut().enumerate() {
            let Some(pid) = pid else { continue };
            if let Some(what) = pid.pes.as_mut().and_then(|pes| pes.end(true)) {
                self.found(Some(number as u16), what);
            }
            pid.clock.iter_mut().for_each(|clock| clock.forget());
        }
        self.pids = pids;
        let end = self.timed.finish(self.packets, self.bytes);
        self.missing(end);
        self.accuracy();
        if let Some((pid, packet, byte)) = self.scrambled.filter(|_| !self.psi.has_cat) {
            let time = self.timed.estimate(packet).filter(|_| packet > 0);
            self.timed.found(StreamPosition { packet, byte, time }, Some(pid), FindingKind::CatMissing);
        }
        AnalysisReport::new(&self, end)
    }

    /// Reports the items that had not arrived by the end.
    fn missing(&mut self, end: Option<i64>) {
        let place = StreamPosition { packet: self.packets, byte: self.bytes, time: end };
        for (number, pid) in self.pids.iter().enumerate() {
            let Some(pid) = pid.as_ref().filter(|pid| pid.packets == 0 || pid.epoch == self.epoch) else {
                continue;
            };
            let Some((role, ticks)) = self.away(pid, end.unwrap_or(0)) else { continue };
            let program = role.program;
            let what = match pid.packets {
                0 => FindingKind::PidNever { program },
                _ => FindingKind::PidMissing { program, ticks },
            };
            self.timed.found(place, Some(number as u16), what);
        }
        for program in self.psi.programs.values() {
            let Some(clock) = program.clock.filter(|clock| *clock != NULL_PID) else { continue };
            let has_clock = self.pids[usize::from(clock)].as_ref().and_then(|pid| pid.clock.as_ref());
            let stamped = |stream: &PmtEntry| {
                let pid = self.pids[usize::from(stream.pid)].as_ref()?;
                Some(pid.pes.as_ref()?.stamped)
            };
            let what = match has_clock {
                None if program.streams.iter().filter_map(stamped).any(|stamped| stamped > 1) => {
                    FindingKind::PcrNever { program: program.number }
                }
                None => continue,
                Some(found) => {
                    let last = self.timed.time_of(clock, found.elapsed);
                    match end.zip(last).map(|(end, last)| end - last) {
                        Some(ticks) if ticks > CLOCK_SILENT_TICKS => FindingKind::PcrLate { ticks },
                        _ => continue,
                    }
                }
            };
            self.timed.found(place, Some(clock), what);
        }
    }

    /// TR 101 290 check 2.4, where the rate turned out to be constant.
    fn accuracy(&mut self) {
        for (number, pid) in self.pids.iter().enumerate() {
            let Some(clock) = pid.as_ref().and_then(|pid| pid.clock.as_ref()) else { continue };
            let accuracy = &clock.accuracy;
            if accuracy.is_constant() != Some(true) {
                continue;
            }
            for &((packet, byte, elapsed), ns) in &accuracy.off {
                let place = StreamPosition { packet, byte, time: self.timed.time_of(number as u16, elapsed) };
                self.timed.found(place, Some(number as u16), FindingKind::PcrOff { ns });
            }
            let untold = accuracy.off_count - accuracy.off.len() as u64;
            self.timed.findings.counts[FindingKind::PcrOff { ns: 0 }.check() as usize] += untold;
        }
    }
}
