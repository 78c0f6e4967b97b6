//! Writes a transport stream of one program with one video stream (ISO/IEC 13818-1): clock, tables, pictures, stuffing.

use crc_fast::CrcAlgorithm;
use millrace_core::limits::TS_PACKET_BYTES;
use millrace_core::limits::trick::TRICK_SLOT_TICKS;

use super::pace::{Pace, Shape, overhead};
use super::scan::Program;
use crate::index::PTS_MODULUS;
use crate::ingest::codec::VideoSyntax;
use crate::ingest::ts_packet::{PID_NULL, PID_PAT, SYNC, SYSTEM_TICKS_PER_MEDIA_TICK};

/// The clock at the beginning. Not 0: decoding may begin before the first picture is shown, and stamps have no sign.
const CLOCK_START_TICKS: u64 = 90_000;
/// Payload of a packet without adaptation field.
const PAYLOAD: usize = TS_PACKET_BYTES - 4;
/// Adaptation field of the first packet of a picture: length and flags.
const FLAGS: usize = 2;
/// Header of a PES packet with both stamps (section 2.4.3.6).
const PES_HEADER: usize = 19;
const STREAM_ID: u8 = 0xe0;

/// TS packets that a picture of so many bytes takes, at most.
pub(super) fn packets_of(bytes: usize) -> u64 {
    (FLAGS + PES_HEADER + bytes).div_ceil(PAYLOAD) as u64
}

/// A stream that is being written.
#[derive(Debug)]
pub(super) struct Mux {
    out: Vec<u8>,
    pace: Pace,
    pid: u16,
    /// The two tables, each a packet, and the PID of the second.
    tables: [[u8; TS_PACKET_BYTES]; 2],
    table_pid: u16,
    /// Continuity counters: PAT, PMT, pictures.
    counters: [u8; 3],
    /// From when a picture may be sent to when it is decoded.
    delay_ticks: u64,
}

impl Mux {
    /// A stream of this program, with the pictures only: the same PIDs, so that players stay where they are, and another version of the
    /// table, so that they notice that it is another.
    pub(super) fn new(program: &Program, shape: Shape, delay_slots: u64) -> Self {
        let pat = [&program.number.to_be_bytes()[..], &(0xe000 | program.table_pid).to_be_bytes()].concat();
        let pid = (0xe000 | program.pid).to_be_bytes();
        let pmt = [&pid[..], &[0xf0, 0, stream_type(program)], &pid, &[0xf0, 0]].concat();
        let version = program.table_version.wrapping_add(1) & 31;
        let mut mux = Self {
            out: Vec::new(),
            pace: Pace::new(shape),
            pid: program.pid,
            tables: [
                section(PID_PAT, 0, 1, version, &pat),
                section(program.table_pid, 2, program.number, version, &pmt),
            ],
            table_pid: program.table_pid,
            counters: [0; 3],
            delay_ticks: delay_slots * TRICK_SLOT_TICKS,
        };
        mux.begin_slot();
        mux
    }

