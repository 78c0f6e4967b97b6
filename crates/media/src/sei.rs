//! Supplemental enhancement information of H.264 and H.265 (ITU-T H.264 annex D, H.265 annex D).

use crate::bits::unescape;

use crate::limits::MAX_SEI_BYTES;

/// A decoder can start at this picture ([`payloads`]).
pub const RECOVERY_POINT: usize = 6;
/// Data registered by ITU-T T.35, for example captions.
pub const REGISTERED_DATA: usize = 4;
/// Transfer characteristics that describe the pictures better than those in the parameter set,
/// which are for older decoders.
const PREFERRED_TRANSFER: usize = 147;

/// The messages of a NAL unit without its header, as payload type and payload (H.264 section
/// 7.3.2.3.1, H.265 section 7.3.5).
pub fn payloads(unit: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    let bytes = unescape(unit, MAX_SEI_BYTES);
    let mut at = 0;
    std::iter::from_fn(move || {
        let kind = number(&bytes, &mut at)?;
        let length = number(&bytes, &mut at)?;
        let payload = bytes.get(at..at.checked_add(length)?)?.to_vec();
        at += length;
        Some((kind, payload))
    })
}

/// Reads a number: each byte of 255 adds 255 and continues it, any other byte ends it.
fn number(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut sum = 0;
    loop {
        let byte = usize::from(*bytes.get(*at)?);
        *at += 1;
        sum += byte;
        if byte != 0xff {
            return Some(sum);
        }
    }
}

/// The preferred transfer characteristics in a unit (H.264 section D.1.32, H.265 section D.2.38).
pub fn preferred_transfer(unit: &[u8]) -> Option<u8> {
    let (_, payload) = payloads(unit).find(|(kind, _)| *kind == PREFERRED_TRANSFER)?;
    payload.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_of_unit_are_its_messages() {
        let unit = [&[5, 3, 1, 2, 3, 147, 1, 18, 0xff, 2, 0xff, 1][..], &[7; 256], &[0x80]].concat();
        let found: Vec<_> = payloads(&unit).map(|(kind, payload)| (kind, payload.len())).collect();
        assert_eq!(found, [(5, 3), (147, 1), (257, 256)]);
        assert_eq!(preferred_transfer(&unit), Some(18));
        assert_eq!(preferred_transfer(&unit[..7]), None);
    }

    #[test]
    fn payloads_of_any_bytes_end() {
        bolero::check!().for_each(|bytes: &[u8]| assert!(payloads(bytes).count() <= bytes.len()));
    }
}
