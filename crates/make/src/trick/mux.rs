//! Writes a transport stream of one program with one video stream: clock, tables, pictures, stuffing.

use millrace_media::codec::VideoSyntax;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_write::{PacketWriter, Pes, StreamEntry, Tables};

use super::pace::{SlotCapacity, SlotPacer, overhead};
use super::scan::ScannedProgram;
use crate::limits::trick::TRICK_SLOT_TICKS;

/// The clock at the beginning. Not 0: decoding may begin before the first picture is shown, and stamps have no sign.
const CLOCK_START_TICKS: u64 = 90_000;

/// A stream that is being written.
#[derive(Debug)]
pub(super) struct Mux {
    packets: PacketWriter,
    pace: SlotPacer,
    pid: u16,
    tables: Tables,
    /// From when a picture may be sent to when it is decoded.
    delay_ticks: u64,
}

impl Mux {
    /// A stream of this program, with the pictures only: the same PIDs, so that players stay where they are, and another version of the
    /// table, so that they notice that it is another.
    pub(super) fn new(program: &ScannedProgram, shape: SlotCapacity, delay_slots: u64) -> Self {
        let version = program.table_version.wrapping_add(1) & 31;
        let pictures =
            StreamEntry { pid: program.pid, stream_type: stream_type(program), descriptors: Vec::new() };
        let mut mux = Self {
            packets: PacketWriter::default(),
            pace: SlotPacer::new(shape),
            pid: program.pid,
            tables: Tables::new(program.number, program.table_pid, version, program.pid, &[pictures]),
            delay_ticks: delay_slots * TRICK_SLOT_TICKS,
        };
        mux.begin_slot();
        mux
    }

    /// Returns the data written since the last call.
    pub(super) fn take(&mut self) -> &mut Vec<u8> {
        &mut self.packets.out
    }

    fn begin_slot(&mut self) {
        let slot = self.pace.slot();
        self.packets.clock(self.pid, CLOCK_START_TICKS + slot * TRICK_SLOT_TICKS);
        if overhead(slot) > 1 {
            self.packets.tables(&self.tables);
        }
    }

    fn end_slot(&mut self) {
        for _ in 0..self.pace.lacking() {
            self.packets.null();
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
        let mut pes = Pes::picture(self.pid, stamp(pts), stamp(dts), bytes.len(), is_access);
        while pes.packets() > 0 {
            while !self.pace.take() {
                self.end_slot();
            }
            self.packets.pes(&mut pes, bytes);
        }
    }
}

/// Private streams are announced by descriptors, which are left out: they get the stream type of
/// their actual syntax.
fn stream_type(program: &ScannedProgram) -> u8 {
    match program.syntax {
        VideoSyntax::H265 => 0x24,
        _ => program.stream_type,
    }
}
