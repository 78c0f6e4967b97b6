//! Frames and leases: nothing is used twice, nothing is lost, nonsense from a device does no harm.

use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentContent, HeapRegion};
use proptest::prelude::*;

use super::*;

fn arena(extents: usize, aside: u32) -> Arc<ExtentArena> {
    ExtentArena::with_aside(Box::new(HeapRegion::new(extents)), aside)
}

#[test]
fn frames_come_from_the_extents_aside() {
    let arena = arena(6, 4);
    let busy = arena.fill(3).unwrap();
    let mut frames = Frames::take_from(&arena, 2, true, 2048);
    assert_eq!(frames.extents(), 2);
    assert_eq!((frames.free(FrameKind::Header), frames.free(FrameKind::Full)), (2048, 128));
    let (header, full) = (frames.take(FrameKind::Header).unwrap(), frames.take(FrameKind::Full).unwrap());
    assert_eq!((header, full), (2 * EXTENT_BYTES as u64, 4 * EXTENT_BYTES as u64), "extent 3 was taken");
    assert_eq!(frames.bytes_mut(header).unwrap().len(), HEADER_FRAME_BYTES);
    frames.bytes_mut(full).unwrap()[2047] = 7;
    assert_eq!(address_of(&arena, &frames.bytes_mut(full).unwrap()[5..]), Some(full + 5));
    assert_eq!(address_of(&arena, &[1, 2, 3]), None);
    drop(busy);
    let mut rest = Frames::take_from(&arena, 9, false, 3000);
    assert_eq!((rest.extents(), rest.free(FrameKind::Full), rest.full_bytes()), (2, 128, 4096));
    assert_eq!(rest.take(FrameKind::Header), None);
    assert_eq!(Frames::take_from(&arena, 1, false, 2048).extents(), 0, "all are taken");
    frames.give_back();
    assert_eq!((frames.take(FrameKind::Full), frames.complete(full)), (None, false));
    assert_eq!(Frames::take_from(&arena, 9, false, 2048).extents(), 2, "given back");
}

#[test]
fn held_lease_is_released_after_last_completion() {
    let arena = arena(3, 1);
    let layout = WireLayout::new(1316).unwrap();
    let content = ExtentContent {
        title: TitleRef(0),
        number: 0,
        first_packet: 0,
        packets: 1,
        last_packet_bytes: 1316,
        layout,
        spare: 0,
    };
    arena.fill(1).unwrap().publish();
    let lease = arena.lend(1, content).unwrap();
    let mut held = HeldLeases::new(&arena);
    held.hold(&lease, 2);
    held.hold(&lease, 1);
    drop(lease);
    let address = EXTENT_BYTES as u64 + 17;
    assert_eq!((arena.leases(1), held.now()), (1, 1));
    assert!(held.complete(address) && held.complete(address) && !arena.reclaim(1));
    assert!(held.complete(address));
    assert_eq!((arena.leases(1), held.now()), (0, 0));
    assert!(!held.complete(address) && !held.complete(0) && !held.complete(u64::MAX));
    assert!(arena.reclaim(1));
}

#[test]
fn page_bytes_returns_page_size_of_mapping() {
    let text = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0\nSize: 2048 kB\nKernelPageSize:     2048 kB\n\
                7f0000200000-7f0000201000 r--p 00000000 00:00 0\nKernelPageSize:        4 kB\n";
    assert_eq!(page_bytes(text, 0x7f00_0000_0000), Some(2 << 20));
    assert_eq!(page_bytes(text, 0x7f00_0020_0fff), Some(4096));
    assert_eq!(page_bytes(text, 0x7f00_0020_1000), None);
    assert!(!is_on_huge_pages(&arena(1, 0)));
}

proptest! {
    #[test]
    fn page_bytes_of_any_text_never_panics(text: String, address: u64) {
        let _ = page_bytes(&text, address);
    }

    /// A frame is out once at most, whatever a device completes.
    #[test]
    fn frames_take_never_returns_outstanding_frame(steps in proptest::collection::vec((any::<bool>(), 0u64..400, any::<bool>()), 0..300)) {
        let arena = arena(2, 2);
        let mut frames = Frames::take_from(&arena, 2, true, 4096);
        let total = [frames.free(FrameKind::Header), frames.free(FrameKind::Full)];
        let mut out = std::collections::BTreeSet::new();
        for (take, number, is_header) in steps {
            let kind = if is_header { FrameKind::Header } else { FrameKind::Full };
            if take {
                let is_left = frames.free(kind) > 0;
                let got = frames.take(kind);
                prop_assert_eq!(got.is_some(), is_left);
                prop_assert!(got.is_none_or(|address| out.insert(address)), "{:?} is out already", got);
            } else {
                let address = number * 1024;
                prop_assert_eq!(frames.complete(address), out.remove(&address));
            }
        }
        let back: Vec<u64> = out.into_iter().collect();
        prop_assert!(back.into_iter().all(|address| frames.complete(address)));
        prop_assert_eq!([frames.free(FrameKind::Header), frames.free(FrameKind::Full)], total);
    }
}
