//! The send queue: grid, sums, leases.

use std::sync::Arc;

use millrace_core::ids::TitleRef;
use millrace_core::packet::{PacketMeta, WireLayout};
use millrace_core::pool::{ExtentArena, HeapRegion};
use millrace_core::random::SplitMix;
use millrace_core::time::MediaTicks;
use millrace_core::wire::checksum::sum16;

use super::*;

const FIRST: Seq = Seq(u32::MAX - 3_000);

/// An extent of 20 packets, the last one short, with random bytes and right sums.
fn extent(arena: &Arc<ExtentArena>, index: u32, layout: WireLayout) -> ExtentContent {
    let content = ExtentContent {
        title: TitleRef(3),
        number: index,
        first_packet: index * 20,
        packets: 20,
        last_packet_bytes: 188,
        layout,
        spare: 0,
    };
    let mut fill = arena.fill(index).unwrap();
    let mut random = SplitMix(u64::from(index) + 1);
    let bytes = fill.bytes_mut();
    bytes.iter_mut().for_each(|byte| *byte = random.next() as u8);
    for packet in 0..20 {
        let at = packet as usize * layout.slot_bytes() + layout.header_bytes();
        let length = if packet == 19 { 188 } else { layout.packet_bytes() };
        let meta = PacketMeta::new(sum16(&bytes[at..at + length]), 0, MediaTicks(0)).to_bytes();
        let record = layout.meta_offset(packet, 20);
        bytes[record..record + 8].copy_from_slice(&meta);
    }
    fill.publish();
    arena.open_title(content.title);
    content
}

fn arena() -> Arc<ExtentArena> {
    ExtentArena::new(Box::new(HeapRegion::new(2)))
}

/// Returns the bytes that a range of an extent has in the stream.
fn expected(lease: &Lease, range: &ExtentRange) -> Vec<u8> {
    let layout = lease.content().layout;
    let lead = if range.part == SlotPart::Frames { 0 } else { layout.header_bytes() };
    let mut bytes = Vec::new();
    for packet in range.place..20 {
        let at = packet as usize * layout.slot_bytes();
        let payload = if packet == 19 { 188 } else { layout.packet_bytes() };
        bytes.extend_from_slice(&lease.bytes()[at + lead..at + layout.header_bytes() + payload]);
    }
    bytes[range.skip as usize..][..range.bytes as usize].to_vec()
}

fn cut(store: &Store, queue: &mut Queue, seq: Seq, mss: u32, most: u32) -> SegmentPayload {
    match store.cut(queue, seq, mss, most) {
        Cutting::Cut(cut) => cut,
        other => panic!("{other:?}"),
    }
}

/// Cuts all of the queue in segments; their lengths. Bytes and sums are compared.
fn cut_all(store: &mut Store, queue: &mut Queue, mss: u32, expected: &[u8]) -> Vec<u32> {
    let (mut seq, mut lengths, mut all) = (FIRST, Vec::new(), Vec::new());
    while seq != queue.end() {
        let cut = cut(&*store, queue, seq, mss, u32::MAX);
        let payload = store.payload(&cut);
        let bytes = payload.slices().concat();
        assert_eq!(payload.bytes as usize, bytes.len());
        assert_eq!(payload.sum % 0xffff, sum16(&bytes) % 0xffff, "{lengths:?}");
        lengths.push(cut.bytes());
        all.extend(bytes);
        seq += cut.bytes();
    }
    assert!(all == expected, "{lengths:?}");
    lengths
}

#[test]
fn cut_aligns_segments_to_stored_packets() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let lease = arena.lend(0, content).unwrap();
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 19 * 1316 + 188, part: SlotPart::Payloads };
    let all = expected(&lease, &range);
    store.append_extent(&mut queue, lease, range).unwrap();
    let lengths = cut_all(&mut store, &mut queue, 1460, &all);
    assert_eq!(lengths[..19], [1316; 19]);
    assert_eq!(lengths[19..], [188]);
    assert_eq!(
        cut_all(&mut store, &mut queue, 8948, &all)[..2],
        [6 * 1316, 6 * 1316],
        "a jumbo takes several"
    );
    let small = cut_all(&mut store, &mut queue, 536, &all);
    assert_eq!(small[..6], [536, 536, 244, 536, 536, 244], "what does not fit is cut at the same places");
    assert_eq!(cut(&store, &mut queue, FIRST + 100, 536, 9_000).bytes(), 436, "whoever asks");
}

