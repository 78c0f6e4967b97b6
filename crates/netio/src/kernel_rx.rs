//! Datagrams of live sources, by the kernel's sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_core::limits::RX_BATCH_PACKETS;
use millrace_core::time::Instant;

use crate::error::NetError;
use crate::recv::{Cursor, UdpRx, UdpRxConfig};
use crate::sys::socket::{canonical, tell_local_address};

/// A datagram that came in. It lies in the receiver's memory and is lent while it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedDatagram<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Who sent it.
    pub source: SocketAddr,
    /// To which of this host's addresses.
    pub destination: SocketAddr,
    /// When it came, as exactly as the kernel knows: never later than `now` of the call that shows
    /// it, and never earlier than the datagrams shown before.
    pub arrival: Instant,
    /// Its place in a train of datagrams that the kernel received in one piece (GRO) and that share
    /// the arrival of the first; `None`: it came alone.
    pub train: Option<u16>,
}

/// Counts of a [`KernelRx`] since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxCounters {
    /// Datagrams shown.
    pub packets: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Batches with at least one datagram.
    pub batches: u64,
    /// Datagrams that came in a train that the kernel received in one piece.
    pub coalesced: u64,
    /// Datagrams dropped by the kernel because there was no room for them, as far as it has
    /// reported them.
    pub dropped: u64,
    /// Datagrams longer than the buffers; they are not shown.
    pub truncated: u64,
}

/// Receives the datagrams of one UDP socket: a [`UdpRx`] that never waits and reports the
/// destination address of each datagram.
///
/// A datagram's arrival is the kernel's stamp, brought over from the system's clock to the monotonic one when a batch is
/// fetched; where the system's clock was set meanwhile, it is kept between the arrival before and `now`.
///
/// A socket outlives the interface that its datagrams come by: it hears nothing then, and that is no failure.
pub struct KernelRx {
    rx: UdpRx,
    local: SocketAddr,
    /// What of the batch fetched last has not been shown yet.
    rest: Cursor,
    /// By how much the system's clock was ahead of the monotonic one when that batch was fetched, modulo 2^64.
    wall_ahead_ns: u64,
    last_arrival: Instant,
    gone: Option<i32>,
    counters: RxCounters,
}

impl KernelRx {
    /// Takes a bound socket.
    ///
    /// # Errors
    /// If the socket refuses an option; see [`UdpRx::new`].
    pub fn new(socket: UdpSocket, config: UdpRxConfig) -> Result<Self, NetError> {
        let rx = UdpRx::new(socket, config)?;
        let refused = |what| {
            move |source| NetError::Socket {
                socket: "UDP socket".to_owned(),
                what,
                source,
                remedy: "check that the descriptor is open",
            }
        };
        let local = rx.socket().local_addr().map_err(refused("ask it for its address"))?;
        if local.ip().is_unspecified() {
            tell_local_address(rx.socket().as_fd(), local.is_ipv4()).map_err(refused("turn on PKTINFO"))?;
        }
        Ok(Self {
            rx,
            local,
            rest: Cursor::default(),
            wall_ahead_ns: 0,
            last_arrival: Instant(0),
            gone: None,
            counters: RxCounters::default(),
        })
    }

    /// Fetches the next batch; how many messages it has.
    fn fetch(&mut self, now: Instant) -> io::Result<usize> {
        if let Some(errno) = self.gone {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let messages = self.rx.take().map_err(|errno| {
            self.gone = Some(errno);
            io::Error::from_raw_os_error(errno)
        })?;
        self.rest = Cursor::default();
        if messages > 0 {
            self.wall_ahead_ns = wall_ns().wrapping_sub(now.0);
            (self.counters.dropped, self.counters.truncated) = (self.rx.dropped(), self.rx.truncated());
        }
        Ok(messages)
    }

    /// Shows the datagrams that were fetched and not shown; returns their number.
    fn show(&mut self, now: Instant, sink: &mut dyn FnMut(&ReceivedDatagram<'_>)) -> usize {
        let counters = &mut self.counters;
        let mut datagrams = self.rx.datagrams(self.rest);
        let mut shown = 0;
        for datagram in datagrams.by_ref().take(RX_BATCH_PACKETS) {
            let stamp = datagram.arrival.map_or(now.0, |at| at.wrapping_sub(self.wall_ahead_ns));
            // The lower bound last: whatever clocks do, arrivals are in order.
            let arrival = Instant(stamp).min(now).max(self.last_arrival);
            self.last_arrival = arrival;
            let ip = datagram.local.unwrap_or(self.local.ip()).to_canonical();
            sink(&ReceivedDatagram {
                bytes: datagram.bytes,
                source: canonical(datagram.from),
                destination: with_ip(self.local, ip),
                arrival,
                train: datagram.is_train.then_some(datagram.segment),
            });
            shown += 1;
            counters.bytes += datagram.bytes.len() as u64;
            counters.coalesced += u64::from(datagram.is_train);
        }
        self.rest = datagrams.cursor();
        counters.packets += shown as u64;
        counters.batches += u64::from(shown > 0);
        shown
    }

    /// Shows `sink` the datagrams that have arrived by `now`, in the order of arrival: at most
    /// [`RX_BATCH_PACKETS`]. Does not wait and does not allocate. Returns how many it took,
    /// including those that it does not show; 0: nothing waits.
    ///
    /// # Errors
    /// When the socket cannot be used; every later call returns the same error.
    pub fn receive(
        &mut self,
        now: Instant,
        sink: &mut dyn FnMut(&ReceivedDatagram<'_>),
    ) -> io::Result<usize> {
        match self.show(now, sink) {
            0 => {
                let messages = self.fetch(now)?;
                // What only was too long was taken all the same.
                Ok(self.show(now, sink).max(messages.min(1)))
            }
            shown => Ok(shown),
        }
    }

    /// Returns its counts.
    pub fn counters(&self) -> &RxCounters {
        &self.counters
    }
}

impl AsFd for KernelRx {
    /// Readable when something waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rx.socket().as_fd()
    }
}

/// The system's clock, in nanoseconds since 1970: read once a batch, without a system call.
fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The same port, and the same scope where the family is the same.
fn with_ip(address: SocketAddr, ip: IpAddr) -> SocketAddr {
    match (address, ip) {
        (SocketAddr::V6(mut v6), IpAddr::V6(ip)) => {
            v6.set_ip(ip);
            v6.into()
        }
        (_, ip) => SocketAddr::new(ip, address.port()),
    }
}

#[cfg(test)]
#[path = "kernel_rx_tests.rs"]
mod tests;
