//! A transport stream packet, read in place (ISO/IEC 13818-1 section 2.4.3).
//!
//! Every accessor is total: a packet with impossible lengths has an empty payload and no adaptation field.

use millrace_core::limits::TS_PACKET_BYTES;

/// First byte of every packet (ISO/IEC 13818-1 section 2.4.3.3).
pub const SYNC: u8 = 0x47;
/// PID of the program association table.
pub const PID_PAT: u16 = 0;
/// PID of stuffing.
pub const PID_NULL: u16 = 0x1fff;
/// Number of PIDs.
pub const PIDS: usize = 8192;
/// The system clock's frequency (ISO/IEC 13818-1 section 2.4.2.1).
pub const SYSTEM_HZ: u64 = 27_000_000;
/// System clock ticks in a 90 kHz tick.
pub const SYSTEM_TICKS_PER_MEDIA_TICK: u64 = 300;
/// A PCR counts modulo this: 33 bits at 90 kHz, times 300.
pub const PCR_MODULUS: u64 = (1 << 33) * SYSTEM_TICKS_PER_MEDIA_TICK;
/// Values of a presentation time stamp: 33 bits at 90 kHz (ISO/IEC 13818-1 section 2.4.3.7).
pub const PTS_MODULUS: u64 = 1 << 33;

/// Header offsets.
mod field {
    pub(super) const PID: usize = 1;
    pub(super) const CONTROL: usize = 3;
    pub(super) const ADAPTATION_LENGTH: usize = 4;
    pub(super) const ADAPTATION: usize = 5;
}

/// One packet.
#[derive(Clone, Copy, Debug)]
pub struct TsPacket<'a>(pub &'a [u8; TS_PACKET_BYTES]);

impl<'a> TsPacket<'a> {
    /// 13-bit packet identifier.
    #[inline]
    pub fn pid(self) -> u16 {
        u16::from_be_bytes([self.0[field::PID] & 0x1f, self.0[field::PID + 1]])
    }

    /// Whether a PES packet or a section pointer begins here.
    #[inline]
    pub fn starts_unit(self) -> bool {
        self.0[field::PID] & 0x40 != 0
    }

    /// Whether a demodulator has marked the packet as damaged.
    pub fn has_error(self) -> bool {
        self.0[field::PID] & 0x80 != 0
    }

    /// Whether the payload is scrambled.
    #[inline]
    pub fn is_scrambled(self) -> bool {
        self.0[field::CONTROL] & 0xc0 != 0
    }

    /// Whether there is an adaptation field.
    #[inline]
    pub fn has_adaptation(self) -> bool {
        self.0[field::CONTROL] & 0x20 != 0
    }

    /// Whether there is a payload.
    #[inline]
    pub fn has_payload(self) -> bool {
        self.0[field::CONTROL] & 0x10 != 0
    }

    /// 4-bit counter of packets with payload on this PID.
    #[inline]
    pub fn continuity(self) -> u8 {
        self.0[field::CONTROL] & 0x0f
    }

    /// The adaptation field, if there is one with at least its flags.
    #[inline]
    pub fn adaptation(self) -> Option<Adaptation<'a>> {
        if !self.has_adaptation() {
            return None;
        }
        let length = usize::from(self.0[field::ADAPTATION_LENGTH]);
        let bytes = self.0.get(field::ADAPTATION..field::ADAPTATION + length)?;
        (!bytes.is_empty()).then_some(Adaptation(bytes))
    }

    /// The payload; empty if there is none.
    pub fn payload(self) -> &'a [u8] {
        if !self.has_payload() {
            return &[];
        }
        let start = match self.has_adaptation() {
            true => field::ADAPTATION + usize::from(self.0[field::ADAPTATION_LENGTH]),
            false => field::ADAPTATION_LENGTH,
        };
        self.0.get(start..).unwrap_or(&[])
    }
}

/// An adaptation field of at least one byte, without its length byte.
#[derive(Clone, Copy, Debug)]
pub struct Adaptation<'a>(&'a [u8]);

impl Adaptation<'_> {
    /// The clock or the continuity counter jumps here on purpose.
    #[inline]
    pub fn is_discontinuity(self) -> bool {
        self.0[0] & 0x80 != 0
    }

    /// A decoder can start at the PES packet that begins here or next on this PID.
    #[inline]
    pub fn is_random_access(self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The program clock reference in 27 MHz ticks, below 2^33 * 300.
    #[inline]
    pub fn pcr(self) -> Option<u64> {
        if self.0[0] & 0x10 == 0 {
            return None;
        }
        let bytes: &[u8; 6] = self.0.get(1..7)?.try_into().ok()?;
        let [a, b, c, d, e, f] = bytes.map(u64::from);
        let base = a << 25 | b << 17 | c << 9 | d << 1 | e >> 7;
        // The extension counts to 299; more is an error of the muxer, too small to matter.
        let extension = ((e & 1) << 8 | f).min(SYSTEM_TICKS_PER_MEDIA_TICK - 1);
        Some(base * SYSTEM_TICKS_PER_MEDIA_TICK + extension)
    }
}

/// Start of a PES packet: its time stamps and its payload (ISO/IEC 13818-1 section 2.4.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PesStart<'a> {
    /// Decoding time stamp, or the presentation time stamp where both are the same; 90 kHz, 33 bits.
    pub decode_stamp: Option<u64>,
    /// Presentation time stamp; 90 kHz, 33 bits.
    pub presentation_stamp: Option<u64>,
    /// The bytes behind the header in this TS packet.
    pub payload: &'a [u8],
}

