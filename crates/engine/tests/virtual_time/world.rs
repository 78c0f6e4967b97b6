//! The world around an engine, in virtual time: a disk that answers requests after a delay, a
//! device that compares every datagram with the one that the viewer must get, and a clock that
//! jumps from one event to the next.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use millrace_core::ids::{ConnId, RunSerial, StreamId, TitleRef};
use millrace_core::limits::{MAX_BATCH_BURSTS, MAX_BURST_PACKETS, RETRY_NS};
use millrace_core::pool::{ExtentArena, HeapRegion, Lease};
use millrace_core::seam::{Dest, Payload, SendOutcome, Transmit, TransmitBatch, Want};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtcp::{self, RtcpPacket};
use millrace_core::wire::rtp::RtpHeader;
use millrace_core::wire::rtp::sequence_of;
use millrace_engine::limits::{MIN_PACKET_GAP_NS, WAKE_CREDIT_NS};
use millrace_engine::{
    Engine, EngineConfig, LeaseFailure, Numbering, Refusal, RunCut, RunEnd, RunSpec, Start, StopReason,
    StreamEvent, StreamSpec,
};

use millrace_testkit::film::Film;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000_000_000;
/// Rounds of work at one moment: far more than any test has.
const MAX_ROUNDS: u32 = 100_000;
/// No test lasts longer; one that waits for what never comes ends here instead of running on from report to report for ever.
const MAX_NS: u64 = 4 * 3600 * S;
/// Not round in any unit that the engine works with.
pub(crate) const START: Instant = Instant(987_654_321_012_345);

/// How the disk answers a want: after how long, and with what.
pub(crate) type DiskRule = Box<dyn FnMut(&Want) -> (u64, Result<(), LeaseFailure>)>;
/// When a connection that was full at this time can be written again, if ever.
pub(crate) type WritableRule = Box<dyn FnMut(Instant, ConnId) -> Option<Instant>>;
/// How the device answers a transmit.
pub(crate) type DeviceRule = Box<dyn FnMut(Instant, &Transmit<'_>) -> SendOutcome>;

/// A disk with a small cache in front: extents stay in the arena as long as there is room.
pub(crate) struct Disk {
    arena: Arc<ExtentArena>,
    films: HashMap<TitleRef, Film>,
    /// The extent at each place in the arena.
    places: Vec<Option<(TitleRef, u32)>>,
    found: HashMap<(TitleRef, u32), u32>,
    hand: usize,
    pub(crate) rule: DiskRule,
    pending: BTreeMap<(Instant, u64), (Want, Result<(), LeaseFailure>)>,
    asked: u64,
    pub(crate) wants: Vec<(Instant, Want)>,
}

impl Disk {
    fn new(extents: usize) -> Self {
        Self {
            arena: ExtentArena::new(Box::new(HeapRegion::new(extents))),
            films: HashMap::new(),
            places: vec![None; extents],
            found: HashMap::new(),
            hand: 0,
            rule: Box::new(|_| (2 * MS, Ok(()))),
            pending: BTreeMap::new(),
            asked: 0,
            wants: Vec::new(),
        }
    }

    fn ask(&mut self, now: Instant, want: Want) {
        let (delay_ns, answer) = (self.rule)(&want);
        self.asked += 1;
        self.wants.push((now, want));
        self.pending.insert((now.plus_ns(delay_ns), self.asked), (want, answer));
    }

    pub(crate) fn lend(&mut self, title: TitleRef, extent: u32) -> Lease {
        let film = &self.films[&title];
        if let Some(&place) = self.found.get(&(title, extent)) {
            return self.arena.lend(place, film.content(extent)).expect("loaded");
        }
        for _ in 0..self.places.len() {
            self.hand = (self.hand + 1) % self.places.len();
            let free = match self.places[self.hand] {
                None => true,
                Some(old) => self.arena.reclaim(self.hand as u32) && self.found.remove(&old).is_some(),
            };
            if free {
                self.places[self.hand] = Some((title, extent));
                self.found.insert((title, extent), self.hand as u32);
                return film.load(&self.arena, self.hand as u32, extent);
            }
        }
        panic!("all {} extents of the arena are under lease", self.places.len());
    }

    /// Leases out now, on all extents.
    pub(crate) fn leases(&self) -> u32 {
        (0..self.arena.extents()).map(|extent| self.arena.leases(extent)).sum()
    }
}

/// A run of the viewer's own film.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaySpec {
    pub(crate) from: u32,
    pub(crate) until: u32,
    pub(crate) at: Instant,
    pub(crate) sequence: u16,
    pub(crate) scale_permille: u16,
}

