//! The body of a response, cut out of the bytes of the connection as they come, and nothing kept of it.

use super::head::{BodyLength, HttpFault};
use crate::limits::{MAX_CHUNK_DIGITS, MAX_CHUNK_LINE_BYTES, MAX_HTTP_HEAD_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Length(u64),
    UntilClose,
    /// In the line with a chunk's length, after this many digits and bytes.
    ChunkLine {
        size: u64,
        digits: usize,
        bytes: usize,
        in_extension: bool,
        after_cr: bool,
    },
    ChunkData(u64),
    /// Between a chunk's data and the next line.
    ChunkEnd {
        after_cr: bool,
    },
    /// In the header lines behind the last chunk: bytes of the current line, and of all lines.
    Trailer {
        line: usize,
        all: usize,
        after_cr: bool,
    },
    Done,
}

const CHUNK_LINE: BodyState =
    BodyState::ChunkLine { size: 0, digits: 0, bytes: 0, in_extension: false, after_cr: false };

/// Finds the payload in a body's bytes, however they are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDecoder {
    state: BodyState,
}

impl BodyDecoder {
    /// For a body that ends in this way.
    pub fn new(length: BodyLength) -> Self {
        let state = match length {
            BodyLength::Bytes(0) => BodyState::Done,
            BodyLength::Bytes(bytes) => BodyState::Length(bytes),
            BodyLength::Chunked => CHUNK_LINE,
            BodyLength::UntilClose => BodyState::UntilClose,
        };
        Self { state }
    }

    /// Whether the body is over; the bytes behind it belong to the next response.
    pub fn is_done(&self) -> bool {
        self.state == BodyState::Done
    }

