//! fsck of volumes of several members and of parity: a whole one has no findings, and every promise that is broken is found
//! under its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::crc_support;
use crate::repair_support;
use crate::repair_support::{Members, flip};
use millrace_core::packet::PacketMeta;
use millrace_core::time::MediaTicks;
use millrace_store::check::{Depth, Finding, Severity, check_store};
use millrace_store::format::manifest::Manifest;
use millrace_store::format::meta::{META_BLOCK_BYTES, seal_block};
use millrace_store::format::superblock::Geometry;
use millrace_store::members::MemberState;
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

/// Three members that tolerate the loss of one, with a title in two packet sizes; closed.
struct Fixture {
    world: Members,
    id: String,
}

impl Fixture {
    fn new() -> Self {
        let (world, volume) = Members::new(3, 1);
        let info = Film::new(3001, 1).add_sizes(&volume, "film", &[188 * 3, SIZE]);
        Self { world, id: info.id.to_string() }
    }

    fn file(&self, member: usize, name: &str) -> PathBuf {
        self.world.dirs[member].join("titles").join(&self.id).join(name)
    }

    fn check(&self, depth: Depth) -> Vec<Finding> {
        let dir = self.world.dirs.iter().find(|dir| dir.is_dir()).unwrap();
        check_store(dir, depth, &mut |_| {}).unwrap()
    }

    /// Changes files on all members alike, and their lengths and hashes in the manifests, as a faulty writer would.
    fn forge(&self, member: usize, name: &str, change: impl Fn(&mut Vec<u8>)) {
        let shared = name.ends_with("mrp") || name.ends_with("mri");
        let mut bytes = fs::read(self.file(member, name)).unwrap();
        change(&mut bytes);
        for i in (0..3).filter(|&i| shared || i == member) {
            fs::write(self.file(i, name), &bytes).unwrap();
        }
        let path = self.file(0, "manifest.mrm");
        let mut manifest = Manifest::decode(&fs::read(path).unwrap()).unwrap();
        let files = if shared { &mut manifest.files } else { &mut manifest.placement.members[member].files };
        let entry = files.iter_mut().find(|file| file.name == name).unwrap();
        entry.blake3 = blake3::hash(&bytes).to_hex().to_string();
        (0..3).for_each(|i| fs::write(self.file(i, "manifest.mrm"), manifest.encode()).unwrap());
    }

    fn strip_crcs(&self) {
        (0..3).for_each(|i| crc_support::strip_crcs(self.file(i, "manifest.mrm").parent().unwrap()));
    }

    /// Changes one record of a file of metadata, with its checksums right.
    fn forge_record(&self, name: &str, packet: usize, change: impl Fn(PacketMeta) -> PacketMeta) {
        self.forge(0, name, |bytes| {
            let (blocks, _) = bytes.as_chunks_mut::<META_BLOCK_BYTES>();
            let block = &mut blocks[1 + packet / 510];
            let record = &mut block[packet % 510 * 8..][..8];
            let changed = change(PacketMeta::from_bytes(record.try_into().unwrap()));
            record.copy_from_slice(&changed.to_bytes());
            seal_block(block, (packet / 510) as u32);
        });
    }
}

