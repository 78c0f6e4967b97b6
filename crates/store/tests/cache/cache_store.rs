//! Titles of a real store, through the cache: leases contain the data that the writer wrote.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::cache_common::{BACKENDS, StandingClock, TitleSource, World};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::seam::Clock;
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, Timeline};
use millrace_store::cache::{CacheConfig, ReadBackend};
use millrace_store::disk::ReadFaults;
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::titles::{Film, SIZE};

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

/// Sizes without a metadata file of their own: payload, exact sums, times and flags as the rule of the range sums has them.
#[test]
fn packet_size_without_metadata_file_uses_range_sums() {
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

/// Changes one byte of a file of a title.
fn flip(volume: &Volume, info: &TitleInfo, file: &str, at: u64) {
    let path = volume.dir().join(format!("titles/{}/{file}", info.id));
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

/// Fetches all of a title. Whatever is lent has its payload, its sum and its time, within a tick; the packets that are not.
fn fetch_all(world: &mut World, (volume, info): (&Volume, &TitleInfo), film: &Film, size: u16) -> Vec<u32> {
    let files = volume.open_title(info.id, usize::from(size)).unwrap();
    let extents = files.extents();
    let title = world.cache.open_title(files).unwrap();
    let (mut missing, mut before) = (Vec::new(), MediaTicks(0));
    for extent in 0..extents {
        let lease = world.engines[0].fetch(0, title, extent, Instant(0)).lease.unwrap();
        for place in 0..lease.content().packets {
            let (packet, meta) = (lease.content().first_packet + place, lease.meta(place));
            let (expected, time) = (film.meta(size, packet).time(), meta.time());
            assert!(time.0.abs_diff(expected.0) <= 1 && time >= before, "packet {packet} of {size}: {time}");
            before = time;
            let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
            assert_eq!(header, info.timeline_of(usize::from(size)).header(packet, time));
            if meta.is_missing() {
                missing.push(packet);
                continue;
            }
            let payload = film.bytes.chunks(usize::from(size)).nth(packet as usize).unwrap();
            assert!(sent == payload, "payload of packet {packet} of {size}");
            assert_eq!(meta.sum(), sum16(payload), "packet {packet} of {size}");
        }
    }
    world.cache.close_title(title);
    missing
}

/// A damaged byte of data costs its packet. A damaged byte of the records costs nothing: their
/// content follows from the packet's bytes, which its CRC verifies, and from the index. Where the
/// CRC is damaged, the record verifies the bytes.
#[test]
fn damaged_byte_of_stored_file_omits_at_most_its_packet() {
    let film = Film::new(12_001, 5);
    let files = [
        ("data.ts", 700_000),
        ("meta-1316.mrp", 4096 * 2 + 8 * 100), // block 1: default-size packets 510 to 1019
        ("meta-188.mrp", 4096 * 9 + 8),
        ("meta-9024.mrp", 4096 + 8),
        ("sums.mrr", 2 * 4096 + 20),
        ("crcs.mrc", 4096 + 9),
    ];
    for backend in BACKENDS {
        for (file, at) in files {
            let (_dir, volume, info) = added(&film);
            flip(&volume, &info, file, at);
            let mut said = Vec::new();
            for size in [SIZE, 188, 188 * 48, 940, 8084] {
                let clock = Arc::new(StandingClock::default());
                let Some(mut world) = World::new(backend, 16, 0, 1, clock) else { continue };
                let missing = fetch_all(&mut world, (&volume, &info), &film, size);
                if file == "data.ts" {
                    // It cannot be determined which of the packets that share the damaged one's CRC
                    // is damaged.
                    let share = (1316 / u64::from(size) + 1).max(2) as usize;
                    assert!(missing.contains(&(700_000 / u32::from(size))), "{size}: {missing:?}");
                    assert!(missing.len() <= share, "{size}: {missing:?}");
                } else {
                    assert!(missing.is_empty(), "{file}, {size}: {missing:?}");
                }
                let stats = world.cache.stats();
                assert_eq!((stats.checksum_errors, stats.read_errors), (0, 0), "{file}, {size}: {stats:?}");
                let damage = world.cache.damage();
                assert!(damage.as_ref().is_none_or(|damage| damage.are_sent == (file != "data.ts")));
                said.extend(damage.map(|damage| (size, damage.summary(Some("film")))));
                assert_eq!(world.cache.damage(), None, "said once");
            }
            let sizes: Vec<u16> = said.iter().map(|(size, _)| *size).collect();
            let those = |sizes: &[u16]| if said.is_empty() { Vec::new() } else { sizes.to_vec() };
            assert_eq!(
                sizes,
                match file {
                    "data.ts" => those(&[SIZE, 188, 188 * 48, 940, 8084]),
                    "meta-1316.mrp" => those(&[SIZE, 940, 8084]),
                    "meta-188.mrp" => those(&[188]),
                    "meta-9024.mrp" => those(&[188 * 48]),
                    "sums.mrr" => those(&[940, 8084]),
                    _ => Vec::new(),
                }
            );
        }
    }
}

/// Where neither record nor CRC can be read, nothing proves a packet.
#[test]
fn packets_without_record_and_crc_are_left_out_and_no_others() {
    let film = Film::new(12_001, 5);
    let (_dir, volume, info) = added(&film);
    flip(&volume, &info, "meta-1316.mrp", 4096 * 2 + 8 * 100); // packets 510 to 1019
    flip(&volume, &info, "crcs.mrc", 4096 * 2 + 4); // packets 1020 to 2039
    flip(&volume, &info, "crcs.mrc", 4096 + 4); // packets 0 to 1019
    let config = CacheConfig {
        prefetch_ns: 0,
        backend: ReadBackend::Threads,
        max_damaged_permille: 1000,
        ..CacheConfig::default()
    };
    let clock = Arc::new(StandingClock::default());
    let mut world = World::with_config(config, 16, 1, clock, ReadFaults::default()).unwrap();
    let missing = fetch_all(&mut world, (&volume, &info), &film, SIZE);
    assert_eq!(missing, (510..1020).collect::<Vec<_>>());
}

#[test]
fn stored_title_is_leased_unchanged_in_all_sizes() {
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
        let (_dir, volume, info) = added(&film);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let files = volume.open_title(info.id, usize::from(SIZE)).unwrap();
        let extents = files.extents();
        let title = world.cache.open_title(files).unwrap();
        flip(&volume, &info, "data.ts", 2 * 196 * 1316 + 5); // extent 2
        let mut missing = Vec::new();
        for extent in 0..extents {
            let lease = world.engines[0].fetch(0, title, extent, clock.now()).lease.unwrap();
            missing.extend(check_but(&lease, &film, SIZE, extent, info.timeline));
        }
        assert_eq!(missing, [2 * 196]);
    }
}

/// Deadlines are computed from the index: the media time of a packet is that of its record.
#[test]
fn media_time_from_index_matches_packet_records() {
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
