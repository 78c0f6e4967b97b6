//! fsck: a whole store has no findings, and every promise that is broken is found under its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_store::check::{CheckProgress, Depth, Finding, Severity, check_store};
use millrace_store::format::manifest::Manifest;
use millrace_store::format::meta::{META_BLOCK_BYTES, seal_block};
use millrace_store::format::superblock::{Geometry, Superblock};
use millrace_store::format::{Uuid, index, sums};
use millrace_store::index::TitleIndex;
use millrace_store::sums::{SUMS_BLOCK_BYTES, SUMS_PER_BLOCK, SumsBlock};
use millrace_store::volume::{Derived, FinishTitle, NewSubtitles, TitleWriter, Volume};
use millrace_testkit::titles as common;
use millrace_testkit::titles::{Film, SIZE};

/// Every promise by its name, in the order in which they are checked.
const PROMISES: [&str; 42] = [
    "superblock_is_readable",
    "geometry_is_supported",
    "members_file_is_readable",
    "every_member_is_there",
    "every_member_is_active",
    "members_agree",
    "store_holds_only_its_files",
    "tmp_holds_only_living_work",
    "titles_holds_only_titles",
    "manifest_is_readable",
    "title_is_on_every_member",
    "manifests_agree",
    "names_are_unique",
    "derived_titles_have_a_parent",
    "catalogue_agrees",
    "placement_is_supported",
    "title_is_of_this_volume",
    "every_file_is_there",
    "no_other_file_is_there",
    "index_agrees_with_manifest",
    "meta_agrees_with_manifest",
    "meta_blocks_are_whole",
    "time_index_agrees_with_meta",
    "access_points_agree_with_meta",
    "packet_sizes_agree",
    "range_sums_agree_with_manifest",
    "range_sum_blocks_are_whole",
    "range_sums_agree_with_meta",
    "crcs_agree_with_manifest",
    "crc_blocks_are_whole",
    "subtitles_are_whole",
    "parity_meta_agrees_with_manifest",
    "parity_times_agree_with_meta",
    "data_is_as_ingested",
    "sums_are_of_the_data",
    "range_sums_are_of_the_data",
    "crcs_are_of_the_data",
    "data_is_a_transport_stream",
    "index_and_meta_are_as_ingested",
    "units_are_as_ingested",
    "parity_sums_are_of_the_parity",
    "parity_is_of_the_data",
];

fn check(dir: &Path, depth: Depth) -> Vec<Finding> {
    check_store(dir, depth, &mut |_| {}).unwrap()
}

