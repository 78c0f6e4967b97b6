//! ARP messages (RFC 826) for IPv4 over Ethernet.

use super::link::Mac;

/// Bytes of a message.
pub(super) const BYTES: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
const HEAD: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// An ARP message for IPv4 over Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArpMessage {
    pub(super) is_request: bool,
    pub(super) sender_mac: Mac,
    pub(super) sender: [u8; 4],
    pub(super) target_mac: Mac,
    pub(super) target: [u8; 4],
}

/// Why a message cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoMessage {
    /// It ends too early.
    Short,
    /// It is about something else than IPv4 over Ethernet, or neither request nor reply.
    Other,
}

impl ArpMessage {
    /// Takes a message apart; what follows it is padding.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NoMessage> {
        let bytes = bytes.first_chunk::<BYTES>().ok_or(NoMessage::Short)?;
        let mac = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let ip = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        let is_request = match u16::from_be_bytes([bytes[6], bytes[7]]) {
            REQUEST => true,
            REPLY => false,
            _ => return Err(NoMessage::Other),
        };
        if bytes[..6] != HEAD {
            return Err(NoMessage::Other);
        }
        Ok(Self { is_request, sender_mac: mac(8), sender: ip(14), target_mac: mac(18), target: ip(24) })
    }

    /// Writes it to the beginning of `out`; its length.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub(super) fn put(&self, out: &mut [u8]) -> usize {
        out[..6].copy_from_slice(&HEAD);
        let operation = if self.is_request { REQUEST } else { REPLY };
        out[6..8].copy_from_slice(&operation.to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_mac);
        out[14..18].copy_from_slice(&self.sender);
        out[18..24].copy_from_slice(&self.target_mac);
        out[24..BYTES].copy_from_slice(&self.target);
        BYTES
    }
}
