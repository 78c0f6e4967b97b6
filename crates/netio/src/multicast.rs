//! Sockets for multicast: each has an interface, a source address, a time to live and a loopback
//! setting, and sends to any number of groups. AF_XDP devices know these settings too, and write
//! the same headers.

use std::net::{SocketAddr, UdpSocket};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::NetError;

/// How datagrams to groups leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastSettings {
    /// Number of the interface.
    pub if_index: u32,
    /// Source address, which the interface has, and port; 0: any.
    pub source: SocketAddr,
    /// Routers that they may pass, plus one: time to live, or hop limit.
    pub ttl: u8,
    /// Whether receivers on this host get them too, if they have joined on the same interface. Such datagrams take the kernel's path:
    /// frames that go past its sockets do not come back.
    pub is_looped: bool,
}

/// A socket for multicast.
#[derive(Debug)]
pub struct MulticastSocket {
    settings: MulticastSettings,
    pub(crate) socket: UdpSocket,
}

impl MulticastSocket {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// If the interface or the address is not there, or the socket refuses an option.
    pub fn open(settings: MulticastSettings) -> Result<Self, NetError> {
        let MulticastSettings { if_index, source, ttl, is_looped } = settings;
        let remedy = "give an interface (ip link) and one of its addresses (ip address)";
        let refused = |what| {
            move |error: rustix::io::Errno| NetError::Socket {
                socket: format!("multicast socket on {source}"),
                what,
                source: error.into(),
                remedy,
            }
        };
        let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None);
        let socket = socket.map_err(refused("open it"))?;
        if source.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true).map_err(refused("set IPV6_V6ONLY"))?;
        }
        rustix::net::bind(&socket, &source).map_err(|error| NetError::Bind {
            local: source,
            source: error.into(),
            remedy,
        })?;
        match source {
            SocketAddr::V4(source) => {
                let none = std::net::Ipv4Addr::UNSPECIFIED;
                sockopt::set_ip_multicast_if_with_ifindex(&socket, &none, source.ip(), if_index)
                    .map_err(refused("choose its interface"))?;
                sockopt::set_ip_multicast_ttl(&socket, ttl.into())
                    .map_err(refused("set its time to live"))?;
                sockopt::set_ip_multicast_loop(&socket, is_looped).map_err(refused("set its loopback"))?;
            }
            SocketAddr::V6(_) => {
                sockopt::set_ipv6_multicast_if(&socket, if_index).map_err(refused("choose its interface"))?;
                sockopt::set_ipv6_multicast_hops(&socket, ttl.into())
                    .map_err(refused("set its hop limit"))?;
                sockopt::set_ipv6_multicast_loop(&socket, is_looped).map_err(refused("set its loopback"))?;
            }
        }
        let socket = UdpSocket::from(socket);
        let bound = socket.local_addr();
        let source = bound.map_err(|source| NetError::Bind { local: settings.source, source, remedy })?;
        Ok(Self { settings: MulticastSettings { source, ..settings }, socket })
    }

    /// Returns its settings, with the port that it got.
    pub fn settings(&self) -> MulticastSettings {
        self.settings
    }
}
