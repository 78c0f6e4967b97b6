//! Titles that are read while they are written, with the real manager: readers at the edge, a feeder that stops, dies, or is faster than what
//! is held.

use std::collections::HashMap;
use std::sync::Arc;

use crate::cache_common;
use crate::cache_common::{Engine, StandingClock, TestBell, World, stream};
use millrace_core::ids::{RunSerial, TitleId, TitleRef};
use millrace_core::packet::WireLayout;
use millrace_core::pool::Lease;
use millrace_core::random::SplitMix;
use millrace_core::seam::{Doorbell, Want};
use millrace_core::time::{Instant, MediaTicks};
use millrace_core::wire::rtp::{RtpHeader, Timeline, sequence_of};
use millrace_store::cache::{FeedError, Feeder, Grant, Keep, LiveTitle, ReadBackend, ReadFailure};

const PER_EXTENT: u32 = 196;

/// Returns the payload that a test feeds: no two packets are the same.
fn payload(packet: u32) -> Vec<u8> {
    cache_common::sample::noise(u64::from(packet) + 1, 1316)
}

/// A feeder that waits for room.
struct TestFeeder {
    feeder: Feeder,
    bell: Arc<TestBell>,
}

impl TestFeeder {
    /// Adds `packets` packets and publishes them.
    fn feed(&mut self, packets: u32) {
        for _ in 0..packets {
            loop {
                let (rings, packet) = (self.bell.rings(), self.feeder.next_packet());
                match self.feeder.push(&payload(packet), 0, MediaTicks(u64::from(packet) * 90)) {
                    Ok(()) => break,
                    Err(FeedError::NoRoom) => self.bell.wait_beyond(rings),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        self.feeder.publish().unwrap();
    }
}

fn world(extents: usize, engines: usize) -> World {
    World::new(ReadBackend::Threads, extents, 0, engines, Arc::new(StandingClock::default())).unwrap()
}

fn open(world: &World, extents: usize) -> (TitleRef, TestFeeder) {
    let (layout, timeline) = (WireLayout::new(1316).unwrap(), Timeline { ssrc: 1, timestamp_base: 0 });
    let title = LiveTitle { id: TitleId([1; 16]), layout, timeline, extents, keep: Keep::Newest };
    let bell = Arc::new(TestBell::default());
    let (title, feeder) = world.cache.open_live(title, Arc::clone(&bell) as Arc<dyn Doorbell>).unwrap();
    (title, TestFeeder { feeder, bell })
}

/// Requests the packet that the stream needs next.
fn want_packet(engine: &mut Engine, index: u32, title: TitleRef, packet: u32) {
    let (extent, place) = (packet / PER_EXTENT, (packet % PER_EXTENT) as u16);
    let want =
        Want { stream: stream(index), run: RunSerial(0), title, extent, place, by: Instant(0), spare: 0 };
    assert!(engine.handle.want(&want));
}

/// Checks the lease of a stream that needs `packet`. Returns the packet behind the lease.
fn read(lease: &Lease, packet: u32) -> u32 {
    let content = lease.content();
    let (extent, place) = (packet / PER_EXTENT, packet % PER_EXTENT);
    assert_eq!((content.number, content.first_packet), (extent, extent * PER_EXTENT));
    assert!(content.packets > place, "nothing new");
    for place in place..content.packets {
        let packet = content.first_packet + place;
        let (header, sent) = RtpHeader::parse(lease.wire(place, 1)).unwrap();
        assert_eq!((header.sequence, lease.meta(place).time()), (sequence_of(packet), header_time(packet)));
        assert!(sent == payload(packet), "packet {packet}");
    }
    content.first_packet + content.packets
}

fn header_time(packet: u32) -> MediaTicks {
    MediaTicks(u64::from(packet) * 90)
}

fn lease(grant: Grant) -> Lease {
    grant.lease.unwrap_or_else(|failure| panic!("{failure}"))
}

#[test]
fn live_readers_of_one_feeder_get_each_byte_once_in_order() {
    const READERS: u32 = 20;
    const PACKETS: u32 = 1500;
    let mut world = world(32, 2);
    let (title, mut feeder) = open(&world, 12);
    let feeding = std::thread::spawn(move || {
        let mut random = SplitMix(7);
        while feeder.feeder.next_packet() < PACKETS {
            let left = PACKETS - feeder.feeder.next_packet();
            feeder.feed(left.min(1 + random.below(50) as u32));
        }
        feeder.feeder.finish();
    });
    let reading = std::mem::take(&mut world.engines).into_iter().map(|mut engine| {
        std::thread::spawn(move || {
            let mut next: HashMap<u32, u32> = (0..READERS).map(|index| (index, 0)).collect();
            (0..READERS).for_each(|index| want_packet(&mut engine, index, title, 0));
            while !next.is_empty() {
                let grant = engine.grant();
                let index = grant.stream.index;
                let packet = next.get_mut(&index).expect("one that has not ended");
                if let Err(failure) = grant.lease {
                    assert_eq!((failure, *packet), (ReadFailure::Ended, PACKETS));
                    next.remove(&index);
                    continue;
                }
                *packet = read(&lease(grant), *packet);
                want_packet(&mut engine, index, title, *packet);
            }
            engine
        })
    });
    let reading: Vec<_> = reading.collect();
    feeding.join().unwrap();
    let engines: Vec<_> = reading.into_iter().map(|thread| thread.join().unwrap()).collect();
    let stats = world.cache.stats();
    assert_eq!((engines.len(), stats.reads, stats.late_grants), (2, 0, 0), "{stats:?}");
}

#[test]
fn live_reader_at_edge_is_answered_after_next_feed() {
    let mut world = world(16, 1);
    let (title, mut feeder) = open(&world, 5);
    let engine = &mut world.engines[0];
    want_packet(engine, 0, title, 0);
    feeder.feed(100);
    assert_eq!(read(&lease(engine.grant()), 0), 100);
    want_packet(engine, 0, title, 100);
    // Asks are taken in order: the first stream's was looked at before the second was answered.
    want_packet(engine, 1, title, 7);
    let grant = engine.grant();
    assert_eq!((grant.stream, read(&lease(grant), 7)), (stream(1), 100));
    assert!(engine.handle.poll().is_none(), "the feeder has stopped");
    feeder.feed(1);
    let grant = engine.grant();
    assert_eq!((grant.stream, read(&lease(grant), 100)), (stream(0), 101));
}

#[test]
fn live_feeder_loss_delivers_published_packets_then_error() {
    let mut world = world(16, 1);
    let (title, mut feeder) = open(&world, 5);
    let engine = &mut world.engines[0];
    feeder.feed(300);
    feeder.feeder.push(&payload(300), 0, MediaTicks(0)).unwrap();
    want_packet(engine, 0, title, 300);
    want_packet(engine, 1, title, 100);
    let grant = engine.grant();
    assert_eq!((grant.stream, read(&lease(grant), 100)), (stream(1), PER_EXTENT));
    drop(feeder);
    let grant = engine.grant();
    assert_eq!((grant.stream, grant.lease.err()), (stream(0), Some(ReadFailure::FeederLost)));
    want_packet(engine, 1, title, PER_EXTENT);
    assert_eq!(read(&lease(engine.grant()), PER_EXTENT), 300);
    want_packet(engine, 1, title, 300);
    assert_eq!(engine.grant().lease.err(), Some(ReadFailure::FeederLost));
}

#[test]
fn live_reader_behind_window_gets_error_never_wrong_bytes() {
    const HELD: u32 = 5;
    let mut world = world(16, 1);
    let (title, mut feeder) = open(&world, HELD as usize);
    let engine = &mut world.engines[0];
    feeder.feed(PER_EXTENT + 10);
    want_packet(engine, 0, title, 0);
    let first = lease(engine.grant());
    want_packet(engine, 1, title, PER_EXTENT + 10);
    // No stream reads for forty extents; leased data stays unchanged.
    feeder.feed(40 * PER_EXTENT);
    assert_eq!(read(&first, 0), PER_EXTENT);
    // The waiting stream gets the data that comes first if it is served before that data is
    // dropped; otherwise it gets an error that the data is gone.
    let waited = engine.grant();
    assert_eq!(waited.stream, stream(1));
    match waited.lease {
        Ok(lease) => assert!(read(&lease, PER_EXTENT + 10) > PER_EXTENT + 10),
        Err(failure) => assert!(matches!(failure, ReadFailure::Passed { first } if first > 1), "{failure}"),
    }
    want_packet(engine, 0, title, PER_EXTENT);
    let Err(ReadFailure::Passed { first: oldest }) = engine.grant().lease else { panic!("it is not held") };
    assert!((37..=41).contains(&oldest), "{oldest}");
    // From the oldest extent on it goes on to the edge.
    let mut packet = oldest * PER_EXTENT;
    while packet < 41 * PER_EXTENT + 10 {
        want_packet(engine, 0, title, packet);
        packet = match engine.grant().lease {
            Ok(lease) => read(&lease, packet),
            // Data fed earlier is still being taken in.
            Err(ReadFailure::Passed { first }) if first > packet / PER_EXTENT => first * PER_EXTENT,
            Err(failure) => panic!("{failure}"),
        };
    }
    // Extents that were on lease when they were dropped (the first, the one that the other stream
    // waited for, the one that the reader was at) are reclaimed when they are needed.
    let stats = world.wait_stats("what is held", |stats| stats.free >= 16 - u64::from(HELD) - 3);
    assert_eq!(stats.evictions, 0, "nobody else has lost anything");
    drop(first);
    world.cache.close_title(title);
    assert_eq!(feeder.feeder.publish(), Err(FeedError::Closed));
    drop(feeder);
}
