//! Settings of an interface: its link, its addresses and where all other hosts are. All of it
//! static.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_core::limits::ip::MAX_ADDRESSES;

use super::nd::solicited_group;
use crate::limits::{MAX_NEIGHBOURS, MIN_MTU, MIN_MTU_V6, MIN_NEIGHBOURS};

/// What frames look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Ethernet, with neighbours to be found.
    Ethernet {
        /// The device's own address.
        mac: [u8; 6],
        /// VLAN identifier, if frames carry a tag.
        vlan: Option<u16>,
    },
    /// No link header: a TUN device.
    Ip,
}

/// An address of the interface, with the length of its subnet's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Length of the prefix of those that can be reached without a gateway.
    pub prefix: u8,
}

/// How an interface is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What frames look like.
    pub link: LinkLayer,
    /// Own addresses.
    pub addresses: Vec<Address>,
    /// Where IPv4 packets go that are for none of the subnets.
    pub gateway_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub gateway_v6: Option<Ipv6Addr>,
    /// Longest IP packet.
    pub mtu: u16,
    /// Number of the interface, which goes with link-local addresses.
    pub scope: u32,
    /// TTL and hop limit of packets sent.
    pub hop_limit: u8,
    /// Differentiated services code point of TCP segments, 6 bits.
    pub dscp: u8,
    /// Neighbours at once. Several times as many as live on the subnets, so that none competes with another one for a place.
    pub neighbours: u32,
    /// Whether echo requests are answered here; off: they are for the kernel.
    pub answers_echo: bool,
    /// Secret random numbers: places in the table and flow labels depend on them.
    pub secret: [u64; 2],
}

impl Settings {
    /// An interface without addresses.
    pub fn new(link: LinkLayer, secret: [u64; 2]) -> Self {
        Self {
            link,
            addresses: Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
            mtu: 1500,
            scope: 0,
            hop_limit: 64,
            dscp: 0,
            neighbours: 1024,
            answers_echo: true,
            secret,
        }
    }

    /// With one more address.
    #[must_use]
    pub fn with(mut self, ip: impl Into<IpAddr>, prefix: u8) -> Self {
        self.addresses.push(Address { ip: ip.into(), prefix });
        self
    }

    /// The groups that solicitations for own IPv6 addresses are sent to (RFC 4291 section 2.7.1): the host has to have the device receive them.
    pub fn solicited_groups(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.addresses.iter().filter_map(|address| match address.ip {
            IpAddr::V6(ip) => Some(solicited_group(ip)),
            IpAddr::V4(_) => None,
        })
    }

    pub(super) fn check(&self) -> Result<(), SettingsError> {
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(SettingsError::TooManyAddresses(self.addresses.len()));
        }
        for &Address { ip, prefix } in &self.addresses {
            let longest = if ip.is_ipv4() { 32 } else { 128 };
            if !is_host(ip) || prefix > longest {
                return Err(SettingsError::Address(ip, prefix));
            }
        }
        let gateways =
            [self.gateway_v4.map(IpAddr::V4), self.gateway_v6.map(IpAddr::V6)].into_iter().flatten();
        for gateway in gateways {
            let is_own = self.addresses.iter().any(|address| address.ip == gateway);
            if is_own || !is_host(gateway) {
                return Err(SettingsError::Gateway(gateway));
            }
        }
        if let LinkLayer::Ethernet { mac, .. } = self.link
            && !is_station(mac)
        {
            return Err(SettingsError::Mac(mac));
        }
        let has_v6 = self.addresses.iter().any(|address| address.ip.is_ipv6());
        let least = if has_v6 { MIN_MTU_V6 } else { MIN_MTU };
        if self.mtu < least {
            return Err(SettingsError::Mtu { mtu: self.mtu, least });
        }
        if !(MIN_NEIGHBOURS..=MAX_NEIGHBOURS).contains(&self.neighbours) {
            return Err(SettingsError::Neighbours(self.neighbours));
        }
        Ok(())
    }
}

/// Whether an Ethernet address can be that of one station.
pub(super) fn is_station(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Whether a host can have that address on a network.
pub(super) fn is_host(ip: IpAddr) -> bool {
    match ip {
        // "This network", loopback, and addresses that neither are nor will be unicast (RFC 1122
        // section 3.2.1.3, RFC 1112 section 4).
        IpAddr::V4(ip) => !matches!(ip.octets()[0], 0 | 127 | 224..),
        IpAddr::V6(ip) => {
            !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && ip.to_ipv4_mapped().is_none()
        }
    }
}

/// Why an interface cannot be set up like that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// More addresses than an interface has.
    TooManyAddresses(usize),
    /// No host has that address, or no prefix that length.
    Address(IpAddr, u8),
    /// No host has that address, or the interface has it itself.
    Gateway(IpAddr),
    /// No station has that Ethernet address.
    Mac([u8; 6]),
    /// The MTU is too small for IP.
    Mtu {
        /// The MTU that was requested.
        mtu: u16,
        /// The MTU that the addresses need.
        least: u16,
    },
    /// The size of the neighbour table is out of bounds.
    Neighbours(u32),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyAddresses(count) => {
                write!(f, "{count} addresses for one interface; it takes {MAX_ADDRESSES}")
            }
            Self::Address(ip, prefix) => {
                write!(
                    f,
                    "{ip}/{prefix} is no address of a host; give one of its own and the length of its prefix"
                )
            }
            Self::Gateway(ip) => {
                write!(f, "{ip} is no gateway; give the address of another host on one of the subnets")
            }
            Self::Mac([a, b, c, d, e, g]) => {
                write!(
                    f,
                    "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} is no Ethernet address of one device"
                )
            }
            Self::Mtu { mtu, least } => {
                write!(f, "an MTU of {mtu} bytes; the addresses need {least} at least")
            }
            Self::Neighbours(count) => {
                write!(f, "room for {count} neighbours; choose {MIN_NEIGHBOURS} to {MAX_NEIGHBOURS}")
            }
        }
    }
}

impl std::error::Error for SettingsError {}
