//! The first pictures of a segment: whether a decoder can start there without earlier data, and
//! which captions they carry.

use crate::elementary::video::{Syntax, units};
use crate::elementary::{Elementary, REGISTERED_DATA, sei_payloads};

/// Syntax of a video stream, for telling its units apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PictureCoding {
    /// H.264 and H.265.
    Units(Syntax),
    /// MPEG-1 and MPEG-2.
    Mpeg2,
}

/// MPEG-2's sequence header, picture and user data (ISO/IEC 13818-2 table 6-1).
const SEQUENCE: u8 = 0xb3;
const PICTURE: u8 = 0x00;
const USER_DATA: u8 = 0xb2;

impl PictureCoding {
    fn of(codec: &str) -> Option<Self> {
        match codec {
            "H.264" => Some(Self::Units(Syntax::H264)),
            "H.265" => Some(Self::Units(Syntax::H265)),
            "MPEG-1 video" | "MPEG-2 video" => Some(Self::Mpeg2),
            _ => None,
        }
    }

    fn kind(self, unit: &[u8]) -> u8 {
        match self {
            Self::Units(syntax) => syntax.kind(unit),
            Self::Mpeg2 => unit.first().copied().unwrap_or_default(),
        }
    }

    fn is_picture(self, kind: u8) -> bool {
        match self {
            Self::Units(syntax) => syntax.is_slice(kind),
            Self::Mpeg2 => kind == PICTURE,
        }
    }

    fn needed_sets(self) -> &'static [u8] {
        match self {
            Self::Units(syntax) => syntax.needed_sets(),
            Self::Mpeg2 => &[SEQUENCE],
        }
    }

    /// Reads the `cc_data` structures in a unit (ATSC A/53 part 4 section 6.2.3).
    fn captions(self, unit: &[u8], found: &mut Captions) {
        match self {
            Self::Mpeg2 if self.kind(unit) == USER_DATA => found.read_user_data(&unit[1..]),
            Self::Mpeg2 => {}
            Self::Units(syntax) => {
                let Some(information) = syntax.information(unit) else { return };
                for (_, payload) in sei_payloads(information).filter(|(kind, _)| *kind == REGISTERED_DATA) {
                    // Country: United States; provider: ATSC.
                    if let Some(data) = payload.strip_prefix(&[0xb5, 0x00, 0x31]) {
                        found.read_user_data(data);
                    }
                }
            }
        }
    }
}

/// Whether captions can be read from video of this codec.
pub(crate) fn can_show_captions(codec: &str) -> bool {
    PictureCoding::of(codec).is_some()
}

/// Whether the first picture of a video stream follows everything that a decoder needs; true for
/// codecs that cannot be parsed.
pub(crate) fn starts_alone(stream: &Elementary, codec: &str) -> bool {
    let Some(coding) = PictureCoding::of(codec) else { return true };
    let mut missing = coding.needed_sets().to_vec();
    for (_, range) in units(&stream.bytes) {
        let kind = coding.kind(&stream.bytes[range]);
        if coding.is_picture(kind) {
            break;
        }
        missing.retain(|&needed| needed != kind);
    }
    missing.is_empty()
}

/// Caption services in pictures: fields of CEA-608 and services of CEA-708.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Captions {
    /// Whether the structure is present. Encoders fill it with padding during silence.
    is_carried: bool,
    /// CC1 to CC4.
    channels: [bool; 4],
    /// Services 1 to 63, one bit each.
    services: u64,
}

impl Captions {
    /// Adds the captions in a video stream.
    pub(crate) fn look(&mut self, stream: &Elementary, codec: &str) {
        let Some(coding) = PictureCoding::of(codec) else { return };
        for (_, range) in units(&stream.bytes) {
            coding.captions(&stream.bytes[range], self);
        }
    }

    /// Adds the captions from other pictures of the title.
    pub(crate) fn join(&mut self, other: Self) {
        self.is_carried |= other.is_carried;
        self.services |= other.services;
        self.channels.iter_mut().zip(other.channels).for_each(|(channel, other)| *channel |= other);
    }

    /// The `INSTREAM-ID` of each caption service (RFC 8216 section 4.3.4.1). If only padding has
    /// been seen, CC1, the usual first channel.
    pub(crate) fn instream_ids(self) -> Vec<String> {
        let channels = (1..).zip(self.channels).filter(|(_, is_used)| *is_used);
        let mut ids: Vec<String> = channels.map(|(number, _)| format!("CC{number}")).collect();
        ids.extend(
            (1..64).filter(|bit| self.services >> bit & 1 == 1).map(|number| format!("SERVICE{number}")),
        );
        if ids.is_empty() && self.is_carried {
            ids.push("CC1".to_owned());
        }
        ids
    }

    /// Reads the user data of a picture, starting at its identifier.
    fn read_user_data(&mut self, data: &[u8]) {
        // The header of `cc_data`: a flag for processing, and a count.
        let Some([flags, _, rest @ ..]) = data.strip_prefix(b"GA94\x03") else { return };
        if flags & 0x40 == 0 {
            return;
        }
        self.is_carried = true;
        let triplets = rest.as_chunks::<3>().0.iter().take(usize::from(flags & 0x1f));
        // A DTVCC packet may continue in another picture, which need not be next in the stream.
        // Only the part in this picture is read.
        let mut packet = Vec::new();
        for [head, a, b] in triplets.filter(|[head, ..]| head & 4 != 0) {
            match head & 3 {
                field @ (0 | 1) => self.read_field(usize::from(field), a & 0x7f, b & 0x7f),
                kind => {
                    if kind == 3 {
                        self.read_packet(&packet);
                        packet.clear();
                    }
                    if kind == 3 || !packet.is_empty() {
                        packet.extend([a, b]);
                    }
                }
            }
        }
        self.read_packet(&packet);
    }

    /// Reads a pair of bytes of CEA-608, without parity.
    fn read_field(&mut self, field: usize, first: u8, second: u8) {
        match first {
            0x10..=0x1f => self.channels[2 * field + usize::from(first >> 3 & 1)] = true,
            // Text without a control code continues that of a picture that was not examined,
            // usually in the first channel.
            0x20.. if !self.channels[2 * field] && !self.channels[2 * field + 1] && second != 0 => {
                self.channels[2 * field] = true;
            }
            // Padding or extended data services.
            _ => {}
        }
    }

    /// Reads the service blocks of a packet (CEA-708 section 6.2), which may be cut off.
    fn read_packet(&mut self, packet: &[u8]) {
        let [head, blocks @ ..] = packet else { return };
        let size = match head & 0x3f {
            0 => 127,
            code => usize::from(code) * 2 - 1,
        };
        let mut blocks = &blocks[..size.min(blocks.len())];
        while let [head, rest @ ..] = blocks {
            let (mut number, length) = (head >> 5, usize::from(head & 0x1f));
            blocks = rest;
            if number == 0 {
                break;
            }
            if number == 7 && length > 0 {
                let [extended, rest @ ..] = blocks else { break };
                number = extended & 0x3f;
                blocks = rest;
            }
            if length > 0 {
                self.services |= 1 << number & !1;
            }
            blocks = blocks.get(length..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
#[path = "first_pictures_tests.rs"]
mod tests;
