//! No bytes make a decoder panic, and an encoder reproduces everything that its decoder accepts.
//!
//! Each target runs on its seeds (`__fuzz__/<target>/corpus`) and on random input under plain
//! `cargo test`, and for any length of time under `cargo bolero test`. Random bytes never have the
//! right checksum, so the body targets seal their input first and thus reach the code behind the
//! frame check. `MILLRACE_WRITE_SEEDS=1` writes the seeds again.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_core::ids::TitleId;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::time::MediaTicks;
use millrace_store::format::frame::{self, FRAME_BYTES, FileKind};
use millrace_store::format::manifest::Manifest;
use millrace_store::format::members::MembersRecord;
use millrace_store::format::meta::{
    CrcHeader, META_BLOCK_BYTES, MetaHeader, PacketCrc, Record, RecordsHeader, seal_block,
};
use millrace_store::format::superblock::Superblock;
use millrace_store::format::{index, meta, sums};
use millrace_store::meta::RecordsFile;
use millrace_store::sums::{Derived, SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsBlock, SumsBlocks, SumsHeader};
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

#[test]
fn fuzz_file() {
    bolero::check!(name = "file").for_each(|file: &[u8]| {
        let opened: Vec<FileKind> =
            FileKind::ALL.into_iter().filter(|kind| frame::open(*kind, file).is_ok()).collect();
        assert!(opened.len() <= 1, "one file of two kinds");
        if let [kind] = opened[..] {
            let found = frame::peek(file).unwrap();
            assert_eq!(found.kind, kind);
            if found.version == kind.version() {
                assert_eq!(frame::seal_file(kind, &file[FRAME_BYTES..]), file);
            }
        }
        let decoded = [
            Superblock::decode(file).is_ok(),
            Manifest::decode(file).is_ok(),
            index::decode(file).is_ok(),
            MetaHeader::decode(file).is_ok(),
            CrcHeader::decode(file).is_ok(),
            SumsHeader::decode(file).is_ok(),
            MembersRecord::decode(file).is_ok(),
        ];
        assert!(decoded.iter().filter(|ok| **ok).count() <= opened.len(), "decoded without a right frame");
    });
}

#[test]
fn fuzz_superblock() {
    bolero::check!(name = "superblock").for_each(|body: &[u8]| {
        let file = frame::seal_file(FileKind::Superblock, body);
        if let Ok(block) = Superblock::decode(&file) {
            assert_eq!(block.encode()[FRAME_BYTES..], file[FRAME_BYTES..]);
            assert_eq!(Superblock::decode(&block.encode()), Ok(block));
            if block.geometry.check_supported("superblock").is_ok() {
                assert!(block.geometry.k <= 64 && block.geometry.m <= 8 && block.geometry.members <= 32);
            }
        }
    });
}

