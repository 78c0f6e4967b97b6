use millrace_core::packet::WireLayout;
use millrace_core::pool::HeapRegion;

use super::super::playheads::{PlayheadPosition, StreamKey};
use super::super::sample::SampleFiles;
use super::super::source::OpenTitle;
use super::*;

const SECOND: Ns = 1_000_000_000;

struct ExtentTableFixture {
    extent_table: ExtentTable,
    titles: TitleTable,
    title: TitleRef,
}

impl ExtentTableFixture {
    fn new(extents: usize) -> Self {
        let mut titles = TitleTable::default();
        let sample = SampleFiles::new(1316, 5000);
        let title = titles.add(OpenTitle::new(Box::new(sample.open()))).unwrap();
        let arena = ExtentArena::new(Box::new(HeapRegion::new(extents)));
        Self { extent_table: ExtentTable::new(ResidentExtents::new(arena)), titles, title }
    }

    fn key(&self, extent: u32) -> ExtentKey {
        ExtentKey { title: self.title, extent }
    }

    fn put(&mut self, fill: Fill, extent: u32) {
        let layout = WireLayout::new(1316).unwrap();
        let content = ExtentContent {
            title: self.title,
            number: extent,
            first_packet: extent * 196,
            packets: 196,
            last_packet_bytes: 1316,
            layout,
            spare: 0,
        };
        self.extent_table.put(fill, content, Ns::from(extent) * SECOND);
    }

    fn load(&mut self, extents: impl IntoIterator<Item = u32>) {
        for extent in extents {
            let fill = self.extent_table.take(0, Brings::Demand, &mut self.titles).unwrap();
            self.put(fill, extent);
        }
    }

    fn head(&mut self, index: u32, extent: u32, offset: Ns) {
        let place = PlayheadPosition { extent, offset };
        self.titles.get_mut(self.title).unwrap().heads.place(StreamKey { handle: 0, index }, None, place);
    }

    fn held(&self) -> Vec<u32> {
        (0..1000).filter(|&extent| self.extent_table.holds(self.key(extent), 0)).collect()
    }
}

#[test]
fn extent_that_an_engine_leased_stays_and_one_that_goes_is_leased_no_more() {
    let mut world = ExtentTableFixture::new(2);
    world.load(0..2);
    let leased = world.extent_table.residents.lend(world.key(0)).expect("it is here");
    let fill = world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap();
    assert_ne!(fill.extent(), leased.extent());
    assert_eq!(world.held(), [0]);
    let lends =
        |world: &ExtentTableFixture, extent| world.extent_table.residents.lend(world.key(extent)).is_some();
    assert_eq!((lends(&world, 0), lends(&world, 1)), (true, false));
    assert!(world.extent_table.take(0, Brings::Demand, &mut world.titles).is_none(), "it is leased");
    assert!(lends(&world, 0), "it could not go, so it can be leased as before");
    world.put(fill, 7);
    assert_eq!((lends(&world, 7), lends(&world, 1)), (true, false), "7 lies where 1 was");
    world.extent_table.drop_title(world.title);
    assert_eq!((lends(&world, 0), lends(&world, 7)), (false, false), "the title is closed");
    assert_eq!(leased.content().number, 0);
}

#[test]
fn use_by_an_engine_counts_when_room_is_made() {
    let mut world = ExtentTableFixture::new(2);
    world.load(0..2);
    drop(world.extent_table.residents.lend(world.key(0)));
    world.extent_table.note_use(world.key(0));
    let _fill = world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap();
    assert_eq!(world.held(), [0], "1 was used before it");
}

#[test]
fn take_evicts_unneeded_extents_first_then_latest_needed() {
    let mut world = ExtentTableFixture::new(6);
    world.load(0..6);
    world.head(0, 2, 0); // needs 2, 3, 4, 5; nobody needs 0 and 1
    drop(world.extent_table.lend(world.key(0), 0));
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let before = world.held();
        let fill = world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap();
        let after = world.held();
        gone.extend(before.into_iter().filter(|extent| !after.contains(extent)));
        kept.push(fill); // so that the next round has to evict again
    }
    assert_eq!(gone, [1, 0, 5, 4, 3], "0 was used after 1");
    assert_eq!(world.extent_table.evictions(), 5);
}

