//! An engine without packets.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;

use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{
    Command, ConnSocket, Dest, Event, Numbering, Refusal, RunCut, RunEnd, RunSpec, StopReason, StreamEvent,
};

use super::{SECOND, packets_per_s};

/// Answers as the real engine does, without its packets; `rtsp_fake_engine.rs` compares the two.
#[derive(Default)]
pub struct FakeEngine {
    pub streams: HashMap<StreamId, FakeStream>,
    pub conns: HashSet<u32>,
    /// Answers are held back.
    pub silent: bool,
    /// Connections are not given back: their viewers read nothing.
    pub keeps_conns: bool,
    /// Nothing of a stream that has one run is taken by its viewer.
    pub reads_nothing: bool,
    /// Those that should have been.
    pub kept: Vec<ConnId>,
    pub events: VecDeque<Event>,
    /// What `Closed` will claim.
    pub max_streams: usize,
    /// The sent part of each stream, run by run, with the packet before which it ended.
    pub sent: Vec<(StreamId, RunSpec, u32)>,
    runs: HashMap<(StreamId, RunSerial), RunSpec>,
    /// Its answer to the question how far a viewer is behind.
    pub backlog_bytes: u64,
    pub behind_ns: u64,
    /// Why datagrams to groups do not leave; 0: they do.
    pub group_errno: i32,
    /// How long the first extent of a run takes to be read.
    pub read_ns: u64,
}

pub struct FakeStream {
    pub dest: Dest,
    /// No BYE.
    pub quiet: bool,
    /// Its first run is its only one.
    pub once: bool,
    /// The run that lasts.
    pub playing: Option<FakeRun>,
    /// What follows before this packet.
    pub queued: Option<(u32, RunSpec)>,
    pub next: u32,
    pub played: bool,
}

#[derive(Clone, Copy)]
pub struct FakeRun {
    pub at: Instant,
    pub spec: RunSpec,
    /// When its first extent has been read.
    read_at: Instant,
    began: bool,
    drained: bool,
}

fn first_sequence(spec: &RunSpec) -> u16 {
    match spec.numbering {
        Numbering::Sequence(sequence) | Numbering::Own(sequence) => sequence,
        Numbering::Title | Numbering::Bytes { .. } => sequence_of(spec.from),
        Numbering::Viewer => unreachable!("the session layer names the numbers"),
    }
}

impl FakeRun {
    pub fn sequence(&self, packet: u32) -> u16 {
        first_sequence(&self.spec).wrapping_add((packet - self.spec.from) as u16)
    }

    /// When a packet leaves.
    fn due(&self, packet: u32) -> Instant {
        let per_s = packets_per_s(self.spec.media.packets) * u64::from(self.spec.scale_permille);
        self.at.plus_ns(u64::from(packet - self.spec.from) * SECOND * 1000 / per_s)
    }
}

/// The end of a run that has come to packet `next`.
fn end_of(run: &FakeRun, next: u32, reason: StopReason) -> RunEnd {
    let packets = next - run.spec.from;
    RunEnd {
        run: run.spec.run,
        reason,
        next_packet: next,
        next_sequence: run.sequence(next),
        bursts: packets,
        packets,
        bytes: u64::from(packets) * 1328,
        missing: 0,
        next_due: run.due(next),
    }
}

/// The end of a run that was queued and never began.
fn end_of_queued(spec: &RunSpec, reason: StopReason) -> RunEnd {
    let at = Instant(u64::MAX);
    let run = FakeRun { at, spec: *spec, read_at: at, began: false, drained: false };
    end_of(&run, spec.from, reason)
}

