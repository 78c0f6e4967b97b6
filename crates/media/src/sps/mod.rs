//! Sequence parameter sets of H.264 and H.265 (and the timing in video parameter sets): what playlists and init segments say of pictures.

mod start;

pub use self::start::{SpsStart, depth};
use crate::bits::{Bits, unescape};
use crate::limits::{MAX_PICTURE_RATE, MAX_PICTURE_SIDE, MAX_SPS_BYTES};

/// Contents of a sequence parameter set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pictures {
    /// As RFC 6381 spells it.
    pub codec: String,
    /// Width as shown, in samples of luma.
    pub width: u32,
    /// Height as shown.
    pub height: u32,
    /// Thousandths of pictures a second, at most.
    pub frame_rate: Option<u32>,
    /// `chroma_format_idc`
    pub chroma: u8,
    /// Bits of a sample of luma and of chroma.
    pub depths: (u8, u8),
    /// How slices of H.264 say which field they belong to; `None`: all pictures are frames.
    pub fields: Option<FieldSyntax>,
    /// The colour description, if the set has one.
    pub colour: Option<Colour>,
}

/// Colour description of the samples (ITU-T H.273; tables in H.264 annex E and H.265 annex E).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// `colour_primaries`
    pub primaries: u8,
    /// `transfer_characteristics`
    pub transfer: u8,
    /// `matrix_coefficients`
    pub matrix: u8,
    /// `video_full_range_flag`
    pub is_full_range: bool,
}

impl Colour {
    /// `VIDEO-RANGE` of playlists; `None` if the characteristics are unspecified or reserved.
    pub fn video_range(self) -> Option<&'static str> {
        match self.transfer {
            16 => Some("PQ"),
            18 => Some("HLG"),
            1 | 4..=15 | 17 => Some("SDR"),
            _ => None,
        }
    }
}

/// Fields of the video usability information (H.264 section E.1.1, H.265 section E.2.1).
#[derive(Default)]
struct Usability {
    colour: Option<Colour>,
    frame_rate: Option<u32>,
}

/// Fields that determine the position of a slice's `field_pic_flag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSyntax {
    /// `separate_colour_plane_flag`
    pub has_colour_planes: bool,
    /// Bits of `frame_num`.
    pub frame_num_bits: u32,
}

/// Of an H.264 NAL unit of type 7, without its header byte (ITU-T H.264 section 7.3.2.1.1 and annex E).
pub fn h264(nal: &[u8]) -> Option<Pictures> {
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
    let usability = if bits.bit()? { h264_usability(&mut bits)? } else { Usability::default() };
    let [profile, constraints, level] = start.profile;
    let codec = format!("avc1.{profile:02x}{constraints:02x}{level:02x}");
    let fields = (!start.frames_only).then_some(FieldSyntax {
        has_colour_planes: start.has_colour_planes,
        frame_num_bits: start.frame_num_bits,
    });
    let (chroma, depths) = (start.chroma, start.depths);
    let Usability { colour, frame_rate } = usability;
    Some(Pictures { codec, width, height, frame_rate, chroma, depths, fields, colour })
}

/// Reads the first part of the usability information, which is the same in both standards.
fn colour(bits: &mut Bits<'_>) -> Option<Option<Colour>> {
    if bits.bit()? && bits.number(8)? == 255 {
        bits.skip(32)?;
    }
    if bits.bit()? {
        bits.skip(1)?;
    }
    let mut colour = None;
    if bits.bit()? {
        bits.skip(3)?;
        let is_full_range = bits.bit()?;
        if bits.bit()? {
            let mut byte = || bits.number(8).map(|byte| byte as u8);
            let (primaries, transfer, matrix) = (byte()?, byte()?, byte()?);
            colour = Some(Colour { primaries, transfer, matrix, is_full_range });
        }
    }
    if bits.bit()? {
        bits.ue()?;
        bits.ue()?;
    }
    Some(colour)
}

fn h264_usability(bits: &mut Bits<'_>) -> Option<Usability> {
    let colour = colour(bits)?;
    // A tick is a field, and no picture is shorter: this is the highest rate, which a playlist must
    // state (RFC 8216 section 4.3.4.2). A stream that counts in finer ticks than pictures gives no
    // rate.
    let frame_rate = if bits.bit()? { rate(bits, 2) } else { None };
    Some(Usability { colour, frame_rate })
}

/// Frame rate in thousandths of frames per second, from the length of a tick and the ticks per
/// second. A frame lasts `ticks` ticks.
fn rate(bits: &mut Bits<'_>, ticks: u64) -> Option<u32> {
    let (tick, scale) = (bits.number(32)?, bits.number(32)?);
    let rate = (u64::from(scale) * 1000).checked_div(u64::from(tick) * ticks)?;
    u32::try_from(rate).ok().filter(|rate| (1..=MAX_PICTURE_RATE).contains(rate))
}

