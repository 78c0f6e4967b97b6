//! A soak of the offload engine at an interface by AF_XDP, through loss: short and long connections, slow readers and idle ones, while hosts and
//! the engine, all of them processes, are killed or end. Every call comes to an end, nothing wrong is received, calls fail only when something
//! was killed or ended, hosts notice when their engine is gone, and an engine that ends in peace has everything back. Needs root.
//!
//! 20 seconds; `make soak-toe MINUTES=60` is the long form.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use crate::support::{echo_until, pattern};
use millrace_core::random::SplitMix;
use millrace_core::time;
use millrace_lab::netns::{SERVER_IP, TwoHosts};
use millrace_netio::xdp::XdpRawConfig;
use millrace_offload::toe::{
    Access, Device, Engine, EngineSettings, Inbound, ToeCounters, XdpDevice, connect as connect_to_engine,
};

const ENGINE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);
const SHARED: &str = "vs";
/// Each is served by a host of its own.
const PORTS: [u16; 3] = [7300, 7301, 7302];
const KERNELS_PORT: u16 = 7310;
/// Set for the engine's process, and for a host's: where the engine serves.
const IS_ENGINE: &str = "MILLRACE_SOAK_ENGINE";
const IS_HOST: &str = "MILLRACE_SOAK_HOST";
/// Where a host listens.
const HOST_PORT: &str = "MILLRACE_SOAK_PORT";
/// How long the soak takes.
const SECONDS: &str = "MILLRACE_SOAK_SECONDS";
const DEFAULT_SECONDS: u64 = 20;
/// One packet in `LOST_OF` is lost, in each direction.
const LOST_OF: u64 = 100;
/// Memory that an engine's process may take in addition once it has work: data that its hosts keep
/// for connections that cannot be written to.
const SLACK: u64 = 16 << 20;
/// No call waits longer for anything.
const CALL: Duration = Duration::from_secs(15);
/// And none takes longer than this, all its waits together.
const HANGS: Duration = Duration::from_secs(90);

/// A device that loses packets.
struct Lossy {
    device: XdpDevice,
    random: SplitMix,
}

impl Device for Lossy {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> std::io::Result<bool> {
        let is_lost = self.random.below(LOST_OF) == 0;
        self.device.receive(&mut |packet| {
            if !is_lost {
                take(packet);
            }
        })
    }

    fn send(&mut self, packet: &[u8]) -> std::io::Result<bool> {
        if self.random.below(LOST_OF) == 0 { Ok(true) } else { self.device.send(packet) }
    }

    fn flush(&mut self, now: time::Instant) -> std::io::Result<bool> {
        self.device.flush(now)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.device.readable()
    }
}

fn start_engine() -> std::io::Result<Engine> {
    let mut settings = EngineSettings::new(&[(ENGINE.into(), 24)]).on_ethernet(SHARED)?;
    (settings.pairs, settings.remote_pairs) = (0, PORTS.len());
    let device = XdpDevice::open(&XdpRawConfig::new(SHARED), &settings.interface)?;
    Engine::start(&settings, Box::new(Lossy { device, random: SplitMix(u64::from(std::process::id())) }))
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Returns the bytes of this process's memory: allocated and, of these, touched.
fn memory() -> [u64; 2] {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: Vec<u64> = pages.split_whitespace().map(|count| count.parse().unwrap()).collect();
    [pages[5] * 4096, pages[1] * 4096]
}

/// Returns the engine's resources that are still in use.
fn in_use(counters: &ToeCounters) -> [u64; 4] {
    [counters.connections, counters.descriptors, counters.host_pages, counters.receive_pages]
}

/// Makes a panic on any of a process's threads end the process, without waiting for it.
fn end_by_panic() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(101);
    }));
}

/// The engine's process. Each line is a host that was killed or has ended; the end of its input ends the engine.
#[test]
fn engine_process() {
    let Some(path) = std::env::var_os(IS_ENGINE) else { return };
    end_by_panic();
    let mut engine = start_engine().unwrap();
    engine.serve(path.as_ref(), Access::default()).unwrap();
    let files = open_files();
    println!("listens");
    let mut before = None;
    for line in std::io::stdin().lines() {
        line.unwrap();
        before.get_or_insert_with(memory);
    }
    let begun = Instant::now();
    let is_left = || {
        let (counters, gate) = (engine.counters(), engine.sheets().gate());
        in_use(&counters) == [0; 4] && gate.hosts == 0 && counters.pairs_cleared == gate.hosts_joined
    };
    // Files of a host are closed after it has left the counters.
    while !(is_left() && open_files() == files) && begun.elapsed() < HANGS {
        sleep(Duration::from_millis(20));
    }
    let (counters, gate) = (engine.counters(), engine.sheets().gate());
    assert!(is_left(), "not all is back: {counters:?} {gate:?}");
    assert_eq!((counters.rejected, counters.events_lost), (0, 0), "{counters:?}");
    assert_eq!((gate.no_pair, gate.bad_callers), (0, 0), "{gate:?}");
    assert_eq!(open_files(), files, "files");
    // All that an engine ever needs it takes at its start, and touches it bit by bit.
    let ([taken_before, _], [taken, touched]) = (before.unwrap(), memory());
    assert!(taken <= taken_before + SLACK, "memory grows: {taken_before} bytes, then {taken}");
    println!(
        "settled: {} MB taken, {} MB before, {} MB touched; {counters:?}",
        taken >> 20,
        taken_before >> 20,
        touched >> 20
    );
}