/// A store with one title in two packet sizes, closed.
struct Fixture {
    dir: tempfile::TempDir,
    title: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume::open_or_create(dir.path()).unwrap();
        let info = Film::new(6000, 1).add_sizes(&volume, "film", &[188 * 3, SIZE]);
        let title = dir.path().join(format!("titles/{}", info.id));
        Self { dir, title }
    }

    fn store(&self) -> &Path {
        self.dir.path()
    }

    /// Adds a track of subtitles to the title; returns the name of its file.
    fn add_subtitles(&self) -> String {
        let volume = Volume::open(self.store()).unwrap();
        let id = volume.find("film").unwrap().unwrap().id;
        let text = "WEBVTT\n\n00:01.000 --> 00:02.000\nHello\n".to_owned();
        let new = NewSubtitles { label: "en".parse().unwrap(), name: None, text, source: None };
        volume.put_subtitles(id, &new).unwrap();
        let track = volume.find("film").unwrap().unwrap().subtitles.remove(0);
        track.file
    }

    fn flip(&self, file: &str, at: usize) {
        let path = self.title.join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 0x10;
        fs::write(path, bytes).unwrap();
    }

    /// Writes a manifest that is right in itself.
    fn forge_manifest(&self, change: impl FnOnce(&mut Manifest)) {
        let path = self.title.join("manifest.mrm");
        let mut manifest = Manifest::decode(&fs::read(&path).unwrap()).unwrap();
        change(&mut manifest);
        fs::write(path, manifest.encode()).unwrap();
    }

    /// Writes a file and its length and hash into the manifest, as a faulty writer would.
    fn forge_file(&self, name: &str, bytes: &[u8]) {
        fs::write(self.title.join(name), bytes).unwrap();
        self.forge_manifest(|manifest| {
            let file = manifest.files.iter_mut().find(|f| f.name == name).unwrap();
            file.bytes = bytes.len() as u64;
            file.blake3 = blake3::hash(bytes).to_hex().to_string();
            if name == "data.ts" {
                manifest.title.blake3.clone_from(&file.blake3);
            }
        });
    }

    /// Changes one record of a metadata file, with its checksums right.
    fn forge_meta(&self, name: &str, packet: usize, change: impl FnOnce(PacketMeta) -> PacketMeta) {
        let mut bytes = fs::read(self.title.join(name)).unwrap();
        let (blocks, _) = bytes.as_chunks_mut::<META_BLOCK_BYTES>();
        let block = &mut blocks[1 + packet / 510];
        let record = &mut block[packet % 510 * 8..][..8];
        let changed = change(PacketMeta::from_bytes(record.try_into().unwrap()));
        record.copy_from_slice(&changed.to_bytes());
        seal_block(block, (packet / 510) as u32);
        self.forge_file(name, &bytes);
    }

    /// Changes the CRC of a packet, with the block's checksum right; a packet behind the last one, too.
    fn forge_crc(&self, packet: usize) {
        let mut bytes = fs::read(self.title.join("crcs.mrc")).unwrap();
        let (blocks, _) = bytes.as_chunks_mut::<META_BLOCK_BYTES>();
        let block = &mut blocks[1 + packet / 1020];
        block[packet % 1020 * 4] ^= 1;
        seal_block(block, (packet / 1020) as u32);
        self.forge_file("crcs.mrc", &bytes);
    }

    /// Adds `by` to one of the sums of a range sums file, with the block's checksum right; `grain` 0 is the first.
    fn forge_sums(&self, grain: usize, by: u16) {
        let mut bytes = fs::read(self.title.join("sums.mrr")).unwrap();
        let (blocks, _) = bytes.as_chunks_mut::<SUMS_BLOCK_BYTES>();
        let number = grain / SUMS_PER_BLOCK;
        let block = &mut blocks[1 + number];
        let base = SumsBlock::open(block, number as u32).unwrap().base();
        let sum = &mut block[grain % SUMS_PER_BLOCK * 2..][..2];
        let changed = u16::from_le_bytes([sum[0], sum[1]]).wrapping_add(by);
        sum.copy_from_slice(&changed.to_le_bytes());
        sums::seal_block(block, number as u32, base);
        self.forge_file("sums.mrr", &bytes);
    }

    fn forge_index(&self, change: impl FnOnce(&mut millrace_store::index::IndexParts)) {
        let good = index::decode(&fs::read(self.title.join("index.mri")).unwrap()).unwrap();
        let mut parts = good.parts().clone();
        change(&mut parts);
        self.forge_file("index.mri", &index::encode(&TitleIndex::from_parts(parts).unwrap()));
    }

    fn sql(&self, sql: &str) {
        rusqlite::Connection::open(self.store().join("catalogue.sqlite"))
            .unwrap()
            .execute_batch(sql)
            .unwrap();
    }
}

fn later(meta: PacketMeta) -> PacketMeta {
    PacketMeta::new(meta.sum(), meta.flags(), MediaTicks(meta.time().0 + 30))
}

