//! Ranges of a title's bytes through a real connection, from disk to the reader: each behind a head of its own, byte for byte, and the
//! connection lives on.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, StepClock, film_bytes};
use millrace_core::ids::{ConnId, RunSerial, StreamId};
use millrace_core::limits::DEFAULT_PACKET_BYTES as SIZE;
use millrace_core::seam::Clock;
use millrace_core::time::MediaTicks;
use millrace_engine::{Numbering, RunEnd, RunMedia, RunSpec, StopReason, StreamEvent};
use millrace_offload::bell::EventBell;
use millrace_offload::command::{Command, ConnSocket, Dest, Event};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// More than three extents.
const PACKETS: usize = 700;
const MS: u64 = 1_000_000;
const CONN: ConnId = ConnId(0);
const STREAM: StreamId = StreamId { index: 0, generation: 0 };

/// A loop with one connection, and the far end of the connection.
struct Scene {
    stage: Stage<KernelTx, StepClock>,
    clock: StepClock,
    reader: TcpStream,
    got: Vec<u8>,
    began: u32,
    ends: Vec<RunEnd>,
    returned: Option<Option<OwnedFd>>,
    runs: u32,
    gives_up: StdInstant,
}

impl Scene {
    /// Whose stream has many runs.
    fn new() -> Self {
        Self::with(false)
    }

