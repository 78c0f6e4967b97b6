//! A connection that moves from one loop to another and back while its viewer reads slowly: frames
//! are never torn, none is lost or sent twice, and data written in between stands between two
//! frames.

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant as StdInstant};

use crate::support::{Stage, StepClock, film_bytes};
use millrace_core::ids::{ConnId, StreamId};
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::seam::Clock;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;
use millrace_engine::{RunEnd, StreamEvent};
use millrace_offload::command::{Command, Dest, Event};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};

/// More than the socket buffers of a viewer that does not read take.
const PACKETS: usize = 6000;
const MS: u64 = 1_000_000;
const CONN: ConnId = ConnId(0);
const STREAM: StreamId = StreamId { index: 0, generation: 0 };
const REPLY: &[u8] = b"RTSP/1.0 200 OK\r\nCSeq: 7\r\n\r\n";

/// The data the viewer received, parsed.
#[derive(Default)]
struct Got {
    bytes: Vec<u8>,
    /// Sequence numbers of the RTP packets, and their payloads one behind the other.
    sequences: Vec<u16>,
    media: Vec<u8>,
    replies: usize,
}

impl Got {
    /// Takes whole frames and replies off the front.
    fn parse(&mut self) {
        loop {
            if self.bytes.starts_with(REPLY) {
                self.bytes.drain(..REPLY.len());
                self.replies += 1;
            }
            let Some(header) = self.bytes.get(..4) else { return };
            if header[0] == REPLY[0] {
                return;
            }
            assert_eq!(header[0], b'$', "torn behind packet {:?}", self.sequences.last());
            let (channel, len) = (header[1], usize::from(u16::from_be_bytes([header[2], header[3]])));
            let Some(packet) = self.bytes.get(4..4 + len) else { return };
            if channel == 0 {
                let (header, _) = RtpHeader::parse(packet).expect("an RTP packet");
                self.sequences.push(header.sequence);
                self.media.extend_from_slice(&packet[RTP_HEADER_BYTES..]);
            }
            self.bytes.drain(..4 + len);
        }
    }

    fn read(&mut self, reader: &mut TcpStream) {
        let mut chunk = [0; 30_000];
        match reader.read(&mut chunk) {
            Ok(count) => self.bytes.extend_from_slice(&chunk[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        self.parse();
    }
}

/// A loop, and the events it reported.
struct Loop {
    stage: Stage<KernelTx, StepClock>,
    clock: StepClock,
    end: Option<RunEnd>,
    returned: Option<OwnedFd>,
}

impl Loop {
    fn new() -> Self {
        let clock = StepClock::start();
        let config = KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: 1 };
        let tx = KernelTx::new(config).unwrap();
        let stage = Stage::with_clock(PACKETS, MediaTicks(4 * 90_000), tx, clock.clone());
        Self { stage, clock, end: None, returned: None }
    }

    fn order(&mut self, commands: impl IntoIterator<Item = Command>) {
        commands.into_iter().for_each(|command| self.stage.commands.push(command).unwrap());
    }

    fn turn(&mut self) {
        self.stage.core.turn();
        while let Ok(event) = self.stage.events.pop() {
            match event {
                Event::Stream(StreamEvent::RunEnded { end, .. }) => self.end = Some(end),
                Event::Stream(StreamEvent::Failed { reason, .. }) => panic!("{reason}"),
                Event::ConnReturned { socket, .. } => self.returned = socket.expect("it was here").into_fd(),
                Event::ConnGone { .. } | Event::Refused { .. } => panic!("{event:?}"),
                _ => {}
            }
        }
        let counters = self.stage.core.engine.counters();
        if counters.leases == counters.wants {
            self.clock.advance(MS);
        }
    }

    /// Takes over the connection: writes a reply and continues playback from here.
    fn take_over(&mut self, fd: OwnedFd, from: u32, sequence: u16) {
        let dest = Dest::Interleaved { conn: CONN, rtp_channel: 0, rtcp_channel: 1 };
        let open = Command::Open { stream: STREAM, dest, quiet: false, once: false };
        let add = Command::ConnAdd { conn: CONN, socket: fd.into() };
        let reply = Command::ConnWrite { conn: CONN, bytes: REPLY.into() };
        let play = self.stage.play(0, from, sequence, 1000);
        self.order([open, add, reply, play]);
    }
}

#[test]
fn connection_moved_between_loops_keeps_frames_whole() {
    let mut loops = [Loop::new(), Loop::new()];
    loops[1].stage.timeline = loops[0].stage.timeline;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    reader.set_nonblocking(true).unwrap();
    let gives_up = StdInstant::now() + Duration::from_secs(60);
    let (mut got, mut taken_over, mut split) = (Got::default(), 1, 0);
    loops[0].take_over(listener.accept().unwrap().0.into(), 0, 65_000);
    while got.sequences.len() < PACKETS {
        let now = (taken_over - 1) % 2;
        // The viewer reads nothing for a while: the connection is full, and a frame in it is not whole.
        let stops = loops[now].clock.now().plus_ns(400 * MS);
        while loops[now].clock.now() < stops && loops[now].end.is_none() {
            loops[now].turn();
            assert!(StdInstant::now() < gives_up);
        }
        if loops[now].end.is_none() {
            loops[now].order([Command::Pause { stream: STREAM }]);
        }
        while loops[now].end.is_none() {
            loops[now].turn();
        }
        let end = loops[now].end.take().unwrap();
        loops[now].order([Command::Close { stream: STREAM }, Command::ConnReturn { conn: CONN }]);
        while loops[now].returned.is_none() {
            loops[now].turn();
            got.read(&mut reader);
            assert!(StdInstant::now() < gives_up, "{} packets", got.sequences.len());
        }
        split = loops.iter().map(|one| one.stage.core.tx.counters().split_frames).sum();
        let fd = loops[now].returned.take().unwrap();
        if end.next_packet as usize == PACKETS {
            while got.sequences.len() < PACKETS {
                got.read(&mut reader);
                assert!(StdInstant::now() < gives_up);
            }
            break;
        }
        taken_over += 1;
        loops[1 - now].take_over(fd, end.next_packet, end.next_sequence);
    }
    assert!(taken_over > 4 && split > 2, "taken over {taken_over} times, {split} split frames");
    assert_eq!(got.replies, taken_over);
    let wanted: Vec<u16> = (0..PACKETS as u16).map(|packet| packet.wrapping_add(65_000)).collect();
    assert!(got.sequences == wanted);
    assert!(got.media == film_bytes(PACKETS));
    assert!(loops.iter().all(|one| one.stage.leases() == 0));
}