/// A run that follows another one.
#[derive(Clone)]
struct Queued {
    film: Film,
    run: RunSerial,
    from: u32,
    until: u32,
    numbering: Numbering,
}

/// The data that a viewer must get next.
struct Viewer {
    film: Film,
    dest: Dest,
    /// The run that lasts, or the last one.
    run: RunSerial,
    /// Next packet and the sequence number it must carry.
    packet: u32,
    sequence: u16,
    until: u32,
    spec: PlaySpec,
    /// The SSRC that it must see, and what its timestamps are ahead of the title's.
    ssrc: u32,
    ahead: u32,
    /// What follows where `until` is, and that the run that lasts followed another one.
    queued: Option<Queued>,
    is_continued: bool,
    /// The last run that has begun.
    began: RunSerial,
}

impl Viewer {
    /// Media time of a packet as the engine knows it at a cut: behind an extent or the title, from the two packets before.
    fn time_at_cut(&self, packet: u32) -> u64 {
        let time = |packet| self.film.time(packet).0;
        let per_extent = self.film.layout.packets_per_extent();
        let is_held = !packet.is_multiple_of(per_extent) && packet < self.film.packets;
        match packet {
            _ if is_held || packet == self.spec.from => time(packet),
            0 | 1 => time(packet),
            _ => 2 * time(packet - 1) - time(packet - 2),
        }
    }

    /// Goes over to the queued run if all is sent of the one that lasts.
    fn follow(&mut self) {
        if self.packet != self.until {
            return;
        }
        let Some(Queued { film, run, from, until, numbering }) = self.queued.take() else { return };
        let behind = self.time_at_cut(self.packet);
        let ticks = u128::from(behind - self.film.time(self.spec.from).0);
        let ns = ticks * 1_000_000_000 * 1000 / 90_000 / u128::from(self.spec.scale_permille);
        let at = Instant(self.spec.at.0 + ns as u64);
        let stamp = self.film.timeline.timestamp(MediaTicks(behind)).wrapping_add(self.ahead);
        match numbering {
            Numbering::Viewer => {
                self.ahead = stamp.wrapping_sub(film.timeline.timestamp(film.time(from)));
            }
            Numbering::Title | Numbering::Bytes { .. } => {
                (self.sequence, self.ssrc, self.ahead) = (sequence_of(from), film.timeline.ssrc, 0)
            }
            Numbering::Sequence(sequence) | Numbering::Own(sequence) => {
                (self.sequence, self.ssrc, self.ahead) = (sequence, film.timeline.ssrc, 0);
            }
        }
        self.spec = PlaySpec { from, until, at, sequence: self.sequence, scale_permille: 1000 };
        (self.film, self.run, self.packet, self.until, self.is_continued) = (film, run, from, until, true);
    }

    /// By the book, with nothing in common with the engine's arithmetic.
    fn departure(&self, packet: u32) -> Instant {
        let ticks = self.film.time(packet).0 - self.film.time(self.spec.from).0;
        let ns = u128::from(ticks) * 1_000_000_000 * 1000 / 90_000 / u128::from(self.spec.scale_permille);
        Instant(self.spec.at.0 + ns as u64)
    }
}

/// One burst as the device saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) stream: StreamId,
    pub(crate) count: u32,
    pub(crate) patched: bool,
    /// Departure time of its first packet.
    pub(crate) departure: Instant,
}