#[test]
fn fuzz_manifest() {
    bolero::check!(name = "manifest").for_each(|body: &[u8]| {
        if let Ok(manifest) = Manifest::decode(&frame::seal_file(FileKind::Manifest, body)) {
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    });
}

#[test]
fn fuzz_members() {
    bolero::check!(name = "members").for_each(|body: &[u8]| {
        if let Ok(record) = MembersRecord::decode(&frame::seal_file(FileKind::Members, body)) {
            assert!(record.generation > 0 && !record.members.is_empty());
            assert_eq!(MembersRecord::decode(&record.encode()), Ok(record));
        }
    });
}

#[test]
fn fuzz_index() {
    bolero::check!(name = "index").for_each(|body: &[u8]| {
        let file = frame::seal_file(FileKind::Index, body);
        let Ok(index) = index::decode(&file) else { return };
        assert_eq!(index::encode(&index), file);
        // Whatever was taken answers every question within the title.
        for t in
            [0, 1, index.duration().0 / 2, index.duration().0, u64::MAX].map(millrace_core::time::MediaTicks)
        {
            assert!(index.packet_at(t) <= index.packets());
            let point = index.access_at_or_before(t);
            assert!(point.time <= t && (point.packet == 0 || point.packet < index.packets()));
        }
    });
}

#[test]
fn fuzz_meta_header() {
    bolero::check!(name = "meta_header").for_each(|body: &[u8]| records_header::<PacketMeta>(body));
}

#[test]
fn fuzz_crc_header() {
    bolero::check!(name = "crc_header").for_each(|body: &[u8]| records_header::<PacketCrc>(body));
}

fn records_header<R: Record>(body: &[u8]) {
    let mut block = [0; META_BLOCK_BYTES];
    let len = body.len().min(META_BLOCK_BYTES - FRAME_BYTES);
    block[FRAME_BYTES..][..len].copy_from_slice(&body[..len]);
    let frame = frame::seal(R::KIND, &block[FRAME_BYTES..]);
    block[..FRAME_BYTES].copy_from_slice(&frame);
    if let Ok(header) = RecordsHeader::<R>::decode(&block) {
        assert_eq!(header.encode()[..], block);
        assert!(header.file_bytes() >= (1 + u64::from(header.blocks())) * META_BLOCK_BYTES as u64);
    }
}

#[test]
fn fuzz_meta_blocks() {
    bolero::check!(name = "meta_blocks").for_each(|input: &[u8]| records_blocks::<PacketMeta>(input));
}

#[test]
fn fuzz_crc_blocks() {
    bolero::check!(name = "crc_blocks").for_each(|input: &[u8]| records_blocks::<PacketCrc>(input));
}

fn records_blocks<R: Record>(input: &[u8]) {
    // Two numbers that define the request, then blocks; every second block gets a right end.
    let Some((asked, bytes)) = input.split_first_chunk::<6>() else { return };
    let first_block = u32::from(u16::from_le_bytes([asked[0], asked[1]]));
    let first = first_block * R::PER_BLOCK + u32::from(asked[2]);
    let count = usize::from(u16::from_le_bytes([asked[3], asked[4]])) % 2048;
    let mut blocks = bytes.to_vec();
    if asked[5] & 1 == 1 {
        blocks.resize(blocks.len().next_multiple_of(META_BLOCK_BYTES), 0);
    }
    for (number, block) in (first_block..).zip(blocks.as_chunks_mut().0) {
        if asked[5] & 2 == 2 || number.is_multiple_of(2) {
            seal_block(block, number);
        }
    }
    let mut out = vec![R::default(); count];
    if RecordsFile::<R>::decode(&blocks, first_block, first, &mut out).is_ok() {
        for (record, packet) in out.iter().zip(first..) {
            let block = (packet / R::PER_BLOCK - first_block) as usize * META_BLOCK_BYTES;
            let at = block + (packet % R::PER_BLOCK) as usize * R::LENGTH;
            let mut stored = Vec::new();
            record.append_to(&mut stored);
            assert_eq!(stored, blocks[at..at + R::LENGTH]);
        }
    }
}

#[test]
fn fuzz_sums_header() {
    bolero::check!(name = "sums_header").for_each(|body: &[u8]| {
        let mut block = [0; SUMS_BLOCK_BYTES];
        let len = body.len().min(SUMS_BLOCK_BYTES - FRAME_BYTES);
        block[FRAME_BYTES..][..len].copy_from_slice(&body[..len]);
        let frame = frame::seal(FileKind::Sums, &block[FRAME_BYTES..]);
        block[..FRAME_BYTES].copy_from_slice(&frame);
        let Ok(header) = SumsHeader::decode(&block) else { return };
        assert_eq!(header.encode()[..], block);
        // Whatever range of the data: its cut has no gaps, and its blocks lie in the file.
        let end = header.data_bytes;
        for range in [0..end, end / 3..end / 2, end / 7 + 1..end - end / 9, end..end] {
            let Some(cut) = header.cut(&range) else { continue };
            assert!(cut.head.start == range.start && cut.tail.end == range.end);
            let blocks = header.block_range(&cut.grains);
            assert!(cut.grains.is_empty() || blocks.end <= header.file_bytes(), "{range:?} {cut:?}");
        }
        for layout in [188, 1316, 8084].map(|size| WireLayout::new(size).unwrap()) {
            let Some(derived) = Derived::new(&header, layout, MediaTicks(1 << 30)) else { continue };
            for (first, count) in [(0, 1), (7, 1400), (u32::MAX - 3, 3)] {
                let ranges = [derived.meta_range(first, count), derived.sums_range(first, count)];
                assert!(ranges.iter().all(|range| range.start <= range.end), "{ranges:?}");
            }
        }
    });
}

#[test]
fn fuzz_sums_blocks() {
    bolero::check!(name = "sums_blocks").for_each(|input: &[u8]| {
        // The request, then blocks of records and blocks of range sums; most get a right end.
        let Some((asked, bytes)) = input.split_first_chunk::<8>() else { return };
        let (first_block, split) = (u32::from(asked[0] % 3), usize::from(asked[1]) % 4 * META_BLOCK_BYTES);
        let first = u32::from(u16::from_le_bytes([asked[2], asked[3]]));
        let count = usize::from(u16::from_le_bytes([asked[4], asked[5]])) % 2048;
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(META_BLOCK_BYTES), 0);
        let split = split.min(bytes.len());
        let (metas, sums) = bytes.split_at_mut(split);
        let header = SumsHeader::new(TitleId([1; 16]), 188, 188 * (1 + u64::from(asked[6]) * 50)).unwrap();
        let size = [188, 376, 1316, 8084][usize::from(asked[7]) % 4];
        let rule = Derived::new(&header, WireLayout::new(size).unwrap(), MediaTicks(1 << 39)).unwrap();
        // Where derive() looks for them, so that it gets beyond the numbers of the blocks.
        let number =
            |range: std::ops::Range<u64>| (range.start / SUMS_BLOCK_BYTES as u64).saturating_sub(1) as u32;
        let meta_first = number(rule.meta_range(first, count as u32));
        for (block, at) in metas.as_chunks_mut().0.iter_mut().zip(meta_first..) {
            seal_block(block, at);
        }
        for (block, at) in sums.as_chunks_mut().0.iter_mut().zip(first_block..) {
            if at % 3 != 2 || asked[6] % 2 == 0 {
                sums::seal_block(block, at, u16::from(asked[7]));
            }
        }
        if let Ok(blocks) = SumsBlocks::open(sums, first_block) {
            let held = (sums.len() / SUMS_BLOCK_BYTES * SUMS_PER_BLOCK) as u64;
            let from = u64::from(first_block) * SUMS_PER_BLOCK as u64;
            for (a, b) in
                [(0, 0), (from, from + held), (from + 3, from + held / 2), (u64::from(first), u64::MAX)]
            {
                let inside = a == b || a >= from && b <= from + held && a < b;
                assert_eq!(blocks.between(a, b).is_ok(), inside, "{a}..{b}");
            }
        }
        let mut out = vec![PacketMeta::default(); count];
        if rule.derive(metas, sums, first, &mut out).is_ok() {
            assert!(out.iter().all(|meta| meta.time().0 <= PacketMeta::MAX_TICKS));
        }
    });
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/__fuzz__").join(target).join("corpus")
}

