//! Damaged data is never leased. Where packets can be distinguished, the damaged ones are left out;
//! otherwise only viewers that request exactly that data notice.

use std::fs::File;
use std::sync::Arc;

use crate::cache_common::sample::SampleFiles;
use crate::cache_common::{BACKENDS, StandingClock, World};
use millrace_core::ids::TitleRef;
use millrace_core::seam::Clock;
use millrace_store::cache::{CacheConfig, ReadBackend, ReadFailure};
use millrace_store::disk::{ReadFault, ReadFaults};
use millrace_store::limits::{DAMAGE_WINDOW_EXTENTS, DAMAGED_KEPT_NS};

/// Fetches every extent; returns those that fail, with their failures. The others are checked byte for byte.
fn failures(
    world: &mut World,
    sample: &SampleFiles,
    title: TitleRef,
    clock: &StandingClock,
) -> Vec<(u32, ReadFailure)> {
    let mut failed = Vec::new();
    for extent in 0..sample.extents() {
        match world.engines[0].fetch(extent, title, extent, clock.now()).lease {
            Ok(lease) => sample.check(&lease, extent),
            Err(failure) => failed.push((extent, failure)),
        }
    }
    failed
}

#[test]
fn damaged_media_byte_omits_one_packet() {
    for backend in BACKENDS {
        let sample = SampleFiles::of_extents(8);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let (at, packet) = (5 * 196 * 1316 + 77_777, 5 * 196 + 77_777 / 1316);
        sample.damage(&sample.data_path(), at);
        for round in 0..2 {
            for extent in 0..sample.extents() {
                let lease = world.engines[0].fetch(extent, title, extent, clock.now()).lease.unwrap();
                let expected: &[u32] = if extent == 5 { &[packet] } else { &[] };
                assert_eq!(sample.check_rest(&lease, extent), expected, "round {round}");
                assert_eq!(lease.content().is_damaged(), extent == 5);
            }
        }
        // The second time it lay in memory.
        let stats = world.cache.stats();
        assert_eq!((stats.damaged, stats.damaged_packets, stats.retries), (1, 1, 1));
        assert_eq!(
            (stats.checksum_errors, stats.read_errors, stats.with_holes, stats.degraded),
            (0, 0, 0, 0)
        );
        assert_eq!(world.cache.trouble(), None, "nobody is told that it cannot be had");
        let damage = world.cache.damage().unwrap();
        assert_eq!((damage.title, damage.span.clone(), damage.packets), (title, packet..packet + 1, 1));
        let said = damage.summary(Some("my-film"));
        let (start, path) = (u64::from(packet) * 1316, sample.data_path());
        let place = format!("bytes {start}..{} of {}", start + 1316, path.display());
        assert!(
            said.starts_with(&format!("title my-film: packet {packet} is damaged and left out ({place});")),
            "{said}"
        );
        assert!(said.contains("fsck") && !said.contains("scrub"), "{said}");
        assert_eq!(world.cache.damage(), None, "said once");
        // The disk is repaired: nothing of the damage is left after a while.
        sample.damage(&sample.data_path(), at);
        clock.advance(DAMAGED_KEPT_NS - 1);
        let lease = world.engines[0].fetch(0, title, 5, clock.now()).lease.unwrap();
        assert_eq!(sample.check_rest(&lease, 5), [packet]);
        clock.advance(1);
        sample.check(&world.engines[0].fetch(0, title, 5, clock.now()).lease.unwrap(), 5);
        assert_eq!(world.cache.stats().damaged, 1);
        // Later damage is reported again.
        sample.damage(&sample.data_path(), at - 196 * 1316);
        sample.damage(&sample.data_path(), at - 196 * 1316 + 13_160);
        drop(lease);
        world.cache.close_title(title);
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let lease = world.engines[0].fetch(0, title, 4, clock.now()).lease.unwrap();
        assert_eq!(sample.check_rest(&lease, 4), [packet - 196, packet - 186]);
        let said = world.cache.damage().unwrap().summary(None);
        let which = format!("2 of the packets {} to {} are damaged", packet - 196, packet - 186);
        assert!(said.contains(&which) && said.contains(&sample.id.to_string()), "{said}");
    }
}

