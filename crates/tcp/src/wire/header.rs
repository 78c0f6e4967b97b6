//! Segments that came in: nothing in them is trusted before it has been checked.

use millrace_core::wire::checksum::{add, sum16};

use super::{Flags, FlowKey, HEADER_BYTES, Segment, TcpOptions, options};
use crate::seq::Seq;

/// The sum of everything that a checksum covers, the checksum too. The other zero cannot come up: the pseudo-header is not zero.
const RIGHT_SUM: u16 = 0xffff;

/// Why a segment is not taken.
///
/// As wide as what of a [`Segment`] stands in its place in a result: a smaller one would have the compiler move that in pieces of odd bytes,
/// which the processor cannot forward from one move to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Unfit {
    /// It ends before its header does, or is longer than IP can carry.
    Length,
    /// The data offset points into the fixed header.
    Offset,
    /// An option has a length that cannot be: shorter than kind and length, or beyond the header.
    Options,
}

/// Takes a segment apart. Its checksum is another matter: [`is_right`], or [`payload_sum`] while the payload is copied.
///
/// # Errors
/// Says why it is not taken.
#[inline]
pub fn parse(segment: &[u8]) -> Result<Segment<'_>, Unfit> {
    let (header, rest) = split(segment)?;
    let options_bytes = usize::from(header[12] >> 4) * 4 - HEADER_BYTES;
    let (option_bytes, payload) = rest.split_at_checked(options_bytes).ok_or(Unfit::Length)?;
    let [a, b, c, d, e] = words(header);
    let with = |options| Segment {
        source: (a >> 16) as u16,
        destination: a as u16,
        seq: Seq(b),
        ack: Seq(c),
        //= RFC 9293 section 3.1
        //# Must be zero in
        //# generated segments and must be ignored in received segments if the
        //# corresponding future features are not implemented by the sending or
        //# receiving host.
        flags: Flags((d >> 16) as u8),
        //= RFC 9293 section 3.1
        //# The window size MUST be treated as an unsigned number, or else
        //# large window sizes will appear like negative windows and TCP will
        //# not work (MUST-1).
        window: d as u16,
        urgent: e as u16,
        //= RFC 9293 section 3.1
        //# A TCP implementation MUST be able to receive a TCP Option in any
        //# segment (MUST-5).
        options,
        payload,
    };
    // Constructed in its final location in either case, not assembled beforehand: see [`Unfit`].
    if let Some(stamps) = options::stamps_alone(option_bytes) {
        return Ok(with(TcpOptions::of_stamps(Some(stamps))));
    }
    Ok(with(options::parse(option_bytes)?))
}

/// Ports of a segment, source first: all that finding its connection needs.
#[inline]
pub fn ports(segment: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *segment.first_chunk()?;
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// Whether a segment between the ends of `flow`, in either direction, has the right checksum.
#[inline]
pub fn is_right(flow: &FlowKey, segment: &[u8]) -> bool {
    //= RFC 9293 section 3.1
    //# The sender MUST generate it
    //# (MUST-2) and the receiver MUST check it (MUST-3).
    u16::try_from(segment.len())
        .is_ok_and(|length| add(add(flow.pseudo_sum(), length), sum16(segment)) == RIGHT_SUM)
}

/// Returns the sum that the payload of a segment must have for its checksum to be right (0 and
/// 0xffff are the same sum). Only the header is read, so that the payload can be summed while it is
/// copied.
///
/// # Errors
/// The segment has no header.
#[inline]
pub fn payload_sum(flow: &FlowKey, segment: &[u8]) -> Result<u16, Unfit> {
    let (header, _) = split(segment)?;
    let header = segment.get(..usize::from(header[12] >> 4) * 4).ok_or(Unfit::Length)?;
    Ok(!add(add(flow.pseudo_sum(), segment.len() as u16), sum16(header)))
}

/// Whether two sums of bytes are the same, whichever zero they have.
#[inline]
pub const fn is_same_sum(a: u16, b: u16) -> bool {
    a == b || a ^ b == 0xffff && (a == 0 || b == 0)
}

/// The fixed header, with an offset behind it, and what follows it.
#[inline]
fn split(segment: &[u8]) -> Result<(&[u8; HEADER_BYTES], &[u8]), Unfit> {
    let (header, rest) = segment.split_first_chunk::<HEADER_BYTES>().ok_or(Unfit::Length)?;
    if segment.len() > usize::from(u16::MAX) {
        return Err(Unfit::Length);
    }
    if usize::from(header[12] >> 4) * 4 < HEADER_BYTES {
        return Err(Unfit::Offset);
    }
    Ok((header, rest))
}

/// The header as numbers.
#[inline]
fn words(header: &[u8; HEADER_BYTES]) -> [u32; 5] {
    let (words, _) = header.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_be_bytes(words[i]))
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