/// One RTCP packet as the device saw it.
#[derive(Clone, Debug)]
pub(crate) struct Reported {
    pub(crate) at: Instant,
    pub(crate) stream: StreamId,
    pub(crate) packets: Vec<RtcpPacket>,
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) now: Instant,
    pub(crate) disk: Disk,
    pub(crate) device: DeviceRule,
    pub(crate) writable: WritableRule,
    /// Connections that were full, and when they can be written again.
    full: BTreeMap<u32, Instant>,
    viewers: HashMap<StreamId, Viewer>,
    pub(crate) sent: Vec<Sent>,
    /// Whether bursts are remembered in `sent`.
    pub(crate) keep_sent: bool,
    pub(crate) reports: Vec<Reported>,
    /// But for [`StreamEvent::RunBegan`].
    pub(crate) events: Vec<(Instant, StreamEvent)>,
    /// Runs that have begun, and when.
    pub(crate) began: Vec<(StreamId, RunSerial, Instant)>,
    /// The serial of the last run of any stream.
    last_run: RunSerial,
    /// Most nanoseconds that any packet left before and after its time.
    pub(crate) early_max_ns: u64,
    pub(crate) late_max_ns: u64,
    pub(crate) datagrams: u64,
    /// Bytes that were taken of streams of bytes, as places in their titles.
    pub(crate) bytes: Vec<(StreamId, Range<u64>)>,
    /// Streams are opened without reports and BYE.
    pub(crate) quiet: bool,
    /// What streams are opened with.
    pub(crate) spare: u8,
    /// Streams are opened for a device that keeps reading the data it has taken until `done` is
    /// called.
    pub(crate) lends: bool,
    /// Packets the device still reads: their stream, how many packets of it are taken up to and
    /// including this one, and their place.
    pub(crate) in_flight: Vec<(StreamId, u64, u32)>,
    /// Packets that it has taken of each stream.
    pub(crate) taken: HashMap<StreamId, u64>,
    /// What runs may send ahead.
    pub(crate) ahead_ms: u16,
}

pub(crate) fn id(index: u32) -> StreamId {
    StreamId { index, generation: 1 }
}

pub(crate) fn udp(index: u32) -> Dest {
    let port = 10_000 + (index % 20_000 * 2) as u16;
    Dest::udp(([10, 0, 0, 1], port).into(), Some(port + 1))
}

pub(crate) fn tcp(conn: u32) -> Dest {
    Dest::Interleaved { conn: ConnId(conn), rtp_channel: 0, rtcp_channel: 1 }
}

impl World {
    pub(crate) fn new(config: EngineConfig, extents: usize) -> Self {
        Self {
            engine: Engine::new(config),
            now: START,
            disk: Disk::new(extents),
            device: Box::new(|_, _| SendOutcome::Sent),
            writable: Box::new(|now, _| Some(now.plus_ns(RETRY_NS))),
            full: BTreeMap::new(),
            viewers: HashMap::new(),
            sent: Vec::new(),
            keep_sent: true,
            reports: Vec::new(),
            events: Vec::new(),
            began: Vec::new(),
            last_run: RunSerial(0),
            early_max_ns: 0,
            late_max_ns: 0,
            datagrams: 0,
            bytes: Vec::new(),
            quiet: false,
            spare: 1,
            lends: false,
            in_flight: Vec::new(),
            taken: HashMap::new(),
            ahead_ms: 0,
        }
    }

    /// A world for a few streams.
    pub(crate) fn small() -> Self {
        Self::new(EngineConfig { streams: 8, ..EngineConfig::default() }, 24)
    }

    pub(crate) fn open(&mut self, film: &Film, index: u32, dest: Dest) -> StreamId {
        let stream = id(index);
        self.try_open(film, stream, dest).unwrap();
        stream
    }

    pub(crate) fn try_open(&mut self, film: &Film, stream: StreamId, dest: Dest) -> Result<(), Refusal> {
        self.disk.films.insert(film.title, film.clone());
        self.engine.open(
            self.now,
            StreamSpec { id: stream, dest, quiet: self.quiet, lends: self.lends, once: false },
        )?;
        let spec = PlaySpec { from: 0, until: 0, at: self.now, sequence: 0, scale_permille: 1000 };
        let film = film.clone();
        let viewer = Viewer {
            ssrc: film.timeline.ssrc,
            film,
            dest,
            run: RunSerial(0),
            packet: 0,
            sequence: 0,
            until: 0,
            spec,
            ahead: 0,
            queued: None,
            is_continued: false,
            began: RunSerial(0),
        };
        self.viewers.insert(stream, viewer);
        Ok(())
    }

