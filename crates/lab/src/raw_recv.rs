//! `recvmmsg` as plainly as a C program would call it: the yardstick for everything that receives datagrams.
//!
//! No stamps, no drop counts, no trains: bytes and who sent them.
#![allow(unsafe_code)]

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// A UDP socket and the arrays that `recvmmsg` wants, allocated once.
pub struct RawReceiver {
    socket: UdpSocket,
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    names: Vec<libc::sockaddr_storage>,
    /// A buffer for each message, one after the other.
    bytes: Vec<u8>,
    datagram_bytes: usize,
    received: usize,
}

// SAFETY: the raw pointers in `headers` and `parts` are written and followed within one call of `receive` and mean nothing in between.
unsafe impl Send for RawReceiver {}

impl RawReceiver {
    /// A receiver of up to `max_messages` datagrams a call (at least one; the kernel takes at most 1024), of up to `datagram_bytes` each.
    pub fn new(socket: UdpSocket, max_messages: usize, datagram_bytes: usize) -> Self {
        let n = max_messages.clamp(1, 1024);
        // SAFETY: mmsghdr is a C structure of integers and raw pointers, so all-zero bytes are
        // valid (null).
        let header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        // SAFETY: sockaddr_storage is a C structure of integers, so all-zero bytes are valid.
        let name: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        Self {
            socket,
            headers: vec![header; n],
            parts: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; n],
            names: vec![name; n],
            bytes: vec![0; n * datagram_bytes],
            datagram_bytes,
            received: 0,
        }
    }

    /// Takes what waits at the socket in one call; how many datagrams that were, 0 if nothing waits.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.received = 0;
        for (n, buffer) in self.bytes.chunks_exact_mut(self.datagram_bytes).enumerate() {
            self.parts[n] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut self.headers[n].msg_hdr;
            header.msg_name = (&raw mut self.names[n]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.parts[n];
            header.msg_iovlen = 1;
        }
        // SAFETY: every header was filled in right above: names, parts and buffers lie in arrays of `self` that are never resized and
        // that nothing else refers to during the call. The kernel writes within their lengths and into the headers.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                self.headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        match usize::try_from(received) {
            Ok(received) => {
                self.received = received;
                Ok(received)
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
                error => Err(error),
            },
        }
    }

    /// The datagrams of the last call.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let lengths = self.headers[..self.received].iter().map(|header| header.msg_len as usize);
        // A datagram that is longer was cut.
        self.bytes
            .chunks_exact(self.datagram_bytes)
            .zip(lengths)
            .map(|(buffer, length)| &buffer[..length.min(buffer.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_receiver_returns_queued_datagrams_in_order_then_none() {
        let rx = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (to, tx) = (rx.local_addr().unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut rx = RawReceiver::new(rx, 4, 100);
        assert_eq!(rx.receive().unwrap(), 0);
        for (n, length) in [7, 0, 150, 100, 1].into_iter().enumerate() {
            tx.send_to(&vec![n as u8; length], to).unwrap();
        }
        // Over the loopback all of them wait by now.
        assert_eq!(rx.receive().unwrap(), 4);
        let got: Vec<&[u8]> = rx.datagrams().collect();
        assert_eq!(got, [&[0u8; 7][..], &[], &[2; 100], &[3; 100]]);
        assert_eq!((rx.receive().unwrap(), rx.datagrams().next()), (1, Some(&[4u8][..])));
        assert_eq!((rx.receive().unwrap(), rx.datagrams().next()), (0, None));
    }
}
