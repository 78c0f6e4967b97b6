//! The same calls on the standard library's sockets and on an engine's, each with the kernel as the peer: the same comes of them.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::thread::scope;
use std::time::{Duration, Instant};

use crate::support::{TIMEOUT, can_run, kernel_calls};
use millrace_lab::tcp_host::{KERNEL_IP, OUR_IP};
use millrace_lab::toe_host::ToeHost;
use millrace_offload::toe;
use rustix::net::sockopt;

const PORT: u16 = 7300;

fn ours(port: u16) -> SocketAddr {
    (OUR_IP, port).into()
}

/// What tests call; `linger` is one of them that the standard library has for itself only.
trait Stream: Sized {
    fn read(&self, to: &mut [u8]) -> io::Result<usize>;
    fn read_parts(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize>;
    fn write(&self, bytes: &[u8]) -> io::Result<usize>;
    fn write_parts(&self, first: &[u8], second: &[u8]) -> io::Result<usize>;
    fn peek(&self, to: &mut [u8]) -> io::Result<usize>;
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn take_error(&self) -> io::Result<Option<io::Error>>;
    fn set_nonblocking(&self, is_on: bool) -> io::Result<()>;
    fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
    fn read_timeout(&self) -> io::Result<Option<Duration>>;
    fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
    fn write_timeout(&self) -> io::Result<Option<Duration>>;
    fn set_nodelay(&self, is_on: bool) -> io::Result<()>;
    fn nodelay(&self) -> io::Result<bool>;
    fn linger(&self, limit: Duration);
    fn peer_addr(&self) -> io::Result<SocketAddr>;
}

macro_rules! stream {
    ($kind:ty, $linger:expr) => {
        impl Stream for $kind {
            fn read(&self, to: &mut [u8]) -> io::Result<usize> {
                Read::read(&mut &*self, to)
            }
            fn read_parts(&self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
                (&mut &*self).read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
            }
            fn write(&self, bytes: &[u8]) -> io::Result<usize> {
                Write::write(&mut &*self, bytes)
            }
            fn write_parts(&self, first: &[u8], second: &[u8]) -> io::Result<usize> {
                (&mut &*self).write_vectored(&[IoSlice::new(first), IoSlice::new(second)])
            }
            fn peek(&self, to: &mut [u8]) -> io::Result<usize> {
                <$kind>::peek(self, to)
            }
            fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                <$kind>::shutdown(self, how)
            }
            fn take_error(&self) -> io::Result<Option<io::Error>> {
                <$kind>::take_error(self)
            }
            fn set_nonblocking(&self, is_on: bool) -> io::Result<()> {
                <$kind>::set_nonblocking(self, is_on)
            }
            fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                <$kind>::set_read_timeout(self, limit)
            }
            fn read_timeout(&self) -> io::Result<Option<Duration>> {
                <$kind>::read_timeout(self)
            }
            fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
                <$kind>::set_write_timeout(self, limit)
            }
            fn write_timeout(&self) -> io::Result<Option<Duration>> {
                <$kind>::write_timeout(self)
            }
            fn set_nodelay(&self, is_on: bool) -> io::Result<()> {
                <$kind>::set_nodelay(self, is_on)
            }
            fn nodelay(&self) -> io::Result<bool> {
                <$kind>::nodelay(self)
            }
            fn linger(&self, limit: Duration) {
                #[allow(clippy::redundant_closure_call)]
                $linger(self, limit)
            }
            fn peer_addr(&self) -> io::Result<SocketAddr> {
                <$kind>::peer_addr(self)
            }
        }
    };
}

stream!(std::net::TcpStream, |stream: &std::net::TcpStream, limit| {
    sockopt::set_socket_linger(stream.as_fd(), Some(limit)).unwrap();
});
stream!(toe::TcpStream, |stream: &toe::TcpStream, limit| {
    stream.set_linger(Some(limit)).unwrap();
    assert_eq!(stream.linger().unwrap(), Some(limit));
});

/// The result of each call, in order.
#[derive(Default, PartialEq, Debug)]
struct Report(Vec<String>);

impl Report {
    fn note<T: std::fmt::Debug>(&mut self, call: &str, outcome: io::Result<T>) {
        self.0.push(format!("{call}: {:?}", outcome.map_err(|error| error.kind())));
    }
}