/// Damages one byte of each of these packets.
fn damage_packets(sample: &SampleFiles, packets: std::ops::Range<u64>) {
    packets.for_each(|packet| sample.damage(&sample.data_path(), packet * 1316 + 7));
}

#[test]
fn max_damaged_permille_exceeded_fails_extent() {
    let sample = SampleFiles::of_extents(80);
    let window = u64::from(DAMAGE_WINDOW_EXTENTS) * 196;
    let bearable = window / 10; // 10 %
    let begin = 10 * 196;
    damage_packets(&sample, begin..begin + bearable + 1);
    let last = ((begin + bearable) / 196) as u32;
    for (permille, bad) in [(100, last), (101, u32::MAX), (0, 10)] {
        let clock = Arc::new(StandingClock::default());
        let config = CacheConfig {
            prefetch_ns: 0,
            backend: ReadBackend::Threads,
            max_damaged_permille: permille,
            ..CacheConfig::default()
        };
        let mut world = World::with_config(config, 16, 1, clock.clone(), ReadFaults::default()).unwrap();
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let mut left_out = 0;
        for extent in 0..sample.extents() {
            match world.engines[0].fetch(extent, title, extent, clock.now()).lease {
                Ok(lease) => left_out += sample.check_rest(&lease, extent).len() as u64,
                Err(failure) => {
                    assert_eq!(failure, ReadFailure::Checksum, "extent {extent}");
                    assert!(extent >= bad, "extent {extent} of {permille}");
                    // Data behind the damage can be read, whatever was before it.
                    assert!(extent <= last, "extent {extent} of {permille}");
                }
            }
        }
        let in_last = bearable + 1 - (u64::from(last) * 196 - begin);
        let expected = match permille {
            0 => 0,
            100 => bearable + 1 - in_last,
            _ => bearable + 1,
        };
        let stats = world.cache.stats();
        assert_eq!((left_out, stats.damaged_packets), (expected, expected), "{permille}");
        assert_eq!(stats.checksum_errors, if bad > last { 0 } else { u64::from(last + 1 - bad) });
    }
}

/// A title shorter than the window is measured as a whole, and one packet of it may always be missing.
#[test]
fn max_damaged_on_short_title_allows_one_packet() {
    let sample = SampleFiles::new(1316, 5 * 1316);
    let clock = Arc::new(StandingClock::default());
    let Some(mut world) = World::new(ReadBackend::Threads, 4, 0, 1, clock.clone()) else { panic!() };
    for (damaged, expected) in [(1, Ok(vec![2])), (2, Err(ReadFailure::Checksum))] {
        damage_packets(&sample, 1 + damaged..2 + damaged);
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let lease = world.engines[0].fetch(0, title, 0, clock.now()).lease;
        assert_eq!(lease.map(|lease| sample.check_rest(&lease, 0)), expected);
        world.cache.close_title(title);
    }
    let trouble = world.cache.trouble().unwrap().to_string();
    assert!(trouble.contains("--max-damaged"), "{trouble}");
}

/// Without CRCs nothing proves packets whose records are damaged: they are left out, and the title goes on behind them.
#[test]
fn damaged_record_block_omits_its_packets() {
    for backend in BACKENDS {
        let sample = SampleFiles::of_extents(40);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 400_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        sample.damage(&sample.meta_path(), 4096 * 2 + 1000); // block 1: packets 510 to 1019, extents 2 to 5
        let mut left_out = Vec::new();
        for extent in 0..sample.extents() {
            let lease = world.engines[0].fetch(extent, title, extent, clock.now()).lease.unwrap();
            left_out.extend(sample.check_rest(&lease, extent));
        }
        assert_eq!(left_out, (510..1020).collect::<Vec<_>>());
        let stats = world.cache.stats();
        assert_eq!((stats.damaged, stats.damaged_packets, stats.checksum_errors), (4, 510, 0));
        let damage = world.cache.damage().unwrap();
        assert_eq!((damage.packets, damage.are_sent), (damage.span.len() as u32, false));
        assert_eq!((world.cache.damage(), world.cache.trouble()), (None, None), "said once");
    }
}

