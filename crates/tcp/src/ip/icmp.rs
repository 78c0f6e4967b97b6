//! ICMP of both families: echo, and errors about segments that were sent from here (RFC 792, RFC 4443).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use millrace_core::wire::checksum::{add, copy_sum16, sum16};
use millrace_core::wire::frame::layout::TCP;

use super::{v4, v6};
use crate::seq::Seq;
use crate::wire::FlowKey;

/// ICMP in the protocol field of IPv4, and in a Next Header field.
pub(super) const ICMP_V4: u8 = 1;
pub(super) const ICMP_V6: u8 = 58;
/// Bytes of a message before what depends on its type: type, code, checksum, and four that most use.
pub(super) const HEADER_BYTES: usize = 8;
/// Bytes that a quoted segment has at least: ports and sequence number.
const QUOTED_BYTES: usize = 8;
/// Types of ICMPv4 (RFC 792).
const ECHO_REPLY_V4: u8 = 0;
const UNREACHABLE_V4: u8 = 3;
const ECHO_V4: u8 = 8;
const TIME_EXCEEDED_V4: u8 = 11;
const PARAMETER_V4: u8 = 12;
/// Types of ICMPv6 (RFC 4443).
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_EXCEEDED_V6: u8 = 3;
const PARAMETER_V6: u8 = 4;
const ECHO_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
/// Neighbour discovery (RFC 4861).
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// MTUs that are in use (RFC 1191 section 7), for routers that report none.
const PLATEAUS: [u16; 10] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006, 508, 296, 68];

/// What a network reports of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It did not fit a link: the longest IP packet that does.
    TooBig {
        /// In bytes, with the IP header. Not verified: anything from 0 on.
        mtu: u32,
    },
    /// There is no way to the network or the host, for now.
    Unreachable,
    /// The host does not speak TCP, or nobody has the port.
    Refused,
    /// It is forbidden on the way.
    Prohibited,
    /// It was on the way for too long.
    TimeExceeded,
    /// Something in the header was not understood.
    Parameter,
}

/// An ICMP error about a segment that was sent from an own address. Anybody can send one who knows or guesses the ends: it is a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The ends of the quoted segment, the own one first.
    pub flow: FlowKey,
    /// Its sequence number: the receiver checks whether it is outstanding (RFC 5927 section 4).
    pub seq: Seq,
    /// What is reported.
    pub cause: Cause,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message<'f> {
    /// An echo request.
    Echo,
    /// An error, and the packet it quotes.
    Error(Cause, &'f [u8]),
    /// A neighbour solicitation.
    Solicitation,
    /// A neighbour advertisement.
    Advertisement,
    /// Nothing for this layer.
    Other,
}

/// Sorts an ICMPv4 message; `None` if it is too short.
pub(super) fn sort_v4(bytes: &[u8]) -> Option<Message<'_>> {
    let (header, quote) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let cause = match (header[0], header[1]) {
        (ECHO_V4, 0) => return Some(Message::Echo),
        //= RFC 1191 section 4
        //# the router MUST include the MTU of
        //# that next-hop network in the low-order 16 bits of the ICMP header
        //# field that is labelled "unused" in the ICMP specification [7].
        (UNREACHABLE_V4, 4) => match u16::from_be_bytes([header[6], header[7]]) {
            0 => Cause::TooBig { mtu: plateau_below(quote) },
            mtu => Cause::TooBig { mtu: u32::from(mtu) },
        },
        (UNREACHABLE_V4, 2 | 3) => Cause::Refused,
        (UNREACHABLE_V4, 9 | 10 | 13) => Cause::Prohibited,
        (UNREACHABLE_V4, _) => Cause::Unreachable,
        (TIME_EXCEEDED_V4, _) => Cause::TimeExceeded,
        (PARAMETER_V4, _) => Cause::Parameter,
        _ => return Some(Message::Other),
    };
    Some(Message::Error(cause, quote))
}

