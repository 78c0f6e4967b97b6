use proptest::prelude::*;

use super::*;
use crate::recv::ClusterSize;

fn pages() -> Pages {
    Pages::new(&[
        ClusterSize { bytes: 1 << 16, page_bytes: 1024 },
        ClusterSize { bytes: 1 << 19, page_bytes: 1024 },
    ])
}

fn insert(queue: &mut Queue, pages: &mut Pages, seq: u32, data: &[u8]) -> Inserted {
    queue.insert(pages, Seq(seq), data, EARLY)
}

/// Returns where all pages begin, and their contents.
fn contents(queue: &Queue, pages: &Pages) -> Vec<(u32, Vec<u8>)> {
    let mut at = queue.head;
    let mut found = Vec::new();
    while let Some(page) = pages.page(at) {
        found.push((page.seq.0, pages.bytes(at).to_vec()));
        at = page.next;
    }
    found
}

#[test]
fn small_segments_share_a_page_and_holes_part_them() {
    let (mut queue, mut pages) = (Queue::new(), pages());
    insert(&mut queue, &mut pages, 10, b"ab");
    insert(&mut queue, &mut pages, 12, b"cd");
    insert(&mut queue, &mut pages, 20, b"x");
    insert(&mut queue, &mut pages, 5, b"0");
    assert_eq!(contents(&queue, &pages), [(5, b"0".to_vec()), (10, b"abcd".to_vec()), (20, b"x".to_vec())]);
    assert_eq!(queue.end(&pages), Some(Seq(21)));
    assert_eq!(queue.advance(&pages, Seq(4)), Seq(4));
    assert_eq!(queue.advance(&pages, Seq(5)), Seq(6));
    assert_eq!(queue.ready(&pages), b"0");
}

#[test]
fn insert_of_overlapping_data_keeps_first_bytes() {
    let (mut queue, mut pages) = (Queue::new(), pages());
    insert(&mut queue, &mut pages, 10, b"aa");
    insert(&mut queue, &mut pages, 14, b"bb");
    // Over both, with the hole between them and more on both sides.
    let inserted = insert(&mut queue, &mut pages, 8, b"XXXXXXXXXX");
    assert_eq!(inserted, Inserted { bytes: 6, is_cut: false, duplicate: Some((Seq(10), Seq(12))) });
    let all: Vec<u8> = contents(&queue, &pages).into_iter().flat_map(|(_, bytes)| bytes).collect();
    assert_eq!(all, b"XXaaXXbbXX");
    assert_eq!(queue.advance(&pages, Seq(8)), Seq(18));
    let inserted = insert(&mut queue, &mut pages, 9, b"YYYY");
    assert_eq!(inserted, Inserted { bytes: 0, is_cut: false, duplicate: Some((Seq(9), Seq(13))) });
}

#[test]
fn run_around_returns_contiguous_range_without_holes() {
    let (mut queue, mut pages) = (Queue::new(), pages());
    for (seq, data) in [(10, b"ab"), (30, b"cd"), (12, b"ef"), (40, b"gh"), (32, b"ij")] {
        insert(&mut queue, &mut pages, seq, data);
    }
    let run = |seq| queue.run_around(&pages, Seq(seq)).map(|(from, to)| (from.0, to.0));
    assert_eq!([9, 10, 13, 14].map(run), [None, Some((10, 14)), Some((10, 14)), None]);
    assert_eq!([30, 33, 34, 41, 42].map(run), [Some((30, 34)), Some((30, 34)), None, Some((40, 42)), None]);
}

#[test]
fn insert_of_many_holes_uses_at_most_max_early_pages() {
    let (mut queue, mut pages) = (Queue::new(), pages());
    for i in 0..10_000u32 {
        let inserted = insert(&mut queue, &mut pages, (u32::MAX - 500).wrapping_add(2 * i), b"x");
        let is_kept = i < u32::from(MAX_EARLY_PAGES);
        assert_eq!((inserted.bytes, inserted.is_cut), (u32::from(is_kept), !is_kept), "{i}");
    }
    assert_eq!(pages.used(EARLY).0, u32::from(MAX_EARLY_PAGES));
    // Missing data still fits, since it goes to the other cluster, and makes all of it ready.
    let first = u32::MAX - 501;
    for i in 0..=u32::from(MAX_EARLY_PAGES) {
        let seq = Seq(first.wrapping_add(2 * i));
        assert_eq!(queue.insert(&mut pages, seq, b"y", READY).bytes, 1);
        queue.advance(&pages, seq);
    }
    assert!(!queue.has_early());
    assert_eq!(queue.consume(&mut pages, usize::MAX), 2 * usize::from(MAX_EARLY_PAGES) + 1);
    assert_eq!((pages.used(READY).0, pages.used(EARLY).0, queue.early_pages), (0, 0, 0));
}

