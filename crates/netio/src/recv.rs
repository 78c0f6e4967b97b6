//! The way in: many datagrams in one call, with the kernel's arrival times and drop counts.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::NetError;
use crate::sys::mmsg::RecvArena;
use crate::sys::socket::{Buffer, raise_buffer, set_int};

/// Longest datagram, and longest train of datagrams that GRO hands over as one.
pub const MAX_DATAGRAM_BYTES: usize = 65_535;

/// How a [`UdpRx`] receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpRxConfig {
    /// Datagrams (or trains of them, with GRO) taken in one call.
    pub batch: usize,
    /// Longest datagram in bytes; longer ones are counted in [`UdpRx::truncated`] and passed over. With GRO the buffers
    /// have [`MAX_DATAGRAM_BYTES`] in any case.
    pub datagram_bytes: usize,
    /// Lets the kernel hand over datagrams of one sender that arrive together in one piece (Linux 5.0 and later).
    pub gro: bool,
    /// Size in bytes of the receive buffer to request (`SO_RCVBUF`); `None` leaves the system's
    /// default.
    pub receive_buffer: Option<usize>,
}

impl Default for UdpRxConfig {
    /// 64 datagrams of up to 2048 bytes, no GRO, the system's receive buffer.
    fn default() -> Self {
        Self { batch: 64, datagram_bytes: 2048, gro: false, receive_buffer: None }
    }
}

/// Receives datagrams in batches. Allocates in [`UdpRx::new`] and never after.
pub struct UdpRx {
    socket: UdpSocket,
    arena: RecvArena,
    gro: bool,
    receive_buffer: Option<usize>,
    dropped: DropCount,
    truncated: u64,
}

/// One datagram, valid until the next [`UdpRx::recv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Who sent it.
    pub from: SocketAddr,
    /// When the kernel got it, in nanoseconds since 1970. Datagrams of one train share the time of the first.
    pub arrival: Option<u64>,
    /// Place in the train that the kernel handed over in one piece; always 0 without GRO.
    pub segment: u16,
    /// Whether it came in a train of more than one.
    pub is_train: bool,
    /// Our address that it was sent to, where the socket was set to report it.
    pub local: Option<IpAddr>,
}