#[test]
fn payload_of_whole_packet_uses_stored_checksum() {
    let arena = arena();
    let layout = WireLayout::new(1316).unwrap();
    let content = extent(&arena, 0, layout);
    // A record that lies: whole packets show it, pieces do not.
    assert!(arena.reclaim(0));
    let mut fill = arena.fill(0).unwrap();
    let record = layout.meta_offset(0, 20);
    fill.part_mut(record, 8).copy_from_slice(&PacketMeta::new(0x1234, 0, MediaTicks(0)).to_bytes());
    fill.publish();
    let lease = arena.lend(0, content).unwrap();
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 2632, part: SlotPart::Payloads };
    store.append_extent(&mut queue, lease, range).unwrap();
    let whole = cut(&store, &mut queue, FIRST, 1460, 5_000);
    assert_eq!(store.payload(&whole).sum, 0x1234);
    let piece = cut(&store, &mut queue, FIRST, 1460, 1000);
    assert_ne!(store.payload(&piece).sum, 0x1234);
}

#[test]
fn odd_edges_frames_and_host_bytes_have_right_sums() {
    let arena = arena();
    for layout in [WireLayout::new(1316).unwrap(), WireLayout::blocks(777).unwrap()] {
        let content = extent(&arena, 0, layout);
        for part in [SlotPart::Payloads, SlotPart::Frames] {
            for (skip, host, cut_off) in [(0, 4, 0), (1, 1, 1), (315, 7, 2), (2, 1000, 501)] {
                let (mut store, mut queue) = (Store::new(8, 4), Queue::new(FIRST));
                let lease = arena.lend(0, content).unwrap();
                let unit = if part == SlotPart::Frames { layout.slot_bytes() } else { layout.packet_bytes() };
                let bytes = 5 * unit as u32 - skip - cut_off;
                let range = ExtentRange { place: 2, skip, bytes, part };
                let head = vec![0x5a; host];
                let mut all = [head.as_slice(), &expected(&lease, &range)].concat();
                all.extend(b"tail");
                assert_eq!(store.append_bytes(&mut queue, &head), host);
                store.append_extent(&mut queue, lease, range).unwrap();
                assert_eq!(store.append_bytes(&mut queue, b"tail"), 4);
                for mss in [1460, 1400, 536, 8948, 100] {
                    cut_all(&mut store, &mut queue, mss, &all);
                }
                store.clear(&mut queue);
                assert_eq!((store.used(), store.leases(), store.host_pages()), (0, 0, 0));
            }
        }
        assert!(arena.reclaim(0));
    }
}

#[test]
fn cut_joins_short_prefix_with_packet_if_both_fit() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(8, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 1328, part: SlotPart::Frames };
    for _ in 0..2 {
        store.append_bytes(&mut queue, b"$\x00\x05\x30");
        store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    }
    let first = cut(&store, &mut queue, FIRST, 1460, 9_000);
    assert_eq!((first.bytes(), first.is_full(), first.descriptors()), (1332, true, 2));
    let second = cut(&store, &mut queue, FIRST + 1332, 1460, 9_000);
    assert_eq!((second.bytes(), second.is_full()), (1332, false), "the last one may have to wait");
    let host = cut(&store, &mut queue, FIRST, 1330, 9_000);
    assert_eq!(host.bytes(), 4);
    let clipped = cut(&store, &mut queue, FIRST, 1460, 1000);
    assert_eq!((clipped.bytes(), clipped.is_full()), (1000, false));
}

#[test]
fn cut_exactly_returns_requested_size() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(8, 4), Queue::new(FIRST));
    let lease = arena.lend(0, content).unwrap();
    let range = ExtentRange { place: 0, skip: 0, bytes: 13_160, part: SlotPart::Payloads };
    let all = expected(&lease, &range);
    store.append_extent(&mut queue, lease, range).unwrap();
    let Cutting::Cut(cut) = store.cut_exactly(&mut queue, FIRST, 1400) else { panic!("no probe") };
    let payload = store.payload(&cut);
    assert_eq!(payload.slices().concat(), all[..1400]);
    assert_eq!(payload.sum % 0xffff, sum16(&all[..1400]) % 0xffff);
}

#[test]
fn lease_is_released_after_acknowledgment_and_device_return() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 2632, part: SlotPart::Payloads };
    store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    let first = cut(&store, &mut queue, FIRST, 1460, 9_000);
    let frames = [store.handed(&first), store.handed(&first)];
    let second = cut(&store, &mut queue, FIRST + 1316, 1460, 9_000);
    let third = store.handed(&second);
    store.returned(frames[0]);
    store.acked(&mut queue, FIRST + 2631);
    assert_eq!((store.used(), arena.leases(0)), (1, 1), "a byte is missing");
    store.acked(&mut queue, FIRST + 2632);
    assert!(queue.is_empty());
    assert_eq!((store.used(), arena.leases(0)), (1, 1), "the device reads it");
    store.returned(third);
    assert_eq!(arena.leases(0), 1, "a retransmission is in the device too");
    store.returned(frames[1]);
    assert_eq!((store.used(), store.leases(), arena.leases(0)), (0, 0, 0));
    // The other order: the device first.
    let mut queue = Queue::new(FIRST);
    store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    let frame = store.handed(&cut(&store, &mut queue, FIRST, 1460, 9_000));
    store.returned(frame);
    assert_eq!(arena.leases(0), 1);
    store.acked(&mut queue, FIRST + 2632);
    assert_eq!(arena.leases(0), 0);
}

