//! ICMP of both families: echo, and errors about segments that were sent from here (RFC 792, RFC 4443).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use millrace_core::wire::checksum::{add, copy_sum16, sum16};
use millrace_core::wire::frame::layout::TCP;

use super::{v4, v6};
use crate::seq::Seq;
use crate::stack::IcmpKind;

/// ICMP in the protocol field of IPv4, and in a Next Header field.
pub(super) const ICMP_V4: u8 = 1;
pub(super) const ICMP_V6: u8 = 58;
/// Bytes of a message before what depends on its type: type, code, checksum, and four that most use.
pub(super) const HEADER_BYTES: usize = 8;
/// Bytes that a quoted segment has at least: ports and sequence number.
const QUOTED_BYTES: usize = 8;
/// Types of ICMPv4 (RFC 792).
const ECHO_REPLY_V4: u8 = 0;
const ECHO_V4: u8 = 8;
/// Types of ICMPv6 (RFC 4443); of neighbour discovery (RFC 4861).
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Classification of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpMessage<'f> {
    /// An echo request.
    Echo,
    /// An error, and the packet it quotes.
    Error(IcmpKind, &'f [u8]),
    /// About neighbours.
    Discovery,
    /// Nothing for this layer.
    Other,
}

/// Sorts an ICMPv4 message; `None` if it is too short.
pub(super) fn sort_v4(bytes: &[u8]) -> Option<IcmpMessage<'_>> {
    let (&[kind, code, _, _, rest @ ..], quote) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    Some(match (kind, code) {
        (ECHO_V4, 0) => IcmpMessage::Echo,
        _ => {
            IcmpKind::v4(kind, code, rest).map_or(IcmpMessage::Other, |kind| IcmpMessage::Error(kind, quote))
        }
    })
}

/// The same of ICMPv6.
pub(super) fn sort_v6(bytes: &[u8]) -> Option<IcmpMessage<'_>> {
    let (&[kind, code, _, _, rest @ ..], quote) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    Some(match (kind, code) {
        (ECHO_V6, 0) => IcmpMessage::Echo,
        (SOLICITATION | ADVERTISEMENT, _) => IcmpMessage::Discovery,
        _ => {
            IcmpKind::v6(kind, code, rest).map_or(IcmpMessage::Other, |kind| IcmpMessage::Error(kind, quote))
        }
    })
}

/// Why an error is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoQuote {
    /// It quotes too little, or a packet that was never sent from here.
    Malformed,
    /// It quotes something other than TCP.
    OtherProtocol,
}

/// A segment that an error quotes: the end that is here, the other one, and its sequence number.
pub(super) type Quoted = (SocketAddr, SocketAddr, Seq);

/// The segment that an ICMPv4 error quotes.
pub(super) fn quoted_v4(quote: &[u8]) -> Result<Quoted, NoQuote> {
    let packet = v4::Ipv4Packet::quoted(quote).ok_or(NoQuote::Malformed)?;
    if packet.protocol() != TCP {
        return Err(NoQuote::OtherProtocol);
    }
    if !packet.is_first() {
        return Err(NoQuote::Malformed);
    }
    let with_port = |ip: [u8; 4], port| SocketAddr::from((Ipv4Addr::from(ip), port));
    let (local, remote, seq) = segment(packet.payload)?;
    Ok((with_port(packet.source(), local), with_port(packet.destination(), remote), seq))
}

/// The same of ICMPv6.
pub(super) fn quoted_v6(quote: &[u8], scope: u32) -> Result<Quoted, NoQuote> {
    let packet = v6::Ipv6Packet::quoted(quote).ok_or(NoQuote::Malformed)?;
    let upper = packet.upper().map_err(|_| NoQuote::Malformed)?;
    if upper.protocol != TCP {
        return Err(NoQuote::OtherProtocol);
    }
    let (local, remote, seq) = segment(upper.bytes)?;
    Ok((end_v6(packet.source(), local, scope), end_v6(packet.destination(), remote, scope), seq))
}

/// Ports and sequence number.
fn segment(bytes: &[u8]) -> Result<(u16, u16, Seq), NoQuote> {
    let &[a, b, c, d, s0, s1, s2, s3] = bytes.first_chunk::<QUOTED_BYTES>().ok_or(NoQuote::Malformed)?;
    let seq = Seq(u32::from_be_bytes([s0, s1, s2, s3]));
    Ok((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]), seq))
}

/// An IPv6 end; the interface goes with link-local addresses.
pub(super) fn end_v6(octets: &[u8; 16], port: u16, scope: u32) -> SocketAddr {
    let ip = Ipv6Addr::from(*octets);
    let scope = if ip.is_unicast_link_local() { scope } else { 0 };
    SocketAddrV6::new(ip, port, 0, scope).into()
}

/// Writes the reply to `request`, an echo request whose checksum is right. `pseudo` is the sum of the pseudo-header, 0 for IPv4.
///
/// # Panics
/// If `out` and `request` differ in length, or are shorter than a header.
pub(super) fn put_echo_reply(out: &mut [u8], request: &[u8], is_v4: bool, pseudo: u16) {
    let sum = copy_sum16(&mut out[HEADER_BYTES..], &request[HEADER_BYTES..]);
    let kind = if is_v4 { ECHO_REPLY_V4 } else { ECHO_REPLY_V6 };
    out[..HEADER_BYTES].copy_from_slice(&[kind, 0, 0, 0, request[4], request[5], request[6], request[7]]);
    let check = !add(add(pseudo, sum), sum16(&out[..HEADER_BYTES]));
    out[2..4].copy_from_slice(&check.to_be_bytes());
}

#[cfg(test)]
#[path = "icmp_tests.rs"]
mod tests;
