//! Ports of UDP: RTP on an even port, RTCP on the next. One pair of sockets, or several on the same two ports.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::icmp::hear_icmp;
use crate::error::NetError;
use crate::sys::socket::attach_zero_program;

/// An even port and the next, as RTP and RTCP want them (RFC 3550 section 11), non-blocking.
#[derive(Debug)]
pub struct UdpPair {
    /// Socket of RTP packets, even port.
    pub rtp: UdpSocket,
    /// Socket of RTCP packets, the next port.
    pub rtcp: UdpSocket,
}

impl UdpPair {
    /// The two ports.
    pub fn ports(&self) -> io::Result<(u16, u16)> {
        Ok((self.rtp.local_addr()?.port(), self.rtcp.local_addr()?.port()))
    }
}

/// Several senders and one receiver, all on the same two ports: whoever sends, viewers see one source.
///
/// No other program can bind the ports, not even one of the same user that is ready to share them.
/// Why this works, and the alternatives considered: `docs/design/0018-several-engines.md`.
#[derive(Debug)]
pub struct UdpPorts {
    /// Everything from outside comes in here: datagrams, and ICMP errors about what any of the senders has sent
    /// ([`super::IcmpReader`]).
    pub receiver: UdpPair,
    /// A pair for each sender. It receives nothing but the kernel's reports about the sends of this
    /// pair.
    pub senders: Vec<UdpPair>,
}

/// Binds the first free pair of an even port and the next in `first_port..=last_port` on `addr`. An IPv6 socket takes
/// IPv6 only, so that both families can have the same ports.
///
/// # Errors
/// [`NetError::PortRange`] if the range holds no pair, [`NetError::NoFreePair`] if all are taken, [`NetError::Bind`]
/// if the address or the rights are missing.
pub fn bind_pair(addr: IpAddr, first_port: u16, last_port: u16) -> Result<UdpPair, NetError> {
    first_free(addr, first_port, last_port, |rtp, rtcp| {
        Ok(UdpPair { rtp: bind_for(rtp, Use::Alone)?, rtcp: bind_for(rtcp, Use::Alone)? })
    })
}

/// Does the same for `senders` senders beside a receiver; at least one.
///
/// # Errors
/// As [`bind_pair`]; Linux before 4.5 cannot do it.
pub fn bind_ports(
    addr: IpAddr,
    first_port: u16,
    last_port: u16,
    senders: usize,
) -> Result<UdpPorts, NetError> {
    first_free(addr, first_port, last_port, |rtp, rtcp| {
        let (rtp, rtp_senders) = bind_shared(rtp, senders.max(1))?;
        let (rtcp, rtcp_senders) = bind_shared(rtcp, senders.max(1))?;
        let pairs = rtp_senders.into_iter().zip(rtcp_senders);
        let senders = pairs.map(|(rtp, rtcp)| UdpPair { rtp, rtcp }).collect();
        Ok(UdpPorts { receiver: UdpPair { rtp, rtcp }, senders })
    })
}

/// Where binding failed, and why.
type BindFailure = (SocketAddr, io::Error);

/// What `bind` makes of the first pair of ports that is free.
fn first_free<T>(
    addr: IpAddr,
    first_port: u16,
    last_port: u16,
    bind: impl Fn(SocketAddr, SocketAddr) -> Result<T, BindFailure>,
) -> Result<T, NetError> {
    let mut tried = 0;
    let mut last_error = None;
    // Port 0 means "any" to bind, and the partner of an even port must lie in the range too.
    for port in (first_port.max(2)..last_port).filter(|port| port.is_multiple_of(2)) {
        tried += 1;
        match bind(SocketAddr::new(addr, port), SocketAddr::new(addr, port + 1)) {
            Ok(bound) => return Ok(bound),
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

/// Binds a receiver and `senders` senders to one port.
///
/// The first socket is bound without `SO_REUSEPORT`, which fails if anybody has the port, shared or not. Only then it is shared.
///
/// The kernel keeps the sockets of a port in a list. The first of them decides whether one more may
/// be bound, and gets the incoming datagrams if it does not share the port: that must be the
/// receiver. With IPv4 it is the socket bound last, with IPv6 the one bound first. A kernel with
/// another order would find a sender there. A sender shares the port, so the program of the group
/// decides, and it always names socket 0. Sockets are numbered in the order in which they were
/// bound, and when one is closed the last takes its number (socket(7), `SO_ATTACH_REUSEPORT_CBPF`):
/// so the receiver is number 0 in both families.
fn bind_shared(local: SocketAddr, senders: usize) -> Result<(UdpSocket, Vec<UdpSocket>), BindFailure> {
    let refused = |error: io::Error| (local, error);
    let first = bind_for(local, Use::Alone)?;
    sockopt::set_socket_reuseport(&first, true).map_err(|errno| refused(errno.into()))?;
    let sockets = (0..senders).map(|_| bind_for(local, Use::Sending)).collect::<Result<Vec<_>, _>>()?;
    let receiver = if local.is_ipv4() {
        let last = bind_for(local, Use::Shared)?;
        drop(first); // number 0, which the last one gets now
        last
    } else {
        first
    };
    attach_zero_program(receiver.as_fd(), libc::SO_ATTACH_REUSEPORT_CBPF).map_err(refused)?;
    sockopt::set_socket_reuseport(&receiver, false).map_err(|errno| refused(errno.into()))?;
    hear_icmp(&receiver, local.is_ipv4()).map_err(|(_, error)| refused(error))?;
    Ok((receiver, sockets))
}

/// Which other sockets may have the port beside a socket.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// None.
    Alone,
    /// Others that share it.
    Shared,
    /// Others that share it; and no datagram is ever queued here, where it would never be read.
    Sending,
}

fn bind_for(local: SocketAddr, usage: Use) -> Result<UdpSocket, BindFailure> {
    try_bind(local, usage).map_err(|error| (local, error))
}

fn try_bind(local: SocketAddr, usage: Use) -> io::Result<UdpSocket> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if local.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if usage != Use::Alone {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if usage == Use::Sending {
        // Of a filter, 0 is the number of bytes that are kept: none, the datagram is dropped.
        attach_zero_program(socket.as_fd(), libc::SO_ATTACH_FILTER)?;
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
        Some(libc::ENOPROTOOPT) => "use Linux 4.5 or later",
        _ => "check address and port",
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;