/// A host's process: an echo server. The end of its input, or that of its engine, ends it, with whatever it has open.
#[test]
fn host_process() {
    let Some(path) = std::env::var_os(IS_HOST) else { return };
    end_by_panic();
    let port: u16 = std::env::var(HOST_PORT).unwrap().parse().unwrap();
    let (host, is_over) = (connect_to_engine(path).unwrap(), AtomicBool::new(false));
    scope(|scope| {
        scope.spawn(|| {
            let said = std::io::stdin().lines().count();
            assert_eq!(said, 0, "a host is told nothing");
            is_over.store(true, Ordering::Relaxed);
        });
        let ends = |_, _| is_over.load(Ordering::Relaxed) || host.is_stopped();
        // Peers that gave up: their connections' errors are no news here.
        echo_until(&host, (ENGINE, port).into(), || println!("serves {port}"), ends, drop);
        if host.is_stopped() {
            std::process::exit(ENGINE_GONE);
        }
    });
}

/// Says that a host's engine is no more.
const ENGINE_GONE: i32 = 3;

/// A process of this test, from outside.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    says: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(command: &mut Command, test: &str, begin: &str) -> Self {
        command.args(["--exact", test, "--nocapture"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { orders: child.stdin.take(), child, says };
        process.until(begin);
        process
    }

    /// Reads its lines up to one that begins like this.
    fn until(&mut self, begin: &str) {
        let line = self.says.find(|line| line.as_ref().unwrap().contains(begin));
        let line = line.unwrap_or_else(|| panic!("a process has ended before it said {begin:?}"));
        if begin == "settled" {
            println!("{}", line.unwrap());
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit code, when it has ended by itself.
    fn wait(&mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < HANGS, "a process hangs");
            sleep(Duration::from_millis(5));
        }
    }
}

/// The engine's process and its hosts'.
struct Engines {
    engine: Process,
    hosts: Vec<Process>,
    path: PathBuf,
}

impl Engines {
    fn start(hosts: &TwoHosts, path: &Path) -> Self {
        let mut command = hosts.on_server(&std::env::current_exe().unwrap());
        let engine = Process::start(command.env(IS_ENGINE, path), "toe_soak::engine_process", "listens");
        let hosts = PORTS.iter().map(|&port| Self::host(path, port)).collect();
        Self { engine, hosts, path: path.to_owned() }
    }

    fn host(path: &Path, port: u16) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(IS_HOST, path).env(HOST_PORT, port.to_string());
        Process::start(&mut command, "toe_soak::host_process", "serves")
    }

    /// Kills or ends a host with whatever it has open; until there is another one.
    fn end_host(&mut self, index: usize, is_killed: bool) {
        let mut host = self.hosts.remove(index);
        writeln!(self.engine.orders.as_mut().unwrap(), "{index}").unwrap();
        if is_killed {
            host.kill();
        } else {
            host.orders = None;
            assert_eq!(host.wait(), Some(0), "a host has found something");
        }
        self.hosts.insert(index, Self::host(&self.path, PORTS[index]));
    }

    /// Kills the engine; its hosts notice.
    fn kill(self) {
        let Self { engine, mut hosts, .. } = self;
        engine.kill();
        for host in &mut hosts {
            assert_eq!(host.wait(), Some(ENGINE_GONE), "a host has not noticed that its engine is gone");
        }
    }

    fn end(self) {
        let Self { mut engine, mut hosts, .. } = self;
        for host in &mut hosts {
            host.orders = None;
            assert_eq!(host.wait(), Some(0), "a host has found something");
        }
        engine.orders = None;
        engine.until("settled");
        assert_eq!(engine.wait(), Some(0), "the engine's process has found something");
    }
}

/// The callers' progress.
#[derive(Default)]
struct Watch {
    /// Odd while something is being killed or started; calls that see it change may fail.
    epoch: AtomicUsize,
    /// No new calls.
    rests: AtomicBool,
    is_over: AtomicBool,
    busy: AtomicUsize,
    done: [AtomicU64; KINDS.len()],
    failed: AtomicU64,
    kernel_bytes: AtomicU64,
}

