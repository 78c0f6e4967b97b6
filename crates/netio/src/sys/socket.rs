//! Socket addresses as the kernel reads them, and integer socket options.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::ioctl::{Getter, Opcode, ioctl};

/// A `sockaddr_in` or `sockaddr_in6`, byte for byte; family 0 = none.
#[derive(Clone, Copy)]
#[repr(C, align(4))]
pub(crate) struct RawAddr {
    bytes: [u8; RawAddr::CAPACITY],
}

const FAMILY: usize = 0;
const PORT: usize = 2;
const V4_ADDRESS: usize = 4;
const V6_FLOW: usize = 4;
const V6_ADDRESS: usize = 8;
const V6_SCOPE: usize = 24;

const _: () = {
    assert!(size_of::<RawAddr>() == size_of::<libc::sockaddr_in6>());
    assert!(align_of::<RawAddr>() >= align_of::<libc::sockaddr_in6>());
    assert!(size_of::<libc::sa_family_t>() == 2 && size_of::<libc::sockaddr_in>() == 16);
    assert!(
        offset_of!(libc::sockaddr_in, sin_family) == FAMILY
            && offset_of!(libc::sockaddr_in, sin_port) == PORT
    );
    assert!(offset_of!(libc::sockaddr_in, sin_addr) == V4_ADDRESS);
    assert!(offset_of!(libc::sockaddr_in6, sin6_family) == FAMILY);
    assert!(offset_of!(libc::sockaddr_in6, sin6_port) == PORT);
    assert!(offset_of!(libc::sockaddr_in6, sin6_flowinfo) == V6_FLOW);
    assert!(offset_of!(libc::sockaddr_in6, sin6_addr) == V6_ADDRESS);
    assert!(offset_of!(libc::sockaddr_in6, sin6_scope_id) == V6_SCOPE);
};

impl RawAddr {
    /// Room for either family.
    pub(crate) const CAPACITY: usize = 28;
    /// No address.
    pub(crate) const NONE: Self = Self { bytes: [0; Self::CAPACITY] };

