use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use millrace_core::ids::TitleRef;
use millrace_core::packet::WireLayout;
use millrace_core::pool::{ExtentArena, ExtentContent, HeapRegion};
use proptest::prelude::*;

struct Films {
    arena: Arc<ExtentArena>,
}

impl Films {
    fn new() -> Self {
        let arena = ExtentArena::new(Box::new(HeapRegion::new(1)));
        arena.fill(0).unwrap().publish();
        Self { arena }
    }

    fn lease(&self) -> Lease {
        let layout = WireLayout::new(1316).unwrap();
        let content = ExtentContent {
            title: TitleRef(0),
            number: 0,
            first_packet: 0,
            packets: 196,
            last_packet_bytes: 1316,
            layout,
            spare: 0,
        };
        self.arena.lend(0, content).unwrap()
    }

    fn out(&self) -> u32 {
        self.arena.leases(0)
    }
}

#[test]
fn ranges_in_any_order_give_the_leases_back() {
    let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
    for _ in 0..10 {
        held.hold(films.lease());
    }
    assert_eq!((held.outstanding(), films.out(), held.room()), (10, 10, 118));
    held.complete(4, 6, false);
    assert_eq!((held.outstanding(), films.out()), (10, 7), "the oldest are still out");
    held.complete(0, 3, false);
    assert_eq!((held.outstanding(), films.out()), (3, 3));
    // A completion that was already reported changes nothing.
    held.complete(0, 6, false);
    held.complete(7, 9, false);
    assert_eq!((held.outstanding(), films.out(), held.room()), (0, 0, 128));
    assert_eq!(held.state(), ZeroCopy::Ready);
}

#[test]
fn numbers_wrap_around() {
    let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
    (held.oldest, held.next) = (u32::MAX - 2, u32::MAX - 2);
    for _ in 0..6 {
        held.hold(films.lease());
    }
    held.complete(u32::MAX - 1, 1, false);
    assert_eq!((held.outstanding(), films.out()), (6, 2));
    held.complete(u32::MAX - 2, u32::MAX - 2, false);
    held.complete(2, 2, false);
    assert_eq!((held.outstanding(), films.out(), held.next), (0, 0, 3));
}

#[test]
fn doubt_after_failed_send_is_resolved_by_error_queue() {
    let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
    held.hold(films.lease());
    held.doubt();
    assert_eq!(held.room(), 0, "nothing until it is known");
    held.complete(0, 1, false);
    held.read_to_end();
    assert_eq!((held.next, held.outstanding(), films.out()), (2, 0, 0));
    held.hold(films.lease());
    held.doubt();
    held.read_to_end();
    assert_eq!((held.next, held.room(), films.out()), (3, 127, 1));
    held.complete(2, 2, false);
    assert_eq!((films.out(), held.state()), (0, ZeroCopy::Ready));
}

#[test]
fn completion_of_unknown_number_disables_zero_copy() {
    for (doubts, last) in [(false, 1), (true, 2), (false, 1 << 31)] {
        let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
        held.hold(films.lease());
        if doubts {
            held.doubt();
        }
        held.complete(0, last, false);
        if last < 1 << 31 {
            assert_eq!((held.state(), held.room(), films.out()), (ZeroCopy::Miscounted, 0, 1));
            held.complete(0, 0, false);
        }
        assert!(films.out() <= 1);
        drop(held);
        assert_eq!(films.out(), 0);
    }
}

#[test]
fn zero_copy_pauses_when_kernel_mostly_copies() {
    for (copied_of_four, state) in [(2, ZeroCopy::Ready), (3, ZeroCopy::CopiedAnyway)] {
        let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
        for n in 0..64 {
            held.hold(films.lease());
            held.complete(n, n, n % 4 < copied_of_four);
        }
        assert_eq!((held.state(), films.out()), (state, 0));
        assert_eq!(held.room() > 0, state == ZeroCopy::Ready);
        // A viewer on this host does not spoil it for ever.
        held.begins(4095);
        assert_eq!(held.state(), state);
        held.begins(4096);
        assert_eq!((held.state(), held.room()), (ZeroCopy::Ready, 128));
    }
}

#[test]
fn enobufs_refusal_limits_room_and_repeated_refusal_disables() {
    let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
    for _ in 0..20 {
        held.hold(films.lease());
    }
    held.refused(libc::ENOBUFS);
    assert_eq!((held.room(), held.state()), (0, ZeroCopy::Ready));
    held.complete(0, 18, false);
    assert_eq!(held.room(), 19);
    for n in 19..70 {
        held.complete(n, n, false);
        held.hold(films.lease());
    }
    assert!(held.room() > 19, "{}", held.room());
    // Without anything outstanding it is not memory that is short.
    let mut held = ZeroCopyLeases::new(ZeroCopy::Ready);
    for _ in 0..7 {
        held.refused(libc::ENOBUFS);
    }
    held.hold(films.lease());
    held.complete(0, 0, false);
    for _ in 0..7 {
        held.refused(libc::EMSGSIZE);
    }
    assert_eq!(held.state(), ZeroCopy::Ready, "not in a row");
    held.refused(libc::EMSGSIZE);
    assert_eq!((held.state(), held.room()), (ZeroCopy::Refused { errno: libc::EMSGSIZE }, 0));
}

#[test]
fn zero_copy_not_offered_has_no_room() {
    let mut held = ZeroCopyLeases::new(ZeroCopy::NotOffered { errno: libc::EOPNOTSUPP });
    assert_eq!((held.room(), held.begins(u64::MAX)), (0, false));
}

proptest! {
    /// Compares with a map of the outstanding sends: sends and completions in any order, in ranges
    /// of any length.
    #[test]
    fn lease_is_held_exactly_until_its_completion(
        start in any::<u32>(),
        steps in proptest::collection::vec((0u32..20, any::<u32>(), 0u32..10), 1..200),
    ) {
        let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
        (held.oldest, held.next) = (start, start);
        let mut out: BTreeMap<u64, ()> = BTreeMap::new();
        let mut sent = 0u64;
        for (sends, place, length) in steps {
            for _ in 0..sends.min(held.room()) {
                held.hold(films.lease());
                out.insert(sent, ());
                sent += 1;
            }
            if sent > 0 {
                let oldest = sent.saturating_sub(200);
                let first = oldest + u64::from(place) % (sent - oldest);
                let last = (first + u64::from(length)).min(sent - 1);
                held.complete(start.wrapping_add(first as u32), start.wrapping_add(last as u32), false);
                out.retain(|n, ()| !(first..=last).contains(n));
            }
            prop_assert_eq!(films.out() as usize, out.len());
            let oldest = out.keys().next().copied().unwrap_or(sent);
            prop_assert_eq!(u64::from(held.outstanding()), sent - oldest);
        }
    }

    /// Whatever numbers come, nothing breaks.
    #[test]
    fn completion_with_any_numbers_stays_bounded(ranges in proptest::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 0..50)) {
        let (films, mut held) = (Films::new(), ZeroCopyLeases::new(ZeroCopy::Ready));
        for (first, last, doubts) in ranges {
            if held.room() > 0 {
                held.hold(films.lease());
            }
            if doubts {
                held.doubt();
            }
            held.complete(first, last, false);
            held.read_to_end();
            prop_assert!(held.outstanding() <= 128 && films.out() <= 128);
        }
    }
}
