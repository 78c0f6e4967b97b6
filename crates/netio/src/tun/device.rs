//! A TUN device: packets that the kernel sends through it are read here, and packets written here
//! are received by the kernel.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_core::limits::tcp::MAX_PACKET_PIECES;
use rustix::fs::{Mode, OFlags};

use crate::error::NetError;
use crate::sys::tun::{Carries, make};

/// A TUN device of the network namespace of the thread that made it. It is gone when this is dropped.
///
/// Packets come and go one by one as IP packets, complete with checksums: no offload is offered to the kernel, so it
/// cuts and sums everything itself before it hands it over.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    /// `/proc/thread-self/net/dev` as opened by the creating thread: it stays with the namespace,
    /// whichever thread reads it.
    devices: File,
}

impl Tun {
    /// Makes a device named `name` in the network namespace of this thread. Addresses, routes and `up` are the caller's.
    ///
    /// # Errors
    /// Without `/dev/net/tun`, without `CAP_NET_ADMIN` in this namespace, or if the name is taken ([`Tun::is_taken`]).
    pub fn open(name: &str) -> Result<Self, NetError> {
        Self::open_as(name, Carries::Packets, false)
    }

    /// Opens a TAP device in the same way: it reads and writes Ethernet frames.
    ///
    /// # Errors
    /// As [`Tun::open`].
    pub fn open_tap(name: &str) -> Result<Self, NetError> {
        Self::open_as(name, Carries::Frames, false)
    }

    pub(super) fn open_as(name: &str, carries: Carries, takes_trains: bool) -> Result<Self, NetError> {
        let refused = |what, remedy| {
            let socket = format!("TUN device {name}");
            move |source| NetError::Socket { socket, what, source, remedy }
        };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty()).map_err(io::Error::from).map_err(
            refused("open /dev/net/tun", "load the kernel module tun (modprobe tun) and run as root"),
        )?;
        make(fd.as_fd(), name, carries, takes_trains).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EPERM) => "run as root, or with CAP_NET_ADMIN",
                Some(libc::EBUSY) => "a device of this name exists; choose another name",
                Some(libc::ENAMETOOLONG) => "choose a name of 1 to 15 bytes",
                _ => "choose a name of letters and digits, and look whether the kernel has TUN devices",
            };
            refused("make the device", remedy)(error)
        })?;
        let devices = File::open("/proc/thread-self/net/dev")
            .map_err(refused("open /proc/thread-self/net/dev", "mount /proc"))?;
        Ok(Self { fd, name: name.to_owned(), devices })
    }

    /// Returns whether an error of [`Tun::open`] means that the name is taken.
    pub fn is_taken(error: &NetError) -> bool {
        matches!(error, NetError::Socket { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the next packet; `None` if there is none now.
    ///
    /// # Errors
    /// If the device is gone or broken.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::io::read(&self.fd, into) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Hands one packet to the kernel.
    ///
    /// # Errors
    /// If the kernel does not take it: the device is down, or the bytes are no IP packet.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.fd, packet)).map(drop).map_err(io::Error::from)
    }

    /// The same with a packet in pieces, at most [`MAX_PACKET_PIECES`] and one.
    pub(super) fn write_pieces<'a>(&self, all: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut pieces = [IoSlice::new(&[]); MAX_PACKET_PIECES + 1];
        let mut used = 0;
        for bytes in all {
            *pieces.get_mut(used).ok_or(io::ErrorKind::InvalidInput)? = IoSlice::new(bytes);
            used += 1;
        }
        let pieces = &pieces[..used];
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.fd, pieces)).map(drop).map_err(io::Error::from)
    }

    /// Returns the number of packets that the kernel dropped because the packets before them had
    /// not been read.
    pub fn missed(&self) -> u64 {
        let mut text = String::new();
        let mut devices = &self.devices;
        let read = devices.seek(SeekFrom::Start(0)).and_then(|_| devices.read_to_string(&mut text));
        read.ok().and_then(|_| sent_drops(&text, &self.name)).unwrap_or(0)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the "drop" column of a device's transmit side in /proc/net/dev.
fn sent_drops(text: &str, name: &str) -> Option<u64> {
    const COLUMN: usize = 11;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().nth(COLUMN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_drops_reads_column_of_exact_interface() {
        let text = "Inter-|   Receive                |  Transmit\n face |bytes    packets errs drop fifo\n\
                    ab10: 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n  ab1: 1 2 3 4 5 6 7 8 91 92 93 94 95 96 97 98\n";
        assert_eq!(sent_drops(text, "ab1"), Some(94));
        assert_eq!(sent_drops(text, "ab"), None);
        assert_eq!(sent_drops("ab1: 1 2", "ab1"), None);
    }
}
