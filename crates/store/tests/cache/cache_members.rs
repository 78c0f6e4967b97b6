//! Titles on several members: every extent is right whatever happens to as many members as the
//! parity makes up for. With more failures, viewers of exactly the affected data get an error, and
//! all others go on.

#[path = "../../src/cache/stripes/sample.rs"]
mod stripes_sample;

mod given {
    //! Items that the sample title needs.
    pub(crate) use millrace_store::cache::{
        MemberFiles, ParitySource, SourceKind, TitleFile, TitleSource, TrackId,
    };
    pub(crate) use millrace_store::format::superblock::Geometry;
    pub(crate) use millrace_store::stripes::StripeLayout;

    pub(crate) use crate::cache_common::sample::{encode, noise};
}

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant as RealInstant};

use crate::cache_common::sample::SampleFiles;
use crate::cache_common::{BACKENDS, RunningClock, World};
use given::TitleFile;
use millrace_core::ids::TitleRef;
use millrace_core::limits::MAX_READS_IN_FLIGHT;
use millrace_core::seam::Clock;
use millrace_store::cache::{MemberHealth, ReadBackend, ReadFailure};
use millrace_store::disk::{ReadFault, ReadFaults};
use millrace_store::limits::MAX_ASIDE_BYTES;
use stripes_sample::{StripeSample, geometry};

/// A cache on the real clock, one engine, disks that fail on order.
struct Bench {
    world: World,
    clock: Arc<RunningClock>,
    faults: ReadFaults,
}

impl Bench {
    /// `None`: this machine has not got this way of reading.
    fn new(backend: ReadBackend, extents: usize) -> Option<Self> {
        let clock = Arc::new(RunningClock(RealInstant::now()));
        let faults = ReadFaults::settable();
        let world = World::with_faults(backend, extents, 0, 1, clock.clone(), faults.clone())?;
        Some(Self { world, clock, faults })
    }

    fn open(&self, sample: &StripeSample) -> TitleRef {
        self.world.cache.open_source(Box::new(sample.open(1316))).unwrap()
    }

    fn fetch(&mut self, title: TitleRef, extent: u32) -> Result<(), ReadFailure> {
        self.world.engines[0].fetch(extent, title, extent, self.clock.now()).lease.map(drop)
    }

    /// Reads the whole title at once; every extent has to be right and without holes.
    fn read_all(&mut self, sample: &StripeSample, title: TitleRef) {
        let faults: Vec<_> = (0..5).map(|member| self.faults.of(member)).collect();
        let extents = extents(sample);
        let engine = &mut self.world.engines[0];
        (0..extents).for_each(|extent| engine.want(extent, title, extent, self.clock.now()));
        for _ in 0..extents {
            let grant = engine.grant();
            let lease = match grant.lease {
                Ok(lease) => lease,
                Err(failure) => panic!("extent {} with {faults:?}: {failure}", grant.extent),
            };
            assert_eq!(sample.check(&lease.content(), lease.bytes()), [0; 0]);
        }
    }

    /// Reads the whole title from its disks without needing parity. On a machine that is busy one of them may be late: then once more.
    fn read_without_parity(&mut self, sample: &StripeSample) {
        let needed = |bench: &Self| {
            let stats = bench.world.cache.stats();
            (stats.degraded, stats.hung_reads, stats.decoded_bytes)
        };
        for _ in 0..20 {
            // Nothing of a newly opened title is in memory.
            let title = self.open(sample);
            // One that was late is left out until probes of an open title show that it is quick again.
            (0..self.world.cache.members().len())
                .for_each(|member| self.wait_health(member, MemberHealth::Healthy));
            let before = needed(self);
            self.read_all(sample, title);
            self.world.cache.close_title(title);
            if needed(self) == before {
                return;
            }
        }
        panic!("parity is needed although all is there: {:?}", self.world.cache.members());
    }