#[test]
fn unpin_of_stalled_queue_releases_lease_and_requests_it_again() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let lease = arena.lend(0, content).unwrap();
    let range = ExtentRange { place: 1, skip: 5, bytes: 2000, part: SlotPart::Payloads };
    let all = expected(&lease, &range);
    store.append_extent(&mut queue, lease, range).unwrap();
    let first = cut(&store, &mut queue, FIRST, 1460, 9_000);
    let frame = store.handed(&first);
    assert!(store.unpin(&queue));
    assert_eq!(arena.leases(0), 1, "the device reads it");
    store.returned(frame);
    assert_eq!((arena.leases(0), store.leases(), store.used()), (0, 0, 1));
    let Cutting::Wanted(index) = store.cut(&mut queue, FIRST, 1460, 9_000) else { panic!("not wanted") };
    assert_eq!(store.want(index), Some(content));
    assert_eq!(store.want(index), None, "asked for once");
    let other = extent(&arena, 1, WireLayout::new(1316).unwrap());
    assert_eq!(store.supply(&queue, &arena.lend(1, other).unwrap(), true), 0, "another extent");
    assert_eq!(store.supply(&queue, &arena.lend(0, content).unwrap(), true), 1);
    let again = cut(&store, &mut queue, FIRST, 1460, 9_000);
    assert_eq!(store.payload(&again).slices().concat(), all[..again.bytes() as usize]);
    let frame = store.handed(&again);
    store.returned(frame);
    assert_eq!(arena.leases(0), 0, "still stalled: it goes back when the device is done");
    // Progress: it stays.
    store.supply(&queue, &arena.lend(0, content).unwrap(), true);
    store.keep(&queue);
    let frame = store.handed(&again);
    store.returned(frame);
    assert_eq!(arena.leases(0), 1);
    assert_eq!(cut_all(&mut store, &mut queue, 1460, &all).len(), 2);
}

/// Of an application that could not supply it again.
#[test]
fn append_held_keeps_lease_until_acknowledged() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 2632, part: SlotPart::Payloads };
    store.append_held(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    assert!(!store.unpin(&queue), "there was none to be given back");
    let frame = store.handed(&cut(&store, &mut queue, FIRST, 1460, 9_000));
    store.returned(frame);
    assert_eq!(arena.leases(0), 1);
    store.acked(&mut queue, FIRST + 2632);
    assert_eq!(arena.leases(0), 0);
    store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    assert!(store.unpin(&queue) && arena.leases(0) == 0, "the next one of that descriptor does not");
}

#[test]
fn unpin_after_close_title_keeps_lease() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(4, 4), Queue::new(FIRST));
    let range = ExtentRange { place: 0, skip: 0, bytes: 2000, part: SlotPart::Payloads };
    store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    assert!(store.unpin(&queue));
    assert!(!arena.close_title(content.title), "it may be asked for");
    assert_eq!(store.supply(&queue, &arena.lend(0, content).unwrap(), false), 1);
    assert!(arena.close_title(content.title));
    assert!(!store.unpin(&queue));
    assert_eq!((store.leases(), arena.leases(0)), (1, 1), "nobody could give it back");
    let frame = store.handed(&cut(&store, &mut queue, FIRST, 1460, 9_000));
    store.returned(frame);
    assert_eq!(arena.leases(0), 1);
    // A connection that ends needs nothing any more.
    store.clear(&mut queue);
    assert_eq!(arena.leases(0), 0);
    arena.open_title(content.title);
    store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range).unwrap();
    assert!(store.unpin(&queue) && !arena.close_title(content.title));
    store.clear(&mut queue);
    assert!(arena.close_title(content.title));
}

#[test]
fn bounds_hold() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let (mut store, mut queue) = (Store::new(3, 2), Queue::new(FIRST));
    assert_eq!(store.append_bytes(&mut queue, &[1; 10_000]), 4096);
    let lease = || arena.lend(0, content).unwrap();
    for range in
        [(20, 0, 1), (19, 0, 189), (0, 1316, 1), (0, 0, 0), (0, 0, 19 * 1316 + 189), (5, 0, u32::MAX)]
    {
        let range = ExtentRange { place: range.0, skip: range.1, bytes: range.2, part: SlotPart::Payloads };
        let refused = store.append_extent(&mut queue, lease(), range).unwrap_err();
        assert_eq!(refused.0, QueueRefusal::Unfit, "{range:?}");
    }
    let range = ExtentRange { place: 0, skip: 0, bytes: 1316, part: SlotPart::Payloads };
    store.append_extent(&mut queue, lease(), range).unwrap();
    assert_eq!(store.append_extent(&mut queue, lease(), range).unwrap_err().0, QueueRefusal::Full);
    assert_eq!((store.used(), store.leases()), (3, 1));
    store.acked(&mut queue, FIRST + 2048);
    assert_eq!((store.used(), store.host_pages()), (2, 1));
    store.clear(&mut queue);
    assert_eq!((store.used(), store.leases(), store.host_pages(), arena.leases(0)), (0, 0, 0, 0));
    assert_eq!(store.cut(&mut queue, FIRST, 1460, 10), Cutting::Empty);
}