impl UdpRx {
    /// Takes a bound socket and sets it up: non-blocking, arrival times, drop counter.
    ///
    /// # Errors
    /// If the socket refuses an option; without GRO in the kernel, if that is asked for.
    pub fn new(socket: UdpSocket, config: UdpRxConfig) -> Result<Self, NetError> {
        let name =
            socket.local_addr().map_or_else(|_| "UDP socket".to_owned(), |a| format!("UDP socket on {a}"));
        let refused = |what, remedy| {
            let socket = name.clone();
            move |source| NetError::Socket { socket, what, source, remedy }
        };
        let fd = socket.as_fd();
        socket
            .set_nonblocking(true)
            .map_err(refused("make it non-blocking", "check that the descriptor is open"))?;
        let old = "use Linux 2.6.33 or later";
        set_int(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
            .map_err(refused("turn on SO_TIMESTAMPNS", old))?;
        set_int(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).map_err(refused("turn on SO_RXQ_OVFL", old))?;
        if config.gro {
            set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
                .map_err(refused("turn on UDP_GRO", "use Linux 5.0 or later, or receive without GRO"))?;
        }
        let receive_buffer = match config.receive_buffer {
            Some(bytes) => Some(
                raise_buffer(fd, Buffer::Receive, bytes)
                    .map_err(refused("set SO_RCVBUF", "raise the sysctl net.core.rmem_max"))?,
            ),
            None => None,
        };
        let bytes_each = if config.gro { MAX_DATAGRAM_BYTES } else { config.datagram_bytes.max(1) };
        Ok(Self {
            arena: RecvArena::new(config.batch.max(1), bytes_each),
            socket,
            gro: config.gro,
            receive_buffer,
            dropped: DropCount::default(),
            truncated: 0,
        })
    }

    /// Waits up to `timeout` (`None`: for ever; zero: not at all) and returns the datagrams that
    /// have arrived; empty if none did.
    ///
    /// # Errors
    /// If the socket fails. An ICMP error about something sent earlier is no failure.
    pub fn recv(&mut self, timeout: Option<Duration>) -> io::Result<Datagrams<'_>> {
        // A moment that the clock cannot hold is the same as for ever.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if self.take().map_err(io::Error::from_raw_os_error)? > 0 {
                return Ok(self.datagrams(Cursor::default()));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(self.datagrams(Cursor::default()));
            }
            self.wait(left)?;
        }
    }

    /// Takes what waits at the socket, without waiting; how many messages that is, or the errno.
    pub(crate) fn take(&mut self) -> Result<usize, i32> {
        match self.arena.receive(self.socket.as_fd(), 0) {
            Ok(messages) => {
                self.account();
                Ok(messages)
            }
            Err(libc::EAGAIN | libc::EINTR) => Ok(0),
            // ICMP's report about a datagram sent from this port; reading it has cleared it.
            Err(errno) if crate::kernel::icmp_may_say(errno) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until the socket has something.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: t.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Books drop counts and truncated datagrams of a batch.
    fn account(&mut self) {
        for index in 0..self.arena.len() {
            let message = self.arena.get(index);
            if let Some(count) = message.info.dropped {
                self.dropped.update(count);
            }
            self.truncated += u64::from(message.truncated);
        }
    }

    /// Returns the datagrams taken last, from `cursor` on.
    pub(crate) fn datagrams(&self, cursor: Cursor) -> Datagrams<'_> {
        Datagrams { arena: &self.arena, cursor }
    }

    /// Datagrams that the kernel dropped because the receive buffer was full. Known up to the last datagram received.
    pub fn dropped(&self) -> u64 {
        self.dropped.total
    }

    /// Datagrams that were longer than the buffers; they are not given out.
    pub fn truncated(&self) -> u64 {
        self.truncated
    }

    /// Returns the size of the receive buffer if one was requested, as the kernel counts it (about
    /// twice the requested size).
    pub fn receive_buffer(&self) -> Option<usize> {
        self.receive_buffer
    }

    /// Whether the kernel may hand over trains.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// The socket: for sending from its port.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }
}

/// Makes a 64-bit count of the kernel's 32-bit one.
#[derive(Debug, Default)]
struct DropCount {
    last: u32,
    total: u64,
}

impl DropCount {
    fn update(&mut self, count: u32) {
        self.total += u64::from(count.wrapping_sub(self.last));
        self.last = count;
    }
}

/// A place among the datagrams of one batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    message: usize,
    at: usize,
    place: u16,
}

/// The datagrams of one [`UdpRx::recv`], in the order of arrival, trains cut up.
pub struct Datagrams<'a> {
    arena: &'a RecvArena,
    cursor: Cursor,
}

impl Datagrams<'_> {
    /// Where it has got to.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl<'a> Iterator for Datagrams<'a> {
    type Item = Datagram<'a>;

    fn next(&mut self) -> Option<Datagram<'a>> {
        let cursor = &mut self.cursor;
        while cursor.message < self.arena.len() {
            let message = self.arena.get(cursor.message);
            let rest = &message.bytes[cursor.at..];
            // An empty datagram is a datagram too, but the end of a train is not.
            let spent = rest.is_empty() && cursor.place > 0;
            let (Some(from), false, false) = (message.name, message.truncated, spent) else {
                *cursor = Cursor { message: cursor.message + 1, at: 0, place: 0 };
                continue;
            };
            let length = message.info.segment.filter(|s| *s > 0).unwrap_or(rest.len()).min(rest.len());
            let out = Datagram {
                bytes: &rest[..length],
                from,
                arrival: message.info.arrival_unix_ns,
                segment: cursor.place,
                is_train: length < message.bytes.len(),
                local: message.info.local,
            };
            cursor.at += length;
            cursor.place += 1;
            return Some(out);
        }
        None
    }
}

#[cfg(test)]
#[path = "recv_tests.rs"]
mod tests;