impl FakeStream {
    /// Advances to the packets that have left by `now`, and reports them.
    fn advance(&mut self, id: StreamId, now: Instant, news: &mut Vec<StreamEvent>) {
        while let Some(run) = &mut self.playing
            && now >= run.read_at
        {
            // A run without packets has nothing to begin with.
            if !std::mem::replace(&mut run.began, true) && run.spec.from < run.spec.until {
                news.push(StreamEvent::RunBegan { stream: id, run: run.spec.run, at: run.at });
            }
            let RunSpec { from, until, .. } = run.spec;
            let until = self.queued.map_or(until, |(cut, _)| cut);
            let per_s = packets_per_s(run.spec.media.packets) * u64::from(run.spec.scale_permille);
            let due = now.ns_since(run.at) * per_s / SECOND / 1000 + u64::from(now >= run.at);
            self.next = from + due.min(u64::from(until - from)) as u32;
            if self.next < until {
                return;
            }
            if self.queued.is_none() && !std::mem::replace(&mut run.drained, true) {
                news.push(StreamEvent::Drained { stream: id, run: run.spec.run });
            }
            // BYE 2.5 s behind the last packet.
            let has_bye = !self.quiet && self.dest.has_rtcp();
            let bye_ns = if has_bye { 5 * SECOND / 2 } else { 0 };
            let run = *run;
            if let Some((_, spec)) = self.queued.take() {
                let at = run.due(until);
                self.playing = Some(FakeRun { at, spec, read_at: now, began: false, drained: false });
                self.next = spec.from;
            } else if now >= run.due(until.max(from + 1) - 1).plus_ns(bye_ns) {
                self.playing = None;
            } else {
                return;
            }
            news.push(StreamEvent::RunEnded { stream: id, end: end_of(&run, until, StopReason::Finished) });
        }
    }
}

impl FakeEngine {
    pub fn new() -> Self {
        Self { max_streams: usize::MAX, backlog_bytes: 4_096, ..Self::default() }
    }

    /// Packets that have left by `now`.
    pub fn advance(&mut self, now: Instant) {
        let mut news = Vec::new();
        let reads_nothing = self.reads_nothing;
        for (&id, stream) in self.streams.iter_mut().filter(|(_, stream)| !(reads_nothing && stream.once)) {
            stream.advance(id, now, &mut news);
        }
        news.into_iter().for_each(|event| self.tell(event));
    }

    pub fn tell(&mut self, event: StreamEvent) {
        if let StreamEvent::RunEnded { stream, end } = event
            && let Some(spec) = self.runs.remove(&(stream, end.run)).filter(|_| end.packets > 0)
        {
            self.sent.push((stream, spec, end.next_packet));
        }
        self.events.push_back(Event::Stream(event));
        if let StreamEvent::RunEnded { stream, end } = event
            && end.reason == StopReason::Finished
            && self.streams.get(&stream).is_some_and(|state| state.once)
        {
            self.retire(stream);
        }
    }

    /// Behind the only run of a stream the engine lets go of it, and of its connection.
    fn retire(&mut self, stream: StreamId) {
        let Some(conn) = self.streams.get(&stream).and_then(|state| state.dest.conn()) else { return };
        self.close(stream);
        self.return_conn(conn);
    }

