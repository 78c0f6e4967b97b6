//! Framing version 4: every header of a viewer prebuilt, one copy and a few patches a datagram.

use std::fmt;

use super::layout::{
    Addresses, IPV4_CHECK, IPV4_ID, IPV4_LENGTH, IPV6_LENGTH, UDP, UDP_CHECK, UDP_LENGTH, ipv4, ipv6,
    put_link, udp,
};
use super::{
    ETHERNET_HEADER_BYTES, Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES, LinkHeader, MAX_HEADER_BYTES,
    MAX_UDP_PAYLOAD_BYTES, UDP_HEADER_BYTES, VLAN_TAG_BYTES,
};
use crate::limits::RTP_HEADER_BYTES;
use crate::wire::checksum::{add, fold, sum16};

/// Longest header without RTP.
const MAX_UDP_HEADER_BYTES: usize = MAX_HEADER_BYTES - RTP_HEADER_BYTES;

/// Which headers there are; each has its own straight code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderStack {
    V4,
    V4Vlan,
    V6,
    V6Vlan,
}

impl HeaderStack {
    fn of(is_v4: bool, has_vlan: bool) -> Self {
        match (is_v4, has_vlan) {
            (true, false) => Self::V4,
            (true, true) => Self::V4Vlan,
            (false, false) => Self::V6,
            (false, true) => Self::V6Vlan,
        }
    }

    fn is_v4(self) -> bool {
        matches!(self, Self::V4 | Self::V4Vlan)
    }

    fn link_bytes(self) -> usize {
        match self {
            Self::V4 | Self::V6 => ETHERNET_HEADER_BYTES,
            Self::V4Vlan | Self::V6Vlan => ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES,
        }
    }

    fn ip_bytes(self) -> usize {
        if self.is_v4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES }
    }
}

/// All headers of one viewer behind one next hop, as they will be sent, but for lengths, IPv4 identification and checksums.
///
/// The two sums are kept as they lie in memory ("wire order"): a sum of byte-swapped words is the byte-swapped sum
/// (RFC 1071 section 2 (B)), so nothing has to be swapped but the numbers that come from outside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Template {
    header: [u8; MAX_UDP_HEADER_BYTES],
    shape: HeaderStack,
    /// IPv4 header; 0 for IPv6, which has no checksum of its own.
    ip_sum: u16,
    /// Pseudo header and UDP header.
    udp_sum: u16,
}

const _: () = assert!(size_of::<Template>() <= 72, "128 bytes a viewer have room for more than the template");

impl Template {
    /// Headers of datagrams of `flow` that go through `link`; `None` when the flow's addresses are of two families.
    pub fn new(link: &LinkHeader, flow: &Flow) -> Option<Self> {
        let addresses = Addresses::of(flow)?;
        let shape = HeaderStack::of(matches!(addresses, Addresses::V4(..)), link.vlan.is_some());
        let mut header = [0; MAX_UDP_HEADER_BYTES];
        let at = put_link(&mut header, link, addresses.ethertype());
        let end = at + shape.ip_bytes();
        let (ip_sum, addresses_sum) = match addresses {
            Addresses::V4(source, destination) => {
                let ip = ipv4(flow, source, destination);
                header[at..end].copy_from_slice(&ip);
                (sum16(&ip), sum16(&ip[12..]))
            }
            Addresses::V6(source, destination) => {
                let ip = ipv6(flow, source, destination);
                header[at..end].copy_from_slice(&ip);
                (0, sum16(&ip[8..]))
            }
        };
        let udp = udp(flow);
        header[end..end + UDP_HEADER_BYTES].copy_from_slice(&udp);
        let udp_sum = add(add(addresses_sum, u16::from(UDP)), sum16(&udp));
        Some(Self { header, shape, ip_sum: ip_sum.to_be(), udp_sum: udp_sum.to_be() })
    }

    /// The next hop has changed: its header takes the place of the old one.
    pub fn set_link(&mut self, link: &LinkHeader) {
        let old = self.shape.link_bytes();
        let mut header = [0; MAX_UDP_HEADER_BYTES];
        let ethertype = [self.header[old - 2], self.header[old - 1]];
        let at = put_link(&mut header, link, ethertype);
        let rest = self.shape.ip_bytes() + UDP_HEADER_BYTES;
        header[at..at + rest].copy_from_slice(&self.header[old..old + rest]);
        self.header = header;
        self.shape = HeaderStack::of(self.shape.is_v4(), link.vlan.is_some());
    }

    /// Length of Ethernet to UDP header: what [`Template::emit_raw`] writes, and [`Template::emit`] before the RTP header.
    pub fn header_bytes(&self) -> usize {
        self.shape.link_bytes() + self.shape.ip_bytes() + UDP_HEADER_BYTES
    }

