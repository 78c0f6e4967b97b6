//! The data sent on a connection, packet by packet: interleaved frames, or bytes without any
//! framing.

use millrace_core::limits::{FRAME_PREFIX_BYTES, MAX_BURST_PACKETS, RTP_HEADER_BYTES};
use millrace_core::seam::ByteRange;
use millrace_core::shape::DatagramShape;

use crate::limits::TCP_PARTS;

/// What stands before a packet's bytes: `$`, channel, length, and the RTP header if it has one of its own.
pub(super) type Prefix = [u8; FRAME_PREFIX_BYTES + RTP_HEADER_BYTES];

/// See the module.
#[derive(Clone, Copy)]
pub(super) enum Pieces<'a> {
    /// Frames of an RTSP connection (RFC 2326 section 10.12).
    Frames { channel: u8, shape: &'a DatagramShape<'a> },
    /// Bytes.
    Bytes(ByteRange<'a>),
}

impl<'a> Pieces<'a> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Frames { shape, .. } => shape.datagrams(),
            Self::Bytes(range) => range.count as usize,
        }
    }

    /// Whether something stands before each.
    pub(super) fn have_prefixes(&self) -> bool {
        matches!(self, Self::Frames { .. })
    }

    /// How many one call takes at most.
    pub(super) fn most_per_call(&self) -> usize {
        if self.have_prefixes() { MAX_BURST_PACKETS } else { TCP_PARTS }
    }

    /// Length of the longest, without what stands before it.
    pub(super) fn longest(&self) -> usize {
        match self {
            Self::Frames { shape, .. } if shape.datagrams() > 0 => shape.datagram_bytes(0),
            Self::Frames { .. } => 0,
            Self::Bytes(range) => range.lease.content().layout.packet_bytes(),
        }
    }

    /// Bytes of `count` of them, without prefixes of frames.
    pub(super) fn bytes_in(&self, first: usize, count: usize) -> usize {
        match self {
            Self::Frames { shape, .. } => shape.bytes_in(first, count),
            Self::Bytes(range) => range.bytes_in(first as u32, count as u32),
        }
    }

    /// Writes what stands before one of them; returns its length, which is the same for all.
    pub(super) fn write_prefix(&self, index: usize, out: &mut Prefix) -> usize {
        let Self::Frames { channel, shape } = self else { return 0 };
        let length = shape.datagram_bytes(index) as u16;
        (out[0], out[1]) = (b'$', *channel);
        out[2..FRAME_PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
        let Some(header) = shape.datagram(index).0 else { return FRAME_PREFIX_BYTES };
        out[FRAME_PREFIX_BYTES..].copy_from_slice(header);
        out.len()
    }

    /// The bytes behind it.
    pub(super) fn body(&self, index: usize) -> &'a [u8] {
        match self {
            Self::Frames { shape, .. } => shape.datagram(index).1,
            Self::Bytes(range) => range.piece(index as u32),
        }
    }
}
