//! IPv4 headers that come in (RFC 791 section 3.1).

use millrace_core::wire::checksum::fold;
use millrace_core::wire::frame::IPV4_HEADER_BYTES;

use super::addresses::{AddressKey, key_v4};

/// More Fragments, and the offset.
const FRAGMENT: u16 = 0x3fff;
/// Options (RFC 791 section 3.1): end of the list, no operation, loose and strict source route.
const END_OF_LIST: u8 = 0;
const NO_OPERATION: u8 = 1;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;

/// Fault of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// It ends too early, or a length in it cannot be.
    Malformed,
    /// Its checksum.
    Checksum,
    /// It is source routed, or an IPv6 option forbids to go on.
    Options,
}

/// A packet. Nothing but lengths has been verified.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ipv4Packet<'f> {
    header: &'f [u8],
    fixed: &'f [u8; IPV4_HEADER_BYTES],
    pub(super) payload: &'f [u8],
}

impl<'f> Ipv4Packet<'f> {
    /// Takes a packet apart. What follows it (padding) is left out.
    #[inline]
    pub(super) fn new(bytes: &'f [u8]) -> Result<Self, Unfit> {
        let (fixed, _) = bytes.split_first_chunk::<IPV4_HEADER_BYTES>().ok_or(Unfit::Malformed)?;
        let header_bytes = usize::from(fixed[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
        if fixed[0] >> 4 != 4 || header_bytes < IPV4_HEADER_BYTES {
            return Err(Unfit::Malformed);
        }
        let packet = bytes.get(..total).ok_or(Unfit::Malformed)?;
        let (header, payload) = packet.split_at_checked(header_bytes).ok_or(Unfit::Malformed)?;
        Ok(Self { header, fixed, payload })
    }

    /// The same where the end is missing: a packet that an ICMP error quotes.
    pub(super) fn quoted(bytes: &'f [u8]) -> Option<Self> {
        let (fixed, _) = bytes.split_first_chunk::<IPV4_HEADER_BYTES>()?;
        let header_bytes = usize::from(fixed[0] & 15) * 4;
        if fixed[0] >> 4 != 4 || header_bytes < IPV4_HEADER_BYTES {
            return None;
        }
        let (header, payload) = bytes.split_at_checked(header_bytes)?;
        Some(Self { header, fixed, payload })
    }

    #[inline]
    pub(super) fn source(&self) -> [u8; 4] {
        let [.., a, b, c, d, _, _, _, _] = *self.fixed;
        [a, b, c, d]
    }

    #[inline]
    pub(super) fn destination(&self) -> [u8; 4] {
        let [.., a, b, c, d] = *self.fixed;
        [a, b, c, d]
    }

    #[inline]
    pub(super) fn source_key(&self) -> AddressKey {
        key_v4(self.source())
    }

    #[inline]
    pub(super) fn destination_key(&self) -> AddressKey {
        key_v4(self.destination())
    }

    #[inline]
    pub(super) fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    #[inline]
    pub(super) fn traffic_class(&self) -> u8 {
        self.fixed[1]
    }

    /// Whether it is a piece of a packet.
    #[inline]
    pub(super) fn is_fragment(&self) -> bool {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]]) & FRAGMENT != 0
    }

    /// Whether it is the first piece of a packet, or all of it.
    pub(super) fn is_first(&self) -> bool {
        u16::from_be_bytes([self.fixed[6], self.fixed[7]]) & 0x1fff == 0
    }

    /// Verifies the checksum and the options.
    #[inline]
    pub(super) fn verify(&self) -> Result<(), Unfit> {
        let (words, _) = self.header.as_chunks::<4>();
        // A sum of byte-swapped words is the byte-swapped sum, and the right one looks the same either way (RFC 1071 section 2 (B)).
        let sum = words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
        if fold(sum) != 0xffff {
            return Err(Unfit::Checksum);
        }
        if self.header.len() > IPV4_HEADER_BYTES {
            verify_options(&self.header[IPV4_HEADER_BYTES..])
        } else {
            Ok(())
        }
    }
}

//= RFC 1122 section 3.2.1.8
//# The IP
//# and transport layer MUST each interpret those IP options
//# that they understand and silently ignore the others.
/// Passes over all options. Source routes are refused: only a host that wants to appear where it is
/// not has a use for them.
fn verify_options(mut rest: &[u8]) -> Result<(), Unfit> {
    while let Some(&kind) = rest.first() {
        match kind {
            END_OF_LIST => return Ok(()),
            NO_OPERATION => rest = &rest[1..],
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(Unfit::Options),
            _ => {
                let length = usize::from(*rest.get(1).ok_or(Unfit::Malformed)?);
                if length < 2 {
                    return Err(Unfit::Malformed);
                }
                rest = rest.get(length..).ok_or(Unfit::Malformed)?;
            }
        }
    }
    Ok(())
}
