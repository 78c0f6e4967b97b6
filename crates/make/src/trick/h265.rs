//! H.265 (ITU-T H.265, ISO/IEC 23008-2): which pictures can be decoded alone.
//!
//! An IRAP picture needs no other. A CRA picture that does not come first names pictures that
//! followers need; relabelled as BLA, which changes only its type, it starts afresh like one behind
//! a splice (sections 7.4.2.2 and 8.1.3).

use std::collections::BTreeMap;

use millrace_media::bits::{Bits, unescape};

use super::pictures::{OpenPicture, Parameters};

const BLA_N_LP: u8 = 18;
const IRAP: std::ops::RangeInclusive<u8> = 16..=21;
const CRA: u8 = 21;
const VPS: u8 = 32;
const SPS: u8 = 33;
const PPS: u8 = 34;
/// An access unit delimiter: I slices only (section 7.3.2.5).
pub(super) const DELIMITER: [u8; 7] = [0, 0, 0, 1, 35 << 1, 1, 0x10];

/// The end of a coded video sequence (section 7.3.2.6), so that a decoder waits for no other picture.
pub(super) const END: [u8; 6] = [0, 0, 0, 1, 36 << 1, 1];

pub(super) fn type_of(head: &[u8]) -> u8 {
    head[0] >> 1 & 0x3f
}

/// Whether a unit may begin a picture (section 7.4.2.4.4).
pub(super) fn begins(head: &[u8]) -> bool {
    match type_of(head) {
        0..=31 => head.get(2).is_some_and(|byte| byte & 0x80 != 0),
        32..=35 | 39 | 41..=44 | 48..=55 => true,
        _ => false,
    }
}

/// The current parameter sets.
#[derive(Debug, Default)]
pub(super) struct H265ParameterSets {
    /// By type and id: units with their headers.
    sets: BTreeMap<(u8, u32), Vec<u8>>,
    /// The highest temporal sub-layer: below it others may refer to any picture.
    layers: u8,
}

impl H265ParameterSets {
    /// Parameters come with the first slice of an IRAP picture.
    pub(super) fn unit(&mut self, head: &[u8], open: &mut OpenPicture) -> Option<Parameters> {
        let (kind, layer) = (type_of(head), (head[0] & 1) << 5 | head.get(1)? >> 3);
        if layer != 0 {
            return None; // another view or quality
        }
        match kind {
            VPS..=PPS => {
                open.has_header |= kind == SPS;
                let id = id_of(kind, head)?;
                self.sets.insert((kind, id), head.to_vec());
                None
            }
            0..=31 => {
                let is_first = !std::mem::replace(&mut open.has_data, true);
                let temporal = (head.get(1)? & 7).saturating_sub(1);
                self.layers = self.layers.max(temporal);
                // Even types below 16: not referred to in their own sub-layer (table 7-1).
                open.is_reference |= kind >= 16 || kind % 2 == 1 || temporal < self.layers;
                open.is_alone &= IRAP.contains(&kind);
                open.is_access |= IRAP.contains(&kind);
                let has_all = |kind: u8| self.sets.keys().any(|&(set, _)| set == kind);
                if !is_first || !open.is_alone || !(VPS..=PPS).all(has_all) {
                    return None;
                }
                let sets = self.sets.values().flat_map(|set| [&[0, 0, 0, 1][..], set.as_slice()]);
                Some(Parameters { bytes: sets.collect::<Vec<_>>().concat(), h264: None })
            }
            _ => None,
        }
    }
}

/// The id of a parameter set (sections 7.3.2.1 to 7.3.2.3).
fn id_of(kind: u8, nal: &[u8]) -> Option<u32> {
    let payload = unescape(nal.get(2..)?, 256);
    let mut bits = Bits::new(&payload);
    match kind {
        VPS => bits.number(4),
        SPS => {
            bits.skip(4)?;
            let sub_layers = bits.number(3)?;
            bits.skip(1 + 88 + 8)?;
            let present: Vec<(bool, bool)> =
                (0..sub_layers).map(|_| Some((bits.bit()?, bits.bit()?))).collect::<Option<_>>()?;
            if sub_layers > 0 {
                bits.skip(2 * (8 - sub_layers as usize))?;
            }
            for (profile, level) in present {
                bits.skip(if profile { 88 } else { 0 } + if level { 8 } else { 0 })?;
            }
            bits.ue()
        }
        _ => bits.ue(),
    }
}

/// Whether a unit with this first byte is a parameter set.
pub(super) fn is_set(head: &u8) -> bool {
    matches!(head >> 1 & 0x3f, VPS | SPS | PPS)
}

/// Appends a unit of an IRAP picture as one that may follow anything; units other than slices are
/// left out.
pub(super) fn rewrite(nal: &[u8], out: &mut Vec<u8>) {
    let kind = nal.first().map_or(u8::MAX, |byte| byte >> 1 & 0x3f);
    if !IRAP.contains(&kind) {
        return;
    }
    let kind = if kind == CRA { BLA_N_LP } else { kind };
    out.extend([0, 0, 1, nal[0] & 0x81 | kind << 1]);
    out.extend_from_slice(&nal[1..]);
}
