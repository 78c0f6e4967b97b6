//! The front of a TS packet: its header, and the adaptation field up to the clock reference (ISO/IEC 13818-1 sections
//! 2.4.3.2 to 2.4.3.5); and the rule of continuity counters.
//!
//! Both checkers of this crate read packets here. `millrace-ts` has a reader of its own for a reason: it judges every
//! field of whole packets of a single stream, while this one has the first twelve bytes, for thousands of streams.

/// First byte of every packet.
pub(super) const SYNC: u8 = 0x47;
/// Stuffing: its counter means nothing.
pub(super) const NULL_PID: u16 = 0x1fff;
/// The bytes of a packet that are read.
pub(super) const FRONT_BYTES: usize = 12;
/// The program clock wraps after 2^33 ticks of 90 kHz, each 300 of 27 MHz.
pub(super) const PCR_WRAP: u64 = (1 << 33) * 300;

/// The fields that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketFront {
    pub(super) pid: u16,
    pub(super) counter: u8,
    pub(super) has_payload: bool,
    /// The stream itself signals that its clock or counters jump here.
    pub(super) is_discontinuous: bool,
    /// Ticks of 27 MHz.
    pub(super) pcr: Option<u64>,
}

impl PacketFront {
    /// Reads the front of a packet that begins with [`SYNC`]. `None`: transport_error_indicator is set, so nothing in its
    /// header can be relied upon.
    pub(super) fn parse(front: &[u8; FRONT_BYTES]) -> Option<Self> {
        if front[1] & 0x80 != 0 {
            return None;
        }
        let field_bytes = if front[3] & 0x20 != 0 { front[4] } else { 0 };
        let flags = if field_bytes > 0 { front[5] } else { 0 };
        let has_pcr = field_bytes >= 7 && flags & 0x10 != 0;
        Some(Self {
            pid: u16::from_be_bytes([front[1] & 0x1f, front[2]]),
            counter: front[3] & 0x0f,
            has_payload: front[3] & 0x10 != 0,
            is_discontinuous: flags & 0x80 != 0,
            pcr: has_pcr.then(|| read_pcr(front)),
        })
    }
}

/// The 42 bits of a program clock reference in ticks of 27 MHz; the field's length was checked.
fn read_pcr(front: &[u8; FRONT_BYTES]) -> u64 {
    let high = u32::from_be_bytes([front[6], front[7], front[8], front[9]]);
    let base = u64::from(high) << 1 | u64::from(front[10] >> 7);
    let extension = u64::from(front[10] & 1) << 8 | u64::from(front[11]);
    base * 300 + extension
}

/// The continuity counter of one PID.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ContinuityState {
    counter: u8,
    is_doubled: bool,
}

impl ContinuityState {
    /// After the first packet of the PID.
    pub(super) fn new(first: &PacketFront) -> Self {
        Self { counter: first.counter, is_doubled: false }
    }

    /// Takes the next packet of the PID. Returns the packets missing before it, going by its counter, which counts to 16:
    /// 0 if it follows. Section 2.4.3.3: the counter goes up with each packet that has a payload and only with those; a
    /// packet may be sent twice, and only twice.
    pub(super) fn follow(&mut self, packet: &PacketFront) -> u8 {
        let next = (self.counter + u8::from(packet.has_payload)) & 0x0f;
        let is_double = packet.has_payload && packet.counter == self.counter && !self.is_doubled;
        let is_excused = is_double || packet.is_discontinuous;
        (self.counter, self.is_doubled) = (packet.counter, is_double && !packet.is_discontinuous);
        if is_excused { 0 } else { packet.counter.wrapping_sub(next) & 0x0f }
    }
}
