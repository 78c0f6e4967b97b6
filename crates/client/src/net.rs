//! Sockets: TCP connections that never block, UDP port pairs, and the socket through which datagrams come in.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use millrace_netio::recv::{UdpRx, UdpRxConfig};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::clock::SystemClock;
use crate::error::ClientError;
use crate::fec::FecChoice;
use crate::limits::{DATAGRAM_BYTES, MAX_OUTPUT_BYTES, REPORTS_BUFFER_BYTES};

/// One datagram as it came in.
pub struct Datagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// The sender's address.
    pub from: SocketAddr,
    /// Wall-clock nanoseconds: the kernel's stamp, or when it was read if the kernel gave none.
    pub arrival_ns: u64,
}

/// The way in for the datagrams of one socket.
pub struct Inlet {
    rx: UdpRx,
    clock: SystemClock,
    /// Datagrams without a stamp of the kernel.
    unstamped: u64,
}

/// How much an [`Inlet`] takes in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// One player: every datagram with a stamp of its own.
    Single,
    /// One of many: this many trains of datagrams, each in one piece. Untouched buffers cost no
    /// memory.
    Trains(usize),
    /// RTCP of one of many.
    Reports,
}

impl Inlet {
    /// Sets `socket` up with a receive buffer of `buffer_bytes`, more than `net.core.rmem_max` where that is allowed.
    pub fn new(socket: UdpSocket, batch: Batch, buffer_bytes: usize) -> Result<Self, ClientError> {
        let receive_buffer = Some(buffer_bytes);
        let single = UdpRxConfig { batch: 64, datagram_bytes: DATAGRAM_BYTES, gro: false, receive_buffer };
        let error = |source| ClientError::Socket { what: "UDP socket", source: io::Error::other(source) };
        let rx = match batch {
            Batch::Single => UdpRx::new(socket, single).map_err(error)?,
            Batch::Trains(trains) => {
                let second = socket
                    .try_clone()
                    .map_err(|source| ClientError::Socket { what: "UDP socket", source })?;
                // Kernels before 5.0 have no UDP GRO.
                UdpRx::new(socket, UdpRxConfig { batch: trains, gro: true, ..single })
                    .or_else(|_| UdpRx::new(second, UdpRxConfig { batch: 4 * trains, ..single }))
                    .map_err(error)?
            }
            Batch::Reports => {
                let receive_buffer = Some(buffer_bytes.min(REPORTS_BUFFER_BYTES));
                let config = UdpRxConfig { batch: 2, datagram_bytes: 2048, gro: false, receive_buffer };
                UdpRx::new(socket, config).map_err(error)?
            }
        };
        Ok(Self { rx, clock: SystemClock, unstamped: 0 })
    }