/// Ways to break guarantees: the guarantee, the change made, and the depth that the check needs.
type Damage = (&'static str, Depth, fn(&Fixture));

const DAMAGES: &[Damage] = &[
    ("superblock_is_readable", Depth::Quick, |f| fs::remove_file(f.store().join("volume.mrv")).unwrap()),
    ("superblock_is_readable", Depth::Quick, |f| fs::write(f.store().join("volume.mrv"), b"junk").unwrap()),
    ("geometry_is_supported", Depth::Quick, |f| {
        let path = f.store().join("volume.mrv");
        let mut block = Superblock::decode(&fs::read(&path).unwrap()).unwrap();
        block.geometry = Geometry { k: 80, m: 1, unit_packets: 20, members: 3 };
        fs::write(path, block.encode()).unwrap();
    }),
    ("store_holds_only_its_files", Depth::Quick, |f| fs::write(f.store().join("film.mkv"), b"x").unwrap()),
    ("store_holds_only_its_files", Depth::Quick, |f| {
        fs::write(f.store().join("catalogue.sqlite.damaged"), b"x").unwrap();
    }),
    ("store_holds_only_its_files", Depth::Quick, |f| fs::remove_dir_all(f.store().join("tmp")).unwrap()),
    ("tmp_holds_only_living_work", Depth::Quick, |f| {
        fs::create_dir(f.store().join("tmp").join("cd".repeat(16))).unwrap();
    }),
    ("tmp_holds_only_living_work", Depth::Quick, |f| {
        fs::create_dir(f.store().join("tmp").join(format!("{}.rm", "cd".repeat(16)))).unwrap();
    }),
    ("tmp_holds_only_living_work", Depth::Quick, |f| fs::write(f.store().join("tmp/notes"), b"x").unwrap()),
    ("titles_holds_only_titles", Depth::Quick, |f| fs::create_dir(f.store().join("titles/backup")).unwrap()),
    ("manifest_is_readable", Depth::Quick, |f| f.flip("manifest.mrm", 200)),
    ("manifest_is_readable", Depth::Quick, |f| fs::remove_file(f.title.join("manifest.mrm")).unwrap()),
    ("names_are_unique", Depth::Quick, |f| {
        // A title copied by hand under another id, with all that belongs to it.
        let volume = Volume::open(f.store()).unwrap();
        let info = Film::new(50, 2).add(&volume, "other");
        let path = f.store().join(format!("titles/{}/manifest.mrm", info.id));
        let mut manifest = Manifest::decode(&fs::read(&path).unwrap()).unwrap();
        manifest.title.name = "film".to_owned();
        fs::remove_file(&path).unwrap();
        fs::write(path, manifest.encode()).unwrap();
        volume.titles().unwrap();
    }),
    ("derived_titles_have_a_parent", Depth::Quick, |f| {
        let volume = Volume::open(f.store()).unwrap();
        let film = Film::new(50, 2);
        let parent = film.add(&volume, "other");
        let derived = Derived::at_speed(parent.id, "-4".parse().unwrap());
        let finish = FinishTitle { derived: Some(derived), ..film.finish("") };
        film.write(&volume, &[1316]).unwrap().commit(finish).unwrap();
        fs::remove_dir_all(f.store().join(format!("titles/{}", parent.id))).unwrap();
        volume.titles().unwrap();
    }),
    ("catalogue_agrees", Depth::Quick, |f| fs::remove_file(f.store().join("catalogue.sqlite")).unwrap()),
    ("catalogue_agrees", Depth::Quick, |f| fs::write(f.store().join("catalogue.sqlite"), b"junk").unwrap()),
    ("catalogue_agrees", Depth::Quick, |f| f.sql("DELETE FROM title")),
    ("catalogue_agrees", Depth::Quick, |f| f.sql("UPDATE title SET name = 'x'")),
    ("catalogue_agrees", Depth::Quick, |f| f.sql("PRAGMA user_version = 7")),
    ("placement_is_supported", Depth::Quick, |f| {
        f.forge_manifest(|m| {
            // Longer stripes than this version has room for.
            m.placement.k = 80;
            m.placement.stripes = m.placement.geometry().stripes(m.title.packets);
        });
    }),
    ("title_is_of_this_volume", Depth::Quick, |f| f.forge_manifest(|m| m.placement.volume = Uuid([9; 16]))),
    ("title_is_of_this_volume", Depth::Quick, |f| {
        f.forge_manifest(|m| m.placement.members[0].member = Uuid([9; 16]))
    }),
    ("every_file_is_there", Depth::Quick, |f| fs::remove_file(f.title.join("data.ts")).unwrap()),
    ("every_file_is_there", Depth::Quick, |f| fs::remove_file(f.title.join("index.mri")).unwrap()),
    ("every_file_is_there", Depth::Full, |f| {
        let data = fs::read(f.title.join("data.ts")).unwrap();
        fs::write(f.title.join("data.ts"), &data[..data.len() - 188]).unwrap();
    }),
    ("no_other_file_is_there", Depth::Quick, |f| fs::write(f.title.join("meta-188.mrp"), b"half").unwrap()),
    ("index_agrees_with_manifest", Depth::Quick, |f| f.flip("index.mri", 100)),
    ("index_agrees_with_manifest", Depth::Quick, |f| {
        f.forge_index(|parts| parts.duration = MediaTicks(parts.duration.0 + 1));
    }),
    ("meta_agrees_with_manifest", Depth::Quick, |f| f.flip("meta-564.mrp", 100)),
    ("meta_agrees_with_manifest", Depth::Quick, |f| {
        // The header of another title, right in itself.
        let mut bytes = fs::read(f.title.join("meta-1316.mrp")).unwrap();
        let mut header = millrace_store::meta::MetaHeader::decode(&bytes[..META_BLOCK_BYTES]).unwrap();
        header.title.0[0] ^= 1;
        bytes[..META_BLOCK_BYTES].copy_from_slice(&header.encode()[..]);
        f.forge_file("meta-1316.mrp", &bytes);
    }),
    ("meta_blocks_are_whole", Depth::Quick, |f| f.flip("meta-1316.mrp", 4096 + 11)),
    ("meta_blocks_are_whole", Depth::Quick, |f| f.flip("meta-564.mrp", 3 * 4096 + 4090)),
    ("meta_blocks_are_whole", Depth::Quick, |f| {
        f.forge_meta("meta-1316.mrp", 700, |m| PacketMeta::new(m.sum(), m.flags(), MediaTicks(0)));
    }),
    ("meta_blocks_are_whole", Depth::Quick, |f| {
        f.forge_meta("meta-1316.mrp", 857, |m| later(later(later(m))))
    }),
    ("meta_blocks_are_whole", Depth::Quick, |f| {
        f.forge_meta("meta-1316.mrp", 858, |_| PacketMeta::from_bytes([1; 8]))
    }),
    ("time_index_agrees_with_meta", Depth::Quick, |f| f.forge_index(|parts| parts.times[2].0 += 1)),
    ("access_points_agree_with_meta", Depth::Quick, |f| f.forge_index(|parts| parts.access[3].time.0 += 1)),
    ("access_points_agree_with_meta", Depth::Quick, |f| {
        f.forge_meta("meta-1316.mrp", 100, |m| PacketMeta::new(m.sum(), 0, m.time()));
    }),
    ("packet_sizes_agree", Depth::Quick, |f| f.forge_meta("meta-564.mrp", 1001, |m| later(later(m)))),
    ("range_sums_agree_with_manifest", Depth::Quick, |f| f.flip("sums.mrr", 100)),
    ("range_sum_blocks_are_whole", Depth::Quick, |f| f.flip("sums.mrr", 4096 + 11)),
    ("range_sum_blocks_are_whole", Depth::Quick, |f| f.forge_sums(2039, 1)), // the next block does not follow
    ("range_sum_blocks_are_whole", Depth::Quick, |f| f.forge_sums(6000, 1)), // behind the last grain
    ("range_sums_agree_with_meta", Depth::Quick, |f| f.forge_sums(7 * 5 - 1, 1)),
    ("range_sums_are_of_the_data", Depth::Full, |f| f.forge_sums(7 * 5 + 3, 1)), // within a packet
    ("crcs_agree_with_manifest", Depth::Quick, |f| f.flip("crcs.mrc", 100)),
    ("crc_blocks_are_whole", Depth::Quick, |f| f.flip("crcs.mrc", 4096 + 11)),
    ("crc_blocks_are_whole", Depth::Quick, |f| f.forge_crc(900)), // behind the last packet
    ("crcs_are_of_the_data", Depth::Full, |f| f.forge_crc(5)),
    ("data_is_as_ingested", Depth::Full, |f| f.flip("data.ts", 1316 * 5 + 77)),
    ("sums_are_of_the_data", Depth::Full, |f| {
        f.forge_meta("meta-564.mrp", 1, |m| PacketMeta::new(m.sum() ^ 1, m.flags(), m.time()));
    }),
    ("subtitles_are_whole", Depth::Quick, |f| f.flip(&f.add_subtitles(), 20)),
    ("data_is_a_transport_stream", Depth::Full, |f| f.flip("data.ts", 188 * 9)),
    ("index_and_meta_are_as_ingested", Depth::Full, |f| {
        f.forge_manifest(|m| {
            m.files.iter_mut().find(|f| f.name == "index.mri").unwrap().blake3 = "0".repeat(64)
        });
    }),
];

/// Those that a volume of one member without parity cannot break; `repair_check.rs` breaks them.
const OF_SEVERAL_MEMBERS: [&str; 11] = [
    "members_file_is_readable",
    "every_member_is_there",
    "every_member_is_active",
    "members_agree",
    "title_is_on_every_member",
    "manifests_agree",
    "parity_meta_agrees_with_manifest",
    "parity_times_agree_with_meta",
    "units_are_as_ingested",
    "parity_sums_are_of_the_parity",
    "parity_is_of_the_data",
];

#[test]
fn check_store_of_intact_store_has_no_findings() {
    let fixture = Fixture::new();
    let volume = Volume::open(fixture.store()).unwrap();
    Film::new(1, 2).add(&volume, "one packet");
    let info = Film::new(510 * 7, 3).add(&volume, "whole blocks");
    volume.add_packet_size(info.id, 188 * 7 * 2).unwrap();
    volume.add_packet_size(info.id, 188).unwrap();
    assert_eq!(check(fixture.store(), Depth::Full), [], "while it is open");
    let film = Film::new(20, 4);
    let writer = film.write(&volume, &[SIZE]).unwrap();
    assert_eq!(check(fixture.store(), Depth::Full), [], "while something is ingested");
    writer.commit(film.finish("x")).unwrap();
    drop(volume);
    assert_eq!(check(fixture.store(), Depth::Full), [], "when it is closed");
}

#[test]
fn check_store_finds_broken_promises_by_name() {
    for (i, (promise, depth, damage)) in DAMAGES.iter().enumerate() {
        let fixture = Fixture::new();
        damage(&fixture);
        let findings = check(fixture.store(), *depth);
        let of_promise: Vec<_> = findings.iter().filter(|f| f.promise == *promise).collect();
        assert!(!of_promise.is_empty(), "damage {i}: {promise} not among {findings:#?}");
        for finding in of_promise {
            assert!(finding.path.starts_with(fixture.store()), "{finding}");
            assert!(!finding.what.is_empty() && !finding.remedy.is_empty(), "{finding}");
        }
    }
    let broken: BTreeSet<&str> = DAMAGES.iter().map(|(promise, ..)| *promise).collect();
    let tested: BTreeSet<&str> = broken.into_iter().chain(OF_SEVERAL_MEMBERS).collect();
    assert_eq!(tested, BTreeSet::from(PROMISES), "a promise without a test, or a test without a promise");
}

#[test]
fn check_store_locates_flipped_data_byte() {
    let fixture = Fixture::new();
    fixture.flip("data.ts", 1316 * 600 + 9);
    assert_eq!(check(fixture.store(), Depth::Quick), [], "a quick check reads no data");
    let findings = check(fixture.store(), Depth::Full);
    assert_eq!(findings.len(), 1, "one damage, one finding: {findings:#?}");
    let finding = &findings[0];
    assert_eq!((finding.severity, finding.promise), (Severity::Error, "data_is_as_ingested"));
    assert_eq!(finding.path, fixture.title.join("data.ts"));
    let byte = 188 * 3 * (1316 * 600 / (188 * 3)); // of the first size, 564
    assert!(
        finding.what.contains(&format!("1 packet with a wrong sum, the first at byte {byte}")),
        "{finding}"
    );
    assert!(finding.remedy.contains("remove title film and add /films/film again"), "{finding}");
    assert!(finding.to_string().starts_with("error: /"), "{finding}");
}

#[test]
fn quick_check_finds_flipped_bytes_in_small_files() {
    let fixture = Fixture::new();
    for name in ["manifest.mrm", "index.mri", "meta-1316.mrp", "sums.mrr", "crcs.mrc"] {
        let len = fs::read(fixture.title.join(name)).unwrap().len();
        for at in (0..len).step_by(41) {
            fixture.flip(name, at);
            let findings = check(fixture.store(), Depth::Quick);
            let errors: Vec<_> = findings.iter().filter(|f| f.severity == Severity::Error).collect();
            assert!(
                errors.iter().any(|f| f.path == fixture.title.join(name)),
                "{name} byte {at}: {findings:?}"
            );
            fixture.flip(name, at);
        }
    }
    assert_eq!(check(fixture.store(), Depth::Full), []);
}

#[test]
fn open_repairs_findings_marked_for_next_open() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.store().join("tmp").join("cd".repeat(16))).unwrap();
    fs::create_dir(fixture.store().join("tmp").join(format!("{}.rm", "cd".repeat(16)))).unwrap();
    fixture.sql("DELETE FROM title");
    let findings = check(fixture.store(), Depth::Quick);
    assert_eq!(findings.len(), 3);
    for finding in findings {
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy.contains("when the store is next opened"), "{finding}");
    }
    Volume::open(fixture.store()).unwrap();
    assert_eq!(check(fixture.store(), Depth::Quick), []);
}

