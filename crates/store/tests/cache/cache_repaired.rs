//! A title that is open while a scrub repairs its files: repaired data is read from then on, and no
//! decoding is needed any more.

use std::sync::Arc;

use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use crate::repair_support::{Members, flip, run_scrub};
use millrace_core::ids::RunSerial;
use millrace_core::seam::{Clock, Want};
use millrace_store::cache::MemberHealth;
use millrace_store::disk::ReadFaults;
use millrace_store::repair::RepairOutcome;
use millrace_testkit::titles::{Film, SIZE};

#[test]
fn files_that_were_repaired_are_opened_anew() {
    for backend in BACKENDS {
        let (world, volume) = Members::new(3, 1);
        let film = Film::new(7 * 900, 7);
        let info = film.add(&volume, "film");
        let data = world.dirs[0].join(format!("titles/{}/data.mru", info.id));
        let bytes = data.metadata().unwrap().len() as usize;
        (0..bytes).step_by(20_011).for_each(|at| flip(&data, at));
        let clock = Arc::new(StandingClock::default());
        let Some(mut cache) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let title = cache.cache.open_title(volume.open_title(info.id, usize::from(SIZE)).unwrap()).unwrap();
        let mut fetch = |extent| {
            let want = Want {
                stream: stream(0),
                run: RunSerial(0),
                title,
                extent,
                place: 0,
                by: clock.now(),
                spare: 0,
            };
            assert!(cache.engines[0].handle.want(&want));
            let lease = cache.engines[0].grant().lease.unwrap();
            let content = lease.content();
            for place in 0..content.packets {
                let packet = (content.first_packet + place) as usize;
                let payload = &lease.wire(place, 1)[12..];
                assert!(payload == film.bytes.chunks(usize::from(SIZE)).nth(packet).unwrap(), "{packet}");
            }
            cache.cache.stats().decoded_bytes
        };
        let first = fetch(0);
        assert!(first > 0, "the damage is decoded around");
        let report = run_scrub(&world.open(), true, &ReadFaults::default());
        assert_eq!(
            (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
            (1, 0),
            "{report:?}"
        );
        let second = fetch(1);
        assert!(second > first, "nobody has looked yet");
        assert!(volume.members().refresh());
        assert_eq!((2..5).map(&mut fetch).last(), Some(second), "the new file is right");
    }
}

/// One member's file is cut and deleted while it plays; a scrub repairs it; then another member is damaged from end to end. The first is
/// healthy at once, and until anybody has looked its new file is found by who needs it.
#[test]
fn repaired_member_replaces_next_damaged_member_at_once() {
    for (backend, is_told) in BACKENDS.into_iter().flat_map(|backend| [(backend, true), (backend, false)]) {
        let (world, volume) = Members::new(4, 1);
        let film = Film::new(7 * 3000, 7);
        let info = film.add(&volume, "film");
        let clock = Arc::new(StandingClock::default());
        let Some(mut cache) = World::new(backend, 4, 0, 1, clock.clone()) else { continue };
        let files = volume.open_title(info.id, usize::from(SIZE)).unwrap();
        let extents = files.extents();
        let title = cache.cache.open_title(files).unwrap();
        let mut fetch = |extent| {
            let want = Want {
                stream: stream(0),
                run: RunSerial(0),
                title,
                extent,
                place: 0,
                by: clock.now(),
                spare: 0,
            };
            assert!(cache.engines[0].handle.want(&want));
            let lease =
                cache.engines[0].grant().lease.unwrap_or_else(|failure| panic!("{extent}: {failure}"));
            let content = lease.content();
            for place in 0..content.packets {
                let packet = (content.first_packet + place) as usize;
                let payload = &lease.wire(place, 1)[12..];
                assert!(payload == film.bytes.chunks(usize::from(SIZE)).nth(packet).unwrap(), "{packet}");
            }
            cache.cache.members().get(1).map(|member| member.health)
        };
        assert!(extents > 12, "{extents}");
        assert_eq!((0..2).map(&mut fetch).last(), Some(Some(MemberHealth::Healthy)));
        let file = |member: usize, name: &str| world.dirs[member].join(format!("titles/{}/{name}", info.id));
        let data = file(1, "data.mru");
        std::fs::File::options().write(true).open(&data).unwrap().set_len(0).unwrap();
        std::fs::remove_file(&data).unwrap();
        assert_eq!((2..8).map(&mut fetch).last(), Some(Some(MemberHealth::Failing)));
        let report = run_scrub(&world.open(), true, &ReadFaults::default());
        assert_eq!(
            (report.count(RepairOutcome::Repaired), report.count(RepairOutcome::Lost)),
            (1, 0),
            "{report:?}"
        );
        for name in ["data.mru", "parity.mru"] {
            let path = file(2, name);
            let bytes = path.metadata().unwrap().len() as usize;
            (0..bytes).step_by(usize::from(SIZE)).for_each(|at| flip(&path, at));
        }
        if is_told {
            assert!(volume.members().refresh());
            clock.advance(250_000_000);
        }
        let healths: Vec<_> = (8..extents).chain(0..extents).map(&mut fetch).collect();
        if is_told {
            assert!(healths.iter().all(|health| *health == Some(MemberHealth::Healthy)), "{healths:?}");
        }
    }
}
