use std::sync::atomic::AtomicUsize;

use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion};

use super::*;

#[derive(Default)]
struct CountingBell(AtomicUsize);

impl Doorbell for CountingBell {
    fn ring(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn handle() -> (CacheHandle, ManagerEnd, Arc<CountingBell>, Arc<EventBell>) {
    let (wake, bell) = (Arc::new(EventBell::new().unwrap()), Arc::new(CountingBell::default()));
    let residents = ResidentExtents::new(ExtentArena::new(Box::new(HeapRegion::new(1))));
    let (handle, end) = pair(Arc::clone(&wake), Arc::clone(&bell) as Arc<dyn Doorbell>, &residents);
    (handle, end, bell, wake)
}

fn id(index: u32) -> StreamId {
    StreamId { index, generation: 1 }
}

fn want(index: u32) -> Want {
    Want {
        stream: id(index),
        run: RunSerial(0),
        title: TitleRef(3),
        extent: index,
        place: 0,
        by: Instant(5),
        spare: 0,
    }
}

fn grant(index: u32) -> Grant {
    Grant {
        stream: id(index),
        run: RunSerial(0),
        title: TitleRef(3),
        extent: index,
        lease: Err(ReadFailure::NoTitle),
    }
}

#[test]
fn asks_arrive_in_order_and_a_refused_engine_hears_when_there_is_room() {
    let (mut handle, mut end, bell, _) = handle();
    for index in 0..RING_RECORDS as u32 {
        assert!(handle.want(&want(index)));
    }
    assert!(!handle.want(&want(0)) && !handle.leave(Instant(0), id(0)), "full");
    end.ring();
    assert_eq!(bell.0.load(Ordering::Relaxed), 0, "there is no room yet");
    assert_eq!(end.take(), Some(Ask::Want(want(0))));
    assert!(end.has_work());
    end.ring();
    end.ring();
    assert_eq!(bell.0.load(Ordering::Relaxed), 1);
    assert_eq!(handle.tell_at(), None);
    assert!(handle.leave(Instant(7), id(9)));
    assert_eq!(handle.tell_at(), Some(Instant(7).plus_ns(TELL_NS)), "the manager is not woken for it");
    for index in 1..RING_RECORDS as u32 {
        assert_eq!(end.take(), Some(Ask::Want(want(index))));
    }
    assert_eq!((end.take(), end.take()), (Some(Ask::Leave(id(9))), None));
    assert!(!end.has_work());
    // Refused, and all is taken before the manager looks: it must not sleep before it has rung.
    while handle.leave(Instant(0), id(1)) {}
    while end.take().is_some() {}
    assert!(end.has_work());
    end.ring();
    assert_eq!((end.has_work(), bell.0.load(Ordering::Relaxed)), (false, 2));
}

#[test]
fn grants_that_find_no_room_are_held_and_asks_wait_for_them() {
    let (mut handle, mut end, bell, wake) = handle();
    let count = RING_RECORDS as u32 + 10;
    (0..count).for_each(|index| end.give(grant(index)));
    end.ring();
    assert_eq!((end.held.len(), bell.0.load(Ordering::Relaxed)), (10, 1));
    assert!(handle.want(&want(1)));
    assert_eq!(end.take(), None, "first the engine takes its grants");
    assert!(!end.has_work(), "nothing that can be done now");
    wake.announce_sleep();
    assert_eq!(handle.poll().unwrap().stream, id(0));
    wake.sleep(None); // returns because taking a grant rang
    end.flush();
    assert_eq!(end.held.len(), 9);
    for index in 1..count {
        end.flush();
        assert_eq!(handle.poll().unwrap().stream, id(index));
    }
    assert!(handle.poll().is_none() && handle.is_quiet());
    assert_eq!(end.take(), Some(Ask::Want(want(1))));
}

#[test]
fn handle_drop_wakes_other_end_and_reports_gone() {
    let (handle, end, _, wake) = handle();
    assert!(!end.is_gone());
    wake.announce_sleep();
    drop(handle);
    wake.sleep(None); // returns because the drop rang
    assert!(end.is_gone() && end.has_work());
}

/// An extent of the title of [`want`] in memory.
fn put(handle: &CacheHandle, number: u32) {
    handle.residents.arena().fill(0).expect("free").publish();
    let layout = WireLayout::new(1316).unwrap();
    let (first_packet, packets, last_packet_bytes) = (number * layout.packets_per_extent(), 1, 1316);
    let content = ExtentContent {
        title: TitleRef(3),
        number,
        first_packet,
        packets,
        last_packet_bytes,
        layout,
        spare: 0,
    };
    handle.residents.put(0, content);
}

#[test]
fn extent_in_memory_is_lent_at_once_and_the_manager_hears_of_it_in_time() {
    let (mut handle, mut end, _, wake) = handle();
    put(&handle, 1);
    assert!(handle.lend(Instant(5), &want(2)).is_none(), "not that one");
    assert_eq!((handle.tell_at(), end.take()), (None, None));
    let lease = handle.lend(Instant(7), &want(1)).expect("it is there");
    assert_eq!(lease.content().number, 1);
    drop(handle.lend(Instant(9), &want(1)));
    let due = Instant(7 + TELL_NS);
    assert_eq!(handle.tell_at(), Some(due));
    wake.announce_sleep();
    handle.tell(Instant(due.0 - 1));
    assert_eq!(handle.tell_at(), Some(due), "it need not wake for this yet");
    handle.tell(due);
    assert_eq!(handle.tell_at(), None);
    wake.sleep(None); // returns because it was woken
    let took = Some(Ask::Took(want(1)));
    assert_eq!((end.take(), end.take(), end.take()), (took, took, None));
}

#[test]
fn lend_with_a_full_ring_takes_nothing_and_a_half_full_one_is_told_at_once() {
    let (mut handle, mut end, ..) = handle();
    put(&handle, 1);
    let half = RING_RECORDS / 2;
    for _ in 0..=half {
        assert!(handle.lend(Instant(0), &want(1)).is_some());
    }
    handle.tell(Instant(0));
    assert_eq!(handle.tell_at(), None);
    while handle.leave(Instant(0), id(9)) {}
    assert!(handle.lend(Instant(0), &want(1)).is_none());
    assert_eq!(handle.residents.arena().leases(0), 0);
    assert!(end.take().is_some() && handle.lend(Instant(0), &want(1)).is_some());
}
