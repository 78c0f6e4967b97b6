//! Program association and program map tables: sections assembled from packets, checked, read
//! (ISO/IEC 13818-1 section 2.4.4).

use crc_fast::CrcAlgorithm;

use crate::codec::StreamRole;
use crate::codec::{self, StreamKind};
use crate::ts_packet::TsPacket;

/// Longest PAT or PMT section with its header (ISO/IEC 13818-1 section 2.4.4.4: the length field is at most 1021).
pub const MAX_SECTION_BYTES: usize = 1024;
/// A section's header up to and with its length field.
const HEADER_BYTES: usize = 3;
const TABLE_PAT: u8 = 0;
const TABLE_PMT: u8 = 2;
const STUFFING: u8 = 0xff;

/// Puts sections together from the payloads of one PID.
#[derive(Clone, Debug, Default)]
pub struct SectionAssembler {
    bytes: Vec<u8>,
    collecting: bool,
    continuity: Option<u8>,
}

impl SectionAssembler {
    /// Takes the next packet of the PID; hands every section that is complete now and whose CRC is right to `each`.
    /// Returns the number of sections with a wrong CRC.
    pub fn push(&mut self, packet: TsPacket<'_>, mut each: impl FnMut(&[u8])) -> u64 {
        let payload = packet.payload();
        if payload.is_empty() || packet.is_scrambled() {
            return 0;
        }
        let before = self.continuity.replace(packet.continuity());
        if before == Some(packet.continuity()) && !packet.starts_unit() {
            return 0;
        }
        if before.is_some_and(|c| (c + 1) & 0x0f != packet.continuity()) {
            self.collecting = false;
        }
        if !packet.starts_unit() {
            return self.take(payload, &mut each);
        }
        let pointer = usize::from(payload[0]);
        let (Some(end_of_last), Some(sections)) = (payload.get(1..1 + pointer), payload.get(1 + pointer..))
        else {
            self.collecting = false;
            return 0;
        };
        let wrong = self.take(end_of_last, &mut each);
        self.bytes.clear();
        self.collecting = true;
        wrong + self.take(sections, &mut each)
    }

    /// Appends to the section being collected and cuts off complete sections.
    fn take(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> u64 {
        let mut wrong = 0;
        while self.collecting && !bytes.is_empty() {
            if self.bytes.is_empty() && bytes[0] == STUFFING {
                self.collecting = false;
                break;
            }
            let want = self.length().unwrap_or(HEADER_BYTES) - self.bytes.len();
            let (now, later) = bytes.split_at(want.min(bytes.len()));
            self.bytes.extend_from_slice(now);
            bytes = later;
            match self.length() {
                Some(length) if length > MAX_SECTION_BYTES => self.collecting = false,
                Some(length) if length == self.bytes.len() => {
                    if crc_is_right(&self.bytes) {
                        each(&self.bytes);
                    } else {
                        wrong += 1;
                    }
                    self.bytes.clear();
                }
                _ => {}
            }
        }
        wrong
    }

    /// Length of the section being collected, once its header is there.
    fn length(&self) -> Option<usize> {
        section_bytes(&self.bytes)
    }
}

/// Over a section with its CRC the CRC is zero (ISO/IEC 13818-1 annex A).
fn crc_is_right(section: &[u8]) -> bool {
    crc_fast::checksum(CrcAlgorithm::Crc32Mpeg2, section) == 0
}

/// The length in bytes of the section that begins here, with its header and CRC; `None` if its header is cut off.
pub fn section_bytes(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES)?;
    Some(HEADER_BYTES + (usize::from(header[1] & 0x0f) << 8 | usize::from(header[2])))
}

/// Writes a section to the beginning of `out`, which has room for it: without the streams of these
/// PIDs if it is a program map table with a correct CRC, otherwise unchanged. Returns the length
/// written, and whether it differs from the section.
pub fn without_streams(section: &[u8], is_dropped: impl Fn(u16) -> bool, out: &mut [u8]) -> (usize, bool) {
    if section.first() == Some(&TABLE_PMT)
        && crc_is_right(section)
        && let Some(length) = write_without(section, is_dropped, out)
        && length < section.len()
    {
        return (length, true);
    }
    out[..section.len()].copy_from_slice(section);
    (section.len(), false)
}

/// Bytes of a program map section before the descriptors of its program, and of the CRC at its end.
const FIXED_BYTES: usize = 12;
const CRC_BYTES: usize = 4;

/// A 12-bit length of descriptors.
fn info_bytes(field: &[u8]) -> usize {
    0x0fff & usize::from(u16::from_be_bytes([field[0], field[1]]))
}

/// The same of a program map table; `None` if its parts do not fit each other.
fn write_without(section: &[u8], is_dropped: impl Fn(u16) -> bool, out: &mut [u8]) -> Option<usize> {
    let body = section.get(..section.len().checked_sub(CRC_BYTES)?)?;
    let info = info_bytes;
    let streams = FIXED_BYTES + info(body.get(FIXED_BYTES - 2..FIXED_BYTES)?);
    let head = body.get(..streams)?;
    out[..streams].copy_from_slice(head);
    let (mut from, mut to) = (streams, streams);
    while from < body.len() {
        let entry = body.get(from..from + 5)?;
        let entry = body.get(from..from + 5 + info(&entry[3..]))?;
        if !is_dropped(u16::from_be_bytes([entry[1] & 0x1f, entry[2]])) {
            out[to..to + entry.len()].copy_from_slice(entry);
            to += entry.len();
        }
        from += entry.len();
    }
    let length = to + CRC_BYTES - HEADER_BYTES;
    out[1] = out[1] & 0xf0 | (length >> 8) as u8;
    out[2] = length as u8;
    write_crc(&mut out[..to + CRC_BYTES]);
    Some(to + CRC_BYTES)
}