    /// Plays the film of the last run, or the one that the stream was opened for.
    pub(crate) fn play(&mut self, stream: StreamId, spec: PlaySpec) -> Result<(), Refusal> {
        let film = self.viewers.get(&stream).ok_or(Refusal::UnknownStream)?.film.clone();
        self.play_film(stream, &film, spec)
    }

    pub(crate) fn play_film(
        &mut self,
        stream: StreamId,
        film: &Film,
        mut spec: PlaySpec,
    ) -> Result<(), Refusal> {
        self.disk.films.insert(film.title, film.clone());
        self.last_run = self.last_run.next();
        let (run, media) = (self.last_run, film.media(self.spare));
        let PlaySpec { from, until, at, sequence, scale_permille } = spec;
        let numbering = Numbering::Sequence(sequence);
        let run_spec = RunSpec { run, media, from, until, numbering, scale_permille, step: None };
        self.engine.play(self.now, stream, Start { at, ahead_ms: self.ahead_ms }, run_spec)?;
        let viewer = self.viewers.get_mut(&stream).unwrap();
        spec.at = if self.quiet { spec.at } else { spec.at.max(self.now) };
        (viewer.run, viewer.film) = (run, film.clone());
        (viewer.ssrc, viewer.ahead) = (viewer.film.timeline.ssrc, 0);
        (viewer.queued, viewer.is_continued) = (None, false);
        (viewer.packet, viewer.sequence, viewer.until, viewer.spec) =
            (spec.from, spec.sequence, spec.until, spec);
        Ok(())
    }

    /// Queues `film` from `from` to `until` behind the run that the stream plays.
    pub(crate) fn queue(
        &mut self,
        stream: StreamId,
        cut: RunCut,
        film: &Film,
        (from, until): (u32, u32),
        numbering: Numbering,
    ) -> Result<RunSerial, Refusal> {
        self.disk.films.insert(film.title, film.clone());
        self.last_run = self.last_run.next();
        let run = self.last_run;
        let media = film.media(self.spare);
        let spec = RunSpec { run, media, from, until, numbering, scale_permille: 1000, step: None };
        self.engine.queue(self.now, stream, cut, spec)?;
        let viewer = self.viewers.get_mut(&stream).unwrap();
        viewer.until = if let RunCut::At(packet) = cut { packet } else { viewer.spec.until };
        viewer.queued = Some(Queued { film: film.clone(), run, from, until, numbering });
        viewer.follow();
        Ok(run)
    }

    /// Plays all from `from` on the shared timeline, 50 ms from now.
    pub(crate) fn play_from(&mut self, stream: StreamId, from: u32) {
        let until = self.viewers[&stream].film.packets;
        let at = self.now.plus_ns(50 * MS);
        self.play(stream, PlaySpec { from, until, at, sequence: sequence_of(from), scale_permille: 1000 })
            .unwrap();
    }

    /// The run that lasts, or the last one.
    pub(crate) fn run_of(&self, stream: StreamId) -> RunSerial {
        self.viewers.get(&stream).map_or(RunSerial(0), |viewer| viewer.run)
    }

    pub(crate) fn departure(&self, stream: StreamId, packet: u32) -> Instant {
        self.viewers[&stream].departure(packet)
    }

    /// Whether the run that lasts has begun, so that there are numbers to go on from.
    pub(crate) fn has_begun(&self, stream: StreamId) -> bool {
        self.viewers
            .get(&stream)
            .is_some_and(|viewer| viewer.began == viewer.run || viewer.packet != viewer.spec.from)
    }

    pub(crate) fn has_viewer(&self, stream: StreamId) -> bool {
        self.viewers.contains_key(&stream)
    }

    /// Next packet that `stream` must be sent.
    pub(crate) fn position(&self, stream: StreamId) -> u32 {
        self.viewers[&stream].packet
    }

    /// The timeline was moved, as it is by a hole that is too long to be made up.
    pub(crate) fn shift(&mut self, stream: StreamId, ns: u64) {
        let at = &mut self.viewers.get_mut(&stream).unwrap().spec.at;
        *at = at.plus_ns(ns);
    }

