use std::collections::VecDeque;

use millrace_core::ids::StreamId;
use millrace_core::pool::HeapRegion;
use millrace_core::seam::{Doorbell, Want};

use super::super::ReadBackend;
use super::super::door::{self, CacheDoor, Grant};
use super::super::read::Staged;
use super::super::sample::Sample;
use super::*;

/// What becomes of a read on its way.
#[derive(Clone, Copy)]
enum Fate {
    Good,
    Fails(Piece, i32),
    /// One bit is wrong this time.
    Garbled,
}

/// A reader that works, but for what the script says.
struct Scripted {
    inner: Box<dyn Reader>,
    script: VecDeque<Fate>,
    garbled: Option<Vec<u8>>,
}

impl Reader for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn begin(&mut self, place: usize, request: Request) {
        self.garbled = None;
        self.inner.begin(place, request);
    }
    fn wait(&mut self, limit: Option<Duration>) {
        self.inner.wait(limit);
    }
    fn next_done(&mut self) -> Option<Done> {
        let mut done = self.inner.next_done()?;
        match self.script.pop_front().unwrap_or(Fate::Good) {
            Fate::Good => {}
            Fate::Fails(piece, errno) => done.result = Err((piece, errno)),
            Fate::Garbled => {
                let mut data = self.inner.staged(done.place).data.to_vec();
                data[12_345] ^= 4;
                self.garbled = Some(data);
            }
        }
        Some(done)
    }
    fn has_done(&self) -> bool {
        self.inner.has_done()
    }
    fn staged(&self, place: usize) -> Staged<'_> {
        let staged = self.inner.staged(place);
        Staged { data: self.garbled.as_deref().unwrap_or(staged.data), ..staged }
    }
}

struct NoBell;

impl Doorbell for NoBell {
    fn ring(&self) {}
}

struct StoppedClock;

impl Clock for StoppedClock {
    fn now(&self) -> Instant {
        Instant(7)
    }
}

struct World {
    manager: Manager,
    door: CacheDoor,
    orders: std::sync::mpsc::Sender<Control>,
    sample: Sample,
    title: TitleRef,
}

impl World {
    /// One read at a time, with these fates.
    fn new(script: &[Fate]) -> Self {
        let wake = Arc::new(EventBell::new().unwrap());
        let (door, end) = door::pair(Arc::clone(&wake), Arc::new(NoBell));
        let config = CacheConfig { prefetch_ns: 0, reads_in_flight: 1, backend: ReadBackend::Threads };
        let (orders, control) = std::sync::mpsc::channel();
        let mut manager = Manager::new(Parts {
            config,
            arena: ExtentArena::new(Box::new(HeapRegion::new(4))),
            doors: vec![end],
            control,
            wake,
            clock: Arc::new(StoppedClock),
            counters: Arc::default(),
        })
        .unwrap();
        let wake = Arc::clone(&manager.wake);
        let inner = read::start(ReadBackend::Threads, 1, &wake).unwrap();
        manager.reader =
            Box::new(Scripted { inner, script: script.iter().copied().collect(), garbled: None });
        let sample = Sample::of_extents(2);
        let title = manager.policy.open_title(OpenTitle::new(Box::new(sample.open()))).unwrap();
        Self { manager, door, orders, sample, title }
    }

    fn is_direct(&self) -> bool {
        self.manager.policy.title(self.title).unwrap().is_direct()
    }

    fn fetch(&mut self) -> Grant {
        let stream = StreamId { index: 0, generation: 0 };
        assert!(self.door.want(&Want { stream, title: self.title, extent: 0, by: Instant(9), spare: 0 }));
        loop {
            if self.manager.turn(Instant(7)) == 0 {
                self.manager.sleep(Instant(7));
            }
            if let Some(grant) = self.door.poll() {
                return grant;
            }
        }
    }
}

#[test]
fn bytes_that_were_garbled_once_are_read_again_and_nobody_notices() {
    let mut world = World::new(&[Fate::Garbled, Fate::Good]);
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.retries, stats.checksum_errors, stats.reads), (1, 0, 1));
    assert_eq!(world.manager.counters.take_trouble(Instant(7)), None);
}

#[test]
fn bytes_that_stay_garbled_are_not_lent() {
    let mut world = World::new(&[Fate::Garbled, Fate::Garbled, Fate::Good]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Checksum));
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.retries, stats.checksum_errors), (1, 1));
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
}

#[test]
fn a_file_that_takes_no_direct_reads_is_read_through_the_page_cache() {
    let mut world = World::new(&[Fate::Fails(Piece::Data, libc::EINVAL), Fate::Good]);
    if !world.is_direct() {
        return eprintln!("no direct reads here: nothing to test");
    }
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    assert!(!world.is_direct());
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.retries), (0, 0));
    // Once it is buffered, the same answer is an error.
    let mut world =
        World::new(&[Fate::Fails(Piece::Data, libc::EINVAL), Fate::Fails(Piece::Data, libc::EINVAL)]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Io(libc::EINVAL)));
}

#[test]
fn an_error_of_the_disk_is_passed_on_and_reported() {
    let mut world = World::new(&[Fate::Fails(Piece::Meta, libc::EIO), Fate::Good]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Io(libc::EIO)));
    let trouble = world.manager.counters.take_trouble(Instant(7)).unwrap();
    assert_eq!((trouble.extent, trouble.failure), (0, ReadFailure::Io(libc::EIO)));
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    assert_eq!(world.manager.counters.snapshot().read_errors, 1);
}

/// Whoever brings work while the manager is awake does not ring: the manager itself looks once more before it sleeps.
/// Each of these sleeps would last for ever if it did not.
#[test]
fn work_that_came_just_before_is_seen_before_sleep() {
    let mut world = World::new(&[]);
    assert_eq!(world.manager.turn(Instant(7)), 0);
    let stream = StreamId { index: 0, generation: 0 };
    assert!(world.door.leave(stream));
    world.manager.sleep(Instant(7));
    assert_eq!(world.manager.turn(Instant(7)), 1);
    world.orders.send(Control::Stop).unwrap();
    world.manager.sleep(Instant(7));
    assert!(world.manager.stopping);
    assert!(world.door.want(&Want { stream, title: world.title, extent: 0, by: Instant(9), spare: 0 }));
    assert_eq!(world.manager.turn(Instant(7)), 2, "a want, and a read begun");
    while !world.manager.reader.has_done() {
        world.manager.sleep(Instant(7));
    }
    world.manager.sleep(Instant(7));
    drop(world.door);
    world.manager.sleep(Instant(7));
    assert!(world.manager.turn(Instant(7)) > 0);
    assert!(world.manager.doors[0].is_none());
}