#[test]
fn packets_that_are_missing_are_not_queued() {
    let arena = arena();
    let layout = WireLayout::new(1316).unwrap();
    let content = extent(&arena, 0, layout);
    assert!(arena.reclaim(0));
    let mut fill = arena.fill(0).unwrap();
    let meta = PacketMeta::new(0, PacketMeta::MISSING, MediaTicks(0)).to_bytes();
    fill.part_mut(layout.meta_offset(7, 20), 8).copy_from_slice(&meta);
    fill.publish();
    let (mut store, mut queue) = (Store::new(4, 2), Queue::new(FIRST));
    for (place, bytes, fits) in
        [(0, 7 * 1316, true), (0, 7 * 1316 + 1, false), (7, 10, false), (8, 1316, true)]
    {
        let range = ExtentRange { place, skip: 0, bytes, part: SlotPart::Payloads };
        let queued = store.append_extent(&mut queue, arena.lend(0, content).unwrap(), range);
        assert_eq!(queued.is_ok(), fits, "{range:?}");
    }
}

#[test]
fn append_framed_queues_head_and_range_together_or_neither() {
    let arena = arena();
    let content = extent(&arena, 0, WireLayout::new(1316).unwrap());
    let lease = || arena.lend(0, content).unwrap();
    let range = |place| ExtentRange { place, skip: 0, bytes: 1316, part: SlotPart::Payloads };
    let (mut store, mut queue) = (Store::new(5, 1), Queue::new(Seq(100)));
    let heads: Vec<[u8; HEAD_BYTES]> = (1..=2).map(|n| [n; HEAD_BYTES]).collect();
    for (place, head) in heads.iter().enumerate() {
        store.append_framed(&mut queue, head, lease(), range(place as u32)).unwrap();
    }
    assert_eq!((store.used(), store.leases(), store.host_pages()), (4, 2, 0));
    // One descriptor is left, and two are needed.
    for (head, wanted) in [
        (&heads[0][..], QueueRefusal::Full),
        (&[], QueueRefusal::Unfit),
        (&[0; HEAD_BYTES + 1], QueueRefusal::Unfit),
    ] {
        let refused = store.append_framed(&mut queue, head, lease(), range(2)).unwrap_err().0;
        assert_eq!((refused, queue.end(), store.used()), (wanted, Seq(100) + 2 * 1332, 4));
    }
    // A head goes with its packet: each segment is one frame, and its sum is that of its bytes.
    let mut seq = Seq(100);
    for (place, head) in heads.iter().enumerate() {
        let cut = cut(&store, &mut queue, seq, 1448, u32::MAX);
        let payload = store.payload(&cut);
        let bytes = payload.slices().concat();
        let lease = lease();
        let wanted = [&head[..], &lease.wire(place as u32, 1)[12..]].concat();
        assert!(bytes == wanted && payload.sum == sum16(&bytes), "frame {place}");
        seq += cut.bytes();
    }
    store.clear(&mut queue);
    assert_eq!((store.used(), store.leases()), (0, 0));
}

#[test]
fn bytes_that_are_to_be_whole_are_queued_whole_or_not_at_all() {
    let (mut store, mut queue) = (Store::new(8, 2), Queue::new(Seq(0)));
    let long = [1; 2 * HOST_PAGE_BYTES];
    assert!(!store.append_whole(&mut queue, &[&long, &[2]]));
    assert_eq!((store.used(), store.host_pages(), queue.end()), (0, 0, Seq(0)));
    assert!(store.append_whole(&mut queue, &[&long[1..], &[2]]));
    assert_eq!((store.free_host_pages(), queue.end()), (0, Seq(2 * HOST_PAGE_BYTES as u32)));
    assert!(!store.append_whole(&mut queue, &[&[3]]));
}

#[test]
fn its_size_counts_all_descriptors_and_pages() {
    let (store, bytes) = (Store::new(300, 20), Store::bytes(300, 20));
    let pages = 20 * crate::limits::HOST_PAGE_BYTES;
    let all = size_of_val(&*store.descriptors) + pages;
    assert!(bytes >= all && bytes < all + pages, "{bytes} for {all}");
}