    /// Ends the current run, if there is one, and the run queued behind it.
    pub fn end_run(&mut self, stream: StreamId, reason: StopReason) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let (Some(run), queued) = (state.playing.take(), state.queued.take()) else { return };
        let end = end_of(&run, state.next, reason);
        self.tell(StreamEvent::RunEnded { stream, end });
        if let Some((_, spec)) = queued {
            self.tell(StreamEvent::RunEnded { stream, end: end_of_queued(&spec, reason) });
        }
    }

    fn refuse(&mut self, stream: StreamId, run: Option<RunSerial>, refusal: Refusal) {
        self.events.push_back(Event::Refused { stream, run, refusal });
    }

    pub fn take(&mut self, now: Instant, command: Command) {
        self.advance(now);
        match command {
            Command::Open { stream, dest, quiet, once } => {
                if self.streams.len() >= self.max_streams {
                    return self.refuse(stream, None, Refusal::TableFull);
                }
                let taken = self.streams.keys().any(|other| other.index == stream.index);
                assert!(!taken, "index {} is in use", stream.index);
                let fresh =
                    FakeStream { dest, quiet, once, playing: None, queued: None, next: 0, played: false };
                self.streams.insert(stream, fresh);
            }
            Command::Play { stream, at, run, .. } => self.play(now, stream, at, run),
            Command::Queue { stream, cut, run } => self.queue(now, stream, cut, run),
            Command::Pause { stream } => match self.streams.get(&stream) {
                None => self.refuse(stream, None, Refusal::UnknownStream),
                Some(state) if !state.played => self.refuse(stream, None, Refusal::WrongState),
                Some(_) => self.end_run(stream, StopReason::Paused),
            },
            Command::Measure { stream } => {
                if self.streams.get(&stream).is_some_and(|state| matches!(state.dest, Dest::Multicast { .. }))
                {
                    self.events.push_back(Event::GroupState { stream, errno: self.group_errno });
                }
                if self.streams.get(&stream).is_some_and(|state| state.dest.conn().is_some()) {
                    let (backlog_bytes, behind_ns) = (self.backlog_bytes, self.behind_ns);
                    self.events.push_back(Event::Backlog { stream, backlog_bytes, behind_ns });
                }
            }
            Command::Close { stream } => {
                self.end_run(stream, StopReason::Closed);
                self.close(stream);
            }
            Command::ConnAdd { conn, .. } => assert!(self.conns.insert(conn.0), "{conn:?} added twice"),
            Command::ConnWrite { bytes, .. } => self.events.push_back(Event::Recycle { bytes }),
            Command::ConnRemove { conn } => {
                self.kept.retain(|kept| *kept != conn);
                self.conns.remove(&conn.0);
                self.events.push_back(Event::ConnRemoved { conn, socket: None });
            }
            Command::ConnReturn { conn } => {
                let uses_it = |stream: &FakeStream| stream.dest.conn() == Some(conn);
                assert!(!self.streams.values().any(uses_it), "{conn:?} is in use");
                self.return_conn(conn);
            }
            Command::Unreachable { .. } | Command::Stop => {}
        }
    }

    fn close(&mut self, stream: StreamId) {
        match self.streams.remove(&stream) {
            None => self.refuse(stream, None, Refusal::UnknownStream),
            Some(state) => self.tell(StreamEvent::Closed {
                stream,
                packets: u64::from(state.next),
                bytes: u64::from(state.next) * 1328,
                unreachable: 0,
                late: 0,
            }),
        }
    }

    fn return_conn(&mut self, conn: ConnId) {
        if self.keeps_conns { self.kept.push(conn) } else { self.give_back(conn) }
    }

    /// The viewers read again.
    pub fn give_all_back(&mut self) {
        self.keeps_conns = false;
        std::mem::take(&mut self.kept).into_iter().for_each(|conn| self.give_back(conn));
    }

    fn give_back(&mut self, conn: ConnId) {
        let was_there = self.conns.remove(&conn.0);
        let socket =
            was_there.then(|| ConnSocket::Kernel(File::open("/dev/null").expect("there always").into()));
        self.events.push_back(Event::ConnReturned { conn, socket });
    }

    fn play(&mut self, now: Instant, stream: StreamId, at: Instant, spec: RunSpec) {
        assert!(spec.from <= spec.until && spec.until <= spec.media.packets, "{spec:?}");
        assert!((250..=4_000).contains(&spec.scale_permille), "{spec:?}");
        let Some(state) = self.streams.get(&stream) else {
            return self.refuse(stream, Some(spec.run), Refusal::UnknownStream);
        };
        let conn = state.dest.conn();
        assert!(conn.is_none_or(|conn| self.conns.contains(&conn.0)), "{conn:?} is not here");
        self.end_run(stream, StopReason::Replaced);
        self.runs.insert((stream, spec.run), spec);
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let read_at = now.plus_ns(self.read_ns);
        let at = if state.quiet { at } else { at.max(read_at) };
        let run = FakeRun { at, spec, read_at, began: false, drained: false };
        (state.playing, state.next, state.played) = (Some(run), spec.from, true);
        self.advance(now); // what takes no time to be read begins at once
    }
    fn queue(&mut self, now: Instant, stream: StreamId, cut: RunCut, spec: RunSpec) {
        assert!(spec.from < spec.until && spec.until <= spec.media.packets, "{spec:?}");
        let Some(state) = self.streams.get_mut(&stream) else {
            return self.refuse(stream, Some(spec.run), Refusal::UnknownStream);
        };
        let is_sent = |run: &FakeRun| state.queued.is_none() && state.next == run.spec.until;
        let Some(run) = state.playing.filter(|run| !is_sent(run)) else {
            return self.refuse(stream, Some(spec.run), Refusal::WrongState);
        };
        let cut = if let RunCut::At(packet) = cut { packet } else { run.spec.until };
        assert!(cut <= run.spec.until);
        if cut < state.next {
            return self.refuse(stream, Some(spec.run), Refusal::CutPassed);
        }
        self.runs.insert((stream, spec.run), spec);
        if let Some((_, old)) = state.queued.replace((cut, spec)) {
            self.tell(StreamEvent::RunEnded { stream, end: end_of_queued(&old, StopReason::Replaced) });
        }
        self.advance(now);
    }
}
