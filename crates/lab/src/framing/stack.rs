//! The work of a stack below UDP, and the steps that the versions share.

use super::connection::{Connection, Datagram, V4_BYTES, V6_BYTES};
use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::wire::checksum::{ChecksumAlgorithm, fold, sum16_with};
use millrace_core::wire::frame::layout::{
    Addresses, DONT_FRAGMENT, IPV4_CHECK, IPV4_ID, IPV4_LENGTH, IPV6_LENGTH, UDP, put_link,
};
use millrace_core::wire::frame::{
    Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, MAX_HEADER_BYTES, MAX_UDP_PAYLOAD_BYTES, UDP_HEADER_BYTES,
};

/// IP, UDP and RTP header of a datagram in `out`, behind the room for the Ethernet header.
pub(super) enum Headers<'o> {
    V4(&'o mut [u8; V4_BYTES]),
    V6(&'o mut [u8; V6_BYTES]),
}

/// A datagram under construction: Ethernet and RTP header are there.
pub(super) struct DatagramFrame<'o> {
    pub(super) headers: Headers<'o>,
    /// Length of all headers, Ethernet included.
    pub(super) bytes: usize,
    /// UDP header and what follows.
    pub(super) udp_bytes: u16,
}

/// Begins a datagram; `None` when it does not fit.
#[inline]
pub(super) fn begin<'o>(
    connection: &Connection,
    rtp: &[u8; RTP_HEADER_BYTES],
    payload_bytes: usize,
    out: &'o mut [u8],
) -> Option<DatagramFrame<'o>> {
    if payload_bytes > MAX_UDP_PAYLOAD_BYTES - RTP_HEADER_BYTES {
        return None;
    }
    let udp_bytes = (UDP_HEADER_BYTES + RTP_HEADER_BYTES + payload_bytes) as u16;
    let ip_and_above = match connection.addresses {
        Addresses::V4(..) => V4_BYTES,
        Addresses::V6(..) => V6_BYTES,
    };
    let tag_bytes = if connection.link.vlan.is_some() { 4 } else { 0 };
    let bytes = MAX_HEADER_BYTES - V6_BYTES - 4 + tag_bytes + ip_and_above;
    let out = out.get_mut(..bytes)?;
    let link_bytes = put_link(out, &connection.link, connection.addresses.ethertype());
    let headers = match connection.addresses {
        Addresses::V4(..) => {
            let headers = out[link_bytes..].first_chunk_mut()?;
            headers[V4_BYTES - RTP_HEADER_BYTES..].copy_from_slice(rtp);
            Headers::V4(headers)
        }
        Addresses::V6(..) => {
            let headers = out[link_bytes..].first_chunk_mut()?;
            headers[V6_BYTES - RTP_HEADER_BYTES..].copy_from_slice(rtp);
            Headers::V6(headers)
        }
    };
    Some(DatagramFrame { headers, bytes, udp_bytes })
}

/// The sum of a traditional stack.
#[inline]
pub(super) fn in_cksum(bytes: &[u8]) -> u16 {
    sum16_with(ChecksumAlgorithm::Scalar, bytes)
}

/// Sum of lengths, header template, RTP header and payload, folded, in wire order: the rest of the
/// checksum when the sums of header template and payload are known.
#[inline]
pub(super) fn quick_sum(connection: &Connection, datagram: &Datagram<'_>, udp_bytes: u16) -> u16 {
    let words = datagram.rtp.as_chunks::<4>().0.iter();
    let rtp: u64 = words.map(|&word| u64::from(u32::from_ne_bytes(word))).sum();
    let lengths = 2 * u64::from(udp_bytes.to_be());
    fold(u64::from(connection.header_sum) + lengths + rtp + u64::from(datagram.payload_sum.to_be()))
}

/// Fills the IPv4 header around the addresses, which are there, and sums it.
#[inline]
pub(super) fn ip_output_v4(header: &mut [u8; V4_BYTES], flow: &Flow, udp_bytes: u16, ip_id: u16) {
    let total = udp_bytes + IPV4_HEADER_BYTES as u16;
    header[0] = 0x45;
    header[1] = flow.traffic_class;
    header[IPV4_LENGTH..IPV4_ID].copy_from_slice(&total.to_be_bytes());
    header[IPV4_ID..IPV4_ID + 2].copy_from_slice(&ip_id.to_be_bytes());
    header[6..8].copy_from_slice(&DONT_FRAGMENT);
    header[8] = flow.hop_limit;
    header[9] = UDP;
    header[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&[0; 2]);
    let check = !in_cksum(&header[..IPV4_HEADER_BYTES]);
    header[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&check.to_be_bytes());
}

/// Fills the IPv6 header around the addresses, which are there.
#[inline]
pub(super) fn ip_output_v6(header: &mut [u8; V6_BYTES], flow: &Flow, udp_bytes: u16) {
    header[..4].copy_from_slice(&[0x60 | flow.traffic_class >> 4, flow.traffic_class << 4, 0, 0]);
    header[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&udp_bytes.to_be_bytes());
    header[6] = UDP;
    header[7] = flow.hop_limit;
}

/// Offset of the UDP header behind an IPv4 header.
pub(super) const V4_UDP: usize = IPV4_HEADER_BYTES;
/// Offset of the UDP header behind an IPv6 header.
pub(super) const V6_UDP: usize = IPV6_HEADER_BYTES;