impl<'a> PesStart<'a> {
    /// From the payload of a TS packet that starts a unit; `None` if no PES packet with the optional header begins here.
    pub fn parse(payload: &'a [u8]) -> Option<Self> {
        let fixed: &[u8; 9] = payload.get(..9)?.try_into().ok()?;
        if fixed[..3] != [0, 0, 1] || fixed[6] & 0xc0 != 0x80 {
            return None;
        }
        let header_end = 9 + usize::from(fixed[8]);
        let stamp = |at: usize| {
            let bytes: &[u8; 5] = payload.get(at..at + 5)?.try_into().ok()?;
            (at + 5 <= header_end).then(|| read_stamp(bytes))
        };
        let (presentation_stamp, decode_stamp) = match fixed[7] >> 6 {
            0b10 => (stamp(9), stamp(9)),
            0b11 => (stamp(9), stamp(14)),
            _ => (None, None),
        };
        Some(Self { decode_stamp, presentation_stamp, payload: payload.get(header_end..).unwrap_or(&[]) })
    }
}

/// The 33 bits of a time stamp (ISO/IEC 13818-1 section 2.4.3.6).
pub fn read_stamp(bytes: &[u8; 5]) -> u64 {
    let [a, b, c, d, e] = bytes.map(u64::from);
    (a >> 1 & 7) << 30 | b << 22 | (c >> 1) << 15 | d << 7 | e >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(head: &[u8]) -> [u8; TS_PACKET_BYTES] {
        let mut bytes = [0xff; TS_PACKET_BYTES];
        bytes[..head.len()].copy_from_slice(head);
        bytes
    }

    #[test]
    fn fields_of_a_packet_with_a_clock() {
        // PID 0x100, unit start, adaptation 7 bytes: discontinuity, random access, PCR base 0x1_2345_6789, ext 299.
        let base = 0x1_2345_6789u64;
        let mut head = vec![SYNC, 0x41, 0x00, 0x3b, 7, 0x80 | 0x40 | 0x10];
        head.extend([(base >> 25) as u8, (base >> 17) as u8, (base >> 9) as u8, (base >> 1) as u8]);
        head.extend([((base & 1) << 7) as u8 | 0x7e | 1, 43]);
        let bytes = packet(&head);
        let p = TsPacket(&bytes);
        assert_eq!((p.pid(), p.starts_unit(), p.continuity()), (0x100, true, 11));
        assert!(!p.has_error() && !p.is_scrambled());
        let adaptation = p.adaptation().unwrap();
        assert!(adaptation.is_discontinuity() && adaptation.is_random_access());
        assert_eq!(adaptation.pcr(), Some(base * 300 + 299));
        assert_eq!(p.payload().len(), 188 - 12);
    }

    #[test]
    fn impossible_lengths_are_empty() {
        let bytes = packet(&[SYNC, 0, 0, 0x30, 200, 0x10]);
        assert!(TsPacket(&bytes).adaptation().is_none());
        assert!(TsPacket(&bytes).payload().is_empty());
        let bytes = packet(&[SYNC, 0, 0, 0x20, 3, 0x10]);
        assert_eq!(TsPacket(&bytes).adaptation().unwrap().pcr(), None);
        let bytes = packet(&[SYNC, 0, 0, 0x30, 0]);
        assert!(TsPacket(&bytes).adaptation().is_none());
        assert_eq!(TsPacket(&bytes).payload().len(), 183);
    }

    #[test]
    fn time_stamps_of_a_pes_header() {
        let stamp = |mark: u8, v: u64| {
            [
                mark << 4 | ((v >> 30) as u8 & 7) << 1 | 1,
                (v >> 22) as u8,
                (v >> 14) as u8 | 1,
                (v >> 7) as u8,
                (v << 1) as u8 | 1,
            ]
        };
        let (pts, dts) = (0x1_ffff_fffe_u64, 0x1_0000_8001);
        let mut both = vec![0, 0, 1, 0xe0, 0, 0, 0x80, 0xc0, 10];
        both.extend(stamp(3, pts));
        both.extend(stamp(1, dts));
        both.push(9);
        let start = PesStart::parse(&both).unwrap();
        assert_eq!((start.decode_stamp, start.payload), (Some(dts), &[9][..]));
        assert_eq!(start.presentation_stamp, Some(pts));
        let mut one = vec![0, 0, 1, 0xc0, 0, 0, 0x80, 0x80, 5];
        one.extend(stamp(2, pts));
        assert_eq!(PesStart::parse(&one).unwrap().decode_stamp, Some(pts));
        assert_eq!(PesStart::parse(&one).unwrap().presentation_stamp, Some(pts));
        // A header too short for its stamp, a packet without start code, a padding stream without optional header.
        one[8] = 3;
        assert_eq!(PesStart::parse(&one).unwrap().decode_stamp, None);
        assert_eq!(PesStart::parse(&[0, 0, 2, 0xe0, 0, 0, 0x80, 0, 0]), None);
        assert_eq!(PesStart::parse(&[0, 0, 1, 0xbe, 0, 0, 0xff, 0xff, 0xff]), None);
    }
}
