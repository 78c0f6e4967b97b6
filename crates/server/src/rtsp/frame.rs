//! Bytes as they arrive from a viewer, cut into RTSP messages and interleaved frames (RFC 2326 sections 4, 10.12).
//!
//! Memory is bounded whatever comes: a message by [`MAX_RTSP_MESSAGE_BYTES`], its header lines by
//! [`MAX_RTSP_HEADERS`], a frame by [`MAX_CLIENT_FRAME_BYTES`] (longer ones are read and dropped). Each byte is looked
//! at once for the end of the header, however small the pieces in which it arrives.

use millrace_core::limits::MAX_RTSP_MESSAGE_BYTES;
use rtsp_types::{Message, StatusCode};

use super::request::RtspRequest;
use super::tunnel::TunnelHalf;
use crate::limits::control::{FRAMER_KEPT_BYTES, MAX_CLIENT_FRAME_BYTES, REQUEST_LINE_EXTRA_BYTES};
use crate::limits::{MAX_RTSP_HEADERS, MAX_RTSP_URL_BYTES};

/// One whole thing that a viewer sent.
#[derive(Debug, PartialEq)]
pub enum Incoming {
    /// A request; header values hold no line ends.
    Request(Box<RtspRequest>),
    /// A response: the server sends no requests, so nothing waits for it.
    Response,
    /// `$`, channel, length, bytes.
    Interleaved {
        /// Channel.
        channel: u8,
        /// Content.
        bytes: Vec<u8>,
    },
    /// The head of an HTTP GET or POST that begins half of a tunnel. No RTSP follows it
    /// ([`Framer::take_rest`]).
    Tunnel(TunnelHalf),
}

/// Why a connection's bytes are not RTSP. Where the next message begins is not known then: answer and close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rtsp message: {what}; answered with {}", u16::from(*status))]
pub struct FrameError {
    /// The answer.
    pub status: StatusCode,
    /// The error.
    pub what: &'static str,
    /// `CSeq` of the message, where it could be found.
    pub cseq: Option<u32>,
}

/// Splits a byte stream. Call [`Framer::push`] with the bytes read, then [`Framer::next_incoming`]
/// until `None`.
#[derive(Debug, Default)]
pub struct Framer {
    buf: Vec<u8>,
    /// Where the current message begins in `buf`.
    start: usize,
    head: HeadScan,
    /// Bytes of an overlong interleaved frame still to be dropped.
    skip: usize,
    skipped_frames: u64,
    broken: bool,
}

/// Result of parsing bytes that begin with `$`.
enum ParsedFrame {
    Whole(Incoming),
    Incomplete,
    /// Longer than any frame that is kept; the part that has arrived is gone, the rest will be
    /// skipped.
    Dropped,
}

/// How far the current message's header has been looked at; offsets from its start.
#[derive(Clone, Copy, Debug, Default)]
struct HeadScan {
    scanned: usize,
    line_start: usize,
    lines: usize,
    /// Some line ends with LF alone, or continues the line before it: the header must be rewritten.
    irregular: bool,
    /// Where the body begins, and its length, once known.
    body: Option<(usize, usize)>,
}

