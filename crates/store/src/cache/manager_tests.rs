use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use millrace_core::ids::{RunSerial, StreamId};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::seam::{Doorbell, Want};

use super::super::ReadBackend;
use super::super::handle::{self, CacheHandle, Grant, ReadFailure};
use super::super::order::{MemberView, Order, Role, SpanResult};
use super::super::read::{Owed, Unanswered};
use super::super::sample::SampleFiles;
use super::*;

/// Scripted result of a read.
#[derive(Clone, Copy)]
enum ScriptedRead {
    Good,
    /// The span with this role fails.
    Fails(Role, i32),
    /// One bit is wrong this time.
    Garbled,
}

/// The title of a title on one member.
const DATA: Role = Role::Data { position: 0 };

/// A working reader, except for the script's faults.
struct Scripted {
    inner: Box<dyn ExtentReader>,
    script: VecDeque<ScriptedRead>,
    roles: Vec<Role>,
    failed: Option<(Role, i32)>,
    garbled: Option<Vec<u8>>,
    /// Asks something during each wait, which ends it.
    asker: Arc<Mutex<Option<CacheHandle>>>,
    /// How often it was waited.
    waits: Arc<AtomicUsize>,
}

impl ExtentReader for Scripted {
    fn forgive(&mut self, _: Instant, _: u64) {}

    fn name(&self) -> &'static str {
        "scripted"
    }
    fn begin_run(&mut self, now: Instant, batch: &[(usize, &Order)]) {
        (self.garbled, self.failed) = (None, None);
        self.roles = batch.iter().flat_map(|(_, order)| &order.spans).map(|span| span.role).collect();
        self.inner.begin_run(now, batch);
    }
    fn wait(&mut self, now: Instant, limit: Option<Duration>) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let asks = self.asker.lock().unwrap().as_mut().is_some_and(|asker| asker.leave(Instant(7), NOBODY));
        self.inner.wait(now, if asks { Some(Duration::ZERO) } else { limit });
    }
    fn next_done(&mut self) -> Option<usize> {
        let place = self.inner.next_done()?;
        match self.script.pop_front().unwrap_or(ScriptedRead::Good) {
            ScriptedRead::Good => {}
            ScriptedRead::Fails(role, errno) => self.failed = Some((role, errno)),
            ScriptedRead::Garbled => {
                let mut data = self.inner.results(place)[0].unwrap().to_vec();
                data[12_345] ^= 4;
                self.garbled = Some(data);
            }
        }
        Some(place)
    }
    fn has_done(&self) -> bool {
        self.inner.has_done()
    }
    fn results(&self, place: usize) -> Vec<SpanResult<'_>> {
        let mut results = self.inner.results(place);
        if let Some(data) = &self.garbled {
            results[0] = Ok(data);
        }
        for (result, role) in results.iter_mut().zip(&self.roles) {
            if let Some((_, errno)) = self.failed.filter(|(failed, _)| failed == role) {
                *result = Err(errno);
            }
        }
        results
    }
    fn forget(&mut self, place: usize) {
        self.inner.forget(place);
    }
    fn unanswered(&mut self, now: Instant, place: usize) -> Unanswered {
        self.inner.unanswered(now, place)
    }
    fn give_up(&mut self, place: usize) -> Vec<Owed> {
        self.inner.give_up(place)
    }
    fn next_late(&mut self) -> Option<Owed> {
        self.inner.next_late()
    }
    fn aside_bytes(&self) -> usize {
        self.inner.aside_bytes()
    }
}

/// A stream that is not known.
const NOBODY: StreamId = StreamId { index: 999, generation: 0 };

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

struct ManagerFixture {
    manager: Manager,
    handle: CacheHandle,
    orders: std::sync::mpsc::Sender<ManagerCommand>,
    sample: SampleFiles,
    title: TitleRef,
    asker: Arc<Mutex<Option<CacheHandle>>>,
    waits: Arc<AtomicUsize>,
}

