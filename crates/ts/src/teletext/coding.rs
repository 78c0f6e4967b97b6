//! How bits of teletext are protected (EN 300 706 section 8): four by four, or seven by one.

/// Stands for four bits that cannot be decoded.
const LOST: u8 = 0xff;

/// Bits of a byte in the order in which they are sent, the first one highest, to the order of their values.
pub(super) fn received<const N: usize>(sent: &[u8; N]) -> [u8; N] {
    sent.map(u8::reverse_bits)
}

/// The byte that protects four bits (section 8.2): P1 D1 P2 D2 P3 D3 P4 D4, the first one lowest.
const fn protected(value: u8) -> u8 {
    let (d1, d2, d3, d4) = (value & 1, value >> 1 & 1, value >> 2 & 1, value >> 3 & 1);
    let (p1, p2, p3) = (1 ^ d1 ^ d3 ^ d4, 1 ^ d1 ^ d2 ^ d4, 1 ^ d1 ^ d2 ^ d3);
    let p4 = 1 ^ p1 ^ d1 ^ p2 ^ d2 ^ p3 ^ d3 ^ d4;
    p1 | d1 << 1 | p2 << 2 | d2 << 3 | p3 << 4 | d3 << 5 | p4 << 6 | d4 << 7
}

/// Four bits of a byte; one wrong bit is repaired, of two it is noticed.
pub(super) fn nibble(byte: u8) -> Option<u8> {
    const TABLE: [u8; 256] = {
        let mut table = [LOST; 256];
        let mut value = 0;
        while value < 16 {
            let code = protected(value);
            table[code as usize] = value;
            let mut bit = 0;
            while bit < 8 {
                table[(code ^ 1 << bit) as usize] = value;
                bit += 1;
            }
            value += 1;
        }
        table
    };
    let value = TABLE[usize::from(byte)];
    (value != LOST).then_some(value)
}

/// Seven bits of a byte; `None` if one is wrong (section 8.1: odd parity).
pub(super) fn seven(byte: u8) -> Option<u8> {
    (byte.count_ones() % 2 == 1).then_some(byte & 0x7f)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes as the standard lists them (table 24).
    #[test]
    fn four_bits_are_protected_as_the_standard_has_it() {
        const LISTED: [u8; 16] =
            [0x15, 0x02, 0x49, 0x5e, 0x64, 0x73, 0x38, 0x2f, 0xd0, 0xc7, 0x8c, 0x9b, 0xa1, 0xb6, 0xfd, 0xea];
        for (value, &byte) in (0..).zip(&LISTED) {
            assert_eq!((protected(value), nibble(byte)), (byte, Some(value)));
            for one in 0..8 {
                assert_eq!(nibble(byte ^ 1 << one), Some(value), "one wrong bit");
                for other in (0..8).filter(|other| *other != one) {
                    assert_eq!(nibble(byte ^ 1 << one ^ 1 << other), None, "two wrong bits");
                }
            }
        }
    }

    #[test]
    fn parity_is_odd() {
        assert_eq!(
            (seven(0xc1), seven(0x41), seven(0x20), seven(0xa0)),
            (Some(0x41), None, Some(0x20), None)
        );
    }
}
