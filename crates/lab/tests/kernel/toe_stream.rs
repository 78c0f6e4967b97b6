//! The library call of the stream engine on connections of an offload engine, through a TUN device:
//! its result is the same as on the kernel's, and viewers get the same bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as KernelListener, TcpStream as Viewer};
use std::time::Duration;

use crate::support::{TIMEOUT, can_run, pattern};
use millrace_core::units::BitRate;
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};
use millrace_lab::toe_host::ToeHost;
use millrace_offload::toe::{Host, Sockets, TcpListener, TcpStream};
use millrace_stream::{
    BlockPacing, Connection, MediaSource, Reason, RunError, RunOutcome, SourcePosition, StreamContext,
    StreamEngine, StreamEngineConfig, Transport,
};
use rustix::net::{AddressFamily, SocketType};

const PORT: u16 = 7300;
const RATE: BitRate = BitRate(8_000_000);
const BLOCK_BYTES: usize = 1316;

/// A stream engine, and its offload engine if that has the connections.
struct Scene {
    engine: StreamEngine,
    toe: Option<(ToeHost, Host, TcpListener)>,
}

impl Scene {
    fn new(is_offloaded: bool) -> Self {
        let config = StreamEngineConfig { max_busy_permille: 1000, ..StreamEngineConfig::default() };
        let engine = StreamEngine::start(&config).unwrap();
        let toe = is_offloaded.then(|| {
            let start = |device| engine.start_offload(&ToeHost::settings(), device).map(|toe| (toe, ()));
            let toe = ToeHost::start_by(0, start).unwrap().0;
            let host = toe.engine().attach().unwrap();
            let listener = TcpListener::bind(&host, (OUR_IP, PORT).into()).unwrap();
            (toe, host, listener)
        });
        Self { engine, toe }
    }

    /// Bytes in a file, and that as a source.
    fn source(&self, bytes: usize) -> (Vec<u8>, MediaSource, tempfile::NamedTempFile) {
        let (bytes, mut file) = (pattern(3, 0, bytes), tempfile::NamedTempFile::new().unwrap());
        file.write_all(&bytes).unwrap();
        let pace = BlockPacing::at_rate(RATE, BLOCK_BYTES).unwrap();
        let source = self.engine.plain_file(file.path(), pace).unwrap();
        (bytes, source, file)
    }

    /// A transport to a viewer; the socket of it if it is the offload engine's; and the viewer.
    fn connect(&self) -> (Transport, Option<TcpStream>, Viewer) {
        let (transport, socket, viewer) = match &self.toe {
            Some((toe, _, listener)) => {
                let viewer = toe.in_kernel(|| call((OUR_IP, PORT).into())).unwrap();
                let (socket, _) = listener.accept().unwrap();
                (Transport::offload(&socket), Some(socket), viewer)
            }
            None => {
                let listener = KernelListener::bind("127.0.0.1:0").unwrap();
                let viewer = call(listener.local_addr().unwrap());
                (Transport::tcp(listener.accept().unwrap().0), None, viewer)
            }
        };
        viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
        (transport, socket, viewer)
    }
}

/// A viewer with a small receive buffer.
fn call(to: SocketAddr) -> Viewer {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 32 * 1024).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    Viewer::from(socket)
}

fn read_all(mut viewer: Viewer) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = Vec::new();
        viewer.read_to_end(&mut got).unwrap();
        got
    })
}

/// Returns the part that is the same on every machine and at every time of a run: why it ended, how
/// much was sent, and the next position.
fn said(outcome: &RunOutcome) -> (Reason, u32, u64, u32, u64) {
    let RunOutcome { reason, packets, bytes, missing, next, .. } = *outcome;
    (reason, packets, bytes, missing, next.byte)
}

