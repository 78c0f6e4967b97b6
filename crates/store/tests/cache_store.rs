//! Titles of a real store, through the cache: what the writer wrote is what viewers are lent.

mod cache_common;
mod common;

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cache_common::{BACKENDS, StandingClock, TitleSource, World};
use common::{Film, SIZE};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::seam::Clock;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, Timeline};
use millrace_store::cache::{ReadBackend, ReadFailure};
use millrace_store::volume::{TitleInfo, Volume};

const SIZES: [u16; 3] = [SIZE, 188, 188 * 48];

fn check(lease: &Lease, film: &Film, size: u16, extent: u32, timeline: Timeline) {
    assert!(check_but(lease, film, size, extent, timeline).is_empty(), "extent {extent}");
}

/// Checks all packets but those that are marked as missing, which it returns.
fn check_but(lease: &Lease, film: &Film, size: u16, extent: u32, timeline: Timeline) -> Vec<u32> {
    let mut missing = Vec::new();
    let content = lease.content();
    assert_eq!(
        (content.number, content.first_packet),
        (extent, extent * content.layout.packets_per_extent())
    );
    for place in 0..content.packets {
        let packet = content.first_packet + place;
        let payload = film.bytes.chunks(usize::from(size)).nth(packet as usize).unwrap();
        let meta = film.meta(size, packet);
        if lease.meta(place).is_missing() {
            missing.push(packet);
            continue;
        }
        let stored = PacketMeta::new(sum16(payload), meta.flags(), meta.time());
        assert_eq!(lease.meta(place), stored, "record of packet {packet}");
        let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
        assert!(sent == payload, "payload of packet {packet}");
        assert_eq!(header, timeline.header(packet, meta.time()));
    }
    missing
}

fn added(film: &Film) -> (tempfile::TempDir, Volume, TitleInfo) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    let info = film.add_sizes(&volume, "film", &SIZES);
    (dir, volume, info)
}

/// Sizes without a meta-data file of their own: payload, exact sums, times and flags as the rule of the range sums has them.
#[test]
fn a_size_without_a_file_is_lent_from_the_range_sums() {
    let mut film = Film::new(12_001, 5);
    film.bytes[500_000..520_000].fill(0); // where a difference of sums has the other zero
    let (_dir, volume, info) = added(&film);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 200_000_000, 1, clock.clone()) else { continue };
        for size in [940, 1880, 3948, 8084] {
            let files = volume.open_title(info.id, size).unwrap();
            assert!(files.derived.is_some());
            let mut metas = vec![PacketMeta::default(); files.packets() as usize];
            files.read_metas(0, &mut metas).unwrap();
            let extents = files.extents();
            let title = world.cache.open_title(files).unwrap();
            for extent in 0..extents {
                let lease = world.engines[0].fetch(0, title, extent, clock.now()).lease.unwrap();
                for place in 0..lease.content().packets {
                    let packet = lease.content().first_packet + place;
                    let payload = film.bytes.chunks(size).nth(packet as usize).unwrap();
                    let meta = metas[packet as usize];
                    let stored = PacketMeta::new(sum16(payload), meta.flags(), meta.time());
                    assert_eq!(lease.meta(place), stored, "record of packet {packet} of {size}");
                    let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
                    assert!(sent == payload, "payload of packet {packet} of {size}");
                    assert_eq!(header, info.timeline_of(size).header(packet, meta.time()));
                }
            }
        }
    }
}

