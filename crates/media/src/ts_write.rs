//! Writes packets of a transport stream (ISO/IEC 13818-1 section 2.4): clock, tables, PES packets, stuffing.

use crc_fast::CrcAlgorithm;
use millrace_core::limits::TS_PACKET_BYTES;

use crate::ts_packet::PTS_MODULUS;
use crate::ts_packet::{PID_NULL, PID_PAT, SYNC, SYSTEM_TICKS_PER_MEDIA_TICK};

/// Payload of a packet without adaptation field.
pub const PAYLOAD: usize = TS_PACKET_BYTES - 4;
/// Adaptation field of the first packet of a picture: length and flags.
const FLAGS: usize = 2;
/// Header of a PES packet with both stamps (section 2.4.3.6).
const PES_HEADER: usize = 19;

/// Returns the maximum number of TS packets for a picture of `bytes` bytes.
pub fn packets_of_picture(bytes: usize) -> u64 {
    (FLAGS + PES_HEADER + bytes).div_ceil(PAYLOAD) as u64
}

/// A stream of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// PID.
    pub pid: u16,
    /// `stream_type`
    pub stream_type: u8,
    /// Its descriptors in the program map table.
    pub descriptors: Vec<u8>,
}

/// The two tables of a program, each a packet but for its counter.
#[derive(Clone, Debug)]
pub struct Tables {
    pat: [u8; TS_PACKET_BYTES],
    pmt: [u8; TS_PACKET_BYTES],
    pmt_pid: u16,
}

impl Tables {
    /// Of program `number`. The streams' entries must fit one packet: 150 bytes with five for each.
    pub fn new(number: u16, pmt_pid: u16, version: u8, clock_pid: u16, streams: &[StreamEntry]) -> Self {
        let marked = |pid: u16| (0xe000 | pid).to_be_bytes();
        let pat = [number.to_be_bytes(), marked(pmt_pid)].concat();
        let mut pmt = [&marked(clock_pid)[..], &[0xf0, 0]].concat();
        for StreamEntry { pid, stream_type, descriptors } in streams {
            pmt.push(*stream_type);
            pmt.extend(marked(*pid));
            pmt.extend([0xf0, descriptors.len() as u8]);
            pmt.extend(descriptors);
        }
        Self {
            pat: section(PID_PAT, 0, 1, version, &pat),
            pmt: section(pmt_pid, 2, number, version, &pmt),
            pmt_pid,
        }
    }
}

/// The section of a program association table with one program.
pub fn pat_section(stream: u16, version: u8, program: u16, pmt_pid: u16) -> Vec<u8> {
    let entry = [program.to_be_bytes(), (0xe000 | pmt_pid).to_be_bytes()].concat();
    section_of(0, stream, version, &entry)
}

/// One section of a table (section 2.4.4).
fn section_of(table: u8, extension: u16, version: u8, body: &[u8]) -> Vec<u8> {
    let length = 5 + body.len() + 4;
    let mut bytes = vec![table, 0xb0, length as u8];
    bytes.extend(extension.to_be_bytes());
    bytes.extend([0xc1 | version << 1, 0, 0]);
    bytes.extend(body);
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Mpeg2, &bytes) as u32;
    bytes.extend(crc.to_be_bytes());
    bytes
}

/// A packet with one section of a table, but for its counter.
fn section(pid: u16, table: u8, extension: u16, version: u8, body: &[u8]) -> [u8; TS_PACKET_BYTES] {
    let bytes = section_of(table, extension, version, body);
    let mut packet = [0xff; TS_PACKET_BYTES];
    let [high, low] = pid.to_be_bytes();
    packet[..5].copy_from_slice(&[SYNC, 0x40 | high, low, 0x10, 0]);
    packet[5..5 + bytes.len()].copy_from_slice(&bytes);
    packet
}

/// Packets in a row, with the continuity counters of their PIDs.
#[derive(Debug, Default)]
pub struct PacketWriter {
    /// Bytes written and not yet taken.
    pub out: Vec<u8>,
    /// Of the next packet of each PID.
    counters: Vec<(u16, u8)>,
}

impl PacketWriter {
    fn counter(&mut self, pid: u16) -> &mut u8 {
        let at = self.counters.iter().position(|(of, _)| *of == pid).unwrap_or_else(|| {
            self.counters.push((pid, 0));
            self.counters.len() - 1
        });
        &mut self.counters[at].1
    }

