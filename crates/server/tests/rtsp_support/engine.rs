//! An engine without packets.

use std::collections::{HashMap, HashSet, VecDeque};

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::time::Instant;
use millrace_core::wire::rtp::sequence_of;
use millrace_offload::command::{
    Command, CompactDest, Event, Numbering, Refusal, RunEnd, RunSpec, StopReason, StreamEvent,
};

use super::{PACKETS_PER_S, SECOND};

/// What the real engine answers, without its packets; `rtsp_fake_engine.rs` compares the two.
#[derive(Default)]
pub struct FakeEngine {
    pub streams: HashMap<StreamId, FakeStream>,
    pub conns: HashSet<u32>,
    /// Answers are held back.
    pub silent: bool,
    pub events: VecDeque<Event>,
    /// What `Closed` will claim.
    pub max_streams: usize,
    /// How long the first extent of a run takes to be read.
    pub read_ns: u64,
}

pub struct FakeStream {
    pub dest: CompactDest,
    /// No BYE.
    pub quiet: bool,
    /// The run that lasts.
    pub playing: Option<FakeRun>,
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
}

impl FakeRun {
    pub fn sequence(&self, packet: u32) -> u16 {
        let first = match self.spec.numbering {
            Numbering::Sequence(sequence) => sequence,
            Numbering::Title => sequence_of(self.spec.from),
            Numbering::Viewer => unreachable!("the session layer names the numbers"),
        };
        first.wrapping_add((packet - self.spec.from) as u16)
    }

    /// When a packet leaves.
    fn due(&self, packet: u32) -> Instant {
        self.at.plus_ns(u64::from(packet - self.spec.from) * SECOND / PACKETS_PER_S)
    }
}

impl FakeEngine {
    pub fn new() -> Self {
        Self { max_streams: usize::MAX, ..Self::default() }
    }

    /// Packets that have left by `now`.
    pub fn advance(&mut self, now: Instant) {
        let (mut began, mut ended) = (Vec::new(), Vec::new());
        for (&id, stream) in &mut self.streams {
            let Some(run) = &mut stream.playing else { continue };
            if now < run.read_at {
                continue;
            }
            if !std::mem::replace(&mut run.began, true) {
                run.at = if stream.quiet { run.at } else { run.at.max(run.read_at) };
                began.push(StreamEvent::RunBegan { stream: id, run: run.spec.run, at: run.at });
            }
            let RunSpec { from, until, .. } = run.spec;
            let due = now.ns_since(run.at) * PACKETS_PER_S / SECOND + u64::from(now >= run.at);
            stream.next = from + due.min(u64::from(until - from)) as u32;
            // BYE 2.5 s behind the last packet.
            let bye_ns = if stream.quiet { 0 } else { 5 * SECOND / 2 };
            if stream.next == until && now >= run.due(until - 1).plus_ns(bye_ns) {
                ended.push(id);
            }
        }
        began.into_iter().for_each(|event| self.tell(event));
        for stream in ended {
            self.end_run(stream, StopReason::Finished);
        }
    }

    pub fn tell(&mut self, event: StreamEvent) {
        self.events.push_back(Event::Stream(event));
    }

    /// Ends the run that lasts, if one does.
    pub fn end_run(&mut self, stream: StreamId, reason: StopReason) {
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let (Some(run), next) = (state.playing.take(), state.next) else { return };
        let packets = next - run.spec.from;
        let end = RunEnd {
            run: run.spec.run,
            reason,
            next_packet: next,
            next_sequence: run.sequence(next),
            bursts: packets,
            packets,
            bytes: u64::from(packets) * 1328,
            next_due: run.due(next),
        };
        self.tell(StreamEvent::RunEnded { stream, end });
    }

    fn refuse(&mut self, stream: StreamId, run: Option<RunSerial>, refusal: Refusal) {
        self.events.push_back(Event::Refused { stream, run, refusal });
    }

    pub fn take(&mut self, now: Instant, command: Command) {
        self.advance(now);
        match command {
            Command::Open { stream, dest, quiet } => {
                if self.streams.len() >= self.max_streams {
                    return self.refuse(stream, None, Refusal::TableFull);
                }
                let taken = self.streams.keys().any(|other| other.index == stream.index);
                assert!(!taken, "index {} is in use", stream.index);
                let fresh = FakeStream { dest, quiet, playing: None, next: 0, played: false };
                self.streams.insert(stream, fresh);
            }
            Command::Play { stream, at, run } => self.play(now, stream, at, run),
            Command::Pause { stream } => match self.streams.get(&stream) {
                None => self.refuse(stream, None, Refusal::UnknownStream),
                Some(state) if !state.played => self.refuse(stream, None, Refusal::WrongState),
                Some(_) => self.end_run(stream, StopReason::Paused),
            },
            Command::Close { stream } => {
                self.end_run(stream, StopReason::Closed);
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
            Command::ConnAdd { conn, .. } => assert!(self.conns.insert(conn.0), "{conn:?} added twice"),
            Command::ConnWrite { bytes, .. } => self.events.push_back(Event::Recycle { bytes }),
            Command::ConnRemove { conn } => {
                self.conns.remove(&conn.0);
                self.events.push_back(Event::ConnRemoved { conn, fd: None });
            }
            Command::Stop => {}
        }
    }

    fn play(&mut self, now: Instant, stream: StreamId, at: Instant, spec: RunSpec) {
        assert!(spec.from < spec.until && spec.until <= spec.media.packets, "{spec:?}");
        assert_eq!(spec.scale_permille, 1000);
        if !self.streams.contains_key(&stream) {
            return self.refuse(stream, Some(spec.run), Refusal::UnknownStream);
        }
        self.end_run(stream, StopReason::Replaced);
        let Some(state) = self.streams.get_mut(&stream) else { return };
        let at = if state.quiet { at } else { at.max(now) };
        let run = FakeRun { at, spec, read_at: now.plus_ns(self.read_ns), began: false };
        (state.playing, state.next, state.played) = (Some(run), spec.from, true);
        self.advance(now); // what takes no time to be read begins at once
    }
}
