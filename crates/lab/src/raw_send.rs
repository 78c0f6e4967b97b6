//! `sendmmsg` with `UDP_SEGMENT` and `MSG_ZEROCOPY`, as plainly as a C program would call it: the yardstick for everything
//! that sends.
//!
//! No queue, no pacing, no error handling beyond the errno: the cost of a batch here is the
//! kernel's own cost.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// A `sockaddr_in` or `sockaddr_in6`. Only ever written here; the kernel reads it.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// One `UDP_SEGMENT` control message, padded to eight bytes as cmsg(3) wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct SegmentControl {
    length: usize,
    level: libc::c_int,
    kind: libc::c_int,
    segment_bytes: u16,
    padding: [u8; 6],
}

const _: () = {
    assert!(size_of::<SegmentControl>() == 24 && size_of::<libc::cmsghdr>() == 16);
    assert!(std::mem::offset_of!(SegmentControl, level) == std::mem::offset_of!(libc::cmsghdr, cmsg_level));
    assert!(std::mem::offset_of!(SegmentControl, kind) == std::mem::offset_of!(libc::cmsghdr, cmsg_type));
    assert!(std::mem::offset_of!(SegmentControl, segment_bytes) == size_of::<libc::cmsghdr>());
    // The standard library guarantees this for IoSlice on Unix.
    assert!(size_of::<IoSlice<'_>>() == size_of::<libc::iovec>());
};

/// One message whose bytes lie in one piece.
#[derive(Clone, Copy, Debug)]
pub struct RawMessage<'a> {
    /// Where it goes.
    pub to: SocketAddr,
    /// One datagram, or several one after the other, all but the last of `segment_bytes`.
    pub bytes: &'a [u8],
    /// Length at which the kernel cuts the bytes into datagrams; 0: they are one datagram.
    pub segment_bytes: u16,
}

/// One message whose bytes lie in many pieces (headers here, media there).
#[derive(Clone, Copy, Debug)]
pub struct RawGather<'a> {
    /// Where it goes.
    pub to: SocketAddr,
    /// The pieces, in order.
    pub parts: &'a [IoSlice<'a>],
    /// As in [`RawMessage::segment_bytes`].
    pub segment_bytes: u16,
}

/// A UDP socket and the arrays that `sendmmsg` wants, allocated once.
pub struct RawSender {
    socket: UdpSocket,
    headers: Vec<libc::mmsghdr>,
    parts: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<SegmentControl>,
}

// SAFETY: the raw pointers in `headers` and `parts` are written and followed within one call of `send` or `send_gather`
// and mean nothing in between.
unsafe impl Send for RawSender {}

