//! Headers of segments that go out: a template of each family, with lengths, addresses and the IPv4 checksum put in.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_core::time::Instant;
use millrace_core::wire::checksum::{fold, sum16};
use millrace_core::wire::frame::layout::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4_CHECK, IPV4_LENGTH, IPV4_PROTOCOL, IPV6_LENGTH, IPV6_NEXT_HEADER,
    TCP, ipv4, ipv6,
};
use millrace_core::wire::frame::{Flow, IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};

use super::addresses::{AddressKey, NO_KEY, is_v4};
use super::link::{LINK_BYTES, Mac};
use super::neighbours::Use;
use super::{Interface, Outgoing};
use crate::stack::{Ecn, OutgoingSegment};
use crate::wire::HEADER_BYTES;

/// ECT(0) in the traffic class (RFC 3168 section 5).
const ECT_0: u8 = 2;
/// Ethernet header without and with a VLAN tag.
const PLAIN: usize = LINK_BYTES - 4;
const TAGGED: usize = LINK_BYTES;
/// Time stamps are the only option of most segments.
const STAMPED_BYTES: usize = HEADER_BYTES + 12;

/// The neighbour that the last segment went to: those of a connection follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    remote: AddressKey,
    index: u32,
}

impl Recent {
    pub(super) const NONE: Self = Self { remote: NO_KEY, index: 0 };
}

/// IP headers of segments, with zero where something has to be put in.
#[derive(Debug)]
pub(super) struct Templates {
    v4: [u8; IPV4_HEADER_BYTES],
    /// Sum of the IPv4 header as it is in memory.
    v4_sum: u16,
    v6: [u8; IPV6_HEADER_BYTES],
    /// Secret factor of flow labels.
    labels: u64,
}

/// What differs between packets.
#[derive(Clone, Copy)]
struct Given<'a> {
    words: &'a [u64; 5],
    ecn: u8,
    /// Behind the IP header.
    bytes: usize,
}

