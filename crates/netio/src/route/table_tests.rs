use super::*;

const SLOTS: usize = 4;

fn address(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn hop(mark: u8) -> Hop {
    Hop { if_index: 7, mtu: 1500 + u32::from(mark), usable: true, ..Hop::UNUSABLE }
}

fn ask_of(end: &mut TableEnd) -> (HopId, IpAddr) {
    match end.asks.pop() {
        Ok(Ask::EgressPath { id, destination }) => (id, destination),
        other => panic!("no question: {other:?}"),
    }
}

fn say(table: &mut HopTable, end: &mut TableEnd, update: Update) {
    end.updates.push(update).unwrap();
    table.poll();
}

/// Asks, answers.
fn learn(table: &mut HopTable, end: &mut TableEnd, last: u8) -> HopId {
    assert_eq!(table.hop(address(last)), None);
    let (id, destination) = ask_of(end);
    assert_eq!(destination, address(last));
    say(table, end, Update::Hop { id, hop: hop(last) });
    let found = table.hop(address(last)).unwrap();
    assert_eq!(found, id);
    found
}

#[test]
fn hop_lookup_asks_once_until_resolved() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    for _ in 0..5 {
        assert_eq!(table.hop(address(1)), None);
    }
    let (id, destination) = ask_of(&mut end);
    assert_eq!((destination, end.asks.pop().is_err()), (address(1), true));
    say(&mut table, &mut end, Update::Hop { id, hop: hop(1) });
    assert_eq!(table.hop(address(1)), Some(id));
    // The same destination, however it is written.
    assert_eq!(table.hop("::ffff:192.0.2.1".parse().unwrap()), Some(id));
    assert_eq!((table.get(id).mtu, table.get(id).generation), (1501, 1));
    assert!(end.asks.pop().is_err());
}

#[test]
fn hop_generation_increases_with_each_change() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    let id = learn(&mut table, &mut end, 1);
    let first = table.get(id).generation;
    say(&mut table, &mut end, Update::Hop { id, hop: hop(1) });
    assert_eq!(table.get(id).generation, first);
    say(&mut table, &mut end, Update::Hop { id, hop: hop(2) });
    assert_eq!((table.get(id).generation, table.get(id).mtu), (first + 1, 1502));
    say(&mut table, &mut end, Update::Hop { id, hop: Hop::UNUSABLE });
    assert!(!table.get(id).usable && table.get(id).generation == first + 2);
}

#[test]
fn unreachable_hop_is_requested_again_after_reply() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    assert_eq!(table.hop(address(1)), None);
    let (id, _) = ask_of(&mut end);
    assert_eq!(table.hop(address(1)), None);
    assert!(end.asks.pop().is_err());
    say(&mut table, &mut end, Update::Hop { id, hop: Hop::UNUSABLE });
    assert_eq!(table.hop(address(1)), None);
    assert_eq!(ask_of(&mut end), (id, address(1)));
}

#[test]
fn places_that_nobody_uses_become_free() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    let id = learn(&mut table, &mut end, 1);
    say(&mut table, &mut end, Update::IsUsed { id });
    assert_eq!(table.hop(address(1)), Some(id));
    // Looked at by its number only: that is use too.
    say(&mut table, &mut end, Update::IsUsed { id });
    assert!(table.get(id).usable);
    say(&mut table, &mut end, Update::IsUsed { id });
    assert!(end.asks.pop().is_err());
    say(&mut table, &mut end, Update::IsUsed { id });
    assert_eq!(end.asks.pop(), Ok(Ask::Forget { id }));
    assert_eq!(*table.get(id), Hop::UNUSABLE);
    // The slot goes to another destination; the old id does not lead there, nor does an answer that
    // was in flight.
    let other = learn(&mut table, &mut end, 2);
    assert_eq!(other.slot, id.slot);
    say(&mut table, &mut end, Update::Hop { id, hop: hop(9) });
    assert_eq!((table.get(id).usable, table.get(other).mtu), (false, 1502));
}

#[test]
fn full_table_evicts_only_unused_destinations() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    let ids: Vec<HopId> = (0..SLOTS as u8).map(|n| learn(&mut table, &mut end, n)).collect();
    assert_eq!(table.hop(address(100)), None);
    assert!(end.asks.pop().is_err(), "all are in use");
    for &id in &ids {
        end.updates.push(Update::IsUsed { id }).unwrap();
    }
    end.updates.push(Update::IsUsed { id: HopId { slot: 1 << 20, tenancy: 0 } }).unwrap();
    // One is looked at between the questions and the next destination.
    table.poll();
    table.get(ids[0]);
    assert_eq!(table.hop(address(101)), None);
    let (id, destination) = ask_of(&mut end);
    assert_eq!((id.slot, destination), (ids[1].slot, address(101)));
    assert!(table.get(ids[0]).usable && !table.get(ids[1]).usable);
}

