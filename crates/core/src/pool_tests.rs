use super::*;

fn content(packets: u32, last: u16) -> ExtentContent {
    let layout = WireLayout::new(1316).unwrap();
    ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets,
        last_packet_bytes: last,
        layout,
        spare: 0,
    }
}

#[test]
fn extent_allows_single_writer_or_many_readers() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(2)));
    let mut fill = arena.fill(0).unwrap();
    assert!(arena.fill(0).is_none(), "two writers");
    assert!(arena.lend(0, content(1, 1316)).is_none(), "a reader while writing");
    fill.bytes_mut()[5] = 7;
    fill.publish();
    assert!(arena.fill(0).is_none(), "a writer on a filled extent");
    let lease = arena.lend(0, content(1, 1316)).unwrap();
    let second = lease.clone();
    assert_eq!((lease.bytes()[5], second.bytes()[5], arena.leases(0)), (7, 7, 2));
    assert!(!arena.reclaim(0));
    drop((lease, second));
    assert!(arena.reclaim(0));
    assert!(arena.fill(0).is_some());
}

#[test]
fn refer_to_memory_that_cannot_take_new_pages_is_not_allowed() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    arena.fill(0).unwrap().publish();
    assert!(!arena.lend(0, content(1, 1316)).unwrap().refer());
    assert!(arena.reclaim(0) && arena.fill(0).is_some());
}

#[test]
fn fill_dropped_before_publish_frees_extent() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    drop(arena.fill(0));
    assert!(arena.lend(0, content(1, 1316)).is_none());
    assert!(arena.fill(0).is_some());
    assert!(arena.fill(1).is_none() && !arena.reclaim(1) && arena.leases(9) == 0);
}

#[test]
fn arena_memory_goes_with_the_last_lease() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    arena.fill(0).unwrap().publish();
    let lease = arena.lend(0, content(2, 188)).unwrap();
    let weak = Arc::downgrade(&arena);
    drop(arena);
    assert_eq!(lease.wire(0, 2).len(), 1328 + 12 + 188);
    assert_eq!(lease.wire(0, 1).len(), 1328);
    assert_eq!(lease.meta(1), PacketMeta::default());
    drop(lease);
    assert!(weak.upgrade().is_none());
}

#[test]
#[should_panic(expected = "packets 1+2 of 2")]
fn wire_beyond_the_extent_panics() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    arena.fill(0).unwrap().publish();
    arena.lend(0, content(2, 1316)).unwrap().wire(1, 2);
}

/// Under miri each takes as long as thousands elsewhere.
const ROUNDS: u8 = if cfg!(miri) { 5 } else { 50 };
const READS: usize = if cfg!(miri) { 200 } else { 20_000 };

/// Readers verify a pattern that the writer keeps replacing: a torn read would show as a mixed extent.
#[test]
fn readers_never_see_a_half_written_extent() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    std::thread::scope(|scope| {
        let writer = Arc::clone(&arena);
        scope.spawn(move || {
            let mut round = 0u8;
            while round < ROUNDS {
                if let Some(mut fill) = writer.fill(0) {
                    round += 1;
                    fill.bytes_mut()[..64].fill(round);
                    fill.publish();
                } else {
                    writer.reclaim(0);
                }
                std::thread::yield_now();
            }
        });
        for _ in 0..2 {
            let arena = Arc::clone(&arena);
            scope.spawn(move || {
                for _ in 0..READS {
                    if let Some(lease) = arena.lend(0, content(1, 1316)) {
                        let first = lease.bytes()[0];
                        assert!(lease.bytes()[..64].iter().all(|&b| b == first));
                    }
                }
            });
        }
    });
    assert_eq!(arena.leases(0), 0);
}

#[test]
fn extents_set_aside_are_in_the_memory_but_not_counted() {
    let arena = ExtentArena::with_aside(Box::new(HeapRegion::new(4)), 1);
    assert_eq!((arena.extents(), arena.aside(), arena.memory().1), (3, 3..4, 4 * EXTENT_BYTES));
    let mut fill = arena.fill(3).expect("it can be taken");
    assert_eq!(fill.bytes_mut().as_ptr(), arena.memory().0.as_ptr().wrapping_add(3 * EXTENT_BYTES));
    assert!(arena.fill(3).is_none(), "by one only");
    drop(fill);
    let little = ExtentArena::with_aside(Box::new(HeapRegion::new(2)), 9);
    assert_eq!((little.extents(), little.aside()), (0, 0..2));
}

/// Adds packets full of `value` to an extent, and records that say so.
fn add(growing: &mut Growing, packets: usize, value: u8) {
    let (slots, records) = growing.room();
    slots[..packets * 1328].fill(value);
    records[..packets].fill([value; 8]);
    growing.advance(packets as u32);
}

#[test]
fn lease_of_growing_extent_covers_readable_packets() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let whole = content(196, 1316);
    let mut growing = arena.fill(0).unwrap().grow(whole.layout);
    assert!(arena.lend(0, whole).is_none(), "nothing can be read");
    assert_eq!((arena.leases(0), arena.grown(0)), (1, 0), "the writer's own");
    add(&mut growing, 2, 1);
    let first = arena.lend(0, whole).unwrap();
    assert_eq!((first.content().packets, first.bytes().len(), arena.grown(0)), (2, 2 * 1328, 2));
    let other = ExtentContent { layout: WireLayout::new(188).unwrap(), ..whole };
    assert!(arena.lend(0, other).is_none(), "it does not lie so");
    assert_eq!(arena.leases(0), 2);
    add(&mut growing, 194, 2);
    growing.advance(1);
    let all = arena.lend(0, whole).unwrap();
    assert_eq!((all.content().packets, arena.grown(0)), (196, 196), "and no more than it holds");
    assert_eq!([&first, &first.clone(), &all].map(|lease| lease.is_partial()), [true, true, false]);
    assert_eq!(first.bytes(), [1; 2 * 1328]);
    assert_eq!(all.wire(1, 2), [[1; 1328], [2; 1328]].concat());
    assert_eq!([first.metas(0, 2), all.metas(1, 2)], [[[1; 8], [1; 8]], [[1; 8], [2; 8]]]);
    assert_eq!(all.meta(195).to_bytes(), [2; 8]);
    drop((first, all));
    assert!(!arena.reclaim(0), "it still has its writer");
    drop(growing);
    assert!(arena.reclaim(0));
    arena.fill(0).unwrap().publish();
    let lease = arena.lend(0, content(1, 1316)).unwrap();
    assert_eq!((lease.content().packets, lease.grows(), lease.bytes().len()), (1, false, EXTENT_BYTES));
}

#[test]
#[should_panic(expected = "packets 1+2 of 2")]
fn records_beyond_what_could_be_read_panic() {
    let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
    let mut growing = arena.fill(0).unwrap().grow(content(1, 1316).layout);
    add(&mut growing, 2, 1);
    let lease = arena.lend(0, content(196, 1316)).unwrap();
    add(&mut growing, 1, 1);
    lease.metas(1, 2);
}
