//! Finds the points where a decoder can start. The random access indicator marks them, but the
//! pictures decide if a muxer never sets it, or sets it before a picture whose parameter sets are
//! missing.

use millrace_media::codec::VideoSyntax;

use super::layout;
use crate::limits::ingest::MAX_LOOK_BYTES;

/// The type of the picture at the start of a PES packet, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PictureAccess {
    /// A decoder can start here.
    Access,
    /// A decoder could start here, but the parameter sets (sequence header) do not come with the
    /// picture.
    Bare,
    /// It cannot.
    NoAccess,
    /// More bytes are needed.
    More,
}

/// Looks at the elementary stream from the start of a PES packet up to its first picture.
#[derive(Clone, Debug)]
pub(crate) struct PictureLook {
    syntax: VideoSyntax,
    bytes: Vec<u8>,
    /// All start codes before this were seen.
    seen: usize,
    /// The random access indicator is set.
    is_indicated: bool,
    /// Bits of [`set`] for the parameter sets seen before the picture.
    sets: u8,
}

/// Parameter sets that a decoder needs before a picture.
mod set {
    /// Sequence header, sequence parameter set, video object layer.
    pub(crate) const SEQUENCE: u8 = 1;
    pub(crate) const PICTURE: u8 = 2;
    pub(crate) const VIDEO: u8 = 4;
}

impl PictureLook {
    /// Ready for the first PES packet.
    pub(crate) fn new(syntax: VideoSyntax) -> Self {
        Self { syntax, bytes: Vec::new(), seen: 0, is_indicated: false, sets: 0 }
    }

    /// Starts a new PES packet, with or without the random access indicator.
    pub(crate) fn begin(&mut self, is_indicated: bool) {
        self.bytes.clear();
        self.seen = 0;
        self.is_indicated = is_indicated;
        self.sets = 0;
    }

    /// The verdict if no picture was found: the random access indicator decides.
    pub(crate) fn untold(&self) -> PictureAccess {
        if self.is_indicated { PictureAccess::Access } else { PictureAccess::NoAccess }
    }

    /// The next bytes of the PES packet's payload.
    pub(crate) fn push(&mut self, payload: &[u8]) -> PictureAccess {
        if self.syntax == VideoSyntax::Opaque {
            return self.untold();
        }
        let room = MAX_LOOK_BYTES - self.bytes.len();
        self.bytes.extend_from_slice(&payload[..payload.len().min(room)]);
        while let Some(code) = find_start_code(&self.bytes, self.seen) {
            // Eight bytes behind the start code are more than any decision takes.
            let unit = &self.bytes[code + 3..];
            if unit.len() < 8 && self.bytes.len() < MAX_LOOK_BYTES {
                self.seen = code;
                return PictureAccess::More;
            }
            match self.unit(code + 3) {
                PictureAccess::More => self.seen = code + 3,
                decided => return decided,
            }
        }
        if self.bytes.len() >= MAX_LOOK_BYTES {
            return self.untold();
        }
        self.seen = self.seen.max(self.bytes.len().saturating_sub(2));
        PictureAccess::More
    }

    /// No more bytes of this PES packet come.
    pub(crate) fn end(&mut self) -> PictureAccess {
        while let Some(code) = find_start_code(&self.bytes, self.seen) {
            match self.unit(code + 3) {
                PictureAccess::More => self.seen = code + 3,
                decided => return decided,
            }
        }
        self.untold()
    }

    /// Checksum of the sequence parameter sets in the bytes examined. A set that is there twice
    /// counts once: some packagers repeat them before the first picture only.
    pub(crate) fn config(&self) -> Option<u32> {
        let is_set = |kind: u8| match self.syntax {
            VideoSyntax::H264 => kind & 0x1f == 7,
            VideoSyntax::H265 => matches!(kind >> 1 & 0x3f, 32 | 33),
            _ => false,
        };
        let mut sets: Vec<&[u8]> = Vec::new();
        let mut next = find_start_code(&self.bytes, 0);
        // A truncated unit does not count.
        while let Some(start) = next {
            next = find_start_code(&self.bytes, start + 3);
            let unit = &self.bytes[start + 3..next.unwrap_or(start + 3)];
            if unit.first().is_some_and(|&kind| is_set(kind)) {
                let used = unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                if !sets.contains(&&unit[..used]) {
                    sets.push(&unit[..used]);
                }
            }
        }
        (!sets.is_empty()).then(|| layout::checksum(&sets.concat()))
    }