impl ManagerFixture {
    /// One read at a time, with these fates.
    fn new(script: &[ScriptedRead]) -> Self {
        let wake = Arc::new(EventBell::new().unwrap());
        let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(4))));
        let (handle, end) = handle::pair(Arc::clone(&wake), Arc::new(NoBell), &residents);
        let config = CacheConfig {
            prefetch_ns: 0,
            reads_in_flight: 1,
            backend: ReadBackend::Threads,
            ..CacheConfig::default()
        };
        let (orders, control) = std::sync::mpsc::channel();
        let mut manager = Manager::new(ManagerParts {
            config,
            residents,
            handles: vec![end],
            control,
            wake,
            clock: Arc::new(StoppedClock),
            counters: Arc::default(),
            faults: ReadFaults::default(),
        })
        .unwrap();
        let wake = Arc::clone(&manager.wake);
        let inner = read::start(
            ReadBackend::Threads,
            (2 * EXTENTS_PER_READ + MAX_RUN_EXTENTS + 1, 3),
            &wake,
            &ReadFaults::default(),
        )
        .unwrap();
        let script = script.iter().copied().collect();
        let (asker, waits) = (Arc::default(), Arc::default());
        let (roles, failed, garbled) = (Vec::new(), None, None);
        let (asks, counts) = (Arc::clone(&asker), Arc::clone(&waits));
        manager.reader =
            Box::new(Scripted { inner, script, roles, failed, garbled, asker: asks, waits: counts });
        let sample = SampleFiles::of_extents(2);
        let title = manager.policy.open_title(OpenTitle::new(Box::new(sample.open()))).unwrap();
        Self { manager, handle, orders, sample, title, asker, waits }
    }

    fn is_direct(&self) -> bool {
        let title = self.manager.policy.title(self.title).unwrap();
        let order = title.order(0, 0, MemberView::default(), false).unwrap();
        order.spans.iter().any(|span| span.direct)
    }

    fn want(&mut self, index: u32, title: TitleRef, extent: u32) {
        let stream = StreamId { index, generation: 0 };
        let want = Want { stream, run: RunSerial(0), title, extent, place: 0, by: Instant(9), spare: 0 };
        assert!(self.handle.want(&want));
    }

    fn fetch(&mut self) -> Grant {
        self.fetch_of(0, self.title, 0)
    }

    fn fetch_of(&mut self, index: u32, title: TitleRef, extent: u32) -> Grant {
        self.want(index, title, extent);
        loop {
            if self.manager.turn(Instant(7)) == 0 {
                self.manager.sleep(Instant(7));
            }
            if let Some(grant) = self.handle.poll() {
                return grant;
            }
        }
    }
}

/// The space of a removed title is free when no code has its files open.
#[test]
fn close_title_releases_its_files() {
    let mut world = ManagerFixture::new(&[]);
    let title = world.manager.policy.title(world.title).unwrap();
    let file = title.order(0, 0, MemberView::default(), false).unwrap().spans[0].file.clone();
    drop(world.fetch());
    assert!(world.handle.leave(Instant(7), StreamId { index: 0, generation: 0 }));
    world.manager.turn(Instant(7));
    assert!(file.holders() > 1);
    let (reply, _replied) = sync_channel(1);
    world.orders.send(ManagerCommand::Close(world.title, reply)).unwrap();
    world.manager.turn(Instant(7));
    assert_eq!(file.holders(), 1, "this one");
}

#[test]
fn bytes_that_were_garbled_once_are_read_again_and_nobody_notices() {
    let mut world = ManagerFixture::new(&[ScriptedRead::Garbled, ScriptedRead::Good]);
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.retries, stats.checksum_errors, stats.reads), (1, 0, 1));
    assert_eq!(world.manager.counters.take_trouble(Instant(7)), None);
}

