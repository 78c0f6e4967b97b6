//! Clock references, time stamps and continuity counters moved by a constant, so that a title can follow another one without a jump.
//!
//! | field | becomes |
//! | --- | --- |
//! | PCR (ISO/IEC 13818-1 section 2.4.3.5) | its base + offset modulo 2^33; the extension stays |
//! | PTS, DTS (section 2.4.3.7) | + offset modulo 2^33 |
//! | continuity counter (section 2.4.3.3) | + the PID's offset modulo 16; of null packets it stays |
//!
//! The original PCR stays, as the standard requires. Time stamps lie in the TS packet in which
//! their PES packet begins, unless an adaptation field leaves no room for them there. The rest is
//! then in a packet that does not show that it continues a header, and that may be in another
//! extent. Such a packet is left out: its PES packet is lost, and nothing has a wrong time.

use millrace_core::limits::TS_PACKET_BYTES;
use millrace_media::ts_packet::PTS_MODULUS;
use millrace_media::ts_packet::{PID_NULL, PIDS, SYNC, TsPacket, read_stamp};

use super::block::{Applied, BindError, PacketBlock, Transform, TransformError, TsBytes};
use super::select::NULL_PACKET;

/// By how much continuity counters are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Continuity {
    /// All PIDs by the same, modulo 16.
    All(u8),
    /// These PIDs.
    Of(Vec<(u16, u8)>),
}

/// By how much clocks, time stamps and counters are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestampSpec {
    /// 90 kHz, modulo 2^33.
    pub ticks: u64,
    /// Counters.
    pub continuity: Continuity,
}

/// PIDs below this are tables (ISO/IEC 13818-1 table 2-3).
const FIRST_STREAM_PID: u16 = 0x10;
/// Offset of the PCR in a packet that has one.
const PCR: usize = 6;
/// Bytes of a PES header before its optional fields (section 2.4.3.6).
const PES_FIXED: usize = 9;
const STAMP_BYTES: usize = 5;
/// Streams whose PES packets have no optional header (table 2-18): program stream map, padding, private 2, ECM, EMM, DSM-CC, H.222.1 type E,
/// directory.
const BARE: [u8; 8] = [0xbc, 0xbe, 0xbf, 0xf0, 0xf1, 0xf2, 0xf8, 0xff];

/// Moves clocks, time stamps and counters.
pub struct Restamp {
    /// 90 kHz, below 2^33.
    ticks: u64,
    continuity: Box<[u8; PIDS]>,
}

/// Where the time stamps of a packet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stamps {
    /// It has none.
    None,
    /// At this offset, this many.
    At(usize, usize),
    /// It has some, or may have, and not all of them are in it.
    Beyond,
}

impl Restamp {
    /// Creates a transformation with the offsets of `spec`.
    pub fn new(spec: &RestampSpec) -> Self {
        let mut continuity = Box::new([0; PIDS]);
        match &spec.continuity {
            Continuity::All(offset) => continuity.fill(*offset),
            Continuity::Of(pids) => {
                pids.iter().for_each(|(pid, offset)| continuity[usize::from(*pid) % PIDS] = *offset);
            }
        }
        continuity[usize::from(PID_NULL)] = 0;
        Self { ticks: spec.ticks % PTS_MODULUS, continuity }
    }

    /// Checks whether a title can be re-stamped, according to its beginning.
    ///
    /// # Errors
    /// [`BindError::SplitHeader`], [`BindError::Scrambled`].
    pub fn check(&self, head: &[u8]) -> Result<(), BindError> {
        if self.ticks == 0 {
            return Ok(());
        }
        for packet in head.as_chunks::<TS_PACKET_BYTES>().0 {
            let view = TsPacket(packet);
            let pid = view.pid();
            if pid != PID_NULL && view.is_scrambled() {
                return Err(BindError::Scrambled { pid });
            }
            if stamps(packet) == Stamps::Beyond {
                return Err(BindError::SplitHeader { pid });
            }
        }
        Ok(())
    }

