//! Rewrites a picture so that it can follow any other without the stream around it, for pictures of
//! a title that are shown one by one.

use millrace_media::h264;
use millrace_media::units::{split, trimmed};

use super::h265;

/// Stream types (ISO/IEC 13818-1 table 2-34).
const H264: u8 = 0x1b;
const H265: u8 = 0x24;

/// Rewrites a picture at which decoding can start, with its parameter sets, as the beginning of a
/// sequence, so that its order count does not depend on earlier pictures. `number` distinguishes it
/// from its neighbours. A picture that cannot be rewritten is returned unchanged.
pub(crate) fn as_first(stream_type: u8, picture: &[u8], number: u32) -> Vec<u8> {
    let rewritten = match stream_type {
        H264 => h264_first(picture, number),
        H265 => h265_first(picture),
        _ => None,
    };
    rewritten.unwrap_or_else(|| picture.to_vec())
}

fn h264_first(picture: &[u8], number: u32) -> Option<Vec<u8>> {
    let mut out = h264::DELIMITER.to_vec();
    let (mut sps, mut all_pps) = (None, Vec::<h264::Pps>::new());
    for nal in split(picture).map(trimmed) {
        match nal.first()? & 0x1f {
            h264::nal::SPS => sps = Some(h264::sps(&nal[1..])?),
            h264::nal::PPS => {
                let pps = h264::Pps::parse(&nal[1..])?;
                all_pps.retain(|other| other.id != pps.id);
                all_pps.push(pps);
            }
            h264::nal::SLICE | h264::nal::IDR => {
                let of = h264::pps_of(nal)?;
                let pps = all_pps.iter().find(|pps| pps.id == of)?;
                let slice = h264::Slice::parse(nal, sps.as_ref()?, pps)?;
                // Both fields of a frame in one PES packet: the second is no IDR picture.
                if slice.field.is_some() || !slice.can_stand_alone() {
                    return None;
                }
                continue;
            }
            _ => continue,
        }
        out.extend([0, 0, 1]);
        out.extend_from_slice(nal);
    }
    h264::rewrite_picture(picture, None, &sps?, &all_pps, number & 1, &mut out)?;
    Some(out)
}

fn h265_first(picture: &[u8]) -> Option<Vec<u8>> {
    let mut out = h265::DELIMITER.to_vec();
    for nal in split(picture).map(trimmed) {
        if h265::is_set(nal.first()?) {
            out.extend([0, 0, 1]);
            out.extend_from_slice(nal);
        } else {
            h265::rewrite(nal, &mut out);
        }
    }
    Some(out)
}