    /// The counter of a packet with payload, which goes on.
    fn next_counter(&mut self, pid: u16) -> u8 {
        let counter = self.counter(pid);
        let this = *counter;
        *counter = (this + 1) & 15;
        this
    }

    /// The clock in a packet of its own, in ticks of 90 kHz.
    pub fn clock(&mut self, pid: u16, ticks: u64) {
        let counter = self.counter(pid).wrapping_sub(1);
        self.out.extend(clock_packet(pid, counter, ticks % PTS_MODULUS * SYSTEM_TICKS_PER_MEDIA_TICK));
    }

    /// Both tables.
    pub fn tables(&mut self, tables: &Tables) {
        for (pid, table) in [(PID_PAT, &tables.pat), (tables.pmt_pid, &tables.pmt)] {
            let counter = self.next_counter(pid);
            self.out.extend(header(pid, true, 0x10, counter));
            self.out.extend(&table[4..]);
        }
    }

    /// A section of any length, in packets of its own.
    pub fn section(&mut self, pid: u16, section: &[u8]) {
        // A pointer field of 0: the section begins behind it (section 2.4.4.1).
        let bytes = [&[0], section].concat();
        for (number, piece) in bytes.chunks(PAYLOAD).enumerate() {
            let counter = self.next_counter(pid);
            self.out.extend(header(pid, number == 0, 0x10, counter));
            self.out.extend_from_slice(piece);
            self.out.resize(self.out.len() + PAYLOAD - piece.len(), 0xff);
        }
    }

    /// Stuffing.
    pub fn null(&mut self) {
        self.out.extend(header(PID_NULL, false, 0x10, 0));
        self.out.resize(self.out.len() + PAYLOAD, 0xff);
    }

    /// Writes the next packet of a PES packet that has one left.
    pub fn pes(&mut self, pes: &mut Pes, bytes: &[u8]) {
        let starts = pes.at == 0;
        let left = pes.left();
        // Each later packet has at least a byte.
        let most = left.saturating_sub(pes.packets.saturating_sub(1)).max(1);
        let now = left.min(most).min(PAYLOAD - if starts { pes.field } else { 0 });
        let field = PAYLOAD - now;
        let counter = self.next_counter(pes.pid);
        self.out.extend(header(pes.pid, starts, if field > 0 { 0x30 } else { 0x10 }, counter));
        if field > 0 {
            self.out.push((field - 1) as u8);
        }
        if field > 1 {
            self.out.push(if starts && pes.is_access { 0x40 } else { 0 });
            self.out.resize(self.out.len() + field - 2, 0xff);
        }
        let from_head = pes.header.get(pes.at..).unwrap_or_default();
        let head = now.min(from_head.len());
        self.out.extend_from_slice(&from_head[..head]);
        let from = (pes.at + head).saturating_sub(pes.header.len());
        self.out.extend_from_slice(bytes.get(from..from + now - head).unwrap_or_default());
        pes.at += now;
        pes.packets = pes.packets.saturating_sub(1);
    }
}

/// A packet with nothing but a clock reference, in ticks of 27 MHz below [`PCR_MODULUS`](crate::ts_packet::PCR_MODULUS).
/// It has the `counter` of the packet before it: without payload the counter stays (section 2.4.3.3).
pub fn clock_packet(pid: u16, counter: u8, value: u64) -> [u8; TS_PACKET_BYTES] {
    let (base, extension) = (value / SYSTEM_TICKS_PER_MEDIA_TICK, value % SYSTEM_TICKS_PER_MEDIA_TICK);
    let bits = base << 15 | 0x7e00 | extension;
    let mut packet = [0xff; TS_PACKET_BYTES];
    packet[..4].copy_from_slice(&header(pid, false, 0x20, counter));
    (packet[4], packet[5]) = ((PAYLOAD - 1) as u8, 0x10);
    packet[6..12].copy_from_slice(&bits.to_be_bytes()[2..]);
    packet
}

fn header(pid: u16, starts: bool, control: u8, counter: u8) -> [u8; 4] {
    let [high, low] = pid.to_be_bytes();
    [SYNC, u8::from(starts) << 6 | high, low, control | counter & 15]
}

