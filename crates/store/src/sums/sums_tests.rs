use millrace_core::ids::TitleId;
use proptest::prelude::*;

use super::super::file::{SumsFile, SumsWriter};
use super::*;
use crate::StoreError;

/// A range sums file of some data, and the data.
struct SumsFixture {
    data: Vec<u8>,
    file: SumsFile,
    _dir: tempfile::TempDir,
}

impl SumsFixture {
    fn new(data: Vec<u8>, grain: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sums.mrr");
        let mut writer = SumsWriter::create(&crate::disk::Disk::default(), &path, grain).unwrap();
        for bytes in data.chunks(usize::from(grain)) {
            writer.push(sum16(bytes)).unwrap();
        }
        let done = writer.finish(TitleId([1; 16]), data.len() as u64).unwrap();
        let file = SumsFile::open(&path).unwrap();
        assert_eq!(done.bytes, file.header().file_bytes());
        Self { data, file, _dir: dir }
    }

    fn sum(&self, range: Range<u64>) -> u16 {
        let grain = u64::from(self.file.header().grain_bytes);
        let edges = |range: &Range<u64>, out: &mut [u8]| {
            assert!(range.end - range.start < grain, "an edge is less than a grain");
            out.copy_from_slice(&self.data[range.start as usize..range.end as usize]);
            Ok(())
        };
        self.file.sum(&range, edges).unwrap()
    }

    /// By the rule: the true sum, or its other zero where that is allowed.
    fn check(&self, range: Range<usize>) {
        let truth = sum16(&self.data[range.clone()]);
        let found = self.sum(range.start as u64..range.end as u64);
        assert!(congruent(found, truth), "{range:?}: {found:04x} for {truth:04x}");
        if found != truth {
            let nonzero_before = self.data[..range.start].iter().any(|&byte| byte != 0);
            assert!(
                nonzero_before && truth == 0 && found == 0xffff,
                "{range:?}: {found:04x} for {truth:04x}"
            );
        }
    }
}

/// Data with runs of 0x00 and 0xff in it, where the two zeros live.
fn data(len: usize, seed: u64) -> Vec<u8> {
    let noise = crate::cache::sample::noise(seed, len + 8);
    let kind = |at: usize| noise[at / 500] % 4;
    (0..len)
        .map(|at| match kind(at) {
            0 => 0x00,
            1 => 0xff,
            _ => noise[at],
        })
        .collect()
}

proptest! {
    #[test]
    fn sums_file_of_any_range_matches_computed_sum(
        seed: u64,
        len in 1usize..5000,
        grain in prop::sample::select(vec![2u16, 6, 64, 188, 376, 1316]),
        ends in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 20),
    ) {
        let sample = SumsFixture::new(data(len, seed), grain);
        for (a, b) in ends {
            let (a, b) = (a.index(len + 1), b.index(len + 1));
            sample.check(a.min(b)..a.max(b));
        }
        sample.check(0..len);
    }

    #[test]
    fn cuts_are_gapless(data_bytes in 0u64..10_000, grain in 1u16..500, a: u64, b: u64) {
        let header = SumsHeader { title: TitleId([0; 16]), grain_bytes: grain * 2, data_bytes };
        let (a, b) = (a % (data_bytes + 1), b % (data_bytes + 1));
        let (a, b) = (a.min(b), a.max(b));
        let cut = header.cut(&(a..b)).unwrap();
        let at = |grains: u64| (grains * u64::from(header.grain_bytes)).min(data_bytes);
        prop_assert_eq!((cut.head.start, cut.tail.end), (a, b));
        if cut.grains.is_empty() {
            prop_assert_eq!(cut.head.end, cut.tail.start);
        } else {
            prop_assert_eq!((cut.head.end, cut.tail.start), (at(cut.grains.start), at(cut.grains.end)));
        }
        let grain = u64::from(header.grain_bytes);
        prop_assert!(cut.tail.end - cut.tail.start < grain);
        prop_assert!(cut.head.end - cut.head.start < grain);
    }

    #[test]
    fn joined_pieces_are_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index) {
        let (a, b) = bytes.split_at(at.index(bytes.len() + 1));
        prop_assert_eq!(join(sum16(a), a.len() as u64, sum16(b)), sum16(&bytes));
    }
}

