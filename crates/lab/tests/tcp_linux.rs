//! Our TCP against this kernel's, in both roles, through a bad link: every byte arrives, once and in its place, and both ends agree when it is over.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_core::random::SplitMix;
use millrace_core::time::Instant;
use millrace_lab::tcp_host::{Application, KERNEL_IP, OUR_IP, TcpHost};
use millrace_netio::link::{BurstLoss, Impairment, LinkSpec, Reorder, Share};
use millrace_tcp::conn::{Config, Happened, Reason};
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::{ConnectionId, Settings, Stack};

const PORT: u16 = 7000;
/// No transfer here needs as long on any machine; a connection that is stuck does.
const TIMEOUT: Duration = Duration::from_secs(120);

fn can_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tun = Path::new("/dev/net/tun").exists();
    if !root || !tun {
        eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
    }
    root && tun
}

fn settings() -> Settings {
    Settings {
        config: Config { receive_bytes: 256 << 10, ..Config::default() },
        connections: 1024,
        requests: 256,
        time_waits: 1024,
        records: 16_384,
        descriptors: 4096,
        host_pages: 2048,
        clusters: vec![ClusterSize { bytes: 8 << 20, page_bytes: 2048 }; 2],
        defers_acks: true,
        cookies: true,
        ports: 49_152..=65_535,
        secret: [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321],
    }
}

/// The bytes of a transfer: those from `at` on depend on nothing but `at` and the seed.
fn pattern(seed: u64, at: usize, len: usize) -> Vec<u8> {
    let word = |index: usize| SplitMix::numbered(seed, index as u64).next().to_le_bytes();
    let (first, last) = (at / 8, (at + len).div_ceil(8));
    let bytes: Vec<u8> = (first..last).flat_map(word).collect();
    bytes[at - first * 8..][..len].to_vec()
}

/// A connection of [`Echo`] or [`Caller`].
struct Line {
    id: ConnectionId,
    /// Read and not yet written.
    kept: Vec<u8>,
    peer_closed: bool,
    closed: bool,
}

/// Sends back what it gets, and closes when the other side has.
struct Echo {
    lines: Vec<Line>,
    ended: Arc<Mutex<Vec<Reason>>>,
    listens: bool,
}

impl Application for Echo {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        if !self.listens {
            stack.listen(SocketAddr::new(IpAddr::V4(OUR_IP), PORT), 256).expect("nobody else listens");
            self.listens = true;
        }
        while let Some(event) = stack.poll_event() {
            let id = event.connection;
            if event.happened.has(Happened::ESTABLISHED) {
                self.lines.push(Line { id, kept: Vec::new(), peer_closed: false, closed: false });
            }
            if event.happened.has(Happened::PEER_CLOSED)
                && let Some(line) = self.lines.iter_mut().find(|line| line.id == id)
            {
                line.peer_closed = true;
            }
            if event.happened.has(Happened::CLOSED) {
                self.lines.retain(|line| line.id != id);
                self.ended.lock().unwrap().push(event.reason);
            }
        }
        for line in &mut self.lines {
            echo(line, stack, now);
        }
    }
}

fn echo(line: &mut Line, stack: &mut Stack, now: Instant) {
    loop {
        if line.kept.is_empty() {
            let mut buffer = [0; 8192];
            let count = stack.read(line.id, &mut buffer, now).unwrap_or(0);
            line.kept.extend_from_slice(&buffer[..count]);
        }
        let written = stack.write(line.id, &line.kept, now).unwrap_or(0);
        line.kept.drain(..written);
        if written == 0 {
            break;
        }
    }
    if line.peer_closed && line.kept.is_empty() && !line.closed {
        let mut rest = [0; 1];
        if stack.read(line.id, &mut rest, now) == Ok(1) {
            line.kept.push(rest[0]);
            return;
        }
        line.closed = true;
        stack.close(line.id, now).expect("it is open");
    }
}

/// Opens a connection, sends `bytes` of a pattern, and checks that it comes back.
struct Caller {
    may_begin: Arc<AtomicBool>,
    id: Option<ConnectionId>,
    sent: usize,
    got: usize,
    peer_closed: bool,
    bytes: usize,
    seed: u64,
    outcome: Arc<Mutex<Option<Result<(), String>>>>,
}

