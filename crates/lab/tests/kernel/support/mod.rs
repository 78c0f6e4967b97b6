//! What tests against this kernel share: whether they can run, a stack's settings, bytes to compare, both sides of an echo, a ping.
#![allow(unreachable_pub)]

pub mod cable;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::scope;
use std::time::{Duration, Instant};

use millrace_core::random::SplitMix;
use millrace_core::wire::checksum::sum16;
use millrace_offload::toe::{Host, TcpListener, TcpStream};
use millrace_tcp::conn::Config;
use millrace_tcp::recv::ClusterSize;
use millrace_tcp::stack::Settings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// No call here needs as long on any machine; one that hangs does.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns whether a namespace and a TUN device can be made here; if not, prints why.
pub fn can_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    let tun = Path::new("/dev/net/tun").exists();
    if !root || !tun {
        eprintln!("skipped: needs root ({root}) and /dev/net/tun ({tun})");
    }
    root && tun
}

/// A stack of a thousand connections, for tests that have no more.
pub fn stack_settings() -> Settings {
    Settings {
        config: Config { receive_bytes: 256 << 10, ..Config::default() },
        connections: 1024,
        requests: 256,
        listeners: 16,
        time_waits: 1024,
        records: 16_384,
        descriptors: 4096,
        host_pages: 2048,
        clusters: vec![ClusterSize { bytes: 8 << 20, page_bytes: 2048 }; 2],
        defers_acks: true,
        cookies: true,
        ports: (49_152..=65_535).into(),
        secret: [0x1234_5678_9abc_def0, 0x0fed_cba9_8765_4321],
    }
}

/// The bytes of a transfer: those from `at` on depend on nothing but `at` and the seed.
pub fn pattern(seed: u64, at: usize, len: usize) -> Vec<u8> {
    let word = |index: usize| SplitMix::numbered(seed, index as u64).next().to_le_bytes();
    let (first, last) = (at / 8, (at + len).div_ceil(8));
    let bytes: Vec<u8> = (first..last).flat_map(word).collect();
    bytes[at - first * 8..][..len].to_vec()
}

/// The kernel's side of an echo: sends, half-closes, and reads until the end.
pub fn kernel_calls(to: SocketAddr, seed: u64, bytes: usize) {
    let mut stream = std::net::TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    scope(|scope| {
        scope.spawn(move || {
            for at in (0..bytes).step_by(16_384) {
                writer.write_all(&pattern(seed, at, (bytes - at).min(16_384))).unwrap();
            }
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        assert!(all == pattern(seed, 0, bytes), "{} of {bytes} bytes came back, or others", all.len());
    });
}

/// A connection of our echo server.
struct Line {
    stream: TcpStream,
    kept: Vec<u8>,
    peer_closed: bool,
    shut: bool,
}

impl Line {
    /// Echoes all data that it can now. False: it is over.
    fn echo(&mut self) -> std::io::Result<bool> {
        let mut buffer = [0; 16_384];
        while !self.peer_closed && self.kept.len() < 65_536 {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.peer_closed = true,
                Ok(count) => self.kept.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        while !self.kept.is_empty() {
            match self.stream.write(&self.kept) {
                Ok(count) => drop(self.kept.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.peer_closed && self.kept.is_empty() && !self.shut {
            self.stream.shutdown(Shutdown::Write)?;
            self.shut = true;
        }
        Ok(!self.shut)
    }
}

/// Sleeps until something may have happened to a socket of the host.
fn wait(host: &Host) {
    if !host.arm() {
        let fd = host.readiness();
        let limit = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
        poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&limit)).unwrap();
    }
}

/// Echoes `count` connections that come to `at`, all at once, on one thread that waits by poll.
pub fn echo_server(host: &Host, at: SocketAddr, count: usize, listens: impl FnOnce()) {
    let begun = Instant::now();
    let is_over = |accepted, open| {
        assert!(begun.elapsed() < TIMEOUT, "{accepted} of {count} accepted, {open} open");
        accepted == count && open == 0
    };
    echo_until(host, at, listens, is_over, |error| panic!("echo: {error}"));
}

/// Echoes every connection that comes to `at`, until `is_over` returns true for the numbers of
/// accepted and open connections. Those that are open then end with it. `failed` gets the error of
/// each connection that ended early.
pub fn echo_until(
    host: &Host,
    at: SocketAddr,
    listens: impl FnOnce(),
    mut is_over: impl FnMut(usize, usize) -> bool,
    mut failed: impl FnMut(std::io::Error),
) {
    let listener = TcpListener::bind(host, at).unwrap();
    listener.set_nonblocking(true).unwrap();
    listens();
    let (mut lines, mut accepted) = (Vec::<Line>::new(), 0);
    while !is_over(accepted, lines.len()) {
        wait(host);
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            lines.push(Line { stream, kept: Vec::new(), peer_closed: false, shut: false });
            accepted += 1;
        }
        lines.retain_mut(|line| {
            line.echo().unwrap_or_else(|error| {
                failed(error);
                false
            })
        });
    }
}

/// An echo request through a raw socket; what follows the header in the reply.
pub fn ping(to: IpAddr, data: &[u8]) -> rustix::io::Result<Vec<u8>> {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, recv, sendto, socket, sockopt,
    };
    let (family, protocol, kind, reply, skipped) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 8, 0, 20),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 128, 129, 0),
    };
    let socket = socket(family, SocketType::RAW, Some(protocol))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
    let mut message = [&[kind, 0, 0, 0, 0, 77, 0, 1][..], data].concat();
    // Of ICMPv6 the kernel computes it.
    let check = !sum16(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    sendto(&socket, &message, SendFlags::empty(), &SocketAddr::new(to, 0))?;
    let mut buffer = vec![0; 9000];
    loop {
        let (bytes, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        let message = &buffer[skipped..bytes];
        if message[0] == reply && message[4..8] == [0, 77, 0, 1] {
            return Ok(message[8..].to_vec());
        }
    }
}