    /// Waits until a member is as it should be.
    fn wait_health(&self, member: usize, health: MemberHealth) {
        let begun = RealInstant::now();
        while self.world.cache.members().get(member).map(|report| report.health) != Some(health) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", self.world.cache.members());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn extents(sample: &StripeSample) -> u32 {
    let packets = sample.data.len().div_ceil(1316) as u32;
    let layout = given::TitleSource::layout(&sample.open(1316));
    packets.div_ceil(layout.packets_per_extent())
}

/// Creates a title on `members` members that tolerates the loss of `t`, about `extents` extents
/// long.
fn title(members: u16, t: u16, extents: usize) -> StripeSample {
    let (k, m) = match (members, t) {
        (2, 1) => (4, 4),
        (3, 1) => (4, 2),
        (4, 2) => (4, 4),
        (5, 1) => (4, 1),
        _ => panic!("no such geometry here"),
    };
    StripeSample::of_stripes(geometry(k, m, members, 5), extents * 9)
}

#[test]
fn up_to_t_members_may_fail_in_any_way_and_every_extent_is_right() {
    let ways = [
        ReadFault::None,
        ReadFault::Eio,
        ReadFault::Short,
        // Few enough that two flips in a packet do not cancel out in its sum.
        ReadFault::Flip { seed: 9, one_in: 40 },
        ReadFault::Flip { seed: 3, one_in: 60 },
        ReadFault::Hang,
    ];
    for backend in BACKENDS {
        for (members, t, lost) in [(2, 1, &[1][..]), (3, 1, &[0]), (4, 2, &[0, 3]), (5, 1, &[2])] {
            let sample = title(members, t, 5);
            for way in ways {
                let Some(mut bench) = Bench::new(backend, 8) else { continue };
                let title = bench.open(&sample);
                let faulty: Vec<_> = lost.iter().map(|&member| (member, way)).collect();
                bench.faults.set_all(&faulty);
                bench.read_all(&sample, title);
                bench.read_all(&sample, title);
                let stats = bench.world.cache.stats();
                assert_eq!((stats.checksum_errors, stats.read_errors), (0, 0), "{members} members, {way:?}");
                if way == ReadFault::None {
                    bench.read_without_parity(&sample);
                } else {
                    assert!(stats.degraded > 0 && stats.decoded_bytes > 0, "{way:?}: {stats:?}");
                }
                bench.faults.set_all(&[]);
            }
        }
    }
}

#[test]
fn members_may_be_missing_or_lack_the_title_or_its_end() {
    for backend in BACKENDS {
        let sample = title(4, 2, 4);
        let Some(mut bench) = Bench::new(backend, 8) else { continue };
        let first = bench.open(&sample);
        sample.take_away(&[1, 2]);
        bench.read_all(&sample, first);
        assert!(bench.world.cache.stats().degraded > 0);
        bench.world.cache.close_title(first);
        sample.take_away(&[]);
        std::fs::remove_dir_all(sample.member(3)).unwrap();
        let cut = File::options().write(true).open(sample.path(0, TitleFile::Data)).unwrap();
        cut.set_len(100_000).unwrap();
        let second = bench.open(&sample);
        bench.read_all(&sample, second);
        bench.world.cache.close_title(second);
        // All that was lost is on new disks.
        [0, 3].into_iter().for_each(|position| sample.replace(position));
        let third = bench.open(&sample);
        (0..4).for_each(|member| bench.wait_health(member, MemberHealth::Healthy));
        bench.world.cache.close_title(third);
        bench.read_without_parity(&sample);
    }
}

#[test]
fn more_than_t_are_reported_and_other_titles_go_on() {
    for backend in BACKENDS {
        for way in [ReadFault::Hang, ReadFault::Eio] {
            let (sample, whole) = (title(3, 1, 3), SampleFiles::of_extents(6));
            let Some(mut bench) = Bench::new(backend, 32) else { continue };
            let lost = bench.open(&sample);
            let good = bench.world.cache.open_source(Box::new(whole.open())).unwrap();
            bench.faults.set_all(&[(1, way), (2, way)]);
            let engine = &mut bench.world.engines[0];
            (0..extents(&sample))
                .for_each(|extent| engine.want(100 + extent, lost, extent, bench.clock.now()));
            (0..whole.extents()).for_each(|extent| engine.want(extent, good, extent, bench.clock.now()));
            let mut told = 0;
            for _ in 0..extents(&sample) + whole.extents() {
                let grant = engine.grant();
                match grant.lease {
                    Ok(lease) => whole.check(&lease, grant.extent),
                    Err(failure) => {
                        assert_eq!(
                            (grant.title, failure),
                            (lost, ReadFailure::MembersLost { lost: 2, may: 1 })
                        );
                        told += 1;
                    }
                }
            }
            assert_eq!(told, extents(&sample), "{way:?}");
            let stats = bench.world.cache.stats();
            assert_eq!(stats.read_errors, u64::from(told));
            let trouble = bench.world.cache.trouble().unwrap().to_string();
            assert!(trouble.contains("2 of the title's members cannot be read"), "{trouble}");
            assert!(trouble.starts_with("title ") && trouble.contains("(members 1, 2)"), "{trouble}");
            assert!(trouble.ends_with("bring the members back, or run repair"), "{trouble}");
            // They come back, and so does the title.
            bench.faults.set_all(&[]);
            (1..3).for_each(|member| bench.wait_health(member, MemberHealth::Healthy));
            bench.read_all(&sample, lost);
        }
    }
}

/// More symbols of a codeword are wrong than its parity makes up for: only those packets are missing.
#[test]
fn wrong_bytes_beyond_parity_cost_only_their_packets() {
    for backend in BACKENDS {
        let sample = title(3, 1, 5); // 4 + 2, units of 5 packets
        let flip = |stripe: u32, unit: usize| {
            let kind = if unit < 4 { TitleFile::Data } else { TitleFile::Parity };
            let path = sample.path(sample.stripes.position_of(stripe, unit), kind);
            let file = File::options().read(true).write(true).open(path).unwrap();
            let (mut byte, at) = ([0], sample.stripes.offset_of(stripe, unit) + 700);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 2], at).unwrap();
        };
        [0, 1, 4, 5].into_iter().for_each(|unit| flip(3, unit));
        [0, 1].into_iter().for_each(|unit| flip(5, unit)); // two, and two parities
        let Some(mut bench) = Bench::new(backend, 8) else { continue };
        let title = bench.open(&sample);
        let mut missing = Vec::new();
        for extent in 0..extents(&sample) {
            let lease = bench.world.engines[0].fetch(extent, title, extent, bench.clock.now()).lease.unwrap();
            missing.extend(sample.check(&lease.content(), lease.bytes()));
        }
        assert_eq!(missing, [3 * 20, 3 * 20 + 5]);
        let stats = bench.world.cache.stats();
        assert_eq!((stats.damaged, stats.damaged_packets, stats.checksum_errors), (1, 2, 0), "{stats:?}");
        let damage = bench.world.cache.damage().unwrap();
        assert_eq!((damage.span.clone(), damage.packets, damage.path.is_none()), (60..66, 2, true));
        assert!(!damage.members.is_empty());
        let said = damage.summary(Some("film"));
        assert!(said.contains("member") && said.ends_with("run millrace scrub"), "{said}");
    }
}