/// Files of a small store, by target and name, as the targets take them.
fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = Film::new(2000, 1).add_sizes(&volume, "seed", &[SIZE, 9024]);
    let title = dir.path().join(format!("titles/{}", info.id));
    let superblock = fs::read(dir.path().join("volume.mrv")).unwrap();
    let manifest = fs::read(title.join("manifest.mrm")).unwrap();
    let index = fs::read(title.join("index.mri")).unwrap();
    let meta = fs::read(title.join("meta-9024.mrp")).unwrap();
    let sums = fs::read(title.join("sums.mrr")).unwrap();
    let crcs = fs::read(title.join("crcs.mrc")).unwrap();
    let default_meta = fs::read(title.join("meta-1316.mrp")).unwrap();
    let derived = [&[0, 1, 3, 0, 38, 0, 40, 3], &default_meta[META_BLOCK_BYTES..], &sums[SUMS_BLOCK_BYTES..]];
    let mut seeds = vec![
        ("meta_blocks", "valid".to_owned(), [&[0, 0, 3, 38, 0, 3], &meta[META_BLOCK_BYTES..]].concat()),
        ("crc_blocks", "valid".to_owned(), [&[0, 0, 3, 38, 0, 3], &crcs[META_BLOCK_BYTES..]].concat()),
        ("sums_blocks", "valid".to_owned(), derived.concat()),
    ];
    for (target, file) in [
        ("superblock", &superblock[..]),
        ("manifest", &manifest[..]),
        ("index", &index[..]),
        ("meta_header", &meta[..META_BLOCK_BYTES]),
        ("crc_header", &crcs[..META_BLOCK_BYTES]),
        ("sums_header", &sums[..SUMS_BLOCK_BYTES]),
    ] {
        let body = &file[FRAME_BYTES..];
        seeds.push((target, "valid".to_owned(), body.to_vec()));
        seeds.push((target, "cut".to_owned(), body[..body.len() / 2].to_vec()));
        seeds.push((target, "long".to_owned(), [body, &[0; 9]].concat()));
        for at in [1, body.len() / 3, body.len() - 1] {
            let mut changed = body.to_vec();
            changed[at] ^= 0x81;
            seeds.push((target, format!("changed-{at}"), changed));
        }
        seeds.push(("file", target.to_owned(), file.to_vec()));
        seeds.push(("file", format!("{target}-cut"), file[..FRAME_BYTES + 3].to_vec()));
    }
    seeds
}

