//! Where fields lie, and headers as arrays. Numbers go in as values; the output is in wire order.
//!
//! Public for code that frames differently, to compare: a sender needs [`super::Template`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    ETHERNET_HEADER_BYTES, Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader, UDP_HEADER_BYTES,
    VLAN_TAG_BYTES,
};

/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// The same of TCP.
pub const TCP: u8 = 6;
/// "Don't fragment" and offset 0.
pub const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
/// Type field of Ethernet: a VLAN tag follows.
pub const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
/// The same: IPv4.
pub const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// The same: IPv6.
pub const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const VLAN_ID_MASK: u16 = 0x0fff;

/// Offset of IPv4's total length.
pub const IPV4_LENGTH: usize = 2;
/// Offset of IPv4's identification.
pub const IPV4_ID: usize = 4;
/// Offset of IPv4's protocol.
pub const IPV4_PROTOCOL: usize = 9;
/// Offset of IPv4's header checksum.
pub const IPV4_CHECK: usize = 10;
/// Offset of IPv6's payload length.
pub const IPV6_LENGTH: usize = 4;
/// Offset of IPv6's next header.
pub const IPV6_NEXT_HEADER: usize = 6;
/// Offset of UDP's length.
pub const UDP_LENGTH: usize = 4;
/// Offset of UDP's checksum.
pub const UDP_CHECK: usize = 6;

/// The addresses of a flow, of one family. An IPv4 address in IPv6 form (as sockets for both families show it) is the
/// IPv4 address.
#[derive(Clone, Copy, Debug)]
pub enum Addresses {
    /// Source and destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// The same for IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// `None` when the families differ.
    pub fn of(flow: &Flow) -> Option<Self> {
        match (flow.source.ip().to_canonical(), flow.destination.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Self::V4(source, destination)),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Self::V6(source, destination)),
            _ => None,
        }
    }

    /// Returns their protocol number in the Ethernet header.
    pub fn ethertype(self) -> [u8; 2] {
        match self {
            Self::V4(..) => ETHERTYPE_IPV4,
            Self::V6(..) => ETHERTYPE_IPV6,
        }
    }
}

/// Ethernet header, with the tag if there is one; returns its length.
#[inline]
pub fn put_link(out: &mut [u8], link: &LinkHeader, ethertype: [u8; 2]) -> usize {
    out[..6].copy_from_slice(&link.destination);
    out[6..12].copy_from_slice(&link.source);
    let Some(vlan) = link.vlan else {
        out[12..ETHERNET_HEADER_BYTES].copy_from_slice(&ethertype);
        return ETHERNET_HEADER_BYTES;
    };
    out[12..14].copy_from_slice(&ETHERTYPE_VLAN);
    out[14..16].copy_from_slice(&(vlan & VLAN_ID_MASK).to_be_bytes());
    out[16..18].copy_from_slice(&ethertype);
    ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES
}

/// IPv4 header with lengths, identification and checksum zero.
#[inline]
pub fn ipv4(flow: &Flow, source: Ipv4Addr, destination: Ipv4Addr) -> [u8; IPV4_HEADER_BYTES] {
    let mut ip = [0; IPV4_HEADER_BYTES];
    ip[0] = 0x45;
    ip[1] = flow.traffic_class;
    ip[6..8].copy_from_slice(&DONT_FRAGMENT);
    ip[8] = flow.hop_limit;
    ip[IPV4_PROTOCOL] = UDP;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..20].copy_from_slice(&destination.octets());
    ip
}

/// IPv6 header with length zero and flow label zero.
#[inline]
pub fn ipv6(flow: &Flow, source: Ipv6Addr, destination: Ipv6Addr) -> [u8; IPV6_HEADER_BYTES] {
    let mut ip = [0; IPV6_HEADER_BYTES];
    ip[0] = 0x60 | flow.traffic_class >> 4;
    ip[1] = flow.traffic_class << 4;
    ip[IPV6_NEXT_HEADER] = UDP;
    ip[7] = flow.hop_limit;
    ip[8..24].copy_from_slice(&source.octets());
    ip[24..40].copy_from_slice(&destination.octets());
    ip
}

/// UDP header with length and checksum zero.
#[inline]
pub fn udp(flow: &Flow) -> [u8; UDP_HEADER_BYTES] {
    let mut udp = [0; UDP_HEADER_BYTES];
    udp[..2].copy_from_slice(&flow.source.port().to_be_bytes());
    udp[2..4].copy_from_slice(&flow.destination.port().to_be_bytes());
    udp
}
