//! Solicitations and advertisements of neighbours (RFC 4861 sections 4.3, 4.4 and 7.1).

use std::net::Ipv6Addr;

use millrace_core::wire::checksum::sum16;
use millrace_core::wire::frame::IPV6_HEADER_BYTES;

use super::icmp::{HEADER_BYTES, ICMP_V6};
use super::link::Mac;
use super::output::put_v6;
use super::v6::{Ipv6Packet, Upper, pseudo_sum};

/// Hop limit of all messages: from no other link.
const HOPS: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Options: link-layer address of the sender, and of the target. In units of eight bytes they have length 1 with Ethernet.
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
/// Bytes before the options.
const FIXED_BYTES: usize = HEADER_BYTES + 16;
/// Bytes of a message with one option, and of the packet.
const MESSAGE_BYTES: usize = FIXED_BYTES + 8;
/// The whole packet.
pub(super) const PACKET_BYTES: usize = IPV6_HEADER_BYTES + MESSAGE_BYTES;
/// All nodes of the link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// A Neighbor Discovery message that passed the checks of RFC 4861.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NdMessage {
    pub(super) kind: NdKind,
    pub(super) target: Ipv6Addr,
    /// Of the solicitation's sender, or of the advertisement's target.
    pub(super) mac: Option<Mac>,
}

/// Type of a Neighbor Discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NdKind {
    Solicitation,
    Advertisement { is_solicited: bool, overrides: bool },
}

/// The group that solicitations for an address are sent to.
pub(super) fn solicited_group(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet address of a group (RFC 2464 section 7).
pub(super) fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Takes a message apart whose checksum is right. `None` if it breaks a rule of RFC 4861 section 7.1.
pub(super) fn parse(packet: &Ipv6Packet<'_>, upper: &Upper<'_>) -> Option<NdMessage> {
    let (fixed, mut options) = upper.bytes.split_first_chunk::<FIXED_BYTES>()?;
    //= RFC 4861 section 7.1.1
    //# The IP Hop Limit field has a value of 255, i.e., the packet
    //# could not possibly have been forwarded by a router.
    if packet.hop_limit() != HOPS || fixed[1] != 0 {
        return None;
    }
    let target: [u8; 16] = std::array::from_fn(|i| fixed[HEADER_BYTES + i]);
    let target = Ipv6Addr::from(target);
    let [source, destination] = [packet.source(), packet.destination()].map(|ip| Ipv6Addr::from(*ip));
    let (kind, wanted) = match fixed[0] {
        SOLICITATION => (NdKind::Solicitation, SOURCE_LINK_ADDRESS),
        _ => {
            let is_solicited = fixed[4] & SOLICITED != 0;
            let overrides = fixed[4] & OVERRIDE != 0;
            (NdKind::Advertisement { is_solicited, overrides }, TARGET_LINK_ADDRESS)
        }
    };
    let mut mac = None;
    while !options.is_empty() {
        let &[kind, units, ..] = options else { return None };
        //= RFC 4861 section 7.1.1
        //# All included options have a length that is greater than zero.
        let (option, rest) = options.split_at_checked(usize::from(units) * 8).filter(|_| units > 0)?;
        if kind == wanted && units == 1 && mac.is_none() {
            mac = Some([option[2], option[3], option[4], option[5], option[6], option[7]]);
        }
        options = rest;
    }
    let is_fit = match kind {
        //= RFC 4861 section 7.1.1
        //# If the IP source address is the unspecified address, the IP
        //# destination address is a solicited-node multicast address.
        NdKind::Solicitation if source.is_unspecified() => {
            mac.is_none() && destination == solicited_group(destination)
        }
        NdKind::Solicitation => true,
        //= RFC 4861 section 7.1.2
        //# If the IP Destination Address is a multicast address the
        //# Solicited flag is zero.
        NdKind::Advertisement { is_solicited, .. } => {
            !(source.is_unspecified() || is_solicited && destination.is_multicast())
        }
    };
    (is_fit && !target.is_multicast()).then_some(NdMessage { kind, target, mac })
}

/// Writes a packet with a message to the beginning of `out`; its length. `mac` is the own address.
///
/// # Panics
/// If `out` is shorter.
pub(super) fn put(
    out: &mut [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    kind: NdKind,
    target: Ipv6Addr,
    mac: Mac,
) -> usize {
    let mut message = [0; MESSAGE_BYTES];
    let option = match kind {
        NdKind::Solicitation => {
            message[0] = SOLICITATION;
            SOURCE_LINK_ADDRESS
        }
        NdKind::Advertisement { is_solicited, overrides } => {
            message[0] = ADVERTISEMENT;
            message[4] = if is_solicited { SOLICITED } else { 0 } | if overrides { OVERRIDE } else { 0 };
            TARGET_LINK_ADDRESS
        }
    };
    message[HEADER_BYTES..FIXED_BYTES].copy_from_slice(&target.octets());
    message[FIXED_BYTES..FIXED_BYTES + 2].copy_from_slice(&[option, 1]);
    message[FIXED_BYTES + 2..].copy_from_slice(&mac);
    let header = put_v6(out, source, destination, ICMP_V6, MESSAGE_BYTES as u16, HOPS);
    let addresses = sum16(&out[8..header]);
    let check = !pseudo_sum(addresses, MESSAGE_BYTES, ICMP_V6, sum16(&message));
    message[2..4].copy_from_slice(&check.to_be_bytes());
    out[header..PACKET_BYTES].copy_from_slice(&message);
    PACKET_BYTES
}
