//! A title on several members: every byte is where the stripes place it, and every file matches the
//! manifest, on every member.

use std::fs;

use crate::members_support::{Disks, media_of};
use millrace_core::fec::Code;
use millrace_core::packet::PacketMeta;
use millrace_core::wire::checksum::sum16;
use millrace_store::StoreError;
use millrace_store::format::frame;
use millrace_store::format::manifest::Manifest;
use millrace_store::format::superblock::Geometry;
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles as common;
use millrace_testkit::titles::{Film, SIZE};

/// Members, members that may be lost, parity units for the network alone.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 0, 2), (2, 1, 0), (3, 1, 0), (4, 2, 0), (5, 1, 0), (5, 2, 0), (3, 0, 0)];

/// Many stripes of any shape, the last neither full nor whole units.
const TS_PACKETS: usize = 5003;

#[test]
fn stripe_units_and_parity_are_at_layout_positions() {
    let film = Film::new(TS_PACKETS, 5);
    for (members, tolerance, network) in SHAPES {
        let (disks, volume) = Disks::volume(members, tolerance, network);
        let info = film.add(&volume, "film");
        let files = volume.open_title(info.id, usize::from(SIZE)).unwrap();
        let stripes = files.stripes.unwrap();
        assert_eq!((stripes.members(), stripes.tolerance()), (members, tolerance));
        assert!(stripes.stripes() > 2 && !info.bytes.is_multiple_of(stripes.stripe_bytes()), "{stripes:?}");
        let code = Code::new(stripes.k(), stripes.m()).unwrap();
        for stripe in 0..stripes.stripes() {
            let start = stripe as usize * stripes.stripe_bytes() as usize;
            let mut whole =
                film.bytes[start..film.bytes.len().min(start + stripes.stripe_bytes() as usize)].to_vec();
            whole.resize(stripes.stripe_bytes() as usize, 0);
            let data: Vec<&[u8]> = whole.chunks(stripes.unit_bytes()).collect();
            let mut parity = vec![vec![0; stripes.unit_bytes()]; stripes.m()];
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            code.encode(&data, &mut out);
            for unit in 0..stripes.k() + stripes.m() {
                let position = stripes.position_of(stripe, unit);
                let (path, expected) = match unit.checked_sub(stripes.k()) {
                    None => {
                        (files.data_on(position).unwrap(), &data[unit][..stripes.media_in_unit(stripe, unit)])
                    }
                    Some(p) => (files.parity_on(position).unwrap(), &parity[p][..]),
                };
                assert!(path.starts_with(disks.at(position)), "{}", path.display());
                let at = stripes.offset_of(stripe, unit) as usize;
                let stored = fs::read(path).unwrap();
                let stored = if expected.is_empty() { &[][..] } else { &stored[at..at + expected.len()] };
                assert!(stored == expected, "stripe {stripe}, unit {unit} of {stripes:?}");
            }
        }
        assert!(media_of(&volume, info.id) == film.bytes, "{stripes:?}");
    }
}

#[test]
fn parity_has_the_sums_and_the_times_of_its_rows() {
    let film = Film::new(TS_PACKETS, 6);
    for (members, tolerance, network) in SHAPES {
        let (_disks, volume) = Disks::volume(members, tolerance, network);
        let info = film.add(&volume, "film");
        let error = |track| volume.open_parity(info.id, track).unwrap_err();
        assert!(matches!(error(0), StoreError::NoParity { track: 0, .. }));
        let stripes = volume.open_title(info.id, usize::from(SIZE)).unwrap().stripes.unwrap();
        if stripes.m() == 0 {
            assert!(matches!(error(1), StoreError::NoParity { has: 0, .. }));
            continue;
        }
        assert_eq!(volume.open_parity(info.id, 2).is_ok(), stripes.m() > 1);
        let files = volume.open_parity(info.id, 1).unwrap();
        assert_eq!(files.parities(), 0..1);
        assert_eq!(u64::from(files.parity_meta.packets()), stripes.parity_packets());
        for stripe in 0..stripes.stripes() {
            for p in 0..stripes.m() {
                let at = stripes.offset_of(stripe, stripes.k() + p) as usize;
                let stored =
                    fs::read(files.parity_on(stripes.position_of(stripe, stripes.k() + p)).unwrap()).unwrap();
                let unit = &stored[at..at + stripes.unit_bytes()];
                let mut records = vec![PacketMeta::default(); stripes.unit_packets() as usize];
                files.parity_meta.read(stripes.parity_record(stripe, p, 0) as u32, &mut records).unwrap();
                for (packet, record) in unit.chunks(usize::from(SIZE)).zip(records) {
                    let time = Film::time(u64::from(stripe) * stripes.stripe_bytes());
                    assert_eq!((record.sum(), record.flags(), record.time()), (sum16(packet), 0, time));
                }
            }
        }
    }
}

