//! A loop that plays titles to this kernel's viewers by our own TCP, through a TUN device: every byte, at its pace, whatever the link loses and viewers do.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as Viewer};
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use crate::support::{TIMEOUT, can_run, pattern};
use millrace_core::ids::{ConnId, RunSerial, StreamId, TitleRef};
use millrace_core::limits::{DEFAULT_PACKET_BYTES, EXTENT_BYTES, RTP_HEADER_BYTES};
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::random::SplitMix;
use millrace_core::seam::{Clock, Doorbell};
use millrace_core::time::MediaTicks;
use millrace_core::units::BitRate;
use millrace_lab::tcp_host::OUR_IP;
use millrace_lab::toe_host::ToeHost;
use millrace_offload::bell::EventBell;
use millrace_offload::clock::MonotonicClock;
use millrace_offload::command::{
    Command, Dest, Event, Numbering, RunMedia, RunSpec, StopReason, StreamEvent,
};
use millrace_offload::handle::{EngineConfig, EngineHandle, ThreadConfig};
use millrace_offload::idle::IdlePolicy;
use millrace_offload::toe::{Engine, EngineTx, Host, TcpListener, TcpStream};
use millrace_offload::{GsoMode, KernelTx, KernelTxConfig};
use millrace_store::cache::{Cache, CacheConfig};
use millrace_store::index::TitleIndex;
use millrace_store::volume::{FinishTitle, Naming, SourceIdentity, TitleWriter, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType};

const PORT: u16 = 7200;
const CONNS: usize = 64;
const REPLY: &[u8] = b"RTSP/1.0 200 OK\r\nCSeq: 7\r\n\r\n";

/// A title in a cache, a loop with an engine, and the control side of it.
struct Scene {
    _dir: tempfile::TempDir,
    cache: Option<Cache>,
    arena: Arc<ExtentArena>,
    media: RunMedia,
    payloads: Vec<u8>,
    toe: ToeHost,
    handle: EngineHandle,
}

impl Scene {
    fn new(packets: usize, lasts: Duration, lost: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let payloads = pattern(packets as u64, 0, packets * DEFAULT_PACKET_BYTES);
        let volume = Volume::open_or_create(dir.path()).unwrap();
        let ticks = MediaTicks(lasts.as_millis() as u64 * 90);
        let mut writer = TitleWriter::begin(&volume, &[DEFAULT_PACKET_BYTES as u16]).unwrap();
        writer.write_data(&payloads).unwrap();
        for packet in 0..packets as u64 {
            let time = MediaTicks(ticks.0 * packet / packets as u64);
            writer.push_meta(DEFAULT_PACKET_BYTES as u16, PacketMeta::new(0, 0, time)).unwrap();
        }
        let info = writer.commit(finish(ticks)).unwrap();
        let files = volume.open_title(info.id, DEFAULT_PACKET_BYTES).unwrap();
        let (timeline, layout): (_, WireLayout) = (info.timeline, files.layout);
        let bell = Arc::new(EventBell::new().unwrap());
        let arena = ExtentArena::new(Box::new(HeapRegion::new((32 << 20) / EXTENT_BYTES)));
        let bells = vec![Arc::clone(&bell) as Arc<dyn Doorbell>];
        let (cache, mut handles) =
            Cache::start(CacheConfig::default(), Arc::clone(&arena), Arc::new(MonotonicClock), bells)
                .unwrap();
        let title: TitleRef = cache.open_title(files).unwrap();
        let (settings, of_loop) = (ToeHost::settings(), Arc::clone(&bell));
        let (toe, turning) =
            ToeHost::start_by(lost, |device| Engine::in_loop(&settings, device, of_loop)).unwrap();
        let kernel =
            KernelTx::new(KernelTxConfig { v4: None, v6: None, gso: GsoMode::Off, conns: CONNS }).unwrap();
        let tx = EngineTx::new(kernel, turning, CONNS);
        let config = EngineConfig { streams: CONNS, ..EngineConfig::default() };
        let thread = ThreadConfig { idle: IdlePolicy::Adaptive, ..ThreadConfig::default() };
        let handle =
            EngineHandle::start(thread, config, MonotonicClock, handles.remove(0), tx, bell).unwrap();
        let media = RunMedia { title, packets: packets as u32, timeline, layout, spare: 0 };
        Self { _dir: dir, cache: Some(cache), arena, media, payloads, toe, handle }
    }

