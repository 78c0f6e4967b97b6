//! The properties of an interface that measuring and choosing need.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::error::MeasureError;
use crate::netlink::{Attributes, Family, Netlink, NetlinkRequest, bytes_of, u32_of};

const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// struct ifinfomsg.
const LINK_BYTES: usize = 16;
/// struct ifaddrmsg.
const ADDRESS_BYTES: usize = 8;
const ARPHRD_ETHER: u16 = 1;

/// An interface of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInterface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub if_index: u32,
    /// Its Ethernet address; zeros if it has none.
    pub mac: [u8; 6],
    /// Longest IP packet.
    pub mtu: u32,
    /// Whether it is up and has a carrier.
    pub is_up: bool,
    /// Whether it speaks Ethernet, and not only to this host.
    pub is_ethernet: bool,
    /// Its addresses, without those that are valid on the link only.
    pub addresses: Vec<IpAddr>,
}

impl TargetInterface {
    /// All interfaces.
    ///
    /// # Errors
    /// If the kernel may not be asked.
    pub fn all() -> Result<Vec<Self>, MeasureError> {
        let failed = |source| MeasureError::Call {
            interface: "interfaces".to_owned(),
            what: "list them",
            source,
            remedy: "allow netlink sockets",
        };
        let mut netlink = Netlink::open(Family::Route).map_err(failed)?;
        let mut found = links(&mut netlink).map_err(failed)?;
        for (index, address) in addresses(&mut netlink).map_err(failed)? {
            if let Some(target) = found.iter_mut().find(|target| target.if_index == index) {
                target.addresses.push(address);
            }
        }
        Ok(found)
    }

    /// Returns the interface called `name`.
    ///
    /// # Errors
    /// If there is none, with the names that there are.
    pub fn of(name: &str) -> Result<Self, MeasureError> {
        let all = Self::all()?;
        let names = || all.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
        all.iter()
            .find(|target| target.name == name)
            .cloned()
            .ok_or_else(|| MeasureError::NoInterface { interface: name.to_owned(), names: names() })
    }
}

fn links(netlink: &mut Netlink) -> io::Result<Vec<TargetInterface>> {
    let mut found = Vec::new();
    netlink.dump(NetlinkRequest::new(RTM_GETLINK, 0, &[0; LINK_BYTES]), |message| {
        found.extend(link(message.body));
    })?;
    Ok(found)
}

/// An interface from the body of RTM_NEWLINK.
fn link(body: &[u8]) -> Option<TargetInterface> {
    let attributes = Attributes::behind(body, LINK_BYTES);
    let kind = u16::from_ne_bytes(bytes_of(body, 2)?);
    let flags = u32_of(body, 8)?;
    let has = |flag: i32| flags & flag.cast_unsigned() != 0;
    let name = attributes.get(IFLA_IFNAME)?;
    Some(TargetInterface {
        name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(),
        if_index: u32_of(body, 4)?,
        mac: attributes.get(IFLA_ADDRESS).and_then(|value| bytes_of(value, 0)).unwrap_or_default(),
        mtu: attributes.get(IFLA_MTU).and_then(|value| u32_of(value, 0)).unwrap_or(0),
        is_up: has(libc::IFF_UP) && has(libc::IFF_LOWER_UP),
        is_ethernet: kind == ARPHRD_ETHER && !has(libc::IFF_LOOPBACK),
        addresses: Vec::new(),
    })
}

/// Addresses of all interfaces.
fn addresses(netlink: &mut Netlink) -> io::Result<Vec<(u32, IpAddr)>> {
    let mut found = Vec::new();
    netlink.dump(NetlinkRequest::new(RTM_GETADDR, 0, &[0; ADDRESS_BYTES]), |message| {
        found.extend(address(message.body));
    })?;
    Ok(found)
}

/// An address and its interface from the body of RTM_NEWADDR.
fn address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let attributes = Attributes::behind(body, ADDRESS_BYTES);
    let value = attributes.get(IFA_LOCAL).or_else(|| attributes.get(IFA_ADDRESS))?;
    let address = match i32::from(*body.first()?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(bytes_of::<4>(value, 0)?)),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::from(bytes_of::<16>(value, 0)?)),
        _ => return None,
    };
    let is_of_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    (!is_of_link).then_some((u32_of(body, 4)?, address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn target_of_loopback_is_not_ethernet() {
        let lo = TargetInterface::of("lo").unwrap();
        assert!(!lo.is_ethernet && lo.if_index > 0 && lo.mtu >= 1500, "{lo:?}");
    }

    #[test]
    fn target_of_unknown_name_lists_existing_interfaces() {
        let error = TargetInterface::of("eht0").unwrap_err().to_string();
        assert!(error.contains("eht0: no such interface") && error.contains("lo"), "{error}");
    }

    proptest! {
        #[test]
        fn link_and_address_parse_any_bytes_without_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let named = link(&body).is_some_and(|target| target.name.len() > 600);
            prop_assert!(!named && address(&body).is_none_or(|(_, a)| a.is_ipv4() || a.is_ipv6()));
        }
    }
}
