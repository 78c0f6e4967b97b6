//! Pairs of UDP ports: RTP on an even port, RTCP on the next.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::NetError;

/// An even port and the next, as RTP and RTCP want them (RFC 3550 section 11), non-blocking.
///
/// Give clones ([`UdpPair::try_clone`]) to the code that receives RTCP and the datagrams with which players open their
/// firewalls; both sockets must be read, because unread datagrams and ICMP errors share one buffer.
#[derive(Debug)]
pub struct UdpPair {
    /// Socket of RTP packets, even port.
    pub rtp: UdpSocket,
    /// Socket of RTCP packets, the next port.
    pub rtcp: UdpSocket,
}

impl UdpPair {
    /// The same two sockets under other descriptors, for the receiving side.
    pub fn try_clone(&self) -> io::Result<UdpPair> {
        Ok(UdpPair { rtp: self.rtp.try_clone()?, rtcp: self.rtcp.try_clone()? })
    }

    /// The two ports.
    pub fn ports(&self) -> io::Result<(u16, u16)> {
        Ok((self.rtp.local_addr()?.port(), self.rtcp.local_addr()?.port()))
    }
}

/// Binds the first free pair of an even port and the next in `first_port..=last_port` on `addr`. An IPv6 socket takes
/// IPv6 only, so that both families can have the same ports.
///
/// # Errors
/// [`NetError::PortRange`] if the range holds no pair, [`NetError::NoFreePair`] if all are taken, [`NetError::Bind`]
/// if the address or the rights are missing.
pub fn bind_pair(addr: IpAddr, first_port: u16, last_port: u16) -> Result<UdpPair, NetError> {
    let mut tried = 0;
    let mut last_error = None;
    // Port 0 means "any" to bind, and the partner of an even port must lie in the range too.
    for port in (first_port.max(2)..last_port).filter(|port| port.is_multiple_of(2)) {
        tried += 1;
        match bind_both(addr, port) {
            Ok(pair) => return Ok(pair),
            Err((_, error)) if error.kind() == io::ErrorKind::AddrInUse => last_error = Some(error),
            Err((local, source)) => {
                return Err(NetError::Bind { local, remedy: bind_remedy(&source), source });
            }
        }
    }
    match last_error {
        None => Err(NetError::PortRange { first: first_port, last: last_port }),
        Some(source) => Err(NetError::NoFreePair { addr, first: first_port, last: last_port, tried, source }),
    }
}

fn bind_both(addr: IpAddr, port: u16) -> Result<UdpPair, (SocketAddr, io::Error)> {
    let bind = |port| {
        let local = SocketAddr::new(addr, port);
        bind_one(local).map_err(|error| (local, error))
    };
    Ok(UdpPair { rtp: bind(port)?, rtcp: bind(port + 1)? })
}

fn bind_one(local: SocketAddr) -> io::Result<UdpSocket> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &local)?;
    Ok(UdpSocket::from(socket))
}

fn bind_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EADDRNOTAVAIL) => {
            "give an address of this machine (ip address), or 0.0.0.0 or [::] for all"
        }
        Some(libc::EACCES) => "ports below 1024 need CAP_NET_BIND_SERVICE; use ports from 1024 on",
        Some(libc::EMFILE | libc::ENFILE) => "too many open files; raise the limit (ulimit -n)",
        Some(libc::EAFNOSUPPORT) => "this kernel has no such address family; leave the address out",
        _ => "check address and port",
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;
