//! The header of a packet and its adaptation field (ISO/IEC 13818-1 sections 2.4.3.2 to 2.4.3.5).

use millrace_core::limits::TS_PACKET_BYTES;

/// First byte of every packet.
pub(crate) const SYNC: u8 = 0x47;
/// Stuffing: only its length counts.
pub(crate) const NULL_PID: u16 = 0x1fff;
/// Packet identifiers.
pub(crate) const PIDS: usize = 8192;

/// One packet.
pub(crate) type Bytes = [u8; TS_PACKET_BYTES];

/// The fields of a packet.
#[derive(Debug)]
pub(crate) struct PacketFields<'a> {
    pub(crate) pid: u16,
    pub(crate) error: bool,
    pub(crate) start: bool,
    pub(crate) scrambled: bool,
    pub(crate) counter: u8,
    pub(crate) discontinuity: bool,
    pub(crate) random_access: bool,
    /// Ticks of 27 MHz.
    pub(crate) pcr: Option<u64>,
    pub(crate) has_payload: bool,
    pub(crate) payload: &'a [u8],
    /// Why the packet is invalid.
    pub(crate) fault: Option<&'static str>,
}

impl<'a> PacketFields<'a> {
    pub(crate) fn parse(bytes: &'a Bytes) -> Self {
        let mut packet = PacketFields {
            pid: u16::from_be_bytes([bytes[1] & 0x1f, bytes[2]]),
            error: bytes[1] & 0x80 != 0,
            start: bytes[1] & 0x40 != 0,
            scrambled: bytes[3] & 0xc0 != 0,
            counter: bytes[3] & 0x0f,
            discontinuity: false,
            random_access: false,
            pcr: None,
            has_payload: bytes[3] & 0x10 != 0,
            payload: &[],
            fault: None,
        };
        let has_field = bytes[3] & 0x20 != 0;
        let mut at = 4;
        if has_field {
            let length = usize::from(bytes[4]);
            at += 1 + length;
            // Section 2.4.3.5: 183 without a payload, 0 to 182 with one.
            if at > TS_PACKET_BYTES - usize::from(packet.has_payload)
                || !packet.has_payload && at < TS_PACKET_BYTES
            {
                packet.fault = Some("length of the adaptation field");
                packet.has_payload = false;
                return packet;
            }
            packet.field(&bytes[5..at]);
        } else if !packet.has_payload {
            packet.fault = Some("adaptation_field_control is 00, which is reserved");
        }
        if packet.has_payload {
            packet.payload = &bytes[at..];
        }
        packet
    }

    fn field(&mut self, field: &[u8]) {
        let Some(&flags) = field.first() else { return };
        self.discontinuity = flags & 0x80 != 0;
        self.random_access = flags & 0x40 != 0;
        if flags & 0x10 == 0 {
            return;
        }
        let Some(pcr) = field.get(1..7) else {
            self.fault = Some("an adaptation field too short for its clock reference");
            return;
        };
        let base =
            u64::from(u32::from_be_bytes([pcr[0], pcr[1], pcr[2], pcr[3]])) << 1 | u64::from(pcr[4] >> 7);
        let extension = u64::from(pcr[4] & 1) << 8 | u64::from(pcr[5]);
        if extension >= 300 {
            self.fault = Some("a clock reference whose extension is above 299");
        } else {
            self.pcr = Some(base * 300 + extension);
        }
    }
}

/// Whether two packets with the same counter are one sent twice: every byte is the same but the clock reference (section 2.4.3.3).
pub(crate) fn is_same(one: &Bytes, other: &Bytes) -> bool {
    let has_pcr = |bytes: &Bytes| bytes[3] & 0x20 != 0 && bytes[4] >= 7 && bytes[5] & 0x10 != 0;
    if has_pcr(one) && has_pcr(other) {
        one[..6] == other[..6] && one[12..] == other[12..]
    } else {
        one == other
    }
}
