//! Arithmetic in GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1, and the lookup tables of the kernels.

/// The field's polynomial without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Product of two elements.
pub const fn mul(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
        b >>= 1;
    }
    product
}

/// The same by tables, for when it is needed often.
pub(super) fn product(a: u8, b: u8) -> u8 {
    let table = &NIBBLES[usize::from(a)];
    table[usize::from(b & 15)] ^ table[16 + usize::from(b >> 4)]
}

/// The element whose product with `a` is 1; 0 for 0, which has none.
pub const fn inverse(a: u8) -> u8 {
    // a^254, since a^255 = 1 for every element but 0.
    let (mut power, mut square, mut exponent) = (1, a, 254);
    while exponent > 0 {
        if exponent & 1 != 0 {
            power = mul(power, square);
        }
        square = mul(square, square);
        exponent >>= 1;
    }
    power
}

/// For each coefficient its products with 0x00..=0x0f, then those with 0x00, 0x10, .. 0xf0: a byte's product is the sum of
/// the two that its halves choose.
pub(super) static NIBBLES: [[u8; 32]; 256] = nibbles();

/// For each coefficient its multiplication as the bit matrix that `vgf2p8affineqb` takes: byte 7 -
/// i selects the bits of the operand that add up to bit i of the product.
pub(super) static AFFINE: [u64; 256] = affine();

const fn nibbles() -> [[u8; 32]; 256] {
    let mut tables = [[0; 32]; 256];
    let mut c = 0;
    while c < 256 {
        let mut x = 0;
        while x < 16 {
            tables[c][x] = mul(c as u8, x as u8);
            tables[c][16 + x] = mul(c as u8, (x as u8) << 4);
            x += 1;
        }
        c += 1;
    }
    tables
}

const fn affine() -> [u64; 256] {
    let mut matrices = [0; 256];
    let mut c = 0;
    while c < 256 {
        let (mut matrix, mut column) = (0, 0);
        while column < 8 {
            let product = mul(c as u8, 1 << column);
            let mut bit = 0;
            while bit < 8 {
                matrix |= ((product >> bit & 1) as u64) << (8 * (7 - bit) + column);
                bit += 1;
            }
            column += 1;
        }
        matrices[c] = matrix;
        c += 1;
    }
    matrices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mul_by_two_generates_field_and_inverse_inverts() {
        let (mut power, mut seen) = (1, [false; 256]);
        for _ in 0..255 {
            assert!(!std::mem::replace(&mut seen[usize::from(power)], true));
            power = mul(power, 2);
        }
        assert_eq!((power, seen[0]), (1, false));
        assert!((1..=255).all(|a| mul(a, inverse(a)) == 1));
        assert_eq!(inverse(0), 0);
    }

    #[test]
    fn products_are_known_commute_and_distribute() {
        // 0x8e is the inverse of 2 modulo 0x11d, and no other field of 256 elements has it there.
        assert_eq!((mul(0x80, 2), mul(2, 0x8e), mul(0xff, 0xff)), (0x1d, 1, 0xe2));
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!((mul(a, b), product(a, b)), (mul(b, a), mul(a, b)));
                assert_eq!(mul(a, b) ^ mul(a, 0x35), mul(a, b ^ 0x35));
            }
        }
    }

    #[test]
    fn tables_say_what_the_product_is() {
        for c in 0..=255u8 {
            let (nibbles, matrix) = (&NIBBLES[usize::from(c)], AFFINE[usize::from(c)].to_le_bytes());
            for x in 0..=255u8 {
                let by_halves = nibbles[usize::from(x & 15)] ^ nibbles[16 + usize::from(x >> 4)];
                let bit = |i: usize| ((matrix[7 - i] & x).count_ones() as u8 & 1) << i;
                let by_matrix = (0..8).fold(0, |byte, i| byte | bit(i));
                assert_eq!((by_halves, by_matrix), (mul(c, x), mul(c, x)));
            }
        }
    }
}
