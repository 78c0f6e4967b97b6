//! The checksum procedures of the versions by themselves, for measurement: the part that remains
//! when nothing is filled in.

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::checksum::{ChecksumAlgorithm, add, sum16_with};
use millrace_core::wire::frame::MAX_HEADER_BYTES;
use millrace_core::wire::frame::UDP_HEADER_BYTES;
use millrace_core::wire::frame::udp_check;

use super::connection::{Connection, Datagram, V6_BYTES};
use super::stack::{Headers, begin, quick_sum};
use super::traditional::overlay;

/// Pseudo header, UDP header without checksum and RTP header, in one piece: the bytes that a
/// traditional stack sums before the payload.
#[derive(Clone, Copy, Debug)]
pub struct Overlay {
    bytes: [u8; V6_BYTES],
    length: usize,
}

impl Overlay {
    /// As the versions lay it out; `None` when the datagram is too long.
    pub fn new(connection: &Connection, datagram: &Datagram<'_>) -> Option<Self> {
        let mut out = [0; MAX_HEADER_BYTES];
        let mut frame = begin(connection, &datagram.rtp, datagram.payload.len(), &mut out)?;
        overlay(&mut frame, connection);
        let headers: &[u8] = match &frame.headers {
            Headers::V4(headers) => *headers,
            Headers::V6(headers) => *headers,
        };
        let mut bytes = [0; V6_BYTES];
        bytes[..headers.len()].copy_from_slice(headers);
        Some(Self { bytes, length: headers.len() })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The traditional procedure, over headers and payload; `kind` selects how words are added.
pub fn in_cksum(kind: ChecksumAlgorithm, overlay: &Overlay, payload: &[u8]) -> u16 {
    udp_check(add(sum16_with(kind, overlay.bytes()), sum16_with(kind, payload)))
}

/// Version 1's, over the headers only.
pub fn in_quick_cksum(overlay: &Overlay, payload_sum: u16) -> u16 {
    udp_check(add(sum16_with(ChecksumAlgorithm::Scalar, overlay.bytes()), payload_sum))
}

/// That of versions 2 to 4: stored sums of header and payload, the lengths, and the RTP header.
pub fn in_quick_cksum_udp_ip_hdr(connection: &Connection, datagram: &Datagram<'_>) -> u16 {
    let udp_bytes = (UDP_HEADER_BYTES + RTP_HEADER_BYTES + datagram.payload.len()) as u16;
    u16::from_be(udp_check(quick_sum(connection, datagram, udp_bytes)))
}