#[test]
fn ranges_over_many_blocks_and_at_their_borders() {
    let (grain, per_block) = (64, SUMS_PER_BLOCK * 64);
    let sample = SumsFixture::new(data(per_block * 3 + 100, 5), grain);
    let places = [0, 1, 63, 64, per_block - 64, per_block - 1, per_block, per_block + 1, 2 * per_block];
    let ends =
        [per_block, per_block + 64, 2 * per_block, 3 * per_block, per_block * 3 + 64, per_block * 3 + 100];
    for (a, b) in places.into_iter().flat_map(|a| ends.map(|b| (a, b))).filter(|(a, b)| a <= b) {
        sample.check(a..b);
    }
    // The same from a window of blocks that was read by other means.
    let bytes = std::fs::read(sample.file.path()).unwrap();
    let window = &bytes[2 * SUMS_BLOCK_BYTES..4 * SUMS_BLOCK_BYTES]; // blocks 1 and 2
    let blocks = SumsBlocks::open(window, 1).unwrap();
    let first = SUMS_PER_BLOCK as u64;
    for (from, to) in
        [(first, 3 * first), (first + 1, 2 * first), (2 * first, 3 * first), (2 * first, 2 * first + 5)]
    {
        assert_eq!(blocks.between(from, to), Ok(sample.file.between(from, to).unwrap()), "{from}..{to}");
    }
    assert_eq!(blocks.between(7, 7), Ok(0));
    for (from, to) in [(first - 1, first), (first, 3 * first + 1), (9, 8), (u64::MAX - 1, u64::MAX)] {
        assert_eq!(blocks.between(from, to), Err(SumsError::OutOfRange { from, to }));
    }
    assert!(matches!(SumsBlocks::open(window, 0), Err(SumsError::WrongBlock { block: 0, found: 1 })));
}

/// Nothing but zeros, nothing but ones, and zeros behind something: the rule, case by case.
#[test]
fn sum_of_all_zeros_or_all_ones_uses_documented_zero_form() {
    let zeros = SumsFixture::new(vec![0; 2000], 188);
    let ones = SumsFixture::new(vec![0xff; 2000], 188);
    let mut mixed = vec![0; 2000];
    mixed[0] = 9;
    let mixed = SumsFixture::new(mixed, 188);
    for range in [0..2000, 0..188, 188..376, 3..700, 188..188, 1999..2000, 0..1] {
        let empty = range.is_empty();
        assert_eq!(zeros.sum(range.clone()), 0, "zeros {range:?}");
        let odd = |range: &Range<u64>| (range.end - range.start) % 2 == 1;
        let of_ones = if odd(&range) { 0xff00 } else { 0xffff };
        assert_eq!(ones.sum(range.clone()), if empty { 0 } else { of_ones }, "ones {range:?}");
        if range.start >= 188 && range.end - range.start >= 188 {
            assert_eq!(mixed.sum(range.clone()), 0xffff, "zeros behind something {range:?}");
        }
    }
    assert_eq!(mixed.sum(188..188), 0);
    assert!(congruent(0, 0xffff) && congruent(0xffff, 0) && congruent(5, 5));
    assert!(!congruent(0, 1) && !congruent(0xfffe, 0xffff));
}

#[test]
fn sum_of_range_out_of_bounds_or_without_edge_fails() {
    let sample = SumsFixture::new(data(1000, 3), 188);
    let no_edges = |_: &Range<u64>, _: &mut [u8]| Ok(());
    for range in [Range { start: 3, end: 2 }, 0..1001] {
        let error = sample.file.sum(&range, no_edges).unwrap_err();
        assert!(matches!(error, StoreError::Sums { error: SumsError::OutOfRange { .. }, .. }), "{error}");
    }
    assert!(sample.file.between(0, 7).is_err());
    let cut = sample.file.header().cut(&(100..900)).unwrap();
    assert_eq!(cut.sum(&[0; 87], 0, &[]), Err(SumsError::Edge { given: 87, needed: 88 }));
}

#[test]
fn sums_file_open_of_damaged_file_names_fault() {
    let sample = SumsFixture::new(data(1000, 3), 188);
    let path = sample.file.path().to_path_buf();
    let whole = std::fs::read(&path).unwrap();
    for (at, name) in [(4096 + 1, "block 0"), (70, "checksum"), (20, "checksum")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let result = SumsFile::open(&path).and_then(|file| file.between(0, 3));
        assert!(result.unwrap_err().to_string().contains(name), "byte {at}");
    }
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(SumsFile::open(&path).unwrap_err().to_string().contains("promises"));
    std::fs::write(&path, &whole[..9]).unwrap();
    assert!(SumsFile::open(&path).unwrap_err().to_string().contains("header alone"));
}