#[test]
fn insert_without_free_pages_cuts_data() {
    let mut pages = Pages::new(&[
        ClusterSize { bytes: 512, page_bytes: 512 },
        ClusterSize { bytes: 512, page_bytes: 512 },
    ]);
    let (mut one, mut other) = (Queue::new(), Queue::new());
    assert_eq!(
        insert(&mut one, &mut pages, 10, &[1; 600]),
        Inserted { bytes: 512, is_cut: true, duplicate: None }
    );
    assert_eq!(
        insert(&mut other, &mut pages, 10, b"a"),
        Inserted { bytes: 0, is_cut: true, duplicate: None }
    );
    one.clear(&mut pages);
    assert_eq!(pages.used(EARLY).0, 0);
    assert_eq!(insert(&mut other, &mut pages, 10, b"a").bytes, 1);
}

#[test]
fn data_in_order_is_kept_only_if_its_sum_is_right() {
    use millrace_core::wire::checksum::sum16;
    let (mut queue, mut pages) = (Queue::new(), pages());
    let sum = Some(sum16(b"abc"));
    assert_eq!(queue.append(&mut pages, Seq(1), b"abd", (0, 0), sum), Appended::WrongSum);
    assert_eq!((pages.used(READY).0, queue.ready(&pages)), (0, &b""[..]));
    assert_eq!(queue.append(&mut pages, Seq(1), b"abc", (0, 0), sum), Appended::Kept);
    assert_eq!(queue.append(&mut pages, Seq(4), b"abd", (0, 0), sum), Appended::WrongSum);
    assert_eq!(queue.ready(&pages), b"abc");
    assert_eq!(queue.append(&mut pages, Seq(4), b"def", (0, 0), Some(sum16(b"def"))), Appended::Kept);
    // The data there already comes before it: one byte, so that the others have the other places in
    // their words.
    assert_eq!(
        queue.append(&mut pages, Seq(7), b"gh", (sum16(b"f"), 1), Some(sum16(b"fgh"))),
        Appended::Kept
    );
    assert_eq!(
        queue.append(&mut pages, Seq(9), b"ij", (sum16(b"gh"), 2), Some(sum16(b"ghij"))),
        Appended::Kept
    );
    assert_eq!((pages.used(READY).0, queue.ready(&pages)), (1, &b"abcdefghij"[..]));
    // More data than the page has room for begins another page; data larger than a page is not
    // plain, nor is data with early data behind it.
    assert_eq!(queue.append(&mut pages, Seq(11), &[7; 1024], (0, 0), None), Appended::Kept);
    assert_eq!(pages.used(READY).0, 2);
    assert_eq!(queue.append(&mut pages, Seq(1035), &[7; 1025], (0, 0), None), Appended::NotPlain);
    insert(&mut queue, &mut pages, 2000, b"x");
    assert_eq!(queue.append(&mut pages, Seq(1035), b"x", (0, 0), None), Appended::NotPlain);
}

proptest! {
    #[test]
    fn queue_after_random_inserts_equals_byte_map(steps in prop::collection::vec((0u32..3000, 1usize..1500, any::<u8>()), 1..60), start: u32) {
        let (mut queue, mut pages) = (Queue::new(), pages());
        let mut model = vec![None; 4500];
        for (at, length, byte) in steps {
            let inserted = insert(&mut queue, &mut pages, start.wrapping_add(at), &vec![byte; length]);
            let new = model[at as usize..at as usize + length].iter_mut().filter(|place| place.is_none());
            prop_assert_eq!(inserted.bytes as usize, new.map(|place| *place = Some(byte)).count());
            prop_assert!(!inserted.is_cut);
        }
        let mut found = vec![None; 4500];
        let mut last = 0;
        for (seq, bytes) in contents(&queue, &pages) {
            let at = seq.wrapping_sub(start) as usize;
            prop_assert!(at >= last && !bytes.is_empty());
            last = at + bytes.len();
            bytes.iter().enumerate().for_each(|(i, &byte)| found[at + i] = Some(byte));
        }
        prop_assert_eq!(queue.end(&pages), Some(Seq(start) + last as u32));
        prop_assert_eq!(&found, &model);
        let ready = model.iter().take_while(|place| place.is_some()).count();
        prop_assert_eq!(queue.advance(&pages, Seq(start)), Seq(start) + ready as u32);
        queue.clear(&mut pages);
        prop_assert_eq!((pages.used(EARLY).0, queue.early_pages), (0, 0));
    }
}
