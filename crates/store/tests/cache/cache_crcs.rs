//! Damage that a 16-bit sum cannot detect: no viewer receives a wrong byte, parity makes up for it,
//! and damaged CRCs make no viewer wait for good data.

use std::fs;
use std::sync::Arc;

use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use crate::crc_support::{strip_crcs, swap_words};
use crate::members_support::Disks;
use millrace_core::ids::{RunSerial, TitleId};
use millrace_core::pool::Lease;
use millrace_core::seam::{Clock, Want};
use millrace_core::wire::rtp::RtpHeader;
use millrace_store::cache::{CacheStats, ReadBackend, ReadFailure};
use millrace_store::disk::{ReadFault, ReadFaults};
use millrace_store::volume::Volume;
use millrace_testkit::titles::{Film, SIZE};

/// With files of their own and derived, smaller and larger than the packets that have CRCs, aligned with them or not.
const SIZES: [usize; 5] = [1316, 188, 940, 3948, 9024];

fn film() -> Film {
    Film::new(12_001, 5)
}

/// Packets of an extent that are not sent; all others must be those of the title.
fn left_out(lease: &Lease, film: &Film, size: usize) -> u32 {
    let content = lease.content();
    let mut missing = 0;
    for place in 0..content.packets {
        if lease.meta(place).is_missing() {
            missing += 1;
            continue;
        }
        let packet = (content.first_packet + place) as usize;
        let (_, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
        assert!(sent == film.bytes.chunks(size).nth(packet).unwrap(), "packet {packet} of {size}");
    }
    missing
}

/// Reads all of a title; how many extents were not whole.
fn read_all(
    volume: &Volume,
    id: TitleId,
    film: &Film,
    size: usize,
    backend: ReadBackend,
) -> Option<(u32, CacheStats)> {
    read_all_from(volume, id, film, size, (backend, ReadFaults::default()))
}

/// The same from disks that fail on order.
fn read_all_from(
    volume: &Volume,
    id: TitleId,
    film: &Film,
    size: usize,
    (backend, faults): (ReadBackend, ReadFaults),
) -> Option<(u32, CacheStats)> {
    let clock = Arc::new(StandingClock::default());
    let mut world = World::with_faults(backend, 16, 0, 1, clock.clone(), faults)?;
    let files = volume.open_title(id, size).unwrap();
    let extents = files.extents();
    let title = world.cache.open_title(files).unwrap();
    let mut damaged = 0;
    for extent in 0..extents {
        damaged += match world.engines[0].fetch(0, title, extent, clock.now()).lease {
            Ok(lease) => u32::from(left_out(&lease, film, size) > 0),
            Err(failure) => {
                assert_eq!(failure, ReadFailure::Checksum, "extent {extent} of {size}");
                1
            }
        };
    }
    Some((damaged, world.cache.stats()))
}

#[test]
fn swapped_words_of_a_plain_store_are_sent_to_nobody() {
    let film = film();
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = film.add_sizes(&volume, "film", &[SIZE, 188 * 48]);
    let data = dir.path().join(format!("titles/{}/data.ts", info.id));
    swap_words(&data, 1316 * 500 + 700);
    for backend in BACKENDS {
        for size in SIZES {
            let Some((damaged, stats)) = read_all(&volume, info.id, &film, size, backend) else { continue };
            // The packet may lie in two extents of another size.
            assert!((1..=2).contains(&damaged), "{damaged} extents of {size}");
            assert_eq!((stats.sums_only, stats.read_errors), (0, 0), "{stats:?}");
        }
    }
}

/// Packets of other sizes consist of those that have CRCs: whatever touches one that cannot be read is left out.
#[test]
fn bad_sector_omits_same_bytes_in_all_packet_sizes() {
    let film = film();
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = film.add_sizes(&volume, "film", &[SIZE, 188 * 48]);
    let faults = ReadFaults::settable();
    faults.set(0, ReadFault::EioAt { at: 1_000_000, bytes: 512 });
    let block = 1_000_000 / 4096 * 4096usize;
    let lost = block / 1316 * 1316..(block + 4096).next_multiple_of(1316);
    for backend in BACKENDS {
        for size in SIZES {
            let read = read_all_from(&volume, info.id, &film, size, (backend, faults.clone()));
            let Some((_, stats)) = read else { continue };
            let packets = lost.end.div_ceil(size) - lost.start / size;
            assert_eq!(stats.damaged_packets, packets as u64, "packets of {size}");
            assert_eq!((stats.sums_only, stats.read_errors, stats.checksum_errors), (0, 0, 0), "{stats:?}");
        }
    }
}

#[test]
fn damage_hidden_from_sums_on_members_is_decoded() {
    let film = film();
    for (members, may) in [(2, 1), (3, 1), (5, 1)] {
        let (disks, volume) = Disks::volume(members, may, 0);
        let info = film.add_sizes(&volume, "film", &[SIZE, 188 * 48]);
        // In two stripes, so that each codeword has one wrong symbol.
        swap_words(&disks.title(0, info.id).join("data.mru"), 1316 * 3 + 200);
        swap_words(&disks.title(1, info.id).join("data.mru"), 1316 * 90);
        swap_words(&disks.title(1, info.id).join("parity.mru"), 1316 * 70);
        for backend in BACKENDS {
            for size in SIZES {
                let Some((damaged, stats)) = read_all(&volume, info.id, &film, size, backend) else {
                    continue;
                };
                assert_eq!((damaged, stats.sums_only), (0, 0), "{members} members, {size}");
                assert!(stats.decoded_bytes > 0, "{members} members, {size}: {stats:?}");
            }
        }
    }
}

/// Flips a bit of a file of a title on every member.
fn damage_copies(disks: &Disks, id: TitleId, file: &str, at: usize) {
    for member in 0..disks.count {
        let path = disks.title(member, id).join(file);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(path, bytes).unwrap();
    }
}

/// The CRCs verify media and parity whose records no member has any more, including data that must
/// be decoded with them.
#[test]
fn records_that_are_damaged_in_every_copy_cost_nothing() {
    let film = film();
    let files = ["meta-1316.mrp", "parity.mrp", "sums.mrr", "meta-9024.mrp"];
    for (members, file) in files.map(|file| (3, file)).into_iter().chain([(2, files[0]), (5, files[0])]) {
        let (disks, volume) = Disks::volume(members, 1, 0);
        let info = film.add_sizes(&volume, "film", &[SIZE, 188 * 48]);
        // The first block.
        damage_copies(&disks, info.id, file, 4096 + 100);
        swap_words(&disks.title(0, info.id).join("data.mru"), 1316 * 20);
        for size in SIZES {
            let (damaged, stats) = read_all(&volume, info.id, &film, size, ReadBackend::Threads).unwrap();
            let seen = (damaged, stats.damaged_packets, stats.sums_only, stats.checksum_errors);
            assert_eq!(seen, (0, 0, 0, 0), "{file} of {members} members, packets of {size}");
            assert!(stats.decoded_bytes > 0);
        }
    }
}

/// Packets whose records no member has are reported once, as sent.
#[test]
fn records_that_are_damaged_in_every_copy_are_reported() {
    let film = film();
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    damage_copies(&disks, info.id, "meta-1316.mrp", 4096 + 100);
    let clock = Arc::new(StandingClock::default());
    let mut world = World::new(ReadBackend::Threads, 16, 0, 1, clock.clone()).unwrap();
    let title = world.cache.open_title(volume.open_title(info.id, 1316).unwrap()).unwrap();
    for extent in 0..4 {
        let lease = world.engines[0].fetch(0, title, extent, clock.now()).lease.unwrap();
        assert_eq!(left_out(&lease, &film, 1316), 0);
        for place in 0..lease.content().packets {
            let packet = lease.content().first_packet + place;
            assert_eq!(lease.meta(place).time(), film.meta(SIZE, packet).time(), "packet {packet}");
        }
    }
    let damage = world.cache.damage().unwrap();
    assert_eq!((damage.are_sent, damage.span.start), (true, 0));
    assert!(damage.summary(None).contains("the stored records of packets 0 to"), "{damage:?}");
    assert_eq!((world.cache.damage(), world.cache.damaged_title()), (None, Some(info.id)));
}

/// Without CRCs nothing verifies a packet that has lost its records: such packets are left out, or
/// where they are too many, the stream ends there.
#[test]
fn records_damaged_in_all_copies_without_crcs_omit_their_packets() {
    let film = Film::new(60_001, 5);
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    (0..3).for_each(|member| strip_crcs(&disks.title(member, info.id)));
    damage_copies(&disks, info.id, "meta-1316.mrp", 4096 + 100);
    let (damaged, stats) = read_all(&volume, info.id, &film, 1316, ReadBackend::Threads).unwrap();
    assert_eq!((damaged, stats.damaged_packets, stats.checksum_errors), (3, 510, 0));
}

/// The parity that viewers get as FEC, too: what protects it is its own CRC, and the times are those of the index.
#[test]
fn parity_packets_are_sent_when_every_copy_of_their_records_is_damaged() {
    let film = film();
    for file in ["meta-1316.mrp", "parity.mrp"] {
        let (disks, volume) = Disks::volume(3, 1, 0);
        let info = film.add(&volume, "film");
        let before = datagrams(&volume, info.id);
        assert!(before.iter().all(Option::is_some));
        damage_copies(&disks, info.id, file, 4096 + 100);
        assert!(datagrams(&volume, info.id) == before, "{file}");
    }
}

/// The bad symbol of a codeword is found although the code alone could not tell which it is.
#[test]
fn parity_with_silent_corruption_is_not_used_for_decoding() {
    let film = film();
    let (disks, volume) = Disks::volume(4, 2, 0);
    let info = film.add(&volume, "film");
    let stripes = volume.open_title(info.id, 1316).unwrap().stripes.unwrap();
    // Symbol 0 and the first parity of the first codeword: with m = 2 or more the rest restores both.
    let (data, parity) = (stripes.position_of(0, 0), stripes.position_of(0, stripes.k()));
    swap_words(&disks.title(data, info.id).join("data.mru"), stripes.offset_of(0, 0) as usize + 50);
    swap_words(
        &disks.title(parity, info.id).join("parity.mru"),
        stripes.offset_of(0, stripes.k()) as usize + 50,
    );
    let (damaged, stats) = read_all(&volume, info.id, &film, 1316, ReadBackend::Threads).unwrap();
    assert!(damaged == 0 && stats.decoded_bytes > 0, "{damaged} {stats:?}");
}

/// The first datagrams of the first parity track; none where there is nothing to send.
fn datagrams(volume: &Volume, id: TitleId) -> Vec<Option<Vec<u8>>> {
    let clock = Arc::new(StandingClock::default());
    let mut world = World::new(ReadBackend::Threads, 16, 0, 1, clock.clone()).unwrap();
    let files = volume.open_parity(id, 1).unwrap();
    let title = world.cache.open_source(Box::new(files)).unwrap();
    // Viewers with FEC take a track as it is, with holes.
    let want = Want {
        stream: stream(0),
        run: RunSerial(0),
        title,
        extent: 0,
        place: 0,
        by: clock.now(),
        spare: u8::MAX,
    };
    assert!(world.engines[0].handle.want(&want));
    let lease = world.engines[0].grant().lease.unwrap();
    let packet = |place| (!lease.meta(place).is_missing()).then(|| lease.wire(place, 1).to_vec());
    (0..lease.content().packets).map(packet).collect()
}

#[test]
fn parity_packet_with_silent_corruption_is_not_sent() {
    let film = film();
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    let datagrams = || datagrams(&volume, info.id);
    let before = datagrams();
    assert!(before.iter().all(Option::is_some));
    let stripes = volume.open_title(info.id, 1316).unwrap().stripes.unwrap();
    let parity = disks.title(stripes.position_of(0, stripes.k()), info.id).join("parity.mru");
    swap_words(&parity, stripes.offset_of(0, stripes.k()) as usize + 1316 * 2);
    let after = datagrams();
    let differing: Vec<_> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    assert_eq!(differing.len(), 1);
    assert_eq!(after[differing[0]], None);
}

#[test]
fn damaged_crcs_leave_the_sums_and_are_counted() {
    let film = film();
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = film.add(&volume, "film");
    let crcs = dir.path().join(format!("titles/{}/crcs.mrc", info.id));
    let good = fs::read(&crcs).unwrap();
    let extents = u64::from(volume.open_title(info.id, 1316).unwrap().extents());
    for (at, least, most) in [(4096 + 9, 1, 6), (70, extents, extents)] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&crcs, bytes).unwrap();
        let (damaged, stats) = read_all(&volume, info.id, &film, 1316, ReadBackend::Threads).unwrap();
        assert_eq!(damaged, 0, "byte {at}");
        assert!((least..=most).contains(&stats.sums_only), "byte {at}: {stats:?}");
    }
    fs::remove_file(&crcs).unwrap();
    let (damaged, stats) = read_all(&volume, info.id, &film, 1316, ReadBackend::Threads).unwrap();
    assert_eq!((damaged, stats.sums_only), (0, extents));
}

