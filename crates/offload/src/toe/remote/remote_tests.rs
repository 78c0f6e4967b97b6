//! An engine that serves other programs, and what these can do to it: both sides are in this process here, but share only what two processes would.

use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_core::random::SplitMix;
use millrace_core::shared::ENTRY_WORDS;

use super::channel::{host_side, send};
use super::client::{answer, ask, dial};
use super::message::GateMessage;
use super::report::Page;
use super::*;
use crate::bell::EventBell;
use crate::limits::{DEFAULT_BACKLOG, HANDSHAKE_NS, MAX_CALLERS};
use crate::toe::host::HostState;
use crate::toe::pair::{ENGINE_SLEEPS, PairSettings};
use crate::toe::{
    ConnectionState, ConnectionStatus, Device, Engine, EngineSettings, HostStatus, Inbound, Owner,
    TcpListener, TcpStream,
};

const PORT: u16 = 80;

/// An end of a wire.
struct SocketWire(UnixDatagram, Box<[u8]>);

impl Device for SocketWire {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        match self.0.recv(&mut self.1) {
            Ok(bytes) => take(Inbound::new(&self.1[..bytes])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        match self.0.send(packet) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            // Its peer is gone: as on any wire.
            _ => Ok(true),
        }
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

/// An engine that serves, and another one, for threads, at the other end of its wire.
struct RemoteRig {
    served: Engine,
    other: Engine,
    dir: tempfile::TempDir,
}

const OURS: [u8; 4] = [10, 0, 0, 1];
const THEIRS: [u8; 4] = [10, 0, 0, 2];

fn settings(address: [u8; 4]) -> EngineSettings {
    let mut settings = EngineSettings::new(&[(address.into(), 24)]);
    settings.stack.connections = 64;
    settings.stack.host_pages = 1024;
    settings.stack.clusters = vec![millrace_tcp::recv::ClusterSize { bytes: 4 << 20, page_bytes: 2048 }; 2];
    settings.pair =
        PairSettings { sockets: 16, requests: 64, send_buffers: 128, receive_buffers: 64, ..settings.pair };
    settings
}

impl RemoteRig {
    fn new(remote_pairs: usize) -> Self {
        let (a, b) = UnixDatagram::pair().unwrap();
        let [a, b] = [a, b].map(|end| {
            end.set_nonblocking(true).unwrap();
            Box::new(SocketWire(end, vec![0; 65_536].into()))
        });
        let mut settings_of_served = settings(OURS);
        (settings_of_served.pairs, settings_of_served.remote_pairs) = (0, remote_pairs);
        let mut served = Engine::start(&settings_of_served, a).unwrap();
        let other = Engine::start(&settings(THEIRS), b).unwrap();
        let dir = tempfile::tempdir().unwrap();
        served.serve(&dir.path().join("below/engine.sock"), Access::default()).unwrap();
        Self { served, other, dir }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("below/engine.sock")
    }

    /// Waits until it is so.
    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = std::time::Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.served.sheets().gate());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A host as its process would have it, without the work of its drop: it dies.
struct Mortal {
    state: HostState,
    engine: Arc<EventBell>,
    _link: OwnedFd,
}

impl Mortal {
    fn connect(path: &Path) -> Self {
        let link = dial(path).unwrap();
        send(&link, &GateMessage::Attach, &[]).unwrap();
        let (welcome, fds) = answer(&link).unwrap();
        let (end, engine) = host_side(&welcome.pair, fds).unwrap();
        let engine = Arc::new(engine);
        Self {
            state: HostState::new(welcome.number, end, Arc::clone(&engine), &welcome.pair),
            engine,
            _link: link,
        }
    }

