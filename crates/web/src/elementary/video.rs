//! Pictures of H.264 and H.265: byte streams (annex B of both) become samples (ISO/IEC 14496-15), one for each picture.
//!
//! A sample is an access unit; both fields of a frame, where each is an access unit of its own, are one sample. Its NAL units have their length in
//! front. Left out are delimiters and filler, and parameter sets that the init segment has; others stay where they are.

use std::ops::Range;

use millrace_media::bits::{Bits, unescape};
use millrace_media::limits::MAX_SPS_BYTES;
use millrace_media::sei;
use millrace_media::sps::{self, Pictures};

use super::demux::Elementary;
use crate::limits::MAX_PARAMETER_SETS;

/// Which syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syntax {
    H264,
    H265,
}

/// Decoder configuration of a video stream, needed before its first picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VideoConfig {
    pub(crate) syntax: Syntax,
    pub(crate) pictures: Pictures,
    /// VPS (H.265), SPS, PPS: NAL units with their headers.
    pub(crate) sets: Vec<Vec<u8>>,
}

/// A picture in an elementary stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    /// Number of the PES packet in which it begins.
    pub(crate) mark: usize,
    /// Whether that PES packet's time stamps are its own: it is the first one that begins there.
    pub(crate) is_first: bool,
    /// Whether a decoder can start here.
    pub(crate) is_sync: bool,
    /// Its NAL units.
    units: Vec<Range<usize>>,
    /// Of a field: whether it is the bottom one, and its frame's number.
    field: Option<(bool, u32)>,
}

const H264_SLICE: u8 = 1;
const H264_IDR: u8 = 5;
const H264_SEI: u8 = 6;
const H264_SPS: u8 = 7;
const H264_PPS: u8 = 8;
const H264_DELIMITER: u8 = 9;
const H264_FILLER: u8 = 12;
const H265_VPS: u8 = 32;
const H265_SPS: u8 = 33;
const H265_PPS: u8 = 34;
const H265_DELIMITER: u8 = 35;
const H265_FILLER: u8 = 38;
const H265_PREFIX_SEI: u8 = 39;

impl Syntax {
    pub(crate) fn kind(self, nal: &[u8]) -> u8 {
        let first = nal.first().copied().unwrap_or_default();
        match self {
            Self::H264 => first & 0x1f,
            Self::H265 => first >> 1 & 0x3f,
        }
    }

    /// Whether it has samples of a picture.
    pub(crate) fn is_slice(self, kind: u8) -> bool {
        match self {
            Self::H264 => (H264_SLICE..=H264_IDR).contains(&kind),
            Self::H265 => kind < H265_VPS,
        }
    }

    /// Whether a picture begins with this unit, if the one before has its slices (H.264 section 7.4.1.2.3, H.265 section 7.4.2.4.4).
    fn begins(self, kind: u8, nal: &[u8]) -> bool {
        // A first slice begins with macroblock 0, or is marked as the first.
        let is_first = |at: usize| nal.get(at).is_some_and(|byte| byte & 0x80 != 0);
        match self {
            Self::H264 => match kind {
                1 | 2 | H264_IDR => is_first(1),
                _ => matches!(kind, H264_SEI..=H264_DELIMITER | 14..=18),
            },
            Self::H265 => match kind {
                0..=31 => is_first(2),
                _ => matches!(kind, H265_VPS..=H265_DELIMITER | 39 | 41..=44 | 48..=55),
            },
        }
    }

    fn is_set(self, kind: u8) -> bool {
        match self {
            Self::H264 => matches!(kind, H264_SPS | H264_PPS),
            Self::H265 => matches!(kind, H265_VPS..=H265_PPS),
        }
    }

    /// Whether it contains nothing that a sample needs.
    fn is_useless(self, kind: u8) -> bool {
        match self {
            Self::H264 => matches!(kind, H264_DELIMITER | H264_FILLER),
            Self::H265 => matches!(kind, H265_DELIMITER | H265_FILLER),
        }
    }

    /// The SEI messages in a unit that applies to the following picture, without the unit's header.
    pub(crate) fn information(self, nal: &[u8]) -> Option<&[u8]> {
        match (self, self.kind(nal)) {
            (Self::H264, H264_SEI) => nal.get(1..),
            (Self::H265, H265_PREFIX_SEI) => nal.get(2..),
            _ => None,
        }
    }