    /// Everything there is to do now.
    pub(crate) fn turn(&mut self) {
        assert!(self.now.ns_since(START) < MAX_NS, "it never ends: a stream waits for what does not come");
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "there is no end of what is to be done at one moment");
            self.arrivals();
            while let Some(want) = self.engine.poll_want() {
                self.disk.ask(self.now, want);
            }
            let bursts = self.engine.poll_bursts(self.now);
            // Passing over missing packets may leave requests behind.
            while let Some(want) = self.engine.poll_want() {
                self.disk.ask(self.now, want);
            }
            if bursts > 0 {
                self.send();
            } else if self.disk.pending.keys().next().is_none_or(|&(at, _)| at > self.now) {
                break;
            }
        }
        self.hear();
    }

    /// Takes the engine's events.
    pub(crate) fn hear(&mut self) {
        while let Some(event) = self.engine.poll_event() {
            if let StreamEvent::RunEnded { stream, end } = event
                && let Some(viewer) = self.viewers.get_mut(&stream)
                && viewer.queued.as_ref().is_some_and(|queued| queued.run == end.run)
            {
                (viewer.queued, viewer.until) = (None, viewer.spec.until);
            }
            match event {
                StreamEvent::RunBegan { stream, run, at } => {
                    self.viewers.get_mut(&stream).unwrap().began = run;
                    self.began.push((stream, run, at));
                }
                event => self.events.push((self.now, event)),
            }
        }
    }

    fn arrivals(&mut self) {
        while let Some((&conn, _)) = self.full.iter().find(|&(_, &at)| at <= self.now) {
            self.full.remove(&conn);
            self.engine.conn_writable(self.now, ConnId(conn));
        }
        while let Some(entry) = self.disk.pending.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (want, answer) = entry.remove();
            let Want { stream, run, title, extent, .. } = want;
            match answer {
                Ok(()) => {
                    let lease = self.disk.lend(title, extent);
                    self.begin(stream, run, extent);
                    self.engine.handle_lease(self.now, stream, run, extent, lease);
                }
                Err(failure) => self.engine.handle_lease_failed(self.now, stream, run, extent, failure),
            }
            self.hear();
        }
    }

    /// A run begins when its first extent is there, if that comes after its time; FEC does not wait for it.
    fn begin(&mut self, stream: StreamId, run: RunSerial, extent: u32) {
        let Some(viewer) = self.viewers.get_mut(&stream) else { return };
        let first = viewer.spec.from / viewer.film.layout.packets_per_extent();
        if !self.quiet
            && !viewer.is_continued
            && viewer.packet == viewer.spec.from
            && (run, extent) == (viewer.run, first)
        {
            viewer.spec.at = viewer.spec.at.max(self.now);
        }
    }

    /// Sends the batch to the device and reports the outcomes to the engine.
    pub(crate) fn send(&mut self) {
        let mut outcomes = [SendOutcome::Sent; MAX_BATCH_BURSTS];
        let count = self.engine.batch().len();
        assert!(count <= MAX_BATCH_BURSTS);
        let mut seen = Vec::with_capacity(count);
        for (at, outcome) in outcomes[..count].iter_mut().enumerate() {
            let transmit = self.engine.batch().get(at);
            assert!(!seen.contains(&transmit.stream), "twice in a batch: {:?}", transmit.stream);
            seen.push(transmit.stream);
            *outcome = (self.device)(self.now, &transmit);
            if let (SendOutcome::Blocked { .. }, Some(conn)) = (&*outcome, transmit.dest.conn())
                && let Some(at) = (self.writable)(self.now, conn)
            {
                self.full.insert(conn.0, at);
            }
            if let Some(source) = self.engine.batch().source(at).filter(|_| self.lends) {
                let all = transmit.datagrams() as u64;
                let packets = match *outcome {
                    SendOutcome::Sent => all,
                    SendOutcome::Blocked { taken } => u64::from(taken).min(all),
                    SendOutcome::Unreachable { .. } | SendOutcome::Closed { .. } => 0,
                };
                let taken = self.taken.entry(transmit.stream).or_default();
                *taken += packets;
                if packets > 0 {
                    self.in_flight.push((transmit.stream, *taken, source.lease.extent()));
                }
            }
            let viewer = self.viewers.get_mut(&transmit.stream).expect("a stream that is open");
            assert_eq!(transmit.dest, viewer.dest);
            let (bytes, headers, segment) = match transmit.payload {
                Payload::Bytes(range) => {
                    let gone = match *outcome {
                        SendOutcome::Sent => range.count,
                        SendOutcome::Blocked { taken } => u32::from(taken).min(range.count),
                        SendOutcome::Unreachable { .. } | SendOutcome::Closed { .. } => 0,
                    };
                    let content = range.lease.content();
                    let packet = u64::from(content.first_packet + range.place);
                    let first = packet * content.layout.packet_bytes() as u64 + u64::from(range.head);
                    self.bytes.push((transmit.stream, first..first + range.bytes_in(0, gone) as u64));
                    continue;
                }
                Payload::Wire { bytes, segment } => (bytes, None, segment),
                Payload::Patched { bytes, headers, segment } => (bytes, Some(headers), segment),
                Payload::Rtcp(bytes) => {
                    if *outcome == SendOutcome::Sent {
                        let packets = rtcp::parse(bytes).collect();
                        self.reports.push(Reported { at: self.now, stream: transmit.stream, packets });
                    }
                    continue;
                }
            };
            let gone = match *outcome {
                SendOutcome::Sent | SendOutcome::Unreachable { .. } => transmit.datagrams() as u32,
                SendOutcome::Blocked { taken } => u32::from(taken).min(transmit.datagrams() as u32),
                SendOutcome::Closed { .. } => 0,
            };
            assert_eq!(segment, viewer.film.layout.slot_bytes());
            viewer.pass_over_missing();
            let departure = viewer.departure(viewer.packet);
            for (datagram, at) in bytes.chunks(segment).zip(0..gone as usize) {
                let header = headers.map_or(datagram, |h| &h[at * 12..at * 12 + 12]);
                viewer.check(datagram, header, headers.is_some());
                let departure = viewer.departure(viewer.packet);
                self.early_max_ns = self.early_max_ns.max(departure.ns_since(self.now));
                self.late_max_ns = self.late_max_ns.max(self.now.ns_since(departure));
                viewer.packet += 1;
                viewer.sequence = viewer.sequence.wrapping_add(1);
                self.datagrams += 1;
            }
            viewer.follow();
            if self.keep_sent && gone > 0 {
                let patched = headers.is_some();
                let stream = transmit.stream;
                self.sent.push(Sent { at: self.now, stream, count: gone, patched, departure });
            }
        }
        self.engine.handle_sent(self.now, &outcomes[..count]);
    }

    /// Reports that the device is done with `packets` packets of a stream. Packets it still reads
    /// stay leased all the time.
    pub(crate) fn done(&mut self, stream: StreamId, packets: u64) {
        self.in_flight.retain(|&(other, taken, _)| other != stream || taken > packets);
        self.engine.handle_done(self.now, stream, packets);
        self.assert_held();
    }

    pub(crate) fn assert_held(&self) {
        for &(stream, taken, place) in &self.in_flight {
            assert!(self.disk.arena.leases(place) > 0, "{stream:?}: packet {taken} is still being read");
        }
    }

    /// When there is something to do next.
    pub(crate) fn next(&self) -> Option<Instant> {
        let disk = self.disk.pending.keys().next().map(|&(at, _)| at);
        let full = self.full.values().min().copied();
        [disk, full, self.engine.poll_at()].into_iter().flatten().min()
    }

    /// Runs on time up to and including `end`.
    pub(crate) fn run_until(&mut self, end: Instant) {
        loop {
            self.turn();
            let next = self.next().unwrap_or(Instant(u64::MAX));
            assert!(next > self.now, "no progress");
            if next > end {
                break;
            }
            self.now = next;
        }
        self.now = self.now.max(end);
    }

    pub(crate) fn run_for(&mut self, ns: u64) {
        self.run_until(self.now.plus_ns(ns));
    }

    /// The loop stands still.
    pub(crate) fn hole(&mut self, ns: u64) {
        self.now = self.now.plus_ns(ns);
    }

    /// Runs until nothing is left to do.
    pub(crate) fn run_out(&mut self) {
        self.turn();
        while let Some(next) = self.next() {
            self.now = next.max(self.now);
            self.turn();
        }
    }

    pub(crate) fn events_of(&self, stream: StreamId) -> Vec<StreamEvent> {
        self.events.iter().map(|&(_, event)| event).filter(|event| event.stream() == stream).collect()
    }

    /// Returns the ends of the stream's runs in the order in which they were reported.
    pub(crate) fn ends_of(&self, stream: StreamId) -> Vec<RunEnd> {
        let end = |event| if let StreamEvent::RunEnded { end, .. } = event { Some(end) } else { None };
        self.events_of(stream).into_iter().filter_map(end).collect()
    }

    pub(crate) fn sent_of(&self, stream: StreamId) -> Vec<Sent> {
        self.sent.iter().copied().filter(|sent| sent.stream == stream).collect()
    }

    pub(crate) fn bye_of(&self, stream: StreamId) -> Option<Instant> {
        let is_bye = |packet: &RtcpPacket| matches!(packet, RtcpPacket::Bye { .. });
        self.reports.iter().find(|r| r.stream == stream && r.packets.iter().any(is_bye)).map(|r| r.at)
    }
}