#[test]
fn another_member_has_the_crcs_too() {
    let film = film();
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    swap_words(&disks.title(0, info.id).join("data.mru"), 1316 * 3);
    for i in [0, 1] {
        let crcs = disks.title(i, info.id).join("crcs.mrc");
        let mut bytes = fs::read(&crcs).unwrap();
        bytes[4096 + 77] ^= 1;
        fs::write(&crcs, bytes).unwrap();
        let (damaged, stats) = read_all(&volume, info.id, &film, 1316, ReadBackend::Threads).unwrap();
        assert_eq!(damaged, 0);
        assert_eq!(stats.sums_only, 0, "{i}: {stats:?}");
        // One copy of three is enough, and the tolerance is one.
        fs::copy(disks.title(2, info.id).join("crcs.mrc"), &crcs).unwrap();
    }
}

#[test]
fn titles_of_older_versions_are_served_by_their_sums() {
    let film = film();
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = film.add(&volume, "film");
    strip_crcs(&dir.path().join(format!("titles/{}", info.id)));
    for size in SIZES {
        let (damaged, stats) = read_all(&volume, info.id, &film, size, ReadBackend::Threads).unwrap();
        assert_eq!((damaged, stats.sums_only), (0, 0), "{size}");
    }
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add(&volume, "film");
    (0..3).for_each(|i| strip_crcs(&disks.title(i, info.id)));
    let data = disks.title(0, info.id).join("data.mru");
    let mut bytes = fs::read(&data).unwrap();
    bytes[1316 * 7] ^= 2;
    fs::write(data, bytes).unwrap();
    for size in SIZES {
        let (damaged, stats) = read_all(&volume, info.id, &film, size, ReadBackend::Threads).unwrap();
        assert_eq!((damaged, stats.sums_only), (0, 0), "{size}");
        assert!(stats.decoded_bytes > 0, "{size}");
    }
}
