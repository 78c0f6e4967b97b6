//! Where a decoder can start: the random access indicator, and what the pictures themselves say where a muxer never
//! sets it.

use millrace_core::limits::volume::MAX_LOOK_BYTES;

use super::codec::VideoSyntax;
use super::layout;

/// What is known of the picture at the start of a PES packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A decoder can start here.
    Access,
    /// It cannot.
    NoAccess,
    /// More bytes are needed.
    More,
}

/// Looks at the elementary stream from the start of a PES packet up to its first picture.
#[derive(Debug)]
pub(super) struct PictureLook {
    syntax: VideoSyntax,
    bytes: Vec<u8>,
    /// All start codes before this were seen.
    seen: usize,
    /// Sequence header or sequence parameter set seen.
    header: bool,
}

impl PictureLook {
    /// Ready for the first PES packet.
    pub(super) fn new(syntax: VideoSyntax) -> Self {
        Self { syntax, bytes: Vec::new(), seen: 0, header: false }
    }

    /// A PES packet begins.
    pub(super) fn begin(&mut self) {
        self.bytes.clear();
        self.seen = 0;
        self.header = false;
    }

    /// The next bytes of the PES packet's payload.
    pub(super) fn push(&mut self, payload: &[u8]) -> Verdict {
        if self.syntax == VideoSyntax::Opaque {
            return Verdict::NoAccess;
        }
        let room = MAX_LOOK_BYTES - self.bytes.len();
        self.bytes.extend_from_slice(&payload[..payload.len().min(room)]);
        while let Some(code) = find_start_code(&self.bytes, self.seen) {
            // Eight bytes behind the start code are more than any decision takes.
            let unit = &self.bytes[code + 3..];
            if unit.len() < 8 && self.bytes.len() < MAX_LOOK_BYTES {
                self.seen = code;
                return Verdict::More;
            }
            match self.unit(code + 3) {
                Verdict::More => self.seen = code + 3,
                decided => return decided,
            }
        }
        if self.bytes.len() >= MAX_LOOK_BYTES {
            return Verdict::NoAccess;
        }
        self.seen = self.seen.max(self.bytes.len().saturating_sub(2));
        Verdict::More
    }

    /// No more bytes of this PES packet come.
    pub(super) fn end(&mut self) -> Verdict {
        while let Some(code) = find_start_code(&self.bytes, self.seen) {
            match self.unit(code + 3) {
                Verdict::More => self.seen = code + 3,
                decided => return decided,
            }
        }
        Verdict::NoAccess
    }

    /// A checksum of the sequence parameter sets among what was looked at.
    pub(super) fn config(&self) -> Option<u32> {
        let is_set = |kind: u8| match self.syntax {
            VideoSyntax::H264 => kind & 0x1f == 7,
            VideoSyntax::H265 => matches!(kind >> 1 & 0x3f, 32 | 33),
            _ => false,
        };
        let mut sets = Vec::new();
        let mut next = find_start_code(&self.bytes, 0);
        // One that is cut off does not count.
        while let Some(start) = next {
            next = find_start_code(&self.bytes, start + 3);
            let unit = &self.bytes[start + 3..next.unwrap_or(start + 3)];
            if unit.first().is_some_and(|&kind| is_set(kind)) {
                let used = unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                sets.extend_from_slice(&unit[..used]);
            }
        }
        (!sets.is_empty()).then(|| layout::checksum(&sets))
    }

    /// The unit whose first byte behind the start code is at `at`: decides, or goes on.
    fn unit(&mut self, at: usize) -> Verdict {
        let unit = &self.bytes[at..];
        let Some(&kind) = unit.first() else { return Verdict::More };
        let byte = |i: usize| unit.get(i).copied().unwrap_or(0);
        let access_if = |is_access| if is_access { Verdict::Access } else { Verdict::NoAccess };
        match self.syntax {
            VideoSyntax::Mpeg2 => match kind {
                0xb3 => self.header = true,
                // Picture header: 10 bits of temporal reference, 3 bits of coding type, 1 = I.
                0x00 => return access_if(self.header && byte(2) >> 3 & 7 == 1),
                0x01..=0xaf => return Verdict::NoAccess,
                _ => {}
            },
            VideoSyntax::Mpeg4 => match kind {
                0x20..=0x2f => self.header = true,
                // Video object plane: 2 bits of coding type, 0 = I.
                0xb6 => return access_if(self.header && byte(1) >> 6 == 0),
                _ => {}
            },
            VideoSyntax::H264 => match kind & 0x1f {
                7 => self.header = true,
                5 => return Verdict::Access,
                // Broadcast encoders often send no IDR picture but a parameter set and an I picture.
                1 | 2 => return access_if(self.header && slice_is_i(&unit[1..])),
                _ => {}
            },
            VideoSyntax::H265 => {
                if let kind @ 0..=31 = kind >> 1 & 0x3f {
                    // BLA, IDR and CRA pictures.
                    return access_if((16..=21).contains(&kind));
                }
            }
            VideoSyntax::Opaque => return Verdict::NoAccess,
        }
        Verdict::More
    }
}

fn find_start_code(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.windows(3).position(|w| w == [0, 0, 1]).map(|at| from + at)
}

/// Whether an H.264 slice header (`first_mb_in_slice`, `slice_type`; section 7.3.3) says I.
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