impl Viewer {
    /// Skips missing packets and their sequence numbers.
    fn pass_over_missing(&mut self) {
        while self.packet < self.until && (self.film.missing)(self.packet) {
            self.packet += 1;
            self.sequence = self.sequence.wrapping_add(1);
        }
    }

    fn check(&self, datagram: &[u8], header: &[u8], patched: bool) {
        assert!(self.packet < self.until, "packet {} of a run until {}", self.packet, self.until);
        let (header, _) = RtpHeader::parse(header).expect("an RTP header");
        let own = self.film.timeline.header(self.packet, self.film.time(self.packet));
        let timestamp = own.timestamp.wrapping_add(self.ahead);
        let expected = RtpHeader { sequence: self.sequence, ssrc: self.ssrc, timestamp, ..own };
        assert_eq!(header, expected, "packet {}", self.packet);
        let is_last = self.packet + 1 == self.film.packets;
        let payload =
            if is_last { usize::from(self.film.last_bytes) } else { self.film.layout.packet_bytes() };
        assert_eq!(datagram.len(), 12 + payload, "packet {}", self.packet);
        assert_eq!(patched, expected != own, "packet {}", self.packet);
        // The bytes behind the header belong to this packet, as the shared header shows.
        let (shared, _) = RtpHeader::parse(datagram).expect("an RTP header");
        assert_eq!(shared.sequence, sequence_of(self.packet));
    }
}

