//! Transformed titles of real volumes, through the cache: what viewers are lent is the title transformed, whatever is lost or wrong of it.

use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use crate::cache_common::{BACKENDS, StandingClock, World, stream};
use crate::members_support::Disks;
use millrace_core::ids::{RunSerial, TitleRef};
use millrace_core::packet::PacketMeta;
use millrace_core::pool::Lease;
use millrace_core::seam::{Clock, Want};
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, Timeline};
use millrace_store::cache::{ReadBackend, ReadyTitle};
use millrace_store::transform::{
    Applied, Chain, Derivation, NamedTransform, PacketBlock, Transform, TransformError, Transforms,
    timeline_of,
};
use millrace_store::volume::{TitleInfo, Volume};
use millrace_testkit::mux;
use millrace_testkit::titles::{Film, SIZE};

/// Five extents and a bit, with clocks, stamps and sound.
fn film() -> Film {
    Film { bytes: mux::film(&mux::Film { packets: 7499, ..mux::Film::default() }), group: 100 }
}

fn named(text: &str) -> Arc<NamedTransform> {
    Arc::clone(Transforms::parse(&[text]).unwrap().iter().next().unwrap())
}

const MOVED: &str = "x=select:audio=none+restamp:offset=-5s,continuity=3";

/// The title as viewers should get it.
fn transformed(film: &Film, named: &Arc<NamedTransform>, info: &TitleInfo) -> Vec<u8> {
    let mut bytes = film.bytes.clone();
    let derivation = Derivation::bind(named, info.id, &bytes).unwrap();
    assert!(derivation.apply(&mut PacketBlock::of_bytes(0, 188, &mut bytes), &mut Vec::new()));
    assert!(bytes != film.bytes);
    bytes
}

fn open(
    world: &World,
    volume: &Volume,
    info: &TitleInfo,
    named: &Arc<NamedTransform>,
    size: usize,
) -> TitleRef {
    let derivation = Derivation::of_title(named, volume, info.id).unwrap();
    let files = volume.open_title(info.id, size).unwrap();
    world.cache.open_ready(ReadyTitle::of_derived(files, derivation)).unwrap()
}

/// Returns the stored records of the packets of one size.
fn metas(volume: &Volume, info: &TitleInfo, size: usize) -> Vec<PacketMeta> {
    let files = volume.open_title(info.id, size).unwrap();
    let mut metas = vec![PacketMeta::default(); files.packets() as usize];
    files.read_metas(0, &mut metas).unwrap();
    metas
}

/// Holds a lease against the title; the packets that are missing.
fn check(lease: &Lease, metas: &[PacketMeta], expected: &[u8], timeline: Timeline) -> Vec<u32> {
    let (content, mut missing) = (lease.content(), Vec::new());
    let size = content.layout.packet_bytes();
    for place in 0..content.packets {
        let packet = content.first_packet + place;
        let (record, sent) = (lease.meta(place), lease.wire(place, 1));
        let stored = metas[packet as usize];
        if record.is_missing() {
            missing.push(packet);
            assert!(sent[content.layout.header_bytes()..].iter().all(|byte| *byte == 0));
            continue;
        }
        let payload = expected.chunks(size).nth(packet as usize).unwrap();
        let meta = PacketMeta::new(sum16(payload), stored.flags(), stored.time());
        assert_eq!(record, meta, "record of packet {packet} of {size}");
        if content.layout.is_raw() {
            assert!(sent == payload, "packet {packet}");
            continue;
        }
        let (header, sent) = RtpHeader::parse(sent).unwrap();
        assert!(sent == payload, "payload of packet {packet} of {size}");
        assert_eq!(header, timeline.header(packet, stored.time()));
    }
    missing
}

/// Fetches all of a title; the packets that are missing.
fn fetch_all(
    world: &mut World,
    title: TitleRef,
    metas: &[PacketMeta],
    expected: &[u8],
    timeline: Timeline,
) -> Vec<u32> {
    let (mut missing, mut packets, mut extent) = (Vec::new(), 0, 0);
    loop {
        let grant = world.engines[0].fetch(0, title, extent, StandingClock::default().now());
        let lease = grant.lease.unwrap_or_else(|failure| panic!("extent {extent}: {failure}"));
        missing.extend(check(&lease, metas, expected, timeline));
        (packets, extent) = (packets + lease.content().packets as usize, extent + 1);
        if packets * lease.content().layout.packet_bytes() >= expected.len() {
            return missing;
        }
    }
}

/// A store of plain files.
fn plain() -> (tempfile::TempDir, Volume) {
    let dir = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_create(dir.path()).unwrap();
    (dir, volume)
}

