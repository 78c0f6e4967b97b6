//! The fixed RTP header (RFC 3550 section 5.1) of an MPEG-2 transport stream (RFC 2250).

use crate::limits::RTP_HEADER_BYTES;

/// Static payload type of MPEG-2 transport streams (RFC 3551 section 6).
pub const PAYLOAD_TYPE_MP2T: u8 = 33;

/// Meaning of a fixed header; version 2, no padding, no extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtpHeader {
    /// Marker bit.
    pub marker: bool,
    /// Payload type, 0..=127.
    pub payload_type: u8,
    /// Sequence number.
    pub sequence: u16,
    /// Timestamp, 90 kHz for MP2T.
    pub timestamp: u32,
    /// Synchronisation source.
    pub ssrc: u32,
}

impl RtpHeader {
    /// The 12 header bytes.
    pub fn emit(&self) -> [u8; RTP_HEADER_BYTES] {
        let mut bytes = [0; RTP_HEADER_BYTES];
        bytes[0] = 0x80;
        bytes[1] = u8::from(self.marker) << 7 | self.payload_type & 0x7f;
        bytes[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.timestamp.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.ssrc.to_be_bytes());
        bytes
    }

    /// Header and payload of a datagram; `None` unless it is RTP version 2 whose CSRC list, extension and padding
    /// (RFC 3550 sections 5.1, 5.3.1) fit the datagram.
    pub fn parse(datagram: &[u8]) -> Option<(Self, &[u8])> {
        let fixed = datagram.get(..RTP_HEADER_BYTES)?;
        if fixed[0] >> 6 != 2 {
            return None;
        }
        let mut start = RTP_HEADER_BYTES + 4 * usize::from(fixed[0] & 0x0f);
        if fixed[0] & 0x10 != 0 {
            let words = datagram.get(start + 2..start + 4)?;
            start += 4 + 4 * usize::from(u16::from_be_bytes([words[0], words[1]]));
        }
        let mut payload = datagram.get(start..)?;
        if fixed[0] & 0x20 != 0 {
            let padding = usize::from(*payload.last()?);
            payload = payload.get(..payload.len().checked_sub(padding)?)?;
        }
        let header = Self {
            marker: fixed[1] & 0x80 != 0,
            payload_type: fixed[1] & 0x7f,
            sequence: u16::from_be_bytes([fixed[2], fixed[3]]),
            timestamp: u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]),
            ssrc: u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]),
        };
        Some((header, payload))
    }
}

/// Sequence number of a title's first packet on the shared timeline. Not 0: Debian's VLC (SAT>IP) takes a first packet
/// with number 0 for a duplicate, drops it, and with it the tables and the beginning of the first picture.
pub const FIRST_SEQUENCE: u16 = 1;

/// Sequence number of packet `packet` on the shared timeline: packet number plus [`FIRST_SEQUENCE`], mod 2^16.
pub fn sequence_of(packet: u32) -> u16 {
    (packet as u16).wrapping_add(FIRST_SEQUENCE)
}

/// The RTP timeline that all viewers of a title share: `sequence` by [`sequence_of`], `timestamp = media time + base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// Synchronisation source of the title.
    pub ssrc: u32,
    /// Timestamp of media time zero.
    pub timestamp_base: u32,
}

impl Timeline {
    /// Timestamp of a media time.
    pub fn timestamp(&self, time: crate::time::MediaTicks) -> u32 {
        self.timestamp_base.wrapping_add(time.0 as u32)
    }

    /// Header of packet number `packet` with its media time.
    pub fn header(&self, packet: u32, time: crate::time::MediaTicks) -> RtpHeader {
        RtpHeader {
            marker: false,
            payload_type: PAYLOAD_TYPE_MP2T,
            sequence: sequence_of(packet),
            timestamp: self.timestamp(time),
            ssrc: self.ssrc,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn emit_and_parse_are_inverse(marker: bool, pt in 0u8..128, sequence: u16, timestamp: u32, ssrc: u32) {
            let header = RtpHeader { marker, payload_type: pt, sequence, timestamp, ssrc };
            let mut datagram = header.emit().to_vec();
            datagram.extend_from_slice(b"payload");
            prop_assert_eq!(RtpHeader::parse(&datagram), Some((header, &b"payload"[..])));
        }

        #[test]
        fn parse_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some((_, payload)) = RtpHeader::parse(&bytes) {
                prop_assert!(payload.len() <= bytes.len() - 12);
            }
        }
    }

    #[test]
    fn csrc_extension_and_padding_are_taken_off() {
        let mut datagram = vec![0x80 | 0x20 | 0x10 | 1, 33, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3];
        datagram.extend([9; 4]); // one CSRC
        datagram.extend([0, 0, 0, 1, 8, 8, 8, 8]); // extension of one word
        datagram.extend(b"TS");
        datagram.extend([0, 0, 3]); // three bytes of padding
        let (_, payload) = RtpHeader::parse(&datagram).unwrap();
        assert_eq!(payload, b"TS");
    }
}
