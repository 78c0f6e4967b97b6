use std::sync::Mutex;

use millrace_core::ids::TitleRef;
use millrace_core::pool::HeapRegion;
use millrace_core::wire::checksum::sum16;
use millrace_core::wire::rtp::{RtpHeader, sequence_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;

struct Silent;

impl Doorbell for Silent {
    fn ring(&self) {}
}

const TIMELINE: Timeline = Timeline { ssrc: 7, timestamp_base: 99 };

fn feed(extents: usize) -> (Arc<ExtentArena>, Feeder, Feed) {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(extents + 2)));
    let layout = WireLayout::new(1316).unwrap();
    let title = LiveTitle { id: TitleId([1; 16]), layout, timeline: TIMELINE, extents, keep: Keep::Newest };
    let wake = Arc::new(EventBell::new().unwrap());
    let (feeder, feed) = pair(title, Arc::clone(&arena), wake, Arc::new(Silent));
    (arena, feeder, feed)
}

/// Gives the feeder all extents that it can take, as the manager does.
fn bring(arena: &Arc<ExtentArena>, feed: &mut Feed) {
    while feed.has_room() {
        if let Some(oldest) = feed.shed() {
            assert!(arena.reclaim(oldest), "nobody has it");
        }
        let free = (0..arena.extents()).find_map(|extent| arena.fill(extent)).unwrap();
        feed.give(free);
    }
}

fn payload(packet: u32) -> [u8; 1316] {
    [packet as u8; 1316]
}

/// Adds a packet; `false`: there is no room.
fn push(feeder: &mut Feeder) -> bool {
    let packet = feeder.next_packet();
    let time = MediaTicks(u64::from(packet) * 90);
    match feeder.push(&payload(packet), PacketMeta::MISSING | PacketMeta::RANDOM_ACCESS, time) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!((error, feeder.next_packet()), (FeedError::NoRoom, packet));
            false
        }
    }
}

fn key(extent: u32) -> ExtentKey {
    ExtentKey { title: TitleRef(3), extent }
}

#[test]
fn feeder_push_is_readable_with_header_after_publish() {
    let (arena, mut feeder, mut feed) = feed(5);
    assert!(!push(&mut feeder), "no extent has been brought");
    bring(&arena, &mut feed);
    assert!(push(&mut feeder) && push(&mut feeder) && push(&mut feeder));
    assert_eq!((feed.look(0, 0), feed.lend(key(0)).map(|_| ())), (None, None));
    feeder.publish().unwrap();
    assert_eq!([0, 2, 3].map(|place| feed.look(0, place)), [Some(Ok(())), Some(Ok(())), None]);
    let lease = feed.lend(key(0)).unwrap();
    assert_eq!((lease.content().title, lease.content().packets), (TitleRef(3), 3));
    for packet in 0..3 {
        let (header, sent) = RtpHeader::parse(lease.wire(packet, 1)).unwrap();
        let time = MediaTicks(u64::from(packet) * 90);
        assert_eq!(header, TIMELINE.header(packet, time));
        assert_eq!((header.sequence, sent), (sequence_of(packet), &payload(packet)[..]));
        let expected = PacketMeta::new(sum16(sent), PacketMeta::RANDOM_ACCESS, time);
        assert_eq!(lease.meta(packet), expected, "what is there is not missing");
    }
    assert_eq!(feeder.push(&[0; 188], 0, MediaTicks(0)), Err(FeedError::Size(188)));
    drop(feed);
    assert_eq!(feeder.publish(), Err(FeedError::Closed));
}