fn worlds(extents: usize) -> impl Iterator<Item = World> {
    let world = move |backend| World::new(backend, extents, 0, 1, Arc::new(StandingClock::default()));
    BACKENDS.into_iter().filter_map(world)
}

#[test]
fn transformed_track_is_served_from_all_volume_layouts() {
    let (film, named) = (film(), named(MOVED));
    let ((_dir, whole), (_disk, protected), (_disks, striped)) =
        (plain(), Disks::volume(1, 0, 2), Disks::volume(3, 1, 0));
    for volume in [whole, protected, striped] {
        let info = film.add_sizes(&volume, "film", &[SIZE, 940]);
        let expected = transformed(&film, &named, &info);
        for mut world in worlds(16) {
            for size in [1316, 940, 8084] {
                let title = open(&world, &volume, &info, &named, size);
                let (metas, timeline) = (metas(&volume, &info, size), timeline_of(info.timeline_of(size), 0));
                assert_eq!(fetch_all(&mut world, title, &metas, &expected, timeline), [0; 0], "{size}");
                world.cache.close_title(title);
            }
            let files = volume.open_title(info.id, 1316).unwrap().raw().unwrap();
            let derivation = Derivation::of_title(&named, &volume, info.id).unwrap();
            let title = world.cache.open_ready(ReadyTitle::of_derived(files, derivation)).unwrap();
            let metas = metas(&volume, &info, 1316);
            assert_eq!(fetch_all(&mut world, title, &metas, &expected, info.timeline), [0; 0], "raw");
        }
    }
    assert_eq!(named.report().counters().failed_blocks, 0);
}

/// The stored sums and CRCs are those of the stored packets: a byte that is wrong is found before the packet is changed, also in one that
/// becomes a null packet.
#[test]
fn transformed_track_omits_damaged_packets() {
    let (film, named) = (film(), named(MOVED));
    let sound = film.bytes.chunks(188).position(|packet| packet[1] & 0x1f == 1 && packet[2] == 1).unwrap();
    let differ = |at: &usize| at % 1316 < 1300 && film.bytes[*at..at + 2] != film.bytes[at + 2..at + 4];
    let from = |at: usize| (at..).step_by(2).find(differ).unwrap();
    for at in [from(700_000), from(sound * 188 + 4)] {
        let (dir, volume) = plain();
        let info = film.add_sizes(&volume, "film", &[SIZE, 940]);
        let (expected, metas) = (transformed(&film, &named, &info), metas(&volume, &info, 1316));
        let data = dir.path().join(format!("titles/{}/data.ts", info.id));
        let data = std::fs::File::options().read(true).write(true).open(data).unwrap();
        // Two words change places: the sum of 16 bits is the same, the CRC is not.
        let words = &film.bytes[at..at + 4];
        assert!(words[..2] != words[2..]);
        data.write_all_at(&[words[2], words[3], words[0], words[1]], at as u64).unwrap();
        for mut world in worlds(16) {
            let title = open(&world, &volume, &info, &named, 1316);
            let timeline = timeline_of(info.timeline, 0);
            let missing = fetch_all(&mut world, title, &metas, &expected, timeline);
            assert_eq!(missing, [at as u32 / 1316], "byte {at}");
        }
    }
}

/// Viewers of a transformed track have no use for the parity of the packets as they are stored, so nothing is left out for them.
#[test]
fn transformed_track_decodes_lost_member_before_transform() {
    let (film, named) = (film(), named(MOVED));
    let (disks, volume) = Disks::volume(3, 1, 0);
    let info = film.add_sizes(&volume, "film", &[SIZE, 940]);
    let (expected, metas) = (transformed(&film, &named, &info), metas(&volume, &info, 1316));
    disks.pull(1);
    volume.members().refresh();
    for mut world in worlds(16) {
        let title = open(&world, &volume, &info, &named, 1316);
        let timeline = timeline_of(info.timeline, 0);
        assert_eq!(fetch_all(&mut world, title, &metas, &expected, timeline), [0; 0]);
        assert!(world.cache.stats().decoded_bytes > 0);
    }
    // This also holds for viewers that could do without the data: their repair data is not for
    // these packets.
    let (disks, volume) = Disks::volume(5, 1, 0);
    let info = film.add_sizes(&volume, "film", &[SIZE, 940]);
    disks.pull(1);
    volume.members().refresh();
    for mut world in worlds(16) {
        let title = open(&world, &volume, &info, &named, 1316);
        for extent in 0..5 {
            let (stream, run, by) = (stream(0), RunSerial(0), StandingClock::default().now());
            let want = Want { stream, run, title, extent, place: 0, by, spare: 1 };
            assert!(world.engines[0].handle.want(&want));
            let lease = world.engines[0].grant().lease.unwrap();
            assert_eq!(check(&lease, &metas, &expected, timeline_of(info.timeline, 0)), [0; 0]);
        }
    }
}