    /// NAL unit types of the parameter sets that a decoder needs before a picture.
    pub(crate) fn needed_sets(self) -> &'static [u8] {
        match self {
            Self::H264 => &[H264_SPS, H264_PPS],
            Self::H265 => &[H265_VPS, H265_SPS, H265_PPS],
        }
    }

    fn is_access(self, kind: u8, nal: &[u8]) -> bool {
        match self {
            Self::H264 => kind == H264_IDR || kind == H264_SEI && has_recovery_point(nal),
            Self::H265 => (16..=21).contains(&kind),
        }
    }

    /// Of another view or quality.
    fn is_other_layer(self, nal: &[u8]) -> bool {
        self == Self::H265 && matches!(nal, [a, b, ..] if a & 1 != 0 || b >> 3 != 0)
    }
}

/// Whether an SEI message marks a recovery point, where a decoder can start.
fn has_recovery_point(nal: &[u8]) -> bool {
    sei::payloads(nal.get(1..).unwrap_or_default()).any(|(kind, _)| kind == sei::RECOVERY_POINT)
}

/// Where the next start code is (three bytes: 00 00 01).
fn start_code(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at + 2)? {
            0 => at += 1,
            1 if bytes[at] == 0 && bytes[at + 1] == 0 => return Some(at),
            _ => at += 3,
        }
    }
}

/// The NAL units of a byte stream without start codes and the zeros behind them, each with the place of its start code. The last may be cut off.
pub(crate) fn units(bytes: &[u8]) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut next = start_code(bytes, 0);
    std::iter::from_fn(move || {
        let code = next?;
        next = start_code(bytes, code + 3);
        let mut end = next.unwrap_or(bytes.len());
        while end > code + 3 && bytes[end - 1] == 0 {
            end -= 1;
        }
        Some((code, code + 3..end))
    })
}

/// Returns the pictures of a stream. Data before the first beginning of a picture is left out; the
/// last picture may be cut off.
pub(crate) fn pictures(stream: &Elementary, syntax: Syntax, config: Option<&VideoConfig>) -> Vec<Picture> {
    let mut list: Vec<Picture> = Vec::new();
    let (mut has_slice, mut last_mark) = (true, None);
    for (code, range) in units(&stream.bytes) {
        let nal = &stream.bytes[range.clone()];
        if nal.is_empty() || syntax.is_other_layer(nal) {
            continue;
        }
        let kind = syntax.kind(nal);
        if has_slice && syntax.begins(kind, nal) {
            let Some(mark) = stream.mark_of(code) else { continue };
            let is_first = last_mark.replace(mark) != Some(mark);
            list.push(Picture { mark, is_first, is_sync: false, units: Vec::new(), field: None });
            has_slice = false;
        }
        let Some(picture) = list.last_mut() else { continue };
        if syntax.is_slice(kind) {
            if !has_slice {
                picture.field = config.and_then(|config| field(nal, &config.pictures));
            }
            has_slice = true;
        }
        picture.is_sync |= syntax.is_access(kind, nal);
        picture.units.push(range);
    }
    // Parameter sets alone are none.
    let is_picture = |picture: &Picture| {
        picture.units.iter().any(|unit| syntax.is_slice(syntax.kind(&stream.bytes[unit.clone()])))
    };
    if list.last().is_some_and(|last| !is_picture(last)) {
        list.pop();
    }
    join_fields(list, &stream.bytes)
}

/// The first picture that a decoder can start with: a sync picture, or one that `is_access`
/// accepts.
pub(crate) fn first_entry(list: &[Picture], is_access: impl Fn(&Picture) -> bool) -> Option<usize> {
    list.iter().position(|picture| picture.is_sync || is_access(picture))
}

/// Which field a slice of H.264 belongs to (section 7.3.3); `None`: to a frame.
fn field(nal: &[u8], pictures: &Pictures) -> Option<(bool, u32)> {
    let syntax = pictures.fields?;
    let payload = unescape(nal.get(1..)?, 16);
    let mut bits = Bits::new(&payload);
    (0..3).try_for_each(|_| bits.ue().map(drop))?;
    bits.skip(if syntax.has_colour_planes { 2 } else { 0 })?;
    let number = bits.number(syntax.frame_num_bits)?;
    bits.bit()?.then(|| bits.bit()).flatten().map(|is_bottom| (is_bottom, number))
}