#[test]
fn bytes_that_stay_garbled_are_left_out() {
    let mut world = ManagerFixture::new(&[ScriptedRead::Garbled, ScriptedRead::Garbled]);
    let lease = world.fetch().lease.unwrap();
    assert_eq!(world.sample.check_rest(&lease, 0), [12_345 / 1316]);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.retries, stats.checksum_errors, stats.damaged, stats.damaged_packets), (1, 0, 1, 1));
}

#[test]
fn fetch_without_direct_io_support_uses_page_cache() {
    let mut world = ManagerFixture::new(&[ScriptedRead::Fails(DATA, libc::EINVAL), ScriptedRead::Good]);
    if !world.is_direct() {
        return eprintln!("no direct reads here: nothing to test");
    }
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    assert!(!world.is_direct());
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.retries), (0, 0));
    // Once it is buffered, the same answer is an error.
    let mut world = ManagerFixture::new(&[
        ScriptedRead::Fails(DATA, libc::EINVAL),
        ScriptedRead::Fails(DATA, libc::EINVAL),
    ]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Io(libc::EINVAL)));
}

/// Of a title of two extents one is more than may be left out.
#[test]
fn fetch_with_persistent_read_error_returns_and_reports_it() {
    let mut world = ManagerFixture::new(&[
        ScriptedRead::Fails(DATA, libc::EIO),
        ScriptedRead::Fails(DATA, libc::EIO),
        ScriptedRead::Good,
    ]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Io(libc::EIO)));
    let trouble = world.manager.counters.take_trouble(Instant(7)).unwrap();
    assert_eq!((trouble.extent, trouble.failure), (0, ReadFailure::Io(libc::EIO)));
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    assert_eq!(world.manager.counters.snapshot().read_errors, 1);
}

/// Data that cannot be read as a whole is read in blocks: nothing is missing if all of them come.
#[test]
fn fetch_with_failed_large_read_succeeds_from_blocks() {
    for errno in [libc::EIO, libc::ENODATA] {
        let mut world = ManagerFixture::new(&[ScriptedRead::Fails(DATA, errno), ScriptedRead::Good]);
        let lease = world.fetch().lease.unwrap();
        world.sample.check(&lease, 0);
        let stats = world.manager.counters.snapshot();
        assert_eq!((stats.read_errors, stats.damaged, stats.degraded, stats.retries), (0, 0, 0, 0));
    }
    // The first reading was garbled, and the second failed.
    let mut world = ManagerFixture::new(&[
        ScriptedRead::Garbled,
        ScriptedRead::Fails(DATA, libc::EIO),
        ScriptedRead::Good,
    ]);
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    // A device that has gone altogether is not asked for every block.
    let mut world = ManagerFixture::new(&[ScriptedRead::Fails(DATA, libc::ENXIO), ScriptedRead::Good]);
    assert_eq!(world.fetch().lease.err(), Some(ReadFailure::Io(libc::ENXIO)));
}

/// Nothing else proves these packets, so their records are read once more.
#[test]
fn fetch_with_failed_record_read_succeeds_on_retry() {
    let mut world = ManagerFixture::new(&[ScriptedRead::Fails(Role::Meta, libc::EIO), ScriptedRead::Good]);
    let lease = world.fetch().lease.unwrap();
    world.sample.check(&lease, 0);
    let stats = world.manager.counters.snapshot();
    assert_eq!((stats.read_errors, stats.checksum_errors, stats.damaged), (0, 0, 0));
}