    /// Whether the packet could be changed.
    pub fn change(&self, packet: &mut TsBytes) -> bool {
        let view = TsPacket(packet);
        let pid = view.pid();
        if packet[0] != SYNC || view.has_error() || pid == PID_NULL {
            return true;
        }
        if self.ticks != 0 {
            match stamps(packet) {
                Stamps::None => {}
                Stamps::Beyond => return false,
                Stamps::At(at, count) => packet[at..]
                    .as_chunks_mut::<STAMP_BYTES>()
                    .0
                    .iter_mut()
                    .take(count)
                    .for_each(|stamp| self.move_stamp(stamp)),
            }
            if TsPacket(packet).adaptation().is_some_and(|field| field.pcr().is_some()) {
                self.move_clock(packet);
            }
        }
        let counter = packet[3].wrapping_add(self.continuity[usize::from(pid)]) & 0x0f;
        packet[3] = packet[3] & 0xf0 | counter;
        true
    }

    fn moved(&self, ticks: u64) -> u64 {
        (ticks + self.ticks) % PTS_MODULUS
    }

    /// The marker bits stay as they are.
    fn move_stamp(&self, stamp: &mut [u8; STAMP_BYTES]) {
        let ticks = self.moved(read_stamp(stamp));
        stamp[0] = stamp[0] & 0xf1 | (ticks >> 29) as u8 & 0x0e;
        stamp[1] = (ticks >> 22) as u8;
        stamp[2] = stamp[2] & 1 | (ticks >> 14) as u8 & 0xfe;
        stamp[3] = (ticks >> 7) as u8;
        stamp[4] = stamp[4] & 1 | (ticks << 1) as u8;
    }

    /// The reserved bits and the extension stay as they are.
    fn move_clock(&self, packet: &mut TsBytes) {
        let [a, b, c, d, e] = [0, 1, 2, 3, 4].map(|at| u64::from(packet[PCR + at]));
        let ticks = self.moved(a << 25 | b << 17 | c << 9 | d << 1 | e >> 7);
        packet[PCR..PCR + 4].copy_from_slice(&((ticks >> 1) as u32).to_be_bytes());
        packet[PCR + 4] = packet[PCR + 4] & 0x7f | (ticks << 7) as u8;
    }
}

impl Transform for Restamp {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        let mut left_out = 0;
        block.for_each(|packet| {
            if !self.change(packet) {
                *packet = NULL_PACKET;
                left_out += 1;
            }
        });
        Ok(Applied { left_out })
    }

    fn stamp_offset(&self) -> u64 {
        self.ticks
    }
}

/// Where the time stamps of the PES packet that begins here are.
fn stamps(packet: &TsBytes) -> Stamps {
    let view = TsPacket(packet);
    if !view.starts_unit() || view.pid() < FIRST_STREAM_PID || view.pid() == PID_NULL || view.has_error() {
        return Stamps::None;
    }
    let payload = view.payload();
    let prefix = payload.len().min(3);
    if payload.is_empty() {
        return Stamps::None;
    }
    if view.is_scrambled() {
        return Stamps::Beyond;
    }
    if payload[..prefix] != [0, 0, 1][..prefix] {
        return Stamps::None;
    }
    if payload.get(3).is_some_and(|stream| BARE.contains(stream)) {
        return Stamps::None;
    }
    let Some(fixed) = payload.get(..PES_FIXED) else { return Stamps::Beyond };
    if fixed[6] & 0xc0 != 0x80 {
        return Stamps::None;
    }
    let count = match fixed[7] >> 6 {
        0b10 => 1,
        0b11 => 2,
        _ => return Stamps::None,
    };
    let length = count * STAMP_BYTES;
    // A header too short for its stamps has none.
    if usize::from(fixed[8]) < length {
        return Stamps::None;
    }
    let at = TS_PACKET_BYTES - payload.len() + PES_FIXED;
    if at + length <= TS_PACKET_BYTES { Stamps::At(at, count) } else { Stamps::Beyond }
}

#[cfg(test)]
#[path = "restamp_tests.rs"]
mod tests;
