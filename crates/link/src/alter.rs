//! The effects of a link on the bytes of a packet: bits flipped on the path, and congestion marks.

use millrace_core::wire::checksum::sum16;

/// The unit that an [`crate::ImpairmentModel`] carries: an IP packet, or a stand-in for one.
pub trait LinkPacket {
    /// Flips bits so that a checksum over them fails; `random` selects them.
    fn flip_bits(&mut self, random: u64);

    /// Marks it as having experienced congestion; whether it could be marked.
    fn mark(&mut self) -> bool;
}

/// Bytes of the beginning that stay as they are: version, length of the header, traffic class. Nothing carries a packet whose version it does
/// not know, and a header of another length might have a right sum by chance.
const SPARED_BYTES: usize = 2;

/// The ECN field in the second byte of an IPv4 header (RFC 3168 section 5): congestion experienced.
const IPV4_CE: u8 = 0b11;
/// The same in an IPv6 header.
const IPV6_CE: u8 = 0b11_0000;

const IPV4_HEADER_BYTES: usize = 20;
const IPV4_SUM_AT: usize = 10;

impl LinkPacket for Vec<u8> {
    /// One to three bits of one 16-bit word, which no Internet checksum takes for the same: another word is another sum, and 0 and 0xffff, its two
    /// ways of being nothing, differ in all bits. A datagram without a checksum arrives with wrong bytes.
    fn flip_bits(&mut self, random: u64) {
        let Some(words) = self.len().checked_sub(SPARED_BYTES).map(|bytes| bytes.div_ceil(2) as u64) else {
            return;
        };
        let word = SPARED_BYTES + 2 * (((random >> 32) * words) >> 32) as usize;
        let Some(bytes) = self.get_mut(word..).filter(|rest| !rest.is_empty()) else { return };
        let bits = if bytes.len() == 1 { 8 } else { 16 };
        let (first, second, third) = (random % bits, random / 16 % bits, random / 256 % bits);
        let flipped = 1u16 << first | 1 << second | 1 << third;
        bytes.iter_mut().zip(flipped.to_le_bytes()).for_each(|(byte, flip)| *byte ^= flip);
    }

    fn mark(&mut self) -> bool {
        match self.first().map(|first| first >> 4) {
            Some(4) if self.len() >= IPV4_HEADER_BYTES => {
                let header = usize::from(self[0] & 15) * 4;
                if self[1] & IPV4_CE == 0 || header < IPV4_HEADER_BYTES || self.len() < header {
                    return false;
                }
                self[1] |= IPV4_CE;
                self[IPV4_SUM_AT..IPV4_SUM_AT + 2].fill(0);
                let sum = !sum16(&self[..header]);
                self[IPV4_SUM_AT..IPV4_SUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
                true
            }
            Some(6) if self.len() > 1 && self[1] & IPV6_CE != 0 => {
                self[1] |= IPV6_CE;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
#[path = "alter_tests.rs"]
mod tests;