#[test]
fn stream_run_gives_same_outcome_on_engine_and_kernel() {
    const BYTES: usize = 400_000;
    const STOP: u64 = 100_001;
    if !can_run() {
        return;
    }
    let [kernel, offloaded] = [false, true].map(|is_offloaded| {
        let scene = Scene::new(is_offloaded);
        let (bytes, source, _file) = scene.source(BYTES);
        let (transport, socket, viewer) = scene.connect();
        let reader = read_all(viewer);
        let mut stream = StreamContext::new(transport, &source).unwrap();
        stream.stop_at(Some(SourcePosition::Byte(STOP))).send_first("head").unwrap();
        let first = scene.engine.run(&mut stream).unwrap();
        let second = scene.engine.run(stream.stop_at(None)).unwrap();
        let nothing = scene.engine.run(&mut stream).unwrap();
        // It comes back alive: the kernel's by its descriptor, the offload engine's to its owner.
        match (stream.finish().unwrap().expect("the connection"), socket) {
            (Connection::Kernel(fd), None) => Viewer::from(fd).write_all(b"tail").unwrap(),
            (Connection::Engine(name), Some(mut socket)) => {
                assert_eq!(name, socket.engine_socket());
                socket.write_all(b"tail").unwrap();
            }
            other => panic!("{other:?}"),
        }
        let got = reader.join().unwrap();
        assert!(got == [b"head", &bytes[..], b"tail"].concat(), "offloaded {is_offloaded}: other bytes came");
        assert!(first.blocks > 1 && second.blocks > first.blocks, "{first:?} {second:?}");
        // The schedule goes on from run to run: from one end to the next one's it is media time, unless this machine was late.
        let lasted_ns = second.next_due.ns_since(first.next_due);
        assert!((299_000_000..TIMEOUT.as_nanos() as u64).contains(&lasted_ns), "{lasted_ns} ns");
        [first, second, nothing].map(|outcome| said(&outcome))
    });
    assert_eq!(kernel, offloaded);
    let said = offloaded;
    assert_eq!((said[0].0, said[0].2, said[0].4), (Reason::Finished, STOP, STOP));
    assert_eq!((said[1].0, said[1].2), (Reason::Finished, BYTES as u64 - STOP));
    assert_eq!((said[2].0, said[2].2), (Reason::Finished, 0));
}

/// A word of the viewer ends the run and is left to be read; the next run goes on where that was.
#[test]
fn stream_run_ends_on_control_data_and_resumes() {
    if !can_run() {
        return;
    }
    let scene = Scene::new(true);
    let (bytes, source, _file) = scene.source(1_000_000);
    let (transport, socket, viewer) = scene.connect();
    let (host, mut socket) = (&scene.toe.as_ref().unwrap().1, socket.unwrap());
    let mut talker = viewer.try_clone().unwrap();
    let reader = read_all(viewer);
    let mut stream = StreamContext::new(transport, &source).unwrap();
    let mut sent = 0;
    for word in *b"ab" {
        while host.arm() {}
        stream.control(&host.readiness()).unwrap();
        let speaker = std::thread::spawn(move || {
            // The run may begin a little later: then it ends all the same, with little sent.
            std::thread::sleep(Duration::from_millis(100));
            talker.write_all(&[word]).unwrap();
            talker
        });
        let outcome = scene.engine.run(&mut stream).unwrap();
        talker = speaker.join().unwrap();
        sent += outcome.bytes;
        assert_eq!((outcome.reason, outcome.next.byte), (Reason::Control, sent));
        let mut read = [0];
        socket.read_exact(&mut read).unwrap();
        assert_eq!(read, [word]);
    }
    while host.arm() {}
    let last = scene.engine.run(&mut stream).unwrap();
    assert_eq!((last.reason, sent + last.bytes), (Reason::Finished, 1_000_000));
    assert!(stream.finish().unwrap().is_some());
    drop(socket);
    assert!(reader.join().unwrap() == bytes, "other bytes came");
}

#[test]
fn stream_run_reports_peer_gone() {
    if !can_run() {
        return;
    }
    let [kernel, offloaded] = [false, true].map(|is_offloaded| {
        let scene = Scene::new(is_offloaded);
        let (_, source, _file) = scene.source(3_000_000);
        let (transport, _socket, mut viewer) = scene.connect();
        let mut stream = StreamContext::new(transport, &source).unwrap();
        let killer = std::thread::spawn(move || viewer.read_exact(&mut [0; 50_000]).unwrap());
        let outcome = scene.engine.run(&mut stream).unwrap();
        killer.join().unwrap();
        assert!(outcome.bytes >= 50_000 && outcome.bytes < 3_000_000, "{outcome:?}");
        let Err(RunError::ConnectionGone { errno }) = scene.engine.run(&mut stream) else {
            panic!("it is gone")
        };
        assert!(stream.finish().unwrap().is_none());
        (matches!(outcome.reason, Reason::PeerGone { .. }), errno > 0)
    });
    assert_eq!((kernel, offloaded), ((true, true), (true, true)));
}

