//! Answers by HTTP, checked byte by byte against the title.

use std::ops::Range;

use millrace_core::limits::TS_PACKET_BYTES;

use crate::http_viewer::null_byte;
use crate::reception::Excuses;
use crate::titles::StoredTitle;

/// Program tables in front of a segment: more than these it never needs.
const MAX_TABLES_BYTES: u64 = 8 * TS_PACKET_BYTES as u64;

/// The right answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedAnswer {
    /// Bytes of the title; with 206 if they are a part.
    Bytes {
        /// Which.
        bytes: Range<u64>,
        /// The request named a range.
        is_part: bool,
    },
    /// A segment with these bytes of the title, behind program tables.
    Segment {
        /// Which.
        bytes: Range<u64>,
    },
    /// The playlist of the title.
    Playlist,
    /// The header of the title as a file.
    Head {
        /// Its length.
        length: u64,
    },
    /// This status.
    Status(u16),
    /// This status, and the end of the connection.
    Bad(u16),
}

/// The head of an answer.
#[derive(Debug)]
pub struct AnswerHead {
    /// Its length, with its empty line.
    pub len: usize,
    /// Its status.
    pub status: u16,
    /// Names in lower case, and values.
    pub fields: Vec<(String, String)>,
}

impl AnswerHead {
    /// `None`: it is not whole yet.
    ///
    /// # Errors
    /// It is not HTTP.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            let is_http = b"HTTP/1.1 ".iter().zip(bytes).all(|(expected, byte)| expected == byte);
            return if is_http { Ok(None) } else { Err(format!("not HTTP: {:?}", start_of(bytes))) };
        };
        let wrong = || format!("not a head of an answer: {:?}", start_of(bytes));
        let text = std::str::from_utf8(&bytes[..end]).map_err(|_| wrong())?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 "));
        let status = status.and_then(|line| line.get(..3)?.parse().ok()).ok_or_else(wrong)?;
        let field = |line: &str| {
            line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        };
        let fields = lines.map(field).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
        Ok(Some(Self { len: end + 4, status, fields }))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

fn start_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned()
}

/// An answer while it comes.
pub struct ReceivedAnswer {
    expected: ExpectedAnswer,
    status: u16,
    length: u64,
    got: u64,
    /// Bytes in front of those of the title.
    before: u64,
    /// Place in the title of the first byte behind those.
    start: Option<u64>,
    /// Everything that is no media.
    text: Vec<u8>,
}

impl std::fmt::Debug for ReceivedAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { expected, status, length, got, .. } = self;
        write!(f, "{status} with {got} of {length} bytes to {expected:?}")
    }
}

impl ReceivedAnswer {
    /// Judges the head of an answer.
    ///
    /// # Errors
    /// It is not the answer to the request.
    pub fn begin(
        expected: ExpectedAnswer,
        head: AnswerHead,
        title: &StoredTitle,
        excuses: Excuses,
    ) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("{what}: {} {:?} to {expected:?}", head.status, head.fields));
        let length = head.field("content-length").and_then(|value| value.parse::<u64>().ok());
        let Some(length) = length else { return wrong("no length") };
        let all = title.bytes.len();
        let (mut before, mut start) = (0, None);
        let is_right = match (&expected, head.status) {
            (ExpectedAnswer::Bytes { bytes, is_part: true }, 206) => {
                start = Some(bytes.start);
                let place = format!("bytes {}-{}/{all}", bytes.start, bytes.end - 1);
                length == bytes.end - bytes.start && head.field("content-range") == Some(&place)
            }
            (ExpectedAnswer::Bytes { bytes, is_part: false }, 200) => {
                start = Some(bytes.start);
                length == bytes.end - bytes.start && head.field("content-range").is_none()
            }
            (ExpectedAnswer::Segment { bytes }, 200) => {
                start = Some(bytes.start);
                before = length.wrapping_sub(bytes.end - bytes.start);
                before <= MAX_TABLES_BYTES && before.is_multiple_of(TS_PACKET_BYTES as u64)
            }
            (ExpectedAnswer::Head { length: expected }, 200) => length == *expected,
            (ExpectedAnswer::Playlist, 200) => true,
            (ExpectedAnswer::Status(status) | ExpectedAnswer::Bad(status), got) => *status == got,
            (_, 503) => true,
            (_, 500) => excuses.is_lost || excuses.was_lost,
            _ => false,
        };
        if !is_right {
            return wrong("the wrong answer");
        }
        let length = if matches!(expected, ExpectedAnswer::Head { .. }) { 0 } else { length };
        Ok(Self { expected, status: head.status, length, got: 0, before, start, text: Vec::new() })
    }

    /// Takes the bytes that belong to it; returns how many.
    ///
    /// # Errors
    /// They are not those of the title.
    pub fn take(&mut self, bytes: &[u8], title: &StoredTitle, excuses: Excuses) -> Result<usize, String> {
        let len = bytes.len().min((self.length - self.got) as usize);
        let text = match self.start {
            None => len,
            Some(_) => len.min(self.before.saturating_sub(self.got) as usize),
        };
        self.text.extend_from_slice(&bytes[..text]);
        if let Some(start) = self.start {
            let at = start + (self.got + text as u64).saturating_sub(self.before);
            check_bytes(title, at, &bytes[text..len], excuses)?;
            if self.got < self.before && self.got + text as u64 >= self.before {
                check_tables(title, &self.text)?;
            }
        }
        self.got += len as u64;
        Ok(len)
    }

    /// Whether all of it has come.
    pub fn is_whole(&self) -> bool {
        self.got == self.length
    }

    /// Its status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Whether an engine sends it.
    pub fn is_media(&self) -> bool {
        self.start.is_some()
    }

    /// Whether it is a segment.
    pub fn is_segment(&self) -> bool {
        matches!(self.expected, ExpectedAnswer::Segment { .. })
    }

    /// Whether some of it has come, and not all.
    pub fn is_under_way(&self) -> bool {
        (1..self.length).contains(&self.got)
    }

    /// The title's bytes in it.
    pub fn media_bytes(&self) -> u64 {
        self.length - self.before
    }

    /// The playlist, if it is one.
    ///
    /// # Errors
    /// The playlist does not have all of the title.
    pub fn playlist(&self, title: &StoredTitle) -> Result<Option<Playlist>, String> {
        match (&self.expected, self.status) {
            (ExpectedAnswer::Playlist, 200) => Playlist::parse(&self.text, title).map(Some),
            _ => Ok(None),
        }
    }
}

