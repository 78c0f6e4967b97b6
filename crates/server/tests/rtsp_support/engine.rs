//! An engine without packets.

use std::collections::{HashMap, HashSet, VecDeque};

use millrace_core::ids::StreamId;
use millrace_core::time::Instant;
use millrace_offload::command::{Command, CompactDest, Event, PlaySpec, Refusal, StreamEvent};

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
}

pub struct FakeStream {
    pub packets: u32,
    pub dest: CompactDest,
    pub playing: Option<PlaySpec>,
    pub next: u32,
    pub sequence: u16,
    /// No BYE.
    pub quiet: bool,
    pub played: bool,
    pub ended: bool,
}

impl FakeEngine {
    pub fn new() -> Self {
        Self { max_streams: usize::MAX, ..Self::default() }
    }

    /// Packets that have left by `now`.
    pub fn advance(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (&id, stream) in &mut self.streams {
            let Some(play) = stream.playing else { continue };
            let due = now.ns_since(play.at) * PACKETS_PER_S / SECOND + u64::from(now >= play.at);
            let sent = due.min(u64::from(play.until - play.from)) as u32;
            stream.next = play.from + sent;
            stream.sequence = play.sequence.wrapping_add(sent as u16);
            // BYE 2.5 s behind the last packet.
            let last_ns = u64::from(play.until - play.from - 1) * SECOND / PACKETS_PER_S;
            let bye_ns = if stream.quiet { 0 } else { 5 * SECOND / 2 };
            if stream.next == play.until && now.ns_since(play.at) >= last_ns + bye_ns {
                stream.playing = None;
                stream.ended = true;
                ended.push(id);
            }
        }
        for stream in ended {
            let next_sequence = self.streams[&stream].sequence;
            self.tell(StreamEvent::Drained { stream });
            self.tell(StreamEvent::Ended { stream, next_sequence });
        }
    }

    pub fn tell(&mut self, event: StreamEvent) {
        self.events.push_back(Event::Stream(event));
    }

    fn refuse(&mut self, stream: StreamId, refusal: Refusal) {
        self.events.push_back(Event::Refused { stream, refusal });
    }

    pub fn take(&mut self, now: Instant, command: Command) {
        self.advance(now);
        match command {
            Command::Open { stream, packets, dest, quiet, .. } => {
                if self.streams.len() >= self.max_streams {
                    return self.refuse(stream, Refusal::TableFull);
                }
                let fresh = FakeStream {
                    packets,
                    dest,
                    playing: None,
                    next: 0,
                    sequence: 0,
                    quiet,
                    played: false,
                    ended: false,
                };
                let taken = self.streams.keys().any(|other| other.index == stream.index);
                assert!(!taken, "index {} is in use", stream.index);
                self.streams.insert(stream, fresh);
            }
            Command::Play { stream, play } => {
                assert!(play.from < play.until && play.scale_permille == 1000, "{play:?}");
                match self.streams.get_mut(&stream) {
                    None => self.refuse(stream, Refusal::UnknownStream),
                    Some(state) if state.playing.is_some_and(|play| state.next < play.until) => {
                        self.refuse(stream, Refusal::WrongState);
                    }
                    Some(state) => {
                        assert!(play.until <= state.packets);
                        (state.playing, state.played, state.ended) = (Some(play), true, false);
                        (state.next, state.sequence) = (play.from, play.sequence);
                    }
                }
            }
            Command::Pause { stream } => match self.streams.get_mut(&stream) {
                None => self.refuse(stream, Refusal::UnknownStream),
                Some(state) if !state.played => self.refuse(stream, Refusal::WrongState),
                Some(state) if state.ended => {}
                Some(state) => {
                    state.playing = None;
                    let (next_packet, next_sequence) = (state.next, state.sequence);
                    self.tell(StreamEvent::Paused { stream, next_packet, next_sequence });
                }
            },
            Command::Close { stream } => match self.streams.remove(&stream) {
                None => self.refuse(stream, Refusal::UnknownStream),
                Some(state) => self.tell(StreamEvent::Closed {
                    stream,
                    packets: u64::from(state.next),
                    bytes: u64::from(state.next) * 1328,
                    unreachable: 0,
                    late: 0,
                }),
            },
            Command::ConnAdd { conn, .. } => assert!(self.conns.insert(conn.0), "{conn:?} added twice"),
            Command::ConnWrite { bytes, .. } => self.events.push_back(Event::Recycle { bytes }),
            Command::ConnRemove { conn } => {
                self.conns.remove(&conn.0);
                self.events.push_back(Event::ConnRemoved { conn, fd: None });
            }
            Command::Stop => {}
        }
    }
}