#[test]
fn check_store_changes_nothing_and_reports_progress() {
    let fixture = Fixture::new();
    let volume = Volume::open(fixture.store()).unwrap();
    Film::new(3000, 5).add(&volume, "second");
    fs::create_dir(fixture.store().join("tmp").join("cd".repeat(16))).unwrap();
    let before = common::tree(fixture.store());
    let mut told: Vec<CheckProgress> = Vec::new();
    check_store(fixture.store(), Depth::Full, &mut |progress| told.push(progress.clone())).unwrap();
    assert_eq!(common::tree(fixture.store()), before);
    let last = told.last().unwrap();
    assert_eq!((last.titles_done, last.titles_total), (2, 2));
    assert_eq!((last.bytes_done, last.bytes_total), (9000 * 188, 9000 * 188));
    assert!(
        told.windows(2).all(|w| w[0].bytes_done <= w[1].bytes_done && w[0].titles_done <= w[1].titles_done)
    );
    assert!(told.len() > 8, "more than a word at the start and one at the end");
    drop(TitleWriter::begin(&volume, &[SIZE]).unwrap());
}

#[test]
fn check_store_of_missing_directory_fails_and_of_any_other_reports() {
    let dir = tempfile::tempdir().unwrap();
    assert!(check_store(&dir.path().join("missing"), Depth::Quick, &mut |_| {}).is_err());
    let promises: BTreeSet<_> = check(dir.path(), Depth::Full).iter().map(|f| f.promise).collect();
    assert_eq!(promises, BTreeSet::from(["superblock_is_readable", "store_holds_only_its_files"]));
}

#[test]
fn store_format_reference_lists_all_promises() {
    let reference = include_str!("../../../../docs/ref/store-format.md");
    for promise in PROMISES {
        assert!(
            reference.contains(&format!("`{promise}`")),
            "docs/ref/store-format.md does not have {promise}"
        );
    }
}

#[test]
fn check_store_of_closed_store_leaves_files_unchanged() {
    let fixture = Fixture::new();
    let read = || -> Vec<_> {
        let tree = common::tree(fixture.store());
        tree.into_iter()
            .map(|name| (fs::read(fixture.store().join(&name)).unwrap_or_default(), name))
            .collect()
    };
    let before = read();
    assert_eq!(check(fixture.store(), Depth::Full), []);
    assert!(before == read());
}