impl Watch {
    /// While `work` goes on calls may fail.
    fn disturb<T>(&self, work: impl FnOnce() -> T) -> T {
        self.epoch.fetch_add(1, Ordering::SeqCst);
        let done = work();
        self.epoch.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Calls until all is over.
    fn call_on(&self, kind: usize, seed: u64) {
        let mut random = SplitMix(seed);
        while !self.is_over.load(Ordering::SeqCst) {
            self.busy.fetch_add(1, Ordering::SeqCst);
            if self.rests.load(Ordering::SeqCst) {
                self.busy.fetch_sub(1, Ordering::SeqCst);
                sleep(Duration::from_millis(5));
                continue;
            }
            let (before, begun) = (self.epoch.load(Ordering::SeqCst), Instant::now());
            let port = PORTS[random.below(PORTS.len() as u64) as usize];
            let outcome = KINDS[kind].1((ENGINE, port).into(), &mut random);
            let is_disturbed = before % 2 == 1 || self.epoch.load(Ordering::SeqCst) != before;
            let took = begun.elapsed();
            self.busy.fetch_sub(1, Ordering::SeqCst);
            assert!(took < HANGS, "a call has taken {took:?}: {} {outcome:?}", KINDS[kind].0);
            match outcome {
                Ok(()) => drop(self.done[kind].fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    assert!(is_disturbed, "{} has failed after {took:?}: {error}", KINDS[kind].0);
                    assert_ne!(error.kind(), ErrorKind::InvalidData, "{}: {error}", KINDS[kind].0);
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// No call is under way.
    fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while self.busy.load(Ordering::SeqCst) > 0 {
            assert!(begun.elapsed() < HANGS, "a call hangs");
            sleep(Duration::from_millis(5));
        }
    }
}

type Call = fn(SocketAddr, &mut SplitMix) -> std::io::Result<()>;

/// What callers do.
const KINDS: [(&str, Call); 4] =
    [("short connections", short), ("bulk both ways", bulk), ("slow readers", slow), ("idle", idle)];

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, CALL)?;
    stream.set_read_timeout(Some(CALL))?;
    stream.set_write_timeout(Some(CALL))?;
    Ok(stream)
}

/// Reads `bytes` bytes of a pattern, and the end if it follows; `pause` before each piece.
fn read_back(stream: &mut TcpStream, seed: u64, bytes: usize, pause: Duration) -> std::io::Result<()> {
    let (mut at, mut buffer) = (0, [0; 8192]);
    while at < bytes {
        sleep(pause);
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        if buffer[..count] != pattern(seed, at, count) {
            return Err(Error::new(ErrorKind::InvalidData, format!("wrong bytes from {at} on")));
        }
        at += count;
    }
    Ok(())
}

fn echo(stream: &mut TcpStream, seed: u64, bytes: usize, pause: Duration) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    scope(|scope| {
        let writes = scope.spawn(move || {
            for at in (0..bytes).step_by(16_384) {
                writer.write_all(&pattern(seed, at, (bytes - at).min(16_384)))?;
            }
            writer.shutdown(Shutdown::Write)
        });
        let read = read_back(stream, seed, bytes, pause);
        if read.is_err() {
            // The writer is not to wait for its time-out.
            let _ = stream.shutdown(Shutdown::Both);
        }
        let written = writes.join().unwrap();
        read.and(written)
    })?;
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidData, "more than was sent")),
    }
}

fn short(to: SocketAddr, random: &mut SplitMix) -> std::io::Result<()> {
    let bytes = 1 + random.below(500) as usize;
    let mut stream = connect(to)?;
    stream.write_all(&pattern(9, 0, bytes))?;
    read_back(&mut stream, 9, bytes, Duration::ZERO)
}

fn bulk(to: SocketAddr, random: &mut SplitMix) -> std::io::Result<()> {
    echo(&mut connect(to)?, random.next(), 500_000 + random.below(1_500_000) as usize, Duration::ZERO)
}

fn slow(to: SocketAddr, random: &mut SplitMix) -> std::io::Result<()> {
    echo(&mut connect(to)?, random.next(), 800_000, Duration::from_millis(3))
}

fn idle(to: SocketAddr, random: &mut SplitMix) -> std::io::Result<()> {
    let mut stream = connect(to)?;
    sleep(Duration::from_millis(500 + random.below(2000)));
    echo(&mut stream, random.next(), 10, Duration::ZERO)
}