/// Of a short title they are more than may be left out.
#[test]
fn too_many_damaged_records_end_the_stream() {
    let sample = SampleFiles::of_extents(8);
    let clock = Arc::new(StandingClock::default());
    let mut world = World::new(ReadBackend::Threads, 16, 0, 1, clock.clone()).unwrap();
    let title = world.cache.open_source(Box::new(sample.open())).unwrap();
    sample.damage(&sample.meta_path(), 4096 * 2 + 1000);
    let first = world.engines[0].fetch(0, title, 2, clock.now()).lease.unwrap();
    assert_eq!(sample.check_rest(&first, 2), (510..588).collect::<Vec<_>>());
    let second = world.engines[0].fetch(0, title, 3, clock.now()).lease;
    assert_eq!(second.err(), Some(ReadFailure::Checksum));
    let whole = world.engines[0].fetch(0, title, 6, clock.now()).lease.unwrap();
    sample.check(&whole, 6);
}

/// The packets that these bytes of a data file touch.
fn packets_at(bytes: std::ops::Range<u64>) -> Vec<u32> {
    ((bytes.start / 1316) as u32..bytes.end.div_ceil(1316) as u32).collect()
}

/// A sector that the disk cannot read costs the packets that lie in it, wherever in the extent it is, and only as long as it is bad.
#[test]
fn bad_sector_omits_only_its_packets() {
    let extent_bytes = 196 * 1316;
    for backend in BACKENDS {
        let sample = SampleFiles::of_extents(8);
        let (clock, faults) = (Arc::new(StandingClock::default()), ReadFaults::settable());
        let world = World::with_faults(backend, 16, 0, 1, clock.clone(), faults.clone());
        let Some(mut world) = world else { continue };
        // In the middle; in a block that two extents share; two blocks that follow one another.
        let bad: [(u64, u64); 3] =
            [(extent_bytes + 100_000, 512), (3 * extent_bytes, 1), (6 * extent_bytes - 10_000, 4097)];
        let mut packets = 0;
        for (at, bytes) in bad {
            let title = world.cache.open_source(Box::new(sample.open())).unwrap();
            faults.set(0, ReadFault::EioAt { at, bytes });
            let mut left_out = Vec::new();
            for extent in 0..sample.extents() {
                let lease = world.engines[0].fetch(extent, title, extent, clock.now()).lease.unwrap();
                left_out.extend(sample.check_rest(&lease, extent));
            }
            let blocks = at / 4096 * 4096..(at + bytes).next_multiple_of(4096);
            assert_eq!(left_out, packets_at(blocks), "byte {at}");
            packets += left_out.len() as u64;
            faults.set(0, ReadFault::None);
            clock.advance(DAMAGED_KEPT_NS);
            assert!(failures(&mut world, &sample, title, &clock).is_empty());
            world.cache.close_title(title);
        }
        let stats = world.cache.stats();
        assert_eq!((stats.read_errors, stats.checksum_errors, stats.degraded), (0, 0, 0));
        assert_eq!((stats.damaged, stats.damaged_packets), (4, packets));
        assert_eq!(world.cache.damaged_title(), Some(sample.id), "listed for the next scrub");
        let said = world.cache.damage().unwrap().summary(None);
        assert!(said.contains("damaged and left out") && said.contains("data.ts"), "{said}");
        assert_eq!(world.cache.trouble(), None);
    }
}

