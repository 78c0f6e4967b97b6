//! One AF_XDP socket: made, tied to the arena's memory and to one queue of an interface, with its four rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_core::pool::ExtentArena;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size,
    set_xdp_umem_fill_ring_size, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpStatistics,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::error::XdpError;
use super::ring::{Consumer, Desc, Producer, Ring};
use super::umem;
use crate::limits::{XDP_BIND_PAUSE, XDP_BIND_TRIES, XDP_SEND_BUFFER_BYTES};
use crate::sys::socket::{Buffer, get_int, raise_buffer, set_int};

/// `XDP_MAX_TX_SKB_BUDGET` (Linux 6.17): descriptors that one call sends in copy mode.
const MAX_TX_SKB_BUDGET: i32 = 9;
/// The number of descriptors that the kernel sends in one call without that option.
pub const KERNEL_TX_BUDGET: u32 = 32;

/// The configuration of a socket.
#[derive(Clone)]
pub struct SocketConfig {
    /// The interface, in the calling thread's network namespace.
    pub interface: String,
    /// Its queue. There is one socket for each queue at most.
    pub queue: u32,
    /// All of this memory is registered.
    pub arena: Arc<ExtentArena>,
    /// Whether the device is to read the memory itself; only some drivers can.
    pub zero_copy: bool,
    /// Whether packets may have several descriptors.
    pub multi: bool,
    /// Places in the TX ring and the completion ring: a power of two.
    pub tx_entries: u32,
    /// Places in the RX ring and the fill ring: a power of two, or 0 for a socket that only sends.
    pub rx_entries: u32,
    /// Descriptors that one call sends in copy mode, where the kernel lets one choose (6.17).
    pub tx_budget: u32,
}

/// The rings of a socket, this process's ends.
#[derive(Debug)]
pub struct SocketRings {
    /// Packets to send.
    pub tx: Producer<Desc>,
    /// Descriptors that the kernel is done with.
    pub completion: Consumer<u64>,
    /// Packets that came, if the socket was made to receive.
    pub rx: Option<Consumer<Desc>>,
    /// Frames to receive into.
    pub fill: Producer<u64>,
}

/// What became of a call that was to make the kernel send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// It went through.
    Done,
    /// Something is full, or there was more to send than one call does: try again.
    Again,
    /// The interface is down or gone, with the errno.
    Dead(i32),
}

impl Kick {
    /// Interprets the kernel's answer to a send call.
    pub fn of(answer: Result<(), i32>) -> Self {
        match answer {
            Ok(()) => Self::Done,
            Err(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Self::Again,
            Err(errno) => Self::Dead(errno),
        }
    }
}

/// A bound socket. Its rings keep it alive too.
pub struct XdpSocket {
    fd: OwnedFd,
    if_index: u32,
    zero_copy: bool,
    tx_budget: u32,
    /// The kernel reads it as long as the socket lives.
    _arena: Arc<ExtentArena>,
}

/// Explains a failed call of a socket.
struct Fault<'a>(&'a SocketConfig);

impl Fault<'_> {
    fn call(&self, what: &'static str, source: io::Error, remedy: &'static str) -> XdpError {
        XdpError::Call { interface: self.0.interface.clone(), queue: self.0.queue, what, source, remedy }
    }

    fn make(&self, source: io::Error) -> XdpError {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM) => "give the program CAP_NET_RAW or run it as root",
            Some(libc::EAFNOSUPPORT) => "this kernel is built without AF_XDP (CONFIG_XDP_SOCKETS)",
            _ => "send by the kernel's sockets instead",
        };
        self.call("make an AF_XDP socket", source, remedy)
    }

    fn register(&self, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::ENOBUFS | libc::ENOMEM) => XdpError::Locked {
                interface: self.0.interface.clone(),
                bytes: self.0.arena.memory().1,
                source,
            },
            Some(libc::EPERM) => self.call("register the cache", source, "give the program CAP_IPC_LOCK"),
            _ => self.call("register the cache", source, "AF_XDP with unaligned chunks needs Linux 5.4"),
        }
    }

    fn ring(&self, source: io::Error) -> XdpError {
        self.call("make the rings", source, "send by the kernel's sockets instead")
    }

    fn bind(&self, source: io::Error) -> XdpError {
        let remedy = match source.raw_os_error() {
            Some(libc::EBUSY) => "another AF_XDP socket has this queue: stop it or take another queue",
            Some(libc::EINVAL) => {
                "the interface has no such queue (ethtool -l), its MTU is too long for AF_XDP, or the driver cannot do \
                 what was asked"
            }
            Some(libc::EOPNOTSUPP) => {
                "the driver has no zero-copy mode, or not for packets in several pieces"
            }
            Some(libc::ENETDOWN) => "take the interface up (ip link set up)",
            _ => "send by the kernel's sockets instead",
        };
        self.call("bind the AF_XDP socket", source, remedy)
    }
}