/// Why a run ended, the packet behind it and its sequence number.
pub(crate) fn stop_of(end: &RunEnd) -> (StopReason, u32, u16) {
    (end.reason, end.next_packet, end.next_sequence)
}

/// Asserts that what leaves at one moment fits a player's buffer, and little more within the next millisecond.
pub(crate) fn assert_bursts_fit_a_buffer(sent: &[Sent]) {
    for (from, first) in sent.iter().enumerate() {
        let mut packets = 0;
        for sent in sent[from..].iter().take_while(|sent| sent.at.ns_since(first.at) < MS) {
            packets += u64::from(sent.count);
            let room = MAX_BURST_PACKETS as u64 + sent.at.ns_since(first.at) / MIN_PACKET_GAP_NS;
            assert!(packets <= room, "{packets} packets from burst {from} on");
        }
    }
}

/// Asserts that, and that from any burst to any later one, three bursts on, no more media leaves than five quarters of the
/// time and of the credit for a late wake-up.
pub(crate) fn assert_rate_bound(sent: &[Sent]) {
    assert_bursts_fit_a_buffer(sent);
    for from in 0..sent.len() {
        for to in (from + 3..sent.len()).take(400) {
            let film = sent[to].departure.0 - sent[from].departure.0;
            let time = sent[to].at.0 - sent[from].at.0;
            assert!(
                film * 4 <= (time + WAKE_CREDIT_NS) * 5,
                "bursts {from}..{to}: {film} ns of film in {time} ns"
            );
        }
    }
}
