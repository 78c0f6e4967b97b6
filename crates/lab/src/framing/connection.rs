//! The data that all versions share: of a viewer, and of a datagram.

use std::net::IpAddr;

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::checksum::{add, sum16};
use millrace_core::wire::frame::layout::{Addresses, UDP, ipv4, ipv6, udp};
use millrace_core::wire::frame::{
    Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader, Template, UDP_HEADER_BYTES,
};

/// IPv4, UDP and RTP header.
pub(super) const V4_BYTES: usize = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + RTP_HEADER_BYTES;
/// IPv6, UDP and RTP header.
pub(super) const V6_BYTES: usize = IPV6_HEADER_BYTES + UDP_HEADER_BYTES + RTP_HEADER_BYTES;

/// The data known about a viewer before the first datagram: a protocol control block, with all that
/// any version prepares.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    pub(super) link: LinkHeader,
    pub(super) flow: Flow,
    pub(super) addresses: Addresses,
    /// IP and UDP header, lengths, identification and checksums zero.
    pub(super) block: [u8; IPV6_HEADER_BYTES + UDP_HEADER_BYTES],
    /// Sum of pseudo header and UDP header without lengths, in wire order.
    pub(super) header_sum: u16,
    pub(super) template: Template,
}

impl Connection {
    /// `None` when the flow's addresses are of two families.
    pub fn new(link: &LinkHeader, flow: &Flow) -> Option<Self> {
        let addresses = Addresses::of(flow)?;
        let template = Template::new(link, flow)?;
        let mut block = [0; IPV6_HEADER_BYTES + UDP_HEADER_BYTES];
        let (ip_bytes, addresses_sum) = match addresses {
            Addresses::V4(source, destination) => {
                block[..IPV4_HEADER_BYTES].copy_from_slice(&ipv4(flow, source, destination));
                (IPV4_HEADER_BYTES, sum16(&block[12..20]))
            }
            Addresses::V6(source, destination) => {
                block[..IPV6_HEADER_BYTES].copy_from_slice(&ipv6(flow, source, destination));
                (IPV6_HEADER_BYTES, sum16(&block[8..40]))
            }
        };
        let udp = udp(flow);
        block[ip_bytes..ip_bytes + UDP_HEADER_BYTES].copy_from_slice(&udp);
        let header_sum = add(add(addresses_sum, u16::from(UDP)), sum16(&udp)).to_be();
        Some(Self { link: *link, flow: *flow, addresses, block, header_sum, template })
    }

    /// The server's address: what [`super::pre_output`] has to know.
    pub fn source(&self) -> IpAddr {
        self.flow.source.ip()
    }
}

/// What differs from datagram to datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The RTP header.
    pub rtp: [u8; RTP_HEADER_BYTES],
    /// What follows it. Only [`super::full`] and [`super::pre_output`] read it.
    pub payload: &'a [u8],
    /// Uncomplemented sum of the payload, which the others take instead.
    pub payload_sum: u16,
    /// IPv4 identification.
    pub ip_id: u16,
}