/// Compares bytes with those of the title. What could not be read may be null packets.
fn check_bytes(title: &StoredTitle, at: u64, bytes: &[u8], excuses: Excuses) -> Result<(), String> {
    let place = at as usize;
    let Some(stored) = title.bytes.get(place..place + bytes.len()) else {
        return Err(format!("{} bytes from {at} on are beyond the end of the title", bytes.len()));
    };
    if stored == bytes {
        return Ok(());
    }
    let is_right = |at: u64, stored: u8, byte: u8| {
        byte == stored || (excuses.was_lost || excuses.is_lost) && byte == null_byte(at)
    };
    let wrong =
        (at..).zip(stored.iter().zip(bytes)).find(|(at, (stored, byte))| !is_right(*at, **stored, **byte));
    match wrong {
        Some((at, (stored, byte))) => {
            Err(format!("wrong bytes: byte {at} is {byte:#x} instead of {stored:#x}"))
        }
        None => Ok(()),
    }
}

/// Tables in front of a segment are copies of packets of the title.
fn check_tables(title: &StoredTitle, tables: &[u8]) -> Result<(), String> {
    let is_of_title = |packet: &[u8]| title.has_ts_packet(packet);
    match tables.chunks(TS_PACKET_BYTES).all(is_of_title) {
        true => Ok(()),
        false => Err("the tables in front of a segment are not those of the title".to_owned()),
    }
}

/// A playlist.
#[derive(Debug)]
pub struct Playlist {
    /// Its segments.
    pub segments: Vec<PlaylistSegment>,
}

/// A segment in it.
#[derive(Debug)]
pub struct PlaylistSegment {
    /// Its address.
    pub address: String,
    /// Bytes of the title in it.
    pub bytes: Range<u64>,
}

impl Playlist {
    fn parse(text: &[u8], title: &StoredTitle) -> Result<Self, String> {
        let text = std::str::from_utf8(text).map_err(|_| "the playlist is not text".to_owned())?;
        let wrong = || format!("not the playlist of {}: {text:?}", title.name);
        let (mut seconds, mut start, mut segments) = (0.0, 0, Vec::new());
        for line in text.lines() {
            if let Some(length) = line.strip_prefix("#EXTINF:") {
                let length = length.trim_end_matches(',');
                seconds += length.parse::<f64>().map_err(|_| wrong())?;
            } else if !line.starts_with('#') && !line.is_empty() {
                let end = title.cut_near(seconds);
                let address = format!("/titles/{}/{line}", title.name);
                segments.push(PlaylistSegment { address, bytes: start..end });
                start = end;
            }
        }
        let is_whole = start == title.bytes.len() as u64 && segments.iter().all(|s| !s.bytes.is_empty());
        if is_whole { Ok(Self { segments }) } else { Err(wrong()) }
    }
}