#[test]
fn full_ring_keeps_pending_requests() {
    let (mut table, mut end) = HopTable::joined(HOP_RING_RECORDS + 10, None);
    let address = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
    for n in 0..HOP_RING_RECORDS + 10 {
        assert_eq!(table.hop(address(n)), None);
    }
    for n in 0..HOP_RING_RECORDS {
        assert_eq!(ask_of(&mut end).1, address(n));
    }
    assert_eq!(table.hop(address(HOP_RING_RECORDS + 3)), None);
    assert_eq!(ask_of(&mut end).1, address(HOP_RING_RECORDS + 3));
}

#[test]
fn known_lookup_sends_no_request_and_keeps_no_slot() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    assert_eq!((table.known(address(1)), end.asks.pop().is_err()), (None, true));
    let id = learn(&mut table, &mut end, 1);
    let known = |table: &HopTable| table.known("::ffff:192.0.2.1".parse().unwrap()).map(|hop| hop.mtu);
    assert_eq!(known(&table), Some(1501));
    // The watch asks twice whether it is used: it was when it was learnt, and looking at it is no use.
    for _ in 0..2 {
        say(&mut table, &mut end, Update::IsUsed { id });
        assert_eq!(known(&table).is_some(), end.asks.pop().is_err());
    }
    assert_eq!(known(&table), None);
}

/// A request without use gets free slots only; others may take those slots, and they are returned.
#[test]
fn places_that_are_asked_for_and_not_used_are_had_by_others() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    let used = learn(&mut table, &mut end, 1);
    for last in 2..=4 {
        assert!(table.ask_unused(address(last)) && table.ask_unused(address(last)));
        let (id, destination) = ask_of(&mut end);
        assert_eq!((destination, end.asks.pop().is_err()), (address(last), true), "once");
        say(&mut table, &mut end, Update::Hop { id, hop: hop(last) });
        assert_eq!(table.known(address(last)).map(|hop| hop.mtu), Some(1500 + u32::from(last)));
    }
    assert!(!table.ask_unused(address(5)) && end.asks.pop().is_err(), "no place is free");
    // One is used after all, another one is not.
    assert!(table.hop(address(3)).is_some());
    for last in [1, 2, 3] {
        table.forget_unused(address(last));
    }
    let Ok(Ask::Forget { id }) = end.asks.pop() else { panic!("it is kept") };
    assert!(!table.get(id).usable && end.asks.pop().is_err());
    assert_eq!([1, 2, 3].map(|last| table.known(address(last)).is_some()), [true, false, true]);
    // The free slot, then the slot of the unused destination; then there is none.
    let places = [6, 7].map(|last| learn(&mut table, &mut end, last).slot);
    assert!(places[0] == id.slot && table.known(address(4)).is_none());
    assert_eq!(table.hop(address(8)), None);
    assert!(end.asks.pop().is_err() && table.get(used).usable);
}

#[test]
fn hop_table_without_watcher_has_no_usable_hop() {
    let (mut table, mut end) = HopTable::joined(SLOTS, None);
    let id = learn(&mut table, &mut end, 1);
    drop(end);
    table.poll();
    assert!(!table.get(id).usable);
    assert_eq!((table.hop(address(1)), table.hop(address(2))), (None, None));
    table.poll();
}

#[test]
fn fixed_tables_know_what_they_were_given() {
    let hops = vec![(address(1), hop(1)), (address(2), hop(2)), (address(1), hop(3))];
    let mut table = HopTable::fixed(hops);
    let id = table.hop(address(1)).unwrap();
    assert_eq!(table.get(id).mtu, 1503);
    assert_eq!(table.hop(address(3)), None);
    table.poll();
    assert!(table.get(id).usable);
}

#[test]
fn hop_feed_answers_requested_destinations() {
    let (mut table, mut feed) = HopTable::fed();
    assert!(!feed.say(address(1), hop(1)));
    assert_eq!(table.hop(address(1)), None);
    assert_eq!(feed.asked(), [address(1)]);
    assert!(feed.say(address(1), hop(1)));
    table.poll();
    let id = table.hop(address(1)).unwrap();
    assert!(feed.say(address(1), hop(2)));
    table.poll();
    assert_eq!(table.get(id).mtu, 1502);
}