impl Templates {
    pub(super) fn new(hop_limit: u8, dscp: u8, labels: u64) -> Self {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let flow = Flow { source: any, destination: any, hop_limit, traffic_class: dscp << 2 };
        // The identification stays zero: "Don't Fragment" is set, so it means nothing (RFC 6864
        // section 4.1), does not reveal how much is sent, and lets receivers merge segments.
        let mut v4 = ipv4(&flow, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
        v4[IPV4_PROTOCOL] = TCP;
        let mut v6 = ipv6(&flow, Ipv6Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
        v6[IPV6_NEXT_HEADER] = TCP;
        Self { v4_sum: sum16(&v4).to_be(), v4, v6, labels: labels | 1 }
    }

    #[inline]
    fn put_v4(&self, out: &mut [u8; IPV4_HEADER_BYTES], given: Given<'_>) {
        let [_, source, _, destination, _] = given.words.map(u64::to_ne_bytes);
        let address = |bytes: [u8; 8]| [bytes[4], bytes[5], bytes[6], bytes[7]];
        let (source, destination) = (address(source), address(destination));
        let length = (given.bytes + IPV4_HEADER_BYTES) as u16;
        *out = self.v4;
        out[1] |= given.ecn;
        out[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
        out[12..16].copy_from_slice(&source);
        out[16..20].copy_from_slice(&destination);
        // As it lies in memory: nothing has to be swapped but the length (RFC 1071 section 2 (B)).
        let sum = u64::from(self.v4_sum)
            + u64::from(u16::from_ne_bytes([0, given.ecn]))
            + u64::from(length.to_be())
            + u64::from(u32::from_ne_bytes(source))
            + u64::from(u32::from_ne_bytes(destination));
        out[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&(!fold(sum)).to_ne_bytes());
    }

    #[inline]
    fn put_v6(&self, out: &mut [u8; IPV6_HEADER_BYTES], given: Given<'_>) {
        let [a, b, c, d, ports] = *given.words;
        // A label of each flow, as RFC 6437 has it: who spreads packets over links need not look for ports.
        let mixed = a ^ b.rotate_left(13) ^ c.rotate_left(29) ^ d.rotate_left(43) ^ ports.rotate_left(7);
        let label = (mixed.wrapping_mul(self.labels) >> 44) as u32;
        *out = self.v6;
        let first = u32::from_be_bytes([out[0], out[1], 0, 0]) | u32::from(given.ecn) << 20 | label;
        out[..4].copy_from_slice(&first.to_be_bytes());
        out[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&(given.bytes as u16).to_be_bytes());
        for (to, word) in out[8..].as_chunks_mut::<8>().0.iter_mut().zip([a, b, c, d]) {
            *to = word.to_ne_bytes();
        }
    }
}

impl Interface {
    /// Writes link, IP and TCP header of a segment to the beginning of `to`. Its payload belongs behind them.
    ///
    /// Nothing of a segment that waits or is dropped is needed any more: to the stack it is
    /// [`FrameDisposal::Copied`](crate::stack::FrameDisposal::Copied).
    #[inline]
    pub fn headers(&mut self, out: &OutgoingSegment<'_>, now: Instant, to: &mut [u8]) -> Outgoing {
        let words = out.flow.words();
        let remote = [words[2], words[3]];
        if remote != self.recent.remote && !self.find_hop(remote, now) {
            return Outgoing::Dropped;
        }
        let mac = if self.link.has_neighbours() {
            match self.neighbours.use_at(self.recent.index, now, out.moved_ns) {
                Use::Send(mac) => mac,
                other => return self.put_off(out, self.recent.index, other, now),
            }
        } else {
            Mac::default()
        };
        let written = self.put_headers(out, mac, to);
        if written == 0 {
            self.counters.too_long += 1;
            return Outgoing::Dropped;
        }
        self.counters.segments_out += 1;
        Outgoing::Written(written)
    }

    /// The same with the payload.
    pub fn frame(&mut self, out: &OutgoingSegment<'_>, now: Instant, to: &mut [u8]) -> Outgoing {
        if to.len() < self.frame_bytes() {
            self.counters.too_long += 1;
            return Outgoing::Dropped;
        }
        match self.headers(out, now, to) {
            Outgoing::Written(headers) => Outgoing::Written(put_payload(out, headers, to)),
            other => other,
        }
    }

    /// Where segments to `remote` go from now on; false if there is no way.
    #[cold]
    fn find_hop(&mut self, remote: AddressKey, now: Instant) -> bool {
        let index = self.next_hop(remote, now);
        if let Some(index) = index {
            self.recent = Recent { remote, index };
        }
        index.is_some()
    }

    /// Link, IP and TCP header; 0 if the packet is longer than the MTU or the headers longer than `to`.
    #[inline]
    pub(super) fn put_headers(&self, out: &OutgoingSegment<'_>, mac: Mac, to: &mut [u8]) -> usize {
        let words = out.flow.words();
        let is_v4 = is_v4([words[0], words[1]]);
        match (self.link.bytes(), is_v4) {
            (PLAIN, true) => self.put::<PLAIN, true>(out, mac, to),
            (PLAIN, false) => self.put::<PLAIN, false>(out, mac, to),
            (TAGGED, true) => self.put::<TAGGED, true>(out, mac, to),
            (TAGGED, false) => self.put::<TAGGED, false>(out, mac, to),
            (_, true) => self.put::<0, true>(out, mac, to),
            (_, false) => self.put::<0, false>(out, mac, to),
        }
    }

    /// One shape: all lengths but that of the TCP header are constants.
    #[inline]
    fn put<const LINK: usize, const IS_V4: bool>(
        &self,
        out: &OutgoingSegment<'_>,
        mac: Mac,
        to: &mut [u8],
    ) -> usize {
        let bytes = out.header.len() + out.payload.bytes as usize;
        let ip_bytes = if IS_V4 { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES };
        let ecn = if out.ecn == Ecn::Capable { ECT_0 } else { 0 };
        let given = Given { words: out.flow.words(), ecn, bytes };
        if ip_bytes + bytes > usize::from(self.mtu) {
            return 0;
        }
        let Some((link, rest)) = to.split_first_chunk_mut::<LINK>() else { return 0 };
        if LINK > 0 {
            link.copy_from_slice(&self.link.ip(IS_V4)[..LINK]);
            link[..mac.len()].copy_from_slice(&mac);
        }
        let rest = if IS_V4 {
            let Some((ip, rest)) = rest.split_first_chunk_mut() else { return 0 };
            self.templates.put_v4(ip, given);
            rest
        } else {
            let Some((ip, rest)) = rest.split_first_chunk_mut() else { return 0 };
            self.templates.put_v6(ip, given);
            rest
        };
        // A copy of a length that is known takes two moves.
        match (out.header, rest) {
            (header, rest) if header.len() == STAMPED_BYTES && rest.len() >= STAMPED_BYTES => {
                rest[..STAMPED_BYTES].copy_from_slice(&header[..STAMPED_BYTES]);
            }
            (header, rest) => match rest.get_mut(..header.len()) {
                Some(rest) => rest.copy_from_slice(header),
                None => return 0,
            },
        }
        LINK + ip_bytes + out.header.len()
    }
}

/// Puts the payload behind the headers; the length of the frame.
///
/// # Panics
/// If `to` is shorter.
pub(super) fn put_payload(out: &OutgoingSegment<'_>, headers: usize, to: &mut [u8]) -> usize {
    out.payload.slices().iter().fold(headers, |at, slice| {
        to[at..at + slice.len()].copy_from_slice(slice);
        at + slice.len()
    })
}

/// Writes an IPv6 header to the beginning of `out`; its length. For packets of the layer's own.
pub(super) fn put_v6(
    out: &mut [u8],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    protocol: u8,
    bytes: u16,
    hop_limit: u8,
) -> usize {
    let ends = [source, destination].map(|ip| SocketAddr::from((ip, 0)));
    let flow = Flow { source: ends[0], destination: ends[1], hop_limit, traffic_class: 0 };
    let mut header = ipv6(&flow, source, destination);
    header[IPV6_NEXT_HEADER] = protocol;
    header[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&bytes.to_be_bytes());
    out[..IPV6_HEADER_BYTES].copy_from_slice(&header);
    IPV6_HEADER_BYTES
}

/// The same of IPv4.
pub(super) fn put_v4(
    out: &mut [u8],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    protocol: u8,
    bytes: u16,
    hop_limit: u8,
) -> usize {
    let ends = [source, destination].map(|ip| SocketAddr::from((ip, 0)));
    let flow = Flow { source: ends[0], destination: ends[1], hop_limit, traffic_class: 0 };
    let mut header = ipv4(&flow, source, destination);
    header[IPV4_PROTOCOL] = protocol;
    let length = bytes + IPV4_HEADER_BYTES as u16;
    header[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&length.to_be_bytes());
    let check = !sum16(&header);
    header[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&check.to_be_bytes());
    out[..IPV4_HEADER_BYTES].copy_from_slice(&header);
    IPV4_HEADER_BYTES
}

/// The type field of a family.
pub(super) fn ethertype(is_v4: bool) -> [u8; 2] {
    if is_v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