/// The same of ICMPv6.
pub(super) fn sort_v6(bytes: &[u8]) -> Option<Message<'_>> {
    let (header, quote) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let cause = match (header[0], header[1]) {
        (ECHO_V6, 0) => return Some(Message::Echo),
        (SOLICITATION, _) => return Some(Message::Solicitation),
        (ADVERTISEMENT, _) => return Some(Message::Advertisement),
        (TOO_BIG_V6, _) => {
            Cause::TooBig { mtu: u32::from_be_bytes([header[4], header[5], header[6], header[7]]) }
        }
        (UNREACHABLE_V6, 1 | 5 | 6) => Cause::Prohibited,
        (UNREACHABLE_V6, 4) => Cause::Refused,
        (UNREACHABLE_V6, _) => Cause::Unreachable,
        (TIME_EXCEEDED_V6, _) => Cause::TimeExceeded,
        (PARAMETER_V6, 1) => Cause::Refused,
        (PARAMETER_V6, _) => Cause::Parameter,
        _ => return Some(Message::Other),
    };
    Some(Message::Error(cause, quote))
}

//= RFC 1191 section 5
//# The strategy we recommend, then, is to use as the next PMTU estimate
//# the greatest plateau value that is less than the returned Total
//# Length field
/// The next smaller MTU in use below the length of a quoted packet.
fn plateau_below(quote: &[u8]) -> u32 {
    let total = v4::Packet::quoted(quote).map_or(0, |packet| packet.total());
    u32::from(PLATEAUS.into_iter().find(|&plateau| plateau < total).unwrap_or(0))
}

/// Why an error is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoQuote {
    /// It quotes too little, or what was never sent from here.
    Malformed,
    /// It quotes something other than TCP.
    OtherProtocol,
}

/// The segment that an ICMPv4 error quotes: its ends and sequence number.
pub(super) fn quoted_v4(quote: &[u8]) -> Result<(FlowKey, Seq), NoQuote> {
    let packet = v4::Packet::quoted(quote).ok_or(NoQuote::Malformed)?;
    if packet.protocol() != TCP {
        return Err(NoQuote::OtherProtocol);
    }
    if !packet.is_first() {
        return Err(NoQuote::Malformed);
    }
    let with_port = |ip: [u8; 4], port| SocketAddr::from((Ipv4Addr::from(ip), port));
    segment(packet.payload, |local, remote| {
        (with_port(packet.source(), local), with_port(packet.destination(), remote))
    })
}

/// The same of ICMPv6. Nothing that is sent from here has extension headers.
pub(super) fn quoted_v6(quote: &[u8], scope: u32) -> Result<(FlowKey, Seq), NoQuote> {
    let packet = v6::Packet::quoted(quote).ok_or(NoQuote::Malformed)?;
    let upper = packet.upper().map_err(|_| NoQuote::Malformed)?;
    if upper.protocol != TCP {
        return Err(NoQuote::OtherProtocol);
    }
    segment(upper.bytes, |local, remote| {
        let [from, to] = [(packet.source(), local), (packet.destination(), remote)]
            .map(|(ip, port)| end_v6(ip, port, scope));
        (from, to)
    })
}

fn segment(
    bytes: &[u8],
    ends: impl FnOnce(u16, u16) -> (SocketAddr, SocketAddr),
) -> Result<(FlowKey, Seq), NoQuote> {
    let &[a, b, c, d, s0, s1, s2, s3] = bytes.first_chunk::<QUOTED_BYTES>().ok_or(NoQuote::Malformed)?;
    let (local, remote) = ends(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let flow = FlowKey::new(local, remote).ok_or(NoQuote::Malformed)?;
    Ok((flow, Seq(u32::from_be_bytes([s0, s1, s2, s3]))))
}

/// An IPv6 end; the interface goes with link-local addresses.
pub(super) fn end_v6(octets: &[u8; 16], port: u16, scope: u32) -> SocketAddr {
    let ip = Ipv6Addr::from(*octets);
    let scope = if ip.is_unicast_link_local() { scope } else { 0 };
    match ip.to_canonical() {
        // Martians on a wire, but nothing here may depend on that they were sorted out before.
        IpAddr::V4(ip) => SocketAddr::from((ip, port)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, scope).into(),
    }
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