impl RawSender {
    /// A sender of up to `max_messages` messages a call (at least one; the kernel takes at most 1024).
    pub fn new(socket: UdpSocket, max_messages: usize) -> Self {
        let n = max_messages.clamp(1, 1024);
        // SAFETY: mmsghdr is a C structure of integers and raw pointers, so all-zero bytes are
        // valid (null).
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let no_name = Name {
            v4: libc::sockaddr_in {
                sin_family: 0,
                sin_port: 0,
                sin_addr: libc::in_addr { s_addr: 0 },
                sin_zero: [0; 8],
            },
        };
        let control = SegmentControl {
            length: size_of::<libc::cmsghdr>() + size_of::<u16>(),
            level: libc::SOL_UDP,
            kind: libc::UDP_SEGMENT,
            segment_bytes: 0,
            padding: [0; 6],
        };
        Self {
            socket,
            headers: vec![empty; n],
            parts: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; n],
            names: vec![no_name; n],
            controls: vec![control; n],
        }
    }

    /// The socket.
    pub fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Most messages of one call.
    pub fn max_messages(&self) -> usize {
        self.headers.len()
    }

    /// Hands messages to the kernel in one call, at most [`Self::max_messages`] of them; returns how many it took. Waits
    /// for room if the socket does.
    ///
    /// # Errors
    /// The kernel's error for the first message; the others were not looked at.
    pub fn send(&mut self, messages: &[RawMessage<'_>]) -> io::Result<usize> {
        let n = messages.len().min(self.headers.len());
        self.note_all(&messages[..n]);
        self.call(n, 0)
    }

    /// The same for messages in pieces.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_gather(&mut self, messages: &[RawGather<'_>]) -> io::Result<usize> {
        let n = messages.len().min(self.headers.len());
        for (i, message) in messages[..n].iter().enumerate() {
            let parts = message.parts.as_ptr().cast::<libc::iovec>().cast_mut();
            self.note(i, message.to, message.segment_bytes, parts, message.parts.len());
        }
        self.call(n, 0)
    }

    /// Lets [`Self::send_zero_copy`] work (`SO_ZEROCOPY`).
    ///
    /// # Errors
    /// When the kernel does not offer it.
    pub fn offer_zero_copy(&self) -> io::Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads size_of(int) bytes from `on`, which lives on this frame; the socket is open.
        let rc = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Like [`Self::send`], but the kernel need not copy the bytes: it may read them until
    /// [`Self::completions`] has reported that it is done. Bytes changed before then go out
    /// changed.
    ///
    /// # Errors
    /// As [`Self::send`]; `ENOBUFS` when too many completions wait to be read.
    pub fn send_zero_copy(&mut self, messages: &[RawMessage<'_>]) -> io::Result<usize> {
        let n = messages.len().min(self.headers.len());
        self.note_all(&messages[..n]);
        self.call(n, libc::MSG_ZEROCOPY)
    }

    /// Messages sent without a copy that the kernel is done with, since the last time that this was asked. Does not wait.
    ///
    /// # Errors
    /// When the error queue cannot be read.
    pub fn completions(&mut self) -> io::Result<u32> {
        let mut done = 0;
        loop {
            let mut control = Completion([0; 16]);
            // SAFETY: all-zero bytes are a valid msghdr (null pointers, no lengths).
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_control = (&raw mut control).cast();
            header.msg_controllen = size_of::<Completion>() as _;
            // SAFETY: the header names no address, no parts and `control` with its length; the kernel writes only there
            // and into the header, and both outlive the call.
            let got = unsafe {
                libc::recvmsg(
                    self.socket.as_raw_fd(),
                    &raw mut header,
                    libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
                )
            };
            if got < 0 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::WouldBlock { Ok(done) } else { Err(error) };
            }
            done += control.sends();
        }
    }

    fn note_all(&mut self, messages: &[RawMessage<'_>]) {
        for (i, message) in messages.iter().enumerate() {
            self.parts[i] = libc::iovec {
                iov_base: message.bytes.as_ptr().cast_mut().cast(),
                iov_len: message.bytes.len(),
            };
            let part = &raw mut self.parts[i];
            self.note(i, message.to, message.segment_bytes, part, 1);
        }
    }

    /// Fills in header `i`.
    fn note(
        &mut self,
        i: usize,
        to: SocketAddr,
        segment_bytes: u16,
        parts: *mut libc::iovec,
        part_count: usize,
    ) {
        let (name, name_bytes) = name_of(to);
        self.names[i] = name;
        self.controls[i].segment_bytes = segment_bytes;
        let header = &mut self.headers[i].msg_hdr;
        header.msg_name = (&raw mut self.names[i]).cast();
        header.msg_namelen = name_bytes as libc::socklen_t;
        header.msg_iov = parts;
        header.msg_iovlen = part_count as _;
        let is_train = segment_bytes > 0;
        header.msg_control = if is_train { (&raw mut self.controls[i]).cast() } else { std::ptr::null_mut() };
        header.msg_controllen = if is_train { size_of::<SegmentControl>() as _ } else { 0 };
    }

    fn call(&mut self, n: usize, flags: libc::c_int) -> io::Result<usize> {
        if n == 0 {
            return Ok(0);
        }
        // SAFETY: the first `n` headers were filled in by the caller in this very call: names, control messages and
        // single parts point into arrays of `self` that are never resized, pieces into slices that the caller borrows
        // until it returns. The kernel reads all of them and writes only `msg_len` of these `n` headers.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                n as libc::c_uint,
                (libc::MSG_NOSIGNAL | flags) as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Makes the kernel cut all data sent by this socket from now on into datagrams of `segment_bytes`
/// bytes (`UDP_SEGMENT`), except for the last.
///
/// # Errors
/// When the kernel cannot.
pub fn cut_at(socket: &UdpSocket, segment_bytes: u16) -> io::Result<()> {
    let bytes = libc::c_int::from(segment_bytes);
    // SAFETY: the kernel reads size_of(int) bytes from `bytes`, which lives on this frame; the socket is open.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the control messages of one entry of the error queue, as 64-bit words: a `cmsghdr`, then a
/// `sock_extended_err` (linux/errqueue.h).
#[repr(C)]
struct Completion([u64; 16]);

impl Completion {
    /// `SO_EE_ORIGIN_ZEROCOPY`.
    const ORIGIN: u8 = 5;

    /// Returns how many sends it reports as complete: 0 if it is about something else.
    fn sends(&self) -> u32 {
        // Error and origin lie in the third word, the first and the last send in the fourth.
        let origin = self.0[2].to_ne_bytes()[4];
        let [a, b, c, d, e, f, g, h] = self.0[3].to_ne_bytes();
        let (first, last) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        if origin == Self::ORIGIN { last.wrapping_sub(first).wrapping_add(1) } else { 0 }
    }
}

/// The address as the kernel reads it, and its length.
fn name_of(to: SocketAddr) -> (Name, usize) {
    match to {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            (Name { v4: name }, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            (Name { v6: name }, size_of::<libc::sockaddr_in6>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn receiver(ip: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn next(socket: &UdpSocket) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let n = socket.recv(&mut buffer).unwrap();
        buffer[..n].to_vec()
    }

    #[test]
    fn trains_are_cut_and_single_datagrams_are_not() {
        let (a, to_a) = receiver("127.0.0.1");
        let (b, to_b) = receiver("127.0.0.1");
        let mut sender = RawSender::new(UdpSocket::bind("127.0.0.1:0").unwrap(), 8);
        let bytes: Vec<u8> = (0..250).collect();
        let messages = [
            RawMessage { to: to_a, bytes: &bytes, segment_bytes: 100 },
            RawMessage { to: to_b, bytes: &bytes, segment_bytes: 0 },
        ];
        assert_eq!(sender.send(&messages).unwrap(), 2);
        assert_eq!([next(&a), next(&a), next(&a)].concat(), bytes);
        assert_eq!(next(&b), bytes);
        // The lengths of the pieces of a train.
        assert_eq!(sender.send(&messages[..1]).unwrap(), 1);
        assert_eq!([next(&a).len(), next(&a).len(), next(&a).len()], [100, 100, 50]);
    }

    #[test]
    fn send_zero_copy_delivers_and_reports_completions() {
        let (a, to) = receiver("127.0.0.1");
        let mut sender = RawSender::new(UdpSocket::bind("127.0.0.1:0").unwrap(), 8);
        sender.offer_zero_copy().unwrap();
        assert_eq!(sender.completions().unwrap(), 0);
        let bytes: Vec<u8> = (0..20_000u32).map(|n| n as u8).collect();
        let message = RawMessage { to, bytes: &bytes, segment_bytes: 1000 };
        assert_eq!(sender.send_zero_copy(&[message; 3]).unwrap(), 3);
        for _ in 0..3 {
            let got: Vec<u8> = (0..20).flat_map(|_| next(&a)).collect();
            assert!(got == bytes);
        }
        let mut done = 0;
        let until = std::time::Instant::now() + Duration::from_secs(5);
        while done < 3 && std::time::Instant::now() < until {
            done += sender.completions().unwrap();
        }
        assert_eq!((done, sender.completions().unwrap()), (3, 0));
    }

    #[test]
    fn pieces_are_joined_before_they_are_cut() {
        let (a, to) = receiver("127.0.0.1");
        let mut sender = RawSender::new(UdpSocket::bind("127.0.0.1:0").unwrap(), 1);
        let (head, body) = ([1; 12], [2; 88]);
        let parts = [&head[..], &body, &head, &body].map(IoSlice::new);
        let messages = [RawGather { to, parts: &parts, segment_bytes: 100 }; 2];
        assert_eq!(sender.send_gather(&messages).unwrap(), 1, "room for one message only");
        for _ in 0..2 {
            assert_eq!(next(&a), [&head[..], &body].concat());
        }
    }

    #[test]
    fn raw_send_handles_ipv6_and_empty_list() {
        let (six, to) = receiver("::1");
        let mut sender = RawSender::new(UdpSocket::bind("[::1]:0").unwrap(), 4);
        assert_eq!(sender.send(&[]).unwrap(), 0);
        assert_eq!(sender.send(&[RawMessage { to, bytes: b"six", segment_bytes: 0 }]).unwrap(), 1);
        assert_eq!(next(&six), b"six");
    }

    #[test]
    fn raw_send_of_oversized_datagram_returns_emsgsize() {
        let (_a, to) = receiver("127.0.0.1");
        let mut sender = RawSender::new(UdpSocket::bind("127.0.0.1:0").unwrap(), 4);
        let too_long = vec![0; 70_000];
        let error = sender.send(&[RawMessage { to, bytes: &too_long, segment_bytes: 0 }]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }
}