    fn tell(&mut self, command: Command) {
        let mut command = command;
        while let Err(back) = self.handle.send(command) {
            command = back;
            std::thread::yield_now();
        }
    }

    /// Gives a connection to the loop and plays the whole title there.
    fn play(&mut self, number: u32, socket: &TcpStream, is_bytes: bool) {
        let (conn, stream) = (ConnId(number), StreamId { index: number, generation: 0 });
        self.play_as(conn, stream, socket, is_bytes);
    }

    fn play_as(&mut self, conn: ConnId, stream: StreamId, socket: &TcpStream, is_bytes: bool) {
        let (dest, numbering) = match is_bytes {
            true => (Dest::Bytes { conn }, Numbering::Bytes { head: 0, last: 0 }),
            false => (Dest::Interleaved { conn, rtp_channel: 0, rtcp_channel: 1 }, Numbering::Sequence(1)),
        };
        let media = self.media;
        let run = RunSpec {
            run: RunSerial(1),
            media,
            from: 0,
            until: media.packets,
            numbering,
            scale_permille: 1000,
            step: None,
        };
        self.tell(Command::ConnAdd { conn, socket: socket.engine_socket().into() });
        self.tell(Command::Open { stream, dest, quiet: false, once: false });
        self.tell(Command::ConnWrite { conn, bytes: REPLY.into() });
        self.tell(Command::Play { stream, at: MonotonicClock.now(), ahead_ms: 0, run });
    }

