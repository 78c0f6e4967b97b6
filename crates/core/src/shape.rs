//! A payload, checked: which bytes make datagram `i`.

use crate::limits::RTP_HEADER_BYTES;
use crate::seam::Payload;

/// Why a payload is no datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misshapen {
    /// No length, or fewer headers than datagrams.
    Invalid,
    /// Longer than any IP packet, or more of them than can be counted ([`crate::seam::SendOutcome::Blocked`]).
    TooLong,
    /// Bytes for a connection.
    Bytes,
}

/// Datagrams of one length, the last possibly shorter, with or without their own RTP headers.
#[derive(Clone, Copy, Debug)]
pub struct DatagramShape<'a> {
    bytes: &'a [u8],
    /// 12 bytes for each datagram, which replace its first 12 bytes.
    headers: Option<&'a [u8]>,
    segment: usize,
    datagrams: usize,
}

impl<'a> DatagramShape<'a> {
    /// Checks a payload.
    ///
    /// # Errors
    /// Why it is no datagrams.
    pub fn of(payload: Payload<'a>) -> Result<Self, Misshapen> {
        let (bytes, headers, segment) = match payload {
            Payload::Wire { bytes, segment } => (bytes, None, segment),
            Payload::Patched { headers, bytes, segment } => (bytes, Some(headers), segment),
            Payload::Rtcp(bytes) => (bytes, None, bytes.len().max(1)),
            // Bytes of a connection are no datagrams.
            Payload::Bytes(_) => return Err(Misshapen::Bytes),
        };
        if segment == 0 {
            return Err(Misshapen::Invalid);
        }
        let datagrams = bytes.len().div_ceil(segment);
        // Longer ones fit no IP packet, more do not fit `SendOutcome::Blocked`.
        if bytes.len().min(segment) > usize::from(u16::MAX) || datagrams > usize::from(u16::MAX) {
            return Err(Misshapen::TooLong);
        }
        let shape = Self { bytes, headers, segment, datagrams };
        if let Some(headers) = headers {
            let shortest = if datagrams == 0 { segment } else { shape.datagram_bytes(datagrams - 1) };
            if headers.len() < datagrams * RTP_HEADER_BYTES || shortest < RTP_HEADER_BYTES {
                return Err(Misshapen::Invalid);
            }
        }
        Ok(shape)
    }

    /// The same without its first `skip` datagrams.
    pub fn behind(self, skip: usize) -> Self {
        let skip = skip.min(self.datagrams);
        Self {
            bytes: &self.bytes[(skip * self.segment).min(self.bytes.len())..],
            headers: self.headers.map(|headers| &headers[skip * RTP_HEADER_BYTES..]),
            segment: self.segment,
            datagrams: self.datagrams - skip,
        }
    }

    /// Number of datagrams.
    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Length of each datagram but the last.
    pub fn segment(&self) -> usize {
        self.segment
    }

    /// Whether RTP headers are replaced.
    pub fn is_patched(&self) -> bool {
        self.headers.is_some()
    }

    /// Length of datagram `index`.
    pub fn datagram_bytes(&self, index: usize) -> usize {
        self.range(index, 1).len()
    }

    fn range(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        let end = ((first + count) * self.segment).min(self.bytes.len());
        // None behind the last one, which may be short.
        (first * self.segment).min(end)..end
    }

    /// Bytes of datagrams `first..first + count`.
    pub fn bytes_in(&self, first: usize, count: usize) -> usize {
        self.range(first, count).len()
    }

    /// Number of slices that [`DatagramShape::parts`] gives for `count` datagrams.
    pub fn part_count(&self, count: usize) -> usize {
        if self.is_patched() { 2 * count } else { 1 }
    }

    /// The slices that make datagrams `first..first + count`, in order.
    pub fn parts(&self, first: usize, count: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let shape = *self;
        (0..shape.part_count(count)).map(move |part| match shape.headers {
            None => &shape.bytes[shape.range(first, count)],
            Some(headers) => {
                let index = first + part / 2;
                if part % 2 == 0 {
                    &headers[index * RTP_HEADER_BYTES..][..RTP_HEADER_BYTES]
                } else {
                    &shape.bytes[shape.range(index, 1)][RTP_HEADER_BYTES..]
                }
            }
        })
    }

    /// All bytes, if they go out as they lie there.
    pub fn wire_bytes(&self) -> Option<&'a [u8]> {
        (!self.is_patched()).then_some(self.bytes)
    }

    /// Datagram `index` as the RTP header that replaces the one in the bytes, if any, and the rest.
    pub fn datagram(&self, index: usize) -> (Option<&'a [u8]>, &'a [u8]) {
        let bytes = &self.bytes[self.range(index, 1)];
        match self.headers {
            None => (None, bytes),
            Some(headers) => {
                (Some(&headers[index * RTP_HEADER_BYTES..][..RTP_HEADER_BYTES]), &bytes[RTP_HEADER_BYTES..])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(shape: &DatagramShape<'_>, first: usize, count: usize) -> Vec<u8> {
        shape.parts(first, count).flatten().copied().collect()
    }

    #[test]
    fn wire_is_one_slice_and_patched_is_pairs() {
        let bytes: Vec<u8> = (0..50).collect();
        let wire = DatagramShape::of(Payload::Wire { bytes: &bytes, segment: 20 }).unwrap();
        assert_eq!((wire.datagrams(), wire.datagram_bytes(2), wire.part_count(3)), (3, 10, 1));
        assert_eq!(joined(&wire, 1, 2), bytes[20..]);
        let bytes: Vec<u8> = (0..56).collect();
        let headers: Vec<u8> = (100..136).collect();
        let patched =
            DatagramShape::of(Payload::Patched { headers: &headers, bytes: &bytes, segment: 20 }).unwrap();
        assert_eq!(patched.part_count(2), 4);
        let wanted = [&headers[12..24], &bytes[32..40], &headers[24..], &bytes[52..]].concat();
        assert_eq!(joined(&patched, 1, 2), wanted);
        assert_eq!(patched.datagram(2), (Some(&headers[24..36]), &bytes[52..56]));
        for (shape, count) in [(wire, 3), (patched, 3)] {
            for skip in 0..=count + 1 {
                let rest = shape.behind(skip);
                assert_eq!(rest.datagrams(), count - skip.min(count));
                let wanted = joined(&shape, skip.min(count), rest.datagrams());
                assert_eq!(joined(&rest, 0, rest.datagrams()), wanted, "{skip}");
            }
        }
    }

    #[test]
    fn bad_shapes_are_refused() {
        let bytes = vec![0; 70_000];
        let of = |payload| DatagramShape::of(payload).map(|s| s.datagrams());
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 0 }), Err(Misshapen::Invalid));
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 70_000 }), Err(Misshapen::TooLong));
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 1 }), Err(Misshapen::TooLong));
        assert_eq!(of(Payload::Rtcp(&bytes)), Err(Misshapen::TooLong));
        assert_eq!(of(Payload::Wire { bytes: &[], segment: 9 }), Ok(0));
        let headers = [0; 24];
        let patched = |headers, bytes, segment| of(Payload::Patched { headers, bytes, segment });
        assert_eq!(patched(&headers, &bytes[..41], 20), Err(Misshapen::Invalid), "third header missing");
        assert_eq!(
            patched(&headers, &bytes[..31], 20),
            Err(Misshapen::Invalid),
            "last datagram shorter than a header"
        );
        assert_eq!(patched(&headers, &bytes[..32], 20), Ok(2));
    }
}
