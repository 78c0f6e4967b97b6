//! Names of things, as types: an index of one kind can never be used for another.

use std::fmt;

/// A socket for multicast: its place among those that a device was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MulticastId(pub u8);

/// Identity of a stored title for ever: 128 random bits, chosen at ingest, printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TitleId(pub [u8; 16]);

impl fmt::Display for TitleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TitleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TitleId({self})")
    }
}

impl std::str::FromStr for TitleId {
    type Err = TitleIdError;

    /// Exactly 32 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(TitleIdError);
        }
        let mut id = [0; 16];
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| TitleIdError)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| TitleIdError)?;
        }
        Ok(Self(id))
    }
}

/// A text that is not a [`TitleId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TitleIdError;

impl fmt::Display for TitleIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("title id: expected 32 hexadecimal digits")
    }
}

impl std::error::Error for TitleIdError {}

/// A viewer that fetches segments: 64 random bits, carried by the addresses in its playlists and
/// printed as 16 hexadecimal digits. A guess can only use the capacity that is reserved for the
/// viewer: access is checked for each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ViewerSession(pub u64);

impl ViewerSession {
    /// Exactly 16 lower-case hexadecimal digits; `None`: something else.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == 16 && text.bytes().all(is_digit);
        is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for ViewerSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A title that is open in this process: an index into the cache's table of open titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TitleRef(pub u32);

/// A stream in one engine: an index and a generation, so that a late record for a closed stream
/// finds no stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId {
    /// Place in the engine's stream table.
    pub index: u32,
    /// How often that place has been used before.
    pub generation: u32,
}

/// A run of a stream: one piece of sending, from its play command to its end event. The control side numbers the runs of each
/// stream and never uses a number for two of them that could be mistaken for each other, so that a late answer for one
/// cannot touch the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunSerial(pub u32);

impl RunSerial {
    /// The number behind this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// A TCP connection whose writes the engine loop owns (RTSP with interleaved RTP, RFC 2326 section 10.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_id_prints_and_parses() {
        let id = TitleId(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("0123".parse::<TitleId>(), Err(TitleIdError));
        assert_eq!("+1230000000000000000000000000000".parse::<TitleId>(), Err(TitleIdError));
    }
}