    /// Hands over one batch of what waits; returns the number of datagrams. Never blocks. An ICMP error about something
    /// sent earlier is not an error.
    pub fn drain(&mut self, mut each: impl FnMut(&Datagram<'_>)) -> io::Result<usize> {
        let mut count = 0;
        let mut now = None;
        for datagram in self.rx.recv(Some(Duration::ZERO))? {
            let arrival_ns = datagram.arrival.unwrap_or_else(|| {
                self.unstamped += 1;
                *now.get_or_insert_with(|| self.clock.unix_ns())
            });
            each(&Datagram { bytes: datagram.bytes, from: datagram.from, arrival_ns });
            count += 1;
        }
        Ok(count)
    }

    /// The socket: for sending and for waiting.
    pub fn socket(&self) -> &UdpSocket {
        self.rx.socket()
    }

    /// Whether every arrival was stamped by the kernel.
    pub fn has_kernel_stamps(&self) -> bool {
        self.unstamped == 0
    }

    /// Returns the size of the receive buffer as the kernel counts it: twice the size requested if
    /// that was granted.
    pub fn buffer_bytes(&self) -> usize {
        self.rx.receive_buffer().unwrap_or(0)
    }

    /// Datagrams that the kernel dropped at this socket, up to the last that was read.
    pub fn dropped(&self) -> u64 {
        self.rx.dropped()
    }

    /// Datagrams longer than the buffers; not handed over.
    pub fn truncated(&self) -> u64 {
        self.rx.truncated()
    }
}

/// Two UDP sockets with neighbouring ports, the even one for RTP (RFC 3550 section 11).
pub struct PortPair {
    /// At the even port.
    pub rtp: UdpSocket,
    /// At the next one.
    pub rtcp: UdpSocket,
    /// The even port.
    pub rtp_port: u16,
}

/// Ports that receivers choose from; the range that ffmpeg uses.
pub const FIRST_PORT: u16 = 5000;
const LAST_PORT: u16 = 65_000;

/// Binds the first free pair at or after the even port `*next`, and moves `*next` behind it. Goes round once.
pub fn bind_pair(address: IpAddr, next: &mut u16) -> Result<PortPair, ClientError> {
    let mut last_error = None;
    for _ in 0..=(LAST_PORT - FIRST_PORT) / 2 {
        let port = if (FIRST_PORT..LAST_PORT).contains(next) { *next & !1 } else { FIRST_PORT };
        *next = port + 2;
        let pair = UdpSocket::bind((address, port)).and_then(|rtp| {
            UdpSocket::bind((address, port + 1)).map(|rtcp| PortPair { rtp, rtcp, rtp_port: port })
        });
        match pair {
            Ok(pair) => return Ok(pair),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last_error = Some(error),
            Err(source) => return Err(ClientError::Socket { what: "UDP port", source }),
        }
    }
    let source = last_error.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(ClientError::Socket { what: "UDP port pair between 5000 and 65000", source })
}

/// FEC goes to ports at these distances from the RTP port: columns (XOR) and rows of ST 2022-1, further parities of our server.
pub const COLUMN_PORT: u16 = 2;
/// As [`COLUMN_PORT`], for rows.
pub const ROW_PORT: u16 = 4;
/// As [`COLUMN_PORT`], for further parities.
pub const FURTHER_PORT: u16 = 6;

/// A pair as [`bind_pair`] binds it, with the sockets at the distances that the FEC needs which is asked for over RTSP.
pub fn bind_with_fec(
    address: IpAddr,
    next: &mut u16,
    fec: FecChoice,
) -> Result<(PortPair, Vec<UdpSocket>), ClientError> {
    let distances: &[u16] = match fec {
        FecChoice::Off => &[],
        FecChoice::Xor => &[COLUMN_PORT],
        FecChoice::All => &[COLUMN_PORT, FURTHER_PORT],
    };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..=(LAST_PORT - FIRST_PORT) / 2 {
        let pair = bind_pair(address, next)?;
        let bind = |distance: &u16| UdpSocket::bind((address, pair.rtp_port + distance));
        match distances.iter().map(bind).collect::<io::Result<Vec<_>>>() {
            Ok(sockets) => return Ok((pair, sockets)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
            Err(source) => return Err(ClientError::Socket { what: "UDP port for FEC", source }),
        }
    }
    Err(ClientError::Socket { what: "UDP ports for RTP and FEC between 5000 and 65000", source: last })
}

/// Addresses of a host, those of the family of `local` only if it is given.
pub fn resolve(host: &str, port: u16, local: Option<IpAddr>) -> Result<Vec<SocketAddr>, ClientError> {
    let error = |source| ClientError::Resolve { host: host.to_owned(), source };
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(error)?
        .filter(|address| local.is_none_or(|local| local.is_ipv4() == address.is_ipv4()))
        .collect();
    if found.is_empty() {
        return Err(error(io::Error::new(io::ErrorKind::NotFound, "none of the requested address family")));
    }
    Ok(found)
}

/// Begins a TCP connection; it is made when the socket becomes writable and [`TcpStream::take_error`] has none.
pub fn start_connect(server: SocketAddr, local: Option<IpAddr>) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(local) = local {
        rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    }
    match rustix::net::connect(&socket, &server) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An RTSP connection: bytes in both directions without blocking.
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    start: usize,
    end: usize,
    chunk: usize,
    /// Bytes that wait to be written.
    pub output: Vec<u8>,
}

/// What reading gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadState {
    /// There is nothing more now.
    Drained,
    /// There may be more.
    More,
    /// The other side closed, or the connection broke.
    Closed,
}

impl Connection {
    /// Reads into a buffer that grows in steps of `chunk` bytes while it does not yet hold a whole
    /// message or frame.
    pub fn new(stream: TcpStream, chunk: usize) -> Self {
        Self { stream, input: Vec::new(), start: 0, end: 0, chunk, output: Vec::new() }
    }

    /// The socket: for waiting, and for its addresses.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// One read into the buffer. The caller consumes whole items between reads, so that no more than one item and one
    /// chunk lie here.
    pub fn read(&mut self) -> ReadState {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.input.len() - self.end < self.chunk / 2 {
            self.input.resize(self.end + self.chunk, 0);
        }
        loop {
            return match self.stream.read(&mut self.input[self.end..]) {
                Ok(0) => ReadState::Closed,
                Ok(len) => {
                    self.end += len;
                    if self.end == self.input.len() { ReadState::More } else { ReadState::Drained }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadState::Drained,
                Err(_) => ReadState::Closed,
            };
        }
    }

    /// Bytes read and not consumed.
    pub fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Marks the first `len` pending bytes as used.
    pub fn consume(&mut self, len: usize) {
        self.start += len;
    }

    /// Appends an interleaved frame; dropped if the server has not read for long.
    pub fn push_frame(&mut self, channel: u8, bytes: &[u8]) {
        if self.output.len() + bytes.len() <= MAX_OUTPUT_BYTES {
            let len = bytes.len() as u16;
            self.output.extend_from_slice(&[b'$', channel, (len >> 8) as u8, len as u8]);
            self.output.extend_from_slice(bytes);
        }
    }

    /// Writes as much as the kernel accepts; returns `false` if the connection is broken.
    pub fn write(&mut self) -> bool {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(0) => return false,
                Ok(len) => {
                    self.output.drain(..len);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        self.output.len() <= MAX_OUTPUT_BYTES
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