    /// Asks, and waits until there is an answer.
    fn until<T>(&mut self, mut attempt: impl FnMut(&mut HostState) -> io::Result<Option<T>>) -> T {
        let begun = std::time::Instant::now();
        loop {
            self.state.hear();
            if let Some(result) = attempt(&mut self.state).unwrap() {
                return result;
            }
            self.engine.ring();
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }
}

/// Sends bytes there and back.
fn echo(path: &Path, other: &Engine, port: u16, bytes: usize) {
    std::thread::scope(|scope| {
        let host = other.attach().unwrap();
        let listener = TcpListener::bind(&host, (THEIRS, port).into()).unwrap();
        scope.spawn(move || {
            let host = connect(path).unwrap();
            assert_eq!(host.addresses(), [(OURS.into(), 24)]);
            let mut stream = TcpStream::connect(&host, (THEIRS, port).into()).unwrap();
            assert_eq!(stream.local_addr().unwrap().ip(), IpAddr::from(OURS));
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut random = SplitMix(bytes as u64);
            for at in (0..bytes).step_by(50_000) {
                let sent: Vec<u8> = (0..(bytes - at).min(50_000)).map(|_| random.next() as u8).collect();
                stream.write_all(&sent).unwrap();
                let mut back = vec![0; sent.len()];
                stream.read_exact(&mut back).unwrap();
                assert!(back == sent, "other bytes came back");
            }
        });
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 8192];
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => stream.write_all(&buffer[..count]).unwrap(),
            }
        }
    });
}

#[test]
fn bytes_go_both_ways_through_an_engine_of_another_process() {
    let rig = RemoteRig::new(2);
    echo(&rig.path(), &rig.other, PORT, 2_000_000);
    rig.until("the pair comes back", |rig| rig.served.counters().pairs_cleared == 1);
    let counters = rig.served.counters();
    assert_eq!((counters.rejected, counters.events_lost, counters.left_open), (0, 0, 0), "{counters:?}");
    assert!(counters.sleeps > 0, "it sleeps, and is woken by the host");
    let path = rig.path();
    drop(rig.served);
    assert!(!path.exists(), "the socket goes with its engine");
    assert_eq!(connect(&path).unwrap_err().kind(), ErrorKind::NotFound);
}

/// A thousand hosts die, one after the other, on a single pair: their peers see a reset, data of
/// the connections they had closed themselves arrives, and nothing is left of them.
#[test]
fn pair_of_killed_host_is_cleared_and_reused() {
    let rig = RemoteRig::new(1);
    let host = rig.other.attach().unwrap();
    let listener = TcpListener::bind(&host, (THEIRS, PORT).into()).unwrap();
    let any = std::net::SocketAddr::from((OURS, 0));
    for _ in 0..1000 {
        let mut mortal = Mortal::connect(&rig.path());
        let sockets = [(); 3].map(|()| mortal.state.connect(any, (THEIRS, PORT).into()).unwrap());
        mortal.engine.ring();
        let mut streams = Vec::new();
        for _ in sockets {
            streams.push(listener.accept().unwrap().0);
        }
        let ends = sockets.map(|socket| mortal.until(|state| state.outcome(socket)));
        let of =
            |socket: usize| streams.iter().position(|stream| stream.peer_addr().unwrap() == ends[socket].0);
        let [closed, open, written] = [0, 1, 2].map(|socket| of(socket).unwrap());
        let kept = mortal.state.listen((OURS, PORT).into(), 4, false).unwrap();
        mortal.until(|state| state.outcome(kept));
        let bytes = [7; 5000];
        for socket in [sockets[0], sockets[2]] {
            assert_eq!(mortal.state.write(socket, &[io::IoSlice::new(&bytes)]).unwrap(), Some(bytes.len()));
        }
        mortal.state.close(sockets[0], false);
        drop(mortal);
        let mut all = Vec::new();
        streams[closed].read_to_end(&mut all).unwrap();
        assert_eq!(all, bytes, "what was written before the close");
        let reset = |stream: &mut TcpStream| stream.read_to_end(&mut Vec::new()).unwrap_err().kind();
        assert_eq!(reset(&mut streams[open]), ErrorKind::ConnectionReset);
        assert_eq!(reset(&mut streams[written]), ErrorKind::ConnectionReset);
    }
    rig.until("the last one is cleared", |rig| rig.served.counters().pairs_cleared == 1000);
    let counters = rig.served.counters();
    // Two connections and a listener each.
    assert_eq!((counters.left_open, counters.rejected, counters.events_lost), (3000, 0, 0), "{counters:?}");
    assert!(TcpStream::connect(&host, (OURS, PORT).into()).is_err(), "nobody listens there any more");
    echo(&rig.path(), &rig.other, PORT + 1, 100_000);
    let gate = rig.served.sheets().gate();
    assert_eq!((gate.hosts_joined, gate.bad_callers, gate.no_pair), (1001, 0, 0), "{gate:?}");
}