impl XdpSocket {
    /// Makes a socket and its rings. Waits up to five seconds for a queue that was just given up.
    ///
    /// # Errors
    /// Says which step failed and what to do about it.
    pub fn open(config: &SocketConfig) -> Result<(Self, SocketRings), XdpError> {
        let fault = Fault(config);
        let if_index = interface_index(&config.interface)
            .map_err(|source| XdpError::NoInterface { interface: config.interface.clone(), source })?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, flags, None)
            .map_err(|e| fault.make(e.into()))?;
        umem::register(&fd, &config.arena).map_err(|e| fault.register(e))?;
        let rings = rings(fd.as_fd(), config).map_err(|e| fault.ring(e))?;
        // A smaller buffer only means that fewer packets wait in the device.
        let _ = raise_buffer(fd.as_fd(), Buffer::Send, XDP_SEND_BUFFER_BYTES);
        let tx_budget = set_budget(fd.as_fd(), config);
        bind(fd.as_fd(), config, if_index).map_err(|e| fault.bind(e))?;
        let zero_copy =
            xdp_options(&fd).is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let arena = Arc::clone(&config.arena);
        let socket = Self { fd, if_index, zero_copy, tx_budget, _arena: arena };
        // An interface that is down can be bound to, but a send call reports it.
        match socket.kick() {
            Kick::Dead(errno) => Err(fault.bind(io::Error::from_raw_os_error(errno))),
            Kick::Done | Kick::Again => Ok((socket, rings)),
        }
    }

    /// Makes the kernel send the contents of the TX ring.
    pub fn kick(&self) -> Kick {
        let answer = rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Kick::of(answer.map(|_| ()).map_err(Errno::raw_os_error))
    }

    /// Tells a driver that waits for frames that there are some.
    pub fn wake_receiver(&self) {
        // Whatever it answers, an empty ring or a full one, a device that is gone shows by [`XdpSocket::pending_error`].
        let _ = rustix::net::recv(&self.fd, &mut [0u8; 0], RecvFlags::DONTWAIT);
    }

    /// Returns the kernel's counters.
    ///
    /// # Errors
    /// When the interface is gone.
    pub fn statistics(&self) -> io::Result<XdpStatistics> {
        Ok(xdp_statistics(&self.fd)?)
    }

    /// The error that waits at the socket, if one does: the interface was taken away.
    pub fn pending_error(&self) -> Option<i32> {
        match get_int(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR) {
            Ok(0) => None,
            Ok(errno) => Some(errno),
            Err(error) => Some(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Number of the interface.
    pub fn if_index(&self) -> u32 {
        self.if_index
    }

    /// Whether the device reads the memory itself.
    pub fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Descriptors that one call sends in copy mode.
    pub fn tx_budget(&self) -> u32 {
        self.tx_budget
    }
}

impl AsFd for XdpSocket {
    /// The socket's descriptor, for the map of a steering program.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Number of an interface in the calling thread's network namespace.
fn interface_index(name: &str) -> io::Result<u32> {
    // A socket made here belongs to this thread's namespace, and so do the answers to its queries.
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

fn rings(fd: BorrowedFd<'_>, config: &SocketConfig) -> io::Result<SocketRings> {
    // The kernel wants a fill ring of a socket that never receives, too.
    let fill_entries = config.rx_entries.max(1);
    set_xdp_umem_fill_ring_size(fd, fill_entries)?;
    set_xdp_umem_completion_ring_size(fd, config.tx_entries)?;
    set_xdp_tx_ring_size(fd, config.tx_entries)?;
    if config.rx_entries > 0 {
        set_xdp_rx_ring_size(fd, config.rx_entries)?;
    }
    let at = xdp_mmap_offsets(fd)?;
    let rx = match config.rx_entries {
        0 => None,
        entries => Some(Ring::map(fd, XDP_PGOFF_RX_RING, &at.rx, entries)?.into_consumer()),
    };
    let completion = Ring::map(fd, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, config.tx_entries)?;
    Ok(SocketRings {
        tx: Ring::map(fd, XDP_PGOFF_TX_RING, &at.tx, config.tx_entries)?.into_producer(),
        completion: completion.into_consumer(),
        rx,
        fill: Ring::map(fd, XDP_UMEM_PGOFF_FILL_RING, &at.fr, fill_entries)?.into_producer(),
    })
}

/// Requests the number of descriptors that one call sends; returns the number now in force.
fn set_budget(fd: BorrowedFd<'_>, config: &SocketConfig) -> u32 {
    let budget = config.tx_budget.clamp(KERNEL_TX_BUDGET, config.tx_entries.max(KERNEL_TX_BUDGET));
    // The kernel reads an unsigned int, which has the length of an int and this value's bits.
    match set_int(fd, libc::SOL_XDP, MAX_TX_SKB_BUDGET, budget as i32) {
        Ok(()) => budget,
        // Before Linux 6.17.
        Err(_) => KERNEL_TX_BUDGET,
    }
}

fn bind(fd: BorrowedFd<'_>, config: &SocketConfig, if_index: u32) -> io::Result<()> {
    let mode = if config.zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
    let mut flags = mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    flags.set(SocketAddrXdpFlags::XDP_USE_SG, config.multi);
    let addr = SocketAddrXdp::new(flags, if_index, config.queue);
    for _ in 0..XDP_BIND_TRIES {
        match rustix::net::bind(fd, &addr) {
            Err(Errno::BUSY) => std::thread::sleep(XDP_BIND_PAUSE),
            other => return Ok(other?),
        }
    }
    Ok(rustix::net::bind(fd, &addr)?)
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
