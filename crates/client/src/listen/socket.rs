//! Sockets to listen with: of this machine, or of a multicast group.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, UdpSocket};

use rustix::net::sockopt::{
    set_ip_add_membership, set_ip_add_membership_with_ifindex, set_ipv6_add_membership, set_socket_reuseaddr,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::address::ListenUrl;

fn index_of(name: &str) -> io::Result<u32> {
    let path = format!("/sys/class/net/{name}/ifindex");
    // A name with a slash would lead elsewhere.
    let text = if name.contains('/') { None } else { std::fs::read_to_string(path).ok() };
    text.and_then(|text| text.trim().parse().ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Listens at `place`. A group is joined at the interface that `url` names, else at that of `local`, else where the
/// route leads.
pub fn open(url: &ListenUrl, place: SocketAddr, local: Option<IpAddr>) -> Result<UdpSocket, String> {
    let failed = |what: &str, error: io::Error| format!("{what}: {}", error.kind());
    if !place.ip().is_multicast() {
        return UdpSocket::bind(place).map_err(|error| failed("listen", error));
    }
    let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| failed("listen", error.into()))?;
    // Others on this machine may listen to the group too. Bound to the group, it hears no other group of the port.
    set_socket_reuseaddr(&socket, true).map_err(|error| failed("listen", error.into()))?;
    let place = with_scope(url, place).map_err(|error| failed("join the multicast group", error))?;
    rustix::net::bind(&socket, &place).map_err(|error| failed("listen", error.into()))?;
    join(&socket, url, place.ip(), local).map_err(|error| failed("join the multicast group", error))?;
    Ok(UdpSocket::from(socket))
}

/// Groups of one link need its number in their address.
fn with_scope(url: &ListenUrl, place: SocketAddr) -> io::Result<SocketAddr> {
    Ok(match (place, url.interface.as_deref()) {
        (SocketAddr::V6(place), Some(name)) => {
            SocketAddrV6::new(*place.ip(), place.port(), 0, index_of(name)?).into()
        }
        (place, _) => place,
    })
}

fn join(
    socket: &rustix::fd::OwnedFd,
    url: &ListenUrl,
    group: IpAddr,
    local: Option<IpAddr>,
) -> io::Result<()> {
    let named = url.interface.as_deref();
    let local_v4 = match local {
        Some(IpAddr::V4(address)) => address,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    match group {
        IpAddr::V4(group) => match named.map(|name| (name, name.parse::<Ipv4Addr>())) {
            Some((_, Ok(address))) => set_ip_add_membership(socket, &group, &address)?,
            Some((name, Err(_))) => {
                let index = index_of(name)?;
                set_ip_add_membership_with_ifindex(socket, &group, &Ipv4Addr::UNSPECIFIED, index)?;
            }
            None => set_ip_add_membership(socket, &group, &local_v4)?,
        },
        IpAddr::V6(group) => set_ipv6_add_membership(socket, &group, named.map_or(Ok(0), index_of)?)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<UdpSocket, String> {
        let url = ListenUrl::parse(text).unwrap();
        open(&url, url.place(0).unwrap(), None)
    }

    #[test]
    fn listen_on_used_port_fails_but_multicast_group_is_shared() {
        let first = listen("udp://127.0.0.1:39481").unwrap();
        assert_eq!(listen("udp://127.0.0.1:39481").unwrap_err(), "listen: address in use");
        drop(first);
        let groups: Vec<_> = (0..2).map(|_| listen("udp://239.255.77.1:39483?interface=127.0.0.1")).collect();
        assert!(groups.iter().all(Result::is_ok), "{groups:?}");
    }

    fn heard(listener: &UdpSocket) -> Vec<u8> {
        listener.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut buffer = [0; 10];
        let len = listener.recv(&mut buffer).unwrap();
        buffer[..len].to_vec()
    }

    #[test]
    fn groups_of_both_families_are_joined_at_the_interface_that_is_named() {
        let v4 = listen("udp://239.255.77.2:39485?interface=lo").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_ip_multicast_if(&sender, &Ipv4Addr::LOCALHOST).unwrap();
        sender.send_to(b"four", "239.255.77.2:39485").unwrap();
        assert_eq!(heard(&v4), b"four");
        // The loopback interface carries no multicast of IPv6, so that joining is all that can be seen here.
        let Ok(_) = UdpSocket::bind("[::1]:0") else {
            eprintln!("no IPv6 on this machine: its groups are not tried");
            return;
        };
        let v6 = listen("udp://[ff12::77:1]:39487?interface=lo").unwrap();
        assert_eq!(v6.local_addr().unwrap().port(), 39487);
    }

    #[test]
    fn interfaces_that_are_not_there_are_named_as_such() {
        let error = listen("udp://239.255.77.3:39489?interface=no-such-if").unwrap_err();
        assert_eq!(error, "join the multicast group: entity not found");
        assert!(listen("udp://239.255.77.3:39489?interface=../lo").unwrap_err().contains("not found"));
    }
}