#[test]
fn callers_that_say_nothing_or_anything_are_hung_up_on_and_keep_nobody_out() {
    let rig = RemoteRig::new(1);
    let path = rig.path();
    let begun = std::time::Instant::now();
    let silent: Vec<_> = (0..MAX_CALLERS + 3).map(|_| dial(&path).unwrap()).collect();
    rig.until("all have connected", |rig| rig.served.sheets().gate().callers == MAX_CALLERS as u64 + 3);
    assert_eq!(rig.served.sheets().gate().bad_callers, 3, "the oldest have made room");
    let garbage = [vec![0], vec![0xff; 5000], GateMessage::Attach.encode()[..7].to_vec()];
    for bytes in garbage {
        let caller = dial(&path).unwrap();
        rustix::net::send(&caller, &bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
        assert_eq!(answer(&caller).unwrap_err().kind(), ErrorKind::Unsupported);
    }
    echo(&path, &rig.other, PORT, 10_000);
    // A further message from a program that is a host already is invalid too.
    let host = dial(&path).unwrap();
    for expected in [true, false] {
        send(&host, &GateMessage::Attach, &[]).unwrap();
        assert_eq!(answer(&host).is_ok(), expected);
    }
    rig.until("it is cleared away", |rig| rig.served.counters().pairs_cleared == 2);
    // All that are left run into the time-out.
    let last = silent.last().unwrap();
    assert_eq!(answer(last).unwrap_err().to_string(), "no request came in time");
    assert!(begun.elapsed() >= Duration::from_nanos(HANDSHAKE_NS));
}

/// Connections, a listener and hosts are shown while they work, also when they do not fit one
/// answer; and the program that asks takes no pair.
#[test]
fn status_lists_connections_listeners_and_hosts() {
    const EACH: usize = 10;
    let rig = RemoteRig::new(2);
    let path = rig.path();
    let peers = [(); 2].map(|()| rig.other.attach().unwrap());
    let hosts = [(); 2].map(|()| connect(&path).unwrap());
    let ours = TcpListener::bind(&hosts[1], (OURS, PORT).into()).unwrap();
    let mut streams = Vec::new();
    for ((host, peer), port) in hosts.iter().zip(&peers).zip(PORT..) {
        let listener = TcpListener::bind(peer, (THEIRS, port).into()).unwrap();
        for _ in 0..EACH {
            let stream = TcpStream::connect(host, (THEIRS, port).into()).unwrap();
            streams.push((stream, listener.accept().unwrap().0));
        }
    }
    // One that has not been accepted, and one with bytes that its host has in a buffer.
    let _waits = TcpStream::connect(&peers[0], (OURS, PORT).into()).unwrap();
    streams[0].0.write_all(&[1; 1000]).unwrap();
    streams[0].1.read_exact(&mut [0; 1000]).unwrap();
    streams[0].1.write_all(&[2; 100]).unwrap();
    let of = |port: u16, all: &[ConnectionStatus]| *all.iter().find(|of| of.local.port() == port).unwrap();
    let first = streams[0].0.local_addr().unwrap().port();
    let shows = || of(first, &connections(&path).unwrap()).figures;
    rig.until("the buffer is handed over", |_| shows().host_buffers == 1);
    let all = connections(&path).unwrap();
    assert_eq!(all.len(), 1 + 2 * EACH + 1);
    let listening = all[0];
    assert_eq!(
        (listening.state, listening.owner, listening.local),
        (None, Owner::Pair(1), (OURS, PORT).into())
    );
    assert_eq!((listening.figures.queued, listening.figures.backlog), (1, DEFAULT_BACKLOG.into()));
    for (index, (stream, _)) in streams.iter().enumerate() {
        let shown = of(stream.local_addr().unwrap().port(), &all[1..]);
        let pair = (index / EACH) as u16;
        assert_eq!((shown.state, shown.owner), (Some(ConnectionState::Established), Owner::Pair(pair)));
        assert_eq!(shown.remote, (THEIRS, PORT + pair).into());
        assert!(shown.figures.rtt_ns > 0 && shown.figures.sack == 1, "{shown:?}");
    }
    let figures = shows();
    assert_eq!((figures.given_bytes, figures.unacked_bytes, figures.retransmitted), (1000, 0, 0));
    assert_eq!(of(PORT, &all[1..]).owner, Owner::Queue);
    let status = status(&path).unwrap();
    assert_eq!((status.pairs, status.addresses), (2, vec![(OURS.into(), 24)]));
    assert_eq!((status.engine.connections, status.stack.opened), (2 * EACH as u64 + 1, 2 * EACH as u64));
    assert_eq!((status.gate.hosts, status.gate.hosts_joined, status.gate.bad_callers), (2, 2, 0));
    assert!(status.ip.segments_in > 0 && status.uptime_ns > 0);
    let own = std::process::id();
    let expected = [0, 1].map(|pair| HostStatus { pair, pid: own, uid: rustix::process::geteuid().as_raw() });
    assert_eq!(status.hosts, expected);
    drop(ours);
}

/// A caller that asks for connections and does not wait, asks on, or asks for slots that do not
/// exist does not delay the answers to others.
#[test]
fn questions_of_any_kind_are_answered_or_refused() {
    let rig = RemoteRig::new(1);
    let path = rig.path();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix(5);
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let Ok(caller) = dial(&path) else { continue };
                for _ in 0..=random.next() % 3 {
                    let question = match random.next() % 4 {
                        0 => GateMessage::AskStatus.encode(),
                        1 => GateMessage::AskConnections(random.next() as u32).encode(),
                        2 => GateMessage::AskConnections(random.next() as u32 % 200).encode(),
                        _ => (0..random.next() % 40).map(|_| random.next() as u8).collect(),
                    };
                    // It may have been hung up on.
                    let _ = rustix::net::send(&caller, &question, rustix::net::SendFlags::NOSIGNAL);
                }
                if random.next().is_multiple_of(2) {
                    let _ = rustix::net::recv(&caller, &mut [0; 4096], rustix::net::RecvFlags::empty());
                }
            }
        });
        for round in 0..20 {
            echo(&path, &rig.other, PORT + round, 20_000);
            assert_eq!(connections(&path).unwrap().iter().filter(|of| of.state.is_none()).count(), 0);
            assert_eq!(status(&path).unwrap().pairs, 1);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let beyond = ask(&dial(&path).unwrap(), &GateMessage::AskConnections(u32::MAX)).unwrap();
    assert_eq!(beyond, GateMessage::Connections(Page { next: None, connections: Vec::new() }));
    rig.served.stop().unwrap();
}

