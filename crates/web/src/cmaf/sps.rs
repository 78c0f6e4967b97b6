//! Sequence parameter sets of H.264 and H.265: what playlists and init segments say of pictures.

use millrace_core::limits::web::{MAX_PICTURE_RATE, MAX_PICTURE_SIDE, MAX_SPS_BYTES};
use millrace_store::bits::{Bits, unescape};
use millrace_store::sps::{SpsStart, depth};

/// What a sequence parameter set says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pictures {
    /// As RFC 6381 spells it.
    pub(crate) codec: String,
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Thousandths of pictures a second, at most.
    pub(crate) frame_rate: Option<u32>,
    /// `chroma_format_idc`, and bits of a sample of luma and of chroma.
    pub(crate) chroma: u8,
    pub(crate) depths: (u8, u8),
    /// How slices of H.264 say which field they belong to; `None`: all pictures are frames.
    pub(crate) fields: Option<FieldSyntax>,
}

/// What the place of a slice's `field_pic_flag` depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldSyntax {
    pub(crate) has_colour_planes: bool,
    pub(crate) frame_num_bits: u32,
}

/// Of an H.264 NAL unit of type 7, without its header byte (ITU-T H.264 section 7.3.2.1.1 and annex E).
pub(crate) fn h264(nal: &[u8]) -> Option<Pictures> {
    let payload = unescape(nal, MAX_SPS_BYTES);
    let mut bits = Bits::new(&payload);
    let start = SpsStart::read(&mut bits)?;
    // Fields in macroblocks; direct inference.
    bits.skip(if start.frames_only { 1 } else { 2 })?;
    // Table 6-1; colour planes apart count as none.
    let (wide, high) = match if start.has_colour_planes { 0 } else { start.chroma } {
        1 => (2, 2),
        2 => (2, 1),
        _ => (1, 1),
    };
    let fields = if start.frames_only { 1 } else { 2 };
    let crop = if bits.bit()? { [bits.ue()?, bits.ue()?, bits.ue()?, bits.ue()?] } else { [0; 4] };
    let width = size(start.columns.checked_mul(16)?, wide, crop[0], crop[1])?;
    let height = size(start.rows.checked_mul(16 * fields)?, high * fields, crop[2], crop[3])?;
    let frame_rate = if bits.bit()? { h264_rate(&mut bits) } else { None };
    let [profile, constraints, level] = start.profile;
    let codec = format!("avc1.{profile:02x}{constraints:02x}{level:02x}");
    let fields = (!start.frames_only).then_some(FieldSyntax {
        has_colour_planes: start.has_colour_planes,
        frame_num_bits: start.frame_num_bits,
    });
    let (chroma, depths) = (start.chroma, start.depths);
    Some(Pictures { codec, width, height, frame_rate, chroma, depths, fields })
}

/// From the VUI (section E.1.1).
fn h264_rate(bits: &mut Bits<'_>) -> Option<u32> {
    if bits.bit()? && bits.number(8)? == 255 {
        bits.skip(32)?;
    }
    if bits.bit()? {
        bits.skip(1)?;
    }
    if bits.bit()? {
        bits.skip(4)?;
        if bits.bit()? {
            bits.skip(24)?;
        }
    }
    if bits.bit()? {
        bits.ue()?;
        bits.ue()?;
    }
    if !bits.bit()? {
        return None;
    }
    let (tick, scale) = (bits.number(32)?, bits.number(32)?);
    // A tick is a field, and no picture is shorter: it is the highest rate, which is what a playlist says (RFC 8216 section 4.3.4.2). One that counts in
    // finer ticks than pictures says nothing.
    let rate = (u64::from(scale) * 1000).checked_div(u64::from(tick) * 2)?;
    u32::try_from(rate).ok().filter(|rate| (1..=MAX_PICTURE_RATE).contains(rate))
}