/// Holds a title against its manifest on every member.
fn assert_as_promised(disks: &Disks, volume: &Volume, info: &TitleInfo) {
    let manifests: Vec<_> =
        (0..disks.count).map(|i| fs::read(disks.title(i, info.id).join("manifest.mrm")).unwrap()).collect();
    assert!(manifests.iter().all(|bytes| *bytes == manifests[0]), "one manifest for all");
    assert_eq!(frame::peek(&manifests[0]).unwrap().version, 4);
    let manifest = Manifest::decode(&manifests[0]).unwrap();
    assert_eq!(manifest.title, *info);
    assert_eq!(manifest.placement.members.len(), disks.count);
    for position in 0..disks.count {
        assert_eq!(Some(manifest.placement.members[position].member), volume.members().member(position));
        let mut names = vec!["manifest.mrm".to_owned()];
        for file in manifest.files_on(position) {
            let bytes = fs::read(disks.title(position, info.id).join(&file.name)).unwrap();
            assert_eq!(bytes.len() as u64, file.bytes, "{}", file.name);
            assert_eq!(blake3::hash(&bytes).to_hex().as_str(), file.blake3, "{}", file.name);
            names.push(file.name.clone());
        }
        names.sort();
        assert_eq!(common::tree(&disks.title(position, info.id)), names);
    }
}

#[test]
fn member_files_match_the_manifest() {
    let film = Film::new(TS_PACKETS, 7);
    for (members, tolerance, network) in SHAPES {
        let (disks, volume) = Disks::volume(members, tolerance, network);
        let info = film.add_sizes(&volume, "film", &[SIZE, 9024]);
        assert_eq!(info.blake3, blake3::hash(&film.bytes).to_hex().as_str());
        assert_as_promised(&disks, &volume, &info);
        assert_eq!(disks.left(), [""; 0].map(std::path::PathBuf::from));
        let added = volume.prepare(info.id, &[1880], &mut |_| ()).unwrap();
        assert_eq!(added, ["meta-1880.mrp"]);
        let prepared = volume.find("film").unwrap().unwrap();
        assert_eq!(prepared.packet_sizes, [SIZE, 1880, 9024]);
        assert_as_promised(&disks, &volume, &prepared);
        assert_eq!(disks.left(), [""; 0].map(std::path::PathBuf::from));
    }
}

#[test]
fn titles_shorter_than_a_stripe_a_unit_and_a_packet_are_kept_too() {
    for (members, tolerance, network) in SHAPES {
        let (disks, volume) = Disks::volume(members, tolerance, network);
        for ts_packets in [1, 7, 8, 150, 999] {
            let film = Film::new(ts_packets, ts_packets as u64);
            let info = film.add_sizes(&volume, "short", &[SIZE]);
            assert_as_promised(&disks, &volume, &info);
            assert!(media_of(&volume, info.id) == film.bytes, "{ts_packets} in {members} members");
            if tolerance > 0 {
                disks.pull(0);
                volume.members().refresh();
                assert!(
                    media_of(&volume, info.id) == film.bytes,
                    "{ts_packets} without the first of {members}"
                );
                disks.push(0);
                volume.members().refresh();
            }
            volume.remove(info.id).unwrap();
        }
    }
}

/// Every set of as many members as may be lost.
fn losses(members: usize, lost: usize) -> Vec<Vec<usize>> {
    let sets = (0u32..1 << members).filter(|set| set.count_ones() as usize == lost);
    sets.map(|set| (0..members).filter(|i| set >> i & 1 != 0).collect()).collect()
}

