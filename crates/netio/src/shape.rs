//! A payload, checked: which bytes make datagram `i`.

use millrace_core::limits::RTP_HEADER_BYTES;
use millrace_core::seam::Payload;

/// Datagrams of one length, the last possibly shorter, with or without their own RTP headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape<'a> {
    bytes: &'a [u8],
    /// 12 bytes for each datagram, which replace its first 12 bytes.
    headers: Option<&'a [u8]>,
    segment: usize,
    datagrams: usize,
}

impl<'a> Shape<'a> {
    /// Checks a payload; the errno says what the kernel would say to it.
    pub(crate) fn of(payload: Payload<'a>) -> Result<Self, i32> {
        let (bytes, headers, segment) = match payload {
            Payload::Wire { bytes, segment } => (bytes, None, segment),
            Payload::Patched { headers, bytes, segment } => (bytes, Some(headers), segment),
            Payload::Rtcp(bytes) => (bytes, None, bytes.len().max(1)),
            // Bytes of a connection are no datagrams.
            Payload::Bytes(_) => return Err(libc::EOPNOTSUPP),
        };
        if segment == 0 {
            return Err(libc::EINVAL);
        }
        let datagrams = bytes.len().div_ceil(segment);
        // Longer ones fit no IP packet, more do not fit `SendOutcome::Blocked`.
        if bytes.len().min(segment) > usize::from(u16::MAX) || datagrams > usize::from(u16::MAX) {
            return Err(libc::EMSGSIZE);
        }
        let shape = Self { bytes, headers, segment, datagrams };
        if let Some(headers) = headers {
            let shortest = if datagrams == 0 { segment } else { shape.datagram_bytes(datagrams - 1) };
            if headers.len() < datagrams * RTP_HEADER_BYTES || shortest < RTP_HEADER_BYTES {
                return Err(libc::EINVAL);
            }
        }
        Ok(shape)
    }

    /// Number of datagrams.
    pub(crate) fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Length of each datagram but the last.
    pub(crate) fn segment(&self) -> usize {
        self.segment
    }

    /// Whether RTP headers are replaced.
    pub(crate) fn is_patched(&self) -> bool {
        self.headers.is_some()
    }

    /// Length of datagram `index`.
    pub(crate) fn datagram_bytes(&self, index: usize) -> usize {
        self.range(index, 1).len()
    }

    fn range(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        first * self.segment..((first + count) * self.segment).min(self.bytes.len())
    }

    /// Bytes of datagrams `first..first + count`.
    pub(crate) fn bytes_in(&self, first: usize, count: usize) -> usize {
        self.range(first, count).len()
    }

    /// Number of slices that [`Shape::parts`] gives for `count` datagrams.
    pub(crate) fn part_count(&self, count: usize) -> usize {
        if self.is_patched() { 2 * count } else { 1 }
    }

    /// The slices that make datagrams `first..first + count`, in order.
    pub(crate) fn parts(&self, first: usize, count: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
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
    pub(crate) fn wire_bytes(&self) -> Option<&'a [u8]> {
        (!self.is_patched()).then_some(self.bytes)
    }

    /// Datagram `index` as the RTP header that replaces the one in the bytes, if any, and the rest.
    pub(crate) fn datagram(&self, index: usize) -> (Option<&'a [u8]>, &'a [u8]) {
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

    fn joined(shape: &Shape<'_>, first: usize, count: usize) -> Vec<u8> {
        shape.parts(first, count).flatten().copied().collect()
    }

    #[test]
    fn wire_is_one_slice_and_patched_is_pairs() {
        let bytes: Vec<u8> = (0..50).collect();
        let wire = Shape::of(Payload::Wire { bytes: &bytes, segment: 20 }).unwrap();
        assert_eq!((wire.datagrams(), wire.datagram_bytes(2), wire.part_count(3)), (3, 10, 1));
        assert_eq!(joined(&wire, 1, 2), bytes[20..]);
        let bytes: Vec<u8> = (0..56).collect();
        let headers = [0xee; 36];
        let patched = Shape::of(Payload::Patched { headers: &headers, bytes: &bytes, segment: 20 }).unwrap();
        assert_eq!(patched.part_count(2), 4);
        let mut wanted = vec![0xee; 12];
        wanted.extend(&bytes[32..40]);
        wanted.extend([0xee; 12]);
        wanted.extend(&bytes[52..56]);
        assert_eq!(joined(&patched, 1, 2), wanted);
        assert_eq!(patched.datagram(2), (Some(&headers[24..36]), &bytes[52..56]));
    }

    #[test]
    fn bad_shapes_are_refused_with_what_the_kernel_would_say() {
        let bytes = vec![0; 70_000];
        let of = |payload| Shape::of(payload).map(|s| s.datagrams());
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 0 }), Err(libc::EINVAL));
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 70_000 }), Err(libc::EMSGSIZE));
        assert_eq!(of(Payload::Wire { bytes: &bytes, segment: 1 }), Err(libc::EMSGSIZE));
        assert_eq!(of(Payload::Rtcp(&bytes)), Err(libc::EMSGSIZE));
        assert_eq!(of(Payload::Wire { bytes: &[], segment: 9 }), Ok(0));
        let headers = [0; 24];
        let patched = |headers, bytes, segment| of(Payload::Patched { headers, bytes, segment });
        assert_eq!(patched(&headers, &bytes[..41], 20), Err(libc::EINVAL), "third header missing");
        assert_eq!(
            patched(&headers, &bytes[..31], 20),
            Err(libc::EINVAL),
            "last datagram shorter than a header"
        );
        assert_eq!(patched(&headers, &bytes[..32], 20), Ok(2));
    }
}
