//! Six ways to frame the same datagram, oldest first; they are compared by their work at send time.
//!
//! | function | UDP checksum | headers |
//! | --- | --- | --- |
//! | [`full`], [`full_fast`] | over pseudo header, headers and payload | filled field by field: a traditional stack |
//! | [`pre_output`], [`quick_output`] | stored with the unknown fields zero; those are added | stored, the unknown fields filled |
//! | [`v1`] | over pseudo header and headers; that of the payload is stored | filled field by field |
//! | [`v2`] | stored sums of payload and header template, and the lengths | IP and UDP: block copy of a template |
//! | [`v3`] | the same | filled field by field |
//! | [`v4`] | the same | Ethernet, IP and UDP: one block copy, IP sum included ([`Template`]) |
//!
//! All but the last leave IP and Ethernet to code of their own, as the layers of a stack do: it
//! fills those headers and sums the IPv4 header. The RTP header counts as a header: its twelve
//! bytes are part of the bytes that each of them writes and sums. All give the same bytes. Only
//! [`v4`] runs in the server; the others serve for measurement, and as a check on it.

mod block;
pub mod procedures;
mod split;
mod stack;
mod traditional;

pub use block::{v2, v3};
pub use split::{Prebuilt, pre_output, quick_output};
pub use traditional::{full, full_fast, v1};

use std::net::IpAddr;

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::checksum::{add, sum16};
use millrace_core::wire::frame::layout::{Addresses, UDP, ipv4, ipv6, udp};
use millrace_core::wire::frame::{
    Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader, Template, UDP_HEADER_BYTES,
};

/// IPv4, UDP and RTP header.
const V4_BYTES: usize = IPV4_HEADER_BYTES + UDP_HEADER_BYTES + RTP_HEADER_BYTES;
/// IPv6, UDP and RTP header.
const V6_BYTES: usize = IPV6_HEADER_BYTES + UDP_HEADER_BYTES + RTP_HEADER_BYTES;

/// The data known about a viewer before the first datagram: a protocol control block, with all that
/// any version prepares.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    link: LinkHeader,
    flow: Flow,
    addresses: Addresses,
    /// IP and UDP header, lengths, identification and checksums zero.
    block: [u8; IPV6_HEADER_BYTES + UDP_HEADER_BYTES],
    /// Sum of pseudo header and UDP header without lengths, in wire order.
    header_sum: u16,
    template: Template,
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

    /// The server's address: what [`pre_output`] has to know.
    pub fn source(&self) -> IpAddr {
        self.flow.source.ip()
    }
}

/// What differs from datagram to datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The RTP header.
    pub rtp: [u8; RTP_HEADER_BYTES],
    /// What follows it. Only [`full`] and [`pre_output`] read it.
    pub payload: &'a [u8],
    /// Uncomplemented sum of the payload, which the others take instead.
    pub payload_sum: u16,
    /// IPv4 identification.
    pub ip_id: u16,
}

/// Version 4: [`Template::emit`]. Like the others it writes the headers to the beginning of `out` and returns their length, or
/// 0 when they do not fit or the datagram is too long.
#[inline]
pub fn v4(connection: &Connection, datagram: &Datagram<'_>, out: &mut [u8]) -> usize {
    let Datagram { rtp, payload, payload_sum, ip_id } = datagram;
    connection.template.emit(out, rtp, *payload_sum, payload.len(), *ip_id)
}

/// One of the versions.
pub type Version = fn(&Connection, &Datagram<'_>, &mut [u8]) -> usize;

/// The versions that need nothing prepared for each datagram but its payload's sum.
pub const VERSIONS: [(&str, Version); 5] = [("full", full), ("v1", v1), ("v2", v2), ("v3", v3), ("v4", v4)];

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