#[test]
fn connect_with_all_pairs_in_use_returns_resource_busy() {
    let rig = RemoteRig::new(2);
    let hosts = [(); 2].map(|()| connect(rig.path()).unwrap());
    let error = connect(rig.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains("all 2 queue pairs"), "{error}");
    drop(hosts);
    // Its pair may still be on its way back: it is waited for.
    let again = [(); 2].map(|()| connect(rig.path()).unwrap());
    assert!(!again[0].is_stopped());
}

#[test]
fn engine_stop_aborts_blocked_reads_and_writes_of_hosts() {
    let rig = RemoteRig::new(4);
    let path = rig.path();
    let host = rig.other.attach().unwrap();
    let listener = TcpListener::bind(&host, (THEIRS, PORT).into()).unwrap();
    let stopped = |error: io::Error| assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    let ready = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        let (path, ready) = (&path, &ready);
        let call = move || TcpStream::connect(&connect(path).unwrap(), (THEIRS, PORT).into()).unwrap();
        scope.spawn(move || {
            let mut stream = call();
            ready.wait();
            stopped(stream.read(&mut [0; 10]).unwrap_err());
        });
        scope.spawn(move || {
            let mut stream = call();
            ready.wait();
            stopped(stream.write_all(&vec![0; 32 << 20]).unwrap_err());
        });
        scope.spawn(move || {
            let mut stream = call();
            stream.set_nonblocking(true).unwrap();
            ready.wait();
            let error = loop {
                match stream.read(&mut [0; 10]).unwrap_err() {
                    error if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                    error => break error,
                }
            };
            stopped(error);
        });
        let streams = [(); 3].map(|()| listener.accept().unwrap());
        ready.wait();
        rig.served.stop().unwrap();
        drop(streams);
    });
}

