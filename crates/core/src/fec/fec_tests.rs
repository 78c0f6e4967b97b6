//! The code: that any k symbols give the others, that all kernels agree, that updating is encoding again.

use proptest::prelude::*;

use super::*;
use crate::limits::MAX_DECODE_PLANS;
use crate::random::SplitMix;

fn noise(random: &mut SplitMix, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|_| random.next() as u8).collect()
}

fn slices(blocks: &[Vec<u8>]) -> Vec<&[u8]> {
    blocks.iter().map(|block| &block[..]).collect()
}

/// Fills blocks of `bytes` through `work`, from garbage: the code must not rely on previous
/// contents.
fn filled(count: usize, bytes: usize, work: impl FnOnce(&mut [&mut [u8]])) -> Vec<Vec<u8>> {
    let mut blocks = vec![vec![0xa5; bytes]; count];
    let mut slices: Vec<&mut [u8]> = blocks.iter_mut().map(|block| &mut block[..]).collect();
    work(&mut slices);
    blocks
}

/// Computes the code by definition, without any table: the Cauchy matrix with scaled columns,
/// symbol by symbol.
fn by_definition(code: &Code, data: &[Vec<u8>], bytes: usize) -> Vec<Vec<u8>> {
    let parity = |p: usize, at: usize| {
        data.iter().enumerate().fold(0, |sum, (j, symbol)| {
            let cauchy = |row: usize| inverse(((code.k() + row) ^ j) as u8);
            let coefficient = mul(cauchy(p), inverse(cauchy(0)));
            sum ^ mul(coefficient, symbol.get(at).copied().unwrap_or(0))
        })
    };
    (0..code.m()).map(|p| (0..bytes).map(|at| parity(p, at)).collect()).collect()
}

#[test]
fn codes_exist_within_their_bounds_and_their_first_parity_is_xor() {
    assert!(Code::new(0, 2).is_none() && Code::new(65, 2).is_none() && Code::new(8, 9).is_none());
    for k in 1..=64 {
        for m in 0..=8 {
            let code = Code::new(k, m).unwrap();
            assert_eq!((code.k(), code.m()), (k, m));
            assert!((0..k).all(|j| m == 0 || code.coefficient(0, j) == 1));
            assert!((0..m).all(|p| (0..k).all(|j| code.coefficient(p, j) != 0)));
            assert_eq!((code.coefficient(m, 0), code.coefficient(0, k)), (0, 0));
        }
    }
}

#[test]
fn parities_that_were_stored_once_stay_the_same() {
    // The matrix is part of the format of volumes and of FEC packets: these bytes may never change.
    let code = Code::new(4, 4).unwrap();
    let row = |p| (0..4).map(|j| code.coefficient(p, j)).collect::<Vec<u8>>();
    assert_eq!([row(0), row(1), row(2), row(3)], EXPECTED_4_4);
    let data: Vec<Vec<u8>> = (0..4).map(|j| vec![1 << j, 0x47, 0xff - j]).collect();
    let parity = filled(4, 3, |parity| code.encode(&slices(&data), parity));
    assert_eq!(parity, EXPECTED_PARITY);
}

/// ISA-L's results for the same matrix (`tests/reference/isal.py`).
const EXPECTED_4_4: [[u8; 4]; 4] = [[1; 4], [166, 70, 187, 123], [245, 104, 143, 82], [210, 143, 245, 200]];
const EXPECTED_PARITY: [[u8; 3]; 4] =
    [[0x0f, 0, 0], [0x03, 0x08, 0x36], [0x89, 0x10, 0xac], [0x2c, 0x18, 0x9a]];

