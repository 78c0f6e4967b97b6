//! Ranges of an application's memory: bytes, sums, and when they are its own again.

use millrace_core::random::SplitMix;
use millrace_core::wire::checksum::sum16;

use super::super::{Cutting, HEAD_BYTES, SegmentPayload};
use super::*;
use crate::seq::Seq;

const FIRST: Seq = Seq(u32::MAX - 3_000);
/// Where the area begins in its memory.
const BEFORE: usize = 64;
const BYTES: usize = 1 << 18;

/// A store with one area, number 3, and the bytes there.
fn store(descriptors: u32, pages: u32) -> (Store, Words, Vec<u8>) {
    let words = Words::new((BEFORE + BYTES) / 8);
    let mut random = SplitMix(9);
    let bytes: Vec<u8> = (0..BYTES).map(|_| random.next() as u8).collect();
    assert!(words.write(BEFORE, &bytes));
    let mut store = Store::new(descriptors, pages);
    store.set_area(3, Some(Area { words: words.clone(), first: BEFORE, bytes: BYTES as u32 }));
    (store, words, bytes)
}

fn cut(store: &Store, queue: &mut Queue, seq: Seq, mss: u32) -> SegmentPayload {
    match store.cut(queue, seq, mss, u32::MAX) {
        Cutting::Cut(cut) => cut,
        other => panic!("{other:?}"),
    }
}

/// All of the queue from `seq` on, in segments whose sums are compared with their bytes.
fn sent(store: &mut Store, queue: &mut Queue, mut seq: Seq, mss: u32) -> Vec<u8> {
    let mut all = Vec::new();
    while seq != queue.end() {
        let cut = cut(store, queue, seq, mss);
        let payload = store.payload(&cut);
        let bytes = payload.slices().concat();
        assert_eq!((payload.bytes, cut.bytes()), (bytes.len() as u32, bytes.len() as u32));
        assert_eq!(payload.sum % 0xffff, sum16(&bytes) % 0xffff, "at {seq:?}");
        all.extend(bytes);
        seq += cut.bytes();
    }
    all
}

#[test]
fn segments_have_the_bytes_of_the_area_and_their_sums() {
    let (mut store, _, bytes) = store(16, 4);
    for mss in [1448, 536, 8948, 101] {
        let mut queue = Queue::new(FIRST);
        // A range at an odd place, bytes of a page in between, and one that is not side by side with the first.
        store.append_area(&mut queue, 3, 13, 20_000).unwrap();
        assert_eq!(store.append_bytes(&mut queue, b"in between"), 10);
        store.append_area(&mut queue, 3, 100_001, 3_333).unwrap();
        store.append_area(&mut queue, 3, 50_000, 7).unwrap();
        let wanted =
            [&bytes[13..20_013], b"in between", &bytes[100_001..103_334], &bytes[50_000..50_007]].concat();
        assert!(sent(&mut store, &mut queue, FIRST, mss) == wanted, "segments of {mss}");
        assert!(sent(&mut store, &mut queue, FIRST + 777, mss) == wanted[777..], "again, from in between");
        store.acked(&mut queue, FIRST + 20_000);
        assert_eq!(store.used(), 3, "the first range is acknowledged");
        store.clear(&mut queue);
        assert_eq!((store.used(), store.host_pages()), (0, 0));
    }
}

#[test]
fn writes_side_by_side_share_a_descriptor() {
    let (mut store, _, bytes) = store(16, 0);
    let mut queue = Queue::new(FIRST);
    for at in (0..BYTES as u32).step_by(100).take(50) {
        store.append_area(&mut queue, 3, at, 100).unwrap();
    }
    assert_eq!(store.used(), 1);
    assert!(sent(&mut store, &mut queue, FIRST, 1448) == bytes[..5000]);
    // It does not grow for ever.
    store.append_area(&mut queue, 3, 5000, MAX_AREA_RANGE_BYTES - 5000).unwrap();
    assert_eq!(store.used(), 1);
    store.append_area(&mut queue, 3, MAX_AREA_RANGE_BYTES, 1).unwrap();
    assert_eq!(store.used(), 2);
    store.append_area(&mut queue, 3, 5, 1).unwrap();
    assert_eq!(store.used(), 3, "not side by side");
}

#[test]
fn payload_changed_after_cut_is_sent_with_matching_checksum() {
    let (mut store, words, bytes) = store(4, 0);
    let mut queue = Queue::new(FIRST);
    store.append_area(&mut queue, 3, 0, 1000).unwrap();
    let first = cut(&store, &mut queue, FIRST, 1448);
    let payload = store.payload(&first);
    // Between the sum and the frame.
    assert!(words.write(BEFORE, &[0xff; 1000]));
    let frame = payload.slices().concat();
    assert!(frame == bytes[..1000] && payload.sum % 0xffff == sum16(&frame) % 0xffff);
    // A retransmission reads the present content.
    assert_eq!(sent(&mut store, &mut queue, FIRST, 1448), [0xff; 1000]);
}