#[test]
fn transformed_track_viewers_share_copy_apart_from_plain_title() {
    let (film, named) = (film(), named(MOVED));
    let other = Transforms::parse(&["a=select:audio=all", "x=restamp:offset=1s"]).unwrap();
    let other = other.get(1).unwrap();
    let (_dir, volume) = plain();
    let info = film.add(&volume, "film");
    let (expected, metas) = (transformed(&film, &named, &info), metas(&volume, &info, 1316));
    let before = named.report().counters().transformed_blocks;
    let clock = Arc::new(StandingClock::default());
    let mut world = World::new(ReadBackend::Threads, 16, 0, 2, clock.clone()).unwrap();
    let [derived, again] = [0, 1].map(|_| open(&world, &volume, &info, &named, 1316));
    let plain = world.cache.open_title(volume.open_title(info.id, 1316).unwrap()).unwrap();
    let second = open(&world, &volume, &info, other, 1316);
    assert_eq!(derived, again);
    assert!(derived != plain && plain != second && derived != second);
    let mut fetch = |engine: usize, stream, title| {
        world.engines[engine].fetch(stream, title, 2, clock.now()).lease.unwrap()
    };
    let mut leases: Vec<_> = (0..6).map(|viewer| fetch(viewer as usize % 2, viewer, derived)).collect();
    let first = leases.remove(0);
    assert_eq!(check(&first, &metas, &expected, timeline_of(info.timeline, 0)), [0; 0]);
    assert!(leases.iter().all(|lease| lease.bytes().as_ptr() == first.bytes().as_ptr()), "one copy");
    let stored = fetch(0, 7, plain);
    assert_eq!(check(&stored, &metas, &film.bytes, info.timeline), [0; 0]);
    let moved = fetch(0, 8, second);
    assert!(moved.bytes() != first.bytes() && moved.bytes() != stored.bytes());
    world.wait_stats("three reads for eight viewers", |stats| (stats.misses, stats.hits) == (3, 5));
    assert_eq!(named.report().counters().transformed_blocks - before, 1);
}

/// Waits at each block until it may go on.
struct Gate(Mutex<Receiver<()>>);

impl Transform for Gate {
    fn apply(&self, block: &mut PacketBlock<'_>) -> Result<Applied, TransformError> {
        self.0.lock().unwrap().recv().unwrap();
        block.for_each(|packet| packet[187] = 0xaa);
        Ok(Applied::default())
    }
    fn is_slow(&self) -> bool {
        true
    }
}

#[test]
fn slow_transform_does_not_delay_other_reads() {
    let (film, named) = (film(), named(MOVED));
    let (_dir, volume) = plain();
    let info = film.add(&volume, "film");
    let metas = metas(&volume, &info, 1316);
    let clock = Arc::new(StandingClock::default());
    for backend in BACKENDS {
        let Some(mut world) = World::new(backend, 16, 0, 1, clock.clone()) else { continue };
        let (release, gate) = channel();
        let steps = Chain(vec![Box::new(Gate(Mutex::new(gate)))]);
        let derivation = Derivation::new(&named, info.id, steps);
        let files = || volume.open_title(info.id, 1316).unwrap();
        let slow = world.cache.open_ready(ReadyTitle::of_derived(files(), derivation)).unwrap();
        let plain = world.cache.open_title(files()).unwrap();
        (0..3).for_each(|extent| world.engines[0].want(extent, slow, extent, clock.now()));
        for extent in 0..5 {
            let lease = world.engines[0].fetch(9, plain, extent, clock.now()).lease.unwrap();
            assert_eq!(check(&lease, &metas, &film.bytes, info.timeline), [0; 0]);
        }
        (0..3).for_each(|_| release.send(()).unwrap());
        for _ in 0..3 {
            let grant = world.engines[0].grant();
            let lease = grant.lease.unwrap();
            assert_eq!(grant.title, slow);
            for place in 0..lease.content().packets {
                let payload = &lease.wire(place, 1)[12..];
                assert!(payload.chunks(188).all(|packet| packet[187] == 0xaa));
                assert_eq!(lease.meta(place).sum(), sum16(payload));
            }
        }
        // One that is under way when the cache ends is waited for, and nothing is lent any more.
        world.engines[0].want(3, slow, 3, clock.now());
        release.send(()).unwrap();
        world.cache.shutdown();
        let held = world.arena.extents();
        drop(world.engines);
        assert_eq!((0..held).filter(|&extent| world.arena.leases(extent) > 0).count(), 0);
    }
}