    /// Writes Ethernet to UDP header and the given RTP header to the beginning of `out`; returns the bytes written.
    /// `payload_sum` is the uncomplemented sum of the `payload_bytes` bytes that follow the RTP header. `ip_id` is for IPv4.
    ///
    /// Returns 0 and writes nothing when `out` is too short or the datagram longer than UDP over IPv4 carries.
    #[inline]
    pub fn emit(
        &self,
        out: &mut [u8],
        rtp: &[u8; RTP_HEADER_BYTES],
        payload_sum: u16,
        payload_bytes: usize,
        ip_id: u16,
    ) -> usize {
        let given = Given { payload_sum, payload_bytes, ip_id };
        match self.shape {
            HeaderStack::V4 => self.write::<14, 42, 54, true>(out, rtp, given),
            HeaderStack::V4Vlan => self.write::<18, 46, 58, true>(out, rtp, given),
            HeaderStack::V6 => self.write::<14, 62, 74, false>(out, rtp, given),
            HeaderStack::V6Vlan => self.write::<18, 66, 78, false>(out, rtp, given),
        }
    }

    /// The same for a datagram without an RTP header of its own (RTCP, plain TS): `payload_sum` and `payload_bytes` are of
    /// everything behind the UDP header.
    #[inline]
    pub fn emit_raw(&self, out: &mut [u8], payload_sum: u16, payload_bytes: usize, ip_id: u16) -> usize {
        let (given, none) = (Given { payload_sum, payload_bytes, ip_id }, &[0; RTP_HEADER_BYTES]);
        match self.shape {
            HeaderStack::V4 => self.write::<14, 42, 42, true>(out, none, given),
            HeaderStack::V4Vlan => self.write::<18, 46, 46, true>(out, none, given),
            HeaderStack::V6 => self.write::<14, 62, 62, false>(out, none, given),
            HeaderStack::V6Vlan => self.write::<18, 66, 66, false>(out, none, given),
        }
    }

    /// One shape: `LINK` bytes before the IP header, `HEADER` to the end of the UDP header, `TOTAL` with RTP (or without, when
    /// it equals `HEADER`). All lengths are constants, so the copy is a few vector moves and nothing is checked twice.
    #[inline]
    fn write<const LINK: usize, const HEADER: usize, const TOTAL: usize, const IS_V4: bool>(
        &self,
        out: &mut [u8],
        rtp: &[u8; RTP_HEADER_BYTES],
        given: Given,
    ) -> usize {
        let Some(out) = out.first_chunk_mut::<TOTAL>() else { return 0 };
        if given.payload_bytes > MAX_UDP_PAYLOAD_BYTES - (TOTAL - HEADER) {
            return 0;
        }
        let udp_bytes = given.payload_bytes + TOTAL - HEADER + UDP_HEADER_BYTES;
        let udp_length = (udp_bytes as u16).to_be();
        out[..HEADER].copy_from_slice(&self.header[..HEADER]);

        // The length counts twice: in the pseudo header and in the UDP header.
        let mut sum =
            u64::from(self.udp_sum) + 2 * u64::from(udp_length) + u64::from(given.payload_sum.to_be());
        if TOTAL > HEADER {
            out[HEADER..].copy_from_slice(&rtp[..TOTAL - HEADER]);
            let (head, tail) = rtp.split_at(8);
            let head = u64::from_ne_bytes(head.try_into().expect("eight bytes"));
            let tail = u32::from_ne_bytes(tail.try_into().expect("four bytes"));
            sum += (head & 0xffff_ffff) + (head >> 32) + u64::from(tail);
        }
        let check = udp_check(fold(sum));
        let udp = HEADER - UDP_HEADER_BYTES;
        out[udp + UDP_LENGTH..udp + UDP_CHECK].copy_from_slice(&udp_length.to_ne_bytes());
        out[udp + UDP_CHECK..HEADER].copy_from_slice(&check.to_ne_bytes());

        if IS_V4 {
            let length = ((udp_bytes + IPV4_HEADER_BYTES) as u16).to_be();
            let id = given.ip_id.to_be();
            let check = !fold(u64::from(self.ip_sum) + u64::from(length) + u64::from(id));
            out[LINK + IPV4_LENGTH..LINK + IPV4_ID].copy_from_slice(&length.to_ne_bytes());
            out[LINK + IPV4_ID..LINK + IPV4_ID + 2].copy_from_slice(&id.to_ne_bytes());
            out[LINK + IPV4_CHECK..LINK + IPV4_CHECK + 2].copy_from_slice(&check.to_ne_bytes());
        } else {
            out[LINK + IPV6_LENGTH..LINK + IPV6_LENGTH + 2].copy_from_slice(&udp_length.to_ne_bytes());
        }
        TOTAL
    }
}

/// What differs from datagram to datagram.
#[derive(Clone, Copy)]
struct Given {
    payload_sum: u16,
    payload_bytes: usize,
    ip_id: u16,
}

/// Checksum field of UDP for a sum: zero would say "no checksum" (RFC 768) or be illegal (RFC 8200 section 8.1), so the other
/// zero is sent. The same in either byte order.
#[inline]
pub fn udp_check(sum: u16) -> u16 {
    match !sum {
        0 => 0xffff,
        check => check,
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template")
            .field("shape", &self.shape)
            .field("header", &&self.header[..self.header_bytes()])
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