proptest! {
    #[test]
    fn encode_with_any_kernel_equals_definition(
        k in 1_usize..=64, m in 0_usize..=8, passed in 0_usize..=64, bytes in 0_usize..700, seed: u64,
    ) {
        let code = Code::new(k, m).unwrap();
        let mut random = SplitMix(seed);
        // Some symbols are shorter, some empty, some not passed at all; starts are aligned to nothing.
        let length = |random: &mut SplitMix| match random.below(4) {
            0 => random.below(bytes as u64 + 1) as usize,
            _ => bytes,
        };
        let skip = random.below(64) as usize;
        let data: Vec<Vec<u8>> = (0..passed.min(k)).map(|_| {
            let bytes = length(&mut random);
            noise(&mut random, bytes)
        }).collect();
        let shifted: Vec<Vec<u8>> = data.iter().map(|d| [vec![0x5a; skip], d.clone()].concat()).collect();
        let views: Vec<&[u8]> = shifted.iter().map(|d| &d[skip..]).collect();
        let expected = by_definition(&code, &data, bytes);
        for kernel in Kernel::available() {
            let parity = filled(m, bytes, |parity| code.encode_with(kernel, &views, parity));
            prop_assert_eq!(&parity, &expected, "{:?}", kernel);
            // Fewer parities are the first ones.
            let some = random.below(m as u64 + 1) as usize;
            let first = filled(some, bytes, |parity| code.encode_with(kernel, &views, parity));
            prop_assert_eq!(&first[..], &expected[..some], "{:?}", kernel);
        }
    }

    #[test]
    fn restore_with_any_kernel_returns_lost_symbols(
        k in 1_usize..=64, m in 1_usize..=8, bytes in 1_usize..400, seed: u64,
    ) {
        let code = Code::new(k, m).unwrap();
        let mut random = SplitMix(seed);
        let mut symbols: Vec<Vec<u8>> = (0..k).map(|_| noise(&mut random, bytes)).collect();
        symbols.extend(filled(m, bytes, |parity| code.encode(&slices(&symbols[..k]), parity)));
        let mut present = u128::MAX;
        for _ in 0..m {
            present &= !(1 << random.below((k + m) as u64));
        }
        let plan = code.plan(present).unwrap();
        let sources: Vec<&[u8]> = plan.sources().iter().map(|s| &symbols[*s][..]).collect();
        for kernel in Kernel::available() {
            let out = filled(plan.restores().len(), bytes, |out| plan.restore_with(kernel, &sources, out));
            let expected: Vec<Vec<u8>> = plan.restores().iter().map(|s| symbols[*s].clone()).collect();
            prop_assert_eq!(out, expected, "{:?}", kernel);
        }
    }

    #[test]
    fn update_with_new_symbol_equals_encoding_again(
        k in 1_usize..=64, m in 0_usize..=8, bytes in 0_usize..400, seed: u64,
    ) {
        let code = Code::new(k, m).unwrap();
        let mut random = SplitMix(seed);
        let mut data: Vec<Vec<u8>> = (0..k).map(|_| noise(&mut random, bytes)).collect();
        let before = filled(m, bytes, |parity| code.encode(&slices(&data), parity));
        let index = random.below(k as u64) as usize;
        let length = random.below(bytes as u64 + 1) as usize;
        let old = std::mem::replace(&mut data[index], noise(&mut random, length));
        let expected = filled(m, bytes, |parity| code.encode(&slices(&data), parity));
        for kernel in Kernel::available() {
            let updated = filled(m, bytes, |parity| {
                parity.iter_mut().zip(&before).for_each(|(to, from)| to.copy_from_slice(from));
                code.update_with(kernel, index, &old, &data[index], parity);
            });
            prop_assert_eq!(&updated, &expected, "{:?}", kernel);
        }
    }
}

#[test]
fn encode_of_blocks_larger_than_l1_cache_equals_scalar() {
    let mut random = SplitMix(9);
    for (k, m) in (1..=8).map(|m| (9 - m % 2, m)) {
        let code = Code::new(k, m).unwrap();
        let data: Vec<Vec<u8>> = (0..k).map(|_| noise(&mut random, 6 * 1316 + m)).collect();
        let encode =
            |kernel| filled(m, data[0].len(), |parity| code.encode_with(kernel, &slices(&data), parity));
        let expected = encode(Kernel::Scalar);
        assert!(Kernel::available().all(|kernel| encode(kernel) == expected), "{k}+{m}");
    }
}

/// Tries every pattern of loss of every code with this many symbols: restored if k symbols are
/// left, refused if not.
fn all_patterns(symbols: usize) {
    const BYTES: usize = 3;
    for m in 0..symbols.min(9) {
        let k = symbols - m;
        let code = Code::new(k, m).unwrap();
        let mut random = SplitMix((symbols * 16 + m) as u64);
        let mut all: Vec<Vec<u8>> = (0..k).map(|_| noise(&mut random, BYTES)).collect();
        all.extend(filled(m, BYTES, |parity| code.encode(&slices(&all), parity)));
        for present in 0..1_u128 << symbols {
            let Some(plan) = code.plan(present) else {
                assert!((present.count_ones() as usize) < k, "{k}+{m} {present:b}");
                continue;
            };
            assert!(present.count_ones() as usize >= k && plan.sources().len() == k);
            assert!(plan.sources().iter().all(|s| present >> s & 1 == 1));
            assert!(
                plan.restores()
                    .iter()
                    .eq((0..k).filter(|s| present >> s & 1 == 0).collect::<Vec<_>>().iter())
            );
            let sources: [&[u8]; 14] =
                std::array::from_fn(|i| plan.sources().get(i).map_or(&[][..], |s| &all[*s]));
            let mut blocks = [[0xa5; BYTES]; 8];
            let mut out = blocks.each_mut().map(|block| &mut block[..]);
            let lost = plan.restores().len();
            plan.restore(&sources[..k], &mut out[..lost]);
            assert!(
                plan.restores().iter().zip(&blocks).all(|(s, block)| all[*s] == block),
                "{k}+{m} {present:b}"
            );
        }
    }
}

