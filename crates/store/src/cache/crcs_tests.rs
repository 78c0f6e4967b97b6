use super::*;
use crate::cache::sample::noise;
use crate::crcs::CrcMaker;
use crate::disk::Disk;
use millrace_core::ids::TitleId;

/// The whole file of the CRCs of a title.
pub(in crate::cache) fn file_of(media: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("crcs.mrc");
    let mut maker = CrcMaker::create(&Disk::default(), &path).unwrap();
    maker.take(media).unwrap();
    maker.finish(TitleId([1; 16]), media.len() as u64).unwrap();
    std::fs::read(&path).unwrap()
}

#[test]
fn packets_of_any_size_are_wrong_exactly_where_they_touch_a_wrong_default_packet() {
    let media = noise(3, 1316 * 40 + 188 * 2);
    let file = file_of(&media);
    for size in [188, 940, 1316, 1880, 9024u64] {
        for at in [0usize, 1315, 1316, 20_000, 1316 * 40 + 3] {
            let mut read = media.clone();
            read[at..at + 4].rotate_left(2);
            assert!(read != media);
            let mut crcs = Crcs::default();
            assert!(crcs.load(&(0..41), std::iter::once(&file[4096..])));
            let mut walk = crcs.walk();
            let get =
                |bytes: &Range<u64>| read.get(bytes.start as usize..(bytes.end as usize).min(read.len()));
            for start in (0..media.len() as u64).step_by(size as usize) {
                let bytes = start..(start + size).min(media.len() as u64);
                let touched = packets_of(&bytes);
                let wrong =
                    touched.contains(&((at / 1316) as u32)) || touched.contains(&(((at + 3) / 1316) as u32));
                assert_eq!(walk.is_right(&bytes, get), !wrong, "{size} {at} {start}");
            }
        }
    }
}

#[test]
fn crcs_load_uses_first_good_copy_or_fails() {
    let media = noise(5, 1316 * 3);
    let file = file_of(&media);
    let mut bad = file.clone();
    bad[4096 + 5] ^= 1;
    let mut crcs = Crcs::default();
    assert!(crcs.load(&(1..3), [&bad[4096..], &file[4096..]].into_iter()));
    assert_eq!([1316..2632, 0..1316].map(|bytes| crcs.prove(1, &media[bytes])), [Some(true), Some(false)]);
    assert!(!crcs.load(&(1..3), std::iter::once(&bad[4096..])));
    assert_eq!(crcs.prove(1, &media[..1316]), None);
    assert!(crcs.walk().is_right(&(1316..2632), |_| None));
}

#[test]
fn to_borders_extends_range_to_packet_borders() {
    assert_eq!(to_borders(&(0..1316), 5000), 0..1316);
    assert_eq!(to_borders(&(940..1880), 5000), 0..2632);
    assert_eq!(to_borders(&(3948..5000), 5000), 3948..5000);
    assert_eq!(to_borders(&(2000..4000), 5000), 1316..5000);
}
