//! PAT and PMT among TS packets, copied for the front of segments.
//!
//! Continuity counters (ISO/IEC 13818-1 section 2.4.3.3) are chosen so that who plays on from the segment before sees no jump: the tables are
//! those sent last before the segment, packet for packet, which the standard calls duplicate packets and has decoders ignore. Where there are none
//! before, they are those that come first, with counters that lead up to theirs.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::web::MAX_TABLE_PACKETS;

const PAT_PID: u16 = 0;
const TABLE_PAT: u8 = 0;
const TABLE_PMT: u8 = 2;
/// A section's header up to and with its length.
const SECTION_HEADER_BYTES: usize = 3;

/// Which of several occurrences are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// The last, as they are.
    Last,
    /// The first, with continuity counters that lead up to theirs.
    First,
}

/// The packets of the PAT and of the program map tables that it names, from `bytes`, which are
/// whole TS packets; `None` unless all are present. Only map tables on `map_pids` are required:
/// others never arrive.
pub(crate) fn find(bytes: &[u8], map_pids: &[u16], which: Which) -> Option<Vec<u8>> {
    let mut all = section(bytes, PAT_PID, TABLE_PAT, which)?;
    let mut named = named_by(&all);
    named.retain(|pid| map_pids.contains(pid));
    for &pid in &named {
        all.extend(section(bytes, pid, TABLE_PMT, which)?);
    }
    (!named.is_empty() && all.len() <= MAX_TABLE_PACKETS * TS_PACKET_BYTES).then_some(all)
}

/// The distinct PIDs of the map tables that a PAT names (ISO/IEC 13818-1 section 2.4.4.3).
fn named_by(packets: &[u8]) -> Vec<u16> {
    let mut bytes: Vec<u8> = Vec::new();
    packets.chunks_exact(TS_PACKET_BYTES).filter_map(payload).for_each(|payload| bytes.extend(payload));
    let start = 1 + bytes.first().map_or(0, |&pointer| usize::from(pointer));
    let section = bytes.get(start..).unwrap_or_default();
    let length = section.get(1..3).map_or(0, |l| usize::from(u16::from_be_bytes([l[0] & 0x0f, l[1]])));
    // Five header bytes follow the length, and a CRC ends the section.
    let entries = section.get(8..(SECTION_HEADER_BYTES + length).saturating_sub(4)).unwrap_or_default();
    let mut pids: Vec<u16> = Vec::new();
    for entry in entries.chunks_exact(4) {
        let pid = u16::from_be_bytes([entry[2] & 0x1f, entry[3]]);
        if entry[..2] != [0, 0] && !pids.contains(&pid) {
            pids.push(pid);
        }
    }
    pids
}

/// The packets of one occurrence of a table.
fn section(bytes: &[u8], pid: u16, table: u8, which: Which) -> Option<Vec<u8>> {
    let packets: Vec<&[u8]> =
        bytes.chunks_exact(TS_PACKET_BYTES).filter(|packet| has_payload_of(packet, pid)).collect();
    let whole = |&start: &usize| whole(&packets[start..], table);
    let start = match which {
        Which::Last => (0..packets.len()).rev().find(|start| whole(start).is_some()),
        Which::First => (0..packets.len()).find(|start| whole(start).is_some()),
    }?;
    let count = whole(&start)?;
    let mut copy = packets[start..start + count].concat();
    if which == Which::First {
        for packet in copy.chunks_exact_mut(TS_PACKET_BYTES) {
            packet[3] = packet[3] & 0xf0 | packet[3].wrapping_sub(count as u8) & 0x0f;
        }
    }
    Some(copy)
}

/// Whether it is a packet of this PID with an unscrambled payload.
fn has_payload_of(packet: &[u8], pid: u16) -> bool {
    packet[0] == 0x47
        && packet[1] & 0x80 == 0
        && u16::from_be_bytes([packet[1] & 0x1f, packet[2]]) == pid
        && packet[3] & 0xd0 == 0x10
}

/// How many packets a section of this table takes that begins in the first of them; `None` if none does, or if it is not whole.
fn whole(packets: &[&[u8]], table: u8) -> Option<usize> {
    let first = packets.first().filter(|packet| packet[1] & 0x40 != 0)?;
    let payload = payload(first)?;
    let section = payload.get(1 + usize::from(*payload.first()?)..)?;
    let header = section.get(..SECTION_HEADER_BYTES)?;
    let length = SECTION_HEADER_BYTES + usize::from(u16::from_be_bytes([header[1] & 0x0f, header[2]]));
    if header[0] != table {
        return None;
    }
    let mut have = section.len();
    let mut count = 1;
    while have < length {
        let (before, next) = (packets.get(count - 1)?, packets.get(count)?);
        if next[1] & 0x40 != 0 || (before[3] + 1) & 0x0f != next[3] & 0x0f {
            return None;
        }
        have += self::payload(next)?.len();
        count += 1;
    }
    Some(count)
}

/// Returns the part of a packet after header and adaptation field.
fn payload(packet: &[u8]) -> Option<&[u8]> {
    match packet[3] >> 4 & 3 {
        1 => packet.get(4..),
        3 => packet.get(5 + usize::from(packet[4])..),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
