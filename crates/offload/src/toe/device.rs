//! The device that the engine sends and receives by.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use millrace_core::time::Instant;
use millrace_netio::NetError;
use millrace_netio::tun::GsoTun;

/// A packet that a device shows.
#[derive(Clone, Copy, Debug)]
pub struct Inbound<'a> {
    /// The packet.
    pub bytes: &'a [u8],
    /// The checksum of a TCP segment in it is right, or left out because it comes from this machine: it is not looked at.
    pub is_checked: bool,
}

impl<'a> Inbound<'a> {
    /// One that came by a wire.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, is_checked: false }
    }
}

/// A device of the engine, without any other user. The link of the engine's interface determines
/// the packets: bare IP, or frames of Ethernet.
pub trait Device: Send {
    /// Shows the next packet to `take`; false: there is none now.
    ///
    /// # Errors
    /// The device is gone or broken: the engine ends.
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool>;

    /// Sends a packet, which is copied. False: there is no room for it now.
    ///
    /// # Errors
    /// The device is gone or broken: the engine ends.
    fn send(&mut self, packet: &[u8]) -> io::Result<bool>;

    /// Does the same with a packet in pieces: headers, then the pieces in `body`. A device that
    /// cannot join them at their destination joins them in `room`, which is long enough for all of
    /// them.
    ///
    /// # Errors
    /// The device is gone or broken: the engine ends.
    fn gather(&mut self, head: &[u8], body: &[&[u8]], room: &mut [u8]) -> io::Result<bool> {
        if body.is_empty() {
            return self.send(head);
        }
        let bytes = join(head, body, room);
        self.send(&room[..bytes])
    }

    /// Ends a turn's output: all packets taken leave. False: some of them must wait, and this must
    /// be called again.
    ///
    /// # Errors
    /// The device is gone or broken: the engine ends.
    fn flush(&mut self, _now: Instant) -> io::Result<bool> {
        Ok(true)
    }

    /// Readable when there is a packet; `None`: the device has to be asked again and again.
    fn readable(&self) -> Option<BorrowedFd<'_>>;

    /// When [`flush`](Self::flush) has something to do even if nothing comes in.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// How it gets at the bytes of packets, for counters.
    fn access(&self) -> DeviceAccess {
        DeviceAccess::default()
    }
}

/// How a device gets at the bytes of packets. By default everything is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceAccess {
    /// The hardware reads and writes this process's memory; else the kernel copies.
    pub is_zero_copy: bool,
    /// Packets whose payload it was given where it lies.
    pub chained: u64,
}

/// Puts a packet together; its length.
fn join(head: &[u8], body: &[&[u8]], room: &mut [u8]) -> usize {
    let mut bytes = 0;
    for piece in std::iter::once(&head).chain(body) {
        room[bytes..bytes + piece.len()].copy_from_slice(piece);
        bytes += piece.len();
    }
    bytes
}

impl<D: Device + ?Sized> Device for Box<D> {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        (**self).receive(take)
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        (**self).send(packet)
    }

    fn gather(&mut self, head: &[u8], body: &[&[u8]], room: &mut [u8]) -> io::Result<bool> {
        (**self).gather(head, body, room)
    }

    fn flush(&mut self, now: Instant) -> io::Result<bool> {
        (**self).flush(now)
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        (**self).readable()
    }

    fn due(&self) -> Option<Instant> {
        (**self).due()
    }

    fn access(&self) -> DeviceAccess {
        (**self).access()
    }
}

/// A TUN device: the kernel's network stack is at the other end.
pub struct TunDevice {
    tun: GsoTun,
}

impl TunDevice {
    /// Opens the TUN device `name`, which exists and is not open elsewhere
    /// (`ip tuntap add NAME mode tun`); creates one that does not exist.
    ///
    /// # Errors
    /// Missing rights; the device is open elsewhere.
    pub fn open(name: &str) -> io::Result<Self> {
        let named = |error: NetError| io::Error::other(error.to_string());
        Ok(Self::new(GsoTun::open(name).map_err(named)?))
    }

    /// A device that is up and has an address.
    pub fn new(tun: GsoTun) -> Self {
        Self { tun }
    }
}

impl Device for TunDevice {
    fn receive(&mut self, take: &mut dyn FnMut(Inbound<'_>)) -> io::Result<bool> {
        let Some((bytes, is_checked)) = self.tun.receive()? else { return Ok(false) };
        take(Inbound { bytes, is_checked });
        Ok(true)
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<bool> {
        self.tun.gather(packet, &[])
    }

    fn gather(&mut self, head: &[u8], body: &[&[u8]], _: &mut [u8]) -> io::Result<bool> {
        self.tun.gather(head, body)
    }

    fn flush(&mut self, _: Instant) -> io::Result<bool> {
        self.tun.flush()
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.tun.as_fd())
    }
}