    /// Returns the loop's next event.
    fn event(&mut self) -> Event {
        let begun = StdInstant::now();
        loop {
            self.handle.rearm();
            if let Some(event) = self.handle.poll_event() {
                return event;
            }
            assert!(begun.elapsed() < TIMEOUT, "the loop says nothing");
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&self.handle.event_fd(), PollFlags::IN)], Some(&limit)).unwrap();
        }
    }

    fn leases(&self) -> u32 {
        (0..self.arena.extents()).map(|extent| self.arena.leases(extent)).sum()
    }

    /// Waits until nothing is lent.
    fn await_leases(&self, most: u32) {
        let begun = StdInstant::now();
        while self.leases() > most {
            assert!(begun.elapsed() < TIMEOUT, "{} leases are out", self.leases());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(mut self) {
        let Self { handle, cache, toe, .. } = &mut self;
        let counters = toe.engine().counters();
        assert_eq!((counters.rejected, counters.events_lost), (0, 0), "{counters:?}");
        // The loop ends before the data that it borrows.
        let _ = handle.send(Command::Stop);
        while !handle.is_finished() {
            while handle.poll_event().is_some() {}
            std::thread::yield_now();
        }
        drop(cache.take());
    }
}

fn finish(duration: MediaTicks) -> FinishTitle {
    FinishTitle {
        name: "payloads".into(),
        source: SourceIdentity { path: "/payloads.ts".into(), bytes: 1, modified_unix_ns: 1 },
        duration,
        mean_rate: BitRate(1),
        peak_rate: BitRate(1),
        constant_rate: true,
        streams: vec![],
        index: TitleIndex::default(),
        notes: vec![],
        derived: None,
        rendition: None,
        naming: Naming::default(),
    }
}

/// The data that a viewer has got, taken apart.
#[derive(Default)]
struct Got {
    bytes: Vec<u8>,
    media: Vec<u8>,
    replies: usize,
    reports: usize,
    packets: u16,
}

impl Got {
    /// Takes whole frames and replies off the front.
    fn parse(&mut self) {
        let mut at = 0;
        loop {
            let rest = &self.bytes[at..];
            if rest.starts_with(REPLY) {
                (self.replies, at) = (self.replies + 1, at + REPLY.len());
                continue;
            }
            let Some(header) = rest.get(..4).filter(|header| header[0] != REPLY[0]) else { break };
            assert_eq!(header[0], b'$', "torn behind packet {}", self.packets);
            let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
            let Some(packet) = rest.get(4..4 + len) else { break };
            if header[1] == 0 {
                self.packets += 1;
                assert_eq!(packet[2..4], self.packets.to_be_bytes(), "sequence number");
                self.media.extend_from_slice(&packet[RTP_HEADER_BYTES..]);
            } else {
                self.reports += 1;
            }
            at += 4 + len;
        }
        self.bytes.drain(..at);
    }
}

fn call() -> Viewer {
    let viewer = Viewer::connect((OUR_IP, PORT)).unwrap();
    viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
    viewer
}

/// Reads frames until this much media has come. The connection stays open.
fn watch(mut viewer: Viewer, bytes: usize) -> (Got, Viewer) {
    let (mut got, mut buffer) = (Got::default(), vec![0; 65_536]);
    while got.media.len() < bytes {
        let count = viewer.read(&mut buffer).unwrap();
        assert!(count > 0, "the end after {} of {bytes} bytes", got.media.len());
        got.bytes.extend_from_slice(&buffer[..count]);
        got.parse();
    }
    (got, viewer)
}

fn listen(scene: &Scene) -> (Host, TcpListener) {
    let host = scene.toe.engine().attach().unwrap();
    let listener = TcpListener::bind(&host, (OUR_IP, PORT).into()).unwrap();
    (host, listener)
}

#[test]
fn titles_arrive_whole_and_at_their_pace_whatever_the_link_loses() {
    const VIEWERS: u32 = 4;
    const LASTS: Duration = Duration::from_secs(2);
    if !can_run() {
        return;
    }
    for lost in [0, 10] {
        let mut scene = Scene::new(1500, LASTS, lost);
        let (_host, listener) = listen(&scene);
        let (begun, mut viewers, mut sockets) = (StdInstant::now(), Vec::new(), Vec::new());
        for number in 0..VIEWERS {
            let viewer = scene.toe.in_kernel(call).unwrap();
            let (socket, peer) = listener.accept().unwrap();
            assert_eq!(peer, viewer.local_addr().unwrap());
            scene.play(number, &socket, false);
            sockets.push(socket);
            let bytes = scene.payloads.len();
            viewers.push(std::thread::spawn(move || watch(viewer, bytes)));
        }
        let mut ended = 0;
        while ended < VIEWERS {
            match scene.event() {
                Event::Stream(StreamEvent::RunEnded { end, .. }) => {
                    assert_eq!((end.reason, end.packets), (StopReason::Finished, 1500), "{end:?}");
                    ended += 1;
                }
                Event::Stream(StreamEvent::Failed { .. })
                | Event::ConnGone { .. }
                | Event::Refused { .. } => {
                    panic!("a stream failed, {lost} of a thousand lost")
                }
                _ => {}
            }
        }
        let mut watched = Vec::new();
        for viewer in viewers {
            let (got, viewer) = viewer.join().unwrap();
            assert!(got.media == scene.payloads, "other bytes came than were stored");
            assert_eq!(got.replies, 1);
            watched.push((got, viewer));
        }
        assert!(begun.elapsed() >= LASTS * 9 / 10, "paced: {:?}", begun.elapsed());
        scene.await_leases(0);
        // Back at its host, a connection sends the data that the host writes, behind everything
        // else.
        scene.tell(Command::ConnReturn { conn: ConnId(0) });
        loop {
            match scene.event() {
                Event::ConnReturned { socket, .. } => break assert!(socket.is_some()),
                Event::ConnGone { conn, errno } => panic!("{conn:?} is gone, errno {errno}"),
                _ => {}
            }
        }
        (&sockets[0]).write_all(REPLY).unwrap();
        sockets[0].shutdown(Shutdown::Write).unwrap();
        let (mut got, mut viewer) = watched.swap_remove(0);
        viewer.read_to_end(&mut got.bytes).unwrap();
        got.parse();
        assert_eq!((got.replies, got.bytes.len()), (2, 0), "the last one behind the RTCP of the loop");
        drop(sockets);
        scene.stop();
    }
}

/// A viewer that does not read for longer than extents wait gets the rest all the same: the cache
/// is asked again.
#[test]
fn slow_reader_releases_leases_and_receives_rest() {
    if !can_run() {
        return;
    }
    // More than the viewer's window takes, and less than a connection takes that sends nothing: all of it is soon in the stack.
    let mut scene = Scene::new(190, Duration::from_millis(200), 0);
    let (_host, listener) = listen(&scene);
    let mut viewer = scene
        .toe
        .in_kernel(|| {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 32 * 1024).unwrap();
            rustix::net::connect(&socket, &SocketAddr::from((OUR_IP, PORT))).unwrap();
            Viewer::from(socket)
        })
        .unwrap();
    viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (socket, _) = listener.accept().unwrap();
    scene.play(0, &socket, true);
    while !matches!(scene.event(), Event::Stream(StreamEvent::RunEnded { .. })) {}
    assert!(scene.leases() > 0, "the stack holds what is not acknowledged");
    scene.await_leases(0);
    // Its extents are another title's by now, if the cache needs the room.
    let mut all = vec![0; REPLY.len() + scene.payloads.len()];
    viewer.read_exact(&mut all).unwrap();
    assert!(all == [REPLY, &scene.payloads].concat(), "other bytes came than were stored");
    scene.await_leases(0);
    scene.stop();
}

