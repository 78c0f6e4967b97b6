//! Every way to add up against the definition, and the sums' arithmetic.

use proptest::prelude::*;

use super::*;

/// RFC 1071's definition, word by word, with nothing in common with the code under test.
fn reference(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for i in (0..bytes.len()).step_by(2) {
        let low = bytes.get(i + 1).copied().unwrap_or(0);
        sum += u32::from(bytes[i]) << 8 | u32::from(low);
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum as u16
}

fn available() -> impl Iterator<Item = ChecksumAlgorithm> {
    ChecksumAlgorithm::ALL.into_iter().filter(|kind| {
        let is_available = kind.is_available();
        if !is_available {
            eprintln!("skipped: this processor has no {kind:?}");
        }
        is_available
    })
}

#[test]
fn rfc_1071_example() {
    for kind in ChecksumAlgorithm::ALL {
        assert_eq!(sum16_with(kind, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2, "{kind:?}");
    }
}

#[test]
fn kind_best_is_available_on_this_machine() {
    assert!(ChecksumAlgorithm::best().is_available());
    assert!(ChecksumAlgorithm::Portable.is_available());
}

#[test]
fn zeros_and_ones() {
    for kind in available() {
        for bytes in [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 1316, 9000, 1_000_000] {
            assert_eq!(sum16_with(kind, &vec![0; bytes]), 0, "{kind:?} {bytes}");
            let ones = sum16_with(kind, &vec![0xff; bytes]);
            // The odd byte at the end is the upper one of its word.
            assert_eq!(ones, if bytes % 2 == 0 { 0xffff } else { 0xff00 }, "{kind:?} {bytes}");
        }
        assert_eq!(sum16_with(kind, &[]), 0, "{kind:?}");
    }
    assert_eq!(add(0xffff, 0), 0xffff);
    assert_eq!(add(0xffff, 1), 1);
}

#[test]
fn sum16_of_lengths_to_9000_at_any_alignment_equals_reference() {
    let mut random = crate::random::SplitMix(7);
    let bytes: Vec<u8> = (0..9064).map(|_| random.next() as u8).collect();
    for kind in available() {
        for length in (0..600).chain((600..=9000).step_by(97)).chain(8990..=9000) {
            let start = length % 64;
            let piece = &bytes[start..start + length];
            assert_eq!(sum16_with(kind, piece), reference(piece), "{kind:?}, {length} bytes from {start}");
        }
    }
}

#[test]
fn fold_keeps_residue_class_and_form_of_zero() {
    assert_eq!(fold(0), 0);
    for sum in [0xffff, 0xffff_0000, 0xffff_ffff, 0x1_fffe, 0xffff_ffff_0000_0000, u64::MAX] {
        assert_eq!(fold(sum), 0xffff, "{sum:#x}");
    }
    assert_eq!(fold(0x1_0000), 1);
    assert_eq!(fold(0xffff_ffff_0000_0001), 1);
}

/// Bytes with many zeros and ones among them, so that carries and both zeros come up.
fn bytes(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(0xff), any::<u8>()];
    prop_oneof![proptest::collection::vec(any::<u8>(), 0..most), proptest::collection::vec(byte, 0..most)]
}

proptest! {
    #[test]
    fn sum16_of_all_kinds_equals_reference(bytes in bytes(9100), start in 0usize..64) {
        let bytes = &bytes[start.min(bytes.len())..];
        let expected = reference(bytes);
        for kind in ChecksumAlgorithm::ALL {
            prop_assert_eq!(sum16_with(kind, bytes), expected, "{:?}", kind);
        }
        prop_assert_eq!(sum16(bytes), expected);
        let mut copy = vec![0; bytes.len()];
        prop_assert_eq!(copy_sum16(&mut copy, bytes), expected);
        prop_assert_eq!(&copy, bytes);
        copy.fill(1);
        prop_assert_eq!(fold(portable::copy_sum(&mut copy, bytes)).to_be(), expected);
        prop_assert_eq!(&copy, bytes);
    }

    #[test]
    fn fold_equals_sum_of_16_bit_words(sum: u64) {
        prop_assert_eq!(fold(sum), reference(&sum.to_be_bytes()));
    }

    #[test]
    fn composes_after_an_even_piece(a in bytes(300), b in bytes(300)) {
        let even = &a[..a.len() & !1];
        let whole = [even, &b].concat();
        prop_assert_eq!(add(sum16(even), sum16(&b)), sum16(&whole));
    }

    #[test]
    fn add_after_odd_length_piece_needs_byte_swap(a in bytes(300), b in bytes(300)) {
        let odd = [&a[..a.len() & !1], &[0xa5]].concat();
        let whole = [&odd[..], &b].concat();
        prop_assert_eq!(add(sum16(&odd), sum16(&b).swap_bytes()), sum16(&whole));
    }
}