    /// Takes some bytes from the front of `bytes`; returns how many, and which of them are payload.
    /// The caller repeats this with the rest until it is empty or the body is over; every call
    /// takes at least one byte.
    ///
    /// # Errors
    /// [`HttpFault::BadChunk`]; the connection is of no use then.
    pub fn take<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, &'a [u8]), HttpFault> {
        let up_to = |left: u64| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (len, next) = match self.state {
            BodyState::Done => return Ok((0, &[])),
            BodyState::UntilClose => (bytes.len(), BodyState::UntilClose),
            BodyState::Length(left) => {
                let len = up_to(left);
                let left = left - len as u64;
                (len, if left == 0 { BodyState::Done } else { BodyState::Length(left) })
            }
            BodyState::ChunkData(left) => {
                let len = up_to(left);
                let left = left - len as u64;
                (
                    len,
                    if left == 0 {
                        BodyState::ChunkEnd { after_cr: false }
                    } else {
                        BodyState::ChunkData(left)
                    },
                )
            }
            _ => return self.take_frame(bytes).map(|len| (len, &bytes[..0])),
        };
        self.state = next;
        Ok((len, &bytes[..len]))
    }

    /// Bytes to come that are payload and nothing else, as far as that is known; not all of a body need be.
    pub fn plain_bytes(&self) -> u64 {
        match self.state {
            BodyState::Length(left) | BodyState::ChunkData(left) => left,
            _ => 0,
        }
    }

    /// Skips some of the [plain bytes](Self::plain_bytes) that came without inspection.
    pub fn pass(&mut self, bytes: u64) {
        let rest = |left: u64| left.saturating_sub(bytes);
        self.state = match self.state {
            BodyState::Length(left) if rest(left) == 0 => BodyState::Done,
            BodyState::Length(left) => BodyState::Length(rest(left)),
            BodyState::ChunkData(left) if rest(left) == 0 => BodyState::ChunkEnd { after_cr: false },
            BodyState::ChunkData(left) => BodyState::ChunkData(rest(left)),
            state => state,
        };
    }

    /// Takes what stands between chunks.
    fn take_frame(&mut self, bytes: &[u8]) -> Result<usize, HttpFault> {
        for (at, byte) in bytes.iter().enumerate() {
            if matches!(self.state, BodyState::ChunkData(_) | BodyState::Done) {
                return Ok(at);
            }
            self.state = self.after(*byte).ok_or(HttpFault::BadChunk)?;
        }
        Ok(bytes.len())
    }

    /// The state behind a byte between chunks; `None` if it may not stand there.
    fn after(&self, byte: u8) -> Option<BodyState> {
        match self.state {
            BodyState::ChunkLine { size, digits, after_cr: true, .. } => match (byte, size) {
                (b'\n', 0) if digits > 0 => Some(BodyState::Trailer { line: 0, all: 0, after_cr: false }),
                (b'\n', size) if digits > 0 => Some(BodyState::ChunkData(size)),
                _ => None,
            },
            BodyState::ChunkLine { size, digits, bytes, in_extension, after_cr: false } => {
                let bytes = bytes + 1;
                if bytes > MAX_CHUNK_LINE_BYTES {
                    return None;
                }
                let line = |size, digits, in_extension, after_cr| {
                    Some(BodyState::ChunkLine { size, digits, bytes, in_extension, after_cr })
                };
                match (byte, char::from(byte).to_digit(16)) {
                    (b'\r', _) => line(size, digits, in_extension, true),
                    (b'\n', _) => None,
                    _ if in_extension => line(size, digits, true, false),
                    (_, Some(digit)) if digits < MAX_CHUNK_DIGITS => {
                        line(size << 4 | u64::from(digit), digits + 1, false, false)
                    }
                    (b';' | b' ' | b'\t', _) if digits > 0 => line(size, digits, true, false),
                    _ => None,
                }
            }
            BodyState::ChunkEnd { after_cr } => match (byte, after_cr) {
                (b'\r', false) => Some(BodyState::ChunkEnd { after_cr: true }),
                (b'\n', true) => Some(CHUNK_LINE),
                _ => None,
            },
            BodyState::Trailer { line, all, after_cr } => match (byte, after_cr) {
                (b'\n', true) if line == 0 => Some(BodyState::Done),
                (b'\n', true) => Some(BodyState::Trailer { line: 0, all: all + 1, after_cr: false }),
                (b'\n', false) | (_, true) => None,
                (b'\r', false) => Some(BodyState::Trailer { line, all: all + 1, after_cr: true }),
                _ if all < MAX_HTTP_HEAD_BYTES => {
                    Some(BodyState::Trailer { line: line + 1, all: all + 1, after_cr: false })
                }
                _ => None,
            },
            state => Some(state),
        }
    }

    /// The server closed the connection.
    ///
    /// # Errors
    /// [`HttpFault::CutShort`] if the body was not over.
    pub fn close(&mut self) -> Result<(), HttpFault> {
        match self.state {
            BodyState::Done => Ok(()),
            BodyState::UntilClose => {
                self.state = BodyState::Done;
                Ok(())
            }
            _ => Err(HttpFault::CutShort),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Payload, bytes left over, whether the body was over.
    fn decode(length: BodyLength, pieces: &[&[u8]]) -> Result<(Vec<u8>, usize, bool), HttpFault> {
        let (mut decoder, mut payload, mut left) = (BodyDecoder::new(length), Vec::new(), 0);
        for piece in pieces {
            let mut at = 0;
            while at < piece.len() && !decoder.is_done() {
                let (len, part) = decoder.take(&piece[at..])?;
                assert!(len > 0 && part.len() <= len);
                payload.extend_from_slice(part);
                at += len;
            }
            left += piece.len() - at;
        }
        Ok((payload, left, decoder.is_done()))
    }

    const CHUNKED: &[u8] =
        b"5\r\nhello\r\n0B;a=\"b\"\r\n, big world\r\n1 \r\n!\r\n00\r\nX: y\r\nZ:\r\n\r\nHTTP";

    #[test]
    fn chunks_split_at_every_byte() {
        let expected = Ok((b"hello, big world!".to_vec(), 4, true));
        assert_eq!(decode(BodyLength::Chunked, &[CHUNKED]), expected);
        for cut in 0..=CHUNKED.len() {
            let (a, b) = CHUNKED.split_at(cut);
            assert_eq!(decode(BodyLength::Chunked, &[a, b]), expected, "{cut}");
        }
        let single: Vec<&[u8]> = CHUNKED.chunks(1).collect();
        assert_eq!(decode(BodyLength::Chunked, &single), expected);
    }

    #[test]
    fn payload_that_nobody_looks_at_is_passed_over() {
        for (length, bytes) in [(BodyLength::Chunked, CHUNKED), (BodyLength::Bytes(9), b"a segmentHTTP")] {
            let (whole, ..) = decode(length, &[bytes]).unwrap();
            let (mut decoder, mut at, mut seen, mut passed) = (BodyDecoder::new(length), 0, 0, 0);
            while !decoder.is_done() {
                let plain = decoder.plain_bytes().min(3) as usize;
                if plain > 0 {
                    decoder.pass(plain as u64);
                    (at, passed) = (at + plain, passed + plain);
                    continue;
                }
                let (len, payload) = decoder.take(&bytes[at..=at]).unwrap();
                (at, seen) = (at + len, seen + payload.len());
            }
            assert_eq!((passed, seen, &bytes[at..]), (whole.len(), 0, &b"HTTP"[..]));
        }
        let mut open = BodyDecoder::new(BodyLength::UntilClose);
        assert_eq!(open.plain_bytes(), 0, "its end must be seen");
        open.pass(5);
        assert!(!open.is_done());
    }

    #[test]
    fn lengths_and_closing() {
        assert_eq!(decode(BodyLength::Bytes(3), &[b"ab", b"cdef"]), Ok((b"abc".to_vec(), 3, true)));
        assert_eq!(decode(BodyLength::Bytes(0), &[b"ab"]), Ok((Vec::new(), 2, true)));
        assert_eq!(decode(BodyLength::UntilClose, &[b"ab", b"c"]), Ok((b"abc".to_vec(), 0, false)));
        let mut open = BodyDecoder::new(BodyLength::UntilClose);
        assert_eq!((open.close(), open.is_done()), (Ok(()), true));
        assert_eq!(BodyDecoder::new(BodyLength::Bytes(1)).close(), Err(HttpFault::CutShort));
        assert_eq!(BodyDecoder::new(BodyLength::Bytes(0)).close(), Ok(()));
        for cut in 0..CHUNKED.len() - 5 {
            let mut decoder = BodyDecoder::new(BodyLength::Chunked);
            let mut at = 0;
            while at < cut {
                at += decoder.take(&CHUNKED[at..cut]).unwrap().0;
            }
            assert_eq!(decoder.close(), Err(HttpFault::CutShort), "{cut}");
        }
    }

    #[test]
    fn broken_chunks_are_refused() {
        let long_line = [b"1;".as_slice(), &[b'x'; MAX_CHUNK_LINE_BYTES], b"\r\n"].concat();
        let long_trailer = [b"0\r\n".as_slice(), &[b'x'; MAX_HTTP_HEAD_BYTES + 1]].concat();
        for bad in [
            b"\r\n".as_slice(),
            b";x\r\n",
            b"x\r\n",
            b"-1\r\n",
            b"5\n",
            b"5\rx",
            b"1\r\nab",
            b"1\r\na\n",
            b"1\r\na\rx",
            b"0\r\nX\n",
            b"0\r\nX\rY",
            b"1000000000000000\r\n",
            &long_line,
            &long_trailer,
        ] {
            let got = decode(BodyLength::Chunked, &[bad]);
            assert_eq!(got, Err(HttpFault::BadChunk), "{}", String::from_utf8_lossy(bad));
        }
    }
}
