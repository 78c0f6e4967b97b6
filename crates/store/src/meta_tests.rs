use std::fs;

use millrace_core::time::MediaTicks;
use proptest::prelude::*;

use super::*;

const TITLE: TitleId = TitleId([3; 16]);

fn meta(packet: u32) -> PacketMeta {
    PacketMeta::new(packet as u16 ^ 0x5555, (packet % 4) as u8, MediaTicks(u64::from(packet) * 300))
}

/// A file of `packets` records of full default-size packets.
fn written(dir: &Path, packets: u32) -> PathBuf {
    let path = dir.join("meta-1316.mrp");
    let mut writer = MetaWriter::create(&crate::disk::Disk::default(), &path).unwrap();
    for packet in 0..packets {
        writer.push(meta(packet)).unwrap();
    }
    let done = writer.finish(TITLE, 1316, u64::from(packets) * 1316).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!((done.bytes, done.blake3), (bytes.len() as u64, blake3::hash(&bytes)));
    path
}

#[test]
fn meta_file_read_of_any_range_returns_records() {
    let dir = tempfile::tempdir().unwrap();
    let packets = 510 * 130 + 7; // more blocks than one read or one write takes
    let file = MetaFile::open(&written(dir.path(), packets)).unwrap();
    assert_eq!((file.packets(), file.packet_bytes()), (packets, 1316));
    for (first, count) in
        [(0, packets), (509, 2), (510, 510), (packets - 1, 1), (packets, 0), (1, 510 * 65), (5, 0)]
    {
        let mut out = vec![PacketMeta::default(); count as usize];
        file.read(first, &mut out).unwrap();
        assert!(out.iter().zip(first..).all(|(found, packet)| *found == meta(packet)), "{first}+{count}");
    }
    for (first, count) in [(packets, 1), (0, packets + 1), (u32::MAX, 5)] {
        let error = file.read(first, &mut vec![PacketMeta::default(); count as usize]).unwrap_err();
        assert!(matches!(error, StoreError::Meta { error: MetaError::OutOfRange { .. }, .. }), "{error}");
    }
}

#[test]
fn block_range_covers_exactly_the_records() {
    assert_eq!(MetaFile::block_range(0, 1), 4096..8192);
    assert_eq!(MetaFile::block_range(0, 510), 4096..8192);
    assert_eq!(MetaFile::block_range(509, 2), 4096..12288);
    assert_eq!(MetaFile::block_range(510, 1), 8192..12288);
    assert!(MetaFile::block_range(1000, 0).is_empty());
    let end = MetaFile::block_range(u32::MAX - 1, u32::MAX);
    assert!(end.start < end.end && end.end > u64::from(u32::MAX));
}

#[test]
fn damage_is_seen_by_reads_that_touch_it_and_by_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), 510 * 3);
    let mut bytes = fs::read(&path).unwrap();
    bytes[4096 * 2 + 17] ^= 1; // block 1
    fs::write(&path, &bytes).unwrap();
    let file = MetaFile::open(&path).unwrap();
    let mut out = [PacketMeta::default(); 510];
    file.read(0, &mut out).unwrap();
    file.read(1020, &mut out).unwrap();
    let error = file.read(1019, &mut out).unwrap_err();
    assert!(matches!(error, StoreError::Meta { error: MetaError::Checksum { block: 1, .. }, .. }), "{error}");
    assert!(error.to_string().contains("meta-1316.mrp: metadata block 1: checksum"), "{error}");
    // The same block at another place: its own checksum is right, its number is not.
    bytes.copy_within(4096..8192, 8192);
    fs::write(&path, &bytes).unwrap();
    let error = MetaFile::open(&path).unwrap().read(510, &mut out).unwrap_err();
    assert!(
        matches!(error, StoreError::Meta { error: MetaError::WrongBlock { block: 1, found: 0 }, .. }),
        "{error}"
    );
}

#[test]
fn meta_file_open_with_wrong_length_or_header_fails() {
    let dir = tempfile::tempdir().unwrap();
    let path = written(dir.path(), 600);
    let bytes = fs::read(&path).unwrap();
    for len in [0, 100, 4095, 4096, 8192, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = MetaFile::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{len}: {error}");
    }
    for at in 0..4096 {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x40;
        fs::write(&path, &damaged).unwrap();
        let error = MetaFile::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Format { .. }), "byte {at}: {error}");
    }
}

#[test]
fn too_few_records_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = MetaWriter::create(&crate::disk::Disk::default(), &dir.path().join("m")).unwrap();
    writer.push(meta(0)).unwrap();
    let error = writer.finish(TITLE, 1316, 1317).unwrap_err();
    assert!(error.to_string().contains("1 records for packets of"), "{error}");
}

proptest! {
    #[test]
    fn decode_takes_no_record_from_outside(first in 0u32..2000, count in 0usize..2000, first_block in 0u32..4,
                                           blocks in 0usize..4, cut in 0usize..4096) {
        let mut bytes = Vec::new();
        for number in first_block..first_block + blocks as u32 {
            let mut block = [0; META_BLOCK_BYTES];
            for (i, record) in block.chunks_exact_mut(8).take(510).enumerate() {
                record.copy_from_slice(&meta(number * 510 + i as u32).to_bytes());
            }
            seal_block(&mut block, number);
            bytes.extend(block);
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        let held = first_block * 510..(first_block + (bytes.len() / 4096) as u32) * 510;
        let mut out = vec![PacketMeta::default(); count];
        let fits = first >= held.start && first + count as u32 <= held.end;
        prop_assert_eq!(MetaFile::decode(&bytes, first_block, first, &mut out).is_ok(), fits);
        if fits {
            prop_assert!(out.iter().zip(first..).all(|(found, packet)| *found == meta(packet)));
        }
    }
}