/// Waits for a condition.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Leaves bytes of a connection unread, so that it is reset when it closes; then closes it.
fn reset(peer: std::net::TcpStream) {
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    assert!(peer.peek(&mut [0]).unwrap() > 0);
    drop(peer);
}

/// All calls, on connections that `pair` makes: an own end, and the peer's.
fn calls<S: Stream>(pair: &dyn Fn() -> (S, std::net::TcpStream)) -> Report {
    let mut report = Report::default();
    let (own, mut peer) = pair();
    own.set_read_timeout(Some(TIMEOUT)).unwrap();
    report.note("a time-out", own.read_timeout());
    report.note("no time-out", own.write_timeout());
    report.note("a time-out of 0", own.set_read_timeout(Some(Duration::ZERO)));
    report.note("a time-out of 0", own.set_write_timeout(Some(Duration::ZERO)));
    report.note("nodelay", own.nodelay());
    report.note("set nodelay", own.set_nodelay(true));
    report.note("nodelay", own.nodelay());
    // Reading.
    peer.write_all(b"hello").unwrap();
    until("five bytes", || own.peek(&mut [0; 9]).unwrap() == 5);
    report.note("read 2", own.read(&mut [0; 2]));
    // With something there: where there is nothing, the kernel waits for bytes before it reads none of them.
    report.note("read nothing", own.read(&mut []));
    let (mut first, mut second) = ([0; 1], [0; 9]);
    report.note("read parts", own.read_parts(&mut first, &mut second));
    report.note("they are", Ok((first, second)));
    own.set_nonblocking(true).unwrap();
    report.note("read in vain", own.read(&mut [0; 2]));
    report.note("peek in vain", own.peek(&mut [0; 2]));
    own.set_nonblocking(false).unwrap();
    // Writing.
    report.note("write parts", own.write_parts(b"ab", b"cde"));
    report.note("write nothing", own.write(b""));
    let mut got = [0; 5];
    peer.read_exact(&mut got).unwrap();
    report.note("they are", Ok(got));
    // Data that has come can still be read when reading has ended.
    peer.write_all(b"late").unwrap();
    until("four bytes", || own.peek(&mut [0; 9]).unwrap() == 4);
    report.note("shut reading", own.shutdown(Shutdown::Read));
    report.note("read", own.read(&mut [0; 9]));
    report.note("read the end", own.read(&mut [0; 9]));
    report.note("write all the same", own.write(b"x"));
    report.note("shut writing", own.shutdown(Shutdown::Write));
    report.note("shut it again", own.shutdown(Shutdown::Write));
    report.note("write behind it", own.write(b"x"));
    report.note("no error", own.take_error().map(|error| error.is_none()));
    report.note("the peer reads", peer.read(&mut [0; 9]));
    report.note("and the end", peer.read(&mut [0; 9]));
    // A reset is reported once: to a read, to a write, or to a query for the error.
    for first in ["read", "ask"] {
        let (own, peer) = pair();
        own.set_read_timeout(Some(TIMEOUT)).unwrap();
        own.write(b"unread").unwrap();
        reset(peer);
        if first == "read" {
            report.note("read a reset", own.read(&mut [0; 9]));
        } else {
            let taken = std::cell::Cell::new(None);
            until("a reset", || {
                taken.set(own.take_error().unwrap().map(|error| error.kind()));
                taken.get().is_some()
            });
            report.note("ask for a reset", Ok(taken.get()));
        }
        report.note("nothing to ask for", own.take_error().map(|error| error.is_none()));
        report.note("read behind it", own.read(&mut [0; 9]));
        report.note("write behind it", own.write(b"x"));
        report.note("shut behind it", own.shutdown(Shutdown::Write));
        // It is one all the same, and its peer is known here at least.
        drop(own);
    }
    // A connection that lingers for no time is broken off.
    let (own, peer) = pair();
    own.linger(Duration::ZERO);
    drop(own);
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    report.note("broken off", peer.read(&mut [0; 9]));
    // One that lingers waits for its peer, up to its limit, and not in vain.
    let (own, peer) = pair();
    let limit = Duration::from_secs(1);
    own.linger(limit);
    own.set_nonblocking(true).unwrap();
    let block = [1; 65_536];
    let mut written = 0;
    // As much as there is room for, so that it cannot all be at the peer.
    while let Ok(count) = own.write(&block) {
        written += count;
    }
    let begun = Instant::now();
    drop(own);
    report.note("it waited", Ok(begun.elapsed() >= limit));
    report.note("all comes", all_of(peer).map(|bytes| bytes == written));
    let (own, peer) = pair();
    own.linger(TIMEOUT);
    assert!(own.peer_addr().is_ok());
    own.write(&block[..1000]).unwrap();
    let begun = Instant::now();
    drop(own);
    report.note("it did not", Ok(begun.elapsed() < TIMEOUT / 2));
    report.note("all comes", all_of(peer));
    report
}

