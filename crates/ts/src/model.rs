//! The decoder model of ISO/IEC 13818-1 section 2.4.2 (T-STD): how full its buffers are.
//!
//! ```text
//!  packets ──► transport buffer ──(leaks at Rx)──► main buffers ──► decoder, at the decoding time
//!                 512 bytes                      multiplex + elementary
//! ```
//!
//! Scope of the model:
//!
//! * A packet enters the transport buffer as a whole, at its time; less than one packet too much is forgiven.
//! * Multiplex and elementary buffer of video count as one of their common size, so how bytes get from one to the other does not matter, and an
//!   overflow of one of them alone is not seen.
//! * A PES packet is taken for one access unit of video. Sound leaves evenly between two time stamps, and 32 ms of it, the longest usual frame, are forgiven.
//! * Sizes are those of the level that the stream names, for a decoder of the standard, not those of a smaller buffer that its headers ask for.
//! * Tables (the system buffers), H.265 and anything else whose size is not known here are left out.

use std::collections::{BTreeMap, VecDeque};

use crate::check::FindingKind;
use crate::limits::MAX_BUFFERED_UNITS;

/// Size of transport buffers (section 2.4.2.3).
const TRANSPORT: f64 = 512.0;
const PACKET: f64 = 188.0;
/// Ticks of a long frame of sound.
const FRAME: f64 = 27_000.0 * 32.0;

/// The buffers of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    /// Rate out of the transport buffer, bits a second.
    pub(crate) leak: f64,
    /// Main buffers, bytes.
    pub(crate) main: f64,
    pub(crate) is_audio: bool,
}

impl Sizes {
    /// Video of at most `rate` bits a second with a decoder's buffer of `buffer` bits: BSmux is 4 ms, BSoh 1/750 s of the rate, at least those of 2 Mb/s
    /// (sections 2.4.2.3 and 2.14.3.1).
    fn video(rate: f64, buffer: f64) -> Self {
        let over = rate.max(2e6) * (0.004 + 1.0 / 750.0);
        Self { leak: 1.2 * rate, main: (over + buffer) / 8.0, is_audio: false }
    }

    const fn audio(leak: f64, main: f64) -> Self {
        Self { leak, main, is_audio: true }
    }