/// The seeds in the tree must stay what their names say when the format changes.
#[test]
fn seeds_are_in_the_tree_and_the_valid_ones_are_valid() {
    if std::env::var_os("MILLRACE_WRITE_SEEDS").is_some() {
        for (target, name, bytes) in seeds() {
            fs::create_dir_all(corpus(target)).unwrap();
            fs::write(corpus(target).join(name), bytes).unwrap();
        }
    }
    for (target, name, _) in seeds() {
        // A manifest's length depends on random ids and the clock, so its changed places do too.
        let name =
            if target == "manifest" && name.starts_with("changed") { "changed-1".to_owned() } else { name };
        assert!(
            corpus(target).join(&name).is_file(),
            "{target}/{name} is missing: MILLRACE_WRITE_SEEDS=1 writes it"
        );
    }
    let valid = |target: &str, kind| frame::seal_file(kind, &fs::read(corpus(target).join("valid")).unwrap());
    Superblock::decode(&valid("superblock", FileKind::Superblock)).unwrap();
    Manifest::decode(&valid("manifest", FileKind::Manifest)).unwrap();
    index::decode(&valid("index", FileKind::Index)).unwrap();
    MetaHeader::decode(&valid("meta_header", FileKind::Meta)).unwrap();
    CrcHeader::decode(&valid("crc_header", FileKind::Crcs)).unwrap();
    SumsHeader::decode(&valid("sums_header", FileKind::Sums)).unwrap();
    for target in ["meta_blocks", "crc_blocks"] {
        let blocks = fs::read(corpus(target).join("valid")).unwrap();
        meta::open_block(blocks[6..].try_into().unwrap(), 0).unwrap();
    }
    let blocks = fs::read(corpus("sums_blocks").join("valid")).unwrap();
    meta::open_block(blocks[8..][..META_BLOCK_BYTES].try_into().unwrap(), 0).unwrap();
    SumsBlock::open(blocks[8 + META_BLOCK_BYTES..].try_into().unwrap(), 0).unwrap();
}