/// Whoever brings work while the manager is awake does not ring: the manager itself looks once more before it sleeps.
/// Each of these sleeps would last for ever if it did not.
#[test]
fn work_that_came_just_before_is_seen_before_sleep() {
    let mut world = ManagerFixture::new(&[]);
    assert_eq!(world.manager.turn(Instant(7)), 0);
    let stream = StreamId { index: 0, generation: 0 };
    assert!(world.handle.leave(Instant(7), stream));
    world.manager.sleep(Instant(7));
    assert_eq!(world.manager.turn(Instant(7)), 0, "a stream has left, which is no reason to wait for more");
    assert!(!world.manager.has_work());
    world.orders.send(ManagerCommand::Stop).unwrap();
    world.manager.sleep(Instant(7));
    assert!(world.manager.stopping);
    assert!(world.handle.want(&Want {
        stream,
        run: RunSerial(0),
        title: world.title,
        extent: 0,
        place: 0,
        by: Instant(9),
        spare: 0
    }));
    assert_eq!(world.manager.turn(Instant(7)), 2, "a want, and a read begun");
    while !world.manager.reader.has_done() {
        world.manager.sleep(Instant(7));
    }
    world.manager.sleep(Instant(7));
    drop(world.handle);
    world.manager.sleep(Instant(7));
    assert!(world.manager.turn(Instant(7)) > 0);
    assert!(world.manager.handles[0].is_none());
}

/// With everything leased, each look for room is a look at all of the memory. The manager looks now
/// and then for returned extents, not each time that another extent is requested.
#[test]
fn space_retry_is_triggered_by_time_not_by_requests() {
    let mut world = ManagerFixture::new(&[]);
    // Each of four extents is lent to a viewer. Titles of another length are others.
    let sample = SampleFiles::of_extents(3);
    let other = world.manager.policy.open_title(OpenTitle::new(Box::new(sample.open()))).unwrap();
    assert_ne!(other, world.title);
    let title = world.title;
    let mut held: Vec<_> = (0..)
        .zip([(title, 0), (title, 1), (other, 0), (other, 1)])
        .map(|(index, (title, extent))| world.fetch_of(index, title, extent).lease.unwrap())
        .collect();
    let third = SampleFiles::of_extents(4);
    let third = world.manager.policy.open_title(OpenTitle::new(Box::new(third.open()))).unwrap();
    world.want(5, third, 0);
    world.manager.turn(Instant(7));
    held.pop();
    let reading = |world: &ManagerFixture| world.manager.counters.snapshot().reading;
    let nothing = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(1))));
    let silent = handle::pair(Arc::clone(&world.manager.wake), Arc::new(NoBell), &nothing).0;
    *world.asker.lock().unwrap() = Some(std::mem::replace(&mut world.handle, silent));
    for _ in 0..5 {
        world.manager.sleep(Instant(7));
        assert_eq!((world.manager.turn(Instant(7)), reading(&world)), (0, 0), "an ask, and no look for room");
        assert!(!world.manager.has_work());
    }
    // No more requests come.
    let _handle = world.asker.lock().unwrap().take();
    world.manager.sleep(Instant(7));
    assert_eq!((world.manager.turn(Instant(7)), reading(&world)), (1, 1), "the read has begun");
}

/// Reads that were begun would wait for nothing, and the control side for the engines.
#[test]
fn gathering_holds_up_neither_the_disks_nor_the_control_side() {
    let mut world = ManagerFixture::new(&[]);
    let (reply, done) = sync_channel(1);
    world.orders.send(ManagerCommand::Close(TitleRef(77), reply)).unwrap();
    let due = world.manager.gather(Instant(7));
    assert_eq!((done.try_recv(), due), (Ok(()), Instant(7).plus_ns(GATHER.as_nanos() as u64)));
    assert_eq!(world.waits.load(Ordering::Relaxed), 0, "nothing is being read");
    world.want(0, world.title, 0);
    assert_eq!(world.manager.turn(Instant(7)), 2, "a want, and a read begun");
    assert!(!world.manager.may_gather(), "one read at a time: as soon as it ends there may be another");
    world.orders.send(ManagerCommand::Stop).unwrap();
    let before = world.waits.load(Ordering::Relaxed);
    world.manager.gather(Instant(7));
    assert_eq!(world.waits.load(Ordering::Relaxed), before + 1, "what was begun is sent");
    assert!(world.manager.stopping);
}
