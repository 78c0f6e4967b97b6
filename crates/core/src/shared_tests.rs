//! Reads return the data written, wherever it lies; a ring hands over each record once and in
//! order.

use super::*;
use crate::random::SplitMix;

fn ring(entries: u32) -> (RingProducer, RingConsumer, Words) {
    let words = Words::new(3 + entries as usize * ENTRY_WORDS);
    let producer = RingProducer::new(&words, 3, entries).unwrap();
    (producer, RingConsumer::new(&words, 3, entries).unwrap(), words)
}

#[test]
fn words_start_at_cache_line_boundary() {
    for _ in 0..8 {
        assert_eq!(Words::new(5).words().as_ptr().addr() % 64, 0);
    }
}

#[test]
fn bytes_come_back_and_their_neighbours_stay() {
    const BYTES: usize = 64;
    for at in 0..=BYTES {
        for len in 0..=BYTES - at {
            let words = Words::new(BYTES / WORD_BYTES);
            assert!(words.write(0, &[0xaa; BYTES]));
            let bytes: Vec<u8> = (0..len as u8).collect();
            assert!(words.write(at, &bytes));
            let mut all = [0; BYTES];
            assert!(words.read(0, &mut all));
            assert_eq!(all[at..at + len], bytes, "{len} at {at}");
            assert!(all[..at].iter().chain(&all[at + len..]).all(|&byte| byte == 0xaa), "{len} at {at}");
            let mut part = vec![0; len];
            assert!(words.read(at, &mut part));
            assert_eq!(part, bytes, "{len} at {at}");
        }
    }
}

#[test]
fn words_access_out_of_bounds_is_rejected() {
    let words = Words::new(2);
    for (at, len) in [(0, 17), (16, 1), (usize::MAX, 1), (usize::MAX - 3, 8), (24, 0)] {
        assert!(!words.write(at, &vec![1; len]), "{len} at {at}");
        assert!(!words.read(at, &mut vec![1; len]), "{len} at {at}");
    }
    assert!(words.read(16, &mut []));
    words.store(2, 7);
    assert_eq!((words.load(0), words.load(1), words.load(2)), (0, 0, 0));
    assert!(RingProducer::new(&words, 0, 1).is_none());
    assert!(RingConsumer::new(&Words::new(64), 0, 3).is_none(), "not a power of two");
    assert!(RingConsumer::new(&Words::new(64), usize::MAX, 2).is_none());
}

#[test]
fn records_come_once_in_order_and_a_full_ring_takes_none() {
    let (mut producer, mut consumer, _) = ring(4);
    let mut random = SplitMix(5);
    let (mut sent, mut got) = (0u64, 0u64);
    for _ in 0..10_000 {
        if random.next().is_multiple_of(2) {
            let is_full = sent - got == 4;
            assert_eq!(producer.has_room(), !is_full);
            assert_eq!(producer.push(&[sent; RECORD_WORDS]), !is_full);
            sent += u64::from(!is_full);
        } else {
            assert_eq!(consumer.is_ready(), got < sent);
            assert_eq!(consumer.pop(), (got < sent).then_some([got; RECORD_WORDS]));
            got += u64::from(got < sent);
        }
    }
    assert!(got > 1000, "{got}");
}

/// The other side may write anything into the memory: neither side panics, and at most the ring is
/// stuck.
#[test]
fn garbage_in_the_memory_hurts_nobody() {
    let (mut producer, mut consumer, words) = ring(4);
    let mut random = SplitMix(9);
    for _ in 0..100_000 {
        words.store(random.next() as usize % words.count(), random.next() % 4);
        let _ = producer.push(&[1; RECORD_WORDS]);
        let _ = consumer.pop();
    }
}

#[test]
fn ring_between_two_threads_keeps_order() {
    const RECORDS: u64 = 100_000;
    let (mut producer, mut consumer, _) = ring(64);
    let thread = std::thread::spawn(move || {
        for number in 0..RECORDS {
            while !producer.push(&[number; RECORD_WORDS]) {
                std::thread::yield_now();
            }
        }
    });
    for number in 0..RECORDS {
        let record = loop {
            match consumer.pop() {
                Some(record) => break record,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(record, [number; RECORD_WORDS]);
    }
    thread.join().unwrap();
}

/// Words owned by another party behave like any others.
#[test]
fn ring_in_foreign_region_passes_records() {
    struct ZeroedRegion([AtomicU64; 20]);
    impl Region for ZeroedRegion {
        fn words(&self) -> &[AtomicU64] {
            &self.0
        }
    }
    let region = Arc::new(ZeroedRegion([const { AtomicU64::new(0) }; 20]));
    let words = Words::over(Arc::clone(&region) as Arc<dyn Region>);
    assert_eq!(words.count(), 20);
    assert!(RingProducer::new(&words, 5, 2).is_none(), "it ends outside");
    let (mut producer, mut consumer) =
        (RingProducer::new(&words, 4, 2).unwrap(), RingConsumer::new(&words, 4, 2).unwrap());
    assert!(producer.push(&[7; RECORD_WORDS]));
    assert_eq!(region.0[4].load(Ordering::Relaxed), 7);
    assert_eq!(consumer.pop(), Some([7; RECORD_WORDS]));
    let flag = crate::sleep::SleepFlag::new(&words, 3).unwrap();
    flag.announce();
    assert_eq!(region.0[3].load(Ordering::Relaxed), 1, "the other side sees who sleeps");
    assert!(flag.must_wake() && !flag.must_wake() && !flag.is_asleep());
    assert!(crate::sleep::SleepFlag::new(&words, 20).is_none());
}