/// Viewers come and are killed at any moment, politely or not: nothing stays lent, and no connection stays.
#[test]
fn killed_viewers_leave_no_leases_or_connections() {
    const ROUNDS: u32 = 1000;
    const AT_ONCE: u32 = 20;
    if !can_run() {
        return;
    }
    let mut scene = Scene::new(3000, Duration::from_secs(2), 0);
    let (_host, listener) = listen(&scene);
    let mut random = SplitMix(5);
    for round in 0..ROUNDS / AT_ONCE {
        let mut both = Vec::new();
        for number in 0..AT_ONCE {
            let viewer = scene.toe.in_kernel(call).unwrap();
            let (socket, _) = listener.accept().unwrap();
            let stream = StreamId { index: number, generation: round };
            scene.play_as(ConnId(number), stream, &socket, random.next().is_multiple_of(2));
            both.push((viewer, Some(socket)));
        }
        let mut buffer = [0; 8192];
        for (index, (mut viewer, socket)) in
            both.iter_mut().map(|(viewer, socket)| (&*viewer, socket)).enumerate()
        {
            let _ = viewer.read(&mut buffer).unwrap();
            match random.next() % 4 {
                // A reset, an end while much is on its way, a host that closes under the loop's hands.
                0 => rustix::net::sockopt::set_socket_linger(viewer, Some(Duration::ZERO)).unwrap(),
                1 => viewer.shutdown(Shutdown::Both).unwrap(),
                2 => drop(socket.take()),
                _ => {}
            }
            if index % 3 == 0 {
                drop(socket.take());
            }
        }
        both.iter_mut().for_each(|(_, socket)| drop(socket.take()));
        drop(both);
        for number in 0..AT_ONCE {
            scene.tell(Command::Close { stream: StreamId { index: number, generation: round } });
            scene.tell(Command::ConnRemove { conn: ConnId(number) });
        }
        let (mut closed, mut removed) = (0, 0);
        while closed < AT_ONCE || removed < AT_ONCE {
            match scene.event() {
                Event::Stream(StreamEvent::Closed { .. }) => closed += 1,
                Event::ConnRemoved { .. } => removed += 1,
                Event::Refused { refusal, .. } => panic!("{refusal:?}"),
                _ => {}
            }
        }
    }
    scene.await_leases(0);
    scene.stop();
}