/// From one point on, the disk fails all reads: as much of the data is left out as allowed, then
/// the title ends there. Data before that point and viewers of other titles are not disturbed.
#[test]
fn disk_failing_from_offset_ends_title_there_only() {
    for backend in BACKENDS {
        let (long, short) = (SampleFiles::of_extents(80), SampleFiles::of_extents(20));
        let (clock, faults) = (Arc::new(StandingClock::default()), ReadFaults::settable());
        let world = World::with_faults(backend, 16, 0, 1, clock.clone(), faults.clone());
        let Some(mut world) = world else { continue };
        let [long_title, short_title] =
            [&long, &short].map(|sample| world.cache.open_source(Box::new(sample.open())).unwrap());
        faults.set(0, ReadFault::EioAt { at: 40 * 196 * 1316, bytes: u64::MAX });
        let engine = &mut world.engines[0];
        let (mut left_out, mut failed) = (0, Vec::new());
        for extent in 0..80 {
            match engine.fetch(0, long_title, extent, clock.now()).lease {
                Ok(lease) => left_out += long.check_rest(&lease, extent).len(),
                Err(failure) => failed.push((extent, failure)),
            }
            let other = extent % 20;
            short.check(&engine.fetch(1, short_title, other, clock.now()).lease.unwrap(), other);
        }
        // A tenth of 64 extents; three of these packets are in the last block before.
        assert_eq!(left_out, 3 + 6 * 196);
        assert!(failed.iter().copied().eq((46..80).map(|extent| (extent, ReadFailure::Io(libc::EIO)))));
        assert_eq!(world.cache.stats().read_errors, 34);
        assert!(world.cache.trouble().unwrap().to_string().contains("read error"));
    }
}

/// The remaining data of its last extents is sent, and the rest is left out within the allowed
/// limit.
#[test]
fn truncated_file_omits_packets_behind_the_cut() {
    for backend in BACKENDS {
        let sample = SampleFiles::of_extents(8);
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let cut = 6 * 196 * 1316 + 150_000;
        File::options().write(true).open(sample.data_path()).unwrap().set_len(cut).unwrap();
        for extent in 0..6 {
            sample.check(&world.engines[0].fetch(0, title, extent, clock.now()).lease.unwrap(), extent);
        }
        let lease = world.engines[0].fetch(0, title, 6, clock.now()).lease.unwrap();
        // The block in which the file ends is too short.
        assert_eq!(sample.check_rest(&lease, 6), packets_at(cut / 4096 * 4096..7 * 196 * 1316));
        let failed = world.engines[0].fetch(0, title, 7, clock.now()).lease;
        assert_eq!(failed.err(), Some(ReadFailure::Io(libc::ENODATA)));
        assert_eq!(world.cache.stats().read_errors, 1);
        assert!(world.cache.trouble().unwrap().to_string().contains("read error: No data available"));
    }
}

/// All streams that wait for an extent with bad records get the error, and read-ahead into it does
/// not disturb later streams.
#[test]
fn everybody_who_waits_is_told() {
    let sample = SampleFiles::of_extents(8);
    sample.damage(&sample.meta_path(), 4096 * 2 + 1000); // block 1: packets 510 to 1019, extents 2 to 5
    for backend in BACKENDS {
        let clock = Arc::new(StandingClock::default());
        let Some(mut world) = World::new(backend, 16, 2_000_000_000, 1, clock.clone()) else { continue };
        let title = world.cache.open_source(Box::new(sample.open())).unwrap();
        let engine = &mut world.engines[0];
        (0..100).for_each(|viewer| engine.want(viewer, title, 3, clock.now()));
        for _ in 0..100 {
            assert_eq!(engine.grant().lease.err(), Some(ReadFailure::Checksum));
        }
        (0..100).for_each(|viewer| engine.want(viewer, title, 1, clock.now()));
        for _ in 0..100 {
            sample.check(&engine.grant().lease.unwrap(), 1);
        }
        let errors = world.cache.stats().checksum_errors;
        assert!((1..=8).contains(&errors), "{errors} failing reads for 100 viewers");
    }
}
