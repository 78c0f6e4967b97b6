use std::collections::BTreeSet;

use super::*;

fn sizes(bytes: u32, page_bytes: u32) -> ClusterSize {
    ClusterSize { bytes, page_bytes }
}

fn taken(pages: &mut Pages, cluster: usize) -> PageId {
    pages.take(cluster, Seq(0)).unwrap()
}

/// Fills the room of a page with `byte`.
fn fill(pages: &mut Pages, id: PageId, byte: u8) {
    let room = pages.room(id);
    room.fill(byte);
    let length = room.len() as u16;
    pages.page_mut(id).unwrap().length = length;
}

#[test]
fn pages_do_not_share_memory() {
    // The second cluster is the larger one: it begins at a multiple of its size.
    let mut pages = Pages::new(&[sizes(2048, 512), sizes(8192, 2048), sizes(4096, 1024)]);
    let all: Vec<PageId> = [(0, 4), (1, 4), (2, 4)]
        .into_iter()
        .flat_map(|(cluster, count)| (0..count).map(move |_| cluster))
        .map(|cluster| taken(&mut pages, cluster))
        .collect();
    for (i, &id) in all.iter().enumerate() {
        fill(&mut pages, id, i as u8);
    }
    for (i, &id) in all.iter().enumerate() {
        assert_eq!(pages.bytes(id), vec![i as u8; pages.page_bytes(id.cluster()) as usize], "{id:?}");
    }
    assert_eq!([0, 1, 2, 3].map(|cluster| pages.used(cluster)), [(4, 4), (4, 4), (4, 4), (0, 0)]);
    assert_eq!((pages.take(1, Seq(0)), pages.refused()), (None, 1));
    assert_eq!(pages.take(3, Seq(0)), None);
}

#[test]
fn take_skips_and_counts_pages_in_use() {
    let mut pages = Pages::new(&[sizes(2048, 512)]);
    let first = taken(&mut pages, 0);
    let second = taken(&mut pages, 0);
    pages.release(second);
    // The counter goes on to pages that were never used before it comes back.
    let others: Vec<_> = (0..2).map(|_| taken(&mut pages, 0)).collect();
    assert!(!others.contains(&first) && !others.contains(&second));
    assert_eq!(pages.skipped(), 0);
    assert_eq!(taken(&mut pages, 0), second);
    assert_eq!(pages.skipped(), 1, "the first was met");
    assert_eq!(pages.take(0, Seq(0)), None);
    assert_eq!(pages.skipped(), 1, "a full cluster is not searched");
    pages.release(first);
    assert_eq!(taken(&mut pages, 0), first);
}

#[test]
fn take_gives_up_after_max_page_skips() {
    let count = 4 * MAX_PAGE_SKIPS;
    let mut pages = Pages::new(&[sizes(count * 512, 512)]);
    let all: Vec<_> = (0..count).map(|_| taken(&mut pages, 0)).collect();
    pages.release(all[(count - 1) as usize]);
    assert_eq!((pages.take(0, Seq(0)), pages.skipped()), (None, u64::from(MAX_PAGE_SKIPS) + 1));
    // It goes on from there.
    (0..2).for_each(|_| assert_eq!(pages.take(0, Seq(0)), None));
    assert!(pages.take(0, Seq(0)).is_some());
}

#[test]
fn offset_and_length_say_what_is_in_a_page() {
    let mut pages = Pages::new(&[sizes(1024, 512)]);
    let id = pages.take(0, Seq(77)).unwrap();
    assert_eq!((pages.room(id).len(), pages.bytes(id)), (512, &[][..]));
    pages.room(id)[..4].copy_from_slice(b"abcd");
    pages.page_mut(id).unwrap().length = 4;
    assert_eq!(
        (pages.room(id).len(), pages.bytes(id), pages.page(id).unwrap().end()),
        (508, &b"abcd"[..], Seq(81))
    );
    let page = pages.page_mut(id).unwrap();
    (page.offset, page.length) = (1, 3);
    assert_eq!((pages.room(id).len(), pages.bytes(id)), (508, &b"bcd"[..]));
    pages.release(id);
    assert!(pages.page(id).is_none() && pages.bytes(id).is_empty() && pages.room(id).is_empty());
    pages.release(id);
    pages.release(PageId::NONE);
    assert_eq!(pages.used(0), (0, 2));
    // A page that is taken again is empty.
    let again: Vec<_> = (0..2).map(|_| taken(&mut pages, 0)).collect();
    assert!(again.iter().all(|&id| pages.bytes(id).is_empty() && pages.page(id).unwrap().offset == 0));
}

#[test]
fn set_page_bytes_succeeds_only_while_unused() {
    let mut pages = Pages::new(&[sizes(8192, 1024)]);
    let id = taken(&mut pages, 0);
    assert!(!pages.set_page_bytes(0, 2048) && pages.page_bytes(0) == 1024);
    pages.release(id);
    for (asked, got) in [(2048, 2048), (512, 512), (1, 512), (3000, 2048), (u32::MAX, 8192)] {
        assert!(pages.set_page_bytes(0, asked));
        assert_eq!((pages.page_bytes(0), pages.used(0)), (got, (0, 8192 / got)), "{asked}");
        let all: BTreeSet<u32> = (0..8192 / got).map(|_| taken(&mut pages, 0).number()).collect();
        assert_eq!(all.len() as u32, 8192 / got);
        all.into_iter().for_each(|number| pages.release(PageId(number)));
    }
    assert!(!pages.set_page_bytes(1, 512));
    let large = Pages::new(&[sizes(1 << 20, 1 << 20)]);
    assert_eq!(large.page_bytes(0), MAX_PAGE_BYTES);
}

#[test]
fn bytes_of_equals_allocated_memory_of_clusters() {
    // The second one leaves a gap in front of it.
    let sizes = [sizes(2048, 512), sizes(8192, 2048), sizes(5000, 1024)];
    let pages = Pages::new(&sizes);
    let tables: usize = pages.clusters.iter().map(|cluster| size_of_val(&*cluster.pages)).sum();
    let early = pages.clusters[EARLY].mask + 1;
    let bytes = pages.memory.len() + tables + Reports::bytes(early.max(MIN_REPORTS));
    assert_eq!(Pages::bytes_of(&sizes), bytes);
    assert_eq!(pages.memory.len(), 8192 + 8192 + 4096);
}

#[test]
fn groups_have_their_shares_of_clusters_that_are_empty() {
    let mut pages = Pages::new(&[sizes(8192, 1024), sizes(8192, 1024)]);
    let used = taken(&mut pages, 0);
    pages.share_out(2);
    // Half of eight pages are divided: two for each group; the other four are first come, first
    // served.
    let mut take = |cluster| (0..8).filter(|_| pages.take_for(0, cluster, Seq(0)).is_some()).count();
    assert_eq!((take(0), take(1)), (7, 6), "the first one was in use");
    assert!(pages.take_for(1, 1, Seq(0)).is_some());
    pages.release(used);
}
