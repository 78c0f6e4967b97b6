//! Headers of a datagram: Ethernet, VLAN tag, IPv4 or IPv6, UDP and RTP, prebuilt for each viewer and next hop.
//!
//! A [`Template`] is all of them with everything filled in that does not change from one datagram to the next, and with
//! the sums of it. [`Template::emit`] copies it and patches what does change: lengths, IP id, the RTP header and the two
//! checksums, which come from the stored sum of the payload: no byte of the payload is looked at.

pub mod layout;
mod template;

use std::net::SocketAddr;

pub use template::{Template, udp_check};

use crate::limits::RTP_HEADER_BYTES;

/// Ethernet header without a VLAN tag.
pub const ETHERNET_HEADER_BYTES: usize = 14;
/// VLAN tag (IEEE 802.1Q).
pub const VLAN_TAG_BYTES: usize = 4;
/// IPv4 header without options.
pub const IPV4_HEADER_BYTES: usize = 20;
/// IPv6 header without extensions.
pub const IPV6_HEADER_BYTES: usize = 40;
/// UDP header.
pub const UDP_HEADER_BYTES: usize = 8;
/// TCP header without options.
pub const TCP_HEADER_BYTES: usize = 20;
/// The longest header there is here: Ethernet, VLAN, IPv6, UDP, RTP.
pub const MAX_HEADER_BYTES: usize =
    ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES + IPV6_HEADER_BYTES + UDP_HEADER_BYTES + RTP_HEADER_BYTES;
/// Most bytes behind the UDP header: what IPv4's length field leaves. IPv6 could carry 20 more.
pub const MAX_UDP_PAYLOAD_BYTES: usize = u16::MAX as usize - IPV4_HEADER_BYTES - UDP_HEADER_BYTES;

/// How a frame reaches the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkHeader {
    /// Ethernet address of the next hop.
    pub destination: [u8; 6],
    /// Ethernet address of the device.
    pub source: [u8; 6],
    /// VLAN identifier (the lower 12 bits; priority 0), if frames carry a tag.
    pub vlan: Option<u16>,
}

/// The endpoints of datagrams, and their marks. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// From where.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN: type of service or traffic class.
    pub traffic_class: u8,
}

#[cfg(test)]
mod given;
#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
