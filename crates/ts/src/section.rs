//! Reassembles table sections from packets (ISO/IEC 13818-1 section 2.4.4), and reads PAT and PMT.

use crate::limits::{MAX_PSI_SECTION_BYTES, MAX_SECTION_BYTES};

/// CRC of sections (annex A): 0 over a section with its CRC.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut n = 0;
        while n < 256 {
            let mut crc = (n as u32) << 24;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
                bit += 1;
            }
            table[n] = crc;
            n += 1;
        }
        table
    };
    bytes.iter().fold(u32::MAX, |crc, byte| crc << 8 ^ TABLE[(crc >> 24) as usize ^ usize::from(*byte)])
}

/// Puts the sections of one PID together.
#[derive(Debug, Default)]
pub(crate) struct Sections {
    buffer: Vec<u8>,
    /// Whether the place in the sections is known.
    following: bool,
}

impl Sections {
    /// Packets are missing: the section in progress never ends.
    pub(crate) fn lose(&mut self) {
        self.buffer.clear();
        self.following = false;
    }

    /// Takes a payload, passes whole sections to `out`, and returns the fault, if any.
    pub(crate) fn push(
        &mut self,
        payload: &[u8],
        start: bool,
        out: &mut impl FnMut(&[u8]),
    ) -> Option<&'static str> {
        if !start {
            return if self.following { self.take(payload, out) } else { None };
        }
        let (&pointer, rest) = payload.split_first()?;
        let Some((tail, head)) = rest.split_at_checked(usize::from(pointer)) else {
            self.lose();
            return Some("a pointer_field beyond the packet");
        };
        let mut fault = None;
        if !self.buffer.is_empty() {
            fault = self.take(tail, out);
            if fault.is_none() && !self.buffer.is_empty() {
                fault = Some("a section that is cut off by the next");
            }
        }
        self.buffer.clear();
        self.following = true;
        self.take(head, out).or(fault)
    }

    fn take(&mut self, mut data: &[u8], out: &mut impl FnMut(&[u8])) -> Option<&'static str> {
        loop {
            if self.buffer.is_empty() && data.first().is_none_or(|&table| table == 0xff) {
                // Stuffing up to the end, or nothing: the next section needs a pointer.
                self.following = false;
                return None;
            }
            if self.buffer.len() < 3 {
                let (now, later) = data.split_at(data.len().min(3 - self.buffer.len()));
                self.buffer.extend_from_slice(now);
                data = later;
                if self.buffer.len() < 3 {
                    return None;
                }
            }
            let length = 3 + (usize::from(self.buffer[1] & 0x0f) << 8 | usize::from(self.buffer[2]));
            let most = if self.buffer[0] <= 3 { MAX_PSI_SECTION_BYTES } else { MAX_SECTION_BYTES };
            if length > most {
                self.lose();
                return Some("a section_length beyond what is allowed");
            }
            let (now, later) = data.split_at(data.len().min(length - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            data = later;
            if self.buffer.len() < length {
                return None;
            }
            out(&self.buffer);
            self.buffer.clear();
        }
    }
}

/// A section with the long header and a CRC (section 2.4.4.11).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LongSection<'a> {
    pub(crate) extension: u16,
    pub(crate) version: u8,
    pub(crate) is_current: bool,
    pub(crate) number: u8,
    pub(crate) body: &'a [u8],
}

impl<'a> LongSection<'a> {
    /// `None` if it is too short to be one.
    pub(crate) fn parse(section: &'a [u8]) -> Option<Self> {
        let body = section.get(8..section.len().checked_sub(4)?)?;
        Some(Self {
            extension: u16::from_be_bytes([section[3], section[4]]),
            version: section[5] >> 1 & 0x1f,
            is_current: section[5] & 1 != 0,
            number: section[6],
            body,
        })
    }
}

/// Programme number and PID of each PMT of a PAT section; network information left out.
pub(crate) fn pat_entries(table: &LongSection<'_>) -> Vec<(u16, u16)> {
    let entry = |bytes: &[u8]| {
        (u16::from_be_bytes([bytes[0], bytes[1]]), u16::from_be_bytes([bytes[2] & 0x1f, bytes[3]]))
    };
    table.body.chunks_exact(4).map(entry).filter(|(program, _)| *program != 0).collect()
}