#[test]
fn title_survives_tolerated_member_losses_and_reports_more() {
    let film = Film::new(TS_PACKETS, 8);
    for (members, tolerance, _) in SHAPES.into_iter().filter(|shape| shape.1 > 0) {
        let (disks, volume) = Disks::volume(members, tolerance, 0);
        let info = film.add(&volume, "film");
        drop(volume);
        for lost in losses(members, tolerance) {
            lost.iter().for_each(|&i| disks.pull(i));
            let left = (0..members).find(|i| !lost.contains(i)).unwrap();
            let volume = Volume::open(&disks.at(left)).unwrap();
            assert_eq!(volume.members().missing(), lost);
            assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&info));
            assert!(volume.unreadable().unwrap().is_empty());
            assert!(media_of(&volume, info.id) == film.bytes, "without {lost:?} of {members}");
            // One more, while it is open.
            let one_more = disks.at(left);
            if lost.len() + 1 < members {
                disks.pull(left);
                volume.members().refresh();
                let error = volume.open_title(info.id, usize::from(SIZE)).unwrap_err();
                let StoreError::MembersLost { lost: count, may, names, .. } = &error else {
                    panic!("{error}")
                };
                assert_eq!((*count, *may), (tolerance + 1, tolerance));
                assert!(names.contains(one_more.to_str().unwrap()), "{names}");
                let unreadable = volume.unreadable().unwrap();
                assert_eq!(unreadable.iter().map(|title| title.id).collect::<Vec<_>>(), [info.id]);
                assert_eq!(volume.titles().unwrap(), std::slice::from_ref(&info), "it is known all the same");
                let other = (0..members).find(|i| disks.at(*i).is_dir()).unwrap();
                let error = Volume::open(&disks.at(other)).unwrap_err();
                assert!(matches!(error, StoreError::MembersLost { .. }), "{error}");
                disks.push(left);
            }
            lost.iter().for_each(|&i| disks.push(i));
        }
    }
}

#[test]
fn media_with_wrong_bytes_on_member_is_read_correctly() {
    let film = Film::new(TS_PACKETS, 9);
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    let path = disks.title(1, info.id).join("data.mru");
    let mut bytes = fs::read(&path).unwrap();
    (0..bytes.len()).step_by(70_000).for_each(|at| bytes[at] ^= 0x40);
    fs::write(&path, bytes).unwrap();
    assert!(media_of(&volume, info.id) == film.bytes);
    // A small file that is damaged is read from another member.
    fs::write(disks.title(0, info.id).join("index.mri"), b"junk").unwrap();
    fs::remove_file(disks.title(0, info.id).join("manifest.mrm")).unwrap();
    assert!(media_of(&Volume::open(&disks.at(2)).unwrap(), info.id) == film.bytes);
}

#[test]
fn geometries_that_cannot_be_are_refused_in_words() {
    for (members, tolerance, network, words) in [
        (0, 0, 0, "0 members"),
        (33, 1, 0, "33 members"),
        (2, 2, 0, "parity 2 with 2 members"),
        (3, 1, 1, "for one member"),
        (1, 0, 9, "9 parity units"),
        (20, 9, 0, "at most 8"),
    ] {
        let error = Geometry::choose(members, tolerance, network).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let geometry = Geometry::choose(2, 1, 0).unwrap();
    let refused = |dirs: &[std::path::PathBuf], words: &str| {
        let error = Volume::create(dirs, geometry).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&[at("a")], "1 directories for 2 members");
    refused(&[at("a"), at("a")], "named twice");
    Volume::open_or_create(&at("store")).unwrap();
    refused(&[at("a"), at("store")], "is there already");
    assert!(!at("a").join("volume.mrv").exists(), "nothing was begun");
}

#[test]
fn geometry_choose_matches_documented_table() {
    let reference = include_str!("../../../../docs/ref/store-format.md");
    for (members, tolerance) in [(2, 1), (3, 1), (4, 1), (5, 1), (6, 2), (8, 1)] {
        let Geometry { k, m, unit_packets, .. } = Geometry::choose(members, tolerance, 0).unwrap();
        let line = format!("| {members} | {tolerance} | {k} + {m} | {unit_packets} |");
        assert!(reference.contains(&line), "{line}");
    }
    let Geometry { k, m, unit_packets, .. } = Geometry::choose(1, 0, 2).unwrap();
    let line = format!("| 1, `--fec 2` | 0 | {k} + {m} | {unit_packets} |");
    assert!(reference.contains(&line), "{line}");
}