    /// The address as the kernel reads it.
    pub(crate) fn new(addr: SocketAddr) -> Self {
        let mut raw = Self::NONE;
        let b = &mut raw.bytes;
        b[PORT..PORT + 2].copy_from_slice(&addr.port().to_be_bytes());
        match addr {
            SocketAddr::V4(v4) => {
                b[FAMILY..FAMILY + 2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                b[V4_ADDRESS..V4_ADDRESS + 4].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                b[FAMILY..FAMILY + 2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                b[V6_FLOW..V6_FLOW + 4].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                b[V6_ADDRESS..V6_ADDRESS + 16].copy_from_slice(&v6.ip().octets());
                b[V6_SCOPE..V6_SCOPE + 4].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        raw
    }

    /// Parses the address that the kernel wrote; `None` if it wrote no Internet address.
    pub(crate) fn parse(&self) -> Option<SocketAddr> {
        Self::parse_bytes(&self.bytes)
    }

    /// The same from the front of any bytes.
    pub(crate) fn parse_bytes(bytes: &[u8]) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(field(bytes, PORT)?);
        match c_int::from(u16::from_ne_bytes(field(bytes, FAMILY)?)) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(field::<4>(bytes, V4_ADDRESS)?);
                Some(SocketAddrV4::new(ip, port).into())
            }
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(field::<16>(bytes, V6_ADDRESS)?);
                let flow = u32::from_ne_bytes(field(bytes, V6_FLOW)?);
                let scope = u32::from_ne_bytes(field(bytes, V6_SCOPE)?);
                Some(SocketAddrV6::new(ip, port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// The length that the kernel wants with it.
    pub(crate) fn length(&self) -> libc::socklen_t {
        let family = u16::from_ne_bytes([self.bytes[FAMILY], self.bytes[FAMILY + 1]]);
        let v4 = c_int::from(family) == libc::AF_INET;
        (if v4 { size_of::<libc::sockaddr_in>() } else { size_of::<libc::sockaddr_in6>() }) as libc::socklen_t
    }
}

/// Returns `N` bytes at `at`, if that many exist.
pub(crate) fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The address with an IPv4 address that was written as an IPv6 one (`::ffff:192.0.2.1`) turned back: our IPv6
/// sockets speak IPv6 only.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(v4), v6.port()),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// Has the kernel say of each datagram and of each error in the queue which local address it came to.
pub(crate) fn tell_local_address(fd: BorrowedFd<'_>, is_v4: bool) -> io::Result<()> {
    let (level, name) = match is_v4 {
        true => (libc::SOL_IP, libc::IP_PKTINFO),
        false => (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO),
    };
    set_int(fd, level, name, 1)
}

/// Sets an option whose value is an `int`.
pub(crate) fn set_int(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` = size_of(int) bytes from `value`, which lives on this frame; the descriptor is open.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// `SIOCOUTQ` (linux/sockios.h).
const OUTPUT_QUEUE: Opcode = libc::TIOCOUTQ as Opcode;

/// Bytes that a TCP socket has been given and that its peer has not acknowledged (tcp(7)).
pub(crate) fn unacknowledged_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: SIOCOUTQ writes one int to the address it is given, which is that of the `c_int` that the getter returns.
    let bytes: c_int = unsafe { ioctl(fd, Getter::<OUTPUT_QUEUE, c_int>::new()) }?;
    Ok(bytes.max(0).cast_unsigned().into())
}

/// Attaches a classic BPF program that always returns 0, by an option that takes one.
pub(crate) fn attach_zero_program(fd: BorrowedFd<'_>, name: c_int) -> io::Result<()> {
    let mut code = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut code };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` = size_of(sock_fprog) bytes from `program` and the one instruction that it points to, and
    // keeps copies; both live on this frame; the descriptor is open.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const program).cast(), length)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an option whose value is an `int`.
pub(crate) fn get_int(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` = size_of(int) bytes to `value` and the new length to `length`.
    let rc =
        unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// `errno` of the call that failed just now.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Requests a send or receive buffer of `bytes`, beyond `net.core.{w,r}mem_max` if this process
/// may; returns the size that the kernel granted (it doubles the value for its own overhead).
pub(crate) fn raise_buffer(fd: BorrowedFd<'_>, buffer: Buffer, bytes: usize) -> io::Result<usize> {
    let (force, plain) = match buffer {
        Buffer::Send => (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        Buffer::Receive => (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
    };
    // The kernel doubles the value in an int.
    let value = c_int::try_from(bytes.min((c_int::MAX / 2) as usize)).unwrap_or(c_int::MAX / 2);
    if set_int(fd, libc::SOL_SOCKET, force, value).is_err() {
        set_int(fd, libc::SOL_SOCKET, plain, value)?;
    }
    Ok(get_int(fd, libc::SOL_SOCKET, plain)? as usize)
}

/// Which of a socket's two buffers.
#[derive(Clone, Copy)]
pub(crate) enum Buffer {
    Send,
    Receive,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in ["192.0.2.7:5004", "[2001:db8::9]:65535", "[fe80::1%3]:1", "0.0.0.0:0"] {
            let addr: SocketAddr = text.parse().unwrap();
            let raw = RawAddr::new(addr);
            assert_eq!(raw.length(), if addr.is_ipv4() { 16 } else { 28 });
            assert_eq!(raw.parse(), Some(addr));
        }
        assert_eq!(RawAddr::NONE.parse(), None);
        assert_eq!(RawAddr::parse_bytes(&[2, 0, 0]), None);
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:9".parse().unwrap();
        assert_eq!(canonical(mapped), "192.0.2.1:9".parse().unwrap());
        let plain: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        assert_eq!(canonical(plain), plain);
    }

    #[test]
    fn options_are_set_read_and_refused() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        assert_eq!(get_int(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap(), 1);
        let refused = set_int(socket.as_fd(), libc::SOL_SOCKET, 9999, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOPROTOOPT));
        assert!(raise_buffer(socket.as_fd(), Buffer::Receive, 100_000).unwrap() >= 200_000);
        assert!(raise_buffer(socket.as_fd(), Buffer::Send, 100_000).unwrap() >= 200_000);
    }
}
