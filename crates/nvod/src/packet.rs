//! RTP packets that carry their place in the title. Sequence numbers wrap, and time stamps are those of the transmission: a header
//! extension (RFC 8285 section 4.2) has the number of the packet and its media time of 90 kHz.

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::time::MediaTicks;
use millrace_core::wire::rtp::RtpHeader;

/// Bytes before the payload.
pub const PLACED_HEADER_BYTES: usize = RTP_HEADER_BYTES + 16;
/// Profile of extensions with one-byte headers, and their length in words (RFC 8285 section 4.2).
const EXTENSION: [u8; 4] = [0xbe, 0xde, 0, 3];
/// The X bit (RFC 3550 section 5.1).
const HAS_EXTENSION: u8 = 0x10;
/// Number of our element.
const ELEMENT: u8 = 1;
/// Bytes of our element: number and time.
const ELEMENT_BYTES: usize = 8;

/// A packet of a title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedPacket<'a> {
    /// The RTP header.
    pub header: RtpHeader,
    /// Number of the packet in the title.
    pub number: u32,
    /// Its media time; titles of 12 hours fit 32 bits.
    pub time: MediaTicks,
    /// Its bytes of the title.
    pub payload: &'a [u8],
}

impl<'a> PlacedPacket<'a> {
    /// The bytes before the payload.
    pub fn emit_header(&self) -> [u8; PLACED_HEADER_BYTES] {
        let mut bytes = [0; PLACED_HEADER_BYTES];
        bytes[..RTP_HEADER_BYTES].copy_from_slice(&self.header.emit());
        bytes[0] |= HAS_EXTENSION;
        let extension = &mut bytes[RTP_HEADER_BYTES..];
        extension[..4].copy_from_slice(&EXTENSION);
        extension[4] = ELEMENT << 4 | (ELEMENT_BYTES - 1) as u8;
        extension[5..9].copy_from_slice(&self.number.to_be_bytes());
        extension[9..13].copy_from_slice(&(self.time.0 as u32).to_be_bytes());
        bytes
    }

    /// Reads a datagram; `None` without RTP or without our element.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (header, payload) = RtpHeader::parse(datagram)?;
        if datagram[0] & HAS_EXTENSION == 0 {
            return None;
        }
        let start = RTP_HEADER_BYTES + 4 * usize::from(datagram[0] & 0x0f);
        let (head, rest) = datagram.get(start..)?.split_first_chunk::<4>()?;
        if head[..2] != EXTENSION[..2] {
            return None;
        }
        let words = u16::from_be_bytes([head[2], head[3]]);
        let element = find_element(rest.get(..4 * usize::from(words))?)?;
        let (number, time) = element.split_first_chunk::<4>()?;
        let time = u32::from_be_bytes(time.try_into().ok()?);
        Some(Self { header, number: u32::from_be_bytes(*number), time: MediaTicks(time.into()), payload })
    }
}

/// Our element; others and padding are passed over.
fn find_element(mut elements: &[u8]) -> Option<&[u8]> {
    loop {
        let (&head, rest) = elements.split_first()?;
        // Padding has no length, and number 15 ends the elements.
        let length = if head == 0 { 0 } else { usize::from(head & 0x0f) + 1 };
        let data = rest.get(..length)?;
        match head >> 4 {
            ELEMENT if length == ELEMENT_BYTES => return Some(data),
            15 => return None,
            _ => elements = &rest[length..],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RtpHeader {
        RtpHeader { marker: false, payload_type: 33, sequence: 9, timestamp: 8, ssrc: 7 }
    }

    #[test]
    fn placed_packet_emit_and_parse_are_inverse() {
        let given = PlacedPacket { header: header(), number: 1 << 31, time: MediaTicks(5), payload: b"TS" };
        let datagram = [&given.emit_header()[..], b"TS"].concat();
        assert_eq!(PlacedPacket::parse(&datagram), Some(given));
        // An ordinary receiver of RTP passes over the extension.
        assert_eq!(RtpHeader::parse(&datagram), Some((header(), &b"TS"[..])));
    }

    #[test]
    fn placed_packet_behind_other_elements_is_found() {
        let mut datagram = vec![0x90, 33, 0, 9, 0, 0, 0, 8, 0, 0, 0, 7, 0xbe, 0xde, 0, 4];
        datagram.extend([0, 0x20, 99, 0, 0x17, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]);
        let read = PlacedPacket::parse(&datagram).unwrap();
        assert_eq!((read.number, read.time), (3, MediaTicks(4)));
        datagram[20] = 0xf7;
        assert_eq!(PlacedPacket::parse(&datagram), None);
    }

    #[test]
    fn placed_packet_of_any_bytes_never_panics() {
        bolero::check!().with_type::<Vec<u8>>().with_iterations(3000).for_each(|bytes| {
            let _ = PlacedPacket::parse(bytes);
            let mut extended = header().emit().to_vec();
            extended[0] |= HAS_EXTENSION;
            extended.extend([0xbe, 0xde, 0, 2]);
            extended.extend(bytes);
            if let Some(read) = PlacedPacket::parse(&extended) {
                assert!(read.payload.len() <= bytes.len());
            }
        });
    }
}
