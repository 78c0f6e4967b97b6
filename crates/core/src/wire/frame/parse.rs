//! A frame from the network, looked at from the front: nothing in it is trusted before it has been
//! verified.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, IPV4_LENGTH, IPV6_LENGTH, UDP_CHECK, UDP_LENGTH,
};
use super::{
    ETHERNET_HEADER_BYTES, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, TCP_HEADER_BYTES, UDP_HEADER_BYTES,
    VLAN_TAG_BYTES,
};
use crate::seam::Protocol;
use crate::wire::checksum::{add, sum16};

/// Version 4 and a header of five words: no options.
const V4_PLAIN: u8 = 0x45;
/// "More fragments" and the offset.
const V4_FRAGMENT: u16 = 0x3fff;
/// Words of the shortest TCP header.
const TCP_HEADER_WORDS: usize = TCP_HEADER_BYTES / 4;
/// The sum of everything that a checksum covers, the checksum too.
const RIGHT_SUM: u16 = 0xffff;

/// A packet that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedPacket<'a> {
    /// Its protocol.
    pub protocol: Protocol,
    /// Who sent it.
    pub source: SocketAddr,
    /// To whom.
    pub destination: SocketAddr,
    /// Of UDP the payload; of TCP the whole segment.
    pub bytes: &'a [u8],
}

/// Why a frame is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// Neither IPv4 nor IPv6, with at most one VLAN tag.
    Link,
    /// The frame ends before a header does, or before a given length; or a length is shorter than
    /// its own header.
    Length,
    /// An IPv4 header with options.
    Options,
    /// A piece of a packet.
    Fragment,
    /// Neither TCP nor UDP, or behind IPv6 extension headers.
    Protocol,
    /// No host has that source address.
    Source,
    /// The checksum of the IPv4 header or of the packet is wrong.
    Checksum,
}

/// Finds the packet in a frame. `scope_id`, the number of the interface, goes with link-local addresses.
///
/// What follows the packet in the frame (padding of short frames) is left out.
///
/// # Errors
/// Says why it is not taken.
pub fn parse(frame: &[u8], scope_id: u32) -> Result<ParsedPacket<'_>, Unfit> {
    let (ethertype, ip) = link(frame)?;
    match ethertype {
        ETHERTYPE_IPV4 => v4(ip),
        ETHERTYPE_IPV6 => v6(ip, scope_id),
        _ => Err(Unfit::Link),
    }
}

fn be16(bytes: &[u8], at: usize) -> Result<u16, Unfit> {
    let pair = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Unfit::Length)?;
    Ok(u16::from_be_bytes(*pair))
}

/// Returns the type and the bytes behind it.
fn link(frame: &[u8]) -> Result<([u8; 2], &[u8]), Unfit> {
    let (header, rest) = frame.split_first_chunk::<ETHERNET_HEADER_BYTES>().ok_or(Unfit::Length)?;
    match [header[12], header[13]] {
        ETHERTYPE_VLAN => {
            let (tag, rest) = rest.split_first_chunk::<VLAN_TAG_BYTES>().ok_or(Unfit::Length)?;
            Ok(([tag[2], tag[3]], rest))
        }
        ethertype => Ok((ethertype, rest)),
    }
}

fn v4(ip: &[u8]) -> Result<ParsedPacket<'_>, Unfit> {
    let (header, _) = ip.split_first_chunk::<IPV4_HEADER_BYTES>().ok_or(Unfit::Length)?;
    if header[0] != V4_PLAIN {
        return Err(Unfit::Options);
    }
    let segment = ip.get(IPV4_HEADER_BYTES..usize::from(be16(header, IPV4_LENGTH)?)).ok_or(Unfit::Length)?;
    if be16(header, 6)? & V4_FRAGMENT != 0 {
        return Err(Unfit::Fragment);
    }
    if sum16(header) != RIGHT_SUM {
        return Err(Unfit::Checksum);
    }
    let (addresses, _) = header[12..].as_chunks::<4>();
    let [source, destination] = [addresses[0], addresses[1]].map(Ipv4Addr::from);
    if source.is_unspecified() || source.is_multicast() || source.is_broadcast() {
        return Err(Unfit::Source);
    }
    let segment = IpPayload::of(header[9], segment, sum16(&header[12..]), true)?;
    Ok(ParsedPacket {
        protocol: segment.protocol,
        source: SocketAddrV4::new(source, segment.source).into(),
        destination: SocketAddrV4::new(destination, segment.destination).into(),
        bytes: segment.bytes,
    })
}

fn v6(ip: &[u8], scope_id: u32) -> Result<ParsedPacket<'_>, Unfit> {
    let (header, rest) = ip.split_first_chunk::<IPV6_HEADER_BYTES>().ok_or(Unfit::Length)?;
    if header[0] >> 4 != 6 {
        return Err(Unfit::Link);
    }
    let segment = rest.get(..usize::from(be16(header, IPV6_LENGTH)?)).ok_or(Unfit::Length)?;
    let (addresses, _) = header[8..].as_chunks::<16>();
    let [source, destination] = [addresses[0], addresses[1]].map(Ipv6Addr::from);
    if source.is_unspecified() || source.is_multicast() {
        return Err(Unfit::Source);
    }
    let segment = IpPayload::of(header[6], segment, sum16(&header[8..]), false)?;
    let with_port = |address: Ipv6Addr, port| {
        let scope_id = if address.is_unicast_link_local() { scope_id } else { 0 };
        SocketAddrV6::new(address, port, 0, scope_id).into()
    };
    Ok(ParsedPacket {
        protocol: segment.protocol,
        source: with_port(source, segment.source),
        destination: with_port(destination, segment.destination),
        bytes: segment.bytes,
    })
}

/// The data behind the IP header.
struct IpPayload<'a> {
    protocol: Protocol,
    source: u16,
    destination: u16,
    bytes: &'a [u8],
}

impl<'a> IpPayload<'a> {
    fn of(protocol: u8, segment: &'a [u8], address_sum: u16, is_v4: bool) -> Result<Self, Unfit> {
        let (protocol, segment, bytes) = match protocol {
            super::layout::UDP => {
                let length = usize::from(be16(segment, UDP_LENGTH)?);
                let segment = segment.get(..length).ok_or(Unfit::Length)?;
                let payload = segment.get(UDP_HEADER_BYTES..).ok_or(Unfit::Length)?;
                (Protocol::Udp, segment, payload)
            }
            super::layout::TCP => {
                let words = usize::from(*segment.get(12).ok_or(Unfit::Length)? >> 4);
                if words < TCP_HEADER_WORDS || words * 4 > segment.len() {
                    return Err(Unfit::Length);
                }
                (Protocol::Tcp, segment, segment)
            }
            _ => return Err(Unfit::Protocol),
        };
        // An IP length has 16 bits, and a segment is shorter.
        let pseudo = add(add(address_sum, segment.len() as u16), u16::from(protocol.number()));
        let is_unsummed = protocol == Protocol::Udp && be16(segment, UDP_CHECK)? == 0;
        // A checksum of zero is none: UDP over IPv4 may have none (RFC 768), over IPv6 it must have one (RFC 8200 section 8.1).
        let is_right = if is_unsummed { is_v4 } else { add(pseudo, sum16(segment)) == RIGHT_SUM };
        if !is_right {
            return Err(Unfit::Checksum);
        }
        Ok(Self { protocol, source: be16(segment, 0)?, destination: be16(segment, 2)?, bytes })
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
