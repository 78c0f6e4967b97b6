//! The first pictures of a segment: whether a decoder can start there with nothing from before, and which captions the pictures carry.

use crate::cmaf::{Elementary, REGISTERED_DATA, Syntax, sei_payloads, units};

/// How pictures are coded, as far as units can be told apart.
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

    /// The `cc_data` structures that a unit carries (ATSC A/53 part 4 section 6.2.3).
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

/// Whether pictures of this codec can be looked at for captions.
pub(crate) fn can_show_captions(codec: &str) -> bool {
    PictureCoding::of(codec).is_some()
}

/// Whether everything that a decoder needs precedes the first picture of a stream of pictures; a codec that cannot be looked at is believed.
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
    /// Whether the structure is there at all: encoders fill it with padding while nothing is said.
    is_carried: bool,
    /// CC1 to CC4.
    channels: [bool; 4],
    /// Services 1 to 63, a bit each.
    services: u64,
}

impl Captions {
    /// Adds what a stream of pictures carries.
    pub(crate) fn look(&mut self, stream: &Elementary, codec: &str) {
        let Some(coding) = PictureCoding::of(codec) else { return };
        for (_, range) in units(&stream.bytes) {
            coding.captions(&stream.bytes[range], self);
        }
    }

    /// Adds what was found in other pictures of the title.
    pub(crate) fn join(&mut self, other: Self) {
        self.is_carried |= other.is_carried;
        self.services |= other.services;
        self.channels.iter_mut().zip(other.channels).for_each(|(channel, other)| *channel |= other);
    }

    /// `INSTREAM-ID` of each (RFC 8216 section 4.3.4.1). Where the structure has had nothing but padding so far, the channel that is used first.
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

    /// User data of a picture, from its identifier on.
    fn read_user_data(&mut self, data: &[u8]) {
        // `cc_data`: a flag that it is to be processed, and a count.
        let Some([flags, _, rest @ ..]) = data.strip_prefix(b"GA94\x03") else { return };
        if flags & 0x40 == 0 {
            return;
        }
        self.is_carried = true;
        let triplets = rest.as_chunks::<3>().0.iter().take(usize::from(flags & 0x1f));
        // A DTVCC packet may go on in another picture, which is not the next one in the stream: what is there is read.
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

    /// A pair of bytes of CEA-608, without parity.
    fn read_field(&mut self, field: usize, first: u8, second: u8) {
        match first {
            0x10..=0x1f => self.channels[2 * field + usize::from(first >> 3 & 1)] = true,
            // Text without a control code goes on with that of a picture that was not looked at, most often of the first channel.
            0x20.. if !self.channels[2 * field] && !self.channels[2 * field + 1] && second != 0 => {
                self.channels[2 * field] = true;
            }
            // Padding, and extended data services.
            _ => {}
        }
    }

    /// The service blocks of a packet (CEA-708 section 6.2) as far as they are there.
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
