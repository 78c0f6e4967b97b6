//! Steered packets reach an AF_XDP socket, all others the kernel's sockets. Needs root; skipped otherwise.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_netio::xdp::socket::{SocketConfig, SocketRings, XdpSocket};
use millrace_netio::xdp::steer::{Protocol, Steering};
use millrace_netio::xdp::umem::{FrameKind, Frames};

/// A frame to receive into takes a whole chunk, since the kernel puts headroom before the packet.
const FRAME_BYTES: usize = 4096;
const ENTRIES: u32 = 32;
/// Ethernet, IPv4, UDP.
const V4_HEADERS: usize = 14 + 20 + 8;
const V6_HEADERS: usize = 14 + 40 + 8;

/// An AF_XDP socket that receives the packets arriving at the viewers' side.
struct Receiver {
    socket: XdpSocket,
    rings: SocketRings,
    frames: Frames,
}

impl Receiver {
    fn open(net: &Wire) -> Option<Self> {
        let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(2)), 1);
        let config = SocketConfig {
            interface: "vb".to_owned(),
            queue: 0,
            arena: Arc::clone(&arena),
            zero_copy: false,
            multi: false,
            tx_entries: ENTRIES,
            rx_entries: ENTRIES,
            tx_budget: ENTRIES,
        };
        let (socket, mut rings) = match net.viewers.inside(|| XdpSocket::open(&config)) {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let mut frames = Frames::take_from(&arena, 1, false, FRAME_BYTES);
        rings.fill.free(ENTRIES);
        for _ in 0..ENTRIES {
            assert!(rings.fill.push(frames.take(FrameKind::Full).expect("a frame")));
        }
        rings.fill.publish();
        Some(Self { socket, rings, frames })
    }

    /// The next frame that came.
    fn next(&mut self) -> Vec<u8> {
        let begun = Instant::now();
        let rx = self.rings.rx.as_mut().expect("a ring to receive");
        while rx.available() == 0 {
            assert!(begun.elapsed() < TIMEOUT, "nothing came to the AF_XDP socket");
            std::thread::yield_now();
        }
        let desc = rx.pop().expect("a descriptor");
        rx.release();
        // With unaligned chunks the upper 16 bits say where in the frame the packet begins.
        let (frame, offset) = (desc.address & ((1 << 48) - 1), (desc.address >> 48) as usize);
        let bytes = self.frames.bytes_mut(frame).expect("one of our frames");
        let packet = bytes[offset..offset + desc.len as usize].to_vec();
        self.rings.fill.free(1);
        assert!(self.rings.fill.push(frame));
        self.rings.fill.publish();
        packet
    }

    fn is_empty(&mut self) -> bool {
        self.rings.rx.as_mut().is_none_or(|rx| rx.available() == 0)
    }
}

fn local(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// A kernel socket at an address of the viewers that waits for a bounded time.
fn kernel(net: &Wire, at: &str) -> UdpSocket {
    let socket = net.viewers.inside(|| UdpSocket::bind(at)).expect("a socket");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
    socket
}

fn next(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0; 2048];
    let length = socket.recv(&mut bytes).expect("a datagram at the kernel's socket");
    bytes.truncate(length);
    bytes
}

