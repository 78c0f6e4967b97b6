//! Addresses as the C library has them, as bytes: `sockaddr_in` and `sockaddr_in6`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// `AF_INET` and `AF_INET6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

const V4_BYTES: usize = 16;
const V6_BYTES: usize = 28;

/// The address that lies there; `None`: it is of another family, or cut short.
pub(crate) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let &[a, b, ..] = bytes else { return None };
    match i32::from(u16::from_ne_bytes([a, b])) {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            (bytes.len() >= V4_BYTES).then(|| (ip, u16::from_be_bytes([bytes[2], bytes[3]])).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            let scope = bytes.get(24..V6_BYTES)?.try_into().ok()?;
            let port = u16::from_be_bytes([bytes[2], bytes[3]]);
            Some(SocketAddrV6::new(ip.into(), port, 0, u32::from_ne_bytes(scope)).into())
        }
        _ => None,
    }
}

/// Returns the address in the form that a socket of this family uses, and the number of its bytes.
pub(crate) fn write(address: SocketAddr, family: Family) -> ([u8; V6_BYTES], usize) {
    let mut bytes = [0; V6_BYTES];
    let port = address.port().to_be_bytes();
    bytes[2..4].copy_from_slice(&port);
    let family_of = |family: i32| (family as u16).to_ne_bytes();
    match (family, address.ip()) {
        (Family::V4, ip) => {
            bytes[..2].copy_from_slice(&family_of(libc::AF_INET));
            if let IpAddr::V4(ip) = ip.to_canonical() {
                bytes[4..8].copy_from_slice(&ip.octets());
            }
            (bytes, V4_BYTES)
        }
        (Family::V6, ip) => {
            bytes[..2].copy_from_slice(&family_of(libc::AF_INET6));
            let ip = match ip {
                IpAddr::V4(ip) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[8..24].copy_from_slice(&ip.octets());
            if let SocketAddr::V6(address) = address {
                bytes[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
            }
            (bytes, V6_BYTES)
        }
    }
}

/// The same end for the engine: IPv4 that is written as IPv6 is IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => (ip, address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for (text, family) in [
            ("10.1.2.3:80", Family::V4),
            ("0.0.0.0:0", Family::V4),
            ("[2001:db8::1]:65535", Family::V6),
            ("[fe80::1%7]:1", Family::V6),
            ("[::]:5201", Family::V6),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let (bytes, length) = write(address, family);
            assert_eq!(parse(&bytes[..length]), Some(address), "{text}");
            assert_eq!(parse(&bytes[..length - 1]), None, "cut short");
        }
    }

    #[test]
    fn ipv4_in_an_ipv6_socket_is_mapped() {
        let v4: SocketAddr = "10.1.2.3:80".parse().unwrap();
        let (bytes, length) = write(v4, Family::V6);
        let mapped = parse(&bytes[..length]).unwrap();
        assert_eq!(mapped, "[::ffff:10.1.2.3]:80".parse().unwrap());
        assert_eq!(canonical(mapped), v4);
        let (bytes, length) = write("0.0.0.0:80".parse().unwrap(), Family::V6);
        assert_eq!(parse(&bytes[..length]), Some("[::]:80".parse().unwrap()));
        assert_eq!(write(mapped, Family::V4), write(v4, Family::V4));
        assert_eq!(parse(&[1, 0, b'/', b'x']), None, "a path");
        assert_eq!(parse(&[2]), None);
    }
}
