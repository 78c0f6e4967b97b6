//! Consecutive segments of one connection, joined for one write: the kernel cuts them apart again
//! behind its own stack, or hands them on whole (`struct virtio_net_hdr`, Linux
//! `include/uapi/linux/virtio_net.h`).

use millrace_core::wire::checksum::{fold, sum16};
use millrace_core::wire::frame::layout::{
    IPV4_CHECK, IPV4_LENGTH, IPV4_PROTOCOL, IPV6_LENGTH, IPV6_NEXT_HEADER, TCP,
};
use millrace_core::wire::frame::{IPV4_HEADER_BYTES, IPV6_HEADER_BYTES};

/// What stands in front of each packet of a device that takes trains.
pub(super) const VNET_BYTES: usize = 10;
/// The longest packet of IPv4; one of IPv6 is not longer here.
pub(super) const PACKET_BYTES: usize = 65_535;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the sum of the pseudo-header stands where the checksum will.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_F_DATA_VALID`: the checksum has been verified.
const IS_VALID: u8 = 2;
/// `VIRTIO_NET_HDR_GSO_TCPV4` and `_TCPV6`.
const CUT_V4: u8 = 1;
const CUT_V6: u8 = 4;

/// Offsets in a TCP header (RFC 9293 section 3.1).
const SEQ: usize = 4;
const OFFSET: usize = 12;
const FLAGS: usize = 13;
const WINDOW: usize = 14;
const CHECK: usize = 16;
const URGENT: usize = 18;
const HEADER_BYTES: usize = 20;
/// Control bits.
const FIN: u8 = 1;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Returns a packet that the kernel hands over, and the statement of its header: the checksum is
/// right, or is omitted because the packet has not been on any wire. `None`: the packet is
/// truncated.
pub(super) fn said(bytes: &[u8]) -> Option<(&[u8], bool)> {
    let (front, packet) = bytes.split_at_checked(VNET_BYTES)?;
    Some((packet, front[0] & (NEEDS_CHECKSUM | IS_VALID) != 0))
}

/// Where the headers of a segment lie that can be part of a train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Bytes of the IP header, which are those of its version.
    ip: usize,
}

impl Layout {
    /// `None`: the segment goes alone. `head` has to be the IP and TCP headers of a whole packet, without IPv6 extensions or a fragment, and without a
    /// control bit that is one segment's alone.
    fn of(head: &[u8], body_bytes: usize) -> Option<Self> {
        let length = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
        let all = head.len() + body_bytes;
        let ip = match head.first()? >> 4 {
            4 if head.len() >= IPV4_HEADER_BYTES + HEADER_BYTES => {
                let is_whole = head[6] & 0x3f == 0 && head[7] == 0;
                let fits = head[0] == 0x45 && head[IPV4_PROTOCOL] == TCP && length(IPV4_LENGTH) == all;
                (is_whole && fits).then_some(IPV4_HEADER_BYTES)
            }
            6 if head.len() >= IPV6_HEADER_BYTES + HEADER_BYTES => {
                let fits = head[IPV6_NEXT_HEADER] == TCP && length(IPV6_LENGTH) == all - IPV6_HEADER_BYTES;
                fits.then_some(IPV6_HEADER_BYTES)
            }
            _ => None,
        }?;
        let tcp = &head[ip..];
        let is_plain = tcp[FLAGS] & !(ACK | PSH | FIN) == 0 && tcp[FLAGS] & ACK != 0;
        let ends_here = usize::from(tcp[OFFSET] >> 4) * 4 == tcp.len();
        (body_bytes > 0 && all <= PACKET_BYTES && is_plain && ends_here).then_some(Self { ip })
    }

    fn is_v4(self) -> bool {
        self.ip == IPV4_HEADER_BYTES
    }

    /// Whether two headers differ in nothing but lengths, checksums, identification, sequence number, and PSH and FIN.
    fn is_same(self, one: &[u8], other: &[u8]) -> bool {
        if one.len() != other.len() {
            return false;
        }
        let same = |range: std::ops::Range<usize>| one[range.clone()] == other[range];
        let is_same_ip = if self.is_v4() {
            same(0..IPV4_LENGTH) && same(6..IPV4_CHECK) && same(12..IPV4_HEADER_BYTES)
        } else {
            same(0..IPV6_LENGTH) && same(IPV6_NEXT_HEADER..IPV6_HEADER_BYTES)
        };
        let at = self.ip;
        is_same_ip
            && same(at..at + SEQ)
            && same(at + SEQ + 4..at + FLAGS)
            && same(at + WINDOW..at + CHECK)
            && same(at + URGENT..one.len())
    }
}

fn seq(head: &[u8], ip: usize) -> u32 {
    u32::from_be_bytes([head[ip + SEQ], head[ip + SEQ + 1], head[ip + SEQ + 2], head[ip + SEQ + 3]])
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// It is part of the train.
    Yes,
    /// It is not of this train, which has to leave first.
    Behind,
    /// It goes alone, behind the train.
    Alone,
}

/// A train under construction; empty at first.
#[derive(Debug)]
pub(super) struct Train {
    /// The kernel's header, and the packet behind it.
    buffer: Box<[u8]>,
    /// Of the packet; 0: there is none.
    bytes: usize,
    /// Of its headers.
    head_bytes: usize,
    layout: Layout,
    /// Payload of each segment but the last.
    segment_bytes: usize,
    next_seq: u32,
    /// A segment that is shorter, or the last of all, has come: nothing can follow.
    is_closed: bool,
}

impl Train {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; VNET_BYTES + PACKET_BYTES].into(),
            bytes: 0,
            head_bytes: 0,
            layout: Layout { ip: 0 },
            segment_bytes: 0,
            next_seq: 0,
            is_closed: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Puts a segment behind the others: its headers, then its payload in pieces.
    pub(super) fn join(&mut self, head: &[u8], body: &[&[u8]]) -> Joined {
        let body_bytes = body.iter().map(|piece| piece.len()).sum::<usize>();
        let Some(layout) = Layout::of(head, body_bytes) else { return Joined::Alone };
        if self.is_empty() {
            self.buffer[VNET_BYTES..VNET_BYTES + head.len()].copy_from_slice(head);
            (self.bytes, self.head_bytes, self.layout) = (head.len(), head.len(), layout);
            (self.segment_bytes, self.next_seq, self.is_closed) = (body_bytes, seq(head, layout.ip), false);
        } else if !self.takes(layout, head, body_bytes) {
            return Joined::Behind;
        }
        for piece in body {
            let at = VNET_BYTES + self.bytes;
            self.buffer[at..at + piece.len()].copy_from_slice(piece);
            self.bytes += piece.len();
        }
        self.next_seq = self.next_seq.wrapping_add(body_bytes as u32);
        let flags = head[layout.ip + FLAGS];
        // The kernel leaves them to the last segment.
        self.buffer[VNET_BYTES + layout.ip + FLAGS] |= flags & (PSH | FIN);
        self.is_closed = body_bytes < self.segment_bytes || flags & FIN != 0;
        Joined::Yes
    }

    fn takes(&self, layout: Layout, head: &[u8], body_bytes: usize) -> bool {
        !self.is_closed
            && layout == self.layout
            && body_bytes <= self.segment_bytes
            && self.bytes + body_bytes <= PACKET_BYTES
            && seq(head, layout.ip) == self.next_seq
            && layout.is_same(head, &self.buffer[VNET_BYTES..VNET_BYTES + self.head_bytes])
    }

    /// Completes the headers and returns the bytes to write.
    pub(super) fn seal(&mut self) -> &[u8] {
        let (head, bytes) = (self.head_bytes, self.bytes);
        let (front, packet) = self.buffer.split_at_mut(VNET_BYTES);
        front.fill(0);
        // One segment is a packet like others, and has its checksum.
        if bytes - head > self.segment_bytes {
            let ip = self.layout.ip;
            front[0] = NEEDS_CHECKSUM;
            front[1] = if self.layout.is_v4() { CUT_V4 } else { CUT_V6 };
            // In native byte order, which applies to a device unless it is configured otherwise.
            for (at, value) in [(2, head), (4, self.segment_bytes), (6, ip), (8, CHECK)] {
                front[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
            }
            put_lengths(self.layout, &mut packet[..head], bytes);
        }
        &self.buffer[..VNET_BYTES + bytes]
    }

    /// It has left.
    pub(super) fn clear(&mut self) {
        self.bytes = 0;
    }
}

/// Lengths of the whole, the checksum of IPv4, and the sum of the pseudo-header where TCP's checksum will stand (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn put_lengths(layout: Layout, head: &mut [u8], bytes: usize) {
    let tcp_bytes = bytes - layout.ip;
    let addresses = if layout.is_v4() {
        head[IPV4_LENGTH..IPV4_LENGTH + 2].copy_from_slice(&(bytes as u16).to_be_bytes());
        head[IPV4_CHECK..IPV4_CHECK + 2].fill(0);
        let sum = !sum16(&head[..IPV4_HEADER_BYTES]);
        head[IPV4_CHECK..IPV4_CHECK + 2].copy_from_slice(&sum.to_be_bytes());
        sum16(&head[12..IPV4_HEADER_BYTES])
    } else {
        head[IPV6_LENGTH..IPV6_LENGTH + 2].copy_from_slice(&(tcp_bytes as u16).to_be_bytes());
        sum16(&head[8..IPV6_HEADER_BYTES])
    };
    let sum = fold(u64::from(addresses) + u64::from(TCP) + tcp_bytes as u64);
    head[layout.ip + CHECK..layout.ip + CHECK + 2].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
#[path = "train_tests.rs"]
mod tests;