/// Kind of an elementary stream, for the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementaryKind {
    /// Pictures.
    Video,
    /// Sound.
    Audio,
    /// Anything else in PES packets: subtitles, teletext, data.
    Data,
    /// Sections, or nothing that is known.
    Other,
}

/// An elementary stream of a PMT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PmtEntry {
    pub(crate) pid: u16,
    pub(crate) stream_type: u8,
    pub(crate) kind: ElementaryKind,
    pub(crate) name: &'static str,
}

/// Returns the contents of a PMT: the PID of the clock references, and the streams. `None` if its
/// lengths do not fit.
pub(crate) fn pmt_entries(table: &LongSection<'_>) -> Option<(u16, Vec<PmtEntry>)> {
    let mut streams = Vec::new();
    let clock = pmt_streams(table, |stream_type, pid, descriptors| {
        let (kind, name) = what_is(stream_type, descriptors);
        streams.push(PmtEntry { pid, stream_type, kind, name });
    })?;
    Some((clock, streams))
}

/// Gives type, PID and descriptors of each stream of a PMT to `each`, up to the first that does not fit; the PID of the clock references if all do.
pub(crate) fn pmt_streams(table: &LongSection<'_>, mut each: impl FnMut(u8, u16, &[u8])) -> Option<u16> {
    let body = table.body;
    let clock = u16::from_be_bytes([body.first()? & 0x1f, *body.get(1)?]);
    let length = |at: usize| Some(usize::from(body.get(at)? & 0x0f) << 8 | usize::from(*body.get(at + 1)?));
    let mut at = 4 + length(2)?;
    while at < body.len() {
        let (stream_type, end) = (body[at], at + 5 + length(at + 3)?);
        let pid = u16::from_be_bytes([body[at + 1] & 0x1f, body[at + 2]]);
        each(stream_type, pid, body.get(at + 5..end)?);
        at = end;
    }
    (at == body.len()).then_some(clock)
}

/// Tag and body of each descriptor, up to the first that does not fit.
pub(crate) fn descriptors(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [tag, length, rest @ ..] = bytes else { return None };
        let (body, later) = rest.split_at_checked(usize::from(*length))?;
        bytes = later;
        Some((*tag, body))
    })
}

/// Table 2-34 of ISO/IEC 13818-1; ETSI EN 300 468 and ATSC A/53 for values that are private there.
fn what_is(stream_type: u8, descriptors: &[u8]) -> (ElementaryKind, &'static str) {
    match stream_type {
        0x01 => (ElementaryKind::Video, "MPEG-1 video"),
        0x02 => (ElementaryKind::Video, "MPEG-2 video"),
        0x03 => (ElementaryKind::Audio, "MPEG-1 audio"),
        0x04 => (ElementaryKind::Audio, "MPEG-2 audio"),
        0x0f => (ElementaryKind::Audio, "AAC"),
        0x10 => (ElementaryKind::Video, "MPEG-4 video"),
        0x11 => (ElementaryKind::Audio, "AAC (LATM)"),
        0x1b => (ElementaryKind::Video, "H.264"),
        0x24 => (ElementaryKind::Video, "H.265"),
        0x33 => (ElementaryKind::Video, "H.266"),
        0x81 => (ElementaryKind::Audio, "AC-3"),
        0x87 => (ElementaryKind::Audio, "E-AC-3"),
        0x06 => private(descriptors),
        _ => (ElementaryKind::Other, "other"),
    }
}

fn private(all: &[u8]) -> (ElementaryKind, &'static str) {
    for (tag, body) in descriptors(all) {
        return match (tag, body) {
            (0x6a, _) | (0x05, b"AC-3") => (ElementaryKind::Audio, "AC-3"),
            (0x7a, _) | (0x05, b"EAC3") => (ElementaryKind::Audio, "E-AC-3"),
            (0x7b, _) => (ElementaryKind::Audio, "DTS"),
            (0x05, b"Opus") => (ElementaryKind::Audio, "Opus"),
            (0x05, b"HEVC") => (ElementaryKind::Video, "H.265"),
            (0x05, b"AV01") => (ElementaryKind::Video, "AV1"),
            (0x56, _) => (ElementaryKind::Data, "teletext"),
            (0x59, _) => (ElementaryKind::Data, "subtitles"),
            _ => continue,
        };
    }
    (ElementaryKind::Data, "private data")
}