/// A host writes anything anywhere into its memory, as fast as it can, while another one works: that one notices nothing.
#[test]
fn host_corrupting_its_pair_does_not_affect_other_hosts() {
    let rig = RemoteRig::new(2);
    let path = rig.path();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SplitMix(17);
            let mut lives = 0;
            while lives < 20 || !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                lives += 1;
                let mut mortal = Mortal::connect(&path);
                let any = std::net::SocketAddr::from((OURS, 0));
                let socket = mortal.state.connect(any, (THEIRS, 9).into()).unwrap();
                let _ = mortal.state.listen((OURS, 9).into(), 8, false);
                let words = mortal.state.words().clone();
                let mut value = {
                    let mut random = SplitMix(lives);
                    // Turns, kinds and sockets that there are, among others.
                    move || match random.next() % 4 {
                        0 => random.next(),
                        1 => random.next() % 16,
                        2 => random.next() & 0x0000_000f_0000_ff0f,
                        _ => u64::MAX,
                    }
                };
                // Records that are taken, while everything behind the request ring changes.
                let behind = ENGINE_SLEEPS + ENTRY_WORDS * (1 + 64);
                let begun = std::time::Instant::now();
                for step in 0u64.. {
                    if step > 20_000 && rig.served.counters().rejected > 0 {
                        break;
                    }
                    assert!(begun.elapsed() < Duration::from_secs(60), "no record is taken");
                    words.store(behind + random.next() as usize % (words.count() - behind), value());
                    if step % 8 == 0 {
                        mortal.state.inject(&std::array::from_fn(|_| value()));
                        mortal.engine.ring();
                    }
                }
                // Then everywhere, and as often where the rings and the flags are.
                for _ in 0..30_000 {
                    let at = random.next() as usize % words.count();
                    let at = if random.next().is_multiple_of(2) { at } else { at % 4096 };
                    words.store(at, value());
                }
                let _ = mortal.state.inject(&[socket.into(); 7]);
                mortal.engine.ring();
            }
        });
        for round in 0..10 {
            echo(&path, &rig.other, PORT + round, 200_000);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    rig.until("all are cleared away", |rig| {
        rig.served.counters().pairs_cleared == rig.served.sheets().gate().hosts_joined
    });
    assert!(rig.served.counters().rejected > 0);
    rig.served.stop().unwrap();
}

#[test]
fn serve_replaces_stale_socket_file_only() {
    let rig = RemoteRig::new(1);
    let path = rig.path();
    let serve = |at: &Path| {
        let (a, _b) = UnixDatagram::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        let settings = EngineSettings { remote_pairs: 1, ..settings(OURS) };
        let mut engine = Engine::start(&settings, Box::new(SocketWire(a, vec![0; 2000].into()))).unwrap();
        engine.serve(at, Access::default()).map(|()| engine)
    };
    let error = serve(&path).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    let file = rig.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = serve(&file).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    // The socket file that a killed engine leaves.
    let old = rig.dir.path().join("old.sock");
    drop(std::os::unix::net::UnixListener::bind(&old).unwrap());
    assert_eq!(dial(&old).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    drop(serve(&old).unwrap());
    let mut rig = rig;
    assert_eq!(rig.served.serve(&old, Access::default()).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mode = std::fs::metadata(&path).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}