impl Application for Caller {
    fn turn(&mut self, stack: &mut Stack, now: Instant) {
        if !self.may_begin.load(Ordering::Relaxed) {
            return;
        }
        let id = *self.id.get_or_insert_with(|| {
            let (here, there) = ((OUR_IP, 0).into(), (KERNEL_IP, PORT).into());
            stack.open(here, there, now).expect("there is room")
        });
        let say = |outcome| {
            self.outcome.lock().unwrap().get_or_insert(outcome);
        };
        let mut is_established = self.sent > 0;
        while let Some(event) = stack.poll_event() {
            is_established |= event.happened.has(Happened::ESTABLISHED);
            self.peer_closed |= event.happened.has(Happened::PEER_CLOSED);
            if event.happened.has(Happened::CLOSED) && event.reason != Reason::Finished {
                say(Err(format!("{} after {} bytes", event.reason, self.got)));
            }
        }
        while is_established && self.sent < self.bytes {
            let len = (self.bytes - self.sent).min(8192);
            let Ok(count) = stack.write(id, &pattern(self.seed, self.sent, len), now) else { break };
            self.sent += count;
            if self.sent == self.bytes {
                let _ = stack.close(id, now);
            }
            if count == 0 {
                break;
            }
        }
        let mut buffer = [0; 8192];
        while let Ok(count @ 1..) = stack.read(id, &mut buffer, now) {
            if buffer[..count] != pattern(self.seed, self.got, count)[..] {
                say(Err(format!("wrong bytes from {} on", self.got)));
            }
            self.got += count;
        }
        if self.peer_closed && self.got < self.bytes {
            say(Err(format!("the end after {} bytes", self.got)));
        } else if self.peer_closed {
            say(Ok(()));
            stack.release(id, now);
        }
    }
}

/// The kernel's end of an echo: sends, half-closes, and reads until the end.
fn call(to: SocketAddr, seed: u64, bytes: usize) -> Result<(), String> {
    let said = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).map_err(said("connect"))?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(said("time-out"))?;
    let mut writer = stream.try_clone().map_err(said("clone"))?;
    let sender = std::thread::spawn(move || {
        for at in (0..bytes).step_by(16_384) {
            writer.write_all(&pattern(seed, at, (bytes - at).min(16_384)))?;
        }
        writer.shutdown(Shutdown::Write)
    });
    let mut got = 0;
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer).map_err(said("read"))? {
            0 => break,
            count if buffer[..count] != pattern(seed, got, count)[..] => {
                return Err(format!("wrong bytes from {got} on"));
            }
            count => got += count,
        }
    }
    sender.join().unwrap().map_err(said("write"))?;
    if got == bytes { Ok(()) } else { Err(format!("{got} of {bytes} bytes came back")) }
}

/// The kernel echoes one connection.
fn kernel_echo(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut buffer = vec![0; 65_536];
    loop {
        match stream.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Write),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

fn both_ways(one: impl Fn(u64) -> Impairment) -> LinkSpec {
    LinkSpec { there: one(1), back: one(2) }
}

fn lossy(percent: u32) -> LinkSpec {
    both_ways(|seed| Impairment {
        loss: Share::from_ppm(percent * 10_000),
        delay: Duration::from_millis(3),
        seed,
        ..Impairment::default()
    })
}

/// Links, and bytes that cross them in a few seconds.
fn links() -> Vec<(&'static str, LinkSpec, usize)> {
    let delay = Duration::from_millis(3);
    let reordering = both_ways(|seed| Impairment {
        delay,
        reorder: Some(Reorder {
            share: Share::from_ppm(50_000),
            by_packets: 5,
            within: Duration::from_millis(5),
        }),
        duplicate: Share::from_ppm(20_000),
        seed,
        ..Impairment::default()
    });
    let bursts = both_ways(|seed| Impairment {
        delay,
        burst_loss: Some(BurstLoss { share: Share::from_ppm(20_000), mean_packets: 6 }),
        seed,
        ..Impairment::default()
    });
    vec![
        ("perfect", LinkSpec::default(), 8 << 20),
        ("1 % lost", lossy(1), 2 << 20),
        ("10 % lost", lossy(10), 200 << 10),
        ("reordered and doubled", reordering, 4 << 20),
        ("lost in bursts", bursts, 1 << 20),
    ]
}

#[test]
fn the_kernel_calls_us() {
    if !can_run() {
        return;
    }
    for (name, spec, bytes) in links() {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let app = Echo { lines: Vec::new(), ended: Arc::clone(&ended), listens: false };
        let host = TcpHost::start(&spec, &settings(), app).unwrap();
        let outcome = host.in_kernel(|| call((OUR_IP, PORT).into(), 7, bytes)).unwrap();
        let counters = host.stop().unwrap();
        assert_eq!(outcome, Ok(()), "{name}: {counters:?}");
    }
}

#[test]
fn we_call_the_kernel() {
    if !can_run() {
        return;
    }
    for (name, spec, bytes) in links() {
        let (outcome, may_begin) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let app = Caller {
            may_begin: Arc::clone(&may_begin),
            id: None,
            sent: 0,
            got: 0,
            peer_closed: false,
            bytes,
            seed: 9,
            outcome: Arc::clone(&outcome),
        };
        let host = TcpHost::start(&spec, &settings(), app).unwrap();
        let echoed = host.in_kernel(|| {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("nobody else is there");
            may_begin.store(true, Ordering::Relaxed);
            kernel_echo(&listener)
        });
        let begun = std::time::Instant::now();
        while outcome.lock().unwrap().is_none() && begun.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let counters = host.stop().unwrap();
        assert!(matches!(echoed, Ok(Ok(()))), "{name}: {echoed:?}");
        assert_eq!(*outcome.lock().unwrap(), Some(Ok(())), "{name}: {counters:?}");
    }
}