    fn with(once: bool) -> Self {
        let clock = StepClock::start();
        let config = KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 1 };
        let tx = KernelTx::new(config).unwrap();
        let mut stage = Stage::with_clock(PACKETS, MediaTicks(90_000), tx, clock.clone());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        reader.set_nonblocking(true).unwrap();
        let writer = listener.accept().unwrap().0;
        writer.set_nonblocking(true).unwrap();
        let fd = writer.into();
        for command in [
            Command::ConnAdd { conn: CONN, socket: ConnSocket::Kernel(fd) },
            Command::Open { stream: STREAM, dest: Dest::Bytes { conn: CONN }, quiet: false, once },
        ] {
            stage.commands.push(command).unwrap();
        }
        let gives_up = StdInstant::now() + Duration::from_secs(60);
        let (got, ends, returned) = (Vec::new(), Vec::new(), None);
        Self { stage, clock, reader, got, ends, returned, began: 0, runs: 0, gives_up }
    }

    /// Asks for these bytes behind a head.
    fn ask(&mut self, head: &str, from: usize, to: usize) {
        self.runs += 1;
        let Stage { title, packets, timeline, layout, .. } = self.stage;
        let run = RunSpec {
            run: RunSerial(self.runs),
            media: RunMedia { title, packets, timeline, layout, spare: u8::MAX },
            from: (from / SIZE) as u32,
            until: to.div_ceil(SIZE) as u32,
            numbering: Numbering::Bytes { head: (from % SIZE) as u16, last: (to % SIZE) as u16 },
            scale_permille: 16_000,
            step: None,
        };
        let at = self.clock.now();
        for command in [
            Command::ConnWrite { conn: CONN, bytes: head.into() },
            Command::Play { stream: STREAM, at, ahead_ms: 0, run },
        ] {
            self.stage.commands.push(command).unwrap();
        }
    }

    fn turn(&mut self) {
        self.stage.core.turn();
        while let Ok(event) = self.stage.events.pop() {
            match event {
                Event::Stream(StreamEvent::RunBegan { .. }) => self.began += 1,
                Event::Stream(StreamEvent::RunEnded { end, .. }) => self.ends.push(end),
                Event::Stream(StreamEvent::Failed { reason, .. }) => panic!("{reason}"),
                Event::ConnReturned { socket, .. } => {
                    self.returned = Some(socket.and_then(ConnSocket::into_fd))
                }
                Event::ConnGone { .. } | Event::Refused { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
        let mut chunk = [0; 20_000];
        if let Ok(count @ 1..) = self.reader.read(&mut chunk) {
            self.got.extend_from_slice(&chunk[..count]);
        }
        let counters = self.stage.core.engine.counters();
        if counters.leases == counters.wants {
            self.clock.advance(MS);
        }
        assert!(StdInstant::now() < self.gives_up, "{} bytes, ends: {:?}", self.got.len(), self.ends);
    }

    /// Continues until the run has ended and `bytes` bytes in total have arrived.
    fn run(&mut self, bytes: usize) -> RunEnd {
        while self.ends.len() < self.runs as usize || self.got.len() < bytes {
            self.turn();
        }
        self.ends[self.runs as usize - 1]
    }
}

/// Whole, from border to border, within a packet, across extents, to the end.
fn ranges(end: usize) -> [(usize, usize); 9] {
    let extent = 196 * SIZE;
    [
        (0, end),
        (0, 1),
        (5, 9),
        (SIZE, 3 * SIZE),
        (SIZE - 1, SIZE + 1),
        (extent - 1, extent + 1),
        (extent + 700, 3 * extent - 700),
        (end - 1, end),
        (1, end - 1),
    ]
}

#[test]
fn responses_on_one_connection_and_then_it_is_its_owners_again() {
    for is_raw in [false, true] {
        let mut scene = Scene::new();
        if is_raw {
            scene.stage.go_raw();
        }
        let film = film_bytes(PACKETS);
        let mut wanted = Vec::new();
        for (from, to) in ranges(film.len()) {
            let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\n\r\n", to - from);
            scene.ask(&head, from, to);
            wanted.extend_from_slice(head.as_bytes());
            wanted.extend_from_slice(&film[from..to]);
            let end = scene.run(wanted.len());
            assert_eq!((end.reason, end.bytes), (StopReason::Finished, (to - from) as u64));
            assert!(scene.got == wanted, "raw: {is_raw}, {from}..{to}");
        }
        for command in [Command::Close { stream: STREAM }, Command::ConnReturn { conn: CONN }] {
            scene.stage.commands.push(command).unwrap();
        }
        while scene.returned.is_none() {
            scene.turn();
        }
        let fd = scene.returned.take().flatten().expect("alive");
        TcpStream::from(fd).write_all(b"the owner's own words").unwrap();
        wanted.extend_from_slice(b"the owner's own words");
        while scene.got.len() < wanted.len() {
            scene.turn();
        }
        assert!(scene.got == wanted);
        assert_eq!(scene.stage.leases(), 0);
    }
}

#[test]
fn damaged_packets_become_null_packets_of_the_same_length() {
    let mut scene = Scene::new();
    let mut film = film_bytes(PACKETS);
    // PID 0x1FFF, nothing else.
    let null = [[0x47, 0x1f, 0xff, 0x10].as_slice(), &[0xff; 184]].concat().repeat(SIZE / 188);
    for packet in [3, 195, 196, 699] {
        scene.stage.damage(packet * SIZE + 77);
        film[packet * SIZE..][..SIZE].copy_from_slice(&null);
    }
    let mut wanted = Vec::new();
    for (from, to) in [(3 * SIZE + 2, film.len() - 2), (195 * SIZE + 9, 196 * SIZE + 9)] {
        scene.ask("head", from, to);
        wanted.extend_from_slice(b"head");
        wanted.extend_from_slice(&film[from..to]);
        scene.run(wanted.len());
        assert!(scene.got == wanted, "{from}..{to}");
    }
}

#[test]
fn conn_return_of_unknown_conn_is_answered_and_of_busy_fails_streams() {
    let mut scene = Scene::new();
    scene.stage.commands.push(Command::ConnReturn { conn: ConnId(7) }).unwrap();
    while scene.returned.is_none() {
        scene.turn();
    }
    assert!(scene.returned.take().flatten().is_none());
    let film = film_bytes(PACKETS);
    scene.ask("head", 0, film.len());
    while scene.got.len() < 4 + SIZE {
        scene.turn();
    }
    // A stream that does not play hears of it too.
    let (stream, dest) = (StreamId { index: 1, generation: 0 }, Dest::Bytes { conn: CONN });
    for command in
        [Command::Open { stream, dest, quiet: false, once: false }, Command::ConnReturn { conn: CONN }]
    {
        scene.stage.commands.push(command).unwrap();
    }
    let (mut fd, mut failed) = (None, 0);
    while fd.is_none() || failed < 2 {
        scene.stage.core.turn();
        while let Ok(event) = scene.stage.events.pop() {
            match event {
                Event::Stream(StreamEvent::Failed { .. }) => failed += 1,
                Event::ConnReturned { socket: Some(back), .. } => fd = back.into_fd(),
                _ => {}
            }
        }
        let mut chunk = [0; 20_000];
        if let Ok(count) = scene.reader.read(&mut chunk) {
            scene.got.extend_from_slice(&chunk[..count]);
        }
        assert!(StdInstant::now() < scene.gives_up);
    }
    drop(fd);
    scene.reader.set_nonblocking(false).unwrap();
    scene.reader.read_to_end(&mut scene.got).unwrap();
    // Whole packets; the last one may have waited.
    assert_eq!((scene.got.len() - 4) % SIZE, 0);
    assert!(scene.got[4..] == film[..scene.got.len() - 4]);
}

fn is_rung(bell: &EventBell) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// The control side only waits for the end of bytes.
#[test]
fn beginning_of_bytes_wakes_no_thread_and_their_end_does() {
    let mut scene = Scene::new();
    let bell = Arc::clone(&scene.stage.core.control_bell);
    bell.announce_sleep();
    scene.ask("", 0, PACKETS * SIZE);
    while scene.ends.is_empty() {
        assert!(!is_rung(&bell), "runs that have begun: {}", scene.began);
        scene.turn();
    }
    assert_eq!(scene.began, 1);
    assert!(is_rung(&bell));
}

/// The loop needs no further command, and reports all steps in one turn.
#[test]
fn stream_with_one_run_is_closed_and_its_connection_returned_behind_it() {
    let film = film_bytes(PACKETS);
    let mut scene = Scene::with(true);
    scene.ask("head", 0, film.len());
    let mut last = Vec::new();
    while last.is_empty() {
        scene.stage.core.turn();
        last.extend(std::iter::from_fn(|| scene.stage.events.pop().ok()).filter(|event| {
            use StreamEvent::{Drained, RunBegan};
            !matches!(event, Event::Recycle { .. } | Event::Stream(RunBegan { .. } | Drained { .. }))
        }));
        scene.clock.advance(MS);
        let mut chunk = [0; 20_000];
        if let Ok(count) = scene.reader.read(&mut chunk) {
            scene.got.extend_from_slice(&chunk[..count]);
        }
        assert!(StdInstant::now() < scene.gives_up, "{} bytes", scene.got.len());
    }
    let [
        Event::Stream(StreamEvent::RunEnded { end, .. }),
        Event::ConnReturned { conn: CONN, socket: Some(_) },
        Event::Stream(StreamEvent::Closed { stream: STREAM, bytes, .. }),
    ] = last[..]
    else {
        panic!("{last:?}")
    };
    assert_eq!((end.reason, end.bytes, bytes), (StopReason::Finished, film.len() as u64, film.len() as u64));
    assert_eq!(scene.stage.core.engine.counters().open, 0);
    assert_eq!(scene.stage.leases(), 0);
}
