//! Loops around `sendmmsg`.

use std::io;
use std::net::UdpSocket;

use super::datagrams::ViewerDatagrams;
use crate::raw_send::{RawMessage, RawSender};

/// Messages in one call.
const MESSAGES: usize = 64;
/// Send buffer: room for all that one call hands over.
const SEND_BUFFER_BYTES: usize = 4 << 20;
/// Completions that may wait to be read; more than the socket's option memory holds is refused.
const MAX_OUTSTANDING: u32 = 64;

/// How datagrams are handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPath {
    /// One message each.
    Single,
    /// One message for the datagrams of a viewer, cut by the kernel.
    Gso,
    /// The same, without copying.
    GsoZeroCopy,
}

/// A UDP socket and the way it is used.
pub struct KernelLoop {
    sender: RawSender,
    way: KernelPath,
    outstanding: u32,
}

impl KernelLoop {
    /// For a bound socket.
    ///
    /// # Errors
    /// When the kernel does not offer the requested path.
    pub fn new(socket: UdpSocket, way: KernelPath) -> io::Result<Self> {
        rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER_BYTES)?;
        let sender = RawSender::new(socket, MESSAGES);
        if way == KernelPath::GsoZeroCopy {
            sender.offer_zero_copy()?;
        }
        Ok(Self { sender, way, outstanding: 0 })
    }

    /// The messages for `pieces` of datagrams of `segment_bytes`.
    pub fn messages<'a>(&self, pieces: &[ViewerDatagrams<'a>], segment_bytes: usize) -> Vec<RawMessage<'a>> {
        let message = |to, bytes: &'a [u8]| {
            let is_train = bytes.len() > segment_bytes;
            RawMessage { to, bytes, segment_bytes: if is_train { segment_bytes as u16 } else { 0 } }
        };
        let all = pieces.iter();
        match self.way {
            KernelPath::Single => {
                all.flat_map(|p| p.bytes.chunks(segment_bytes).map(|bytes| message(p.to, bytes))).collect()
            }
            KernelPath::Gso | KernelPath::GsoZeroCopy => all.map(|p| message(p.to, p.bytes)).collect(),
        }
    }

    /// Sends all of them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send(&mut self, messages: &[RawMessage<'_>]) -> io::Result<()> {
        let mut rest = messages;
        while !rest.is_empty() {
            let taken = if self.way == KernelPath::GsoZeroCopy {
                self.make_room()?;
                let taken = self.sender.send_zero_copy(rest)?;
                self.outstanding += taken as u32;
                taken
            } else {
                self.sender.send(rest)?
            };
            rest = &rest[taken..];
        }
        Ok(())
    }

    /// Reads the completions of earlier calls.
    fn make_room(&mut self) -> io::Result<()> {
        while self.outstanding > 0 {
            self.outstanding -= self.sender.completions()?.min(self.outstanding);
            if self.outstanding <= MAX_OUTSTANDING {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn kernel_paths_send_identical_datagrams() {
        let receivers: Vec<UdpSocket> = (0..3).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let bytes: Vec<u8> = (0..5000u32).map(|n| (n / 7) as u8).collect();
        let piece = |viewer: usize| ViewerDatagrams {
            viewer,
            to: receivers[viewer].local_addr().unwrap(),
            bytes: &bytes[..1000 * (1 + viewer)],
            address: 0,
        };
        let pieces = [piece(0), piece(2), piece(1)];
        for (way, messages) in [(KernelPath::Single, 6), (KernelPath::Gso, 3), (KernelPath::GsoZeroCopy, 3)] {
            let mut sender = KernelLoop::new(UdpSocket::bind("127.0.0.1:0").unwrap(), way).unwrap();
            for _ in 0..3 {
                let list = sender.messages(&pieces, 1000);
                assert_eq!(list.len(), messages, "{way:?}");
                sender.send(&list).unwrap();
                for (viewer, receiver) in receivers.iter().enumerate() {
                    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                    for n in 0..=viewer {
                        let mut got = [0; 2000];
                        let length = receiver.recv(&mut got).unwrap();
                        assert!(got[..length] == bytes[1000 * n..1000 * (n + 1)], "{way:?}: {viewer} {n}");
                    }
                }
            }
        }
    }
}
