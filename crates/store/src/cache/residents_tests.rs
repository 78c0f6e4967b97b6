use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::HeapRegion;

use super::*;

fn content(title: u32, number: u32, spare: u8) -> ExtentContent {
    let layout = WireLayout::new(1316).unwrap();
    let first_packet = number * layout.packets_per_extent();
    let (title, packets, last_packet_bytes) = (TitleRef(title), 1, 1316);
    ExtentContent { title, number, first_packet, packets, last_packet_bytes, layout, spare }
}

fn key(title: u32, extent: u32) -> ExtentKey {
    ExtentKey { title: TitleRef(title), extent }
}

/// Fills a slot of the arena and enters it.
fn put(residents: &ResidentExtents, slot: u32, content: ExtentContent) {
    residents.arena().fill(slot).expect("free").publish();
    residents.put(slot, content);
}

#[test]
fn lend_of_resident_extent_leases_its_slot() {
    let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(3))));
    put(&residents, 2, content(1, 7, 0));
    let lease = residents.lend(key(1, 7)).unwrap();
    assert_eq!((lease.extent(), lease.content()), (2, content(1, 7, 0)));
    for absent in [key(1, 6), key(2, 7), key(7, 1)] {
        assert!(residents.lend(absent).is_none(), "{absent:?}");
    }
    residents.remove(key(1, 7));
    assert!(residents.lend(key(1, 7)).is_none());
    assert_eq!(residents.arena().leases(2), 1, "the first lease is still out");
}

#[test]
fn put_of_extent_with_holes_replaces_and_hides_the_whole_one() {
    let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(2))));
    put(&residents, 0, content(1, 7, 0));
    put(&residents, 1, content(1, 7, 2));
    assert!(residents.lend(key(1, 7)).is_none());
    residents.put(0, content(1, 7, 0));
    assert_eq!(residents.lend(key(1, 7)).map(|lease| lease.extent()), Some(0));
}

#[test]
fn lend_while_the_set_is_changed_returns_none_at_once() {
    let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(1))));
    put(&residents, 0, content(1, 7, 0));
    let changing = residents.lock(key(1, 7));
    assert!(residents.lend(key(1, 7)).is_none());
    drop(changing);
    assert!(residents.lend(key(1, 7)).is_some());
}

#[test]
fn nearly_all_extents_of_a_full_arena_are_found() {
    let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(64))));
    for slot in 0..64 {
        put(&residents, slot, content(slot / 32, slot % 32, 0));
    }
    let found = (0..64).filter(|&slot| {
        let lease = residents.lend(key(slot / 32, slot % 32));
        lease.as_ref().is_none_or(|lease| lease.extent() == slot) && lease.is_some()
    });
    assert!(found.count() >= 60);
}