#[test]
fn steered_packets_reach_the_socket_and_others_the_kernel() {
    let Some(net) = Wire::new() else { return };
    let Some(mut receiver) = Receiver::open(&net) else { return };
    let steering = net.viewers.inside(|| Steering::attach("vb")).expect("a program");
    let tx = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    let tx6 = net.server.inside(|| UdpSocket::bind("[fd77::1]:0")).expect("a socket");
    // The same port of another address, another port, and the steered ones while nothing is steered yet.
    let [here, there, other, here6] =
        ["10.77.0.2:5004", "10.77.0.3:5004", "10.77.0.2:5006", "[fd77::2]:5004"]
            .map(|at| (at, kernel(&net, at)));
    let send = |to: &str, text: &[u8]| {
        let tx = if to.starts_with('[') { &tx6 } else { &tx };
        tx.send_to(text, local(to)).expect("send");
    };
    for (at, socket) in [&here, &there, &other, &here6] {
        send(at, b"before");
        assert_eq!(next(socket), b"before");
    }
    steering.steer(Protocol::Udp, local(here.0)).expect("steer");
    steering.steer(Protocol::Udp, local(here6.0)).expect("steer");
    // No socket is set for the queue yet.
    send(here.0, b"no socket");
    assert_eq!(next(&here.1), b"no socket");
    steering.set_socket(0, receiver.socket.as_fd()).expect("a place");
    for number in 0..100u8 {
        let payload = pattern(u32::from(number), 1000 + usize::from(number));
        send(here.0, &payload);
        assert_eq!(receiver.next()[V4_HEADERS..], payload);
        send(here6.0, &payload);
        assert_eq!(receiver.next()[V6_HEADERS..], payload);
        for (at, socket) in [&there, &other] {
            send(at, &payload);
            assert_eq!(next(socket), payload);
        }
    }
    // The kernel reassembles a fragmented datagram, although its port is steered.
    let long = pattern(7, 2000);
    send(here.0, &long);
    assert_eq!(next(&here.1), long);
    assert!(receiver.is_empty());
    steering.unsteer(Protocol::Udp, local(here6.0)).expect("unsteer");
    send(here6.0, b"after");
    assert_eq!(next(&here6.1), b"after");
    drop(steering);
    send(here.0, b"the kernel's");
    assert_eq!(next(&here.1), b"the kernel's");
    assert!(receiver.is_empty());
}

#[test]
fn connections_at_other_ports_do_not_notice() {
    let Some(net) = Wire::new() else { return };
    let Some(mut receiver) = Receiver::open(&net) else { return };
    let listener = net.viewers.inside(|| TcpListener::bind("10.77.0.2:0")).expect("a listener");
    let at = listener.local_addr().expect("an address");
    let steering = net.viewers.inside(|| Steering::attach("vb")).expect("a program");
    steering.steer(Protocol::Tcp, local("10.77.0.2:80")).expect("steer");
    steering.set_socket(0, receiver.socket.as_fd()).expect("a place");
    // UDP to the number of the steered port is not steered.
    let datagrams = kernel(&net, "10.77.0.2:80");
    let mut connection = net.server.inside(|| TcpStream::connect(at)).expect("a connection");
    let (mut accepted, _) = listener.accept().expect("a connection");
    let bytes = pattern(3, 300_000);
    std::thread::scope(|scope| {
        scope.spawn(|| connection.write_all(&bytes).expect("write"));
        let mut got = vec![0; bytes.len()];
        accepted.read_exact(&mut got).expect("read");
        assert!(got == bytes);
    });
    let tx = net.server.inside(|| UdpSocket::bind("10.77.0.1:0")).expect("a socket");
    tx.send_to(b"datagram", local("10.77.0.2:80")).expect("send");
    assert_eq!(next(&datagrams), b"datagram");
    assert!(receiver.is_empty());
    // The first segment of a connection to the steered port reaches our socket, and is not
    // answered.
    let wait = Duration::from_millis(50);
    net.server
        .inside(|| TcpStream::connect_timeout(&local("10.77.0.2:80"), wait))
        .expect_err("nobody answers");
    let segment = receiver.next();
    assert_eq!((segment[23], segment[36..38].to_vec()), (6, 80u16.to_be_bytes().to_vec()));
}

#[test]
fn another_program_is_left_in_its_place() {
    let Some(net) = Wire::new() else { return };
    net.viewers.inside(|| {
        let first = Steering::attach("vb").expect("a program");
        let text = Steering::attach("vb").unwrap_err().to_string();
        assert!(text.contains("vb") && text.contains("another program"), "{text}");
        drop(first);
        // A process that another test has just started holds all descriptors for a moment.
        let begun = Instant::now();
        while let Err(error) = Steering::attach("vb") {
            assert!(begun.elapsed() < TIMEOUT, "{error}");
            std::thread::yield_now();
        }
        let text = Steering::attach("nosuch0").unwrap_err().to_string();
        assert!(text.contains("nosuch0") && text.contains("ip link"), "{text}");
    });
}
