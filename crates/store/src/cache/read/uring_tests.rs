use super::super::tests::{SampleTitle, order};
use super::*;

const NOW: Instant = Instant(1);

fn uring(places: usize) -> Option<Uring> {
    let uring = Uring::new((places, places), Arc::new(EventBell::new().unwrap()), ReadFaults::default());
    uring.inspect_err(|error| eprintln!("no io_uring here, nothing to test: {error}")).ok()
}

fn wait_done(uring: &mut Uring) -> usize {
    while !uring.has_done() {
        uring.wait(NOW, None);
    }
    uring.next_done().unwrap()
}

/// Dropping the reader right after handing out reads must neither crash nor lose the files under the reads.
#[test]
fn dropping_with_reads_in_flight_waits_for_them() {
    let title = SampleTitle::new(4);
    for rounds in 0..20 {
        let Some(mut uring) = uring(4) else { return };
        for place in 0..4 {
            uring.begin(NOW, place, &order(&title, place as u32));
        }
        if rounds % 2 == 0 {
            uring.wait(NOW, Some(Duration::ZERO));
        }
        let (files, in_flight) = (title.holders(), uring.in_flight);
        assert!(files > 4, "reads keep the title open");
        assert!(in_flight <= 8);
        drop(uring);
        assert_eq!(title.holders(), 1);
    }
}

/// Where the memory may not be locked, reads go without registered buffers.
#[test]
fn reads_work_without_registered_memory() {
    let title = SampleTitle::new(2);
    let Some(mut uring) = uring(1) else { return };
    let mut staging = Staging::new(1).unwrap();
    assert!(staging.homes()[0].registered.is_none());
    uring.parts = ReadParts::new(1, staging);
    for extent in [1, 0] {
        uring.begin(NOW, 0, &order(&title, extent));
        wait_done(&mut uring);
        assert!(uring.results(0)[0] == Ok(title.data(extent)));
    }
}

/// One system call begins all reads of a title on one member and waits for one: an entry for media, one for records.
#[test]
fn uring_begin_queues_two_entries_per_member_read() {
    let title = SampleTitle::new(4);
    let Some(mut uring) = uring(4) else { return };
    for place in 0..4 {
        uring.begin(NOW, place, &order(&title, place as u32));
        let part = uring.parts.part_mut(place).unwrap();
        assert_eq!((part.reads.len(), part.member), (2, None));
        let known = uring.unsent.len();
        assert_eq!(known, 2 * (place + 1));
    }
    uring.send();
    assert_eq!((uring.in_flight, uring.unsent.len()), (8, 0));
    (0..4).for_each(|_| assert!(wait_done(&mut uring) < 4));
}

#[test]
#[should_panic(expected = "only in a free place")]
fn uring_begin_at_place_in_flight_panics() {
    let title = SampleTitle::new(1);
    let Some(mut uring) = uring(1) else {
        panic!("no io_uring here: only in a free place");
    };
    uring.begin(NOW, 0, &order(&title, 0));
    uring.begin(NOW, 0, &order(&title, 0));
}

#[test]
fn staging_memory_is_not_shown_while_the_kernel_writes() {
    let title = SampleTitle::new(1);
    let Some(mut uring) = uring(1) else { return };
    assert!(uring.results(0).is_empty());
    uring.begin(NOW, 0, &order(&title, 0));
    assert!(uring.results(0).is_empty());
    wait_done(&mut uring);
    assert_eq!(uring.results(0)[0], Ok(title.data(0)));
}