    /// The unit whose first byte behind the start code is at `at`: decides, or goes on.
    fn unit(&mut self, at: usize) -> PictureAccess {
        let unit = &self.bytes[at..];
        let Some(&kind) = unit.first() else { return PictureAccess::More };
        let byte = |i: usize| unit.get(i).copied().unwrap_or(0);
        match self.syntax {
            VideoSyntax::Mpeg2 => match kind {
                0xb3 => self.sets |= set::SEQUENCE,
                // Picture header: 10 bits of temporal reference, 3 bits of coding type, 1 = I.
                0x00 => return self.picture(set::SEQUENCE, false, byte(2) >> 3 & 7 == 1),
                0x01..=0xaf => return PictureAccess::NoAccess,
                _ => {}
            },
            VideoSyntax::Mpeg4 => match kind {
                0x20..=0x2f => self.sets |= set::SEQUENCE,
                // Video object plane: 2 bits of coding type, 0 = I.
                0xb6 => return self.picture(set::SEQUENCE, false, byte(1) >> 6 == 0),
                _ => {}
            },
            VideoSyntax::H264 => match kind & 0x1f {
                7 => self.sets |= set::SEQUENCE,
                8 => self.sets |= set::PICTURE,
                // Broadcast encoders often send no IDR picture but a parameter set and an I picture.
                kind @ (1 | 2 | 5) => {
                    return self.picture(set::SEQUENCE | set::PICTURE, kind == 5, slice_is_i(&unit[1..]));
                }
                _ => {}
            },
            VideoSyntax::H265 => match kind >> 1 & 0x3f {
                32 => self.sets |= set::VIDEO,
                33 => self.sets |= set::SEQUENCE,
                34 => self.sets |= set::PICTURE,
                // BLA, IDR and CRA pictures.
                kind @ 0..=31 => {
                    let is_start = (16..=21).contains(&kind);
                    return self.picture(set::VIDEO | set::SEQUENCE | set::PICTURE, is_start, is_start);
                }
                _ => {}
            },
            VideoSyntax::Opaque => return self.untold(),
        }
        PictureAccess::More
    }

    /// Decides about a picture. `is_start`: a decoder can start at any picture of this kind;
    /// `is_intra`: it can start if the encoder has put the `needed` sets before the picture, or
    /// marked it.
    fn picture(&self, needed: u8, is_start: bool, is_intra: bool) -> PictureAccess {
        let has_sets = self.sets & needed == needed;
        match (has_sets, is_start || self.is_indicated, is_intra) {
            (true, true, _) | (true, _, true) => PictureAccess::Access,
            (false, true, _) => PictureAccess::Bare,
            _ => PictureAccess::NoAccess,
        }
    }
}

fn find_start_code(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(3).position(|w| w == [0, 0, 1]).map(|at| from + at)
}

/// Returns whether an H.264 slice header (`first_mb_in_slice`, `slice_type`; section 7.3.3)
/// indicates an I slice.
fn slice_is_i(header: &[u8]) -> bool {
    let mut bits = header.iter().flat_map(|byte| (0..8).rev().map(move |i| byte >> i & 1));
    let mut exp_golomb = || {
        let zeros = bits.by_ref().take(16).take_while(|&bit| bit == 0).count();
        (0..zeros).try_fold(1u32, |value, _| Some(value << 1 | u32::from(bits.next()?))).map(|v| v - 1)
    };
    let _first_macroblock = exp_golomb();
    matches!(exp_golomb(), Some(2 | 7))
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