impl Framer {
    /// Takes the bytes read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.broken {
            return;
        }
        let dropped = self.skip.min(bytes.len());
        self.skip -= dropped;
        if self.start > 0 {
            self.buf.drain(..self.start);
            self.start = 0;
        }
        self.buf.extend_from_slice(&bytes[dropped..]);
    }

    /// Whether a message has begun that has not ended.
    pub fn is_mid_message(&self) -> bool {
        self.skip > 0 || self.buf.len() > self.start
    }

    /// Interleaved frames that were dropped for their length.
    pub fn skipped_frames(&self) -> u64 {
        self.skipped_frames
    }

    /// Returns the number of bytes held, at most [`MAX_RTSP_MESSAGE_BYTES`] once
    /// [`Framer::next_incoming`] has returned `None`.
    pub fn buffered_bytes(&self) -> usize {
        self.buf.len() - self.start
    }

    /// Takes the bytes that have been read but not used yet.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let rest = self.buf.split_off(self.start);
        *self = Self::default();
        rest
    }

    /// The next whole thing.
    ///
    /// # Errors
    /// The input is not RTSP or breaks a limit; nothing more comes out of this framer.
    pub fn next_incoming(&mut self) -> Result<Option<Incoming>, FrameError> {
        if self.broken {
            return Ok(None);
        }
        let result = loop {
            self.skip_blank_lines();
            match self.buf.get(self.start) {
                None => break Ok(None),
                Some(b'$') => match self.take_frame() {
                    ParsedFrame::Whole(frame) => break Ok(Some(frame)),
                    ParsedFrame::Incomplete => break Ok(None),
                    ParsedFrame::Dropped => {} // look at what follows
                },
                Some(_) => break self.take_message(),
            }
        };
        if result.is_err() {
            self.broken = true;
            self.buf = Vec::new();
            self.start = 0;
        } else if self.start == self.buf.len() {
            // An idle connection holds no more than a small message took.
            if self.buf.capacity() > FRAMER_KEPT_BYTES {
                self.buf = Vec::new()
            } else {
                self.buf.clear()
            }
            self.start = 0;
        }
        result
    }

    /// Empty lines between messages are tolerated (RFC 2326 section 15.1 leaves them out, players send them).
    fn skip_blank_lines(&mut self) {
        if self.head.scanned == 0 {
            while matches!(self.buf.get(self.start), Some(b'\r' | b'\n')) {
                self.start += 1;
            }
        }
    }

    fn take_frame(&mut self) -> ParsedFrame {
        let Some(header) = self.buf.get(self.start..self.start + 4) else { return ParsedFrame::Incomplete };
        let (channel, len) = (header[1], usize::from(u16::from_be_bytes([header[2], header[3]])));
        let (from, to) = (self.start + 4, self.start + 4 + len);
        if len > MAX_CLIENT_FRAME_BYTES {
            let here = to.min(self.buf.len());
            (self.skip, self.start) = (to - here, here);
            self.skipped_frames += 1;
            return ParsedFrame::Dropped;
        }
        let Some(bytes) = self.buf.get(from..to) else { return ParsedFrame::Incomplete };
        let frame = Incoming::Interleaved { channel, bytes: bytes.to_vec() };
        self.start = to;
        ParsedFrame::Whole(frame)
    }

    fn take_message(&mut self) -> Result<Option<Incoming>, FrameError> {
        let (head_len, body_len) = match self.head.body {
            Some(body) => body,
            None => {
                let Some(head_len) = self.scan_head()? else { return Ok(None) };
                let head = &self.buf[self.start..self.start + head_len];
                if let Some(half) = TunnelHalf::of(first_line(head), header_lines(head)) {
                    self.start += head_len;
                    self.head = HeadScan::default();
                    return Ok(Some(Incoming::Tunnel(half)));
                }
                let body_len = content_length(head).ok_or_else(|| self.error(400, "bad Content-Length"))?;
                if body_len > MAX_RTSP_MESSAGE_BYTES - head_len {
                    return Err(self.error(413, "message too long"));
                }
                check_first_line(head).map_err(|(status, what)| self.error(status, what))?;
                self.head.body = Some((head_len, body_len));
                (head_len, body_len)
            }
        };
        let Some(message) = self.buf.get(self.start..self.start + head_len + body_len) else {
            return Ok(None);
        };
        let parsed = if self.head.irregular {
            let mut rewritten = rewrite_head(&message[..head_len]);
            rewritten.extend_from_slice(&message[head_len..]);
            Message::<Vec<u8>>::parse(&rewritten)
        } else {
            Message::<Vec<u8>>::parse(message)
        };
        let incoming = match parsed {
            Ok((Message::Request(request), _)) => Incoming::Request(Box::new(request)),
            Ok((Message::Response(_), _)) => Incoming::Response,
            Ok((Message::Data(_), _)) | Err(_) => return Err(self.error(400, "not an RTSP message")),
        };
        self.start += head_len + body_len;
        self.head = HeadScan::default();
        Ok(Some(incoming))
    }

    /// Length of the header with its empty line, once it is complete.
    fn scan_head(&mut self) -> Result<Option<usize>, FrameError> {
        let bytes = &self.buf[self.start..];
        let mut head = self.head;
        while let Some(&byte) = bytes.get(head.scanned) {
            match byte {
                b'\r' => match bytes.get(head.scanned + 1) {
                    None => break, // its LF decides
                    Some(b'\n') => {}
                    Some(_) => return Err(self.error(400, "carriage return inside a line")),
                },
                b'\n' => {
                    let line = &bytes[head.line_start..head.scanned];
                    let line = match line.strip_suffix(b"\r") {
                        Some(line) => line,
                        None => {
                            head.irregular = true;
                            line
                        }
                    };
                    if line.is_empty() {
                        self.head = head;
                        return Ok(Some(head.scanned + 1));
                    }
                    head.irregular |= matches!(line[0], b' ' | b'\t');
                    head.lines += 1;
                    head.line_start = head.scanned + 1;
                    if head.lines > MAX_RTSP_HEADERS + 1 {
                        return Err(self.error(400, "too many header lines"));
                    }
                }
                b'\t' | b' '..=b'~' | 0x80.. => {}
                _ => return Err(self.error(400, "control character in the header")),
            }
            head.scanned += 1;
            if head.lines == 0 && head.scanned > MAX_RTSP_URL_BYTES + REQUEST_LINE_EXTRA_BYTES {
                return Err(self.error(414, "request line too long"));
            }
            if head.scanned >= MAX_RTSP_MESSAGE_BYTES {
                return Err(self.error(413, "header too long"));
            }
        }
        self.head = head;
        Ok(None)
    }

    fn error(&self, status: u16, what: &'static str) -> FrameError {
        let cseq = header_lines(&self.buf[self.start..])
            .find(|(name, _)| name.eq_ignore_ascii_case(b"cseq"))
            .and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse().ok());
        FrameError { status: status.into(), what, cseq }
    }
}

