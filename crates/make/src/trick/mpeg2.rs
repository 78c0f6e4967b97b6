//! MPEG-1 and MPEG-2 video (ISO/IEC 11172-2, 13818-2): which pictures can be decoded alone.
//!
//! An I picture needs no other. To stand alone it gets the sequence header and a header of a closed group before it, and the number 0 in
//! that group.

use millrace_media::units::split;

use super::pictures::{OpenPicture, Parameters};

/// Start code values (ISO/IEC 13818-2 table 6-1).
const PICTURE: u8 = 0x00;
const SEQUENCE: u8 = 0xb3;
const EXTENSION: u8 = 0xb5;
const GROUP: u8 = 0xb8;
/// Extensions that belong to the sequence header: sequence and sequence display (table 6-2).
const SEQUENCE_EXTENSIONS: std::ops::RangeInclusive<u8> = 1..=2;
const PICTURE_CODING: u8 = 8;
const USER_DATA: u8 = 0xb2;
/// The header of a closed group, at time 0 (section 6.2.2.6).
const CLOSED_GROUP: [u8; 8] = [0, 0, 1, GROUP, 0, 0x08, 0, 0x40];

/// The end of a sequence (section 6.2.2), so that a decoder waits for no other picture.
pub(super) const END: [u8; 4] = [0, 0, 1, 0xb7];

/// Whether a unit may begin a picture.
pub(super) fn begins(head: &[u8]) -> bool {
    matches!(head[0], PICTURE | SEQUENCE | GROUP)
}

fn extension(head: &[u8]) -> u8 {
    head.get(1).map_or(0, |byte| byte >> 4)
}

/// The current sequence header.
#[derive(Debug, Default)]
pub(super) struct SequenceHeader {
    sequence: Vec<u8>,
}

impl SequenceHeader {
    /// Parameters come with the header of an I picture.
    pub(super) fn unit(&mut self, head: &[u8], open: &mut OpenPicture) -> Option<Parameters> {
        match head[0] {
            SEQUENCE => {
                open.has_header = true;
                self.sequence = [&[0, 0, 1], head].concat();
            }
            EXTENSION if !open.has_data && SEQUENCE_EXTENSIONS.contains(&extension(head)) => {
                self.sequence.extend([0, 0, 1]);
                self.sequence.extend_from_slice(head);
            }
            EXTENSION if extension(head) == PICTURE_CODING => {
                // picture_structure: 1 top field, 2 bottom field, 3 frame (section 6.3.10).
                open.field = head.get(3).map_or(0, |byte| byte & 3) % 3;
            }
            PICTURE => {
                open.has_data = true;
                let kind = head.get(2).map_or(0, |byte| byte >> 3 & 7);
                (open.is_alone, open.follows) = (kind == 1, matches!(kind, 1 | 2));
                open.is_reference = kind != 3;
                open.is_access = open.is_alone && open.has_header;
                if open.is_alone && !self.sequence.is_empty() {
                    return Some(Parameters { bytes: self.sequence.clone(), h264: None });
                }
            }
            _ => {}
        }
        None
    }
}

/// Appends a picture of one frame as one that may follow anything: without the data before its
/// header, numbered 0 in a closed group.
pub(super) fn rewrite(picture: &[u8], out: &mut Vec<u8>) {
    out.extend(CLOSED_GROUP);
    let mut has_begun = false;
    for unit in split(picture) {
        has_begun |= unit.first() == Some(&PICTURE);
        if !has_begun || matches!(unit.first(), None | Some(&USER_DATA)) {
            continue;
        }
        let at = out.len() + 3;
        out.extend([0, 0, 1]);
        out.extend_from_slice(unit);
        if unit[0] == PICTURE
            && let Some(header) = out.get_mut(at + 1..at + 5)
        {
            // 10 bits of number, 3 of type, 16 of delay, which is unknown now (section 6.3.9).
            header[0] = 0;
            header[1] = header[1] & 0x38 | 0x07;
            header[2] = 0xff;
            header[3] |= 0xf8;
        }
    }
}
