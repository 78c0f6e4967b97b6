//! Netlink messages: a header of 16 bytes, a fixed part that depends on the kind, then attributes, each with length and
//! kind in front. Numbers are in this machine's order, everything begins at a multiple of four bytes.
//!
//! Readers never look beyond the bytes passed to them: an item that claims to be longer ends the
//! walk.

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct nlattr`.
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// The two upper bits of an attribute's kind are flags.
const KIND_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;
const ALIGN: usize = 4;

/// Returns the first `N` bytes at `at`, if that many exist.
pub(crate) fn bytes_of<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A 32-bit number at `at`.
pub(crate) fn u32_of(bytes: &[u8], at: usize) -> Option<u32> {
    bytes_of(bytes, at).map(u32::from_ne_bytes)
}

/// A message to the kernel.
#[derive(Debug)]
pub(crate) struct NetlinkRequest {
    bytes: Vec<u8>,
}

impl NetlinkRequest {
    /// `fixed` is what stands between header and attributes.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(fixed);
        bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
        Self { bytes }
    }

    /// Adds an attribute. Omits values whose length does not fit into the length field; nothing
    /// here is nearly that long.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        if let Ok(length) = u16::try_from(ATTRIBUTE_HEADER_BYTES + value.len()) {
            self.bytes.extend_from_slice(&length.to_ne_bytes());
            self.bytes.extend_from_slice(&kind.to_ne_bytes());
            self.bytes.extend_from_slice(value);
            self.bytes.resize(self.bytes.len().next_multiple_of(ALIGN), 0);
        }
        self
    }

    /// Adds an attribute that is a number.
    pub(crate) fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that holds attributes.
    pub(crate) fn with_nested(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let at = self.bytes.len();
        self = fill(self.with(kind | NESTED, &[]));
        if let Ok(length) = u16::try_from(self.bytes.len() - at) {
            self.bytes[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        }
        self
    }

    /// Returns the bytes, with further flags and the sequence number that identifies the answer.
    pub(crate) fn finish(mut self, sequence: u32, flags: u16) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let flags = flags | u16::from_ne_bytes([self.bytes[6], self.bytes[7]]);
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NetlinkMessage<'a> {
    pub(crate) kind: u16,
    pub(crate) sequence: u32,
    /// What follows the header.
    pub(crate) body: &'a [u8],
}

/// The messages of one datagram.
#[derive(Clone, Debug)]
pub(crate) struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    pub(crate) fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = NetlinkMessage<'a>;

    fn next(&mut self) -> Option<NetlinkMessage<'a>> {
        let length = u32_of(self.0, 0)? as usize;
        let message = NetlinkMessage {
            kind: u16::from_ne_bytes(bytes_of(self.0, 4)?),
            sequence: u32_of(self.0, 8)?,
            body: self.0.get(HEADER_BYTES..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some(message)
    }
}

/// Attributes, one after the other: kind without flags, and value.
#[derive(Clone, Debug)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The attributes of a body that begins with `fixed` other bytes; none if it is shorter.
    pub(crate) fn behind(body: &'a [u8], fixed: usize) -> Self {
        Self(body.get(fixed.next_multiple_of(ALIGN)..).unwrap_or_default())
    }

    /// Returns the value of the first attribute of type `kind`.
    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.clone().find(|(k, _)| *k == kind).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let length = usize::from(u16::from_ne_bytes(bytes_of(self.0, 0)?));
        let kind = u16::from_ne_bytes(bytes_of(self.0, 2)?) & KIND_MASK;
        let value = self.0.get(ATTRIBUTE_HEADER_BYTES..length)?;
        self.0 = self.0.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn request_round_trips_through_messages_and_attributes() {
        let request = NetlinkRequest::new(26, 1, &[1, 2, 3])
            .with(1, &[9, 8, 7, 6, 5])
            .with_u32(4, 77)
            .with_nested(8, |r| r.with_u32(2, 1400).with(3, b""));
        let bytes = request.finish(5, 0x300);
        assert_eq!(u32_of(&bytes, 0), Some(bytes.len() as u32));
        assert_eq!(u16::from_ne_bytes([bytes[6], bytes[7]]), 0x301);
        let twice = [bytes.clone(), bytes].concat();
        let all: Vec<NetlinkMessage<'_>> = Messages::new(&twice).collect();
        assert_eq!((all.len(), all[0].kind, all[1].sequence), (2, 26, 5));
        assert_eq!(all[0].body[..4], [1, 2, 3, 0]);
        let attributes = Attributes::behind(all[1].body, 3);
        assert_eq!(attributes.clone().count(), 3);
        assert_eq!(attributes.get(1), Some(&[9, 8, 7, 6, 5][..]));
        assert_eq!(attributes.get(4).and_then(|v| u32_of(v, 0)), Some(77));
        let inner = Attributes::new(attributes.get(8).unwrap());
        assert_eq!(inner.collect::<Vec<_>>(), [(2, &1400u32.to_ne_bytes()[..]), (3, &[][..])]);
        assert_eq!(attributes.get(99), None);
    }

    #[test]
    fn messages_and_attributes_stop_at_invalid_length() {
        let bytes = NetlinkRequest::new(1, 0, &[]).with(1, &[1, 2, 3, 4]).finish(0, 0);
        for end in 0..bytes.len() {
            assert_eq!(Messages::new(&bytes[..end]).count(), 0);
        }
        for length in [0u16, 3, 9, u16::MAX] {
            let mut value = bytes[HEADER_BYTES..].to_vec();
            value[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(Attributes::new(&value).count(), 0, "{length}");
        }
    }

    proptest! {
        #[test]
        fn messages_of_any_bytes_stay_within_input(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut seen = 0;
            for message in Messages::new(&bytes) {
                seen += HEADER_BYTES + message.body.len();
                for fixed in [0, 8, 12, 16, 400] {
                    let held: usize = Attributes::behind(message.body, fixed).map(|(_, v)| v.len() + 4).sum();
                    prop_assert!(held <= message.body.len());
                }
            }
            prop_assert!(seen <= bytes.len());
        }
    }
}