/// Of an H.265 NAL unit of type 33, without its two header bytes (ITU-T H.265 section 7.3.2.2).
pub(crate) fn h265(nal: &[u8]) -> Option<Pictures> {
    let payload = unescape(nal, MAX_SPS_BYTES);
    let mut bits = Bits::new(&payload);
    bits.skip(4)?;
    let layers = bits.number(3)?;
    bits.skip(1)?;
    // Profile, tier and level (section 7.3.3): 88 bits, then a level.
    let (space, is_high, profile) = (bits.number(2)?, bits.bit()?, bits.number(5)?);
    let compatible = bits.number(32)?;
    let constraints: Vec<u32> = (0..6).map(|_| bits.number(8)).collect::<Option<_>>()?;
    let level = bits.number(8)?;
    let mut present = Vec::new();
    for _ in 0..layers {
        present.push((bits.bit()?, bits.bit()?));
    }
    if layers > 0 {
        bits.skip(2 * (8 - layers as usize))?;
    }
    for (has_profile, has_level) in present {
        bits.skip(if has_profile { 88 } else { 0 } + if has_level { 8 } else { 0 })?;
    }
    bits.ue()?;
    let chroma = bits.ue().filter(|&chroma| chroma <= 3)?;
    let has_planes = chroma == 3 && bits.bit()?;
    let (columns, rows) = (bits.ue()?, bits.ue()?);
    let crop = if bits.bit()? { [bits.ue()?, bits.ue()?, bits.ue()?, bits.ue()?] } else { [0; 4] };
    let (wide, high) = match if has_planes { 0 } else { chroma } {
        1 => (2, 2),
        2 => (2, 1),
        _ => (1, 1),
    };
    let (width, height) = (size(columns, wide, crop[0], crop[1])?, size(rows, high, crop[2], crop[3])?);
    let depths = (depth(&mut bits)?, depth(&mut bits)?);
    // ISO/IEC 14496-15 annex E.3: trailing constraint bytes of zero are left out.
    let used = constraints.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let space = ["", "A", "B", "C"][space as usize];
    let tier = if is_high { 'H' } else { 'L' };
    let mut codec = format!("hvc1.{space}{profile}.{:X}.{tier}{level}", compatible.reverse_bits());
    constraints[..used].iter().for_each(|byte| codec += &format!(".{byte:X}"));
    Some(Pictures { codec, width, height, frame_rate: None, chroma: chroma as u8, depths, fields: None })
}

/// What is shown of a length, with so many samples cut off at both ends.
fn size(whole: u32, unit: u32, first: u32, last: u32) -> Option<u32> {
    let cut = first.checked_add(last)?.checked_mul(unit)?;
    whole.checked_sub(cut).filter(|&size| (1..=MAX_PICTURE_SIDE).contains(&size))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parameter sets as x264 and x265 write them, without their header bytes.
    const HIGH_720: &str = "64001facd9405005bbff000300041000003e90000ea600f183196000";
    const BASELINE_180: &str = "42c00cd901419f9fff000300041000000300100000030320f142a48000";
    const MAIN_362: &str =
        "0101600000030090000003000003003fa005120171c9265959a4932bffc0b500f0da02000003000200000300301000";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect()
    }

    #[test]
    fn what_encoders_write() {
        let pictures = |codec: &str, width, height, frame_rate| {
            let codec = codec.to_owned();
            Some(Pictures { codec, width, height, frame_rate, chroma: 1, depths: (8, 8), fields: None })
        };
        assert_eq!(h264(&bytes(HIGH_720)), pictures("avc1.64001f", 1280, 720, Some(29_970)));
        assert_eq!(h264(&bytes(BASELINE_180)), pictures("avc1.42c00c", 320, 180, Some(25_000)));
        assert_eq!(h265(&bytes(MAIN_362)), pictures("hvc1.1.6.L63.90", 642, 362, None));
        for hex in [HIGH_720, BASELINE_180, MAIN_362] {
            // What is cut off before the size says nothing.
            assert_eq!((h264(&bytes(hex)[..5]), h265(&bytes(hex)[..12])), (None, None));
        }
    }

    proptest! {
        /// Whatever has become of them, no size is beyond what there is, and no name has more than names have.
        #[test]
        fn damaged_ones(
            which in 0usize..3,
            edits in proptest::collection::vec((0usize..50, any::<u8>()), 0..6),
            end in 0usize..60,
        ) {
            let mut nal = bytes([HIGH_720, BASELINE_180, MAIN_362][which]);
            for (at, value) in edits {
                let at = at % nal.len();
                nal[at] = value;
            }
            nal.truncate(end);
            for pictures in [h264(&nal), h265(&nal)].into_iter().flatten() {
                prop_assert!((1..=MAX_PICTURE_SIDE).contains(&pictures.width) && (1..=MAX_PICTURE_SIDE).contains(&pictures.height));
                prop_assert!(pictures.codec.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'));
            }
        }
    }

    #[test]
    fn anything_at_all() {
        bolero::check!().for_each(|bytes: &[u8]| drop((h264(bytes), h265(bytes))));
    }
}
