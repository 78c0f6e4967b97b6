//! IPv6 headers that come in, and those that extend them (RFC 8200 sections 3 and 4).

use millrace_core::wire::checksum::{add, sum16};
use millrace_core::wire::frame::IPV6_HEADER_BYTES;

use super::addresses::{AddressKey, key_v6};
use super::v4::Unfit;
use crate::limits::{MAX_EXTENSION_BYTES, MAX_EXTENSION_HEADERS};

/// Next Header: options for each hop, and for the destination.
const HOP_BY_HOP: u8 = 0;
const DESTINATION_OPTIONS: u8 = 60;
/// Next Header: route.
const ROUTING: u8 = 43;
/// Next Header: a piece of a packet.
pub(super) const FRAGMENT: u8 = 44;
/// Padding options, which each packet may have.
const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
/// What to do about an option that is not known: its two upper bits. Not zero: drop the packet.
const OPTION_ACTION: u8 = 0xc0;

/// A packet. Nothing but its length has been verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv6Packet<'f> {
    header: &'f [u8; IPV6_HEADER_BYTES],
    /// Everything behind the fixed header.
    rest: &'f [u8],
}

/// Content behind the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Upper<'f> {
    pub(super) protocol: u8,
    pub(super) bytes: &'f [u8],
}

impl<'f> Ipv6Packet<'f> {
    /// Takes a packet apart. What follows it (padding) is left out.
    #[inline]
    pub(super) fn new(bytes: &'f [u8]) -> Result<Self, Unfit> {
        let (header, rest) = bytes.split_first_chunk::<IPV6_HEADER_BYTES>().ok_or(Unfit::Malformed)?;
        if header[0] >> 4 != 6 {
            return Err(Unfit::Malformed);
        }
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        Ok(Self { header, rest: rest.get(..length).ok_or(Unfit::Malformed)? })
    }

    /// The same where the end is missing: a packet that an ICMP error quotes.
    pub(super) fn quoted(bytes: &'f [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<IPV6_HEADER_BYTES>()?;
        (header[0] >> 4 == 6).then_some(Self { header, rest })
    }

    #[inline]
    pub(super) fn source(&self) -> &'f [u8; 16] {
        let (addresses, _) = self.header[8..].as_chunks::<16>();
        &addresses[0]
    }

    #[inline]
    pub(super) fn destination(&self) -> &'f [u8; 16] {
        let (addresses, _) = self.header[8..].as_chunks::<16>();
        &addresses[1]
    }

    #[inline]
    pub(super) fn source_key(&self) -> AddressKey {
        key_v6(self.source())
    }

    #[inline]
    pub(super) fn destination_key(&self) -> AddressKey {
        key_v6(self.destination())
    }

    #[inline]
    pub(super) fn traffic_class(&self) -> u8 {
        self.header[0] << 4 | self.header[1] >> 4
    }

    #[inline]
    pub(super) fn hop_limit(&self) -> u8 {
        self.header[7]
    }

    /// Goes past the extension headers to the packet's actual content. Returns a fragment, or an
    /// unknown header, as it is.
    #[inline]
    pub(super) fn upper(&self) -> Result<Upper<'f>, Unfit> {
        let upper = Upper { protocol: self.header[6], bytes: self.rest };
        match upper.protocol {
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => extended(upper),
            _ => Ok(upper),
        }
    }

    /// Whether the checksum over `bytes`, its own field among them, is right (RFC 8200 section 8.1).
    pub(super) fn is_right(&self, upper: &Upper<'_>) -> bool {
        let addresses = sum16(&self.header[8..]);
        pseudo_sum(addresses, upper.bytes.len(), upper.protocol, sum16(upper.bytes)) == 0xffff
    }
}

/// Sum of everything that a checksum covers: `addresses` of both addresses, `bytes` of the message.
pub(super) fn pseudo_sum(addresses: u16, length: usize, protocol: u8, bytes: u16) -> u16 {
    // An IPv6 payload without the jumbo option is shorter than 2^16.
    add(add(addresses, length as u16), add(u16::from(protocol), bytes))
}

/// Goes past extension headers.
#[cold]
fn extended(mut upper: Upper<'_>) -> Result<Upper<'_>, Unfit> {
    let all = upper.bytes.len();
    for number in 0..=MAX_EXTENSION_HEADERS {
        if !matches!(upper.protocol, HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING) {
            return Ok(upper);
        }
        let &[next, length, ..] = upper.bytes else { return Err(Unfit::Malformed) };
        let bytes = (usize::from(length) + 1) * 8;
        let (header, rest) = upper.bytes.split_at_checked(bytes).ok_or(Unfit::Malformed)?;
        match upper.protocol {
            //= RFC 8200 section 4.1
            //# IPv6 nodes must accept and attempt to process extension headers in
            //# any order and occurring any number of times in the same packet,
            //# except for the Hop-by-Hop Options header, which is restricted to
            //# appear immediately after an IPv6 header only.
            HOP_BY_HOP if number > 0 => return Err(Unfit::Malformed),
            //= RFC 8200 section 4.4
            //# If Segments Left is zero, the node must ignore the Routing header
            //# and proceed to process the next header in the packet
            ROUTING if header[3] != 0 => return Err(Unfit::Options),
            ROUTING => {}
            _ => verify_options(&header[2..])?,
        }
        if all - rest.len() > MAX_EXTENSION_BYTES {
            return Err(Unfit::Options);
        }
        upper = Upper { protocol: next, bytes: rest };
    }
    Err(Unfit::Options)
}

/// Passes over options that may be passed over (RFC 8200 section 4.2). All but the padding are not known here.
fn verify_options(mut rest: &[u8]) -> Result<(), Unfit> {
    while let Some(&kind) = rest.first() {
        if kind == PAD_1 {
            rest = &rest[1..];
            continue;
        }
        let length = usize::from(*rest.get(1).ok_or(Unfit::Malformed)?);
        if kind != PAD_N && kind & OPTION_ACTION != 0 {
            return Err(Unfit::Options);
        }
        rest = rest.get(2 + length..).ok_or(Unfit::Malformed)?;
    }
    Ok(())
}
