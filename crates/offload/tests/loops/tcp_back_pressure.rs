//! A viewer that stops reading its connection, through real sockets, with a real cache: it holds no
//! memory, no other viewer is disturbed, and when it reads again, every byte is right. The loop's
//! clock advances only as fast as the machine keeps up.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, StepClock, film_bytes};
use millrace_core::ids::{ConnId, StreamId};
use millrace_core::seam::Clock;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;
use millrace_offload::command::{Command, ConnSocket, Dest, Event};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};

const PACKETS: usize = 4_000;
const SECONDS: u64 = 5;
const MS: u64 = 1_000_000;
/// How far behind the reading viewer may be before the clock waits for it.
const SLACK_MS: u64 = 200;

/// A viewer's end of its connection, and the data it has read.
struct Viewer {
    socket: TcpStream,
    got: Vec<u8>,
}

impl Viewer {
    fn read(&mut self) {
        let mut chunk = [0; 1 << 16];
        while let Ok(count @ 1..) = self.socket.read(&mut chunk) {
            self.got.extend_from_slice(&chunk[..count]);
        }
    }

    /// The media in its frames, whose sequence numbers must go on; a frame may be half there at the end.
    fn media(&self) -> Vec<u8> {
        let (mut rest, mut media, mut sequence) = (&self.got[..], Vec::new(), 1u16);
        while let [b'$', channel, high, low, ..] = *rest {
            let length = usize::from(u16::from_be_bytes([high, low]));
            let Some(packet) = rest[4..].get(..length) else { break };
            if channel == 0 {
                let (header, payload) = RtpHeader::parse(packet).expect("an RTP packet");
                assert_eq!(header.sequence, sequence);
                sequence = sequence.wrapping_add(1);
                media.extend_from_slice(payload);
            }
            rest = &rest[4 + length..];
        }
        assert!(matches!(rest, [] | [b'$', ..]), "no frame begins here");
        media
    }
}

struct Scene {
    stage: Stage<KernelTx, StepClock>,
    clock: StepClock,
    began: u64,
    ends: StdInstant,
    /// The reported backlogs.
    backlogs: Vec<(u64, u64)>,
}

impl Scene {
    fn new() -> Self {
        let clock = StepClock::start();
        let config = KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 2 };
        let tx = KernelTx::new(config).unwrap();
        let stage = Stage::with_clock(PACKETS, MediaTicks(SECONDS * 90_000), tx, clock.clone());
        let began = clock.now().0;
        Self { stage, clock, began, ends: StdInstant::now() + Duration::from_secs(60), backlogs: Vec::new() }
    }

    /// A viewer who plays the whole title; its connection holds little.
    fn viewer(&mut self, index: u32) -> Viewer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
                .unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 64 * 1024).unwrap();
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let (conn, stream) = (ConnId(index), StreamId { index, generation: 0 });
        let dest = Dest::Interleaved { conn, rtp_channel: 0, rtcp_channel: 1 };
        let play = self.stage.play(index, 0, 1, 1000);
        let writer = ConnSocket::Kernel(listener.accept().unwrap().0.into());
        for command in [
            Command::ConnAdd { conn, socket: writer },
            Command::Open { stream, dest, quiet: false, once: false },
            play,
        ] {
            self.stage.commands.push(command).unwrap();
        }
        let socket = TcpStream::from(socket);
        socket.set_nonblocking(true).unwrap();
        Viewer { socket, got: Vec::new() }
    }

    fn turn(&mut self) {
        self.stage.core.turn();
        while let Ok(event) = self.stage.events.pop() {
            if let Event::Backlog { backlog_bytes, behind_ns, .. } = event {
                self.backlogs.push((backlog_bytes, behind_ns / MS));
            }
        }
        assert!(StdInstant::now() < self.ends, "not there after a minute");
    }

    /// Runs a turn, then advances the time unless `reader` has not yet received the data due by
    /// now.
    fn turn_with(&mut self, reader: &mut Viewer) {
        self.turn();
        reader.read();
        let passed_ms = (self.clock.now().0 - self.began) / MS;
        let due = PACKETS as u64 * 1332 * passed_ms.saturating_sub(SLACK_MS) / (SECONDS * 1000);
        if reader.got.len() as u64 >= due.min(PACKETS as u64 * 1332) {
            self.clock.advance(MS);
        } else {
            std::thread::yield_now();
        }
    }
}

#[test]
fn parked_viewer_holds_no_lease_and_resumes_at_same_byte() {
    let mut scene = Scene::new();
    let (mut stopped, mut reader) = (scene.viewer(0), scene.viewer(1));
    while scene.stage.core.engine.counters().parked == 0 {
        scene.turn_with(&mut reader);
    }
    let at = reader.got.len();
    while reader.got.len() < PACKETS * 1332 {
        scene.turn_with(&mut reader);
    }
    assert!(at < PACKETS * 1332 / 2, "it was parked while the other one played: {at} bytes");
    // The reader has everything: a remaining lease would belong to the other viewer.
    while scene.stage.leases() > 0 {
        scene.turn();
    }
    let before = *scene.stage.core.engine.counters();
    for _ in 0..500 {
        scene.turn();
        scene.clock.advance(MS);
    }
    let counters = *scene.stage.core.engine.counters();
    assert_eq!(
        (counters.parked, counters.wants, counters.blocked),
        (1, before.wants, before.blocked),
        "nothing is tried"
    );
    assert!(scene.stage.core.tx.counters().split_frames > 0, "a frame is half written");
    while stopped.got.len() < PACKETS * 1332 {
        scene.turn();
        stopped.read();
        let now = scene.stage.core.engine.counters();
        if now.leases - before.leases == now.wants - before.wants {
            scene.clock.advance(MS);
        }
    }
    let film = film_bytes(PACKETS);
    assert!(reader.media() == film && stopped.media() == film);
    assert_eq!(scene.stage.core.engine.counters().failed, 0);
}

#[test]
fn backlog_is_reported_on_measure_and_on_close() {
    let mut scene = Scene::new();
    let _reads_nothing = scene.viewer(0);
    let stream = StreamId { index: 0, generation: 0 };
    let (ask, close) = (|| Command::Measure { stream }, Command::Close { stream });
    // At first it receives the data due.
    while scene.stage.core.engine.counters().packets < 50 {
        scene.turn();
        scene.clock.advance(MS);
    }
    scene.stage.commands.push(ask()).unwrap();
    while scene.stage.core.engine.counters().parked == 0 {
        scene.turn();
        scene.clock.advance(MS);
    }
    // The kernel may accept some more while it moves its data to the other end, in its own time.
    let (mut packets, mut quiet_ms) = (scene.stage.core.engine.counters().packets, 0);
    while quiet_ms < 910 {
        scene.turn();
        scene.clock.advance(MS);
        let now = scene.stage.core.engine.counters().packets;
        quiet_ms = if now == packets { quiet_ms + 1 } else { 0 };
        packets = now;
    }
    let at_first = scene.backlogs.remove(0);
    assert!(at_first.1 < 60, "{at_first:?}");
    for command in [ask(), close, ask()] {
        scene.stage.commands.push(command).unwrap();
    }
    while scene.stage.core.engine.counters().open > 0 || !scene.stage.core.commands.is_empty() {
        scene.turn();
    }
    scene.turn();
    // The next packet was due when the last one left, or a packet's time later.
    assert!(scene.backlogs[0].1 >= 900, "{:?}", scene.backlogs);
    assert!(
        matches!(scene.backlogs[..], [asked, closed] if asked.0 > 100_000 && closed == asked),
        "{:?}",
        scene.backlogs
    );
}