#[test]
fn ranges_that_are_not_there_are_refused() {
    let (mut store, ..) = store(2, 0);
    let mut queue = Queue::new(FIRST);
    let end = BYTES as u32;
    for (number, at, bytes) in
        [(3, end, 1), (3, 0, end + 1), (3, 1, end), (3, u32::MAX, 2), (3, 5, 0), (2, 0, 1), (4, 0, 1)]
    {
        assert_eq!(
            store.append_area(&mut queue, number, at, bytes),
            Err(QueueRefusal::Unfit),
            "{number} {at} {bytes}"
        );
    }
    store.append_area(&mut queue, 3, end - 1, 1).unwrap();
    store.append_area(&mut queue, 3, 0, 10).unwrap();
    assert_eq!(store.append_area(&mut queue, 3, 100, 10), Err(QueueRefusal::Full));
    store.clear(&mut queue);
    store.set_area(3, None);
    assert_eq!(store.append_area(&mut queue, 3, 0, 1), Err(QueueRefusal::Unfit));
}

#[test]
fn keep_areas_copies_data_independent_of_area() {
    for pages in [64, 32, 28, 6, 1, 0] {
        let (mut store, words, bytes) = store(64, pages);
        let mut queue = Queue::new(FIRST);
        store.append_area(&mut queue, 3, 7, 10_000).unwrap();
        let page = u32::from(pages > 0);
        assert_eq!(store.append_bytes(&mut queue, &[5; HEAD_BYTES]), HEAD_BYTES * page as usize);
        store.append_area(&mut queue, 3, 100_000, 3_000).unwrap();
        let wanted =
            [&bytes[7..10_007], &[5; HEAD_BYTES][..HEAD_BYTES * page as usize], &bytes[100_000..103_000]]
                .concat();
        // Some is sent already, some acknowledged.
        sent(&mut store, &mut queue, FIRST, 1448);
        store.acked(&mut queue, FIRST + 100);
        let is_kept = store.keep_areas(&mut queue);
        let needed = 5 + 1 + 2;
        assert_eq!(is_kept, pages / 4 >= needed, "{pages} pages");
        assert!(store.host_pages() <= (pages / 4).max(1), "the rest is for others");
        assert!(sent(&mut store, &mut queue, FIRST, 1448) == wanted, "the same bytes as before");
        if is_kept {
            assert!(words.write(BEFORE, &[0; BYTES]));
            assert!(sent(&mut store, &mut queue, FIRST, 536) == wanted, "whatever the application writes");
            assert!(!cut(&store, &mut queue, FIRST, 1448).is_staged());
        }
        // Data queued behind it is sent behind it.
        store.append_area(&mut queue, 3, 200_000, 50).unwrap();
        assert_eq!(sent(&mut store, &mut queue, FIRST + wanted.len() as u32, 1448).len(), 50);
        store.clear(&mut queue);
        assert_eq!((store.used(), store.host_pages()), (0, 0));
    }
}

#[test]
fn share_out_keeps_descriptors_for_other_groups() {
    let (mut store, words, bytes) = store(64, 16);
    store.set_area(0, Some(Area { words, first: BEFORE, bytes: BYTES as u32 }));
    // 64, without 4 for pages; a fifth of half of them is each group's.
    store.share_out(5, 0);
    let take = |store: &mut Store, queue: &mut Queue, area| {
        (0..).take_while(|&count| store.append_area(queue, area, count * 100, 10).is_ok()).count()
    };
    let mut queues = [0; 3].map(|_| Queue::new(FIRST));
    assert_eq!(take(&mut store, &mut queues[0], 3), 60 - 4 * 6);
    assert_eq!(take(&mut store, &mut queues[1], 0), 6);
    // One that is kept in a page is not in the way of its area any more.
    store.acked(&mut queues[1], FIRST + 40);
    assert_eq!(take(&mut store, &mut queues[2], 0), 4);
    assert!(store.keep_areas(&mut queues[2]));
    assert_eq!((take(&mut store, &mut queues[2], 0), take(&mut store, &mut queues[0], 3)), (4, 0));
    assert!(
        sent(&mut store, &mut queues[1], FIRST + 40, 1448) == [&bytes[400..410], &bytes[500..510]].concat()
    );
    queues.iter_mut().for_each(|queue| store.clear(queue));
    assert_eq!((store.used(), take(&mut store, &mut queues[0], 0)), (0, 36));
}