/// The kernel's own traffic on the same interface, which nothing may disturb.
fn kernels_talk(hosts: &TwoHosts, watch: &Watch) {
    let listener =
        hosts.inside_server(|| std::net::TcpListener::bind((SERVER_IP, KERNELS_PORT)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
        });
        let mut stream = hosts.on_client(|| connect(to).unwrap()).unwrap();
        while !watch.is_over.load(Ordering::SeqCst) {
            stream.write_all(&pattern(5, 0, 65_536)).unwrap();
            read_back(&mut stream, 5, 65_536, Duration::ZERO).expect("the kernel's own connection");
            watch.kernel_bytes.fetch_add(65_536, Ordering::Relaxed);
            sleep(Duration::from_millis(2));
        }
        stream.shutdown(Shutdown::Write).unwrap();
    });
}

/// Both hosts; `None`, with the reason printed, where it cannot be.
fn lay() -> Option<TwoHosts> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    let hosts = TwoHosts::with_queues(true, 2).unwrap();
    let off =
        ["netns", "exec", &hosts.client, "ethtool", "-K", "vc", "tx", "off", "tso", "off", "gso", "off"];
    assert!(std::process::Command::new("ip").args(off).output().unwrap().status.success());
    match hosts.inside_server(start_engine).unwrap() {
        Err(error) if error.to_string().contains("built without AF_XDP") => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
        Ok(_) => Some(hosts),
    }
}

#[test]
fn soak_with_kills_leaks_nothing_and_never_hangs() {
    let Some(hosts) = lay() else { return };
    let seconds = std::env::var(SECONDS).map_or(DEFAULT_SECONDS, |text| text.parse().expect("seconds"));
    let (begun, soak) = (Instant::now(), Duration::from_secs(seconds));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("engine.sock");
    let files = open_files();
    let mut random = SplitMix(seconds);
    let watch = Watch { epoch: AtomicUsize::new(1), ..Watch::default() };
    let (mut lives, mut hosts_gone) = ([0; 2], [0; 2]);
    scope(|scope| {
        let (hosts, watch) = (&hosts, &watch);
        scope.spawn(move || kernels_talk(hosts, watch));
        // Their sockets are those of the thread that they are started from.
        scope.spawn(move || {
            let call = || {
                std::thread::scope(|scope| {
                    for (seed, kind) in [0, 0, 1, 1, 2, 3].into_iter().enumerate() {
                        scope.spawn(move || watch.call_on(kind, seed as u64));
                    }
                });
            };
            hosts.on_client(call).unwrap();
        });
        let _ends = Ends(watch);
        while begun.elapsed() < soak {
            let mut engines = Engines::start(hosts, &path);
            watch.epoch.fetch_add(1, Ordering::SeqCst);
            watch.rests.store(false, Ordering::SeqCst);
            // Long lives in a long soak: what leaks needs time to show.
            for _ in 0..3 + random.below(4 + seconds / 12) {
                sleep(Duration::from_millis(300 + random.below(700)));
                let (index, is_killed) =
                    (random.below(PORTS.len() as u64) as usize, hosts_gone[0] <= hosts_gone[1]);
                watch.disturb(|| engines.end_host(index, is_killed));
                hosts_gone[usize::from(!is_killed)] += 1;
            }
            // By turns, so that either happens however short this is.
            let is_killed = lives[0] <= lives[1];
            if is_killed {
                watch.epoch.fetch_add(1, Ordering::SeqCst);
                engines.kill();
            } else {
                watch.rest();
                watch.epoch.fetch_add(1, Ordering::SeqCst);
                engines.end();
            }
            lives[usize::from(!is_killed)] += 1;
        }
    });
    let took = begun.elapsed().as_secs_f64();
    let done: Vec<String> = KINDS
        .iter()
        .zip(&watch.done)
        .map(|((name, _), done)| format!("{} {name}", done.load(Ordering::Relaxed)))
        .collect();
    println!(
        "{took:.0} s: {}; {} calls failed by {} kills of the engine, {} kills of hosts and {} ends of hosts; {} ends in peace; the kernel's own \
         connection: {:.0} Mb/s each way",
        done.join(", "),
        watch.failed.load(Ordering::Relaxed),
        lives[0],
        hosts_gone[0],
        hosts_gone[1],
        lives[1],
        watch.kernel_bytes.load(Ordering::Relaxed) as f64 * 8e-6 / took,
    );
    assert!(lives.iter().chain(&hosts_gone).all(|&count| count > 0), "{lives:?} {hosts_gone:?}");
    // The others take longer, so that in a short soak each may meet a kill.
    assert!(watch.done[..2].iter().all(|done| done.load(Ordering::Relaxed) > 0), "{done:?}");
    assert!(watch.kernel_bytes.load(Ordering::Relaxed) > 0);
    assert_eq!(open_files(), files, "files of the callers");
}

/// Ends the callers, also when something is found.
struct Ends<'a>(&'a Watch);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}