/// A PES packet that is being sent. Its bytes lie elsewhere.
#[derive(Clone, Debug)]
pub struct Pes {
    pid: u16,
    header: Vec<u8>,
    bytes: usize,
    /// Adaptation field of the first packet, and its content.
    field: usize,
    is_access: bool,
    /// Bytes sent up to now, including the header's.
    at: usize,
    packets: usize,
}

impl Pes {
    /// Makes a picture of `bytes` bytes. Stamps count modulo 2^33.
    pub fn picture(pid: u16, pts: u64, dts: u64, bytes: usize, is_access: bool) -> Self {
        let mut header = vec![0, 0, 1, 0xe0, 0, 0, 0x84];
        if pts == dts {
            header.extend([0x80, 5]);
            header.extend(stamp_bytes(2, pts));
        } else {
            header.extend([0xc0, 10]);
            header.extend(stamp_bytes(3, pts));
            header.extend(stamp_bytes(1, dts));
        }
        Self::new(pid, header, bytes, FLAGS, is_access)
    }

    /// Makes audio of `bytes` bytes, at most 65,522: audio stream `number` of its program.
    pub fn sound(pid: u16, number: u8, pts: u64, bytes: usize) -> Self {
        let mut header = vec![0, 0, 1, 0xc0 | number & 0x1f, 0, 0, 0x84, 0x80, 5];
        header.extend(stamp_bytes(2, pts));
        Self::new(pid, header, bytes, 0, false)
    }

    fn new(pid: u16, mut header: Vec<u8>, bytes: usize, field: usize, is_access: bool) -> Self {
        // Players need not wait for the next one to know that it is over. Larger ones say nothing, which pictures alone may (section 2.4.3.7).
        let length = u16::try_from(header.len() - 6 + bytes).unwrap_or(0);
        header[4..6].copy_from_slice(&length.to_be_bytes());
        let packets = (field + header.len() + bytes).div_ceil(PAYLOAD);
        Self { pid, header, bytes, field, is_access, at: 0, packets }
    }

    fn left(&self) -> usize {
        self.header.len() + self.bytes - self.at
    }

    /// Packets that are still to be sent.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Spreads it over `more` additional packets; `false` if it is too short for them.
    pub fn stretch(&mut self, more: usize) -> bool {
        // The header stays whole.
        let is_long = self.bytes >= self.packets + more;
        self.packets += if is_long { more } else { 0 };
        is_long
    }
}

/// Section 2.4.3.7.
fn stamp_bytes(mark: u8, stamp: u64) -> [u8; 5] {
    let [a, b, c] = [stamp >> 30, stamp >> 15 & 0x7fff, stamp & 0x7fff];
    [
        mark << 4 | (a as u8 & 7) << 1 | 1,
        (b >> 7) as u8,
        (b << 1) as u8 | 1,
        (c >> 7) as u8,
        (c << 1) as u8 | 1,
    ]
}

const _: () =
    assert!(SYSTEM_TICKS_PER_MEDIA_TICK == 300, "the clock's extension is 0 at each tick of 90 kHz");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ts_packet::{PesStart, TsPacket};

    proptest! {
        #[test]
        fn stretch_adds_packets_and_keeps_pes_payload(
            bytes in proptest::collection::vec(any::<u8>(), 40..2000),
            more in 0usize..16,
            is_access: bool,
        ) {
            let mut pes = Pes::picture(256, 5, 3, bytes.len(), is_access);
            let natural = pes.packets();
            prop_assert!(pes.stretch(more));
            let mut writer = PacketWriter::default();
            while pes.packets() > 0 {
                writer.pes(&mut pes, &bytes);
            }
            let (packets, rest) = writer.out.as_chunks::<TS_PACKET_BYTES>();
            prop_assert_eq!((packets.len(), rest.len()), (natural + more, 0));
            let mut whole = Vec::new();
            for (number, packet) in packets.iter().map(TsPacket).enumerate() {
                prop_assert_eq!(usize::from(packet.continuity()), number & 15);
                prop_assert_eq!(packet.adaptation().is_some_and(|a| a.is_random_access()), number == 0 && is_access);
                if number == 0 {
                    let start = PesStart::parse(packet.payload()).unwrap();
                    prop_assert_eq!((start.presentation_stamp, start.decode_stamp), (Some(5), Some(3)));
                    whole.extend_from_slice(start.payload);
                } else {
                    whole.extend_from_slice(packet.payload());
                }
            }
            prop_assert_eq!(whole, bytes);
        }
    }
}
