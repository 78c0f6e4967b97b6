use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn flow(number: u32) -> FlowKey {
    let [a, b, c, d] = number.to_be_bytes();
    let remote = (([198, 51, 100, a], u16::from_be_bytes([c, d])), b);
    FlowKey::new(([192, 0, 2, remote.1], 80).into(), remote.0.into()).unwrap()
}

fn table(capacity: u32) -> FlowTable {
    FlowTable::new(HashKey::new([1, 2]), capacity)
}

#[test]
fn table_find_returns_number_until_removed() {
    let mut table = table(2);
    assert!(table.is_empty() && table.insert(&flow(5), 1));
    assert_eq!((table.find(&flow(5)), table.find(&flow(6)), table.len()), (Some(1), None, 1));
    assert_eq!((table.flow(1), table.flow(0), table.flow(2)), (Some(&flow(5)), None, None));
    table.prefetch(table.hash(&flow(5)));
    assert!(!table.insert(&flow(5), 0), "the flow is there");
    assert!(!table.insert(&flow(6), 1), "the number is there");
    assert!(!table.insert(&flow(6), 2), "beyond the capacity");
    assert!(!table.insert(&FlowKey::NONE, 0));
    assert!(table.insert(&flow(6), 0));
    assert_eq!((table.remove(&flow(5)), table.remove(&flow(5)), table.len()), (Some(1), None, 1));
    assert_eq!((table.find(&flow(5)), table.find(&flow(6))), (None, Some(0)));
}

#[test]
fn table_at_capacity_uses_at_most_seven_eighths_of_slots() {
    for capacity in [0, 1, 2, 6, 7, 8, 14, 15, 100, 1000, 7168, 7169] {
        let mut table = table(capacity);
        assert!(u64::from(capacity) * 8 <= table.places.len() as u64 * 7, "{capacity}");
        assert!((0..capacity).all(|number| table.insert(&flow(number), number)));
        assert!((0..capacity).all(|number| table.find(&flow(number)) == Some(number)));
        assert_eq!(table.find(&flow(capacity)), None);
        assert!((0..capacity).all(|number| table.remove(&flow(number)) == Some(number)));
        assert!(table.is_empty() && table.places.iter().all(|place| place.number == FREE));
    }
}

#[test]
fn table_of_million_connections_uses_under_60_bytes_each() {
    let table = table(1_000_000);
    assert!(size_of_val(&*table.places) + size_of_val(&*table.flows) < 60_000_000);
}

/// How far each connection is from its home, at the most.
fn farthest(table: &FlowTable) -> usize {
    let taken = table.places.iter().enumerate().filter(|(_, place)| place.number != FREE);
    taken
        .map(|(at, place)| at.wrapping_sub(table.home(place.hash)) & (table.places.len() - 1))
        .max()
        .unwrap_or(0)
}

#[test]
fn searches_do_not_grow_with_what_has_been_taken_out() {
    let mut table = table(896);
    for round in 0..200u32 {
        for number in 0..800 {
            assert!(table.insert(&flow(round * 1000 + number), number));
        }
        for number in 0..800 {
            assert_eq!(table.remove(&flow(round * 1000 + number)), Some(number));
        }
    }
    assert!(table.places.iter().all(|place| place.number == FREE));
    (0..448).for_each(|number| assert!(table.insert(&flow(number), number)));
    assert!(farthest(&table) < 64, "{}", farthest(&table));
}

proptest! {
    #[test]
    fn table_after_random_operations_equals_hash_map(steps in prop::collection::vec((any::<bool>(), 0u32..12), 0..300)) {
        // Eight places for up to seven: every search goes through neighbours of others.
        let (mut table, mut model) = (table(7), HashMap::new());
        for (is_insert, wanted) in steps {
            if is_insert {
                let free = (0..7).find(|number| !model.values().any(|taken| taken == number));
                let has_room = free.is_some() && !model.contains_key(&wanted);
                prop_assert_eq!(table.insert(&flow(wanted), free.unwrap_or(7)), has_room);
                if has_room {
                    model.insert(wanted, free.unwrap());
                }
            } else {
                prop_assert_eq!(table.remove(&flow(wanted)), model.remove(&wanted));
            }
            prop_assert_eq!(table.len() as usize, model.len());
            for wanted in 0..12 {
                prop_assert_eq!(table.find(&flow(wanted)), model.get(&wanted).copied());
            }
        }
    }
}