/// A damaged byte of data: its packet is marked as missing. A damaged byte of meta-data or of range sums: nobody is lent that extent. All
/// others are lent.
#[test]
fn damage_under_a_derived_size_is_noticed() {
    let film = Film::new(12_001, 5);
    for (file, at) in [("data.ts", 700_000), ("meta-1316.mrp", 4096 + 8 * 400), ("sums.mrr", 2 * 4096 + 20)] {
        let (dir, volume, info) = added(&film);
        let path = dir.path().join(format!("titles/{}/{file}", info.id));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        let clock = Arc::new(StandingClock::default());
        let mut world = World::new(ReadBackend::Threads, 16, 0, 1, clock.clone()).unwrap();
        let files = volume.open_title(info.id, 8084).unwrap();
        let extents = files.extents();
        let title = world.cache.open_title(files).unwrap();
        let fetched: Vec<Option<Vec<u32>>> = (0..extents)
            .map(|extent| {
                let lease = world.engines[0].fetch(0, title, extent, clock.now()).lease.ok()?;
                let content = lease.content();
                let missing = |place: &u32| lease.meta(*place).is_missing();
                Some((0..content.packets).filter(missing).map(|place| content.first_packet + place).collect())
            })
            .collect();
        let is_lent = |extent: &Option<Vec<u32>>| extent.as_ref().is_some_and(Vec::is_empty);
        assert!(fetched.iter().any(is_lent), "{file}: {fetched:?}");
        match file {
            "data.ts" => {
                let missing: Vec<u32> = fetched.iter().flatten().flatten().copied().collect();
                // Which of the packets that share the damaged one's CRC it is cannot be said.
                assert!(missing.contains(&(700_000 / 8084)) && missing.len() <= 2, "{missing:?}");
                assert!(fetched.iter().all(Option::is_some), "{fetched:?}");
            }
            _ => assert!(fetched.contains(&None), "{file}: {fetched:?}"),
        }
    }
}

#[test]
fn a_stored_film_is_lent_as_it_was_written_in_every_size() {
    let film = Film::new(12_001, 5);
    let (_dir, volume, info) = added(&film);
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 200_000_000, 1, clock.clone()) else { continue };
        for size in SIZES {
            let files = volume.open_title(info.id, usize::from(size)).unwrap();
            let extents = files.extents();
            let title = world.cache.open_title(files).unwrap();
            for extent in 0..extents {
                let lease = world.engines[0].fetch(0, title, extent, clock.now()).lease.unwrap();
                check(&lease, &film, size, extent, info.timeline_of(usize::from(size)));
            }
        }
        let stats = world.cache.stats();
        assert_eq!((stats.checksum_errors, stats.read_errors, stats.titles), (0, 0, 3));
    }
}

#[test]
fn damage_on_the_disk_is_found_by_the_stored_checksums() {
    let film = Film::new(12_001, 6);
    for backend in BACKENDS {
        let (dir, volume, info) = added(&film);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let files = volume.open_title(info.id, usize::from(SIZE)).unwrap();
        let extents = files.extents();
        let title = world.cache.open_title(files).unwrap();
        let path = dir.path().join("titles").join(info.id.to_string());
        let flip = |file: &str, offset: u64| {
            let file = std::fs::File::options().read(true).write(true).open(path.join(file)).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, offset).unwrap();
            file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
        };
        flip("data.ts", 2 * 196 * 1316 + 5); // extent 2
        flip("meta-1316.mrp", 4096 * 4 + 8); // block 3: packets 1530 to 2039, extents 7 to 10
        let mut missing = Vec::new();
        let bad: Vec<_> = (0..extents)
            .filter(|&extent| match world.engines[0].fetch(0, title, extent, clock.now()).lease {
                Ok(lease) => {
                    missing.extend(check_but(&lease, &film, SIZE, extent, info.timeline));
                    false
                }
                Err(failure) => {
                    assert_eq!(failure, ReadFailure::Checksum);
                    true
                }
            })
            .collect();
        let expected: Vec<_> = [7, 8, 9, 10].into_iter().filter(|&extent| extent < extents).collect();
        assert_eq!((bad, missing), (expected, vec![2 * 196]));
    }
}

/// Deadlines are computed from the index: the media time of a packet is that of its record.
#[test]
fn the_index_tells_when_a_packet_is_due() {
    let film = Film::new(5_000, 7);
    let (_dir, volume, info) = added(&film);
    for size in SIZES {
        let files = volume.open_title(info.id, usize::from(size)).unwrap();
        for packet in 0..TitleSource::packets(&files) {
            let (told, stored) = (files.media_time(packet), film.meta(size, packet).time());
            assert!(told.0.abs_diff(stored.0) <= 1, "packet {packet} of size {size}: {told}, not {stored}");
        }
        assert_eq!(files.media_time(TitleSource::packets(&files)), info.duration);
    }
}
