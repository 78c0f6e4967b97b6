//! Rings in memory: order, bounds, wrap-around, two threads.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn desc(n: u64) -> Desc {
    Desc { address: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), len: n as u32, more: n.is_multiple_of(3) }
}

#[test]
fn desc_layout_matches_kernel_struct() {
    let words = [AtomicU64::new(0), AtomicU64::new(0)];
    Desc { address: 0x0102_0304_0506_0708, len: 0x1122, more: true }.store(&words);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
    // struct xdp_desc { __u64 addr; __u32 len; __u32 options; }
    assert_eq!(bytes[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(bytes[8..12], 0x1122u32.to_ne_bytes());
    assert_eq!(bytes[12..], rustix::net::xdp::XdpDescOptions::XDP_PKT_CONTD.bits().to_ne_bytes());
    assert_eq!(size_of::<rustix::net::xdp::XdpDesc>(), 8 * Desc::WORDS);
}

#[test]
fn empty_ring_pops_none_and_full_ring_rejects_push() {
    let (mut tx, mut rx) = Ring::<u64>::heap(3);
    assert_eq!((tx.capacity(), rx.capacity()), (4, 4));
    assert_eq!((rx.pop(), rx.available()), (None, 0));
    for n in 0..4 {
        assert!(tx.push(n));
    }
    assert!(!tx.push(9));
    assert_eq!(rx.pop(), None, "nothing was published");
    tx.publish();
    assert_eq!((rx.available(), tx.pending()), (4, 4));
    assert_eq!(rx.pop(), Some(0));
    assert!(!tx.push(9), "the place is not given back yet");
    rx.release();
    assert_eq!(tx.pending(), 3);
    assert!(tx.push(4) && !tx.push(5));
    tx.publish();
    assert_eq!(std::iter::from_fn(|| rx.pop()).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn counts_wrap_at_two_to_the_32() {
    let memory = RingMemory::heap(4 * Desc::WORDS);
    let start = u32::MAX - 5;
    memory.producer().store(start, Ordering::Relaxed);
    memory.consumer().store(start, Ordering::Relaxed);
    let half = |memory| Ring::<Desc> { memory, entries: 4, kind: PhantomData };
    let (mut tx, mut rx) = (half(memory.clone()).into_producer(), half(memory).into_consumer());
    for round in 0..10 {
        for n in 0..4 {
            assert!(tx.push(desc(round * 4 + n)), "{round}");
        }
        assert!(!tx.push(desc(0)));
        tx.publish();
        for n in 0..4 {
            assert_eq!(rx.pop(), Some(desc(round * 4 + n)));
        }
        assert_eq!(rx.pop(), None);
        rx.release();
    }
}

#[test]
fn needs_wakeup_follows_flag_if_enabled() {
    let (tx, rx) = Ring::<u64>::heap(4);
    assert!(tx.needs_wakeup(false), "without the flag every time");
    assert!(!tx.needs_wakeup(true));
    rx.ask_for_wakeup(true);
    assert!(tx.needs_wakeup(true));
    rx.ask_for_wakeup(false);
    assert!(!tx.needs_wakeup(true));
}

#[derive(Clone, Copy, Debug)]
enum RingStep {
    Push,
    Publish,
    Pop,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<RingStep>> {
    let step = prop_oneof![
        4 => Just(RingStep::Push),
        2 => Just(RingStep::Publish),
        4 => Just(RingStep::Pop),
        2 => Just(RingStep::Release)
    ];
    proptest::collection::vec(step, 0..400)
}

proptest! {
    /// Against a model of two queues: whatever is done in whatever order, entries come out in order and never early,
    /// and places are used again only when they were given back.
    #[test]
    fn behaves_like_a_bounded_queue(steps in steps(), size in 0u32..4) {
        let size = 1 << size;
        let (mut tx, mut rx) = Ring::<Desc>::heap(size);
        let (mut written, mut published, mut read, mut released) = (0u64, 0u64, 0u64, 0u64);
        let mut unread = VecDeque::new();
        for step in steps {
            match step {
                RingStep::Push => {
                    let room = written - released < u64::from(size);
                    prop_assert_eq!(tx.push(desc(written)), room);
                    if room {
                        unread.push_back(desc(written));
                        written += 1;
                    }
                }
                RingStep::Publish => {
                    tx.publish();
                    published = written;
                }
                RingStep::Pop => {
                    let wanted = (read < published).then(|| unread.pop_front()).flatten();
                    read += u64::from(wanted.is_some());
                    prop_assert_eq!(rx.pop(), wanted);
                }
                RingStep::Release => {
                    rx.release();
                    released = read;
                }
            }
            prop_assert_eq!(u64::from(tx.pending()), published - released);
            prop_assert_eq!(u64::from(tx.free(size)), u64::from(size) - (written - released));
        }
    }

    /// No nonsense in the shared words makes an end panic.
    #[test]
    fn nonsense_counts_do_no_harm(producer: u32, consumer: u32, more: u32) {
        let memory = RingMemory::heap(8);
        memory.producer().store(producer, Ordering::Relaxed);
        memory.consumer().store(consumer, Ordering::Relaxed);
        let half = |memory| Ring::<u64> { memory, entries: 8, kind: PhantomData };
        let (mut tx, mut rx) = (half(memory.clone()).into_producer(), half(memory.clone()).into_consumer());
        memory.producer().store(more, Ordering::Relaxed);
        memory.consumer().store(more.rotate_left(7), Ordering::Relaxed);
        for _ in 0..20 {
            tx.push(1);
            rx.pop();
            prop_assert!(tx.free(8) <= 8 && rx.available() <= 8);
        }
        rx.release();
        tx.publish();
    }
}

#[test]
fn ring_between_two_threads_preserves_order() {
    const COUNT: u64 = 200_000;
    let (mut tx, mut rx) = Ring::<Desc>::heap(64);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut n = 0;
            while n < COUNT {
                // Batches of changing length.
                for _ in 0..1 + n % 7 {
                    n += u64::from(n < COUNT && tx.push(desc(n)));
                }
                tx.publish();
                if tx.free(1) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut n = 0;
        while n < COUNT {
            match rx.pop() {
                Some(got) => {
                    assert_eq!(got, desc(n));
                    n += 1;
                    if n % 5 == 0 {
                        rx.release();
                    }
                }
                None => {
                    rx.release();
                    std::thread::yield_now();
                }
            }
        }
    });
}