/// Name and trimmed value of each header line up to the empty line; continuation lines are left out.
fn header_lines(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    head.split(|&b| b == b'\n')
        .skip(1)
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let colon = line.iter().position(|&b| b == b':')?;
            Some((line[..colon].trim_ascii(), line[colon + 1..].trim_ascii()))
        })
}

/// 0 without the header; `None` if it is not a number, or there are two that differ (a way to smuggle requests).
fn content_length(head: &[u8]) -> Option<usize> {
    let mut length = None;
    for (_, value) in header_lines(head).filter(|(name, _)| name.eq_ignore_ascii_case(b"content-length")) {
        if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let value = std::str::from_utf8(value).ok()?.parse().ok()?;
        if length.is_some_and(|length| length != value) {
            return None;
        }
        length = Some(value);
    }
    Some(length.unwrap_or(0))
}

fn first_line(head: &[u8]) -> &[u8] {
    let line = head.split(|&b| b == b'\n').next().unwrap_or_default();
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Checks method, URL and version, or a status line; returns the status that reports the error to
/// the peer.
fn check_first_line(head: &[u8]) -> Result<(), (u16, &'static str)> {
    let line = first_line(head);
    if line.starts_with(b"RTSP/") {
        return Ok(());
    }
    let mut words = line.split(|&b| b == b' ');
    let (Some(_), Some(url), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err((400, "request line is not: method URL version"));
    };
    if url.len() > MAX_RTSP_URL_BYTES {
        return Err((414, "URL too long"));
    }
    match version.strip_prefix(b"RTSP/") {
        Some(b"1.0" | b"2.0") => Ok(()),
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => {
            Err((505, "RTSP version not supported"))
        }
        _ => Err((400, "not an RTSP request")),
    }
}

/// The same header with CR LF at each line's end and continued lines joined (RFC 2326 section 4 takes both from
/// RFC 2068 section 2.2).
fn rewrite_head(head: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len() + 64);
    for (i, line) in head.split(|&b| b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            break;
        }
        if i > 0 {
            out.extend_from_slice(if matches!(line[0], b' ' | b'\t') { b" " } else { b"\r\n" });
        }
        out.extend_from_slice(if i > 0 { line.trim_ascii() } else { line });
    }
    out.extend_from_slice(b"\r\n\r\n");
    out
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
