//! Sockets for datagrams that a sender sends without a request: to an address of this machine, or to a multicast group.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};

use rustix::fd::OwnedFd;
use rustix::net::sockopt::{
    set_ip_add_membership, set_ip_add_membership_with_ifindex, set_ip_add_source_membership,
    set_ipv6_add_membership, set_socket_reuseaddr,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::error::NetError;

/// Where datagrams come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestAddress {
    /// An address of this machine, or a group, and the port.
    pub place: SocketAddr,
    /// The only sender of a group. With IPv6, and with an interface that is named, routers are not asked for this sender alone; its
    /// address is for the receiver to check.
    pub source: Option<IpAddr>,
    /// Name or IPv4 address of the interface where a group is joined; `None`: where the route leads.
    pub interface: Option<String>,
}

const REMEDY: &str =
    "check the address and the interface (ip address), and that no other program uses the port (ss -ulpn)";

/// Opens a socket that receives these datagrams.
///
/// # Errors
/// If the port is in use, or the address or the interface is not there.
pub fn open_ingest(address: &IngestAddress) -> Result<UdpSocket, NetError> {
    let local = address.place;
    open(address).map_err(|source| NetError::Bind { local, source, remedy: REMEDY })
}

fn open(address: &IngestAddress) -> io::Result<UdpSocket> {
    let place = address.place;
    if !place.ip().is_multicast() {
        return UdpSocket::bind(place);
    }
    let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Others on this machine may listen to the group too. Bound to the group, it hears no other group of the port.
    set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &with_scope(address)?)?;
    join(&socket, address)?;
    Ok(UdpSocket::from(socket))
}

/// Groups of one link need its number in their address.
fn with_scope(address: &IngestAddress) -> io::Result<SocketAddr> {
    Ok(match (address.place, address.interface.as_deref()) {
        (SocketAddr::V6(place), Some(name)) => {
            SocketAddrV6::new(*place.ip(), place.port(), 0, index_of(name)?).into()
        }
        (place, _) => place,
    })
}

fn join(socket: &OwnedFd, address: &IngestAddress) -> io::Result<()> {
    let named = address.interface.as_deref();
    let by_address = named.and_then(|name| name.parse::<Ipv4Addr>().ok());
    match (address.place.ip(), address.source, named) {
        (IpAddr::V4(group), Some(IpAddr::V4(source)), _) if named.is_none() || by_address.is_some() => {
            let interface = by_address.unwrap_or(Ipv4Addr::UNSPECIFIED);
            set_ip_add_source_membership(socket, &group, &interface, &source)?;
        }
        (IpAddr::V4(group), _, Some(name)) if by_address.is_none() => {
            let index = index_of(name)?;
            set_ip_add_membership_with_ifindex(socket, &group, &Ipv4Addr::UNSPECIFIED, index)?;
        }
        (IpAddr::V4(group), ..) => {
            set_ip_add_membership(socket, &group, &by_address.unwrap_or(Ipv4Addr::UNSPECIFIED))?;
        }
        (IpAddr::V6(group), _, named) => {
            set_ipv6_add_membership(socket, &group, named.map_or(Ok(0), index_of)?)?;
        }
    }
    Ok(())
}

fn index_of(name: &str) -> io::Result<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    // A name with a slash would lead elsewhere.
    let text = if name.contains('/') { None } else { std::fs::read_to_string(path).ok() };
    text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(place: &str, source: Option<&str>, interface: Option<&str>) -> Result<UdpSocket, NetError> {
        open_ingest(&IngestAddress {
            place: place.parse().unwrap(),
            source: source.map(|ip| ip.parse().unwrap()),
            interface: interface.map(str::to_owned),
        })
    }

    #[test]
    fn used_port_is_refused_but_group_is_shared() {
        let first = at("127.0.0.1:0", None, None).unwrap();
        let place = first.local_addr().unwrap().to_string();
        let error = at(&place, None, None).unwrap_err().to_string();
        assert!(error.contains("in use") && error.contains("ss -ulpn"), "{error}");
        let groups: Vec<_> = (0..2).map(|_| at("239.255.78.1:39491", None, Some("127.0.0.1"))).collect();
        assert!(groups.iter().all(Result::is_ok), "{groups:?}");
    }

    #[test]
    fn datagrams_to_a_group_come_from_its_source_alone() {
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_ip_multicast_if(&sender, &Ipv4Addr::LOCALHOST).unwrap();
        let group = "239.255.78.2:39493";
        let wanted = at(group, Some("127.0.0.1"), Some("127.0.0.1")).unwrap();
        let other = at("239.255.78.3:39493", Some("127.0.0.9"), Some("127.0.0.1")).unwrap();
        for to in ["239.255.78.3:39493", group] {
            sender.send_to(b"picture", to).unwrap();
        }
        wanted.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 10];
        assert_eq!(wanted.recv(&mut buffer).unwrap(), 7);
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn interface_that_is_not_there_is_an_error() {
        for name in ["no-such-if", "../lo"] {
            assert!(
                at("239.255.78.4:39495", None, Some(name)).unwrap_err().to_string().contains("not found")
            );
        }
    }
}