/// Everything of a run is given up, its source and its connection too, while the viewer does not read for longer than extents wait for him: he gets
/// the rest all the same.
#[test]
fn tail_data_arrives_after_source_and_socket_are_closed() {
    const BYTES: usize = 190 * BLOCK_BYTES;
    if !can_run() {
        return;
    }
    for closes_at_once in [true, false] {
        let scene = Scene::new(true);
        let (bytes, source, _file) = scene.source(BYTES);
        let (transport, socket, viewer) = scene.connect();
        let mut stream = StreamContext::new(transport, &source).unwrap();
        // Soon in the stack.
        let outcome = scene.engine.run(stream.speed(10_000)).unwrap();
        assert_eq!((outcome.reason, outcome.bytes), (Reason::Finished, BYTES as u64));
        assert!(stream.finish().unwrap().is_some());
        let mut rest = Some((source, socket));
        if closes_at_once {
            rest = None;
        }
        // Extents go back after two seconds, unless their title is closed already.
        std::thread::sleep(Duration::from_secs(3));
        drop(rest);
        let got = read_all(viewer).join().unwrap();
        assert!(got == bytes, "{} of {BYTES} bytes came, or others; at once: {closes_at_once}", got.len());
    }
}

/// One offload engine for each stream engine, once; without one, a name of a connection leads nowhere.
#[test]
fn stream_engine_accepts_only_one_offload_engine() {
    if !can_run() {
        return;
    }
    let (scene, other) = (Scene::new(true), Scene::new(false));
    let device = || millrace_lab::toe_host::wire().unwrap().into_iter().next().unwrap();
    let refused = scene.engine.start_offload(&ToeHost::settings(), device()).err().unwrap().to_string();
    assert!(refused.contains("start another stream engine"), "{refused}");
    let (_, source, _file) = other.source(10_000);
    let (transport, _socket, _viewer) = scene.connect();
    let mut stream = StreamContext::new(transport, &source).unwrap();
    match other.engine.run(&mut stream) {
        Err(RunError::ConnectionGone { .. }) => {}
        Ok(outcome) => {
            assert!(matches!(said(&outcome), (Reason::PeerGone { .. }, 0, 0, 0, 0)), "{outcome:?}")
        }
        Err(other) => panic!("{other}"),
    }
}

/// Runs on an offload engine with a thread of its own, whose queue pair the stream engine has: viewers at any speed get the bytes, and the end behind them.
#[test]
fn stream_run_sends_through_threaded_engine() {
    const BYTES: usize = 900_000;
    const VIEWERS: usize = 8;
    if !can_run() {
        return;
    }
    let engine = Scene::new(false);
    let (bytes, source, _file) = engine.source(BYTES);
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listener = toe.in_kernel(|| KernelListener::bind((KERNEL_IP, PORT))).unwrap().unwrap();
    let mut sockets = Sockets::new(toe.engine().attach().unwrap()).unwrap();
    let mut ends = Vec::new();
    for _ in 0..VIEWERS {
        let number = sockets.connect(([0; 4], 0).into(), (KERNEL_IP, PORT).into()).unwrap();
        sockets.flush();
        while sockets.outcome(number).unwrap().is_none() {
            sockets.wait(Some(TIMEOUT)).unwrap();
        }
        ends.push((sockets.engine_socket(number), listener.accept().unwrap().0));
    }
    engine.engine.use_offload(sockets).unwrap();
    std::thread::scope(|scope| {
        for (index, (name, viewer)) in ends.into_iter().enumerate() {
            let (engine, source, bytes) = (&engine.engine, &source, &bytes);
            scope.spawn(move || {
                viewer.set_read_timeout(Some(TIMEOUT)).unwrap();
                let reader = read_all(viewer);
                let mut stream = StreamContext::new(Transport::offload_socket(name), source).unwrap();
                // Much faster than the media: connections are full again and again.
                let outcome = engine.run(stream.speed(1000 + 1000 * index as u16)).unwrap();
                assert_eq!((outcome.reason, outcome.bytes), (Reason::Finished, BYTES as u64));
                // It is closed, behind all of this.
                assert!(matches!(stream.finish(), Ok(Some(Connection::Engine(of))) if of == name));
                assert!(reader.join().unwrap() == *bytes, "other bytes came to viewer {index}");
            });
        }
    });
    let refused = engine.engine.use_offload(Sockets::new(toe.engine().attach().unwrap()).unwrap());
    assert!(refused.unwrap_err().to_string().contains("start another stream engine"));
}