#[test]
fn take_for_read_ahead_keeps_extents_needed_as_soon() {
    let mut world = ExtentTableFixture::new(4);
    world.load(0..4);
    world.head(0, 0, 0);
    let (same, sooner) = (Brings::Ahead(3 * SECOND), Brings::Ahead(3 * SECOND - 1));
    assert!(world.extent_table.take(0, same, &mut world.titles).is_none(), "extent 3 is needed then too");
    assert!(
        world.extent_table.take(0, Brings::FarAhead, &mut world.titles).is_none(),
        "everything is needed"
    );
    assert!(world.extent_table.take(0, sooner, &mut world.titles).is_some());
    assert_eq!(world.held(), [0, 1, 2]);
    assert!(world.extent_table.take(0, Brings::Demand, &mut world.titles).is_some(), "somebody waits");
    assert_eq!(world.held(), [0, 1]);
    let (from, to) = (PlayheadPosition { extent: 0, offset: 0 }, PlayheadPosition { extent: 1, offset: 0 });
    let heads = &mut world.titles.get_mut(world.title).unwrap().heads;
    heads.place(StreamKey { handle: 0, index: 0 }, Some(from), to);
    assert!(
        world.extent_table.take(0, Brings::FarAhead, &mut world.titles).is_some(),
        "nobody needs extent 0"
    );
    assert_eq!(world.held(), [1]);
}

#[test]
fn take_after_viewer_arrives_keeps_extents_it_needs() {
    let mut world = ExtentTableFixture::new(64 * 8);
    world.load(0..64 * 8);
    let fill = world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap(); // the batch: 0 to 7, nobody needs them
    drop(fill);
    world.head(0, 2, 0);
    for expected in [1, 64 * 8 - 1, 64 * 8 - 2] {
        let before = world.held();
        assert!(before.contains(&expected));
        drop(world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap());
        assert!(!world.extent_table.holds(world.key(expected), 0), "{expected} goes, not {before:?}");
    }
}

#[test]
fn take_with_all_extents_leased_returns_none() {
    let mut world = ExtentTableFixture::new(3);
    world.load(0..3);
    let mut leases: Vec<_> =
        (0..3).map(|extent| world.extent_table.lend(world.key(extent), 0).unwrap()).collect();
    assert!(world.extent_table.take(0, Brings::Demand, &mut world.titles).is_none());
    drop(leases.remove(1));
    assert!(world.extent_table.take(1, Brings::Demand, &mut world.titles).is_none(), "looked a moment ago");
    world.extent_table.retry();
    let fill = world.extent_table.take(1, Brings::Demand, &mut world.titles).unwrap();
    assert_eq!(world.held(), [0, 2]);
    drop((fill, leases));
}

#[test]
fn sweep_after_lease_release_frees_orphan_of_closed_title() {
    let mut world = ExtentTableFixture::new(4);
    world.load(0..4);
    let lease = world.extent_table.lend(world.key(2), 0).unwrap();
    world.titles.remove(world.title).unwrap();
    world.extent_table.drop_title(world.title);
    assert_eq!(
        (world.extent_table.free(), world.extent_table.held(), world.extent_table.orphans()),
        (3, 0, 1)
    );
    assert!(world.extent_table.lend(world.key(2), 0).is_none());
    world.extent_table.sweep();
    assert_eq!(world.extent_table.orphans(), 1);
    assert_eq!(lease.content().number, 2, "still good");
    drop(lease);
    world.extent_table.sweep();
    assert_eq!((world.extent_table.free(), world.extent_table.orphans()), (4, 0));
}

#[test]
fn give_back_frees_failed_fill_and_ignores_foreign_extents() {
    let mut world = ExtentTableFixture::new(2);
    let foreign = world.extent_table.arena.fill(0).unwrap();
    let fill = world.extent_table.take(0, Brings::Demand, &mut world.titles).unwrap();
    assert_eq!(fill.extent(), 1);
    assert!(world.extent_table.take(0, Brings::Demand, &mut world.titles).is_none());
    world.extent_table.give_back(fill);
    assert_eq!(world.extent_table.free(), 1);
    foreign.publish();
    assert!(world.extent_table.take(0, Brings::Demand, &mut world.titles).is_some());
}
