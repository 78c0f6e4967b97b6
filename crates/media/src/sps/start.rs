//! The part of H.264's sequence parameter sets that every parser reads (ITU-T H.264 section
//! 7.3.2.1.1): up to the flag that determines whether pictures are frames only. Slice headers
//! depend on it, and the pictures' size is in it.

use crate::bits::Bits;
use crate::limits::MAX_SPS;

/// The parsed fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpsStart {
    /// `profile_idc`, the constraint flags, `level_idc`.
    pub profile: [u8; 3],
    /// `seq_parameter_set_id`
    pub id: u32,
    /// `chroma_format_idc`
    pub chroma: u8,
    /// `separate_colour_plane_flag`
    pub has_colour_planes: bool,
    /// Bits of a sample of luma and of chroma.
    pub depths: (u8, u8),
    /// Bits of `frame_num`.
    pub frame_num_bits: u32,
    /// `pic_order_cnt_type`
    pub order_type: u32,
    /// Bits of `pic_order_cnt_lsb`; 0 unless the type is 0.
    pub order_bits: u32,
    /// Whether slices have differences of the order count (type 1).
    pub has_order_deltas: bool,
    /// Macroblocks in a row.
    pub columns: u32,
    /// Rows of macroblocks, or of pairs of them where there are fields.
    pub rows: u32,
    /// `frame_mbs_only_flag`
    pub frames_only: bool,
}

/// Profiles whose sets say how colours are coded.
const PROFILES_WITH_CHROMA: [u8; 13] = [100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135];

impl SpsStart {
    /// Reads it, from behind the NAL unit's header byte on; `bits` stand behind it then. `None`: nothing that the standard allows.
    pub fn read(bits: &mut Bits<'_>) -> Option<Self> {
        let mut byte = || bits.number(8).map(|byte| byte as u8);
        let profile = [byte()?, byte()?, byte()?];
        let id = bits.ue().filter(|&id| id < MAX_SPS)?;
        let (mut chroma, mut has_colour_planes, mut depths) = (1, false, (8, 8));
        if PROFILES_WITH_CHROMA.contains(&profile[0]) {
            chroma = bits.ue().filter(|&chroma| chroma <= 3)? as u8;
            has_colour_planes = chroma == 3 && bits.bit()?;
            depths = (depth(bits)?, depth(bits)?);
            bits.skip(1)?;
            if bits.bit()? {
                for list in 0..if chroma == 3 { 12 } else { 8 } {
                    if bits.bit()? {
                        skip_scaling_list(bits, if list < 6 { 16 } else { 64 })?;
                    }
                }
            }
        }
        let frame_num_bits = bits.ue().filter(|&n| n <= 12)? + 4;
        let order_type = bits.ue().filter(|&n| n <= 2)?;
        let (mut order_bits, mut has_order_deltas) = (0, false);
        match order_type {
            0 => order_bits = bits.ue().filter(|&n| n <= 12)? + 4,
            1 => {
                has_order_deltas = !bits.bit()?;
                bits.se()?;
                bits.se()?;
                for _ in 0..bits.ue().filter(|&n| n <= 255)? {
                    bits.se()?;
                }
            }
            _ => {}
        }
        bits.ue()?;
        bits.skip(1)?;
        let columns = bits.ue()?.checked_add(1)?;
        let rows = bits.ue()?.checked_add(1)?;
        Some(Self {
            profile,
            id,
            chroma,
            has_colour_planes,
            depths,
            frame_num_bits,
            order_type,
            order_bits,
            has_order_deltas,
            columns,
            rows,
            frames_only: bits.bit()?,
        })
    }
}

/// Bits of a sample, as H.264 and H.265 say it.
pub fn depth(bits: &mut Bits<'_>) -> Option<u8> {
    bits.ue().filter(|&more| more <= 8).map(|more| 8 + more as u8)
}

/// Section 7.3.2.1.1.1.
fn skip_scaling_list(bits: &mut Bits<'_>, entries: usize) -> Option<()> {
    let (mut last, mut next) = (8i32, 8i32);
    for _ in 0..entries {
        if next != 0 {
            next = (last + bits.se().filter(|step| (-128..128).contains(step))?).rem_euclid(256);
        }
        last = if next == 0 { last } else { next };
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::BitsOut;

    /// One with a scaling list whose first step is this.
    fn with_step(step: i32) -> Option<SpsStart> {
        let mut out = BitsOut::default();
        [100, 0, 40].iter().for_each(|&byte| out.number(byte, 8));
        [3, 1, 2, 0].iter().for_each(|&value| out.ue(value));
        out.number(0b011, 3);
        out.se(step);
        (0..15).for_each(|_| out.se(0));
        out.number(0, 7);
        [1, 0, 2, 4].iter().for_each(|&value| out.ue(value));
        out.bit(false);
        [19, 11].iter().for_each(|&value| out.ue(value));
        out.bit(true);
        SpsStart::read(&mut Bits::new(out.bytes()))
    }

    #[test]
    fn sps_start_read_returns_expected_fields() {
        let expected = SpsStart {
            profile: [100, 0, 40],
            id: 3,
            chroma: 1,
            has_colour_planes: false,
            depths: (10, 8),
            frame_num_bits: 5,
            order_type: 0,
            order_bits: 6,
            has_order_deltas: false,
            columns: 20,
            rows: 12,
            frames_only: true,
        };
        assert_eq!(with_step(5), Some(expected));
    }

    #[test]
    fn sps_start_read_with_scaling_step_beyond_byte_fails() {
        assert!(with_step(127).is_some() && with_step(-128 + 1).is_some());
        for step in [128, -129, i32::MAX, -i32::MAX] {
            assert_eq!(with_step(step), None, "{step}");
        }
    }

    #[test]
    fn anything_at_all() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = SpsStart::read(&mut Bits::new(bytes));
        });
    }
}
