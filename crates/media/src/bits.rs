//! Bits of a raw byte sequence payload (ITU-T H.264 section 7.2, H.265 section 7.2): read, written, with emulation prevention taken
//! off and put in.

/// The payload of a NAL unit, at most `most` bytes of it, without its emulation prevention bytes (H.264 section 7.4.1).
pub fn unescape(nal: &[u8], most: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(nal.len().min(most));
    let mut zeros = 0;
    for &byte in nal {
        if out.len() == most {
            break;
        }
        if zeros >= 2 && byte == 3 {
            zeros = 0;
            continue;
        }
        zeros = if byte == 0 { zeros + 1 } else { 0 };
        out.push(byte);
    }
    out
}

/// Appends a payload with emulation prevention bytes.
pub fn escape(payload: &[u8], out: &mut Vec<u8>) {
    let mut zeros = 0;
    for &byte in payload {
        if zeros >= 2 && byte <= 3 {
            out.push(3);
            zeros = 0;
        }
        zeros = if byte == 0 { zeros + 1 } else { 0 };
        out.push(byte);
    }
    // A payload that ends with a zero (cabac_zero_words) may not meet the next start code.
    if payload.last() == Some(&0) {
        out.push(3);
    }
}

/// Reads bits, the highest of each byte first. Every read is `None` behind the end.
#[derive(Clone, Copy, Debug)]
pub struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    /// From the first bit on.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next bit.
    pub fn bit(&mut self) -> Option<bool> {
        let byte = self.bytes.get(self.at / 8)?;
        let bit = byte >> (7 - self.at % 8) & 1;
        self.at += 1;
        Some(bit == 1)
    }

    /// At most 32 bits as a number.
    pub fn number(&mut self, bits: u32) -> Option<u32> {
        (0..bits).try_fold(0u32, |value, _| Some(value << 1 | u32::from(self.bit()?)))
    }

    /// Skips this many bits.
    pub fn skip(&mut self, bits: usize) -> Option<()> {
        self.at = self.at.checked_add(bits).filter(|&at| at <= self.bytes.len() * 8)?;
        Some(())
    }

    /// Unsigned Exp-Golomb code (H.264 section 9.1).
    pub fn ue(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while !self.bit()? {
            zeros += 1;
            if zeros > 31 {
                return None;
            }
        }
        Some((1 << zeros) - 1 + self.number(zeros)?)
    }

    /// Signed Exp-Golomb code (H.264 section 9.1.1).
    pub fn se(&mut self) -> Option<i32> {
        let code = i64::from(self.ue()?);
        let value = if code % 2 == 1 { code / 2 + 1 } else { -(code / 2) };
        i32::try_from(value).ok()
    }

    /// Whole bytes from the next byte's boundary on.
    pub fn aligned_rest(&self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or(&[])
    }

    /// Bits up to, not including, the stop bit: the last one that is 1 (H.264 section 7.3.2.11). `None` if there is none ahead.
    pub fn before_stop(&self) -> Option<usize> {
        let last = self.bytes.iter().rposition(|&byte| byte != 0)?;
        let stop = last * 8 + 7 - self.bytes[last].trailing_zeros() as usize;
        stop.checked_sub(self.at)
    }
}

/// Writes bits.
#[derive(Debug, Default)]
pub struct BitsOut {
    bytes: Vec<u8>,
    /// Bits that are free in the last byte.
    free: u32,
}

impl BitsOut {
    /// Appends a bit.
    pub fn bit(&mut self, bit: bool) {
        if self.free == 0 {
            self.bytes.push(0);
            self.free = 8;
        }
        self.free -= 1;
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << self.free;
        }
    }

    /// Appends the lowest `bits` bits of a number.
    pub fn number(&mut self, value: u32, bits: u32) {
        (0..bits).rev().for_each(|i| self.bit(value >> i & 1 == 1));
    }

    /// Appends an unsigned Exp-Golomb code (ITU-T H.264 section 9.1).
    pub fn ue(&mut self, value: u32) {
        let code = u64::from(value) + 1;
        let bits = 64 - code.leading_zeros();
        (1..bits).for_each(|_| self.bit(false));
        (0..bits).rev().for_each(|i| self.bit(code >> i & 1 == 1));
    }

    /// Appends a signed Exp-Golomb code (section 9.1.1).
    pub fn se(&mut self, value: i32) {
        let double = value.unsigned_abs().saturating_mul(2);
        self.ue(if value > 0 { double - 1 } else { double });
    }

    /// Copies `bits` bits.
    pub fn copy(&mut self, from: &mut Bits<'_>, bits: usize) -> Option<()> {
        for _ in 0..bits {
            self.bit(from.bit()?);
        }
        Some(())
    }

    /// Fills the last byte with ones, as before CABAC data (H.264 section 7.3.4), and appends whole bytes.
    pub fn align_and_append(&mut self, bytes: &[u8]) {
        while self.free > 0 {
            self.bit(true);
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The stop bit and zeros up to the byte's end.
    pub fn stop(&mut self) {
        self.bit(true);
        self.free = 0;
    }

    /// The bytes up to now; the last one may be filled with zeros.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn codes_of_the_standard() {
        // H.264 table 9-2: 1, 010, 011, 00100.
        let mut bits = Bits::new(&[0b1010_0110, 0b0100_0000]);
        assert_eq!([bits.ue(), bits.ue(), bits.ue(), bits.ue()], [Some(0), Some(1), Some(2), Some(3)]);
        let mut bits = Bits::new(&[0b0100_1100, 0b1000_0000]);
        assert_eq!([bits.se(), bits.se(), bits.se()], [Some(1), Some(-1), Some(2)]);
        assert_eq!(Bits::new(&[0; 9]).ue(), None);
        assert_eq!(Bits::new(&[]).before_stop(), None);
        assert_eq!(Bits::new(&[0xff, 0b0101_0000, 0]).before_stop(), Some(11));
    }

    proptest! {
        #[test]
        fn bits_out_exp_golomb_codes_round_trip(numbers: Vec<u32>, signed: Vec<i16>) {
            let mut out = BitsOut::default();
            numbers.iter().for_each(|&n| out.ue(n % (1 << 31)));
            signed.iter().for_each(|&n| out.se(n.into()));
            out.stop();
            let mut bits = Bits::new(out.bytes());
            for n in numbers {
                prop_assert_eq!(bits.ue(), Some(n % (1 << 31)));
            }
            for n in signed {
                prop_assert_eq!(bits.se(), Some(n.into()));
            }
            prop_assert_eq!(bits.before_stop(), Some(0));
        }

        #[test]
        fn escape_of_any_payload_leaves_no_start_code(payload in proptest::collection::vec(0u8..5, 0..200)) {
            let mut nal = Vec::new();
            escape(&payload, &mut nal);
            prop_assert!(!nal.windows(3).any(|w| w[0] == 0 && w[1] == 0 && w[2] <= 2));
            let mut back = unescape(&nal, usize::MAX);
            if payload.last() == Some(&0) && back.last() == Some(&3) {
                back.pop();
            }
            prop_assert_eq!(back, payload);
        }
    }
}
