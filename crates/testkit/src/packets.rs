//! Packets for tests of packet I/O: entries of a batch, senders, receivers.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millrace_core::ids::{ConnId, StreamId};
use millrace_core::seam::{Dest, PacketTx, Payload, SendOutcome, Transmit};
use millrace_netio::null::SliceBatch;
use millrace_netio::recv::{UdpRx, UdpRxConfig};
use millrace_netio::{GsoMode, KernelTx, KernelTxConfig, bind_pair};

use crate::hosts::TIMEOUT;

/// Something that never is an outcome of these tests: shows that an outcome was written.
pub const UNSET: SendOutcome = SendOutcome::Closed { errno: -1 };

pub fn stream(index: u32) -> StreamId {
    StreamId { index, generation: 0 }
}

/// RTP goes to `rtp`, RTCP to the port of `rtcp`.
pub fn udp(rtp: SocketAddr, rtcp: SocketAddr) -> Dest {
    Dest::udp(rtp, Some(rtcp.port()))
}

pub fn tcp(conn: u32) -> Dest {
    Dest::Interleaved { conn: ConnId(conn), rtp_channel: 0, rtcp_channel: 1 }
}

pub fn wire(index: u32, dest: Dest, bytes: &[u8], segment: usize) -> Transmit<'_> {
    Transmit { stream: stream(index), dest, payload: Payload::Wire { bytes, segment } }
}

pub fn patched<'a>(
    index: u32,
    dest: Dest,
    headers: &'a [u8],
    bytes: &'a [u8],
    segment: usize,
) -> Transmit<'a> {
    Transmit { stream: stream(index), dest, payload: Payload::Patched { headers, bytes, segment } }
}

pub fn rtcp(index: u32, dest: Dest, bytes: &[u8]) -> Transmit<'_> {
    Transmit { stream: stream(index), dest, payload: Payload::Rtcp(bytes) }
}

/// Sends one batch; every outcome must have been written.
pub fn send(tx: &mut impl PacketTx, batch: &[Transmit<'_>]) -> Vec<SendOutcome> {
    let mut outcomes = vec![UNSET; batch.len()];
    tx.send(&SliceBatch(batch), &mut outcomes);
    assert!(!outcomes.contains(&UNSET), "an entry has no outcome: {outcomes:?}");
    outcomes
}

/// `length` bytes that differ from any other seed's and show where they were cut.
pub fn pattern(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

/// The datagrams that a payload stands for, cut by the definition in `Payload`.
pub fn datagrams(payload: Payload<'_>) -> Vec<Vec<u8>> {
    match payload {
        Payload::Wire { bytes, segment } => bytes.chunks(segment).map(<[u8]>::to_vec).collect(),
        Payload::Patched { headers, bytes, segment } => {
            let headers = headers.chunks(12);
            bytes.chunks(segment).zip(headers).map(|(d, h)| [h, &d[12..]].concat()).collect()
        }
        Payload::Rtcp(bytes) => vec![bytes.to_vec()],
        Payload::Bytes(range) => (0..range.count).map(|index| range.piece(index).to_vec()).collect(),
    }
}

/// A sender with both families on the wildcard addresses and `conns` connections.
pub fn sender(gso: GsoMode, conns: usize) -> KernelTx {
    let pair = |addr: &str| {
        let addr: IpAddr = addr.parse().expect("an address");
        bind_pair(addr, first_port(), 65_000).expect("a free pair of ports")
    };
    let config = KernelTxConfig { v4: Some(pair("0.0.0.0")), v6: Some(pair("::")), gso, conns };
    KernelTx::new(config).expect("sockets")
}

/// Tests run side by side: each begins its search for ports elsewhere.
pub fn first_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let step = NEXT.fetch_add(1, Ordering::Relaxed) * 50 + std::process::id() * 7;
    20_000 + (step % 20_000) as u16
}

/// A receiver on a free port of `addr`, with room for any burst.
pub fn receiver(addr: &str) -> (UdpRx, SocketAddr) {
    let ip: IpAddr = addr.parse().expect("an address");
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    let local = socket.local_addr().expect("a bound socket");
    let config =
        UdpRxConfig { datagram_bytes: 65_535, receive_buffer: Some(8 << 20), ..UdpRxConfig::default() };
    (UdpRx::new(socket, config).expect("receive options"), local)
}

/// Receives until `count` datagrams are there (or nothing comes any more).
pub fn receive(rx: &mut UdpRx, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while got.len() < count {
        let before = got.len();
        got.extend(rx.recv(Some(TIMEOUT)).expect("receive").map(|d| d.bytes.to_vec()));
        if got.len() == before {
            break;
        }
    }
    got
}

/// Returns the datagrams available now.
pub fn receive_now(rx: &mut UdpRx) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    loop {
        let before = got.len();
        got.extend(rx.recv(Some(Duration::ZERO)).expect("receive").map(|d| d.bytes.to_vec()));
        if got.len() == before {
            return got;
        }
    }
}

/// An address that answers "port unreachable" while the socket lives: the socket is connected to
/// another address, so that it takes no datagrams of ours, and no other program can have the port
/// meanwhile.
pub fn closed_port(addr: &str) -> (UdpSocket, SocketAddr) {
    let ip: IpAddr = addr.parse().expect("an address");
    let socket = UdpSocket::bind((ip, 0)).expect("a free port");
    socket.connect((ip, 1)).expect("an address of this host");
    let local = socket.local_addr().expect("a bound socket");
    (socket, local)
}