#[test]
fn feed_over_extent_limit_drops_oldest_extents() {
    let (arena, mut feeder, mut feed) = feed(5);
    let mut packets = 0;
    while packets < 196 * 20 {
        bring(&arena, &mut feed);
        packets += u32::from(push(&mut feeder));
        assert!((0..7).filter(|&extent| arena.fill(extent).is_none()).count() <= 5);
    }
    bring(&arena, &mut feed);
    // Two wait for the feeder, three are full.
    let first = 20 - 3;
    assert_eq!(feed.look(first - 1, 0), Some(Err(ReadFailure::Passed { first })));
    assert!(feed.lend(key(first - 1)).is_none());
    for extent in first..20 {
        let lease = feed.lend(key(extent)).unwrap();
        assert_eq!((lease.content().first_packet, lease.is_partial()), (extent * 196, false));
        assert_eq!(lease.wire(195, 1)[12..], payload(extent * 196 + 195));
    }
    assert_eq!([feed.look(20, 0), feed.look(22, 0)], [None, None], "it comes");
    assert_eq!(feed.look(23, 0), Some(Err(ReadFailure::OutOfRange)));
    assert_eq!(feed.look(20, 196), Some(Err(ReadFailure::OutOfRange)), "no extent has so many packets");
}

#[test]
fn look_after_feeder_end_still_returns_published_packets() {
    for finishes in [true, false] {
        let (arena, mut feeder, mut feed) = feed(5);
        bring(&arena, &mut feed);
        assert!(push(&mut feeder));
        feeder.publish().unwrap();
        assert!(push(&mut feeder) && feed.take_news() && !feed.has_news());
        let failure = if finishes { ReadFailure::Ended } else { ReadFailure::FeederLost };
        if finishes {
            feeder.finish()
        } else {
            drop(feeder)
        }
        assert!(feed.has_news() && !feed.has_room());
        assert_eq!(feed.look(0, 0), Some(Ok(())));
        let there = if finishes { Ok(()) } else { Err(failure) };
        assert_eq!(feed.look(0, 1), Some(there), "what was not published is lost with its feeder");
        assert_eq!([feed.look(0, 2), feed.look(1, 0)], [Some(Err(failure)); 2]);
    }
}

/// A manager that has nothing else to do sleeps until then, however long that is.
#[test]
fn feeder_news_wakes_sleeping_manager() {
    let (arena, feeder, mut feed) = feed(5);
    bring(&arena, &mut feed);
    let wake = Arc::clone(&feeder.wake);
    let news: [fn(Feeder) -> Option<Feeder>; 3] = [
        // An extent is taken.
        |mut feeder| push(&mut feeder).then_some(feeder),
        |mut feeder| feeder.publish().ok().map(|()| feeder),
        |feeder| {
            drop(feeder);
            None
        },
    ];
    let mut left = Some(feeder);
    for (number, news) in news.into_iter().enumerate() {
        wake.announce_sleep();
        left = left.and_then(news);
        let mut fds = [PollFd::from_borrowed_fd(wake.fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1), "news {number}");
        wake.clear();
    }
    assert!(left.is_none());
}

#[test]
fn push_beyond_last_packet_number_returns_too_long() {
    let (arena, mut feeder, mut feed) = feed(5);
    bring(&arena, &mut feed);
    feeder.next = u32::MAX;
    assert_eq!(feeder.push(&payload(0), 0, MediaTicks(0)), Err(FeedError::TooLong));
}

/// Looks at its feed whenever it is rung.
#[derive(Default)]
struct Looking {
    feeder: Mutex<Option<Feeder>>,
    saw: Mutex<Option<Result<(), FeedError>>>,
}

impl Doorbell for Looking {
    fn ring(&self) {
        if let Some(feeder) = &mut *self.feeder.lock().unwrap() {
            *self.saw.lock().unwrap() = Some(feeder.publish());
        }
    }
}

#[test]
fn feed_close_or_drop_rings_and_feeder_sees_closed() {
    for is_closed in [true, false] {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(7)));
        let layout = WireLayout::new(1316).unwrap();
        let title =
            LiveTitle { id: TitleId([1; 16]), layout, timeline: TIMELINE, extents: 5, keep: Keep::All };
        let bell = Arc::new(Looking::default());
        let wake = Arc::new(EventBell::new().unwrap());
        let (feeder, feed) = pair(title, arena, wake, Arc::clone(&bell) as Arc<dyn Doorbell>);
        *bell.feeder.lock().unwrap() = Some(feeder);
        // Without being closed it goes with the cache.
        if is_closed {
            drop(feed.close())
        } else {
            drop(feed)
        }
        assert_eq!(
            *bell.saw.lock().unwrap(),
            Some(Err(FeedError::Closed)),
            "it would wait for the next ring"
        );
    }
}