/// Profile, tier and level (H.265 section 7.3.3).
struct ProfileTierLevel {
    space: u32,
    is_high: bool,
    profile: u32,
    compatible: u32,
    constraints: Vec<u32>,
    level: u32,
}

/// Reads 88 bits and a level, and skips those of further layers.
fn profile_tier_level(bits: &mut Bits<'_>, layers: u32) -> Option<ProfileTierLevel> {
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
    Some(ProfileTierLevel { space, is_high, profile, compatible, constraints, level })
}

/// Skips the decoder buffer sizes, of all layers or of the highest one.
fn skip_layer_ordering(bits: &mut Bits<'_>, layers: u32) -> Option<()> {
    let sets = if bits.bit()? { layers + 1 } else { 1 };
    (0..3 * sets).try_for_each(|_| bits.ue().map(drop))
}

/// Parses an H.265 NAL unit of type 33 without its two header bytes (ITU-T H.265 section 7.3.2.2).
pub fn h265(nal: &[u8]) -> Option<Pictures> {
    let payload = unescape(nal, MAX_SPS_BYTES);
    let mut bits = Bits::new(&payload);
    bits.skip(4)?;
    let layers = bits.number(3)?;
    bits.skip(1)?;
    let ProfileTierLevel { space, is_high, profile, compatible, constraints, level } =
        profile_tier_level(&mut bits, layers)?;
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
    // Players can do without the rest, so an error there does not reject the set.
    let Usability { colour, frame_rate } = h265_usability(&mut bits, layers).unwrap_or_default();
    let chroma = chroma as u8;
    Some(Pictures { codec, width, height, frame_rate, chroma, depths, fields: None, colour })
}

/// Reads the usability information. `bits` is positioned after the bit depths; the fields in
/// between are skipped.
fn h265_usability(bits: &mut Bits<'_>, layers: u32) -> Option<Usability> {
    let order_bits = bits.ue().filter(|&n| n <= 12)? + 4;
    skip_layer_ordering(bits, layers)?;
    // Block sizes and transform depths.
    (0..6).try_for_each(|_| bits.ue().map(drop))?;
    if bits.bit()? && bits.bit()? {
        skip_scaling_lists(bits)?;
    }
    bits.skip(2)?;
    if bits.bit()? {
        bits.skip(8)?;
        bits.ue()?;
        bits.ue()?;
        bits.skip(1)?;
    }
    skip_reference_sets(bits)?;
    if bits.bit()? {
        let pictures = bits.ue().filter(|&n| n <= 32)?;
        bits.skip(pictures as usize * (order_bits as usize + 1))?;
    }
    bits.skip(2)?;
    if !bits.bit()? {
        return Some(Usability::default());
    }
    let colour = colour(bits)?;
    bits.skip(1)?;
    let are_fields = bits.bit()?;
    bits.skip(1)?;
    if bits.bit()? {
        (0..4).try_for_each(|_| bits.ue().map(drop))?;
    }
    // A tick is one picture, which may be a field.
    let frame_rate = if bits.bit()? { rate(bits, if are_fields { 2 } else { 1 }) } else { None };
    Some(Usability { colour, frame_rate })
}

/// H.265 section 7.3.4.
fn skip_scaling_lists(bits: &mut Bits<'_>) -> Option<()> {
    for size in 0..4 {
        for _ in (0..6).step_by(if size == 3 { 3 } else { 1 }) {
            if !bits.bit()? {
                bits.ue()?;
                continue;
            }
            let coefficients = 64.min(1 << (4 + 2 * size)) + u32::from(size > 1);
            (0..coefficients).try_for_each(|_| bits.se().map(drop))?;
        }
    }
    Some(())
}

/// Skips the short-term reference picture sets (H.265 section 7.3.7). A set may be coded as a
/// change to the previous one.
fn skip_reference_sets(bits: &mut Bits<'_>) -> Option<()> {
    let mut before = 0;
    for set in 0..bits.ue().filter(|&n| n <= 64)? {
        if set > 0 && bits.bit()? {
            bits.skip(1)?;
            bits.ue()?;
            let mut count = 0;
            for _ in 0..=before {
                // The picture of the previous set is used, or at least retained.
                count += u32::from(bits.bit()? || bits.bit()?);
            }
            before = count;
        } else {
            let (earlier, later) = (bits.ue().filter(|&n| n <= 16)?, bits.ue().filter(|&n| n <= 16)?);
            for _ in 0..earlier + later {
                bits.ue()?;
                bits.skip(1)?;
            }
            before = earlier + later;
        }
    }
    Some(())
}