/// Ways to break guarantees: the guarantee, the change made, and the depth that the check needs.
type Damage = (&'static str, Depth, fn(&Fixture));

const DAMAGES: &[Damage] = &[
    ("members_file_is_readable", Depth::Quick, |f| flip(&f.world.dirs[0].join("members.mrm"), 80)),
    ("every_member_is_there", Depth::Quick, |f| f.world.pull(1)),
    ("every_member_is_there", Depth::Quick, |f| fs::remove_file(f.world.dirs[2].join("volume.mrv")).unwrap()),
    ("every_member_is_active", Depth::Quick, |f| {
        f.world.open().set_member_state(1, MemberState::Stale).unwrap();
    }),
    ("members_agree", Depth::Quick, |f| fs::remove_file(f.world.dirs[1].join("members.mrm")).unwrap()),
    ("members_agree", Depth::Quick, |f| flip(&f.world.dirs[1].join("members.mrm"), 80)),
    ("members_agree", Depth::Quick, |f| {
        let old = fs::read(f.world.dirs[2].join("members.mrm")).unwrap();
        let volume = f.world.open();
        volume.set_member_state(1, MemberState::Stale).unwrap();
        volume.set_member_state(1, MemberState::Active).unwrap();
        fs::write(f.world.dirs[2].join("members.mrm"), old).unwrap();
    }),
    ("title_is_on_every_member", Depth::Quick, |f| {
        fs::remove_dir_all(f.world.dirs[2].join("titles").join(&f.id)).unwrap();
    }),
    ("manifests_agree", Depth::Quick, |f| {
        let mut manifest = Manifest::decode(&fs::read(f.file(1, "manifest.mrm")).unwrap()).unwrap();
        manifest.title.notes.push("another".to_owned());
        fs::write(f.file(1, "manifest.mrm"), manifest.encode()).unwrap();
    }),
    ("manifest_is_readable", Depth::Quick, |f| flip(&f.file(1, "manifest.mrm"), 200)),
    ("every_file_is_there", Depth::Quick, |f| fs::remove_file(f.file(1, "data.mru")).unwrap()),
    ("every_file_is_there", Depth::Full, |f| fs::write(f.file(2, "parity.mru"), b"short").unwrap()),
    ("no_other_file_is_there", Depth::Quick, |f| fs::write(f.file(2, "data.ts"), b"x").unwrap()),
    ("meta_blocks_are_whole", Depth::Quick, |f| flip(&f.file(1, "meta-564.mrp"), 4096 + 9)),
    ("meta_blocks_are_whole", Depth::Quick, |f| flip(&f.file(1, "parity.mrp"), 4096 + 9)),
    ("range_sum_blocks_are_whole", Depth::Quick, |f| flip(&f.file(2, "sums.mrr"), 4096 + 9)),
    ("parity_meta_agrees_with_manifest", Depth::Quick, |f| flip(&f.file(1, "parity.mrp"), 100)),
    ("parity_times_agree_with_meta", Depth::Quick, |f| {
        f.forge_record("parity.mrp", 70, |m| PacketMeta::new(m.sum(), 0, MediaTicks(m.time().0 + 1)));
    }),
    ("parity_times_agree_with_meta", Depth::Quick, |f| {
        f.forge_record("parity.mrp", 7, |m| PacketMeta::new(m.sum(), 1, m.time()));
    }),
    ("units_are_as_ingested", Depth::Full, |f| flip(&f.file(1, "data.mru"), 1316 * 7 + 5)),
    ("units_are_as_ingested", Depth::Full, |f| flip(&f.file(2, "parity.mru"), 1316 * 7 + 5)),
    // Without any copy of the sums the hashes still tell.
    ("units_are_as_ingested", Depth::Full, |f| {
        (0..3).for_each(|i| flip(&f.file(i, "meta-1316.mrp"), 4096 + 9));
        flip(&f.file(1, "data.mru"), 1316 * 7 + 5);
    }),
    ("sums_are_of_the_data", Depth::Full, |f| {
        f.forge_record("meta-1316.mrp", 5, |m| PacketMeta::new(m.sum() ^ 1, m.flags(), m.time()));
    }),
    ("sums_are_of_the_data", Depth::Full, |f| {
        f.forge_record("meta-564.mrp", 5, |m| PacketMeta::new(m.sum() ^ 1, m.flags(), m.time()));
    }),
    ("parity_sums_are_of_the_parity", Depth::Full, |f| {
        f.forge_record("parity.mrp", 9, |m| PacketMeta::new(m.sum() ^ 1, 0, m.time()));
    }),
    // Two words change places in a title without CRCs: the sum stays, and the hashes are forged.
    ("parity_is_of_the_data", Depth::Full, |f| {
        f.strip_crcs();
        f.forge(1, "parity.mru", |bytes| {
            bytes.swap(10, 12);
            bytes.swap(11, 13);
        });
    }),
    ("data_is_as_ingested", Depth::Full, |f| {
        f.strip_crcs();
        f.forge(1, "data.mru", |bytes| {
            bytes.swap(10, 12);
            bytes.swap(11, 13);
        });
    }),
    // With CRCs that is seen, whatever the hashes say.
    ("sums_are_of_the_data", Depth::Full, |f| {
        f.forge(1, "data.mru", |bytes| bytes[10..14].rotate_left(2));
    }),
    ("parity_sums_are_of_the_parity", Depth::Full, |f| {
        f.forge(1, "parity.mru", |bytes| bytes[10..14].rotate_left(2));
    }),
    ("crcs_agree_with_manifest", Depth::Quick, |f| flip(&f.file(1, "crcs.mrc"), 100)),
    ("crcs_agree_with_manifest", Depth::Quick, |f| flip(&f.file(2, "parity.mrc"), 100)),
    ("crc_blocks_are_whole", Depth::Quick, |f| flip(&f.file(1, "parity.mrc"), 4096 + 9)),
    ("index_and_meta_are_as_ingested", Depth::Full, |f| {
        let path = f.file(2, "index.mri");
        let good = fs::read(f.file(1, "index.mri")).unwrap();
        let parsed = millrace_store::format::index::decode(&good).unwrap();
        let mut parts = parsed.parts().clone();
        parts.pids[0].ts_packets += 1;
        let changed = millrace_store::index::TitleIndex::from_parts(parts).unwrap();
        fs::write(path, millrace_store::format::index::encode(&changed)).unwrap();
    }),
];

#[test]
fn check_store_of_intact_volume_has_no_findings() {
    for (members, tolerance, network) in [(2, 1, 0), (3, 1, 0), (4, 0, 0), (5, 2, 0), (1, 0, 2)] {
        let root = tempfile::tempdir().unwrap();
        let dirs: Vec<PathBuf> = (0..members).map(|i| root.path().join(i.to_string())).collect();
        let volume = Volume::create(&dirs, Geometry::choose(members, tolerance, network).unwrap()).unwrap();
        Film::new(3001, 1).add_sizes(&volume, "film", &[188 * 3, SIZE]);
        Film::new(1, 2).add(&volume, "one packet");
        let info = Film::new(7 * 64 * 3, 3).add(&volume, "whole stripes");
        volume.add_packet_size(info.id, 188 * 2).unwrap();
        for dir in &dirs {
            let findings = check_store(dir, Depth::Full, &mut |_| {}).unwrap();
            assert_eq!(findings, [], "{members} members, seen from {}", dir.display());
        }
    }
}

#[test]
fn check_store_finds_broken_member_promises_by_name() {
    for (i, (promise, depth, damage)) in DAMAGES.iter().enumerate() {
        let fixture = Fixture::new();
        damage(&fixture);
        let findings = fixture.check(*depth);
        let of_promise: Vec<_> = findings.iter().filter(|f| f.promise == *promise).collect();
        assert!(!of_promise.is_empty(), "damage {i}: {promise} not among {findings:#?}");
        for finding in of_promise {
            assert!(finding.path.starts_with(fixture.world.root.path()), "{finding}");
            assert!(!finding.what.is_empty() && !finding.remedy.is_empty(), "{finding}");
        }
    }
}

#[test]
fn check_store_locates_flipped_byte_that_scrub_repairs() {
    let fixture = Fixture::new();
    flip(&fixture.file(1, "data.mru"), 1316 * 7 + 5);
    assert_eq!(fixture.check(Depth::Quick), [], "a quick check reads no media");
    let findings = fixture.check(Depth::Full);
    assert_eq!(findings.len(), 1, "one damage, one finding: {findings:#?}");
    assert_eq!((findings[0].severity, findings[0].promise), (Severity::Error, "units_are_as_ingested"));
    assert_eq!(findings[0].path, fixture.file(1, "data.mru"));
    assert!(
        findings[0].what.contains("1 packet with a wrong checksum, the first at byte 9212"),
        "{findings:?}"
    );
    assert!(findings[0].remedy.contains("millrace scrub"), "{findings:?}");
    repair_support::run_scrub(&fixture.world.open(), true, &Default::default());
    assert_eq!(fixture.check(Depth::Full), []);
}

#[test]
fn check_store_with_tolerated_missing_member_only_warns() {
    let fixture = Fixture::new();
    fixture.world.pull(1);
    let severities = |findings: &[Finding]| -> BTreeSet<Severity> {
        findings.iter().filter(|f| f.promise == "every_member_is_there").map(|f| f.severity).collect()
    };
    let findings = fixture.check(Depth::Full);
    assert_eq!(severities(&findings), BTreeSet::from([Severity::Warning]));
    assert_eq!(findings.len(), 1, "{findings:#?}");
    fixture.world.pull(2);
    assert_eq!(severities(&fixture.check(Depth::Quick)), BTreeSet::from([Severity::Error]));
}

#[test]
fn progress_counts_the_title_once() {
    let fixture = Fixture::new();
    let mut told = Vec::new();
    check_store(&fixture.world.dirs[0], Depth::Full, &mut |progress| told.push(progress.clone())).unwrap();
    let last = told.last().unwrap();
    assert_eq!((last.titles_done, last.titles_total), (1, 1));
    assert_eq!((last.bytes_done, last.bytes_total), (3001 * 188, 3001 * 188));
    assert!(told.windows(2).all(|w| w[0].bytes_done <= w[1].bytes_done));
}