#[test]
fn hung_member_uses_bounded_memory_and_is_read_again_when_healthy() {
    for backend in BACKENDS {
        let sample = title(3, 1, 24);
        let Some(mut bench) = Bench::new(backend, 40) else { continue };
        let title = bench.open(&sample);
        bench.read_all(&sample, title);
        assert!(bench.world.cache.members().iter().all(|report| report.health == MemberHealth::Healthy));
        bench.world.cache.close_title(title);
        bench.faults.set(1, ReadFault::Hang);
        for _ in 0..4 {
            let title = bench.open(&sample);
            bench.read_all(&sample, title);
            bench.world.cache.close_title(title);
            let stats = bench.world.cache.stats();
            assert!(stats.hung_now > 0 && stats.aside_bytes <= MAX_ASIDE_BYTES as u64, "{stats:?}");
            // Only the reads in flight when the hang was noticed. The member gets no further reads,
            // unless a busy processor has made another member look slow too: then all present
            // members are read.
            let members = bench.world.cache.members();
            let are_others_well = [0, 2].iter().all(|&other| members[other].suspensions == 0);
            let most = if are_others_well { MAX_READS_IN_FLIGHT as u64 } else { stats.reads };
            assert!((1..=most).contains(&stats.hung_reads), "{stats:?}, {members:?}");
        }
        let report = &bench.world.cache.members()[1];
        assert_eq!((report.health, report.suspensions), (MemberHealth::Slow, 1));
        assert!(report.late > 0 && report.owed > 0 && report.summary().contains("is slow"), "{report:?}");
        bench.faults.set(1, ReadFault::None);
        bench.wait_health(1, MemberHealth::Healthy);
        let stats = bench.world.wait_stats("what was put aside comes back", |stats| stats.aside_bytes == 0);
        assert_eq!(stats.hung_now, 0);
        let reads = bench.world.cache.members()[1].reads;
        bench.read_without_parity(&sample);
        assert!(bench.world.cache.members()[1].reads > reads, "it is read from again");
    }
}

/// A disk that is slow but answers is left alone where the others suffice, and waited for where they do not.
#[test]
fn slow_members_are_waited_for_when_nothing_else_is_left() {
    for backend in BACKENDS {
        let sample = title(3, 1, 2);
        let Some(mut bench) = Bench::new(backend, 8) else { continue };
        let title = bench.open(&sample);
        let slow = ReadFault::SlowNs(400_000_000);
        bench.faults.set_all(&[(0, slow), (1, slow), (2, slow)]);
        assert_eq!(bench.fetch(title, 0), Ok(()));
        let stats = bench.world.cache.stats();
        // A member that has more to read takes longer than the others, and is given up once these
        // have answered.
        assert_eq!(stats.read_errors, 0, "{stats:?}");
        bench.faults.set_all(&[]);
        (0..3).for_each(|member| bench.wait_health(member, MemberHealth::Healthy));
        bench.read_all(&sample, title);
    }
}

/// A title on one member waits for its disk, however long it takes, parity or not.
#[test]
fn single_member_title_waits_for_slow_disk() {
    for backend in BACKENDS {
        let (plain, stripes) =
            (SampleFiles::of_extents(2), StripeSample::of_stripes(geometry(4, 2, 1, 5), 12));
        let Some(mut bench) = Bench::new(backend, 8) else { continue };
        let plain_title = bench.world.cache.open_source(Box::new(plain.open())).unwrap();
        let stripes_title = bench.open(&stripes);
        bench.faults.set(0, ReadFault::SlowNs(700_000_000));
        assert_eq!(bench.fetch(plain_title, 0), Ok(()));
        assert_eq!(bench.fetch(stripes_title, 0), Ok(()));
        let stats = bench.world.cache.stats();
        assert_eq!((stats.read_errors, stats.hung_reads, stats.retries), (0, 0, 0));
        bench.faults.set_all(&[]);
    }
}
