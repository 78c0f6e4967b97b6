//! Which subtitle pages a title's tables name (teletext descriptor, ETSI EN 300 468 section 6.2.43).

use std::collections::BTreeMap;

use millrace_core::limits::TS_PACKET_BYTES;

use super::PageNumber;
use crate::limits::{MAX_PROGRAMS, MAX_SUBTITLE_PAGES};
use crate::packet::{PacketFields, SYNC};
use crate::section::{LongSection, Sections, crc32, descriptors, pat_entries, pmt_streams};

const PAT_PID: u16 = 0;
const TABLE_PAT: u8 = 0;
const TABLE_PMT: u8 = 2;
/// PES packets with private data.
const PRIVATE_TYPE: u8 = 0x06;
const TELETEXT_DESCRIPTOR: u8 = 0x56;
/// Types of pages: subtitles, and subtitles for the hard of hearing.
const SUBTITLES: u8 = 0x02;
const HEARING_IMPAIRED: u8 = 0x05;

/// A page with subtitles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The stream that it is in.
    pub pid: u16,
    /// Its number there.
    pub page: PageNumber,
    /// ISO 639-2, in small letters.
    pub language: Option<String>,
    /// Whether sounds are described too.
    pub is_for_hearing_impaired: bool,
}

/// The pages that the first tables among these packets name, [`MAX_SUBTITLE_PAGES`] at most.
pub fn announced(bytes: &[u8]) -> Vec<Announced> {
    let mut found = Vec::new();
    let mut pat = Sections::default();
    let mut maps: BTreeMap<u16, Option<Sections>> = BTreeMap::new();
    for bytes in bytes.as_chunks::<TS_PACKET_BYTES>().0 {
        let packet = PacketFields::parse(bytes);
        if bytes[0] != SYNC || packet.error || packet.scrambled || !packet.has_payload {
            continue;
        }
        if packet.pid == PAT_PID && maps.is_empty() {
            pat.push(packet.payload, packet.start, &mut |section| {
                let Some(table) = table(section, TABLE_PAT) else { return };
                let named = pat_entries(&table).into_iter().take(MAX_PROGRAMS);
                maps.extend(named.map(|(_, pid)| (pid, Some(Sections::default()))));
            });
        } else if let Some(sections) = maps.get_mut(&packet.pid)
            && let Some(map) = sections
        {
            let mut is_read = false;
            map.push(packet.payload, packet.start, &mut |section| {
                if let Some(table) = table(section, TABLE_PMT) {
                    is_read = true;
                    pmt_streams(&table, |stream_type, pid, of| pages(stream_type, pid, of, &mut found));
                }
            });
            if is_read {
                *sections = None;
            }
            if maps.values().all(Option::is_none) {
                break;
            }
        }
    }
    found
}

/// A table that is whole and in force.
fn table(section: &[u8], id: u8) -> Option<LongSection<'_>> {
    let is_right = section.first() == Some(&id) && crc32(section) == 0;
    LongSection::parse(section).filter(|table| is_right && table.is_current)
}

fn pages(stream_type: u8, pid: u16, of: &[u8], found: &mut Vec<Announced>) {
    let bodies =
        descriptors(of).filter(|(tag, _)| *tag == TELETEXT_DESCRIPTOR && stream_type == PRIVATE_TYPE);
    for &[a, b, c, kind, page] in bodies.flat_map(|(_, body)| body.as_chunks::<5>().0) {
        let is_for_hearing_impaired = kind >> 3 == HEARING_IMPAIRED;
        if !is_for_hearing_impaired && kind >> 3 != SUBTITLES || found.len() == MAX_SUBTITLE_PAGES {
            continue;
        }
        let code = [a, b, c].map(|letter| letter.to_ascii_lowercase());
        let language = code.iter().all(u8::is_ascii_lowercase).then(|| code.map(char::from).iter().collect());
        found.push(Announced { pid, page: PageNumber::new(kind, page), language, is_for_hearing_impaired });
    }
}