    /// Reads the sizes from the beginning of an access unit, if it states them.
    pub(crate) fn find(stream_type: u8, media: &[u8]) -> Option<Self> {
        let after = |code: &[u8]| {
            let at = media.windows(code.len()).position(|window| window == code)?;
            media.get(at + code.len()..)
        };
        match stream_type {
            0x01 | 0x02 => {
                // profile_and_level of the sequence extension (ISO/IEC 13818-2 section 8); none: MPEG-1, constrained parameters.
                let Some(&[_, b, ..]) =
                    after(&[0, 0, 1, 0xb5]).filter(|rest| rest.first().is_some_and(|b| b >> 4 == 1))
                else {
                    after(&[0, 0, 1, 0xb3])?;
                    return (stream_type == 0x01).then(|| Self::video(1.856e6, 40.0 * 16_384.0));
                };
                match b >> 4 {
                    10 => Some(Self::video(4e6, 475_136.0)),
                    8 => Some(Self::video(15e6, 1_835_008.0)),
                    6 => Some(Self::video(60e6, 7_340_032.0)),
                    4 => Some(Self::video(80e6, 9_781_248.0)),
                    _ => None,
                }
            }
            0x1b => {
                // nal_unit_type 7: profile, constraints, level (ISO/IEC 14496-10 table A-1).
                let at = media.windows(4).position(|w| w[..3] == [0, 0, 1] && w[3] & 0x1f == 7)?;
                let &[profile, _, level, ..] = media.get(at + 4..)? else { return None };
                let (rate, buffer) = avc_level(level)?;
                let factor = if profile >= 100 { 1500.0 } else { 1200.0 };
                Some(Self::video(rate * factor, buffer * factor))
            }
            0x03 | 0x04 => Some(Self::audio(2e6, 3584.0)),
            // channel_configuration of an ADTS header.
            0x0f => match media {
                [0xff, second, third, fourth, ..] if second & 0xf6 == 0xf0 => {
                    match (third & 1) << 2 | fourth >> 6 {
                        1 | 2 => Some(Self::audio(2e6, 3584.0)),
                        3..=7 => Some(Self::audio(5_529_600.0, 8976.0)),
                        _ => None,
                    }
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// MaxBR and MaxCPB, in 1000 bits.
fn avc_level(level: u8) -> Option<(f64, f64)> {
    Some(match level {
        10 => (64.0, 175.0),
        9 => (128.0, 350.0),
        11 => (192.0, 500.0),
        12 => (384.0, 1000.0),
        13 => (768.0, 2000.0),
        20 => (2000.0, 2000.0),
        21 | 22 => (4000.0, 4000.0),
        30 => (10_000.0, 10_000.0),
        31 => (14_000.0, 14_000.0),
        32 => (20_000.0, 20_000.0),
        40 => (20_000.0, 25_000.0),
        41 | 42 => (50_000.0, 62_500.0),
        50 => (135_000.0, 135_000.0),
        51 | 52 => (240_000.0, 240_000.0),
        _ => return None,
    })
}

#[derive(Debug)]
struct AccessUnit {
    bytes: u32,
    /// Decoding time.
    due: i64,
}

/// The buffers of one PID.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    clock: u16,
    sizes: Option<Sizes>,
    transport: f64,
    at: i64,
    units: VecDeque<AccessUnit>,
    /// Due time of the arriving unit, if it was already due and has not been reported.
    late: Option<i64>,
    /// The current overflow has been reported.
    is_transport_full: bool,
    is_main_full: bool,
    pub(crate) most_transport: f64,
    pub(crate) most_main: f64,
}

impl Buffers {
    pub(crate) fn main_size(&self) -> Option<f64> {
        self.sizes.map(|sizes| sizes.main)
    }

    fn transport(&mut self, time: i64, leak: f64) -> Option<FindingKind> {
        let leaked = leak / 8.0 * (time - self.at).max(0) as f64 / 27e6;
        self.transport = (self.transport - leaked).max(0.0) + PACKET;
        self.at = time;
        self.most_transport = self.most_transport.max(self.transport);
        let is_full = self.transport > TRANSPORT + PACKET;
        let was_full = std::mem::replace(&mut self.is_transport_full, is_full);
        // What does not fit is lost, or one burst would count for ever.
        self.transport = self.transport.min(TRANSPORT + PACKET);
        (is_full && !was_full).then_some(FindingKind::TransportFull { bytes: self.most_transport as u64 })
    }

    /// Returns the bytes in the main buffers, and how much of them may be an error of the model.
    fn main(&mut self, time: i64, is_audio: bool) -> (f64, f64) {
        let mut slack = 0.0;
        if is_audio {
            while self.units.len() > 1 && self.units[1].due <= time {
                self.units.pop_front();
            }
        } else {
            while self.units.front().is_some_and(|unit| unit.due <= time) && self.units.len() > 1 {
                self.units.pop_front();
            }
        }
        let mut bytes: f64 = self.units.iter().map(|unit| f64::from(unit.bytes)).sum();
        if is_audio && let [Some(first), Some(second)] = [self.units.front(), self.units.get(1)] {
            let (whole, length) = (f64::from(first.bytes), (second.due - first.due).max(1) as f64);
            bytes -= whole * ((time - first.due).max(0) as f64 / length).min(1.0);
            slack = whole * (FRAME / length).min(1.0);
        }
        (bytes, slack)
    }

    fn payload(&mut self, time: i64, bytes: u32, due: Option<Option<i64>>) -> [Option<FindingKind>; 3] {
        let Some(sizes) = self.sizes else { return [None; 3] };
        let transport = self.transport(time, sizes.leak);
        let mut underflow = None;
        match due {
            Some(due) => {
                underflow = self.late.take().map(|late| FindingKind::Incomplete { ms: late / 27_000 });
                match due {
                    Some(due) => self.units.push_back(AccessUnit { bytes: 0, due }),
                    None => self.units.clear(),
                }
                if self.units.len() > MAX_BUFFERED_UNITS {
                    self.units.pop_front();
                }
            }
            None if self.units.is_empty() => return [transport, None, None],
            None => {}
        }
        let Some(unit) = self.units.back_mut() else { return [transport, underflow, None] };
        if !sizes.is_audio && time > unit.due {
            self.late = Some(time - unit.due);
        } else {
            unit.bytes = unit.bytes.saturating_add(bytes);
        }
        let (level, slack) = self.main(time, sizes.is_audio);
        let level = (level - self.transport).max(0.0);
        self.most_main = self.most_main.max(level);
        let is_full = level - slack > sizes.main;
        let was_full = std::mem::replace(&mut self.is_main_full, is_full);
        let full = (is_full && !was_full)
            .then_some(FindingKind::MainFull { bytes: (level - slack) as u64, size: sizes.main as u64 });
        [transport, underflow, full]
    }
}

/// The buffers of all PIDs whose sizes are known.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) pids: BTreeMap<u16, Buffers>,
}

impl Model {
    /// Sets the buffer sizes that the stream states.
    pub(crate) fn resize(&mut self, pid: u16, sizes: Sizes) {
        self.pids.entry(pid).or_default().sizes = Some(sizes);
    }

    pub(crate) fn knows(&self, pid: u16) -> bool {
        self.pids.get(&pid).is_some_and(|buffers| buffers.sizes.is_some())
    }

    /// Data is missing, or a clock restarted: the buffers start empty.
    pub(crate) fn forget(&mut self, is_of: impl Fn(u16) -> bool) {
        for buffers in self.pids.values_mut().filter(|buffers| is_of(buffers.clock)) {
            buffers.units.clear();
            buffers.late = None;
        }
    }

    /// Payload of `bytes` arrives. `due`: a unit begins with it, to be decoded at that time if it is known.
    pub(crate) fn payload(
        &mut self,
        pid: u16,
        clock: u16,
        time: i64,
        bytes: u32,
        due: Option<Option<i64>>,
    ) -> [Option<FindingKind>; 3] {
        let Some(buffers) = self.pids.get_mut(&pid) else { return [None; 3] };
        buffers.clock = clock;
        buffers.payload(time, bytes, due)
    }
}