fn all_of(mut peer: std::net::TcpStream) -> io::Result<usize> {
    peer.set_read_timeout(Some(TIMEOUT))?;
    io::copy(&mut peer, &mut io::sink()).map(|bytes| bytes as usize)
}

#[test]
fn tcp_stream_calls_match_standard_library() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    // Both ends the kernel's.
    let loopback = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = loopback.local_addr().unwrap();
    let of_kernel = calls(&|| (std::net::TcpStream::connect(at).unwrap(), loopback.accept().unwrap().0));
    let host = toe.engine().attach().unwrap();
    let listener = toe::TcpListener::bind(&host, ours(PORT)).unwrap();
    let accepted = calls(&|| {
        let peer = toe.in_kernel(|| std::net::TcpStream::connect(ours(PORT)).unwrap()).unwrap();
        (listener.accept().unwrap().0, peer)
    });
    assert_eq!(of_kernel, accepted);
    let there = toe.in_kernel(|| std::net::TcpListener::bind((KERNEL_IP, PORT)).unwrap()).unwrap();
    let connected = calls(&|| {
        let own = toe::TcpStream::connect(&host, (KERNEL_IP, PORT).into()).unwrap();
        (own, there.accept().unwrap().0)
    });
    assert_eq!(of_kernel, connected);
    assert_eq!(toe.engine().counters().rejected, 0);
}

#[test]
fn listeners_are_bound_as_the_standard_librarys_are() {
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let host = toe.engine().attach().unwrap();
    let listener = toe::TcpListener::bind(&host, ours(0)).unwrap();
    let at = listener.local_addr().unwrap();
    assert!(at.port() > 0 && at.ip() == OUR_IP);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false).unwrap();
    let kernel = toe.in_kernel(|| std::net::TcpStream::connect(at).unwrap()).unwrap();
    let stream = listener.incoming().next().unwrap().unwrap();
    assert_eq!(stream.peer_addr().unwrap(), kernel.local_addr().unwrap());
    assert!(listener.take_error().unwrap().is_none());
    let none = toe::TcpStream::connect_timeout(&host, (KERNEL_IP, PORT).into(), Duration::ZERO);
    assert_eq!(none.unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// Several threads accept from one port, as with `SO_REUSEPORT`.
#[test]
fn threads_accept_from_one_port() {
    const THREADS: usize = 3;
    const EACH: usize = 8;
    if !can_run() {
        return;
    }
    let toe = ToeHost::start(&ToeHost::settings()).unwrap();
    let listening = std::sync::Barrier::new(THREADS + 1);
    scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let host = toe.engine().attach().unwrap();
                let listener = toe::TcpListener::bind_shared(&host, ours(PORT), 128).unwrap();
                listening.wait();
                // All threads wait, so each gets a part of the connections and goes on to echo
                // them.
                for _ in 0..EACH {
                    let (mut stream, _) = listener.accept().unwrap();
                    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                    let mut bytes = Vec::new();
                    stream.read_to_end(&mut bytes).unwrap();
                    stream.write_all(&bytes).unwrap();
                }
            });
        }
        listening.wait();
        toe.in_kernel(|| {
            std::thread::scope(|scope| {
                for call in 0..THREADS * EACH {
                    scope.spawn(move || kernel_calls(ours(PORT), call as u64, 20_000 + call));
                }
            });
        })
        .unwrap();
    });
    let counters = toe.stop().unwrap();
    assert_eq!(counters.engine.rejected, 0);
    assert_eq!(counters.stack.accepted, (THREADS * EACH) as u64);
}