/// Makes one picture of both fields of a frame.
fn join_fields(list: Vec<Picture>, bytes: &[u8]) -> Vec<Picture> {
    let mut joined: Vec<Picture> = Vec::with_capacity(list.len());
    let is_idr = |picture: &Picture| {
        picture.units.iter().any(|unit| Syntax::H264.kind(&bytes[unit.clone()]) == H264_IDR)
    };
    for picture in list {
        let first = joined.last_mut().and_then(|last| Some((last.field?, last)));
        match (first, picture.field) {
            (Some(((one, number), last)), Some((other, same)))
                if one != other && number == same && !is_idr(&picture) =>
            {
                last.field = None;
                last.units.extend(picture.units);
            }
            _ => joined.push(picture),
        }
    }
    joined
}

impl Picture {
    /// Writes the sample. Parameter sets from the init segment are left out, unless this picture or
    /// an earlier one had a new set. From then on all are kept, because a decoder binds a picture
    /// parameter set to the sequence parameter set that preceded it (H.264 section 7.4.1.2.1).
    pub(crate) fn append_to(
        &self,
        out: &mut Vec<u8>,
        bytes: &[u8],
        config: &VideoConfig,
        keeps_sets: &mut bool,
    ) {
        let is_new = |nal: &[u8]| !config.sets.iter().any(|set| set == nal);
        let units = self.units.iter().map(|unit| &bytes[unit.clone()]);
        *keeps_sets |= units.clone().any(|nal| config.syntax.is_set(config.syntax.kind(nal)) && is_new(nal));
        for nal in units {
            let kind = config.syntax.kind(nal);
            if (*keeps_sets || !config.syntax.is_set(kind)) && !config.syntax.is_useless(kind) {
                // A piece of a title that is looked at has less than 4 GiB.
                out.extend_from_slice(&(nal.len() as u32).to_be_bytes());
                out.extend_from_slice(nal);
            }
        }
    }
}

/// Returns the decoder configuration, from the first picture that has parameter sets.
pub(crate) fn config(stream: &Elementary, syntax: Syntax) -> Option<VideoConfig> {
    let bytes = &stream.bytes;
    pictures(stream, syntax, None).iter().find_map(|picture| {
        let mut sets: Vec<Vec<u8>> = Vec::new();
        let mut transfer = None;
        for unit in &picture.units {
            let nal = &bytes[unit.clone()];
            transfer = transfer.or_else(|| sei::preferred_transfer(syntax.information(nal)?));
            let is_wanted = syntax.is_set(syntax.kind(nal)) && nal.len() <= MAX_SPS_BYTES;
            if is_wanted && !sets.iter().any(|set| set == nal) && sets.len() < MAX_PARAMETER_SETS {
                sets.push(nal.to_vec());
            }
        }
        sets.sort_by_key(|set| syntax.kind(set));
        let of = |kind: u8| sets.iter().find(|set| syntax.kind(set) == kind);
        let pictures = match syntax {
            Syntax::H264 => of(H264_PPS).and(of(H264_SPS)).and_then(|sps| sps::h264(&sps[1..])),
            Syntax::H265 => {
                of(H265_VPS).and(of(H265_PPS)).and(of(H265_SPS)).and_then(|sps| sps::h265(sps.get(2..)?))
            }
        };
        let mut pictures = pictures?;
        if let (Some(transfer), Some(colour)) = (transfer, &mut pictures.colour) {
            colour.transfer = transfer;
        }
        let rate = || sps::h265_parameter_rate(of(H265_VPS)?.get(2..)?);
        pictures.frame_rate = pictures.frame_rate.or_else(rate);
        Some(VideoConfig { syntax, pictures, sets })
    })
}

impl VideoConfig {
    /// Its parameter sets of one kind, by NAL unit type.
    pub(crate) fn sets_of(&self, kind: u8) -> impl Iterator<Item = &[u8]> {
        self.sets.iter().filter(move |set| self.syntax.kind(set) == kind).map(Vec::as_slice)
    }
}

#[cfg(test)]
#[path = "video_tests.rs"]
mod tests;
