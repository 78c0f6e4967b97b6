//! No bytes make a decoder panic, and what a decoder takes its encoder gives back.
//!
//! Each target runs on its seeds (`__fuzz__/<target>/corpus`) and on random input under plain `cargo test`, and for as
//! long as wanted under `cargo bolero test`. Random bytes never have the right checksum, so the body targets seal their
//! input first: they reach what lies behind the frame. `MILLRACE_WRITE_SEEDS=1` writes the seeds anew.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Film, SIZE};
use millrace_core::packet::PacketMeta;
use millrace_store::format::frame::{self, FRAME_BYTES, Kind};
use millrace_store::format::manifest::Manifest;
use millrace_store::format::meta::{META_BLOCK_BYTES, MetaHeader, RECORDS_PER_BLOCK, seal_block};
use millrace_store::format::superblock::Superblock;
use millrace_store::format::{index, meta};
use millrace_store::meta::MetaFile;
use millrace_store::volume::Volume;

#[test]
fn fuzz_file() {
    bolero::check!(name = "file").for_each(|file: &[u8]| {
        let opened: Vec<Kind> =
            Kind::ALL.into_iter().filter(|kind| frame::open(*kind, file).is_ok()).collect();
        assert!(opened.len() <= 1, "one file of two kinds");
        if let [kind] = opened[..] {
            assert_eq!(frame::peek(file).unwrap().kind, kind);
            assert_eq!(frame::seal_file(kind, &file[FRAME_BYTES..]), file);
        }
        let decoded = [
            Superblock::decode(file).is_ok(),
            Manifest::decode(file).is_ok(),
            index::decode(file).is_ok(),
            MetaHeader::decode(file).is_ok(),
        ];
        assert!(decoded.iter().filter(|ok| **ok).count() <= opened.len(), "decoded without a right frame");
    });
}

#[test]
fn fuzz_superblock() {
    bolero::check!(name = "superblock").for_each(|body: &[u8]| {
        let file = frame::seal_file(Kind::Superblock, body);
        if let Ok(block) = Superblock::decode(&file) {
            assert_eq!(block.encode()[..], file);
            let supported = block.geometry.check_supported("superblock").is_ok();
            assert_eq!(supported, (block.geometry.k, block.geometry.m, block.geometry.members) == (1, 0, 1));
        }
    });
}

#[test]
fn fuzz_manifest() {
    bolero::check!(name = "manifest").for_each(|body: &[u8]| {
        if let Ok(manifest) = Manifest::decode(&frame::seal_file(Kind::Manifest, body)) {
            assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
        }
    });
}

#[test]
fn fuzz_index() {
    bolero::check!(name = "index").for_each(|body: &[u8]| {
        let file = frame::seal_file(Kind::Index, body);
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
    bolero::check!(name = "meta_header").for_each(|body: &[u8]| {
        let mut block = [0; META_BLOCK_BYTES];
        let len = body.len().min(META_BLOCK_BYTES - FRAME_BYTES);
        block[FRAME_BYTES..][..len].copy_from_slice(&body[..len]);
        let frame = frame::seal(Kind::Meta, &block[FRAME_BYTES..]);
        block[..FRAME_BYTES].copy_from_slice(&frame);
        if let Ok(header) = MetaHeader::decode(&block) {
            assert_eq!(header.encode()[..], block);
            assert!(header.file_bytes() >= (1 + u64::from(header.blocks())) * META_BLOCK_BYTES as u64);
        }
    });
}

#[test]
fn fuzz_meta_blocks() {
    bolero::check!(name = "meta_blocks").for_each(|input: &[u8]| {
        // Two numbers that say what is asked for, then blocks; every second block gets a right end.
        let Some((asked, bytes)) = input.split_first_chunk::<6>() else { return };
        let first_block = u32::from(u16::from_le_bytes([asked[0], asked[1]]));
        let first = first_block * RECORDS_PER_BLOCK + u32::from(asked[2]);
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
        let mut out = vec![PacketMeta::default(); count];
        if MetaFile::decode(&blocks, first_block, first, &mut out).is_ok() {
            for (meta, packet) in out.iter().zip(first..) {
                let block = (packet / RECORDS_PER_BLOCK - first_block) as usize * META_BLOCK_BYTES;
                let at = block + (packet % RECORDS_PER_BLOCK) as usize * PacketMeta::BYTES;
                assert_eq!(meta.to_bytes(), blocks[at..at + PacketMeta::BYTES]);
            }
        }
    });
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/__fuzz__").join(target).join("corpus")
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
    let mut seeds =
        vec![("meta_blocks", "valid".to_owned(), [&[0, 0, 3, 38, 0, 3], &meta[META_BLOCK_BYTES..]].concat())];
    for (target, file) in [
        ("superblock", &superblock[..]),
        ("manifest", &manifest[..]),
        ("index", &index[..]),
        ("meta_header", &meta[..META_BLOCK_BYTES]),
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
    Superblock::decode(&valid("superblock", Kind::Superblock)).unwrap();
    Manifest::decode(&valid("manifest", Kind::Manifest)).unwrap();
    index::decode(&valid("index", Kind::Index)).unwrap();
    MetaHeader::decode(&valid("meta_header", Kind::Meta)).unwrap();
    let blocks = fs::read(corpus("meta_blocks").join("valid")).unwrap();
    meta::open_block(blocks[6..].try_into().unwrap(), 0).unwrap();
}
