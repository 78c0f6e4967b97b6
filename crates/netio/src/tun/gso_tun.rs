//! A TUN device that takes and gives trains of TCP segments (generic segmentation offload).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::device::Tun;
use super::train::{Joined, PACKET_BYTES, Train, VNET_BYTES, said};
use crate::error::NetError;
use crate::sys::tun::{Carries, accept_whole_segments};

/// A [`Tun`] for a TCP stack: segments of a connection that follow each other go to the kernel by one write, as one large packet that the kernel cuts
/// when it leaves by a wire, and does not cut at all when it stays on this machine.
///
/// A segment that was taken leaves with [`flush`](Self::flush) at the latest.
#[derive(Debug)]
pub struct GsoTun {
    tun: Tun,
    train: Train,
    packet: Box<[u8]>,
}

impl GsoTun {
    /// Makes a device as [`Tun::open`] does.
    ///
    /// # Errors
    /// As there.
    pub fn open(name: &str) -> Result<Self, NetError> {
        let tun = Tun::open_as(name, Carries::Packets, true)?;
        // A kernel that keeps its segments short is none the worse for it.
        let _ = accept_whole_segments(tun.as_fd(), true);
        Ok(Self { tun, train: Train::new(), packet: vec![0; VNET_BYTES + PACKET_BYTES].into() })
    }

    /// The next packet, and whether its checksum of TCP is right, or left out as that of a packet that has not been on any wire; `None` if there is none now.
    /// A segment of TCP may be longer than the MTU: the kernel's stack has not cut what this end takes whole.
    ///
    /// # Errors
    /// If the device is gone or broken.
    pub fn receive(&mut self) -> io::Result<Option<(&[u8], bool)>> {
        let Some(bytes) = self.tun.read(&mut self.packet)? else { return Ok(None) };
        Ok(said(&self.packet[..bytes]))
    }

    /// Takes a packet: `head`, then the pieces in `body`, fewer than
    /// [`MAX_PACKET_PIECES`](millrace_core::limits::tcp::MAX_PACKET_PIECES). False: the kernel has
    /// no room for the packets before it.
    ///
    /// # Errors
    /// If the device is gone or broken; more pieces than that.
    pub fn gather(&mut self, head: &[u8], body: &[&[u8]]) -> io::Result<bool> {
        match self.train.join(head, body) {
            Joined::Yes => return Ok(true),
            Joined::Behind | Joined::Alone if !self.flush()? => return Ok(false),
            Joined::Behind => drop(self.train.join(head, body)),
            Joined::Alone => return self.write_alone(head, body),
        }
        Ok(true)
    }

    fn write_alone(&mut self, head: &[u8], body: &[&[u8]]) -> io::Result<bool> {
        let front: [&[u8]; 2] = [&[0; VNET_BYTES], head];
        outcome(self.tun.write_pieces(front.into_iter().chain(body.iter().copied())))
    }

    /// Sends the packets taken. False: the kernel has no room now.
    ///
    /// # Errors
    /// If the device is gone or broken.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.train.is_empty() {
            return Ok(true);
        }
        let has_left = outcome(self.tun.write(self.train.seal()))?;
        if has_left {
            self.train.clear();
        }
        Ok(has_left)
    }
}

/// Whether the kernel has taken a packet.
fn outcome(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        // A packet that the kernel rejects is lost, as on any network; it is retransmitted.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
        other => other.map(|()| true),
    }
}

impl Drop for GsoTun {
    fn drop(&mut self) {
        // A device that outlives this may be taken over by a program that knows nothing of trains.
        let _ = accept_whole_segments(self.tun.as_fd(), false);
    }
}

impl AsFd for GsoTun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tun.as_fd()
    }
}
