//! Splits the bytes of an RTSP connection into messages and interleaved frames (RFC 2326 section 10.12).

use millrace_core::limits::MAX_RTSP_MESSAGE_BYTES;
use millrace_core::text::excerpt;
use rtsp_types::{Message, ParseError};

/// Bytes in front of an interleaved frame: `$`, channel, 16-bit length.
pub const FRAME_HEADER_BYTES: usize = 4;

/// The next thing on a connection.
#[derive(Debug)]
pub enum Item<'a> {
    /// A binary frame.
    Frame {
        /// Channel that SETUP agreed upon.
        channel: u8,
        /// One RTP or RTCP packet.
        bytes: &'a [u8],
    },
    /// A reply, or a request of the server.
    Message(Box<Message<Vec<u8>>>),
}

/// Finds the item at the start of `buffer` and how many bytes it takes; `None` if more bytes are needed.
///
/// # Errors
/// Returns a text that explains why these bytes are neither a frame nor a message; the connection
/// is of no use then.
pub fn next_item(buffer: &[u8]) -> Result<Option<(Item<'_>, usize)>, String> {
    // RFC 2326 section 4: empty lines before a message must be ignored.
    let skipped = buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let rest = &buffer[skipped..];
    match rest.first() {
        None => Ok(None),
        Some(b'$') => Ok(frame(rest).map(|(item, len)| (item, skipped + len))),
        Some(_) => message(rest).map(|found| found.map(|(item, len)| (item, skipped + len))),
    }
}

fn frame(rest: &[u8]) -> Option<(Item<'_>, usize)> {
    let header = rest.get(..FRAME_HEADER_BYTES)?;
    let end = FRAME_HEADER_BYTES + usize::from(u16::from_be_bytes([header[2], header[3]]));
    let bytes = rest.get(FRAME_HEADER_BYTES..end)?;
    Some((Item::Frame { channel: header[1], bytes }, end))
}

fn message(rest: &[u8]) -> Result<Option<(Item<'_>, usize)>, String> {
    let head = &rest[..rest.len().min(MAX_RTSP_MESSAGE_BYTES)];
    let Some(head_end) = head.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if head.windows(2).any(|two| two == b"\n\n") {
            Err("its lines end with LF alone; RFC 2326 section 4 asks for CR LF".to_owned())
        } else if rest.len() >= MAX_RTSP_MESSAGE_BYTES {
            Err(format!("no end of the header within {MAX_RTSP_MESSAGE_BYTES} bytes"))
        } else {
            Ok(None)
        };
    };
    match Message::parse(head) {
        Ok((message, len)) => Ok(Some((Item::Message(Box::new(message)), len))),
        Err(ParseError::Incomplete(_)) if head.len() < MAX_RTSP_MESSAGE_BYTES => Ok(None),
        Err(ParseError::Incomplete(_)) => Err(format!("longer than {MAX_RTSP_MESSAGE_BYTES} bytes")),
        Err(ParseError::Error) => {
            let line = head[..head_end].split(|byte| *byte == b'\r').next().unwrap_or_default();
            let line = excerpt(&String::from_utf8_lossy(line), 80);
            Err(format!("no RTSP message begins with \"{line}\" and this header"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_messages_in_any_cut() {
        let mut bytes = b"\r\n".to_vec();
        bytes.extend(b"$\x01\x00\x03abc");
        bytes.extend(b"RTSP/1.0 200 OK\r\nCSeq: 3\r\nContent-Length: 4\r\n\r\nbody");
        bytes.extend(b"$\x00\x00\x00");
        for cut in 1..bytes.len() {
            let (mut buffer, mut seen) = (Vec::new(), Vec::new());
            for part in bytes.chunks(cut) {
                buffer.extend_from_slice(part);
                while let Some((item, len)) = next_item(&buffer).unwrap() {
                    seen.push(match item {
                        Item::Frame { channel, bytes } => {
                            format!("{channel}:{}", String::from_utf8_lossy(bytes))
                        }
                        Item::Message(message) => match *message {
                            Message::Response(reply) => String::from_utf8(reply.into_body()).unwrap(),
                            other => panic!("{other:?}"),
                        },
                    });
                    buffer.drain(..len);
                }
            }
            assert_eq!(seen, ["1:abc", "body", "0:"], "cut every {cut} bytes");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn next_item_of_non_rtsp_bytes_returns_descriptive_error() {
        for (bytes, why) in [
            (&b"HTTP/1.1 400 Bad\r\n\r\n"[..], "HTTP/1.1 400 Bad"),
            (b"RTSP/1.0 200 OK\nCSeq: 1\n\n", "LF alone"),
            (b"RTSP/1.0 200 OK\r\nContent-Length: x\r\n\r\n", "200 OK"),
        ] {
            let error = next_item(bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let endless = vec![b'a'; MAX_RTSP_MESSAGE_BYTES];
        assert!(next_item(&endless).unwrap_err().contains("16384"));
        let mut large = b"RTSP/1.0 200 OK\r\nContent-Length: 99999999\r\n\r\n".to_vec();
        assert!(next_item(&large).unwrap().is_none());
        large.resize(MAX_RTSP_MESSAGE_BYTES, b'x');
        assert!(next_item(&large).unwrap_err().contains("16384"));
    }
}