/// Thousandths of pictures per second from an H.265 NAL unit of type 32 without its two header
/// bytes (section 7.3.2.1), for streams whose sequence parameter set lacks the rate.
pub fn h265_parameter_rate(nal: &[u8]) -> Option<u32> {
    let payload = unescape(nal, MAX_SPS_BYTES);
    let mut bits = Bits::new(&payload);
    bits.skip(12)?;
    let layers = bits.number(3)?;
    bits.skip(17)?;
    profile_tier_level(&mut bits, layers)?;
    skip_layer_ordering(&mut bits, layers)?;
    let ids = bits.number(6)? as usize + 1;
    let sets = bits.ue().filter(|&n| n < 1024)? as usize;
    bits.skip(sets * ids)?;
    if bits.bit()? { rate(&mut bits, 1) } else { None }
}

/// Returns the displayed part of a length, with this much cropped at both ends.
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
    fn sps_of_common_encoders_yields_codec_size_and_rate() {
        let pictures = |codec: &str, width, height, frame_rate| {
            let codec = codec.to_owned();
            let colour = None;
            Some(Pictures {
                codec,
                width,
                height,
                frame_rate,
                chroma: 1,
                depths: (8, 8),
                fields: None,
                colour,
            })
        };
        assert_eq!(h264(&bytes(HIGH_720)), pictures("avc1.64001f", 1280, 720, Some(29_970)));
        assert_eq!(h264(&bytes(BASELINE_180)), pictures("avc1.42c00c", 320, 180, Some(25_000)));
        assert_eq!(h265(&bytes(MAIN_362)), pictures("hvc1.1.6.L63.90", 642, 362, Some(24_000)));
        for hex in [HIGH_720, BASELINE_180, MAIN_362] {
            // Data cut off before the size yields nothing.
            assert_eq!((h264(&bytes(hex)[..5]), h265(&bytes(hex)[..12])), (None, None));
        }
    }

    /// Parameter sets of x265 with HDR10, its video parameter set, and those of x264 with the usual
    /// colours.
    const HDR10: &str =
        "0102200000030090000003000003003ca00a080f1365959a4932bc05a84880482000000300200000030321";
    const HDR10_VIDEO: &str = "0c01ffff02200000030090000003000003003c959809";
    const BT709: &str = "64000dacd94141fb016a020202800000030080000019078a14cb";

    #[test]
    fn usability_of_h265_and_h264_is_colour_and_rate() {
        let hdr10 = h265(&bytes(HDR10)).unwrap();
        let colour = Colour { primaries: 9, transfer: 16, matrix: 9, is_full_range: false };
        assert_eq!((hdr10.colour, hdr10.frame_rate, hdr10.depths), (Some(colour), Some(25_000), (10, 10)));
        let bt709 = h264(&bytes(BT709)).unwrap();
        let colour = Colour { primaries: 1, transfer: 1, matrix: 1, is_full_range: false };
        assert_eq!((bt709.colour, bt709.frame_rate), (Some(colour), Some(25_000)));
        // x265 writes the rate into the sequence parameter set only.
        assert_eq!(h265_parameter_rate(&bytes(HDR10_VIDEO)), None);
        // The same set with a rate: before the stop bit, a set flag and the timing replace two
        // cleared flags.
        let plain = unescape(&bytes(HDR10_VIDEO), MAX_SPS_BYTES);
        let mut bits: String = plain.iter().map(|byte| format!("{byte:08b}")).collect();
        bits.truncate(bits.trim_end_matches('0').len() - 3);
        bits += &format!("1{:032b}{:032b}1", 1001, 30_000);
        bits += &"0".repeat(8 - bits.len() % 8);
        let mut timed: Vec<u8> = Vec::new();
        for at in (0..bits.len()).step_by(8) {
            let byte = u8::from_str_radix(&bits[at..at + 8], 2).unwrap();
            if byte <= 3 && timed.ends_with(&[0, 0]) {
                timed.push(3);
            }
            timed.push(byte);
        }
        assert_eq!(h265_parameter_rate(&timed), Some(29_970));
    }

    #[test]
    fn video_range_of_transfer_characteristics() {
        let range =
            |transfer| Colour { primaries: 9, transfer, matrix: 9, is_full_range: false }.video_range();
        assert_eq!(
            [16, 18, 1, 14, 15].map(range),
            [Some("PQ"), Some("HLG"), Some("SDR"), Some("SDR"), Some("SDR")]
        );
        assert_eq!([0, 2, 3, 19, 255].map(range), [None; 5]);
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
        bolero::check!()
            .for_each(|bytes: &[u8]| drop((h264(bytes), h265(bytes), h265_parameter_rate(bytes))));
    }
}