    /// What was written since it was last asked.
    pub(super) fn take(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    fn begin_slot(&mut self) {
        let slot = self.pace.slot();
        let ticks = (CLOCK_START_TICKS + slot * TRICK_SLOT_TICKS) % PTS_MODULUS;
        let bits = ticks << 15 | 0x7e00;
        let mut packet = [0xff; TS_PACKET_BYTES];
        // Without payload the counter stays (section 2.4.3.3).
        let counter = self.counters[2].wrapping_sub(1);
        packet[..4].copy_from_slice(&header(self.pid, false, 0x20, counter));
        (packet[4], packet[5]) = ((PAYLOAD - 1) as u8, 0x10);
        packet[6..12].copy_from_slice(&bits.to_be_bytes()[2..]);
        self.out.extend(packet);
        if overhead(slot) > 1 {
            for (table, pid) in [PID_PAT, self.table_pid].into_iter().enumerate() {
                let header = header(pid, true, 0x10, self.counters[table]);
                self.counters[table] = self.counters[table].wrapping_add(1);
                self.tables[table][..4].copy_from_slice(&header);
                self.out.extend(self.tables[table]);
            }
        }
    }

    fn end_slot(&mut self) {
        for _ in 0..self.pace.lacking() {
            let mut packet = [0xff; TS_PACKET_BYTES];
            packet[..4].copy_from_slice(&header(PID_NULL, false, 0x10, 0));
            self.out.extend(packet);
        }
        self.pace.next_slot();
        self.begin_slot();
    }

    /// Goes on to a slot, with nothing but clock, tables and stuffing.
    pub(super) fn advance_to(&mut self, slot: u64) {
        while self.pace.slot() < slot {
            self.end_slot();
        }
    }

    /// The slot that is being filled.
    pub(super) fn slot(&self) -> u64 {
        self.pace.slot()
    }

    /// A picture, in a PES packet of its own. Stamps are times of the title, without the delay.
    pub(super) fn picture(&mut self, bytes: &[u8], pts: i64, dts: i64, is_access: bool) {
        let start = (CLOCK_START_TICKS + self.delay_ticks).cast_signed();
        let stamp = |ticks: i64| (start + ticks).rem_euclid(PTS_MODULUS.cast_signed()).unsigned_abs();
        let mut header = vec![0, 0, 1, STREAM_ID, 0, 0, 0x84];
        match pts == dts {
            true => {
                header.extend([0x80, 5]);
                header.extend(stamp_bytes(2, stamp(pts)));
            }
            false => {
                header.extend([0xc0, 10]);
                header.extend(stamp_bytes(3, stamp(pts)));
                header.extend(stamp_bytes(1, stamp(dts)));
            }
        }
        // Players need not wait for the next one to know that it is over. Larger ones say nothing, which pictures alone may (section 2.4.3.7).
        let length = u16::try_from(header.len() - 6 + bytes.len()).unwrap_or(0);
        header[4..6].copy_from_slice(&length.to_be_bytes());
        let (mut head, mut rest, mut first) = (&header[..], bytes, true);
        while first || !head.is_empty() || !rest.is_empty() {
            while !self.pace.take() {
                self.end_slot();
            }
            let left = head.len() + rest.len();
            let room = PAYLOAD - if first { FLAGS } else { 0 };
            let now = left.min(room);
            self.start_packet(first, is_access, now);
            let from_head = now.min(head.len());
            self.out.extend_from_slice(&head[..from_head]);
            self.out.extend_from_slice(&rest[..now - from_head]);
            (head, rest, first) = (&head[from_head..], &rest[now - from_head..], false);
        }
    }

    /// Header and adaptation field of a packet with so much payload.
    fn start_packet(&mut self, first: bool, is_access: bool, payload: usize) {
        let field = PAYLOAD - payload;
        let control = if field > 0 { 0x30 } else { 0x10 };
        let header = header(self.pid, first, control, self.counters[2]);
        self.counters[2] = self.counters[2].wrapping_add(1);
        self.out.extend_from_slice(&header);
        if field > 0 {
            self.out.push((field - 1) as u8);
        }
        if field > 1 {
            self.out.push(if first && is_access { 0x40 } else { 0 });
            self.out.resize(self.out.len() + field - 2, 0xff);
        }
    }
}

fn header(pid: u16, starts: bool, control: u8, counter: u8) -> [u8; 4] {
    let [high, low] = pid.to_be_bytes();
    [SYNC, u8::from(starts) << 6 | high, low, control | counter & 15]
}

/// Private streams are announced by descriptors, which are left out: as what they are.
fn stream_type(program: &Program) -> u8 {
    match program.syntax {
        VideoSyntax::H265 => 0x24,
        _ => program.stream_type,
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

/// A packet with one section of a table (section 2.4.4), but for its counter.
fn section(pid: u16, table: u8, extension: u16, version: u8, body: &[u8]) -> [u8; TS_PACKET_BYTES] {
    let length = 5 + body.len() + 4;
    let mut bytes = vec![table, 0xb0, length as u8];
    bytes.extend(extension.to_be_bytes());
    bytes.extend([0xc1 | version << 1, 0, 0]);
    bytes.extend(body);
    let crc = crc_fast::checksum(CrcAlgorithm::Crc32Mpeg2, &bytes) as u32;
    bytes.extend(crc.to_be_bytes());
    let mut packet = [0xff; TS_PACKET_BYTES];
    let [high, low] = pid.to_be_bytes();
    packet[..5].copy_from_slice(&[SYNC, 0x40 | high, low, 0x10, 0]);
    packet[5..5 + bytes.len()].copy_from_slice(&bytes);
    packet
}

const _: () =
    assert!(SYSTEM_TICKS_PER_MEDIA_TICK == 300, "the clock's extension is 0 at each tick of 90 kHz");