/// The fields of a program map table outside its list of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmtHead {
    /// Program number.
    pub program: u16,
    /// Five bits.
    pub version: u8,
    /// PID of the program's clock.
    pub pcr_pid: u16,
}

/// Returns a program map section with this head, and with the PIDs that `pid_of` returns; streams without one are left out.
/// Descriptors stay as they are. `None` if it is no such section, or if its parts do not fit each other.
pub fn remapped_pmt(section: &[u8], head: PmtHead, pid_of: impl Fn(u16) -> Option<u16>) -> Option<Vec<u8>> {
    let mut out = vec![0; section.len()];
    parse_pmt(section)?;
    let length = write_without(section, |pid| pid_of(pid).is_none(), &mut out)?;
    out.truncate(length);
    let [high, low] = head.program.to_be_bytes();
    (out[3], out[4], out[5]) = (high, low, out[5] & 0xc1 | (head.version & 0x1f) << 1);
    // The only section of its table.
    (out[6], out[7]) = (0, 0);
    write_pid(&mut out[8..], head.pcr_pid);
    let mut at = FIXED_BYTES + info_bytes(&out[FIXED_BYTES - 2..]);
    while at + 5 + CRC_BYTES <= length {
        let pid = u16::from_be_bytes([out[at + 1] & 0x1f, out[at + 2]]);
        write_pid(&mut out[at + 1..], pid_of(pid)?);
        at += 5 + info_bytes(&out[at + 3..]);
    }
    write_crc(&mut out);
    Some(out)
}

/// Writes a PID and leaves the three bits before it.
fn write_pid(out: &mut [u8], pid: u16) {
    let [high, low] = pid.to_be_bytes();
    (out[0], out[1]) = (out[0] & 0xe0 | high & 0x1f, low);
}

/// Writes the CRC at the end of a section.
fn write_crc(section: &mut [u8]) {
    let (body, crc) = section.split_at_mut(section.len() - CRC_BYTES);
    crc.copy_from_slice(&(crc_fast::checksum(CrcAlgorithm::Crc32Mpeg2, body) as u32).to_be_bytes());
}

/// The long section syntax: what PAT and PMT have in common.
struct Section<'a> {
    extension: u16,
    number: u8,
    last_number: u8,
    body: &'a [u8],
}

fn section(bytes: &[u8], table: u8) -> Option<Section<'_>> {
    let (header, rest) = bytes.split_first_chunk::<8>()?;
    let is_current = header[5] & 1 != 0;
    if header[0] != table || header[1] & 0x80 == 0 || !is_current {
        return None;
    }
    let body = rest.get(..rest.len().checked_sub(4)?)?;
    let extension = u16::from_be_bytes([header[3], header[4]]);
    Some(Section { extension, number: header[6], last_number: header[7], body })
}

/// One section of the program association table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatSection {
    /// Which stream this is (`transport_stream_id`).
    pub stream: u16,
    /// Number of this section.
    pub number: u8,
    /// Number of the table's last section.
    pub last_number: u8,
    /// Program number and PID of its map table, in order; without the network PID.
    pub programs: Vec<(u16, u16)>,
}

/// Reads a PAT section that is in force; `None` for anything else.
pub fn parse_pat(bytes: &[u8]) -> Option<PatSection> {
    let section = section(bytes, TABLE_PAT)?;
    let entries = section.body.chunks_exact(4).map(|e| {
        let number = u16::from_be_bytes([e[0], e[1]]);
        (number, u16::from_be_bytes([e[2] & 0x1f, e[3]]))
    });
    Some(PatSection {
        stream: section.extension,
        number: section.number,
        last_number: section.last_number,
        programs: entries.filter(|&(number, _)| number != 0).collect(),
    })
}

/// The map table of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pmt {
    /// Program number.
    pub program: u16,
    /// PID of the program's clock; 0x1fff if it has none.
    pub pcr_pid: u16,
    /// Its streams, in order.
    pub streams: Vec<PmtStream>,
}

/// One elementary stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmtStream {
    /// PID.
    pub pid: u16,
    /// `stream_type`.
    pub stream_type: u8,
    /// Codec name for people.
    pub codec: String,
    /// How it is looked at.
    pub kind: StreamKind,
    /// ISO 639 code.
    pub language: Option<String>,
    /// Its audience.
    pub role: Option<StreamRole>,
}

/// Reads a PMT section that is in force; `None` for anything else.
pub fn parse_pmt(bytes: &[u8]) -> Option<Pmt> {
    let section = section(bytes, TABLE_PMT)?;
    let (fixed, rest) = section.body.split_first_chunk::<4>()?;
    let program_info = 0x0fff & usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    let (program, mut rest) = rest.split_at_checked(program_info)?;
    let mut streams = Vec::new();
    while let Some((entry, behind)) = rest.split_first_chunk::<5>() {
        let info = 0x0fff & usize::from(u16::from_be_bytes([entry[3], entry[4]]));
        let descriptors = behind.get(..info)?;
        let (codec, kind) = codec::identify(entry[0], descriptors, program);
        streams.push(PmtStream {
            pid: u16::from_be_bytes([entry[1] & 0x1f, entry[2]]),
            stream_type: entry[0],
            codec,
            kind,
            language: codec::language(descriptors),
            role: codec::role(descriptors),
        });
        rest = &behind[info..];
    }
    let pcr_pid = u16::from_be_bytes([fixed[0] & 0x1f, fixed[1]]);
    Some(Pmt { program: section.extension, pcr_pid, streams })
}

#[cfg(test)]
#[path = "psi_tests.rs"]
mod tests;
