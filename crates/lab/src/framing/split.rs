//! UDP's output in two parts, the first design: `pre_output` once for each datagram, before anybody has asked for it, and
//! `quick_output` for each viewer.

use std::net::IpAddr;

use super::connection::Connection;
use super::stack::{DatagramFrame, begin, in_cksum};
use super::traditional::fill_all;
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::checksum::add;
use millrace_core::wire::frame::layout::{Addresses, UDP};
use millrace_core::wire::frame::udp_check;
use millrace_core::wire::frame::{MAX_UDP_PAYLOAD_BYTES, UDP_HEADER_BYTES};

/// What [`pre_output`] stores of a datagram beside its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prebuilt {
    /// RTP header.
    rtp: [u8; RTP_HEADER_BYTES],
    payload_bytes: u16,
    /// Checksum field as if both ports and the viewer's address were zero. Not mapped from 0 to 0xffff: it is not final.
    check: u16,
}

/// Frames a datagram as far as it is known without its viewer: the server's address, lengths, RTP header and payload are summed;
/// the ports and the viewer's address count as zero, so that they can be added later. `None` when it is too long.
pub fn pre_output(source: IpAddr, rtp: &[u8; RTP_HEADER_BYTES], payload: &[u8]) -> Option<Prebuilt> {
    if payload.len() > MAX_UDP_PAYLOAD_BYTES - RTP_HEADER_BYTES {
        return None;
    }
    let udp_bytes = (UDP_HEADER_BYTES + RTP_HEADER_BYTES + payload.len()) as u16;
    let address = match source.to_canonical() {
        IpAddr::V4(source) => in_cksum(&source.octets()),
        IpAddr::V6(source) => in_cksum(&source.octets()),
    };
    // Both lengths, protocol.
    let known = add(add(udp_bytes, udp_bytes), u16::from(UDP));
    let sum = add(add(address, known), add(in_cksum(rtp), in_cksum(payload)));
    Some(Prebuilt { rtp: *rtp, payload_bytes: payload.len() as u16, check: !sum })
}

/// Fills in the unknown fields, adds them to the stored checksum, and leaves the rest to IP. The
/// connection's source address must be the one that [`pre_output`] was given. Writes the headers to
/// the beginning of `out`; returns their length, or 0 when they do not fit.
pub fn quick_output(connection: &Connection, prebuilt: &Prebuilt, ip_id: u16, out: &mut [u8]) -> usize {
    let payload_bytes = usize::from(prebuilt.payload_bytes);
    let Some(frame) = begin(connection, &prebuilt.rtp, payload_bytes, out) else { return 0 };
    let DatagramFrame { headers, bytes, udp_bytes } = frame;
    let flow = &connection.flow;
    let address = match connection.addresses {
        Addresses::V4(_, destination) => words(&destination.octets()),
        Addresses::V6(_, destination) => words(&destination.octets()),
    };
    let ports = u32::from(flow.source.port()) + u32::from(flow.destination.port());
    let sum = u32::from(!prebuilt.check) + address + ports;
    let sum = (sum & 0xffff) + (sum >> 16);
    let check = udp_check(((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes();
    fill_all(headers, connection, udp_bytes, check, ip_id);
    bytes
}

/// Sum of the 16-bit words, not folded.
fn words(bytes: &[u8]) -> u32 {
    bytes.as_chunks::<2>().0.iter().map(|&word| u32::from(u16::from_be_bytes(word))).sum()
}
