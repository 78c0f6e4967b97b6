//! The program config element of AAC (ISO/IEC 14496-3 section 4.5.2.1): the channel layout of a
//! stream whose channel configuration is 0. Frames begin with it, whereas decoders of fragmented
//! MP4 need it before the first frame, in the GASpecificConfig (section 4.4.1).

use crate::bits::Bits;

use crate::limits::MAX_PCE_BYTES;

/// `id_syn_ele` of a program config element.
const PROGRAM_CONFIG: u32 = 5;

/// A program config element, aligned to a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pce {
    bytes: [u8; MAX_PCE_BYTES],
    used: usize,
    /// Number of channels, low-frequency ones included.
    pub channels: u16,
}

/// Copies bits while parsing them.
struct Copy<'a> {
    from: Bits<'a>,
    out: [u8; MAX_PCE_BYTES],
    bits: usize,
}

impl Copy<'_> {
    fn number(&mut self, bits: u32) -> Option<u32> {
        let value = self.from.number(bits)?;
        for at in (0..bits).rev() {
            *self.out.get_mut(self.bits / 8)? |= ((value >> at & 1) as u8) << (7 - self.bits % 8);
            self.bits += 1;
        }
        Some(value)
    }

    /// Copies `count` channel elements and returns their number of channels. Each element is a
    /// single channel or a pair.
    fn elements(&mut self, count: u32) -> Option<u32> {
        (0..count).try_fold(0, |sum, _| {
            let is_pair = self.number(1)?;
            self.number(4)?;
            Some(sum + 1 + is_pair)
        })
    }
}

/// Reads the program config element at the beginning of a frame.
pub fn read(frame: &[u8]) -> Option<Pce> {
    let mut from = Bits::new(frame);
    if from.number(3)? != PROGRAM_CONFIG {
        return None;
    }
    let mut copy = Copy { from, out: [0; MAX_PCE_BYTES], bits: 0 };
    copy.number(10)?;
    let places = [copy.number(4)?, copy.number(4)?, copy.number(4)?];
    let (low, data, coupled) = (copy.number(2)?, copy.number(3)?, copy.number(4)?);
    // Mixdowns to mono, to stereo, and by a matrix.
    for bits in [4, 4, 3] {
        if copy.number(1)? == 1 {
            copy.number(bits)?;
        }
    }
    let mut channels = low;
    for count in places {
        channels += copy.elements(count)?;
    }
    (0..low + data).try_for_each(|_| copy.number(4).map(drop))?;
    copy.elements(coupled)?;
    // The comment is left out: one more byte, 0, is its length.
    let used = copy.bits.div_ceil(8) + 1;
    (channels > 0 && used <= MAX_PCE_BYTES).then_some(Pce {
        bytes: copy.out,
        used,
        channels: channels as u16,
    })
}

impl Pce {
    /// The element, padded to whole bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5.1 with side channels as FFmpeg writes it: a single channel and a pair in front, a pair at
    /// the sides, one low-frequency channel.
    #[test]
    fn read_of_side_channels_gives_six() {
        let bits =
            "101 0000 01 0011 0010 0001 0000 01 000 0000 0 0 0 0 0000 1 0000 1 0001 0000".replace(' ', "");
        let bits = format!("{bits:0<80}");
        let frame: Vec<u8> =
            (0..10).map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap()).collect();
        let pce = read(&frame).unwrap();
        assert_eq!(pce.channels, 6);
        assert_eq!(pce.bytes().len(), 8, "53 bits and an empty comment");
        // The same bits without the three bits of the identifier in front.
        assert!(
            pce.bytes()
                .iter()
                .zip(&frame)
                .zip(&frame[1..])
                .take(6)
                .all(|((out, a), b)| *out == a << 3 | b >> 5)
        );
    }

    #[test]
    fn read_of_another_element_gives_none() {
        assert_eq!(read(&[0x21, 0x10, 0, 0]), None);
        assert_eq!(read(&[0xa0]), None, "cut off");
    }

    #[test]
    fn read_of_anything_at_all_stays_in_bounds() {
        bolero::check!().for_each(|bytes: &[u8]| {
            assert!(read(bytes).is_none_or(|pce| pce.channels > 0 && pce.bytes().len() <= MAX_PCE_BYTES));
        });
    }
}
