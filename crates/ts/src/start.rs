//! Checks whether a decoder can start at the access points that a stream marks: the parameter sets
//! (or the sequence header) must precede the first picture there.

use crate::check::FindingKind;
use crate::limits::MAX_START_BYTES;

/// Units that must precede a picture, as bits.
const SEQUENCE: u8 = 1;
const PICTURE: u8 = 2;
const VIDEO: u8 = 4;

/// The unit that a start code begins.
enum VideoUnit {
    Set(u8),
    /// A picture that needs these sets. `is_start`: decoding can start at pictures of its type,
    /// whether they are marked or not.
    Picture {
        needs: u8,
        is_start: bool,
    },
    Other,
}

/// Examines the beginning of each PES packet of video.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// Bytes that may belong to an incomplete start code.
    tail: Vec<u8>,
    /// Bytes examined; `None` once this PES packet needs no more.
    looked: Option<usize>,
    sets: u8,
    is_marked: bool,
    /// The stream type whose sets have all been seen once. If the tables name the wrong type, the
    /// pictures are not at fault.
    proven: Option<u8>,
}

impl Start {
    /// Begins a PES packet; `is_marked`: it has the random access indicator.
    pub(crate) fn begin(&mut self, is_marked: bool) {
        self.tail.clear();
        (self.looked, self.sets, self.is_marked) = (Some(0), 0, is_marked);
    }

    /// Examines the next bytes of the elementary stream. Returns the fault, if there is one, once
    /// the first picture has arrived.
    pub(crate) fn push(&mut self, stream_type: u8, media: &[u8]) -> Option<FindingKind> {
        let looked = self.looked?;
        self.tail.extend_from_slice(media);
        let bytes = std::mem::take(&mut self.tail);
        for window in bytes.windows(4).filter(|window| window[..3] == [0, 0, 1]) {
            match unit(stream_type, window[3]) {
                VideoUnit::Set(set) => self.sets |= set,
                VideoUnit::Picture { needs, is_start } => {
                    self.looked = None;
                    let has_sets = self.sets & needs == needs;
                    if has_sets {
                        self.proven = Some(stream_type);
                    }
                    let is_bare =
                        !has_sets && (self.is_marked || is_start) && self.proven == Some(stream_type);
                    return is_bare.then_some(match self.is_marked {
                        true => FindingKind::NoParameterSets,
                        false => FindingKind::BareStart,
                    });
                }
                VideoUnit::Other => {}
            }
        }
        self.tail = bytes[bytes.len().saturating_sub(3)..].to_vec();
        let looked = looked + media.len();
        self.looked = (looked < MAX_START_BYTES).then_some(looked);
        None
    }
}

/// Classifies a unit by the byte after its start code: ISO/IEC 13818-2 table 6-1, 14496-10 table
/// 7-1, 23008-2 table 7-1.
fn unit(stream_type: u8, code: u8) -> VideoUnit {
    match stream_type {
        0x01 | 0x02 => match code {
            0xb3 => VideoUnit::Set(SEQUENCE),
            0x00 => VideoUnit::Picture { needs: SEQUENCE, is_start: false },
            _ => VideoUnit::Other,
        },
        0x1b => match code & 0x1f {
            7 => VideoUnit::Set(SEQUENCE),
            8 => VideoUnit::Set(PICTURE),
            kind @ 1..=5 => VideoUnit::Picture { needs: SEQUENCE | PICTURE, is_start: kind == 5 },
            _ => VideoUnit::Other,
        },
        0x24 => match code >> 1 & 0x3f {
            32 => VideoUnit::Set(VIDEO),
            33 => VideoUnit::Set(SEQUENCE),
            34 => VideoUnit::Set(PICTURE),
            kind @ 0..=31 => {
                VideoUnit::Picture { needs: VIDEO | SEQUENCE | PICTURE, is_start: (16..=21).contains(&kind) }
            }
            _ => VideoUnit::Other,
        },
        _ => VideoUnit::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that the result does not depend on where the bytes are cut.
    fn look(stream_type: u8, is_marked: bool, codes: &[u8]) -> Option<FindingKind> {
        let bytes: Vec<u8> = codes.iter().flat_map(|&code| [0, 0, 1, code, 9, 9]).collect();
        let of = |pieces: &[&[u8]]| {
            let mut start = Start { proven: Some(stream_type), ..Start::default() };
            start.begin(is_marked);
            pieces.iter().find_map(|piece| start.push(stream_type, piece))
        };
        let whole = of(&[&bytes]);
        for cut in 0..bytes.len() {
            assert_eq!(of(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
        whole
    }

    #[test]
    fn start_without_parameter_sets_is_found() {
        assert_eq!(look(0x1b, true, &[9, 0x67, 0x68, 0x65]), None);
        assert_eq!(look(0x1b, true, &[9, 0x67, 0x68, 0x41]), None);
        assert_eq!(look(0x1b, true, &[9, 0x67, 0x65]), Some(FindingKind::NoParameterSets));
        assert_eq!(look(0x1b, true, &[9, 0x41, 0x67, 0x68, 0x65]), Some(FindingKind::NoParameterSets));
        assert_eq!(look(0x1b, false, &[9, 0x65]), Some(FindingKind::BareStart));
        assert_eq!(look(0x1b, false, &[9, 0x41]), None);
        assert_eq!(look(0x24, true, &[0x40, 0x42, 0x44, 0x2a]), None);
        assert_eq!(look(0x24, true, &[0x42, 0x44, 0x2a]), Some(FindingKind::NoParameterSets));
        assert_eq!(look(0x24, false, &[0x02]), None);
        assert_eq!(look(0x02, true, &[0xb3, 0xb8, 0x00]), None);
        assert_eq!(look(0x02, true, &[0xb8, 0x00]), Some(FindingKind::NoParameterSets));
    }

    #[test]
    fn start_of_a_type_whose_sets_never_came_is_not_judged() {
        let mut start = Start::default();
        start.begin(true);
        assert_eq!(start.push(0x24, &[0, 0, 1, 0x06, 9]), None);
    }

    #[test]
    fn start_without_a_picture_is_given_up() {
        let mut start = Start::default();
        start.begin(true);
        for _ in 0..MAX_START_BYTES / 184 + 1 {
            assert_eq!(start.push(0x1b, &[6; 184]), None);
        }
        assert_eq!((start.looked, start.push(0x1b, &[0, 0, 1, 0x65])), (None, None));
    }
}