#[test]
fn restore_of_all_loss_patterns_up_to_11_symbols_succeeds() {
    (1..=11).for_each(all_patterns);
}

#[test]
fn restore_of_all_loss_patterns_of_12_symbols_succeeds() {
    all_patterns(12);
}

#[test]
fn restore_of_all_loss_patterns_of_13_symbols_succeeds() {
    all_patterns(13);
}

#[test]
fn restore_of_all_loss_patterns_of_14_symbols_succeeds() {
    all_patterns(14);
}

#[test]
fn plan_for_single_loss_uses_xor_parity_only() {
    let code = Code::new(5, 3).unwrap();
    let plan = code.plan(0b0010_1011 | 0b1100_0000).unwrap();
    assert_eq!((plan.sources(), plan.restores()), (&[0, 1, 3, 5, 6][..], &[2, 4][..]));
    let plan = code.plan(0b1111_1011).unwrap();
    assert_eq!((plan.sources(), plan.restores()), (&[0, 1, 3, 4, 5][..], &[2][..]));
    let sources = [[1_u8; 4], [2; 4], [4; 4], [8; 4], [16; 4]];
    let mut two = [0; 4];
    plan.restore(&sources.each_ref().map(|s| &s[..]), &mut [&mut two]);
    assert_eq!(two, [31; 4]);
}

#[test]
fn plan_without_losses_restores_nothing() {
    let code = Code::new(3, 1).unwrap();
    let plan = code.plan(u128::MAX).unwrap();
    assert_eq!((plan.sources(), plan.restores()), (&[0, 1, 2][..], &[][..]));
    plan.restore(&[b"a", b"b", b"c"], &mut []);
}

#[test]
fn plans_are_made_once_and_forgotten_in_the_order_of_use() {
    let mut plans = Plans::new(Code::new(16, 8).unwrap());
    let pattern = |n: usize| !(1_u128 << (n % 16)) & !(1 << (n / 16 % 16)) & !(1 << (n / 256 + 3));
    let first = plans.plan(pattern(0)).unwrap();
    let mut seen = std::collections::HashSet::new();
    let patterns: Vec<u128> = (0..4096).map(pattern).filter(|p| seen.insert(*p)).collect();
    for present in patterns.iter().take(2 * MAX_DECODE_PLANS) {
        // Asked for in between, so it stays although many others come.
        assert!(Arc::ptr_eq(&plans.plan(patterns[0]).unwrap(), &first));
        let plan = plans.plan(*present).unwrap();
        assert!(Arc::ptr_eq(&plans.plan(*present).unwrap(), &plan));
        // Bits beyond the code's symbols make no pattern of their own.
        assert!(Arc::ptr_eq(&plans.plan(present ^ 1 << 100).unwrap(), &plan));
        assert!(plans.len() <= MAX_DECODE_PLANS);
    }
    assert_eq!(plans.len(), MAX_DECODE_PLANS);
    assert!(plans.plan(0xffff >> 1).is_none());
    assert_eq!(plans.len(), MAX_DECODE_PLANS);
}

#[test]
fn counters_count_what_is_encoded_and_restored() {
    // Other tests count at the same time, so these are lower bounds.
    let code = Code::new(2, 1).unwrap();
    let before = counters();
    let mut parity = [0; 1000];
    code.encode(&[&[1; 1000], &[2; 500]], &mut [&mut parity]);
    assert!(counters().encoded_bytes >= before.encoded_bytes + 1500);
    let mut lost = [0; 1000];
    code.plan(0b110).unwrap().restore(&[&[2; 500], &parity], &mut [&mut lost]);
    assert_eq!(lost, [1; 1000]);
    assert!(counters().decoded_bytes >= before.decoded_bytes + 1000);
}
